"""The measurements, one function a part, the same for every engine."""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import tasks
from protocol import Engine, Program

MEBIBYTE = 1 << 20
KILL_TASKS = 80
KILL_TASK_SECONDS = 0.25
# Long after a healthy engine would have handed out what is left.
KILL_WAIT_SECONDS = 20.0
MEMORY_ITEMS = 5000


def seconds(action: Callable[[], Any]) -> float:
    """How long the action takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def drain(results: Iterable[Any], expected: int) -> None:
    """Consume a stream of results without keeping them, and count them."""
    count = sum(1 for _ in results)
    if count != expected:
        raise AssertionError(f"got {count} results, expected {expected}")


def steady_rate(
    run: Callable[[int], None], target_seconds: float, warm_up: int = 400
) -> tuple[float, int]:
    """Items a second once warm, over a number of items that takes about `target_seconds`.

    The number is approached in steps: the first items of an engine are slow and say little.
    """
    run(warm_up)
    items = warm_up
    while True:
        start = time.perf_counter()
        run(items)
        spent = time.perf_counter() - start
        if spent >= target_seconds / 3:
            break
        items = int(items * min(10.0, 1.1 * target_seconds / max(spent, 1e-4)))
    return items / spent, items


def noop(engine: Engine, quick: bool) -> dict[str, Any]:
    """A task that does nothing, the user's code unbatched; then the engine's best chunk."""
    target = 0.5 if quick else 3.0
    values: dict[str, Any] = {}
    with engine.program(tasks.noop) as program:
        rate, items = steady_rate(lambda n: drain(program.map(range(n)), n), target)
        values["items_per_s"], values["items"] = rate, items
        best = 0.0
        for chunk in engine.chunks:
            rate, _ = steady_rate(
                lambda n, c=chunk: drain(program.map_chunked(range(n), c), n), target / 2
            )  # type: ignore[misc]
            if rate > best:
                best = values["chunked_items_per_s"] = rate
                values["best_chunk"] = chunk
    return values


def roundtrip(engine: Engine, quick: bool) -> dict[str, Any]:
    """Submit one item, wait for its result, a thousand times."""
    times = []
    with engine.caller(tasks.noop) as call:
        for index in range(50):
            call(index)
        for index in range(200 if quick else 1000):
            start = time.perf_counter_ns()
            answer = call(index)
            times.append(time.perf_counter_ns() - start)
            if answer != index:
                raise AssertionError(f"got {answer!r}, expected {index}")
    times.sort()
    return {"p50_us": times[len(times) // 2] / 1e3, "p99_us": times[len(times) * 99 // 100] / 1e3}


def bulk(engine: Engine, quick: bool) -> dict[str, Any]:
    """Distinct incompressible MiB out and back; the rate counts the payload one way."""
    count = 40 if quick else 200
    payloads = [os.urandom(MEBIBYTE) for _ in range(count)]
    rates = []
    with engine.program(tasks.echo) as program:
        drain(program.bulk(payloads[:8]), 8)
        for _ in range(1 if quick else 3):
            answers: list[bytes] = []
            spent = seconds(lambda a=answers: a.extend(program.bulk(payloads)))  # type: ignore[misc]
            if answers != payloads:
                raise AssertionError("the payloads that came back are not those that left")
            rates.append(count / spent)
    return {"mib_per_s": statistics.median(rates)}


def pipeline(engine: Engine, quick: bool) -> dict[str, Any]:
    """Two stages that add one each; then the same with a first stage that handles one item at a time."""
    target = 0.5 if quick else 3.0

    def rate_of(program: Program) -> tuple[float, int]:
        def run(items: int) -> None:
            total = sum(program.map(range(items)))
            expected = items * (items + 3) // 2
            if total != expected:
                raise AssertionError(f"got the sum {total}, expected {expected}")

        return steady_rate(run, target)

    with engine.program(tasks.increment, tasks.increment) as program:
        rate, items = rate_of(program)
    values = {"items_per_s": rate, "items": items}
    serial = engine.serial_program(tasks.increment, tasks.increment)
    if serial is not None:
        with serial as program:
            values["serial_items_per_s"], values["serial_items"] = rate_of(program)
    return values


def memory(engine: Engine, quick: bool) -> dict[str, Any]:
    """What all processes together took at their peaks in one run of no-ops, pages that they share counted once.

    `resident_mib` counts those for each process (`VmHWM`), as `ps` and `top` do.
    """
    items = 500 if quick else MEMORY_ITEMS
    with engine.program(tasks.noop) as program:
        drain(program.map(range(items)), items)
        # All first, then none is missing a sharer that another still has.
        footprints = [found for found in map(footprint, engine.processes()) if found]
    peaks = [found["Pss"] + found["VmHWM"] - found["VmRSS"] for found in footprints]
    return {
        "peak_mib": sum(peaks) / MEBIBYTE,
        "resident_mib": sum(found["VmHWM"] for found in footprints) / MEBIBYTE,
        "processes": len(peaks),
    }


def footprint(process: int) -> dict[str, int]:
    """Bytes that the process has, in proportion where it shares them (`Pss`), and the most it ever had; empty if it is gone.

    The kernel keeps no peak of `Pss`. What a process had more at its peak was its own: libraries are not unloaded.
    """
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        lines += Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split() for line in lines if line.startswith(("VmHWM:", "VmRSS:", "Pss:"))]
    found = {name.rstrip(":"): int(kibibytes) * 1024 for name, kibibytes, *_ in fields}
    return found if len(found) == 3 else {}


def kill(engine: Engine, quick: bool) -> dict[str, Any]:
    """SIGKILL one of two workers in the middle of 80 tasks of a quarter of a second."""
    del quick  # the scenario is the measure
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "starts"
        results: set[int] = set()
        errors: Counter[str] = Counter()
        victims: list[int] = []

        def strike() -> None:
            """Kill the worker that was the first to log a start, once it has had ten tasks."""
            while not log.exists() or len(log.read_text().splitlines()) < KILL_TASKS // 2:
                time.sleep(0.01)
            victims.append(int(log.read_text().splitlines()[-1].split()[2]))
            os.kill(victims[0], signal.SIGKILL)

        def consume() -> None:
            work = [(index, KILL_TASK_SECONDS, str(log)) for index in range(KILL_TASKS)]
            answers = iter(program.map(work))
            while True:
                try:
                    results.add(next(answers))
                except StopIteration:
                    return
                except Exception as error:
                    errors[type(error).__name__] += 1
                    if sum(errors.values()) > KILL_TASKS:
                        return

        with engine.program(tasks.slow_and_logged) as program:
            threading.Thread(target=strike, daemon=True).start()
            start = time.perf_counter()
            # A thread, because some engines wait for ever for what died.
            consumer = threading.Thread(target=consume, daemon=True)
            consumer.start()
            consumer.join(KILL_TASKS * KILL_TASK_SECONDS + KILL_WAIT_SECONDS)
            spent = time.perf_counter() - start
            lines = [line.split() for line in log.read_text().splitlines()]
            values: dict[str, Any] = {
                "results": len(results),
                "hung": consumer.is_alive(),
                "errors": dict(errors),
                "seconds": spent,
                **count_starts(lines, victims[0] if victims else 0),
            }
            if consumer.is_alive():
                report_and_leave(values)
    return values


def count_starts(lines: list[list[str]], victim: int) -> dict[str, int]:
    """What the log says: tasks started more than once, and tasks the victim had begun and not ended."""
    starts = Counter(line[1] for line in lines if line[0] == "start")
    there = {line[1] for line in lines if line[0] == "start" and int(line[2]) == victim}
    ended = {line[1] for line in lines if line[0] == "end" and int(line[2]) == victim}
    return {
        "started_twice": sum(1 for count in starts.values() if count > 1),
        "unfinished_there": len(there - ended),
    }


def report_and_leave(values: dict[str, Any]) -> None:
    """Write the result and exit at once: an engine that hangs would hang in its clean-up too."""
    import json

    path = Path(sys.argv[sys.argv.index("--result") + 1])
    path.write_text(json.dumps({"part": "kill", "values": values}))
    os._exit(0)


def startup(engine: Engine, quick: bool) -> dict[str, Any]:
    """The import over bare Python, and a program's first two results from nothing."""
    rounds = 5 if quick else 15
    bare, loaded = [], []
    for _ in range(rounds):
        bare.append(seconds(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)))
        loaded.append(
            seconds(
                lambda: subprocess.run(
                    [sys.executable, "-c", f"import {engine.module}"], check=True
                )
            )
        )
    ready = []
    for _ in range(1 if quick else 3):
        start = time.perf_counter()
        with engine.program(tasks.noop) as program:
            drain(program.map(range(2)), 2)
            ready.append(time.perf_counter() - start)
    return {
        "import_ms": 1e3 * (statistics.median(loaded) - statistics.median(bare)),
        "ready_ms": 1e3 * statistics.median(ready),
    }


PARTS: dict[str, Callable[[Engine, bool], dict[str, Any]]] = {
    "noop": noop,
    "roundtrip": roundtrip,
    "bulk": bulk,
    "pipeline": pipeline,
    "memory": memory,
    "kill": kill,
    "startup": startup,
}
