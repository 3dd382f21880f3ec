"""``exoskel version``: what both sides of a session compare."""

import argparse
import platform

from .. import __version__
from .report import Commands, report

__all__ = ["add_commands", "versions"]


def versions() -> str:
    """Return the versions of Exoskel and Python, as text."""
    return f"exoskel {__version__}, Python {platform.python_version()}"


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``version``."""
    parser = commands.add_parser(
        "version", parents=[common], help="print the versions of Exoskel and Python"
    )
    parser.set_defaults(run=_version)


def _version(arguments: argparse.Namespace) -> int:
    data = {"exoskel": __version__, "python": platform.python_version()}
    report(arguments, versions(), data)
    return 0
