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
import traceback
from dataclasses import dataclass

from . import _core

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a process's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

__all__ = [
    "AGENT",
    "CONTEXT",
    "DIAL_FD",
    "RANK",
    "SIZE",
    "ProcessEnd",
    "ProcessStart",
    "ProcessZygote",
    "Started",
]

# In the environment of a process: the number of the socket over which its agent tells it who it is.
CONTEXT = "EXOSKEL_PROCESS_FD"
# In the environment of a program that starts processes of the job itself: where these join.
AGENT = "EXOSKEL_AGENT"
# Which of those that were started together it is, and how many these are, for programs that don't join.
RANK, SIZE = "EXOSKEL_RANK", "EXOSKEL_SIZE"
# Where a process has that socket; 0, 1 and 2 are what programs expect there.
_CONTEXT_FD = 3
# Where one that may not connect itself has the socket over which its agent does.
DIAL_FD = 4
# Longer than the arguments and the environment of any process that this is for; the kernel's limit of arguments is 2 MiB.
_MESSAGE_BYTES_MAX = 1 << 20
# What a shell says of a program that can't be executed, and of one that isn't there.
_NOT_EXECUTABLE, _NOT_FOUND = 126, 127


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

    def start(
        self,
        what: ProcessStart,
        context: socket.socket,
        errors: int,
        dial: socket.socket | None = None,
    ) -> None:
        """Have a process started, unless that would wait (``BlockingIOError``). `received` tells what becomes of it.

        Parameters
        ----------
        what : ProcessStart
            What it is.
        context : socket.socket
            What it inherits to learn who it is.
        errors : int
            The descriptor of its standard error.
        dial : socket.socket, optional
            What it inherits to have connections made for it.
        """
        message = pickle.dumps(what)
        if len(message) >= _MESSAGE_BYTES_MAX // 2:
            # As of a program with too many arguments.
            raise OSError(errno.E2BIG, os.strerror(errno.E2BIG))
        descriptors = [context.fileno(), errors]
        if dial is not None:
            descriptors.append(dial.fileno())
        socket.send_fds(self.control, [message], descriptors, socket.MSG_DONTWAIT)

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
        os.waitpid(self.process, 0)


def _serve(control: socket.socket, descriptors_max: int) -> None:
    """Start processes until the agent lets go; then end them. Never returns but in a process that runs a Python function, to its end."""
    code = 1
    try:
        os.setsid()
        # The kernel doesn't end it with the agent: what processes have started would stay. It sees the end of the socket.
        with open("/proc/self/comm", "w") as name:
            name.write("exoskel zygote")
        code = _Zygote(control, descriptors_max).run()
    except SystemExit as leaving:
        code = leaving.code if isinstance(leaving.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


class _Zygote:
    def __init__(self, control: socket.socket, descriptors_max: int) -> None:
        self._control = control
        self._descriptors_max = descriptors_max
        self._running: dict[int, int] = {}
        self._woken, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        # What is here already is the same in every process: looking at it would only make a copy.
        gc.freeze()

    def run(self) -> int:
        try:
            return self._serve()
        except BaseException:
            # In a process of a job there is nothing to end.
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
                    message, descriptors, *_ = socket.recv_fds(self._control, _MESSAGE_BYTES_MAX, 3)
                except ConnectionResetError:
                    # It has gone without reading all that was said to it.
                    message = b""
                if not message:
                    self._end_all()
                    return 0
                if not self._start(pickle.loads(message), descriptors):
                    return self._become_process()

    def _start(self, what: ProcessStart, descriptors: Sequence[int]) -> bool:
        """Fork a process. Return whether this is still the zygote."""
        try:
            process = os.fork()
        except OSError as error:
            answer = Started(what.number, None, error.strerror or str(error))
        else:
            if process == 0:
                self._prepare(what, *descriptors)
                return False
            self._running[process] = what.number
            answer = Started(what.number, process)
        for descriptor in descriptors:
            os.close(descriptor)
        self._say(answer)
        return True

    def _prepare(
        self, what: ProcessStart, inherited: int, errors: int, dial: int | None = None
    ) -> None:
        """Make this process one of a job; if it is a program, execute it."""
        zygote = os.getppid()
        # Its siblings are the zygote's.
        self._running.clear()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.setsid()
        # The sockets first: their own numbers may be those that others get here.
        context = fcntl.fcntl(inherited, fcntl.F_DUPFD, DIAL_FD + 1)
        connecting = None if dial is None else fcntl.fcntl(dial, fcntl.F_DUPFD, DIAL_FD + 1)
        os.dup2(errors, 2)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(context, _CONTEXT_FD, inheritable=True)
        if connecting is not None:
            os.dup2(connecting, DIAL_FD, inheritable=False)
        first = _CONTEXT_FD + 1 if connecting is None else DIAL_FD + 1
        os.closerange(first, os.sysconf("SC_OPEN_MAX"))
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._descriptors_max, hard))
        if not _core.follow_parent(zygote, f"exoskel process {what.number}", False):
            os._exit(1)
        # Another job's may be in the environment of this one's agent.
        for name in (AGENT, CONTEXT):
            os.environ.pop(name, None)
        os.environ.update(what.environment or {})
        if AGENT in os.environ:
            # What it starts would take the socket for its own.
            os.close(_CONTEXT_FD)
            # And mpiexec would have Slurm start it, which is no child of this process.
            for name in [name for name in os.environ if name.startswith("SLURM_")]:
                del os.environ[name]
        else:
            os.environ[CONTEXT] = str(_CONTEXT_FD)
        if what.directory is not None:
            try:
                os.chdir(what.directory)
            except OSError as error:
                if what.must_enter:
                    _leave(f"can't enter {what.directory}: {error.strerror}", _NOT_EXECUTABLE)
                _enter_home()
        if what.sandbox is not None:
            _confine(what, what.sandbox)
        if what.words:
            try:
                os.execvp(what.words[0], what.words)
            except OSError as error:
                code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _NOT_EXECUTABLE
                _leave(f"can't execute {what.words[0]}: {error.strerror}", code)

    def _become_process(self) -> int:
        gc.unfreeze()
        from . import job_process

        return job_process.run_function()

    def _reap(self) -> None:
        while self._running:
            try:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            # What it has left running ends with it. Nobody else has its number before it is waited for.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(ended.si_pid, signal.SIGKILL)
            process, status, used = os.wait4(ended.si_pid, 0)
            number = self._running.pop(process, None)
            if number is not None:
                seconds = used.ru_utime + used.ru_stime
                code = os.waitstatus_to_exitcode(status)
                self._say(ProcessEnd(number, code, seconds, used.ru_maxrss * 1024))

    def _say(self, message: Started | ProcessEnd) -> None:
        # An agent that has gone is noticed where its requests are read.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(pickle.dumps(message))

    def _end_all(self) -> None:
        for process in self._running:
            # All that it has started is of its session, unless it has left it. It may not have made that yet.
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(process, signal.SIGKILL)
        for process in list(self._running):
            with contextlib.suppress(ChildProcessError):
                os.waitpid(process, 0)


def _confine(what: ProcessStart, sandbox: Mapping[str, Any]) -> None:
    from . import confining

    context = socket.socket(fileno=os.dup(_CONTEXT_FD))
    environment = {**(what.environment or {}), CONTEXT: str(_CONTEXT_FD)}
    try:
        with context:
            confining.confine(sandbox, context, environment, what.words[0] if what.words else "")
    except Exception as error:
        _leave(f"can't be confined: {error}", _NOT_EXECUTABLE)


def _enter_home() -> None:
    for place in (os.environ.get("HOME", "/"), "/"):
        with contextlib.suppress(OSError):
            os.chdir(place)
            return


def _leave(text: str, code: int) -> None:
    os.write(2, f"exoskel: {text}\n".encode())
    os._exit(code)
