"""A second implementation of sections 7 and 8 of `docs/protocol.md`: frames of work, records, and plain data as far as tests write it."""

from __future__ import annotations

import ipaddress
import pickle
import struct
from dataclasses import dataclass
from typing import Any

EXECUTE = ">QIHHBQQIB"
# How many functions each step needs, and how long what belongs to an ending is.
STEP_FUNCTIONS = (1, 0, 1, 0, 1, 1, 1, 1, 2, 4, 4, 1, 1, 1)
ENDING_BYTES = (0, 2, 6, 0)
TUPLE_TAG = 0xE501


@dataclass
class Frame:
    """A frame of work: what Execute says."""

    number: int
    stream: int
    # The first segment to run and the last one.
    start: int
    end: int
    lease: int
    grant: int
    first: int
    items: list[Any]
    # Whether each came as data: then its answer is data too.
    is_data: list[bool]

    @property
    def count(self) -> int:
        """Number of items."""
        return len(self.items)


def put_number(value: int) -> bytes:
    """Write a number in groups of seven bits, the lowest first."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def put_heard(workers: list[tuple[str, list[tuple[str, int]]]]) -> bytes:
    """Write the head of Heard: names, and for each its addresses, which are of IPv4 here."""
    head = b""
    for name, addresses in workers:
        head += struct.pack(">H", len(name)) + name.encode() + bytes([len(addresses)])
        for address, port in addresses:
            mapped = ipaddress.IPv6Address(f"::ffff:{address}")
            head += mapped.packed + struct.pack(">H", port)
    return head


def take_number(data: bytes, position: int) -> tuple[int, int]:
    """Read such a number: it, and where what follows begins."""
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, position


def encode_record(
    body: bytes, *, is_data: bool = True, is_exception: bool = False, extra: bytes | None = None
) -> bytes:
    """Write a record; `extra` describes its bulk parts."""
    flags = is_data << 2 | is_exception << 1 | (extra is not None)
    return put_number(len(body) << 3 | flags) + (extra or b"") + body


def value_record(value: Any, *, is_data: bool = True) -> bytes:
    """Write a value that is an outcome."""
    return encode_record(encode_data(value) if is_data else pickle.dumps(value, 5), is_data=is_data)


def exception_record(error: Exception, *, is_data: bool = True) -> bytes:
    """Write an exception that is an outcome."""
    if is_data:
        body = encode_data([type(error).__name__, str(error), ["a line\n"], None])
    else:
        body = pickle.dumps((pickle.dumps(error, 5), repr(error), "", ""), 5)
    return encode_record(body, is_data=is_data, is_exception=True)


def data_head(kind: int, argument: int) -> bytes:
    """Write the head of an item of CBOR in its shortest form."""
    if argument < 24:
        return bytes([kind << 5 | argument])
    for width, code, letter in ((1, 24, "B"), (2, 25, "H"), (4, 26, "I")):
        if argument < 1 << 8 * width:
            return bytes([kind << 5 | code]) + struct.pack(f">{letter}", argument)
    return bytes([kind << 5 | 27]) + struct.pack(">Q", argument)


def data_tag(tag: int, content: bytes) -> bytes:
    """Write a tagged item."""
    return data_head(6, tag) + content


def encode_data(value: Any) -> bytes:
    """Write plain data: what a test answers, and no more."""
    match value:
        case None:
            return b"\xf6"
        case bool():
            return b"\xf5" if value else b"\xf4"
        case int() if value >= 0:
            return data_head(0, value)
        case int():
            return data_head(1, -1 - value)
        case float():
            return b"\xfb" + struct.pack(">d", value)
        case bytes():
            return data_head(2, len(value)) + value
        case str():
            return data_head(3, len(value.encode())) + value.encode()
        case list():
            return data_head(4, len(value)) + b"".join(map(encode_data, value))
        case tuple():
            return data_tag(TUPLE_TAG, encode_data(list(value)))
        case dict():
            pairs = (encode_data(key) + encode_data(part) for key, part in value.items())
            return data_head(5, len(value)) + b"".join(pairs)
    raise TypeError(f"got {type(value).__name__}, expected a simple value")


def read_execute(head: bytes, bulk: list[bytes]) -> Frame:
    """Read a frame and its items."""
    fields = struct.unpack_from(EXECUTE, head)
    number, stream, start, end, lease, grant, first, count, form = fields
    # Tests have none of the patterns whose items are lists or find a state.
    assert form == 0
    read = read_items(head[struct.calcsize(EXECUTE) :], bulk)
    assert len(read) == count
    items, is_data = [value for value, _ in read], [is_data for _, is_data in read]
    return Frame(number, stream, start, end, lease, grant, first, items, is_data)


def read_items(records: bytes, bulk: list[bytes]) -> list[tuple[Any, bool]]:
    """Read the items of a frame, and whether each is data."""
    items, position, parts = [], 0, iter(bulk)
    while position < len(records):
        head, position = take_number(records, position)
        # An exception is an outcome: no worker gets it.
        assert head & 2 == 0
        splices: list[int] = []
        buffers = 0
        if head & 1:
            count, position = take_number(records, position)
            for _ in range(count):
                offset, position = take_number(records, position)
                splices.append(offset)
            buffers, position = take_number(records, position)
        body = records[position : position + (head >> 3)]
        position += head >> 3
        if head & 4:
            assert not splices
            assert not buffers
            value, end = decode_data(body, 0)
            assert end == len(body)
            items.append((value, True))
            continue
        filled, start = b"", 0
        for offset in splices:
            filled += body[start:offset] + next(parts)
            start = offset
        outside = [bytearray(next(parts)) for _ in range(buffers)]
        items.append((pickle.loads(filled + body[start:], buffers=outside), False))
    return items


def decode_data(data: bytes, position: int) -> tuple[Any, int]:
    """Read what `encode_data` writes: it, and where what follows begins."""
    simple = {0xF6: None, 0xF5: True, 0xF4: False}
    first = data[position]
    if first in simple:
        return simple[first], position + 1
    if first == 0xFB:
        (value,) = struct.unpack_from(">d", data, position + 1)
        return value, position + 9
    kind, argument, position = first >> 5, first & 31, position + 1
    if argument >= 24:
        width = 1 << (argument - 24)
        argument = int.from_bytes(data[position : position + width], "big")
        position += width
    match kind:
        case 0 | 1:
            return (argument if kind == 0 else -1 - argument), position
        case 2 | 3:
            content = data[position : position + argument]
            return (content if kind == 2 else content.decode()), position + argument
        case 4 | 5:
            values = []
            for _ in range(argument * (kind - 3)):
                value, position = decode_data(data, position)
                values.append(value)
            if kind == 4:
                return values, position
            return dict(zip(values[::2], values[1::2], strict=True)), position
    assert argument == TUPLE_TAG
    value, position = decode_data(data, position)
    return tuple(value), position


def read_program(head: bytes) -> list[list[bytes]]:
    """Read the functions of each segment of a stream's program, behind what is expected of its items."""
    _stream, _first_stream, _call, _timeout, retries = struct.unpack_from(">IIBQB", head)
    return read_segments(head[18 + 32 * retries :])


def read_segments(data: bytes) -> list[list[bytes]]:
    """Read the functions of each segment of a program, by digest."""
    segments, position = [], 0
    while position < len(data):
        _flags, ending = data[position : position + 2]
        position += 2 + ENDING_BYTES[ending]
        (count,) = struct.unpack_from(">I", data, position)
        position += 4
        steps = data[position : position + count]
        position += count
        functions = sum(STEP_FUNCTIONS[step] for step in steps)
        segments.append([data[position + 32 * at :][:32] for at in range(functions)])
        position += 32 * functions
    return segments
