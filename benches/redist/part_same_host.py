"""Two programs on one host, beside MPI's own redistribution between two halves of one world, which is its best."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from benches.redist import keepers, programs
from benches.redist.frame import FIRST, Bench, Goal, Lane, Row, least, lines, median

MPI = ("openmpi", "mpich")


def measure(bench: Bench) -> Iterator[Row]:
    """Rows to columns."""
    for length, size in itertools.product(bench.lengths(1024, 4096, 8192), bench.sizes(1, 2, 4)):
        versions = FIRST + (5 if length > 2048 else 20)
        yield bench.row(
            f"rows to columns, {length} x {length}, {size}x{size}",
            lanes(length, size, versions),
            bytes=length**2 * 8,
            keys={"length": length, "size": size},
        )


def lanes(length: int, size: int, versions: int) -> dict[str, Lane]:
    """What takes turns."""

    def alltoallw(library: str) -> list[float]:
        words = [*programs.starter(library, 2 * size), programs.alltoallw(library)]
        return lines([*words, length, versions])

    return {
        "ours": partial(keepers.ours, length, size, versions, keepers.one_host),
        "strided": lambda: lines([programs.strided(), length, size, versions]),
        **{library: partial(alltoallw, library) for library in MPI},
    }


def goals(rows: list[Row]) -> list[Goal]:
    """Of a strided copy, and of the best Alltoallw."""
    large = [row for row in rows if row.keys["length"] >= 4096]
    many = [row for row in large if row.keys["size"] > 1]
    one = [row for row in large if row.keys["size"] == 1]
    small = [row for row in rows if row.keys["length"] == 1024]
    beside = "from 4096, 2x2 and 4x4"
    return [
        Goal(
            f"of a strided copy by two threads, {beside}: median",
            median(row.ratio("ours", "strided") for row in many),
            0.85,
        ),
        Goal(
            f"over the best Alltoallw, {beside}: each",
            least(row.ratio("ours", *MPI) for row in many),
            1.0,
        ),
        Goal(
            f"over the best Alltoallw, {beside}: median",
            median(row.ratio("ours", *MPI) for row in many),
            1.15,
        ),
        Goal(
            "over the best Alltoallw, from 4096, 1x1: each",
            least(row.ratio("ours", *MPI) for row in one),
            1.0,
        ),
        Goal(
            "time beside the best Alltoallw, 1024: each",
            inverse(least(row.ratio("ours", *MPI) for row in small)),
            1.5,
            is_least=False,
        ),
    ]


def inverse(ratio: float | None) -> float | None:
    """A ratio of times, from one of speeds."""
    return ratio and 1 / ratio
