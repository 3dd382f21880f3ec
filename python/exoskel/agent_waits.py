"""What a manager's slot says of its tasks: that one waits, or has failed. Its agent passes it on to the manager, not too often."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import links
    from .agent_processes import AgentProcess

__all__ = ["WORDS", "pass_on"]

# The words: a task waits for a sibling, waits for a post of any sibling, has raised an exception.
WORDS = frozenset(("waits", "idles", "failed"))
# How often each is passed on of one process; and so much of what is said of an exception.
_WAITS_SECONDS = 1.0
_FAILED_SECONDS = 0.1
_FAILED_LENGTH_MAX = 200


def pass_on(creator: links.Binding, process: AgentProcess, word: dict[str, Any]) -> None:
    """Tell the creator of a job what a slot says of its task.

    Parameters
    ----------
    creator : Binding
        The link to the creator.
    process : AgentProcess
        The slot.
    word : dict
        What it has said: one of `WORDS`, and the stream of its task.
    """
    now, number = time.monotonic(), process.number
    stream = word.get("stream")
    if stream is not None and not isinstance(stream, int):
        raise TypeError("no stream")
    if "failed" in word:
        if now >= process.failed_at:
            process.failed_at = now + _FAILED_SECONDS
            creator.post("failed", number, str(word["failed"])[:_FAILED_LENGTH_MAX], stream)
    elif "idles" in word:
        is_idle = bool(word["idles"])
        # That a task goes on is news once.
        if now >= process.idles_at if is_idle else process.is_idle:
            process.is_idle, process.idles_at = is_idle, now + _WAITS_SECONDS
            creator.post("idles", number, is_idle, stream)
    else:
        rank = range(process.told["size"])[word["waits"]]
        if rank in process.asked and now >= process.waits_at:
            process.waits_at = now + _WAITS_SECONDS
            creator.post("waits", number, rank, stream)
