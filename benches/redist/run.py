"""An array from blocks of rows to blocks of columns, between two programs on this host: ours beside MPI's own redistribution.

``python -m benches.redist.run``. Ours are always two programs, coupled by a keeper; MPI's are two halves of one world, which is its best.
All take turns, and each element is checked. What is timed is a version from the first export to the last import. What comes out goes to
``benches/results/redist.json`` and ``redist.txt``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benches.machine import ROOT, describe

from exoskel import _core

SOURCES = ROOT / "benches" / "redist"
PLACE = ROOT / "target" / "redist"
# Not counted: pages are touched for the first time, connections are made.
FIRST = 2
COUPLING = """
[program.source]
[program.target]
[[connection]]
from = "source.field"
to = "target.field"
[[connection]]
from = "target.ready"
to = "source.ready"
"""


def build() -> tuple[Path, dict[str, Path]]:
    """Build ours, the limit, and the peers that there are."""
    PLACE.mkdir(parents=True, exist_ok=True)
    cargo = ["cargo", "build", "--locked", "--quiet", "--release", "--package", "exoskel-c"]
    subprocess.run(cargo, cwd=ROOT, check=True)
    libraries = ROOT / "target" / "release"
    own = ["-I", ROOT / "crates/c/include", "-L", libraries, f"-Wl,-rpath,{libraries}", "-lexoskel"]
    compiled("cc", "ours.c", PLACE / "ours", own)
    compiled("cc", "strided.c", PLACE / "strided", ["-lpthread"])
    peers = {}
    for library in ("openmpi", "mpich"):
        compiler, starter = shutil.which(f"mpicc.{library}"), shutil.which(f"mpiexec.{library}")
        if compiler and starter:
            peers[library] = PLACE / f"alltoallw.{library}"
            compiled(compiler, "alltoallw.c", peers[library], [])
        else:
            print(
                f"not measured: {library} is missing (apt-get install openmpi-bin libopenmpi-dev mpich)"
            )
    return PLACE / "ours", peers


def compiled(compiler: str, source: str, program: Path, options: list[object]) -> None:
    """Compile a program."""
    words = [compiler, "-O3", "-Wall", "-o", program, SOURCES / source, *options]
    subprocess.run(list(map(str, words)), check=True)


def ours(program: Path, length: int, size: int, versions: int) -> list[float]:
    """Seconds for each version, by two programs of ours."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "keeper")
        keeper = _core.Keeper(place, COUPLING)
        try:
            started = {
                name: [
                    subprocess.Popen(
                        [program, name, str(rank), str(size), str(length), axes, str(versions)],
                        env={"EXOSKEL_KEEPER": str(place)},
                        stdout=subprocess.PIPE,
                        text=True,
                    )
                    for rank in range(size)
                ]
                for name, axes in (("source", "block,*"), ("target", "*,block"))
            }
            times = {}
            for name, processes in started.items():
                said = [process.communicate()[0].split() for process in processes]
                if any(process.returncode for process in processes):
                    raise SystemExit(f"{name} has failed")
                times[name] = list(zip(*[list(map(int, words)) for words in said], strict=True))
        finally:
            keeper.end()
    pairs = zip(times["source"], times["target"], strict=True)
    return [(max(target) - min(source)) / 1e9 for source, target in pairs]


def lines(words: list[object]) -> list[float]:
    """Seconds for each version, of a program that prints nanoseconds."""
    done = subprocess.run(list(map(str, words)), check=True, capture_output=True, text=True)
    return [float(line) / 1e9 for line in done.stdout.split()]


def lanes(
    program: Path, peers: dict[str, Path], length: int, size: int
) -> dict[str, Callable[[], list[float]]]:
    """What takes turns; each gives seconds for some versions."""
    versions = FIRST + (5 if length > 2048 else 20)
    mpi = {
        "openmpi": ["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"],
        "mpich": [],
    }
    every: dict[str, Callable[[], list[float]]] = {
        "ours": lambda: ours(program, length, size, versions),
        "strided": lambda: lines([PLACE / "strided", length, size, versions]),
    }
    for name, peer in peers.items():
        words = [f"mpiexec.{name}", *mpi[name], "-n", 2 * size, peer, length, versions]
        every[name] = partial(lines, words)
    return every


def measured(turning: dict[str, Callable[[], list[float]]], rounds: int) -> dict[str, float]:
    """Seconds for a version, of each: medians."""
    times: dict[str, list[float]] = {name: [] for name in turning}
    for _ in range(rounds):
        for name, lane in turning.items():
            times[name] += lane()[FIRST:]
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    program, peers = build()
    rows: list[dict[str, Any]] = []
    texts = []
    for length, size in itertools.product(arguments.lengths, arguments.sizes):
        medians = measured(lanes(program, peers, length, size), arguments.rounds)
        rates = {name: length**2 * 8 / median / 1e9 for name, median in medians.items()}
        of_limit = rates["ours"] / rates["strided"]
        best = max((rates[name] for name in peers), default=None)
        over = None if best is None else rates["ours"] / best
        rows.append(
            {"length": length, "size": size, "GB/s": rates, "of strided": of_limit, "over": over}
        )
        shown = "  ".join(f"{name} {rate:5.1f}" for name, rate in rates.items())
        texts.append(
            f"{length:5} {size}x{size}  {shown} GB/s   ours / strided copy {of_limit:.2f}"
            + ("" if over is None else f"   ours / the best Alltoallw {over:.2f}")
        )
        print(texts[-1], flush=True)
    folder = ROOT / "benches" / "results"
    found = {"machine": describe(["openmpi-bin", "mpich"]), "rows": rows}
    (folder / "redist.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "redist.txt").write_text("\n".join(texts) + "\n")


if __name__ == "__main__":
    main()
