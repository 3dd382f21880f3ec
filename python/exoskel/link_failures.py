"""What others and the log are told of a failure in `exoskel.links`: its class and its text, cut to what people read."""

from __future__ import annotations

import traceback

# What of a failure's text travels, and what of each part of its traceback is logged.
_TEXT_MAX = 2000


def failure_of(error: BaseException) -> tuple[str, str]:
    """Return the class and the text of an exception, as they travel. Whatever the exception does, this raises nothing."""
    try:
        text = str(error)
    except BaseException as fault:
        text = f"its text can't be made: {type(fault).__name__}"
    return type(error).__name__, _sendable(text[:_TEXT_MAX])


def traceback_of(error: BaseException) -> str:
    """Return the lines of an exception for the log."""
    parts = traceback.format_exception(error)
    return "".join(part if len(part) <= _TEXT_MAX else f"{part[:_TEXT_MAX]}...\n" for part in parts)


def _sendable(text: str) -> str:
    # Half a surrogate is no text that travels.
    return text.encode("utf-8", "backslashreplace").decode()
