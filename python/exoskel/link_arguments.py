"""What people give to `exoskel.links`, checked where it is given: errors name the argument, what was got and what is expected."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from ._core import Startpoint
from .errors import StartpointError
from .link_waiting import checked_seconds


class _NotSaid(tuple[str, ...]):
    """No holders at all: somebody who has computed an empty list means something else."""


NOT_SAID: tuple[str, ...] = _NotSaid()
_SCHEME = "exo://"
# Of a text that is no startpoint: whatever else it is, not all of it is shown.
_SHOWN_CHARACTERS = 24


def checked_text(name: str, given: object) -> str:
    """Refuse what is no text."""
    if not isinstance(given, str):
        raise TypeError(f"got {name}={given!r}, expected text")
    return given


def checked_flag(name: str, given: object) -> bool:
    """Refuse what is neither True nor False: it means something else, perhaps a number."""
    if not isinstance(given, bool):
        raise TypeError(f"got {name}={given!r}, expected True or False")
    return given


def several(name: str, given: str | Iterable[str]) -> list[str]:
    """Return one text or several as a list."""
    if isinstance(given, str):
        return [given]
    found = list(given) if isinstance(given, Iterable) else [given]
    if not all(isinstance(one, str) for one in found):
        raise TypeError(f"got {name}={given!r}, expected text or an iterable of texts")
    return found


def checked_name(what: str, name: object) -> None:
    """Refuse a name that people can't tell from others in policies and logs."""
    if not isinstance(name, str):
        raise TypeError(f"got {name!r} as the {what}'s name, expected text")
    if not name or not name.isprintable() or any(character.isspace() for character in name):
        raise ValueError(
            f"got {name!r} as the {what}'s name, expected one or more characters, none of them a space or a control character"
        )


def bytes_of(name: str, given: Any, expected: str) -> memoryview:
    """Return the memory of a buffer."""
    try:
        return memoryview(given).cast("B")
    except TypeError:
        raise not_expected(name, given, expected) from None


def contents_of(
    arguments: tuple[Any, ...], keywords: dict[str, Any], mark: int | None
) -> list[Any]:
    """Return what a call has in it: its arguments, and the stream of the task that makes it, if a manager's task does."""
    contents = [list(arguments), keywords]
    return contents if mark is None else [*contents, mark]


def not_expected(name: str, given: object, expected: str) -> TypeError:
    """Return the error for an argument whose contents are nobody else's business."""
    return TypeError(f"got an instance of {type(given).__name__} for `{name}`, expected {expected}")


def as_startpoint(given: object) -> Startpoint:
    """Return a startpoint, or that of a text."""
    if isinstance(given, Startpoint):
        return given
    if not isinstance(given, str):
        # Its text may be a secret.
        raise TypeError(
            f"got an instance of {type(given).__name__}, expected a Startpoint or its text"
        )
    text = given.strip()
    if text.startswith(_SCHEME):
        return Startpoint.parse(text)
    if os.path.isfile(text):
        raise StartpointError(
            f"got {text!r}, the name of a file, expected what it holds: pathlib.Path({text!r}).read_text()"
        )
    shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."
    raise StartpointError(f"got {shown!r}, expected a text that begins with {_SCHEME}")


def said_startpoint(text: str) -> Startpoint:
    """Return the startpoint of a text that a peer has said, which is a `StartpointError` if it is none. Nothing is looked for on this host."""
    try:
        return Startpoint.parse(text)
    except StartpointError:
        raise
    except ValueError as error:
        # It has half a character, say.
        raise StartpointError(f"got a text that is no startpoint: {error}") from error


def restrictions(
    to: str | Iterable[str],
    handlers: str | Iterable[str] | None,
    expires: float | None,
    protection: str | None,
) -> dict[str, Any]:
    """Return what a startpoint is restricted to. Its end is in seconds from now."""
    names = None if handlers is None else several("handlers", handlers)
    if names == []:
        raise StartpointError(
            "got no handlers, expected at least one: leave `handlers` out for all of them"
        )
    holders = None if to is NOT_SAID else several("to", to)
    if holders == []:
        raise StartpointError(
            "got to=[], expected at least one holder: leave `to` out to say nothing more of them"
        )
    return {
        "to": holders,
        "handlers": names,
        "expires": checked_seconds(expires, "expires", is_zero_allowed=False),
        "protection": None if protection is None else checked_text("protection", protection),
    }
