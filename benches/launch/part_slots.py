"""The slots of a manager: its own children, forked or executed each, and processes of a job of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benches.redist.frame import Bench, Goal, Lane, Row, lines

LANES = ("executed", "children", "launched")
COUNTS, QUICK_COUNTS = (2, 64), (2,)


def measure(bench: Bench) -> Iterator[Row]:
    """Until all are ready, and what each has in memory."""

    def lane(*words: object) -> list[float]:
        return lines([sys.executable, Path(__file__).with_name("slots.py"), *words])

    for count in QUICK_COUNTS if bench.is_quick else COUNTS:
        lanes: dict[str, Lane] = {name: partial(lane, name, count) for name in LANES}
        yield bench.row(f"{count} slots ready", lanes, unit="s", first=0, keys={"ready": count})
        lanes = {name: partial(lane, name, count, "memory") for name in LANES}
        yield bench.row(
            f"one of {count} idle slots, PSS",
            lanes,
            unit="MiB",
            scale=2**-20,
            first=0,
            keys={"memory": count},
        )


def goals(rows: Sequence[Row]) -> list[Goal]:
    """What is to be reached."""

    def ratio(key: str, count: int) -> float | None:
        found = [row for row in rows if row.keys.get(key) == count]
        return found[0].ratio("children", "executed") if found else None

    return [
        Goal("2 slots ready / executed", ratio("ready", 2), 1.0, is_least=False),
        Goal("64 slots ready / executed", ratio("ready", 64), 0.2, is_least=False),
        Goal("memory of one of 64 / executed", ratio("memory", 64), 0.5, is_least=False),
    ]
