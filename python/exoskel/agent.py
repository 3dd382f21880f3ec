"""What starts the processes of a job on one host, at the word of the job's creator.

A launcher brings it there and gives it a channel: over it the agent sends its public key, and gets its certificate and the creator's
startpoint. From then on both talk by links. When the channel ends, so do the agent and all that it has started.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import logging
import math
import os
import pickle
import selectors
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from . import __version__, _core, links
from .errors import LinkError
from .host_sandbox import check_manager, narrowed
from .job_delegation import PROXY, HostProxy
from .job_dialling import ConnectionMaker, is_of_network
from .joining import Joining
from .process_zygote import AGENT, RANK, SIZE, ProcessEnd, ProcessStart, ProcessZygote
from .start_request import check_listen, check_number, check_start

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Iterator, Sequence

    from .job_control import JobControl
    from .joining import Door

__all__ = ["ENDPOINT", "Agent", "main"]

ENDPOINT = "agent"
# What is kept of a process's standard error: its end.
_STDERR_BYTES_MAX = 16 << 10
# Keys that are sent up to be signed in one request.
_KEYS_AT_ONCE_MAX = 1024
# What a process says at once: its key, its startpoint, or which sibling it asks for.
_WORD_BYTES_MAX = 8 << 10
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
# A point of P-256, not compressed (SEC 1, section 2.3.3).
_KEY_BYTES, _NOT_COMPRESSED = 65, 4
_LENGTH = struct.Struct("!I")
_READ_BYTES = 64 << 10
# What a process of a job imports, whatever it does.
_PRELOADED = ("by_value", "confining", "job_process", "job_slot", "options", "script")
# How long processes may take to end in order, when the job ends.
_GRACE_SECONDS = 2.0
# What a process of a detached job learns of siblings that weren't there in time.
_LEFT = "the job's creator has left before all processes were there"
# What can be said when an agent is started, beside `--detach`.
_LIMITS = (("lifeline", "lifeline"), ("processes_max", "processes"))


class _Group:
    """Processes that were started together: their startpoints, or why there is none, when all that will be there are."""

    def __init__(self) -> None:
        self.siblings: list[tuple[str | None, str]] | None = None
        self.asked: list[tuple[_Process, int]] = []
        # Where they listen, for those that can't connect themselves.
        self.places: set[str] = set()


class _Process:
    """A process of this host, from the request that it be started to its end."""

    def __init__(
        self,
        number: int,
        told: dict[str, Any],
        group: _Group,
        context: socket.socket,
        error_pipe: int | None,
        pidfd: int | None = None,
    ) -> None:
        self.number = number
        self.told = told
        self.group = group
        self.context = context
        # Over it, one in a sandbox asks for connections.
        self.connecting: ConnectionMaker | None = None
        # What holds it, in a sandbox, as it has said before it has run anything.
        self.confined: list[str] | None = None
        # None when it has been read to its end.
        self.error_pipe = error_pipe
        # Of one that the zygote has not started.
        self.pidfd = pidfd
        self.said = b""
        self.unsent: deque[bytes | memoryview] = deque()
        # Siblings that it has asked for.
        self.asked: set[int] = set()
        self.key: bytes | None = None
        self.has_returned = False
        # It has said where it is reached.
        self.is_here = False
        self.errors = b""
        self.process: int | None = None
        # Before it was known which process it is.
        self.signals: list[int] = []


class Agent:
    """The processes of a job on this host. All but `ask` is for the thread that is in `serve`."""

    def __init__(
        self,
        zygote: ProcessZygote,
        folder: Path,
        listen: Sequence[str],
        *,
        job: str = "",
        processes_max: int | None = None,
        is_detached: bool = False,
        sandbox: dict[str, Any] | None = None,
        printed_to: int | None = None,
    ) -> None:
        self.job = job
        # What the host lets every process use; all that the account may, if it is None.
        self._sandbox = sandbox
        self._begun = time.time()
        # At the same time; as many as the creator wants, if it is None.
        self._processes_max = processes_max
        # Whether its processes go on without the job's creator.
        self.is_detached = is_detached
        # What processes have in theirs, beside what their creator says.
        self.environment: dict[str, str] = {}
        self._has_left = False
        self._printed_to = printed_to
        self._zygote = zygote
        self._folder = folder
        self._listen = listen
        self._processes: dict[int, _Process] = {}
        self._groups: dict[int, _Group] = {}
        self._due: deque[_Process] = deque()
        self._here: list[tuple[int, str]] = []
        self._returned: list[int] = []
        self._asked: deque[Callable[[], None]] = deque()
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(zygote.control, selectors.EVENT_READ, self._serve_zygote)
        self._unsent: deque[tuple[ProcessStart, socket.socket, int, socket.socket | None]] = deque()
        self._selector.register(self._woken, selectors.EVENT_READ, self._do_asked)
        self._joining = Joining(self._selector, self._arrived)
        # Its channel has ended.
        self.is_cut_off = False
        # When those that still run are killed, once the job ends.
        self._deadline: float | None = None
        self._creator: Any = None
        self._root = b""

    def serve(self, creator: Any, root: bytes) -> None:
        """Serve the processes until they have ended, after `end`. `creator` is the link to the job's creator, which signs."""
        self._creator, self._root = creator, root
        while self._deadline is None or self._processes:
            for ready, events in self._selector.select(self._patience()):
                # What one says may have ended another.
                if self._selector.get_map().get(ready.fd) is ready:
                    ready.data(events)
            if self._deadline is not None and time.monotonic() >= self._deadline:
                self.send_signal(list(self._processes), signal.SIGKILL)
                self._deadline = math.inf
            try:
                self._have_signed()
                self._tell_here()
            except LinkError:
                if not self.is_detached:
                    raise
                self.leave()
            if self._has_left and all(one.has_returned for one in self._processes.values()):
                self.end()

    def _patience(self) -> float | None:
        if self._deadline is None or self._deadline == math.inf:
            return None
        return max(0.0, self._deadline - time.monotonic())

    def asked(
        self, action: Callable[..., None], check: Callable[..., None] = lambda *_: None
    ) -> Callable[..., None]:
        """Return a handler of the same name that has an action done by the thread that serves, if its arguments pass a check."""

        @wraps(action)
        def handler(*arguments: Any) -> None:
            check(*arguments)
            self.ask(partial(action, *arguments))

        return handler

    def answered(self, action: Callable[..., Any]) -> Callable[..., Any]:
        """Return a handler as `asked` does, which answers with what the action returns."""

        @wraps(action)
        def handler(*arguments: Any) -> Any:
            answer: Future[Any] = Future()

            def act() -> None:
                try:
                    answer.set_result(action(*arguments))
                except Exception as error:
                    answer.set_exception(error)

            self.ask(act)
            return answer.result()

        return handler

    def ask(self, what: Callable[[], None]) -> None:
        """Have something done by the thread that serves. For every thread."""
        self._asked.append(what)
        self._waker.send(b"\0")

    def cut_off(self) -> None:
        """End all, as whoever has started this agent has gone. For every thread."""
        self.is_cut_off = True
        self.ask(self.end)

    def creator_left(self) -> None:
        """Go on without the creator, if the job is one that does, or end. For every thread."""
        if self.is_detached:
            self.ask(self.leave)
        else:
            self.cut_off()

    def leave(self) -> None:
        """Go on without the creator, until what runs has ended: a function that has returned waits for nobody's requests any more."""
        if self._has_left:
            return
        self._has_left = self.is_cut_off = True
        # What was to be said to it is nobody's.
        logging.getLogger("exoskel.links").setLevel(logging.CRITICAL)
        if self._printed_to is not None:
            # Nor is what is printed: whoever reads it may wait for its end.
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), self._printed_to)
        for process in self._processes.values():
            group = process.group
            if group.siblings is None:
                group.siblings = [(None, _LEFT)] * process.told["size"]
                for asking, rank in group.asked:
                    self._tell(asking, (rank, None, _LEFT))
                group.asked.clear()

    def status(self) -> dict[str, Any]:
        """Return how the job stands here, as `exoskel job list --json` has it."""
        return {
            "job": self.job,
            "agent": os.getpid(),
            "begun": self._begun,
            "is_detached": self.is_detached,
            "has_creator": not self._has_left,
            "processes": [
                {"number": one.number, "rank": one.told["rank"], "process": one.process}
                for one in self._processes.values()
            ],
        }

    def end(self) -> None:
        """End all processes: those that have joined see the end of their sockets, others get ``SIGTERM``. Who doesn't end soon is killed."""
        if self._deadline is None:
            self._deadline = time.monotonic() + _GRACE_SECONDS
            for process in self._processes.values():
                with contextlib.suppress(OSError):
                    process.context.shutdown(socket.SHUT_WR)
            for one in self._joining.close_all():
                self._tell_end(one, None, "it has not come, and its job is over")
            for process in list(self._processes.values()):
                # It has run before, and may run on.
                if process.told.get("invited"):
                    self._ended(process, None, "its job is over")
            strangers = [one.number for one in self._processes.values() if one.key is None]
            self.send_signal(strangers, signal.SIGTERM)

    def start(
        self,
        group: int,
        numbers: list[int],
        ranks: list[int],
        what: dict[str, Any],
        told: dict[str, Any],
    ) -> None:
        """Start processes. What becomes of them is told to the creator.

        Parameters
        ----------
        group : int
            Which of those that are started together they are, for `siblings`.
        numbers : list of int
            Their numbers in the job.
        ranks : list of int
            The rank of each among those that are started together.
        what : dict
            ``words``: the program and its arguments, none for a function. ``directory``: where they begin, or None, and ``must_enter``: whether they can't elsewhere. ``environment``: what
            they have in it besides that of the agent. ``joined``: the numbers of the processes that the program starts itself, by ranks.
            ``sandbox``: what they may use, or None. ``manager``: where the manager listens whose slots they are.
        told : dict
            What the processes learn besides, when they join.
        """
        words, directory = tuple(what["words"]), what["directory"]
        must_enter = bool(what.get("must_enter", True))
        sandbox = what.get("sandbox")
        if self._sandbox is not None:
            try:
                sandbox = narrowed(self._sandbox, sandbox)
                if "manager" in what:
                    check_manager(self._sandbox, str(what["manager"]))
            except (PermissionError, TypeError, KeyError, ValueError) as error:
                for number in numbers:
                    self._tell_end(number, None, str(error))
                return
        if what.get("joined"):
            [number] = numbers
            try:
                if sandbox is not None:
                    raise PermissionError(0, "processes in sandboxes start none of their job")
                if number in self._processes or self._is_full(number):
                    return
                opened = self._opened(group, number, what["joined"], told)
            except OSError as error:
                reason = error.strerror or str(error)
                for one in (number, *what["joined"]):
                    self._tell_end(one, None, reason)
                return
            said = {**opened, **self.environment, **what["environment"]}
            self._start(ProcessStart(number, words, directory, must_enter, said), told, _Group())
            return
        for number, rank in zip(numbers, ranks, strict=True):
            if number in self._processes or self._is_full(number):
                continue
            said = {RANK: str(rank), SIZE: str(told["size"])}
            said |= self.environment | what["environment"]
            start = ProcessStart(number, words, directory, must_enter, said)
            told_each, its = self._told(number, rank, told), self._group(group)
            its.places.add(told_each["listen"][0])
            if sandbox is not None:
                own = {**sandbox, "manager": what["manager"]} if "manager" in what else sandbox
                try:
                    start = self._in_sandbox(start, own, told_each["listen"])
                except OSError as error:
                    self._tell_end(number, None, f"it can't have a folder: {error.strerror}")
                    continue
                told_each["network"] = sandbox["network"]
            self._start(start, told_each, its)

    def _is_full(self, number: int) -> bool:
        """Whether a process can't be started, as there are so many already; that is told."""
        is_full = self._processes_max is not None and len(self._processes) >= self._processes_max
        if is_full:
            limit = f"the agent's limit of {self._processes_max} processes at once (--processes) is reached"
            self._tell_end(number, None, limit)
        return is_full

    def _own_folder(self, number: int) -> Path:
        return self._folder / f"own-{number}"

    def _in_sandbox(
        self, start: ProcessStart, sandbox: dict[str, Any], listen: list[str]
    ) -> ProcessStart:
        """Give a process a folder of its own, where it begins unless it was to begin elsewhere."""
        folder = self._own_folder(start.number)
        folder.mkdir(mode=0o700)
        told = {**sandbox, "folder": str(folder), "listen": listen}
        # A proxy of its user is for it.
        told["proxy"] = self.environment.get(PROXY)
        directory = start.directory if start.must_enter and start.directory else str(folder)
        return replace(start, directory=directory, sandbox=told)

    def invite(self, group: int, number: int, told: dict[str, Any], word: str) -> str:
        """Let one process in that runs already, and says a word. Return where."""
        check_number(group)
        check_number(number)
        place = self._joining_path(number)
        door = self._joining.open(number, place, [number], told, self._group(group))
        door.word = word
        return str(place)

    def _opened(
        self, group: int, number: int, joined: list[int], told: dict[str, Any]
    ) -> dict[str, str]:
        """Open the way in for what a program starts, and return what that finds in its environment."""
        place = self._joining_path(number)
        self._joining.open(number, place, joined, told, self._group(group))
        return {AGENT: str(place), SIZE: str(len(joined))}

    def _joining_path(self, number: int) -> Path:
        return self._folder / f"joining-{number}"

    def _group(self, number: int) -> _Group:
        return self._groups.setdefault(number, _Group())

    def _told(self, number: int, rank: int, told: dict[str, Any]) -> dict[str, Any]:
        listen = [f"unix:{self._folder / str(number)}", *self._listen]
        return {**told, "rank": rank, "listen": listen}

    def _arrived(
        self, number: int, rank: int, door: Door, connection: socket.socket, pidfd: int
    ) -> None:
        """Take a process in that the zygote has not started."""
        told = self._told(number, rank, door.told)
        process = _Process(number, told, door.group, connection, None, pidfd)
        self._processes[number] = process
        self._selector.register(connection, _READ, partial(self._serve_process, process))
        self._selector.register(pidfd, _READ, partial(self._has_gone, process))

    def _has_gone(self, process: _Process, _events: int) -> None:
        self._ended(process, None, "only what has started it knows its exit code")

    def siblings(
        self, group: int, siblings: list[tuple[str | None, str]], places: list[str]
    ) -> None:
        """Take the startpoints of processes that were started together, by ranks, or why one has none; and where those in sandboxes listen.

        That is said again when others are in the place of some.
        """
        known = self._group(group)
        known.places.update(filter(is_of_network, places))
        before, known.siblings = known.siblings, siblings
        if before is not None:
            self._tell_changes(known, before)
        for process, rank in known.asked:
            self._tell(process, (rank, *siblings[rank]))
        known.asked.clear()

    def _tell_changes(self, group: _Group, before: list[tuple[str | None, str]]) -> None:
        """Tell processes which of the siblings that they know have been replaced."""
        assert group.siblings is not None
        pairs = zip(before, group.siblings, strict=True)
        changed = [rank for rank, (old, new) in enumerate(pairs) if old[0] != new[0]]
        for process in self._processes.values():
            if process.group is group:
                for rank in process.asked.intersection(changed):
                    self._tell(process, (rank, *group.siblings[rank]))

    def send_signal(self, numbers: list[int], number: int) -> None:
        """Send a signal to processes, and to what they have started."""
        for one in numbers:
            running = self._processes.get(one)
            if running is not None and running.pidfd is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(running.pidfd, number)
            elif running is not None and running.process is None:
                running.signals.append(number)
            elif running is not None and running.process is not None:
                _send_signal(running.process, number)

    def _start(self, what: ProcessStart, told: dict[str, Any], group: _Group) -> None:
        with contextlib.ExitStack() as made:
            try:
                ours, context = socket.socketpair()
                made.callback(context.close)
                made.callback(ours.close)
                errors, writer = os.pipe2(os.O_CLOEXEC)
                made.callback(os.close, errors)
                made.callback(os.close, writer)
                dial = asking = None
                if told.get("network") == "links":
                    dial, asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            except OSError as error:
                self._tell_end(what.number, None, error.strerror or str(error))
                return
            made.pop_all()
        process = self._processes[what.number] = _Process(what.number, told, group, ours, errors)
        os.set_blocking(errors, False)
        ours.setblocking(False)
        self._selector.register(errors, _READ, partial(self._read_errors, process))
        self._selector.register(ours, _READ, partial(self._serve_process, process))
        if dial is not None:
            process.connecting = ConnectionMaker(
                dial, group.places, self._selector, reaches_own_host=self._sandbox is None
            )
        self._unsent.append((what, context, writer, asking))
        self._send_starts()

    def _send_starts(self) -> None:
        """Hand on what is to be started, as far as the zygote takes it: it may be waiting to tell of what it has started."""
        while self._unsent:
            what, context, writer, asking = self._unsent[0]
            try:
                self._zygote.start(what, context, writer, asking)
            except BlockingIOError:
                break
            except OSError as error:
                self._ended(self._processes[what.number], None, error.strerror or str(error))
            self._unsent.popleft()
            context.close()
            os.close(writer)
            if asking is not None:
                asking.close()
        with contextlib.suppress(KeyError):
            events = _READ | _WRITE if self._unsent else _READ
            self._selector.modify(self._zygote.control, events, self._serve_zygote)

    def _do_asked(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(_READ_BYTES)
        while self._asked:
            self._asked.popleft()()

    def _serve_zygote(self, events: int) -> None:
        if events & _WRITE:
            self._send_starts()
        if events & _READ:
            self._hear_zygote()

    def _hear_zygote(self) -> None:
        message = self._zygote.received()
        if message is None:
            # Somebody has ended it, and so has the kernel its processes, but not what they have started.
            self._selector.unregister(self._zygote.control)
            self.send_signal(list(self._processes), signal.SIGKILL)
            for one in list(self._processes.values()):
                self._ended(one, None, "the process that starts processes was ended")
            return
        process = self._processes.get(message.number)
        if process is None:
            return
        if isinstance(message, ProcessEnd):
            self._ended(process, message, "")
        elif message.process is None:
            self._ended(process, None, message.error)
        else:
            process.process = message.process
            self._joining.started(message.number, message.process)
            for number in process.signals:
                _send_signal(process.process, number)

    def _serve_process(self, process: _Process, events: int) -> None:
        if events & _WRITE:
            self._write(process)
        if events & _READ:
            self._hear(process)

    def _hear(self, process: _Process) -> None:
        """Read what a process says. One that says what it can't is heard no more."""
        try:
            part = process.context.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            part = b""
        process.said += part
        is_good = bool(part)
        while is_good and len(process.said) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(process.said)
            if length > _WORD_BYTES_MAX:
                is_good = False
                break
            end = _LENGTH.size + length
            if len(process.said) < end:
                break
            word, process.said = process.said[_LENGTH.size : end], process.said[end:]
            try:
                self._take_word(process, json.loads(word))
            except (ValueError, TypeError, KeyError, IndexError, RecursionError):
                is_good = False
        if not is_good:
            with contextlib.suppress(KeyError):
                self._selector.unregister(process.context)

    def _take_word(self, process: _Process, word: dict[str, Any]) -> None:
        if "confined" in word and "network" in process.told and process.confined is None:
            process.confined = [str(one) for one in word["confined"]]
            places = [str(one) for one in word["places"] if is_of_network(str(one))]
            # Nobody is left to be told, in a detached job.
            with contextlib.suppress(LinkError):
                self._creator.post("confined", process.number, process.confined, places)
        elif "key" in word and process.key is None:
            key = base64.b64decode(word["key"])
            if len(key) != _KEY_BYTES or key[0] != _NOT_COMPRESSED:
                raise ValueError("no key")
            process.key = key
            self._due.append(process)
        elif "here" in word:
            if process.is_here:
                raise ValueError("a process says once that it is here")
            process.is_here = True
            self._here.append((process.number, str(word["here"])))
        elif "returned" in word:
            if process.has_returned:
                raise ValueError("a function returns once")
            process.has_returned = True
            self._returned.append(process.number)
        else:
            rank = range(process.told["size"])[word["sibling"]]
            if rank in process.asked:
                raise ValueError("a process asks for each sibling once")
            process.asked.add(rank)
            if process.group.siblings is None:
                process.group.asked.append((process, rank))
            else:
                self._tell(process, (rank, *process.group.siblings[rank]))

    def _have_signed(self) -> None:
        """Have the keys signed that are there, all in one request."""
        while self._due and self._has_left:
            # It learns that its job is over.
            with contextlib.suppress(OSError):
                self._due.popleft().context.shutdown(socket.SHUT_WR)
        while self._due and self._deadline is None:
            count = min(len(self._due), _KEYS_AT_ONCE_MAX)
            due = [self._due.popleft() for _ in range(count)]
            numbers = [process.number for process in due]
            keys = [process.key for process in due]
            certificates = self._creator.request("sign", numbers, keys).result()
            for process, its in zip(due, certificates, strict=True):
                signed = {"certificates": [bytes(one) for one in its], "root": self._root}
                self._tell(process, {**process.told, **signed})

    def _tell_here(self) -> None:
        """Tell the creator which processes are there, and whose functions have returned, all at once."""
        here, self._here = self._here, []
        returned, self._returned = self._returned, []
        if self._has_left:
            return
        if here:
            self._creator.post("here", [list(one) for one in here])
        if returned:
            self._creator.post("returned", returned)

    def _tell(self, process: _Process, what: object) -> None:
        message = pickle.dumps(what)
        process.unsent += [_LENGTH.pack(len(message)), message]
        self._write(process)

    def _write(self, process: _Process) -> None:
        """Write to a process as far as it reads."""
        while process.unsent:
            try:
                count = process.context.send(process.unsent[0])
            except BlockingIOError:
                break
            except OSError:
                # One that has ended meanwhile needs nothing.
                process.unsent.clear()
                break
            left = memoryview(process.unsent[0])[count:]
            if left:
                process.unsent[0] = left
            else:
                process.unsent.popleft()
        with contextlib.suppress(KeyError, ValueError):
            events = _READ | _WRITE if process.unsent else _READ
            self._selector.modify(process.context, events, partial(self._serve_process, process))

    def _read_errors(self, process: _Process, _events: int) -> None:
        assert process.error_pipe is not None
        try:
            part = os.read(process.error_pipe, _READ_BYTES)
        except BlockingIOError:
            return
        if not part:
            self._selector.unregister(process.error_pipe)
            os.close(process.error_pipe)
            process.error_pipe = None
            return
        process.errors = (process.errors + part)[-_STDERR_BYTES_MAX:]
        with contextlib.suppress(OSError):
            os.write(2, part)

    def _forget(self, process: _Process) -> None:
        del self._processes[process.number]
        with contextlib.suppress(KeyError):
            self._selector.unregister(process.context)
        process.context.close()
        if process.pidfd is not None:
            self._selector.unregister(process.pidfd)
            os.close(process.pidfd)
        if process.connecting is not None:
            process.connecting.close()

    def _ended(self, process: _Process, end: ProcessEnd | None, text: str) -> None:
        self._forget(process)
        if "network" in process.told:
            _remove(self._own_folder(process.number))
        # All that it has said itself is in the pipe by now. Who has left its session may go on to write there, and nobody waits for that.
        while process.error_pipe is not None:
            before = len(process.errors), process.errors[-1:]
            self._read_errors(process, _READ)
            if (len(process.errors), process.errors[-1:]) == before:
                break
        text = text or process.errors.decode(errors="replace")
        self._tell_end(process.number, end, text, self._end_joined(process.number))

    def _end_joined(self, number: int) -> list[list[Any]]:
        """End what a program has started that has ended. Return which processes of the job it was to start, and what became of each."""
        inside, outside = self._joining.close(number)
        inside = [one for one in inside if one in self._processes and one != number]
        self.send_signal(inside, signal.SIGKILL)
        for one in inside:
            self._forget(self._processes[one])
        return [
            *([one, "it has ended with what has started it"] for one in inside),
            *([one, "it has never joined"] for one in outside),
        ]

    def _tell_end(
        self, number: int, end: ProcessEnd | None, text: str, joined: Sequence[list[Any]] = ()
    ) -> None:
        if self._has_left:
            return
        used = (None, 0.0, 0) if end is None else (end.code, end.seconds, end.memory_bytes)
        # A creator that has gone has ended this agent's channel.
        with contextlib.suppress(Exception):
            self._creator.post("ended", number, *used, text, list(joined))


def _send_signal(process: int, number: int) -> None:
    """Send a signal to all of a process's session; to itself, if it has not made that yet."""
    with contextlib.suppress(ProcessLookupError):
        try:
            os.killpg(process, number)
        except ProcessLookupError:
            os.kill(process, number)


class Incoming(Protocol):
    """What a channel's direction to an agent can do."""

    def fileno(self) -> int: ...
    def readline(self) -> bytes: ...
    def read(self, size: int, /) -> bytes | None: ...


class Outgoing(Protocol):
    """What a channel's direction from an agent can do."""

    def fileno(self) -> int: ...
    def write(self, line: bytes, /) -> int | None: ...


def main(
    incoming: Incoming,
    outgoing: Outgoing,
    *,
    lifeline: int | None = None,
    processes_max: int | None = None,
    is_detached: bool = False,
    sandbox: dict[str, Any] | None = None,
    is_child: bool = False,
) -> int:
    """Be a job's agent, until the channel ends. Return the exit code.

    Parameters
    ----------
    incoming, outgoing : file
        The two directions of the channel, unbuffered.
    lifeline : int, optional
        A socket that whoever has started this agent holds: the job ends with it, and is asked over it how it stands.
    processes_max : int, optional
        How many processes there can be at the same time.
    is_detached : bool
        Whether processes go on when the channel has ended.
    sandbox : dict, optional
        What the host's policy lets the job's processes use, as `Sandbox.told` has it.
    is_child : bool
        Whether the job's creator itself has started this agent.
    """
    # What each process needs is loaded once for all of them. Nothing runs yet that a process must not share.
    for module in _PRELOADED:
        importlib.import_module(f"{__package__}.{module}")
    own = {incoming.fileno(), outgoing.fileno()} | ({lifeline} if lifeline is not None else set())
    printed = _own_output() if is_detached else None
    zygote = ProcessZygote(own.union(printed or ()))
    passing = threading.Thread(target=_pass_on, args=printed or (), daemon=True)
    if printed is not None:
        passing.start()
    key = _core.ProcessKey()
    said = {"version": __version__, "public_key": base64.b64encode(key.public_key).decode()}
    outgoing.write(json.dumps(said).encode() + b"\n")
    line = incoming.readline()
    if not line:
        zygote.close()
        return 1
    told = json.loads(line)
    certificate, root = (base64.b64decode(told[name]) for name in ("certificate", "root"))
    check_listen(told["listen"])
    folder = Path(tempfile.mkdtemp(prefix="exoskel-job-"))
    credential = key.credential(certificate, root)
    agent = Agent(
        zygote,
        folder,
        told["listen"],
        job=credential.name.rpartition(".")[2],
        processes_max=processes_max,
        is_detached=is_detached,
        sandbox=sandbox,
        printed_to=None if printed is None else printed[1],
    )
    control = None
    try:
        with links.Node(
            credential,
            listen=[f"unix:{folder / 'agent'}", *told["listen"]],
            live=False,
            patience=told["patience"],
        ) as node:
            endpoint = node.endpoint(ENDPOINT)
            endpoint.handler(agent.asked(agent.start, check_start))
            for action in (agent.siblings, agent.send_signal, agent.end):
                endpoint.handler(agent.asked(action))
            endpoint.handler(agent.answered(agent.invite))
            proxy = HostProxy(folder, agent.environment)
            for handler in (proxy.request_proxy, proxy.take_proxy):
                endpoint.handler(handler)
            creator = node.bind(told["creator"])
            creator.request("agent", endpoint.startpoint(to="*").text()).result()
            threading.Thread(target=_follow, args=[incoming, agent], daemon=True).start()
            control = _control(agent, lifeline)
            agent.serve(creator, root)
            zygote.close()
            if printed is not None:
                # What processes have printed last is in the pipe.
                os.dup2(printed[1], 1)
                passing.join(_GRACE_SECONDS)
            # What was to be said to a creator that has gone is nobody's.
            logging.getLogger("exoskel.links").setLevel(logging.CRITICAL)
    except LinkError:
        if not agent.is_cut_off:
            raise
    finally:
        if control is not None:
            control.close()
        # A creator's own folder is for its child to remove, as a creator may be killed. Whoever asks a host's daemon may name any folder.
        for one in (folder, *(told["folders"] if is_child else [])):
            _remove(one)
    return 0


def _remove(folder: str | Path) -> None:
    """Remove a folder with all that processes have put there, however deep."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except RecursionError:
        subprocess.run(["rm", "-rf", "--", folder], check=False, stderr=subprocess.DEVNULL)


def _follow(channel: Incoming, agent: Agent) -> None:
    """End the agent with its channel."""
    with contextlib.suppress(OSError):
        while channel.read(_READ_BYTES):
            pass
    agent.creator_left()


def _control(agent: Agent, lifeline: int | None) -> JobControl:
    """Let this account, and whoever has started the agent, ask how the job stands."""
    from .job_control import JobControl

    control = JobControl(agent, lifeline)
    if (reason := control.announce()) and agent.is_detached:
        # Its processes can still be ended by their numbers.
        text = f"exoskel: job {agent.job} can't be found by `exoskel job list`: {reason}\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
    return control


def _own_output() -> tuple[int, int]:
    """Have what processes print come here: its reader may leave before them. Return where it comes from, and where it goes."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    printed_to = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    return reader, printed_to


def _pass_on(reader: int, printed_to: int) -> None:
    while part := os.read(reader, _READ_BYTES):
        with contextlib.suppress(OSError):
            os.write(printed_to, part)


@contextlib.contextmanager
def standard_channel() -> Iterator[tuple[io.RawIOBase, io.RawIOBase]]:
    """Take the standard input and output as a channel. What processes print goes where their errors go."""
    numbers = [os.dup(0), os.dup(1)]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    with _opened(*numbers) as files:
        yield files


@contextlib.contextmanager
def _opened(incoming: int, outgoing: int) -> Iterator[tuple[io.RawIOBase, io.RawIOBase]]:
    with (
        open(incoming, "rb", buffering=0, closefd=False) as reader,
        open(outgoing, "wb", buffering=0, closefd=False) as writer,
    ):
        yield reader, writer


if __name__ == "__main__":
    # Ctrl-C is for the creator, whose end is this agent's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    *words, place = sys.argv[1:]
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    more: dict[str, Any] = {name: int(options[word]) for name, word in _LIMITS if word in options}
    more["is_detached"] = "detach" in options
    more["is_child"] = place != "--stdio" and "lifeline" not in options
    more["sandbox"] = json.loads(options["sandbox"]) if "sandbox" in options else None
    with standard_channel() if place == "--stdio" else _opened(*[int(place)] * 2) as files:
        incoming, outgoing = files
        sys.exit(main(incoming, outgoing, **more))
