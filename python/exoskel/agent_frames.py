"""What a host's daemon says to the creator of a job over the stream by which that has asked for an agent.

The creator's side of the stream is what it says to the agent, as it is. The other side has frames: a kind, a length, and so many bytes.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from .errors import LinkError

if TYPE_CHECKING:
    import io

__all__ = ["CHANNEL", "END", "OUTPUT", "REFUSED", "frame", "read_frame"]

# What the agent says to the creator; what it and its processes print; why none was started; how it has ended.
CHANNEL, OUTPUT, REFUSED, END = 1, 2, 3, 4
_HEAD = struct.Struct("!BI")
_BYTES_MAX = 64 << 10


def frame(kind: int, contents: bytes) -> bytes:
    """Return a frame."""
    return _HEAD.pack(kind, len(contents)) + contents


def read_frame(stream: io.RawIOBase | io.BufferedIOBase) -> tuple[int, bytes] | None:
    """Return the next frame; None at the end.

    Raises
    ------
    LinkError
        If it is none.
    """
    head = _exactly(stream, _HEAD.size)
    if head is None:
        return None
    kind, length = _HEAD.unpack(head)
    if length > _BYTES_MAX:
        raise LinkError(f"got a frame of {length} bytes, expected at most {_BYTES_MAX}")
    contents = _exactly(stream, length) if length else b""
    return None if contents is None else (kind, contents)


def _exactly(stream: io.RawIOBase | io.BufferedIOBase, length: int) -> bytes | None:
    """Return so many bytes; None if the stream ends before."""
    parts = bytearray()
    while len(parts) < length:
        part = stream.read(length - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)
