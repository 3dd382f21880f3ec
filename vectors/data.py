"""Write `vectors/data.json`: values of docs/protocol.md section 8, good and bad, by the second implementation alone.

Run from the repository: python -m vectors.data

It also writes the fuzzers' corpus of plain data (`fuzz/corpus/data`, `fuzz/corpus/data_exception`): the short ones of these values.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import data_reference as reference
from tests.data_reference import Item, item_of, tag

FILE = Path(__file__).with_name("data.json")
Case = tuple[str, Any, list[bytes]]
ZONE = tag(reference.TIME_ZONE, [3600, 0, "CET"])


def nested(levels: int, number: int | None = None) -> Any:
    """Return a number in lists in lists, or in what a tag makes of them."""
    value: Any = 5
    for _ in range(levels):
        value = [value] if number is None else tag(number, [value])
    return value


def array(elements: Any, shape: Any, contents: Any, order: int = 0) -> Item:
    """Return an array of elements."""
    return tag(reference.ARRAY, [elements, shape, order, contents])


def part(length: int) -> Item:
    """Return the place of a bulk part."""
    return tag(reference.PART, length)


RECORD = [["a", "<i2"], ["", "|V2"], ["b", "|b1", [2]], ["c", [["d", "<U1"], ["e", ">f4"]]]]


def good() -> Iterator[Case]:
    """Yield names, items and bulk parts of values that each reader takes."""
    r = reference
    for number in (
        0,
        23,
        24,
        255,
        256,
        65535,
        65536,
        2**32 - 1,
        2**32,
        2**63 - 1,
        2**63,
        2**64 - 1,
    ):
        yield f"integer {number}", number, []
        yield f"integer {-1 - number}", -1 - number, []
    for number in (2**64, 2**200):
        encoded = number.to_bytes((number.bit_length() + 7) // 8, "big")
        yield f"integer {number}", tag(r.BIG_POSITIVE, encoded), []
        yield f"integer {-1 - number}", tag(r.BIG_NEGATIVE, encoded), []
    yield "large integer", tag(r.BIG_POSITIVE, b"\x01" * 9000), []
    for name, bits in {
        "zero": 0,
        "minus zero": 1 << 63,
        "infinity": 0x7FF << 52,
        "quiet NaN": 0x7FF8 << 48,
        "NaN with a payload": 0xFFF8_0000_0000_BEEF,
        "least": 1,
    }.items():
        yield f"float, {name}", ("float", bits), []
    for text in ("", "a", "größe", "日本", "a😀", "\0\x1b[31m\u202e\n", "x" * 300):
        yield f"text {ascii(text)[:20]}", text, []
    yield "text with surrogates", tag(r.SURROGATE_TEXT, b"a\xed\xb2\x80b"), []
    yield "null", None, []
    yield "truth", [True, False], []
    yield "bytes", [b"", b"ab"], []
    yield "bytes that change", tag(r.BYTE_ARRAY, b"ab"), []
    yield "parts", [part(3), {"a": tag(r.BYTE_ARRAY, part(1)), "b": part(0)}], [b"abc", b"d", b""]
    yield "complex", tag(r.COMPLEX, [1.5, -0.0]), []
    yield "empty containers", [[], {}, *(tag(n, []) for n in (r.TUPLE, r.SET, r.FROZEN_SET))], []
    yield "tuple", tag(r.TUPLE, [1, "a", tag(r.TUPLE, [2])]), []
    yield "set", tag(r.SET, [tag(r.FROZEN_SET, [7])]), []
    yield "map with keys of all kinds", ("map", [(item_of(key), item_of(1)) for key in KEYS]), []
    yield "range", tag(r.RANGE, [2**63 - 1, -(2**63), -3]), []
    yield "slice", tag(r.SLICE, [None, 5, -1]), []
    yield "constants", [tag(r.CONSTANT, 0), tag(r.CONSTANT, 1)], []
    yield "date", tag(r.DATE, [9999, 12, 31]), []
    yield "time", tag(r.TIME, [23, 59, 59, 999999, 1, None]), []
    yield "date and time", tag(r.DATE_TIME, [1, 1, 1, 0, 0, 0, 0, 0, ZONE]), []
    yield "UTC", tag(r.DATE_TIME, [2026, 1, 1, 0, 0, 0, 0, 0, tag(r.TIME_ZONE, [0, 0, None])]), []
    yield "duration", tag(r.DURATION, [-999999999, 86399, 999999]), []
    yield "offset", tag(r.TIME_ZONE, [-3600, 0, None]), []
    for text in ("0", "-1.25", "1E+999999", "NaN", "-sNaN12", "Infinity", "9" * 4300):
        yield f"decimal {text[:10]}", tag(r.DECIMAL, text), []
    yield "fraction", tag(r.FRACTION, [-7, tag(r.BIG_POSITIVE, b"\x01" + bytes(8))]), []
    yield "uuid", tag(r.UUID, bytes(range(16))), []
    yield "paths", [tag(r.PATH, [0, "/a/b"]), tag(r.PATH, [1, "c:\\x"]), tag(r.PATH, [2, "a"])], []
    yield "path with bytes", tag(r.PATH, [0, tag(r.SURROGATE_TEXT, b"a\xed\xb3\xbf")]), []
    yield "counter", tag(r.COUNTER, {"a": 2, "b": -1}), []
    yield "ordered map", tag(r.ORDERED_MAP, {"b": 1, "a": 2}), []
    for factory in (None, *range(11)):
        yield f"default map {factory}", tag(r.DEFAULT_MAP, [factory, {"a": [1]}]), []
    yield "queue", tag(r.DEQUE, [3, [1, 2]]), []
    yield "queue without an end", tag(r.DEQUE, [None, []]), []
    for code, contents in ARRAYS.items():
        yield f"array {code}", array(code, [2], contents), []
        yield f"one {code}", tag(r.SCALAR, [code, contents[: len(contents) // 2]]), []
    whole = struct.pack("<6i", *range(6))
    yield "array, last index first", array("<i4", [2, 3], whole, 1), []
    yield "array beside the record", [array("<i4", [3, 2], part(24))], [whole]
    yield "array of no dimensions", array("<i4", [], bytes(4)), []
    yield "array without elements", array("<f8", [0, 7], b""), []
    yield "records", array(RECORD, [2], bytes([1, 2, 0, 0, 1, 0, 65, 0, 0, 0, 0, 0, 0, 0]) * 2), []
    yield "one record", tag(r.SCALAR, [RECORD, bytes(14)]), []
    yield "records without bytes", array([["a", "<f8", [0]]], [3], b""), []
    yield (
        "array of values",
        tag(r.OBJECT_ARRAY, [[2, 1], [{"a": 1}, array("<i4", [1], bytes(4))]]),
        [],
    )
    yield "array of no values", tag(r.OBJECT_ARRAY, [[0, 2], []]), []
    for wrapper in (None, r.TUPLE):
        yield f"nested to the limit, {wrapper}", nested(256, wrapper), []
    yield "an empty one within", nested_empty(256), []
    yield "many small lists", [[]] * 5000, []


def nested_empty(levels: int) -> Any:
    """Return an empty list in lists."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


KEYS: list[Any] = [
    *(None, 0, 2**64 - 1, 1.5, "a", b"a", tag(2, b"\xff" * 64), tag(reference.UUID, bytes(16))),
    tag(reference.TUPLE, [1, tag(reference.FROZEN_SET, [2])]),
    tag(reference.DATE, [2026, 1, 1]),
    tag(reference.DECIMAL, "0.0015"),
    tag(reference.FRACTION, [1, 3]),
    tag(reference.SCALAR, ["<f4", bytes([0, 0, 160, 64])]),
    tag(reference.CONSTANT, 0),
    tag(reference.RANGE, [0, 5, 1]),
]

ARRAYS = {
    "|b1": bytes([0, 1]),
    "|i1": bytes([1, 255]),
    "<u2": bytes(range(4)),
    ">i4": bytes(range(8)),
    "<u8": bytes(range(16)),
    "<f2": bytes(range(4)),
    "<f4": bytes(range(8)),
    ">f8": bytes(range(16)),
    "<c8": bytes(range(16)),
    "<c16": bytes(range(32)),
    "<M8[ns]": bytes(16),
    "<M8[D]": bytes(16),
    "<m8[25s]": bytes(16),
    "|S3": b"abcd\0\0",
    "<U2": "abcd".encode("utf-32-le"),
    ">U1": "é😀".encode("utf-32-be"),
    "|V3": bytes(range(6)),
}


def bad() -> Iterator[tuple[str, bytes, list[bytes], str]]:
    """Yield names, bytes, bulk parts and the kind of rule that is broken."""
    r = reference
    for name, body in {
        "nothing": b"",
        "more behind": b"\xf6\xf6",
        "list that isn't told": b"\x9f\xff",
        "map that isn't told": b"\xbf\xff",
        "bytes that aren't told": b"\x5f\xff",
        "text that isn't told": b"\x7f\xff",
        "short float": b"\xf9\0\0",
        "float of 32 bits": b"\xfa\0\0\0\0",
        "undefined": b"\xf7",
        "simple value": b"\xe0",
        "truth in two bytes": b"\xf8\x15",
        "break": b"\xff",
        "reserved head": b"\x1c",
        "text that isn't UTF-8": b"\x61\xff",
        "text with a surrogate": b"\x63\xed\xa0\x80",
        "cut bytes": b"\x43ab",
        "huge list": b"\x9b" + b"\x7f" * 8 + b"\xf6",
        "huge bytes": b"\x5b" + b"\xff" * 8,
        "map without its last value": b"\xa1\x01",
        "tag without content": b"\xd9\xe5\x01",
        "a pickle": b"\x80\x05K\x01.",
    }.items():
        yield name, body, [], "malformed"
    for name, value in WRONG.items():
        yield name, r.write(item_of(value)), [], "malformed"
    for name, value in LIMITS.items():
        yield name, r.write(item_of(value)), [], "limit"
    for name, value in WEIGHTS.items():
        yield name, r.write(item_of(value)), [], "memory"
    for name, value in NO_KEYS.items():
        for where, holder in (
            ("map", ("map", [(item_of(value), item_of(1))])),
            ("set", tag(r.SET, [value])),
            ("tuple", tag(r.FROZEN_SET, [tag(r.TUPLE, [value])])),
        ):
            yield f"{name} as a key in a {where}", r.write(holder), [], "key"
    two = r.write(item_of([part(3), part(1)]))
    yield "parts in another order", two, [b"d", b"abc"], "malformed"
    yield "too few parts", two, [b"abc"], "malformed"
    yield "too many parts", r.write(part(3)), [b"abc", b"d"], "malformed"
    yield "a part for a scalar", r.write(tag(r.SCALAR, ["|S3", part(3)])), [b"abc"], "malformed"
    for name, value in IMPOSSIBLE.items():
        yield name, r.write(item_of(value)), [], "value"


WRONG: dict[str, Any] = {
    "unknown tag": tag(0xE500, None),
    "tag behind the last": tag(0xE51C, None),
    "date as text (tag 0)": tag(0, "2026-01-01T00:00:00Z"),
    "shared value (tag 28)": tag(28, []),
    "tuple of a map": tag(reference.TUPLE, {}),
    "set of a number": tag(reference.SET, 5),
    "big integer of text": tag(2, "1"),
    "UUID of 15 bytes": tag(37, bytes(15)),
    "complex of integers": tag(reference.COMPLEX, [1, 2]),
    "complex of one": tag(reference.COMPLEX, [1.0]),
    "range of two": tag(reference.RANGE, [1, 2]),
    "range beyond 64 bits": tag(reference.RANGE, [0, 2**63, 1]),
    "slice of text": tag(reference.SLICE, ["a", None, None]),
    "third constant": tag(reference.CONSTANT, 2),
    "negative constant": tag(reference.CONSTANT, -1),
    "surrogates as text": tag(reference.SURROGATE_TEXT, "a"),
    "date of a float": tag(reference.DATE, [2026, 1, 1.0]),
    "time with a bare offset": tag(reference.TIME, [0, 0, 0, 0, 0, [0, 0, None]]),
    "date and time of eight": tag(reference.DATE_TIME, [1] * 8),
    "offset with bytes": tag(reference.TIME_ZONE, [0, 0, b"x"]),
    **{
        f"decimal {text!a}": tag(reference.DECIMAL, text)
        for text in (
            "",
            "-",
            "1E",
            "nan",
            "Inf",
            "1_0",
            " 1",
            "1.2.3",
            "1e5",
            "\u0661",
            ".",
            "NaN1E5",
        )
    },
    "fraction of a float": tag(reference.FRACTION, [1.0, 2]),
    "path of another flavour": tag(reference.PATH, [3, "a"]),
    "path of bytes": tag(reference.PATH, [0, b"a"]),
    "counter of a list": tag(reference.COUNTER, []),
    "counter of texts": tag(reference.COUNTER, {"a": "b"}),
    "counter of counters": tag(reference.COUNTER, {"a": tag(reference.COUNTER, {"a": 1})}),
    "unknown factory": tag(reference.DEFAULT_MAP, [11, {}]),
    "factory by name": tag(reference.DEFAULT_MAP, ["list", {}]),
    "queue that is too long": tag(reference.DEQUE, [1, [1, 2]]),
    "queue of negative length": tag(reference.DEQUE, [-1, []]),
    **{
        f"elements {code!a}": array(code, [0], b"")
        for code in (
            "|O8",
            "O",
            "<f16",
            "f8",
            "<i3",
            "<M8[x]",
            "<M8[0s]",
            "|S0",
            "<i8[s]",
            "",
            "<f8,<f8",
        )
    },
    "elements as a map": array({}, [0], b""),
    "records without fields": array([], [0], b""),
    "field of one": array([["a"]], [0], b""),
    "objects in records": array([["a", "|O8"]], [0], b""),
    "negative length": array("<f8", [-1], b""),
    "shape as text": array("<f8", "3", b""),
    "endless shape": array("<f8", [0, 2**40, 2**40], b""),
    "another order": array("<f8", [0], b"", 2),
    "too few bytes": array("<f8", [2], bytes(15)),
    "too many bytes": array("<f8", [2], bytes(17)),
    "truth that is 2": array("|b1", [2], bytes([0, 2])),
    "truth that is 2, in a record": array(RECORD, [1], bytes([0, 0, 9, 9, 0, 2, *bytes(8)])),
    "character beyond Unicode": array("<U1", [1], b"\0\0\x11\0"),
    "scalar of another size": tag(reference.SCALAR, ["<f8", bytes(4)]),
    "values of another number": tag(reference.OBJECT_ARRAY, [[3], [1, 2]]),
    "registered without data": tag(reference.REGISTERED, ["a:b"]),
    "registered by bytes": tag(reference.REGISTERED, [b"a:b", None]),
    "exception of two": tag(reference.EXCEPTION, ["ValueError", "a"]),
}

LIMITS: dict[str, Any] = {
    "nesting": nested(257),
    "nesting of tuples": nested(257, reference.TUPLE),
    "long integer": tag(2, b"\x01" * ((1 << 20) + 1)),
    "long integer as a key": ("map", [(tag(2, b"\x01" * 65), item_of(1))]),
    "long integer in a key": tag(reference.SET, [tag(reference.TUPLE, [tag(3, b"\x01" * 65)])]),
    "long integer in a registered key": tag(
        reference.SET, [tag(reference.REGISTERED, ["a:b", [tag(2, b"\x01" * 65)]])]
    ),
    "digits": tag(reference.DECIMAL, "9" * 4301),
    "exponent": tag(reference.DECIMAL, "1E-1000000"),
    "fraction": tag(reference.FRACTION, [1, tag(2, b"\x01" * 2049)]),
    "path": tag(reference.PATH, [0, "x" * 4097]),
    "name of a class": tag(reference.REGISTERED, ["x" * 257, None]),
    "name of an offset": tag(reference.TIME_ZONE, [0, 0, "x" * 257]),
    "dimensions": array("<f8", [0] * 33, b""),
    "fields": array([["a", "|u1"]] * 1025, [0], b""),
    "levels of records": array(
        [["a", [["a", [["a", [["a", [["a", [["a", [["a", [["a", [["a", "|u1"]]]]]]]]]]]]]]]]]],
        [0],
        b"",
    ),
    "text of an exception": tag(reference.EXCEPTION, ["ValueError", "x" * 16385, None]),
    "pieces of libraries": [tag(reference.LIBRARY, ["pandas.Index:1", []])] * 5500,
}

WEIGHTS: dict[str, Any] = {
    "many long empty arrays": [array("<f8", [0, 2000], b"")] * 100,
    "long empty array": array("<f8", [0, 2**30], b""),
    "long empty values": tag(reference.OBJECT_ARRAY, [[0, 2**30], []]),
    "records without bytes, many": array([["a", "<f8", [0]]], [2**20], b""),
    "wide text of nothing": array("<U99999999", [0], b""),
}

NO_KEYS: dict[str, Any] = {
    "list": [],
    "dict": {},
    "set": tag(reference.SET, []),
    "bytes that change": tag(reference.BYTE_ARRAY, b""),
    "slice": tag(reference.SLICE, [None, None, None]),
    "counter": tag(reference.COUNTER, {}),
    "queue": tag(reference.DEQUE, [None, []]),
    "array": array("<f8", [0], b""),
    "values": tag(reference.OBJECT_ARRAY, [[0], []]),
    "record": tag(reference.SCALAR, [[["a", "|u1"]], b"a"]),
    "scalar without a type": tag(reference.SCALAR, ["|V1", b"a"]),
    "library's object": tag(reference.LIBRARY, ["pandas.Index:1", None]),
    "exception": tag(reference.EXCEPTION, ["ValueError", "", None]),
}

IMPOSSIBLE: dict[str, Any] = {
    "key twice": ("map", [(item_of("a"), item_of(1))] * 2),
    "key twice, of two types": ("map", [(item_of(1), item_of(1)), (item_of(1.0), item_of(2))]),
    "member twice": tag(reference.SET, [True, 1]),
    "member twice, negative zero": tag(reference.FROZEN_SET, [0.0, -0.0]),
    "31st of February": tag(reference.DATE, [2026, 2, 31]),
    "year 0": tag(reference.DATE, [0, 1, 1]),
    "hour 24": tag(reference.TIME, [24, 0, 0, 0, 0, None]),
    "fold 2": tag(reference.TIME, [0, 0, 0, 0, 2, None]),
    "long duration": tag(reference.DURATION, [2**62, 0, 0]),
    "offset of a day": tag(reference.TIME_ZONE, [86400, 0, None]),
    "steps of 0": tag(reference.RANGE, [0, 1, 0]),
    "denominator 0": tag(reference.FRACTION, [1, 0]),
    "surrogates that are none": tag(reference.SURROGATE_TEXT, b"\xff"),
    "signalling NaN as a key": tag(reference.SET, [tag(reference.DECIMAL, "sNaN")]),
    "field twice": array([["a", "|u1"], ["a", "|u1"]], [1], b"ab"),
    "colliding integers": tag(
        reference.SET, [tag(2, ((2**61 - 1) * i).to_bytes(9, "big")) for i in range(9, 400)]
    ),
}

EXCEPTIONS = {
    "builtin": (["ValueError", "no", ["Traceback", "  a"], None], None),
    "registered": (["module:Class", "no", [], {"a": 1}], None),
    "escapes": (["KeyError", "\x1b[31m\u202e\n", ["\x1b]0;x\x07"], None], None),
    "not four": (["ValueError", "no", []], "malformed"),
    "bytes as text": (["ValueError", b"no", [], None], "malformed"),
    "lines of numbers": (["ValueError", "no", [1], None], "malformed"),
    "long name": (["x" * 257, "no", [], None], "limit"),
    "long text": (["ValueError", "x" * 16385, [], None], "limit"),
    "many lines": (["ValueError", "", ["x"] * 1025, None], "limit"),
    "long lines": (["ValueError", "", ["x" * 1000] * 66, None], "limit"),
    "bad data": (["ValueError", "", [], tag(0xE500, 1)], "malformed"),
}


def shown(item: Item) -> Any:
    """Return an item as JSON: lists of a kind and its content; numbers as text."""
    kind, content = item
    if kind in ("null", "bool", "text"):
        return [kind, content]
    if kind in ("int", "float"):
        return [kind, str(content) if kind == "int" else f"{content:016x}"]
    if kind == "bytes":
        return [kind, content.hex()]
    if kind == "list":
        return [kind, list(map(shown, content))]
    if kind == "map":
        return [kind, [[shown(key), shown(part)] for key, part in content]]
    return [kind, hex(content[0]), shown(content[1])]


def packed(body: bytes) -> dict[str, Any]:
    """Return bytes as hexadecimal digits; of long ones, what is repeated behind the first bytes, and how often."""
    for head in range(24) if len(body) > 1000 else ():
        for unit in range(1, 32):
            times = (len(body) - head) // unit
            if body[head:] == body[head : head + unit] * times:
                return {
                    "body": body[:head].hex(),
                    "again": body[head : head + unit].hex(),
                    "times": times,
                }
    return {"body": body.hex()}


def made() -> dict[str, Any]:
    """Return what the file holds."""
    cases = []
    for name, value, parts in good():
        item = item_of(value)
        body = reference.write(item)
        reference.read(body, parts)
        case = {"name": name, **packed(body), "parts": [part.hex() for part in parts]}
        # Deep and long ones say nothing that their bytes don't.
        cases.append({**case, "item": shown(item)} if len(body) < 200 else case)
    refused = []
    for name, body, parts, kind in bad():
        case = {"name": name, **packed(body), "parts": [part.hex() for part in parts]}
        refused.append({**case, "refused": kind})
    exceptions = []
    for name, (fields, kind_) in EXCEPTIONS.items():
        body = reference.write(item_of(fields))
        exceptions.append({"name": name, **packed(body), "refused": kind_})
    return {
        "provenance": "made by vectors/data.py with tests/data_reference.py, which is written from docs/protocol.md section 8 alone; "
        "checked by tests/test_data_vectors.py and crates/data/tests/vectors.rs against the Rust implementation",
        "good": cases,
        "bad": refused,
        "exceptions": exceptions,
    }


def text() -> str:
    """Return the file's text: one case a line."""
    found = made()
    lines = [f'{{"provenance": {json.dumps(found.pop("provenance"))}']
    for name, cases in found.items():
        lines.append(f'"{name}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]")
    return ",\n".join(lines) + "}\n"


def corpus() -> Iterator[tuple[str, bytes]]:
    """Yield the files of the fuzzers' corpus: values of each kind, as `fuzz/data_doors.rs` takes them apart."""
    short = [(reference.write(item_of(value)), parts) for _, value, parts in good()]
    known: set[bytes] = set()
    for place, (body, parts) in enumerate(short):
        # One of each kind: integers and decimals differ in little that a fuzzer wouldn't find.
        if len(body) > 400 or body[:3] in known:
            continue
        known.add(body[:3])
        beside = b"".join(len(part).to_bytes(2, "big") + part for part in parts)
        yield f"data/good_{place:03}", bytes([len(parts)]) + beside + body
    for name in ("truth that is 2, in a record", "field twice", "surrogates that are none"):
        body = reference.write(item_of({**WRONG, **IMPOSSIBLE}[name]))
        yield f"data/bad_{name.replace(' ', '_').replace(',', '')}", b"\0" + body
    for name, (fields, _) in EXCEPTIONS.items():
        body = reference.write(item_of(fields))
        if len(body) < 1000:
            yield f"data_exception/{name.replace(' ', '_')}", body


if __name__ == "__main__":
    FILE.write_text(text(), encoding="utf-8")
    for file, contents in corpus():
        path = FILE.parent.parent / "fuzz" / "corpus" / file
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(contents)
