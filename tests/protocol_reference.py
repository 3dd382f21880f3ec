"""A second implementation of `docs/protocol.md`, written from the text alone.

It is as plain as it can be: bytes in, lists out, no state but counters and keys. It exists to check
the vectors, and through them the implementation in Rust; nothing else uses it.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import ipaddress
import struct
from dataclasses import dataclass, field
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

PROTECTIONS = ["plain", "integrity", "encrypted"]
CLASSES = ["control", "code", "data"]
CIPHERS = {"aes-256-gcm": 1, "chacha20-poly1305": 2}
ROLES = ["", "manager", "worker", "gateway", "agent", "peer"]
PURPOSES = ["session", "connect", "register", "callback"]
KINDS = {"control": 1, "head": 2, "head_more": 3, "bulk": 4}
MESSAGE_KINDS = ["post", "request", "reply", "failure"]
HEADER_BYTES = 16
TAG_BYTES = 16
HEAD_BYTES_MAX = 64 * 1024
MAGIC = b"exoskel\0"

Item = dict[str, Any]


@functools.lru_cache(maxsize=64)
def expand(secret: bytes, label: str, length: int) -> bytes:
    """Give HKDF-Expand with SHA-256."""
    return HKDFExpand(hashes.SHA256(), length, label.encode()).derive(secret)


def extract(salt: bytes, secret: bytes) -> bytes:
    """Give HKDF-Extract with SHA-256."""
    return hmac.digest(salt, secret, "sha256")


def transcript_hash(hello: bytes, accept: bytes, chains: list[list[bytes]]) -> bytes:
    """Hash both messages and both chains, each piece with its length in eight bytes before it."""
    pieces = [hello, accept]
    for chain in chains:
        pieces += [struct.pack(">Q", len(chain)), *chain]
    return hashlib.sha256(b"".join(struct.pack(">Q", len(p)) + p for p in pieces)).digest()


def resumption(opened_in: bytes, resumed_in: bytes, item: Item) -> tuple[bytes, bytes]:
    """Give the binding of a session, and the proof for a link that is resumed in it (section 5.1)."""
    binding = expand(resumed_in, "exoskel/1 binding", 32)
    key = expand(opened_in, "exoskel/1 resumption key", 32)
    numbers = struct.pack(">I3Q", *(item[key] for key in ("link", "name", "attempt", "received")))
    return binding, hmac.digest(key, b"exoskel/1 resumption" + binding + numbers, "sha256")


@dataclass
class Direction:
    """The keys and the counter of one direction."""

    cipher: str
    secret: bytes
    protections: list[str]
    counter: int = 0
    links: dict[int, str] = field(default_factory=dict)

    @classmethod
    def start(
        cls, cipher: str, session_secret: bytes, sender: str, protections: list[str]
    ) -> Direction:
        """Start at epoch 0."""
        return cls(cipher, expand(session_secret, f"exoskel/1 {sender}", 32), list(protections))

    def record_key(self, protection: str) -> tuple[bytes, bytes]:
        """Give key and static nonce part of this epoch."""
        suffix = f"{self.cipher} {protection}"
        key = expand(self.secret, f"exoskel/1 key {suffix}", 32)
        return key, expand(self.secret, f"exoskel/1 iv {suffix}", 12)

    def update_keys(self) -> None:
        """Move on to the next epoch."""
        self.secret = expand(self.secret, "exoskel/1 epoch", 32)

    def protection_of(self, kind: str, link: int) -> str:
        """Say what protects a record of this kind on this link now."""
        if kind == "control":
            own = max(map(PROTECTIONS.index, self.protections))
        else:
            own = PROTECTIONS.index(self.protections[CLASSES.index(self.links[link])])
        return PROTECTIONS[own if kind == "bulk" else max(own, 1)]

    def seal(self, kind: str, end: bool, link: int, group: int, body: bytes) -> bytes:
        """Seal one record."""
        header = struct.pack(">BBHIII", KINDS[kind], end, 0, link, group, len(body))
        protection = self.protection_of(kind, link)
        aead, nonce = self._aead(protection)
        self.counter += 1
        if protection == "encrypted":
            return header + aead.encrypt(nonce, body, header)
        if protection == "integrity":
            return header + body + aead.encrypt(nonce, b"", body + header)
        return header + aead.encrypt(nonce, b"", header) + body

    def open(self, stream: bytes) -> tuple[str, bool, int, int, bytes, bytes]:
        """Open the first record of a stream; give its fields, its body and the rest of the stream."""
        header = stream[:HEADER_BYTES]
        code, flags, reserved, link, group, length = struct.unpack(">BBHIII", header)
        assert reserved == 0
        assert flags in (0, 1)
        assert length > 0
        kind = next(name for name, number in KINDS.items() if number == code)
        end = HEADER_BYTES + length + TAG_BYTES
        rest = stream[HEADER_BYTES:end]
        assert len(rest) == length + TAG_BYTES
        protection = self.protection_of(kind, link)
        aead, nonce = self._aead(protection)
        self.counter += 1
        if protection == "encrypted":
            body = aead.decrypt(nonce, rest, header)
        elif protection == "integrity":
            body, tag = rest[:length], rest[length:]
            aead.decrypt(nonce, tag, body + header)
        else:
            tag, body = rest[:TAG_BYTES], rest[TAG_BYTES:]
            aead.decrypt(nonce, tag, header)
        return kind, flags == 1, link, group, body, stream[end:]

    def _aead(self, protection: str) -> tuple[AESGCM | ChaCha20Poly1305, bytes]:
        key, iv = self.record_key(protection)
        number = struct.pack(">4xQ", self.counter)
        nonce = bytes(a ^ b for a, b in zip(iv, number, strict=True))
        return (AESGCM(key) if self.cipher == "aes-256-gcm" else ChaCha20Poly1305(key)), nonce


def seal_stream(direction: Direction, items: list[Item], segment_bytes: int) -> bytes:
    """Seal control messages and messages in order."""
    out = b""
    for item in items:
        if "control" in item:
            out += direction.seal("control", True, 0, 0, encode_control(item))
            after_control(direction, item)
        else:
            out += seal_message(direction, item, segment_bytes)
    return out


def seal_message(direction: Direction, item: Item, segment_bytes: int) -> bytes:
    """Seal a message: its head, then its bulk parts in segments."""
    bulk: list[bytes] = item["bulk"]
    envelope = struct.pack(
        ">HBQQH",
        item["handler"],
        MESSAGE_KINDS.index(item["kind"]),
        item["id"],
        len(item["head"]),
        len(bulk),
    )
    envelope += b"".join(struct.pack(">Q", len(part)) for part in bulk)
    first = HEAD_BYTES_MAX - len(envelope)
    bodies = [("head", envelope + item["head"][:first])]
    parts = [("head_more", item["head"][first:]), *(("bulk", part) for part in bulk)]
    for kind, part in parts:
        for start in range(0, len(part), segment_bytes):
            bodies.append((kind, part[start : start + segment_bytes]))
    out = b""
    for index, (kind, body) in enumerate(bodies):
        end = index == len(bodies) - 1
        out += direction.seal(kind, end, item["link"], item["group"], body)
    return out


def open_stream(direction: Direction, stream: bytes) -> list[Item]:
    """Open a whole stream; the answer is what `seal_stream` takes."""
    items: list[Item] = []
    unfinished: dict[int, tuple[Item, list[int], bytes]] = {}
    while stream:
        kind, end, link, group, body, stream = direction.open(stream)
        if kind == "control":
            item = decode_control(body)
            items.append(item)
            after_control(direction, item)
            continue
        if kind == "head":
            assert link not in unfinished
            handler, code, identifier, head, parts = struct.unpack(">HBQQH", body[:21])
            lengths = [head, *struct.unpack(f">{parts}Q", body[21 : 21 + 8 * parts])]
            content = body[21 + 8 * parts :]
            item = {"link": link, "group": group, "handler": handler}
            item |= {"kind": MESSAGE_KINDS[code], "id": identifier}
        else:
            item, lengths, content = unfinished.pop(link)
            content += body
        assert end == (len(content) == sum(lengths))
        if not end:
            unfinished[link] = (item, lengths, content)
            continue
        parts_of = []
        for length in lengths:
            parts_of.append(content[:length])
            content = content[length:]
        items.append(item | {"head": parts_of[0], "bulk": parts_of[1:]})
    assert not unfinished
    return items


def after_control(direction: Direction, item: Item) -> None:
    """Do what a control message of this direction means for its later records."""
    match item["control"]:
        case "link_open":
            direction.links[item["link"]] = item["class"]
        case "key_update":
            direction.update_keys()
        case "protections":
            direction.protections = item["protections"]


CONTROLS = [
    "",
    "link_open",
    "link_accept",
    "link_refuse",
    "link_close",
    "link_closed",
    "credit",
    "heartbeat",
    "key_update",
    "protections",
    "close",
    "link_protection",
    "link_end",
]


def put_text(text: str) -> bytes:
    """Write text with its length in two bytes."""
    data = text.encode()
    return struct.pack(">H", len(data)) + data


def encode_control(item: Item) -> bytes:
    """Write a control message."""
    name = item["control"]
    out = bytes([CONTROLS.index(name)])
    if name.startswith("link") or name == "credit":
        out += struct.pack(">I", item["link"])
    match name:
        case "link_open":
            codes = [CLASSES.index(item["class"]), PROTECTIONS.index(item["protection"])]
            out += struct.pack(">I", item["group"]) + bytes(codes) + put_text(item["endpoint"])
            out += struct.pack(">H", len(item["right"])) + item["right"]
            out += _life(item.get("life", {"of": "one session"}))
            early = item.get("early", [])
            out += bytes([len(early)]) + b"".join(map(put_text, early))
        case "link_protection":
            out += bytes([PROTECTIONS.index(item["protection"])])
        case "link_accept":
            out += bytes([PROTECTIONS.index(item["protection"])])
            out += struct.pack(">H", len(item["handlers"]))
            out += b"".join(map(put_text, item["handlers"]))
            resumption = item.get("resumption")
            out += b"\0" if resumption is None else struct.pack(">BQQ", 1, *resumption)
        case "link_refuse" | "link_end":
            out += bytes([item["reason"]]) + put_text(item["text"])
        case "credit":
            out += struct.pack(">Q", item["bytes"])
        case "heartbeat":
            out += struct.pack(">QQ", item["sealed"], item["opened"])
        case "protections":
            out += bytes(PROTECTIONS.index(name) for name in item["protections"])
        case "close":
            out += bytes([item["reason"]]) + put_text(item["text"])
    return out


class Reader:
    """Takes fields from the front of bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        """Take so many bytes."""
        assert len(self.data) >= count
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, width: int) -> int:
        """Take a number of so many bytes."""
        return int.from_bytes(self.take(width), "big")

    def text(self) -> str:
        """Take text with its length in two bytes."""
        return self.take(self.number(2)).decode()

    def pairs(self) -> list[list[str]]:
        """Take names with values."""
        return [[self.text(), self.text()] for _ in range(self.number(1))]

    def protections(self) -> list[str]:
        """Take one protection for each class."""
        return [PROTECTIONS[self.number(1)] for _ in CLASSES]

    def end(self) -> None:
        """Be at the end."""
        assert not self.data


def decode_control(body: bytes) -> Item:
    """Read a control message."""
    reader = Reader(body)
    name = CONTROLS[reader.number(1)]
    item: Item = {"control": name}
    if name.startswith("link") or name == "credit":
        item["link"] = reader.number(4)
    match name:
        case "link_open":
            item["group"] = reader.number(4)
            item["class"] = CLASSES[reader.number(1)]
            item["protection"] = PROTECTIONS[reader.number(1)]
            item["endpoint"] = reader.text()
            item["right"] = reader.take(reader.number(2))
            item |= _read_life(reader)
            early = [reader.text() for _ in range(reader.number(1))]
            assert len(early) <= 8
            if early:
                item["early"] = early
        case "link_protection":
            item["protection"] = PROTECTIONS[reader.number(1)]
        case "link_accept":
            item["protection"] = PROTECTIONS[reader.number(1)]
            item["handlers"] = [reader.text() for _ in range(reader.number(2))]
            lasts = reader.number(1)
            assert lasts <= 1
            if lasts:
                item["resumption"] = [reader.number(8), reader.number(8)]
        case "link_refuse" | "link_end":
            item |= {"reason": reader.number(1), "text": reader.text()}
        case "credit":
            item["bytes"] = reader.number(8)
        case "heartbeat":
            item |= {"sealed": reader.number(8), "opened": reader.number(8)}
        case "protections":
            item["protections"] = reader.protections()
        case "close":
            item |= {"reason": reader.number(1), "text": reader.text()}
    reader.end()
    return item


def _life(life: Item) -> bytes:
    """Write whether a link outlives its session."""
    match life["of"]:
        case "one session":
            return b"\0"
        case "lasting":
            return struct.pack(">BQ", 1, life["name"])
        case _:
            front = struct.pack(">B3Q", 2, life["name"], life["attempt"], life["received"])
            return front + bytes.fromhex(life["proof"])


def _read_life(reader: Reader) -> Item:
    """Read whether a link outlives its session; nothing if it doesn't."""
    kind = reader.number(1)
    assert kind <= 2
    if kind == 0:
        return {}
    if kind == 1:
        return {"life": {"of": "lasting", "name": reader.number(8)}}
    life: Item = {"of": "resumed"}
    life |= {name: reader.number(8) for name in ("name", "attempt", "received")}
    return {"life": life | {"proof": reader.take(32).hex()}}


def encode_hello(fields: Item) -> bytes:
    """Write a Hello."""
    out = MAGIC + struct.pack(">H", 1) + _identity(fields)
    for minimum in (fields["floors"], fields["floors_unproven"]):
        out += bytes(map(PROTECTIONS.index, minimum))
    out += bytes([len(fields["ciphers"])]) + bytes(CIPHERS[name] for name in fields["ciphers"])
    return out + _common(fields) + _purpose(fields["purpose"])


def encode_accept(fields: Item) -> bytes:
    """Write an Accept."""
    out = MAGIC + struct.pack(">HB", 1, 1) + _identity(fields)
    out += bytes(map(PROTECTIONS.index, fields["protections"]))
    return out + bytes([CIPHERS[fields["cipher"]]]) + _common(fields)


def encode_refuse(fields: Item) -> bytes:
    """Write a Refuse whose reason is a version."""
    assert fields["reason"] == "version"
    out = MAGIC + struct.pack(">HBB", 1, 2, 1)
    return out + b"".join(put_text(fields[name]) for name in ("of", "expected", "got", "text"))


def decode_hello(data: bytes) -> Item:
    """Read a Hello."""
    reader = Reader(data)
    assert reader.take(8) == MAGIC
    assert reader.number(2) == 1
    fields: Item = {"role": ROLES[reader.number(1)], "name": reader.text()}
    fields |= {"floors": reader.protections(), "floors_unproven": reader.protections()}
    names = {number: name for name, number in CIPHERS.items()}
    fields["ciphers"] = [names[reader.number(1)] for _ in range(reader.number(1))]
    fields |= {"message_bytes_max": reader.number(8), "credit_bytes": reader.number(8)}
    fields |= {"bulk_parts_max": reader.number(2), "links_max": reader.number(4)}
    fields["dead_after_milliseconds"] = reader.number(4)
    assert reader.number(1) == 2
    fields["path"] = [*_read_address(reader), *_read_address(reader)]
    fields |= {"policy_generation": reader.number(8), "group": reader.number(4)}
    fields["process"] = reader.take(16).hex()
    fields |= {"versions": reader.pairs(), "properties": reader.pairs()}
    fields["purpose"] = _read_purpose(reader)
    reader.end()
    return fields


def _read_address(reader: Reader) -> list[Any]:
    address = ipaddress.IPv6Address(reader.take(16))
    return [str(address.ipv4_mapped or address), reader.number(2)]


def _read_purpose(reader: Reader) -> Item:
    wants = PURPOSES[reader.number(1)]
    if wants == "connect":
        node, is_named = reader.text(), reader.number(1)
        assert is_named <= 1
        process = reader.take(16).hex() if is_named else None
        hops = reader.number(1)
        assert hops <= 4
        behalf = [[ROLES[reader.number(1)], reader.text()] for _ in range(hops)]
        return {"wants": wants, "node": node, "process": process, "on_behalf_of": behalf}
    if wants == "callback":
        return {"wants": wants, "ticket": reader.take(16).hex()}
    return {"wants": wants}


def _purpose(purpose: Item) -> bytes:
    out = bytes([PURPOSES.index(purpose["wants"])])
    if purpose["wants"] == "connect":
        behalf = purpose["on_behalf_of"]
        out += put_text(purpose["node"])
        process = purpose["process"]
        out += b"\0" if process is None else b"\1" + bytes.fromhex(process)
        out += bytes([len(behalf)])
        out += b"".join(bytes([ROLES.index(role)]) + put_text(name) for role, name in behalf)
    if purpose["wants"] == "callback":
        out += bytes.fromhex(purpose["ticket"])
    return out


def _identity(fields: Item) -> bytes:
    return bytes([ROLES.index(fields["role"])]) + put_text(fields["name"])


def _common(fields: Item) -> bytes:
    out = struct.pack(
        ">QQHII",
        fields["message_bytes_max"],
        fields["credit_bytes"],
        fields["bulk_parts_max"],
        fields["links_max"],
        fields["dead_after_milliseconds"],
    )
    local, local_port, remote, remote_port = fields["path"]
    out += bytes([2])
    for address, port in ((local, local_port), (remote, remote_port)):
        out += ipaddress.IPv6Address(f"::ffff:{address}").packed + struct.pack(">H", port)
    out += struct.pack(">QI", fields["policy_generation"], fields["group"])
    out += bytes.fromhex(fields["process"])
    for pairs in (fields["versions"], fields["properties"]):
        out += bytes([len(pairs)])
        out += b"".join(put_text(name) + put_text(value) for name, value in pairs)
    return out
