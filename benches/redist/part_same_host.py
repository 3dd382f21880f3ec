"""Two programs on one host, beside peers that redistribute between two halves of one MPI world, which is their best."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from functools import partial

from benches.redist import keepers, programs
from benches.redist.frame import FIRST, SOURCES, Bench, Goal, Lane, Row, least, lines, median

JOBS = {
    "columns": "rows to columns",
    "cyclic": "rows to squares of 64 in turn",
    "centre": "middle quarter of rows to columns",
}
ALLTOALLW = ("openmpi", "mpich", "mpi4py")


def measure(bench: Bench) -> Iterator[Row]:
    """All jobs, lengths and sizes."""
    cases = itertools.product(JOBS, bench.lengths(1024, 4096, 8192), bench.sizes(1, 2, 4))
    for job, length, size in cases:
        versions = FIRST + (5 if length > 2048 else 20)
        yield bench.row(
            f"{JOBS[job]}, {length} x {length}, {size}x{size}",
            lanes(job, length, size, versions),
            bytes=length**2 * 8 // (4 if job == "centre" else 1),
            keys={"job": job, "length": length, "size": size},
        )


def lanes(job: str, length: int, size: int, versions: int) -> dict[str, Lane]:
    """What takes turns."""

    def alltoallw(library: str) -> list[float]:
        words = [*programs.starter(library, 2 * size), programs.alltoallw(library)]
        return lines([*words, job, versions, length])

    def scalapack() -> list[float]:
        words = [*programs.starter("openmpi", 2 * size), programs.scalapack()]
        return lines([*words, job, versions, length])

    def mpi4py() -> list[float]:
        script = SOURCES / "alltoallw_numpy.py"
        words = [*programs.starter("openmpi", 2 * size), programs.python(), script]
        return lines([*words, job, versions, length])

    every: dict[str, Lane] = {
        "ours": partial(keepers.ours, job, f"{length}x{length}", size, versions, keepers.one_host),
        "strided copy": lambda: lines([programs.strided(), job, size, versions, length]),
        "openmpi": partial(alltoallw, "openmpi"),
        "mpich": partial(alltoallw, "mpich"),
        "pdgemr2d": scalapack,
    }
    # Squares in turn have no type in mpi4py that C doesn't have too.
    return every if job == "cyclic" else every | {"mpi4py": mpi4py}


def goals(rows: list[Row]) -> list[Goal]:
    """Of a strided copy, over the best Alltoallw, and over ScaLAPACK."""
    large = [row for row in rows if row.keys["length"] >= 4096]
    many = [row for row in large if row.keys["size"] > 1]
    one = [row for row in large if row.keys["size"] == 1]
    small = [row for row in rows if row.keys["length"] == 1024]

    def over_alltoallw(some: list[Row]) -> list[float | None]:
        return [row.ratio("ours", *ALLTOALLW) for row in some]

    beside = "from 4096, 2x2 and 4x4"
    copied = median(row.ratio("ours", "strided copy") for row in many)
    slower = least(over_alltoallw(small))
    return [
        Goal(f"of a strided copy by two threads, {beside}: median", copied, 0.85),
        Goal(f"over the best Alltoallw, {beside}: each", least(over_alltoallw(many)), 1.0),
        Goal(f"over the best Alltoallw, {beside}: median", median(over_alltoallw(many)), 1.15),
        Goal("over the best Alltoallw, from 4096, 1x1: each", least(over_alltoallw(one)), 1.0),
        Goal(
            "time beside the best Alltoallw, 1024: each",
            slower and 1 / slower,
            1.5,
            is_least=False,
        ),
        Goal(
            "over pdgemr2d, from 4096: each",
            least(row.ratio("ours", "pdgemr2d") for row in large),
            5.0,
        ),
    ]
