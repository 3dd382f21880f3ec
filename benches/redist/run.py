"""An array from blocks of rows to blocks of columns, between two programs on this host: ours beside MPI's own redistribution.

``python -m benches.redist.run``. Ours are always two programs, coupled by a keeper; MPI's are two halves of one world, which is its best.
All take turns, and each element is checked. What is timed is a version from the first export to the last import. Rows "two hosts" have one
keeper for each program, and TCP on loopback between them; MPI has its TCP transport then, in clear. What comes out goes to
``benches/results/redist.json`` and ``redist.txt``.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from benches.machine import ROOT, describe
from benches.redist.same_host import first_version, highest, round_trip

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
from = "source.filled"
to = "target.filled"
[[connection]]
from = "target.ready"
to = "source.ready"
"""


POLICY = """
[domain.lab]
addresses = ["127.0.0.0/8"]
names = ["*.example.org"]
[[rule]]
from = "lab"
to = "lab"
protection = "{}"
[[allow.rule]]
action = ["coupler.join", "coupler.report", "coupler.stay"]
name = "*.example.org"
"""
MPI = {
    "openmpi": ["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"],
    "mpich": [],
}
MPI_OVER_TCP = {
    "openmpi": [
        "--mca",
        "pml",
        "ob1",
        "--mca",
        "btl",
        "tcp,self",
        "--mca",
        "btl_tcp_if_include",
        "lo",
    ],
    "mpich": ["-genv", "MPIR_CVAR_NOLOCAL", "1"],
}


def build() -> tuple[Path, dict[str, Path]]:
    """Build ours, the limit, and the peers that there are."""
    PLACE.mkdir(parents=True, exist_ok=True)
    cargo = ["cargo", "build", "--locked", "--quiet", "--release", "--package", "exoskel-c"]
    subprocess.run(cargo, cwd=ROOT, check=True)
    libraries = ROOT / "target" / "release"
    own = ["-I", ROOT / "crates/c/include", "-L", libraries, f"-Wl,-rpath,{libraries}", "-lexoskel"]
    compiled("cc", "ours.c", PLACE / "ours", own)
    compiled("cc", "round_trip.c", PLACE / "round_trip", own)
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


@contextlib.contextmanager
def one_host() -> Iterator[dict[str, Path]]:
    """One keeper for both programs: where each finds it."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "keeper")
        keeper = _core.Keeper(place, COUPLING)
        try:
            yield {"source": place, "target": place}
        finally:
            keeper.end()


@contextlib.contextmanager
def two_hosts(protection: str) -> Iterator[dict[str, Path]]:
    """A keeper for each program, in processes of their own, and TCP between them."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command("pki", "init", folder / "ca")
        for name in ("head", "lab"):
            words = ("--role", "peer", "--name", f"{name}.example.org")
            output = folder / f"{name}.pem"
            command("pki", "issue", "--directory", folder / "ca", *words, "--output", output)
        policy = folder / "policy.toml"
        policy.write_text(POLICY.format(protection))
        (folder / "coupling.toml").write_text(COUPLING)
        sockets = {name: folder / name for name in ("source", "target")}
        own = ["--listen", "tcp://127.0.0.1:0", "--policy", policy]
        couple = ["couple", folder / "coupling.toml", *own, "--credential", folder / "head.pem"]
        process = stack.enter_context(running(*couple))
        assert process.stderr is not None
        head = process.stderr.readline().split("--join ")[1].split()[0]
        for name, socket in sockets.items():
            join = ["keeper", "--join", head, "--coupler", "head.example.org", *own]
            more = ["--credential", folder / "lab.pem", "--socket", socket]
            keeper = stack.enter_context(running(*join, *more))
            assert keeper.stdout is not None
            if "has joined" not in keeper.stdout.readline():
                raise SystemExit(f"the keeper of {name} has not joined")
        yield sockets


def command(*words: object) -> None:
    """Run a command of ours to its end."""
    subprocess.run(
        [sys.executable, "-m", "exoskel", *map(str, words), "--json"],
        stdout=subprocess.DEVNULL,
        check=True,
    )


@contextlib.contextmanager
def running(*words: object) -> Iterator[subprocess.Popen[str]]:
    """Run a command of ours in a block."""
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "exoskel", *map(str, words)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


Hosts: TypeAlias = contextlib.AbstractContextManager[dict[str, Path]]


def ours(
    program: Path,
    length: int,
    size: int,
    versions: int,
    hosts: Callable[[], Hosts],
    own: tuple[str, ...] = (),
) -> list[float]:
    """Seconds for each version, by two programs of ours; those named in `own` have memory of their own."""
    with hosts() as places:
        started = {
            name: [
                subprocess.Popen(
                    [program, name, str(rank), str(size), str(length), axes, str(versions)]
                    + ["own"] * (name in own),
                    env={"EXOSKEL_KEEPER": str(places[name])},
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
    every: dict[str, Callable[[], list[float]]] = {
        "ours": lambda: ours(program, length, size, versions, one_host),
        "strided": lambda: lines([PLACE / "strided", length, size, versions]),
    }
    for name, peer in peers.items():
        words = [f"mpiexec.{name}", *MPI[name], "-n", 2 * size, peer, length, versions]
        every[name] = partial(lines, words)
    return every


def lanes_of_own_memory(
    program: Path, peers: dict[str, Path], length: int, size: int
) -> dict[str, Callable[[], list[float]]]:
    """The same where one end or both have memory of their own, as all of MPI's have."""
    versions = FIRST + 5
    ends = {
        "own to own": ("source", "target"),
        "own source": ("source",),
        "own target": ("target",),
    }
    every: dict[str, Callable[[], list[float]]] = {
        name: partial(ours, program, length, size, versions, one_host, own)
        for name, own in ends.items()
    }
    for name, peer in peers.items():
        words = [f"mpiexec.{name}", *MPI[name], "-n", 2 * size, peer, length, versions]
        every[name] = partial(lines, words)
        every[f"{name}, large pages"] = partial(lines, [*words, "huge"])
    return every


def lanes_between_hosts(
    program: Path, peers: dict[str, Path], length: int, size: int
) -> dict[str, Callable[[], list[float]]]:
    """The same over TCP."""
    versions = FIRST + 5
    every: dict[str, Callable[[], list[float]]] = {
        protection: partial(ours, program, length, size, versions, partial(two_hosts, protection))
        for protection in ("plain", "encrypted")
    }
    for name, peer in peers.items():
        words = [f"mpiexec.{name}", *MPI[name], *MPI_OVER_TCP[name]]
        every[name] = partial(lines, [*words, "-n", 2 * size, peer, length, versions])
    return every


def measured(turning: dict[str, Callable[[], list[float]]], rounds: int) -> dict[str, float]:
    """Seconds for a version, of each: medians."""
    times: dict[str, list[float]] = {name: [] for name in turning}
    for _ in range(rounds):
        for name, lane in turning.items():
            times[name] += lane()[FIRST:]
    return {name: statistics.median(found) for name, found in times.items()}


def row_of_own_memory(
    program: Path, peers: dict[str, Path], length: int, size: int, rounds: int
) -> dict[str, Any]:
    """Both ends in memory of their own, beside the peers."""
    medians = measured(lanes_of_own_memory(program, peers, length, size), rounds)
    rates = {name: length**2 * 8 / median / 1e9 for name, median in medians.items()}
    best = max((rate for name, rate in rates.items() if name.split(",")[0] in peers), default=None)
    over = best and rates["own to own"] / best
    shown = "  ".join(f"{name} {rate:5.1f}" for name, rate in rates.items())
    text = f"{length:5} {size}x{size} own memory  {shown} GB/s"
    if over:
        text += f"   own to own / the best Alltoallw {over:.2f}"
    return {"own memory": length, "size": size, "GB/s": rates, "over": over, "text": text}


def rows_of_one_host(program: Path, lengths: list[int]) -> Iterator[dict[str, Any]]:
    """What is small: a number there and back, a first version, memory besides arrays."""
    medians = round_trip(PLACE / "round_trip", 20_000)
    over = medians["ours"] / medians["futex"]
    text = f"one number there and back: {medians['ours'] * 1e6:.1f} us, futexes {medians['futex'] * 1e6:.1f} us: {over:.2f}"
    yield {"round trip": medians, "over": over, "text": text}
    for sizes in ((4, 4), (64, 48)):
        seconds = min(first_version(program, COUPLING, 1024, sizes) for _ in range(3))
        text = f"8 MiB {sizes[0]}x{sizes[1]}, last attach to last import: {seconds * 1e3:.1f} ms"
        yield {"first version": sizes, "seconds": seconds, "text": text}
    for length in lengths:
        both = ("source", "target")
        run = partial(ours, program, length, 2, FIRST + 5, one_host, both)
        most = highest(run)
        text = f"{length:5} 2x2 own memory: {most / 2**20:.1f} MiB besides arrays of {length**2 * 8 / 2**20:.0f} MiB"
        yield {"memory besides arrays": length, "bytes": most, "text": text}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 4096, 8192])
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--lengths-own", type=int, nargs="*", default=[4096, 8192])
    parser.add_argument("--lengths-between-hosts", type=int, nargs="*", default=[4096])
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
    for length, size in itertools.product(arguments.lengths_own, [1, 2]):
        rows.append(row_of_own_memory(program, peers, length, size, arguments.rounds))
        texts.append(rows[-1]["text"])
        print(texts[-1], flush=True)
    for row in rows_of_one_host(program, arguments.lengths_own):
        rows.append(row)
        texts.append(row["text"])
        print(texts[-1], flush=True)
    for length, size in itertools.product(arguments.lengths_between_hosts, [2]):
        turning = lanes_between_hosts(program, peers, length, size)
        medians = measured(turning, arguments.rounds)
        rates = {name: length**2 * 8 / median / 1e9 for name, median in medians.items()}
        best = max((rates[name] for name in peers), default=None)
        over = {name: best and rates[name] / best for name in ("plain", "encrypted")}
        rows.append({"two hosts": length, "size": size, "GB/s": rates, "over": over})
        shown = "  ".join(f"{name} {rate:5.1f}" for name, rate in rates.items())
        ratios = [
            f"{name} / the best plain Alltoallw {one:.2f}" for name, one in over.items() if one
        ]
        texts.append("   ".join([f"{length:5} {size}x{size} two hosts  {shown} GB/s", *ratios]))
        print(texts[-1], flush=True)
    folder = ROOT / "benches" / "results"
    found = {"machine": describe(["openmpi-bin", "mpich"]), "rows": rows}
    (folder / "redist.json").write_text(json.dumps(found, indent=1) + "\n")
    (folder / "redist.txt").write_text("\n".join(texts) + "\n")


if __name__ == "__main__":
    main()
