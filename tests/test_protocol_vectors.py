"""The vectors of the protocol, checked by an implementation of its own.

`vectors/` holds what the Rust implementation writes; `protocol_reference` knows `docs/protocol.md` only.
Each stream is opened to what it should hold, and sealed again to the very same bytes.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from tests import capability_reference as capability
from tests import protocol_reference as reference

VECTORS = Path(__file__).parent.parent / "vectors"
SEGMENT_BYTES = 1024


def load(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((VECTORS / name).read_text(encoding="utf-8"))
    assert "protocol_vectors" in loaded["provenance"]
    return loaded


def pattern(count: int, seed: int) -> bytes:
    return bytes(((index * 31 >> 3) & 0xFF) ^ seed for index in range(count))


def cases() -> list[dict[str, Any]]:
    return [case for case in load("records.json")["cases"] if "client_stream" in case]


def test_key_schedule() -> None:
    vectors = load("key_schedule.json")
    secret = bytes.fromhex(vectors["session_secret"])
    checked = 0
    for epoch in vectors["epochs"]:
        for expected in epoch["keys"]:
            direction = reference.Direction.start(expected["cipher"], secret, epoch["sender"], [])
            for _ in range(epoch["epoch"]):
                direction.update_keys()
            assert direction.secret.hex() == epoch["secret"]
            key, iv = direction.record_key(expected["protection"])
            assert (key.hex(), iv.hex()) == (expected["key"], expected["iv"])
            checked += 1
    assert checked == 36


def test_resumption() -> None:
    vectors = load("key_schedule.json")
    item = vectors["resumption"]
    opened_in, resumed_in = vectors["session_secret"], item["resumed_in"]
    binding, proof = reference.resumption(bytes.fromhex(opened_in), bytes.fromhex(resumed_in), item)
    assert (binding.hex(), proof.hex()) == (item["binding"], item["proof"])


def test_links_that_outlive_sessions_are_opened_and_accepted() -> None:
    opened = {"control": "link_open", "link": 1, "group": 0, "class": "data"}
    opened |= {"protection": "encrypted", "endpoint": "coupler", "right": b"right"}
    resumed = {"of": "resumed", "name": 5, "attempt": 1, "received": 9, "proof": "ab" * 32}
    for life in ({"of": "lasting", "name": 5}, resumed):
        item = opened | {"life": life}
        assert reference.decode_control(reference.encode_control(item)) == item
    item = opened | {"early": ["surface", "flux"]}
    assert reference.decode_control(reference.encode_control(item)) == item
    accepted = {"control": "link_accept", "link": 1, "protection": "encrypted", "handlers": ["a"]}
    item = accepted | {"resumption": [3, 200]}
    assert reference.decode_control(reference.encode_control(item)) == item


def test_handshake_messages() -> None:
    vectors = load("handshake.json")
    hello = bytes.fromhex(vectors["hello"])
    assert reference.decode_hello(hello) == vectors["hello_fields"]
    assert reference.encode_hello(vectors["hello_fields"]) == hello
    assert reference.encode_accept(vectors["accept_fields"]).hex() == vectors["accept"]
    assert reference.encode_refuse(vectors["refuse_fields"]).hex() == vectors["refuse"]


def test_purposes_and_calls() -> None:
    vectors = load("handshake.json")
    for case in vectors["purposes"]:
        hello = bytes.fromhex(case["hello"])
        fields = vectors["hello_fields"] | {"purpose": case["purpose"]}
        assert reference.decode_hello(hello) == fields
        assert reference.encode_hello(fields) == hello
    ticket, name = next(
        (case["purpose"]["ticket"], "lab1.example.org")
        for case in vectors["purposes"]
        if case["purpose"]["wants"] == "callback"
    )
    assert vectors["call"] == ticket + "02" + reference.put_text(name).hex()


def test_session_secret_and_first_record() -> None:
    vectors = load("handshake.json")
    hello, accept = bytes.fromhex(vectors["hello"]), bytes.fromhex(vectors["accept"])
    chains = [
        [bytes.fromhex(certificate) for certificate in vectors[f"{side}_chain"]]
        for side in ("client", "server")
    ]
    transcript = reference.transcript_hash(hello, accept, chains)
    assert transcript.hex() == vectors["transcript_hash"]
    secret = reference.extract(transcript, bytes.fromhex(vectors["exporter"]))
    assert secret.hex() == vectors["session_secret"]
    fields = vectors["accept_fields"]
    direction = reference.Direction.start(fields["cipher"], secret, "client", fields["protections"])
    opened = reference.open_stream(direction, bytes.fromhex(vectors["first_client_record"]))
    assert opened == [
        {
            "control": "link_open",
            "link": 1,
            "group": 7,
            "class": "data",
            "protection": "plain",
            "endpoint": "echo",
            "right": b"",
        }
    ]


def client_items(protections: list[str]) -> list[dict[str, Any]]:
    """What the client of every small conversation says, by the story that the generator tells."""
    opens = {"control": "link_open", "group": 7, "right": b""}
    message = {"link": 1, "group": 7, "handler": 0, "kind": "post", "id": 0, "bulk": []}
    request = {"handler": 1, "kind": "request", "id": 9, "head": b"head"}
    data, code = protections[2], protections[1]
    items: list[dict[str, Any]] = [
        opens | {"link": 1, "class": "data", "protection": data, "endpoint": "echo"},
        opens | {"link": 3, "class": "code", "protection": code, "endpoint": "nobody"},
        message | request | {"bulk": [pattern(40, 1), b"", pattern(2500, 2)]},
        {"control": "link_close", "link": 3},
        # Two openings, a head and four segments, a closing; six answers.
        {"control": "heartbeat", "sealed": 8, "opened": 6},
        *[message | {"head": b"posted"}] * 3,
        {"control": "key_update"},
    ]
    if "encrypted" not in protections:
        items.append({"control": "protections", "protections": ["encrypted"] * 3})
    items += [
        message | {"head": b"", "bulk": [pattern(100, 4)]},
        {"control": "link_close", "link": 1},
        {"control": "close", "reason": 3, "text": "policy"},
    ]
    return items


def server_items(protections: list[str]) -> list[dict[str, Any]]:
    """What its server says."""
    message = {"link": 1, "group": 7, "handler": 0, "bulk": []}
    items: list[dict[str, Any]] = [
        {
            "control": "link_accept",
            "link": 1,
            "protection": protections[2],
            "handlers": ["first", "second"],
        },
        {"control": "link_refuse", "link": 3, "reason": 1, "text": ""},
        {"control": "link_closed", "link": 3},
        message | {"kind": "reply", "id": 9, "head": b"answer"},
        message | {"kind": "failure", "id": 10, "head": b"", "bulk": [pattern(5, 3)]},
        {"control": "heartbeat", "sealed": 6, "opened": 9},
    ]
    if "encrypted" not in protections:
        items.append({"control": "protections", "protections": ["encrypted"] * 3})
    items += [
        {"control": "link_closed", "link": 1},
        {"control": "close", "reason": 0, "text": ""},
    ]
    return items


@pytest.mark.parametrize("sender", ["client", "server"])
@pytest.mark.parametrize("case", cases(), ids=lambda case: case["name"])
def test_conversation(case: dict[str, Any], sender: str) -> None:
    stream = bytes.fromhex(case[f"{sender}_stream"])
    items = (client_items if sender == "client" else server_items)(case["protections"])

    def start() -> reference.Direction:
        secret = bytes.fromhex(case["session_secret"])
        direction = reference.Direction.start(case["cipher"], secret, sender, case["protections"])
        if sender == "server":
            # The client's openings came by the other direction.
            direction.links = {1: "data", 3: "code"}
        return direction

    assert reference.open_stream(start(), stream) == items
    assert reference.seal_stream(start(), items, SEGMENT_BYTES) == stream


@pytest.mark.parametrize("place", [0, 5, 9, 14, 20, -1], ids=str)
def test_the_second_implementation_notices_changes_too(place: int) -> None:
    """A checker that accepts everything would prove nothing."""
    case = next(case for case in cases() if case["protections"] == ["encrypted"] * 3)
    stream = bytearray(bytes.fromhex(case["client_stream"]))
    stream[place] ^= 1
    direction = reference.Direction.start(
        case["cipher"], bytes.fromhex(case["session_secret"]), "client", case["protections"]
    )
    with pytest.raises(Exception, match=r".*") as caught:
        reference.open_stream(direction, bytes(stream))
    assert type(caught.value).__name__ in {
        "InvalidTag",
        "AssertionError",
        "StopIteration",
        "KeyError",
    }


def test_large_message() -> None:
    case = next(case for case in load("records.json")["cases"] if "client_stream" not in case)
    head, *bulk = [pattern(size, seed) for size, seed in case["head_and_bulk_patterns"]]
    link = {"link": 1, "group": 0}
    items: list[dict[str, Any]] = [
        link
        | {
            "control": "link_open",
            "class": "data",
            "protection": "plain",
            "endpoint": "echo",
            "right": b"",
        },
        link | {"handler": 0, "kind": "post", "id": 0, "head": head, "bulk": bulk},
    ]
    direction = reference.Direction.start(
        case["cipher"], bytes.fromhex(case["session_secret"]), "client", case["protections"]
    )
    stream = reference.seal_stream(direction, items, 256 * 1024)
    assert len(stream) == case["client_stream_bytes"]
    assert hashlib.sha256(stream).hexdigest() == case["client_stream_sha256"]


CAPABILITIES = load("capabilities.json")


def named(case: dict[str, Any]) -> str:
    return str(case["case"])


@pytest.mark.parametrize("case", CAPABILITIES["startpoints"], ids=named)
def test_startpoint(case: dict[str, Any]) -> None:
    fields, startpoint = case["fields"], bytes.fromhex(case["startpoint"])
    tag = capability.tag_of(bytes.fromhex(CAPABILITIES["secret"]), fields)
    assert capability.encode_startpoint(fields, tag) == startpoint
    assert capability.read_startpoint(startpoint) == (fields, tag)
    assert capability.text_of(startpoint) == case["text"]
    assert capability.read_text(case["text"]) == startpoint
    assert capability.allowance(fields) == case["allowance"]

    proof = capability.proof_of(tag, bytes.fromhex(CAPABILITIES["binding"]), case["link"])
    right = bytes.fromhex(case["right"])
    assert capability.encode_right(fields, proof) == right
    read, _ = capability.read_right(right)
    assert read.items() <= fields.items()
    assert tag not in right


def test_a_holder_goes_on_with_the_chain() -> None:
    """Who narrows has the startpoint alone, and no secret."""
    wide, narrow, *_ = CAPABILITIES["startpoints"]
    fields, tag = capability.read_startpoint(capability.read_text(wide["text"]))
    for caveat in narrow["fields"]["caveats"][len(fields["caveats"]) :]:
        fields["caveats"].append(caveat)
        tag = capability.next_tag(tag, caveat)
    assert capability.text_of(capability.encode_startpoint(fields, tag)) == narrow["text"]


@pytest.mark.parametrize("case", CAPABILITIES["rights"], ids=named)
def test_right(case: dict[str, Any]) -> None:
    genuine = capability.is_genuine(
        bytes.fromhex(CAPABILITIES["secret"]),
        CAPABILITIES["endpoint"],
        CAPABILITIES["key_id"],
        bytes.fromhex(case["right"]),
        bytes.fromhex(CAPABILITIES["binding"]),
        case["link"],
    )
    assert genuine == case["genuine"]


@pytest.mark.parametrize("case", CAPABILITIES["bad_texts"], ids=named)
def test_bad_text(case: dict[str, Any]) -> None:
    with pytest.raises(capability.Refused):
        capability.read_text(case["text"])


@pytest.mark.parametrize("case", CAPABILITIES["bad_startpoints"], ids=named)
def test_bad_startpoint(case: dict[str, Any]) -> None:
    with pytest.raises(capability.Refused):
        capability.read_startpoint(bytes.fromhex(case["startpoint"]))


@pytest.mark.parametrize("case", CAPABILITIES["bad_rights"], ids=named)
def test_bad_right(case: dict[str, Any]) -> None:
    with pytest.raises(capability.Refused):
        capability.read_right(bytes.fromhex(case["right"]))


def test_the_key_of_rules_is_that_of_the_implementation() -> None:
    """The test of `crates/link/tests/rules_key.rs` has the same number."""
    secret, key_id = capability.rules_key(bytes([2] * 32))
    assert key_id == "9855ebe401a3be80e478e361f2579450"
    assert capability.rules_key(secret)[1] != key_id
