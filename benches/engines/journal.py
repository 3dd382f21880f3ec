"""`make bench-journal`: a run with a journal, beside the same run without one, in turn.

Each measurement is one process of its own with two slots, a file of JSON lines as sink on the disk of this folder, and the time from the
first item to a sink that is durable. Without a journal the sink is made durable once a second. Ratios are medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benches.machine import ROOT

import exoskel as ex

SLOTS = 2
ROUNDS = 5
# What is run, how many items, and what is wanted of it with a journal.
PARTS = {"1 ms": 4_000, "no-op": 1_000_000}
RATIO_GOAL = 0.95
RATE_GOAL = 300_000


def nothing(item: Any) -> Any:
    """Return the item."""
    return item


def wait(item: Any) -> Any:
    """Return the item after a millisecond."""
    time.sleep(0.001)
    return item


def rate(part: str, items: int, *, journal: bool) -> float:
    """Items in a second."""
    # On the disk where the results of builds are, not in memory.
    with (
        tempfile.TemporaryDirectory(dir=ROOT / "target") as folder,
        ex.Manager(wait if part == "1 ms" else nothing, ex.ParDegree(SLOTS)) as manager,
    ):
        list(manager.map(range(500)))
        sink = ex.JsonLines(Path(folder) / "out.jsonl")
        begin = time.perf_counter()
        file = Path(folder) / "run.journal" if journal else None
        summary = manager.run(range(items), sink, journal=file)
        seconds = time.perf_counter() - begin
        assert summary.results == items
    return items / seconds


def measured(part: str, items: int, *, journal: bool) -> float:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "benches.engines.journal", "--measure", part]
    command += ["--items", str(items), *(["--journal"] if journal else [])]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    return float(json.loads(done.stdout))


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--measure", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--items", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--journal", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(rate(arguments.measure, arguments.items, journal=arguments.journal))
        return
    for part, items in PARTS.items():
        rounds = [
            (measured(part, items, journal=False), measured(part, items, journal=True))
            for _ in range(arguments.rounds)
        ]
        without, with_journal = (statistics.median(rates) for rates in zip(*rounds, strict=True))
        ratio = statistics.median(journal / plain for plain, journal in rounds)
        goal = f"ratio >= {RATIO_GOAL}" if part == "1 ms" else f"with it >= {RATE_GOAL:,}"
        print(
            f"{part:>6}: {without:>10,.0f} items/s without a journal, {with_journal:>10,.0f} with one, "
            f"ratio {ratio:.3f} (goal: {goal})",
            flush=True,
        )


if __name__ == "__main__":
    main()
