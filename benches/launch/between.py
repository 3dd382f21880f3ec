"""What one slot has made and another one needs: ``between.py LANE COUNT`` prints the nanoseconds of each piece of 1 MiB.

- ``direct``: the second slot asks the first one for it (`exoskel.links.here`).
- ``manager``: it is the result of a stage and the item of the next one, and passes the manager.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import exoskel as ex
from exoskel import links

Piece = NDArray[np.float64]

PIECE = 1 << 17
SECONDS = 120.0
# Pieces that are under way at once.
AHEAD = 4


def make(number: int) -> Piece:
    """Return a piece whose numbers tell which one it is."""
    return np.full(PIECE, float(number))


def take(piece: Piece) -> float:
    """Look at both ends of a piece."""
    assert piece[0] == piece[-1]
    return float(piece[0])


def exchange(count: int) -> list[int]:
    """Offer pieces, or ask for them."""
    here = links.here()

    @here.process.handler
    def piece(number: int) -> Piece:
        return make(number)

    if here.rank == 0:
        here.ready()
        # Until the other one has all.
        here.peers[1].request("has_all").result(SECONDS)
        return []
    import threading

    done = threading.Event()

    @here.process.handler
    def has_all() -> None:
        done.wait(SECONDS)

    other = here.peers[0]
    times, waiting = [], [other.request("piece", number) for number in range(AHEAD)]
    begin = time.perf_counter_ns()
    for number in range(count):
        assert take(waiting.pop(0).result(SECONDS)) == number
        if number + AHEAD < count:
            waiting.append(other.request("piece", number + AHEAD))
        times.append(time.perf_counter_ns() - begin)
        begin = time.perf_counter_ns()
    done.set()
    return times


def intervals(results: Iterable[Any]) -> list[int]:
    """Return the nanoseconds between results."""
    times, begin = [], time.perf_counter_ns()
    for _ in results:
        times.append(time.perf_counter_ns() - begin)
        begin = time.perf_counter_ns()
    return times


def run(lane: str, count: int) -> list[int]:
    """Return the nanoseconds of each piece."""
    if lane == "direct":
        with ex.Manager(exchange, ex.ParDegree(2), launch=ex.Local()) as manager:
            return [one for times in manager.map([count] * 2) for one in times]
    program = ex.Pipeline(ex.Seq(make), ex.Seq(take))
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        return intervals(manager.map(range(count)))


if __name__ == "__main__":
    # Pieces come in bursts: a mean says what an interval doesn't.
    found = run(sys.argv[1], int(sys.argv[2]))
    print(sum(found) // len(found))
