"""The command line: certificates, proxies, trust, workers, policies, simulations.

Every command takes ``--json`` for machine-readable output. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import argparse
import sys
from collections.abc import Sequence

from ..errors import ExoskelError
from . import front, pki, policy, proxy, sim, trust, up, version, whoami, worker
from .report import report_error

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; those of the process if absent.

    Returns
    -------
    int
        The exit code.
    """
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except BrokenPipeError:
        # The reader of our output (`| head`) has seen enough.
        sys.stderr.close()
        return 1
    except (ExoskelError, OSError, ValueError) as error:
        report_error(arguments, _text_of(error))
        return 1
    except KeyboardInterrupt as interrupt:
        report_error(arguments, str(interrupt) or "interrupted")
        return 1


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser = argparse.ArgumentParser(
        prog="exoskel",
        description="Run one parallel program across machines you trust and machines you don't.",
        epilog="Start with: exoskel pki init; exoskel pki issue --role worker --name HOST; exoskel worker --help",
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for module in (pki, worker, up, policy, proxy, whoami, trust, front, sim, version):
        module.add_commands(commands, common)
    return parser


def _text_of(error: Exception) -> str:
    """Say what failed, with the file if the system names one."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror.lower()}"
    return str(error) or type(error).__name__
