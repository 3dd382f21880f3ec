"""What `ssh` is asked for, and what its failures mean: for whatever brings something to hosts over the OpenSSH client."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SSH", "hint_of", "python_words"]

# It never asks for anything, and gives up a host that says nothing.
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
# Its own failures, and what a shell says of a program that isn't there.
_FAILED, _NOT_FOUND = 255, 127


def python_words(python: str, words: Sequence[str]) -> str:
    """Return the words for a host's shell that run its Python, quoted.

    Parameters
    ----------
    python : str
        The Python; ``~/`` before it stands for the home there.
    words : sequence of str
        What it gets.
    """
    rest = shlex.join(words)
    # Within quotes the shell of the host would take it for a name.
    home = '"$HOME"/' if python.startswith("~/") else ""
    return f"{home}{shlex.quote(python.removeprefix('~/') if home else python)} {rest}"


def hint_of(code: int, last: str, python: str, option: str) -> str:
    """Return what to look at after a failure, in brackets; nothing if its words say it all.

    Parameters
    ----------
    code : int
        The exit code.
    last : str
        What was said last.
    python : str
        The Python of the host.
    option : str
        Where the user says which one that is.
    """
    # Its own prefix stands before what hinders the connection; then nobody has looked at a key yet.
    if code == _FAILED and not last.startswith("ssh: "):
        return " (does `ssh` to it work without a password?)"
    if code == _NOT_FOUND:
        return f" (is {python} there? see {option})"
    if "No module named exoskel" in last or "No module named 'exoskel'" in last:
        return f" (is Exoskel installed for {python}?)"
    return ""
