"""Programs that end at once: ``sandboxes.py LANE COUNT`` prints the nanoseconds from the request until all have ended.

- ``free``: without a sandbox.
- ``sandboxed``: in one.
- ``free function``, ``sandboxed function``: functions of Python instead, until all are there.
- ``bwrap``: bubblewrap in front of each, with no namespace of the account's but its own.
"""

from __future__ import annotations

import sys
import time

import exoskel as ex
from exoskel.job_process import JobNode

SECONDS = 300.0
BUBBLEWRAP = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--unshare-all", "--die-with-parent"]


def function(here: JobNode) -> None:
    """Be there."""


def functions(sandbox: ex.Sandbox | None, count: int) -> float:
    """Return the seconds until so many processes are there."""
    with ex.Job() as job:
        job.start(function, sandbox=sandbox).result(SECONDS)
        begin = time.perf_counter()
        job.start(function, count, sandbox=sandbox).result(SECONDS)
        return time.perf_counter() - begin


def run(lane: str, count: int) -> float:
    """Return the seconds of a lane."""
    words = [*(BUBBLEWRAP if lane == "bwrap" else []), "true"]
    sandbox = ex.Sandbox(memory="4 GiB") if lane.startswith("sandboxed") else None
    if lane.endswith("function"):
        return functions(sandbox, count)
    with ex.Job() as job:
        job.start(words, sandbox=sandbox).wait(SECONDS)
        begin = time.perf_counter()
        codes = job.start(words, count, sandbox=sandbox).wait(SECONDS)
        seconds = time.perf_counter() - begin
        assert codes == [0] * count, job.summary()
    return seconds


if __name__ == "__main__":
    print(int(run(sys.argv[1], int(sys.argv[2])) * 1e9))
