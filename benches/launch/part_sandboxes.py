"""Processes in sandboxes, without, and in those of bubblewrap."""

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


def measure(bench: Bench) -> Iterator[Row]:
    """Each lane starts so many programs, or functions, that end at once."""
    count = QUICK_COUNT if bench.is_quick else COUNT

    def lane(name: str) -> list[float]:
        if name == "bwrap" and shutil.which("bwrap") is None:
            raise Missing("bwrap is missing: apt-get install bubblewrap")
        return lines([sys.executable, Path(__file__).with_name("sandboxes.py"), name, count])

    lanes: dict[str, Lane] = {name: partial(lane, name) for name in LANES}
    yield bench.row(f"{count} programs", lanes, unit="s", first=0, keys={"count": count})


def goals(rows: Sequence[Row]) -> list[Goal]:
    """What is to be reached."""
    [row] = rows
    return [
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
