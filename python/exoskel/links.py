"""Links between any two processes: endpoints with handlers, and startpoints that open links to them.

A `Node` offers endpoints and binds startpoints. A startpoint is text that says where an endpoint is, whom to expect there and what its
holder may call; it can be narrowed and passed on without asking anybody. Each link has a protection of its own. Values travel as plain
data: numbers, texts, bytes, lists, dictionaries, times, and arrays, which aren't copied.
"""

import contextlib
import itertools
import json
import os
import sys
import threading
import time
import weakref
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self

from . import _core
from ._core import Startpoint
from .errors import CredentialError, LinkError, NoAddressError, PolicyError
from .link_arguments import as_startpoint, checked_flag, checked_name, checked_text, several
from .link_bindings import Binding
from .link_closing import close_node
from .link_driver import NodeDriver
from .link_endpoints import Call, Endpoint, HandlerThreads
from .link_endpoints import Protection as Protection
from .link_failures import WarningLog, with_reason
from .link_groups import Group, GroupError, GroupReply
from .link_inboxes import NODE_IS_CLOSED, Inbox
from .link_places import BoundBefore, Command, commands, dialled, listening, reached_by
from .link_regions import OfferedRegion, Region
from .link_replies import HandlerError, Reply
from .link_streams import Stream
from .link_waiting import PATIENCE_SECONDS, AwaitedReplies, bounded_seconds, driven, patiently
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
# Of a startpoint; each may cost an attempt.
_HINTS_MAX = 8
# Of an endpoint.
_THREADS_MAX = 256
# Nodes of one process.
_numbers = itertools.count(1)


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

    # Whether somebody may call it who is not known here.
    has_given_startpoints = False

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
        self._driver = NodeDriver(self._node, self._endpoints) if threads == 0 else None
        self._closed = threading.Event()
        # Whoever drives a node logs what is wrong with it.
        log = WarningLog(self._node, self._closed) if self._driver is None else None
        self._finalizer = weakref.finalize(
            self,
            close_node,
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
