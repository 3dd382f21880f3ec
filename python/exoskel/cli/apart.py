"""What is done in a child of its own, since it sees secrets: their copies end with its memory."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import TypeVar

__all__ = ["in_child"]

_T = TypeVar("_T")


def in_child(function: Callable[[], _T]) -> _T:
    """Call a function in a forked child, and return what it returns there, or raise what it raises.

    Parameters
    ----------
    function : callable
        Takes nothing. Result and exception must be such that they can be pickled.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            outcome = pickle.dumps((True, function()))
        except BaseException as error:
            outcome = pickle.dumps((False, error))
        with os.fdopen(writer, "wb") as file:
            file.write(outcome)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        outcome = file.read()
    os.waitpid(child, 0)
    if not outcome:
        raise RuntimeError(
            "the process that was to check the worker's files has ended before it said anything"
        )
    good, what = pickle.loads(outcome)
    if not good:
        raise what
    found: _T = what
    return found
