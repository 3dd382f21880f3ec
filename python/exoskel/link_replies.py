"""Answers to requests by links: `links.Reply`, and what it raises if the handler did."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from .errors import ExoskelError
from .link_failures import log_warnings, with_reason
from .link_own_calls import waits_for
from .link_waiting import checked_seconds, driven, patiently
from .peer_text import one_line

if TYPE_CHECKING:
    from . import _core
    from .link_bindings import Binding


class HandlerError(ExoskelError, RuntimeError):
    """A handler at the other end raised an exception.

    Attributes
    ----------
    kind : str
        The name of the exception's class there, with its module but for builtins, as `exoskel.TaskError.kind` has it.
    """

    # The name by which users know it travels as its kind, and with its pickles.
    __module__ = f"{__package__}.links"

    def __init__(self, text: str, kind: str = "Exception") -> None:
        super().__init__(text)
        self.kind = kind


class Reply:
    """The answer to a request, when it comes. It can be awaited."""

    def __init__(self, node: _core.LinkNode, owner: Binding, request: int, handler: str) -> None:
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


class TransferReply(Reply):
    """The end of a transfer from or to a region, when it comes."""

    def __init__(self, transfer: _core.LinkTransfer, what: str, owner: Binding, value: Any) -> None:
        self._transfer = transfer
        self._owner = owner
        self._handler = what
        self._peer = owner.startpoint.node
        self._value = value

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the end, and return what the transfer is for."""
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
        """Return whether it is over."""
        return self._transfer.is_over()

    def look(self, seconds: float) -> bool:
        """Return whether it is over, after waiting for so many seconds at most. It raises nothing."""
        try:
            return self._transfer.wait(seconds)
        except Exception:
            # `result` raises it again.
            return True


def _forget(node: _core.LinkNode, binding: int, request: int) -> None:
    if not node.is_inherited():
        node.forget(binding, request)
