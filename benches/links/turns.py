"""How lanes are played, at the end of the process that has them.

A lane is a pair of connected ends. A program connects all of its lanes, prints their names on one line, and then plays a turn for each line
that it reads, ``LANE BYTES COUNT``: so many messages or round trips of so many bytes. It answers with the seconds that the turn took, or with
``failed`` and why. Between turns it sleeps, so that lanes of other programs have the machine to themselves.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

Turn = Callable[[int, int], None]


def take_turns(lanes: dict[str, Turn]) -> None:
    """Play what standard input asks for, to its end."""
    print(" ".join(lanes), flush=True)
    for line in sys.stdin:
        try:
            name, size, count = line.split()
            turn = lanes[name]
            start = time.perf_counter()
            turn(int(size), int(count))
            print(f"{time.perf_counter() - start:.9f}", flush=True)
        except Exception as error:
            print(f"failed {type(error).__name__}: {error}".replace("\n", " "), flush=True)
