"""Handlers that wait for a call to their own endpoint: where no thread is left to handle that call, it is said instead of waiting without end."""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ._core import LinkNode, Startpoint

_log = logging.getLogger("exoskel.links")


class _Handling(threading.local):
    """What this thread handles a call for."""

    waits: OwnWaits | None = None


_here = _Handling()


class Answer(Protocol):
    """Something that is there at some time."""

    def done(self) -> bool:
        """Return whether it is there."""


class OwnWaits:
    """The threads of an endpoint that handle calls, and what they wait for at the endpoint itself."""

    def __init__(self, endpoint: str, threads: int) -> None:
        self._endpoint = endpoint
        self._threads = threads
        self._lock = threading.Lock()
        self._awaited: list[Answer] = []
        self._node: LinkNode | None = None

    @contextlib.contextmanager
    def handling(self, node: LinkNode) -> Iterator[None]:
        """Say that this thread handles a call of the endpoint."""
        self._node = node
        _here.waits = self
        try:
            yield
        finally:
            _here.waits = None

    def leads_here(self, startpoint: Startpoint) -> bool:
        """Return whether a startpoint is one of this endpoint, in this process."""
        node = self._node
        return node is not None and node.leads_here(self._endpoint, startpoint)

    @contextlib.contextmanager
    def waiting(self, answer: Answer) -> Iterator[None]:
        """Count this thread as one that waits.

        Raises
        ------
        RuntimeError
            If it is the only one of the endpoint.
        """
        if self._threads == 1:
            raise RuntimeError(
                f"this handler waits for a call to its own endpoint {self._endpoint}, whose only thread it has, so nobody would handle the "
                f"call: say node.endpoint({self._endpoint!r}, threads=2), or call the function itself"
            )
        with self._lock:
            self._awaited.append(answer)
            is_stuck = sum(not one.done() for one in self._awaited) >= self._threads
        if is_stuck:
            _log.warning(
                "all %d threads of the endpoint %s wait for calls to %s itself: nobody handles these calls until one stops to wait; "
                "give it more threads",
                self._threads,
                self._endpoint,
                self._endpoint,
            )
        try:
            yield
        finally:
            with self._lock:
                self._awaited.remove(answer)


def waits_for(
    answer: Answer, startpoint: Startpoint, limit: float | None
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which this thread waits for an answer. Who only looks (a limit of 0) doesn't wait."""
    waits = _here.waits
    if waits is None or limit == 0 or answer.done() or not waits.leads_here(startpoint):
        return contextlib.nullcontext()
    return waits.waiting(answer)
