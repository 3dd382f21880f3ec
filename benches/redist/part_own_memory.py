"""Two programs on one host, of which one or both have their arrays in memory of their own, as all of MPI's have."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Collection, Iterator
from functools import partial

from benches.redist import keepers, programs
from benches.redist.frame import FIRST, Bench, Goal, Lane, Row, lines, median

# Which ends have memory of their own, by the name of the lane.
ENDS = {
    "ours, both ends": ("source", "target"),
    "ours, source only": ("source",),
    "ours, target only": ("target",),
}
LIBRARIES = ("openmpi", "mpich")
PAGES = {"": (), ", large pages": ("huge",)}
ALLTOALLW = tuple(f"{library}{pages}" for library in LIBRARIES for pages in PAGES)
VERSIONS = FIRST + 3
LOOK_SECONDS = 0.005
SECTOR_BYTES = 512


def measure(bench: Bench) -> Iterator[Row]:
    """Rates, and what memory the host needs besides."""
    for length, size in itertools.product(bench.lengths(4096), bench.sizes(1, 2)):
        yield bench.row(
            f"own memory, {length} x {length}, {size}x{size}",
            lanes(length, size),
            bytes=length**2 * 8,
            keys={"length": length, "size": size},
        )
    for length in bench.lengths(8192):
        yield bench.row(
            f"memory besides arrays, {length} x {length}, 2x2",
            {"ours": partial(besides, length)},
            unit="MiB",
            scale=1 / 2**20,
            first=0,
            keys={"memory": length},
        )


def lanes(length: int, size: int) -> dict[str, Lane]:
    """What takes turns."""

    def alltoallw(library: str, pages: tuple[str, ...]) -> list[float]:
        words = [*programs.starter(library, 2 * size), programs.alltoallw(library)]
        return lines([*words, "columns", VERSIONS, length, *pages])

    own: dict[str, Lane] = {name: partial(ours, length, size, ends) for name, ends in ENDS.items()}
    return own | {
        f"{library}{name}": partial(alltoallw, library, pages)
        for library in LIBRARIES
        for name, pages in PAGES.items()
    }


def ours(length: int, size: int, own: Collection[str]) -> list[float]:
    """Seconds for each version, where these programs have memory of their own."""
    shape = f"{length}x{length}"
    with keepers.one_host(keepers.coupling("columns", [shape])) as places:
        started = []
        for name in ("source", "target"):
            asked = f"{shape},own" if name in own else shape
            words = [programs.ours(), "columns", size, VERSIONS, asked]
            started.append(keepers.start(words, name, places[name]))
        return keepers.versions_of(*started)


def besides(length: int) -> list[float]:
    """The most bytes that the keeper shares while both programs have the arrays elsewhere."""
    most, is_over = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not is_over.wait(LOOK_SECONDS):
            most = max(most, shared_bytes())

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        ours(length, 2, ENDS["ours, both ends"])
    finally:
        is_over.set()
        watcher.join()
    return [float(most)]


def shared_bytes() -> int:
    """What the keeper of this process has of shared memory for arrays."""
    found = {}
    for descriptor in os.listdir("/proc/self/fd"):
        # One may be closed meanwhile.
        with contextlib.suppress(OSError):
            if "exoskel array" in os.readlink(f"/proc/self/fd/{descriptor}"):
                status = os.stat(int(descriptor))
                found[status.st_ino] = status.st_blocks * SECTOR_BYTES
    return sum(found.values())


def goals(rows: list[Row]) -> list[Goal]:
    """Over the best Alltoallw, and what memory is allowed."""
    rates = [row for row in rows if "memory" not in row.keys]
    extra = median(row.values.get("ours") for row in rows if "memory" in row.keys)
    both = median(row.ratio("ours, both ends", *ALLTOALLW) for row in rates)
    return [
        Goal("own memory at both ends / the best Alltoallw", both, 0.9),
        Goal(
            "memory besides arrays, one host, 8192",
            extra,
            64.0,
            is_least=False,
            unit="MiB",
        ),
    ]
