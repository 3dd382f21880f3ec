"""The exceptions of Exoskel.

Every one derives from `ExoskelError` and from the builtin exception that callers already catch for that kind of trouble, so that
``except ConnectionError`` or ``except ValueError`` keep working. The text says what happened, what was expected, and who must act.
"""

from __future__ import annotations

__all__ = [
    "AuthenticationError",
    "CouplingError",
    "CredentialError",
    "ExoskelError",
    "ForkError",
    "InitializerError",
    "ItemTimeoutError",
    "JournalError",
    "KeeperError",
    "KeyMemoryError",
    "LinkError",
    "MemberLostError",
    "NoAddressError",
    "NoWorkerError",
    "PolicyError",
    "ProcessEndedError",
    "ProgramError",
    "ProgramLeftError",
    "RefusedError",
    "RemoteTraceback",
    "ResultRejectedError",
    "SharedLostError",
    "SizeLimitError",
    "StartpointError",
    "TaskError",
    "VersionError",
    "WorkerLostError",
    "with_remote_traceback",
]

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import TypeVar

    _Raised = TypeVar("_Raised", bound=BaseException)


class ExoskelError(Exception):
    """Base of all exceptions that Exoskel itself raises.

    Attributes
    ----------
    place : str or None
        The address of the worker that was tried, as it was given; the host of a worker that dialled in; or ``"local worker 1"`` for a
        child process. None unless the error is one of `NoWorkerError.attempts`.
    """

    place: str | None = None


class WorkerLostError(ExoskelError, RuntimeError):
    """An item or a call was lost with its worker, alone on it, as often as retries are allowed.

    Parameters
    ----------
    message : str
        What happened.
    item : int, optional
        The index of the item in its stream. A call of an `Executor` has none.
    workers : int
        How many workers were lost while they ran it.
    """

    def __init__(self, message: str = "", *, item: int | None = None, workers: int = 0) -> None:
        super().__init__(message)
        self.item = item
        self.workers = workers


class ItemTimeoutError(ExoskelError, TimeoutError):
    """An item or a call ran longer than ``timeout`` allows."""


class LinkError(ExoskelError, ConnectionError):
    """There is no connection, or a link or its session failed, or the other side closed it."""


class NoAddressError(LinkError):
    """Nothing says where a node is: neither a startpoint's hints nor a site file, and there is no session with the node."""


class StartpointError(ExoskelError, ValueError):
    """A startpoint that can't be read, made or narrowed; the text says what is wrong with it, and who can give a better one."""


class AuthenticationError(LinkError):
    """One of two sides could not prove to the other who it is; trying again does not help."""


class RefusedError(LinkError):
    """A peer proved who it is, and one of the two sides refused it by its rules; the text holds the reason."""


class VersionError(LinkError):
    """Two sides run versions (of the protocol or of Python) that don't go together."""


class NoWorkerError(ExoskelError, ConnectionError):
    """No worker could be reached in the time allowed, or none is left.

    `attempts` says why, and so does the text.

    Parameters
    ----------
    message : str
        What happened, with a line for each place.
    attempts : iterable of ExoskelError
        For each place that was tried the error of the last attempt there. Each has the place as its ``place``. Mostly one of
        `AuthenticationError` (wrong name, authority or certificate), `RefusedError` (the rules of one side, or modules that the
        worker lacks), `VersionError`, or another `LinkError` (nobody listens there, or the connection broke).
    """

    def __init__(self, message: str = "", *, attempts: Iterable[ExoskelError] = ()) -> None:
        super().__init__(message)
        self.attempts: tuple[ExoskelError, ...] = tuple(attempts)


class InitializerError(NoWorkerError):
    """The initializer raised in slots, and no slot is left to work; the text names the exception.

    The futures of an `Executor` raise one that is a `concurrent.futures.BrokenExecutor` as well.
    """


class PolicyError(ExoskelError, ValueError):
    """A policy file can't be read or contradicts itself; the text names the line."""


class CredentialError(ExoskelError, ValueError):
    """A credential file can't be used: unreadable, expired, incomplete, or readable by others."""


class ProgramError(ExoskelError, TypeError):
    """A program can't run as it is: a function or a result can't be pickled, or the skeleton is nested too deep."""


class ResultRejectedError(ExoskelError, ValueError):
    """An answer of a worker outside the trusted domains holds something that is not plain data, or passes a limit."""


class SharedLostError(ExoskelError, LookupError):
    """A `Shared` that a task uses isn't there any more: it was closed, or everybody who held it is gone."""


class TaskError(ExoskelError, RuntimeError):
    """An exception of a task whose class can't be raised here; its text begins with the class.

    The class is not known here, or it is no `Exception`, such as `SystemExit` or `KeyboardInterrupt`: raised here it would end more than
    the item. ``sys.exit`` in a task ends the item, and neither the slot nor the program that waits for the result.

    Parameters
    ----------
    message : str
        The name of the class and the text of the exception.
    kind : str
        The name of the class, with its module but for builtins.
    """

    def __init__(self, message: str = "", *, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class SizeLimitError(ExoskelError, ValueError):
    """An item, a call with its arguments, or a result is larger than the limit for one message."""


class ForkError(ExoskelError, RuntimeError):
    """A manager or an executor was used in a forked child of the process that made it."""


class KeyMemoryError(ExoskelError, OSError):
    """The kernel gives no memory for keys of the kind that was asked for."""


class CouplingError(ExoskelError, ValueError):
    """Arrays of two programs can't be connected as the coupling's file says, or a program is not what it says; the text names both sides."""


class JournalError(ExoskelError, ValueError):
    """A run can't go on from its journal: that is damaged, in use, or of another program, source or sink. Nothing was changed."""


class KeeperError(ExoskelError, ConnectionError):
    """There is no keeper on this host, or it has ended; the text holds the command that starts one."""


class MemberLostError(ExoskelError, ConnectionError):
    """A process of a coupled program was lost: of several the first one. What would have been read is of no version."""


class ProcessEndedError(ExoskelError, ConnectionError):
    """A process of a job has ended, or could not be started, and was still wanted.

    Attributes
    ----------
    number : int or None
        Which process of its job it was; None for what starts processes.
    host : str or None
        Where it ran.
    exit_code : int or None
        Its exit code, or the negative number of the signal that has ended it; None if it could not be started.
    """

    def __init__(
        self,
        text: str,
        number: int | None = None,
        host: str | None = None,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(text)
        self.number = number
        self.host = host
        self.exit_code = exit_code


class ProgramLeftError(ExoskelError, EOFError):
    """A coupled program has ended in good order, and has no further version of an array."""


# How a note of an exception begins that a sandbox may be why of.
SANDBOX_MAY_BE_WHY = "the sandbox in which this runs may be why: "


class RemoteTraceback(Exception):
    """The traceback of an exception as it was at the worker, as text.

    It is never raised: it is the ``__cause__`` of the exception that arrives at the caller, so that Python prints both.

    Parameters
    ----------
    text : str
        The traceback as the worker formatted it.
    worker : str, optional
        The name of the worker.
    """

    def __init__(self, text: str, worker: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.worker = worker

    def __str__(self) -> str:
        """Return the remote text, set off from the local traceback around it."""
        origin = f"at worker {self.worker}:" if self.worker else "at the worker:"
        return f"\n{origin}\n{self.text.rstrip()}\n"


def with_remote_traceback(error: _Raised, text: str, worker: str | None = None) -> _Raised:
    """Return an exception with the text of its remote traceback as cause."""
    # Not by the exception's own `__setattr__`: it may be a frozen dataclass.
    BaseException.__setattr__(error, "__cause__", RemoteTraceback(text, worker))
    return error
