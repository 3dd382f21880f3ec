"""How a command answers: text for people, or one JSON object."""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

__all__ = ["Commands", "report", "report_error", "table"]

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
    print(json.dumps(data, default=str) if arguments.json else text, flush=True)


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
        print(f"exoskel: error: {text}", file=sys.stderr, flush=True)


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
