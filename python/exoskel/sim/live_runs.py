"""A trace over real links between local nodes: how often the runtime's cache has the key, beside what the simulation predicts."""

from __future__ import annotations

import math
from os import PathLike
from typing import NamedTuple

from .. import _core
from .arguments import whole_number
from .runs import read_trace

__all__ = ["Live", "live"]


class Live(NamedTuple):
    """What the nodes' caches had, and what was predicted, pooled over all nodes.

    Parameters
    ----------
    trace : str
        The trace's name.
    hit_rate, predicted_hit_rate : float
        The shares of lookups that found their key, 0 to 1; NaN if there were none.
    lookups, hits : int
        Of the nodes. Each message is one lookup where it is sent and one where it is received.
    predicted_lookups, predicted_hits : int
        Of the simulation.
    """

    trace: str
    hit_rate: float
    predicted_hit_rate: float
    lookups: int
    hits: int
    predicted_lookups: int
    predicted_hits: int


def live(trace: str | PathLike[str], entries: int, *, ways: int | None = None) -> Live:
    """Run a trace's messages between local nodes, over the runtime's own sessions.

    Each rank is a node with a key store of its own, in a thread of its own; each two that talk have a socket with an encrypted session on it. A session has
    a key for each direction, so a cache has to hold two for each peer that is talked with both ways. A receive counts when its message is
    waited for; a message that comes earlier stays unopened until then, up to 256 MiB of them, all nodes together. Payloads are cut to 64 bytes and computation is left out: neither changes which keys are asked for.

    Parameters
    ----------
    trace : path
        The trace, of at most 64 ranks.
    entries : int
        How many expanded keys each node holds.
    ways : int, optional
        Places where a key may be; by default all.

    Returns
    -------
    Live
        Both rates.

    Raises
    ------
    OSError
        If the file can't be read.
    ValueError
        If it is no trace, if its messages don't fit together, if more of them are under way than are kept, or for an impossible size.
    """
    entries = whole_number("entries", entries, least=1)
    ways = entries if ways is None else whole_number("ways", ways, least=1)
    messages = read_trace(trace)
    counts = _core.key_cache_live(messages, entries, ways)
    real, predicted = counts["live"], counts["predicted"]

    def rate(found: dict[str, int]) -> float:
        return found["hits"] / found["lookups"] if found["lookups"] else math.nan

    return Live(
        messages.name,
        rate(real),
        rate(predicted),
        real["lookups"],
        real["hits"],
        predicted["lookups"],
        predicted["hits"],
    )
