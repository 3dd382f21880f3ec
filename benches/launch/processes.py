"""Ours: ``processes.py LANE COUNT`` prints the nanoseconds of a lane.

- ``ours``: one request, until all processes are there.
- ``ours answered``: the same, until each has answered a request over a session of its own.
- ``ours in turn``: a request for each process, and its answer before the next one.
"""

from __future__ import annotations

import sys
import time

import exoskel as ex
from exoskel.job_process import JobNode

SECONDS = 300.0


def ours(here: JobNode) -> None:
    """Be there for a request."""

    @here.process.handler
    def rank() -> int:
        return here.rank


def run(lane: str, count: int) -> float:
    """Return the seconds of a lane. What is made once for all processes is made before."""
    with ex.Job() as job:
        job.start(ours).result(SECONDS)
        begin = time.perf_counter()
        if lane == "ours in turn":
            for _ in range(count):
                job.start(ours).result(SECONDS)[0].request("rank").result(SECONDS)
        else:
            there = job.start(ours, count=count).result(SECONDS)
            if lane == "ours answered":
                replies = [process.request("rank") for process in there]
                assert [reply.result(SECONDS) for reply in replies] == list(range(count))
        return time.perf_counter() - begin


if __name__ == "__main__":
    print(int(run(sys.argv[1], int(sys.argv[2])) * 1e9))
