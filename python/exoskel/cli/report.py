"""How a command answers: text for people, or one JSON object."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from typing import Any, TypeAlias

from ..peer_text import one_line

__all__ = ["Commands", "duration", "moment", "report", "report_error", "table"]

# The class is private in argparse, and generic in its stubs only.
Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def report(arguments: argparse.Namespace, text: str, data: dict[str, Any]) -> None:
    """Print what a command did.

    Parameters
    ----------
    arguments : argparse.Namespace
        Those of the command.
    text : str
        The answer for people.
    data : dict
        The same for machines.
    """
    print(json.dumps(data, default=str) if arguments.json else _lines(text), flush=True)


def report_error(arguments: argparse.Namespace, text: str) -> None:
    """Print why a command failed.

    Parameters
    ----------
    arguments : argparse.Namespace
        Those of the command.
    text : str
        The reason.
    """
    if arguments.json:
        print(json.dumps({"error": text}), flush=True)
    else:
        print(f"exoskel: error: {_lines(text)}", file=sys.stderr, flush=True)


def _lines(text: str) -> str:
    """Names of files and traces stand in answers and errors: what drives a terminal is escaped, whoever has put it there."""
    return "\n".join("\t".join(map(one_line, line.split("\t"))) for line in text.split("\n"))


def table(titles: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows under titles, in columns.

    Parameters
    ----------
    titles : sequence of str
        The titles.
    rows : sequence of sequences
        What stands in the columns.

    Returns
    -------
    str
        The lines.
    """
    cells = [list(map(str, row)) for row in (titles, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def moment(seconds: int) -> str:
    """Return a time in words.

    Parameters
    ----------
    seconds : int
        Since 1970.

    Returns
    -------
    str
        Date and time in UTC.
    """
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds} s after 1970"


def duration(seconds: int) -> str:
    """Return a length of time: hours, minutes and seconds as grid tools write them, with days before them where there are any.

    Parameters
    ----------
    seconds : int
        The length; a negative one counts as none.

    Returns
    -------
    str
        For example ``11:59:32`` or ``12 days 3:00:00``.
    """
    days, rest = divmod(max(seconds, 0), 86_400)
    clock = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} days {clock}" if days else clock
