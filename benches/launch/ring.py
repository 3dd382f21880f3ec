"""Processes in a ring, each of which sends an edge of 64 KiB to both neighbours: ``ring.py PROCESSES STEPS`` prints the nanoseconds of a step."""

from __future__ import annotations

import sys
import time

import numpy as np

import exoskel as ex
from exoskel.job_process import JobNode

EDGE = 1 << 13
SECONDS = 120.0
# Not counted: sessions are made.
FIRST = 10


def exchange(here: JobNode, steps: int) -> list[int]:
    """Send and take edges; return the time of each step."""
    left, right = here.process.inbox("left"), here.process.inbox("right")
    before, following = here.peers[here.rank - 1], here.peers[(here.rank + 1) % here.size]
    times = []
    for step in range(steps + FIRST):
        # A new one: what is posted is read until it has gone out.
        own = np.full(EDGE, float(step * here.size + here.rank))
        begin = time.perf_counter_ns()
        following.post("left", own)
        before.post("right", own)
        from_left, from_right = left.get(SECONDS), right.get(SECONDS)
        times.append(time.perf_counter_ns() - begin)
        assert from_left[-1] == step * here.size + (here.rank - 1) % here.size
        assert from_right[-1] == step * here.size + (here.rank + 1) % here.size
    return times[FIRST:]


if __name__ == "__main__":
    with ex.Job() as job:
        for one in job.start(exchange, int(sys.argv[1]), arguments=[int(sys.argv[2])]).values(
            SECONDS
        )[0]:
            print(one)
