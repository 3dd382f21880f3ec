"""Our tracer beside real MPI libraries: what it writes down of a program whose calls are known, in C and in Fortran."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peers.peer import ROOT, Peer, run

READER = ROOT / "target" / "debug" / "examples" / "key_sequence"
HERE = Path(__file__).parent
RANKS = 4
# The program computes for 20 ms at first. A clock of a thread counts in less than that.
COMPUTES_NS = 20_000_000
# How a program asks for MPI: in C, and by Fortran's three ways.
LANGUAGES = ["C", "mpif.h", "use mpi", "use mpi_f08"]


# What is wrong with a trace and with what was said beside it.
Judge = Callable[[Any, str], list[str]]


@dataclass(frozen=True)
class Library:
    """An MPI library, as Debian tells it from others that are installed too."""

    name: str
    ending: str
    packages: tuple[str, ...]

    def tool(self, name: str) -> str:
        """What one of MPI's programs is called."""
        return f"{name}.{self.ending}"

    def missing(self) -> list[str]:
        """Compilers, and what starts programs."""
        names = [*map(self.tool, ("mpicc", "mpifort", "mpirun")), "gfortran", "make"]
        return [name for name in names if not shutil.which(name)]

    def build(self, language: str, program: Path) -> list[str | Path]:
        """The command that makes the program of known calls."""
        if language == "C":
            # The constants of MPICH for statuses that nobody wants look like too short ones.
            words: list[str | Path] = ["mpicc", "-Wall", "-Werror", "-Wno-stringop-overflow"]
            words.append(HERE / "traced.c")
        else:
            words = ["mpifort", "-cpp", f"-DBINDING={LANGUAGES.index(language)}"]
            # One function for data of several types is no fault here.
            words += ["-O1", "-ffree-line-length-none", "-fallow-argument-mismatch", "-w"]
            words.append(HERE / "traced.F90")
        return [self.tool(str(words[0])), *words[1:], "-o", program]

    def start(self) -> list[str | Path]:
        """The beginning of the command that runs the program."""
        command: list[str | Path] = [self.tool("mpirun"), "-n", str(RANKS)]
        if self.ending == "openmpi":
            command.append("--oversubscribe")
            if os.geteuid() == 0:
                command.append("--allow-run-as-root")
        return command


OPEN_MPI = Library("Open MPI", "openmpi", ("libopenmpi-dev", "openmpi-bin"))
MPICH = Library("MPICH", "mpich", ("libmpich-dev", "mpich"))


def expected(rank: int) -> list[list[Any]]:
    """The calls of one rank of `traced.c` and `traced.F90`: name, peer, bytes, tag."""
    after, before = (rank + 1) % RANKS, (rank - 1) % RANKS
    calls: list[list[Any]] = [
        ["init", None, 0, 0],
        ["irecv", before, 64, 1],
        ["isend", after, 64, 1],
        ["waitall", None, 0, 2],
        ["irecv", before, 16, 2],
        ["send", after, 12, 2],
        ["wait", None, 0, 0],
        ["irecv", before, 12, 7],
        ["send", after, 12, 7],
        ["wait", None, 0, 0],
    ]
    if rank == 0:
        calls += [["recv", "anybody", 8, 3]] * 3
        calls += [["irecv", "anybody", 8, 4], ["wait", None, 0, 0]] * 3
    else:
        calls += [["send", 0, 8, 3], ["send", 0, 8, 4]]
    calls += [["isend", after, 2, 6], ["irecv", before, 2, 6], ["waitall", None, 0, 2]] * 2
    return [
        *calls,
        # The root of the half is its last rank.
        ["bcast", 2 + rank % 2, 32, 0],
        ["irecv", (rank + 2) % RANKS, 8, 8],
        ["send", (rank + 2) % RANKS, 8, 8],
        ["wait", None, 0, 0],
        ["barrier", None, 0, 0],
        ["reduce", 3, 16, 0],
        ["allreduce", None, 16, 0],
        ["alltoall", None, 16, 0],
        ["alltoallv", None, 8, 0],
        ["gather", 1, 16, 0],
        ["scatter", 1, 16, 0],
        ["allgather", None, [8, 16, 24, 16][rank], 0],
        ["reducescatter", None, 16, 0],
        ["bcast", 2, 8, 0],
        ["scan", None, 8, 0],
        ["finalize", None, 0, 0],
    ]


def differences(rank: int, calls: list[list[Any]]) -> list[str]:
    """What of a rank's calls is not as expected."""
    wrong = []
    wanted = expected(rank)
    named = [call[:4] for call in calls]
    for kind in ("recv", "irecv"):
        senders = []
        for got, want in zip(named, wanted, strict=False):
            if want[0] == kind and want[1] == "anybody":
                senders.append(got[1])
                got[1] = "anybody"
        if senders and sorted(map(str, senders)) != ["1", "2", "3"]:
            wrong.append(f"rank {rank}: got senders {senders} of {kind}, expected 1, 2 and 3")
    if named != wanted:
        pairs = [pair for pair in zip(named, wanted, strict=False) if pair[0] != pair[1]]
        wrong.append(
            f"rank {rank}: got {len(named)} calls, expected {len(wanted)}; first: {pairs[:1]}"
        )
    half = sorted([rank, (rank + 2) % RANKS])
    for call in calls:
        # The broadcast in the half, and the exchange in it.
        inside = call[:3:2] == ["bcast", 32] or call[3] == 8
        if inside != (sorted(call[6]) == half):
            wrong.append(f"rank {rank}: got a communicator of {call[6]} in {call[:4]}")
    if named == wanted and not COMPUTES_NS <= calls[1][4] < 10 * COMPUTES_NS:
        wrong.append(f"rank {rank}: got a gap of {calls[1][4]} ns, expected {COMPUTES_NS}")
    return wrong


def compare(library: Library) -> list[str]:
    """Builds tracer and programs for an MPI library, and runs these to their end, to their death, and with what is not written down."""
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copytree(ROOT / "tracer", folder / "tracer")
        tracer = folder / "tracer" / "libexoskel_tracer.so"
        programs = {
            language: folder / f"traced-{number}" for number, language in enumerate(LANGUAGES)
        }
        commands: list[list[str | Path]] = [
            ["make", "-C", tracer.parent, "-B", f"MPICC={library.tool('mpicc')}", tracer.name]
        ]
        commands += [library.build(language, program) for language, program in programs.items()]
        for command in commands:
            done = run(*command)
            if done.returncode:
                return [f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}"]
        runs: list[tuple[list[str], Judge]] = [
            ([], whole),
            (["die"], died),
            (["unseen", str(folder / "file")], silent),
        ]
        for language, program in programs.items():
            for words, judge in runs:
                calls = folder / "calls"
                shutil.rmtree(calls, ignore_errors=True)
                environment = dict(os.environ, EXOSKEL_TRACE=str(calls), LD_PRELOAD=str(tracer))
                done = run(*library.start(), program, *words, env=environment)
                said = done.stdout + done.stderr
                begin = f"{language} {' '.join(words)}".strip()
                if bool(done.returncode) != (judge is died):
                    wrong.append(f"{begin}: mpirun ended with {done.returncode}: {said[-500:]}")
                    continue
                read = run(READER, "calls", calls)
                if read.returncode:
                    wrong.append(f"{begin}: can't be read: {read.stderr.strip()}")
                    continue
                trace = json.loads(read.stdout)
                wrong += [f"{begin}: {fault}" for fault in judge(trace, said)]
                if judge is whole:
                    count = sum(map(len, trace["ranks"]))
                    print(f"  {language}: {count} calls of {len(trace['ranks'])} ranks")
    return wrong


def whole(trace: Any, said: str) -> list[str]:
    """A program that ran to its end: each call once."""
    wrong = [f"got the note {trace['note']!r}, expected none"] if trace["note"] else []
    if "exoskel tracer" in said:
        wrong.append(f"the tracer said {said!r}, expected nothing")
    if len(trace["ranks"]) != RANKS:
        wrong.append(f"got {len(trace['ranks'])} ranks, expected {RANKS}")
    for rank, calls in enumerate(trace["ranks"]):
        wrong += differences(rank, calls)
    return wrong


def died(trace: Any, said: str) -> list[str]:
    """A program that died: what it leaves can be read."""
    if trace["note"].startswith("ended early"):
        return []
    return [f"got the note {trace['note']!r} of a program that died; it said {said[-200:]!r}"]


def silent(trace: Any, said: str) -> list[str]:
    """A program none of whose messages are written down: somebody says so."""
    wrong = []
    names = [[call[0] for call in calls] for calls in trace["ranks"]]
    if names != [["init", "finalize"]] * RANKS:
        wrong.append(f"got the calls {names}, expected init and finalize")
    if f"no message and no collective call of {RANKS} of {RANKS} ranks" not in said:
        wrong.append(f"the tracer said {said!r}, expected that it saw nothing")
    if not trace["note"].startswith("said nothing: rank 0, 1, 2, 3"):
        wrong.append(f"got the note {trace['note']!r}, expected that the ranks said nothing")
    return wrong


def peer(library: Library) -> Peer:
    """The comparison with one library."""

    def judge() -> list[str]:
        return compare(library)

    return Peer(
        library.name, ["gcc", "gfortran", "make", *library.packages], library.missing, judge
    )


TRACERS = [peer(OPEN_MPI), peer(MPICH)]
