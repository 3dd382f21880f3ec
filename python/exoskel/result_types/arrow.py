"""Arrow's Table, RecordBatch, Array and ChunkedArray as plain data.

Buffers travel as arrays of bytes beside a description of the type, as tuples of our own. Arrow's own stream format isn't read: what a
stranger packs and compresses isn't ours to parse. Metadata of schemas and fields stays behind, because conversions to pandas look names
up that stand there. Each array that is made is validated in full before anybody has it.
"""

import re
from typing import Any

import numpy
import pyarrow
import pyarrow.compute  # what `drop_null` would load when it is first used

from . import checks
from .checks import Array

__all__ = ["FROM_DATA", "TO_DATA", "blob_from_data", "blob_to_data"]

# Lists in lists, structures in structures.
_NESTED_MAX = 16

# Types without parameters: how many bytes a value takes, and the type.
_FIXED = {
    "int8": (1, pyarrow.int8()),
    "int16": (2, pyarrow.int16()),
    "int32": (4, pyarrow.int32()),
    "int64": (8, pyarrow.int64()),
    "uint8": (1, pyarrow.uint8()),
    "uint16": (2, pyarrow.uint16()),
    "uint32": (4, pyarrow.uint32()),
    "uint64": (8, pyarrow.uint64()),
    "float16": (2, pyarrow.float16()),
    "float32": (4, pyarrow.float32()),
    "float64": (8, pyarrow.float64()),
    "date32": (4, pyarrow.date32()),
    "date64": (8, pyarrow.date64()),
    **{f"time32[{unit}]": (4, pyarrow.time32(unit)) for unit in ("s", "ms")},
    **{f"time64[{unit}]": (8, pyarrow.time64(unit)) for unit in ("us", "ns")},
    **{f"timestamp[{unit}]": (8, pyarrow.timestamp(unit)) for unit in ("s", "ms", "us", "ns")},
    **{f"duration[{unit}]": (8, pyarrow.duration(unit)) for unit in ("s", "ms", "us", "ns")},
}
_VARIABLE = {
    "utf8": ("i4", pyarrow.string()),
    "large_utf8": ("i8", pyarrow.large_string()),
    "binary": ("i4", pyarrow.binary()),
    "large_binary": ("i8", pyarrow.large_binary()),
}
_NAMES = {made: name for name, (_, made) in (*_FIXED.items(), *_VARIABLE.items())}
_LISTS = {"list": ("i4", pyarrow.list_), "large_list": ("i8", pyarrow.large_list)}
_INDEXES = ("int8", "int16", "int32", "int64")
# As Arrow writes offsets; what `tzinfo` can't hold is no zone.
_OFFSET = re.compile(r"[+-](?:[01][0-9]|2[0-3]):[0-5][0-9]")

# A description of a type: a name, or a tuple of a name and parameters.
_Form = Any


# --- at the worker -----------------------------------------------------------------------------


def table_to_data(table: Any) -> Any:
    """Return a Table as plain data."""
    return (
        _fields_to_data(table.schema),
        tuple(tuple(_array_to_data(chunk) for chunk in column.chunks) for column in table.columns),
    )


def batch_to_data(batch: Any) -> Any:
    """Return a RecordBatch as plain data."""
    return (
        _fields_to_data(batch.schema),
        tuple(_array_to_data(column) for column in batch.columns),
    )


def chunks_to_data(chunks: Any) -> Any:
    """Return a ChunkedArray as plain data."""
    return (_form(chunks.type), tuple(_array_to_data(chunk) for chunk in chunks.chunks))


def array_to_data(found: Any) -> Any:
    """Return an Array as plain data."""
    return (_form(found.type), _array_to_data(found))


def blob_to_data(texts: Any) -> tuple[Array, Array, Array | None]:
    """Return the offsets, the bytes and the mask of missing ones of a large_utf8 array."""
    offsets, blob = _variable_to_data(texts, "i8")
    return (
        offsets,
        blob,
        texts.is_null().to_numpy(zero_copy_only=False) if texts.null_count else None,
    )


def _fields_to_data(schema: Any) -> Any:
    return tuple((field.name, _form(field.type), field.nullable) for field in schema)


def _form(kind: Any) -> _Form:
    """Return the description of a type."""
    types = pyarrow.types
    name = _NAMES.get(kind)
    if name is not None:
        return name
    if types.is_boolean(kind):
        return "bool"
    if types.is_null(kind):
        return "null"
    if types.is_timestamp(kind):
        if kind.tz != "UTC" and _OFFSET.fullmatch(kind.tz) is None:
            raise checks.refused(
                "an Arrow timestamp in a named time zone",
                f'it as cast(pyarrow.timestamp("{kind.unit}", "UTC"))',
            )
        return ("timestamp", kind.unit, kind.tz)
    if types.is_decimal128(kind):
        return ("decimal128", kind.precision, kind.scale)
    if types.is_list(kind) or types.is_large_list(kind):
        item = kind.value_field
        tag = "list" if types.is_list(kind) else "large_list"
        return (tag, (item.name, _form(item.type), item.nullable))
    if types.is_struct(kind) and kind.num_fields:
        return ("struct", _fields_to_data(kind))
    if types.is_dictionary(kind) and _NAMES.get(kind.index_type) in _INDEXES:
        return ("dictionary", _NAMES[kind.index_type], _form(kind.value_type), kind.ordered)
    raise checks.refused(f"an Arrow array of {str(kind)[:80]}", _cure(kind))


def _cure(kind: Any) -> str:
    types = pyarrow.types
    for known, cure in (
        (types.is_string_view, "it as cast(pyarrow.large_string())"),
        (types.is_binary_view, "it as cast(pyarrow.large_binary())"),
        (types.is_fixed_size_binary, "it as cast(pyarrow.binary())"),
        (types.is_fixed_size_list, "it as cast(pyarrow.list_(...)) of the same values"),
        (types.is_map, "its keys and values as two lists"),
        (types.is_run_end_encoded, "it as pyarrow.compute.run_end_decode(array)"),
        (types.is_dictionary, "it as dictionary_decode()"),
        (types.is_decimal, "it as cast(pyarrow.decimal128(38, ...))"),
    ):
        if known(kind):
            return cure
    return "it as to_pylist() if the values are plain data"


def _array_to_data(found: Any) -> Any:
    """Return the length, validity and contents of an array whose type is described elsewhere."""
    kind, length = found.type, len(found)
    form = _form(kind)
    validity = _bits(found, 0) if found.null_count and form != "null" else None
    if form == "null":
        # A byte for each: nothing else would stand for the length.
        contents: Any = numpy.zeros(length, dtype=numpy.uint8)
    elif form == "bool":
        contents = _bits(found, 1)
    elif form in _VARIABLE:
        contents = _variable_to_data(found, _VARIABLE[form][0])
    elif form[0] in _LISTS:
        width = _LISTS[form[0]][0]
        offsets = _slice(found.buffers()[1], width, found.offset, length + 1)
        first, last = int(offsets[0]), int(offsets[-1])
        contents = (offsets - offsets[0], _array_to_data(found.values.slice(first, last - first)))
    elif form[0] == "struct":
        contents = tuple(_array_to_data(found.field(i)) for i in range(kind.num_fields))
    elif form[0] == "dictionary":
        contents = (_array_to_data(found.indices), _array_to_data(found.dictionary))
        validity = None
    else:
        contents = _slice(found.buffers()[1], "u1", found.offset * (w := _width(form)), length * w)
    return (length, validity, contents)


def _width(form: _Form) -> int:
    if type(form) is str:
        return _FIXED[form][0]
    return 16 if form[0] == "decimal128" else 8


def _variable_to_data(found: Any, width: str) -> tuple[Array, Array]:
    _, places, blob = found.buffers()
    offsets = _slice(places, width, found.offset, len(found) + 1)
    first, last = int(offsets[0]), int(offsets[-1])
    if first:
        offsets = offsets - offsets[0]
    return offsets, _slice(blob, "u1", first, last - first)


def _slice(buffer: Any, code: str, start: int, count: int) -> Array:
    """Return a part of a buffer, without a copy."""
    dtype = numpy.dtype(code)
    if buffer is None or not buffer.size:
        return numpy.zeros(count, dtype=dtype)
    return numpy.frombuffer(buffer, dtype=dtype, count=count, offset=start * dtype.itemsize)


def _bits(found: Any, place: int) -> Array:
    """Return a buffer of bits from the array's first one on."""
    buffer = found.buffers()[place]
    if buffer is None:
        return numpy.zeros((len(found) + 7) // 8, dtype=numpy.uint8)
    first, skipped = divmod(found.offset, 8)
    length = len(found)
    taken = _slice(buffer, "u1", first, (skipped + length + 7) // 8)
    if not skipped:
        return taken
    bits = numpy.unpackbits(taken, bitorder="little")[skipped : skipped + length]
    return numpy.packbits(bits, bitorder="little")


# --- at the manager ----------------------------------------------------------------------------


def table_from_data(data: Any) -> Any:
    """Return the Table that data from a worker describes."""
    fields, columns = checks.fields(data, 2, "a Table")
    schema = _schema(fields)
    forms = [field[1] for field in fields]
    made = []
    for chunks, form, kind in zip(
        _sequence(columns, len(forms), "columns"), forms, schema.types, strict=True
    ):
        arrays = [_array(chunk, form, 0) for chunk in _sequence(chunks, None, "chunks")]
        made.append(pyarrow.chunked_array(arrays, type=kind))
    if len({len(column) for column in made}) > 1:
        raise ValueError("got columns of different lengths, expected one length")
    table = pyarrow.Table.from_arrays(made, schema=schema)
    table.validate(full=True)
    return table


def batch_from_data(data: Any) -> Any:
    """Return the RecordBatch that data from a worker describes."""
    fields, columns = checks.fields(data, 2, "a RecordBatch")
    schema = _schema(fields)
    made = [
        _array(column, field[1], 0)
        for column, field in zip(_sequence(columns, len(schema), "columns"), fields, strict=True)
    ]
    if len({len(column) for column in made}) > 1:
        raise ValueError("got columns of different lengths, expected one length")
    batch = pyarrow.RecordBatch.from_arrays(made, schema=schema)
    batch.validate(full=True)
    return batch


def chunks_from_data(data: Any) -> Any:
    """Return the ChunkedArray that data from a worker describes."""
    form, chunks = checks.fields(data, 2, "a ChunkedArray")
    kind = _type(form, 0)
    made = [_array(chunk, form, 0) for chunk in _sequence(chunks, None, "chunks")]
    return pyarrow.chunked_array(made, type=kind)


def array_from_data(data: Any) -> Any:
    """Return the Array that data from a worker describes."""
    form, contents = checks.fields(data, 2, "an Array")
    return _array(contents, form, 0)


def blob_from_data(offsets: Array, blob: Array, mask: Array | None) -> Any:
    """Return a large_utf8 array; the arguments have passed `checks` already."""
    validity = None
    if mask is not None:
        validity = pyarrow.py_buffer(numpy.packbits(~mask, bitorder="little"))
    places = pyarrow.py_buffer(_aligned(offsets.astype(numpy.int64, copy=False)))
    made = pyarrow.Array.from_buffers(
        pyarrow.large_string(), len(offsets) - 1, [validity, places, pyarrow.py_buffer(blob)]
    )
    made.validate(full=True)
    return made


def _sequence(value: Any, length: int | None, what: str) -> Any:
    if type(value) is not tuple:
        raise TypeError(f"got {what} as {type(value).__name__}, expected a tuple")
    if length is not None and len(value) != length:
        raise ValueError(f"got {len(value)} {what}, expected {length}")
    return value


def _schema(fields: Any) -> Any:
    return pyarrow.schema([_field(field, 0) for field in _sequence(fields, None, "fields")])


def _field(data: Any, depth: int) -> Any:
    name, form, nullable = checks.fields(data, 3, "a field")
    if type(name) is not str or type(nullable) is not bool:
        raise TypeError(
            f"got a field of {type(name).__name__} and {type(nullable).__name__}, expected a str and a bool"
        )
    try:
        return pyarrow.field(name, _type(form, depth), nullable)
    except UnicodeEncodeError:
        raise ValueError("got a field whose name has half a character, expected Unicode") from None


def _type(form: _Form, depth: int) -> Any:
    """Return the type that a description stands for."""
    if depth > _NESTED_MAX:
        raise ValueError(f"got Arrow types nested deeper than {_NESTED_MAX}")
    if type(form) is str:
        if form == "bool":
            return pyarrow.bool_()
        if form == "null":
            return pyarrow.null()
        found = _FIXED.get(form) or _VARIABLE.get(form)
        if found is None:
            raise ValueError("got an Arrow type that isn't known here")
        return found[1]
    if type(form) is not tuple or not form or type(form[0]) is not str:
        raise TypeError(f"got an Arrow type as {type(form).__name__}, expected a text or a tuple")
    make = _PARAMETRIC.get(form[0])
    if make is None:
        raise ValueError("got an Arrow type that isn't known here")
    return make(form, depth)


def _timestamp(form: _Form, _depth: int) -> Any:
    _, unit, zone = checks.fields(form, 3, "a timestamp type")
    if type(unit) is not str or unit not in ("s", "ms", "us", "ns"):
        raise ValueError("got a timestamp of another unit, expected s, ms, us or ns")
    if type(zone) is not str or (zone != "UTC" and _OFFSET.fullmatch(zone) is None):
        raise ValueError("got a timestamp in another time zone, expected UTC or an offset")
    return pyarrow.timestamp(unit, zone)


def _decimal128(form: _Form, _depth: int) -> Any:
    _, precision, scale = checks.fields(form, 3, "a decimal type")
    checks.integer(precision, "the precision of a decimal", 1, 38)
    checks.integer(scale, "the scale of a decimal", -38, 38)
    return pyarrow.decimal128(precision, scale)


def _list(form: _Form, depth: int) -> Any:
    _, item = checks.fields(form, 2, "a list type")
    return _LISTS[form[0]][1](_field(item, depth + 1))


def _struct(form: _Form, depth: int) -> Any:
    _, fields = checks.fields(form, 2, "a struct type")
    if not _sequence(fields, None, "fields"):
        raise ValueError("got a struct without fields, expected at least one")
    return pyarrow.struct([_field(field, depth + 1) for field in fields])


def _dictionary(form: _Form, depth: int) -> Any:
    _, index, values, ordered = checks.fields(form, 4, "a dictionary type")
    if type(index) is not str or index not in _INDEXES:
        raise ValueError("got a dictionary with other indexes, expected signed ones")
    if type(ordered) is not bool:
        raise TypeError(f"got an order as {type(ordered).__name__}, expected a bool")
    return pyarrow.dictionary(_FIXED[index][1], _type(values, depth + 1), ordered)


_PARAMETRIC = {
    "timestamp": _timestamp,
    "decimal128": _decimal128,
    "list": _list,
    "large_list": _list,
    "struct": _struct,
    "dictionary": _dictionary,
}


def _array(data: Any, form: _Form, depth: int) -> Any:
    """Return an array, every byte of which was looked at."""
    kind = _type(form, depth)
    length, validity, contents = checks.fields(data, 3, "an Arrow array")
    checks.integer(length, "the length of an Arrow array", 0)
    bits = _bytes(validity, (length + 7) // 8, "validity") if validity is not None else None
    if form == "null":
        _bytes(contents, length, "nulls")
        if validity is not None:
            raise ValueError("got validity of an array of nulls, expected None")
        return pyarrow.nulls(length)
    if form == "bool":
        values = _bytes(contents, (length + 7) // 8, "bits")
        made = pyarrow.Array.from_buffers(kind, length, [bits, values])
    elif form in _VARIABLE:
        offsets, blob = checks.fields(contents, 2, "texts or bytes")
        blob = checks.array(blob, "a blob", ("u1",))
        places = _offsets(offsets, _VARIABLE[form][0], length, len(blob))
        made = pyarrow.Array.from_buffers(kind, length, [bits, places, _buffer(blob)])
    elif form[0] in _LISTS:
        offsets, items = checks.fields(contents, 2, "lists")
        values = _array(items, form[1][1], depth + 1)
        places = _offsets(offsets, _LISTS[form[0]][0], length, len(values))
        made = pyarrow.Array.from_buffers(kind, length, [bits, places], children=[values])
    elif form[0] == "struct":
        parts = [
            _array(part, field[1], depth + 1)
            for part, field in zip(
                _sequence(contents, len(form[1]), "parts of a struct"), form[1], strict=True
            )
        ]
        if any(len(part) != length for part in parts):
            raise ValueError(f"got parts of a struct of other lengths, expected {length}")
        made = pyarrow.Array.from_buffers(kind, length, [bits], children=parts)
    elif form[0] == "dictionary":
        made = _dictionary_array(contents, form, length, depth)
        if validity is not None:
            raise ValueError("got validity beside indexes, expected None")
    else:
        values = _bytes(contents, length * _width(form), "values")
        made = pyarrow.Array.from_buffers(kind, length, [bits, values])
    made.validate(full=True)
    return made


def _dictionary_array(contents: Any, form: _Form, length: int, depth: int) -> Any:
    indexes, values = checks.fields(contents, 2, "a dictionary")
    places = _array(indexes, form[1], depth + 1)
    kinds = _array(values, form[2], depth + 1)
    if len(places) != length:
        raise ValueError(f"got {len(places)} indexes, expected {length}")
    there = places.drop_null().to_numpy(zero_copy_only=False)
    checks.within(there, 0, len(kinds), "indexes of a dictionary")
    return pyarrow.DictionaryArray.from_arrays(places, kinds, ordered=form[3], safe=True)


def _bytes(value: Any, length: int, what: str) -> Any:
    """Return a buffer of so many bytes."""
    found = checks.array(value, what, ("u1",))
    if len(found) != length:
        raise ValueError(f"got {len(found)} bytes of {what}, expected {length}")
    return _buffer(found)


def _offsets(value: Any, code: str, length: int, last: int) -> Any:
    found = checks.array(value, "offsets", (code,))
    if len(found) != length + 1:
        raise ValueError(f"got {len(found)} offsets, expected {length + 1}")
    checks.offsets(found, last, "offsets")
    return _buffer(found)


def _buffer(found: Array) -> Any:
    return pyarrow.py_buffer(_aligned(found))


# What Arrow's specification asks for at least.
_ALIGNMENT = 8


def _aligned(found: Array) -> Array:
    return found if found.__array_interface__["data"][0] % _ALIGNMENT == 0 else found.copy()


TO_DATA = {
    "Table:1": table_to_data,
    "RecordBatch:1": batch_to_data,
    "ChunkedArray:1": chunks_to_data,
    "Array:1": array_to_data,
}
FROM_DATA = {
    "Table:1": table_from_data,
    "RecordBatch:1": batch_from_data,
    "ChunkedArray:1": chunks_from_data,
    "Array:1": array_from_data,
}


def _use_once() -> None:
    """Have Arrow load now what it loads when it first makes a dictionary: pandas, if it is there."""
    sample = pyarrow.table({"a": pyarrow.array(["a", None]).dictionary_encode()})
    table_from_data(table_to_data(sample))


_use_once()
