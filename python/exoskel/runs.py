"""Runs: a program over a source into a sink, with a journal if they are to survive the end of this process."""

import contextlib
import dataclasses
import errno
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Protocol, Unpack

from . import _core
from .contracts import SLOTS_MAX, Contract, ParDegree
from .errors import JournalError
from .history import History
from .options import ManagerOptions
from .sequential import run_sequential
from .sinks import Sink, sink_text
from .skeletons import Skeleton, skeleton_of
from .sources import Source, source_of

if TYPE_CHECKING:
    pass

__all__ = [
    "RunSummary",
    "run",
    "run_here",
    "run_reduction",
    "run_reduction_with_journal",
    "run_to_sink",
]

# What `MapStream` says of an outcome in the place of a result, as `crates/py/src/run.rs` has it.
_SKIPPED = 2
_PAUSE = 3
# What the system says of a disk that is full, for this account or for a file.
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# Without a journal, who reads a sink sees results this soon.
_COMMIT_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class RunSummary:
    """What a run came to."""

    results: int
    """Results that are in the sink, with those of earlier runs that had the same journal."""
    skipped: int
    """Items that have no result, because they ended in an exception."""
    earlier: int
    """How many items earlier runs had done; of a program that makes any number of results of an item, how many results."""
    history: History = dataclasses.field(default_factory=History, compare=False, repr=False)
    """What `run` has decided to keep its contract; that of a `Manager` is its own."""

    def __str__(self) -> str:
        """Say it in a line."""
        parts = [f"{self.results} result{'s' if self.results != 1 else ''}"]
        if self.skipped:
            parts.append(f"{self.skipped} item{'s' if self.skipped != 1 else ''} skipped")
        if self.earlier:
            # Many items have one result in a program that reduces.
            what = " items" if self.earlier > self.results + self.skipped else ""
            parts.append(f"{self.earlier}{what} done by earlier runs")
        return ", ".join(parts)


def run(
    program: Skeleton[Any, Any] | Callable[[Any], Any],
    source: Source | Iterable[Any] | Any,
    sink: Sink | None = None,
    contract: Contract | None = None,
    *,
    journal: str | os.PathLike[str] | None = None,
    errors: Literal["raise", "skip"] = "raise",
    progress: bool | None = None,
    **options: Unpack[ManagerOptions],
) -> Any:
    """Run a program over a source, with a manager of its own.

    Parameters
    ----------
    program : Skeleton or callable
        What happens to each item.
    source : Source, iterable or asynchronous iterable
        Where the items come from.
    sink : Sink, optional
        Where the results go.
    contract : Contract, optional
        How many slots to use, such as ``ParDegree(4)``. If not given, as many as this process may use cores; with ``workers=``, as many
        as these have, as long as more of them help.
    journal : path, optional
        See `Manager.run`.
    errors : {"raise", "skip"}
        See `Manager.run`.
    progress : bool, optional
        See `Manager.run`.
    **options
        The options of the `Manager`.

    Returns
    -------
    list, object or RunSummary
        Without a sink, the results in the order of the items; of a program that reduces, its result. With a sink, what the run came
        to.

    Raises
    ------
    TypeError
        For a journal without a sink.
    Exception
        What `Manager` and `Manager.run` raise.
    """
    from .manager import Manager

    if isinstance(sink, Contract):
        raise TypeError(
            f"got {sink!r} as the sink, expected it as the contract: exoskel.run(program, items, contract={sink!r})"
        )
    if sink is None and journal is not None:
        raise TypeError(
            'got a journal without a sink, expected both: a journal says how far a sink has come, such as exoskel.JsonLines("out.jsonl")'
        )
    if contract is None:
        contract = _as_many_as_help(options.get("workers"))
    results = _Results()
    reduces = skeleton_of(program).reduces
    with Manager(program, contract, **options) as manager:
        summary = manager.run(
            source,
            results if sink is None else sink,
            journal=journal,
            errors=errors,
            progress=progress,
        )
    if sink is not None:
        return dataclasses.replace(summary, history=manager.history)
    return results.results[0] if reduces else results.results


def _as_many_as_help(workers: Any) -> Contract:
    """Return the contract of a run whose user names none."""
    if workers is None:
        return ParDegree(len(os.sched_getaffinity(0)))
    from .hosts import read_hosts
    from .options import DISCOVER

    listed: Any = []
    if isinstance(workers, (list, tuple)):
        listed = [line for line in workers if line != DISCOVER]
    elif isinstance(workers, (str, os.PathLike)) and workers != DISCOVER:
        listed = workers
    # It begins with one of each, so that all of them say how many they have.
    least = min(len(read_hosts(listed)), SLOTS_MAX) if listed else 1
    return ParDegree(least, SLOTS_MAX)


class _Results:
    """A sink in memory."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def rewind(self, position: bytes | None) -> bytes:
        return b""

    def write(self, index: int, result: Any) -> None:
        self.results.append(result)

    def commit(self) -> bytes:
        return b""

    def is_in(self, path: str) -> bool:
        return False


class Closable(Protocol):  # what only a type needs
    """An iterator that can be ended early."""

    def __iter__(self) -> Iterator[Any]: ...
    def __next__(self) -> Any: ...
    def close(self) -> None: ...


# How a stream over items is opened: of items, in which form outcomes come, and for which run.
_Open = Callable[[Iterable[Any], dict[str, bool], "_core.Run | None"], "Closable"]


def run_to_sink(
    source: Any,
    sink: Any,
    journal: str | os.PathLike[str] | None,
    errors: str,
    progress: bool | None,
    opened: _Open,
    described: Callable[[], str],
    gives_many: bool = False,
) -> RunSummary:
    """Run a program over a source into a sink; see `Manager.run`.

    Parameters
    ----------
    source, sink, journal, errors, progress
        As `Manager.run` takes them.
    opened : callable
        Opens a stream.
    described : callable
        Says what the program is.
    gives_many : bool
        Whether an item can have any number of results, so that nobody knows how many results will come.

    Returns
    -------
    RunSummary
        What the run came to.
    """
    if errors not in ("raise", "skip"):
        raise ValueError(f'got errors={errors!r}, expected "raise" or "skip"')
    _check_sink(sink)
    source = source_of(source)
    try:
        _check_apart(source, sink)
        if journal is None:
            return _run_plainly(source, sink, errors, progress, opened, gives_many)
        with _room_told(journal, sink):
            opening = _run_of(journal, source, sink, errors, described, is_ordered=gives_many)
            with contextlib.closing(opening) as run:
                return _run_with_journal(source, sink, errors, progress, opened, run, gives_many)
    finally:
        _close_sink(sink)


@contextlib.contextmanager
def _room_told(journal: str | os.PathLike[str], sink: Sink) -> Iterator[None]:
    """Say what to do when the disk of the sink or the journal is full. Functions and sources may have files of their own."""
    try:
        yield
    except OSError as error:
        file = error.filename
        is_ours = file is None or file == os.fspath(journal) or sink.is_in(os.fspath(file))
        is_ours = is_ours and not hasattr(error, "__notes__")
        if is_ours and error.errno in _NO_ROOM and error.strerror:
            error.strerror += (
                "; what is done is kept: make room where the sink and the journal are, "
                "and start the same run again"
            )
        raise


def _check_sink(sink: Any) -> None:
    if not isinstance(sink, Sink):
        raise TypeError(
            f'got {sink!r:.60} as the sink, expected one such as exoskel.JsonLines("out.jsonl"), with rewind, write, commit and is_in'
        )


def _commit_last(sink: Sink) -> None:
    """Commit for good: without a journal nothing is cut back. A sink drops at a commit what it has kept since the one before."""
    sink.commit()
    sink.commit()


def _close_sink(sink: Any) -> None:
    close = getattr(sink, "close", None)
    if close is not None:
        close()


def _check_apart(source: object, sink: Sink) -> None:
    from .formats import check_apart

    check_apart(source, sink)


def run_here(
    program: Skeleton[Any, Any], source: Any, sink: Sink, errors: Literal["raise", "skip"]
) -> RunSummary:
    """Run a program over a source into a sink in this process, one item after the other.

    Parameters
    ----------
    program : Skeleton
        The program.
    source, sink, errors
        As `Manager.run` takes them.

    Returns
    -------
    RunSummary
        What the run came to.
    """

    def opened(
        items: Iterable[Any], form: dict[str, bool], run: "_core.Run | None"
    ) -> Generator[Any, None, None]:
        results = run_sequential(program, items, return_errors=form["return_errors"])
        yield from enumerate(results)

    if program.reduces:
        return run_reduction(source, sink, errors, program.run_sequential)
    return run_to_sink(source, sink, None, errors, False, opened, lambda: "")


def run_reduction(
    source: Any, sink: Any, errors: str, reduced: Callable[[Iterable[Any]], Iterator[Any]]
) -> RunSummary:
    """Run a program that reduces over a source, and put its result into a sink.

    Parameters
    ----------
    source, sink, errors
        As `Manager.run` takes them.
    reduced : callable
        Gives an iterator over the one result for items.

    Returns
    -------
    RunSummary
        What the run came to.
    """
    _check_reduced(errors)
    _check_sink(sink)
    try:
        _check_apart(source, sink)
        with contextlib.ExitStack() as stack:
            items = source
            if isinstance(source, (Source, str, bytes)) or not isinstance(source, Iterable):
                items = stack.enter_context(_items_of(source_of(source), 0))
            # A source that isn't there leaves no empty sink.
            sink.rewind(None)
            (result,) = reduced(items)
        sink.write(0, result)
        _commit_last(sink)
    finally:
        _close_sink(sink)
    return RunSummary(1, 0, 0)


def run_reduction_with_journal(
    source: Any,
    sink: Any,
    journal: str | os.PathLike[str],
    errors: str,
    progress: bool | None,
    reduction: Any,
    in_slices: Callable[[Any], "Closable"] | None,
    one_by_one: Callable[[Iterable[Any], "_core.Run"], "Closable"] | None,
    slots: int,
    described: Callable[[], str],
) -> RunSummary:
    """Run a program that reduces over a source, and put its result into a sink; see `Manager.run`.

    Parameters
    ----------
    source, sink, journal, errors, progress
        As `Manager.run` takes them.
    reduction : Reduce
        The last stage.
    in_slices : callable or None
        Opens a stream over slices of the items, if slots may have slices.
    one_by_one : callable or None
        Opens a stream of the other stages over items, for a run, if there are any.
    slots : int
        How many slots work.
    described : callable
        Says what the program is.

    Returns
    -------
    RunSummary
        What the run came to.
    """
    from .folded_runs import (
        FoldedSink,
        as_they_are,
        fold_items,
        fold_slices,
        position_of_fold,
        position_of_sink,
    )

    _check_reduced(errors)
    _check_sink(sink)
    given = source
    source = source_of(source)
    try:
        _check_apart(source, sink)
        with contextlib.ExitStack() as stack:
            stack.enter_context(_room_told(journal, sink))
            opening = _run_of(
                journal,
                source,
                sink,
                errors,
                described,
                is_ordered=True,
                state_of=lambda position: position_of_fold(position, []),
            )
            run = stack.enter_context(contextlib.closing(opening))
            earlier = run.next
            if run.is_finished:
                _check_finished(sink, position_of_sink(run.position))
                return RunSummary(1, 0, earlier)
            folding = FoldedSink(sink, reduction, run.position)
            run.start(folding.write, folding.commit)
            start, total = run.next, source.count()
            with _items_of(source, start) as items:
                if in_slices is not None:
                    left = given[start:] if type(given) in _CUT_AS_THEY_ARE else items
                    sizes = fold_slices(reduction, left, start, slots, in_slices, run)
                    deque(_committed(_weighed(sizes, total, progress, start), run), maxlen=0)
                else:
                    read = _tracked(items, total, progress, start)
                    if one_by_one is None:
                        stream: Any = contextlib.nullcontext(as_they_are(read, start))
                    else:
                        stream = contextlib.closing(one_by_one(read, run))
                    with stream as outcomes:
                        deque(_committed(fold_items(outcomes, run), run), maxlen=0)
            # A sink may refuse the result, such as one that JSON doesn't have.
            run.commit()
            folding.end()
            run.finish()
    finally:
        _close_sink(sink)
    return RunSummary(1, 0, earlier)


# A slice of these is cheap, and of the same kind.
_CUT_AS_THEY_ARE = (range, list, tuple, str, bytes)


def _weighed(
    sizes: Iterator[int], total: int | None, progress: bool | None, done: int
) -> Iterator[int]:
    if progress is False:
        return sizes
    from .progress import track_if

    total = None if total is None else max(0, total - done)
    what = "items that were left" if done else "items"
    return iter(track_if(progress, sizes, total, what, int))


def _committed(steps: Iterator[int], run: "_core.Run") -> Iterator[int]:
    """Commit what is done when something goes wrong."""
    try:
        yield from steps
    except BaseException:
        if not (run.is_closed or run.is_amid):
            run.commit()
        raise


def _check_reduced(errors: str) -> None:
    if errors != "raise":
        raise ValueError(
            f'got errors={errors!r} for a program that reduces, expected "raise": all items have one result together'
        )


def _run_plainly(
    source: Source,
    sink: Sink,
    errors: str,
    progress: bool | None,
    opened: _Open,
    gives_many: bool,
) -> RunSummary:
    skipped = results = 0
    form = {"as_completed": False, "indices": True, "return_errors": errors == "skip"}
    with _items_of(source, 0) as items, contextlib.closing(opened(items, form, None)) as stream:
        total = None if gives_many else source.count()
        # A source that isn't there leaves no empty sink.
        sink.rewind(None)
        committed = time.monotonic()
        try:
            what = "results" if gives_many else "items"
            for index, result in _tracked(stream, total, progress, 0, what):
                if errors == "skip" and isinstance(result, Exception):
                    skipped += 1
                    _tell_skipped(result)
                    continue
                sink.write(index, result)
                results += 1
                now = time.monotonic()
                if now - committed >= _COMMIT_SECONDS:
                    sink.commit()
                    committed = now
        finally:
            # The results before an exception are good. The sink's own exception comes first.
            _commit_last(sink)
    return RunSummary(results, skipped, 0)


def _run_of(
    journal: str | os.PathLike[str],
    source: Source,
    sink: Sink,
    errors: str,
    described: Callable[[], str],
    *,
    is_ordered: bool,
    state_of: Callable[[bytes], bytes] | None = None,
) -> "_core.Run":
    """Open a journal. What can't work is said here, before any work begins."""
    from .formats import Files

    texts = (described(), source.source_text(), sink_text(sink))
    path = os.fspath(journal)
    if sink.is_in(path):
        raise JournalError(
            f"the journal {path} is where results go, which could replace it; give the journal a file of its own, elsewhere"
        )

    if isinstance(source, Files) and source.is_item(path):
        raise JournalError(
            f"the journal {path} is where the source has its items, and would be taken for one; give the journal a file of its own, elsewhere"
        )
    is_new = not os.path.exists(path)
    is_blank = not is_new and os.path.getsize(path) == 0

    def position() -> bytes:
        # Only a journal that is begun asks for it.
        if not _may_begin(sink, source, is_blank):
            what = "there is no journal" if is_new else "nothing is in the journal"
            raise JournalError(
                f"{what} {path}, but its sink isn't empty ({sink_text(sink)}): what is there may be results of this run, which would then be there twice. "
                "Restore the journal. To begin anew, remove what the run has written. To keep that, give this run another sink"
            )
        found = sink.rewind(None)
        # A sink that can't be cut back says so now.
        sink.rewind(found)
        return found if state_of is None else state_of(found)

    # A run that has the journal at this moment has the sink, too: nothing is done to that before.
    run = _core.Run(path, texts, position, errors == "skip", is_ordered)
    if run.next > 0 and getattr(source, "is_pipe", False):
        logging.getLogger("exoskel").warning(
            "items of standard input, a pipe, are left out, as they are done: %d; it isn't known whether they are the same ones",
            run.next,
        )
    return run


def _may_begin(sink: Sink, source: Source, is_blank: bool) -> bool:
    """Say whether a journal may be begun beside a sink: one of 0 bytes may not if the sink doesn't say that it holds nothing."""
    from .formats import Files

    if isinstance(sink, Files) and isinstance(source, Files):
        # They may share a folder.
        return sink.holds_only(source)
    say = getattr(sink, "is_empty", None)
    return not is_blank if say is None else bool(say())


def _check_finished(sink: Sink, position: bytes) -> None:
    """Check that a sink still holds what a finished run has put there, if it can say so. Nothing is changed."""
    check = getattr(sink, "check", None)
    if check is not None:
        check(position)


def _run_with_journal(
    source: Source,
    sink: Sink,
    errors: str,
    progress: bool | None,
    opened: _Open,
    run: "_core.Run",
    gives_many: bool,
) -> RunSummary:
    earlier = run.results if gives_many else run.next + len(run.early)
    if run.is_finished:
        _check_finished(sink, run.position)
    else:
        sink.rewind(run.position)
        run.start(sink.write, sink.commit)
        form = {
            "as_completed": not gives_many,
            "indices": True,
            "return_errors": errors == "skip",
        }
        total = None if gives_many else source.count()
        start, early = run.next, frozenset(run.early)
        with _items_of(source, start) as items:
            stream = opened(_without(items, start, early), form, run)
            with contextlib.closing(stream):
                what = "results" if gives_many else "items"
                outcomes = _outcomes(stream, run, sink)
                deque(_tracked(outcomes, total, progress, earlier, what), maxlen=0)
        run.finish()
        # Again: what the sink has kept to be cut back, it keeps no longer.
        sink.commit()
    return RunSummary(run.results, run.skipped, earlier)


def _outcomes(stream: Iterator[Any], run: "_core.Run", sink: Sink) -> Iterator[int]:
    """Hand the outcomes of a stream to a run, and commit them in groups. Yields for each item."""
    take, commit = run.take, run.commit
    try:
        for item, kind, outcome in stream:
            if kind == _SKIPPED:
                _tell_skipped(outcome)
            if take(item, kind, outcome):
                commit()
            if kind != _PAUSE:
                yield item
    except BaseException:
        # What is done stays done. A run whose sink or journal has failed is closed, and holds nothing that may be committed.
        if run.is_amid:
            # A part of the results of an item is no result.
            sink.rewind(run.position)
        elif not run.is_closed:
            commit()
        raise


@contextlib.contextmanager
def _items_of(source: Source, start: int) -> Iterator[Iterator[Any]]:
    """Open a source, and close it at the end."""
    items = source.items(start)
    try:
        yield items
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


def _without(items: Iterator[Any], start: int, early: frozenset[int]) -> Iterator[Any]:
    """Leave out the items that have their results."""
    last = max(early, default=start - 1)
    for index in range(start, last + 1):
        try:
            item = next(items)
        except StopIteration:
            return
        if index not in early:
            yield item
    yield from items


def _tracked(
    items: Iterator[Any], total: int | None, progress: bool | None, done: int, what: str = "items"
) -> Iterator[Any]:
    if progress is False:
        return items
    from .progress import track_if

    total = None if total is None else max(0, total - done)
    what = f"{what} that were left" if done else what
    return iter(track_if(progress, items, total, what))


def _tell_skipped(error: Exception) -> None:
    """Say of an item that it has no result, and why."""
    notes = "; ".join(str(note) for note in getattr(error, "__notes__", ()))
    logging.getLogger("exoskel").warning(
        "skipped %s: %s: %s", notes or "an item", type(error).__name__, error
    )
