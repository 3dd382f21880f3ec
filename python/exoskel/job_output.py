"""What processes of a job print: from a process to its agent, and from an agent to the job's creator.

Where several processes were started together, an agent reads what each prints and passes it on by whole lines, with its rank before each.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import os
import select
import selectors
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "LINE_BYTES_MAX",
    "LinePrinter",
    "OutputWriter",
    "Pipe",
    "check_label",
    "label_of",
    "output_writers",
]

# A line without an end is cut into pieces of so many bytes.
LINE_BYTES_MAX = 16 << 10
_READ_BYTES = 64 << 10
_LABEL_CHARACTERS_MAX = 64
# What waits to be read by others before no more is taken.
_WAITING_BYTES_MAX = 1 << 20


def label_of(label: bool | str | None, count: int) -> str | None:
    """Return what stands before the ranks of processes; None if nothing stands before what they print.

    Parameters
    ----------
    label : bool or str, optional
        What was asked for: ranks, ranks with a text before them, or ranks where there are several processes.
    count : int
        How many processes are started together.

    Raises
    ------
    ValueError
        If it can stand before no line.
    """
    if label is None:
        label = count > 1
    if isinstance(label, bool):
        return "" if label else None
    check_label(label)
    return label


def check_label(label: Any) -> None:
    """See that this can stand before a line.

    Raises
    ------
    ValueError
        If it can't.
    """
    is_text = isinstance(label, str) and len(label) <= _LABEL_CHARACTERS_MAX
    if not is_text or not label.isprintable():
        raise ValueError(
            f"got label={label!r}, expected True, False or a word of at most {_LABEL_CHARACTERS_MAX} characters that can be printed"
        )


class OutputWriter:
    """Where an agent passes on what processes print. It never waits for who reads that: a stopped terminal stops what prints, and nothing else.

    Parameters
    ----------
    descriptor : int
        Where it writes.
    selector : selectors.BaseSelector
        It calls what stands beside a descriptor with what has happened.
    """

    def __init__(self, descriptor: int, selector: selectors.BaseSelector) -> None:
        self._descriptor = descriptor
        self._selector = selector
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self._waiting = bytearray()
        self._is_watched = False
        self._held_up: list[Callable[[], None]] = []

    @property
    def is_full(self) -> bool:
        """Whether so much waits that nothing more is to be read for it."""
        return len(self._waiting) >= _WAITING_BYTES_MAX

    def when_free(self, resume: Callable[[], None]) -> None:
        """Call a function when it is full no more."""
        self._held_up.append(resume)

    def write(self, text: bytes) -> None:
        """Pass something on, now or later."""
        self._waiting += text
        self._flush()

    def finish(self, seconds: float) -> None:
        """Wait until all has gone, for so many seconds at most."""
        until = time.monotonic() + seconds
        while self._waiting and (left := until - time.monotonic()) > 0:
            self._ready.poll(left * 1000)
            self._flush()
        self._watch(is_due=False)

    def _flush(self, _events: int = 0) -> None:
        # So much has room in a pipe that takes anything.
        while self._waiting and self._ready.poll(0):
            try:
                count = os.write(self._descriptor, self._waiting[: select.PIPE_BUF])
            except BlockingIOError:
                break
            except OSError:
                # Nobody is left who reads it.
                count = len(self._waiting)
            del self._waiting[:count]
        self._watch(is_due=bool(self._waiting))
        if self._held_up and not self.is_full:
            held_up, self._held_up = self._held_up, []
            for resume in held_up:
                resume()

    def _watch(self, *, is_due: bool) -> None:
        if is_due and not self._is_watched:
            self._selector.register(self._descriptor, selectors.EVENT_WRITE, self._flush)
        elif self._is_watched and not is_due:
            self._selector.unregister(self._descriptor)
        self._is_watched = is_due


def output_writers(selector: selectors.BaseSelector) -> tuple[OutputWriter, OutputWriter]:
    """Return where this process's standard output and error lead to: one and the same, where they are, so that lines don't mix."""
    first, second = (os.fstat(descriptor) for descriptor in (1, 2))
    errors = OutputWriter(2, selector)
    is_same = (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
    return (errors if is_same else OutputWriter(1, selector)), errors


class Pipe:
    """The standard output or error of a process, as its agent reads it and passes it on.

    Parameters
    ----------
    descriptor : int
        Where it is read, without waiting.
    writer : OutputWriter
        Where it goes on.
    before : str, optional
        What stands before each line; lines aren't looked at without it.
    kept_bytes : int
        How much of its end is kept.
    """

    def __init__(
        self,
        descriptor: int,
        writer: OutputWriter,
        before: str | None = None,
        *,
        kept_bytes: int = 0,
    ) -> None:
        os.set_blocking(descriptor, False)
        #: None when it has been read to its end.
        self.descriptor: int | None = descriptor
        self.kept = b""
        self.writer = writer
        self._before = None if before is None else before.encode()
        self._kept_bytes = kept_bytes
        self._line = b""

    def read(self) -> int | None:
        """Pass on what is there, and return how much; None if there is nothing yet. At its end, which is 0, it is closed."""
        if self.descriptor is None:
            return 0
        try:
            part = os.read(self.descriptor, _READ_BYTES)
        except BlockingIOError:
            return None
        if not part:
            os.close(self.descriptor)
            self.descriptor = None
            self.finish_line()
            return 0
        if self._kept_bytes:
            self.kept = (self.kept + part)[-self._kept_bytes :]
        if self._before is None:
            self.writer.write(part)
            return len(part)
        *lines, self._line = (self._line + part).split(b"\n")
        while len(self._line) >= LINE_BYTES_MAX:
            lines.append(self._line[:LINE_BYTES_MAX])
            self._line = self._line[LINE_BYTES_MAX:]
        self.writer.write(b"".join(self._before + line + b"\n" for line in lines))
        return len(part)

    def finish_line(self) -> None:
        """Pass on the beginning of a line that nobody ends."""
        if self._line and self._before is not None:
            line, self._line = self._line, b""
            self.writer.write(self._before + line + b"\n")

    def capacity(self) -> int:
        """Return how much can be in it."""
        if self.descriptor is None:
            return 0
        found: int = fcntl.fcntl(self.descriptor, fcntl.F_GETPIPE_SZ)
        return found


class LinePrinter:
    """Prints what an agent says where this program's errors go.

    Parameters
    ----------
    is_alone : bool
        Whether it is the only agent. The lines of several don't mix, so each waits for its end.
    """

    def __init__(self, *, is_alone: bool = False) -> None:
        self._is_alone = is_alone
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""

    def take(self, part: bytes) -> None:
        """Print the lines that end here."""
        text = self._line + self._decoder.decode(part)
        # What draws progress goes back to the begin of its line.
        end = max(text.rfind("\n"), text.rfind("\r")) + 1
        if self._is_alone or len(text) - end >= LINE_BYTES_MAX:
            end = len(text)
        self._line = text[end:]
        _print(text[:end])

    def finish(self) -> None:
        """Print the beginning of a line that nobody ends."""
        line, self._line = self._line + self._decoder.decode(b"", final=True), ""
        _print(line if self._is_alone or not line else f"{line}\n")


def _print(text: str) -> None:
    # One write for all lines. A program may have closed its own.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        if text:
            sys.stderr.write(text)
            sys.stderr.flush()
