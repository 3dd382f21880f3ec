"""Processes by the request, each with an identity of its own: `Job`."""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import pickle
import resource
import select
import shutil
import signal
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, overload

from . import __version__, _core, links
from .errors import LinkError, ProcessEndedError, StartpointError, VersionError
from .job_process import VALUE
from .job_summary import JobSummary, ProcessSummary
from .launchers import Launcher, Local, own_host
from .link_arguments import as_startpoint
from .link_waiting import bounded_seconds
from .peer_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from .launchers import AgentChannel
    from .link_streams import Stream

__all__ = ["Job", "Process", "Processes"]

_log = logging.getLogger("exoskel.links")
# Of one job: numbers of processes are never used again in it.
PROCESSES_MAX = 100_000
# How long an agent may take to be there.
_AGENT_SECONDS = 60.0
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


class Process:
    """A process of a job, which is there: requests can be made to it.

    Attributes
    ----------
    rank : int
        Which of the processes that were started together it is, from 0.
    number : int
        Which process of its job it is.
    host : str
        Where it runs.
    """

    def __init__(self, state: _JobState, record: _Record) -> None:
        self._state = state
        self._record = record
        self.rank = record.rank
        self.number = record.number
        self.host = record.agent.host

    def request(self, handler: str, /, *arguments: Any, **keywords: Any) -> links.Reply:
        """Call a handler of the process's endpoint; see `exoskel.links.Binding.request`."""
        return self._binding().request(handler, *arguments, **keywords)

    def post(self, handler: str, /, *arguments: Any, **keywords: Any) -> None:
        """Call a handler of the process's endpoint, without an answer."""
        self._binding().post(handler, *arguments, **keywords)

    def stream(self, handler: str, *, timeout: float | None = None) -> Stream:
        """Open a byte stream to the process; see `exoskel.links.Binding.stream`."""
        return self._binding().stream(handler, timeout=timeout)

    def region(self, name: str, *, timeout: float | None = 10.0) -> links.Region:
        """Return an array that the process offers; see `exoskel.links.Binding.region`."""
        return self._binding().region(name, timeout=timeout)

    def value(self, timeout: float | None = None) -> Any:
        """Wait until the process's function has returned, and return what it has returned: plain data and arrays.

        Raises
        ------
        ProcessEndedError
            If it has ended instead.
        HandlerError
            If what it has returned is something else.
        TimeoutError
            If it has not returned by then.
        """
        self._state.wait_for_return([self._record], timeout)
        return self._binding().request(VALUE).result()

    @property
    def exit_code(self) -> int | None:
        """Its exit code, or the negative number of the signal that has ended it; None while it runs."""
        return self._record.code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return its exit code.

        Raises
        ------
        TimeoutError
            If it still runs by then.
        """
        self._state.wait_for_end([self._record], timeout)
        return _code_of(self._record)

    def send_signal(self, number: int) -> None:
        """Send a signal to the process, and to what it has started."""
        self._state.send_signal([self._record], number)

    def _binding(self) -> links.Binding:
        return self._state.binding(self._record)

    def __repr__(self) -> str:
        """Say which it is, and how it stands."""
        code = self.exit_code
        how = "runs" if code is None else f"ended with {code}"
        return f"<exoskel.Process {self.number} on {self.host}: {how}>"


class Processes(Sequence["Future[Process]"]):
    """Processes that were started together: a future for each, by ranks, which has the process when it is there.

    A process that runs a function is there when it has used its ``peers``, has called ``ready()``, or the function has returned. A program
    is there when it has called `exoskel.links.init` and one of the former, or has ended with 0.
    """

    def __init__(self, state: _JobState, records: list[_Record]) -> None:
        self._state = state
        self._records = records

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._records)

    @overload
    def __getitem__(self, rank: int) -> Future[Process]: ...
    @overload
    def __getitem__(self, rank: slice) -> Sequence[Future[Process]]: ...
    def __getitem__(self, rank: int | slice) -> Future[Process] | Sequence[Future[Process]]:
        """Return the future of a rank."""
        if isinstance(rank, slice):
            return [record.future for record in self._records[rank]]
        return self._records[rank].future

    def result(self, timeout: float | None = None) -> list[Process]:
        """Wait until all of them are there, and return them.

        Parameters
        ----------
        timeout : float, optional
            How many seconds to wait at most.

        Raises
        ------
        ProcessEndedError
            If one has ended before it was there.
        TimeoutError
            If they aren't all there by then.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        found = []
        for record in self._records:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                found.append(record.future.result(left))
            except TimeoutError:
                missing = sum(not one.future.done() for one in self._records)
                raise TimeoutError(
                    f"{missing} of {len(self)} processes are not there within {timeout:g} seconds; the first is rank {record.rank} on {record.agent.host}"
                ) from None
        return found

    def values(self, timeout: float | None = None) -> list[Any]:
        """Wait until the function has returned in all of them, and return what it has returned, by ranks; see `Process.value`."""
        self._state.wait_for_return(self._records, timeout)
        replies = [self._state.binding(record).request(VALUE) for record in self._records]
        return [reply.result() for reply in replies]

    def wait(self, timeout: float | None = None) -> list[int]:
        """Wait until all of them have ended, and return their exit codes, by ranks.

        Raises
        ------
        TimeoutError
            If some still run by then.
        """
        self._state.wait_for_end(self._records, timeout)
        return [_code_of(record) for record in self._records]

    def send_signal(self, number: int) -> None:
        """Send a signal to all of them, and to what they have started."""
        self._state.send_signal(self._records, number)


def _uncancellable() -> Future[Process]:
    """Return a future that runs: to cancel it would not end the process."""
    future: Future[Process] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass
class _Agent:
    host: str
    number: int
    channel: AgentChannel
    binding: links.Binding | None = None
    watcher: threading.Thread | None = None
    is_lost: bool = False


@dataclass
class _Record:
    """A process, and what is known of it."""

    number: int
    rank: int
    group: _Group
    agent: _Agent
    program: str
    future: Future[Process] = field(default_factory=_uncancellable)
    startpoint: str | None = None
    binding: links.Binding | None = None
    has_returned: bool = False
    has_ended: bool = False
    code: int | None = None
    seconds: float = 0.0
    memory_bytes: int = 0
    stderr: str = ""


class _ProcessBinding(links.Binding):
    """The link to a process: what comes to nothing because the process has ended says so."""

    def __init__(
        self, node: links.Node, startpoint: links.Startpoint, state: _JobState, record: _Record
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
            return _ended(self._record)
        return error


class _Group:
    """Processes that were started together. When all are there, or have ended, they learn of each other."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.records: list[_Record] = []
        self.is_told = False


class Job:
    """Processes on one or more hosts, which know each other and end together.

    The job is an authority of its own: each process makes a key for itself, which the job signs. So its processes prove to each other which
    they are, and their certificates open nothing outside of the job.

    Parameters
    ----------
    launch : Local or Ssh, optional
        How processes come to hosts: those of this machine, if not given.
    min : int, optional
        With how many hosts the job begins, if others can't be reached; all of them, if not given.
    timeout : float
        How many seconds the hosts' agents may take to be there.

    Raises
    ------
    ProcessEndedError
        If an agent can't be started, or has ended.
    TimeoutError
        If an agent is not there in time.
    """

    def __init__(
        self,
        launch: Launcher | None = None,
        *,
        min: int | None = None,
        timeout: float = _AGENT_SECONDS,
    ) -> None:
        if min is not None and (isinstance(min, bool) or not isinstance(min, int) or min < 1):
            raise ValueError(f"got min={min!r}, expected a whole number from 1")
        limit = bounded_seconds(timeout)
        self._state = _JobState(Local() if launch is None else launch, min, limit)
        self._finalizer = weakref.finalize(self, self._state.close)

    def start(
        self,
        what: Callable[..., Any] | Sequence[str | os.PathLike[str]],
        count: int = 1,
        *,
        arguments: Sequence[Any] = (),
        threads: int = 1,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Processes:
        """Start processes, by one request for each host.

        Parameters
        ----------
        what : callable or sequence of str
            A function, which gets the process's node (`exoskel.links.init`) and the arguments; the process stays there for requests when
            it has returned, until the job ends. Or a program and its arguments.
        count : int
            How many.
        arguments : sequence
            What the function gets besides.
        threads : int
            How many calls each process handles at the same time. A handler that waits for what another one does needs more than one.
        cwd : path, optional
            Where the processes begin; where this process is, if not given.
        env : mapping, optional
            What they have in their environment besides that of this process.

        Returns
        -------
        Processes
            A future for each.
        """
        if not self._finalizer.alive:
            raise LinkError("this job is over")
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= PROCESSES_MAX:
            raise ValueError(
                f"got count={count!r}, expected a whole number from 1 to {PROCESSES_MAX}"
            )
        if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 256:
            raise ValueError(f"got threads={threads!r}, expected a whole number from 1 to 256")
        words, contents, program = _to_be_run(what, arguments)
        environment = {str(name): str(value) for name, value in (env or {}).items()}
        directory = os.fspath(cwd) if cwd is not None else os.getcwd()
        start = {"words": words, "directory": directory, "environment": environment}
        return self._state.start(count, start, {"contents": contents, "threads": threads}, program)

    def summary(self) -> JobSummary:
        """Return how all processes of the job stand or have ended, in the order in which they were asked for."""
        return self._state.summary()

    def close(self) -> None:
        """End all processes, and wait until they have ended."""
        self._finalizer()

    def __enter__(self) -> Self:
        """Return the job; the end of the block ends it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        """Say which it is, and how many processes run."""
        return f"<exoskel.Job {self._state.job[:8]}: {self._state.described()}>"


class _JobState:
    """What a job is made of. It doesn't know the `Job`, which ends it when nobody holds it any more."""

    def __init__(self, launcher: Launcher, hosts_min: int | None, timeout: float) -> None:
        self._authority = _core.JobAuthority()
        self.job = self._authority.job
        self._changed = threading.Condition()
        self._agents: dict[int, _Agent] = {}
        self._records: dict[int, _Record] = {}
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
            self._agents[number] = _Agent(channel.host, number, channel)
        unreachable: list[Exception] = []
        for agent in list(self._agents.values()):
            try:
                self._let_in(agent, deadline)
            except (ProcessEndedError, TimeoutError) as error:
                unreachable.append(error)
                agent.channel.close(_ABSENT_END_SECONDS)
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

    def _let_in(self, agent: _Agent, deadline: float) -> None:
        """Sign the key of an agent, and tell it where we are."""
        channel = agent.channel
        line = _line(agent, deadline)
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

    def _watch(self, agent: _Agent) -> None:
        """Wait for the end of an agent, which says nothing more over its channel."""
        with contextlib.suppress(OSError, ValueError):
            while agent.channel.file.read(_LINE_BYTES_MAX):
                pass
        with self._changed:
            agent.is_lost = True
            its = [record for record in self._records.values() if record.agent is agent]
        for record in its:
            self._end(record, None, 0.0, 0, _LOST)

    def start(
        self, count: int, what: dict[str, Any], told: dict[str, Any], program: str
    ) -> Processes:
        agents = list(self._agents.values())
        for agent in agents:
            if agent.is_lost:
                raise ProcessEndedError(f"what starts processes on {agent.host} has ended")
        with self._changed:
            group = _Group(self._next)
            if self._next + count > PROCESSES_MAX:
                raise ValueError(f"got more than {PROCESSES_MAX} processes for one job")
            for rank in range(count):
                # Neighbours are on one host.
                agent = agents[rank * len(agents) // count]
                record = _Record(self._next, rank, group, agent, program)
                self._records[record.number] = record
                group.records.append(record)
                self._next += 1
        self._allow_descriptors()
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
        agent = self._agents[_number_of(call)]
        node = self._node
        if agent.binding is None and node is not None:
            binding = node.bind(_own_startpoint(call, startpoint))
            with self._changed:
                agent.binding = binding
                self._changed.notify_all()

    def sign(self, call: links.Call, numbers: list[int], keys: list[bytes]) -> list[bytes]:
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
    ) -> None:
        self._end(self._own_record(call, number), code, seconds, memory_bytes, text)

    def here(self, call: links.Call, found: list[tuple[int, str]]) -> None:
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
        records = [self._own_record(call, number) for number in numbers]
        with self._changed:
            for record in records:
                record.has_returned = True
            self._changed.notify_all()

    def _own_record(self, call: links.Call, number: int) -> _Record:
        """Return a process of the agent that calls, and of no other one."""
        record = self._records.get(number)
        if record is None or record.agent is not self._agents.get(_number_of(call)):
            raise PermissionError(f"process {number} is not one of {call.peer}")
        return record

    def _tell_siblings(self, groups: Iterable[_Group]) -> None:
        """Tell processes that were started together of each other, once."""
        for group in groups:
            with self._changed:
                is_due = not group.is_told and all(
                    one.startpoint is not None or one.has_ended for one in group.records
                )
                group.is_told |= is_due
            if is_due:
                found = [
                    [one.startpoint, "" if one.startpoint else _ended_text(one)]
                    for one in group.records
                ]
                for agent in {one.agent.number: one.agent for one in group.records}.values():
                    if agent.binding is not None and not self._is_over:
                        agent.binding.post("siblings", group.number, found)

    def _end(
        self, record: _Record, code: int | None, seconds: float, memory_bytes: int, text: str
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
            record.future.set_exception(_ended(record))
        self._tell_siblings([record.group])

    def binding(self, record: _Record) -> links.Binding:
        with self._changed:
            if record.has_ended or record.startpoint is None or self._node is None:
                raise _ended(record)
            if record.binding is None:
                startpoint = as_startpoint(record.startpoint)
                record.binding = _ProcessBinding(self._node, startpoint, self, record)
            return record.binding

    def has_ended_soon(self, record: _Record) -> bool:
        """Whether a process has ended; its links may say so before its agent does."""
        with self._changed:
            return self._changed.wait_for(lambda: record.has_ended, _NEWS_SECONDS)

    def wait_for_end(self, records: Iterable[_Record], timeout: float | None) -> None:
        records = list(records)
        with self._changed:
            if not self._changed.wait_for(lambda: all(one.has_ended for one in records), timeout):
                running = sum(not one.has_ended for one in records)
                raise TimeoutError(
                    f"{running} of {len(records)} processes still run after {timeout:g} seconds"
                )

    def wait_for_return(self, records: Iterable[_Record], timeout: float | None) -> None:
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
                raise _ended(lost[0])

    def send_signal(self, records: Iterable[_Record], number: int) -> None:
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
        with self._changed:
            return JobSummary(
                tuple(
                    ProcessSummary(
                        record.number,
                        record.rank,
                        record.agent.host,
                        record.program,
                        record.has_ended,
                        record.code,
                        record.seconds,
                        record.memory_bytes,
                        record.stderr,
                    )
                    for record in self._records.values()
                )
            )

    def described(self) -> str:
        with self._changed:
            running = sum(not record.has_ended for record in self._records.values())
            hosts = len(self._agents)
        state = "over" if self._is_over else f"{running} processes run"
        return f"{state}, {hosts} host{'' if hosts == 1 else 's'}"

    def close(self) -> None:
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


def _to_be_run(what: Any, arguments: Sequence[Any]) -> tuple[list[str], bytes, str]:
    """Return a program's words, or what a process is to run otherwise; and what people call it."""
    if callable(what):
        from . import by_value

        name = getattr(what, "__qualname__", type(what).__qualname__)
        run = by_value.dumps_by_value((what, tuple(arguments)))
        # Where modules are found, before anything is imported.
        return [], pickle.dumps((sys.path, run)), f"{name}()"
    if arguments:
        raise TypeError("got arguments beside a program, expected all of its words in a list")
    if isinstance(what, str | bytes) or not isinstance(what, Sequence) or not what:
        raise TypeError(
            f'got {what!r} to be started, expected a function or the words of a program, as in ["./ocean", "grid.nc"]'
        )
    words = [os.fspath(word) for word in what]
    for word in words:
        # They travel as text.
        word.encode()
    return words, b"", words[0]


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


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Those for users' own purposes have none.
        return f"signal {number}"


def _code_of(record: _Record) -> int:
    if record.code is None:
        raise _ended(record)
    return record.code


def _line(agent: _Agent, deadline: float) -> bytes:
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


def _ended(record: _Record) -> ProcessEndedError:
    return ProcessEndedError(_ended_text(record), record.number, record.agent.host, record.code)


def _ended_text(record: _Record) -> str:
    who = f"process {record.number} (rank {record.rank}, {record.program}) on {record.agent.host}"
    if not record.has_ended:
        return f"{who} has no link to its job yet"
    if record.code is None:
        return f"{who} has no exit code: {one_line(record.stderr)}"
    how = (
        f"was ended by {_signal_name(-record.code)}"
        if record.code < 0
        else f"has ended with exit code {record.code}"
    )
    last = record.stderr.strip().splitlines()[-1:]
    return f"{who} {how}" + (f": {one_line(last[0])}" if last else "")
