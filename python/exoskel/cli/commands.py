"""All commands: their arguments are read, one of them runs, and what it raises becomes an error message and an exit code."""

import argparse
import sys
from collections.abc import Sequence

from ..errors import ExoskelError
from . import (
    INTERRUPTED,
    WRONG_USAGE,
    UsageError,
    agent,
    config,
    couple,
    discover,
    front,
    gateway,
    job,
    keeper,
    links,
    pki,
    policy,
    proxy,
    sim,
    trust,
    up,
    version,
    whoami,
    worker,
)
from . import (
    run as run_command,
)
from .report import report_error

__all__ = ["parser", "run"]


def run(argv: Sequence[str] | None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str or None
        The arguments; None for those of the process.

    Returns
    -------
    int
        The exit code.
    """
    arguments = parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except BrokenPipeError:
        # The reader of our output (`| head`) has seen enough.
        sys.stderr.close()
        return 1
    except (ExoskelError, OSError, ValueError) as error:
        report_error(arguments, _text_of(error))
        return WRONG_USAGE if isinstance(error, UsageError) else 1
    except KeyboardInterrupt as interrupt:
        report_error(arguments, str(interrupt) or "interrupted")
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    """Return the parser of all commands' arguments."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    every = argparse.ArgumentParser(
        prog="exoskel",
        description="Run one parallel program across machines you trust and machines you don't.",
        epilog="Start with: exoskel pki init; exoskel pki issue --role worker --name HOST; exoskel worker --help",
    )
    every.add_argument(
        "--version",
        action="version",
        version=version.versions(),
        help="print the versions of Exoskel and Python",
    )
    commands = every.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (
        *(pki, worker, up, policy, links, gateway, agent, job, couple, keeper, config),
        *(discover, run_command, proxy, whoami, trust, front, sim, version),
    ):
        module.add_commands(commands, common)
    return every


def _text_of(error: Exception) -> str:
    """Say what failed, with the file if the system names one."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror.lower()}"
    return str(error) or type(error).__name__
