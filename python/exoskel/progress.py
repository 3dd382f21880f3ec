"""A progress bar around a stream of results."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

__all__ = ["StreamBar", "is_notebook", "is_terminal", "track", "track_if"]

_Item = TypeVar("_Item")

# A bar that is moved for each of a million items costs more than they do.
_BAR_SECONDS = 0.1
# What ends sooner needs no bar, unless it was asked for.
PATIENCE_SECONDS = 1.0
# Each replaces an output of the notebook, over its connection.
_NOTEBOOK_SECONDS = 0.3
# Where there is no terminal (a log file, a batch system), one line this often.
_LINE_SECONDS = 5.0


def track(
    items: Iterable[_Item],
    total: int | None = None,
    description: str = "items",
    patience: float = 0.0,
    weigh: Callable[[_Item], int] | None = None,
) -> Iterator[_Item]:
    """Show on ``sys.stderr`` how far a stream is: a bar in a notebook or on a terminal, else a line now and then.

    What can't be shown, because standard error is closed or full, is not shown; the stream goes on.

    Parameters
    ----------
    items : iterable
        The stream. It is closed with this one.
    total : int, optional
        How many items will come, if that is known.
    description : str
        What they are.
    patience : float
        For how many seconds nothing is shown.
    weigh : callable, optional
        Says of one of the stream how many it counts for.

    Returns
    -------
    iterator
        The items, unchanged. Several threads may iterate over it.
    """
    return _Tracked(iter(items), total, description, patience, weigh)


def track_if(
    asked: bool | None,
    items: Iterable[_Item],
    total: int | None = None,
    description: str = "items",
    weigh: Callable[[_Item], int] | None = None,
) -> Iterable[_Item]:
    """Show how far a stream is, if that was asked for, or if nothing was said and there is a terminal: once it has run for a second.

    Parameters
    ----------
    asked : bool, optional
        What was asked for.
    items, total, description, weigh
        As `track` takes them.

    Returns
    -------
    iterable
        The items, unchanged.
    """
    if not (is_terminal() if asked is None else asked):
        return items
    return track(items, total, description, PATIENCE_SECONDS if asked is None else 0.0, weigh)


def is_terminal() -> bool:
    """Whether standard error is a terminal, where a bar can be moved.

    Returns
    -------
    bool
        False in a notebook, too.
    """
    try:
        return sys.stderr is not None and sys.stderr.isatty() and not is_notebook()
    except ValueError:
        # It is closed.
        return False


class StreamBar:
    """A bar on a terminal for a stream that takes longer than a second. The stream tells it how far it is.

    Parameters
    ----------
    total : int, optional
        How many items will come, if that is known.
    """

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._lock = threading.Lock()
        self._display: _Display | None = None
        self._is_over = False
        self._count = 0
        self._started = self._shown = time.monotonic()

    def update(self, count: int) -> None:
        """Take in how many items are done."""
        now = time.monotonic()
        self._count = count
        if now - self._started < PATIENCE_SECONDS or now - self._shown < _BAR_SECONDS:
            return
        self._shown = now
        with self._lock, contextlib.suppress(OSError, ValueError):
            if not self._is_over:
                if self._display is None:
                    self._display = _display(self._total, "items")
                self._display.update(count, count / (now - self._started))

    def end(self, is_complete: bool) -> None:
        """Take the bar away, or leave it as it is at the end of a stream that is complete."""
        with self._lock:
            self._is_over = True
            display, self._display = self._display, None
        if display is not None:
            count = self._total if is_complete and self._total is not None else self._count
            with contextlib.suppress(OSError, ValueError):
                seconds = time.monotonic() - self._started
                display.end(count, seconds, complete=is_complete)

    def __del__(self) -> None:
        # A loop that was left early: the bar must not stay on the terminal.
        if self._display is not None and not sys.is_finalizing():
            self.end(False)


def is_notebook() -> bool:
    """Whether what is displayed goes to a notebook.

    Returns
    -------
    bool
        Whether this process is the kernel of one.
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class _Display(Protocol):
    """What shows how far a stream is."""

    seconds: float
    """Between two updates."""

    def update(self, count: int, rate: float) -> None: ...

    def end(self, count: int, seconds: float, *, complete: bool) -> None: ...


class _Tracked(Generic[_Item]):
    """An iterator over a stream that shows how far it is; unlike a generator it may be used by several threads."""

    def __init__(
        self,
        stream: Iterator[_Item],
        total: int | None,
        description: str,
        patience: float,
        weigh: Callable[[_Item], int] | None,
    ) -> None:
        self._patience = patience
        self._stream = stream
        self._weigh = weigh
        self._total = total
        self._description = description
        self._lock = threading.Lock()
        self._display: _Display | None = None
        self._count = 0
        self._started = self._shown = 0.0

    def __iter__(self) -> Iterator[_Item]:
        return self

    def __next__(self) -> _Item:
        if not self._started:
            self._begin()
        try:
            item = next(self._stream)
        except BaseException as reason:
            # Ctrl-C ends the loop, mostly: a bar that lives on would draw over what is printed next.
            self._end(complete=isinstance(reason, StopIteration))
            # A notebook keeps the last traceback. The stream must not live on in it.
            del self
            raise
        # Threads may count at once; then the bar is off by one for a moment.
        self._count += 1 if self._weigh is None else self._weigh(item)
        if self._display is not None:
            now = time.monotonic()
            if now - self._shown >= self._display.seconds:
                self._shown = now
                self._update(now)
        elif self._patience and time.monotonic() - self._started >= self._patience:
            self._patience = 0.0
            self._show()
        return item

    def close(self) -> None:
        """End the stream and the bar."""
        close = getattr(self._stream, "close", None)
        if close is not None:
            close()
        self._end(complete=False)

    def __del__(self) -> None:
        # A loop that was left early: the bar must not stay on the terminal.
        if self._display is not None and not sys.is_finalizing():
            self.close()

    def _begin(self) -> None:
        with self._lock:
            if self._started:
                return
            self._started = self._shown = time.monotonic()
        if not self._patience:
            self._show()

    def _show(self) -> None:
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._display = _display(self._total, self._description)

    def _update(self, now: float) -> None:
        with self._lock:
            if self._display is not None:
                try:
                    self._display.update(self._count, self._count / (now - self._started))
                except (OSError, ValueError):
                    self._display = None

    def _end(self, *, complete: bool) -> None:
        with self._lock:
            display, self._display = self._display, None
            if display is None:
                return
            with contextlib.suppress(OSError, ValueError):
                display.end(self._count, time.monotonic() - self._started, complete=complete)


def _display(total: int | None, description: str) -> _Display:
    if is_notebook():
        return _NotebookBar(total, description)
    if sys.stderr is not None and sys.stderr.isatty():
        return _Bar(total, description, _terminal())
    return _Lines(total, description)


def _terminal() -> Console:
    from rich.console import Console

    class Terminal(Console):
        def on_broken_pipe(self) -> None:
            # Rich would end the program, which has more to do than to be looked at.
            self.quiet = True

    return Terminal(stderr=True, markup=False, highlight=False)


def _progress(console: Console | None) -> Progress:
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
    return Progress(*columns, console=console, auto_refresh=console is not None)


class _Bar:
    """A bar of rich on a terminal."""

    seconds = _BAR_SECONDS

    def __init__(self, total: int | None, description: str, console: Console) -> None:
        self._progress = _progress(console)
        self._progress.start()
        self._task = self._progress.add_task(description, total=total, rate="")

    def update(self, count: int, rate: float) -> None:
        self._progress.update(self._task, completed=count, rate=f"{rate:.0f}/s")

    def end(self, count: int, seconds: float, *, complete: bool) -> None:
        try:
            self._progress.update(self._task, completed=count)
        finally:
            self._progress.stop()


class _NotebookBar:
    """The same bar as an output of the cell, which is replaced by the next one."""

    seconds = _NOTEBOOK_SECONDS

    def __init__(self, total: int | None, description: str) -> None:
        # Whoever runs a notebook has it.
        display = importlib.import_module("IPython.display").display
        self._progress = _progress(None)
        self._task = self._progress.add_task(description, total=total, rate="")
        self._handle = display(self, display_id=True)

    def _repr_html_(self) -> str:
        from .display import html_of

        return html_of(self._progress.get_renderable())

    def __repr__(self) -> str:
        task = self._progress.tasks[0]
        of = "" if task.total is None else f" of {task.total:.0f}"
        return f"{task.description}: {task.completed:.0f}{of}"

    def update(self, count: int, rate: float) -> None:
        self._progress.update(self._task, completed=count, rate=f"{rate:.0f}/s")
        self._handle.update(self)

    def end(self, count: int, seconds: float, *, complete: bool) -> None:
        self.update(count, count / seconds if seconds > 0 else 0.0)


class _Lines:
    """A line now and then."""

    seconds = _LINE_SECONDS

    def __init__(self, total: int | None, description: str) -> None:
        self._description = description
        self._of = "" if total is None else f" of {total}"

    def update(self, count: int, rate: float) -> None:
        self._say(f"{self._description}: {count}{self._of}, {rate:.0f} a second")

    def end(self, count: int, seconds: float, *, complete: bool) -> None:
        if complete:
            self._say(f"{self._description}: {count}{self._of} in {seconds:.1f} s")

    def _say(self, line: str) -> None:
        if sys.stderr is not None:
            print(line, file=sys.stderr, flush=True)
