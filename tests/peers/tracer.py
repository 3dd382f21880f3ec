"""Our tracer beside a real MPI library: what it writes down of a program whose calls are known."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

from tests.peers.peer import ROOT, Peer, run

READER = ROOT / "target" / "debug" / "examples" / "key_sequence"
PROGRAM = Path(__file__).with_name("traced.c")
# Where else an MPI library may be: the one that the benches install.
PLACES = os.pathsep.join([os.environ.get("PATH", os.defpath), str(ROOT / ".venv-peers" / "bin")])
RANKS = 4
# The program computes for 20 ms at first. A clock of a thread counts in less than that.
COMPUTES_NS = 20_000_000


def tool(name: str) -> str | None:
    """The path of one of MPI's programs."""
    return shutil.which(name, path=PLACES)


def missing() -> list[str]:
    """A compiler for MPI and what starts programs."""
    return [name for name in ("mpicc", "mpirun", "make") if not tool(name)]


def expected(rank: int) -> list[list[Any]]:
    """The calls of one rank of `traced.c`: name, peer, bytes, tag."""
    after, before = (rank + 1) % RANKS, (rank - 1) % RANKS
    calls: list[list[Any]] = [
        ["init", None, 0, 0],
        ["irecv", before, 64, 1],
        ["isend", after, 64, 1],
        ["waitall", None, 0, 2],
        ["irecv", before, 16, 2],
        ["send", after, 12, 2],
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
        ["barrier", None, 0, 0],
        ["reduce", 3, 16, 0],
        ["allreduce", None, 16, 0],
        ["alltoall", None, 16, 0],
        ["gather", 1, 16, 0],
        ["scatter", 1, 16, 0],
        ["allgather", None, [8, 16, 24, 16][rank], 0],
        ["reducescatter", None, 16, 0],
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
    elif not COMPUTES_NS <= calls[1][4] < 10 * COMPUTES_NS:
        wrong.append(f"rank {rank}: got a gap of {calls[1][4]} ns, expected {COMPUTES_NS}")
    return wrong


def compare() -> list[str]:
    """Builds the tracer and the program for the MPI library that is here, and runs it to its end and to its death."""
    wrong = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        library, program = folder / "libexoskel_tracer.so", folder / "traced"
        shutil.copytree(ROOT / "tracer", folder / "tracer")
        mpicc = tool("mpicc")
        commands: list[list[str | Path]] = [
            ["make", "-C", folder / "tracer", f"MPICC={mpicc}", "libexoskel_tracer.so"],
            [str(mpicc), "-Wall", "-Werror", "-o", program, PROGRAM],
        ]
        for command in commands:
            done = run(*command)
            if done.returncode:
                return [f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}"]
        (folder / "tracer" / library.name).rename(library)
        start = [str(tool("mpirun")), "-n", str(RANKS), "--oversubscribe"]
        if os.geteuid() == 0:
            start.append("--allow-run-as-root")
        for words in ([], ["die"]):
            traced = folder / "-".join(["calls", *words])
            environment = dict(os.environ, EXOSKEL_TRACE=str(traced), LD_PRELOAD=str(library))
            done = run(*start, program, *words, env=environment)
            if bool(done.returncode) != bool(words):
                return [f"mpirun ended with {done.returncode}: {done.stderr.strip()[-500:]}"]
            read = run(READER, "calls", traced)
            if read.returncode:
                wrong.append(f"what the tracer left can't be read: {read.stderr.strip()}")
                continue
            trace = json.loads(read.stdout)
            if words:
                if not trace["note"].startswith("ended early"):
                    wrong.append(f"got the note {trace['note']!r} of a program that died")
                continue
            if trace["note"]:
                wrong.append(f"got the note {trace['note']!r}, expected none")
            for rank, calls in enumerate(trace["ranks"]):
                wrong += differences(rank, calls)
            print(f"  {sum(map(len, trace['ranks']))} calls of {RANKS} ranks")
    return wrong


TRACER = Peer("MPI", ["gcc", "libopenmpi-dev", "make", "openmpi-bin"], missing, compare)
