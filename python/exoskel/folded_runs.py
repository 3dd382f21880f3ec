"""Runs of programs that reduce, with a journal: how far items are folded is what the journal keeps.

What the items before some item have folded to is in the journal, in the position of the sink. So a run that was ended goes on with the
next item. The sink gets one result, at the end.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .errors import JournalError
from .patterns import Reduce
from .plan_streams import answer_of_slice
from .slices import Partials, Slices, StreamedSlices, is_sliceable

if TYPE_CHECKING:
    from . import _core
    from .runs import Closable
    from .sinks import Sink

__all__ = [
    "FoldedSink",
    "as_they_are",
    "fold_items",
    "fold_slices",
    "position_of_fold",
    "position_of_sink",
]

# What `Run.take` is told: a value, and how many items are folded with it; or only how many items are.
_NOW = 0
_PAUSE = 3
# In front of the position of the sink itself.
_LENGTH_BYTES = 8
# The journal takes this part of the time at most: what was folded may be large.
_COMMIT_RATIO = 20


def position_of_fold(position: bytes, folded: list[Any] | None) -> bytes:
    """Return the position of a fold.

    Parameters
    ----------
    position : bytes
        Where the sink is.
    folded : list or None
        What has been folded: a list of one, or an empty one. None when it is in the sink.

    Returns
    -------
    bytes
        The length of the sink's position in eight bytes, that position, and a pickle of the list, unless that is None.
    """
    kept = b"" if folded is None else pickle.dumps(folded, 5)
    return len(position).to_bytes(_LENGTH_BYTES, "little") + position + kept


def position_of_sink(position: bytes) -> bytes:
    """Return the position of the user's sink that is in the position of a fold.

    Parameters
    ----------
    position : bytes
        The position of the fold.

    Returns
    -------
    bytes
        The position of the sink.
    """
    length = int.from_bytes(position[:_LENGTH_BYTES], "little")
    return position[_LENGTH_BYTES : _LENGTH_BYTES + length]


class FoldedSink:
    """Folds what is written to it, and writes what that has come to into a sink.

    Parameters
    ----------
    sink : Sink
        The sink of the result.
    reduction : Reduce
        How values are folded.
    position : bytes
        What `commit` returned.
    """

    def __init__(self, sink: Sink, reduction: Reduce[Any, Any], position: bytes) -> None:
        length = int.from_bytes(position[:_LENGTH_BYTES], "little")
        kept = position[_LENGTH_BYTES + length :]
        if len(position) < _LENGTH_BYTES + length or not kept:
            raise JournalError(
                f"got a state of {len(position)} bytes of a run that reduces, expected the position of the sink and what was folded"
            )
        self._sink = sink
        self._reduction = reduction
        self._merge = reduction.merge
        self._position = position[_LENGTH_BYTES : _LENGTH_BYTES + length]
        # It is this account's own file, which nobody else can write to.
        self._folded: list[Any] | None = pickle.loads(kept)
        sink.rewind(self._position)

    def write(self, index: int, value: Any) -> None:
        """Fold a value.

        Parameters
        ----------
        index : int
            How many there were before it.
        value : object
            The value.
        """
        self._folded = [self._merge(self._folded[0], value)] if self._folded else [value]

    def end(self) -> None:
        """Write what all values have folded to."""
        result = self._reduction.result_of(self._folded or [])
        self._sink.write(0, result)
        self._folded = None

    def commit(self) -> bytes:
        """Return where the sink is, and what has been folded if that isn't in the sink."""
        if self._folded is None:
            self._position = self._sink.commit()
        return position_of_fold(self._position, self._folded)


class _Committing:
    """Commits a run in groups, and seldom if that takes long."""

    def __init__(self, run: _core.Run) -> None:
        self._run = run
        self._not_before = 0.0

    def take(self, end: int, kind: int, value: Any) -> None:
        """Hand a value to the run, by which the items before ``end`` are folded."""
        is_due = self._run.take(end, kind, value)
        began = time.monotonic()
        if is_due and began >= self._not_before:
            self._run.commit()
            ended = time.monotonic()
            self._not_before = ended + _COMMIT_RATIO * (ended - began)


def fold_slices(
    reduction: Reduce[Any, Any],
    items: Any,
    start: int,
    slots: int,
    opened: Callable[[Slices], Closable],
    run: _core.Run,
) -> Iterator[int]:
    """Fold items, of which slots get slices.

    Parameters
    ----------
    reduction : Reduce
        How what slices have folded to is folded.
    items : iterable
        The items that are left.
    start : int
        The index of the first of them.
    slots : int
        How many slots work.
    opened : callable
        Opens a stream over slices.
    run : _core.Run
        Takes what comes.

    Yields
    ------
    int
        How many items a slot has folded.
    """
    kind = Slices if is_sliceable(items) else StreamedSlices
    slices = kind(items, slots, start)
    partials = Partials(reduction.merge, start)
    committing = _Committing(run)
    stream: Any = opened(slices)
    try:
        for number, answer in stream:
            first, size, folded = answer_of_slice(slices, number, answer)
            if isinstance(folded, Exception):
                raise folded
            began = time.perf_counter()
            partials.add(first, size, folded)
            values = partials.take()
            if partials.next > first:
                committing.take(partials.next, _NOW if values else _PAUSE, *(values or [None]))
            slices.folded(time.perf_counter() - began)
            yield size
    finally:
        stream.close()


def as_they_are(items: Iterable[Any], start: int) -> Iterator[tuple[int, int, Any]]:
    """Iterate over items as a stream of the engine over no stages would.

    Parameters
    ----------
    items : iterable
        The items.
    start : int
        The index of the first of them.

    Yields
    ------
    tuple of int, int and object
        How many items there were with this one, which kind of outcome it is, and the item.
    """
    for end, item in enumerate(items, start + 1):
        yield end, _NOW, item


def fold_items(stream: Iterable[Any], run: _core.Run) -> Iterator[int]:
    """Fold the outcomes of a stream of the engine, which come in order.

    Parameters
    ----------
    stream : iterable
        The stream.
    run : _core.Run
        Takes what comes.

    Yields
    ------
    int
        How many items are folded.
    """
    committing = _Committing(run)
    for end, kind, outcome in stream:
        committing.take(end, kind, outcome)
        yield end
