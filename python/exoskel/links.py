"""Links between any two processes: endpoints with handlers, and startpoints that open links to them.

A `Node` offers endpoints and binds startpoints. A startpoint is text that says where an endpoint is, whom to expect there and what its
holder may call; it can be narrowed and passed on without asking anybody. Each link has a protection of its own. Values travel as plain
data: numbers, texts, bytes, lists, dictionaries, times, and arrays, which aren't copied.
"""

import contextlib
import itertools
import json
import logging
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from . import _core
from ._core import Startpoint
from .errors import CredentialError, ExoskelError, LinkError, NoAddressError, PolicyError
from .link_arguments import (
    NOT_SAID,
    as_startpoint,
    checked_flag,
    checked_name,
    checked_text,
    restrictions,
    several,
)
from .link_endpoints import Call, Endpoint, HandlerThreads
from .link_endpoints import Protection as Protection
from .link_failures import WarningLog, log_warnings, with_reason
from .link_groups import Group, GroupError, GroupReply
from .link_inboxes import NODE_IS_CLOSED, Inbox
from .link_own_calls import waits_for
from .link_places import BoundBefore, Command, commands, dialled, listening, reached_by
from .link_regions import OfferedRegion, Region
from .link_streams import Stream
from .link_waiting import (
    PATIENCE_SECONDS,
    AwaitedReplies,
    bounded_seconds,
    checked_seconds,
    driven,
    patiently,
)
from .peer_text import one_line

if TYPE_CHECKING:
    from .job_process import JobNode

__all__ = [
    "Binding",
    "Call",
    "Endpoint",
    "Group",
    "GroupError",
    "GroupReply",
    "HandlerError",
    "Inbox",
    "Node",
    "OfferedRegion",
    "Region",
    "Reply",
    "Startpoint",
    "Stream",
    "group",
    "here",
    "init",
]

Compression = Literal["zstd"]

_log = logging.getLogger("exoskel.links")
# How long a node that is closed waits for handlers, and for what was posted.
_CLOSE_SECONDS = 10.0
_NOT_TAKEN = (
    "posts or answers are lost: their peers took nothing for as long as a node waits at its end"
)
# Of a startpoint; each may cost an attempt.
_HINTS_MAX = 8
# Of an endpoint.
_THREADS_MAX = 256
# Nodes of one process.
_numbers = itertools.count(1)


class HandlerError(ExoskelError, RuntimeError):
    """A handler at the other end raised an exception.

    Attributes
    ----------
    kind : str
        The name of the exception's class there, with its module but for builtins, as `exoskel.TaskError.kind` has it.
    """

    def __init__(self, text: str, kind: str = "Exception") -> None:
        super().__init__(text)
        self.kind = kind


class Reply:
    """The answer to a request, when it comes. It can be awaited."""

    def __init__(
        self, node: "_core.LinkNode", owner: "Binding", request: int, handler: str
    ) -> None:
        self._node = node
        # The link stays open as long as somebody has the reply.
        self._owner = owner
        binding = owner._binding
        self._request = request
        self._handler = handler
        self._peer = owner.startpoint.node
        self._lock = threading.Lock()
        self._outcome: tuple[bool, Any] | None = None
        weakref.finalize(self, _forget, node, binding, request)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the answer and return it.

        Parameters
        ----------
        timeout : float, optional
            How many seconds to wait at most. The request goes on; ask again later.

        Raises
        ------
        TimeoutError
            If it has not come by then.
        HandlerError
            If the handler raised an exception.
        RefusedError
            If the other end doesn't open the link, or has ended it.
        LinkError
            If there is no way to the other end, or the link was lost before the answer came.
        RuntimeError
            In a handler whose endpoint has one thread, if that very endpoint is asked: nobody could handle the request.
        """
        limit = checked_seconds(timeout)
        with self._lock, waits_for(self, self._owner.startpoint, limit):
            outcome = self._outcome or self._take(limit)
        if outcome is None:
            text = f"no answer of {self._handler} at {self._peer} within {timeout:g} seconds"
            raise TimeoutError(with_reason(text, self.trouble()))
        is_reply, value = outcome
        if is_reply:
            return value
        raise value

    def done(self) -> bool:
        """Return whether the answer is there."""
        return self._outcome is not None or self._node.has_answer(self._request)

    def trouble(self) -> str | None:
        """Return why there is no link to the other end just now; None while there is one."""
        return self._owner._node.trouble(self._owner._binding)

    def look(self, seconds: float) -> bool:
        """Return whether the answer is there, after waiting for so many seconds at most. It raises nothing."""
        if not self._lock.acquire(timeout=seconds):
            # Who waits for it takes it.
            return self.done()
        try:
            return (self._outcome or self._take(seconds)) is not None
        except Exception as error:
            self._outcome = (False, error)
            return True
        finally:
            self._lock.release()

    def _take(self, limit: float | None) -> tuple[bool, Any] | None:
        """Take the answer, if it comes in time. Only who has the lock may."""
        try:
            answer = self._wait(limit)
        except (ExoskelError, ValueError) as error:
            self._outcome = (False, self._owner._explained(error))
        else:
            if answer is not None:
                is_reply, value = answer
                self._outcome = (True, value) if is_reply else (False, self._failure(value))
        return self._outcome

    def _wait(self, timeout: float | None) -> tuple[bool, Any] | None:
        binding, drive = self._owner._binding, self._owner._drive
        log_warnings(self._node)
        if drive is None:
            return self._node.wait(binding, self._request, timeout, self._peer)
        return driven(
            drive, timeout, lambda: self._node.wait(binding, self._request, 0.0, self._peer)
        )

    def __await__(self) -> Any:
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        drive = self._owner._drive
        if drive is None:
            if not self.done():
                await self._owner._awaited.wait(self)
            return self.result()
        import asyncio

        # Other coroutines run in between.
        while not self.done():
            drive(0.0)
            await asyncio.sleep(0)
        return self.result()

    def _failure(self, value: Any) -> HandlerError:
        kind, text = value if isinstance(value, list) and len(value) == 2 else ("Exception", value)
        # A stranger's words, for a terminal perhaps.
        kind, text = one_line(str(kind)), one_line(str(text))
        return HandlerError(f"{self._handler} at {self._peer} raised {kind}: {text}", kind)

    def __repr__(self) -> str:
        state = "done" if self.done() else "pending"
        return f"<exoskel.links.Reply of {self._handler} at {self._peer}: {state}>"


class _TransferReply(Reply):
    """The end of a transfer from or to a region, when it comes."""

    def __init__(
        self, transfer: "_core.LinkTransfer", what: str, owner: "Binding", value: Any
    ) -> None:
        self._transfer = transfer
        self._owner = owner
        self._handler = what
        self._peer = owner.startpoint.node
        self._value = value

    def result(self, timeout: float | None = None) -> Any:
        limit = checked_seconds(timeout)
        drive = self._owner._drive
        if drive is not None:
            done = driven(drive, limit, lambda: self._transfer.wait(0.0) or None)
        else:
            done = patiently(limit, lambda left: self._transfer.wait(left) or None)
        if done is None:
            text = f"{self._handler} of {self._peer} was not done within {timeout:g} seconds"
            raise TimeoutError(with_reason(text, self.trouble()))
        return self._value

    def done(self) -> bool:
        return self._transfer.is_over()

    def look(self, seconds: float) -> bool:
        """Return whether it is over, after waiting for so many seconds at most. It raises nothing."""
        try:
            return self._transfer.wait(seconds)
        except Exception:
            # `result` raises it again.
            return True


class Binding:
    """A startpoint that this node has bound: requests can be made by it. It holds its node, which goes on as long as somebody has it."""

    def __init__(self, owner: "Node", startpoint: Startpoint, is_looked_up: bool = False) -> None:
        self._owner = owner
        node = self._node = owner._node
        self._awaited = owner._awaited
        self._drive = None if owner._driver is None else owner._driver.progress
        self._startpoint = startpoint
        self._binding = node.bind(startpoint, is_looked_up)
        self._finalizer = weakref.finalize(self, _unbind, node, self._binding)

    @property
    def startpoint(self) -> Startpoint:
        """The startpoint."""
        return self._startpoint

    def request(self, handler: str, /, *arguments: Any, **keywords: Any) -> Reply:
        """Call a handler at the other end. The first request dials and opens the link.

        Parameters
        ----------
        handler : str
            Its name.
        *arguments, **keywords
            Its arguments: plain data and arrays.

        Returns
        -------
        Reply
            The answer, when it comes.

        Raises
        ------
        ResultRejectedError
            If an argument is no plain data.
        ValueError
            If the startpoint allows no such handler.
        SizeLimitError
            If they are larger than the other end takes.
        """
        self._check_open()
        checked_text("handler", handler)
        request = self._node.request(self._binding, handler, [list(arguments), keywords])
        return Reply(self._node, self, request, handler)

    def post(self, handler: str, /, *arguments: Any, **keywords: Any) -> None:
        """Call a handler at the other end, without an answer.

        What is wrong with it is logged there. A lost connection doesn't lose it (see ``patience`` of `Node`). If the link itself is lost,
        the next request or post says how many posts have no word of their arrival.
        """
        self._check_open()
        checked_text("handler", handler)
        self._node.post(self._binding, handler, [list(arguments), keywords])

    def stream(self, handler: str, *, timeout: float | None = None) -> Stream:
        """Open a byte stream to the other end.

        Parameters
        ----------
        handler : str
            The name of a stream handler there.
        timeout : float, optional
            How many seconds each read, each write and the closing may take. It can be changed later.

        Returns
        -------
        Stream
            It reads and writes like a file. What is wrong is raised by the first read or write.
        """
        self._check_open()
        checked_text("handler", handler)
        stream = _core.LinkStream.open(self._node, self._binding, handler)
        return Stream(
            stream,
            peer=self._startpoint.node,
            handler=handler,
            timeout=timeout,
            drive=self._drive,
            owner=self,
            trouble=partial(self._node.trouble, self._binding),
        )

    def region(self, name: str, *, timeout: float | None = 10.0) -> Region:
        """Return an array of the other end, to read and write parts of it. Nobody is asked before the first use.

        Parameters
        ----------
        name : str
            Its name.
        timeout : float, optional
            How many seconds the first use may wait until the other end has said what the array is like. Without end if it is None.

        Returns
        -------
        Region
            Its first use raises a ``TimeoutError`` if the other end has not answered by then; the next one waits on.
        """
        limit = checked_seconds(timeout)
        checked_name("region", name)

        def reply(transfer: "_core.LinkTransfer", what: str, value: Any) -> Reply:
            return _TransferReply(transfer, what, self, value)

        node, peer = self._node, self._startpoint.node
        return Region(node, self._binding, name, peer, reply, self._drive, limit)

    def require(self, protection: Protection) -> None:
        """Have the link protected at least so, from the next record on. It never becomes weaker.

        Parameters
        ----------
        protection : {"plain", "integrity", "encrypted"}
            The least.
        """
        self._node.require(self._binding, checked_text("protection", protection))

    def attenuate(
        self,
        *,
        to: str | Iterable[str] = NOT_SAID,
        handlers: str | Iterable[str] | None = None,
        expires: float | None = None,
        protection: Protection | None = None,
    ) -> Startpoint:
        """Return a startpoint that allows less, to be passed on. Nobody is asked; see `Endpoint.startpoint` for the parameters."""
        return self._startpoint.attenuate(**restrictions(to, handlers, expires, protection))

    @property
    def protection(self) -> str | None:
        """What protects the link; None while there is none."""
        protection: str | None = self._node.link(self._binding)["protection"]
        return protection

    @property
    def method(self) -> str | None:
        """What carries the link, ``"tcp"`` for example; None while there is none."""
        method: str | None = self._node.link(self._binding)["method"]
        return method

    def close(self) -> None:
        """End the link. What waits for an answer gets a `LinkError`; what was posted still goes."""
        self._finalizer()

    def _explained(self, error: Exception) -> Exception:
        """Return what a request that came to nothing raises."""
        return error

    def _check_open(self) -> None:
        if not self._finalizer.alive:
            raise LinkError("this binding is closed")

    def __enter__(self) -> Self:
        """Return the binding; the end of the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        """Say where it leads, and how it is protected, or why there is no link."""
        place = one_line(f"{self._startpoint.endpoint} of {self._startpoint.node}")
        if not self._finalizer.alive:
            return f"<exoskel.links.Binding to {place}: closed>"
        protection, trouble = self.protection, self._node.trouble(self._binding)
        state = protection or (with_reason("no link", trouble) if trouble else "no link yet")
        return f"<exoskel.links.Binding to {place}: {state}>"


class Node:
    """One process that takes part: its identity, its endpoints, and its sessions with others.

    Parameters
    ----------
    credential : path
        A credential file of the role ``peer``, as ``exoskel pki issue --role peer`` writes it, or one of a grid.
    policy : path, optional
        A policy file: which wires get which protection, and who may do business with this node.
    listen : str or iterable of str
        Where others may dial in: ``HOST:PORT`` or ``unix:PATH``; the port is 7700, if it is left out. Without one, this node only dials.
    gateways : str or iterable of str
        Gateways at which it registers, ``NAME@HOST:PORT``: others who can't dial this node reach it through these.
    hints : str or iterable of str
        Where others are told to dial, as for `lookup`; where it listens and registers, if not given. For ``0.0.0.0`` and ``[::]``, that is
        the address by which this machine reaches other networks.
    via : str, sequence of str or mapping
        A command whose input and output lead to nodes at TCP addresses, in place of a connection: ``"ssh -W {host}:{port} login"``. A
        mapping has commands for names of nodes or patterns such as ``"*.lab.example.org"``; the first one that fits is taken. No
        shell reads it. Links over a command are encrypted.
    site : path, optional
        A ``site.toml``: where `lookup` finds nodes, and commands that lead to subnets, after those of `via`. It is read when it is needed.
    live : bool
        Whether ``exoskel links`` shows this node to this account.
    connect_timeout : float
        How many seconds a connection and its handshake may take.
    patience : float
        How many seconds a link that has lost its connection waits for another one before its requests end in errors. With 0, links end
        with their connections. Both ends must want it.
    threads : {1, 0}
        0 for a node without a thread of its own: the thread that makes it calls `progress`, and waits for answers itself.
    **more
        ``key``, ``revocation_list``, ``trust_anchors``, ``vomsdir``, ``message_bytes_max`` as for `exoskel.Manager`; ``dead_after``: after how
        many seconds of silence a peer counts as gone, 10 if nothing is said. Of two nodes the smaller number holds.

    Raises
    ------
    PolicyError, CredentialError
        For files that can't be used.
    LinkError
        If it can't listen.
    """

    def __init__(
        self,
        credential: "str | os.PathLike[str] | _core.ProcessCredential",
        *,
        policy: str | os.PathLike[str] | None = None,
        listen: str | Iterable[str] | BoundBefore = (),
        gateways: str | Iterable[str] = (),
        hints: str | Iterable[str] = (),
        via: Command | Mapping[str, Command] = (),
        site: str | os.PathLike[str] | None = None,
        live: bool = True,
        connect_timeout: float = 10.0,
        patience: float = 60.0,
        threads: int = 1,
        **more: Any,
    ) -> None:
        if threads not in (0, 1):
            raise ValueError(f"got threads={threads}, expected 0 or 1")
        of_job = credential if isinstance(credential, _core.ProcessCredential) else None
        told = _options({"credential": None if of_job else credential, "policy": policy, **more})
        bound = listen if isinstance(listen, BoundBefore) else None
        addresses = [] if isinstance(listen, BoundBefore) else listening(listen)
        reached = bound.reached_by if bound else reached_by(addresses)
        told_hints = dialled("hints", hints)
        start = {
            "listen": bound.listeners if bound else [str(address) for address in addresses],
            "gateways": several("gateways", gateways),
            "hints": told_hints,
            "reached_by": {} if told_hints else reached,
            "via": [*commands(via), *(_core.site_commands(site) if site else [])],
            "status": _status_path() if checked_flag("live", live) else None,
            "connect_timeout": bounded_seconds(
                connect_timeout, "connect_timeout", is_zero_allowed=False
            ),
            "patience": bounded_seconds(patience, "patience"),
            "ready_keys": 64,
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "credential": of_job,
            "has_thread": threads == 1,
            "dial_fd": bound.dial_fd if bound else None,
        }
        self._site = site
        self._node = _core.LinkNode(told, start)
        self._awaited = AwaitedReplies()
        # Nothing that is held from here holds this object: a node that nobody else holds ends.
        self._endpoints: dict[str, HandlerThreads] = {}
        self._driver = _Driver(self._node, self._endpoints) if threads == 0 else None
        self._closed = threading.Event()
        # Whoever drives a node logs what is wrong with it.
        log = WarningLog(self._node, self._closed) if self._driver is None else None
        self._finalizer = weakref.finalize(
            self,
            _close,
            self._node,
            self._endpoints,
            self._driver,
            self._awaited,
            self._closed,
            log,
        )

    @property
    def name(self) -> str:
        """Its name, as its certificate proves it."""
        return self._node.name

    @property
    def hints(self) -> list[str]:
        """Where others are told to dial."""
        return self._node.hints

    def endpoint(
        self,
        name: str,
        *,
        protection: Protection = "plain",
        threads: int = 1,
        compression: Compression | None = None,
        compress_encrypted: bool = False,
    ) -> Endpoint:
        """Offer an endpoint.

        Parameters
        ----------
        name : str
            Its name, without spaces and control characters; rules of policies can name it.
        protection : {"plain", "integrity", "encrypted"}
            What links to it have at least. Startpoints inherit it.
        threads : int
            How many calls are handled at the same time, 256 at most. None are, but by `progress`, if the node has no thread.
        compression : {"zstd"}, optional
            What handlers' answers of 4 KiB or more are compressed by, on links that aren't encrypted.
        compress_encrypted : bool
            Whether they are compressed on encrypted links as well. Whoever sees how long such an answer is, and has a part in what it
            holds, can learn the rest from its length.

        Returns
        -------
        Endpoint
            Give it handlers.
        """
        checked_name("endpoint", name)
        if not isinstance(threads, int) or not 1 <= threads <= _THREADS_MAX:
            raise ValueError(
                f"got threads={threads!r}, expected a whole number from 1 to {_THREADS_MAX}: further calls wait until a thread is free"
            )
        checked_text("protection", protection)
        even_encrypted = _checked_compression(compression, compress_encrypted)
        # While it closes, too: nobody would end the threads.
        if not self._finalizer.alive:
            raise LinkError(NODE_IS_CLOSED)
        self._node.offer(name, protection)
        if compression is not None:
            self._node.compress(name, None, even_encrypted)
        of_endpoint = threads if self._driver is None else 0
        handlers = self._endpoints[name] = HandlerThreads(self._node, name, of_endpoint)
        handlers.start()
        return Endpoint(self._node, handlers, self)

    def bind(
        self,
        startpoint: Startpoint | str,
        *,
        compression: Compression | None = None,
        compress_encrypted: bool = False,
    ) -> Binding:
        """Bind a startpoint, or its text. Nothing is dialled before the first request.

        Parameters
        ----------
        startpoint : Startpoint or str
            The startpoint.
        compression : {"zstd"}, optional
            What the arguments of requests and posts are compressed by; see `endpoint`.
        compress_encrypted : bool
            Whether they are compressed on encrypted links as well.

        Raises
        ------
        StartpointError
            If it can't be read.
        """
        startpoint = as_startpoint(startpoint)
        even_encrypted = _checked_compression(compression, compress_encrypted)
        # Handlers that still run while it closes may bind.
        if self._closed.is_set():
            raise LinkError(NODE_IS_CLOSED)
        binding = Binding(self, startpoint)
        if compression is not None:
            self._node.compress(None, binding._binding, even_encrypted)
        return binding

    def progress(self, timeout: float = 0.0) -> int:
        """Do what there is to do, on this thread: dial, read, write, and handle calls. For a node with ``threads=0``.

        Parameters
        ----------
        timeout : float
            How many seconds to wait at most if there is nothing.

        Returns
        -------
        int
            How many calls were handled.

        Raises
        ------
        RuntimeError
            On another thread than the one that has made the node, or if the node has a thread of its own.
        """
        if self._driver is None:
            raise RuntimeError("got a node with a thread of its own, expected threads=0")
        return self._driver.progress(timeout)

    def lookup(
        self, endpoint: str, *, name: str, at: str | Iterable[str] = (), timeout: float = 10.0
    ) -> Binding:
        """Ask a node for a startpoint of one of its endpoints, and bind it.

        The node's policy decides: an ``[[allow.rule]]`` whose action is ``ENDPOINT.HANDLER`` gives the handler. The startpoint is for this
        node alone, and good as long as the rule stands.

        Parameters
        ----------
        endpoint : str
            The name of the endpoint.
        name : str
            The name of the node, which it has to prove.
        at : str or iterable of str
            Where to dial: ``tcp://HOST:PORT``, ``unix:PATH`` or ``gateway:NAME@HOST:PORT``. The process there is asked, and no other one of
            that name. Not needed while there is a session, nor where the site file says it.
        timeout : float
            How many seconds to wait for the answer.

        Returns
        -------
        Binding
            Its ``startpoint`` says which handlers the rules give.

        Raises
        ------
        RefusedError
            If no rule gives any; the text names the rules.
        NoAddressError
            If nothing says where the node is.
        LinkError
            If there is no way to the node.
        TimeoutError
            If it has not answered by then.
        """
        limit = bounded_seconds(timeout)
        places = dialled("at", at)
        checked_text("endpoint", endpoint)
        checked_text("name", name)
        is_at = bool(places)
        if not places and self._site is not None:
            ways = _core.site_ways(self._site, self.name, name)[:_HINTS_MAX]
            places = [
                f"gateway:{gateway}@{address}" if method == "gateway" else f"tcp://{address}"
                for method, gateway, address in ways
            ]
        try:
            found, trouble = self._node.look_up(endpoint, name, places, is_at, limit)
        except NoAddressError:
            raise NoAddressError(
                f"can't reach {name}: there is no session with it and no site file says where it is;"
                ' give `at`, such as at="tcp://HOST:PORT"'
            ) from None
        if found is None:
            text = f"no startpoint of {endpoint} from {name} within {timeout:g} seconds"
            raise TimeoutError(with_reason(text, trouble))
        return Binding(self, found, is_looked_up=True)

    def reload(self, *, relax: bool = False) -> list[str]:
        """Read policy, credential and revocation list again now; otherwise they are looked at every two seconds.

        What is stricter than before holds on open links from the next record on; peers have a second to do the same in their direction before this returns. Links that a rule is against now end. What is looser holds for
        sessions that begin from now on.

        Parameters
        ----------
        relax : bool
            Whether open links shall become looser as well: sessions begin anew, and their links go over to the new ones. Links of nodes with
            ``patience=0`` can't, and keep their sessions as they are.

        Returns
        -------
        list of str
            What has changed, with the lines of the rules; empty if nothing has.

        Raises
        ------
        PolicyError, CredentialError
            For files that can't be used. What was in force stays.
        """
        node = self._node
        pending = node.begin_reload(checked_flag("relax", relax))
        if self._driver is None:
            changes = patiently(None, lambda left: node.wait_for_reload(pending, left))
        else:
            drive = self._driver.progress
            changes = driven(drive, None, lambda: node.wait_for_reload(pending, 0.0))
        return changes or []

    def status(self) -> dict[str, Any]:
        """Return how the node stands, as ``exoskel links --json`` shows it: endpoints, sessions, and each link with its protection."""
        status: dict[str, Any] = json.loads(self._node.status())
        return status

    def sessions(self) -> list[dict[str, str]]:
        """Return the sessions that run: ``peer``, ``method`` and ``address`` of each."""
        names = ("peer", "method", "address")
        return [dict(zip(names, row, strict=True)) for row in self._node.sessions()]

    def audit(self) -> list[str]:
        """Return the lines since the last time about who was let in, and who was not, and why."""
        return self._node.take_audit()

    def wait(self) -> None:
        """Serve until another thread closes the node, or until Ctrl-C, which ends the waiting and raises nothing here."""
        # Ctrl-C is the usual end of a program that serves.
        with contextlib.suppress(KeyboardInterrupt):
            while self._finalizer.alive:
                if self._driver is None:
                    time.sleep(PATIENCE_SECONDS)
                else:
                    self._driver.progress(PATIENCE_SECONDS)

    def close(self) -> None:
        """End all sessions in order, and wait for handlers that run. They still answer, and what was posted still goes, for 10 seconds at most.

        Nobody waits for a peer to which the way is lost and stays so when it is dialled once more.

        Raises
        ------
        LinkError
            If something that was posted is lost, also by a binding that was closed before, and no call has said so. The node is closed
            all the same.
        """
        lost = self._finalizer()
        if lost:
            raise LinkError("; ".join(lost))

    def __enter__(self) -> Self:
        """Return the node; the end of the block closes it."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # An exception that is on its way says more than what becomes of posts, which the log has.
        with contextlib.suppress(*([] if kind is None else [LinkError])):
            self.close()

    def __repr__(self) -> str:
        """Say who it is, where it listens, and what is wrong with it."""
        places = ", ".join(self.hints)
        told = [f"{self.name}{f' at {places}' if places else ''}"]
        told += [one_line(trouble) for trouble in self._node.troubles()]
        return f"<exoskel.links.Node {'; '.join(told if self._finalizer.alive else [told[0], 'closed'])}>"


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Check what a node is told, and fill in what it isn't."""
    from .options import LinkOptions, checked, refuse_unknown

    code = Node.__init__.__code__
    refuse_unknown(LinkOptions, "Node", given, code.co_varnames[3 : code.co_kwonlyargcount + 2])
    try:
        return dict(checked(LinkOptions, "Node", given))
    except OSError as error:
        # Only these two are opened here.
        is_policy = error.filename == os.fsdecode(given.get("policy") or "")
        raised, what = (
            (PolicyError, "policy") if is_policy else (CredentialError, "revocation list")
        )
        raise raised(f"can't read the {what} {error.filename}: {error.strerror}") from None


def _status_path() -> str | None:
    """Return the path of this node's socket for ``exoskel links``; None where there is no directory for it."""
    from .cli.background import run_directory

    try:
        place = run_directory()
    except (OSError, RuntimeError):
        return None
    host = os.uname().nodename.replace("/", "-")
    return str(place / f"links-{host}-{os.getpid()}-{next(_numbers)}.socket")


class _Driver:
    """Drives a node without a thread, on the one that has made it."""

    def __init__(self, node: "_core.LinkNode", endpoints: dict[str, HandlerThreads]) -> None:
        self._node = node
        self._endpoints = endpoints
        self._driver = _core.LinkDriver(node)
        self._thread = threading.get_ident()

    def progress(self, timeout: float) -> int:
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "got a call on another thread, expected the one that has made this node, which has threads=0"
            )
        limit = bounded_seconds(timeout)
        handled = self._handle()
        deadline = time.monotonic() + (0.0 if handled else limit)
        while True:
            # The core looks at signals in between only.
            begun = time.monotonic()
            left = min(max(deadline - begun, 0.0), PATIENCE_SECONDS)
            goes_on = self._driver.progress(left)
            handled += self._handle()
            now = time.monotonic()
            if handled or not goes_on or now < begun + left or now >= deadline:
                return handled

    def deliver(self, deadline: float) -> None:
        while (
            threading.get_ident() == self._thread
            and self._node.is_delivering()
            and time.monotonic() < deadline
        ):
            self._driver.progress(PATIENCE_SECONDS)

    def end(self) -> None:
        while threading.get_ident() == self._thread and self._driver.progress(PATIENCE_SECONDS):
            pass

    def _handle(self) -> int:
        log_warnings(self._node)
        return sum(handlers.handle_waiting() for handlers in list(self._endpoints.values()))


def here() -> "JobNode":
    """Return the node of this process of a job: in a task, that of the slot, if its manager was given ``launch``. Made when it is first asked for.

    Returns
    -------
    JobNode
        This process's node, which knows its siblings: the other slots.

    Raises
    ------
    LinkError
        As `init` does.
    """
    return init()


def init(invitation: str | os.PathLike[str] | None = None) -> "JobNode":
    """Join the job that has started this process; see `exoskel.Job`. Every call returns the same node.

    Parameters
    ----------
    invitation : path, optional
        What `exoskel.Job.invite` has written, for a process that no job has started.

    Returns
    -------
    JobNode
        This process's node, which knows its siblings.

    Raises
    ------
    LinkError
        If no job has started this process, the job is over, or doesn't let it in.
    """
    from .job_process import init as joined

    return joined(invitation)


def group(bindings: Iterable[Binding]) -> Group:
    """Return a group of bindings, which are called at once.

    Parameters
    ----------
    bindings : iterable of Binding
        In the order in which the outcomes come.

    Returns
    -------
    Group
        It has ``request`` and ``post`` as a `Binding` does.
    """

    def reply(binding: Binding, number: int, handler: str) -> Reply:
        return Reply(binding._node, binding, number, handler)

    if isinstance(bindings, Binding) or not isinstance(bindings, Iterable):
        raise TypeError(f"got {bindings!r}, expected an iterable of bindings")
    members = list(bindings)
    for member in members:
        if not isinstance(member, Binding):
            raise TypeError(
                f"got {member!r} in a group, expected bindings, as Node.bind makes them"
            )
    return Group(members, reply)


def _checked_compression(compression: str | None, compress_encrypted: bool) -> bool:
    if compression not in (None, "zstd"):
        raise ValueError(f"got compression={compression!r}, expected 'zstd' or None")
    if checked_flag("compress_encrypted", compress_encrypted) and compression is None:
        raise ValueError(
            "got compress_encrypted=True without compression, expected compression='zstd' with it"
        )
    return compress_encrypted


def _forget(node: "_core.LinkNode", binding: int, request: int) -> None:
    if not node.is_inherited():
        node.forget(binding, request)


def _unbind(node: "_core.LinkNode", binding: int) -> None:
    if not node.is_inherited():
        node.unbind(binding)


def _close(
    node: "_core.LinkNode",
    endpoints: dict[str, HandlerThreads],
    driver: _Driver | None,
    awaited: AwaitedReplies,
    closed: threading.Event,
    log: WarningLog | None,
    is_told: bool = True,
) -> list[str]:
    """End a node, and say what it could not deliver."""
    if node.is_inherited():
        return []
    log_warnings(node)
    deadline = time.monotonic() + _CLOSE_SECONDS
    # Handlers that run still answer.
    node.stop_calls()
    for handlers in endpoints.values():
        handlers.stop(deadline)
    node.leave()
    if driver is not None:
        driver.deliver(deadline)
    else:
        node.deliver(max(0.0, deadline - time.monotonic()))
    is_stuck = node.is_delivering()
    lost = node.abandon() or ([_NOT_TAKEN] if is_stuck else [])
    node.close()
    closed.set()
    if driver is not None:
        driver.end()
    if log is not None:
        log.end()
    awaited.end()
    for handlers in endpoints.values():
        handlers.end()
    for line in lost if is_told else ():
        _log.warning("%s", line)
    return lost
