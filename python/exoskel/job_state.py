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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import __version__, _core, links
from .errors import LinkError, ProcessEndedError, StartpointError, VersionError
from .job_processes import Process, Processes, Record, ended, ended_text
from .job_summary import JobSummary, ProcessSummary
from .joining import invitation, invitation_file, new_word
from .launchers import Launcher, own_host
from .link_arguments import as_startpoint
from .peer_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from .launchers import AgentChannel

__all__ = ["AGENT_SECONDS", "PROCESSES_MAX", "JobState"]

_log = logging.getLogger("exoskel.links")
_log = logging.getLogger("exoskel.links")
# Of one job: numbers of processes are never used again in it.
PROCESSES_MAX = 100_000
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


class Group:
    """Processes that were started together. When all are there, or have ended, they learn of each other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: list[Record] = []
        self.is_told = False


class JobState:
    """What a job is made of. It doesn't know the `Job`, which ends it when nobody holds it any more."""

    def __init__(self, launcher: Launcher, hosts_min: int | None, timeout: float) -> None:
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
        except BaseException:
            self.close()
            raise

    def _made_node(self) -> links.Node:
        key = _core.ProcessKey()
        [certificate] = self._authority.sign(own_host(), [(_CREATOR, key.public_key)])
        node = links.Node(
            key.credential(certificate, self._authority.root),
            listen=[f"unix:{self._folder / 'creator'}", *self._listen],
            live=False,
            patience=self._patience,
        )
        agents = node.endpoint("job", threads=4)
        for handler in (self.agent, self.sign, self.here, self.returned, self.ended):
            agents.handler(handler)
        self._for_agents = agents.startpoint(to="*").text()
        return node

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
            how = channel.close()
            raise ProcessEndedError(
                f"the agent of {agent.host} has ended before it was there, {how}", host=agent.host
            )
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
        [certificate] = self._authority.sign(agent.host, [(agent.number, public_key)])
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
        for record in its:
            self._end(record, None, 0.0, 0, _LOST)

    def start_joined(
        self, count: int, what: dict[str, Any], told: dict[str, Any], program: str
    ) -> Processes:
        """Start a program on the first host that starts the processes itself."""
        agent = self._first_agent()
        [starter] = self._new_group(1, [agent], program).records
        group = self._new_group(count, [agent], program, starter)
        numbers = [record.number for record in group.records]
        told |= {"size": count, "patience": self._patience}
        what |= {"joined": numbers}
        self._ask(agent, "start", group.number, [starter.number], [0], what, told)
        return Processes(self, group.records)

    def invite(self, path: str | os.PathLike[str], told: dict[str, Any]) -> Processes:
        """Let a process in on this job's first host that says what is in a file."""
        agent = self._first_agent()
        with invitation_file(path) as file:
            group = self._new_group(1, [agent], "an invited process")
            told |= {"size": 1, "patience": self._patience, "invited": True}
            word = new_word()
            try:
                place = self._ask(agent, "invite", group.number, group.number, told, word)
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

    def _new_group(
        self, count: int, agents: list[Agent], program: str, starter: Record | None = None
    ) -> Group:
        with self._changed:
            group = Group(self._next)
            if self._next + count > PROCESSES_MAX:
                raise ValueError(f"got more than {PROCESSES_MAX} processes for one job")
            for rank in range(count):
                # Neighbours are on one host.
                agent = agents[rank * len(agents) // count]
                record = Record(self._next, rank, group, agent, program, starter)
                self._records[record.number] = record
                group.records.append(record)
                self._next += 1
        self._allow_descriptors()
        return group

    def start(
        self, count: int, what: dict[str, Any], told: dict[str, Any], program: str
    ) -> Processes:
        """Start processes on all hosts."""
        agents = list(self._agents.values())
        for agent in agents:
            _check_there(agent)
        group = self._new_group(count, agents, program)
        told |= {"size": count, "patience": self._patience}
        for agent in agents:
            its = [record for record in group.records if record.agent is agent]
            if its and agent.binding is not None:
                numbers = [record.number for record in its]
                ranks = [record.rank for record in its]
                request = agent.binding.request("start", group.number, numbers, ranks, what, told)
                request.result()
        return Processes(self, group.records)

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

    def sign(self, call: links.Call, numbers: list[int], keys: list[bytes]) -> list[bytes]:
        """Sign the keys of an agent's processes."""
        asked = [
            (self._own_record(call, number).number, bytes(key))
            for number, key in zip(numbers, keys, strict=True)
        ]
        return self._authority.sign(self._agents[_number_of(call)].host, asked)

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
        with self._changed:
            there = [
                (one, text) for one, text in there if not one.has_ended and one.startpoint is None
            ]
            for record, text in there:
                record.startpoint = text
        for record, _ in there:
            record.future.set_result(Process(self, record))
        self._tell_siblings({record.group.number: record.group for record, _ in there}.values())

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
                for agent in {one.agent.number: one.agent for one in group.records}.values():
                    if agent.binding is not None and not self._is_over:
                        agent.binding.post("siblings", group.number, found)

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
        for agent in self._agents.values():
            # One that has gone has taken its processes with it.
            with contextlib.suppress(LinkError):
                if agent.binding is not None:
                    agent.binding.post("end")
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
            raise TimeoutError(f"the agent of {agent.host} is not there in time")
        part = agent.channel.file.read(_LINE_BYTES_MAX)
        if not part:
            return b""
        said += part
    return said
