"""A process of a job: how it learns who it is, its node, and its siblings.

Its agent gives it a socket. The process makes a key, and sends the public one up to be signed by the job; what comes back says which of its
siblings it is. When it has offered what others call, it sends its startpoint up; and it asks over the socket for those of its siblings. As
long as the socket is open, the job goes on.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import logging
import os
import pickle
import signal
import socket
import struct
import sys
import threading
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TYPE_CHECKING, Any

from . import _core, confining, job_contents, links
from .errors import LinkError, ProcessEndedError
from .joining import join_agent, join_by_invitation
from .link_arguments import as_startpoint
from .link_failures import failure_of
from .process_zygote import AGENT, ANYBODY, CONTEXT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .task_posts import TaskStreams

__all__ = ["JobNode", "JoinedProcess", "Siblings", "init", "join", "run_function"]

# The endpoint of each process that its siblings and the job's creator have links to.
ENDPOINT = "process"
# What the job's creator asks for when the function has returned: a handler that is there for it alone.
VALUE = "function_value"
# Who waits longer for a sibling is told what for.
_WARNING_SECONDS = 10.0
# And a manager's slot asks whether that is in vain.
_ABSENCE_SECONDS = 4.0
_log = logging.getLogger("exoskel.links")
_LENGTH = struct.Struct("!I")
# The exit code of a process that somebody else than its job's creator has ended: as a shell says it of what SIGTERM has ended.
_ORDERED_CODE = 128 + signal.SIGTERM
# What is forgotten where several processes would join by one socket.
_STARTS_RANKS = "what starts ranks by itself, as mpiexec does, needs joined= at Job.start"
# What siblings are told of an exception.
_FAILED_LENGTH_MAX = 200
# A function with what it refers to.
_TOLD_BYTES_MAX = 1 << 30


class _Context:
    """The socket to the agent: words go up as JSON, and come down as pickles, from whoever has started this process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._lock = threading.Lock()
        self._asked: dict[int, Future[str]] = {}
        # Why somebody waits in vain: for a sibling, or for posts of any of them.
        self._vain: dict[int, Future[str]] = {}
        #: Of a manager's slot: to which stream its task belongs.
        self.streams: TaskStreams | None = None
        self.is_over = threading.Event()
        # One that ran before has more to do.
        self.ends_with_job = True
        # Whether it has done what it was started for.
        self.is_done = False
        self._is_ordered = False

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

    def waits_for(self, rank: int) -> Future[str]:
        """Say that a sibling is waited for, and return a future that has why it doesn't come, if it is known that it doesn't."""
        with self._lock:
            vain = self._vain.setdefault(rank, Future())
        self.send(waits=rank, stream=self._stream)
        return vain

    def idles(self) -> Future[str]:
        """Say that the task of this slot waits for a post without end, and return a future that has why none comes, if nobody is left who would post."""
        with self._lock:
            vain = self._vain.setdefault(ANYBODY, Future())
        self.send(idles=True, stream=self._stream)
        return vain

    def goes_on(self) -> None:
        """Say that it waits no more."""
        with self._lock:
            self._vain.pop(ANYBODY, None)
        # A job that is over has nobody who waits.
        with contextlib.suppress(OSError):
            self.send(idles=False)

    def failed(self, error: BaseException) -> None:
        """Say that a task of this slot has raised an exception."""
        _, text = failure_of(error)
        line = text.strip().partition("\n")[0]
        failed = f"{type(error).__name__}{': ' if line else ''}{line}"
        with contextlib.suppress(OSError):
            self.send(failed=failed[:_FAILED_LENGTH_MAX], stream=self._stream)

    @property
    def _stream(self) -> int | None:
        return None if self.streams is None else self.streams.current

    def follow(self) -> None:
        """Take what comes, and end this process with its job."""
        with contextlib.suppress(OSError, EOFError):
            while True:
                rank, startpoint, error = self.receive()
                if rank is None:
                    # Somebody ends the job whose creator is there, and waits for what is done here.
                    self._is_ordered = True
                    continue
                with self._lock:
                    if startpoint is False:
                        vain = self._vain.pop(rank, None)
                        if vain is not None:
                            vain.set_result(error)
                        continue
                    future = self._asked[rank]
                    if future.done():
                        # Another process is in its place.
                        future = self._asked[rank] = Future()
                if startpoint is None:
                    future.set_exception(ProcessEndedError(error))
                else:
                    future.set_result(startpoint)
        self.is_over.set()
        if not self.ends_with_job:
            return
        # Nobody is left to whom anything could be delivered, and what runs here is nobody's any more.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(_ORDERED_CODE if self._is_ordered and not self.is_done else 0)

    def _exactly(self, length: int) -> bytes:
        parts = bytearray()
        while len(parts) < length:
            part = self._connection.recv(min(length - len(parts), 1 << 20))
            if not part:
                raise EOFError("its agent has closed the socket")
            parts += part
        return bytes(parts)


class JoinedProcess:
    """A process that has joined its job: it knows which of its siblings it is, and can prove it.

    Attributes
    ----------
    told : dict
        What its agent has told it.
    is_slot : bool
        Whether it runs the tasks of a manager, one after the other.
    """

    is_slot = False

    def __init__(self, connection: socket.socket) -> None:
        self.context = _Context(connection)
        self._key = _core.ProcessKey()
        self.context.send(key=base64.b64encode(self._key.public_key).decode())
        self.told: dict[str, Any] = self.context.receive()

    def credential(self, which: int = 0) -> _core.ProcessCredential:
        """Return a credential of this process, for the first of its roles or another one."""
        return self._key.credential(self.told["certificates"][which], self.told["root"])


_lock = threading.Lock()
_joined: JoinedProcess | None = None
_node: JobNode | None = None


class Siblings:
    """The processes that were started together with this one, this one included: a sequence of bindings, by ranks.

    A sibling is there from the moment at which it has used its own ``peers``, or has called `JobNode.ready`. Who asks for one before waits.
    """

    def __init__(self, node: JobNode, size: int) -> None:
        self._node = node
        self._size = size
        self._lock = threading.Lock()
        # With what they are bound to: another process may come into a sibling's place.
        self._bound: dict[int, tuple[str, links.Binding]] = {}

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
        startpoint = self._node._startpoint_of(rank)
        with self._lock:
            known, bound = self._bound.get(rank, (None, None))
            if bound is None or known != startpoint:
                if bound is not None:
                    bound.close()
                bound = self._node._bind_sibling(as_startpoint(startpoint))
                self._bound[rank] = startpoint, bound
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

    def __init__(self, joined: JoinedProcess) -> None:
        told = joined.told
        super().__init__(
            joined.credential(),
            listen=confining.take_sockets() or told["listen"],
            live=False,
            patience=told["patience"],
        )
        self._network = told.get("network")
        self._tells_absence = told.get("tells_absence", False)
        self.rank, self.size = told["rank"], told["size"]
        self.process = self.endpoint(ENDPOINT, threads=told["threads"])
        # Each task of a slot has handlers of its own.
        self.process._threads.replaces = joined.is_slot
        self._context = joined.context
        self._streams = joined.context.streams
        if self._tells_absence:
            from .task_posts import TaskInboxes, TaskStreams

            # What processes post that run no tasks is for all.
            streams = self._streams or TaskStreams()
            inboxes = TaskInboxes(streams, self._context, self)
            self.process._threads.make_inbox = inboxes.make
        self._siblings = Siblings(self, self.size)
        self._is_ready = False
        self._ready_lock = threading.Lock()

    def ready(self) -> None:
        """Say that this process has all handlers that others call. To use `peers` says so, too."""
        with self._ready_lock:
            if not self._is_ready:
                has_given = self.has_given_startpoints
                self._context.send(here=self.process.startpoint(to="*").text())
                self.has_given_startpoints = has_given
                self._is_ready = True

    @property
    def peers(self) -> Siblings:
        """The processes that were started together with this one, by ranks."""
        self.ready()
        return self._siblings

    def _bind_sibling(self, startpoint: links.Startpoint) -> links.Binding:
        if self._streams is None:
            return self.bind(startpoint)
        self.process._threads.check_open()
        from .task_posts import SiblingBinding

        return SiblingBinding(self, startpoint, self._streams)

    def _startpoint_of(self, rank: int) -> str:
        if self._network == "none":
            raise LinkError(
                'the sandbox of this process has network="none": it connects to no sibling; start it with network="links"'
            )
        asked = self._context.startpoint_of(rank)
        if self._tells_absence:
            wait([asked], _ABSENCE_SECONDS)
            if not asked.done():
                vain = self._context.waits_for(rank)
                wait([asked, vain], _WARNING_SECONDS - _ABSENCE_SECONDS, FIRST_COMPLETED)
                self._check_absence(asked, vain)
        else:
            wait([asked], _WARNING_SECONDS)
        if not asked.done():
            _log.warning(
                "rank %d waits for its siblings: not all of the %d processes have used their `peers`, or have called `ready()`",
                self.rank,
                self.size,
            )
        while self._tells_absence and not asked.done():
            vain = self._context.waits_for(rank)
            wait([asked, vain], _WARNING_SECONDS, FIRST_COMPLETED)
            self._check_absence(asked, vain)
        return asked.result()

    def _check_absence(self, asked: Future[str], vain: Future[str]) -> None:
        if vain.done() and not asked.done():
            raise LinkError(f"rank {self.rank} waits for its siblings in vain: {vain.result()}")

    def _give(self, value: Any) -> None:
        """Have what the function has returned ready for the job's creator."""

        def function_value() -> Any:
            return value

        self.process.handler(function_value)
        self.ready()
        self._context.send(returned=True)


def init(invitation: str | os.PathLike[str] | None = None) -> JobNode:
    """Join the job that has started this process, or that has invited it. Every call returns the same node.

    Parameters
    ----------
    invitation : path, optional
        What `Job.invite` has written, for a process that no job has started. It lets one process in.

    Raises
    ------
    LinkError
        If no job has started it, the job is over, or doesn't let it in.
    """
    global _node
    joined = join(invitation)
    with _lock:
        if _node is None:
            _node = JobNode(joined)
        return _node


def has_node() -> bool:
    """Whether anything in this process has used the links of its job."""
    return _node is not None


def join(invitation: str | os.PathLike[str] | None = None) -> JoinedProcess:
    """Join a job, without a node. Every call returns the same.

    Raises
    ------
    LinkError
        As `init` does.
    """
    global _joined
    with _lock:
        if _joined is not None:
            return _joined
        connection = _connection() if invitation is None else join_by_invitation(invitation)
        connection.set_inheritable(False)
        try:
            _joined = JoinedProcess(connection)
        except (OSError, EOFError) as error:
            raise LinkError(
                f"the job of this process is over, or another one has joined in its place: {error}; {_STARTS_RANKS}"
            ) from None
        _joined.context.ends_with_job = not _joined.told.get("invited", False)
        follow = _joined.context.follow
        threading.Thread(target=follow, name="exoskel-job", daemon=True).start()
        return _joined


def _connection() -> socket.socket:
    """Return the socket to the agent: an inherited one, or by the agent's place that stands in the environment."""
    number = os.environ.get(CONTEXT)
    if number is None:
        # Nothing that this process starts is one of the job by that.
        place = os.environ.pop(AGENT, None)
        if place is not None:
            return join_agent(place)
        raise LinkError(
            "no job has started this process: start it by exoskel.Job.start (ranks of mpiexec with joined=, slots of a Manager with launch=exoskel.Local()), or make an exoskel.links.Node"
        )
    try:
        return socket.socket(fileno=int(number))
    except (OSError, ValueError) as error:
        raise LinkError(
            f"the socket of this process's job can't be used ({error}): it is inherited as descriptor {number}, and must not be closed before; {_STARTS_RANKS}"
        ) from None


def run_function() -> int:
    """Run the function that this process was started for, and stay until the job ends; or be a slot. Return the exit code."""
    from . import script

    script.enter()
    # Lines are whole, and come when they are printed.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)
    try:
        joined = join()
    except LinkError:
        # Its job was over before it could begin: nobody has to be told.
        return _ORDERED_CODE
    is_slot, run = job_contents.opened(joined.told["contents"])
    if is_slot:
        from . import job_slot

        joined.is_slot = True
        return job_slot.serve(joined, pickle.loads(run))
    here = init()
    function, arguments = pickle.loads(run)
    try:
        value = function(here, *arguments)
    except Exception as error:
        # What stands before the user's function is ours, and says nothing.
        own = error.__traceback__ and error.__traceback__.tb_next
        if why := confining.reason_of(error):
            print(f"exoskel: {why}", file=sys.stderr)
        traceback.print_exception(type(error), error, own)
        return 1
    joined.context.is_done = True
    here._give(value)
    joined.context.is_over.wait()
    return 0
