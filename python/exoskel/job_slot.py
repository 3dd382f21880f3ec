"""A slot that is a process of a job: its manager has made the job, and told it by its agent where to dial."""

from __future__ import annotations

import atexit
import os
import socket
import sys
from typing import TYPE_CHECKING, Any

from . import _core, confining, inner_threads, job_process, shared_source, slot
from .hosts import UnixAddress, parse_address_alone
from .job_placement import host_of
from .task_posts import TaskStreams
from .worker_log import WorkerLog

if TYPE_CHECKING:
    from .job_process import JoinedProcess

__all__ = ["WORKER", "connected", "serve"]

# Which of its certificates is for the manager.
WORKER = 1
# How long the manager's host may take to answer.
_DIAL_SECONDS = 10.0


class _Loader(slot.Loader):
    def __init__(self, joined: JoinedProcess) -> None:
        super().__init__("worker", WorkerLog())
        self._joined = joined
        self._streams = joined.context.streams = TaskStreams()

    def audit(self, line: str) -> None:
        """Say nothing: who has started this slot is the one whom it serves."""

    def enter(self, stream: int, is_open: set[int]) -> None:
        """Take in to which `map` the items from now on belong: what others post for another one is not theirs."""
        self._streams.enter(stream, is_open)

    def exception(self, error: BaseException, as_data: bool, about: str) -> bytes | list[Any]:
        """Return what travels of an exception. Whoever waits for this slot's task hears that it has raised one."""
        if job_process.has_node():
            self._joined.context.failed(error)
        return super().exception(error, as_data, about)


def connected(manager: str) -> int:
    """Connect to a manager, and return the descriptor.

    Parameters
    ----------
    manager : str
        Where it listens.
    """
    place = parse_address_alone(manager)
    if isinstance(place, UnixAddress):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(place.path)
    else:
        host = place.host.strip("[]")
        connection = socket.create_connection((host, place.port), _DIAL_SECONDS)
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection.detach()


def serve(joined: JoinedProcess, told: dict[str, Any]) -> int:
    """Serve the manager for the length of a session. Return the exit code.

    Parameters
    ----------
    joined : JoinedProcess
        This process.
    told : dict
        ``manager``: its address. ``manager_name``: its name. ``hosts``: on how many hosts slots are. ``options``: those of a slot.
    """
    rank, size, hosts = joined.told["rank"], joined.told["size"], told["hosts"]
    # Neighbours are on one host; which of them this one is, counted from the first there.
    host = host_of(rank, size, hosts)
    own = [one for one in range(size) if host_of(one, size, hosts) == host]
    variables = inner_threads.variables(told["options"]["inner_threads"], len(own))
    slot.prepare_environment(own.index(rank), variables)
    # One for all slots of this host: of the job, which is the agent's.
    shared_source.parent = os.getppid()
    atexit.register(slot.end_descendants, os.getpid())
    loader = _Loader(joined)
    try:
        connection = confining.dialled
        if connection is None:
            connection = connected(told["manager"])
        _core.serve_slot(
            loader,
            told["options"],
            {
                "connection_fd": None,
                "listen_fd": None,
                "join": None,
                "dialled_fd": connection,
                "manager_name": told["manager_name"],
                "signer_fd": None,
                "credential_fd": None,
                "credential": joined.credential(WORKER),
                "policy_fd": None,
                "heard_fd": None,
                "properties": [("slots", str(len(own)))],
                "python": f"{sys.version_info.major}.{sys.version_info.minor}",
                "is_replacement": False,
                "drain": None,
            },
        )
    except Exception as error:
        if not joined.context.is_over.is_set():
            WorkerLog().write(f"exoskel slot: {error}")
        return 1
    finally:
        # The process ends without the interpreter's own end, which would be that of the agent it was forked from.
        atexit._run_exitfuncs()
    return 0
