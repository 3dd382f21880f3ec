"""What `data_attack` sends: answers that are meant to hurt, and damaged ones. Made of items (`data_reference`), never of our writer."""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import itertools
import random
import struct
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from tests import data_reference as reference
from tests.data_reference import Item, item_of, tag

import exoskel
from exoskel import _core

Answer = tuple[Item, list[bytes]]
MODULUS = (1 << 61) - 1
EXTREMES = (
    *(0, 1, -1, 2, 255, 256, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 47, (1 << 63) - 1),
    *(-(1 << 63), 1 << 63, (1 << 64) - 1, -(1 << 64), 9999, 10_000, 86_399, 86_400, 999_999_999),
)
TEXTS = (
    *("", "a", "\0", "\x1b[31m", "\x1b]0;x\x07", "\u202e\u2066", "a\nb", "é", "日本", "😀"),
    *("__class__", "__array_interface__", "__array__", "__reduce__", "__init__", "os.system"),
    *("range", "values", "multi", "text", "nullable", "categories", "zoned", "int8", "struct"),
    *("<f8", "|O8", "NaN", "sNaN", "1E+999999", "x" * 300),
)


class Colour(enum.Enum):
    """A registered enumeration."""

    RED = 1
    BLUE = 2


class Access(enum.Flag):
    """A registered flag."""

    READ = 1
    WRITE = 2
    RUN = 4


@dataclasses.dataclass(frozen=True)
class Point:
    """A registered dataclass, which can be a key."""

    x: Any
    y: Any


class Pair(NamedTuple):
    """A registered named tuple."""

    first: Any
    second: Any


class Trouble(Exception):
    """A registered exception."""


class Own:
    """A registered class with functions of its own."""

    def __init__(self, data: Any) -> None:
        self.data = data


class Broken:
    """Does while it is made what must never happen; `--break` says what."""


DEEDS: dict[str, Callable[[], object]] = {
    "import": lambda: __import__("this_module_is_not_there"),
    "exec": lambda: exec("1"),
    "open": lambda: open("/dev/null").close(),
    "hang": lambda: all(itertools.repeat(1)),
    "wait": lambda: time.sleep(10_000),
    # Without objects, which cost twenty times as much where memory is traced.
    "slow": lambda: all(itertools.repeat(1, 200_000_000)),
    "crash": lambda: ctypes.string_at(0),
    "memory": lambda: bytearray(80_000_000)[0],
    "end": lambda: (_ for _ in ()).throw(SystemExit(0)),
    "escape": lambda: (_ for _ in ()).throw(ValueError("\x1b[31m")),
}


def _break(planted: str, chance: random.Random) -> Callable[[Any], Any]:
    def from_data(_data: Any) -> Any:
        DEEDS[chance.choice(planted.split(","))]()
        return Broken()

    return from_data


class Makers:
    """Makes answers by chance."""

    def __init__(self, chance: random.Random, planted: str = "") -> None:
        self.chance = chance
        for kind in (Colour, Access, Point, Pair, Trouble):
            exoskel.register_result_type(kind)
        exoskel.register_result_type(Own, to_data=lambda value: value.data, from_data=Own)
        if planted:
            exoskel.register_result_type(
                Broken, to_data=lambda _: None, from_data=_break(planted, chance)
            )
        self.planted = planted
        self.libraries = _library_answers()
        self.registered = [f"{__name__}:{kind.__name__}" for kind in REGISTERED]

    def warm_up(self) -> list[Answer]:
        """Return values of each kind, so that what is loaded late is there before anybody watches."""
        values = list(self.samples())
        values += [(self.leaf(), []) for _ in range(300)]
        values += [attack(self.chance) for attack in ATTACKS for _ in range(3)]
        # Libraries that aren't there are looked for once.
        values += [(tag(reference.LIBRARY, [name, None]), []) for name in LIBRARY_NAMES]
        return values

    def samples(self) -> list[Answer]:
        """Return honest answers: of libraries and of registered classes."""
        made = [Colour.RED, Access.READ | Access.RUN, Point(1, "a"), Pair([1], 2), Own({"a": 1})]
        return [*self.libraries, *map(_answer, [*made, Trouble("a", 1), ValueError("x")])]

    def answer(self) -> Answer:
        """Return an answer that is meant to hurt."""
        if self.planted and self.chance.random() < 0.1:
            return tag(reference.REGISTERED, [f"{__name__}:Broken", None]), []
        choice = self.chance.random()
        if choice < 0.3:
            return self.chance.choice(ATTACKS)(self.chance)
        if choice < 0.45:
            item, parts = self.chance.choice(self.libraries)
            return changed(item, self.chance), list(parts)
        if choice < 0.5:
            return tag(
                self.chance.choice((reference.REGISTERED, reference.LIBRARY)),
                [
                    self.chance.choice((*self.registered, *LIBRARY_NAMES, *TEXTS)),
                    self.value(2),
                ],
            ), []
        if choice < 0.55:
            return tag(
                reference.EXCEPTION,
                [
                    self.chance.choice((*EXCEPTIONS, *self.registered)),
                    self.chance.choice(TEXTS),
                    self.value(1),
                ],
            ), []
        return self.value(self.chance.choice((1, 2, 3, 5))), []

    def value(self, depth: int) -> Item:
        """Return a value with containers."""
        chance = self.chance
        if depth == 0 or chance.random() < 0.3:
            return self.leaf()
        count = chance.choice((0, 1, 2, 3, 6, 12))
        items = [self.value(depth - 1) for _ in range(count)]
        kind = chance.randrange(10)
        if kind == 0:
            return ("list", items)
        if kind == 1:
            return tag(reference.TUPLE, ("list", items))
        if kind in (2, 3):
            members = [self.leaf() for _ in range(count)]
            return tag(
                reference.SET if kind == 2 else reference.FROZEN_SET,
                ("list", members if chance.random() < 0.7 else items),
            )
        pairs = ("map", [(self.leaf(), item) for item in items])
        if kind == 4:
            return pairs
        if kind in (5, 6):
            return tag(reference.COUNTER if kind == 5 else reference.ORDERED_MAP, pairs)
        if kind == 7:
            factory = chance.choice((None, *range(12)))
            return tag(reference.DEFAULT_MAP, ("list", [item_of(factory), pairs]))
        if kind == 8:
            longest = chance.choice((None, count, *EXTREMES))
            return tag(reference.DEQUE, ("list", [item_of(longest), ("list", items)]))
        shape = chance.choice(([count], [], [1, count], [count, 0], [0, 1 << 40], [-1]))
        return tag(reference.OBJECT_ARRAY, ("list", [item_of(shape), ("list", items)]))

    def leaf(self) -> Item:
        """Return a value that holds no others."""
        return self.chance.choice(LEAVES)(self.chance)


REGISTERED = (Colour, Access, Point, Pair, Trouble, Own)
LIBRARY_NAMES = (
    *("pandas.DataFrame:1", "pandas.Series:1", "pandas.Index:1", "pandas.Timestamp:1"),
    *("pandas.Timedelta:1", "xarray.DataArray:1", "xarray.Dataset:1", "xarray.Variable:1"),
    *("pyarrow.Table:1", "pyarrow.Array:1", "pyarrow.ChunkedArray:1", "pyarrow.RecordBatch:1"),
    *("scipy.sparse.csr_array:1", "scipy.sparse.coo_matrix:1", "scipy.sparse.dok_array:1"),
    *("torch.Tensor:1", "torch.Tensor", "os.system:1", "pandas.read_pickle:1"),
)
EXCEPTIONS = (
    *("ValueError", "KeyError", "OSError", "SystemExit", "KeyboardInterrupt", "StopIteration"),
    *("GeneratorExit", "ExceptionGroup", "ImportError", "UnicodeDecodeError", "MemoryError"),
    *("exoskel.errors:TaskError", "exoskel.errors:WorkerLostError", "builtins:eval", "\x1b[31m"),
)


def _answer(value: Any) -> Answer:
    body, parts = _core.data_encode(value)
    return reference.parse(body), parts


def _library_answers() -> list[Answer]:
    """Return the honest values of the libraries that are there, each as an answer."""
    from tests.test_result_types import SAMPLES

    answers = [_answer(value) for samples in SAMPLES.values() for value in samples()]
    try:
        import torch
    except ModuleNotFoundError:
        return answers
    return [*answers, _answer(torch.ones(2, 3)), _answer(torch.zeros(2, dtype=torch.bfloat16))]


# --- leaves ---------------------------------------------------------------------------------------


def _integer(chance: random.Random) -> Item:
    if chance.random() < 0.5:
        return item_of(chance.choice(EXTREMES))
    if chance.random() < 0.5:
        return item_of(chance.randrange(-300, 300))
    length = chance.choice((0, 1, 8, 9, 16, 64, 65, 2048, 9000))
    return tag(chance.choice((2, 3)), chance.randbytes(length))


def _float(chance: random.Random) -> Item:
    return "float", chance.choice((0, 1 << 63, 0x7FF << 52, 0x7FF8 << 48, chance.getrandbits(64)))


def _text(chance: random.Random) -> Item:
    if chance.random() < 0.2:
        return tag(
            reference.SURROGATE_TEXT,
            chance.choice((b"\xed\xa0\x80", b"\xff", b"a", b"", b"\xed\xa0\x80\xed\xb0\x80")),
        )
    return item_of(chance.choice(TEXTS))


def _record(number: int, lengths: tuple[int, ...]) -> Callable[[random.Random], Item]:
    """Return a maker of tags whose content is a list of small or extreme integers."""

    def make(chance: random.Random) -> Item:
        content: list[Any] = [
            chance.choice(EXTREMES) if chance.random() < 0.15 else chance.randrange(1, most + 1)
            for most in lengths
        ]
        if number in (reference.TIME, reference.DATE_TIME):
            content[-1] = chance.choice((0, 0, 0, 1, 2))
            content.append(chance.choice((None, _zone(chance))))
        return tag(number, content)

    return make


def _zone(chance: random.Random) -> Item:
    seconds = chance.choice((0, 3600, -86399, 86399, *EXTREMES))
    return tag(
        reference.TIME_ZONE, [seconds, chance.choice((0, 1, -1)), chance.choice((None, *TEXTS))]
    )


def _decimal(chance: random.Random) -> Item:
    text = chance.choice(
        ("0", "-0", "1E+999999", "1E-999999", "sNaN", "-NaN7", "Infinity", "9" * 4300, "1.5", "x")
    )
    return tag(reference.DECIMAL, text)


def _fraction(chance: random.Random) -> Item:
    return tag(reference.FRACTION, [_integer(chance), _integer(chance)])


def _path(chance: random.Random) -> Item:
    return tag(reference.PATH, [chance.choice((0, 1, 2, 3)), _text(chance)])


def description(chance: random.Random, depth: int = 0) -> Any:
    """Return what the elements of an array may be said to be."""
    if depth < 9 and chance.random() < 0.25:
        fields = []
        for _ in range(chance.choice((0, 1, 1, 2, 3))):
            field = [chance.choice(TEXTS), description(chance, depth + 1)]
            if chance.random() < 0.3:
                field.append(chance.choice(([2], [0], [], [2, 1], [0, 1 << 20], [1 << 20, 0])))
            fields.append(field)
        return fields
    codes = [
        "|b1",
        "|i1",
        "<u2",
        ">i4",
        "<i8",
        "<f2",
        ">f8",
        "<c8",
        "<c16",
        "|S3",
        "<U2",
        ">U1",
        "|V3",
    ]
    codes += ["<M8[ns]", "<M8[999999999Y]", "<m8[999999999as]", "<M8", "<m8[W]", "|O8", "<f16", ""]
    return chance.choice((*codes, "<U999999999", "|V999999999", "<M8[25s]"))


def _sized(described: Any) -> int:
    try:
        return reference.elements(item_of(described)).bytes
    except reference.Refused:
        return 8


def array(chance: random.Random) -> Item:
    """Return an array of any elements, mostly of as many bytes as it says."""
    described = description(chance)
    shape = [chance.choice((0, 1, 2, 3)) for _ in range(chance.choice((0, 1, 1, 2, 3)))]
    count = 1
    for length in shape:
        count *= length
    size = min(count * _sized(described), 4000)
    if chance.random() < 0.1:
        shape = chance.choice(([0, 1 << 40], [1 << 46], [0] * 32, [0] * 33, [0, (1 << 63) - 1]))
    contents = chance.choice((bytes(size), chance.randbytes(size), b"\1" * size))
    return tag(reference.ARRAY, [described, shape, chance.choice((0, 0, 1, 2)), contents])


def scalar(chance: random.Random) -> Item:
    described = description(chance)
    size = min(_sized(described), 4000)
    return tag(reference.SCALAR, [described, chance.choice((bytes(size), chance.randbytes(size)))])


LEAVES: tuple[Callable[[random.Random], Item], ...] = (
    _integer,
    _integer,
    _float,
    _text,
    _text,
    lambda chance: item_of(chance.choice((None, True, False))),
    lambda chance: item_of(chance.randbytes(chance.choice((0, 1, 5)))),
    lambda chance: tag(reference.BYTE_ARRAY, chance.randbytes(3)),
    lambda _: tag(reference.COMPLEX, [1.5, float("nan")]),
    _record(reference.RANGE, (5, 9, 2)),
    _record(reference.SLICE, (5, 9, 2)),
    lambda chance: tag(reference.CONSTANT, chance.choice((0, 1, 2))),
    _record(reference.DATE, (9999, 12, 28)),
    _record(reference.TIME, (23, 59, 59, 999999, 1)),
    _record(reference.DATE_TIME, (9999, 12, 28, 23, 59, 59, 999999, 1)),
    _record(reference.DURATION, (999999999, 86399, 999999)),
    _zone,
    _decimal,
    _fraction,
    lambda chance: tag(reference.UUID, chance.choice((bytes(16), chance.randbytes(16)))),
    _path,
    array,
    array,
    scalar,
    scalar,
)


# --- attacks ----------------------------------------------------------------------------------------


def _held(keys: list[Any], chance: random.Random) -> Answer:
    """Put keys into one of the containers that hash them."""
    kind = chance.randrange(5)
    if kind < 2:
        return tag(reference.SET if kind else reference.FROZEN_SET, keys), []
    pairs: Item = ("map", [(item_of(key), item_of(1)) for key in keys])
    if kind == 2:
        return pairs, []
    return tag(reference.COUNTER if kind == 3 else reference.ORDERED_MAP, pairs), []


def big(number: int) -> Item:
    length = max(9, (abs(number).bit_length() + 7) // 8)
    if number >= 0:
        return tag(2, number.to_bytes(length, "big"))
    return tag(3, (-1 - number).to_bytes(length, "big"))


def _count(chance: random.Random) -> int:
    return chance.choice((9, 60, 200, 2000))


def same_hash(chance: random.Random) -> Answer:
    """Keys with one hash, of every kind of number."""
    start, count = chance.randrange(1, 1 << 60), _count(chance)
    numbers = [start + MODULUS * i for i in range(1, count)]
    kind = chance.randrange(6)
    if kind == 0:
        return _held([big(number) for number in numbers], chance)
    if kind == 1:
        return _held([tag(reference.TUPLE, [big(number), 1]) for number in numbers], chance)
    if kind == 2:
        return _held([tag(reference.DECIMAL, str(number)) for number in numbers], chance)
    if kind == 3:
        return _held([tag(reference.FRACTION, [big(number), 1]) for number in numbers], chance)
    if kind == 4:
        return _held(
            [tag(reference.UUID, (number % (1 << 128)).to_bytes(16, "big")) for number in numbers],
            chance,
        )
    kinds: list[Callable[[int], Item]] = [
        big,
        lambda number: tag(reference.DECIMAL, str(number)),
        lambda number: tag(reference.FRACTION, [big(number), 1]),
        lambda number: tag(reference.REGISTERED, [f"{__name__}:Pair", [big(number), 0]]),
    ]
    return _held([kinds[i % 4](number) for i, number in enumerate(numbers)], chance)


def same_places(chance: random.Random) -> Answer:
    """Keys with hashes that differ, and look for the same places."""
    count, shift = _count(chance), chance.choice((16, 20, 30, 40, 50))
    low = chance.randrange(1 << 16)
    return _held([low + (i << shift) % MODULUS for i in range(1, count)], chance)


def same_floats(chance: random.Random) -> Answer:
    powers = [2.0 ** (61 * i) for i in range(1, 16)]
    return _held(
        [tag(reference.TUPLE, [power, float(j)]) for power in powers for j in range(60)], chance
    )


def same_frozen_sets(chance: random.Random) -> Answer:
    """Immutable sets whose members' hashes are the same taken together."""
    count = _count(chance)
    return _held(
        [
            tag(reference.FROZEN_SET, [big(1 + MODULUS * i), big(2 + MODULUS * i)])
            for i in range(1, count)
        ],
        chance,
    )


def slow_comparison(chance: random.Random) -> Answer:
    """A long integer and a decimal number of the same hash, as far as the limits let them."""
    number = int("7" * chance.choice((100, 150, 4000)))
    return _held([big(number), tag(reference.DECIMAL, str(number + MODULUS)[:4300])], chance)


SMALL: tuple[Item, ...] = (
    *(item_of([]), item_of({}), tag(reference.SET, []), tag(reference.FROZEN_SET, [])),
    *(
        tag(reference.COUNTER, {}),
        tag(reference.ORDERED_MAP, {}),
        tag(reference.DEFAULT_MAP, [6, {}]),
    ),
    *(tag(reference.DEQUE, [None, []]), tag(reference.OBJECT_ARRAY, [[0], []])),
    *(tag(reference.BYTE_ARRAY, b""), tag(reference.DECIMAL, "1"), tag(reference.UUID, bytes(16))),
    *(tag(reference.ARRAY, ["|u1", [0], 0, b""]), tag(reference.SCALAR, ["|u1", b"a"])),
    *(
        tag(reference.ARRAY, [[["a", "|u1"]], [1], 0, b"a"]),
        tag(reference.SCALAR, [[["a", "|u1"]], b"a"]),
    ),
    *(tag(reference.TUPLE, [0]), tag(reference.SET, [0]), item_of([0]), item_of({0: 0})),
    *(
        tag(reference.DATE, [1, 1, 1]),
        tag(reference.TIME_ZONE, [1, 0, "a"]),
        item_of("é"),
        item_of(b""),
    ),
    *(
        tag(reference.FRACTION, [1, 2]),
        tag(reference.PATH, [0, "a"]),
        item_of(1 << 62),
        item_of(1.5),
    ),
    *(tag(reference.EXCEPTION, [name, "", None]) for name in ("ValueError", "x")),
    tag(reference.REGISTERED, [f"{__name__}:Access", ["READ"]]),
    tag(reference.SCALAR, ["<U1", b"a\0\0\0"]),
    *(
        tag(reference.DECIMAL, "9" * 300),
        tag(reference.RANGE, [0, 1, 1]),
        tag(reference.COMPLEX, [0.0, 0.0]),
    ),
    tag(reference.ARRAY, [[["a", [["b", "|u1", [1]]]], ["c", "|b1"]], [1], 0, b"a\1"]),
    tag(reference.LIBRARY, ["pandas.Index:1", tag(reference.TUPLE, ["range", None, 0, 1, 1])]),
    tag(reference.LIBRARY, ["pandas.Timestamp:1", tag(reference.TUPLE, [1, "s", None])]),
)


def many_small(chance: random.Random) -> Answer:
    """As many as there may be of what takes much memory for few bytes."""
    kind = chance.choice(SMALL)
    count = chance.choice((100, 1000, 4000))
    if chance.random() < 0.3:
        others = [chance.choice(SMALL) for _ in range(7)]
        return ("list", [chance.choice(others) for _ in range(count)]), []
    if chance.random() < 0.3:
        return ("map", [(item_of(i), kind) for i in range(count)]), []
    return ("list", [kind] * count), []


def deep(chance: random.Random) -> Answer:
    """Values in values, up to the limit and beyond."""
    value: Item = chance.choice(LEAVES)(chance)
    wrap = chance.choice(WRAPS)
    for _ in range(chance.choice((10, 100, 200, 255, 256, 257))):
        value = wrap(value) if chance.random() < 0.9 else chance.choice(WRAPS)(value)
    return value, []


WRAPS: tuple[Callable[[Item], Item], ...] = (
    lambda item: item_of([item]),
    lambda item: tag(reference.TUPLE, [item]),
    lambda item: tag(reference.FROZEN_SET, [item]),
    lambda item: item_of({"a": 1, "b": item}),
    lambda item: ("map", [(tag(reference.TUPLE, [item]), item_of(1))]),
    lambda item: tag(reference.DEQUE, [None, [item]]),
    lambda item: tag(reference.OBJECT_ARRAY, [[1], [item]]),
    lambda item: tag(reference.OBJECT_ARRAY, [[], [item]]),
    lambda item: tag(reference.COUNTER, {"a": item}),
    lambda item: tag(reference.DEFAULT_MAP, [0, {"a": item}]),
    lambda item: tag(reference.ORDERED_MAP, {"a": item}),
    lambda item: tag(reference.REGISTERED, [f"{__name__}:Own", item]),
    lambda item: tag(reference.REGISTERED, [f"{__name__}:Trouble", [item]]),
    lambda item: tag(reference.EXCEPTION, [f"{__name__}:Trouble", "", [item]]),
)


def odd_columns(chance: random.Random) -> Answer:
    """A frame with objects that don't belong there."""
    keys = [chance.choice(LEAVES)(chance) for _ in range(3)]
    objects = tag(reference.OBJECT_ARRAY, ("list", [item_of([3]), ("list", keys)]))
    index = tag(reference.TUPLE, ["values", chance.choice(LEAVES)(chance), objects])
    rows = tag(reference.TUPLE, ["range", None, 0, chance.choice((3, 1 << 40)), 1])
    columns = tag(reference.TUPLE, ("list", [objects, objects, objects]))
    return tag(
        reference.LIBRARY,
        ["pandas.DataFrame:1", tag(reference.TUPLE, [index, rows, columns, item_of({})])],
    ), []


def odd_categories(chance: random.Random) -> Answer:
    """Categories that are costly to tell apart."""
    numbers = [big(5 + MODULUS * i) for i in range(1, chance.choice((3, 300, 2000)))]
    objects = tag(reference.OBJECT_ARRAY, [[len(numbers)], numbers])
    codes = tag(reference.ARRAY, ["|i1", [1], 0, b"\0"])
    rows = tag(reference.TUPLE, ["range", None, 0, 1, 1])
    values = tag(reference.TUPLE, ["categories", codes, objects, False])
    return tag(
        reference.LIBRARY,
        ["pandas.Series:1", tag(reference.TUPLE, [values, rows, None, item_of({})])],
    ), []


def many_dimensions(chance: random.Random) -> Answer:
    """A dataset with dimensions whose names collide."""
    number, variables = 0, []
    for i in range(chance.choice((3, 60))):
        names = []
        for _ in range(32):
            number += 1
            names.append(big(7 + MODULUS * number))
        contents = tag(reference.ARRAY, ["|u1", [1] * 32, 0, b"\0"])
        variable = tag(reference.TUPLE, [tag(reference.TUPLE, names), contents, item_of({})])
        variables.append((item_of(i), variable))
    return tag(
        reference.LIBRARY,
        [
            "xarray.Dataset:1",
            tag(reference.TUPLE, [("map", variables), item_of({}), item_of({})]),
        ],
    ), []


def parts_of_all_kinds(chance: random.Random) -> Answer:
    """Bulk parts, in their places or not."""
    parts = [chance.randbytes(chance.choice((0, 1, 8, 4096))) for _ in range(3)]
    places: list[Any] = [tag(reference.PART, len(part)) for part in parts]
    places[1] = tag(reference.BYTE_ARRAY, places[1])
    places[2] = tag(reference.ARRAY, ["|u1", [len(parts[2])], 0, places[2]])
    if chance.random() < 0.3:
        chance.shuffle(places)
    return item_of(places), parts


ATTACKS: tuple[Callable[[random.Random], Answer], ...] = (
    same_hash,
    same_places,
    same_floats,
    same_frozen_sets,
    slow_comparison,
    many_small,
    many_small,
    deep,
    deep,
    odd_columns,
    odd_categories,
    many_dimensions,
    parts_of_all_kinds,
)


# --- damage ---------------------------------------------------------------------------------------


def changed(item: Item, chance: random.Random) -> Item:
    """Return an item with one thing changed somewhere in it."""
    kind, content = item
    if kind == "tag" and chance.random() < 0.9:
        number, inner = content
        if chance.random() < 0.05:
            return "tag", (chance.choice((*reference.TAGS, 0, 1, 28, 0xE51C)), inner)
        return "tag", (number, changed(inner, chance))
    if kind == "list" and content and chance.random() < 0.9:
        items = list(content)
        place = chance.randrange(len(items))
        choice = chance.random()
        if choice < 0.08:
            del items[place]
        elif choice < 0.16:
            items.insert(place, chance.choice(items))
        else:
            items[place] = changed(items[place], chance)
        return "list", items
    if kind == "map" and content and chance.random() < 0.9:
        pairs = list(content)
        place = chance.randrange(len(pairs))
        key, part = pairs[place]
        pairs[place] = (
            (changed(key, chance), part) if chance.random() < 0.3 else (key, changed(part, chance))
        )
        return "map", pairs
    if kind == "bytes" and content and chance.random() < 0.7:
        raw = bytearray(content)
        for _ in range(chance.choice((1, 1, 4))):
            raw[chance.randrange(len(raw))] = chance.choice((0, 1, 2, 127, 128, 255))
        return "bytes", bytes(raw[: len(raw) - chance.choice((0, 0, 0, 1))])
    if kind == "int" and chance.random() < 0.6:
        return item_of(max(-(1 << 63), min(content + chance.choice((-1, 1, 7)), (1 << 63) - 1)))
    return chance.choice(LEAVES)(chance)


def damaged(
    pool: list[tuple[bytes, list[bytes]]], chance: random.Random
) -> tuple[bytes, list[bytes]]:
    """Return an answer of the pool with something wrong in its bytes or its structure."""
    body, parts = chance.choice(pool)
    if chance.random() < 0.3:
        try:
            item = reference.parse(body)
        except (reference.Refused, RecursionError):
            return body, parts
        for _ in range(chance.choice((1, 1, 2, 4))):
            item = changed(item, chance)
        return reference.write(item), parts
    raw = bytearray(body)
    for _ in range(chance.choice((1, 1, 2, 4))):
        if not raw:
            break
        place = chance.randrange(len(raw))
        choice = chance.randrange(6)
        if choice < 2:
            raw[place] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
        elif choice == 2:
            other = chance.choice(pool)[0]
            start = chance.randrange(len(other) + 1)
            raw[place : place + chance.randrange(9)] = other[start : start + chance.randrange(40)]
        elif choice == 3:
            found = raw.find(b"\xd9\xe5", place)
            if 0 <= found < len(raw) - 2:
                raw[found + 2] = chance.randrange(0x1D)
        elif choice == 4:
            raw[place : place + 1] = chance.choice((b"\x1b", b"\x9b", b"\x5b")) + struct.pack(
                ">q", chance.choice([number for number in EXTREMES if abs(number) < 1 << 63])
            )
        else:
            del raw[place : place + chance.randrange(1, 20)]
    if parts and chance.random() < 0.2:
        parts = parts[:-1]
    return bytes(raw), parts
