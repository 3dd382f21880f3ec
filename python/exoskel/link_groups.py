"""Calls to several endpoints at once: `links.Group`."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from . import _core
from .errors import ExoskelError
from .link_arguments import checked_text, contents_of
from .link_failures import with_reason
from .link_waiting import checked_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


class GroupError(ExoskelError, RuntimeError):
    """Some of the calls to a group failed. The text says which.

    Attributes
    ----------
    outcomes : list
        For each binding, in order, the value or the exception.
    failed : tuple of int
        The indexes of the bindings whose call failed, from 0. The text has each in brackets.
    """

    def __init__(self, text: str, outcomes: list[Any], failed: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.outcomes = outcomes
        self.failed = tuple(failed)


class GroupReply:
    """The answers of a group. It can be awaited, and iterated over: one `Reply` for each binding, in order."""

    def __init__(self, replies: list[Any], places: list[str]) -> None:
        self._replies = replies
        self._places = places

    def outcomes(self, timeout: float | None = None) -> list[Any]:
        """Wait for all answers.

        Parameters
        ----------
        timeout : float, optional
            How many seconds to wait at most, for all together.

        Returns
        -------
        list
            For each binding, in order, the value or the exception.

        Raises
        ------
        TimeoutError
            If some have not come by then; the text says whose, with their indexes in brackets. Ask again later.
        """
        limit = checked_seconds(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        found: list[Any] = []
        late = []
        for index, reply in enumerate(self._replies):
            left = None if deadline is None else max(deadline - time.monotonic(), 0.0)
            try:
                found.append(reply.result(left))
            except TimeoutError:
                late.append(with_reason(_member(index, self._places), reply.trouble()))
            except Exception as error:
                found.append(error)
        if late:
            raise TimeoutError(
                f"got no answer of {len(late)} of {len(self._replies)} within {timeout:g} seconds: {', '.join(late)}"
            )
        return found

    def result(self, timeout: float | None = None) -> list[Any]:
        """Wait for all answers and return them, in order.

        Raises
        ------
        GroupError
            If some failed: ``failed`` has their indexes, ``outcomes`` what came of all.
        TimeoutError
            As for `outcomes`.
        """
        found = self.outcomes(timeout)
        _check(found, self._places)
        return found

    def done(self) -> bool:
        """Return whether all answers are there."""
        return all(reply.done() for reply in self._replies)

    def __await__(self) -> Any:
        return self._awaited().__await__()

    async def _awaited(self) -> list[Any]:
        for reply in self._replies:
            if not reply.done():
                # What it raises is an outcome.
                with contextlib.suppress(Exception):
                    await reply
        return self.result()

    def __iter__(self) -> Iterator[Any]:
        """Go through the replies."""
        return iter(self._replies)

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._replies)


class Group:
    """Several bindings that are called at once. `links.group` makes one.

    Arguments are encoded once, and sealed for each link with that link's own keys.
    """

    def __init__(self, bindings: Sequence[Any], reply: Callable[[Any, int, str], Any]) -> None:
        self.bindings = tuple(bindings)
        self._reply = reply

    def request(self, handler: str, /, *arguments: Any, **keywords: Any) -> GroupReply:
        """Call a handler of every endpoint.

        Returns
        -------
        GroupReply
            One answer for each binding, in order. What can't be sent to one is that one's outcome.
        """
        checked_text("handler", handler)
        contents = self._contents(arguments, keywords)
        replies = []
        for binding in self.bindings:
            try:
                binding._check_open()
                number = contents.request(binding._node, binding._binding, handler)
            except (ExoskelError, ValueError) as error:
                replies.append(_Failed(error))
            else:
                replies.append(self._reply(binding, number, handler))
        return GroupReply(replies, self._places())

    def post(self, handler: str, /, *arguments: Any, **keywords: Any) -> None:
        """Call a handler of every endpoint, without answers.

        Raises
        ------
        GroupError
            If it could not be sent to some: ``failed`` has their indexes. It was sent to the others.
        """
        checked_text("handler", handler)
        contents = self._contents(arguments, keywords)
        outcomes: list[Any] = []
        for binding in self.bindings:
            try:
                binding._check_open()
                contents.post(binding._node, binding._binding, handler)
            except (ExoskelError, ValueError) as error:
                outcomes.append(error)
            else:
                outcomes.append(None)
        _check(outcomes, self._places())

    def _contents(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> _core.LinkContents:
        # All siblings are called as of the task that runs; others take no notice of that.
        marks = (binding._mark for binding in self.bindings)
        mark = next((mark for mark in marks if mark is not None), None)
        return _core.LinkContents(contents_of(arguments, keywords, mark))

    def _places(self) -> list[str]:
        points = (binding.startpoint for binding in self.bindings)
        return [f"{point.endpoint} of {point.node}" for point in points]

    def __len__(self) -> int:
        """Return how many bindings there are."""
        return len(self.bindings)

    def __repr__(self) -> str:
        """Say whom it reaches."""
        return f"<exoskel.links.Group of {', '.join(self._places())}>"


class _Failed:
    """A reply that was never asked for."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def result(self, timeout: float | None = None) -> Any:
        del timeout
        raise self._error

    def done(self) -> bool:
        return True


def _check(outcomes: list[Any], places: list[str]) -> None:
    failed = [index for index, outcome in enumerate(outcomes) if isinstance(outcome, Exception)]
    if failed:
        told = "; ".join(f"{_member(index, places)}: {outcomes[index]}" for index in failed)
        text = f"{len(failed)} of {len(outcomes)} failed: {told}"
        raise GroupError(text, outcomes, failed)


def _member(index: int, places: list[str]) -> str:
    """Name one binding of a group: two may lead to the same endpoint."""
    return f"[{index}] {places[index]}"
