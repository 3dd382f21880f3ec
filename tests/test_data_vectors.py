"""The vectors of plain data: both readers and the writer must do what `vectors/data.json` says.

The file is made by `tests/data_reference.py`, which knows `docs/protocol.md` only; here the implementation is held to it.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy
import pytest
from tests import data_reference as reference

from exoskel import _core
from exoskel.errors import ResultRejectedError

VECTORS: dict[str, Any] = json.loads(
    (Path(__file__).parent.parent / "vectors" / "data.json").read_text(encoding="utf-8")
)
GOOD, BAD, EXCEPTIONS = VECTORS["good"], VECTORS["bad"], VECTORS["exceptions"]


def body_of(case: dict[str, Any]) -> bytes:
    times: int = case.get("times", 0)
    return bytes.fromhex(case["body"]) + bytes.fromhex(case.get("again", "")) * times


def parts_of(case: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(part) for part in case["parts"]]


def name_of(case: dict[str, Any]) -> str:
    return str(case["name"])


def item_of(shown: Any) -> reference.Item:
    """Return an item from its JSON."""
    kind, *content = shown
    if kind in ("null", "bool", "text"):
        return kind, content[0]
    if kind == "int":
        return kind, int(content[0])
    if kind == "float":
        return kind, int(content[0], 16)
    if kind == "bytes":
        return kind, bytes.fromhex(content[0])
    if kind == "list":
        return kind, list(map(item_of, content[0]))
    if kind == "map":
        return kind, [(item_of(key), item_of(part)) for key, part in content[0]]
    return kind, (int(content[0], 16), item_of(content[1]))


def same(got: Any, expected: Any) -> bool:
    """Compare types, values and the bits of floats."""
    kind = type(expected)
    if type(got) is not kind:
        return False
    if kind is float:
        return struct.pack(">d", got) == struct.pack(">d", expected)
    if kind in (list, tuple) or hasattr(expected, "maxlen"):
        return len(got) == len(expected) and all(map(same, got, expected))
    if isinstance(expected, dict):
        factory = getattr(expected, "default_factory", None)
        return (
            getattr(got, "default_factory", None) is factory
            and same(list(got.keys()), list(expected.keys()))
            and same(list(got.values()), list(expected.values()))
        )
    if isinstance(expected, numpy.ndarray):
        if (got.dtype, got.shape) != (expected.dtype, expected.shape):
            return False
        if expected.dtype.hasobject:
            return same(got.ravel().tolist(), expected.ravel().tolist())
        return bool(got.tobytes() == expected.tobytes())
    if isinstance(expected, numpy.generic):
        return bool(got.dtype == expected.dtype and got.tobytes() == expected.tobytes())
    if kind.__name__ == "Decimal":
        return bool(got.as_tuple() == expected.as_tuple())
    return bool(got == expected)


def test_there_are_many() -> None:
    assert len(GOOD) > 130
    assert len(BAD) > 150
    used = {item for case in GOOD if "item" in case for item in tags_in(case["item"])}
    used |= {reference.REGISTERED, reference.LIBRARY, reference.EXCEPTION}
    assert used == set(reference.TAGS)


def tags_in(shown: Any) -> set[int]:
    found = {int(shown[1], 16)} if shown and shown[0] == "tag" else set()
    for part in shown:
        if isinstance(part, list):
            found |= tags_in(part)
    return found


def test_the_tags_have_one_number() -> None:
    for name, number in _core.data_tags().items():
        assert getattr(reference, name) == number


@pytest.mark.parametrize("case", GOOD, ids=name_of)
def test_good_values_are_taken(case: dict[str, Any]) -> None:
    body, parts = body_of(case), parts_of(case)
    if "item" in case:
        assert reference.parse(body) == item_of(case["item"])
    expected = reference.read(body, parts)
    got = _core.data_decode(body, parts)
    assert same(got, expected), (got, expected)


@pytest.mark.parametrize("case", GOOD, ids=name_of)
def test_values_are_written_as_they_were(case: dict[str, Any]) -> None:
    """The writer's parts have its own sizes, so it is held to the bytes where there are none."""
    body, parts = body_of(case), parts_of(case)
    value = reference.read(body, parts)
    if case["name"] in DEEPER_THAN_WRITTEN:
        with pytest.raises(ResultRejectedError, match="deeper than 256 levels"):
            _core.data_encode(value)
        return
    written, beside = _core.data_encode(value)
    again = reference.read(written, beside)
    assert same(again, value)
    if not parts and case["name"] not in OTHER_FORMS:
        assert written == body


# What our writer writes otherwise, and why it may.
OTHER_FORMS = {
    **{
        f"integer {number}": "tag 3 is the other form of what 64 bits don't hold with a sign"
        for number in (-1 - 2**63, -(2**64))
    },
    **{
        f"one {code}": "a scalar of NumPy has this machine's byte order"
        for code in (">i4", ">f8", ">U1")
    },
}
# The writer counts the list that a tag has around its content as a level of its own, and stops there whether or not it is empty.
DEEPER_THAN_WRITTEN = ("an empty one within",)


@pytest.mark.parametrize("case", BAD, ids=name_of)
def test_bad_values_are_refused_by_both(case: dict[str, Any]) -> None:
    body, parts = body_of(case), parts_of(case)
    if case["name"] not in OURS_ALONE:
        with pytest.raises(reference.Refused) as caught:
            reference.read(body, parts)
        assert caught.value.kind == case["refused"]
    with pytest.raises(
        ResultRejectedError, match=r"isn't taken: got|isn't taken: [A-Za-z]+: "
    ) as ours:
        _core.data_decode(body, parts)
    assert str(ours.value).isprintable()


# How much work colliding keys may be is each reader's own affair.
OURS_ALONE = ("colliding integers",)


@pytest.mark.parametrize("case", EXCEPTIONS, ids=name_of)
def test_records_of_exceptions(case: dict[str, Any]) -> None:
    body = body_of(case)
    if case["refused"] is None:
        kind, text, lines, _ = reference.check_exception(body)
        assert kind
        assert text
        assert isinstance(lines, list)
    else:
        with pytest.raises(reference.Refused) as caught:
            reference.check_exception(body)
        assert caught.value.kind == case["refused"]


def test_the_file_is_what_its_generator_makes() -> None:
    from vectors import data

    assert (Path(data.__file__).parent / "data.json").read_text(encoding="utf-8") == data.text()
