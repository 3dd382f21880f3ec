"""What answers may hold that come from workers outside the trusted domains: there, and back again."""

import dataclasses
import datetime
import decimal
import enum
import fractions
import pathlib
import sys
import threading
import traceback
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of
from tests import data_reference as reference
from tests.data_reference import Item, tag
from tests.test_data_vectors import same

import exoskel
from exoskel import _core, outcome, results
from exoskel.errors import ResultRejectedError, TaskError


@dataclasses.dataclass
class Point:
    """A class that a program may register."""

    x: Any
    y: Any = 0


class Place(NamedTuple):
    """A named tuple that a program may register."""

    name: str
    point: Any


class Colour(enum.Enum):
    """An enumeration that a program may register."""

    RED = 1
    BLUE = 2
    SCARLET = RED


class Access(enum.Flag):
    """Permissions that a program may register."""

    READ = 1
    WRITE = 2
    RUN = 4


class Trouble(Exception):
    """An exception that a program may register."""


class Own:
    """A class with functions of its own."""

    def __init__(self, number: int) -> None:
        self.number = number


def own_from_data(data: Any) -> Own:
    if type(data) is not int:
        raise TypeError("got no int")
    return Own(data)


@pytest.fixture
def registered() -> Iterator[None]:
    """Register the classes above, for one test."""
    before = dict(results._registered)
    for kind in (Point, Place, Colour, Access, Trouble):
        exoskel.register_result_type(kind)
    exoskel.register_result_type(Own, to_data=lambda own: own.number, from_data=own_from_data)
    yield
    results._registered.clear()
    results._registered.update(before)


def there_and_back(value: Any) -> Any:
    return _core.data_decode(*_core.data_encode(value))


def decode(item: Item) -> Any:
    return _core.data_decode(reference.write(item))


# --- plain data -------------------------------------------------------------------------------------

CET = datetime.timezone(datetime.timedelta(hours=1), "CET")
PLAIN = [
    None,
    True,
    -(2**80),
    2**64 - 1,
    -(2**64),
    1.5,
    complex(1, -0.0),
    "text",
    "half \udc80",
    b"bytes",
    b"x" * 100_000,
    bytearray(b"array"),
    (1, [2, {"three": {4, 5}}], frozenset({6}), ()),
    {None: 1, 2: 3, "a": 4, (5, "b"): 6, b"c": 7},
    range(2, 9, 3),
    slice(1, None),
    ...,
    NotImplemented,
    Counter("abca"),
    Counter({"a": 1.5, "b": 2**70, "c": True, "d": decimal.Decimal(1), "e": numpy.int64(3)}),
    OrderedDict([("b", 1), ("a", 2)]),
    deque([1, 2], maxlen=3),
    deque([1]),
    defaultdict(list, {"a": [1]}),
    defaultdict(None, {"a": 1}),
    datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC),
    datetime.datetime(2026, 1, 2, 3, fold=1, tzinfo=CET),
    datetime.time(1, 2, 3, 4),
    datetime.date(1, 1, 1),
    datetime.timedelta(days=-1, microseconds=5),
    datetime.UTC,
    CET,
    decimal.Decimal("1.250"),
    decimal.Decimal("-sNaN7"),
    fractions.Fraction(-22, 7),
    uuid.UUID(int=5),
    pathlib.PurePosixPath("/a/b"),
    pathlib.PureWindowsPath("c:\\a"),
    pathlib.Path("a"),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_data_arrives_as_it_was(value: Any) -> None:
    arrived = there_and_back(value)
    assert same(arrived, value)
    assert repr(arrived) == repr(value)


KEYS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.dates()
    | st.timedeltas()
    | st.uuids()
    | st.fractions()
)
VALUES = st.recursive(
    KEYS
    | st.floats()
    | st.complex_numbers(allow_nan=False)
    | st.datetimes()
    | st.times()
    | st.decimals(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(KEYS, inner)
        | st.frozensets(KEYS)
        | st.sets(KEYS)
        | st.lists(inner).map(deque)
        | st.dictionaries(st.text(), inner).map(OrderedDict)
    ),
    max_leaves=30,
)


@settings(deadline=None)
@given(VALUES)
def test_any_plain_value_arrives_as_it_was(value: Any) -> None:
    assert same(there_and_back(value), value)


@settings(deadline=None)
@given(VALUES)
def test_the_second_implementation_reads_and_writes_the_same(value: Any) -> None:
    body, parts = _core.data_encode(value)
    assert same(reference.read(body, parts), value)
    assert reference.write(reference.parse(body)) == body


# --- arrays -----------------------------------------------------------------------------------------


def has_no_titles(dtype: Any) -> bool:
    """Whether each field has one name: what has two is refused."""
    fields = (dtype.fields or {}).values()
    return all(len(field) == 2 and has_no_titles(field[0].base) for field in fields)


LEAVES = (
    arrays_of.boolean_dtypes()
    | arrays_of.integer_dtypes(endianness="?")
    | arrays_of.unsigned_integer_dtypes(endianness="?")
    | arrays_of.floating_dtypes(endianness="?", sizes=(16, 32, 64))
    | arrays_of.complex_number_dtypes(endianness="?", sizes=(64, 128))
    | arrays_of.datetime64_dtypes(endianness="?")
    | arrays_of.timedelta64_dtypes(endianness="?")
    | arrays_of.byte_string_dtypes(min_len=1)
    | arrays_of.unicode_string_dtypes(endianness="?", min_len=1)
)
DTYPES = (
    LEAVES
    | arrays_of.array_dtypes(LEAVES, allow_subarrays=True).filter(has_no_titles)
    | arrays_of.nested_dtypes(LEAVES, max_leaves=6).filter(has_no_titles)
)


@settings(deadline=None)
@given(st.data())
def test_any_array_arrives_as_it_was(data: Any) -> None:
    dtype = data.draw(DTYPES)
    base = dtype.base
    value = data.draw(
        arrays_of.arrays(base, arrays_of.array_shapes(min_dims=0, min_side=0, max_side=4))
    )
    for made in (value, value.T, value[..., ::-1] if value.ndim else value):
        arrived = there_and_back([made])[0]
        assert type(arrived) is numpy.ndarray
        assert (arrived.dtype, arrived.shape) == (made.dtype, made.shape)
        assert arrived.tobytes() == made.tobytes()
        assert arrived.flags.writeable


ARRAYS = [
    numpy.arange(6.0).reshape(2, 3).T,
    numpy.arange(12).reshape(3, 4)[::2, ::3],
    numpy.zeros((0, 3), dtype="f4"),
    numpy.arange(100_000.0),
    numpy.zeros(3, dtype=numpy.dtype([("a", "u1"), ("b", "f8"), ("c", "?")], align=True)),
    numpy.zeros(2, dtype=[("a", "f8", (0,))]),
    numpy.array(["2026-01-02"], dtype="M8[25D]"),
    numpy.array([None, [1], {}, numpy.arange(3)], dtype=object),
    numpy.array([[1], ["a"]], dtype=object).T,
    numpy.array((1, 2), dtype=object),
    numpy.float32(2.5),
    numpy.int64(3),
    numpy.bool_(True),
    numpy.str_("x"),
    numpy.bytes_(b"x"),
    numpy.datetime64("2026"),
    numpy.array(3, dtype="m8[25s]")[()],
    numpy.zeros((), dtype=[("a", "i4"), ("b", "U2")])[()],
]


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{value.dtype}{value.shape}"[:40])
def test_arrays_and_scalars_arrive_as_they_were(value: Any) -> None:
    assert same(there_and_back(value), value)


def test_arrays_of_objects_keep_what_is_no_array() -> None:
    """Nothing asks objects whether they can be arrays: lists stay lists, and so do arrays of no dimensions."""
    inner = numpy.array(5)
    value = numpy.empty(2, dtype=object)
    value[:] = [inner, [1, 2]]
    arrived = there_and_back(value)
    assert arrived.shape == (2,)
    assert type(arrived[0]) is numpy.ndarray
    assert arrived[0].shape == ()
    assert arrived[1] == [1, 2]


def test_contents_travel_beside_the_record() -> None:
    value = numpy.arange(100_000.0)
    body, parts = _core.data_encode(value)
    assert len(body) < 100
    assert [len(part) for part in parts] == [value.nbytes]


def test_elements_without_bytes_count_as_if_they_had_some() -> None:
    """NumPy walks over the elements of an array one by one, also where they have no bytes."""
    many = tag(reference.ARRAY, [[["a", "<f8", [0]]], [1 << 46], 0, b""])
    with pytest.raises(ResultRejectedError, match="memory"):
        decode(many)
    wide = tag(reference.ARRAY, [[["a", "<f8", [0, 1 << 27]]], [1], 0, b""])
    with pytest.raises(ResultRejectedError, match="memory"):
        decode(wide)


# --- keys that collide ---------------------------------------------------------------------------

MODULUS = sys.hash_info.modulus


def long(number: int) -> Item:
    return tag(reference.BIG_POSITIVE, number.to_bytes(16, "big"))


@pytest.mark.parametrize("count", [2000, 20_000])
@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("integers", lambda i: long(i * MODULUS)),
        ("tuples", lambda i: tag(reference.TUPLE, [1, long(i * MODULUS)])),
        ("decimals", lambda i: tag(reference.DECIMAL, str(i * MODULUS))),
        ("fractions", lambda i: tag(reference.FRACTION, [long(i * MODULUS), 1])),
        ("UUIDs", lambda i: tag(reference.UUID, (i * MODULUS).to_bytes(16, "big"))),
        # Hashes that differ, and look for the same places.
        ("places", lambda i: reference.item_of((i << 50) % MODULUS)),
    ],
)
def test_keys_that_collide_are_refused(kind: str, key: Any, count: int) -> None:
    keys = [key(i) for i in range(1, count)]
    pairs: Item = ("map", [(one, reference.item_of(1)) for one in keys])
    for value in (
        *([] if kind == "places" else [pairs, tag(reference.COUNTER, pairs)]),
        tag(reference.SET, keys),
        tag(reference.FROZEN_SET, keys),
    ):
        with pytest.raises(ResultRejectedError, match="collide"):
            decode(value)


def test_honest_keys_do_not_collide() -> None:
    for keys in (
        range(100_000),
        range(0, 1 << 30, 1 << 14),
        [float(i) for i in range(10_000)],
        [(i, -i) for i in range(10_000)],
        [-1, -2, -3],
        [fractions.Fraction(1, i) for i in range(1, 2000)],
    ):
        value = dict.fromkeys(keys)
        assert there_and_back(value) == value
        assert there_and_back(set(keys)) == set(keys)


def test_frozen_sets_have_the_table_that_was_counted() -> None:
    """A copy of a set has a table of another size, in which keys may collide that don't in the first."""
    for count in (20, 100, 1000):
        grown: set[int] = set()
        for i in range(count):
            grown.add(i)
        arrived = decode(tag(reference.FROZEN_SET, list(range(count))))
        assert arrived == frozenset(grown)
        assert sys.getsizeof(arrived) == sys.getsizeof(grown)


# --- registered classes ------------------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
def test_registered_types_arrive() -> None:
    value = [
        Point(1, [2]),
        Place("a", Point(1)),
        Colour.BLUE,
        Colour.SCARLET,
        Access.READ | Access.RUN,
        Access(0),
        {Colour.RED: 1, Place("b", 2): 3},
    ]
    assert there_and_back(value) == value
    assert there_and_back(Colour.RED) is Colour.RED
    assert there_and_back(Own(5)).number == 5
    arrived = there_and_back(Trouble("a", 1))
    assert (type(arrived), arrived.args) == (Trouble, ("a", 1))


def instance(kind: str, data: Any) -> Item:
    return tag(reference.REGISTERED, [f"{__name__}:{kind}", data])


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("Point", {"x": 1}),
        ("Point", {"x": 1, "y": 2, "z": 3}),
        ("Point", [1, 2]),
        ("Point", {"__class__": 1, "y": 2}),
        ("Place", ["a"]),
        ("Place", {"name": "a", "point": 1}),
        ("Colour", "GREEN"),
        ("Colour", "__class__"),
        ("Colour", 1),
        ("Colour", ["RED"]),
        ("Access", ["READ", "OWN"]),
        ("Access", 7),
        ("Own", "5"),
        ("Point.__init__", [1, 2]),
        ("Other", None),
        ("", None),
    ],
)
def test_data_of_another_form_is_refused(kind: str, data: Any) -> None:
    with pytest.raises(ResultRejectedError, match="the answer of a worker isn't taken"):
        decode(instance(kind, data))


def test_classes_that_are_not_registered_are_refused_by_name() -> None:
    with pytest.raises(ResultRejectedError, match=r"os:system.*hasn't registered"):
        decode(tag(reference.REGISTERED, ["os:system", "true"]))
    with pytest.raises(ResultRejectedError) as caught:
        decode(tag(reference.LIBRARY, ["\x1b[31m\n", None]))
    assert str(caught.value).isprintable()


@pytest.mark.usefixtures("registered")
def test_combinations_of_a_flag_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python keeps each combination for ever."""
    monkeypatch.setattr(results, "_COMBINATIONS_MAX", 3)
    for names in (["READ"], ["READ", "RUN"], ["READ", "RUN", "WRITE"], ["RUN", "READ"]):
        decode(instance("Access", names))
    with pytest.raises(ResultRejectedError, match="combinations"):
        decode(instance("Access", ["WRITE", "RUN"]))


@pytest.mark.parametrize(
    ("kind", "functions", "message"),
    [
        (5, {}, "expected a class"),
        (Own, {}, "give to_data= and from_data="),
        (Own, {"to_data": repr}, "expected to_data and from_data"),
    ],
)
def test_what_cannot_be_registered(kind: Any, functions: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        exoskel.register_result_type(kind, **functions)


# --- exceptions ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
def test_texts_of_exceptions_drive_no_terminal() -> None:
    evil = "\x1b]0;x\x07\u202e\nTraceback"
    for kind, data in (
        ("ValueError", None),
        ("SystemExit", None),
        (f"{__name__}:Trouble", [evil]),
        (f"{__name__}:Trouble", [evil, [evil]]),
        (evil, None),
    ):
        error = outcome.exception_from_data(kind, evil, [evil], data, "w", 1, "worker w for item 1")
        assert isinstance(error, Exception)
        lines = "".join(traceback.format_exception(error)).split("\n")
        assert all(line.isprintable() for line in lines)
        assert not any(line.startswith("Traceback") for line in lines[3:])


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ValueError", ValueError),
        ("KeyError", KeyError),
        ("exoskel.errors:WorkerLostError", TaskError),
        ("UnicodeDecodeError", UnicodeError),
        ("StopIteration", RuntimeError),
        ("SystemExit", TaskError),
        ("KeyboardInterrupt", TaskError),
        ("GeneratorExit", TaskError),
        ("ExceptionGroup", TaskError),
        ("BaseExceptionGroup", TaskError),
        ("print", TaskError),
        ("os:system", TaskError),
        ("__class__", TaskError),
        ("", TaskError),
    ],
)
def test_exceptions_are_harmless_ones(kind: str, expected: type[Exception]) -> None:
    made = decode(tag(reference.EXCEPTION, [kind, "text", None]))
    assert type(made) is expected
    assert "text" in str(made)


@pytest.mark.usefixtures("registered")
def test_causes_that_drive_a_terminal_are_left_out() -> None:
    """What a program's own `from_data` raises is told as the cause, unless the stranger may have written its text."""

    def from_data(data: Any) -> Any:
        raise ValueError(f"got {data}")

    exoskel.register_result_type(Own, to_data=repr, from_data=from_data)
    with pytest.raises(ResultRejectedError) as caught:
        decode(instance("Own", "plain"))
    assert isinstance(caught.value.__cause__, ValueError)
    with pytest.raises(ResultRejectedError) as caught:
        decode(instance("Own", "\x1b[31m\nTraceback"))
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    assert str(caught.value).isprintable()


# --- what can't be sent -------------------------------------------------------------------------------


class Numbers(list[int]):
    """A list that isn't one."""


@pytest.mark.parametrize(
    ("value", "place", "cure"),
    [
        (
            [{"a": (1, threading.Lock())}],
            r"at result\[0\]\['a'\]\[1\]: ",
            "return what it gives|dicts",
        ),
        (Numbers([1]), "", r"return list\(value\)"),
        (Own(1), "", "register_result_type"),
        (len, "", "its name"),
        ((i for i in range(3)), "", "a list of its values"),
        (defaultdict(lambda: 0), "", r"dict\(value\)"),
        (Counter({"a": Counter()}), "", r"dict\(value\)"),
        (numpy.ones(1, dtype="g"), "", "astype"),
        (numpy.dtype("f8"), "", "str of a dtype"),
        # Its mask is not to be lost.
        (numpy.ma.ones(1), "", "its data and its mask"),
        (numpy.zeros(1, dtype=[("a", "O")]), "", "a list"),
        ({1: datetime.datetime.now}, "", "its name"),
    ],
    ids=repr,
)
def test_what_cannot_be_sent_is_told_with_a_cure(value: Any, place: str, cure: str) -> None:
    with pytest.raises(ResultRejectedError, match=f"^{place}.*got .*(?:{cure})") as caught:
        _core.data_encode(value)
    # What, where, and what to do: nobody reads more in a traceback.
    assert len(str(caught.value)) < 280


def test_a_zone_with_rules_is_refused_with_a_cure() -> None:
    class Zone(datetime.tzinfo):
        """A zone with rules of its own."""

        def utcoffset(self, _moment: Any) -> datetime.timedelta:
            return datetime.timedelta(0)

        def dst(self, _moment: Any) -> None:
            return None

        def tzname(self, _moment: Any) -> str:
            return "odd"

    with pytest.raises(ResultRejectedError, match="astimezone"):
        _core.data_encode(datetime.datetime(2026, 1, 1, tzinfo=Zone()))


def test_values_that_hold_themselves_are_refused() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ResultRejectedError, match="deeper than 256 levels"):
        _core.data_encode(value)


def test_small_things_by_the_thousand_are_no_attack() -> None:
    """Each is dear beside its few bytes; the limits leave room for what honest programs return."""
    many: dict[str, list[Any]] = {
        "small dicts": [{"a": 1} for _ in range(20_000)],
        "decimals": [decimal.Decimal("3.14")] * 20_000,
        "queues": [deque([1, 2], 5) for _ in range(10_000)],
        "empty queues": [deque() for _ in range(10_000)],
        "counters": [Counter() for _ in range(20_000)],
        "ordered dicts": [OrderedDict(a=1) for _ in range(20_000)],
        "paths": [pathlib.PurePosixPath(str(number)) for number in range(20_000)],
        "zones": [datetime.UTC] * 20_000,
        "empty lists": [[] for _ in range(100_000)],
        "empty sets": [set() for _ in range(100_000)],
        "sets": [{1, 2, 3, 4, 5} for _ in range(20_000)],
        "fractions": [fractions.Fraction(1, 3)] * 20_000,
        "identifiers": [uuid.UUID(int=number) for number in range(5_000)],
        "scalars": [numpy.float64(1.5)] * 5_000,
    }
    for name, value in many.items():
        assert there_and_back(value) == value, name


def test_immutable_sets_within_each_other_end_at_two_levels() -> None:
    """Comparing those that collide takes the power of their levels: of three already seconds for some kilobytes."""
    assert there_and_back({frozenset({frozenset({1})})}) == {frozenset({frozenset({1})})}
    with pytest.raises(ResultRejectedError, match="levels"):
        there_and_back(frozenset({frozenset({frozenset({1})})}))


def test_empty_numpy_texts_arrive() -> None:
    for value in (numpy.str_(""), numpy.bytes_(b""), numpy.array(["a", ""])[1]):
        assert there_and_back(value) == value


def test_an_exception_that_bears_nothing_becomes_another_one() -> None:
    frozen: Any = dataclasses.dataclass(frozen=True)(type("Frozen", (Exception,), {}))
    error = frozen()
    assert (
        type(exoskel.errors.with_remote_traceback(error, "lines", "w").__cause__).__name__
        == "RemoteTraceback"
    )


def test_arrays_of_variable_text_are_refused_and_not_changed() -> None:
    with pytest.raises(ResultRejectedError, match="StringDType"):
        there_and_back(numpy.array(["a"], dtype=numpy.dtypes.StringDType()))
