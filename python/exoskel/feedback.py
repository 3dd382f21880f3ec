"""A farm with feedback: what is fed back runs depth first. At a slot it does so until others may want a part of it."""

from __future__ import annotations

import copy
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

from . import shared_source
from .errors import ProgramError
from .sequential import iterated
from .short_text import name_of, short_text
from .worker_lists import checked_list

__all__ = ["Again", "refuse", "results_of", "work_on"]

_T = TypeVar("_T")

# So many results and further items an item may give, and so many results it may have in all.
FED_BACK_MAX = 1 << 20
# How often an item may come of an item that was fed back itself. What never ends would take a slot for ever.
FED_BACK_DEEP_MAX = 1_000_000

# One for each call of a function with feedback that runs in this slot.
_working: list[None] = []

# What is left of what an item gave, and how many items that one came of.
Level: TypeAlias = tuple[Iterator[Any], int]


class Again(Generic[_T]):
    """Marks what a function of ``Farm(function, feedback=True)`` is to run on again: all else that it gives is a result.

    Parameters
    ----------
    item : object
        The item that the function runs on.
    """

    __slots__ = ("item",)

    def __init__(self, item: _T) -> None:
        self.item = item

    def __repr__(self) -> str:
        return f"Again({self.item!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        # What is fed back travels as the item alone. So a slot that sends this sends a result. A function that is fed back may keep some in a file.
        if shared_source.source is not None and not _working and _is_slot():
            raise _not_fed_back(self)
        return Again, (self.item,)

    def __copy__(self) -> Again[_T]:
        return Again(self.item)

    def __deepcopy__(self, memo: dict[int, Any]) -> Again[_T]:
        return Again(copy.deepcopy(self.item, memo))


def _is_slot() -> bool:
    """Say whether this is the thread of a slot that runs tasks and sends their results: no other thread, and no child that a task has forked."""
    is_main = threading.current_thread() is threading.main_thread()
    return is_main and os.getppid() == shared_source.parent


def _not_fed_back(again: Again[Any]) -> ProgramError:
    return ProgramError(
        f"got Again({short_text(again.item)}) in a result, expected it only from the function of a Farm with feedback=True, "
        "as in exoskel.Farm(function, feedback=True)"
    )


def refuse(result: Any) -> None:
    """Refuse a result that is or holds an `Again`, which nobody feeds back.

    Parameters
    ----------
    result : object
        The result.

    Raises
    ------
    ProgramError
        If it is one, or a list or tuple with one.
    """
    members = result if isinstance(result, (list, tuple)) else (result,)
    for member in members:
        if type(member) is Again:
            raise _not_fed_back(member)


def results_of(function: Callable[[Any], Any], item: Any) -> Iterator[Any]:
    """Iterate over the results of an item and of all that is fed back of it, as a recursion gives them.

    Parameters
    ----------
    function : callable
        The function.
    item : object
        The item.

    Yields
    ------
    object
        The results.

    Raises
    ------
    RecursionError
        If it never ends.
    ValueError
        If the function gives too much for an item.
    """
    levels: list[Level] = []
    _open(levels, function, item, 0)
    while levels:
        entries, deep = levels[-1]
        for entry in entries:
            if type(entry) is Again:
                _open(levels, function, entry.item, deep + 1)
                break
            yield entry
        else:
            levels.pop()


def work_on(
    functions: tuple[Callable[[Any], Any]],
    item: Any,
    state: Any,
    lists: list[Any] | None,
    seconds: float,
) -> tuple[list[Any] | None, list[Any]]:
    """Return the results of an item, or give up what is not begun of it after a while.

    Parameters
    ----------
    functions : tuple of callable
        The function.
    item : object
        The item, if it is not begun.
    state : object
        What was returned with items that were given up.
    lists : list or None
        Their results, in their order.
    seconds : float
        How long the while is.

    Returns
    -------
    items : list or None
        What is given up. None if all results are there.
    results : list
        The results; with items, one list of them before each item, and one behind the last.

    Raises
    ------
    RecursionError
        If it never ends.
    TypeError
        If something else than a list of results came back.
    ValueError
        If there are too many results.
    """
    (function,) = functions
    if lists is not None:
        return None, _joined(function, state, lists)
    end = time.monotonic() + seconds
    levels: list[Level] = []
    results: list[Any] = []
    # How many items are not begun.
    waiting = _open(levels, function, item, 0)
    while levels:
        entries, deep = levels[-1]
        for entry in entries:
            if type(entry) is not Again:
                results.append(entry)
                continue
            # A single one is of no use to others: what gives one after the other stays here.
            if waiting > 1 and time.monotonic() >= end:
                return _given_up(results, entry, levels)
            waiting += _open(levels, function, entry.item, deep + 1) - 1
            break
        else:
            levels.pop()
        if waiting > FED_BACK_MAX or len(results) > FED_BACK_MAX:
            raise _too_many(function)
    return None, results


def _open(levels: list[Level], function: Callable[[Any], Any], item: Any, deep: int) -> int:
    """Run the function on an item. Return how many items it gave."""
    if deep > FED_BACK_DEEP_MAX:
        raise RecursionError(
            f"got an item that is fed back more than {FED_BACK_DEEP_MAX} times in a row (FED_BACK_DEEP_MAX), "
            f"expected {name_of(function)} to give no Again at some time"
        )
    _working.append(None)
    try:
        given = list(islice(iterated(function(item), function), FED_BACK_MAX + 1))
    finally:
        _working.pop()
    if len(given) > FED_BACK_MAX:
        raise _too_many(function)
    if levels and not levels[-1][0].__length_hint__():  # type: ignore[attr-defined]  # those of lists have it
        levels.pop()
    levels.append((iter(given), deep))
    return sum(type(entry) is Again for entry in given)


def _given_up(
    results: list[Any], first: Again[Any], levels: list[Level]
) -> tuple[list[Any], list[Any]]:
    """Return the items that are not begun, the next one first, and the results between them."""
    items = [first.item]
    between: list[Any] = [results, []]
    for entries, _ in reversed(levels):
        for entry in entries:
            if type(entry) is Again:
                items.append(entry.item)
                between.append([])
            else:
                between[-1].append(entry)
    return items, between


def _joined(function: Callable[[Any], Any], between: Any, lists: list[Any]) -> list[Any]:
    """Return all results, in their order."""
    before, *others = checked_list(between)
    results = checked_list(before, "results")
    for found, behind in zip(lists, others, strict=True):
        results += checked_list(found, "results")
        results += checked_list(behind, "results")
        if len(results) > FED_BACK_MAX:
            raise _too_many(function)
    return results


def _too_many(function: Callable[[Any], Any]) -> ValueError:
    return ValueError(
        f"got more than {FED_BACK_MAX} results or items of one item from {name_of(function)} (FED_BACK_MAX), "
        "expected fewer: give results that are lists, or items that are further on"
    )
