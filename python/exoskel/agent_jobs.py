"""The jobs of a host's daemon, ``exoskel agent``: each has an agent in a process of its own, which the daemon starts and ends.

The daemon holds the host's credential. An agent gets a socket to the job's creator and one to the daemon, and no more: what its creator says
goes through the daemon over a stream of a link, byte by byte.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .agent_frames import CHANNEL, END, OUTPUT, REFUSED, frame
from .control_groups import HostGroup
from .errors import ExoskelError
from .job_control import STATUS, ask
from .job_dialling import is_address
from .launchers import END_SECONDS
from .peer_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from . import links

__all__ = ["THREADS", "AgentLimits", "HostJobs", "environment_of"]

_READ_BYTES = 32 << 10
# How long a creator may take to say who its job's agent is.
_BEGIN_SECONDS = 60.0
# How long who asks for jobs waits for all of their agents together; what was known before counts for those that are late.
_STATUS_SECONDS = 3.0
# So many callers wait at once, one for each owner: for jobs, and for jobs to end. Each keeps a thread of the endpoint.
_WAITING_MAX = 3
# Of the endpoint: some are free whoever waits.
THREADS = 2 * _WAITING_MAX + 2
# What an agent has said is kept up to this length.
_KNOWN_BYTES_MAX = 1 << 20
# What is kept of what an agent has said, to say how it has ended.
_SAID_BYTES_MAX = 4 << 10
# What an agent has in its environment of that of the daemon: nothing that is a right.
_VARIABLES = frozenset(
    [
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "TMPDIR",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "HOME",
        "USER",
        "LOGNAME",
        "SHELL",
        "XDG_RUNTIME_DIR",
    ]
)
_VARIABLES_OF_LOCALE = "LC_"
# Of control groups.
_numbers = itertools.count(1)
# What is another one, or missing, for an agent of another account.
_VARIABLES_OF_ACCOUNT = frozenset(["HOME", "USER", "LOGNAME", "SHELL", "XDG_RUNTIME_DIR", "TMPDIR"])


@dataclass(frozen=True)
class AgentLimits:
    """What a daemon lets others have."""

    jobs: int
    """How many jobs there are at once."""
    processes: int
    """How many processes each has at once."""


def environment_of(account: pwd.struct_passwd | None) -> dict[str, str]:
    """Return what agents have in their environment."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name in _VARIABLES or name.startswith(_VARIABLES_OF_LOCALE)
    }
    if account is not None:
        found = {name: found[name] for name in found.keys() - _VARIABLES_OF_ACCOUNT}
        found |= {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
    return found


class HostJobs:
    """The jobs of a daemon. Its methods are the handlers of its endpoint.

    Parameters
    ----------
    limits : AgentLimits
        What there can be at once.
    account : pwd.struct_passwd, optional
        Whose the processes are; that of the daemon, if not given.
    log : callable
        Takes a line for each job that has begun, was refused, or has ended.
    sandbox_of : callable
        Takes the name of a job's creator, with whom there is a session. Returns why its code is confined, and to what, as `Sandbox.told` has it;
        None if it isn't.
    sessions : callable
        Returns the sessions that there are: the peer, the kind of its connection, and its address.
    """

    def __init__(
        self,
        limits: AgentLimits,
        account: pwd.struct_passwd | None,
        log: Callable[[str], None],
        sandbox_of: Callable[[str], tuple[str, dict[str, Any]] | None],
        sessions: Callable[[], Iterable[tuple[str, str, str]]],
    ) -> None:
        self._limits = limits
        self._sandbox_of = sandbox_of
        self._sessions = sessions
        self._account = account
        self._log = log
        self._lock = threading.Lock()
        self._jobs: set[_HostJob] = set()
        self._is_over = False
        # Who waits for an answer about jobs, and for jobs to end.
        self._asking = _Waiting()
        self._ending = _Waiting()

    def start(self, stream: links.Stream) -> None:
        """Start the agent of a job that ends with its creator."""
        self._start(stream, is_detached=False)

    def start_detached(self, stream: links.Stream) -> None:
        """Start the agent of a job that goes on without its creator."""
        self._start(stream, is_detached=True)

    def jobs(self, call: links.Call) -> list[dict[str, Any]]:
        """Return how the caller's jobs stand. Of an agent that is late, what it has said last, with ``is_late``."""
        asked = [(job, job.ask()) for job in self._jobs_of(call.peer) if job.job]
        with self._asking.of(call.peer) as may_wait:
            wait([status for _, status in asked], _STATUS_SECONDS if may_wait else 0.0)
        return [job.status(status) for job, status in asked if job.is_running()]

    def end(self, call: links.Call, job: str) -> bool:
        """End one of the caller's jobs. Return whether there was one.

        Raises
        ------
        ExoskelError
            If nobody can be kept waiting until it has ended. It ends all the same.
        """
        found = [one for one in self._jobs_of(call.peer) if one.job == job]
        enders = []
        for one in found:
            self._log(f"job {one_line(job)} is ended by {one_line(call.peer)}")
            enders.append(one.begin_end())
        with self._ending.of(call.peer) as may_wait:
            if enders and not may_wait:
                raise ExoskelError(
                    f"job {one_line(job)} is being ended; nobody waits for that, as others are waited for"
                )
            for ender in enders:
                ender.join()
        return bool(found)

    def close(self) -> None:
        """End all jobs, and take no more."""
        with self._lock:
            self._is_over = True
            jobs = list(self._jobs)
        enders = [threading.Thread(target=job.end) for job in jobs]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join()

    def _jobs_of(self, owner: str) -> list[_HostJob]:
        with self._lock:
            return [job for job in self._jobs if job.owner == owner]

    def _start(self, stream: links.Stream, *, is_detached: bool) -> None:
        owner = stream.peer
        try:
            job = self._begun(owner, is_detached)
        except (ExoskelError, OSError, subprocess.SubprocessError) as error:
            self._log(f"refused a job of {one_line(owner)}: {error}")
            stream.write(frame(REFUSED, str(error).encode()))
            return
        try:
            job.talk(stream)
        finally:
            if not is_detached:
                job.end()

    def _begun(self, owner: str, is_detached: bool) -> _HostJob:
        confined = self._sandbox_of(owner)
        with self._lock:
            if self._is_over:
                raise ExoskelError("this agent is ending")
            if len(self._jobs) >= self._limits.jobs:
                raise ExoskelError(
                    f"the limit of {self._limits.jobs} jobs at once (--jobs) is reached"
                )
            places = None if confined is None else self._addresses_of(owner)
            job = _HostJob(
                owner, is_detached, self._limits.processes, self._account, confined, places
            )
            self._jobs.add(job)
        threading.Thread(target=self._follow, args=[job], name="exoskel-host-job").start()
        return job

    def _addresses_of(self, owner: str) -> list[str]:
        """Return from which addresses of a network somebody has come."""
        found = (address for peer, _, address in self._sessions() if peer == owner)
        return sorted({one.rpartition(":")[0] for one in found if is_address(one)})

    def _follow(self, job: _HostJob) -> None:
        """Tell the log of a job's begin and end."""
        who = one_line(job.owner)
        # Another job may have its place, once it is here no more.
        try:
            name = job.named(_BEGIN_SECONDS)
            if not name:
                self._log(f"a job of {who} was not begun: its creator has not said what it is")
                job.end()
                return
            # Who has made the job has made this name.
            job.job = one_line(name)
            how = ", detached" if job.is_detached else ""
            how += f", in a sandbox ({job.confined})" if job.confined else ""
            self._log(f"job {job.job} of {who} has begun{how}, agent {job.process}")
            code = job.wait()
            self._log(f"job {job.job} of {who} has ended, exit code {code}")
        finally:
            with self._lock:
                self._jobs.discard(job)
            job.close()


class _Waiting:
    """Who is waited for: each owner once, and so many of them that others find a thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._owners: set[str] = set()

    @contextlib.contextmanager
    def of(self, owner: str) -> Iterator[bool]:
        """Yield whether somebody may be waited for."""
        with self._lock:
            may_wait = owner not in self._owners and len(self._owners) < _WAITING_MAX
            if may_wait:
                self._owners.add(owner)
        try:
            yield may_wait
        finally:
            if may_wait:
                with self._lock:
                    self._owners.discard(owner)


class _HostJob:
    """A job on this host: the process of its agent, and the sockets to that."""

    def __init__(
        self,
        owner: str,
        is_detached: bool,
        processes_max: int,
        account: pwd.struct_passwd | None,
        confined: tuple[str, dict[str, Any]] | None,
        creator_at: Sequence[str] | None,
    ) -> None:
        self.owner = owner
        #: Why its processes are in sandboxes; nothing if they needn't be.
        self.confined = "" if confined is None else confined[0]
        self.is_detached = is_detached
        self.job = ""
        self._lock = threading.Lock()
        # What its agent is asked, until it answers.
        self._asked: Future[bytes] | None = None
        self._asked_at = 0.0
        self._known = b"{}"
        self._ender: threading.Thread | None = None
        self._begun = time.time()
        self._writing = threading.Lock()
        self._has_hung_up = threading.Event()
        self._said = b""
        table = None if confined is None else confined[1]
        self._group = _host_group(table, account)
        self._channel, channel = socket.socketpair()
        self._held, lifeline = socket.socketpair()
        numbers = channel.fileno(), lifeline.fileno()
        words = [sys.executable, "-P", "-m", "exoskel.agent_program", f"--lifeline={numbers[1]}"]
        words += [f"--processes={processes_max}", *(["--detach"] if is_detached else [])]
        if confined is not None:
            # Paths are paths of this host's own policy.
            words.append(f"--creator={' '.join(creator_at or ())}")
            words.append(f"--sandbox={json.dumps(confined[1], default=os.fspath)}")
        if self._group is not None:
            places = self._group.places.items()
            said = {name: [str(place.folder), place.is_unified] for name, place in places}
            words.append(f"--groups={json.dumps(said)}")
        with channel, lifeline:
            try:
                self._child = subprocess.Popen(
                    [*words, str(numbers[0])],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=numbers,
                    cwd="/",
                    env=environment_of(account),
                    start_new_session=True,
                    **_as_account(account),
                )
                if self._group is not None:
                    self._group.take(self._child.pid)
            except BaseException:
                self._channel.close()
                self._held.close()
                if self._group is not None:
                    self._group.close()
                raise
        self.process = self._child.pid
        if self._group is not None:
            # It has waited for that.
            self._held.send(b"\n")
        self._printed: links.Stream | None = None
        self._reader = threading.Thread(target=self._print, name="exoskel-host-job-output")
        self._reader.start()

    def talk(self, stream: links.Stream) -> None:
        """Have the job's creator and the agent talk, until one of them ends it."""
        self._printed = stream
        answering = threading.Thread(
            target=self._answer, args=[stream], name="exoskel-host-job-talk"
        )
        answering.start()
        try:
            room = bytearray(_READ_BYTES)
            # A creator that is lost ends it like one that leaves.
            with contextlib.suppress(ExoskelError, OSError):
                while count := stream.readinto(room):
                    self._channel.sendall(memoryview(room)[:count])
        finally:
            self._has_hung_up.set()
            with contextlib.suppress(OSError):
                self._channel.shutdown(socket.SHUT_WR)
            if self.is_detached:
                # Nobody reads more.
                self._printed = None
                with contextlib.suppress(OSError):
                    self._channel.shutdown(socket.SHUT_RDWR)
            answering.join()
            self._channel.close()

    def ask(self) -> Future[bytes]:
        """Ask its agent how it stands, unless that was asked already and has not answered yet."""
        with self._lock:
            if self._asked is None:
                asked: Future[bytes] = Future()
                # It waits for as long as the job is there, so that no answer is taken for that to a later question.
                threading.Thread(
                    target=self._await_answer, args=[asked], name="exoskel-host-job-status"
                ).start()
                # There may be no thread to be had.
                self._asked, self._asked_at = asked, time.monotonic()
            return self._asked

    def _await_answer(self, asked: Future[bytes]) -> None:
        answer = b"{}"
        try:
            # Whoever runs under its account may say anything.
            with contextlib.suppress(ExoskelError, OSError, RecursionError):
                answer = json.dumps(ask(self._held, STATUS)).encode()
        finally:
            with self._lock:
                self._asked = None
                if len(answer) <= _KNOWN_BYTES_MAX and answer != b"{}":
                    self._known = answer
            asked.set_result(answer)

    def named(self, seconds: float) -> str:
        """Return what its agent calls it; nothing if that doesn't say so in time."""
        try:
            name = json.loads(self.ask().result(seconds)).get("job")
        except TimeoutError:
            return ""
        return name if isinstance(name, str) else ""

    def status(self, asked: Future[bytes]) -> dict[str, Any]:
        """Return how it stands, by what its agent has answered, or by what was known before."""
        said = asked.result() if asked.done() else b"{}"
        is_unsaid = said == b"{}"
        told = json.loads(self._known if is_unsaid else said)
        # Who asks at once again isn't kept waiting, and its agent isn't late for that.
        waited = time.monotonic() - self._asked_at
        is_late = is_unsaid and (asked.done() or waited >= _STATUS_SECONDS)
        least = {"begun": self._begun, "has_creator": True, "processes": [], "groups": []}
        own = {"job": self.job, "agent": self.process, "owner": self.owner}
        return {**least, "is_detached": self.is_detached, **told, **own, "is_late": is_late}

    def is_running(self) -> bool:
        """Whether its agent runs."""
        return self._child.poll() is None

    def close(self) -> None:
        """Close the socket over which it is asked, when its agent has ended, and remove what has held its processes."""
        with contextlib.suppress(OSError):
            self._held.shutdown(socket.SHUT_RDWR)
        with self._lock:
            asked = self._asked
        if asked is not None:
            asked.result()
        self._held.close()
        if self._group is not None:
            self._group.close()

    def wait(self) -> int:
        """Wait until its agent has ended, and return the exit code."""
        return self._child.wait()

    def begin_end(self) -> threading.Thread:
        """Have it ended, and return the thread that waits for that."""
        with self._lock:
            if self._ender is None:
                ender = threading.Thread(target=self.end, name="exoskel-host-job-end")
                ender.start()
                self._ender = ender
            return self._ender

    def end(self) -> None:
        """End it, and wait until it has ended."""
        # One that has not begun yet listens to its channel only.
        for held in [self._held] if self.job else [self._held, self._channel]:
            with contextlib.suppress(OSError):
                held.shutdown(socket.SHUT_RDWR)
        try:
            self._child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            # Its zygote and their processes end with it.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)
            self._child.wait()

    def _answer(self, stream: links.Stream) -> None:
        """Write to the creator what the agent says, and how it has ended."""
        with contextlib.suppress(OSError, ExoskelError, ValueError):
            while part := self._channel.recv(_READ_BYTES):
                self._write(stream, CHANNEL, part)
        if not self.is_detached:
            code = self.wait()
            self._reader.join(1.0)
            lines = self._said.decode(errors="replace").strip().splitlines()
            last = one_line(lines[-1]) if lines else "it has said nothing"
            self._write(stream, END, f"its agent has ended, exit code {code}: {last}".encode())
        with contextlib.suppress(OSError, ExoskelError, ValueError):
            stream.finish()
        # A creator that doesn't let go would keep a thread of this process for ever.
        if not self._has_hung_up.wait(END_SECONDS):
            stream.abort("the agent of this job has ended")

    def _print(self) -> None:
        """Pass on what the agent and its processes print, or drop it when nobody wants it."""
        assert self._child.stdout is not None
        with self._child.stdout as printed:
            while part := os.read(printed.fileno(), _READ_BYTES):
                self._said = (self._said + part)[-_SAID_BYTES_MAX:]
                if (stream := self._printed) is not None:
                    self._write(stream, OUTPUT, part)

    def _write(self, stream: links.Stream, kind: int, contents: bytes) -> None:
        # One that has gone reads nothing.
        with self._writing, contextlib.suppress(OSError, ExoskelError, ValueError):
            stream.write(frame(kind, contents))


def _host_group(
    table: dict[str, Any] | None, account: pwd.struct_passwd | None
) -> HostGroup | None:
    """Make the control groups of a job; none where that can't be and nothing asks for it."""
    ids = (os.geteuid(), os.getegid()) if account is None else (account.pw_uid, account.pw_gid)
    try:
        found = HostGroup(next(_numbers), table, *ids)
    except OSError as error:
        if table is not None and (table["total_memory"] or table["total_processes"]):
            raise ExoskelError(f"its processes can't be held together: {error.strerror}") from None
        return None
    return found


def _as_account(account: pwd.struct_passwd | None) -> dict[str, Any]:
    if account is None:
        return {}
    groups = os.getgrouplist(account.pw_name, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": groups}
