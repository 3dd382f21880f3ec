"""What a hostile worker may send as a result, and what an honest one must be able to."""

import copyreg
import dataclasses
import datetime
import decimal
import enum
import fractions
import io
import os
import pathlib
import pickle
import struct
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

import exoskel
from exoskel import arrays, restricted
from exoskel.errors import ResultRejectedError, WorkerLostError


@dataclasses.dataclass
class Point:
    """A class that a program may register."""

    x: int
    y: int


class Colour(enum.Enum):
    """An enumeration that a program may register."""

    RED = 1
    BLUE = 2


class Command:
    """Pickles as a call of anything."""

    def __init__(self, function: Callable[..., Any], *arguments: Any, state: Any = None) -> None:
        self.parts = (function, arguments) if state is None else (function, arguments, state)

    def __reduce__(self) -> Any:
        return self.parts


@pytest.fixture
def registered() -> Iterator[None]:
    """Register the classes above, for one test."""
    before, members = dict(restricted._registered), dict(restricted._members)
    exoskel.register_result_type(Point)
    exoskel.register_result_type(Colour)
    yield
    restricted._registered.clear()
    restricted._registered.update(before)
    restricted._members.clear()
    restricted._members.update(members)


def dumps(value: Any) -> tuple[bytes, list[pickle.PickleBuffer]]:
    """Pickle a value as a slot does."""
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    pickler = pickle.Pickler(file, 5, buffer_callback=buffers.append)
    table = arrays.reducers()
    if table is not None:
        pickler.dispatch_table = table
    pickler.dump(value)
    return file.getvalue(), buffers


def text(value: str) -> bytes:
    """Return the opcodes that push a text."""
    encoded = value.encode()
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def name(module: str, qualified: str) -> bytes:
    """Return the opcodes that push what a name stands for."""
    return text(module) + text(qualified) + b"\x93"


PLAIN = [
    None,
    True,
    -(2**80),
    1.5,
    complex(1, -2),
    "text",
    b"bytes",
    bytearray(b"array"),
    (1, [2, {"three": {4, 5}}], frozenset({6})),
    range(2, 9, 3),
    slice(1, None),
    ...,
    Counter("abca"),
    OrderedDict([("b", 1), ("a", 2)]),
    deque([1, 2], maxlen=3),
    defaultdict(list, {"a": [1]}),
    defaultdict(int, {"a": 1}),
    datetime.datetime(2026, 1, 2, 3, tzinfo=datetime.UTC),
    datetime.timedelta(days=1),
    decimal.Decimal("1.25"),
    fractions.Fraction(22, 7),
    uuid.UUID(int=5),
    pathlib.PurePosixPath("/a/b"),
    pathlib.Path("a"),
]


@pytest.mark.parametrize("value", PLAIN, ids=lambda value: type(value).__name__)
def test_plain_data_arrives_as_it_was(value: Any) -> None:
    arrived = restricted.loads(*dumps(value))
    assert arrived == value
    assert type(arrived) is type(value)
    assert repr(arrived) == repr(value)


def test_factory_of_defaultdict_is_the_real_one() -> None:
    arrived = restricted.loads(*dumps(defaultdict(list)))
    assert arrived.default_factory is list


def test_stream_may_be_a_file() -> None:
    assert restricted.loads(io.BytesIO(pickle.dumps([1, 2]))) == [1, 2]


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a", 1),
        KeyError("k"),
        OSError(2, "none"),
        WorkerLostError("m", item=3, workers=2),
    ],
    ids=repr,
)
def test_exceptions_arrive(error: Exception) -> None:
    arrived = restricted.loads(*dumps(error))
    assert type(arrived) is type(error)
    assert arrived.args == error.args
    assert vars(arrived) == vars(error)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_exceptions_that_end_a_program_are_refused(kind: type[BaseException]) -> None:
    with pytest.raises(ResultRejectedError):
        restricted.loads(pickle.dumps(kind()))


ARRAYS = [
    numpy.arange(6.0).reshape(2, 3),
    numpy.arange(6.0).reshape(2, 3).T,
    numpy.arange(12).reshape(3, 4)[::2, ::3],
    numpy.array(5, dtype=">i2"),
    numpy.zeros((0, 3), dtype="f4"),
    numpy.array(["a", "bcd"]),
    numpy.array([b"a", b"bcd"]),
    numpy.array(["2026-01-02"], dtype="M8[D]"),
    numpy.array([(1, 2.0)], dtype=[("a", "<i4"), ("b", "<f8", (2,))]),
    numpy.array([None, [1], {}], dtype=object),
    numpy.zeros((), dtype="S0"),
]


@pytest.mark.parametrize("value", ARRAYS, ids=lambda value: f"{value.dtype.str}{value.shape}")
def test_arrays_arrive(value: Any) -> None:
    arrived = restricted.loads(*dumps([value]))[0]
    assert type(arrived) is numpy.ndarray
    assert arrived.dtype == value.dtype
    assert arrived.shape == value.shape
    if value.dtype.hasobject:
        assert arrived.tolist() == value.tolist()
    else:
        assert arrived.tobytes() == value.tobytes()


def test_arrays_travel_out_of_band_and_without_a_copy() -> None:
    value = numpy.arange(100_000.0)
    stream, buffers = dumps(value)
    assert len(stream) < 100
    memory = bytearray(buffers[0].raw())
    arrived = restricted.loads(stream, [memory])
    assert numpy.shares_memory(arrived, numpy.frombuffer(memory))
    assert arrived.flags.writeable


@pytest.mark.parametrize(
    "value",
    [
        numpy.float32(2.5),
        numpy.int64(3),
        numpy.bool_(True),
        numpy.str_("x"),
        numpy.datetime64("2026"),
    ],
    ids=repr,
)
def test_scalars_arrive(value: Any) -> None:
    arrived = restricted.loads(*dumps(value))
    assert type(arrived) is type(value)
    assert arrived == value


def test_commands_never_run(tmp_path: pathlib.Path) -> None:
    """Every known way to make a pickle call something, aimed at a file that must not appear."""
    mark = tmp_path / "run"
    code = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    import builtins
    import functools
    import operator
    import subprocess

    hostile = [
        Command(os.system, f"touch {mark}"),
        Command(os.mkdir, str(mark)),
        Command(eval, code),
        Command(exec, code),
        Command(getattr, Command(__import__, "os"), "system"),
        Command(subprocess.Popen, ["touch", str(mark)]),
        Command(functools.partial, os.mkdir, str(mark)),
        Command(functools.reduce, os.mkdir, [str(mark), 0o700]),
        Command(operator.methodcaller, "mkdir", str(mark)),
        Command(map, os.mkdir, [str(mark)]),
        Command(open, str(mark), "w"),
        Command(compile, code, "x", "exec"),
        Command(type, "X", (), {}),
        Command(copyreg._reconstructor, Point, object, None),  # type: ignore[attr-defined]
        Command(builtins.__import__, "os"),
        Command(pickle.loads, pickle.dumps(Command(os.mkdir, str(mark)))),
        Command(numpy.load, str(mark)),
        Command(io.FileIO, str(mark), "w"),
    ]
    for command in hostile:
        for shape in (command, [command], {"a": (command,)}, ValueError(command)):
            for protocol in range(2, 6):
                with pytest.raises(ResultRejectedError):
                    restricted.loads(pickle.dumps(shape, protocol))
    assert not mark.exists()
    # The attack is real: an ordinary unpickler does run it.
    pickle.loads(pickle.dumps(hostile[1]))
    assert mark.exists()


@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(b"cos\nsystem\n(S'true'\ntR.", id="protocol 0"),
        pytest.param(b"(S'true'\nios\nsystem\n.", id="INST"),
        pytest.param(b"\x80\x05" + name("builtins", "list.__class__") + b".", id="dotted name"),
        pytest.param(b"\x80\x05" + name("datetime", "sys.modules") + b".", id="through a module"),
        pytest.param(
            b"\x80\x05" + name("exoskel.errors", "pickle.loads") + b".", id="through ours"
        ),
        pytest.param(b"\x80\x05" + name("exoskel.errors", "pickle") + b".", id="import of ours"),
        pytest.param(b"\x80\x05" + name("exoskel.arrays", "copyreg") + b".", id="import of arrays"),
        pytest.param(b"\x80\x05" + text("id") + b"Q.", id="persistent id"),
        pytest.param(
            b"\x80\x05" + name("cloudpickle.cloudpickle", "subimport") + text("os") + b"\x85R.",
            id="cloudpickle",
        ),
        pytest.param(
            b"\x80\x05" + name("numpy._core.multiarray", "_reconstruct") + b".", id="numpy's own"
        ),
        pytest.param(b"\x80\x05" + name("numpy", "dtype") + text("O") + b"\x85R.", id="dtype"),
        pytest.param(b"\x80\x05" + name("numpy", "ndarray") + b".", id="ndarray"),
        pytest.param(b"\x80\x05" + name("builtins", "object") + b".", id="object"),
        pytest.param(b"", id="empty"),
        pytest.param(b"\x80\x05", id="cut"),
        pytest.param(b"\x80\xffN.", id="unknown protocol"),
        pytest.param(b"\x80\x05\x97.", id="buffer that isn't there"),
        pytest.param(b"garbage", id="garbage"),
    ],
)
def test_crafted_streams_are_refused(stream: bytes) -> None:
    with pytest.raises(ResultRejectedError):
        restricted.loads(stream)


def test_extension_codes_are_looked_up_in_the_table() -> None:
    """A code that another part of the program has used before is taken from a cache, past `find_class`."""
    copyreg.add_extension("os", "system", 240)
    try:
        assert pickle.loads(b"\x80\x05\x82\xf0.") is os.system
        with pytest.raises(ResultRejectedError, match=r"os\.system"):
            restricted.loads(b"\x80\x05\x82\xf0.")
    finally:
        copyreg.remove_extension("os", "system", 240)


STATEFUL = [
    "datetime.date",
    "collections.Counter",
    "fractions.Fraction",
    "uuid.UUID",
    "pathlib.PurePath",
    "builtins.list",
]


@pytest.mark.parametrize(
    "dotted", [*STATEFUL, "exoskel.errors.WorkerLostError", "exoskel.arrays.array"]
)
@pytest.mark.parametrize(
    "state", [b"}" + text("__hash__") + b"Ns", b"N}" + text("__hash__") + b"Ns\x86"]
)
def test_classes_and_functions_cannot_be_changed(dotted: str, state: bytes) -> None:
    """BUILD sets attributes on whatever stands on the stack, classes of this process included."""
    module, _, last = dotted.rpartition(".")
    stream = b"\x80\x05" + name(module, last) + state + b"b."
    with pytest.raises(ResultRejectedError):
        restricted.loads(stream)


@pytest.mark.usefixtures("registered")
def test_registered_classes_cannot_be_changed() -> None:
    before = dict(vars(Point))
    for state in (b"}" + text("__init__") + b"Ns", b"N}" + text("__init__") + b"Ns\x86"):
        with pytest.raises(ResultRejectedError):
            restricted.loads(b"\x80\x05" + name(__name__, "Point") + state + b"b.")
    assert dict(vars(Point)) == before


@pytest.mark.usefixtures("registered")
def test_registered_types_arrive() -> None:
    arrived = restricted.loads(*dumps([Point(1, 2), Colour.BLUE]))
    assert arrived == [Point(1, 2), Colour.BLUE]
    assert type(arrived[0]) is Point
    assert arrived[1] is Colour.BLUE


@pytest.mark.usefixtures("registered")
def test_members_of_enumerations_cannot_be_changed() -> None:
    stream = b"\x80\x05" + name(__name__, "Colour") + b"K\x02\x85R}" + text("_value_") + b"K\x09sb."
    with pytest.raises(ResultRejectedError, match="Colour"):
        restricted.loads(stream)
    assert Colour.BLUE.value == 2


@pytest.mark.usefixtures("registered")
def test_registering_a_class_opens_neither_its_module_nor_subclasses() -> None:
    with pytest.raises(ResultRejectedError, match="Command"):
        restricted.loads(b"\x80\x05" + name(__name__, "Command") + b".")
    with pytest.raises(ResultRejectedError):
        restricted.loads(b"\x80\x05" + name(__name__, "Point.__init__") + b".")


def test_only_classes_can_be_registered() -> None:
    with pytest.raises(TypeError, match="expected a class"):
        exoskel.register_result_type(os.system)  # type: ignore[type-var]


FORGED = [
    (b"\0" * 16, "|O", (2,)),
    (b"\0" * 16, [("a", "|O")], (2,)),
    (b"\0" * 16, [("a", [("b", "|O")])], (2,)),
    (b"\0" * 16, "<f8", (3,)),
    (b"\0" * 16, "<f8", (1,)),
    (b"\0" * 16, "<f8", (-2,)),
    (b"\0" * 16, "<f8", (2**62, 4)),
    (b"\0" * 16, "<f8", [2]),
    (b"\0" * 16, "<f8", (2.0,)),
    (b"\0" * 16, "nonsense", (2,)),
    (b"\0" * 16, {"names": ["a"], "formats": ["O"]}, (2,)),
    (b"\0" * 16, numpy.dtype("f8"), (2,)),
    (b"\0" * 16, "<f8", (2,), "K"),
    (5, "<f8", (2,)),
]


@pytest.mark.parametrize("arguments", FORGED, ids=lambda arguments: str(arguments[1:]))
def test_forged_arrays_are_refused(arguments: tuple[Any, ...]) -> None:
    """An array of objects made of bytes is an array of pointers that the sender chose."""
    with pytest.raises(ResultRejectedError):
        restricted.loads(*dumps(Command(arrays.array, *arguments)))


def test_arrays_take_no_state() -> None:
    """``ndarray.__setstate__`` could replace the elements' type, given a dtype, so none may ever arrive."""
    dtype = numpy.dtype("O", False, True)
    with pytest.raises(ResultRejectedError, match="numpy"):
        restricted.loads(
            pickle.dumps(Command(numpy.ndarray, (2,), state=(1, (2,), dtype, False, b"\0" * 16)), 5)
        )
    with pytest.raises(ResultRejectedError, match="numpy"):
        restricted.loads(*dumps(dtype))


@pytest.mark.parametrize(
    "command",
    [
        Command(list, range(10**13)),
        Command(set, range(10**13)),
        Command(deque, range(10**13)),
        Command(bytearray, 2**45),
        Command(bytes, 2**45),
        Command(Counter, range(10**13)),
        Command(fractions.Fraction, "1e99999999"),
        Command(arrays.object_array, [], (2**40,)),
    ],
    ids=lambda command: command.parts[0].__name__,
)
def test_few_bytes_do_not_become_many(command: Command) -> None:
    with pytest.raises(ResultRejectedError):
        restricted.loads(pickle.dumps(command))


def test_refusal_names_the_type_the_worker_and_the_way_out() -> None:
    with pytest.raises(ResultRejectedError) as caught:
        restricted.loads(pickle.dumps(Point(1, 2)), worker="rented7.example.org")
    assert f"{__name__}.Point" in str(caught.value)
    assert "rented7.example.org" in str(caught.value)
    assert "register_result_type" in str(caught.value)
    assert 'results = "pickle"' in str(caught.value)


def test_refusal_shows_a_hostile_name_escaped_and_cut() -> None:
    with pytest.raises(ResultRejectedError) as caught:
        restricted.loads(b"\x80\x05" + name("\x1b[2J" + "m" * 10_000, "n") + b".")
    assert "\x1b" not in str(caught.value)
    assert len(str(caught.value)) < 500
