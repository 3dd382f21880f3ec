"""Receiving ends of links: `links.Endpoint`, what its handlers get, and the threads that run them."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from . import _core
from .errors import LinkError
from .link_arguments import NOT_SAID, as_startpoint, checked_flag, checked_name, restrictions
from .link_failures import failure_of, traceback_of
from .link_inboxes import NODE_IS_CLOSED, Inbox
from .link_own_calls import OwnWaits
from .link_regions import offer as offer_region
from .link_streams import Stream
from .link_waiting import PATIENCE_SECONDS
from .peer_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ._core import Startpoint
    from .link_regions import OfferedRegion
    from .links import Node

_log = logging.getLogger("exoskel.links")
_Handler = TypeVar("_Handler", bound="Callable[..., Any]")
Protection = Literal["plain", "integrity", "encrypted"]
# The name of each function that has none.
_LAMBDA = "<lambda>"
# Streams of managers have numbers of 32 bits.
_STREAM_MAX = 2**32 - 1
# What is told of a keyword's name that is none.
_NAME_SHOWN_MAX = 100


class Call:
    """One call that a handler gets.

    Attributes
    ----------
    peer : str
        The name that the caller has proven.
    handler : str
        The handler's name.
    arguments : tuple
        The positional arguments.
    keywords : dict
        The others.
    """

    __slots__ = ("arguments", "handler", "keywords", "peer")

    def __init__(
        self, peer: str, handler: str, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> None:
        self.peer = peer
        self.handler = handler
        self.arguments = arguments
        self.keywords = keywords


class HandlerThreads:
    """The handlers of an endpoint, and the threads that run them.

    They know nothing of the `Node`, which ends them when nobody holds it any more.
    """

    def __init__(self, node: _core.LinkNode, name: str, threads: int) -> None:
        self.name = name
        self._node = node
        # With each, whether it wants the call.
        self._handlers: dict[str, tuple[Callable[..., Any], bool]] = {}
        self._stream_handlers: dict[str, Callable[[Stream], Any]] = {}
        self._stream_threads: set[threading.Thread] = set()
        self._lock = threading.Lock()
        self._inboxes: dict[str, _core.LinkInbox] = {}
        self._ending = threading.Event()
        #: Whether a handler may be given again, and takes the place of the one before.
        self.replaces = False
        #: What is made of an inbox.
        self.make_inbox: Callable[..., Inbox] = Inbox
        self._waits = OwnWaits(name, threads)
        self._threads = [
            threading.Thread(target=self._serve, name=f"exoskel-{name}-{number}")
            for number in range(threads)
        ]

    def check_open(self) -> None:
        """Refuse what a node that is closed can't do."""
        if self._ending.is_set():
            raise LinkError(NODE_IS_CLOSED)

    def add(self, function: Callable[..., Any]) -> None:
        """Add a handler of calls."""
        self.check_open()
        name = _name_of(function, "handler")
        wants_call = _wants_call(function)
        if not (self.replaces and name in self._handlers):
            self._node.add_handler(self.name, name)
        self._handlers[name] = function, wants_call

    def add_stream(self, function: Callable[[Stream], Any]) -> None:
        """Add a handler of streams."""
        self.check_open()
        name = _name_of(function, "stream_handler")
        _core.LinkStream.offer(self._node, self.name, name)
        self._stream_handlers[name] = function
        if len(self._stream_handlers) == 1:
            thread = threading.Thread(target=self._accept, name=f"exoskel-{self.name}-streams")
            self._threads.append(thread)
            thread.start()

    def inbox(self, name: str, owner: Node) -> Inbox:
        """Return an inbox, which holds its owner."""
        self.check_open()
        with self._lock:
            inbox = self._inboxes.get(name)
            if inbox is None:
                inbox = self._inboxes[name] = _core.LinkInbox.offer(self._node, self.name, name)
        drive = None if owner._driver is None else owner._driver.progress
        return self.make_inbox(inbox, name, drive, owner)

    def start(self) -> None:
        """Start to handle calls."""
        for thread in self._threads:
            thread.start()

    def stop(self, deadline: float) -> None:
        """Take no more calls, and wait for handlers that run until the deadline."""
        self._ending.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))

    def end(self) -> None:
        """Wait for handlers that run."""
        self._ending.set()
        for threads in (self._threads, self._stream_threads):
            for thread in list(threads):
                if thread is not threading.current_thread():
                    thread.join()

    def handle_waiting(self) -> int:
        """Handle the calls that wait, on this thread, and return how many there were."""
        handled = 0
        while (call := self._node.take_call(self.name, 0.0)) is not None:
            error = self._handle(call)
            # Ctrl-C is meant for the program whose thread this is. The caller has its answer.
            if isinstance(error, KeyboardInterrupt):
                raise error
            handled += 1
        return handled

    def _accept(self) -> None:
        while not self._ending.is_set() and threading.main_thread().is_alive():
            accepted = _core.LinkStream.accept(self._node, self.name, PATIENCE_SECONDS)
            if accepted is not None:
                stream, handler, peer = accepted
                opened = Stream(stream, peer=peer, handler=handler, is_opener=False)
                name = f"exoskel-{self.name}-{handler}"
                thread = threading.Thread(target=self._serve_stream, args=[opened], name=name)
                self._stream_threads.add(thread)
                thread.start()

    def _serve_stream(self, stream: Stream) -> None:
        try:
            with stream:
                self._stream_handlers[stream.handler](stream)
        except BaseException as error:
            # Who has closed the stream wants no more of it.
            if stream.is_unread(error):
                return
            # `sys.exit` too ends the stream, and not more.
            _log.warning(
                "the stream handler %s of %s failed, with a stream of %s\n%s",
                stream.handler,
                self.name,
                one_line(stream.peer),
                traceback_of(error),
            )
        finally:
            self._stream_threads.discard(threading.current_thread())

    def _serve(self) -> None:
        # The interpreter waits for this thread, which may not run Python when there is none.
        while not self._ending.is_set() and threading.main_thread().is_alive():
            call = self._node.take_call(self.name, PATIENCE_SECONDS)
            if call is not None:
                with self._waits.handling(self._node):
                    self._handle(call)

    def _handle(self, waiting: _core.Call) -> BaseException | None:
        try:
            arguments, keywords = _called_with(self._node.value_of(waiting))
            function, wants_call = self._handlers[waiting.handler]
            call = Call(waiting.peer_name, waiting.handler, tuple(arguments), keywords)
            value = (
                function(call, *arguments, **keywords)
                if wants_call
                else function(*arguments, **keywords)
            )
            self._node.answer(waiting, value if waiting.wants_answer else None, False)
        except BaseException as error:
            # `sys.exit` too is the outcome of this call: the thread has others to handle.
            self._fail(waiting, error)
            return error
        return None

    def _fail(self, waiting: _core.Call, error: BaseException) -> None:
        # Who asked learns what it is, not where: the lines of the traceback are this program's own. A peer that takes no more answers
        # gets none.
        with contextlib.suppress(Exception):
            self._node.answer(waiting, list(failure_of(error)), True)
        _log.warning(
            "the handler %s of %s failed, called by %s\n%s",
            waiting.handler,
            self.name,
            one_line(waiting.peer_name),
            traceback_of(error),
        )


class Endpoint:
    """A receiving end with named handlers. It holds its node: that goes on as long as somebody has the endpoint."""

    def __init__(self, node: _core.LinkNode, threads: HandlerThreads, owner: Node) -> None:
        self.name = threads.name
        self._node = node
        self._threads = threads
        self._owner = owner

    def handler(self, function: _Handler) -> _Handler:
        """Add a handler, by decorating a function. Its name is the function's; others can call it from now on.

        The function is called with a `Call` if its first parameter is named ``call``, and with the arguments. A method's first parameter
        is the one behind ``self``; what `functools.partial` and `functools.wraps` make of a function gets the call as the function does. What it returns is the
        answer: plain data and arrays, which aren't copied. Calls of one link are handled one after the other; those of several links
        at the same time, on the endpoint's threads. An exception that it raises, ``SystemExit`` too, is the caller's `HandlerError`.

        Raises
        ------
        TypeError
            If it is no function, or an ``async`` one.
        """
        self._threads.add(function)
        return function

    def stream_handler(self, function: _Handler) -> _Handler:
        """Add a handler of streams, by decorating a function. Its name is the function's; others can use it from now on.

        The function is called with a `Stream`, on a thread of its own for each stream. When it returns, the stream is closed; an
        exception that it raises is told to the other end.

        Raises
        ------
        TypeError
            If it is no function, or an ``async`` one.
        """
        self._threads.add_stream(function)
        return function

    def inbox(self, name: str) -> Inbox:
        """Return the inbox of this name, to which others can post from now on.

        What others post to it, as ``post(NAME, value)``, waits there until a thread takes it, by `Inbox.get`. No handler runs, so nothing
        comes faster to a program that waits for it. Who makes a request instead has the answer None when the value is taken.

        Parameters
        ----------
        name : str
            Its name. An endpoint has one inbox of a name: who asks for it again gets the same one, with what waits in it.

        Returns
        -------
        Inbox
            Its ``get()`` takes what has come first.

        Raises
        ------
        ValueError
            If the endpoint has something else of this name.
        """
        checked_name("inbox", name)
        return self._threads.inbox(name, self._owner)

    def region(self, name: str, array: Any, *, writable: bool = False) -> OfferedRegion:
        """Let others read an array in place, and write to it.

        In startpoints, ``NAME.get`` stands for reading and ``NAME.put`` for writing, as names of handlers do.

        Parameters
        ----------
        name : str
            Its name.
        array : array
            A C-contiguous NumPy array, or another buffer of numbers. It can't be resized as long as the node lives.
        writable : bool
            Whether others may write to it.

        Returns
        -------
        OfferedRegion
            Its ``hold()`` keeps others out for a moment.

        Raises
        ------
        ValueError
            If it is no such array.
        """
        checked_name("region", name)
        checked_flag("writable", writable)
        self._threads.check_open()
        return offer_region(self._node, self.name, name, array, writable=writable, owner=self)

    def startpoint(
        self,
        *,
        to: str | Iterable[str] = NOT_SAID,
        handlers: str | Iterable[str] | None = None,
        expires: float | None = None,
        protection: Protection | None = None,
        bearer: bool = False,
    ) -> Startpoint:
        """Make a startpoint of this endpoint.

        Parameters
        ----------
        to : str or iterable of str, optional
            Who may use it: names of nodes or patterns such as ``"*.example.org"``, subjects or attributes of a grid. Of several, any may
            use it. Who has to fit two of them needs a narrower copy: ``startpoint(to=one).attenuate(to=other)``.
        handlers : str or iterable of str, optional
            The handlers that can be called by it; streams and regions (``field.get``, ``field.put``) have names here as well.
            All, if not given.
        expires : float, optional
            After how many seconds it ends, with the links that rest on it. Never, if not given or infinite.
        protection : {"plain", "integrity", "encrypted"}, optional
            The least protection of links that rest on it. At least that of the endpoint.
        bearer : bool
            Whether anybody who has it may use it. It is a secret then, and between hosts its links are encrypted.

        Returns
        -------
        Startpoint
            Its ``text()`` can be sent or written down.

        Raises
        ------
        StartpointError
            If it is for nobody, or allows nothing.
        """
        checked_flag("bearer", bearer)
        restricted = restrictions(to, handlers, expires, protection)
        self._threads.check_open()
        if restricted["expires"] is not None:
            restricted["expires"] = int(time.time() + restricted["expires"])
        self._owner.has_given_startpoints = True
        return self._node.startpoint(self.name, bearer, restricted)

    def revoke(self, startpoint: Startpoint | str) -> None:
        """Take a startpoint back, with all copies of it, narrower and wider ones. Links that rest on them end.

        Parameters
        ----------
        startpoint : Startpoint or str
            One that this endpoint has made, or a copy, or the text of one.

        Raises
        ------
        StartpointError
            If another endpoint, another node or another process has made it; the text says whose it is.
        """
        self._node.revoke(self.name, as_startpoint(startpoint))

    def __repr__(self) -> str:
        """Say its name and its node's."""
        return f"<exoskel.links.Endpoint {self.name} of {self._node.name}>"


def _name_of(function: object, decorator: str) -> str:
    named = function
    while isinstance(named, partial) and not hasattr(named, "__name__"):
        named = named.func
    name = getattr(named, "__name__", None)
    if not callable(function) or not isinstance(name, str):
        raise TypeError(
            f"got {function!r} for {decorator}, expected a function, whose name the handler has: @endpoint.{decorator}"
        )
    if name == _LAMBDA:
        raise TypeError(
            f"got a lambda for {decorator}, expected a function, whose name the handler has: write `def NAME(...)`"
        )
    from inspect import isasyncgenfunction, iscoroutinefunction, isgeneratorfunction

    if iscoroutinefunction(function) or isasyncgenfunction(function):
        raise TypeError(
            f"got the async function {name}, expected one that returns its answer: write `def {name}`, and await in it by"
            " asyncio.run(...), or by asyncio.run_coroutine_threadsafe(..., loop).result()"
        )
    if isgeneratorfunction(function):
        raise TypeError(
            f"got the generator {name}, expected a function that returns its answer: return a list, or write to a stream"
        )
    return name


def _called_with(contents: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the arguments and keywords of a call. A peer may send anything: what stands for many things in few bytes isn't to be unfolded here."""
    # Of a manager's task, its stream comes behind.
    is_call = type(contents) is list and 2 <= len(contents) <= 3
    got = [type(one).__name__ for one in contents] if is_call else type(contents).__name__
    if got not in (["list", "dict"], ["list", "dict", "int"]):
        raise TypeError(
            f"got a call with {got}, expected a list of arguments and a dict of keywords"
        )
    if len(contents) == 3 and not 0 <= contents[2] <= _STREAM_MAX:
        raise TypeError(
            f"got a call of a task whose stream has no number from 0 to {_STREAM_MAX}, expected one"
        )
    arguments, keywords = contents[:2]
    for name in keywords:
        # Python would put what is no name of a parameter into its own messages as it is.
        if not isinstance(name, str) or not name.isidentifier():
            shown = name[:_NAME_SHOWN_MAX] if isinstance(name, str) else type(name).__name__
            raise TypeError(f"got {shown!r} as the name of a keyword, expected an identifier")
    return arguments, keywords


def _wants_call(function: Callable[..., Any]) -> bool:
    """Say whether the first parameter is named ``call``: its own, or that of the function which it wraps and passes everything on to."""
    import inspect

    try:
        own = inspect.signature(function, follow_wrapped=False)
        wrapped = inspect.signature(function)
    except (TypeError, ValueError):
        # Some of those that are written in C have none.
        return False
    for signature in (own, wrapped):
        first = next(iter(signature.parameters.values()), None)
        if first is None or first.kind is not inspect.Parameter.VAR_POSITIONAL:
            break
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return first is not None and first.name == "call" and first.kind in by_place
