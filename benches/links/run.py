"""`make bench-links`: links and their peers in turn, in one run, on this machine.

All ends of a part are connected at once and take turns (see `turns.py`); the table shows medians over the rounds, and ratios beside the goals.
What comes out goes to ``benches/results/links.json``, ``links.txt`` and ``links.png``; parts of a run have names of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benches import figures
from benches.links import gateways, install, table, unused
from benches.links.install import Missing
from benches.links.lanes import LaneError, LaneProgram, play
from benches.machine import ROOT, describe

RESULTS = ROOT / "benches" / "results"
# Quick runs say little and are not kept.
SCRATCH = ROOT / "target" / "bench"
KIBIBYTE, MEBIBYTE = 1 << 10, 1 << 20
PROTECTIONS = ("plain", "integrity", "encrypted")


@dataclass
class Contest:
    """Lanes that take turns with messages of one size."""

    part: str
    size: int
    # Seconds of a message, for each round.
    times: dict[str, list[float]] = field(default_factory=dict)
    # Why lanes have none.
    failures: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Pace:
    """How long everything takes."""

    rounds: int
    seconds: float

    def of(self, rounds: float, seconds: float = 1.0) -> Pace:
        """So many times of it."""
        return Pace(max(2, round(self.rounds * rounds)), self.seconds * seconds)


class Programs:
    """Programs that run during a part. One that can't be had costs its lanes and nothing else."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.running: list[LaneProgram] = []
        self.failures: dict[str, str] = {}

    def start(self, lanes: Sequence[str], make: Callable[[], LaneProgram]) -> None:
        """Start a program that is to have these lanes."""
        try:
            program = make()
        except (Missing, LaneError, OSError) as error:
            say(f"not measured: {error}")
            self.failures |= dict.fromkeys(lanes, str(error))
            return
        self._stack.callback(program.end)
        self.running.append(program)
        for lane in lanes:
            if lane not in program.lanes:
                self.failures[lane] = "this build of the peer has no such thing"

    def lanes(self) -> list[str]:
        """All that are connected."""
        return [lane for program in self.running for lane in program.lanes]

    def contest(self, part: str, lanes: Sequence[str], size: int, pace: Pace) -> Contest:
        """Let them take turns."""
        there = set(self.lanes())
        turning = [lane for lane in lanes if lane in there]
        say(f"{part}, {size} bytes: {len(turning)} lanes, {pace.rounds} rounds")
        times, failures = play(
            self.running, turning, size, rounds=pace.rounds, seconds=pace.seconds, say=say
        )
        missing = {lane: why for lane, why in self.failures.items() if lane in lanes}
        return Contest(part, size, times, failures | missing)


@contextlib.contextmanager
def programs() -> Iterator[Programs]:
    """Ends them with the block."""
    with contextlib.ExitStack() as stack:
        yield Programs(stack)


def stream(pace: Pace) -> list[Contest]:
    """Messages one way: raw TCP, sessions, rustls, and whole nodes."""
    lanes = ["stream_raw", "stream_raw_again", "stream_rustls"]
    lanes += [f"stream_{protection}" for protection in PROTECTIONS]
    lanes += [f"stream_node_{way}_{one}" for way in ("tcp", "chosen") for one in PROTECTIONS]
    with programs() as running:
        running.start(lanes, lambda: LaneProgram([install.own(), "stream"]))
        return [running.contest("stream", lanes, size, pace) for size in (MEBIBYTE, 64 * KIBIBYTE)]


def mpi(library: str, is_shared: bool, folder: Path) -> LaneProgram:
    """Two ranks of an MPI library, over shared memory or TCP."""
    packages = {"mpich": "mpich", "openmpi": "openmpi-bin"}[library]
    start = install.program(f"mpirun.{library}", packages)
    way = "memory" if is_shared else "tcp"
    pipe = folder / f"{library}-{way}"
    os.mkfifo(pipe)
    words: list[str] = []
    environment: dict[str, str] = {}
    if library == "openmpi":
        words = ["--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1"]
        words += ["--mca", "btl", "self,vader" if is_shared else "self,tcp"]
        words += ["--mca", "btl_tcp_if_include", "lo"]
    elif not is_shared:
        environment = {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "lo"}
    name = f"ping_{library}_{way}"
    command = [start, *words, "-n", "2", install.mpi(library), name, pipe]
    return LaneProgram(command, environment)


def ping(pace: Pace) -> list[Contest]:
    """Round trips of which both ends poll."""
    lanes = ["ping_raw_tcp", "ping_raw_tcp_again", "ping_raw_unix"]
    lanes += [f"ping_{way}_{one}" for way in ("tcp", "unix", "memory") for one in PROTECTIONS]
    with tempfile.TemporaryDirectory() as name, programs() as running:
        running.start(lanes, lambda: LaneProgram([install.own(), "ping"]))
        for library in ("mpich", "openmpi"):
            for is_shared in (True, False):
                lane = f"ping_{library}_{'memory' if is_shared else 'tcp'}"
                lanes.append(lane)
                running.start(
                    [lane],
                    lambda one=library, way=is_shared: mpi(one, way, Path(name)),  # type: ignore[misc]
                )
        return [running.contest("ping", lanes, 64, pace)]


def python(pace: Pace) -> list[Contest]:
    """Requests in Python, of which both ends wait."""
    ours = [
        f"python_exoskel_{way}{one}" for way in ("", "chosen_") for one in ("plain", "encrypted")
    ]
    pyzmq = ["python_pyzmq_plain", "python_pyzmq_curve"]
    grpcio = ["python_grpcio_plain", "python_grpcio_tls"]
    with tempfile.TemporaryDirectory() as name, programs() as running:

        def peer(module: str, *words: str) -> LaneProgram:
            return LaneProgram([install.python(), "-m", f"benches.links.{module}", *words])

        def secured() -> LaneProgram:
            install.certificates(Path(name))
            return peer("grpcio_lanes", name)

        running.start(ours, lambda: module_of_ours("exoskel_lanes"))
        running.start(pyzmq, lambda: peer("pyzmq_lanes"))
        running.start(grpcio, secured)
        lanes = [*ours, *pyzmq, *grpcio]
        return [running.contest("python", lanes, size, pace) for size in (64, MEBIBYTE)]


def module_of_ours(name: str, *words: str) -> LaneProgram:
    """A program in Python that uses our package."""
    return LaneProgram([sys.executable, "-m", f"benches.links.{name}", *words])


def connect(pace: Pace) -> list[Contest]:
    """From nothing to the first answer."""
    lanes = ["connect_rustls", "connect_startpoint"]
    with programs() as running:
        running.start(lanes, lambda: LaneProgram([install.own(), "connect"]))
        return [running.contest("connect", lanes, 1, pace)]


def engine(pace: Pace) -> list[Contest]:
    """Items of a mebibyte to local slots and back."""
    kinds = [
        ("tcp", "plain"),
        ("tcp", "encrypted"),
        ("socketpair", "plain"),
        ("shared memory", "plain"),
    ]
    lanes = [f"engine_{way.replace(' ', '_')}_{protection}" for way, protection in kinds]
    with programs() as running:
        for lane, kind in zip(lanes, kinds, strict=True):
            running.start([lane], lambda kind=kind: module_of_ours("engine_lanes", *kind))  # type: ignore[misc]
        return [running.contest("engine", lanes, MEBIBYTE, pace.of(0.5, 3))]


def peers(pace: Pace) -> list[Contest]:
    """Whole nodes beside what else there is in C and Rust, by its own threads: round trips and streams."""
    ours = [f"{verb}_node_tcp_{one}" for verb in ("ping", "stream") for one in PROTECTIONS]
    others = {
        "libzmq": ["plain", "curve"],
        "nng": ["plain", "tls"],
        "tonic": ["plain", "tls"],
        "zenoh": ["plain", "tls"],
    }
    with tempfile.TemporaryDirectory() as name, programs() as running:
        folder = Path(name)

        def start(peer: str) -> LaneProgram:
            if peer == "libzmq":
                return LaneProgram([install.with_library("zmq")], install.libraries())
            install.certificates(folder)
            files = [folder / file for file in ("authority.pem", "chain.pem", "key.pem")]
            if peer == "nng":
                return LaneProgram([install.with_library("nng"), *files], install.libraries())
            return LaneProgram([install.rust(f"{peer}_lane"), *files])

        running.start(ours, lambda: LaneProgram([install.own(), "node"]))
        lanes = list(ours)
        for peer, kinds in others.items():
            mine = [f"{verb}_{peer}_{kind}" for verb in ("ping", "stream") for kind in kinds]
            lanes += mine
            running.start(mine, lambda peer=peer: start(peer))  # type: ignore[misc]
        return [
            running.contest(
                "peers", [lane for lane in lanes if lane.startswith(verb)], size, pace.of(0.7)
            )
            for verb, size in (("ping", 64), ("stream", MEBIBYTE))
        ]


def gateway(pace: Pace) -> list[Contest]:
    """Through gateways, between hosts of a network, paced and not."""
    lanes = list(gateways.LANES)
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        running = Programs(stack)
        try:
            network = gateways.build(Path(name), stack)
        except (Missing, OSError) as error:
            say(f"not measured: {error}")
            return [Contest("gateway", MEBIBYTE, {}, dict.fromkeys(lanes, str(error)))]
        running.failures |= network.failures
        running.start(network.lanes, network.near)
        found = []
        for part in ("gateway paced", "gateway"):
            paced = part.endswith("paced")
            network.pace(paced)
            wanted = [lane for lane in lanes if not paced or lane in gateways.PACED]
            # What is on the way in buffers must not be the greater part of a turn.
            found.append(running.contest(part, wanted, MEBIBYTE, pace.of(0.25, 8 if paced else 2)))
        return found


PARTS: dict[str, Callable[[Pace], list[Contest]]] = {
    "stream": stream,
    "ping": ping,
    "python": python,
    "connect": connect,
    "gateway": gateway,
    "engine": engine,
    "peers": peers,
}
UNUSED = "unused"


def main() -> int:
    """Measure what was asked for, print the table, write the files."""
    arguments = parse()
    pace = Pace(3, 0.03) if arguments.quick else Pace(arguments.rounds, 0.08)
    contests: list[Contest] = []
    counted: dict[str, Any] = {}
    for part in arguments.part:
        if part == UNUSED:
            counted = unused.count(say)
        else:
            contests += PARTS[part](pace)
    report = {
        "machine": describe(["mpich", "openmpi-bin"])
        | {"python": platform.python_version(), "pinned": pinned()},
        "quick": arguments.quick,
        "rounds": pace.rounds,
        "contests": [asdict(contest) for contest in contests],
        "unused": counted,
    }
    text = table.render(report)
    print(json.dumps(report, indent=1) if arguments.json else text)
    # A run of some parts must not replace the whole one's numbers.
    is_whole = set(arguments.part) == {*PARTS, UNUSED}
    folder = SCRATCH if arguments.quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{'links' if is_whole else '-'.join(['links', *arguments.part])}.json"
    path.write_text(json.dumps(report) + "\n")
    path.with_suffix(".txt").write_text(text + "\n")
    figures.draw("links.plot", path)
    return 0


def pinned() -> list[str]:
    """The versions of the peers that our lock files name."""
    lines = install.LOCK.read_text().splitlines()
    found = [line for line in lines if "==" in line and not line.startswith("typing")]
    lock = (install.SOURCES / "Cargo.lock").read_text()
    for name in ("tonic", "zenoh"):
        behind = lock.partition(f'name = "{name}"')[2]
        found.append(f"{name} {behind.split(chr(34))[1]}")
    return [*found, *install.unpacked_versions()]


def parse() -> argparse.Namespace:
    """Read the command line."""
    every = [*PARTS, UNUSED]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--part", help=f"comma-separated, of: {', '.join(every)}", default="")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes; says little"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    arguments.part = [one for one in arguments.part.split(",") if one] or every
    unknown = sorted(set(arguments.part) - set(every))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are: {', '.join(every)}")
    return arguments


def say(text: str) -> None:
    """Progress, beside the table's stream."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
