"""Cutting DER open and putting it together again, for what no command line will make."""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

SEQUENCE = 0x30
SET = 0x31
BIT_STRING = 0x03
OCTET_STRING = 0x04
BOOLEAN = 0x01


@dataclass(frozen=True)
class Value:
    """One tag with its content."""

    tag: int
    content: bytes

    def encode(self) -> bytes:
        """The bytes of this value, definite and shortest length."""
        return tlv(self.tag, self.content)

    def children(self) -> list[Value]:
        """The values inside a constructed one."""
        return read_all(self.content)


def tlv(tag: int, content: bytes) -> bytes:
    """A value's bytes."""
    size = len(content)
    if size < 0x80:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def sequence(*parts: bytes) -> bytes:
    """SEQUENCE of encoded parts."""
    return tlv(SEQUENCE, b"".join(parts))


def integer(number: int) -> bytes:
    """INTEGER of a number that isn't negative."""
    return tlv(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def read(data: bytes) -> tuple[Value, bytes]:
    """The first value, and the bytes after it."""
    tag, first = data[0], data[1]
    start = 2
    size = first
    if first >= 0x80:
        start = 2 + (first & 0x7F)
        size = int.from_bytes(data[2:start], "big")
    if start + size > len(data):
        raise ValueError(f"a value of {size} bytes in {len(data) - start}")
    return Value(tag, data[start : start + size]), data[start + size :]


def read_all(data: bytes) -> list[Value]:
    """All values that follow one another."""
    values = []
    while data:
        value, data = read(data)
        values.append(value)
    return values


def object_identifier(dotted: str) -> bytes:
    """An encoded OBJECT IDENTIFIER."""
    numbers = [int(part) for part in dotted.split(".")]
    content = bytes([numbers[0] * 40 + numbers[1]])
    for number in numbers[2:]:
        septets = [number & 0x7F]
        while number := number >> 7:
            septets.append(0x80 | (number & 0x7F))
        content += bytes(reversed(septets))
    return tlv(0x06, content)


def extension(dotted: str, value: bytes, *, critical: bool = False) -> bytes:
    """An X.509 Extension."""
    flag = [tlv(BOOLEAN, b"\xff")] if critical else []
    return sequence(object_identifier(dotted), *flag, tlv(OCTET_STRING, value))


def sign(content: bytes, key: Path, digest: str = "sha256") -> bytes:
    """A signature made by `openssl dgst`."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        command = ["openssl", "dgst", f"-{digest}", "-sign", str(key), file.name]
        return subprocess.run(command, check=True, capture_output=True).stdout


def signed_parts(data: bytes) -> tuple[Value, bytes, bytes]:
    """What was signed, the algorithm and the signature of a certificate, a CRL or an attribute certificate."""
    outer, rest = read(data)
    if rest:
        raise ValueError(f"{len(rest)} bytes after the signed value")
    body, algorithm, signature = outer.children()
    return body, algorithm.encode(), signature.content[1:]


def signed(body: bytes, algorithm: bytes, signature: bytes) -> bytes:
    """The three of them together again."""
    return sequence(body, algorithm, tlv(BIT_STRING, b"\0" + signature))


def signed_again(data: bytes, body: bytes, key: Path, digest: str = "sha256") -> bytes:
    """The same signed value with another body, and a signature that holds."""
    _, algorithm, _ = signed_parts(data)
    return signed(body, algorithm, sign(body, key, digest))


def with_spoilt_signature(data: bytes) -> bytes:
    """The same with one bit of the signature turned, which leaves the encoding sound."""
    body, algorithm, signature = signed_parts(data)
    return signed(body.encode(), algorithm, signature[:-1] + bytes([signature[-1] ^ 1]))


def common_name(data: bytes, string_tag: int = 0x0C) -> bytes:
    """An encoded AttributeTypeAndValue of a commonName."""
    return sequence(object_identifier("2.5.4.3"), tlv(string_tag, data))
