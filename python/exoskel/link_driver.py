"""Nodes without a thread: what drives such a node on the thread that has made it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from . import _core
from .link_failures import log_warnings
from .link_waiting import PATIENCE_SECONDS, bounded_seconds

if TYPE_CHECKING:
    from .link_endpoints import HandlerThreads


class NodeDriver:
    """Drives a node without a thread, on the one that has made it."""

    def __init__(self, node: _core.LinkNode, endpoints: dict[str, HandlerThreads]) -> None:
        self._node = node
        self._endpoints = endpoints
        self._driver = _core.LinkDriver(node)
        self._thread = threading.get_ident()

    def progress(self, timeout: float) -> int:
        """Do what there is to do, and return how many calls were handled; see `links.Node.progress`."""
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
        """Go on until what was posted has arrived, or the time is over."""
        while (
            threading.get_ident() == self._thread
            and self._node.is_delivering()
            and time.monotonic() < deadline
        ):
            self._driver.progress(PATIENCE_SECONDS)

    def end(self) -> None:
        """Go on until the node, which is closed, has nothing more to do."""
        while threading.get_ident() == self._thread and self._driver.progress(PATIENCE_SECONDS):
            pass

    def _handle(self) -> int:
        log_warnings(self._node)
        return sum(handlers.handle_waiting() for handlers in list(self._endpoints.values()))
