"""Compression on links: only where it is asked for, only what gains by it, and not what is encrypted."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.hostile_peer import HostilePeer, Stolen
from tests.test_links import NAMES, Lab

from exoskel import links

_BLOCK_BYTES = 128 * 1024


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


@pytest.mark.parametrize("protection", ["plain", "integrity", "encrypted"])
@pytest.mark.parametrize("compress_encrypted", [False, True])
def test_values_come_over_as_they_are(
    lab: Lab, protection: links.Protection, compress_encrypted: bool
) -> None:
    options: dict[str, Any] = {"compression": "zstd", "compress_encrypted": compress_encrypted}
    endpoint = lab.node(NAMES[0], "127.0.0.1:0").endpoint(
        "coupler", protection=protection, **options
    )

    @endpoint.handler
    def twice(value: Any) -> Any:
        return value * 2

    endpoint.region("field", np.zeros(100_000))
    bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]), **options)
    noise = np.random.default_rng(1).random(50_000)
    for value in (np.zeros(100_000), noise, np.ones((300, 300), "i4")):
        np.testing.assert_array_equal(bound.request("twice", value).result(60), value * 2)
    assert bound.request("twice", "text " * 5000).result(60) == "text " * 10_000
    assert bound.request("twice", 3).result(60) == 6
    assert bound.region("field").get().result(60).shape == (100_000,)
    assert bound.protection == protection


@pytest.mark.parametrize("compress_encrypted", [False, True])
def test_what_a_link_has_carried_is_counted_as_it_travelled(
    lab: Lab, compress_encrypted: bool
) -> None:
    """The first message as well: what waits for an encrypted link is compressed if it may be."""
    options: dict[str, Any] = {"compression": "zstd", "compress_encrypted": compress_encrypted}
    owner = lab.node(NAMES[0], "127.0.0.1:0")
    endpoint = owner.endpoint("coupler", protection="encrypted", **options)

    @endpoint.handler
    def echo(value: Any) -> Any:
        return value

    user = lab.node(NAMES[1])
    bound = user.bind(endpoint.startpoint(to=NAMES[1]), **options)
    field = np.zeros(100_000)
    for count in (1, 2, 3):
        np.testing.assert_array_equal(bound.request("echo", field).result(60), field)
        least, most = (50, 1000) if compress_encrypted else (field.nbytes, field.nbytes + 100)
        for node in (user, owner):
            (session,) = node.status()["sessions"]
            (link,) = session["links"]
            for direction in ("sent", "received"):
                assert link[f"messages_{direction}"] == count
                assert count * least <= link[f"bytes_{direction}"] <= count * most
                assert session[f"bytes_{direction}"] == link[f"bytes_{direction}"]


def test_other_compressions_are_told(lab: Lab) -> None:
    node = lab.node(NAMES[0])
    with pytest.raises(ValueError, match="got compression='lz4', expected 'zstd'"):
        node.endpoint("coupler", compression="lz4")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="compress_encrypted=True without compression"):
        node.endpoint("coupler", compress_encrypted=True)


def zstd_frame(byte: bytes, count: int) -> bytes:
    """Return a frame (RFC 8878) of one byte so many times, in blocks that say only that."""
    frame = b"\x28\xb5\x2f\xfd\xe0" + count.to_bytes(8, "little")
    for begin in range(0, count, _BLOCK_BYTES):
        size = min(_BLOCK_BYTES, count - begin)
        is_last = begin + size == count
        frame += (is_last | 1 << 1 | size << 3).to_bytes(3, "little") + byte
    return frame


def test_long_heads_are_not_expanded(lab: Lab) -> None:
    """Attack: kilobytes that say, and do, become 60 MB that are no bulk part."""
    mallory, got = _hostile(lab)
    count = 60_000_000
    with mallory:
        head = b"\xffz" + struct.pack(">HBQ", 1, 1, count) + zstd_frame(b"\x80", count)
        mallory.request(1, 0, head)
        failure = mallory.answer()
        assert failure["kind"] == "failure"
        assert b"got a head of 60000000 bytes when expanded, expected" in failure["head"]
    assert got == []


def test_kilobytes_do_not_become_millions_of_objects(lab: Lab) -> None:
    """Attack: a list of 15 million empty lists in 2 kB, which would take more than a gigabyte."""
    mallory, got = _hostile(lab)
    count = 15_000_000
    with mallory:
        # Arguments that are one list, and no keywords: two blocks as they are around those of a byte.
        before = b"\x82\x81\x9a" + struct.pack(">I", count)
        frame = b"\x28\xb5\x2f\xfd\xe0" + (len(before) + count + 1).to_bytes(8, "little")
        frame += (len(before) << 3).to_bytes(3, "little") + before
        frame += zstd_frame(b"\x80", count)[13:-4]
        size = count % _BLOCK_BYTES or _BLOCK_BYTES
        frame += (1 << 1 | size << 3).to_bytes(3, "little") + b"\x80"
        frame += (1 | 1 << 3).to_bytes(3, "little") + b"\xa0"
        head = b"\xffz" + struct.pack(">HBQ", 1, 1, len(before) + count + 1) + frame
        assert len(head) < 2000
        mallory.request(1, 0, head)
        failure = mallory.answer()
        assert failure["kind"] == "failure"
        assert b"takes more than" in failure["head"]
    assert got == []


def _hostile(lab: Lab) -> tuple[HostilePeer, list[Any]]:
    """Return a peer with a link to a handler, and what that gets."""
    node = lab.node(NAMES[0], "127.0.0.1:0")
    endpoint = node.endpoint("coupler")
    got: list[Any] = []

    @endpoint.handler
    def keep(value: Any) -> None:
        got.append(value)

    mallory = HostilePeer(node.hints[0], lab.credential(NAMES[1]))
    own = Stolen(endpoint.startpoint(to=NAMES[1]).text())
    mallory.open(1, "coupler", own.right(mallory.binding, 1))
    assert mallory.answer()["control"] == "link_accept"
    return mallory, got


@pytest.mark.parametrize(
    "value",
    [
        [[]] * 2_000_000,
        [{"name": "surface", "value": 1}] * 300_000,
        "text " * 1_600_000,
        "ö" * 10_000_000,
        [0] * 3_000_000,
        {"field": np.zeros(20_000_000), "name": "zeros"},
    ],
    ids=["lists", "dicts", "text", "longer text", "numbers", "array"],
)
def test_honest_values_that_become_small_come_over(lab: Lab, value: Any) -> None:
    options: dict[str, Any] = {"compression": "zstd", "compress_encrypted": True}
    endpoint = lab.node(NAMES[0], "127.0.0.1:0").endpoint("coupler", **options)

    @endpoint.handler
    def echo(value: Any) -> Any:
        return value

    bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]), **options)
    bound.request("echo", None).result(60)
    got = bound.request("echo", value).result(60)
    if isinstance(value, dict):
        np.testing.assert_array_equal(got["field"], value["field"])
    else:
        assert got == value
