"""How NumPy arrays and scalars stand in a result.

NumPy's own pickles can't be accepted from a stranger: they hold a `numpy.dtype` whose flags the sender chooses, and a dtype of
objects with its flags cleared makes an array of object pointers out of any bytes, which is as good as running code. So a slot
reduces arrays to calls of the functions below, which take nothing but a buffer, a description of the elements and a shape, and
check them. The buffer travels out of band, as with NumPy's own reduction.

A dtype never arrives as a value of its own, because ``dtype.__setstate__`` is the way to forge one.
"""

import copyreg
import math
import pickle
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

__all__ = ["array", "object_array", "reducers", "scalar"]

Description: TypeAlias = str | list[Any]
Reducer: TypeAlias = Callable[[Any], Any]

# Fields within fields, in a description of elements; NumPy itself recurses without a limit of its own.
_NESTING_MAX = 16


def reducers() -> dict[type, Reducer] | None:
    """Return the dispatch table that a pickler of results needs.

    Returns
    -------
    dict or None
        For ``pickler.dispatch_table``, what `copyreg` knows included; or None while NumPy isn't loaded, when no result can hold
        an array.
    """
    numpy = sys.modules.get("numpy")
    if numpy is None or not hasattr(numpy, "ndarray"):
        return None
    if not _NUMPY_REDUCERS:
        kinds = {kind for kind in numpy.sctypeDict.values() if kind is not numpy.object_}
        _NUMPY_REDUCERS.update(dict.fromkeys(kinds, _reduce_scalar))
        _NUMPY_REDUCERS[numpy.ndarray] = _reduce_array
    return {**copyreg.dispatch_table, **_NUMPY_REDUCERS}


_NUMPY_REDUCERS: dict[type, Reducer] = {}


def array(
    buffer: Any, description: Description, shape: tuple[int, ...], order: str = "C"
) -> "NDArray[Any]":
    """Return the array that a buffer holds, without a copy.

    Parameters
    ----------
    buffer : bytes-like
        All elements, no more and no less; the array is writable if the buffer is.
    description : str or list
        The elements, as `numpy.lib.format.dtype_to_descr` writes them.
    shape : tuple of int
        The shape.
    order : {"C", "F"}
        How the elements lie in the buffer.

    Returns
    -------
    numpy.ndarray
        The array.

    Raises
    ------
    ValueError
        If the parts don't fit together or the elements are objects.
    """
    import numpy

    elements = _dtype_of(description)
    _check_shape(shape)
    if order not in ("C", "F"):
        raise ValueError("got an unknown order of array elements, expected C or F")
    expected = math.prod(shape) * elements.itemsize
    view = memoryview(buffer)
    if view.nbytes != expected:
        raise ValueError(
            f"got {view.nbytes} bytes for an array, expected {expected} bytes by its shape"
        )
    return numpy.ndarray(
        shape,
        elements,
        view.cast("B") if view.nbytes else bytearray(),
        order="F" if order == "F" else "C",
    )


def object_array(items: list[Any], shape: tuple[int, ...]) -> "NDArray[numpy.object_]":
    """Return an array of Python objects.

    Parameters
    ----------
    items : list
        The objects, the last index varying fastest.
    shape : tuple of int
        The shape.

    Returns
    -------
    numpy.ndarray
        The array.

    Raises
    ------
    ValueError
        If the number of objects isn't that of the shape.
    """
    import numpy

    _check_shape(shape)
    if type(items) is not list or len(items) != math.prod(shape):
        raise ValueError(f"got a wrong number of objects for an array, expected {math.prod(shape)}")
    flat = numpy.empty(len(items), dtype=object)
    # One by one: a slice assignment would take nested lists apart.
    for index, item in enumerate(items):
        flat[index] = item
    return flat.reshape(shape)


def scalar(buffer: bytes, description: Description) -> Any:
    """Return a NumPy scalar from its bytes.

    Parameters
    ----------
    buffer : bytes
        The bytes of the scalar.
    description : str or list
        Its type, as for `array`.

    Returns
    -------
    numpy.generic
        The scalar.
    """
    return array(buffer, description, ())[()]


def _reduce_array(value: "NDArray[Any]") -> Any:
    elements = value.dtype
    if elements.hasobject:
        if elements.names is not None:
            return value.__reduce_ex__(pickle.HIGHEST_PROTOCOL)
        # `tolist` of a flat array: of a nested one it would return the objects of 0-d arrays bare.
        return object_array, (value.ravel().tolist(), value.shape)
    if value.flags.c_contiguous:
        flat, order = value, "C"
    elif value.flags.f_contiguous:
        flat, order = value.T, "F"
    else:
        flat, order = value.copy(), "C"
    if value.nbytes == 0:
        return array, (b"", _description_of(elements), value.shape)
    # As bytes, because the buffer protocol knows neither dates nor half of the structured types.
    raw = pickle.PickleBuffer(flat.reshape(-1).view("u1").data)
    return array, (raw, _description_of(elements), value.shape, order)


def _reduce_scalar(value: Any) -> Any:
    return scalar, (value.tobytes(), _description_of(value.dtype))


def _description_of(elements: "numpy.dtype[Any]") -> Description:
    if elements.names is None and elements.subdtype is None:
        return elements.str
    from numpy.lib.format import dtype_to_descr

    description: Description = dtype_to_descr(elements)
    return description


def _dtype_of(description: object) -> "numpy.dtype[Any]":
    import numpy

    elements = _DTYPES.get(description) if type(description) is str else None
    if elements is not None:
        return elements
    _check_description(description, _NESTING_MAX)
    if type(description) is str:
        elements = numpy.dtype(description)
    else:
        from numpy.lib.format import descr_to_dtype

        elements = descr_to_dtype(cast(Any, description))
    if elements.hasobject:
        raise ValueError(
            "got an array of objects as bytes, expected numbers, strings, dates or records of them"
        )
    if type(description) is str and len(_DTYPES) < _DTYPES_MAX:
        _DTYPES[description] = elements
    return elements


_DTYPES: dict[object, "numpy.dtype[Any]"] = {}
# A stranger must not be able to fill the manager's memory with descriptions.
_DTYPES_MAX = 256


def _check_description(description: object, nesting: int) -> None:
    """Make sure that NumPy sees only text, numbers, lists and tuples, never an object with attributes of its own."""
    if nesting == 0:
        raise ValueError(f"got an array description nested deeper than {_NESTING_MAX} levels")
    if type(description) in (str, int):
        return
    if type(description) not in (list, tuple):
        raise ValueError(
            "got an array description that holds more than text, numbers, lists and tuples"
        )
    for part in description:  # type: ignore[attr-defined]  # a list or a tuple, by the line above
        _check_description(part, nesting - 1)


def _check_shape(shape: object) -> None:
    if type(shape) is not tuple or not all(type(length) is int and length >= 0 for length in shape):
        raise ValueError("got a malformed array shape, expected a tuple of numbers")
