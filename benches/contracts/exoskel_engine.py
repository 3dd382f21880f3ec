"""Our side of `benches.contracts.run`."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import work

import exoskel as ex


def kill() -> dict[str, Any]:
    """Lose one of two slots."""
    with ex.Manager(work.slow_and_logged, ex.ParDegree(work.SLOTS)) as manager:
        return work.killed(manager.map)


def loss() -> dict[str, Any]:
    """Lose one of eight slots: how long fewer than seven of eight work, and until the eighth is replaced."""
    slots, item = 8, 0.02
    ends: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        processes = Path(folder) / "processes"

        def named(seconds: float) -> None:
            if len(processes.read_text().splitlines()) < slots if processes.exists() else True:
                with processes.open("a") as file:
                    file.write(f"{os.getpid()}\n")
            time.sleep(seconds)

        with ex.Manager(named, ex.ParDegree(slots)) as manager:
            results = manager.map((item for _ in range(4000)), as_completed=True)
            for _ in range(1000):
                next(results)
                ends.append(time.perf_counter())
            victim = int(processes.read_text().split()[0])
            os.kill(victim, signal.SIGKILL)
            struck = time.perf_counter()
            seen: dict[str, float] = {}

            def watch() -> None:
                while "whole" not in seen:
                    ready = manager.status().slots_ready
                    if ready < slots:
                        seen.setdefault("missed", time.perf_counter())
                    elif "missed" in seen:
                        seen["whole"] = time.perf_counter()
                    # Replaced before anybody could look.
                    elif time.perf_counter() - struck > 1:
                        seen["whole"] = struck
                    time.sleep(0.001)

            watcher = threading.Thread(target=watch)
            watcher.start()
            for _ in results:
                ends.append(time.perf_counter())
            watcher.join()
    before = 999 / (ends[999] - ends[0])
    return {
        "seconds_below": seconds_below(ends[1000:], struck, 7 / 8 * before),
        "seconds_to_replacement": seen["whole"] - struck,
    }


def seconds_below(ends: list[float], since: float, rate: float) -> float:
    """Return until when the results since then, counted from any moment for half a second, were slower than that rate."""
    below = since
    first = 0
    for last, end in enumerate(ends):
        while end - ends[first] > 0.5:
            first += 1
        window = end - ends[first]
        # A result more or less is no change of the rate.
        if window > 0.4 and (last - first + 1) / window < rate:
            below = end
    return below - since


def share() -> dict[str, Any]:
    """Find what share a slot gets that is half as fast."""
    with tempfile.TemporaryDirectory() as folder:
        claim = str(Path(folder) / "claim")
        with ex.Manager(work.half_as_fast, ex.ParDegree(work.SLOTS)) as manager:
            slow = sum(manager.map((0.01, claim) for _ in range(1500)))
    return {"share": slow / (1500 - slow)}


def step() -> dict[str, Any]:
    """Keep a rate when items take three times as long: how long that takes, and how many slots are too many in the end."""
    rate, before, after = 80.0, 0.02, 0.06
    changed: list[float] = []

    def items() -> Iterator[float]:
        begun = time.monotonic()
        while time.monotonic() < begun + 14:
            yield before
        changed.append(time.monotonic())
        while time.monotonic() < changed[0] + 30:
            yield after

    ends: list[float] = []
    most = 0
    contract = ex.Throughput(rate) & ex.ParDegree(1, 12)
    with ex.Manager(work.slept, contract) as manager:
        for result in manager.map(items(), as_completed=True):
            if result == after:
                ends.append(time.monotonic())
                most = max(most, manager.status().slots_wanted)
    # Input ends without notice, and what is inside runs out.
    met = next(
        end
        for number, end in enumerate(ends)
        if number >= rate and rate / (end - ends[number - int(rate)]) >= 0.98 * rate
    )
    needed = -(-int(rate * after * 1000) // 1000)
    return {"seconds_to_meet": met - ends[0], "slots_too_many": most - needed}


def iterate() -> dict[str, Any]:
    """Repeat a map over two blocks; a round in round trips of one item."""
    body: Any = ex.Map(list, work.halved, tuple)
    program = ex.Iterate(body, lambda blocks: blocks[0] == 0.0, work.ROUNDS)
    numbers = (1e300, 1e300)
    with ex.Executor(work.SLOTS) as executor:
        trip = work.median_seconds(lambda: executor.submit(work.halved, 1.0).result(), 1000)
    with ex.Manager(program, ex.ParDegree(work.SLOTS)) as manager:
        spent = work.median_seconds(lambda: next(manager.map([numbers])), 9)
    return {"seconds": spent / work.ROUNDS, "round_trip": trip}


def stragglers() -> dict[str, Any]:
    """Let one item in 100 take 50 times as long where it is: the makespan over that without."""
    slots, item = 16, 0.2
    with (
        tempfile.TemporaryDirectory() as folder,
        ex.Manager(work.slow_where_it_is, ex.ParDegree(slots), stragglers=2.0) as manager,
    ):

        def makespan(number: int, straggler: int | None) -> float:
            claim = str(Path(folder) / str(number))
            tasks = [(50 * item, item, claim if index == straggler else "") for index in range(100)]
            return once(lambda: list(manager.map(tasks)))

        makespan(-1, None)
        pairs = [(makespan(2 * n, 17 + 20 * n), makespan(2 * n + 1, None)) for n in range(3)]
    return {"makespan": statistics.median(with_one / without for with_one, without in pairs)}


def pipeline() -> dict[str, Any]:
    """Run pipelines whose items take as long as chance has it: how near they come to what no order could beat."""
    found = {}
    for name, means in {"even": (0.01, 0.01), "farmed": (0.01, 0.03)}.items():
        stages = [work.exponential(1500, mean, seed) for seed, mean in enumerate(means)]
        items = list(zip(*stages, strict=True))
        slots = 4

        def first(times: tuple[float, float]) -> float:
            time.sleep(times[0])
            return times[1]

        program = ex.Pipeline(ex.Seq(first), ex.Farm(work.slept))
        with ex.Manager(program, ex.ParDegree(slots)) as manager:
            list(manager.map(items[:100]))
            spent = once(lambda manager=manager, items=items: list(manager.map(items)))  # type: ignore[misc]
        bound = max(sum(stages[0]), (sum(stages[0]) + sum(stages[1])) / slots)
        found[f"{name}_of_bound"] = bound / spent
    return found


def short() -> dict[str, Any]:
    """Run short streams of a pipeline: the seconds over those with the best length of frames."""
    items = [0.004] * 64
    program = ex.Pipeline(ex.Seq(work.slept), ex.Farm(work.slept))
    seconds: dict[int | None, list[float]] = {None: [], 1: [], 4: [], 16: []}
    for _ in range(3):
        for length, spent in seconds.items():
            options: Any = {} if length is None else {"frame_items_max": length}
            with ex.Manager(program, ex.ParDegree(work.SLOTS), **options) as manager:
                list(manager.map(items))
                spent.extend(once(lambda m=manager: list(m.map(items))) for _ in range(3))  # type: ignore[misc]
    middles = {length: statistics.median(spent) for length, spent in seconds.items()}
    return {"over_best": middles.pop(None) / min(middles.values())}


def once(run: Callable[[], object]) -> float:
    """Time one run."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


if __name__ == "__main__":
    work.main(
        {
            "kill": kill,
            "loss": loss,
            "share": share,
            "step": step,
            "iterate": iterate,
            "stragglers": stragglers,
            "pipeline": pipeline,
            "short": short,
        }
    )
