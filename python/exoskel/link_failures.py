"""What others and the log are told of a failure in `exoskel.links`: its class and its text, cut to what people read."""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from typing import TYPE_CHECKING

from .link_waiting import PATIENCE_SECONDS
from .peer_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._core import LinkNode

_log = logging.getLogger("exoskel.links")

# What of a failure's text travels, and what of each part of its traceback is logged.
_TEXT_MAX = 2000
_OWN_DIRECTORY = os.path.dirname(__file__)
# How many exceptions are logged that one comes of, or that one holds.
_EXCEPTIONS_MAX = 16


def with_reason(text: str, reason: str | None) -> str:
    """Return a text and its reason, if there is one. A peer may have said it."""
    return f"{text}: {one_line(reason)}" if reason else text


def log_warnings(node: LinkNode) -> None:
    """Log what is wrong with a node since this was called last. Its own thread can't: it runs no Python."""
    for warning in node.take_warnings():
        _log.warning("%s: %s", node.name, one_line(warning))


class WarningLog:
    """A thread that logs what is wrong with a node until it is closed, also while its program asks it for nothing."""

    def __init__(self, node: LinkNode, closed: threading.Event) -> None:
        self._node = node
        self._closed = closed
        self._thread = threading.Thread(target=self._run, name="exoskel-links-log")
        self._thread.start()

    def end(self) -> None:
        """Wait until the thread has ended, which it does when the node is closed."""
        if self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        # The interpreter waits for this thread, which may not run Python when there is none.
        while not self._closed.wait(PATIENCE_SECONDS) and threading.main_thread().is_alive():
            log_warnings(self._node)


def failure_of(error: BaseException) -> tuple[str, str]:
    """Return the class and the text of an exception, as they travel. Whatever the exception does, this raises nothing."""
    try:
        text = str(error)[:_TEXT_MAX]
        # Loaded by who is confined.
        confining = sys.modules.get(f"{__package__}.confining")
        if confining is not None and (why := confining.reason_of(error)):
            text = f"{text[: max(0, _TEXT_MAX - len(why) - 3)]} ({why})"
    except BaseException as fault:
        text = f"its text can't be made: {type(fault).__name__}"
    return _sendable(_kind_of(type(error))), _sendable(text[:_TEXT_MAX])


def _kind_of(kind: type[BaseException]) -> str:
    """Return the name of a class, with its module but for builtins, as `exoskel.TaskError.kind` has it."""
    name = kind.__qualname__
    return name if kind.__module__ == "builtins" else f"{kind.__module__}.{name}"


def traceback_of(error: BaseException) -> str:
    """Return the lines of an exception for the log.

    Its text may be a peer's: it drives no terminal, and begins no line of its own.
    """
    try:
        told = traceback.TracebackException.from_exception(error)
        return "\n".join(_lines(told, 0)).rstrip("\n")
    except BaseException as fault:
        return f"{type(error).__name__}: its text can't be made: {type(fault).__name__}"


def _lines(told: traceback.TracebackException, depth: int) -> Iterator[str]:
    cause = told.__cause__
    context = None if told.__suppress_context__ else told.__context__
    if (before := cause or context) is not None and depth < _EXCEPTIONS_MAX:
        yield from _lines(before, depth + 1)
        yield "while that was handled:" if cause is None else "that is the cause of:"
    # What happens in here is no news to who wrote the handler.
    frames = [frame for frame in told.stack if os.path.dirname(frame.filename) != _OWN_DIRECTORY]
    if frames:
        yield "Traceback (most recent call last):"
    for line in traceback.StackSummary.from_list(frames).format():
        yield from map(_shown, line.rstrip("\n").split("\n"))
    # A part is a line, whatever line ends its text has; notes would come as lines.
    notes, told.__notes__ = told.__notes__, None
    yield from (_shown(part.rstrip("\n")) for part in told.format_exception_only())
    if isinstance(notes, list):
        yield from (f"  note: {_shown(str(note))}" for note in notes)
    if depth < _EXCEPTIONS_MAX:
        for member in (told.exceptions or [])[:_EXCEPTIONS_MAX]:
            yield from (f"  | {line}" for line in _lines(member, depth + 1))


def _shown(text: str) -> str:
    return one_line(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}...")


def _sendable(text: str) -> str:
    # Half a surrogate is no text that travels.
    return text.encode("utf-8", "backslashreplace").decode()
