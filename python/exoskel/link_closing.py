"""The end of a node: handlers that run still answer, and what was posted still goes."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from .link_failures import log_warnings

if TYPE_CHECKING:
    import threading

    from . import _core
    from .link_driver import NodeDriver
    from .link_endpoints import HandlerThreads
    from .link_failures import WarningLog
    from .link_waiting import AwaitedReplies

_log = logging.getLogger("exoskel.links")
# How long a node that is closed waits for handlers, and for what was posted.
_CLOSE_SECONDS = 10.0
_NOT_TAKEN = (
    "posts or answers are lost: their peers took nothing for as long as a node waits at its end"
)


def close_node(
    node: _core.LinkNode,
    endpoints: dict[str, HandlerThreads],
    driver: NodeDriver | None,
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
