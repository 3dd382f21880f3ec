"""What the creator of a job knows and does: it signs its processes' keys, and has agents start and end them."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import resource
import select
import shutil
import signal
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from . import __version__, _core, job_folders, links
from .errors import LinkError, ProcessEndedError, StartpointError, VersionError
from .job_processes import Process, Record, ended, ended_text
from .job_summary import JobSummary, ProcessSummary
from .joining import invitation, invitation_file, new_word, withdraw
from .launchers import Launcher, own_host
from .link_arguments import as_startpoint, said_startpoint
from .peer_text import one_line
from .process_zygote import ANYBODY
from .start_request import PROCESSES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from .launchers import AgentChannel

__all__ = ["AGENT_SECONDS", "PROCESSES_MAX", "Group", "JobState"]

_log = logging.getLogger("exoskel.links")
# How long an agent may take to be there.
AGENT_SECONDS = 60.0
# How long agents may take to end what they have started.
_END_SECONDS = 10.0
# How long a link that has lost its connection waits for another one.
_PATIENCE_SECONDS = 10.0
# Who waits longer for ends that don't come by themselves is told so.
_WARNING_SECONDS = 10.0
# By how much news of an end may come after the end of a link.
_NEWS_SECONDS = 1.0
# What a program has open besides.
_DESCRIPTORS_BESIDE = 512
# What is said of processes whose agent has gone.
_LOST = "it was lost with what starts the processes of its host"
# And of those of a detached job that go on.
_LEFT = "it goes on without this program, which has left its job"
# And one that is not there in time.
_ABSENT_END_SECONDS = 0.5
# The number of the job's creator.
_CREATOR = 0
# What an agent says of its key fits into less.
_LINE_BYTES_MAX = 4096


@dataclass
class Agent:
    host: str
    number: int
    channel: AgentChannel
    binding: links.Binding | None = None
    watcher: threading.Thread | None = None
    #: Its channel has ended.
    is_lost: bool = False


class _ProcessBinding(links.Binding):
    """The link to a process: what comes to nothing because the process has ended says so."""

    def __init__(
        self, node: links.Node, startpoint: links.Startpoint, state: JobState, record: Record
    ) -> None:
        super().__init__(node, startpoint)
        self._state = state
        self._record = record

    def request(self, handler: str, /, *arguments: Any, **keywords: Any) -> links.Reply:
        try:
            return super().request(handler, *arguments, **keywords)
        except LinkError as error:
            raise self._explained(error) from None

    def post(self, handler: str, /, *arguments: Any, **keywords: Any) -> None:
        try:
            super().post(handler, *arguments, **keywords)
        except LinkError as error:
            raise self._explained(error) from None

    def _explained(self, error: Exception) -> Exception:
        if isinstance(error, LinkError) and self._state.has_ended_soon(self._record):
            return ended(self._record)
        return error


@dataclass
class Group:
    """Processes that are started together. When all are there, or have ended, they learn of each other."""

    program: str
    #: How they are started, and what they learn when they join.
    what: dict[str, Any]
    told: dict[str, Any]
    #: What each is on its wires: it has a certificate for each.
    roles: tuple[str, ...] = ("peer",)
    #: Called when one has ended, by a thread that must not wait.
    on_end: Callable[[Record], None] = lambda _: None
    #: Called when a task of one has raised an exception, with its class and its text, and the task's stream.
    on_failed: Callable[[Record, str, int | None], None] = lambda *_: None
    #: Says why a process waits in vain for a sibling that isn't there; nothing as long as that may come. It gets the stream of who waits.
    why_absent: Callable[[int | None], str] = lambda _: ""
    #: Takes in whether the task of one waits for a post, and says why none comes; nothing as long as one may come.
    why_idle: Callable[[Record, bool, int | None], str] = lambda *_: ""
    #: The process that starts them, if that isn't their agent.
    starter: Record | None = None
    number: int = 0
    #: By ranks; those in the place of others, too.
    records: list[Record] = field(default_factory=list)


class JobState:
    """What a job is made of. It doesn't know the `Job`, which ends it when nobody holds it any more.

    The machine decides. Here are the sockets, futures and texts of what it knows by numbers.
    """

    def __init__(
        self,
        launcher: Launcher,
        hosts_min: int | None,
        timeout: float,
        *,
        is_detached: bool = False,
        prepare: Callable[[str, links.Binding], None] | None = None,
    ) -> None:
        # Once all hosts are there, processes go on without this program.
        self._is_detached = False
        self._authority = _core.JobAuthority()
        self.job = self._authority.job
        self._machine = _core.JobMachine(self.job)
        self._changed = threading.Condition()
        # A thread tells siblings of each other: agents hear the newest last.
        self._is_telling = False
        self._agents: dict[int, Agent] = {}
        self._records: dict[int, Record] = {}
        # How many processes have ended.
        self._ends = 0
        self._folder = job_folders.made()
        self._is_over = False
        # Files, and what the system said of them.
        self._invitations: list[tuple[str, os.stat_result]] = []
        # Whether it is over since nobody has held it.
        self._is_let_go = False
        self._process = os.getpid()
        self._node: links.Node | None = None
        # Besides the sockets that processes of one host have in a folder.
        self._listen = ["0.0.0.0:0"] if launcher.has_network else []
        # Two processes that dial each other at the same moment keep one session, and the links of the other one go over to it.
        self._patience = _PATIENCE_SECONDS
        try:
            self._node = self._made_node()
            self._launch(launcher, hosts_min, time.monotonic() + timeout)
            for agent in self._agents.values():
                if prepare is not None and agent.binding is not None:
                    prepare(agent.host, agent.binding)
            self._is_detached = is_detached
            if is_detached:
                self._machine.detach()
        except BaseException:
            self.close()
            raise

    def own_credential(self, role: str) -> _core.ProcessCredential:
        """Return a credential of the creator."""
        key = _core.ProcessKey()
        [certificate] = self._authority.sign(role, own_host(), [(_CREATOR, key.public_key)])
        return key.credential(certificate, self._authority.root)

    def _made_node(self) -> links.Node:
        node = links.Node(
            self.own_credential("peer"),
            listen=[f"unix:{self._folder / job_folders.CREATOR}", *self._listen],
            live=False,
            patience=self._patience,
        )
        agents = node.endpoint("job", threads=4)
        for handler in (
            self.agent,
            self.sign,
            self.here,
            self.returned,
            self.confined,
            self.waits,
            self.idles,
            self.failed,
            self.ended,
        ):
            agents.handler(handler)
        self._for_agents = agents.startpoint(to="*").text()
        return node

    @property
    def folder(self) -> Path:
        """What the creator has for sockets of its own."""
        return self._folder

    @property
    def hosts(self) -> int:
        """How many hosts take part."""
        return len(self._agents)

    @property
    def creator_name(self) -> str:
        """The creator's name in its certificates."""
        return f"{own_host()}#{_CREATOR}.{self.job}"

    def _launch(self, launcher: Launcher, hosts_min: int | None, deadline: float) -> None:
        for channel in launcher.launch():
            number = self._machine.add_agent(channel.host)
            self._agents[number] = Agent(channel.host, number, channel)
        if self._listen:
            # Whoever starts agents of this host alone has them do it.
            job_folders.sweep()
        unreachable: list[Exception] = []
        for agent in _as_they_speak(self._agents.values(), deadline):
            try:
                self._let_in(agent, deadline)
            except (ProcessEndedError, TimeoutError) as error:
                how = agent.channel.close(_ABSENT_END_SECONDS)
                is_late = isinstance(error, TimeoutError)
                unreachable.append(TimeoutError(f"{error}, {how}") if is_late else error)
                del self._agents[agent.number]
                self._machine.remove_agent(agent.number)
        if unreachable and len(self._agents) < (hosts_min or len(self._agents) + 1):
            raise unreachable[0]
        for reason in unreachable:
            _log.warning("%s; the job goes on without this host", reason)
        for agent in self._agents.values():
            name = f"exoskel-job-{agent.number}"
            agent.watcher = threading.Thread(
                target=self._watch, args=[agent], name=name, daemon=True
            )
            agent.watcher.start()
        with self._changed:
            agents = self._agents.values()
            self._changed.wait_for(
                lambda: (
                    not self._machine.agents_missing() or any(agent.is_lost for agent in agents)
                ),
                max(0.0, deadline - time.monotonic()),
            )
        missing = [self._agents[number] for number in self._machine.agents_missing()]
        for agent in missing:
            if agent.is_lost:
                raise agent.channel.absence()
        if missing:
            names = ", ".join(agent.host for agent in missing)
            raise TimeoutError(f"the agents of {names} are not there in time")

    def _let_in(self, agent: Agent, deadline: float) -> None:
        """Sign the key of an agent, and tell it where we are."""
        channel = agent.channel
        line = _line(agent, deadline)
        # Slurm chooses hosts: who is there knows which.
        agent.host = channel.host
        self._machine.set_host(agent.number, agent.host)
        if not line:
            raise channel.absence()
        try:
            said = json.loads(line)
            version, public_key = str(said["version"]), base64.b64decode(said["public_key"])
        except (ValueError, TypeError, KeyError):
            raise ProcessEndedError(
                f"got {one_line(repr(line))} from {agent.host}, expected the first words of an agent: what its shell prints at its start, only a terminal may see",
                host=agent.host,
            ) from None
        if version != __version__:
            raise VersionError(
                f"{agent.host} has Exoskel {one_line(version)}, expected {__version__}, as here: update the older one"
            )
        [certificate] = self._authority.sign("peer", agent.host, [(agent.number, public_key)])
        told = {
            "certificate": base64.b64encode(certificate).decode(),
            "root": base64.b64encode(self._authority.root).decode(),
            "creator": self._for_agents,
            "listen": self._listen,
            "patience": self._patience,
            # An agent of this machine outlives us, however we end.
            "folders": [] if self._listen else [str(self._folder)],
        }
        with contextlib.suppress(OSError):
            channel.file.write(json.dumps(told).encode() + b"\n")

    def _watch(self, agent: Agent) -> None:
        """Wait for the end of an agent, which says nothing more over its channel."""
        with contextlib.suppress(OSError, ValueError):
            while agent.channel.file.read(_LINE_BYTES_MAX):
                pass
        with self._changed:
            agent.is_lost = True
            self._changed.notify_all()
        self._end(lambda: self._machine.agent_lost(agent.number))

    def start_joined(self, group: Group, count: int) -> list[Record]:
        """Start a program on the first host that starts the processes itself, and return these."""
        starting = Group(group.program, group.what, dict(group.told))
        self._fill(starting, 1, first_host=True)
        [group.starter] = starting.records
        self._fill(group, count, first_host=True)
        what = {**group.what, "joined": [record.number for record in group.records]}
        numbers = [group.starter.number]
        with self._not_started([*starting.records, *group.records]):
            self._ask(group.starter.agent, "start", group.number, numbers, [0], what, group.told)
        return group.records

    def invite(self, path: str | os.PathLike[str], told: dict[str, Any]) -> list[Record]:
        """Let a process in on this job's first host that says what is in a file, and return it."""
        program = "an invited process"
        group = Group(program, {"words": [program]}, {**told, "invited": True})
        with invitation_file(path) as file:
            try:
                self._fill(group, 1, first_host=True)
                word = new_word()
                with self._not_started(group.records):
                    agent = group.records[0].agent
                    place = self._ask(agent, "invite", group.number, group.number, group.told, word)
                    file.write(invitation(place, word))
                    file.flush()
                self._invitations.append((os.path.abspath(path), os.fstat(file.fileno())))
            except BaseException:
                os.unlink(path)
                raise
        return group.records

    def _ask(self, agent: Agent, *what: Any) -> Any:
        assert agent.binding is not None
        return agent.binding.request(*what).result()

    @contextlib.contextmanager
    def _not_started(self, records: Sequence[Record]) -> Iterator[None]:
        """Have processes ended whose start fails. An agent to which there is no link any more is given up: they end with it, if they run."""
        try:
            yield
        except LinkError:
            for agent in {record.agent.number: record.agent for record in records}.values():
                agent.channel.close(_ABSENT_END_SECONDS)
            raise
        except BaseException as error:
            self._end_unstarted(records, str(error))
            raise

    def _end_unstarted(self, records: Iterable[Record], why: str) -> None:
        numbers = [record.number for record in records]
        self._end(lambda: self._machine.not_started(numbers), dict.fromkeys(numbers, (why, 0.0, 0)))

    def _fill(self, group: Group, count: int, *, first_host: bool = False) -> None:
        """Give a group its processes: neighbours are on one host."""
        starter = None if group.starter is None else group.starter.number
        is_function = not group.what["words"]
        with self._changed:
            members = self._machine.fill(count, first_host, starter, is_function)
            group.number = members[0][0]
            group.told |= {
                "size": count,
                "patience": self._patience,
                "program": group.program,
            }
            group.records += [self._added(group, *member) for member in members]
        self._allow_descriptors()

    def start(self, group: Group, count: int, ranks: Collection[int] | None = None) -> list[Record]:
        """Start processes on all hosts, neighbours on one, and return them. With ``ranks``, only those; `replace` starts others in their places."""
        self._fill(group, count)
        records = list(group.records)
        if ranks is not None:
            self._end_unstarted(
                [one for one in records if one.rank not in ranks], "it is not wanted yet"
            )
            records = [one for one in records if one.rank in ranks]
        waiting = list({record.agent.number: record.agent for record in records}.values())
        while waiting:
            agent = waiting.pop(0)
            try:
                self._have_started(agent, group, [one for one in records if one.agent is agent])
            except BaseException as error:
                # Nobody is asked to start the others.
                self._end_unstarted([one for one in records if one.agent in waiting], str(error))
                raise
        return records

    def replace(self, record: Record) -> bool:
        """Start another process in the place of one that has ended. Return whether there is a host for it."""
        with self._changed:
            member = self._machine.replace(record.number)
            if member is None:
                return False
            other = self._added(record.group, *member)
            record.group.records[other.rank] = other
        self._have_started(other.agent, other.group, [other])
        return True

    def _added(self, group: Group, number: int, rank: int, agent: int) -> Record:
        record = Record(number, rank, group, self._agents[agent], group.program, group.starter)
        self._records[number] = record
        return record

    def _have_started(self, agent: Agent, group: Group, records: list[Record]) -> None:
        numbers = [record.number for record in records]
        ranks = [record.rank for record in records]
        with self._not_started(records):
            self._ask(agent, "start", group.number, numbers, ranks, group.what, group.told)

    def _allow_descriptors(self) -> None:
        """Raise what this process may have open: a session with each process of the job takes two descriptors."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        needed = 2 * len(self._records) + _DESCRIPTORS_BESIDE
        if soft != resource.RLIM_INFINITY and needed > soft:
            more = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, more), hard))

    # What agents and processes call. Who calls has proven which process of the job it is.

    def agent(self, call: links.Call, startpoint: str) -> None:
        """Take the startpoint of an agent."""
        agent = self._agents[_number_of(call)]
        node = self._node
        if agent.binding is None and node is not None:
            agent.binding = node.bind(_own_startpoint(call, startpoint))
            with self._changed:
                self._machine.agent_here(agent.number)
                self._changed.notify_all()

    def sign(self, call: links.Call, numbers: list[int], keys: list[bytes]) -> list[list[bytes]]:
        """Sign the keys of an agent's processes."""
        host = self._agents[_number_of(call)].host
        self._machine.check_own(_number_of(call), numbers)
        records = [self._records[number] for number in numbers]
        by_roles: dict[tuple[str, ...], list[tuple[int, bytes]]] = {}
        for record, key in zip(records, keys, strict=True):
            by_roles.setdefault(record.group.roles, []).append((record.number, bytes(key)))
        signed: dict[int, list[bytes]] = {number: [] for number in numbers}
        for roles, asked in by_roles.items():
            for role in roles:
                for (number, _), one in zip(
                    asked, self._authority.sign(role, host, asked), strict=True
                ):
                    signed[number].append(one)
        with self._changed:
            self._machine.sign(_number_of(call), numbers)
            self._changed.notify_all()
        return [signed[number] for number in numbers]

    def ended(
        self,
        call: links.Call,
        number: int,
        code: int | None,
        seconds: float,
        memory_bytes: int,
        text: str,
        joined: list[tuple[int, str]],
    ) -> None:
        """Take in how a process has ended, and what was to join the job by it."""
        agent = _number_of(call)
        others = [one for one, _ in joined]
        said = {
            number: (text, seconds, memory_bytes),
            **{one: (how, 0.0, 0) for one, how in joined},
        }
        self._end(lambda: self._machine.ended(agent, number, code, others), said)

    def here(self, call: links.Call, found: list[tuple[int, str]]) -> None:
        """Take the startpoints of processes."""
        startpoints = {}
        for number, text in found:
            # What one process says wrongly is not its siblings' fault.
            with contextlib.suppress(StartpointError):
                startpoints[number] = said_startpoint(text)
        named = [(number, one.node) for number, one in startpoints.items()]
        with self._changed:
            fresh = [self._records[one] for one in self._machine.here(_number_of(call), named)]
            for record in fresh:
                record.startpoint = startpoints[record.number].text()
        for record in fresh:
            record.future.set_result(Process(self, record))
        self._tell_siblings()

    def confined(self, call: links.Call, number: int, held: list[str], places: list[str]) -> None:
        """Take in what holds a process, and where it listens on a network, before it has run anything."""
        self._machine.check_own(_number_of(call), [number])
        record = self._records[number]
        record.sandbox, record.places = tuple(map(str, held)), tuple(map(str, places))

    def waits(self, call: links.Call, number: int, rank: int, stream: int | None) -> None:
        """Take in that a process waits for a sibling, and tell it if that is in vain."""
        self._machine.check_own(_number_of(call), [number])
        record = self._records[number]
        self._tell_absence(record, rank, record.group.why_absent(stream))

    def idles(self, call: links.Call, number: int, is_idle: bool, stream: int | None) -> None:
        """Take in whether the task of a slot waits for a post, and tell it if that is in vain."""
        self._machine.check_own(_number_of(call), [number])
        record = self._records[number]
        self._tell_absence(record, ANYBODY, record.group.why_idle(record, is_idle, stream))

    def _tell_absence(self, record: Record, rank: int, why: str) -> None:
        if why and not record.has_ended and record.agent.binding is not None:
            record.agent.binding.post("absent", record.number, rank, why)

    def failed(self, call: links.Call, number: int, what: str, stream: int | None) -> None:
        """Take in that a task of a slot has raised an exception."""
        self._machine.check_own(_number_of(call), [number])
        record = self._records[number]
        record.group.on_failed(record, one_line(what), stream)

    def returned(self, call: links.Call, numbers: list[int]) -> None:
        """Take in that the functions of processes have returned."""
        with self._changed:
            self._machine.returned(_number_of(call), numbers)
            self._changed.notify_all()

    def _tell_siblings(self) -> None:
        """Tell processes that were started together of each other, as far as that is due."""
        with self._changed:
            if self._is_telling:
                # Who does so sees to this, too.
                return
            self._is_telling = True
        while True:
            with self._changed:
                telling = self._machine.next_telling()
                if telling is None:
                    self._is_telling = False
                    return
                group, members, agents = telling
                found = [self._said_of(number, is_there) for number, is_there in members]
                places = [place for one, _ in members for place in self._records[one].places]
            for agent in agents:
                binding = self._agents[agent].binding
                # The processes of an agent that has gone have gone, too.
                with contextlib.suppress(LinkError):
                    if binding is not None:
                        binding.post("siblings", group, found, places)

    def _said_of(self, number: int, is_there: bool) -> list[str | None]:
        record = self._records[number]
        return [record.startpoint, ""] if is_there else [None, ended_text(record)]

    def _end(
        self,
        change: Callable[[], list[tuple[int, int | None, str, str]]],
        said: Mapping[int, tuple[str, float, int]] = MappingProxyType({}),
    ) -> None:
        """Take in which processes have ended by a change: for each, what it has said last, and its time and memory, if that is known."""
        bindings = []
        with self._changed:
            changed = change()
            for number, code, reason, _ in changed:
                record = self._records[number]
                unsaid = (_LEFT if reason == "left" else _LOST), 0.0, 0
                text, record.seconds, record.memory_bytes = said.get(number, unsaid)
                record.stderr, record.code, record.has_ended = text, code, True
                record.is_let_go = self._is_let_go
                record.ended_before = self._ends
                self._ends += 1
                if record.binding is not None:
                    bindings.append(record.binding)
                    record.binding = None
            self._changed.notify_all()
        for binding in bindings:
            binding.close()
        records = [self._records[number] for number, *_ in changed]
        for record, (*_, fate) in zip(records, changed, strict=True):
            if fate == "done":
                record.future.set_result(Process(self, record))
            elif fate == "failed":
                record.future.set_exception(ended(record))
        self._tell_siblings()
        for record in records:
            record.group.on_end(record)

    def changing(self) -> threading.Condition:
        """What is held while something changes, or is compared."""
        return self._changed

    def binding(self, record: Record) -> links.Binding:
        """Return the link to a process."""
        with self._changed:
            record.is_called = True
            if record.has_ended or record.startpoint is None or self._node is None:
                raise ended(record)
            if record.binding is None:
                startpoint = as_startpoint(record.startpoint)
                record.binding = _ProcessBinding(self._node, startpoint, self, record)
            return record.binding

    def has_ended_soon(self, record: Record) -> bool:
        """Whether a process has ended; its links may say so before its agent does."""
        with self._changed:
            return self._changed.wait_for(lambda: record.has_ended, _NEWS_SECONDS)

    def wait_for_end(
        self, records: Sequence[Record], timeout: float | None, *, check: bool = False
    ) -> None:
        """Wait until processes have ended; with `check`, raise how the first has ended that has failed."""
        numbers = [record.number for record in records]

        def first_failed() -> Record | None:
            failed = [one for one in records if one.has_failed] if check else []
            return min(failed, key=lambda one: one.ended_before, default=None)

        def is_over() -> bool:
            return not self._machine.running(numbers) or first_failed() is not None

        with self._changed:
            left = timeout
            if timeout is None or timeout > _WARNING_SECONDS:
                is_in_time = self._changed.wait_for(is_over, _WARNING_SECONDS)
                if not is_in_time and (stay := self._staying(records)):
                    _log.warning("%s%s", self._still_running(numbers), stay)
                left = None if timeout is None else timeout - _WARNING_SECONDS
            is_in_time = self._changed.wait_for(is_over, left)
            if (failed := first_failed()) is not None:
                raise ended(failed)
            if not is_in_time:
                running = self._still_running(numbers)
                raise TimeoutError(f"{running} after {timeout:g} seconds{self._staying(records)}")

    def _still_running(self, numbers: Sequence[int]) -> str:
        return f"{self._machine.running(numbers)} of {len(numbers)} processes still run"

    def _staying(self, records: Iterable[Record]) -> str:
        """Say which of some processes end with the job alone, for who waits for their ends."""
        count = sum(map(self.has_returned, records))
        return (
            f"; {count} have returned, and stay until the job ends: values() waits for what functions return"
            if count
            else ""
        )

    def wait_for_return(self, records: Iterable[Record], timeout: float | None) -> None:
        """Wait until the functions of processes have returned."""
        numbers = [record.number for record in records]

        def is_over() -> bool:
            missing, lost = self._machine.unreturned(numbers)
            return missing == 0 or lost is not None

        with self._changed:
            is_in_time = self._changed.wait_for(is_over, timeout)
            missing, lost = self._machine.unreturned(numbers)
            if not is_in_time:
                raise TimeoutError(
                    f"the function has not returned in {missing} of {len(numbers)} processes within {timeout:g} seconds"
                )
            if lost is not None:
                raise ended(self._records[lost])

    def send_signal(self, records: Iterable[Record], number: int) -> None:
        """Send a signal to processes."""
        if not isinstance(number, int):
            raise TypeError(f"got the signal {number!r}, expected a number, as signal.SIGTERM is")
        if not 0 < number < signal.NSIG:
            raise ValueError(f"got the signal {number}, expected one from 1 to {signal.NSIG - 1}")
        by_agent: dict[int, list[int]] = {}
        for record in records:
            by_agent.setdefault(record.agent.number, []).append(record.number)
        for agent, numbers in by_agent.items():
            binding = self._agents[agent].binding
            if binding is not None:
                binding.request("send_signal", numbers, int(number)).result()

    def summary(self) -> JobSummary:
        """Return how all processes stand."""
        with self._changed:
            return JobSummary(
                tuple(
                    ProcessSummary(
                        record.number,
                        record.rank,
                        record.agent.host,
                        record.program,
                        record.has_ended,
                        record.exit_code,
                        record.seconds,
                        record.memory_bytes,
                        record.stderr,
                        record.sandbox,
                        self.has_returned(record),
                        record.ended_before,
                    )
                    for record in self._records.values()
                )
            )

    def has_returned(self, record: Record) -> bool:
        """Whether a process runs a function that has returned."""
        if record.group.what["words"] or record.has_ended:
            return False
        missing, _ = self._machine.unreturned([record.number])
        return bool(missing == 0)

    def described(self) -> str:
        """Say how the job stands."""
        with self._changed:
            running = sum(not record.has_ended for record in self._records.values())
            hosts = len(self._agents)
        state = "over" if self._is_over else f"{running} processes run"
        return f"{state}, {hosts} host{'' if hosts == 1 else 's'}"

    def let_go(self) -> None:
        """End all processes, as nobody holds their `Job` any more."""
        # At the program's end, nobody could have held it.
        self._is_let_go = threading.main_thread().is_alive()
        self.close()

    def close(self) -> None:
        """End all processes, and wait until they have ended."""
        if os.getpid() != self._process:
            # A forked child's end is not the job's.
            return
        with self._changed:
            self._is_over = True
            there = [self._agents[number] for number in self._machine.finish()]
            self._changed.notify_all()
        if self._is_detached:
            self._leave()
            return
        for agent in there:
            # One that has gone has taken its processes with it.
            with contextlib.suppress(LinkError):
                if agent.binding is not None:
                    # It ends sooner than it says so.
                    agent.binding.request("end")
        its = [self._records[number] for number in self._machine.awaited()]
        # At the interpreter's end nobody hears of ends any more: the channels' ends must do.
        if threading.main_thread().is_alive():
            with contextlib.suppress(TimeoutError):
                self.wait_for_end(its, _END_SECONDS)
        for agent in self._agents.values():
            agent.channel.close()
            if agent.watcher is not None:
                agent.watcher.join()
        self._forget()

    def _leave(self) -> None:
        """Let what runs go on, once all processes that run a function are signed: nobody does that later."""
        with self._changed:
            is_signed = self._changed.wait_for(lambda: self._machine.is_signed, AGENT_SECONDS)
        if not is_signed:
            _log.warning("not all processes had begun when their job's creator left: those end")
        for agent in self._agents.values():
            agent.channel.leave()
            if agent.watcher is not None:
                agent.watcher.join()
            agent.channel.file.close()
        self._forget()

    def _forget(self) -> None:
        self._end(self._machine.forget)
        for path, written in self._invitations:
            withdraw(path, written)
        if self._node is not None:
            _close_untold(self._node)
        shutil.rmtree(self._folder, ignore_errors=True)


def _close_untold(node: links.Node) -> None:
    """Close a node. What was posted to processes that have ended is nobody's, so the log has nothing of it."""
    found: Any = node._finalizer.detach()
    if found is not None:
        _, close, arguments, _ = found
        close(*arguments, is_told=False)


def _number_of(call: links.Call) -> int:
    """The number of the process that calls, which its certificate proves: HOST#NUMBER.JOB."""
    return int(call.peer.rpartition("#")[2].partition(".")[0])


def _own_startpoint(call: links.Call, text: str) -> links.Startpoint:
    startpoint = said_startpoint(text)
    if startpoint.node != call.peer:
        raise PermissionError(
            f"got a startpoint of {one_line(startpoint.node)}, expected {call.peer}'s own"
        )
    return startpoint


def _as_they_speak(agents: Iterable[Agent], deadline: float) -> Iterator[Agent]:
    """Go through agents as they say something; at last through those that have said nothing in time."""
    silent = {agent.channel.file.fileno(): agent for agent in agents}
    waiting = select.poll()
    for number in silent:
        waiting.register(number, select.POLLIN)
    while silent and (ready := waiting.poll(max(0.0, deadline - time.monotonic()) * 1000)):
        for number, _ in ready:
            waiting.unregister(number)
            yield silent.pop(number)
    yield from silent.values()


def _line(agent: Agent, deadline: float) -> bytes:
    """Return the first line of an agent, with all that came with it; nothing if it has ended."""
    said = b""
    waiting = select.poll()
    waiting.register(agent.channel.file, select.POLLIN)
    while b"\n" not in said and len(said) < _LINE_BYTES_MAX:
        left = max(0.0, deadline - time.monotonic())
        if not waiting.poll(left * 1000):
            step = agent.channel.step()
            raise TimeoutError(
                f"the agent of {agent.host} is not there in time{f': {step}' if step else ''}"
            )
        part = agent.channel.file.read(_LINE_BYTES_MAX)
        if not part:
            return b""
        said += part
    return said
