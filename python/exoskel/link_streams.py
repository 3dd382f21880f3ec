"""Byte streams over links: `links.Stream`."""

from __future__ import annotations

import io
import logging
import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from . import _core
from .errors import ExoskelError, LinkError
from .link_arguments import bytes_of
from .link_failures import failure_of, with_reason
from .link_waiting import checked_seconds, driven, patiently
from .peer_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from typing_extensions import Buffer

_Outcome = TypeVar("_Outcome")
_READ_BYTES = 1 << 20
_log = logging.getLogger("exoskel.links")
# After so long the log says that a read waits, if nobody has said that the writing is over.
_UNFINISHED_SECONDS = 10.0
_UNFINISHED = (
    "this end has written and not called finish(), so the other end may wait for more as well"
)


class Stream(io.RawIOBase):
    """A byte stream to or from another program, as a file: read, write, iterate over lines, close.

    Each direction ends by itself: `finish` says that nothing more is written, and a read at the end of what the other end wrote returns
    no bytes. Who writes waits when the other end doesn't read. `io.BufferedReader`, `io.BufferedWriter` and `io.TextIOWrapper` go on top.

    Attributes
    ----------
    timeout : float or None
        How many seconds a read, a write or `close` waits at most. None waits without end.
    peer : str
        The name that the other end has proven, or has to prove.
    handler : str
        The stream's name.
    """

    def __init__(
        self,
        stream: _core.LinkStream,
        *,
        peer: str,
        handler: str,
        timeout: float | None = None,
        is_opener: bool = True,
        drive: Callable[[float], object] | None = None,
        owner: object = None,
        trouble: Callable[[], str | None] = lambda: None,
    ) -> None:
        super().__init__()
        self._stream = stream
        self._is_opener = is_opener
        self._drive = drive
        # The link stays open as long as somebody has the stream.
        self._owner = owner
        self._trouble = trouble
        self.peer = peer
        self.handler = handler
        self.timeout = timeout
        # What `readall` had read before it could not go on.
        self._kept = b""
        self._is_finished = False
        self._has_written = False
        # Whether it has said that there will be no end.
        self._is_cut = False
        # A failure of the stream that a read or a write has raised.
        self._told: Exception | None = None

    @property
    def timeout(self) -> float | None:
        """How many seconds a read, a write or `close` waits at most. None waits without end."""
        return self._timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._limit = checked_seconds(seconds)
        self._timeout = seconds

    def readable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Buffer) -> int:
        """Read what is here into a buffer, after waiting for some.

        Returns
        -------
        int
            How many bytes; 0 at the end.

        Raises
        ------
        TimeoutError
            If nothing came within `timeout` seconds. Nothing is lost: read again.
        HandlerError
            If the program at the other end failed.
        LinkError
            If the link or its session has ended.
        """
        self._check_open()
        view = bytes_of("buffer", buffer, "a bytearray or another contiguous buffer")
        if self._kept:
            count = min(len(view), len(self._kept))
            view[:count], self._kept = self._kept[:count], self._kept[count:]
            return count
        return self._wait(lambda left: self._stream.read_into(view, left), "read")

    def readall(self) -> bytes:
        """Read to the end.

        Returns
        -------
        bytes
            Everything. A beginning is never taken for the whole: what ends the reading is raised, and what came before it is kept. The
            next read returns that.

        Raises
        ------
        TimeoutError, HandlerError, LinkError
            As `readinto`.
        """
        parts = []
        room = bytearray(_READ_BYTES)
        try:
            while count := self.readinto(room):
                parts.append(bytes(memoryview(room)[:count]))
        except BaseException as error:
            kept = b"".join(parts)
            if isinstance(error, ExoskelError):
                # Who asks again after the failure wants what there is.
                if kept and self._is_cut:
                    return kept
                self._is_cut = True
            self._kept = kept
            raise
        return b"".join(parts)

    def read1(self, size: int = -1, /) -> bytes:
        """Return what is here, after waiting for some: up to `size` bytes."""
        room = bytearray(_READ_BYTES if size < 0 else size)
        return bytes(memoryview(room)[: self.readinto(room)])

    def peek(self, size: int = 1, /) -> bytes:
        """Return some of the bytes that are here, and leave them there."""
        self._check_open()
        return self._kept or self._stream.peek(max(size, 4096))

    def write(self, data: Buffer, /) -> int:
        """Write all bytes, waiting while the other end doesn't read.

        Returns
        -------
        int
            How many there were.

        Raises
        ------
        TimeoutError
            If there was no room for them within `timeout` seconds. The text says how many bytes were written.
        BrokenPipeError
            If the other end reads no more.
        HandlerError, LinkError
            As for `readinto`.
        """
        self._check_open()
        if self._is_finished:
            raise ValueError(
                f"got a write to {self.handler} of {self.peer} after finish(), which ended writing; reading goes on"
            )
        view = bytes_of(
            "data", data, "bytes or another contiguous buffer: text.encode() makes some"
        )
        self._has_written = True
        written = 0
        while written < len(view):
            try:
                written += self._wait(partial(self._stream.write, view[written:]), "write")
            except TimeoutError as error:
                raise TimeoutError(f"{error}: wrote {written} of {len(view)} bytes") from None
        return written

    def finish(self) -> None:
        """Say that nothing more is written. Reading goes on."""
        self._check_open()
        self._stream.finish()
        self._is_finished = True

    def close(self) -> None:
        """Write and read no more.

        At the end that has opened the stream, wait until the handler at the other end has ended: then it has done with what was written
        whatever it does.

        Raises
        ------
        TimeoutError
            If it has not within `timeout` seconds. What was written still arrives.
        HandlerError
            If the handler has raised, unless a read or a write has said so.
        LinkError
            If the link or its session has ended.
        """
        if self.closed:
            return
        super().close()
        self._stream.close()
        if self._is_opener and self._told is None:
            self._wait(lambda left: self._stream.flushed(left) or None, "close")

    def abort(self, reason: str = "the stream was given up") -> None:
        """End the stream in an error for the other end. What has not gone out is dropped."""
        self._fail(*failure_of(ConnectionError(reason)))

    def _fail(self, kind: str, text: str) -> None:
        if not self.closed:
            self._stream.fail(kind, text)
            super().close()

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("got a stream that is closed")

    def is_unread(self, error: BaseException) -> bool:
        """Return whether an exception is that of a write of this stream which nobody reads."""
        return isinstance(error, BrokenPipeError) and error is self._told

    def _may_be_awaited(self) -> bool:
        """Return whether the other end may still read, and wait for more."""
        return self._has_written and not self._is_finished

    def _wait(self, attempt: Callable[[float], _Outcome | None], verb: str) -> _Outcome:
        told_at = time.monotonic() + _UNFINISHED_SECONDS

        def once(left: float) -> _Outcome | None:
            nonlocal told_at
            if verb == "read" and time.monotonic() > told_at and self._may_be_awaited():
                told_at = math.inf
                _log.warning(
                    "a read of the stream %s with %s has waited for %g seconds: %s",
                    self.handler,
                    one_line(self.peer),
                    _UNFINISHED_SECONDS,
                    _UNFINISHED,
                )
            # The interpreter waits for a handler's thread, which may not run Python when there is none.
            if not self._is_opener and not threading.main_thread().is_alive():
                raise LinkError("the program is ending")
            return attempt(left)

        try:
            if self._drive is None:
                done = patiently(self._limit, once)
            else:
                done = driven(self._drive, self._limit, lambda: once(0.0))
        except (ExoskelError, BrokenPipeError) as error:
            self._told = error
            raise
        if done is None:
            text = f"could not {verb} {self.handler} of {self.peer} within {self.timeout:g} seconds"
            if verb == "read" and self._may_be_awaited():
                text = f"{text}; {_UNFINISHED}"
            raise TimeoutError(with_reason(text, self._trouble()))
        return done

    def __enter__(self) -> Self:
        """Return the stream; the end of the block closes it, and an exception that leaves the block aborts it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self._fail(*failure_of(error))

    def __del__(self) -> None:
        # A file's would close, and so wait. Without this reference, what was not closed is aborted.
        pass

    def __repr__(self) -> str:
        """Say where it leads."""
        state = "closed" if self.closed else "open"
        return f"<exoskel.links.Stream {self.handler} with {self.peer}: {state}>"
