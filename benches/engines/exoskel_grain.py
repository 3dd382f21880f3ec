"""How small may a task be? Efficiency against grain, plain and encrypted, over TCP.

T is the plain round trip of C KiB out and back with one item in flight, W = G x T the time a task sleeps, and
efficiency = items x W / (2 x wall): two slots that never wait would give 1. Both modes use the same W. Sleeping is
inexact, so the same sleeps are also done with no engine around them: `of_bare` is our rate over theirs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import exoskel as ex

SLOTS = 2
GRAINS = (1, 2, 3, 5, 10, 30, 100)
PAYLOADS_KIB = (64, 1024)
PROTECTIONS = ("plain", "encrypted")
PR_SET_TIMERSLACK = 29


def sleeper(seconds: float) -> Callable[[bytes], bytes]:
    """A task that sleeps and gives its payload back."""

    def sleep_and_echo(payload: bytes) -> bytes:
        """Wait, as a task that computes elsewhere would."""
        time.sleep(seconds)
        return payload

    return sleep_and_echo


def payloads(count: int, pool: list[bytes]) -> Iterator[bytes]:
    """The pool's payloads, over and over."""
    for index in range(count):
        yield pool[index % len(pool)]


def round_trip(pool: list[bytes], count: int) -> float:
    """Median seconds of one plain item out and back, nothing else in flight."""
    times = []
    with ex.Executor(SLOTS, transport="tcp", protection="plain") as executor:
        for payload in payloads(count + 20, pool):
            start = time.perf_counter()
            executor.submit(bytes, payload).result()
            times.append(time.perf_counter() - start)
    return statistics.median(times[20:])


def bare_sleep(seconds: float, count: int) -> float:
    """What `time.sleep(seconds)` really takes here, on the average."""
    start = time.perf_counter()
    for _ in range(count):
        time.sleep(seconds)
    return (time.perf_counter() - start) / count


def efficiency(protection: str, seconds: float, pool: list[bytes], target: float) -> float:
    """One measured stream, after a short one that settles windows and frames."""
    items = max(40, int(target * SLOTS / seconds))
    with ex.Manager(
        ex.Farm(sleeper(seconds)), ex.ParDegree(SLOTS), transport="tcp", protection=protection
    ) as manager:
        for _ in manager.map(payloads(max(20, items // 4), pool)):
            pass
        start = time.perf_counter()
        count = sum(1 for _ in manager.map(payloads(items, pool)))
        wall = time.perf_counter() - start
    if count != items:
        raise AssertionError(f"got {count} results, expected {items}")
    return items * seconds / (SLOTS * wall)


def measure(quick: bool) -> list[dict[str, Any]]:
    """Every payload, grain and protection; plain and encrypted follow each other directly."""
    points = []
    target = 0.5 if quick else 2.0
    for kib in PAYLOADS_KIB:
        pool = [os.urandom(kib << 10) for _ in range(8)]
        trip = round_trip(pool, 60 if quick else 400)
        for grain in (1, 3, 10) if quick else GRAINS:
            seconds = grain * trip
            bare = seconds / bare_sleep(seconds, max(10, int(0.3 / seconds)))
            for protection in PROTECTIONS:
                runs = [
                    efficiency(protection, seconds, pool, target) for _ in range(1 if quick else 3)
                ]
                value = statistics.median(runs)
                points.append(
                    {
                        "kib": kib,
                        "grain": grain,
                        "protection": protection,
                        "round_trip_us": 1e6 * trip,
                        "task_us": 1e6 * seconds,
                        "efficiency": value,
                        "of_bare": value / bare,
                    }
                )
    return points


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", default="default")
    parser.add_argument("--part", default="grain", choices=["grain"])
    parser.add_argument("--result", required=True, type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    # Children inherit it: without it the kernel adds up to 50 microseconds to every sleep.
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    points = measure(arguments.quick)
    arguments.result.write_text(
        json.dumps({"variant": arguments.variant, "part": "grain", "values": {"points": points}})
    )
