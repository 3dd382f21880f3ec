"""Processes by the request, each with an identity of its own: `Job`."""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Self

from .agents_launcher import Agents
from .errors import LinkError
from .job_state import AGENT_SECONDS, PROCESSES_MAX, JobState
from .launchers import Launcher, Local, Ssh
from .link_waiting import bounded_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import TracebackType

    from .job_processes import Processes
    from .job_summary import JobSummary

__all__ = ["Job"]

# What a program proves itself by to agents.
_PROOF = frozenset(["credential", "key", "policy", "revocation_list", "trust_anchors", "vomsdir"])


class Job:
    """Processes on one or more hosts, which know each other and end together.

    The job is an authority of its own: each process makes a key for itself, which the job signs. So its processes prove to each other which
    they are, and their certificates open nothing outside of the job.

    Parameters
    ----------
    launch : Local, Ssh or Agents, optional
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
        launcher = _proven(Local() if launch is None else launch, told)
        if detach:
            if not isinstance(launcher, Agents | Local | Ssh):
                raise ValueError(f"got detach=True with {launcher!r}, which can't do that")
            launcher = launcher.detached()
        prepare = None
        if delegate:
            from .job_delegation import delegation

            prepare = delegation(told)
        self._state = JobState(launcher, min, limit, is_detached=detach, prepare=prepare)
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
        """End all processes, and wait until they have ended. Those of a detached job go on; wait for their ``result()`` before."""
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


def _proven(launcher: Launcher, told: dict[str, Any]) -> Launcher:
    """Give a launcher what it proves itself by, if it has a use for that."""
    unknown = sorted(told.keys() - _PROOF)
    if unknown:
        raise TypeError(f"got {unknown[0]}=, expected one of {', '.join(sorted(_PROOF))}")
    if isinstance(launcher, Agents):
        return launcher.proven_by(**told) if "credential" in told else launcher
    if told:
        raise ValueError(
            f"got {next(iter(told))}= with {launcher!r}, expected it with Agents(...) only: it needs none, as it proves itself otherwise"
        )
    return launcher


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
