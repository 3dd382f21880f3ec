"""What tests of result types share: what plain data is, the way there and back, and data with something changed."""

import copy
import datetime
import decimal
import fractions
import pathlib
import random
import uuid
import warnings
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any

import numpy

from exoskel import result_types

UTC = datetime.UTC
SCALARS = (
    *(type(None), bool, int, float, complex, str, bytes, bytearray, range, slice),
    *(datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone),
    *(decimal.Decimal, fractions.Fraction, uuid.UUID),
    *(pathlib.PurePosixPath, pathlib.PureWindowsPath),
)
CONTAINERS = (list, tuple, set, frozenset, deque)
MAPPINGS = (dict, Counter, OrderedDict, defaultdict)


def is_plain(value: Any) -> bool:
    """Whether a value is what answers of untrusted workers may consist of."""
    kind = type(value)
    if kind in SCALARS:
        return True
    if kind in CONTAINERS:
        return all(map(is_plain, value))
    if kind in MAPPINGS:
        return all(is_plain(key) and is_plain(part) for key, part in value.items())
    if kind is numpy.ndarray and value.dtype.kind == "O":
        return all(map(is_plain, value.ravel().tolist()))
    if kind is numpy.ndarray or isinstance(value, numpy.generic):
        code = f"{value.dtype.kind}{value.dtype.itemsize}"
        return value.dtype.kind in "biuSUVmM" or code in ("f2", "f4", "f8", "c8", "c16")
    return False


def to_data(value: Any) -> tuple[str, Any]:
    """Return the name and the data of a value."""
    found = result_types.find(type(value))
    assert found is not None
    name, function = found
    return name, function(value)


def from_data(name: str, data: Any) -> Any:
    """Return the value that data stands for."""
    function = result_types.reader(name)
    assert function is not None
    return function(data)


def there_and_back(value: Any) -> Any:
    name, data = to_data(value)
    assert is_plain(data), (name, data)
    assert name.isascii()
    # What arrives is a copy.
    return from_data(name, copy.deepcopy(data))


ODD: Any = (
    *(
        None,
        True,
        -1,
        0,
        1,
        1 << 31,
        (1 << 63) - 1,
        -(1 << 63),
        1 << 64,
        10**400,
        1.5,
        float("nan"),
    ),
    *("", "a", "\ud800", "range", "values", "text", "int8", "struct", b"", b"ab", bytearray(3)),
    *((), (1,), [], ["a", 1], {}, {"a": 1}, set(), UTC, decimal.Decimal("NaN"), range(10**12)),
    *(numpy.float64(2), numpy.zeros(0), numpy.zeros((0, 1 << 40)), numpy.array(1)),
    *(numpy.zeros(3, dtype="M8[D]"), numpy.array([[1], None], dtype=object), numpy.array(["a"])),
    *(numpy.zeros(2, dtype=[("a", "i4")]), numpy.array([5, 200], dtype="u1").view(bool)),
    datetime.timezone(datetime.timedelta(seconds=1), "odd"),
)


def mutant(data: Any, chance: random.Random) -> Any:
    """Return a copy of data with one thing changed somewhere."""
    inner = type(data) in (tuple, list, dict) and len(data) > 0
    if inner and chance.random() < 0.85:
        if type(data) is dict:
            key = chance.choice(list(data))
            return {**data, key: mutant(data[key], chance)}
        place = chance.randrange(len(data))
        parts = list(data)
        parts[place] = mutant(parts[place], chance)
        return type(data)(parts)
    choice = chance.random()
    if inner and choice < 0.5:
        parts = list(data.items() if type(data) is dict else data)
        place = chance.randrange(len(parts))
        chance.choice([parts.pop, lambda i: parts.append(parts[i])])(place)
        return type(data)(parts)
    if type(data) is numpy.ndarray and choice < 0.8:
        return mutant_array(data, chance)
    if type(data) is int and choice < 0.7:
        return data + chance.choice([-1, 1, 7, 1 << 20, 1 << 40])
    return chance.choice(ODD)


def mutant_array(data: Any, chance: random.Random) -> Any:
    """Return an array that differs in elements, length, shape or kind."""
    choice = chance.randrange(7)
    if choice == 0:
        return data[: len(data) // 2] if data.ndim else data.reshape(1)
    if choice == 1:
        return numpy.concatenate([data.ravel(), data.ravel()])
    if choice == 2:
        return data.reshape(*data.shape, 1)
    if choice == 3:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return data.astype(
                    chance.choice(["f8", "i1", "i4", ">i8", "u8", "?", "O", "U3", "M8[s]"])
                )
            except (TypeError, ValueError, RuntimeError, SystemError):
                return data.reshape(-1)
    made = data.copy()
    if made.dtype.kind == "O" or not made.size:
        return numpy.array([*ODD, None], dtype=object)[-2:]
    raw = made.reshape(-1).view("u1")
    first = chance.randrange(len(raw))
    if choice == 4:
        raw[:] = chance.choice([0, 1, 127, 128, 255])
    else:
        raw[first : first + chance.randrange(1, 9)] = chance.choice([0, 1, 127, 255])
    return made
