"""What confined code in slots prints past its manager: with file descriptors, and by programs that it starts.

The worker's own standard output and error may be a file, which whoever has it can cut, or a terminal, where others type. So a slot that confines
itself has a stream to the supervisor in the place of both. What comes there is a stranger's: it stands in the log escaped, behind the slot's number,
and no more of it than an owner can read.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from functools import partial

from ..peer_text import one_line
from ..worker_log import WorkerLog

__all__ = ["SlotOutput"]

# Longer than any line of a slot's own, as the log cuts lines.
_MESSAGE_BYTES_MAX = 4096
# A line that doesn't end is cut into pieces of so many bytes.
_LINE_BYTES_MAX = 1024
_READ_BYTES = 64 << 10
# Of one slot, so many lines at once, and so many a second after that.
_LINES_MAX, _LINES_EACH_SECOND = 64, 4


class SlotOutput:
    """Reads what slots say, and what the code in them prints.

    Parameters
    ----------
    selector : selectors.BaseSelector
        It has what is to be called beside each descriptor of this.
    log : WorkerLog
        Where all goes.
    """

    def __init__(self, selector: selectors.BaseSelector, log: WorkerLog) -> None:
        self._selector = selector
        self._log = log
        # Each slot has the second one until it runs foreign code: what comes there is its own word.
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._streams: set[_Stream] = set()
        selector.register(self._ours, selectors.EVENT_READ, self._hear)

    def _hear(self) -> None:
        """Take a line of a slot, or the stream of one that has become its own, with the slot's number."""
        with contextlib.suppress(BlockingIOError):
            message, descriptors, *_ = socket.recv_fds(self._ours, _MESSAGE_BYTES_MAX, 1)
            text = message.decode(errors="replace").removesuffix("\n")
            for descriptor in descriptors:
                stream = _Stream(socket.socket(fileno=descriptor), text, self._log)
                self._streams.add(stream)
                self._selector.register(
                    stream.connection, selectors.EVENT_READ, partial(self._read, stream)
                )
            if not descriptors:
                self._log.write(text)

    def _read(self, stream: _Stream) -> None:
        if not stream.read():
            self._streams.discard(stream)
            self._selector.unregister(stream.connection)
            stream.connection.close()

    def close(self) -> None:
        """Read what is there, and end."""
        self._hear()
        for stream in list(self._streams):
            self._read(stream)
        for stream in self._streams:
            self._selector.unregister(stream.connection)
            stream.connection.close()
        self._selector.unregister(self._ours)
        self._ours.close()
        self.theirs.close()


class _Stream:
    """What the code in one slot prints."""

    def __init__(self, connection: socket.socket, slot: str, log: WorkerLog) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._before = f"[slot {slot}] "
        self._log = log
        self._line = b""
        self._may_be = float(_LINES_MAX)
        self._counted_at = time.monotonic()
        self._left_out = 0

    def read(self) -> bool:
        """Take what is there. Say whether there may be more."""
        try:
            part = self.connection.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            part = b""
        *lines, self._line = (self._line + part).split(b"\n")
        while len(self._line) >= _LINE_BYTES_MAX:
            lines.append(self._line[:_LINE_BYTES_MAX])
            self._line = self._line[_LINE_BYTES_MAX:]
        if not part and self._line:
            lines.append(self._line)
        for line in lines:
            self._write(line)
        if not part:
            self._tell_left_out()
        return bool(part)

    def _write(self, line: bytes) -> None:
        now = time.monotonic()
        earned = (now - self._counted_at) * _LINES_EACH_SECOND
        self._may_be, self._counted_at = min(_LINES_MAX, self._may_be + earned), now
        if self._may_be < 1:
            self._left_out += 1
            return
        self._tell_left_out()
        self._may_be -= 1
        text = line[:_LINE_BYTES_MAX].decode(errors="replace")
        self._log.write(self._before + one_line(text))

    def _tell_left_out(self) -> None:
        if self._left_out:
            self._log.write(f"{self._before}({self._left_out} lines before this were left out)")
            self._left_out = 0
