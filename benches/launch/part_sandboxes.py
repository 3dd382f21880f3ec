"""Processes in sandboxes, without, and in those of bubblewrap; items through a worker that confines its manager, and through one that doesn't."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benches.links.install import Missing
from benches.redist.frame import Bench, Goal, Lane, Row, lines

LANES = ("free", "sandboxed", "free function", "sandboxed function", "bwrap")
COUNT, QUICK_COUNT = 200, 10
# Items of each kind, in a long run and in a quick one.
ITEMS = {"no-op": (3_000_000, 1_000), "1 MiB": (1_000, 10)}
WORKERS = ("free", "sandboxed")


def measure(bench: Bench) -> Iterator[Row]:
    """Each lane starts so many programs, or functions, that end at once."""
    count = QUICK_COUNT if bench.is_quick else COUNT

    def lane(name: str) -> list[float]:
        if name == "bwrap" and shutil.which("bwrap") is None:
            raise Missing("bwrap is missing: apt-get install bubblewrap")
        return lines([sys.executable, Path(__file__).with_name("sandboxes.py"), name, count])

    lanes: dict[str, Lane] = {name: partial(lane, name) for name in LANES}
    yield bench.row(f"{count} programs", lanes, unit="s", first=0, keys={"count": count})
    for kind, counts in ITEMS.items():
        items = counts[bench.is_quick]
        yield bench.row(
            f"{items} {kind} items",
            {name: partial(through_worker, name, kind, items) for name in WORKERS},
            unit="s",
            first=0,
            keys={"count": items},
        )


def through_worker(lane: str, kind: str, items: int) -> list[float]:
    """Return the seconds that so many items take through one slot of a worker."""
    program = Path(__file__).with_name("confined_worker.py")
    return lines([sys.executable, program, lane, kind, items])


def goals(rows: Sequence[Row]) -> list[Goal]:
    """What is to be reached."""
    row, no_op, large = rows
    return [
        Goal("no-op items: a confined slot / a free one", no_op.ratio("free", "sandboxed"), 0.98),
        Goal("1 MiB items: a confined slot / a free one", large.ratio("free", "sandboxed"), 0.97),
        Goal(
            "a program in a sandbox / without",
            row.ratio("sandboxed", "free"),
            1.2,
            is_least=False,
        ),
        Goal(
            "a function in a sandbox / without",
            row.ratio("sandboxed function", "free function"),
            1.2,
            is_least=False,
        ),
    ]
