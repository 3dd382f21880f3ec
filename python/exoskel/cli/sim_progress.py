"""How far the runs of ``exoskel sim`` are."""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from . import UsageError

__all__ = ["as_usage", "shown"]

# Where there is no terminal (a log file, a batch system), one line this often.
LINE_SECONDS = 5.0


@contextlib.contextmanager
def as_usage() -> Iterator[None]:
    """For what refuses nothing but the values of options."""
    try:
        yield
    except ValueError as error:
        raise UsageError(*error.args) from error


@contextlib.contextmanager
def shown(
    arguments: argparse.Namespace, unit: str = "runs"
) -> Iterator[Callable[[str, int, int], None]]:
    """Show how far it is: a bar on a terminal, else a line now and then; nothing to machines."""
    if arguments.json:
        yield lambda _title, _done, _total: None
        return
    if not sys.stderr.isatty():
        yield _Lines(unit)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, markup=False, highlight=False)) as bar:
        tasks: dict[str, Any] = {}

        def show(title: str, done: int, total: int) -> None:
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=total)
            bar.update(tasks[title], completed=done)

        yield show


class _Lines:
    """Says on ``sys.stderr`` how far each figure is."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._title = ""
        self._done = 0
        self._said = 0.0

    def __call__(self, title: str, done: int, total: int) -> None:
        now = time.monotonic()
        # Of time, the end is reached before all that was begun has ended.
        if title == self._title and done == self._done == total:
            return
        if title != self._title or done == total or now - self._said >= LINE_SECONDS:
            self._title, self._done, self._said = title, done, now
            print(f"{title}: {done} of {total} {self._unit}", file=sys.stderr, flush=True)
