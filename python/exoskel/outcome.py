"""How a task's exception travels: its pickle, and its traceback as text."""

import pickle
import traceback
from typing import Any

from .errors import ExoskelError, WorkerLostError, with_remote_traceback

__all__ = ["TaskError", "decode_exception", "encode_exception", "workers_lost"]


class TaskError(ExoskelError):
    """An exception of a task that could not travel itself; its text says which."""


def encode_exception(error: BaseException) -> bytes:
    """Return the pickle of an exception with its remote traceback.

    Parameters
    ----------
    error : BaseException
        What a task raised.

    Returns
    -------
    bytes
        The pickle of a triple: the exception's own pickle or None, its one-line text, its traceback as text. The inner pickle is
        bytes, so that the outer one is plain data whatever the exception is.
    """
    lines = "".join(traceback.format_exception(error))
    text = "".join(traceback.format_exception_only(error)).strip()
    inner: bytes | None
    try:
        inner = pickle.dumps(error, 5)
        pickle.loads(inner)
    except Exception:
        inner = _by_value(error)
    return pickle.dumps((inner, text, lines), 5)


def _by_value(error: BaseException) -> bytes | None:
    """Pickle an exception whose class the manager can't import (of the script itself, say)."""
    try:
        import cloudpickle

        inner: bytes = cloudpickle.dumps(error, 5)
        pickle.loads(inner)
    except Exception:
        return None
    return inner


def decode_exception(record: bytes, worker: str, restricted: bool) -> BaseException:
    """Return the exception that a task raised, with its remote traceback as cause.

    Parameters
    ----------
    record : bytes
        What `encode_exception` made, or a stranger.
    worker : str
        Where it comes from.
    restricted : bool
        Whether the worker is outside the trusted domains, so that only exceptions of known kinds are made.

    Returns
    -------
    BaseException
        The exception, or a `TaskError` with its text where it can't be made here.
    """
    from . import restricted as safe

    try:
        fields: Any = safe.loads(record, worker=worker)
        inner, text, lines = fields
        text, lines = str(text), str(lines)
    except Exception:
        return TaskError(f"worker {worker} sent an exception that can't be read")
    error: object = None
    if isinstance(inner, bytes):
        try:
            error = safe.loads(inner, worker=worker) if restricted else pickle.loads(inner)
        except Exception:
            error = None
    if isinstance(error, StopIteration | StopAsyncIteration):
        # Raised at the caller it would end the stream without a word (PEP 479).
        error = RuntimeError(f"the task raised {text}")
    if isinstance(error, StopIteration):
        # Raised by the stream's iterator, it would be the end of the stream (PEP 479).
        error = RuntimeError("the task raised StopIteration")
    elif not isinstance(error, Exception):
        error = TaskError(text)
    return with_remote_traceback(error, lines, worker)


def workers_lost(item: int, workers: int) -> WorkerLostError:
    """Return the outcome of an item that took down one worker after the other.

    Parameters
    ----------
    item : int
        Its place in the stream, from 0.
    workers : int
        How many workers were lost while it was the only item they had.

    Returns
    -------
    WorkerLostError
        The exception.
    """
    return WorkerLostError(
        f"item {item} took down {workers} worker{'s' if workers != 1 else ''} while it ran alone; it is not tried again "
        "(out of memory, a crash in native code, or the workers were ended from outside)",
        item=item,
        workers=workers,
    )
