"""Processes on request, each with an identity of its own: `Job`."""

from __future__ import annotations

import os
import shlex
import weakref
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from . import job_contents
from .agents_launcher import Agents, proven
from .errors import LinkError
from .job_output import label_of
from .job_processes import Processes
from .job_state import AGENT_SECONDS, PROCESSES_MAX, Group, JobState
from .job_waits import IdleProcesses
from .launchers import Launcher, Local, Ssh
from .link_waiting import bounded_seconds
from .options import checked_launcher
from .peer_text import one_line
from .sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from .job_summary import JobSummary

__all__ = ["Job"]

# So much of a program's words is its name, in messages and tables.
_CALLED_MAX = 40


class Job:
    """Processes on one or more hosts, which know each other and end together.

    The job is an authority of its own: each process makes a key for itself, which the job signs. So its processes prove to each other which
    they are, and their certificates open nothing outside of the job.

    It ends with its block, by `close`, or when nothing refers to it and to what its `start` has returned any more.

    Parameters
    ----------
    launch : Local, Ssh, Slurm or Agents, optional
        How processes come to hosts: those of this machine, if not given.
    min : int, optional
        With how many hosts the job begins, if others can't be reached; all of them, if not given.
    timeout : float
        How many seconds the hosts' agents may take to be there.
    credential : path, optional
        What this program proves itself by to the daemons of `Agents`: a credential file of the role ``peer``, or one of a grid. No other
        launcher has a use for it.
    policy : path, optional
        A policy file, for the wires to these daemons.
    detach : bool
        Whether processes go on when this program leaves the job, by `close`, the end of the block or its own end. Nobody signs new
        processes then. They end by themselves, or by ``exoskel job end``.
    delegate : bool
        Whether processes get a limited proxy of the grid's user who makes the job: a file that ``X509_USER_PROXY`` names.
    **more
        For `Agents`, ``key``, ``revocation_list``, ``trust_anchors`` and ``vomsdir`` as for `exoskel.links.Node`: a grid's user needs some.

    Raises
    ------
    ValueError
        If a credential is missing for `Agents`, or given for another launcher.
    CredentialError
        If no proxies can be signed by it, or a host takes none.
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
        timeout: float = AGENT_SECONDS,
        credential: str | os.PathLike[str] | None = None,
        policy: str | os.PathLike[str] | None = None,
        detach: bool = False,
        delegate: bool = False,
        **more: Any,
    ) -> None:
        if min is not None and (isinstance(min, bool) or not isinstance(min, int) or min < 1):
            raise ValueError(f"got min={min!r}, expected a whole number from 1")
        limit = bounded_seconds(timeout)
        given = {"credential": credential, "policy": policy, **more}
        told = {name: value for name, value in given.items() if value is not None}
        launcher = Local() if launch is None else checked_launcher("launch", launch)
        launcher = proven(launcher, told)
        if detach:
            if not isinstance(launcher, Agents | Local | Ssh):
                raise ValueError(f"got detach=True with {launcher!r}, which can't do that")
            launcher = launcher.detached()
        prepare = None
        if delegate:
            from .job_delegation import delegation

            prepare = delegation(told)
        self._state = JobState(launcher, min, limit, is_detached=detach, prepare=prepare)
        self._finalizer = weakref.finalize(self, self._state.let_go)

    def start(
        self,
        what: Callable[..., Any] | Sequence[str | os.PathLike[str]],
        count: int = 1,
        *,
        joined: int | None = None,
        arguments: Sequence[Any] = (),
        threads: int = 1,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        sandbox: Sandbox | None = None,
        label: bool | str | None = None,
    ) -> Processes:
        """Start processes, by one request for each host.

        Parameters
        ----------
        what : callable or sequence of str
            A function, which gets the process's node (`exoskel.links.init`) and the arguments; the process stays there for requests when
            it has returned, until the job ends. Or a program and its arguments.
        count : int
            How many.
        joined : int, optional
            How many processes of the job a program starts itself, as ``mpiexec -n 4`` does: those are what is returned. They run on the job's
            first host, call `exoskel.links.init`, and have the ranks that MPI gives them, or else those in which they come.
        arguments : sequence
            What the function gets besides.
        threads : int
            How many calls each process handles at the same time. A handler that waits for what another one does needs more than one.
        cwd : path, optional
            Where the processes begin. If not given: where this process is, or in the home folder on hosts without such a directory; those in a
            sandbox in folders of their own.
        env : mapping, optional
            What they have in their environment besides that of their agent. In a sandbox, they have little of that. What an agent says itself stays as it is: ``EXOSKEL_RANK``,
            ``EXOSKEL_SIZE``, ``EXOSKEL_STARTED_BY``, the way to the agent, and with ``delegate=True`` ``X509_USER_PROXY``.
        sandbox : Sandbox, optional
            What they may use; all that the account may, if not given. A process that its host can't hold to it doesn't run.
        label : bool or str, optional
            Whether each line that they print has the rank before it, as in ``[3] done``, and a text before that. If not given: where there are
            several processes. Their output is a pipe then.

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
        _check_threads(threads)
        words, contents, program = _to_be_run(what, arguments)
        if env is not None and not isinstance(env, Mapping):
            raise TypeError(f'got env={env!r}, expected a dict, as in {{"OMP_NUM_THREADS": "2"}}')
        environment = {str(name): str(value) for name, value in (env or {}).items()}
        if sandbox is not None and not isinstance(sandbox, Sandbox):
            raise TypeError(f"got sandbox={sandbox!r}, expected an exoskel.Sandbox")
        directory = os.fspath(cwd) if cwd is not None else None
        if directory is None and sandbox is None:
            directory = os.getcwd()
        if joined is not None:
            _check_joined(joined, count, words)
            if label:
                raise TypeError(
                    "got label= beside joined=, expected one of both: what starts the ranks prints for them, as mpiexec -l does"
                )
            if sandbox is not None:
                raise TypeError(
                    "got sandbox= beside joined=, expected one of both: processes in sandboxes start none of their job"
                )
        start = {
            "words": words,
            "directory": directory,
            "must_enter": cwd is not None,
            "environment": environment,
            "sandbox": None if sandbox is None else sandbox.told(),
            "label": label_of(label, count),
        }
        told = {"contents": contents, "threads": threads, "tells_absence": joined is None}
        group = Group(program, start, told)
        if joined is not None:
            return Processes(self, self._state, self._state.start_joined(group, joined))
        group.why_idle = IdleProcesses(self._state, group).why
        return Processes(self, self._state, self._state.start(group, count))

    def invite(self, path: str | os.PathLike[str], *, threads: int = 1) -> Processes:
        """Let a process in that no job has started and that runs on the job's first host, by ``exoskel.links.init(path)``.

        Parameters
        ----------
        path : path
            The file to be written, which this account alone can read. It lets one process of this account in. It is removed when it has, and
            when the job ends.
        threads : int
            How many calls the process handles at the same time.

        Returns
        -------
        Processes
            A future for the one that comes. It runs on when the job ends, and its exit code isn't known.

        Raises
        ------
        FileExistsError
            If there is such a file.
        """
        if not self._finalizer.alive:
            raise LinkError("this job is over")
        _check_threads(threads)
        invited = self._state.invite(path, {"contents": b"", "threads": threads})
        return Processes(self, self._state, invited)

    def summary(self) -> JobSummary:
        """Return how all processes of the job stand or have ended, in the order in which they were asked for."""
        return self._state.summary()

    def close(self) -> None:
        """End all processes, and wait until they have ended. Those of a detached job go on; wait for their ``result()`` before."""
        if self._finalizer.detach():
            self._state.close()

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


def _check_threads(threads: Any) -> None:
    if isinstance(threads, bool) or not isinstance(threads, int) or not 1 <= threads <= 256:
        raise ValueError(f"got threads={threads!r}, expected a whole number from 1 to 256")


def _check_joined(joined: Any, count: int, words: Sequence[str]) -> None:
    if isinstance(joined, bool) or not isinstance(joined, int) or not 1 <= joined <= PROCESSES_MAX:
        raise ValueError(
            f"got joined={joined!r}, expected a whole number from 1 to {PROCESSES_MAX}"
        )
    if not words or count != 1:
        raise TypeError("got joined= beside a function or a count, expected one program's words")


def _to_be_run(what: Any, arguments: Sequence[Any]) -> tuple[list[str], bytes, str]:
    """Return a program's words, or what a process is to run otherwise; and what people call it."""
    if not isinstance(arguments, list | tuple):
        raise TypeError(
            f"got arguments={arguments!r}, expected a list of what the function gets, as in arguments=[11]"
        )
    if callable(what):
        name = getattr(what, "__qualname__", type(what).__qualname__)
        return [], job_contents.of_function(what, arguments), f"{name}()"
    if arguments:
        raise TypeError("got arguments beside a program, expected all of its words in a list")
    if isinstance(what, str | bytes) or not isinstance(what, Sequence) or not what:
        raise TypeError(
            f'got {what!r} to be started, expected a function or the words of a program, as in ["./ocean", "grid.nc"]'
        )
    for word in what:
        if not isinstance(word, str | os.PathLike):
            raise TypeError(f"got the word {word!r} of a program, expected a text: str({word!r})")
    words = [os.fspath(word) for word in what]
    for word in words:
        # They travel as text.
        word.encode()
    return words, b"", _called(words)


def _called(words: Sequence[str]) -> str:
    """Return what people call a program: its name, and what fits of its words."""
    named = one_line(shlex.join([os.path.basename(words[0]) or words[0], *words[1:]]))
    return named if len(named) <= _CALLED_MAX else f"{named[: _CALLED_MAX - 3]}..."
