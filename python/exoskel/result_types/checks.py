"""What every reader of result types asks of the data before a library sees it.

Types are compared exactly: a subclass never comes as plain data, and its methods could be anything. Texts from the data never appear in
errors, only types, numbers and our own words.
"""

import sys
from collections.abc import Collection
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

__all__ = [
    "Array",
    "array",
    "fields",
    "integer",
    "label",
    "offsets",
    "owned",
    "plain_dict",
    "refused",
    "shape",
]

Array: TypeAlias = NDArray[Any]

# Empty arrays and sparse matrices may have long dimensions that no data stands for. The first sum along the others makes an array of
# that length: at most 128 MiB.
UNBACKED_LENGTH_MAX = 1 << 24

_LABELS_NESTED_MAX = 4
# Labels of one hash are compared; an int with a Decimal in the square of its length.
_LABEL_BITS_MAX = 512
_CODE_POINT_MAX = sys.maxunicode


def fields(data: Any, count: int, what: str) -> tuple[Any, ...]:
    """Return the parts of a form, or refuse what isn't a tuple of so many."""
    if type(data) is not tuple:
        raise TypeError(f"got {what} as {type(data).__name__}, expected a tuple of {count}")
    if len(data) != count:
        raise ValueError(f"got {what} of {len(data)} parts, expected {count}")
    return data


def integer(value: Any, what: str, least: int = -(1 << 63), most: int = (1 << 63) - 1) -> int:
    """Return a whole number within bounds, or refuse it."""
    if type(value) is not int:
        raise TypeError(f"got {what} as {type(value).__name__}, expected an int")
    if not least <= value <= most:
        raise ValueError(f"got {what} out of range, expected {least} to {most}")
    return value


def plain_dict(value: Any, what: str) -> dict[Any, Any]:
    """Return a dict, or refuse it."""
    if type(value) is not dict:
        raise TypeError(f"got {what} as {type(value).__name__}, expected a dict")
    return value


def array(value: Any, what: str, kinds: Collection[str], dimensions: int | None = 1) -> Array:
    """Return an array that a library may have, or refuse it.

    Parameters
    ----------
    value : object
        What the data holds.
    what : str
        What it is for, in errors.
    kinds : collection of str
        The dtypes that are allowed: letters as in `numpy.dtype.kind`, or a kind with its size as ``"i8"``.
    dimensions : int, optional
        How many dimensions it must have; None for any number.

    Returns
    -------
    numpy.ndarray
        The array, in this machine's byte order, aligned and contiguous. Booleans are 0 or 1, characters are characters.

    Raises
    ------
    TypeError
        If it isn't an array, or one of other elements.
    ValueError
        If it has another number of dimensions, or elements that can't be.
    """
    if type(value) is not numpy.ndarray:
        raise TypeError(f"got {what} as {type(value).__name__}, expected an array")
    dtype = value.dtype
    if dtype.kind not in kinds and f"{dtype.kind}{dtype.itemsize}" not in kinds:
        raise TypeError(
            f"got {what} as an array of {dtype.kind}{dtype.itemsize}, expected {', '.join(kinds)}"
        )
    if dimensions is not None and value.ndim != dimensions:
        raise ValueError(f"got {what} of {value.ndim} dimensions, expected {dimensions}")
    shape(value.shape, value.nbytes, what)
    if dtype.kind == "O":
        return value
    found: Array = numpy.ascontiguousarray(value, dtype=dtype.newbyteorder("="))
    # That makes one dimension of none.
    found = found.reshape(value.shape)
    if not found.flags.aligned:
        found = found.copy()
    if dtype.kind == "b" and found.size and int(found.view(numpy.uint8).max()) > 1:
        raise ValueError(f"got {what} with a truth value that is neither 0 nor 1")
    if dtype.kind == "U" and found.size and dtype.itemsize:
        points = numpy.frombuffer(found, dtype=numpy.uint32)
        if int(points.max()) > _CODE_POINT_MAX:
            raise ValueError(f"got {what} with a character beyond Unicode")
    return found


def owned(found: Array) -> Array:
    """Return an array that can be written to: the same one if possible."""
    return found if found.flags.writeable else found.copy()


def shape(lengths: tuple[int, ...], nbytes: int, what: str) -> None:
    """Refuse long dimensions that no data stands for."""
    if nbytes:
        return
    product = 1
    for length in lengths:
        product *= max(length, 1)
    if product > UNBACKED_LENGTH_MAX:
        raise ValueError(
            f"got {what} of no bytes whose dimensions come to {product}, expected at most {UNBACKED_LENGTH_MAX}"
        )


def offsets(found: Array, last: int, what: str) -> None:
    """Refuse offsets that don't rise, or leave what they point into."""
    if not len(found):
        raise ValueError(f"got {what} without elements, expected at least one")
    if int(found[0]) < 0 or int(found[-1]) > last:
        raise ValueError(f"got {what} out of range, expected 0 to {last}")
    if bool((found[1:] < found[:-1]).any()):
        raise ValueError(f"got {what} that fall, expected them to rise")


def within(found: Array, least: int, end: int, what: str) -> None:
    """Refuse indexes that point outside."""
    if found.size and (int(found.min()) < least or int(found.max()) >= end):
        raise ValueError(f"got {what} out of range, expected {least} to {end - 1}")


def label(value: Any, what: str, depth: int = 0) -> Any:
    """Return a name of a column or an axis, or refuse what isn't plain and hashable."""
    if type(value) is tuple and depth < _LABELS_NESTED_MAX:
        for part in value:
            label(part, what, depth + 1)
    elif type(value) not in _LABEL_TYPES:
        raise TypeError(f"got {what} as {type(value).__name__}, expected a text, a number or None")
    elif type(value) is int and value.bit_length() > _LABEL_BITS_MAX:
        raise ValueError(
            f"got {what} as an int of {value.bit_length()} bits, expected at most {_LABEL_BITS_MAX}"
        )
    return value


def _label_types() -> frozenset[type]:
    import datetime
    import decimal
    import fractions
    import uuid

    return frozenset(
        {
            type(None),
            bool,
            int,
            float,
            complex,
            str,
            bytes,
            datetime.date,
            datetime.datetime,
            datetime.time,
            datetime.timedelta,
            decimal.Decimal,
            fractions.Fraction,
            uuid.UUID,
            *(numpy.dtype(code).type for code in "?bhilqBHILQefdFDM"),
            numpy.timedelta64,
            numpy.str_,
            numpy.bytes_,
        }
    )


_LABEL_TYPES = _label_types()


def refused(what: str, cure: str) -> TypeError:
    """Return the error for what a worker can't send, with what to return instead."""
    return TypeError(f"got {what}, which can't travel as plain data: return {cure}")
