"""Sending ends of links: `links.Binding`, a startpoint by which a node makes requests."""

from __future__ import annotations

import weakref
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from . import _core
from .errors import LinkError
from .link_arguments import NOT_SAID, checked_name, checked_text, contents_of, restrictions
from .link_failures import with_reason
from .link_regions import Region
from .link_replies import Reply, TransferReply
from .link_streams import Stream
from .link_waiting import checked_seconds
from .peer_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import TracebackType

    from ._core import Startpoint
    from .link_endpoints import Protection
    from .links import Node


class Binding:
    """A startpoint that this node has bound: requests can be made by it. It holds its node, which goes on as long as somebody has it."""

    def __init__(self, owner: Node, startpoint: Startpoint, is_looked_up: bool = False) -> None:
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
        contents = contents_of(arguments, keywords, self._mark)
        request = self._node.request(self._binding, handler, contents)
        return Reply(self._node, self, request, handler)

    def post(self, handler: str, /, *arguments: Any, **keywords: Any) -> None:
        """Call a handler at the other end, without an answer.

        What is wrong with it is logged there. A lost connection doesn't lose it (see ``patience`` of `Node`). If the link itself is lost,
        the next request or post says how many posts have no word of their arrival.
        """
        self._check_open()
        checked_text("handler", handler)
        self._node.post(self._binding, handler, contents_of(arguments, keywords, self._mark))

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

        def reply(transfer: _core.LinkTransfer, what: str, value: Any) -> Reply:
            return TransferReply(transfer, what, self, value)

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

    @property
    def _mark(self) -> int | None:
        """The stream of the task that makes a call by this binding; only calls between a manager's slots have one."""
        return None

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


def _unbind(node: _core.LinkNode, binding: int) -> None:
    if not node.is_inherited():
        node.unbind(binding)
