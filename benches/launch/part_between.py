"""From one worker to another: pieces of 1 MiB, and edges in a ring of processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from benches.engines.run import PEERS, install_peers
from benches.links.install import Missing
from benches.redist.frame import Bench, Goal, Lane, Row, lines

PIECES, QUICK_PIECES = 2000, 100
STEPS, QUICK_STEPS = 1000, 50
PROCESSES = 8
# Processes share processors, so that whoever waits has to give them up.
MPI = (
    *("--oversubscribe", "--allow-run-as-root"),
    *("--mca", "btl", "tcp,self", "--mca", "pml", "ob1", "--mca", "mpi_yield_when_idle", "1"),
)


def measure(bench: Bench) -> Iterator[Row]:
    """Pieces from one slot to the other, then edges."""
    peers = PEERS / "bin" / "python"
    problem = "" if peers.exists() else "the peers aren't installed"
    if not bench.is_quick:
        try:
            install_peers()
        except (OSError, SystemExit) as error:
            problem = str(error)

    def lane(python: Path | str, script: str, *words: object) -> list[float]:
        if python == peers and problem:
            raise Missing(problem)
        return lines([python, Path(__file__).with_name(script), *words])

    pieces = QUICK_PIECES if bench.is_quick else PIECES
    lanes: dict[str, Lane] = {
        name: partial(lane, sys.executable, "between.py", name, pieces)
        for name in ("direct", "manager")
    }
    lanes |= {
        name: partial(lane, peers, "between_peers.py", name, pieces) for name in ("ray", "dask")
    }
    yield bench.row("1 MiB from slot to slot", lanes, bytes=1 << 20, first=0, keys={"pieces": True})
    steps = QUICK_STEPS if bench.is_quick else STEPS

    def mpi() -> list[float]:
        if problem:
            raise Missing(problem)
        script = Path(__file__).with_name("ring_mpi.py")
        words = [PEERS / "bin" / "mpiexec", *MPI, "-n", PROCESSES, peers, script, steps]
        # Libraries of the environment's own.
        return lines(words, {**os.environ, "OMPI_MCA_rmaps_base_oversubscribe": "1"})

    lanes = {"ours": partial(lane, sys.executable, "ring.py", PROCESSES, steps), "mpi4py": mpi}
    yield bench.row(
        f"a step of a ring of {PROCESSES}, edges of 64 KiB",
        lanes,
        unit="ms",
        scale=1e3,
        first=0,
        keys={"ring": True},
    )


def goals(rows: Sequence[Row]) -> list[Goal]:
    """What is to be reached."""
    pieces = next((row for row in rows if "pieces" in row.keys), None)
    ring = next((row for row in rows if "ring" in row.keys), None)
    return [
        Goal(
            "1 MiB directly / through the manager",
            pieces and pieces.ratio("direct", "manager"),
            1.8,
        ),
        Goal("1 MiB directly / Ray", pieces and pieces.ratio("direct", "ray"), 4.0),
        Goal("1 MiB directly / Dask", pieces and pieces.ratio("direct", "dask"), 2.5),
        Goal("steps of a ring / mpi4py over TCP", ring and ring.ratio("mpi4py", "ours"), 1.0),
    ]
