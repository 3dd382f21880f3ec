"""What the workers of every engine run, and how it is measured: one module, so that nobody has a lighter task than the others."""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SLOTS = 2
# For `kill`.
KILL_TASKS = 80
KILL_TASK_SECONDS = 0.2
KILL_AFTER_STARTS = 20
# For `iterate`: rounds over two blocks.
ROUNDS = 300


def slow_and_logged(task: tuple[int, str]) -> int:
    """Sleep, and log the start and the end: one `write` each, so that lines of two workers never mix."""
    index, log = task
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"start {index} {os.getpid()}\n".encode())
        time.sleep(KILL_TASK_SECONDS)
        os.write(descriptor, f"end {index} {os.getpid()}\n".encode())
    finally:
        os.close(descriptor)
    return index


def slept(seconds: float) -> float:
    """Take as long as the item says; no core is needed, so there may be more slots than cores."""
    time.sleep(seconds)
    return seconds


def slow_where_it_is(task: tuple[float, float, str]) -> None:
    """Take the longer time wherever the item comes first, the shorter one everywhere else."""
    longer, shorter, claim = task
    time.sleep(longer if claim and is_first(claim) else shorter)


def half_as_fast(task: tuple[float, str]) -> bool:
    """Take twice as long in the process that was the first of all. Return whether this is it."""
    seconds, claim = task
    slow = is_first(claim) or Path(claim).read_text() == str(os.getpid())
    time.sleep(2 * seconds if slow else seconds)
    return slow


def is_first(claim: str) -> bool:
    """Claim a file for this process."""
    name = f"{claim}.{os.getpid()}"
    Path(name).write_text(str(os.getpid()))
    try:
        os.link(name, claim)
    except FileExistsError:
        return False
    finally:
        os.unlink(name)
    return True


def halved(number: float) -> float:
    """Do what a round does with a block."""
    return number / 2


def killed(run: Callable[[list[tuple[int, str]]], Iterator[int]]) -> dict[str, Any]:
    """Kill one of two workers with SIGKILL in the middle of the tasks."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        victims: list[int] = []

        def strike() -> None:
            while not log.exists() or len(log.read_text().splitlines()) < KILL_AFTER_STARTS:
                time.sleep(0.005)
            victims.append(int(log.read_text().splitlines()[-1].split()[2]))
            os.kill(victims[0], 9)

        striker = threading.Thread(target=strike)
        striker.start()
        begun = time.perf_counter()
        results = set(run([(index, str(log)) for index in range(KILL_TASKS)]))
        spent = time.perf_counter() - begun
        striker.join()
        lines = [line.split() for line in log.read_text().splitlines()]
    starts = Counter(line[1] for line in lines if line[0] == "start")
    there = {
        kind: {line[1] for line in lines if line[0] == kind and int(line[2]) == victims[0]}
        for kind in ("start", "end")
    }
    return {
        "seconds": spent,
        "results": len(results),
        "twice": sum(1 for count in starts.values() if count > 1),
        "unfinished_there": len(there["start"] - there["end"]),
    }


def median_seconds(call: Callable[[], Any], count: int) -> float:
    """Time a call, often."""
    spent = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent)


def exponential(count: int, mean: float, seed: int) -> list[float]:
    """Draw times, the same ones each time."""
    draw = random.Random(seed)
    return [draw.expovariate(1 / mean) for _ in range(count)]


def main(parts: dict[str, Callable[[], dict[str, Any]]]) -> None:
    """Run the part that the command line names, and print what was measured."""
    print(json.dumps(parts[sys.argv[1]]()))
