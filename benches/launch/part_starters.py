"""What others start many Pythons with, beside ours: `srun`, MPICH's `mpiexec` and `ssh`, each from nothing to the end of all."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benches.links.install import Missing, program
from benches.redist import programs
from benches.redist.frame import COMPLAINT_MAX, Bench, Goal, Lane, Row, lines
from tests import slurm_cluster, ssh_server

COUNT = 200
SECONDS = 300.0
# Of the cluster's two nodes each. Slurm counts a processor for each task.
PROCESSORS = 128
SSH_COUNT = 100
SSH_LANES = ("ours by ssh", "ssh, one by one")
WITH_MPI = "from mpi4py import MPI; MPI.COMM_WORLD.Barrier()"


def measure(bench: Bench) -> Iterator[Row]:
    """All lanes, in turns. One cluster serves all rounds."""
    yield measured(bench)
    yield by_ssh(bench)


def by_ssh(bench: Bench) -> Row:
    """Return the row of OpenSSH, whose server is on loopback: one request, beside a login for each process."""
    count = 10 if bench.is_quick else SSH_COUNT
    text, keys = f"{count} processes on a host behind ssh", {"by_ssh": count}
    what = ssh_server.missing()
    if what is not None:

        def absent() -> list[float]:
            raise Missing(what)

        return bench.row(text, dict.fromkeys(SSH_LANES, absent), unit="s", first=0, keys=keys)
    with (
        tempfile.TemporaryDirectory(prefix="exoskel-bench-") as place,
        ssh_server.server(Path(place)) as command,
    ):
        script = Path(__file__).with_name("over_ssh.py")
        one = shlex.join([*command, "127.0.0.1", sys.executable, "-c", "pass"])
        loop = f"for number in $(seq {count}); do {one} || exit; done"
        lanes: dict[str, Lane] = dict(
            zip(
                SSH_LANES,
                (
                    lambda: lines([sys.executable, script, count, *command]),
                    lambda: timed(["sh", "-c", loop]),
                ),
                strict=True,
            )
        )
        return bench.row(text, lanes, unit="s", first=0, keys=keys)


def measured(bench: Bench) -> Row:
    """Return the one row."""
    count = 20 if bench.is_quick else COUNT
    text, keys = f"{count} processes on the nodes of Slurm", {"starters": count}
    lanes: dict[str, Lane] = {"mpiexec, mpi4py": lambda: mpiexec(count)}
    what = slurm_cluster.missing()
    if what is not None:

        def absent() -> list[float]:
            raise Missing(what)

        every = {"ours by Slurm": absent, "srun": absent} | lanes
        return bench.row(text, every, unit="s", first=0, keys=keys)
    with slurm_cluster.cluster(PROCESSORS) as cluster:
        script = Path(__file__).with_name("on_nodes.py")
        every = {
            "ours by Slurm": lambda: lines([sys.executable, script, count, cluster.munge_socket]),
            "srun": lambda: srun(count),
        } | lanes
        return bench.row(text, every, unit="s", first=0, keys=keys)


def srun(count: int) -> list[float]:
    """Slurm's own: Pythons that do nothing."""
    options = ["--nodes=2", f"--ntasks={count}", "--mpi=none"]
    return timed([program("srun", "slurm-wlm"), *options, sys.executable, "-c", "pass"])


def mpiexec(count: int) -> list[float]:
    """Ranks of MPI, which meet once."""
    library = [f"LD_LIBRARY_PATH={library_folder()}", "MPI4PY_MPIABI=mpich"]
    words = ["env", *library, *programs.starter("mpich", count), programs.python()]
    return timed([*words, "-c", WITH_MPI])


def library_folder() -> Path:
    """Where MPICH's library has the name that all MPI libraries of its ABI have, which Debian's has not."""
    library = Path(f"/usr/lib/{os.uname().machine}-linux-gnu/libmpich.so.12")
    if not library.exists():
        raise Missing(f"{library} is missing: apt-get install {programs.PACKAGES['mpich']}")
    folder = programs.PLACE / "mpich-abi"
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / "libmpi.so.12"
    link.unlink(missing_ok=True)
    link.symlink_to(library)
    return folder


def timed(words: Sequence[object]) -> list[float]:
    """Run a command, and return its seconds."""
    command = [str(word) for word in words]
    begin = time.perf_counter()
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-COMPLAINT_MAX:]
        raise Missing(f"{Path(command[0]).name} ended with {done.returncode}: {said}")
    return [time.perf_counter() - begin]


def goals(rows: Sequence[Row]) -> list[Goal]:
    """What is to be reached."""
    row, by_ssh_row = rows

    def over(beside: str) -> float | None:
        values = row.values
        ours = values.get("ours by Slurm")
        return ours / values[beside] if ours is not None and beside in values else None

    return [
        Goal("processes through Slurm / srun", over("srun"), 0.5, is_least=False),
        Goal(
            "processes through Slurm / mpiexec with mpi4py",
            over("mpiexec, mpi4py"),
            0.2,
            is_least=False,
        ),
        Goal("ssh, one by one / one request", by_ssh_row.ratio(*reversed(SSH_LANES)), 20.0),
    ]
