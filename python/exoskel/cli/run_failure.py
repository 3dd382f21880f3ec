"""How ``exoskel run`` says what has ended it: which item, which exception, and where in the user's own code."""

from __future__ import annotations

import os
import traceback
from types import TracebackType

from ..errors import ExoskelError, RemoteTraceback

__all__ = ["explained"]

_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def explained(error: Exception) -> Exception:
    """Return the error to report for an exception: the exception itself, unless it comes from the user's own code or is about an item.

    Parameters
    ----------
    error : Exception
        What a run, or the loading of its file, has raised.

    Returns
    -------
    Exception
        That one, or one whose text begins with the item, the class and the message, and goes on with the traceback.
    """
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    trace = _trace_of(error)
    if not notes and not trace and not isinstance(error, ImportError | SyntaxError):
        return error
    lines = traceback.format_exception_only(type(error), error)
    # Without its notes: they come first.
    said = "".join(lines if isinstance(error, SyntaxError) else lines[:1]).strip()
    # A class of the user's file is known by its own name there.
    said = said.removeprefix("__mp_main__.")
    return ExoskelError("\n".join([": ".join([*notes, said]), *trace]))


def _trace_of(error: Exception) -> list[str]:
    """Return the lines of the traceback in the user's code: at the slot, or here."""
    if isinstance(error.__cause__, RemoteTraceback):
        lines = str(error.__cause__).strip().splitlines()
        return [line.removeprefix("__mp_main__.") for line in lines]
    if (own := _own_part(error.__traceback__)) is None:
        return []
    return ["Traceback (most recent call last):", *"".join(traceback.format_tb(own)).splitlines()]


def _own_part(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that follows on our own frames; None if it ends in one of ours."""
    own = None
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith((_OURS, "<frozen ")):
            own = None
        elif own is None:
            own = trace
        trace = trace.tb_next
    return own
