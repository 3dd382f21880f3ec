"""What others and the log are told of a failure in `exoskel.links`: its class and its text, cut to what people read."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from .peer_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator

# What of a failure's text travels, and what of each part of its traceback is logged.
_TEXT_MAX = 2000
# How many exceptions are logged that one comes of, or that one holds.
_EXCEPTIONS_MAX = 16


def failure_of(error: BaseException) -> tuple[str, str]:
    """Return the class and the text of an exception, as they travel. Whatever the exception does, this raises nothing."""
    try:
        text = str(error)
    except BaseException as fault:
        text = f"its text can't be made: {type(fault).__name__}"
    return type(error).__name__, _sendable(text[:_TEXT_MAX])


def traceback_of(error: BaseException) -> str:
    """Return the lines of an exception for the log.

    Its text may be a peer's: it drives no terminal, and begins no line of its own.
    """
    try:
        told = traceback.TracebackException.from_exception(error)
        return "\n".join(_lines(told, 0)) + "\n"
    except BaseException as fault:
        return f"{type(error).__name__}: its text can't be made: {type(fault).__name__}\n"


def _lines(told: traceback.TracebackException, depth: int) -> Iterator[str]:
    cause = told.__cause__
    context = None if told.__suppress_context__ else told.__context__
    if (before := cause or context) is not None and depth < _EXCEPTIONS_MAX:
        yield from _lines(before, depth + 1)
        yield "while that was handled:" if cause is None else "that is the cause of:"
    if told.stack:
        yield "Traceback (most recent call last):"
    for frame in told.stack.format():
        yield from map(_shown, frame.rstrip("\n").split("\n"))
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
