"""What is said of layouts, checked before the core has it: errors say what was got, and what was expected."""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Sequence
from typing import SupportsIndex

# Indices are below 2**63, as NumPy's are.
LENGTH_MAX = 2**63 - 1
# Of one program.
PROCESSES_MAX = 2**31


def integer(what: str, value: SupportsIndex, least: int, most: int) -> int:
    """Return a number that is in a range.

    Raises
    ------
    TypeError
        For what is no integer.
    ValueError
        For one that is out of the range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"got {what}={reprlib.repr(value)}, expected an integer") from None
    if not least <= number <= most:
        raise ValueError(
            f"got {what}={_shown(number)}, expected an integer from {least} to {_shown(most)}"
        )
    return number


def integers(
    what: str,
    values: Sequence[SupportsIndex],
    least: int,
    most: int,
    count: int | None = None,
    expected: str = "a sequence of integers",
) -> list[int]:
    """Return numbers that are in a range, one for each of `count` axes if that is known.

    Raises
    ------
    TypeError
        For what is no sequence of integers.
    ValueError
        For numbers that are out of the range, and for another count.
    """
    got = f"got {what}={reprlib.repr(values)}"
    if isinstance(values, str | bytes):
        raise TypeError(f"{got}, expected {expected}")
    try:
        numbers = [operator.index(value) for value in values]
    except TypeError:
        raise TypeError(f"{got}, expected {expected}") from None
    wrong = next((number for number in numbers if not least <= number <= most), None)
    if wrong is not None:
        raise ValueError(
            f"{got} with {_shown(wrong)}, expected integers from {least} to {_shown(most)}"
        )
    if count is not None and len(numbers) != count:
        raise ValueError(
            f"{got} of length {len(numbers)}, expected {count}: one integer for each axis of the shape"
        )
    return numbers


def rank_below(rank: SupportsIndex, processes: int) -> int:
    """Return a rank that one of so many processes has.

    Raises
    ------
    IndexError
        For another one.
    """
    number = operator.index(rank)
    if not 0 <= number < processes:
        raise IndexError(f"got the rank {_shown(number)}, expected one of 0 to {processes - 1}")
    return number


def _shown(number: int) -> str:
    """Write a number so that it can be read: those near a power of two by it."""
    if abs(number) < 2**31:
        return str(number)
    power = abs(number).bit_length()
    sign = "-" if number < 0 else ""
    for near, words in ((2**power - 1, f"2**{power} - 1"), (2 ** (power - 1), f"2**{power - 1}")):
        if abs(number) == near:
            return f"{sign}({words})" if sign and "-" in words else f"{sign}{words}"
    return reprlib.repr(number)
