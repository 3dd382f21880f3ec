"""How the objects of `exoskel.links` wait: in slices, so that signals are seen, and by driving a node that has no thread."""

from __future__ import annotations

import contextlib
import math
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_Outcome = TypeVar("_Outcome")

# How often a thread that waits looks at signals, and whether the program ends.
PATIENCE_SECONDS = 0.2
# No program runs for longer. The core counts in whole numbers, which end somewhere.
SECONDS_MAX = 1e8
# The thread that waits for awaited answers looks at all of them so often, and takes so long for each.
_LOOK_SECONDS = 0.005
_LOOK_SECONDS_EACH = 20e-6


def checked_seconds(
    value: Any, name: str = "timeout", *, is_zero_allowed: bool = True
) -> float | None:
    """Return how many seconds something may take; None if it may take for ever.

    Raises
    ------
    TypeError, ValueError
        If that is no time.
    """
    return None if value is None else _seconds(value, name, is_zero_allowed, ", or None")


def bounded_seconds(value: Any, name: str = "timeout", *, is_zero_allowed: bool = True) -> float:
    """Return how many seconds something may take, where None is no number of seconds."""
    seconds = _seconds(value, name, is_zero_allowed, "")
    return SECONDS_MAX if seconds is None else seconds


def _seconds(value: Any, name: str, is_zero_allowed: bool, otherwise: str) -> float | None:
    try:
        seconds = math.nan if isinstance(value, bool | str | bytes) else float(value)
    except OverflowError:
        seconds = math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        seconds = math.nan
    if not seconds >= 0 or (seconds == 0 and not is_zero_allowed):
        least = "that is not negative" if is_zero_allowed else "above 0"
        text = f"got {name}={value!r}, expected a number of seconds {least}{otherwise}"
        raise (ValueError if isinstance(value, int | float) else TypeError)(text)
    return seconds if seconds < SECONDS_MAX else None


def patiently(
    timeout: float | None, attempt: Callable[[float], _Outcome | None]
) -> _Outcome | None:
    """Attempt something that waits for so many seconds at most, until it gives an outcome or `timeout` is over."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = PATIENCE_SECONDS
        if deadline is not None:
            left = min(left, max(deadline - time.monotonic(), 0.0))
        outcome = attempt(left)
        if outcome is not None or (deadline is not None and time.monotonic() >= deadline):
            return outcome


def driven(
    drive: Callable[[float], object],
    timeout: float | None,
    attempt: Callable[[], _Outcome | None],
) -> _Outcome | None:
    """Attempt something that doesn't wait, and drive the node in between."""

    def once(left: float) -> _Outcome | None:
        outcome = attempt()
        if outcome is None:
            drive(left)
            outcome = attempt()
        return outcome

    return patiently(timeout, once)


class Awaitable(Protocol):
    """Something that is over at some time."""

    def look(self, seconds: float) -> bool:
        """Return whether it is over, after waiting for so many seconds at most."""


class AwaitedReplies:
    """What coroutines await of a node. While there is something, one thread waits for all of it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._awaited: dict[asyncio.Future[None], Awaitable] = {}
        self._thread: threading.Thread | None = None
        self._is_over = False

    async def wait(self, reply: Awaitable) -> None:
        """Wait until something is over. Who is cancelled leaves nothing behind."""
        import asyncio

        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            with self._changed:
                self._awaited[future] = reply
                self._changed.notify()
                if self._thread is None:
                    thread = threading.Thread(target=self._run, name="exoskel-awaited")
                    thread.start()
                    self._thread = thread
            await future
        finally:
            with self._changed:
                self._awaited.pop(future, None)

    def end(self) -> None:
        """End the thread. What is awaited is over by now."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _run(self) -> None:
        while awaited := self._current():
            # Most answers come in the order of the requests: that of the oldest wakes this thread.
            wait_seconds = max(_LOOK_SECONDS, len(awaited) * _LOOK_SECONDS_EACH)
            for future, reply in awaited:
                if reply.look(wait_seconds) or self._is_over:
                    self._tell(future)
                wait_seconds = 0.0
            # They don't live on by this thread.
            del awaited, future, reply

    def _current(self) -> list[tuple[asyncio.Future[None], Awaitable]]:
        """What is awaited now, after waiting for something; nothing if this thread may end."""
        with self._changed:
            if not self._awaited and not self._is_over and threading.main_thread().is_alive():
                self._changed.wait(PATIENCE_SECONDS)
            awaited = list(self._awaited.items())
            if not threading.main_thread().is_alive():
                # Nobody goes on to wait in a loop that was left.
                awaited = [one for one in awaited if one[0].get_loop().is_running()]
            if not awaited:
                self._thread = None
            return awaited

    def _tell(self, future: asyncio.Future[None]) -> None:
        def tell() -> None:
            if not future.done():
                future.set_result(None)

        with self._changed:
            self._awaited.pop(future, None)
        # A loop that is closed has nobody who waits.
        with contextlib.suppress(RuntimeError):
            future.get_loop().call_soon_threadsafe(tell)
