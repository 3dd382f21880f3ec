"""A second implementation of section 9 of `docs/protocol.md`, written from the text alone.

Startpoints and rights are dictionaries, as `vectors/capabilities.json` has them. Whatever the section does not allow
raises `Refused`. Patterns of holders are those of policies, which are tested elsewhere: here they are texts.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import struct
import unicodedata
from typing import Any

from tests.protocol_reference import PROTECTIONS, ROLES, put_text

Item = dict[str, Any]

CAVEATS = ["", "handlers", "expires", "holder", "protection", "holders"]
SCHEME = "exo://"
CAVEATS_MAX = 16
CAVEAT_BYTES_MAX = 4096
HINTS_MAX = 8
HINT_BYTES_MAX = 300
NAME_BYTES_MAX = 100
NODE_BYTES_MAX = 1024
HANDLERS_MAX = 128
PATTERN_BYTES_MAX = 2048
HOLDERS_MAX = 64


class Refused(Exception):
    """What the section does not allow."""


def require(allowed: bool, what: str) -> None:
    """Refuse what is not allowed."""
    if not allowed:
        raise Refused(what)


class Reader:
    """Takes fields from the front of bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def take(self, count: int) -> bytes:
        """Take so many bytes."""
        require(len(self.data) >= count, "it ends early")
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def number(self, width: int) -> int:
        """Take a number of so many bytes."""
        return int.from_bytes(self.take(width), "big")

    def count(self, maximum: int) -> int:
        """Take a number of things."""
        count = self.number(1)
        require(count <= maximum, "too many")
        return count

    def choice(self, names: list[str], what: str) -> str:
        """Take a number that stands for a word."""
        number = self.number(1)
        require(number < len(names) and names[number] != "", f"unknown {what}")
        return names[number]

    def text(self, maximum: int) -> str:
        """Take text with its length in two bytes."""
        length = self.number(2)
        require(length <= maximum, "text too long")
        try:
            text = self.take(length).decode()
        except UnicodeDecodeError:
            raise Refused("not UTF-8") from None
        controls = (one for one in text if unicodedata.category(one) == "Cc" and one != "\n")
        require(not any(controls), "control character")
        return text

    def end(self) -> None:
        """Be at the end."""
        require(not self.data, "bytes behind the end")


def encode_caveat(caveat: list[Any]) -> bytes:
    """Write one caveat."""
    kind, value = caveat
    out = bytes([CAVEATS.index(kind)])
    match kind:
        case "handlers" | "holders":
            names = sorted(set(value), key=str.encode)
            return out + bytes([len(names)]) + b"".join(map(put_text, names))
        case "expires":
            return out + struct.pack(">Q", value)
        case "holder":
            return out + put_text(value)
        case _:
            return out + bytes([PROTECTIONS.index(value)])


def read_caveat(reader: Reader) -> list[Any]:
    """Read one caveat."""
    kind = reader.choice(CAVEATS, "caveat")
    match kind:
        case "handlers":
            names = [reader.text(NAME_BYTES_MAX) for _ in range(reader.count(HANDLERS_MAX))]
            keys = [name.encode() for name in names]
            require(keys == sorted(set(keys)) and keys != [], "handlers out of order")
            return [kind, names]
        case "expires":
            return [kind, reader.number(8)]
        case "holder":
            return [kind, reader.text(PATTERN_BYTES_MAX)]
        case "holders":
            patterns = [reader.text(PATTERN_BYTES_MAX) for _ in range(reader.count(HOLDERS_MAX))]
            keys = [pattern.encode() for pattern in patterns]
            require(keys == sorted(set(keys)) and len(keys) > 1, "holders out of order")
            return [kind, patterns]
        case _:
            return [kind, reader.choice(PROTECTIONS, "protection")]


def encode_conditions(item: Item) -> bytes:
    """Write what startpoints and rights have in common."""
    out = bytes.fromhex(item["key_id"]) + struct.pack(">QB", item["number"], item["bearer"])
    caveats = b"".join(map(encode_caveat, item["caveats"]))
    return out + bytes([len(item["caveats"])]) + caveats


def read_conditions(reader: Reader) -> Item:
    """Read what startpoints and rights have in common."""
    item: Item = {"key_id": reader.take(16).hex(), "number": reader.number(8)}
    bearer = reader.number(1)
    require(bearer in (0, 1), "neither a bearer's nor not")
    item["bearer"] = bearer == 1
    count = reader.count(CAVEATS_MAX)
    before = len(reader.data)
    item["caveats"] = [read_caveat(reader) for _ in range(count)]
    require(before - len(reader.data) <= CAVEAT_BYTES_MAX, "caveats too long")
    return item


def encode_startpoint(item: Item, tag: bytes) -> bytes:
    """Write a startpoint with that tag."""
    out = bytes([1, ROLES.index(item["role"])]) + put_text(item["name"])
    out += bytes([len(item["hints"])]) + b"".join(map(put_text, item["hints"]))
    out += put_text(item["endpoint"]) + bytes.fromhex(item["process"])
    return out + encode_conditions(item) + tag


def read_startpoint(data: bytes) -> tuple[Item, bytes]:
    """Read a startpoint; give its fields and its tag."""
    reader = Reader(data)
    require(reader.number(1) == 1, "another version")
    item: Item = {"role": reader.choice(ROLES, "role"), "name": reader.text(NODE_BYTES_MAX)}
    item["hints"] = [reader.text(HINT_BYTES_MAX) for _ in range(reader.count(HINTS_MAX))]
    item["endpoint"] = reader.text(NAME_BYTES_MAX)
    item["process"] = reader.take(16).hex()
    item |= read_conditions(reader)
    tag = reader.take(32)
    reader.end()
    return item, tag


def text_of(startpoint: bytes) -> str:
    """Write a startpoint's bytes as text."""
    checked = startpoint + hashlib.sha256(startpoint).digest()[:4]
    return SCHEME + base64.urlsafe_b64encode(checked).decode().rstrip("=")


def read_text(text: str) -> bytes:
    """Read a startpoint's bytes from its text."""
    require(text.startswith(SCHEME), "no startpoint")
    encoded = text.removeprefix(SCHEME)
    require("=" not in encoded, "padding")
    try:
        data = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise Refused("not base64url") from None
    require(len(data) > 4, "it ends early")
    startpoint, checksum = data[:-4], data[-4:]
    require(hashlib.sha256(startpoint).digest()[:4] == checksum, "checksum")
    require(text_of(startpoint) == text, "another spelling")
    return startpoint


def encode_right(item: Item, proof: bytes) -> bytes:
    """Write a right with that proof."""
    return encode_conditions(item) + proof


def read_right(data: bytes) -> tuple[Item, bytes]:
    """Read a right; give its conditions and its proof."""
    reader = Reader(data)
    item = read_conditions(reader)
    proof = reader.take(32)
    reader.end()
    return item, proof


def rules_key(secret: bytes) -> tuple[bytes, str]:
    """Give the secret and the key id of an endpoint's second key, of which rules make startpoints."""
    name = hmac.digest(secret, b"exoskel/1 name of rules", "sha256")
    return hmac.digest(secret, b"exoskel/1 secret of rules", "sha256"), name[:16].hex()


def first_tag(secret: bytes, item: Item) -> bytes:
    """Begin the chain."""
    origin = put_text(item["endpoint"]) + bytes.fromhex(item["key_id"])
    origin += struct.pack(">QB", item["number"], item["bearer"])
    return hmac.digest(secret, b"exoskel/1 capability" + origin, "sha256")


def next_tag(tag: bytes, caveat: list[Any]) -> bytes:
    """Go on with the chain by one caveat."""
    return hmac.digest(tag, b"exoskel/1 caveat" + encode_caveat(caveat), "sha256")


def tag_of(secret: bytes, item: Item) -> bytes:
    """Go through the whole chain."""
    tag = first_tag(secret, item)
    for caveat in item["caveats"]:
        tag = next_tag(tag, caveat)
    return tag


def proof_of(tag: bytes, binding: bytes, link: int) -> bytes:
    """Prove that somebody holds the tag."""
    message = b"exoskel/1 possession" + binding + struct.pack(">I", link)
    return hmac.digest(tag, message, "sha256")


def is_genuine(
    secret: bytes, endpoint: str, key_id: str, right: bytes, binding: bytes, link: int
) -> bool:
    """Check the key and the proof of a right, as its endpoint does first."""
    item, proof = read_right(right)
    tag = tag_of(secret, item | {"endpoint": endpoint})
    return item["key_id"] == key_id and hmac.compare_digest(proof, proof_of(tag, binding, link))


def allowance(item: Item) -> Item:
    """Say what all caveats together allow."""
    values: dict[str, list[Any]] = {kind: [] for kind in CAVEATS}
    for kind, value in item["caveats"]:
        values[kind].append(value)
    handlers = [set(names) for names in values["handlers"]]
    return {
        "handlers": sorted(set.intersection(*handlers), key=str.encode) if handlers else None,
        "expires": min(values["expires"], default=None),
        "protection": max(values["protection"], key=PROTECTIONS.index, default="plain"),
    }
