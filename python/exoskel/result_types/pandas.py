"""DataFrame, Series, every kind of Index, Timestamp and Timedelta as plain data.

A column is an array, or a tuple with a tag for what NumPy has no dtype for: text, numbers with missing values, categories, times with a
zone. Frames whose columns are all of one NumPy dtype travel as one array.
"""

import datetime
import itertools
from typing import Any

import numpy
import pandas

from .. import _core
from . import checks
from .checks import Array

__all__ = ["FROM_DATA", "TO_DATA"]

# Kinds of NumPy's elements that pandas keeps in a column as they are; others it turns into objects.
_COLUMN_KINDS = ("b", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16")
_TIME_KINDS = ("M8", "m8")
_UNITS = ("s", "ms", "us", "ns")
_ANY_KINDS = (*_COLUMN_KINDS, *_TIME_KINDS, "O")
_INDEX_KINDS = tuple(kind for kind in _ANY_KINDS if kind != "f2")
_NUMBER_KINDS = tuple(kind for kind in _COLUMN_KINDS if kind[0] in "iuf" and kind != "f2")

# More levels than anybody uses.
_LEVELS_MAX = 64
# Columns that don't share one array cost pandas up to a fifth of a millisecond each, however short they are.
_COLUMNS_APART_MAX = 1 << 13

_WHOLE_DAY = datetime.timedelta(days=1)


# --- at the worker -----------------------------------------------------------------------------


def frame_to_data(frame: "pandas.DataFrame") -> Any:
    """Return a frame as plain data."""
    kinds = frame.dtypes
    first = kinds.iloc[0] if len(kinds) else None
    if (
        isinstance(first, numpy.dtype)
        and first.kind in "biufcmM"
        and len(frame)
        and bool((kinds == first).all())
    ):
        # As pandas keeps it: one row for each column.
        columns: Any = frame.to_numpy().T
    elif len(kinds) > _COLUMNS_APART_MAX:
        raise checks.refused(
            f"a DataFrame of {len(kinds)} columns of several dtypes",
            "it with one dtype, or several of them",
        )
    else:
        columns = tuple(_values_to_data(frame.iloc[:, i].array) for i in range(len(kinds)))
    return (
        index_to_data(frame.columns, backed=True),
        index_to_data(frame.index, backed=len(kinds) > 0),
        columns,
        dict(frame.attrs),
    )


def series_to_data(series: "pandas.Series[Any]") -> Any:
    """Return a series as plain data."""
    return (
        _values_to_data(series.array),
        index_to_data(series.index, backed=True),
        series.name,
        dict(series.attrs),
    )


def index_to_data(index: "pandas.Index[Any]", *, backed: bool = False) -> Any:
    """Return an index as plain data; `backed` if it goes with as many values."""
    if isinstance(index, pandas.RangeIndex):
        if not backed and len(index) > checks.UNBACKED_LENGTH_MAX:
            return ("values", index.name, index.to_numpy())
        return ("range", index.name, index.start, index.stop, index.step)
    if isinstance(index, pandas.MultiIndex):
        return (
            "multi",
            tuple(index.names),
            tuple(_values_to_data(level.array) for level in index.levels),
            tuple(numpy.asarray(codes) for codes in index.codes),
        )
    return ("values", index.name, _values_to_data(index.array))


def timestamp_to_data(moment: "pandas.Timestamp") -> Any:
    """Return a moment as plain data."""
    return (int(moment.asm8.view("i8")), moment.unit, _zone_to_data(moment.tz))


def timedelta_to_data(span: "pandas.Timedelta") -> Any:
    """Return a span of time as plain data."""
    return (int(span.asm8.view("i8")), span.unit)


def _values_to_data(values: Any) -> Any:
    """Return the values of a column or index as plain data."""
    # Not its subclass, the array of texts.
    if type(values) is pandas.arrays.NumpyExtensionArray:
        values = values.to_numpy()
    dtype = values.dtype
    if isinstance(dtype, numpy.dtype):
        return _numpy_to_data(values, dtype)
    if isinstance(dtype, pandas.StringDtype):
        return ("text", dtype.na_value is pandas.NA, _texts_to_data(values))
    if isinstance(dtype, pandas.CategoricalDtype):
        return (
            "categories",
            values.codes,
            _values_to_data(dtype.categories.array),
            bool(dtype.ordered),
        )
    if isinstance(dtype, pandas.DatetimeTZDtype):
        return ("zoned", _instants(values), _zone_to_data(dtype.tz))
    if isinstance(
        values,
        pandas.arrays.IntegerArray | pandas.arrays.FloatingArray | pandas.arrays.BooleanArray,
    ):
        kind = dtype.numpy_dtype
        return ("nullable", values.to_numpy(dtype=kind, na_value=kind.type(0)), values.isna())
    raise checks.refused(f"pandas values of {_shown(dtype)}", _cure(dtype))


def _numpy_to_data(values: Any, dtype: Any) -> Array:
    found = numpy.asarray(values)
    if dtype.kind in "fc" and f"{dtype.kind}{dtype.itemsize}" not in _COLUMN_KINDS:
        raise checks.refused(f"pandas values of {dtype.name}", 'them as astype("float64")')
    if dtype.kind not in "biufcmMO":
        raise checks.refused(f"pandas values of {dtype.name}", "them as astype(object)")
    return found


def _texts_to_data(values: Any) -> Any:
    """Return texts as a list, or as one blob with offsets if that is how Arrow keeps them."""
    if values.dtype.storage == "python":
        texts = values.to_numpy(dtype=object).tolist()
        for i in numpy.flatnonzero(values.isna()).tolist():
            texts[i] = None
        return texts
    import pyarrow

    from . import arrow

    found = values.__arrow_array__()
    if isinstance(found, pyarrow.ChunkedArray):
        found = found.combine_chunks() if found.num_chunks != 1 else found.chunk(0)
    return arrow.blob_to_data(found.cast(pyarrow.large_string()))


def _instants(values: Any) -> Array:
    """Return zoned times as UTC."""
    found: Array = numpy.asarray(pandas.DatetimeIndex(values).tz_convert(None))
    return found


def _zone_to_data(zone: Any) -> Any:
    if zone is None:
        return None
    if type(zone) is datetime.timezone:
        return _zone(zone)
    if str(zone) == "UTC":
        return datetime.UTC
    raise checks.refused("pandas times in a named time zone", 'them in UTC: dt.tz_convert("UTC")')


def _shown(dtype: Any) -> str:
    return f"{type(dtype).__name__} {dtype}"[:80]


def _cure(dtype: Any) -> str:
    if isinstance(dtype, pandas.PeriodDtype):
        return "them as dt.to_timestamp()"
    if isinstance(dtype, pandas.IntervalDtype):
        return "their left and right ends, or them as astype(str)"
    if isinstance(dtype, pandas.SparseDtype):
        return "them as sparse.to_dense()"
    if isinstance(dtype, pandas.ArrowDtype):
        return 'them as convert_dtypes(dtype_backend="numpy_nullable"), or a pyarrow.Table'
    return "them as astype(object) if they are plain data"


# --- at the manager ----------------------------------------------------------------------------


def frame_from_data(data: Any) -> "pandas.DataFrame":
    """Return the frame that data from a worker describes."""
    columns, rows, values, attributes = checks.fields(data, 4, "a DataFrame")
    attributes = checks.plain_dict(attributes, "the attrs of a DataFrame")
    if type(values) is numpy.ndarray:
        block = checks.owned(
            checks.array(values, "a block of columns", (*_COLUMN_KINDS, *_TIME_KINDS), 2)
        )
        _check_unit(block)
        if not block.size:
            raise ValueError("got a block of columns without elements, expected some")
        width, height = block.shape
        index = _index(rows, height)
        frame = pandas.DataFrame(block.T, index=index, copy=False)
    else:
        if type(values) is not tuple:
            raise TypeError(f"got columns as {type(values).__name__}, expected a tuple or an array")
        width = len(values)
        if width > _COLUMNS_APART_MAX:
            raise ValueError(
                f"got {width} columns one by one, expected at most {_COLUMNS_APART_MAX}"
            )
        made = [_values(column) for column in values]
        height = len(made[0]) if made else None
        index = _index(rows, height)
        if any(len(column) != height for column in made):
            raise ValueError("got columns of different lengths, expected one length")
        frame = pandas.DataFrame(
            {i: _column(column, index) for i, column in enumerate(made)}, index=index, copy=False
        )
    frame.columns = _index(columns, width)
    frame.attrs = attributes
    return frame


def _column(values: Any, index: Any) -> Any:
    """Return what pandas keeps as a column as it is: it would look through an array of objects for dates and texts."""
    if isinstance(values, numpy.ndarray) and values.dtype.kind == "O":
        return pandas.Series(values, index=index, dtype=object, copy=False)
    return values


def series_from_data(data: Any) -> "pandas.Series[Any]":
    """Return the series that data from a worker describes."""
    values, rows, name, attributes = checks.fields(data, 4, "a Series")
    made = _values(values)
    series: pandas.Series[Any] = pandas.Series(
        made,
        index=_index(rows, len(made)),
        dtype=made.dtype,
        name=checks.label(name, "the name of a Series"),
        copy=False,
    )
    series.attrs = checks.plain_dict(attributes, "the attrs of a Series")
    return series


def index_from_data(data: Any) -> "pandas.Index[Any]":
    """Return the index that data from a worker describes."""
    return _index(data, None)


def timestamp_from_data(data: Any) -> Any:
    """Return the moment that data from a worker describes."""
    count, unit, zone = checks.fields(data, 3, "a Timestamp")
    moment = pandas.Timestamp(numpy.datetime64(_count(count), _unit(unit)))
    return moment if zone is None else moment.tz_localize(datetime.UTC).tz_convert(_zone(zone))


def timedelta_from_data(data: Any) -> Any:
    """Return the span of time that data from a worker describes."""
    count, unit = checks.fields(data, 2, "a Timedelta")
    return pandas.Timedelta(numpy.timedelta64(_count(count), _unit(unit)))


def _count(value: Any) -> int:
    # The least one is NaT, which is no Timestamp.
    return checks.integer(value, "a count of units", 1 - (1 << 63))


def _unit(value: Any) -> Any:
    if type(value) is not str or value not in _UNITS:
        raise ValueError(f"got another unit of time, expected one of {', '.join(_UNITS)}")
    return value


def _index(data: Any, length: int | None) -> Any:
    """Return an index of a given length; with None, of any that its data stands for."""
    if type(data) is not tuple or not data:
        raise TypeError(f"got an index as {type(data).__name__}, expected a tuple")
    tag = data[0]
    if type(tag) is not str:
        raise TypeError(f"got the tag of an index as {type(tag).__name__}, expected a text")
    if tag == "range":
        made = _range(data)
        if length is None and len(made) > checks.UNBACKED_LENGTH_MAX:
            raise ValueError(
                f"got a RangeIndex of {len(made)} alone, expected at most {checks.UNBACKED_LENGTH_MAX}"
            )
    elif tag == "multi":
        made = _multi(data)
    elif tag == "values":
        _, name, values = checks.fields(data, 3, "an index")
        made = _as_index(_values(values, _INDEX_KINDS))
        made.name = checks.label(name, "the name of an index")
    else:
        raise ValueError("got an index with another tag, expected range, multi or values")
    if length is not None and len(made) != length:
        raise ValueError(f"got an index of {len(made)} labels, expected {length}")
    return made


def _range(data: Any) -> Any:
    _, name, start, stop, step = checks.fields(data, 5, "a RangeIndex")
    for bound in (start, stop, step):
        checks.integer(bound, "a bound of a RangeIndex")
    if step == 0:
        raise ValueError("got a RangeIndex of steps of 0, expected another number")
    length = len(range(start, stop, step)) if _fits(start, stop) else None
    if length is None:
        raise ValueError("got a RangeIndex too long for this machine")
    return pandas.RangeIndex(start, stop, step, name=checks.label(name, "the name of an index"))


def _fits(start: int, stop: int) -> bool:
    return abs(stop - start) < 1 << 62


def _multi(data: Any) -> Any:
    _, names, levels, codes = checks.fields(data, 4, "a MultiIndex")
    for part in (names, levels, codes):
        if type(part) is not tuple:
            raise TypeError(
                f"got a part of a MultiIndex as {type(part).__name__}, expected a tuple"
            )
    if len(levels) > _LEVELS_MAX:
        raise ValueError(
            f"got a MultiIndex of {len(levels)} levels, expected at most {_LEVELS_MAX}"
        )
    if not len(names) == len(levels) == len(codes) > 0:
        raise ValueError(
            f"got a MultiIndex of {len(names)} names, {len(levels)} levels and {len(codes)} codes, expected as many of each"
        )
    made_levels = [_as_index(_distinct(level, "a level")) for level in levels]
    made_codes = []
    for level, places in zip(made_levels, codes, strict=True):
        found = checks.array(places, "the codes of a MultiIndex", ("i1", "i2", "i4", "i8"))
        checks.within(found, -1, len(level), "the codes of a MultiIndex")
        made_codes.append(found)
    if len({len(found) for found in made_codes}) != 1:
        raise ValueError("got codes of a MultiIndex of different lengths, expected one length")
    for name in names:
        checks.label(name, "the name of an index")
    # All that pandas would look at stands above; it would do so by a hash table that a stranger can fill with collisions.
    return pandas.MultiIndex(made_levels, made_codes, names=list(names), verify_integrity=False)


def _values(data: Any, kinds: tuple[str, ...] = _ANY_KINDS, *, inner: bool = False) -> Any:
    """Return an array that pandas takes for a column; `inner` if it is a part of another one, which can't hold categories."""
    if type(data) is numpy.ndarray:
        found = checks.owned(checks.array(data, "values of pandas", kinds))
        _check_unit(found)
        return found
    if type(data) is not tuple or not data or type(data[0]) is not str:
        raise TypeError(f"got values of pandas as {type(data).__name__}, expected an array or tag")
    make = _TAGGED.get(data[0])
    if make is None:
        raise ValueError(f"got values with another tag, expected one of {', '.join(_TAGGED)}")
    if inner and make is _categories:
        raise ValueError("got categories inside of categories or levels, expected plain values")
    return make(data)


def _check_unit(found: Array) -> None:
    if found.dtype.kind in "mM":
        unit, count = numpy.datetime_data(found.dtype)
        if unit not in _UNITS or count != 1:
            raise ValueError(f"got times in {count} {unit}, expected one of {', '.join(_UNITS)}")


def _as_index(values: Any) -> Any:
    """Return an index that keeps the dtype of its values."""
    return pandas.Index(values, dtype=values.dtype, copy=False)


def _text(data: Any) -> Any:
    _, nullable, texts = checks.fields(data, 3, "texts")
    if type(nullable) is not bool:
        raise TypeError(f"got a mark of texts as {type(nullable).__name__}, expected a bool")
    missing: Any = pandas.NA if nullable else numpy.nan
    dtype = pandas.StringDtype(na_value=missing)
    if type(texts) is list:
        others = set(map(type, texts)) - {str, type(None)}
        if others:
            raise TypeError(f"got a text as {others.pop().__name__}, expected a str or None")
        if dtype.storage == "pyarrow":
            import pyarrow

            try:
                texts = pyarrow.array(texts, type=pyarrow.large_string())
            except UnicodeEncodeError:
                raise ValueError("got a text with half a character, expected Unicode") from None
        return pandas.array(texts, dtype=dtype)
    offsets, blob, mask = checks.fields(texts, 3, "a blob of texts")
    offsets = checks.array(offsets, "offsets of texts", ("i4", "i8"))
    blob = checks.array(blob, "a blob of texts", ("u1",))
    checks.offsets(offsets, len(blob), "offsets of texts")
    if mask is not None:
        mask = checks.array(mask, "a mask of texts", ("b",))
        if len(mask) != len(offsets) - 1:
            raise ValueError(f"got a mask of {len(mask)} texts, expected {len(offsets) - 1}")
    if dtype.storage == "pyarrow":
        from . import arrow

        return pandas.array(arrow.blob_from_data(offsets, blob, mask), dtype=dtype)
    return pandas.array(_cut(offsets, blob, mask), dtype=dtype)


def _cut(offsets: Array, blob: Array, mask: Array | None) -> list[str | None]:
    """Return the texts of a blob, without the help of Arrow."""
    whole = blob.tobytes()
    places = offsets.tolist()
    pairs = itertools.pairwise(places)
    if whole.isascii():
        text = whole.decode("ascii")
        found: list[str | None] = [text[start:end] for start, end in pairs]
    else:
        found = [whole[start:end].decode() for start, end in pairs]
    if mask is not None:
        for i in numpy.flatnonzero(mask).tolist():
            found[i] = None
    return found


def _nullable(data: Any) -> Any:
    _, values, mask = checks.fields(data, 3, "values with a mask")
    values = checks.owned(checks.array(values, "values with a mask", ("b", *_NUMBER_KINDS)))
    mask = checks.owned(checks.array(mask, "a mask", ("b",)))
    if len(mask) != len(values):
        raise ValueError(f"got a mask of {len(mask)}, expected {len(values)}")
    make = {
        "b": pandas.arrays.BooleanArray,
        "i": pandas.arrays.IntegerArray,
        "u": pandas.arrays.IntegerArray,
        "f": pandas.arrays.FloatingArray,
    }[values.dtype.kind]
    return make(values, mask)


def _categories(data: Any) -> Any:
    _, codes, categories, ordered = checks.fields(data, 4, "a categorical")
    if type(ordered) is not bool:
        raise TypeError(f"got an order of categories as {type(ordered).__name__}, expected a bool")
    codes = checks.owned(checks.array(codes, "codes of categories", ("i1", "i2", "i4", "i8")))
    kinds = _as_index(_distinct(categories, "categories"))
    checks.within(codes, -1, len(kinds), "codes of categories")
    # The way around a check for doubles by a hash table that a stranger can fill with collisions: `_distinct` has looked already.
    dtype = pandas.CategoricalDtype._from_fastpath(kinds, ordered)
    return pandas.Categorical.from_codes(codes, dtype=dtype, validate=False)


def _distinct(data: Any, what: str) -> Any:
    """Return values that are there and differ from each other, or refuse them."""
    values = _values(data, _INDEX_KINDS, inner=True)
    dtype = values.dtype
    objects = isinstance(dtype, numpy.dtype) and dtype.kind == "O"
    if objects or isinstance(dtype, pandas.StringDtype):
        whole = values.tolist()
        if objects:
            for value in whole:
                checks.label(value, what)
        if not _core.data_spreads(whole):
            raise ValueError(
                f"got {what} that collide too often, expected what an honest program makes"
            )
        missing = any(value is None or value is pandas.NA or value != value for value in whole)
        distinct = len(set(whole)) == len(whole)
    else:
        missing = bool(pandas.isna(values).any())
        numbers = numpy.sort(_sortable(values))
        distinct = not bool((numbers[1:] == numbers[:-1]).any())
    if missing:
        raise ValueError(f"got {what} with a missing value, expected none")
    if not distinct:
        raise ValueError(f"got {what} with doubles, expected each value once")
    return values


def _sortable(values: Any) -> Array:
    if isinstance(values, numpy.ndarray):
        return values
    if isinstance(values.dtype, pandas.DatetimeTZDtype):
        return _instants(values)
    kind = values.dtype.numpy_dtype
    found: Array = values[~values.isna()].to_numpy(dtype=kind)
    return found


def _zoned(data: Any) -> Any:
    _, instants, zone = checks.fields(data, 3, "zoned times")
    instants = checks.owned(checks.array(instants, "zoned times", ("M8",)))
    _check_unit(instants)
    index = pandas.DatetimeIndex(instants, copy=False).tz_localize(datetime.UTC)
    return index.tz_convert(_zone(zone)).array


def _zone(value: Any) -> datetime.timezone:
    if type(value) is not datetime.timezone:
        raise TypeError(f"got a time zone as {type(value).__name__}, expected a fixed offset")
    offset = value.utcoffset(None)
    if offset % datetime.timedelta(minutes=1) or abs(offset) >= _WHOLE_DAY:
        raise ValueError(
            "got a time zone with an offset of part of a minute, expected whole minutes"
        )
    # Anew, because it may carry a name.
    return datetime.timezone(offset) if offset else datetime.UTC


_TAGGED = {
    "text": _text,
    "nullable": _nullable,
    "categories": _categories,
    "zoned": _zoned,
}

TO_DATA = {
    "DataFrame:1": frame_to_data,
    "Series:1": series_to_data,
    "Index:1": index_to_data,
    "Timestamp:1": timestamp_to_data,
    "Timedelta:1": timedelta_to_data,
}
FROM_DATA = {
    "DataFrame:1": frame_from_data,
    "Series:1": series_from_data,
    "Index:1": index_from_data,
    "Timestamp:1": timestamp_from_data,
    "Timedelta:1": timedelta_from_data,
}


def _use_once() -> None:
    """Have pandas load now what it loads when it is first used: the file of UTC, and Arrow's converter of texts."""
    zone = datetime.timezone(datetime.timedelta(hours=1))
    instants = numpy.zeros(1, dtype="M8[s]")
    series_from_data((("zoned", instants, zone), ("range", None, 0, 1, 1), None, {}))
    pandas.Index(numpy.array(["a"], dtype=object))
    _text(("text", False, (numpy.zeros(1, dtype="i8"), numpy.zeros(0, dtype="u1"), None)))


_use_once()
