"""Slices of items: what a program that reduces gives to a slot at once.

Their sizes follow guided self-scheduling: a slice has its share of what is left, so that the last ones are small. How long an item
takes is measured as answers come.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = ["Partials", "Slices", "StreamedSlices", "is_sliceable", "items_text"]

# A slice has this part of what is left for each slot, at most.
SLICES_PER_SLOT = 3
# A slice should not take longer, in seconds: it is lost with its slot, and it is all that can be seen of how far the run is.
SLICE_SECONDS_MAX = 0.5
# A shorter slice gains nothing, in seconds, as long as others are as short.
SLICE_SECONDS_MIN = 0.004
# A slice should take so many times longer than it takes the manager to fold what it has folded to.
FOLD_RATIO = 4
# So many results of slices may wait for a slow one before they are folded with their neighbours.
WAITING_MAX = 64
# As long as nothing is measured, a slice has so many items at most.
UNMEASURED_MAX = 256
# Items of a slice that travel together, in bytes, unless a single one has more.
SLICE_BYTES_MAX = 4 << 20
# A slice of items that come one by one: it waits until it is whole.
STREAMED_ITEMS_MAX = 1024
STREAMED_BYTES_MAX = 64 << 10


class Slices:
    """Iterates over slices of items: the index of the first item, and the items.

    Parameters
    ----------
    items : sequence
        The items: a range, a sequence or an array.
    slots : int
        How many slots work on them.
    first : int
        The index of the first of these items.
    """

    def __init__(self, items: Any, slots: int, first: int = 0) -> None:
        self._items = items
        self._slots = slots
        self._first = first
        # The seconds an item takes, and the largest slice that said so.
        self._item_seconds = 0.0
        self._measured = 0
        # The seconds that folding the result of a slice takes here.
        self._fold_seconds = 0.0
        # By the number of the slice: its first item and its size.
        self._places: dict[int, tuple[int, int]] = {}
        self._count = 0
        self._is_handed_out = False
        # The first slices are small, whatever the items are: one for each slot of a size, then of twice that.
        self._size_max = 1

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        for offset, items in self._cut(self._items):
            start = self._first + offset
            self._places[self._count] = start, len(items)
            self._count += 1
            if self._count % self._slots == 0:
                limit = sys.maxsize if self._measured else UNMEASURED_MAX
                self._size_max = min(2 * self._size_max, limit)
            yield start, items
        self._is_handed_out = True

    @property
    def are_over(self) -> bool:
        """Whether all slices were handed out, and all have been asked for by `place`."""
        return self._is_handed_out and not self._places

    @property
    def length(self) -> int:
        """How many items all slices have together."""
        return len(self._items)

    def size(self, number: int) -> int:
        """Return how many items a slice has.

        Parameters
        ----------
        number : int
            Which slice, from 0.
        """
        return self._places[number][1]

    def place(self, number: int) -> tuple[int, int]:
        """Return the first item of a slice and its size, once.

        Parameters
        ----------
        number : int
            Which slice, from 0.
        """
        return self._places.pop(number)

    def measured(self, size: int, seconds: float) -> None:
        """Take in how long a slice has taken.

        Parameters
        ----------
        size : int
            How many items it has.
        seconds : float
            The time. A worker says so, who may say anything.
        """
        if size >= self._measured:
            self._measured = size
            # What is no number is no time.
            self._item_seconds = min(max(seconds, 0.0), 1e6) / size if seconds == seconds else 0.0

    def folded(self, seconds: float) -> None:
        """Take in how long it has taken to fold the result of a slice here.

        Parameters
        ----------
        seconds : float
            The time.
        """
        self._fold_seconds += (seconds - self._fold_seconds) / 4

    def _cut(self, items: Any) -> Iterator[tuple[int, Any]]:
        start, length = 0, len(items)
        while start < length:
            left = length - start
            share = -(-left // (SLICES_PER_SLOT * self._slots))
            if self._measured:
                shortest = max(SLICE_SECONDS_MIN, FOLD_RATIO * self._fold_seconds)
                share = max(share, self._items_in(shortest))
            share = min(share, self._items_in(SLICE_SECONDS_MAX), self._size_max)
            size = max(1, min(left, share, self._of_bytes(items, start)))
            yield start, items[start : start + size]
            start += size

    def _items_in(self, seconds: float) -> int:
        """Return how many items take so long, as far as that is known."""
        if not self._measured:
            return UNMEASURED_MAX
        return max(1, int(seconds / max(self._item_seconds, 1e-9)))

    def _of_bytes(self, items: Any, start: int) -> int:
        """Return how many items from there on may travel together, by the first of them."""
        if isinstance(items, range):
            return sys.maxsize
        return SLICE_BYTES_MAX // max(1, _bytes_of(items[start]))


class StreamedSlices(Slices):
    """The same over items of which nobody knows how many will come."""

    def _cut(self, items: Iterator[Any]) -> Iterator[tuple[int, list[Any]]]:
        start = 0
        while True:
            limit = min(STREAMED_ITEMS_MAX, self._size_max, self._items_in(SLICE_SECONDS_MIN))
            piece: list[Any] = []
            left = STREAMED_BYTES_MAX
            for item in items:
                piece.append(item)
                left -= _bytes_of(item)
                if len(piece) >= limit or left <= 0:
                    break
            if not piece:
                return
            yield start, piece
            start += len(piece)


def is_sliceable(items: Any) -> bool:
    """Say whether items are cut into slices, which have the same items.

    Parameters
    ----------
    items : object
        The items.

    Returns
    -------
    bool
        Whether they are a range, a sequence or an array.
    """
    if type(items) in (range, list, tuple, str, bytes):
        return True
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(items, numpy.ndarray):
        return bool(items.ndim)
    if not isinstance(items, Sequence):
        return False
    try:
        # A deque is a sequence without slices.
        items[0:0]
    except TypeError:
        return False
    return True


def _bytes_of(item: Any) -> int:
    """Return about how many bytes an item has when it travels."""
    size = getattr(item, "nbytes", None)
    if type(size) is int:
        return size
    if isinstance(item, (bytes, bytearray, str)):
        return len(item)
    if isinstance(item, (int, float)):
        return 9
    try:
        return len(pickle.dumps(item, 5))
    except Exception:
        return sys.getsizeof(item)


def items_text(start: int, size: int) -> str:
    """Name items in a note.

    Parameters
    ----------
    start : int
        The first one.
    size : int
        How many.

    Returns
    -------
    str
        The text.
    """
    return f"item {start}" if size == 1 else f"one of items {start} to {start + size - 1}"


class Partials:
    """What slices have folded to. It is folded in the order of the items; what comes before its turn waits.

    Parameters
    ----------
    operation : callable
        Folds two results.
    first : int
        The first item of all.
    """

    def __init__(self, operation: Any, first: int = 0) -> None:
        self._operation = operation
        # What all items before this one have folded to.
        self._next = first
        self._folded: list[Any] = []
        # By the index of the first item: the one behind the last, and what those between have folded to.
        self._waiting: dict[int, tuple[int, list[Any]]] = {}

    def add(self, start: int, size: int, folded: list[Any]) -> None:
        """Take in what a slice has folded to.

        Parameters
        ----------
        start : int
            The index of its first item.
        size : int
            How many items it has.
        folded : list
            What it has folded to; empty if there is nothing.
        """
        self._waiting[start] = start + size, folded
        while self._next in self._waiting:
            self._next, folded = self._waiting.pop(self._next)
            self._folded = self._both(self._folded, folded)
        if len(self._waiting) > WAITING_MAX:
            self._fold_waiting()

    def _fold_waiting(self) -> None:
        """Fold neighbours among those that wait for a slow slice, so that they are few."""
        waiting: dict[int, tuple[int, list[Any]]] = {}
        last = -1
        for start, (end, folded) in sorted(self._waiting.items(), key=lambda run: run[0]):
            if last in waiting and waiting[last][0] == start:
                waiting[last] = end, self._both(waiting[last][1], folded)
            else:
                waiting[start] = end, folded
                last = start
        self._waiting = waiting

    def _both(self, earlier: list[Any], later: list[Any]) -> list[Any]:
        if earlier and later:
            return [self._operation(earlier[0], later[0])]
        return earlier or later

    @property
    def next(self) -> int:
        """The first item that is not folded in its order yet."""
        return self._next

    def take(self) -> list[Any]:
        """Return what the items before `next` have folded to since the last call; empty if there is nothing."""
        folded, self._folded = self._folded, []
        return folded

    def whole(self) -> list[Any]:
        """Return what all slices fold to; empty if there is nothing."""
        assert not self._waiting
        return self._folded
