"""Beside SimGrid's SMPI: our replay of the same messages takes the same time where nothing is in their way, and what it writes down of a program we read."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.peers.peer import ROOT, Peer, run

VERSION = "3.32"
REPLAY = Path("examples") / "replay"
READER = ROOT / "target" / "debug" / "examples" / "key_sequence"
# The ranks of `written.c`.
WRITTEN_RANKS = 4
TRACES = ROOT / "traces"
# Share by which completion may differ. SimGrid's flows are fluid as ours are, but its latencies end at other moments than ours where flows share a link.
TOLERANCE = 0.05
# Seconds for one trace; the longest takes ten.
TRACE_SECONDS = 120
RANKS = 16
# The same network on both sides: an uncongested crossbar, whose links have 1 GB/s and 1 us each.
PLATFORM = f"""<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="nodes" prefix="node-" suffix="" radical="0-{RANKS - 1}" speed="1Gf" bw="1GBps" lat="1us" sharing_policy="SPLITDUPLEX"/>
</platform>
"""
# No corrections for TCP or for one MPI library, and small messages leave when they are sent, as ours do.
OPTIONS = [
    "--cfg=smpi/bw-factor:0:1",
    "--cfg=smpi/lat-factor:0:1",
    "--cfg=network/crosstraffic:0",
    "--cfg=smpi/async-small-thresh:65536",
]
PARAMETERS = """
level = "message"
compute_jitter_ppm = 0
start_spread_ns = 0
link_rate_bytes_per_second = 1000000000
link_latency_ns = 1000
switch_latency_ns = 0
eager_bytes = 65536
"""


@dataclass
class Bench:
    """A folder with what both sides need, and the folder of our programs."""

    folder: Path
    programs: Path

    def ours(self, trace: str, seed: int = 1) -> Any:
        """What our replay says of a trace."""
        parameters = self.folder / "parameters.toml"
        return json.loads(self.tool(parameters, seed, TRACES / f"{trace}.skct.zst"))

    def tool(self, *arguments: object) -> str:
        """What our tool prints."""
        program = self.programs / REPLAY
        done = run(program, *map(str, arguments), timeout=TRACE_SECONDS)
        if done.returncode:
            raise SystemExit(f"{program} ended with {done.returncode}: {done.stderr}")
        return done.stdout

    def prepare(self, trace: str) -> Path:
        """Writes the same messages for SimGrid; gives the list of files."""
        texts = self.folder / trace
        texts.mkdir(exist_ok=True)
        self.tool("simgrid", texts, TRACES / f"{trace}.skct.zst")
        return texts / "traces"

    def theirs(self, texts: Path) -> float:
        """Seconds of virtual time that SimGrid's replay takes."""
        files = {
            "platform": self.folder / "platform.xml",
            "hostfile": self.folder / "hosts",
            "replay": texts,
        }
        places = [word for name, file in files.items() for word in (f"-{name}", str(file))]
        command = ["smpirun", "-np", str(RANKS), *places, *OPTIONS]
        done = run(*command, timeout=TRACE_SECONDS, cwd=self.folder)
        found = re.search(r"Simulation time ([0-9.]+)", done.stdout + done.stderr)
        if done.returncode or not found:
            raise SystemExit(f"smpirun ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return float(found[1])


@contextmanager
def bench(profile: str) -> Iterator[Bench]:
    """The folder with platform, hosts and parameters; our programs are those of a cargo profile."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "platform.xml").write_text(PLATFORM)
        (folder / "hosts").write_text("".join(f"node-{rank}\n" for rank in range(RANKS)))
        (folder / "parameters.toml").write_text(PARAMETERS)
        yield Bench(folder, ROOT / "target" / profile)


def missing() -> list[str]:
    """SMPI's compiler and launcher, of one version: options and models change between them."""
    if absent := [name for name in ("smpicc", "smpirun") if not shutil.which(name)]:
        return absent
    version = run("smpirun", "-version").stdout
    return [] if VERSION in version else [f"SimGrid {VERSION} (got {version.strip()})"]


def compare() -> list[str]:
    """Completion of every kept trace, and the calls of a program."""
    return [*compare_completion(), *compare_calls()]


def compare_completion() -> list[str]:
    """Completion of every kept trace."""
    wrong = []
    names = sorted(path.name.removesuffix(".skct.zst") for path in TRACES.glob("*.skct.zst"))
    with bench("debug") as both:
        for name in names:
            theirs = both.theirs(both.prepare(name))
            ours = both.ours(name)["completion_seconds"]
            difference = ours / theirs - 1
            line = f"{name}: {theirs:.6f} s by SimGrid, {ours:.6f} s by us, {difference:+.2%}"
            print(f"  {line}")
            if abs(difference) > TOLERANCE:
                wrong.append(f"{line}, expected at most {TOLERANCE:.0%}")
    return wrong


def written(rank: int) -> list[list[Any]]:
    """The calls of one rank of `written.c`: name, peer, bytes, tag. SimGrid writes neither the tags of an exchange nor whom a receive from anybody was from."""
    after, before = (rank + 1) % WRITTEN_RANKS, (rank - 1) % WRITTEN_RANKS
    answers = [["recv", None, 8, 3]] * 3 if rank == 0 else [["send", 0, 8, 3]]
    return [
        ["init", None, 0, 0],
        ["irecv", before, 64, 1],
        ["isend", after, 64, 1],
        ["waitall", None, 0, 2],
        ["irecv", before, 16, 0],
        ["send", after, 12, 0],
        ["wait", None, 0, 0],
        *answers,
        ["barrier", None, 0, 0],
        ["bcast", 2, 32, 0],
        ["reduce", 3, 16, 0],
        ["allreduce", None, 16, 0],
        ["alltoall", None, 16, 0],
        ["gather", 1, 16, 0],
        ["scatter", 1, 16, 0],
        ["allgather", None, 16, 0],
        ["finalize", None, 0, 0],
    ]


def compare_calls() -> list[str]:
    """Runs a program whose calls are known under `smpirun -trace-ti`, and reads what that wrote."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "platform.xml").write_text(PLATFORM)
        hosts = [f"node-{rank}\n" for rank in range(WRITTEN_RANKS)]
        (folder / "hosts").write_text("".join(hosts))
        start: list[str | Path] = ["smpirun", "-np", str(WRITTEN_RANKS), "-hostfile", "hosts"]
        start += ["-platform", "platform.xml", "-trace-ti", "--cfg=tracing/filename:calls"]
        commands: list[list[str | Path]] = [
            ["smpicc", "-o", "written", Path(__file__).with_name("written.c")],
            [*start, "./written"],
            [READER, "calls", folder / "calls"],
        ]
        for command in commands:
            done = run(*command, cwd=folder, timeout=TRACE_SECONDS)
            if done.returncode:
                return [f"{command[0]} ended with {done.returncode}: {done.stderr.strip()[-500:]}"]
        trace = json.loads(done.stdout)
    wrong = []
    if not trace["note"].endswith(
        "; 3 receives are from anybody or nobody, which isn't told apart and is left out"
    ):
        wrong.append(
            f"got the note {trace['note']!r}, expected that three receives are from anybody"
        )
    if len(trace["ranks"]) != WRITTEN_RANKS:
        wrong.append(f"got {len(trace['ranks'])} ranks, expected {WRITTEN_RANKS}")
    for rank, calls in enumerate(trace["ranks"]):
        pairs = zip([call[:4] for call in calls], written(rank), strict=False)
        different = [pair for pair in pairs if pair[0] != pair[1]]
        if different or len(calls) != len(written(rank)):
            wrong.append(
                f"rank {rank}: got {len(calls)} calls, expected {len(written(rank))}; first: {different[:1]}"
            )
    if not wrong:
        print(
            f"  written by smpirun: {sum(map(len, trace['ranks']))} calls of {WRITTEN_RANKS} ranks"
        )
    return wrong


SIMGRID = Peer(f"SimGrid {VERSION}", ["libsimgrid-dev"], missing, compare)
