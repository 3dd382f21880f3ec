"""A farm of items that sleep: reads jobs from its input, a line of JSON each, and answers each with a line.

A job says which ``workers`` there are, with what ``credential`` and ``policy``, how many ``slots`` it uses; and ``count`` items of so many ``bytes``, each of
which sleeps for ``sleep`` seconds and gives its bytes back; ``alone`` if there is to be one of them under way at a time. The answer has the ``seconds`` that they took, and how many items each worker has run (``shares``).
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import exoskel as ex

PR_SET_TIMERSLACK = 29
# So many different payloads: nothing may be gained by their being alike.
POOL = 8
SECONDS_MAX = 120.0


def sleeper(seconds: float) -> Callable[[bytes], bytes]:
    """A task that takes its time elsewhere, and gives back what it got."""

    def sleep_and_echo(payload: bytes) -> bytes:
        if seconds:
            time.sleep(seconds)
        return payload

    return sleep_and_echo


def payloads(count: int, size: int) -> Iterator[bytes]:
    """So many, over and over."""
    pool = [os.urandom(size) for _ in range(POOL)]
    for index in range(count):
        yield pool[index % POOL]


def items_of_workers(manager: ex.Manager) -> dict[str, int]:
    """How many items each has run."""
    return {worker.name: worker.items for worker in manager.summary().workers}


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run one job: a short stream first, so that all slots are there and windows have settled."""
    with ex.Manager(
        ex.Farm(sleeper(job["sleep"])),
        ex.ParDegree(job["slots"]),
        workers=job["workers"],
        credential=job["credential"],
        policy=job["policy"],
    ) as manager:
        deadline = time.monotonic() + SECONDS_MAX
        while sum(worker.slots for worker in manager.summary().workers) < job["slots"]:
            if time.monotonic() > deadline:
                raise TimeoutError(f"got {manager.summary()}, expected {job['slots']} slots")
            time.sleep(0.01)
        for _ in manager.map(payloads(job["first"], job["bytes"]), as_completed=True):
            pass
        before = items_of_workers(manager)
        begin = time.perf_counter()
        given = payloads(job["count"], job["bytes"])
        if job["alone"]:
            count = sum(1 for payload in given for _ in manager.map([payload]))
        else:
            count = sum(1 for _ in manager.map(given, as_completed=True))
        seconds = time.perf_counter() - begin
        after = items_of_workers(manager)
        protections = sorted({worker.protection for worker in manager.summary().workers})
    if count != job["count"]:
        raise AssertionError(f"got {count} results, expected {job['count']}")
    shares = {name: items - before.get(name, 0) for name, items in after.items()}
    return {"seconds": seconds, "shares": shares, "protections": protections}


def main() -> None:
    """Answer jobs until there are no more."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
