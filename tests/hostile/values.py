"""What a worker answers instead of a value: programs, noise, and values that are hard to bear."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable
from typing import Any

from tests.hostile.behaviour import Act, Canary, HostileWorker, Must, failed, on_execute
from tests.task_reference import (
    Frame,
    data_head,
    data_tag,
    encode_data,
    encode_record,
    put_number,
)

REJECTED = "ResultRejectedError"
# Tags of plain data.
BIG, UUID, SET, TUPLE, RANGE, PART = 2, 37, 258, 0xE501, 0xE505, 0xE509
DATE, TIME_ZONE, DECIMAL, FRACTION, PATH, DEFAULT_MAP = (
    0xE50A,
    0xE50E,
    0xE50F,
    0xE510,
    0xE511,
    0xE514,
)
DEQUE, ARRAY, SCALAR, OBJECT_ARRAY = 0xE515, 0xE516, 0xE517, 0xE518
REGISTERED, LIBRARY, EXCEPTION = 0xE519, 0xE51A, 0xE51B
ESCAPES = "\x1b]0;owned\x07\x1b[2J"


def answer_all(
    worker: HostileWorker, frame: Frame, record: bytes, bulk: list[bytes] | None = None
) -> None:
    """Answer each item of a frame with this record; one over its grant waits for it, as it should."""
    for index in range(frame.first, frame.first + frame.count):
        if len(record) + sum(map(len, bulk or [])) <= frame.grant:
            worker.results(frame.number, index, 1, [record], bulk)
        else:
            worker.is_waiting_for_grant = True
            worker.held[frame.number, index] = record, bulk or []
            worker.announce(frame, index, len(record) + sum(map(len, bulk or [])))


def answering(
    name: str,
    does: str,
    body: bytes | Callable[[HostileWorker], bytes],
    must: Must,
    *,
    is_data: bool = True,
    is_exception: bool = False,
    extra: bytes | None = None,
    bulk: list[bytes] | None = None,
) -> None:
    """Register a behaviour that answers each item with this body."""

    def act(worker: HostileWorker, frame: Frame) -> None:
        made = body if isinstance(body, bytes) else body(worker)
        record = encode_record(made, is_data=is_data, is_exception=is_exception, extra=extra)
        answer_all(worker, frame, record, bulk)

    act.__name__ = name
    registered: Callable[[Act], Act] = on_execute(does, must)
    registered(act)


def canary(worker: HostileWorker) -> bytes:
    """Make a program that makes a directory."""
    return Canary(worker.scene.canary).pickle()


# --- programs --------------------------------------------------------------------------------------

answering("program", "answers a program", canary, failed(REJECTED, "pickle"), is_data=False)
answering(
    "harmless_pickle",
    "answers a pickle of a number where data is expected",
    pickle.dumps(5),
    failed(REJECTED, "pickle"),
    is_data=False,
)
answering("program_as_data", "answers a program and calls it data", canary, failed(REJECTED))
answering(
    "program_as_an_exception",
    "raises a program",
    lambda worker: pickle.dumps((canary(worker), "ValueError: x", "lines"), 5),
    failed(REJECTED, "pickle"),
    is_data=False,
    is_exception=True,
)
answering(
    "program_beside_a_record",
    "answers data with a program in a bulk part that nothing refers to",
    encode_data(5),
    failed(REJECTED),
    extra=put_number(0) + put_number(1),
    bulk=[b"cos\nmkdir\n(S'canary'\ntR."],
)
# --- bytes that are no data ------------------------------------------------------------------------

NO_DATA: dict[str, tuple[str, bytes]] = {
    "value_of_noise": ("answers noise", b"\xff\xfe\xfd"),
    "empty_value": ("answers nothing at all", b""),
    "two_values": ("answers two values", encode_data(1) + encode_data(2)),
    "list_of_a_lie": ("says a list of 2^40 values", data_head(4, 1 << 40)),
    "map_of_a_lie": ("says a dict of 2^60 pairs", data_head(5, 1 << 60)),
    "bytes_of_a_lie": ("says 2^63 bytes", data_head(2, 1 << 63) + b"x"),
    "text_of_a_lie": ("says 2^32 characters", data_head(3, 1 << 32) + b"x"),
    "text_of_noise": ("answers text that isn't UTF-8", b"\x63\xff\xfe\xfd"),
    "list_without_a_length": ("answers a list whose length isn't told", b"\x9f\x01\xff"),
    "undefined": ("answers `undefined` of CBOR", b"\xf7"),
    "simple_value": ("answers a simple value of CBOR", b"\xf8\x63"),
    "short_float": ("answers a float of two bytes", b"\xf9\x3c\x00"),
    "unknown_tag": ("answers a tag that there isn't", data_tag(0xE5FF, b"\x01")),
    "tag_of_tags": (
        "answers 100,000 tags, one within the other",
        b"\xd9\xe5\x01" * 100_000 + b"\x80",
    ),
    "shared_value": (
        "refers to a value that came before (tags 28 and 29)",
        b"\x82\xd8\x1c\x80\xd8\x1d\x00",
    ),
    "short_uuid": ("answers a UUID of three bytes", data_tag(UUID, encode_data(b"abc"))),
    "unknown_factory": (
        "answers a defaultdict with a factory that there isn't",
        data_tag(DEFAULT_MAP, b"\x82\x18\x63\xa0"),
    ),
    "deque_over_its_length": (
        "answers a deque that is longer than it may be",
        data_tag(DEQUE, b"\x82\x01\x83\x01\x02\x03"),
    ),
    "list_as_a_key": ("answers a dict with a list as key", b"\xa1\x80\x01"),
    "dict_in_a_set": ("answers a set of dicts", data_tag(SET, b"\x81\xa0")),
    "member_twice": ("answers a set with a member twice", data_tag(SET, b"\x82\x01\x01")),
    "key_twice": ("answers a dict with a key twice", b"\xa2\x01\x01\x01\x02"),
    "range_of_no_step": ("answers a range with step 0", data_tag(RANGE, b"\x83\x00\x0a\x00")),
    "date_of_no_day": ("answers the 31st of February", data_tag(DATE, encode_data([2026, 2, 31]))),
    "zone_of_no_offset": (
        "answers a time zone of 10^12 seconds",
        data_tag(TIME_ZONE, encode_data([10**12, 0, None])),
    ),
    "part_of_a_lie": ("says a bulk part that isn't there", data_tag(PART, encode_data(1 << 40))),
    "unregistered_class": (
        "answers an instance of a class that nobody registered",
        data_tag(REGISTERED, encode_data(["os:system", "touch canary"])),
    ),
    "unknown_library": (
        "answers an instance of a library's class that isn't known",
        data_tag(LIBRARY, encode_data(["subprocess:Popen", ["touch", "canary"]])),
    ),
}
for name, (does, body) in NO_DATA.items():
    answering(name, does, body, failed(REJECTED))

# --- arrays ----------------------------------------------------------------------------------------


def array(elements: Any, shape: list[int], order: int, contents: bytes) -> bytes:
    """Make an array that says anything of itself."""
    return data_tag(ARRAY, encode_data([elements, shape, order, contents]))


ARRAYS: dict[str, tuple[str, bytes]] = {
    "array_of_objects": ("answers an array of pointers", array("|O", [1], 0, bytes(8))),
    "array_beyond_its_bytes": (
        "answers an array beyond its bytes",
        array("<f8", [1000], 0, bytes(8)),
    ),
    "array_of_2_to_the_126": (
        "answers an array of 2^63 by 2^63 elements",
        array("<f8", [(1 << 63) - 1, (1 << 63) - 1], 0, bytes(8)),
    ),
    "array_of_no_bytes": (
        "answers an array of 2^40 elements of no byte",
        array("|V0", [1 << 40], 0, b""),
    ),
    "array_of_negative_shape": ("answers an array of -1 elements", array("<f8", [-1], 0, b"")),
    "array_of_many_dimensions": (
        "answers an array of 1,000 dimensions",
        array("<f8", [1] * 1000, 0, bytes(8)),
    ),
    "array_of_odd_booleans": (
        "answers an array of booleans that are 7",
        array("|b1", [3], 0, b"\7\7\7"),
    ),
    "array_of_bad_characters": (
        "answers an array of text beyond Unicode",
        array("<U1", [1], 0, b"\xff\xff\xff\xff"),
    ),
    "array_of_an_unknown_order": ("answers an array in order 9", array("<f8", [1], 9, bytes(8))),
    "array_with_an_interface": (
        "describes elements by the interface of an array",
        array({"data": [1 << 40, False], "shape": [1]}, [1], 0, bytes(8)),
    ),
    "array_of_an_overlapping_record": (
        "answers an array of records that share a name",
        array([["a", "<f8"], ["a", "<f8"]], [1], 0, bytes(16)),
    ),
    "array_of_more_objects": (
        "answers an array of more objects than its shape says",
        data_tag(OBJECT_ARRAY, encode_data([[1], [1, 2, 3]])),
    ),
    "scalar_of_objects": (
        "answers a scalar that is a pointer",
        data_tag(SCALAR, encode_data(["|O", bytes(8)])),
    ),
}
for name, (does, body) in ARRAYS.items():
    answering(name, does, body, failed(REJECTED))

# --- values that cost much -------------------------------------------------------------------------

# Their hashes are all the same: multiples of the modulus of Python's hashes of numbers.
COLLIDING = [number * ((1 << 61) - 1) for number in range(1, 1 << 15)]


def big(number: int) -> bytes:
    """Write an integer of any size."""
    data = number.to_bytes((number.bit_length() + 7) // 8, "big")
    return data_head(0, number) if number < 1 << 64 else data_tag(BIG, encode_data(data))


answering(
    "nested_lists",
    "answers 100,000 lists, one within the other",
    b"\x81" * 100_000 + b"\x01",
    failed(REJECTED, "256"),
)
answering(
    "nested_tuples_as_a_key",
    "answers a key of 1,000 tuples, one within the other",
    b"\xa1" + data_tag(TUPLE, b"\x81") * 1000 + b"\x01\x01",
    failed(REJECTED, "256"),
)
answering(
    "empty_sets",
    "answers 500,000 empty sets",
    data_head(4, 500_000) + 500_000 * data_tag(SET, b"\x80"),
    Must("value", memory_mebibytes=320),
)
answering(
    "huge_integer",
    "answers an integer of 2 MiB",
    big(1 << (16 << 20)),
    failed(REJECTED, "1048576"),
)
answering(
    "colliding_keys",
    "answers a dict of 32,767 keys of one hash",
    data_head(5, len(COLLIDING)) + b"".join(big(number) + b"\xf6" for number in COLLIDING),
    failed(REJECTED),
)
answering(
    "huge_decimal",
    "answers a decimal number of 5,000 digits",
    data_tag(DECIMAL, encode_data("9" * 5000)),
    failed(REJECTED, "4300"),
)
answering(
    "decimal_of_a_huge_exponent",
    "answers 1E+999999999",
    data_tag(DECIMAL, encode_data("1E+999999999")),
    failed(REJECTED),
)
answering(
    "huge_fraction",
    "answers a fraction of 4,000 bytes",
    data_tag(FRACTION, b"\x82" + big((1 << 32_000) + 1) + big((1 << 32_000) + 3)),
    failed(REJECTED, "2048"),
)
answering(
    "fraction_of_nothing",
    "answers 1 divided by 0",
    data_tag(FRACTION, b"\x82\x01\x00"),
    failed(REJECTED),
)
answering(
    "huge_path",
    "answers a path of 10,000 bytes",
    data_tag(PATH, encode_data([0, "a/" * 5000])),
    failed(REJECTED, "4096"),
)

# --- exceptions ------------------------------------------------------------------------------------


def raised(kind: Any, text: Any = "x", lines: Any = (), data: Any = None) -> bytes:
    """Write an exception that says anything of itself."""
    return encode_data([kind, text, list(lines), data])


EXCEPTIONS: dict[str, tuple[str, bytes, Must]] = {
    "exception_of_noise": ("raises noise", b"\xff\xfe\xfd", failed(REJECTED)),
    "exception_of_three_parts": (
        "raises three parts of an exception",
        b"\x83\x61a\x61b\x80",
        failed(REJECTED),
    ),
    "unknown_exception": (
        "raises os:system",
        raised("os:system", "touch canary"),
        failed("TaskError", "touch canary"),
    ),
    "system_exit": ("raises SystemExit", raised("SystemExit", "0"), failed("TaskError")),
    "keyboard_interrupt": (
        "raises KeyboardInterrupt",
        raised("KeyboardInterrupt"),
        failed("TaskError"),
    ),
    "generator_exit": ("raises GeneratorExit", raised("GeneratorExit"), failed("TaskError")),
    "stop_iteration": ("raises StopIteration", raised("StopIteration"), failed("RuntimeError")),
    "not_an_exception": ("raises `exec`", raised("exec", "print(1)"), failed("TaskError", "print")),
    "exception_of_ours": (
        "raises our own NoWorkerError",
        raised("exoskel.errors:NoWorkerError", "the manager is broken"),
        failed("TaskError|NoWorkerError", "the manager is broken"),
    ),
    "escapes_in_an_exception": (
        "raises terminal escapes",
        raised("ValueError", ESCAPES + "text", [ESCAPES + "line\n"]),
        failed("ValueError", "text"),
    ),
    "escapes_in_a_class": (
        "raises a class with terminal escapes in its name",
        raised("kinds:" + ESCAPES),
        failed("TaskError"),
    ),
    "huge_exception_text": (
        "raises 20,000 bytes of text",
        raised("ValueError", "a" * 20_000),
        failed(REJECTED),
    ),
    "huge_traceback": (
        "raises a traceback of 3,000 lines",
        raised("ValueError", "x", ["line\n"] * 3000),
        failed(REJECTED),
    ),
    "import_error": (
        "raises an ImportError that names a module",
        raised("ImportError", "antigravity"),
        failed("ImportError"),
    ),
}
for name, (does, body, must) in EXCEPTIONS.items():
    answering(name, does, body, must, is_exception=True)

answering(
    "exception_as_a_value",
    "answers an exception of os:system as a value",
    data_tag(EXCEPTION, encode_data(["os:system", "touch canary", None])),
    Must("value"),
)
answering(
    "infinite_floats",
    "answers NaN, which is not itself",
    b"\xfb" + struct.pack(">d", float("nan")),
    Must("value"),
)
