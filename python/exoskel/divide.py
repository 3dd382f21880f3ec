"""Divide and conquer at a slot: depth first, until others may want a part of it."""

from __future__ import annotations

import time
from collections.abc import Callable

from .worker_lists import checked_list

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["endless", "work_on"]

# How often the parts of an item are divided again. What is never small enough would take all memory of the machine.
DIVISIONS_DEEP_MAX = 1_000_000

# A problem that has been divided: the solutions of its parts as far as they are known, the parts that are not begun (the next one last),
# and their places among the solutions.
Level = tuple[list["Any"], list["Any"], list[int]]


def work_on(
    functions: tuple[Callable[..., Any], ...],
    problem: Any,
    state: Any,
    solutions: list[Any] | None,
    seconds: float,
) -> tuple[list[Any] | None, Any]:
    """Solve a problem, or give up what is not begun of it after a while.

    Parameters
    ----------
    functions : tuple of callable
        ``is_base``, ``base``, ``divide`` and ``conquer``.
    problem : object
        The problem, if it is not begun.
    state : object
        What was returned with parts of a problem.
    solutions : list or None
        Those of the parts, in their order.
    seconds : float
        How long the while is.

    Returns
    -------
    parts : list or None
        What is given up: the largest problems first. None if the problem is solved.
    solution : object
        The solution, or the state of what is given up.

    Raises
    ------
    RecursionError
        If it never ends.
    """
    if solutions is not None:
        return None, _resumed(functions[3], state, solutions)
    is_base, base, divide, conquer = functions
    levels: list[Level] = []
    # How many parts are not begun. A single one is of no use to others.
    waiting = 0
    end = time.monotonic() + seconds
    while True:
        if is_base(problem):
            solution = base(problem)
        else:
            parts = _parts_of(divide(problem), divide)
            places = list(range(len(parts)))
            parts.reverse()
            places.reverse()
            levels.append(([None] * len(parts), parts, places))
            if len(levels) > DIVISIONS_DEEP_MAX:
                raise endless(is_base)
            solution = None
            waiting += len(parts)
            if parts:
                if waiting > 1 and time.monotonic() >= end:
                    return _given_up(levels)
                problem = parts.pop()
                waiting -= 1
                continue
            levels.pop()
            solution = conquer([])
        # Up as far as all parts of a problem are solved.
        while levels:
            known, parts, places = levels[-1]
            known[places.pop()] = solution
            if parts:
                break
            levels.pop()
            solution = conquer(known)
        else:
            return None, solution
        if waiting > 1 and time.monotonic() >= end:
            return _given_up(levels)
        problem = levels[-1][1].pop()
        waiting -= 1


def endless(is_base: Callable[..., Any]) -> RecursionError:
    """Say that a problem is divided for ever.

    Parameters
    ----------
    is_base : callable
        What should have been true of some part.

    Returns
    -------
    RecursionError
        The exception.
    """
    from .short_text import name_of

    return RecursionError(
        f"got an item that is divided more than {DIVISIONS_DEEP_MAX} times in a row (DIVISIONS_DEEP_MAX), "
        f"expected {name_of(is_base)} to be true of some part before"
    )


def _parts_of(divided: Any, divide: Callable[..., Any]) -> list[Any]:
    """Return the parts of a problem, as a list of our own."""
    if isinstance(divided, (list, tuple)):
        return list(divided)
    from .sequential import iterated

    return list(iterated(divided, divide))


def _given_up(levels: list[Level]) -> tuple[list[Any], Any]:
    """Return all parts that are not begun, and what is known besides: for each level, solutions and the places of its parts."""
    given: list[Any] = []
    state: list[Any] = []
    for known, parts, places in levels:
        # The part that is begun is the level below, whose place comes last.
        given.extend(reversed(parts))
        state.append([known, list(reversed(places)), len(parts)])
    return given, state


def _resumed(conquer: Callable[..., Any], state: Any, solutions: list[Any]) -> Any:
    """Return the solution of a problem, from those of the parts that were given up."""
    given = iter(solutions)
    levels: list[tuple[list[Any], int | None]] = []
    for level in checked_list(state):
        known, places, count = checked_list(level)
        known, places = list(checked_list(known)), checked_list(places)
        # One place more than parts: that of the level below.
        hole = places[0] if len(places) > count else None
        for place in places[len(places) - count :]:
            known[place] = next(given)
        levels.append((known, hole))
    solution = None
    for known, hole in reversed(levels):
        if hole is not None:
            known[hole] = solution
        solution = conquer(known)
    return solution
