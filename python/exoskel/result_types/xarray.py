"""DataArray, Dataset and Variable of xarray as plain data.

Dimensions, coordinates, attributes and names travel; `encoding` stays behind, and indexes are made again from the coordinates.
"""

from typing import Any

import numpy
import xarray

from . import checks
from .checks import Array

__all__ = ["FROM_DATA", "TO_DATA"]

_KINDS = (
    *("b", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"),
    *("f2", "f4", "f8", "c8", "c16", "S", "U", "M8", "m8", "O"),
)
_UNITS = ("s", "ms", "us", "ns")
# A dimension can be long without data only where the array is empty; their number isn't limited by data at all.
_DIMENSIONS_MAX = 32
# Dimensions of a Dataset, all variables together: their names may be numbers, whose hashes a stranger can choose.
_DATASET_DIMENSIONS_MAX = 1 << 10
# Each coordinate of a dimension costs a fifth of a millisecond, however short it is.
_VARIABLES_MAX = 1 << 12


# --- at the worker -----------------------------------------------------------------------------


def variable_to_data(variable: Any) -> Any:
    """Return a Variable as plain data."""
    values = variable.data
    if type(values) is not numpy.ndarray:
        raise checks.refused(
            f"an xarray variable kept as {type(values).__module__}.{type(values).__qualname__}"[
                :120
            ],
            "it as compute(), or astype(object) if the values are plain data",
        )
    if (
        values.dtype.kind not in _KINDS
        and f"{values.dtype.kind}{values.dtype.itemsize}" not in _KINDS
    ):
        raise checks.refused(
            f"an xarray variable of {values.dtype}"[:80], 'it as astype("float64")'
        )
    return (tuple(variable.dims), values, dict(variable.attrs))


def array_to_data(array: Any) -> Any:
    """Return a DataArray as plain data."""
    return (variable_to_data(array.variable), _coordinates_to_data(array), array.name)


def dataset_to_data(dataset: Any) -> Any:
    """Return a Dataset as plain data."""
    if len(dataset.data_vars) > _VARIABLES_MAX:
        raise checks.refused(f"a Dataset of {len(dataset.data_vars)} variables", "several")
    if len(dataset.sizes) > _DATASET_DIMENSIONS_MAX:
        raise checks.refused(f"a Dataset of {len(dataset.sizes)} dimensions", "several")
    variables = {
        name: variable_to_data(found.variable) for name, found in dataset.data_vars.items()
    }
    return (variables, _coordinates_to_data(dataset), dict(dataset.attrs))


def _coordinates_to_data(value: Any) -> Any:
    for name, index in value.xindexes.items():
        if type(index) is not xarray.indexes.PandasIndex or value.coords[name].dims != (name,):
            raise checks.refused(
                f"xarray coordinates with a {type(index).__qualname__}"[:80],
                "it after reset_index(...) or drop_indexes(...)",
            )
    if len(value.coords) > _VARIABLES_MAX:
        raise checks.refused(f"an xarray value of {len(value.coords)} coordinates", "several")
    return {name: variable_to_data(found.variable) for name, found in value.coords.items()}


# --- at the manager ----------------------------------------------------------------------------


def variable_from_data(data: Any) -> Any:
    """Return the Variable that data from a worker describes."""
    dimensions, values, attributes = checks.fields(data, 3, "a Variable")
    if type(dimensions) is not tuple:
        raise TypeError(f"got dimensions as {type(dimensions).__name__}, expected a tuple")
    if len(dimensions) > _DIMENSIONS_MAX:
        raise ValueError(f"got {len(dimensions)} dimensions, expected at most {_DIMENSIONS_MAX}")
    for dimension in dimensions:
        _name(dimension, "a dimension")
    if len(set(dimensions)) != len(dimensions):
        raise ValueError("got a dimension twice, expected each once")
    found = checks.owned(checks.array(values, "values of a Variable", _KINDS, len(dimensions)))
    _check_elements(found)
    attributes = checks.plain_dict(attributes, "attrs of a Variable")
    # Without a look through objects for dates.
    return xarray.Variable(dimensions, found, attributes, fastpath=True)


def array_from_data(data: Any) -> Any:
    """Return the DataArray that data from a worker describes."""
    variable, coordinates, name = checks.fields(data, 3, "a DataArray")
    made = variable_from_data(variable)
    coords = _variables(coordinates, "coordinates")
    _check_sizes([made], made.sizes)
    _check_sizes(coords.values(), made.sizes)
    _check_axes(coords)
    checks.label(name, "the name of a DataArray")
    return xarray.DataArray(made, coords=coords, name=name)


def dataset_from_data(data: Any) -> Any:
    """Return the Dataset that data from a worker describes."""
    variables, coordinates, attributes = checks.fields(data, 3, "a Dataset")
    values = _variables(variables, "variables")
    coords = _variables(coordinates, "coordinates")
    if values.keys() & coords.keys():
        raise ValueError("got a name as variable and as coordinate, expected one of them")
    sizes: dict[Any, int] = {}
    for made in (*values.values(), *coords.values()):
        sizes.update(made.sizes)
        if len(sizes) > _DATASET_DIMENSIONS_MAX:
            raise ValueError(
                f"got a Dataset of more than {_DATASET_DIMENSIONS_MAX} dimensions, expected fewer"
            )
    _check_sizes((*values.values(), *coords.values()), sizes)
    _check_axes(coords)
    if any(name in sizes for name in values):
        raise ValueError("got a variable with the name of a dimension, expected a coordinate")
    attributes = checks.plain_dict(attributes, "attrs of a Dataset")
    return xarray.Dataset(values, coords=coords, attrs=attributes)


def _variables(data: Any, what: str) -> dict[Any, Any]:
    made = {}
    if len(checks.plain_dict(data, what)) > _VARIABLES_MAX:
        raise ValueError(f"got {len(data)} {what}, expected at most {_VARIABLES_MAX}")
    for name, variable in data.items():
        made[_name(name, f"the name of {what}")] = variable_from_data(variable)
    return made


def _name(value: Any, what: str) -> Any:
    # Ellipsis and the like have meanings of their own as names.
    if type(value) is not str:
        return checks.label(value, what)
    return value


def _check_sizes(variables: Any, sizes: Any) -> None:
    for variable in variables:
        for dimension, length in variable.sizes.items():
            if sizes.get(dimension) != length:
                raise ValueError(
                    f"got a dimension of length {length} beside one of {sizes.get(dimension)}, expected one length"
                )


def _check_axes(coordinates: dict[Any, Any]) -> None:
    """Refuse coordinates that can't be the labels of the dimension whose name they have."""
    for name, variable in coordinates.items():
        if name in variable.dims and variable.dims != (name,):
            raise ValueError("got labels of a dimension with other dimensions, expected its own")


def _check_elements(found: Array) -> None:
    kind = found.dtype.kind
    if kind in "mM":
        unit, count = numpy.datetime_data(found.dtype)
        if unit not in _UNITS or count != 1:
            raise ValueError(f"got times in {count} {unit}, expected one of {', '.join(_UNITS)}")
    if kind in "SU" and not found.dtype.itemsize and found.size:
        raise ValueError("got texts of no length, expected at least one character")


TO_DATA = {
    "DataArray:1": array_to_data,
    "Dataset:1": dataset_to_data,
    "Variable:1": variable_to_data,
}
FROM_DATA = {
    "DataArray:1": array_from_data,
    "Dataset:1": dataset_from_data,
    "Variable:1": variable_from_data,
}


def _use_once() -> None:
    """Have pandas load now what it loads when xarray makes the first index of texts."""
    xarray.DataArray(numpy.zeros(1), coords={"x": numpy.array(["a"])}, dims="x")


_use_once()
