"""A progress bar around a stream of results."""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

__all__ = ["track"]

_Item = TypeVar("_Item")

# Where there is no terminal (a log file, a batch system), one line this often.
_LINE_SECONDS = 5.0


def track(
    items: Iterable[_Item], total: int | None = None, description: str = "items"
) -> Iterator[_Item]:
    """Show on ``sys.stderr`` how far a stream is: a bar on a terminal, else a line now and then.

    Parameters
    ----------
    items : iterable
        The stream. It is closed with this one.
    total : int, optional
        How many items will come, if that is known.
    description : str
        What they are.

    Yields
    ------
    object
        The items, unchanged.
    """
    stream = iter(items)
    try:
        if sys.stderr is not None and sys.stderr.isatty():
            yield from _bar(stream, total, description)
        else:
            yield from _lines(stream, total, description)
    finally:
        close = getattr(stream, "close", None)
        if close is not None:
            close()


def _bar(stream: Iterator[_Item], total: int | None, description: str) -> Iterator[_Item]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}", markup=False),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    # What workers print goes above the bar, as it is: their text is no markup.
    with Progress(
        *columns, console=Console(stderr=True, markup=False, highlight=False)
    ) as progress:
        task = progress.add_task(description, total=total, rate="")
        started = shown = time.monotonic()
        count = 0
        for count, item in enumerate(stream, 1):
            yield item
            now = time.monotonic()
            # A bar that is moved for each of a million items costs more than they do.
            if now - shown > 0.1:
                progress.update(task, completed=count, rate=f"{count / (now - started):.0f}/s")
                shown = now
        progress.update(task, completed=count)


def _lines(stream: Iterator[_Item], total: int | None, description: str) -> Iterator[_Item]:
    of = "" if total is None else f" of {total}"
    started = shown = time.monotonic()
    count = 0
    for count, item in enumerate(stream, 1):
        yield item
        now = time.monotonic()
        if now - shown >= _LINE_SECONDS:
            shown = now
            _say(f"{description}: {count}{of}, {count / (now - started):.0f} a second")
    _say(f"{description}: {count}{of} in {time.monotonic() - started:.1f} s")


def _say(line: str) -> None:
    if sys.stderr is not None:
        print(line, file=sys.stderr, flush=True)
