"""Posts between the tasks of a manager's slots: a task takes those of its own `map`, and learns that nobody is left who would post."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from . import links
from .errors import LinkError
from .link_inboxes import Inbox
from .link_waiting import checked_seconds

if TYPE_CHECKING:
    from collections.abc import Collection

    from ._core import LinkInbox
    from .job_process import JobNode, _Context

__all__ = ["SiblingBinding", "TaskInboxes", "TaskStreams"]

_log = logging.getLogger("exoskel.links")
# Who waits longer at an inbox without a time-out asks whether that is in vain, again and again.
_ABSENCE_SECONDS = 4.0
_ASK_SECONDS = 2.0
# What a sibling has posted may be on its way when the first answer comes.
_ANSWERS_MIN = 2
# So many streams that are over are remembered one by one.
_OVER_MAX = 4096
# And so many posts of an inbox are kept for other streams than that of the task that takes some.
_KEPT_MAX = 10_000


class TaskStreams:
    """To which stream of its manager a slot's task belongs: the items of one `map`."""

    def __init__(self) -> None:
        self.current: int | None = None
        self._open: frozenset[int] = frozenset()
        # Streams that were open here and are no more, the newest last; and below which number all of them are forgotten.
        self._over: dict[int, None] = {}
        self._forgotten = 0

    def enter(self, stream: int, is_open: Collection[int]) -> None:
        """Take in that the tasks from now on are of this stream, and which streams are not over here."""
        opened = frozenset(is_open)
        self._over |= dict.fromkeys(sorted(self._open - opened))
        while len(self._over) > _OVER_MAX:
            oldest = next(iter(self._over))
            del self._over[oldest]
            self._forgotten = max(self._forgotten, oldest + 1)
        self._open, self.current = opened, stream

    def is_due(self, stream: int | None) -> bool:
        """Whether a post of this stream is for the task that runs. What no task has posted is for all of them."""
        return stream is None or stream == self.current

    def is_over(self, stream: int) -> bool:
        """Whether no task of this stream comes any more. One that has not been here may still come, whichever streams have."""
        return stream not in self._open and (stream in self._over or stream < self._forgotten)


class SiblingBinding(links.Binding):
    """The link from a slot to another one: what a task sends by it is marked with the task's stream."""

    def __init__(
        self, node: links.Node, startpoint: links.Startpoint, streams: TaskStreams
    ) -> None:
        super().__init__(node, startpoint)
        self._streams = streams

    @property
    def _mark(self) -> int | None:
        return self._streams.current


class TaskInboxes:
    """The inboxes of a slot, and what has come to them for other streams than that of the task that runs."""

    def __init__(self, streams: TaskStreams, context: _Context, node: JobNode) -> None:
        self.streams = streams
        self.context = context
        self.rank = node.rank
        self._node = node
        self._lock = threading.Lock()
        self._later: dict[str, deque[tuple[int, Any]]] = {}

    def are_all_posts_known(self) -> bool:
        """Say whether only siblings post here, by what their tasks do. Other threads may post as well, and whoever has a startpoint of this node."""
        threads = (one for one in threading.enumerate() if one is not threading.main_thread())
        return not self._node.has_given_startpoints and all(
            one.name.startswith("exoskel") for one in threads
        )

    def make(self, inbox: LinkInbox, name: str, _drive: object, owner: object) -> Inbox:
        """Return an inbox for tasks."""
        return TaskInbox(inbox, name, owner, self)

    def keep(self, name: str, stream: int, value: Any) -> None:
        """Keep a value for the tasks of a stream that is not over. If there are very many, the oldest goes: a sibling may post of streams that never come."""
        with self._lock:
            later = self._later.setdefault(name, deque())
            later.append((stream, value))
            if len(later) <= _KEPT_MAX:
                return
            gone, _ = later.popleft()
        _log.warning(
            "a post of stream %d to %s of rank %d is dropped: %d wait there for other streams than that of the task which takes some",
            gone,
            name,
            self.rank,
            _KEPT_MAX,
        )

    def kept(self, name: str) -> tuple[Any] | None:
        """Return a value that was kept for the task that runs, if there is one. Those of streams that are over go."""
        # Nearly always, there is nothing.
        if name not in self._later:
            return None
        with self._lock:
            later = self._later.pop(name, deque())
            found = None
            left: deque[tuple[int, Any]] = deque()
            for stream, value in later:
                if found is None and self.streams.is_due(stream):
                    found = (value,)
                elif not self.streams.is_over(stream):
                    left.append((stream, value))
            if left:
                self._later[name] = left
            return found

    def count(self, name: str) -> int:
        """Return how many values are kept."""
        with self._lock:
            return len(self._later.get(name, ()))


class TaskInbox(Inbox):
    """An inbox of a manager's slot. A task takes what tasks of the same `map` have posted, and what others than tasks have."""

    def __init__(self, inbox: LinkInbox, name: str, owner: object, inboxes: TaskInboxes) -> None:
        super().__init__(inbox, name, None, owner)
        self._inboxes = inboxes

    def get(self, timeout: float | None = None) -> Any:
        """Take what has come first for this task, and return it. If nothing is there, wait for it.

        Raises
        ------
        TimeoutError
            If nothing has come by then.
        LinkError
            If nobody is left who would post, or the node is closed.
        """
        limit = checked_seconds(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        left = limit
        while True:
            kept = self._inboxes.kept(self.name)
            if kept is not None:
                return kept[0]
            taken = self._await() if left is None else self._take(left)
            if taken is None:
                raise self._nothing(timeout)
            value, refused, stream = taken
            if refused is not None:
                self._log_refused(*refused)
            elif self._inboxes.streams.is_due(stream):
                return value
            elif stream is not None and not self._inboxes.streams.is_over(stream):
                self._inboxes.keep(self.name, stream, value)
            if deadline is not None:
                left = max(deadline - time.monotonic(), 0.0)

    def _await(self) -> tuple[Any, tuple[str, str] | None, int | None] | None:
        """Wait without end for what comes next. Nothing if the node is closed."""
        # Only of the slot's own thread it is known that all others wait for it to post.
        if threading.current_thread() is not threading.main_thread():
            return self._take(None)
        taken = self._take(_ABSENCE_SECONDS)
        if taken is not None or self._inbox.is_over():
            return taken
        context, answers = self._inboxes.context, 0
        try:
            while True:
                vain = context.idles() if self._inboxes.are_all_posts_known() else None
                if vain is None:
                    context.goes_on()
                taken = self._take(_ASK_SECONDS)
                if taken is not None or self._inbox.is_over():
                    return taken
                answers = answers + 1 if vain is not None and vain.done() else 0
                if vain is not None and answers >= _ANSWERS_MIN:
                    raise LinkError(
                        f"rank {self._inboxes.rank} waits for posts to {self.name} in vain: {vain.result()}"
                    )
        finally:
            context.goes_on()

    def __len__(self) -> int:
        """Return how many values wait here that have been read from the network, for this task or others."""
        return super().__len__() + self._inboxes.count(self.name)
