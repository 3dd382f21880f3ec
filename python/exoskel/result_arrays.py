"""How NumPy arrays and scalars stand in plain data.

NumPy's own pickles can't be accepted from a stranger: they hold a `numpy.dtype` whose flags the sender chooses, and a dtype of objects
with its flags cleared makes an array of object pointers out of any bytes, which is as good as running code. So an array is a
description of its elements, a shape and a buffer; `exoskel._core` checks that they fit each other, and makes the array.
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, cast

from .errors import ResultRejectedError

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

__all__ = ["describe", "describe_objects", "describe_scalar", "elements", "object_array"]

# The elements that can be sent: their kinds, and for numbers their sizes, the same on all machines.
_SIZES: dict[str, tuple[int, ...]] = {
    "b": (1,),
    "i": (1, 2, 4, 8),
    "u": (1, 2, 4, 8),
    "f": (2, 4, 8),
    "c": (8, 16),
    "M": (8,),
    "m": (8,),
}
_SIZED_BY_THEIR_USER = "SUV"


def describe(value: NDArray[Any]) -> list[Any]:
    """Take an array apart.

    Parameters
    ----------
    value : numpy.ndarray
        An array of numbers, dates, text of fixed size, or records of them.

    Returns
    -------
    list
        The description of its elements, its shape, the order of its elements in memory (0: the last index varies fastest, 1: the
        first), and the buffer.

    Raises
    ------
    ResultRejectedError
        If its elements can't be sent.
    """
    description = _describe_elements(value.dtype)
    if value.flags.c_contiguous:
        flat, order = value, 0
    elif value.flags.f_contiguous:
        flat, order = value.T, 1
    else:
        flat, order = value.copy(), 0
    if value.nbytes == 0:
        return [description, list(value.shape), 0, b""]
    # As bytes, because the buffer protocol knows neither dates nor half of the structured types.
    raw = pickle.PickleBuffer(flat.reshape(-1).view("u1").data)
    return [description, list(value.shape), order, raw]


def describe_scalar(value: numpy.generic) -> list[Any]:
    """Take a scalar apart.

    Parameters
    ----------
    value : numpy.generic
        A scalar.

    Returns
    -------
    list
        The description of its type, and its bytes.

    Raises
    ------
    ResultRejectedError
        If its type can't be sent.
    """
    if value.dtype.itemsize == 0 and value.dtype.kind in "SU":
        # An empty text is one character that isn't there.
        return ["|S1", b"\0"] if value.dtype.kind == "S" else ["<U1", bytes(4)]
    return [_describe_elements(value.dtype), value.tobytes()]


def describe_objects(value: NDArray[numpy.object_]) -> list[Any]:
    """Take an array of Python objects apart.

    Parameters
    ----------
    value : numpy.ndarray
        The array.

    Returns
    -------
    list
        Its shape, and its objects, the last index varying fastest.
    """
    # `tolist` of a flat array: of a nested one it would return the objects of 0-d arrays bare.
    return [list(value.shape), value.ravel().tolist()]


def object_array(content: list[Any]) -> NDArray[numpy.object_]:
    """Return an array of Python objects.

    Parameters
    ----------
    content : list
        What `describe_objects` returned.

    Returns
    -------
    numpy.ndarray
        The array. The objects are kept as they are: nothing asks them whether they are arrays.
    """
    import numpy

    shape, items = content
    return numpy.fromiter(items, dtype=object, count=len(items)).reshape(shape)


def elements(description: str | list[Any]) -> numpy.dtype[Any]:
    """Return the type of an array's elements.

    Parameters
    ----------
    description : str or list
        What `describe` says of them; `exoskel._core` has read it before.

    Returns
    -------
    numpy.dtype
        The type.
    """
    import numpy

    if type(description) is str:
        return numpy.dtype(description)
    names, formats, offsets, position = [], [], [], 0
    for name, described, *shape in cast("list[Any]", description):
        element = elements(described)
        if shape:
            element = numpy.dtype((element, tuple(shape[0])))
        if name:
            names.append(name)
            formats.append(element)
            offsets.append(position)
        position += element.itemsize
    return numpy.dtype(
        {"names": names, "formats": formats, "offsets": offsets, "itemsize": position}
    )


def _describe_elements(dtype: numpy.dtype[Any]) -> str | list[Any]:
    """Return the description of elements: text, or for records a list of names, descriptions and perhaps shapes."""
    if dtype.names is not None:
        return _describe_fields(dtype)
    kind, size = dtype.kind, dtype.itemsize
    is_known = size in _SIZES.get(kind, ()) or (kind in _SIZED_BY_THEIR_USER and size > 0)
    # Types that other libraries add (such as bfloat16) call themselves bytes of no type.
    if not is_known or dtype.type.__module__ != "numpy":
        raise ResultRejectedError(
            f"got an array of {dtype}, expected numbers of at most 64 bits a part, dates, or text, bytes or records of fixed size: "
            "convert it (astype), or return a list"
        )
    return dtype.str


def _describe_fields(dtype: numpy.dtype[Any]) -> list[Any]:
    fields: list[Any] = []
    position = 0
    for name, known in sorted((dtype.fields or {}).items(), key=lambda item: item[1][1]):
        field, offset, *title = known
        if title or offset < position:
            raise ResultRejectedError(
                "got an array of records whose fields have titles or overlap, expected fields one after the other: return several arrays"
            )
        if offset > position:
            fields.append(["", f"|V{offset - position}"])
        if field.subdtype is None:
            fields.append([name, _describe_elements(field)])
        else:
            base, shape = field.subdtype
            fields.append([name, _describe_elements(base), list(shape)])
        position = offset + field.itemsize
    if dtype.itemsize > position:
        fields.append(["", f"|V{dtype.itemsize - position}"])
    return fields
