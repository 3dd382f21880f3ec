"""SciPy's sparse matrices and arrays as plain data: csr, csc, coo, bsr and dia.

SciPy's C code trusts its indexes. So every one is checked here before SciPy sees it, and once more by SciPy.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import numpy
import scipy.sparse

from . import checks
from .checks import Array

__all__ = ["FROM_DATA", "TO_DATA"]

_NUMBERS = ("b", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8", "c8", "c16")
_INDEXES = ("i4", "i8")


# --- at the worker -----------------------------------------------------------------------------


def compressed_to_data(matrix: Any) -> Any:
    """Return a matrix of the formats csr, csc or bsr as plain data."""
    return (_shape_to_data(matrix), _numbers(matrix.data), matrix.indices, matrix.indptr)


def coordinates_to_data(matrix: Any) -> Any:
    """Return a matrix of the format coo as plain data."""
    return (_shape_to_data(matrix), _numbers(matrix.data), matrix.row, matrix.col)


def diagonals_to_data(matrix: Any) -> Any:
    """Return a matrix of the format dia as plain data."""
    return (_shape_to_data(matrix), _numbers(matrix.data), matrix.offsets)


def refuse(matrix: Any) -> NoReturn:
    """Refuse formats that are made for building only."""
    raise checks.refused(f"a sparse matrix of the format {matrix.format}", "it as tocsr()")


def _shape_to_data(matrix: Any) -> tuple[int, ...]:
    if len(matrix.shape) != 2:
        raise checks.refused(
            f"a sparse array of {len(matrix.shape)} dimensions", "it as reshape(...) with two"
        )
    return tuple(int(length) for length in matrix.shape)


def _numbers(data: Array) -> Array:
    if f"{data.dtype.kind}{data.dtype.itemsize}" not in _NUMBERS and data.dtype.kind != "b":
        raise checks.refused(f"a sparse matrix of {data.dtype}", "it as astype(float)")
    return data


# --- at the manager ----------------------------------------------------------------------------


def _compressed(make: Any, by_rows: bool) -> Callable[[Any], Any]:
    def from_data(data: Any) -> Any:
        """Return the matrix that data from a worker describes."""
        shape, values, indices, pointers = checks.fields(data, 4, "a sparse matrix")
        values = checks.array(values, "values of a sparse matrix", _NUMBERS)
        rows, columns = _shape(shape, len(values))
        major, minor = (rows, columns) if by_rows else (columns, rows)
        return _pointed(make, (rows, columns), values, indices, pointers, major, minor)

    return from_data


def _blocks(make: Any) -> Callable[[Any], Any]:
    def from_data(data: Any) -> Any:
        """Return the matrix of blocks that data from a worker describes."""
        shape, values, indices, pointers = checks.fields(data, 4, "a sparse matrix of blocks")
        values = checks.array(values, "blocks of a sparse matrix", _NUMBERS, 3)
        count, height, width = values.shape
        if not height or not width:
            raise ValueError(f"got blocks of {height} x {width}, expected at least 1 x 1")
        rows, columns = _shape(shape, values.size)
        if rows % height or columns % width:
            raise ValueError(f"got blocks of {height} x {width}, expected divisors of the shape")
        # Empty blocks may have long sides that no data stands for.
        if not count and (height > rows or width > columns):
            raise ValueError(f"got blocks of {height} x {width}, expected no more than the shape")
        return _pointed(
            make, (rows, columns), values, indices, pointers, rows // height, columns // width
        )

    return from_data


def _pointed(
    make: Any,
    shape: tuple[int, int],
    values: Array,
    indices: Any,
    pointers: Any,
    major: int,
    minor: int,
) -> Any:
    indices = checks.array(indices, "indices of a sparse matrix", _INDEXES)
    pointers = checks.array(pointers, "pointers of a sparse matrix", _INDEXES)
    if len(pointers) != major + 1:
        raise ValueError(f"got {len(pointers)} pointers, expected {major + 1}")
    if len(indices) != len(values):
        raise ValueError(f"got {len(indices)} indices, expected {len(values)}")
    checks.offsets(pointers, len(indices), "pointers of a sparse matrix")
    if int(pointers[0]) != 0 or int(pointers[-1]) != len(indices):
        raise ValueError("got pointers that leave indices out, expected 0 first and the end last")
    checks.within(indices, 0, minor, "indices of a sparse matrix")
    arrays = (checks.owned(values), checks.owned(indices), checks.owned(pointers))
    matrix = make(arrays, shape=shape, copy=False)
    matrix.check_format(full_check=True)
    return matrix


def _coordinates(make: Any) -> Callable[[Any], Any]:
    def from_data(data: Any) -> Any:
        """Return the matrix that data from a worker describes."""
        shape, values, rows, columns = checks.fields(data, 4, "a sparse matrix")
        values = checks.array(values, "values of a sparse matrix", _NUMBERS)
        found = _shape(shape, len(values))
        places = []
        for indices, length in ((rows, found[0]), (columns, found[1])):
            made = checks.array(indices, "indices of a sparse matrix", _INDEXES)
            if len(made) != len(values):
                raise ValueError(f"got {len(made)} indices, expected {len(values)}")
            checks.within(made, 0, length, "indices of a sparse matrix")
            places.append(checks.owned(made))
        return make((checks.owned(values), tuple(places)), shape=found, copy=False)

    return from_data


def _diagonals(make: Any) -> Callable[[Any], Any]:
    def from_data(data: Any) -> Any:
        """Return the matrix of diagonals that data from a worker describes."""
        shape, values, offsets = checks.fields(data, 3, "a sparse matrix of diagonals")
        values = checks.array(values, "diagonals", _NUMBERS, 2)
        rows, columns = _shape(shape, values.size)
        offsets = checks.array(offsets, "offsets of diagonals", _INDEXES)
        if len(offsets) != values.shape[0]:
            raise ValueError(f"got {len(offsets)} offsets, expected {values.shape[0]}")
        checks.within(offsets, 1 - rows, columns, "offsets of diagonals")
        if len(numpy.unique(offsets)) != len(offsets):
            raise ValueError("got offsets of diagonals with doubles, expected each once")
        arrays = (checks.owned(values), checks.owned(offsets))
        return make(arrays, shape=(rows, columns), copy=False)

    return from_data


def _shape(data: Any, stored: int) -> tuple[int, int]:
    """Return a shape whose sides are no longer than what a pointer for each may cost."""
    longest = max(checks.UNBACKED_LENGTH_MAX, stored)
    rows, columns = checks.fields(data, 2, "the shape of a sparse matrix")
    return (
        checks.integer(rows, "rows of a sparse matrix", 0, longest),
        checks.integer(columns, "columns of a sparse matrix", 0, longest),
    )


TO_DATA = {
    f"sparse.{name}_{kind}:1": to_data
    for kind in ("array", "matrix")
    for name, to_data in (
        ("csr", compressed_to_data),
        ("csc", compressed_to_data),
        ("bsr", compressed_to_data),
        ("coo", coordinates_to_data),
        ("dia", diagonals_to_data),
        ("dok", refuse),
        ("lil", refuse),
    )
}
FROM_DATA = {
    "sparse.csr_array:1": _compressed(scipy.sparse.csr_array, by_rows=True),
    "sparse.csr_matrix:1": _compressed(scipy.sparse.csr_matrix, by_rows=True),
    "sparse.csc_array:1": _compressed(scipy.sparse.csc_array, by_rows=False),
    "sparse.csc_matrix:1": _compressed(scipy.sparse.csc_matrix, by_rows=False),
    "sparse.bsr_array:1": _blocks(scipy.sparse.bsr_array),
    "sparse.bsr_matrix:1": _blocks(scipy.sparse.bsr_matrix),
    "sparse.coo_array:1": _coordinates(scipy.sparse.coo_array),
    "sparse.coo_matrix:1": _coordinates(scipy.sparse.coo_matrix),
    "sparse.dia_array:1": _diagonals(scipy.sparse.dia_array),
    "sparse.dia_matrix:1": _diagonals(scipy.sparse.dia_matrix),
}
