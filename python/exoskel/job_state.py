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
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__, _core, links
from .errors import LinkError, ProcessEndedError, StartpointError, VersionError
from .job_placement import host_of
from .job_processes import Process, Processes, Record, ended, ended_text
from .job_summary import JobSummary, ProcessSummary
from .joining import invitation, invitation_file, new_word
from .launchers import Launcher, own_host
from .link_arguments import as_startpoint
from .peer_text import one_line
from .start_request import PROCESSES_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from .launchers import AgentChannel

__all__ = ["AGENT_SECONDS", "PROCESSES_MAX", "Group", "JobState"]

_log = logging.getLogger("exoskel.links")
# How long an agent may take to be there.
AGENT_SECONDS = 60.0
# How long agents may take to end what they have started.
_END_SECONDS = 10.0
# How long a link that has lost its connection waits for another one.
_PATIENCE_SECONDS = 10.0
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
    #: The process that starts them, if that isn't their agent.
    starter: Record | None = None
    number: int = 0
    records: list[Record] = field(default_factory=list)
    is_told: bool = False


class JobState:
    """What a job is made of. It doesn't know the `Job`, which ends it when nobody holds it any more."""

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
        self._changed = threading.Condition()
        self._agents: dict[int, Agent] = {}
        self._records: dict[int, Record] = {}
        self._next = _CREATOR + 1
        self._folder = Path(tempfile.mkdtemp(prefix="exoskel-job-"))
        self._is_over = False
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
            listen=[f"unix:{self._folder / 'creator'}", *self._listen],
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
            number, self._next = self._next, self._next + 1
            self._agents[number] = Agent(channel.host, number, channel)
        unreachable: list[Exception] = []
        for agent in _as_they_speak(self._agents.values(), deadline):
            try:
                self._let_in(agent, deadline)
            except (ProcessEndedError, TimeoutError) as error:
                how = agent.channel.close(_ABSENT_END_SECONDS)
                is_late = isinstance(error, TimeoutError)
                unreachable.append(TimeoutError(f"{error}, {how}") if is_late else error)
                del self._agents[agent.number]
        if unreachable and len(self._agents) < (hosts_min or len(self._agents) + 1):
            raise unreachable[0]
        for reason in unreachable:
            _log.warning("%s; the job goes on without this host", reason)
        with self._changed:
            self._changed.wait_for(
                lambda: all(agent.binding is not None for agent in self._agents.values()),
                max(0.0, deadline - time.monotonic()),
            )
        missing = [agent.host for agent in self._agents.values() if agent.binding is None]
        if missing:
            raise TimeoutError(f"the agents of {', '.join(missing)} are not there in time")
        for agent in self._agents.values():
            name = f"exoskel-job-{agent.number}"
            agent.watcher = threading.Thread(
                target=self._watch, args=[agent], name=name, daemon=True
            )
            agent.watcher.start()

    def _let_in(self, agent: Agent, deadline: float) -> None:
        """Sign the key of an agent, and tell it where we are."""
        channel = agent.channel
        line = _line(agent, deadline)
        # Slurm chooses hosts: who is there knows which.
        agent.host = channel.host
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
            its = [record for record in self._records.values() if record.agent is agent]
        lost = _LEFT if self._is_detached and self._is_over else _LOST
        for record in its:
            self._end(record, None, 0.0, 0, lost)

    def start_joined(self, group: Group, count: int) -> Processes:
        """Start a program on the first host that starts the processes itself."""
        agent = self._first_agent()
        starting = Group(group.program, group.what, dict(group.told))
        self._fill(starting, [agent], 1)
        [group.starter] = starting.records
        self._fill(group, [agent], count)
        what = {**group.what, "joined": [record.number for record in group.records]}
        numbers = [group.starter.number]
        self._ask(agent, "start", group.number, numbers, [0], what, group.told)
        return Processes(self, group.records)

    def invite(self, path: str | os.PathLike[str], told: dict[str, Any]) -> Processes:
        """Let a process in on this job's first host that says what is in a file."""
        agent = self._first_agent()
        program = "an invited process"
        group = Group(program, {"words": [program]}, {**told, "invited": True})
        with invitation_file(path) as file:
            self._fill(group, [agent], 1)
            word = new_word()
            try:
                place = self._ask(agent, "invite", group.number, group.number, group.told, word)
                file.write(invitation(place, word))
                file.flush()
            except BaseException as error:
                os.unlink(path)
                self._end(group.records[0], None, 0.0, 0, str(error))
                raise
        return Processes(self, group.records)

    def _first_agent(self) -> Agent:
        agent = next(iter(self._agents.values()))
        _check_there(agent)
        return agent

    def _ask(self, agent: Agent, *what: Any) -> Any:
        assert agent.binding is not None
        return agent.binding.request(*what).result()

    def _fill(self, group: Group, agents: list[Agent], count: int) -> None:
        """Give a group its processes: neighbours are on one host."""
        with self._changed:
            if self._next + count > PROCESSES_MAX:
                raise ValueError(f"got more than {PROCESSES_MAX} processes for one job")
            group.number = self._next
            group.told |= {"size": count, "patience": self._patience}
            for rank in range(count):
                self._add(group, rank, agents[host_of(rank, count, len(agents))])
        self._allow_descriptors()

    def start(self, group: Group, count: int) -> Processes:
        """Start processes on all hosts, neighbours on one."""
        agents = list(self._agents.values())
        for agent in agents:
            _check_there(agent)
        self._fill(group, agents, count)
        for agent in agents:
            self._have_started(
                agent, group, [record for record in group.records if record.agent is agent]
            )
        return Processes(self, group.records)

    def replace(self, record: Record) -> bool:
        """Start another process in the place of one that has ended. Return whether there is a host for it."""
        with self._changed:
            agents = [one for one in self._agents.values() if not one.is_lost]
            if self._is_over or not agents or self._next >= PROCESSES_MAX:
                return False
            agent = record.agent if record.agent in agents else agents[record.rank % len(agents)]
            other = self._add(record.group, record.rank, agent)
        self._have_started(agent, record.group, [other])
        return True

    def _add(self, group: Group, rank: int, agent: Agent) -> Record:
        record = Record(self._next, rank, group, agent, group.program, group.starter)
        record.is_function = not group.what["words"]
        self._next += 1
        self._records[record.number] = record
        # In the place of one that was there.
        group.records[rank : rank + 1] = [record]
        group.is_told = False
        return record

    def _have_started(self, agent: Agent, group: Group, records: list[Record]) -> None:
        if not records or agent.binding is None:
            return
        numbers = [record.number for record in records]
        ranks = [record.rank for record in records]
        agent.binding.request(
            "start", group.number, numbers, ranks, group.what, group.told
        ).result()

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
            binding = node.bind(_own_startpoint(call, startpoint))
            with self._changed:
                agent.binding = binding
                self._changed.notify_all()

    def sign(self, call: links.Call, numbers: list[int], keys: list[bytes]) -> list[list[bytes]]:
        """Sign the keys of an agent's processes."""
        host = self._agents[_number_of(call)].host
        records = [self._own_record(call, number) for number in numbers]
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
            for record in records:
                record.is_signed = True
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
        self._end(self._own_record(call, number), code, seconds, memory_bytes, text)
        for one, how in joined:
            self._end(self._own_record(call, one), None, 0.0, 0, how)

    def here(self, call: links.Call, found: list[tuple[int, str]]) -> None:
        """Take the startpoints of processes."""
        there = []
        for number, text in found:
            record = self._own_record(call, number)
            # What one process says wrongly is not its siblings' fault.
            with contextlib.suppress(StartpointError):
                startpoint = as_startpoint(text)
                if startpoint.node == f"{record.agent.host}#{number}.{self.job}":
                    there.append((record, startpoint.text()))
        fresh = []
        with self._changed:
            for record, text in there:
                if not record.has_ended and record.startpoint is None:
                    record.startpoint = text
                    fresh.append(record)
        for record in fresh:
            record.future.set_result(Process(self, record))
        self._tell_siblings({record.group.number: record.group for record in fresh}.values())

    def confined(self, call: links.Call, number: int, held: list[str], places: list[str]) -> None:
        """Take in what holds a process, and where it listens on a network, before it has run anything."""
        record = self._own_record(call, number)
        record.sandbox, record.places = tuple(map(str, held)), tuple(map(str, places))

    def returned(self, call: links.Call, numbers: list[int]) -> None:
        """Take in that the functions of processes have returned."""
        records = [self._own_record(call, number) for number in numbers]
        with self._changed:
            for record in records:
                record.has_returned = True
            self._changed.notify_all()

    def _own_record(self, call: links.Call, number: int) -> Record:
        """Return a process of the agent that calls, and of no other one."""
        record = self._records.get(number)
        if record is None or record.agent is not self._agents.get(_number_of(call)):
            raise PermissionError(f"process {number} is not one of {call.peer}")
        return record

    def _tell_siblings(self, groups: Iterable[Group]) -> None:
        """Tell processes that were started together of each other, once."""
        for group in groups:
            with self._changed:
                is_due = not group.is_told and all(
                    one.startpoint is not None or one.has_ended for one in group.records
                )
                group.is_told |= is_due
            if is_due:
                found = [
                    [one.startpoint, "" if one.startpoint else ended_text(one)]
                    for one in group.records
                ]
                places = [place for one in group.records for place in one.places]
                for agent in {one.agent.number: one.agent for one in group.records}.values():
                    if agent.binding is not None and not agent.is_lost and not self._is_over:
                        agent.binding.post("siblings", group.number, found, places)

    def _end(
        self, record: Record, code: int | None, seconds: float, memory_bytes: int, text: str
    ) -> None:
        with self._changed:
            if record.has_ended:
                return
            record.has_ended = True
            record.code, record.seconds, record.memory_bytes = code, seconds, memory_bytes
            record.stderr = text
            binding, record.binding = record.binding, None
            is_pending = record.startpoint is None
            self._changed.notify_all()
        if binding is not None:
            binding.close()
        if is_pending and code == 0:
            record.future.set_result(Process(self, record))
        elif is_pending:
            record.future.set_exception(ended(record))
        self._tell_siblings([record.group])
        record.group.on_end(record)

    def binding(self, record: Record) -> links.Binding:
        """Return the link to a process."""
        with self._changed:
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

    def wait_for_end(self, records: Iterable[Record], timeout: float | None) -> None:
        """Wait until processes have ended."""
        records = list(records)
        records += [one.starter for one in records if one.starter is not None]
        with self._changed:
            if not self._changed.wait_for(lambda: all(one.has_ended for one in records), timeout):
                running = sum(not one.has_ended for one in records)
                raise TimeoutError(
                    f"{running} of {len(records)} processes still run after {timeout:g} seconds"
                )

    def wait_for_return(self, records: Iterable[Record], timeout: float | None) -> None:
        """Wait until the functions of processes have returned."""
        records = list(records)

        def is_over() -> bool:
            return all(one.has_returned for one in records) or any(
                one.has_ended and not one.has_returned for one in records
            )

        with self._changed:
            if not self._changed.wait_for(is_over, timeout):
                running = sum(not one.has_returned for one in records)
                raise TimeoutError(
                    f"the function has not returned in {running} of {len(records)} processes within {timeout:g} seconds"
                )
            lost = [one for one in records if not one.has_returned]
            if lost:
                lost = [one for one in lost if one.has_ended]
                raise ended(lost[0])

    def send_signal(self, records: Iterable[Record], number: int) -> None:
        """Send a signal to processes."""
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
                    )
                    for record in self._records.values()
                )
            )

    def described(self) -> str:
        """Say how the job stands."""
        with self._changed:
            running = sum(not record.has_ended for record in self._records.values())
            hosts = len(self._agents)
        state = "over" if self._is_over else f"{running} processes run"
        return f"{state}, {hosts} host{'' if hosts == 1 else 's'}"

    def close(self) -> None:
        """End all processes, and wait until they have ended."""
        if os.getpid() != self._process:
            # A forked child's end is not the job's.
            return
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._is_detached:
            self._leave()
            return
        for agent in self._agents.values():
            # One that has gone has taken its processes with it.
            with contextlib.suppress(LinkError):
                if agent.binding is not None and not agent.is_lost:
                    # It ends sooner than it says so.
                    agent.binding.request("end")
        with self._changed:
            its = [one for one in self._records.values() if not one.agent.is_lost]
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
            is_signed = self._changed.wait_for(
                lambda: all(
                    one.is_signed or one.has_ended
                    for one in self._records.values()
                    if one.is_function
                ),
                AGENT_SECONDS,
            )
        if not is_signed:
            _log.warning("not all processes had begun when their job's creator left: those end")
        for agent in self._agents.values():
            agent.channel.leave()
            if agent.watcher is not None:
                agent.watcher.join()
            agent.channel.file.close()
        self._forget()

    def _forget(self) -> None:
        for record in list(self._records.values()):
            self._end(record, None, 0.0, 0, _LOST)
        if self._node is not None:
            # What was posted to processes that have ended is nobody's.
            with contextlib.suppress(LinkError):
                self._node.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _check_there(agent: Agent) -> None:
    if agent.is_lost:
        raise ProcessEndedError(f"what starts processes on {agent.host} has ended")


def _number_of(call: links.Call) -> int:
    """The number of the process that calls, which its certificate proves: HOST#NUMBER.JOB."""
    return int(call.peer.rpartition("#")[2].partition(".")[0])


def _own_startpoint(call: links.Call, text: str) -> links.Startpoint:
    startpoint = as_startpoint(text)
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
