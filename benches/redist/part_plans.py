"""The plan of one process among thousands, by ``plan_speed`` of `crates/redist`: blocks of 37 to blocks of 53, each process's own part."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

from benches.links.install import Missing, run
from benches.machine import ROOT
from benches.redist.frame import Bench, Goal, Row, median

# What ScaLAPACK's pdgemr2d takes to find its own part, of 4096 x 4095 processes and 2^24 elements: measured once, with its own scans.
SCALAPACK_MS = 0.72
GOAL_CASE = "4096 x 4095"


def measure(bench: Bench) -> Iterator[Row]:
    """The mean over all processes, and what a message costs."""
    seen: dict[str, list[tuple[float, float]]] = {}

    def turn() -> list[float]:
        for case, mean, message in planned():
            seen.setdefault(case, []).append((mean, message))
        return []

    _, failures = bench.turns("plans", {"ours": turn})
    for case, times in seen.items():
        mean, message = (median(column) for column in zip(*times, strict=True))
        peer = {"pdgemr2d, elsewhere": SCALAPACK_MS} if case == f"{GOAL_CASE}, 2**24" else {}
        keys = {"case": case, "message_ns": message}
        text = f"plan of one process, {case}: mean"
        yield Row(text, "ms", {"ours": mean or 0.0, **peer}, keys=keys)
    if failures:
        yield Row("plan of one process", "ms", {}, failures, {"case": ""})


@functools.cache
def built() -> Path:
    """The program that makes all plans."""
    example = ["--package", "exoskel-redist", "--example", "plan_speed"]
    run(["cargo", "build", "--locked", "--release", "--quiet", *example], "plan_speed")
    return ROOT / "target" / "release" / "examples" / "plan_speed"


def planned() -> list[tuple[str, float, float]]:
    """Of each case the mean in milliseconds, and nanoseconds for a message."""
    done = subprocess.run([built()], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Missing(f"plan_speed ended with {done.returncode}: {done.stderr.strip()}")
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    return [(f"{row[0]} x {row[1]}, {row[2]}", float(row[4]) / 1e3, float(row[8])) for row in rows]


def goals(rows: list[Row]) -> list[Goal]:
    """Of the largest case with 2^24 elements."""
    found = [row for row in rows if row.keys["case"] == f"{GOAL_CASE}, 2**24"]
    mean = median(row.values["ours"] for row in found)
    message = median(row.keys["message_ns"] for row in found)
    where = f"{GOAL_CASE}, 37 to 53, 2^24"
    return [
        Goal(f"plan of one process, {where}: mean", mean, 0.010, is_least=False, unit="ms"),
        Goal(f"a message of it, {where}", message, 35.0, is_least=False, unit="ns"),
    ]
