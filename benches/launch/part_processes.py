"""Many processes by one request, beside the standard library's forkserver."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benches.redist.frame import Bench, Goal, Lane, Row, lines

OURS = ("ours", "ours answered", "ours in turn")
COUNT, QUICK_COUNT = 1000, 50


def measure(bench: Bench) -> Iterator[Row]:
    """Each lane starts so many processes."""
    count = QUICK_COUNT if bench.is_quick else COUNT

    def lane(script: str, *words: str) -> list[float]:
        return lines([sys.executable, Path(__file__).with_name(script), *words, count])

    lanes: dict[str, Lane] = {name: partial(lane, "processes.py", name) for name in OURS}
    lanes["forkserver"] = partial(lane, "forkserver.py")
    yield bench.row(f"{count} processes", lanes, unit="s", first=0, keys={"count": count})


def goals(rows: Sequence[Row]) -> list[Goal]:
    """What is to be reached."""
    [row] = rows
    return [
        Goal(
            "one request, all there / forkserver",
            row.ratio("ours", "forkserver"),
            1.0,
            is_least=False,
        ),
        Goal(
            "the same, each having answered / forkserver",
            row.ratio("ours answered", "forkserver"),
            2.0,
            is_least=False,
        ),
        Goal("a request for each / one request", row.ratio("ours in turn", "ours answered"), 5.0),
    ]
