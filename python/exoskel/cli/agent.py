"""``exoskel agent``: start the processes of others' jobs on this host."""

import argparse
import contextlib
import os
import pwd
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from .. import _core, control_groups
from ..agent_jobs import THREADS, AgentLimits, HostJobs
from ..agents_launcher import AGENT_PORT, ENDPOINT
from ..errors import ExoskelError
from ..host_sandbox import check_table
from ..identity import is_of_grid
from ..links import Node
from ..worker_log import WorkerLog
from ..worker_sandbox import check_files
from . import UsageError, policy
from .report import Commands, report

__all__ = ["add_commands"]

_JOBS, _JOBS_MAX = 16, 10_000
_PROCESSES, _PROCESSES_MAX = 1024, 100_000
# Between two looks at what is to be logged.
_LOOK_SECONDS = 0.5
_PATHS = ("key", "revocation_list", "trust_anchors", "vomsdir")


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``agent``."""
    parser = commands.add_parser(
        "agent",
        parents=[common],
        help="start processes on this host for jobs of others: exoskel.Agents",
        description="Start processes on this host for programs elsewhere, which make a Job with exoskel.Agents. The policy says who may: "
        f"[[allow.rule]] with the actions {ENDPOINT}.start, {ENDPOINT}.start_detached, {ENDPOINT}.jobs and {ENDPOINT}.end; without a rule nobody "
        "may. Each job has a process of its own, which gets nothing of this host's credential. Jobs that begin, are refused and end are lines on "
        "standard error. Credential and policy are read again when they change. SIGTERM and Ctrl-C end the agent and all jobs. "
        "docs/guide/jobs.md explains it.",
    )
    parser.add_argument(
        "--listen",
        required=True,
        metavar="ADDRESS",
        help=f"wait for programs here: tcp://HOST:PORT, e.g. tcp://0.0.0.0:{AGENT_PORT}, or unix:/PATH",
    )
    parser.add_argument(
        "--credential",
        required=True,
        type=Path,
        metavar="FILE",
        help="this host's credential (exoskel pki issue --role peer --name HOST)",
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="its key, if it doesn't hold it")
    parser.add_argument(
        "--policy",
        required=True,
        type=Path,
        metavar="FILE",
        help="who may start processes here: [[allow.rule]]",
    )
    parser.add_argument(
        "--revocation-list",
        type=Path,
        metavar="FILE",
        help="a newer revocation list than the one in the credential",
    )
    parser.add_argument("--trust-anchors", type=Path, metavar="DIR", help="a grid's authorities")
    parser.add_argument(
        "--vomsdir", type=Path, metavar="DIR", help="the VOMS servers whose attributes count"
    )
    parser.add_argument(
        "--user",
        metavar="ACCOUNT",
        help="the account of the processes; it has to be said if root starts the agent (default: that of the agent)",
    )
    parser.add_argument(
        "--jobs",
        type=int,
        default=_JOBS,
        metavar="N",
        help=f"how many jobs there can be at once (default: {_JOBS})",
    )
    parser.add_argument(
        "--processes",
        type=int,
        default=_PROCESSES,
        metavar="N",
        help=f"how many processes a job can have at once (default: {_PROCESSES})",
    )
    parser.set_defaults(run=_agent)


def _agent(arguments: argparse.Namespace) -> int:
    limits = AgentLimits(
        _count("--jobs", arguments.jobs, _JOBS_MAX),
        _count("--processes", arguments.processes, _PROCESSES_MAX),
    )
    account = _account(arguments.user)
    control_groups.leave_to_agents()
    control_groups.sweep(control_groups.base_places())
    policy.check(arguments.policy)
    # What it starts runs under its account, and must not read its keys.
    _core.hide_process()
    values = {name: getattr(arguments, name) for name in _PATHS}
    more = {name: value for name, value in values.items() if value is not None}
    own = {**more, "credential": arguments.credential, "policy": arguments.policy}
    log = WorkerLog()

    def write(line: str) -> None:
        log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} agent {line}")

    signal.signal(signal.SIGTERM, _end)
    # Ctrl-C is the usual end of one that was started by hand.
    with (
        contextlib.suppress(KeyboardInterrupt),
        Node(
            arguments.credential,
            policy=arguments.policy,
            listen=arguments.listen,
            live=False,
            # As with `ssh`: a job ends with the connection that has started it.
            patience=0.0,
            **more,
        ) as node,
        contextlib.closing(
            HostJobs(
                limits,
                account,
                write,
                lambda owner: _without_own(node._node.sandbox_of(owner), account, own, write),
                node._node.sessions,
            )
        ) as jobs,
    ):
        _check_sandbox(node._node.sandbox_table(), account, own)
        told = policy.confined(arguments.policy)
        endpoint = node.endpoint(ENDPOINT, threads=THREADS)
        endpoint.stream_handler(jobs.start)
        endpoint.stream_handler(jobs.start_detached)
        endpoint.handler(jobs.jobs)
        endpoint.handler(jobs.end)
        [place] = node.hints
        listen = place if place.startswith("unix:") else f"tcp://{place}"
        report(
            arguments,
            f"agent {node.name} listening on {listen}, with at most {limits.jobs} jobs of {limits.processes} processes{'' if told is None else f'; {told}'}",
            {
                "listen": listen,
                "name": node.name,
                "jobs": limits.jobs,
                "processes": limits.processes,
            },
        )
        while True:
            for line in node.audit():
                write(line)
            time.sleep(_LOOK_SECONDS)
    return 0


def _check_sandbox(
    table: dict[str, Any] | None, account: pwd.struct_passwd | None, own: dict[str, Any]
) -> None:
    """See that this host can hold processes to its policy. What it can't after the policy has changed, each process says."""
    if table is None:
        return
    is_root = os.geteuid() == 0 if account is None else account.pw_uid == 0
    try:
        check_table(table, is_root=is_root)
        if account is None:
            check_files(table, own)
    except (ValueError, PermissionError) as error:
        raise UsageError(f"{own['policy']}: {error}") from None
    has_grid = "trust_anchors" in own or is_of_grid(own["credential"])
    policy.check_confines(own["policy"], has_grid=has_grid)


def _without_own(
    found: tuple[str, dict[str, Any]] | None,
    account: pwd.struct_passwd | None,
    own: dict[str, Any],
    write: Callable[[str], None],
) -> tuple[str, dict[str, Any]] | None:
    """Return what somebody's processes may use, unless it is a file of the agent's own, which would be open to them under its account."""
    if found is not None and account is None:
        try:
            check_files(found[1], own)
        except PermissionError as error:
            write(str(error))
            # Where the files are is nothing that a creator is to know.
            text = "the sandbox of this host's policy would let its code use files of the agent itself; the agent's log says which"
            raise ExoskelError(text) from None
    return found


def _count(option: str, value: int, most: int) -> int:
    if not 1 <= value <= most:
        raise UsageError(f"got {option} {value}, expected a whole number from 1 to {most}")
    return value


def _account(name: str | None) -> pwd.struct_passwd | None:
    """Return the account of the processes, unless it is that of the agent."""
    if name is None:
        if os.geteuid() == 0:
            raise UsageError(
                "got no --user from root, expected the account of the processes: --user root, if you mean that"
            )
        return None
    try:
        account = pwd.getpwnam(name)
    except KeyError:
        raise UsageError(f"got --user {name}, expected an account of this machine") from None
    if account.pw_uid == os.geteuid():
        return None
    if os.geteuid() != 0:
        raise UsageError(
            f"got --user {name}, expected the account that starts the agent: only root can start processes of another one"
        )
    return account


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
