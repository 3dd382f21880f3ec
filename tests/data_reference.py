"""A second implementation of plain data, written from `docs/protocol.md` section 8 alone.

`parse` reads bytes into items, `write` turns items into bytes, `check` holds a value against the rules and limits, and `value` makes
Python objects of it. It is slow on purpose: each rule stands here once, in the order of that page.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import pathlib
import re
import struct
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy

# An item: its kind and its content. Integers are Python's, floats their 64 bits, lists and maps hold items, a tag its number and item.
Item = tuple[str, Any]

BIG_POSITIVE, BIG_NEGATIVE, UUID, SET = 2, 3, 37, 258
TUPLE, FROZEN_SET, BYTE_ARRAY, COMPLEX, RANGE, SLICE, CONSTANT = range(0xE501, 0xE508)
SURROGATE_TEXT, PART, DATE, TIME, DATE_TIME, DURATION, TIME_ZONE = range(0xE508, 0xE50F)
DECIMAL, FRACTION, PATH, COUNTER, ORDERED_MAP, DEFAULT_MAP, DEQUE = range(0xE50F, 0xE516)
ARRAY, SCALAR, OBJECT_ARRAY, REGISTERED, LIBRARY, EXCEPTION = range(0xE516, 0xE51C)
TAGS = (BIG_POSITIVE, BIG_NEGATIVE, UUID, SET, *range(TUPLE, EXCEPTION + 1))
FACTORIES = (int, float, complex, bool, str, bytes, list, tuple, dict, set, frozenset)

NESTING_MAX = 256
NAME_BYTES_MAX = 256
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
LEAF = re.compile(
    r"[<>|](?:b1|[iu][1248]|f[248]|c(?:8|16)|[SUV]0*[1-9][0-9]*|[Mm]8(?:\[([0-9]*)(?:[YMWDhms]|ms|us|ns|ps|fs|as)\])?)"
)
NUMBER = re.compile(
    r"[-+]?(?:Infinity|s?NaN[0-9]{0,64}|([0-9]*)(?:\.([0-9]*))?(?:E[-+]?([0-9]+))?)"
)


class Refused(Exception):
    """A value that a reader must not take; `kind` says by which sort of rule."""

    def __init__(self, kind: str, why: str) -> None:
        self.kind = kind
        super().__init__(f"{kind}: {why}")


def malformed(why: str) -> Refused:
    return Refused("malformed", why)


# --- items --------------------------------------------------------------------------------------


def parse(body: bytes) -> Item:
    """Return the one item that bytes hold."""
    item, end = _parse(body, 0, 0)
    if end != len(body):
        raise malformed("more bytes")
    return item


def _parse(body: bytes, at: int, depth: int) -> tuple[Item, int]:
    # Each level of values has at most two tags and a list of its own.
    if depth > 4 * NESTING_MAX:
        raise Refused("limit", "nesting")
    first = _take(body, at, 1)[0]
    major, low = first >> 5, first & 31
    at += 1
    if major == 7:
        if low in (20, 21):
            return ("bool", low == 21), at
        if low == 22:
            return ("null", None), at
        if low == 27:
            return ("float", int.from_bytes(_take(body, at, 8), "big")), at + 8
        raise malformed("a simple value or float of another kind")
    if low > 27:
        raise malformed("a length that isn't told")
    number = low
    if low >= 24:
        size = 1 << (low - 24)
        number = int.from_bytes(_take(body, at, size), "big")
        at += size
    if major == 0:
        return ("int", number), at
    if major == 1:
        return ("int", -1 - number), at
    if major == 2:
        return ("bytes", _take(body, at, number)), at + number
    if major == 3:
        try:
            return ("text", _take(body, at, number).decode()), at + number
        except UnicodeDecodeError:
            raise malformed("text that isn't UTF-8") from None
    if major == 6:
        inner, at = _parse(body, at, depth + 1)
        return ("tag", (number, inner)), at
    items = []
    for _ in range(number * (major - 3)):
        inner, at = _parse(body, at, depth + 1)
        items.append(inner)
    if major == 4:
        return ("list", items), at
    return ("map", list(zip(items[::2], items[1::2], strict=True))), at


def _take(body: bytes, at: int, count: int) -> bytes:
    if at + count > len(body):
        raise malformed("the end of the record")
    return body[at : at + count]


def write(item: Item) -> bytes:
    """Return the bytes of an item, each head as short as it can be."""
    kind, content = item
    if kind == "null":
        return b"\xf6"
    if kind == "bool":
        return b"\xf5" if content else b"\xf4"
    if kind == "float":
        return b"\xfb" + int(content).to_bytes(8, "big")
    if kind == "int":
        return _head(0, content) if content >= 0 else _head(1, -1 - content)
    if kind == "bytes":
        return _head(2, len(content)) + bytes(content)
    if kind == "text":
        encoded: bytes = content.encode()
        return _head(3, len(encoded)) + encoded
    if kind == "list":
        return _head(4, len(content)) + b"".join(map(write, content))
    if kind == "map":
        return _head(5, len(content)) + b"".join(write(part) for pair in content for part in pair)
    return _head(6, content[0]) + write(content[1])


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes([major << 5 | number])
    for low, size in ((24, 1), (25, 2), (26, 4), (27, 8)):
        if number < 1 << 8 * size:
            return bytes([major << 5 | low]) + number.to_bytes(size, "big")
    raise ValueError("got a number of more than 64 bits")


# What makes items short to write down.


def tag(number: int, content: Any) -> Item:
    return ("tag", (number, item_of(content)))


def item_of(content: Any) -> Item:
    """Return the item of plain Python content; what is an item already stays."""
    if type(content) is tuple:
        return content
    if content is None:
        return ("null", None)
    if type(content) is bool:
        return ("bool", content)
    if type(content) is int:
        return ("int", content)
    if type(content) is float:
        return ("float", int.from_bytes(struct.pack(">d", content), "big"))
    if type(content) is str:
        return ("text", content)
    if type(content) is bytes:
        return ("bytes", content)
    if type(content) is list:
        return ("list", [item_of(part) for part in content])
    if type(content) is dict:
        return ("map", [(item_of(key), item_of(part)) for key, part in content.items()])
    raise TypeError(f"got a {type(content).__name__}, expected what has an item")


# --- the rules ------------------------------------------------------------------------------------


class Size(NamedTuple):
    """The elements of an array: bytes of one, the same with dimensions of 0 as 1, fields, checks of their bytes."""

    bytes: int
    extent: int
    fields: int
    checks: list[tuple[int, int, str]]


def map_memory(count: int) -> int:
    """Say what a map of so many pairs weighs."""
    if count <= 5:
        return 248 if count else 80
    return 64 * count + 280


class _Checker:
    def __init__(self, message: int, parts: Sequence[bytes]) -> None:
        self.parts = list(parts)
        self.memory_max = 128 * message + 1048576
        self.pieces_max = 8192 + message // 128
        self.memory = self.pieces = 0

    def weigh(self, memory: int) -> None:
        self.memory += memory
        if self.memory > self.memory_max:
            raise Refused("memory", "more memory than the message may ask for")

    def piece(self, place: str) -> None:
        self.pieces += place == "library"
        if self.pieces > self.pieces_max:
            raise Refused("limit", "pieces of libraries")

    def value(self, item: Item, place: str, level: int) -> None:
        """`place` is one of any, key, of key, library."""
        kind, content = item
        if place == "count" and not (
            kind in ("bool", "int", "float") or (kind == "tag" and content[0] in NUMBERS)
        ):
            raise malformed("a count that is no number")
        if kind == "text":
            self.weigh(text_memory(content))
        elif kind == "bytes":
            self.weigh(48 + len(content))
        elif kind in ("int", "float"):
            self.weigh(32)
        elif kind == "list":
            self.no_key(place)
            self.weigh(8 * len(content) + 72)
            self.piece(place)
            self.values(content, inside(place), level)
        elif kind == "map":
            self.no_key(place)
            self.weigh(map_memory(len(content)))
            self.pairs(content, place, level)
        elif kind == "tag":
            self.tagged(content[0], content[1], place, level)

    def values(self, items: Sequence[Item], place: str, level: int) -> None:
        if items and level >= NESTING_MAX:
            raise Refused("limit", "nesting")
        for item in items:
            self.value(item, place, level + 1)

    def pairs(self, pairs: Sequence[tuple[Item, Item]], place: str, level: int) -> None:
        if pairs and level >= NESTING_MAX:
            raise Refused("limit", "nesting")
        for key, part in pairs:
            self.value(key, "key", level + 1)
            self.value(part, place, level + 1)

    def no_key(self, place: str) -> None:
        if place == "key":
            raise Refused("key", "a value that can't be a key")

    def tagged(self, number: int, content: Item, place: str, level: int) -> None:
        if number in NEVER_KEYS:
            self.no_key(place)
        if number == TUPLE:
            items = form(content, "list")
            self.weigh(8 * len(items) + 56 if items else 0)
            self.values(items, place, level)
        elif number in (SET, FROZEN_SET):
            items = form(content, "list")
            self.weigh(128 * len(items) + 232 if len(items) > 4 else 232)
            self.values(items, "key", level)
        elif number in (COUNTER, ORDERED_MAP, DEFAULT_MAP):
            if number == DEFAULT_MAP:
                factory, content = record(content, 2)
                if factory != ("null", None) and not 0 <= integer(factory) < len(FACTORIES):
                    raise malformed("a factory that isn't known")
            pairs = form(content, "map")
            self.weigh(160 * len(pairs) + 400 if pairs else 200)
            self.pairs(pairs, "count" if number == COUNTER else place, level)
        elif number == DEQUE:
            longest, items_ = record(content, 2)
            items = form(items_, "list")
            if longest != ("null", None) and integer(longest) < len(items):
                raise malformed("a deque longer than it may be")
            self.weigh(9 * len(items) + 800)
            self.values(items, inside(place), level)
        elif number == OBJECT_ARRAY:
            self.piece(place)
            lengths, items_ = record(content, 2)
            count, extent = shape(lengths)
            items = form(items_, "list")
            if count != len(items):
                raise malformed("another number of objects")
            self.weigh(512 + 2 * (8 * extent + 72))
            self.values(items, inside(place), level)
        elif number in (REGISTERED, LIBRARY):
            name, inner = record(content, 2)
            limited(name, NAME_BYTES_MAX)
            self.weigh(512)
            within = inside("of key" if place == "key" else place)
            if number == LIBRARY and name[1] not in ("pandas.Timestamp:1", "pandas.Timedelta:1"):
                within = "library"
                self.piece(within)
            self.values([inner], within, level)
        elif number == EXCEPTION:
            name, text, inner = record(content, 3)
            limited(name, NAME_BYTES_MAX)
            self.weigh(512 + text_memory(limited(text, 16384)))
            self.values([inner], "any", level)
        else:
            self.leaf(number, content, place)

    def leaf(self, number: int, content: Item, place: str) -> None:
        if number in (BIG_POSITIVE, BIG_NEGATIVE):
            length = len(form(content, "bytes"))
            if length > (64 if place in ("key", "of key") else 1 << 20):
                raise Refused("limit", "an integer")
            self.weigh(32 + length + length // 8)
        elif number == PART:
            self.weigh(48 + len(self.part(content)))
        elif number == BYTE_ARRAY:
            self.weigh(80 + len(self.contents(content)))
        elif number == COMPLEX:
            for part in record(content, 2):
                form(part, "float")
            self.weigh(32)
        elif number in (RANGE, DATE, DURATION):
            for part in record(content, 3):
                integer(part)
            self.weigh(128)
        elif number == SLICE:
            for part in record(content, 3):
                if part != ("null", None):
                    integer(part)
            self.weigh(128)
        elif number == CONSTANT:
            if not 0 <= integer(content) <= 1:
                raise malformed("a constant that isn't known")
        elif number == SURROGATE_TEXT:
            self.weigh(80 + 4 * len(form(content, "bytes")))
        elif number in (TIME, DATE_TIME):
            *clock, zone = record(content, 6 if number == TIME else 9)
            for part in clock:
                integer(part)
            self.weigh(128)
            if zone != ("null", None):
                if zone[0] != "tag" or zone[1][0] != TIME_ZONE:
                    raise malformed("a time zone")
                self.zone(zone[1][1])
        elif number == TIME_ZONE:
            self.zone(content)
        elif number == DECIMAL:
            digits = form(content, "text")
            check_decimal(digits)
            self.weigh(128 + len(digits))
        elif number == FRACTION:
            for part in record(content, 2):
                self.whole(part, 64 if place in ("key", "of key") else 2048)
            self.weigh(512)
        elif number == UUID:
            if len(form(content, "bytes")) != 16:
                raise malformed("a UUID of another length")
            self.weigh(512)
        elif number == PATH:
            flavour, text = record(content, 2)
            if not 0 <= integer(flavour) <= 2:
                raise malformed("a flavour that isn't known")
            if text[0] == "tag" and text[1][0] == SURROGATE_TEXT:
                length = len(form(text[1][1], "bytes"))
            else:
                length = len(form(text, "text").encode())
            if length > 4096:
                raise Refused("limit", "a path")
            self.weigh(512 + 4 * length)
        elif number == ARRAY:
            self.piece(place)
            description, lengths, order, contents_ = record(content, 4)
            size = elements(description)
            count, extent = shape(lengths)
            if not 0 <= integer(order) <= 1:
                raise malformed("an order that isn't known")
            contents = self.contents(contents_)
            if len(contents) != count * size.bytes:
                raise malformed("another number of bytes")
            check_elements(size, contents)
            self.weigh(512 + extent * size.extent + 384 * size.fields)
        elif number == SCALAR:
            description, contents_ = record(content, 2)
            size = elements(description)
            contents = form(contents_, "bytes")
            if len(contents) != size.bytes:
                raise malformed("another number of bytes")
            if place == "key" and (description[0] == "list" or description[1][1] == "V"):
                raise Refused("key", "a record")
            check_elements(size, contents)
            self.weigh(640 + 4 * size.extent + 384 * size.fields)
        else:
            raise malformed("another tag")

    def zone(self, content: Item) -> None:
        seconds, microseconds, name = record(content, 3)
        integer(seconds)
        integer(microseconds)
        if name != ("null", None):
            limited(name, NAME_BYTES_MAX)
        self.weigh(256 + 4 * len(form(name, "text").encode()) if name != ("null", None) else 256)

    def whole(self, item: Item, maximum: int) -> None:
        if item[0] == "tag" and item[1][0] in (BIG_POSITIVE, BIG_NEGATIVE):
            length = len(form(item[1][1], "bytes"))
            if length > maximum:
                raise Refused("limit", "a fraction")
            self.weigh(32 + length + length // 8)
        else:
            form(item, "int")

    def contents(self, item: Item) -> bytes:
        if item[0] == "tag" and item[1][0] == PART:
            return self.part(item[1][1])
        found: bytes = form(item, "bytes")
        return found

    def part(self, length: Item) -> bytes:
        told = integer(length)
        if not self.parts or len(self.parts[0]) != told:
            raise malformed("a bulk part that isn't there")
        return self.parts.pop(0)


NUMBERS = (BIG_POSITIVE, BIG_NEGATIVE, COMPLEX, DECIMAL, FRACTION, SCALAR)
NEVER_KEYS = (
    *(SET, COUNTER, ORDERED_MAP, DEFAULT_MAP, DEQUE, OBJECT_ARRAY, LIBRARY, EXCEPTION),
    *(BYTE_ARRAY, SLICE, ARRAY),
)


def inside(place: str) -> str:
    return place if place == "of key" else "any"


def form(item: Item, kind: str) -> Any:
    if item[0] != kind:
        raise malformed(f"{item[0]} in place of {kind}")
    return item[1]


def record(item: Item, count: int) -> list[Item]:
    items: list[Item] = form(item, "list")
    if len(items) != count:
        raise malformed(f"{len(items)} parts in place of {count}")
    return items


def integer(item: Item) -> int:
    number: int = form(item, "int")
    if not INT_MIN <= number <= INT_MAX:
        raise malformed("an integer of more than 64 bits")
    return number


def limited(item: Item, most: int) -> str:
    text: str = form(item, "text")
    if len(text.encode()) > most:
        raise Refused("limit", "a text")
    return text


def text_memory(text: str) -> int:
    width = 1 if text.isascii() or max(text) <= "\xff" else 2 if max(text) <= "\uffff" else 4
    return 72 + width * len(text)


def shape(item: Item) -> tuple[int, int]:
    """Return the number of elements, and what it would be if no length were 0."""
    lengths = [integer(length) for length in form(item, "list")]
    if len(lengths) > 32:
        raise Refused("limit", "dimensions")
    count = extent = 1
    for length in lengths:
        if length < 0:
            raise malformed("a negative length")
        count *= length
        extent *= max(length, 1)
        if extent > 1 << 47:
            raise malformed("more elements than any machine holds")
    return count, extent


def elements(item: Item, nesting: int = 8, counted: list[int] | None = None) -> Size:
    """Return the size of what a description says."""
    counted = [0] if counted is None else counted
    if item[0] == "text":
        found = LEAF.fullmatch(item[1])
        digits = re.match(r"[<>|].([0-9]*)", item[1], re.DOTALL)
        multiple = found and found[1]
        if (
            not found
            or not digits
            or len(digits[1]) > 9
            or (multiple and not 0 < int(multiple) < 10**9)
        ):
            raise malformed("another description")
        if multiple and len(multiple) > 9:
            raise malformed("another multiple")
        code, size = item[1][1], int(digits[1])
        size *= 4 if code == "U" else 1
        check = {"b": "boolean", "U": "big" if item[1][0] == ">" else "little"}.get(code)
        return Size(size, size, 0, [(0, size, check)] if check else [])
    fields = form(item, "list")
    if nesting == 0:
        raise Refused("limit", "levels of records")
    if not fields:
        raise malformed("a record without fields")
    length = extent = 0
    checks: list[tuple[int, int, str]] = []
    for field in fields:
        counted[0] += 1
        if counted[0] > 1024:
            raise Refused("limit", "fields")
        parts = form(field, "list")
        if len(parts) not in (2, 3):
            raise malformed("a field of another number of parts")
        if len(form(parts[0], "text").encode()) > NAME_BYTES_MAX:
            raise malformed("too long a name")
        one = elements(parts[1], nesting - 1, counted)
        count, reach = shape(parts[2]) if len(parts) == 3 else (1, 1)
        one_extent = max(one.extent, 1) * reach if len(parts) == 3 else one.extent
        if one_extent > 1 << 31:
            raise malformed("records without end")
        is_whole = len(one.checks) == 1 and one.checks[0][1] == one.bytes
        if one.checks and not is_whole and count * len(one.checks) > 4096:
            raise malformed("too many checks that lie apart")
        for copy in range(count if one.checks else 0):
            checks += [(length + copy * one.bytes + at, size, how) for at, size, how in one.checks]
        length += count * one.bytes
        extent += one_extent
        if extent > 1 << 31:
            raise malformed("records without end")
    return Size(length, max(extent, 1) if nesting == 8 else extent, counted[0], checks)


def check_elements(size: Size, contents: bytes) -> None:
    if not size.checks:
        return
    for start in range(0, len(contents), size.bytes):
        for at, length, how in size.checks:
            piece = contents[start + at : start + at + length]
            if how == "boolean":
                if not set(piece) <= {0, 1}:
                    raise malformed("a boolean that is neither 0 nor 1")
            else:
                points = struct.unpack(f"{'>' if how == 'big' else '<'}{length // 4}I", piece)
                if max(points) > 0x10FFFF:
                    raise malformed("a character beyond Unicode")


def check_decimal(text: str) -> None:
    if len(text.encode()) > 4300 + 32:
        raise Refused("limit", "digits")
    found = NUMBER.fullmatch(text)
    if not found or not text.isascii():
        raise malformed("text that isn't a decimal number")
    if found[1] is not None:
        digits = len(found[1]) + len(found[2] or "")
        if not digits:
            raise malformed("a decimal number without digits")
        if digits > 4300 or int(found[3] or 0) > 999_999:
            raise Refused("limit", "digits or exponent")


def check(item: Item, length: int, parts: Sequence[bytes]) -> None:
    """Refuse a value that breaks a rule; `length` is that of its bytes."""
    checker = _Checker(length + sum(map(len, parts)), parts)
    checker.value(item, "any", 0)
    if checker.parts:
        raise malformed("a bulk part without a place")


def check_exception(body: bytes) -> tuple[str, str, list[str], Item]:
    """Return what the record of an exception holds, or refuse it."""
    kind, text, lines_, data = record(parse(body), 4)
    limited(kind, NAME_BYTES_MAX)
    limited(text, 16384)
    lines = [form(line, "text") for line in form(lines_, "list")]
    if len(lines) > 1024 or sum(len(line.encode()) for line in lines) > 65536:
        raise Refused("limit", "a traceback")
    checker = _Checker(len(body), [])
    checker.value(data, "any", 0)
    return kind[1], text[1], lines, data


# --- objects --------------------------------------------------------------------------------------


class Named(NamedTuple):
    """What a registered class, a library or an exception would be made of."""

    tag: int
    names: tuple[str, ...]
    data: Any


def read(body: bytes, parts: Sequence[bytes] = ()) -> Any:
    """Return the value that a record holds."""
    item = parse(body)
    check(item, len(body), parts)
    try:
        return value(item, list(parts))
    except Refused:
        raise
    except Exception as error:
        raise Refused("value", str(error)) from error


def value(item: Item, parts: list[bytes]) -> Any:
    """Return the object of an item that was checked."""
    kind, content = item
    if kind == "float":
        return struct.unpack(">d", content.to_bytes(8, "big"))[0]
    if kind == "list":
        return [value(part, parts) for part in content]
    if kind == "map":
        return pairs_of(content, parts)
    if kind == "tag":
        return _OBJECTS[content[0]](content[1], parts)
    return content


def pairs_of(content: Sequence[tuple[Item, Item]], parts: list[bytes]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for key, part in content:
        name = value(key, parts)
        made[name] = value(part, parts)
    if len(made) != len(content):
        raise Refused("value", "a key twice")
    return made


def members_of(item: Item, parts: list[bytes]) -> set[Any]:
    made = {value(part, parts) for part in item[1]}
    if len(made) != len(item[1]):
        raise Refused("value", "a member twice")
    return made


def bytes_of(item: Item, parts: list[bytes]) -> bytes:
    return parts.pop(0) if item[0] == "tag" else item[1]


def plain(item: Item) -> Any:
    """Return the object of an item without bulk parts."""
    return value(item, [])


def zone_of(item: Item, _parts: Any = None) -> datetime.timezone:
    seconds, microseconds, name = plain(item)
    offset = datetime.timedelta(seconds=seconds, microseconds=microseconds)
    return datetime.timezone(offset) if name is None else datetime.timezone(offset, name)


def moment_of(kind: Any) -> Callable[[Item, Any], Any]:
    def make(item: Item, _parts: Any) -> Any:
        *clock, fold, zone = plain(item)
        return kind(*clock, zone, fold=fold)

    return make


def dtype_of(item: Item) -> Any:
    if item[0] == "text":
        return numpy.dtype(item[1])
    names, formats, offsets, position = [], [], [], 0
    for _, parts in item[1]:
        element = dtype_of(parts[1])
        if len(parts) == 3:
            element = numpy.dtype((element, tuple(plain(parts[2]))))
        if parts[0][1]:
            names.append(parts[0][1])
            formats.append(element)
            offsets.append(position)
        position += element.itemsize
    spread: Any = {"names": names, "formats": formats, "offsets": offsets, "itemsize": position}
    return numpy.dtype(spread)


def array_of(item: Item, parts: list[bytes]) -> Any:
    description, lengths, order, contents = item[1]
    made: Any = numpy.ndarray(
        tuple(plain(lengths)), dtype_of(description), order="F" if order[1] else "C"
    )
    raw = bytes_of(contents, parts)
    if raw:
        flat = numpy.frombuffer(raw, dtype=made.dtype)
        made[...] = flat.reshape(made.shape, order="F" if order[1] else "C")
    return made


def objects_of(item: Item, parts: list[bytes]) -> Any:
    lengths, items = item[1]
    count, _ = shape(lengths)
    made = numpy.empty(count, dtype=object)
    for place, part in enumerate(items[1]):
        made[place] = value(part, parts)
    return made.reshape(plain(lengths))


def named(number: int) -> Callable[[Item, list[bytes]], Any]:
    def make(item: Item, parts: list[bytes]) -> Any:
        *names, data = item[1]
        return Named(number, tuple(name[1] for name in names), value(data, parts))

    return make


_OBJECTS: dict[int, Callable[[Item, list[bytes]], Any]] = {
    BIG_POSITIVE: lambda item, _: int.from_bytes(item[1], "big"),
    BIG_NEGATIVE: lambda item, _: -1 - int.from_bytes(item[1], "big"),
    UUID: lambda item, _: uuid.UUID(bytes=item[1]),
    SET: members_of,
    TUPLE: lambda item, parts: tuple(value(part, parts) for part in item[1]),
    FROZEN_SET: lambda item, parts: frozenset(members_of(item, parts)),
    BYTE_ARRAY: lambda item, parts: bytearray(bytes_of(item, parts)),
    COMPLEX: lambda item, _: complex(*plain(item)),
    RANGE: lambda item, _: range(*plain(item)),
    SLICE: lambda item, _: slice(*plain(item)),
    CONSTANT: lambda item, _: (..., NotImplemented)[item[1]],
    SURROGATE_TEXT: lambda item, _: item[1].decode("utf-8", "surrogatepass"),
    PART: lambda _, parts: parts.pop(0),
    DATE: lambda item, _: datetime.date(*plain(item)),
    TIME: moment_of(datetime.time),
    DATE_TIME: moment_of(datetime.datetime),
    DURATION: lambda item, _: datetime.timedelta(*plain(item)),
    TIME_ZONE: zone_of,
    DECIMAL: lambda item, _: decimal.Decimal(item[1]),
    FRACTION: lambda item, _: fractions.Fraction(*plain(item)),
    PATH: lambda item, _: (pathlib.PurePosixPath, pathlib.PureWindowsPath, pathlib.Path)[
        item[1][0][1]
    ](plain(item[1][1])),
    COUNTER: lambda item, parts: collections.Counter(pairs_of(item[1], parts)),
    ORDERED_MAP: lambda item, parts: collections.OrderedDict(pairs_of(item[1], parts)),
    DEFAULT_MAP: lambda item, parts: collections.defaultdict(
        None if item[1][0][1] is None else FACTORIES[item[1][0][1]], pairs_of(item[1][1][1], parts)
    ),
    DEQUE: lambda item, parts: collections.deque(value(item[1][1], parts), item[1][0][1]),
    ARRAY: array_of,
    SCALAR: lambda item, _: numpy.frombuffer(item[1][1][1], dtype=dtype_of(item[1][0]))[0],
    OBJECT_ARRAY: objects_of,
    REGISTERED: named(REGISTERED),
    LIBRARY: named(LIBRARY),
    EXCEPTION: named(EXCEPTION),
}
