"""Ready-made result types: values of common libraries as plain data, and back.

An answer of a worker that isn't trusted travels as plain data. Each module here knows one library. Its ``*_to_data`` functions run at
the worker and say what a value consists of; its ``*_from_data`` functions run at the manager on data that a stranger chose. They check
types, lengths, indexes and sizes before they call the library, and look nothing up by text but in tables of their own.

A module here is loaded when it is first used, and its library with it: importing this package costs nothing.
"""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

__all__ = ["FromData", "ToData", "find", "reader"]

ToData: TypeAlias = Callable[[Any], Any]
FromData: TypeAlias = Callable[[Any], Any]


def find(kind: type) -> tuple[str, ToData] | None:
    """Return how values of a class become plain data.

    Parameters
    ----------
    kind : type
        The exact class of a value, ``type(value)``. A subclass isn't its parent.

    Returns
    -------
    tuple of str and callable, or None
        The name of the form on the wire, and the function that makes data of a value. The function raises `TypeError` with a cure
        for what the form can't hold. None if there is no ready-made form.
    """
    module, qualname = kind.__module__, kind.__qualname__
    name = _NAMES.get((module, qualname))
    if name is None:
        return None
    home = sys.modules.get(module)
    # Somebody else's class may carry the same name.
    if getattr(home, qualname, None) is not kind:
        return None
    library, _, form = name.partition(".")
    functions = _load(library)
    return name, functions.TO_DATA[form]


def reader(name: str) -> FromData | None:
    """Return what makes a value of the data that came under a name.

    Parameters
    ----------
    name : str
        The name on the wire.

    Returns
    -------
    callable or None
        The function, which raises `ValueError` or `TypeError` for data that isn't of the form. None if the name isn't known.

    Raises
    ------
    ImportError
        If the library isn't installed here.
    """
    library = _READERS.get(name)
    if library is None:
        return None
    refusal = (
        f"got a result of the type {name.partition(':')[0]}, expected its library to be installed here: "
        f"run pip install {_DISTRIBUTIONS[library]}, or let the worker return arrays"
    )
    if library in _missing:
        raise ImportError(refusal)
    try:
        functions = _load(library)
    except ModuleNotFoundError as error:
        _missing.add(library)
        raise ImportError(refusal) from error
    found: FromData = functions.FROM_DATA[name.partition(".")[2]]
    return found


def _load(library: str) -> Any:
    return import_module(f"{__name__}.{_MODULES[library]}")


# The first part of a name on the wire: its module here, and what `pip` calls the library.
_MODULES = {
    "pandas": "pandas",
    "pyarrow": "arrow",
    "scipy": "sparse",
    "torch": "tensors",
    "xarray": "xarray",
}
_DISTRIBUTIONS = {library: library for library in _MODULES}

# Libraries that were looked for and aren't there: a stranger doesn't make this process search its disks for each answer.
_missing: set[str] = set()

# Names on the wire, with the number of their form, by the classes that have them.
_NAMES: dict[tuple[str, str], str] = {}


def _add(name: str, *classes: str) -> None:
    for path in classes:
        module, _, qualname = path.rpartition(".")
        _NAMES[module, qualname] = name


# pandas 3 says "pandas" as the home of its classes, pandas 2 the module.
_add("pandas.DataFrame:1", "pandas.DataFrame", "pandas.core.frame.DataFrame")
_add("pandas.Series:1", "pandas.Series", "pandas.core.series.Series")
_add("pandas.Timestamp:1", "pandas.Timestamp", "pandas._libs.tslibs.timestamps.Timestamp")
_add("pandas.Timedelta:1", "pandas.Timedelta", "pandas._libs.tslibs.timedeltas.Timedelta")
for _class, _file in {
    "Index": "base",
    "RangeIndex": "range",
    "MultiIndex": "multi",
    "DatetimeIndex": "datetimes",
    "TimedeltaIndex": "timedeltas",
    "CategoricalIndex": "category",
    "PeriodIndex": "period",
    "IntervalIndex": "interval",
}.items():
    _add("pandas.Index:1", f"pandas.{_class}", f"pandas.core.indexes.{_file}.{_class}")

for _class, _file in {
    "DataArray": "dataarray",
    "Dataset": "dataset",
    "Variable": "variable",
}.items():
    _add(f"xarray.{_class}:1", f"xarray.core.{_file}.{_class}", f"xarray.{_class}")

for _class in ("Table", "RecordBatch", "ChunkedArray"):
    _add(f"pyarrow.{_class}:1", f"pyarrow.lib.{_class}")
for _class in (
    *(f"Int{bits}" for bits in (8, 16, 32, 64)),
    *(f"UInt{bits}" for bits in (8, 16, 32, 64)),
    *("HalfFloat", "Float", "Double", "Boolean", "Null"),
    *("String", "LargeString", "StringView", "Binary", "LargeBinary", "BinaryView"),
    *("FixedSizeBinary", "FixedSizeList", "ListView", "LargeListView", "Map", "Union"),
    *("Date32", "Date64", "Time32", "Time64", "Timestamp", "Duration", "MonthDayNanoInterval"),
    *("Decimal32", "Decimal64", "Decimal128", "Decimal256", "RunEndEncoded"),
    *("List", "LargeList", "Struct", "Dictionary"),
):
    _add("pyarrow.Array:1", f"pyarrow.lib.{_class}Array")

for _format in ("csr", "csc", "coo", "bsr", "dia", "dok", "lil"):
    for _class in ("array", "matrix"):
        _add(
            f"scipy.sparse.{_format}_{_class}:1",
            f"scipy.sparse._{_format}.{_format}_{_class}",
        )

_add("torch.Tensor:1", "torch.Tensor", "torch.nn.parameter.Parameter")

# What can only be refused, with a cure, has no reader.
_READERS = {
    name: name.partition(".")[0]
    for name in _NAMES.values()
    if not name.startswith(("scipy.sparse.dok", "scipy.sparse.lil"))
}
