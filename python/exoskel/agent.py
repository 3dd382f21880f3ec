"""What starts the processes of a job on one host, at the word of the job's creator.

`agent_program` is the program: a launcher brings it there and gives it a channel. When the channel ends, so do the agent and all that it has started.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import pickle
import selectors
import signal
import socket
import struct
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import replace
from functools import partial, wraps
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from . import _core, agent_waits, links
from .agent_processes import ORDERED, AgentGroup, AgentProcess, described, shown_program
from .control_groups import GroupPlace, JobGroups
from .errors import LinkError
from .folder_remover import FolderRemover
from .host_sandbox import check_manager, narrowed
from .job_delegation import PROXY
from .job_dialling import ConnectionMaker, is_of_network
from .job_orphans import MARK, own_mark
from .job_output import Pipe, output_writers
from .joining import Joining
from .process_zygote import (
    AGENT,
    ANYBODY,
    CONTEXT,
    RANK,
    SIZE,
    ProcessEnd,
    ProcessStart,
    ProcessZygote,
)
from .start_request import check_number

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .joining import Door

__all__ = ["GRACE_SECONDS", "OWN_NAMES", "Agent"]

# What is kept of a process's standard error: its end.
_STDERR_BYTES_MAX = 16 << 10
# What a process says at once: its key, its startpoint, or which sibling it asks for.
_WORD_BYTES_MAX = 8 << 10
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
# A point of P-256, not compressed (SEC 1, section 2.3.3).
_KEY_BYTES, _NOT_COMPRESSED = 65, 4
_LENGTH = struct.Struct("!I")
_READ_BYTES = 64 << 10
# The variables of processes that an agent alone sets.
OWN_NAMES = frozenset([AGENT, CONTEXT, MARK, RANK, SIZE])
# How long what processes have printed last may take to be passed on.
GRACE_SECONDS = 2.0


class Agent:
    """The processes of a job on this host. All but `ask` is for the thread that is in `serve`.

    The machine decides. Here are the sockets, pipes and keys of what it knows by numbers.
    """

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
        groups: Mapping[str, GroupPlace] | None = None,
        printed_to: int | None = None,
    ) -> None:
        self.job = job
        self._control_groups = JobGroups(sandbox, groups)
        # What the host lets every process use; all that the account may, if it is None.
        self._sandbox = sandbox
        self._begun = time.time()
        self._processes_max = processes_max
        self._machine = _core.AgentMachine(processes_max)
        # Whether its processes go on without the job's creator.
        self.is_detached = is_detached
        # What processes have in theirs, beside what their creator says.
        self.environment: dict[str, str] = {MARK: own_mark()}
        self._printed_to = printed_to
        self._zygote = zygote
        self._folder = folder
        self._listen = listen
        self._processes: dict[int, AgentProcess] = {}
        self._groups: dict[int, AgentGroup] = {}
        self._asked: deque[Callable[[], None]] = deque()
        self._waker, self._woken = socket.socketpair()
        self._woken.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._writers = output_writers(self._selector)
        self._remover = FolderRemover(self._selector)
        self._selector.register(zygote.control, selectors.EVENT_READ, self._serve_zygote)
        self._unsent: deque[tuple[ProcessStart, list[int]]] = deque()
        self._selector.register(self._woken, selectors.EVENT_READ, self._do_asked)
        self._joining = Joining(self._selector, self._arrived)
        # Its channel has ended.
        self.is_cut_off = False
        self._is_ordered = False
        self._creator: Any = None
        self._root = b""
        # Requests to sign keys: this thread goes on meanwhile, as what it serves may have to end.
        self._signing: SimpleQueue[tuple[list[int], links.Reply] | None] = SimpleQueue()

    def serve(self, creator: Any, root: bytes) -> None:
        """Serve the processes until they have ended, after `end`. `creator` is the link to the job's creator, which signs."""
        self._creator, self._root = creator, root
        threading.Thread(target=self._await_signed, name="exoskel-agent-sign", daemon=True).start()
        try:
            self._serve()
        finally:
            self._signing.put(None)

    def _serve(self) -> None:
        while not self._machine.is_over:
            for ready, events in self._selector.select(self._machine.next_timeout()):
                # What one says may have ended another.
                if self._selector.get_map().get(ready.fd) is ready:
                    ready.data(events)
            self._machine.handle_timeout()
            self._act()
            try:
                self._have_signed()
                self._tell_news()
            except LinkError:
                if not self.is_detached:
                    raise
                self.leave()

    def _act(self) -> None:
        """Do what the machine has decided."""
        while (action := self._machine.next_action()) is not None:
            what, number, value = action
            process = self._processes.get(number)
            if process is None:
                continue
            if what == "hang up":
                with contextlib.suppress(OSError):
                    process.context.shutdown(socket.SHUT_WR)
            elif what == "signal":
                _signal(process, value)
            elif what == "tell" and (sibling := self._machine.sibling(number, value)) is not None:
                self._tell(process, (value, *sibling))
            elif what == "release":
                # It has run before, and may run on.
                self._ended(process, None, "its job is over")

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

    def cut_off(self, by_order: bool = False) -> None:
        """End all, as whoever has started this agent has gone. For every thread."""
        self._is_ordered |= by_order
        self.is_cut_off = True
        self.ask(self.end_by_order if by_order else self.end)

    def creator_left(self) -> None:
        """Go on without the creator, if the job is one that does, or end. For every thread."""
        if self.is_detached:
            self.ask(self.leave)
        else:
            self.cut_off()

    def leave(self) -> None:
        """Go on without the creator, until what runs has ended: a function that has returned waits for nobody's requests any more."""
        if not self._machine.leave():
            return
        self.is_cut_off = True
        # What was to be said to it is nobody's.
        logging.getLogger("exoskel.links").setLevel(logging.CRITICAL)
        if self._printed_to is not None:
            # Nor is what is printed: whoever reads it may wait for its end.
            with open(os.devnull, "wb") as nothing:
                os.dup2(nothing.fileno(), self._printed_to)

    def close(self) -> None:
        """Pass on what processes have printed, and remove what has held them: they have ended."""
        for writer in self._writers:
            writer.finish(GRACE_SECONDS)
        self._remover.close()
        self._control_groups.close()

    def status(self) -> dict[str, Any]:
        """Return how the job stands here, as `exoskel job list --json` has it."""
        return {
            "job": self.job,
            "agent": os.getpid(),
            "begun": self._begun,
            "is_detached": self.is_detached,
            "has_creator": not self._machine.has_left,
            **described(self._processes.values(), dict(self._machine.processes())),
        }

    def end(self) -> None:
        """End all processes: those that have joined see the end of their sockets, others get ``SIGTERM``. Who doesn't end soon is killed."""
        if self._machine.end():
            for one in self._joining.close_all():
                self._tell_end(one, None, "it has not come, and its job is over")

    def end_by_order(self) -> None:
        """End all processes though their creator is there: what they have not done is to be seen by their exit codes."""
        self._is_ordered = True
        for process in self._processes.values():
            if process.is_joined:
                self._tell(process, (None, None, ORDERED))
        self.end()

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
            ``label``: what stands before the rank on each line that they print, or None. ``sandbox``: what they may use, or None. ``manager``: where the manager listens whose slots they are.
        told : dict
            What the processes learn besides, when they join.
        """
        words, directory = tuple(what["words"]), what["directory"]
        must_enter = bool(what.get("must_enter", True))
        try:
            sandbox = self._sandbox_of(group, what)
        except (OSError, TypeError, KeyError, ValueError) as error:
            for number in numbers:
                self._tell_end(number, None, getattr(error, "strerror", None) or str(error))
            return
        if what.get("joined"):
            [number] = numbers
            try:
                if sandbox is not None:
                    raise PermissionError(0, "processes in sandboxes start none of their job")
                if not self._may_start(number, 0, len(what["joined"]), number):
                    return
                opened = self._opened(group, number, what["joined"], told)
            except OSError as error:
                reason = error.strerror or str(error)
                self._machine.ended(number)
                for one in (number, *what["joined"]):
                    self._tell_end(one, None, reason)
                return
            said = self._environment_of(what, opened)
            shown = AgentGroup(number, shown_program(words, told))
            self._start(ProcessStart(number, words, directory, must_enter, said), told, shown)
            return
        for number, rank in zip(numbers, ranks, strict=True):
            if not self._may_start(number, rank, told["size"], group):
                continue
            said = self._environment_of(what, {RANK: str(rank), SIZE: str(told["size"])})
            start = ProcessStart(number, words, directory, must_enter, said)
            if (label := what.get("label")) is not None:
                start = replace(start, before=f"[{label} {rank}] " if label else f"[{rank}] ")
            told_each, its = self._told(number, rank, told), self._group(group)
            its.program = shown_program(words, told)
            its.places.add(told_each["listen"][0])
            if sandbox is not None:
                own = {**sandbox, "manager": what["manager"]} if "manager" in what else sandbox
                try:
                    start = self._in_sandbox(start, own, told_each["listen"])
                except OSError as error:
                    self._machine.ended(number)
                    self._tell_end(number, None, f"it can't have a folder: {error.strerror}")
                    continue
                told_each["network"] = sandbox["network"]
            self._start(start, told_each, its)

    def _sandbox_of(self, group: int, what: dict[str, Any]) -> dict[str, Any] | None:
        """Return what processes may use, with the control groups that hold them."""
        sandbox: dict[str, Any] | None = what.get("sandbox")
        if self._sandbox is not None:
            sandbox = narrowed(self._sandbox, sandbox)
            if "manager" in what:
                check_manager(self._sandbox, str(what["manager"]))
        if sandbox is None:
            return None
        own = ("groups", "together")
        asked = {name: value for name, value in sandbox.items() if name not in own}
        return {**asked, **self._control_groups.of_start(group, asked)}

    def _environment_of(self, what: dict[str, Any], own: dict[str, str]) -> dict[str, str]:
        """Return what processes are to have in their environment. What the agent says itself isn't changed by what their creator says."""
        said = what["environment"].items()
        other = {name: value for name, value in said if name not in OWN_NAMES}
        return {**other, **self.environment, **own}

    def _may_start(self, number: int, rank: int, size: int, group: int) -> bool:
        """Whether a process can be started; why not is told."""
        refusal = self._machine.start(number, rank, size, group, "agent")
        if refusal == "full":
            limit = f"the agent's limit of {self._processes_max} processes at once (--processes) is reached"
            self._tell_end(number, None, limit)
        elif refusal == "over":
            self._tell_end(number, None, "its job is over")
        return refusal is None

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
        its = self._group(group)
        its.program = shown_program((), told)
        door = self._joining.open(number, place, [number], told, its)
        door.word = word
        return str(place)

    def _opened(
        self, group: int, number: int, joined: list[int], told: dict[str, Any]
    ) -> dict[str, str]:
        """Open the way in for what a program starts, and return what that finds in its environment."""
        place = self._joining_path(number)
        its = self._group(group)
        its.program = f"a rank of {shown_program((), told)}"
        self._joining.open(number, place, joined, told, its)
        return {AGENT: str(place), SIZE: str(len(joined))}

    def _joining_path(self, number: int) -> Path:
        return self._folder / f"joining-{number}"

    def _group(self, number: int) -> AgentGroup:
        return self._groups.setdefault(number, AgentGroup(number))

    def _told(self, number: int, rank: int, told: dict[str, Any]) -> dict[str, Any]:
        listen = [f"unix:{self._folder / str(number)}", *self._listen]
        return {**told, "rank": rank, "listen": listen}

    def _arrived(
        self, number: int, rank: int, door: Door, connection: socket.socket, pidfd: int
    ) -> None:
        """Take a process in that the zygote has not started."""
        told = self._told(number, rank, door.told)
        origin = "invitation" if told.get("invited") else "program"
        its: AgentGroup = door.group
        if self._machine.start(number, rank, told["size"], its.number, origin) is not None:
            connection.close()
            os.close(pidfd)
            return
        process = AgentProcess(number, told, its, connection, pidfd=pidfd)
        self._processes[number] = process
        self._selector.register(connection, _READ, partial(self._serve_process, process))
        self._selector.register(pidfd, _READ, partial(self._has_gone, process))

    def _has_gone(self, process: AgentProcess, _events: int) -> None:
        self._ended(process, None, "only what has started it knows its exit code")

    def siblings(
        self, group: int, siblings: list[tuple[str | None, str]], places: list[str]
    ) -> None:
        """Take the startpoints of processes that were started together, by ranks, or why one has none; and where those in sandboxes listen.

        That is said again when others are in the place of some.
        """
        self._group(group).places.update(filter(is_of_network, places))
        self._machine.siblings(group, [(startpoint, why) for startpoint, why in siblings])

    def absent(self, number: int, rank: int, why: str) -> None:
        """Take in that a process waits for a sibling in vain, as long as that is not there."""
        process = self._processes.get(number)
        if process is None:
            return
        if rank == ANYBODY or (rank in process.asked and self._is_unknown(number, rank)):
            self._tell(process, (rank, False, why))

    def _is_unknown(self, number: int, rank: int) -> bool:
        """Whether the creator has not said yet who a sibling is."""
        return self._machine.sibling(number, rank) is None

    def send_signal(self, numbers: list[int], number: int) -> None:
        """Send a signal to processes, and to what they have started."""
        self._machine.signal(numbers, number)

    def _start(self, what: ProcessStart, told: dict[str, Any], group: AgentGroup) -> None:
        with contextlib.ExitStack() as made:
            try:
                ours, context = socket.socketpair()
                made.callback(context.close)
                made.callback(ours.close)
                ends = [_pipe(made) for _ in ((2, 1) if what.has_own_output else (2,))]
                dial = asking = None
                if told.get("network") == "links":
                    dial, asking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            except OSError as error:
                self._machine.ended(what.number)
                self._tell_end(what.number, None, error.strerror or str(error))
                return
            made.pop_all()
        pipes = [
            Pipe(reader, writer, what.before, kept_bytes=kept)
            for (reader, _), writer, kept in zip(
                ends, reversed(self._writers), (_STDERR_BYTES_MAX, 0), strict=False
            )
        ]
        process = self._processes[what.number] = AgentProcess(what.number, told, group, ours, pipes)
        ours.setblocking(False)
        for pipe, (reader, _) in zip(pipes, ends, strict=True):
            self._selector.register(reader, _READ, partial(self._read_pipe, pipe))
        self._selector.register(ours, _READ, partial(self._serve_process, process))
        process.control_groups = (what.sandbox or {}).get("groups", ())
        if dial is not None:
            process.connecting = ConnectionMaker(
                dial, group.places, self._selector, reaches_own_host=self._sandbox is None
            )
        inherited = [context.detach(), *(writer for _, writer in ends)]
        if asking is not None:
            inherited.append(asking.detach())
        self._unsent.append((what, inherited))
        self._send_starts()

    def _send_starts(self) -> None:
        """Hand on what is to be started, as far as the zygote takes it: it may be waiting to tell of what it has started."""
        while self._unsent:
            what, inherited = self._unsent[0]
            try:
                self._zygote.start(what, inherited)
            except BlockingIOError:
                break
            except OSError as error:
                self._ended(self._processes[what.number], None, error.strerror or str(error))
            self._unsent.popleft()
            for descriptor in inherited:
                os.close(descriptor)
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
            self._machine.zygote_lost()
            self._act()
            threading.Thread(target=_end_adopted, name="exoskel-adopted", daemon=True).start()
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
            self._machine.started(message.number)

    def _serve_process(self, process: AgentProcess, events: int) -> None:
        if events & _WRITE:
            self._write(process)
        if events & _READ:
            self._hear(process)

    def _hear(self, process: AgentProcess) -> None:
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

    def _take_word(self, process: AgentProcess, word: dict[str, Any]) -> None:
        if "confined" in word and "network" in process.told and process.confined is None:
            process.confined = [str(one) for one in word["confined"]]
            places = [str(one) for one in word["places"] if is_of_network(str(one))]
            # Nobody is left to be told, in a detached job.
            with contextlib.suppress(LinkError):
                self._creator.post("confined", process.number, process.confined, places)
        elif "key" in word:
            key = base64.b64decode(word["key"])
            if len(key) != _KEY_BYTES or key[0] != _NOT_COMPRESSED:
                raise ValueError("no key")
            self._machine.key(process.number)
            process.key = key
        elif "here" in word:
            startpoint = str(word["here"])
            self._machine.here(process.number)
            process.startpoint = startpoint
        elif "returned" in word:
            self._machine.returned(process.number)
        elif agent_waits.WORDS & word.keys() and process.told.get("tells_absence"):
            if not self._machine.has_left:
                agent_waits.pass_on(self._creator, process, word)
        else:
            # -1 is the last one, as in a list.
            rank = range(process.told["size"])[word["sibling"]]
            self._machine.ask(process.number, rank)
            process.asked.add(rank)

    def _have_signed(self) -> None:
        """Have the keys signed that are there, in one request at a time."""
        if due := self._machine.keys_due():
            keys = [self._processes[number].key for number in due]
            self._signing.put((due, self._creator.request("sign", due, keys)))

    def _await_signed(self) -> None:
        """Wait for what is signed. On a thread of its own."""
        while (asked := self._signing.get()) is not None:
            due, reply = asked
            try:
                certificates = reply.result()
            except Exception as error:
                self.ask(partial(self._not_signed, error))
            else:
                self.ask(partial(self._signed, due, certificates))

    def _signed(self, due: list[int], certificates: list[list[bytes]]) -> None:
        self._machine.signed(due)
        for number, its in zip(due, certificates, strict=True):
            # One may have ended meanwhile.
            if (process := self._processes.get(number)) is not None:
                signed = {"certificates": [bytes(one) for one in its], "root": self._root}
                self._tell(process, {**process.told, **signed})
                process.is_joined = True

    def _not_signed(self, error: Exception) -> None:
        if not self.is_detached or not isinstance(error, LinkError):
            raise error
        self.leave()

    def _tell_news(self) -> None:
        """Tell the creator which processes are there, and whose functions have returned, all at once."""
        here, returned = self._machine.news()
        if here:
            found = [[number, self._processes[number].startpoint] for number in here]
            self._creator.post("here", found)
        if returned:
            self._creator.post("returned", returned)

    def _tell(self, process: AgentProcess, what: object) -> None:
        message = pickle.dumps(what)
        process.unsent += [_LENGTH.pack(len(message)), message]
        self._write(process)

    def _write(self, process: AgentProcess) -> None:
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

    def _read_pipe(self, pipe: Pipe, _events: int = _READ) -> int | None:
        descriptor = pipe.descriptor
        count = pipe.read()
        if descriptor is not None and (count == 0 or pipe.writer.is_full):
            # At its end it may be held up already.
            with contextlib.suppress(KeyError):
                self._selector.unregister(descriptor)
                if count != 0:
                    pipe.writer.when_free(partial(self._resume, pipe))
        return count

    def _resume(self, pipe: Pipe) -> None:
        if pipe.descriptor is not None:
            self._selector.register(pipe.descriptor, _READ, partial(self._read_pipe, pipe))

    def _forget(self, process: AgentProcess) -> None:
        # Before its end is told.
        with contextlib.suppress(LinkError):
            self._tell_news()
        del self._processes[process.number]
        self._machine.ended(process.number)
        with contextlib.suppress(KeyError):
            self._selector.unregister(process.context)
        process.context.close()
        if process.pidfd is not None:
            self._selector.unregister(process.pidfd)
            os.close(process.pidfd)
        if process.connecting is not None:
            process.connecting.close()

    def _ended(self, process: AgentProcess, end: ProcessEnd | None, text: str) -> None:
        self._forget(process)
        if "network" in process.told:
            self._remover.remove(self._own_folder(process.number))
        # All that it has said itself is in its pipes by now. Who has left its session may go on to write there, and nobody waits for that.
        for pipe in process.pipes:
            left = pipe.capacity()
            while left > 0 and (count := self._read_pipe(pipe)):
                left -= count
            pipe.finish_line()
        if process.pipes and not text:
            text = process.pipes[0].kept.decode(errors="replace")
        if self._is_ordered and end is not None and end.code != 0:
            text += f"\nexoskel: {ORDERED}"
        is_killed = end is not None and end.code == -signal.SIGKILL
        if is_killed and self._control_groups.has_ended_some(process.control_groups):
            text += "\nexoskel: the kernel ends processes here, as all of them together have more memory than they may"
        self._tell_end(process.number, end, text, self._end_joined(process.number))

    def _end_joined(self, number: int) -> list[list[Any]]:
        """End what a program has started that has ended. Return which processes of the job it was to start, and what became of each."""
        inside, outside, why = self._joining.close(number)
        inside = [one for one in inside if one in self._processes and one != number]
        self.send_signal(inside, signal.SIGKILL)
        self._act()
        for one in inside:
            self._forget(self._processes[one])
        return [
            *([one, "it has ended with what has started it"] for one in inside),
            *([one, why] for one in outside),
        ]

    def _tell_end(
        self, number: int, end: ProcessEnd | None, text: str, joined: Sequence[list[Any]] = ()
    ) -> None:
        # To a creator that is still there, who is cut off is lost, and how its processes end then says nothing of them.
        is_lost = self.is_cut_off and not self._is_ordered
        if self._machine.has_left or is_lost:
            return
        used = (None, 0.0, 0) if end is None else (end.code, end.seconds, end.memory_bytes)
        # A creator that has gone has ended this agent's channel.
        with contextlib.suppress(Exception):
            self._creator.post("ended", number, *used, text, list(joined))


def _pipe(made: contextlib.ExitStack) -> tuple[int, int]:
    """Make a pipe, and return where it is read and written."""
    ends = os.pipe2(os.O_CLOEXEC)
    for one in ends:
        made.callback(os.close, one)
    return ends


def _signal(process: AgentProcess, number: int) -> None:
    """Send a signal to all of a process's session; to itself, if it has not made that yet or isn't the agent's."""
    with contextlib.suppress(ProcessLookupError):
        if process.pidfd is not None:
            signal.pidfd_send_signal(process.pidfd, number)
        elif process.process is not None:
            try:
                os.killpg(process.process, number)
            except ProcessLookupError:
                os.kill(process.process, number)


def _end_adopted() -> None:
    """End what has left its session, and is this process's since the zygote has ended, or when its own parent ends."""
    with contextlib.suppress(ChildProcessError):
        while True:
            _core.end_descendants()
            os.waitpid(-1, 0)
