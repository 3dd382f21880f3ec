"""A process with one thread that becomes the processes of jobs by forking, and executes other programs.

An agent starts it before it has any thread, key or session of its own. It has imported what a process needs to prove itself, so that a
process that runs a Python function begins after a fork of about a millisecond. Secrets come to a process over a socket that it inherits,
never by arguments or environment.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import gc
import os
import pickle
import resource
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass

from . import _core

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a process's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence
    from typing import Any

__all__ = [
    "AGENT",
    "CONTEXT",
    "CONTEXT_FD",
    "DIAL_FD",
    "RANK",
    "SIZE",
    "ProcessEnd",
    "ProcessStart",
    "ProcessZygote",
    "Started",
    "by_use",
    "homes",
    "prepare_environment",
]

# In the environment of a process: the number of the socket over which its agent tells it who it is.
CONTEXT = "EXOSKEL_PROCESS_FD"
# In the environment of a program that starts processes of the job itself: where these join.
AGENT = "EXOSKEL_AGENT"
# Which of those that were started together it is, and how many these are, for programs that don't join.
RANK, SIZE = "EXOSKEL_RANK", "EXOSKEL_SIZE"
# In the place of a rank: any sibling.
ANYBODY = -1
# Where a process has that socket; 0, 1 and 2 are what programs expect there.
CONTEXT_FD = 3
# Where one that may not connect itself has the socket over which its agent does.
DIAL_FD = 4
# Longer than the arguments and the environment of any process that this is for; the kernel's limit of arguments is 2 MiB.
_MESSAGE_BYTES_MAX = 1 << 20
# How long what has left the sessions of processes may take to end.
_ENDING_SECONDS = 2.0
# What a shell says of what can't be executed.
_FAILED = 126


@dataclass(frozen=True)
class ProcessStart:
    """What is to be started: a program, or a Python function that the process gets over its socket if there are no words."""

    number: int
    words: tuple[str, ...] = ()
    directory: str | None = None
    # If not, it begins in its home folder where there is no such directory.
    must_enter: bool = True
    environment: Mapping[str, str] | None = None
    # What it may use, as `confining.confine` takes it; all that the account may, if there is none.
    sandbox: Mapping[str, Any] | None = None
    # What stands before each line that it prints. Its agent reads its output then.
    before: str | None = None

    @property
    def has_own_output(self) -> bool:
        """Whether its agent reads its output. Who has the agent's own may cut a file, and read what is typed: that is no place for foreign code."""
        return self.before is not None or self.sandbox is not None


@dataclass(frozen=True)
class Started:
    """A process has been started, or why not."""

    number: int
    process: int | None
    error: str = ""


@dataclass(frozen=True)
class ProcessEnd:
    """How a process has ended: its exit code, or the negative number of the signal that has ended it; and what it has used."""

    number: int
    code: int
    seconds: float
    memory_bytes: int


class ProcessZygote:
    """A zygote as its agent sees it.

    Parameters
    ----------
    closed : iterable of int
        Descriptors of the agent that it doesn't keep.
    """

    def __init__(self, closed: Iterable[int] = ()) -> None:
        # Each process takes two descriptors here; what it inherits is what its agent began with.
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for one in (self.control, theirs):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _MESSAGE_BYTES_MAX)
        sys.stdout.flush()
        sys.stderr.flush()
        self.process = os.fork()
        if self.process == 0:
            self.control.close()
            for descriptor in closed:
                os.close(descriptor)
            _serve(theirs, soft)
        theirs.close()

    def start(self, what: ProcessStart, inherited: Sequence[int]) -> None:
        """Have a process started, unless that would wait (``BlockingIOError``). `received` tells what becomes of it.

        Parameters
        ----------
        what : ProcessStart
            What it is.
        inherited : sequence of int
            Descriptors: the socket by which it learns who it is, its standard error, its standard output if that is its own,
            and the socket over which connections are made for it, if it may make none.
        """
        message = pickle.dumps(what)
        if len(message) >= _MESSAGE_BYTES_MAX // 2:
            # As of a program with too many arguments.
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        socket.send_fds(self.control, [message], inherited, socket.MSG_DONTWAIT)

    def received(self) -> Started | ProcessEnd | None:
        """Return the next message, when there is one to be read; None when the zygote has ended."""
        try:
            message = self.control.recv(_MESSAGE_BYTES_MAX)
        except ConnectionResetError:
            return None
        # It is this program's own.
        return pickle.loads(message) if message else None

    def close(self) -> None:
        """End it, and with it all processes that it has started."""
        self.control.close()
        # Whoever has ended it may have seen its end as well.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.process, 0)


def _serve(control: socket.socket, descriptors_max: int) -> None:
    """Start processes until the agent lets go; then end them. Never returns but in a process that runs a Python function, to its end."""
    code = 1
    try:
        os.setsid()
        # The kernel doesn't end it with the agent: what processes have started would stay. It sees the end of the socket.
        _core.adopt_orphans()
        with open("/proc/self/comm", "w") as name:
            name.write("exoskel zygote")
        code = _Zygote(control, descriptors_max).run()
    except SystemExit as leaving:
        code = _code_of(leaving.code)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _code_of(left_with: object) -> int:
    """Return the exit code of who leaves by `sys.exit`, as Python has it: a text is printed."""
    if left_with is None:
        return 0
    if isinstance(left_with, int):
        return left_with
    print(left_with, file=sys.stderr)
    return 1


class _Zygote:
    def __init__(self, control: socket.socket, descriptors_max: int) -> None:
        self._control = control
        self._descriptors_max = descriptors_max
        self._running: dict[int, int] = {}
        # Not any more in a process of a job.
        self._is_zygote = True
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        # Each process in a sandbox would make it anew, and page after page of what it shares with this one its own.
        _core.prepare_confinement()
        # What is here already is the same in every process: looking at it would only make a copy.
        gc.freeze()

    def run(self) -> int:
        try:
            return self._serve()
        except BaseException:
            if self._is_zygote:
                self._end_all()
            raise

    def _serve(self) -> int:
        waiting = select.poll()
        waiting.register(self._control, select.POLLIN)
        waiting.register(self._woken, select.POLLIN)
        while True:
            ready = {descriptor for descriptor, _ in waiting.poll()}
            if self._woken in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._woken, 4096)
                self._reap()
            if self._control.fileno() in ready:
                try:
                    message, descriptors, *_ = socket.recv_fds(self._control, _MESSAGE_BYTES_MAX, 4)
                except ConnectionResetError:
                    # It has gone without reading all that was said to it.
                    message = b""
                if not message:
                    self._end_all()
                    return 0
                if not self._start(pickle.loads(message), descriptors):
                    return self._become_process()

    def _start(self, what: ProcessStart, descriptors: Sequence[int]) -> bool:
        """Start a process. Return whether this is still the zygote."""
        try:
            process = self._spawn(what, descriptors) if what.words else os.fork()
        except OSError as error:
            answer = Started(what.number, None, error.strerror or str(error))
        else:
            if process == 0:
                self._prepare(what, descriptors)
                return False
            self._running[process] = what.number
            answer = Started(what.number, process)
        for descriptor in descriptors:
            os.close(descriptor)
        self._say(answer)
        return True

    def _spawn(self, what: ProcessStart, descriptors: Sequence[int]) -> int:
        """Execute a program. What keeps it from running, its agent reads as the last of what it prints."""
        from . import program_start

        process, failure = program_start.spawn(what, descriptors, self._descriptors_max)
        if failure is not None and failure[0]:
            _print_error(descriptors[1], failure[0])
        return process

    def _prepare(self, what: ProcessStart, descriptors: Sequence[int]) -> None:
        """Make this process one of a job that runs a function."""
        zygote = os.getppid()
        # Its siblings are the zygote's.
        self._running.clear()
        self._is_zygote = False
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        inherited, errors, output, dial = by_use(what, descriptors)
        # The sockets first: their own numbers may be those that others get here.
        context = fcntl.fcntl(inherited, fcntl.F_DUPFD, DIAL_FD + 1)
        connecting = None if dial is None else fcntl.fcntl(dial, fcntl.F_DUPFD, DIAL_FD + 1)
        os.dup2(errors, 2)
        if output is not None:
            os.dup2(output, 1)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(context, CONTEXT_FD, inheritable=True)
        if connecting is not None:
            os.dup2(connecting, DIAL_FD, inheritable=False)
        first = CONTEXT_FD + 1 if connecting is None else DIAL_FD + 1
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._descriptors_max, hard))
        if not _core.follow_parent(zygote, f"exoskel process {what.number}", False):
            os._exit(1)
        prepare_environment(os.environ, what)
        if what.directory is not None:
            try:
                os.chdir(what.directory)
            except OSError as error:
                if what.must_enter:
                    _leave(f"can't enter {what.directory}: {error.strerror}")
                _enter_home()
        if what.sandbox is not None:
            _confine(what, what.sandbox)

    def _become_process(self) -> int:
        gc.unfreeze()
        from . import job_process

        return job_process.run_function()

    def _reap(self) -> None:
        while True:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            if ended.si_pid not in self._running:
                # What a process has started, and has left its session, came here when its own parent ended.
                os.waitpid(ended.si_pid, 0)
                continue
            # What it has left running ends with it. Nobody else has its number before it is waited for.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(ended.si_pid, signal.SIGKILL)
            process, status, used = os.wait4(ended.si_pid, 0)
            number = self._running.pop(process)
            seconds = used.ru_utime + used.ru_stime
            code = os.waitstatus_to_exitcode(status)
            self._say(ProcessEnd(number, code, seconds, used.ru_maxrss * 1024))

    def _say(self, message: Started | ProcessEnd) -> None:
        # An agent that has gone is noticed where its requests are read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(pickle.dumps(message))

    def _end_all(self) -> None:
        for process in self._running:
            # It may not have made its session yet.
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(process, signal.SIGKILL)
        for process in list(self._running):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)
        # What has left its session is this process's by now, or comes when its own parent ends. What runs with others' rights stays.
        waiting = select.poll()
        waiting.register(self._woken, select.POLLIN)
        until = time.monotonic() + _ENDING_SECONDS
        with contextlib.suppress(ChildProcessError):
            while (left := until - time.monotonic()) > 0:
                _core.end_descendants()
                if os.waitpid(-1, os.WNOHANG)[0] == 0 and waiting.poll(left * 1000):
                    os.read(self._woken, 4096)


def by_use(
    what: ProcessStart, descriptors: Sequence[int]
) -> tuple[int, int, int | None, int | None]:
    """Return what a process has inherited: its socket, where its errors and its output go, and the socket for connections."""
    inherited, errors, *more = descriptors
    output = more.pop(0) if what.has_own_output else None
    return inherited, errors, output, more[0] if more else None


def prepare_environment(environment: MutableMapping[str, str], what: ProcessStart) -> bool:
    """Make the environment of a process of that of its agent. Return whether it has the socket by which it learns who it is."""
    # Another job's may be in the environment of this one's agent.
    for name in (AGENT, CONTEXT):
        environment.pop(name, None)
    environment.update(what.environment or {})
    if AGENT not in environment:
        environment[CONTEXT] = str(CONTEXT_FD)
        return True
    # What it starts would take the socket for its own. And mpiexec would have Slurm start it, which is no child of this process.
    for name in [name for name in environment if name.startswith("SLURM_")]:
        del environment[name]
    return False


def _confine(what: ProcessStart, sandbox: Mapping[str, Any]) -> None:
    from . import confining

    context = socket.socket(fileno=os.dup(CONTEXT_FD))
    environment = {**(what.environment or {}), CONTEXT: str(CONTEXT_FD)}
    try:
        with context:
            confining.confine(sandbox, context, environment)
    except Exception as error:
        _leave(f"can't be confined: {error}")


def _enter_home() -> None:
    for place in homes(os.environ):
        with contextlib.suppress(OSError):
            os.chdir(place)
            return


def homes(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return where a process begins that can't where it is to."""
    return environment.get("HOME", "/"), "/"


def _leave(text: str) -> None:
    _print_error(2, text)
    os._exit(_FAILED)


def _print_error(descriptor: int, text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(descriptor, f"exoskel: {text}\n".encode())
