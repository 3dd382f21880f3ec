"""How the agents of a machine's jobs are found, asked how their jobs stand, and told to end them.

An agent listens at a Unix socket in ``~/.exoskel/run``, a folder that only its account can enter, and answers processes of its account and
root's. Who has started an agent for somebody else holds a socket of the same kind, with whose end the job ends whatever its creator wants.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import socket
import struct
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .cli.background import run_directory
from .errors import ExoskelError
from .job_orphans import namespace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .agent import Agent

__all__ = [
    "ANSWER_SECONDS",
    "END",
    "STATUS",
    "JobControl",
    "ask",
    "ask_to_end",
    "local_jobs",
    "understood",
]

# What an agent is asked for.
STATUS, END = "status", "end"
# How long an agent may take to say how it stands.
ANSWER_SECONDS = 2.0
_QUESTION_BYTES_MAX = 64
# What an agent may say: a hundred thousand processes.
_ANSWER_BYTES_MAX = 16 << 20
# How long the agent of a job may take to end what it has started.
_END_SECONDS = 10.0
# Who waits to be heard at once.
_BACKLOG = 16
# In the year 3000 nobody looks.
_TIME_MAX = 1 << 35


class JobControl:
    """Answers for an agent, on threads of its own.

    Parameters
    ----------
    agent : Agent
        Whose job it is.
    lifeline : int, optional
        The socket that whoever has started the agent holds.
    """

    def __init__(self, agent: Agent, lifeline: int | None) -> None:
        self._agent = agent
        self._listener: socket.socket | None = None
        self._path: Path | None = None
        if lifeline is not None:
            held = socket.socket(fileno=lifeline)
            _run(partial(self._follow, held))

    def announce(self) -> str:
        """Listen where this account looks for its jobs. Return why that can't be, if it can't."""
        try:
            path = run_directory() / f"{_prefix()}{os.getpid()}.socket"
            path.unlink(missing_ok=True)
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                # Nobody else can enter the folder before the mode is set.
                listener.bind(str(path))
                path.chmod(0o600)
                listener.listen(_BACKLOG)
            except OSError:
                listener.close()
                raise
        except (OSError, RuntimeError) as error:
            return str(error)
        self._path, self._listener = path, listener
        _run(partial(self._accept, listener))
        return ""

    def close(self) -> None:
        """Take the announcement back."""
        if self._listener is not None and self._path is not None:
            self._path.unlink(missing_ok=True)
            # Who accepts sees its end.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener:
            while True:
                asking, _ = listener.accept()
                with contextlib.suppress(OSError), asking:
                    asking.settimeout(ANSWER_SECONDS)
                    if _is_own(asking) and (question := _line(asking, _QUESTION_BYTES_MAX)):
                        asking.sendall(self._answer(question))

    def _follow(self, held: socket.socket) -> None:
        with contextlib.suppress(OSError), held:
            while question := _line(held, _QUESTION_BYTES_MAX):
                held.sendall(self._answer(question))
        self._agent.cut_off(by_order=True)

    def _answer(self, question: bytes) -> bytes:
        """Have the thread that serves the processes answer: they are its."""
        action: Callable[[], object]
        if question.strip() == STATUS.encode():
            action = self._agent.status
        elif question.strip() == END.encode():
            action = self._agent.end_by_order
        else:
            return _said({"error": f"got {question[:20]!r}, expected {STATUS} or {END}"})
        answers: list[object] = []
        is_done = threading.Event()

        def answer() -> None:
            answers.append(action())
            is_done.set()

        self._agent.ask(answer)
        if not is_done.wait(ANSWER_SECONDS):
            return _said({"error": "the agent does not answer in time"})
        return _said(answers[0] or {})


def ask(held: socket.socket, question: str) -> dict[str, Any]:
    """Ask an agent over a socket that leads to it.

    Raises
    ------
    ExoskelError
        If it doesn't answer.
    """
    try:
        held.sendall(question.encode() + b"\n")
        answer = json.loads(_line(held, _ANSWER_BYTES_MAX) or "{}")
    except (OSError, ValueError) as error:
        raise ExoskelError(f"the job's agent does not answer: {error}") from None
    if not isinstance(answer, dict) or "error" in answer:
        raise ExoskelError(f"the job's agent does not answer: {answer}")
    return answer


def local_jobs() -> list[dict[str, Any]]:
    """Return how the jobs of this account on this machine stand, the oldest first. What killed agents have left is removed."""
    found = []
    for path in run_directory().glob(f"{glob.escape(_prefix())}*.socket"):
        with _connected(path) as asking, contextlib.suppress(ExoskelError):
            if asking is not None:
                found.append(ask(asking, STATUS))
    return sorted(understood(found), key=lambda one: float(one["begun"]))


def understood(found: Any) -> list[dict[str, Any]]:
    """Return what agents say of jobs, without what is none. They are processes of others, or of the account under which foreign code runs.

    Parameters
    ----------
    found : object
        What they say.

    Returns
    -------
    list of dict
        Those that are told as `exoskel job list --json` has them. Texts are any texts.
    """
    return [one for one in found if _is_job(one)] if isinstance(found, list) else []


def _is_job(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("job"), str)
        and one["job"] != ""
        and isinstance(one.get("owner", ""), str)
        and isinstance(one.get("agent"), int)
        and _is_time(one.get("begun"))
        and all(isinstance(one.get(name), bool) for name in ("is_detached", "has_creator"))
        and isinstance(one.get("groups"), list)
        and all(map(_is_group, one["groups"]))
    )


def _is_group(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get("program"), str)
        and isinstance(one.get("processes"), int)
        and _is_time(one.get("begun"))
    )


def _is_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and 0 <= value < _TIME_MAX


def ask_to_end(agent: int) -> None:
    """End a job of this account by its agent's process number, and wait until that has ended.

    Raises
    ------
    ExoskelError
        If it doesn't answer, or does not end.
    """
    with _connected(run_directory() / f"{_prefix()}{agent}.socket") as asking:
        if asking is None:
            return
        try:
            process = os.pidfd_open(agent)
        except ProcessLookupError:
            return
        try:
            ask(asking, END)
            import select

            if not select.select([process], [], [], _END_SECONDS)[0]:
                raise ExoskelError(f"the job's agent, process {agent}, does not end")
        finally:
            os.close(process)


@contextlib.contextmanager
def _connected(path: Path) -> Iterator[socket.socket | None]:
    """Yield a connection to an agent of this account; None if nobody is there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(ANSWER_SECONDS * 2)
        try:
            asking.connect(str(path))
        except ConnectionRefusedError:
            # Nobody listens any more.
            path.unlink(missing_ok=True)
            yield None
            return
        except OSError:
            yield None
            return
        yield asking if _is_own(asking) else None


def _prefix() -> str:
    # Several hosts may share one home, and several containers: a number of one means another process in the next.
    return f"job-{os.uname().nodename.replace('/', '-')}-{namespace()}-"


def _is_own(connection: socket.socket) -> bool:
    """Say whether the process at the other end is of this account, or root's."""
    credentials = connection.getsockopt(
        socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")
    )
    account: int = struct.unpack("3i", credentials)[1]
    return account in (0, os.geteuid())


def _line(connection: socket.socket, bytes_max: int) -> bytes:
    """Return what comes up to the end of a line; nothing at the end of the connection."""
    said = bytearray()
    deadline = connection.gettimeout()
    deadline = None if deadline is None else time.monotonic() + deadline
    while not said.endswith(b"\n"):
        if len(said) > bytes_max:
            raise OSError("the line has no end")
        if deadline is not None and time.monotonic() > deadline:
            raise TimeoutError("the line does not end in time")
        part = connection.recv(1 << 16)
        if not part:
            return b""
        said += part
    return bytes(said)


def _said(answer: object) -> bytes:
    return json.dumps(answer).encode() + b"\n"


def _run(what: Callable[[], None]) -> None:
    threading.Thread(target=what, name="exoskel-job-control", daemon=True).start()
