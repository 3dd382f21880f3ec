"""A keeper for each program, and TCP on loopback between them. MPI has its TCP transport here, in clear."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benches.redist import keepers, programs
from benches.redist.frame import FIRST, Bench, Goal, Lane, Row, lines, median

MPI = ("openmpi", "mpich")


def measure(bench: Bench) -> Iterator[Row]:
    """Rows to columns."""
    for length in bench.lengths(4096):
        for size in bench.sizes(2):
            yield bench.row(
                f"rows to columns over TCP, {length} x {length}, {size}x{size}",
                lanes(length, size, FIRST + 5),
                bytes=length**2 * 8,
                keys={"length": length, "size": size},
            )


def lanes(length: int, size: int, versions: int) -> dict[str, Lane]:
    """What takes turns."""

    def alltoallw(library: str) -> list[float]:
        words = [*programs.starter(library, 2 * size, is_tcp=True), programs.alltoallw(library)]
        return lines([*words, "columns", versions, length])

    every: dict[str, Lane] = {
        protection: partial(
            keepers.ours,
            "columns",
            f"{length}x{length}",
            size,
            versions,
            partial(keepers.two_hosts, protection),
        )
        for protection in ("plain", "encrypted")
    }
    return every | {library: partial(alltoallw, library) for library in MPI}


def goals(rows: list[Row]) -> list[Goal]:
    """Over plain MPI."""
    return [
        Goal(
            f"two keepers over TCP, {protection} / plain MPI over TCP",
            median(row.ratio(protection, *MPI) for row in rows),
            bound,
        )
        for protection, bound in (("plain", 1.5), ("encrypted", 1.2))
    ]
