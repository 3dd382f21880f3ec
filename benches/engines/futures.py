"""`make bench-futures`: futures submitted and gathered in a second, ours and those of the standard library, in one run.

Each measurement is one process of its own with two slots: calls of a function that does nothing, all of them submitted, then all
results taken. The engines take turns, and every ratio is the median over the rounds of the ratios in one round.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from benches.machine import ROOT

import exoskel as ex

SLOTS = 2
ROUNDS = 9
CALLS = 20_000
CALLS_DROPPED = 1_000_000

# What is compared, and the ratio that we want at least.
GOALS = {
    ("executor", "process_pool"): 8.0,
    ("pool", "multiprocessing_pool"): 3.0,
    ("executor", "multiprocessing_pool"): 3.0,
}


def nothing(item: Any) -> Any:
    """Return the item."""
    return item


def gathered(submit: Callable[..., Any], take: Callable[[Any], Any], calls: int) -> float:
    """Calls in a second, submitted one by one and taken one by one, after a few to warm up."""
    for future in [submit(number) for number in range(200)]:
        take(future)
    begin = time.perf_counter()
    futures = [submit(number) for number in range(calls)]
    results = [take(future) for future in futures]
    rate = calls / (time.perf_counter() - begin)
    assert results == list(range(calls))
    return rate


def executor(made: Any, calls: int) -> float:
    """Measure what is a `concurrent.futures.Executor`."""
    with made:
        return gathered(lambda item: made.submit(nothing, item), lambda f: f.result(), calls)


def pool(made: Any, calls: int) -> float:
    """Measure what is a `multiprocessing.pool.Pool`."""
    with made:
        return gathered(lambda item: made.apply_async(nothing, (item,)), lambda r: r.get(), calls)


def dropped(calls: int) -> float:
    """Memory in MiB by which a process grows at most, while it submits calls whose futures nobody keeps."""
    with ex.Executor(SLOTS) as made:
        for number in range(2000):
            made.submit(nothing, number)
        made.submit(nothing, 0).result()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(calls):
            made.submit(nothing, number)
        made.submit(nothing, 0).result()
        return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


ENGINES: dict[str, Callable[[int], float]] = {
    "executor": lambda calls: executor(ex.Executor(SLOTS), calls),
    "pool": lambda calls: pool(ex.Pool(SLOTS), calls),
    "process_pool": lambda calls: executor(ProcessPoolExecutor(SLOTS), calls),
    "multiprocessing_pool": lambda calls: pool(multiprocessing.Pool(SLOTS), calls),
}


def main() -> int:
    """Measure one engine, or all of them in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--calls", type=int, default=CALLS)
    parser.add_argument("--calls-dropped", type=int, default=CALLS_DROPPED)
    parser.add_argument("--engine", choices=[*ENGINES, "dropped"], help="one measurement, as JSON")
    arguments = parser.parse_args()
    if arguments.engine is not None:
        measure = ENGINES.get(arguments.engine, dropped)
        print(json.dumps(measure(arguments.calls)))
        return 0
    rounds = [
        {name: measured(name, arguments.calls) for name in ENGINES} for _ in range(arguments.rounds)
    ]
    for name in ENGINES:
        rate = statistics.median(each[name] for each in rounds)
        print(f"{name:22} {rate:10,.0f} calls a second")
    for (ours, theirs), goal in GOALS.items():
        ratio = statistics.median(each[ours] / each[theirs] for each in rounds)
        print(f"{ours} / {theirs}: {ratio:.1f} (goal {goal:g})")
    growth = measured("dropped", arguments.calls_dropped)
    print(f"{arguments.calls_dropped:,} calls, futures dropped: {growth:.1f} MiB (goal 40 at most)")
    return 0


def measured(engine: str, calls: int) -> float:
    """Measure in a process of its own."""
    command = [sys.executable, "-m", "benches.engines.futures"]
    command += ["--engine", engine, "--calls", str(calls)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    rate: float = json.loads(done.stdout)
    return rate


if __name__ == "__main__":
    sys.exit(main())
