"""Inboxes of endpoints: what others post waits there for a thread that takes it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from .errors import LinkError
from .link_waiting import checked_seconds, driven
from .peer_text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from ._core import LinkInbox

__all__ = ["Inbox"]

_log = logging.getLogger("exoskel.links")
# As the core says it too.
NODE_IS_CLOSED = "this node is closed"


class Inbox:
    """Where what is posted to one name waits until it is taken; `Endpoint.inbox` makes it.

    What comes over one link is taken in the order in which it was posted. Several threads may take from one inbox: each value goes to one of
    them.

    Attributes
    ----------
    name : str
        The name to which others post.
    """

    def __init__(
        self,
        inbox: LinkInbox,
        name: str,
        drive: Callable[[float], object] | None,
        owner: object,
    ) -> None:
        self.name = name
        self._inbox = inbox
        self._take = inbox.take
        self._drive = drive
        # The node goes on as long as somebody has the inbox.
        self._owner = owner

    def get(self, timeout: float | None = None) -> Any:
        """Take what has come first, and return it. If nothing is there, wait for it.

        The thread that waits reads from the network by itself, so nothing comes faster to a program. Until a value is taken, it counts
        among what its sender has under way.

        Parameters
        ----------
        timeout : float, optional
            How many seconds to wait at most. With 0, it doesn't wait.

        Returns
        -------
        object
            The value: plain data, or an array of its own.

        Raises
        ------
        TimeoutError
            If nothing has come by then.
        LinkError
            If the node is closed.
        """
        limit = checked_seconds(timeout)
        while True:
            if self._drive is None:
                taken = self._take(limit)
            else:
                taken = driven(self._drive, limit, lambda: self._take(0.0))
            if taken is None:
                raise self._nothing(timeout)
            value, refused, _ = taken
            if refused is None:
                return value
            self._log_refused(*refused)

    def _nothing(self, timeout: float | None) -> Exception:
        """Return what is raised where nothing comes."""
        if self._inbox.is_over() or timeout is None:
            return LinkError(NODE_IS_CLOSED)
        return TimeoutError(f"nothing was posted to {self.name} within {timeout:g} seconds")

    def _log_refused(self, peer: str, why: str) -> None:
        _log.warning("%s posted what is no value: %s", one_line(peer), one_line(why))

    def __len__(self) -> int:
        """Return how many values wait here that have been read from the network."""
        return len(self._inbox)

    def __repr__(self) -> str:
        """Say its name, and how many values wait."""
        return f"<exoskel.links.Inbox {self.name}: {len(self)} waiting>"
