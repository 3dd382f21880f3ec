"""Text that another machine chose, made safe to show.

It can't drive a terminal, turn the direction of what follows, or begin a line of its own.
"""

from __future__ import annotations

__all__ = ["one_line"]


def one_line(text: str) -> str:
    r"""Return a text on one line, with everything escaped that isn't printable.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    str
        The text. Controls, line ends, marks of direction, odd spaces and surrogates stand as escapes such as ``\n``.
    """
    if text.isprintable():
        return text
    # `ascii`, because a codec would be imported when it is first needed: when a stranger wishes.
    return "".join(
        character if character.isprintable() else ascii(character)[1:-1] for character in text
    )
