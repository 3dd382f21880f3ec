"""A process of a job: how it learns who it is, its node, and its siblings.

Its agent gives it a socket. The process makes a key, and sends the public one up to be signed by the job; what comes back says which of its
siblings it is. When it has offered what others call, it sends its startpoint up; and it asks over the socket for those of its siblings. As
long as the socket is open, the job goes on.
"""

from __future__ import annotations

import base64
import contextlib
import json
import logging
import os
import pickle
import socket
import struct
import sys
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from . import _core, confining, links
from .errors import LinkError, ProcessEndedError
from .link_arguments import as_startpoint
from .process_zygote import CONTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["JobNode", "Siblings", "init", "run_function"]

# The endpoint of each process that its siblings and the job's creator have links to.
ENDPOINT = "process"
# What the job's creator asks for when the function has returned: a handler that is there for it alone.
VALUE = "function_value"
# Who waits longer for a sibling is told what for.
_WARNING_SECONDS = 10.0
_log = logging.getLogger("exoskel.links")
_LENGTH = struct.Struct("!I")
# A function with what it refers to.
_TOLD_BYTES_MAX = 1 << 30


class _Context:
    """The socket to the agent: words go up as JSON, and come down as pickles, from whoever has started this process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._asked: dict[int, Future[str]] = {}
        self.is_over = threading.Event()

    def send(self, **word: Any) -> None:
        message = json.dumps(word).encode()
        with self._sending:
            self._connection.sendall(_LENGTH.pack(len(message)) + message)

    def receive(self) -> Any:
        """Return what comes next.

        Raises
        ------
        EOFError
            If the job is over.
        """
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size))
        if length > _TOLD_BYTES_MAX:
            raise EOFError(f"got {length} bytes to read, expected at most {_TOLD_BYTES_MAX}")
        return pickle.loads(self._exactly(length))

    def startpoint_of(self, rank: int) -> Future[str]:
        """Ask for the startpoint of a sibling, once."""
        with self._lock:
            future = self._asked.get(rank)
            if future is None:
                future = self._asked[rank] = Future()
                self.send(sibling=rank)
            return future

    def follow(self) -> None:
        """Take what comes, and end this process with its job."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                rank, startpoint, error = self.receive()
                future = self._asked[rank]
                if startpoint is None:
                    future.set_exception(ProcessEndedError(error))
                else:
                    future.set_result(startpoint)
        self.is_over.set()
        # Nobody is left to whom anything could be delivered, and what runs here is nobody's any more.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(0)

    def _exactly(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self._connection.recv(min(length - len(parts), 1 << 20))
            if not part:
                raise EOFError("its agent has closed the socket")
            parts += part
        return bytes(parts)


_lock = threading.Lock()
_context: _Context | None = None
_node: JobNode | None = None
_told: dict[str, Any] = {}


class Siblings:
    """The processes that were started together with this one, this one included: a sequence of bindings, by ranks.

    A sibling is there from the moment at which it has used its own ``peers``, or has called `JobNode.ready`. Who asks for one before waits.
    """

    def __init__(self, node: JobNode, size: int) -> None:
        self._node = node
        self._size = size
        self._lock = threading.Lock()
        self._bound: dict[int, links.Binding] = {}

    def __len__(self) -> int:
        """Return how many there are."""
        return self._size

    def __getitem__(self, rank: int) -> links.Binding:
        """Return the link to a sibling.

        Raises
        ------
        IndexError
            If there is no such rank.
        ProcessEndedError
            If it has ended before it was there.
        """
        if not isinstance(rank, int) or isinstance(rank, bool):
            raise TypeError(f"got the rank {rank!r}, expected a whole number")
        if not -self._size <= rank < self._size:
            raise IndexError(f"got the rank {rank}, expected one of {self._size}")
        rank %= self._size
        with self._lock:
            bound = self._bound.get(rank)
            if bound is None:
                bound = self._bound[rank] = self._node._sibling(rank)
            return bound

    def __iter__(self) -> Iterator[links.Binding]:
        """Go through all of them."""
        return (self[rank] for rank in range(self._size))

    def __repr__(self) -> str:
        """Say how many."""
        return f"<exoskel.job_process.Siblings: {self._size} processes>"


class JobNode(links.Node):
    """The node of a process of a job; `exoskel.links.init` returns it.

    Attributes
    ----------
    rank : int
        Which of the processes that were started together this one is, from 0.
    size : int
        How many were started together.
    process : exoskel.links.Endpoint
        What siblings and the job's creator call: give it handlers, then use `peers` or call `ready`.
    """

    rank: int
    size: int
    process: links.Endpoint

    def __init__(
        self, told: dict[str, Any], credential: _core.ProcessCredential, context: _Context
    ) -> None:
        super().__init__(
            credential,
            listen=confining.take_sockets() or told["listen"],
            live=False,
            patience=told["patience"],
        )
        self._network = told.get("network")
        self.rank, self.size = told["rank"], told["size"]
        self.process = self.endpoint(ENDPOINT, threads=told["threads"])
        self._context = context
        self._siblings = Siblings(self, self.size)
        self._is_ready = False
        self._ready_lock = threading.Lock()

    def ready(self) -> None:
        """Say that this process has all handlers that others call. To use `peers` says so, too."""
        with self._ready_lock:
            if not self._is_ready:
                self._context.send(here=self.process.startpoint(to="*").text())
                self._is_ready = True

    @property
    def peers(self) -> Siblings:
        """The processes that were started together with this one, by ranks."""
        self.ready()
        return self._siblings

    def _sibling(self, rank: int) -> links.Binding:
        if self._network == "none":
            raise LinkError(
                'the sandbox of this process has network="none": it connects to no sibling; start it with network="links"'
            )
        asked = self._context.startpoint_of(rank)
        try:
            text = asked.result(_WARNING_SECONDS)
        except TimeoutError:
            _log.warning(
                "rank %d waits for its siblings: not all of the %d processes have used their `peers`, or have called `ready()`",
                self.rank,
                self.size,
            )
            text = asked.result()
        return self.bind(as_startpoint(text))

    def _give(self, value: Any) -> None:
        """Have what the function has returned ready for the job's creator."""

        def function_value() -> Any:
            return value

        self.process.handler(function_value)
        self.ready()
        self._context.send(returned=True)


def init() -> JobNode:
    """Join the job that has started this process. Every call returns the same node.

    Raises
    ------
    LinkError
        If no job has started it, or the job is over.
    """
    with _lock:
        return _joined()


def _joined() -> JobNode:
    global _context, _node
    if _node is not None:
        return _node
    place = os.environ.get(CONTEXT)
    if place is None:
        raise LinkError(
            "no job has started this process: start it by exoskel.Job.start, or make an exoskel.links.Node"
        )
    try:
        connection = socket.socket(fileno=int(place))
    except (OSError, ValueError) as error:
        raise LinkError(
            f"the socket of this process's job can't be used ({error}): it is inherited as descriptor {place}, and must not be closed before"
        ) from None
    connection.set_inheritable(False)
    context = _context = _Context(connection)
    key = _core.ProcessKey()
    try:
        context.send(key=base64.b64encode(key.public_key).decode())
        _told.update(context.receive())
    except (OSError, EOFError) as error:
        raise LinkError(f"the job of this process is over: {error}") from None
    credential = key.credential(_told["certificate"], _told["root"])
    _node = JobNode(_told, credential, context)
    threading.Thread(target=context.follow, name="exoskel-job", daemon=True).start()
    return _node


def run_function() -> int:
    """Run the function that this process was started for, and stay until the job ends. Return the exit code."""
    from . import script

    script.enter()
    here = init()
    sys.path[:], run = pickle.loads(_told["contents"])
    function, arguments = pickle.loads(run)
    here._give(function(here, *arguments))
    assert _context is not None
    _context.is_over.wait()
    return 0
