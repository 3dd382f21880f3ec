"""What tasks print and log, on its way from a slot to the manager.

In a slot, `install` puts writers in the place of ``sys.stdout`` and ``sys.stderr`` which hand whole lines to the link. At the manager,
`present` prints them, marked with the worker. A flood is cut: what a task prints and logs must not take the wires from results.
"""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import TextIO

__all__ = ["TaskOutput", "finish_task", "forward_logging", "install", "present"]

Emit = Callable[[str, str], None]

# One slot may send this much at once, and as much again every second after that.
_BYTES_PER_SECOND = 64 * 1024
_BURST_BYTES = 256 * 1024
# A line without an end is cut into pieces of this many characters.
_LINE_CHARACTERS_MAX = 16 * 1024


class _Allowance:
    """How much a slot may still send: refilled with time, shared by all its streams."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(_BURST_BYTES)
        self._refilled = clock()
        self.lines_dropped = 0
        self.bytes_dropped = 0

    def take(self, text: str) -> bool:
        """Say whether a line may leave, and count it as dropped if not."""
        now = self._clock()
        self._left = min(_BURST_BYTES, self._left + (now - self._refilled) * _BYTES_PER_SECOND)
        self._refilled = now
        # After a cut, wait for some room: else every other line of a flood would come with a note of its own.
        least = _BYTES_PER_SECOND / 4 if self.lines_dropped else 0
        if self._left - len(text) < least:
            self.lines_dropped += max(1, text.count("\n"))
            self.bytes_dropped += len(text)
            return False
        self._left -= len(text)
        return True

    def note(self) -> str | None:
        """Say what was dropped since the last note."""
        if not self.lines_dropped:
            return None
        text = f"[output cut: {self.lines_dropped} lines, {self.bytes_dropped} bytes dropped]\n"
        self.lines_dropped = self.bytes_dropped = 0
        return text


class TaskOutput(io.TextIOBase):
    """A text stream that hands whole lines to a function.

    Parameters
    ----------
    stream : str
        Its name: ``"stdout"`` or ``"stderr"``.
    emit : callable
        Takes the name and the text of one or more lines; may be called from any thread that prints.
    allowance : object, optional
        Shared between the streams of a slot.
    original : file, optional
        The stream in whose place this one stands, for code that asks for a file descriptor.
    """

    # Of the binary side.
    encoding = "utf-8"
    errors = "replace"

    def __init__(
        self,
        stream: str,
        emit: Emit,
        *,
        allowance: _Allowance | None = None,
        original: TextIO | None = None,
    ) -> None:
        super().__init__()
        self._stream = stream
        self._emit = emit
        self._allowance = allowance or _Allowance()
        self._original = original
        self._partial = ""
        # Reentrant: a signal handler may print while its thread prints.
        self._lock = threading.RLock()
        self._buffer = _BinaryOutput(self)

    @property
    def buffer(self) -> _BinaryOutput:
        """The binary side, for code that writes bytes to ``sys.stdout.buffer``."""
        return self._buffer

    def writable(self) -> bool:
        """Return True."""
        return True

    def isatty(self) -> bool:
        """Return False: the terminal, if any, is the manager's."""
        return False

    def fileno(self) -> int:
        """Return the descriptor of the original stream, for subprocesses; what they write stays at the worker."""
        if self._original is None:
            raise io.UnsupportedOperation("fileno")
        return self._original.fileno()

    def write(self, text: str, /) -> int:
        """Take text; whole lines leave, the rest waits for its end."""
        if not isinstance(text, str):
            raise TypeError(f"got {type(text).__name__}, expected str")
        with self._lock:
            self._partial += text
            if "\n" in text:
                lines, _, self._partial = self._partial.rpartition("\n")
                self._send(lines + "\n")
            elif len(self._partial) > _LINE_CHARACTERS_MAX:
                self.finish_line()
        return len(text)

    def finish_line(self) -> None:
        """Send what waits for the end of its line; called when a task ends."""
        with self._lock:
            if self._partial:
                text, self._partial = self._partial, ""
                self._send(text + "\n")
            elif (note := self._allowance.note()) is not None:
                self._emit(self._stream, note)

    def _send(self, text: str) -> None:
        # In pieces, so that a large print loses its tail and not everything.
        for start in range(0, len(text), _LINE_CHARACTERS_MAX):
            piece = text[start : start + _LINE_CHARACTERS_MAX]
            dropped = self._allowance.lines_dropped
            if not self._allowance.take(piece):
                continue
            if dropped and (note := self._allowance.note()) is not None:
                piece = note + piece
            self._emit(self._stream, piece)


class _BinaryOutput(io.BufferedIOBase):
    """The binary side of a `TaskOutput`."""

    def __init__(self, text: TaskOutput) -> None:
        super().__init__()
        self._text = text

    def writable(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview, /) -> int:  # type: ignore[override]
        self._text.write(bytes(data).decode("utf-8", "replace"))
        return memoryview(data).nbytes


_installed: list[TaskOutput] = []
_log: TaskOutput | None = None


def install(emit: Emit) -> None:
    """Put writers in the place of ``sys.stdout`` and ``sys.stderr`` of this process.

    Parameters
    ----------
    emit : callable
        Takes ``"stdout"``, ``"stderr"`` or ``"log"``, and the text of one or more lines.
    """
    global _log
    allowance = _Allowance()
    stdout = TaskOutput("stdout", emit, allowance=allowance, original=sys.__stdout__)
    stderr = TaskOutput("stderr", emit, allowance=allowance, original=sys.__stderr__)
    log = TaskOutput("log", emit, allowance=allowance)
    _installed[:] = [stdout, stderr, log]
    sys.stdout, sys.stderr = stdout, stderr
    _log = log
    forward_logging()


def finish_task() -> None:
    """Send lines without an end, and forward logging if the task has loaded it; called after each task."""
    for output in _installed:
        output.finish_line()
    forward_logging()


def forward_logging() -> None:
    """Forward log records to the manager once `logging` is loaded; the slot itself has no use for it."""
    global _log
    if _log is None or "logging" not in sys.modules:
        return
    import logging

    log, _log = _log, None

    class Forwarder(logging.Handler):
        """Hands formatted records to the link."""

        def emit(self, record: logging.LogRecord) -> None:
            try:
                log.write(self.format(record) + "\n")
            except Exception:
                # As all handlers do: logging must not break the task that logs.
                self.handleError(record)

    handler = Forwarder()
    handler.setFormatter(logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.getLogger().addHandler(handler)


def present(worker: str, stream: str, text: str) -> None:
    """Print what a task printed, each line marked with its worker.

    Parameters
    ----------
    worker : str
        The name of the worker.
    stream : str
        ``"stdout"``, ``"stderr"`` or ``"log"``; the last two go to ``sys.stderr``.
    text : str
        One or more lines, as `_core` shows those of a machine that need not be trusted: everything that could drive a terminal is
        escaped, but for colours from workers that can run code here anyway.
    """
    # Looked up at each call: a progress bar or a notebook may have replaced them.
    target = sys.stdout if stream == "stdout" else sys.stderr
    if target is None:
        return
    # One write for all lines, so that those of several workers don't mix within a line.
    target.write("".join(f"[{worker}] {line}\n" for line in text.removesuffix("\n").split("\n")))
    target.flush()
