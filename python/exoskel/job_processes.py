"""Processes of a job as its creator has them: `Process`, and all that were started together, `Processes`."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, wait
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

from .errors import SANDBOX_MAY_BE_WHY, ProcessEndedError, ResultRejectedError
from .job_process import VALUE
from .link_arguments import as_startpoint
from .peer_text import one_line

if TYPE_CHECKING:
    from . import links
    from .job import Job
    from .job_state import Agent, Group, JobState
    from .link_streams import Stream

__all__ = ["Process", "Processes", "Record", "ended", "ended_text"]


# What a program says that it may not do, or has no memory for.
_WORDS_OF_LIMITS = (
    "ermission denied",
    "peration not permitted",
    "PermissionError",
    "MemoryError",
    "annot allocate memory",
    "failed to map segment",
    "File too large",
    "Resource temporarily unavailable",
    "annot fork",
)
_LAST_LINES = 3
# What a process says of a value that is no plain data.
_REJECTED = f"{ResultRejectedError.__module__}.{ResultRejectedError.__qualname__}"


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

    def __init__(self, state: JobState, record: Record) -> None:
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
        TypeError
            If it runs a program, which returns nothing.
        ProcessEndedError
            If it has ended instead.
        ResultRejectedError
            If what it has returned is something else.
        TimeoutError
            If it has not returned by then.
        """
        _check_function(self._record)
        self._state.wait_for_return([self._record], timeout)
        return _value_of(self._record, self._binding().request(VALUE))

    @property
    def exit_code(self) -> int | None:
        """Its exit code, or the negative number of the signal that has ended it; None while it runs.

        A rank of ``mpiexec`` has that of ``mpiexec``.
        """
        return self._record.exit_code

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

    def __reduce__(self) -> tuple[Any, ...]:
        """Come to other processes of the job as a startpoint: they call it by ``here.bind``."""
        startpoint = self._record.startpoint
        self._record.is_called = True
        if startpoint is None:
            raise TypeError(
                f"got {self!r} as what another process is to get, expected one that has joined the job: by exoskel.links.init() in its program"
            )
        return as_startpoint, (startpoint,)

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

    def __init__(self, job: Job, state: JobState, records: list[Record]) -> None:
        # It would end with its last reference, and these with it.
        self._job = job
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
        futures = [record.future for record in self._records]
        # One that will never be there is told at once, whichever rank it has.
        missing = wait(futures, timeout, FIRST_EXCEPTION).not_done
        for future in futures:
            if future.done() and future.exception() is not None:
                future.result()
        if missing:
            record = next(one for one in self._records if one.future in missing)
            text = f"{len(missing)} of {len(self)} processes are not there within {timeout:g} seconds; the first is rank {record.rank} on {record.agent.host}"
            if record.starter is not None and not record.starter.has_ended:
                text += f"; {record.starter.program}, which was to start them, still runs"
            raise TimeoutError(text)
        return [future.result() for future in futures]

    def values(self, timeout: float | None = None) -> list[Any]:
        """Wait until the function has returned in all of them, and return what it has returned, by ranks; see `Process.value`."""
        _check_function(self._records[0])
        self._state.wait_for_return(self._records, timeout)
        replies = [self._state.binding(record).request(VALUE) for record in self._records]
        return list(map(_value_of, self._records, replies))

    def wait(self, timeout: float | None = None, *, check: bool = False) -> list[int]:
        """Wait until all of them have ended, and return their exit codes, by ranks.

        Those that run a function stay until the job ends, for requests: `values` waits for what it returns.

        Parameters
        ----------
        timeout : float, optional
            How many seconds to wait at most.
        check : bool
            Whether the first one that ends with another exit code than 0 is an exception, at once. The others run on: the end of the job
            ends them.

        Raises
        ------
        ProcessEndedError
            If one has no exit code, as it was lost; with ``check``, if it isn't 0.
        TimeoutError
            If some still run by then.
        """
        self._state.wait_for_end(self._records, timeout, check=check)
        return [_code_of(record) for record in self._records]

    def send_signal(self, number: int) -> None:
        """Send a signal to all of them, and to what they have started."""
        self._state.send_signal(self._records, number)

    def __repr__(self) -> str:
        """Say what they run, and how many still do."""
        running = sum(not record.has_ended for record in self._records)
        return f"<exoskel.Processes of {self._records[0].program}: {running} of {len(self)} run>"


def _uncancellable() -> Future[Process]:
    """Return a future that runs: to cancel it would not end the process."""
    future: Future[Process] = Future()
    future.set_running_or_notify_cancel()
    return future


@dataclass
class Record:
    """A process, and what is known of it."""

    number: int
    rank: int
    group: Group
    agent: Agent
    program: str
    # What has started it, if that was not its agent.
    starter: Record | None = None
    future: Future[Process] = field(default_factory=_uncancellable)
    startpoint: str | None = None
    binding: links.Binding | None = None
    # Whether others than its siblings may call it.
    is_called: bool = False
    has_ended: bool = False
    code: int | None = None
    # Whether it was ended as nobody held the job.
    is_let_go: bool = False
    # How many had ended before it did.
    ended_before: int = 0
    seconds: float = 0.0
    memory_bytes: int = 0
    stderr: str = ""
    sandbox: tuple[str, ...] = ()
    places: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int | None:
        """Its exit code; that of what has started it, which alone knows its own."""
        return self.code if self.starter is None else self.starter.code

    @property
    def has_failed(self) -> bool:
        """Whether it has ended, and not with 0, as far as that is known yet."""
        is_known = self.has_ended and (self.starter is None or self.starter.has_ended)
        return is_known and self.exit_code != 0


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        # Those for users' own purposes have none.
        return f"signal {number}"


def _check_function(record: Record) -> None:
    if record.group.what["words"]:
        raise TypeError(
            f"got {record.program}, which returns nothing, expected a function: wait() has the exit codes of programs"
        )


def _value_of(record: Record, reply: links.Reply) -> Any:
    from .links import HandlerError

    try:
        return reply.result()
    except HandlerError as error:
        # Who has written the function knows of no handler.
        _, _, why = str(error).partition(" raised ")
        who = (
            f"process {record.number} (rank {record.rank}, {record.program}) on {record.agent.host}"
        )
        text = f"{who} has returned what can't be sent: "
        if error.kind == _REJECTED:
            # As the manager of a farm says it.
            raise ResultRejectedError(text + why.removeprefix(f"{_REJECTED}: ")) from None
        raise HandlerError(text + why, error.kind) from None


def _code_of(record: Record) -> int:
    code = record.exit_code
    if code is None:
        raise ended(record)
    return code


def ended(record: Record) -> ProcessEndedError:
    """Return the error that says how a process has ended."""
    error = ProcessEndedError(
        ended_text(record), record.number, record.agent.host, record.exit_code
    )
    if record.sandbox and record.has_failed and _is_of_a_limit(record.stderr):
        error.add_note(f"{SANDBOX_MAY_BE_WHY}{one_line(', '.join(record.sandbox))}")
    return error


def _is_of_a_limit(stderr: str) -> bool:
    """Say whether what a process has said last is what the limits of a sandbox make programs say."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    last = "\n".join(lines[-_LAST_LINES:])
    return SANDBOX_MAY_BE_WHY in stderr or any(one in last for one in _WORDS_OF_LIMITS)


def ended_text(record: Record) -> str:
    """Say how a process has ended, or that it has no link yet."""
    who = f"process {record.number} (rank {record.rank}, {record.program}) on {record.agent.host}"
    if not record.has_ended:
        return f"{who} has no link to its job yet"
    if record.is_let_go:
        return f"{who} was ended with its job, as nothing held that: keep the exoskel.Job in a variable, or write `with exoskel.Job() as job:`"
    starter = record.starter
    if starter is not None and starter.code is not None:
        return f"{who} has ended: {one_line(record.stderr)}; {ended_text(starter)}"
    if starter is not None and not starter.has_ended:
        return f"{who} has ended: {one_line(record.stderr)}"
    if record.code is None:
        return f"{who} has no exit code: {one_line(record.stderr)}"
    how = (
        f"was ended by {_signal_name(-record.code)}"
        if record.code < 0
        else f"has ended with exit code {record.code}"
    )
    # A line that only divides says nothing, and what was said by who has ended well is not why.
    said = record.stderr.splitlines() if record.code != 0 else []
    lines = [line for line in said if any(map(str.isalnum, line))]
    return f"{who} {how}" + (f": {one_line(lines[-1].strip())}" if lines else "")
