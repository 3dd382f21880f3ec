"""Arguments of functions in Python's own types: NumPy's numbers become numbers, ranges and arrays become lists."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["refused", "several", "whole_number"]

# The largest number of a scenario file.
NUMBER_MAX = 2**63 - 1


def refused(name: str, value: object, expected: str) -> ValueError:
    """Return the error for a value that can't be.

    Parameters
    ----------
    name : str
        What it is.
    value : object
        What was given.
    expected : str
        What could have been.
    """
    return ValueError(f"{name}: got {value!r}, expected {expected}")


def whole_number(name: str, value: object, *, least: int = 0, most: int = NUMBER_MAX) -> int:
    """Return a whole number.

    Parameters
    ----------
    name : str
        What it is, for the message.
    value : object
        What was given.
    least, most : int
        Between which it is.

    Raises
    ------
    ValueError
        If it is none.
    """
    expected = f"a whole number from {least} to {'2^63 - 1' if most == NUMBER_MAX else most}"
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool) or not least <= number <= most:
        raise refused(name, value, expected)
    return number


def several(name: str, values: object, expected: str) -> list[Any]:
    """Return a list of at least one value.

    Parameters
    ----------
    name : str
        What it is, for the message.
    values : object
        What was given: a list, a tuple, a range, an array.
    expected : str
        What could have been.

    Raises
    ------
    ValueError
        If it is no list, or empty.
    """
    if not isinstance(values, Iterable) or isinstance(values, (str, bytes, Mapping)):
        raise refused(name, values, expected)
    listed = list(values)
    if not listed:
        raise ValueError(f"{name}: got an empty list, expected {expected}")
    return listed
