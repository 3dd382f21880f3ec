"""Programs in C, Fortran and Python under real MPIs, of two kinds at once, compiled as `exoskel config` says, and coupled."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from tests.processes import children

SOURCES = Path(__file__).parent / "coupled_programs"
STEPS = 4
# What each program adds to its elements, so that nobody can take its own for the other's.
OFFSETS = {"ocean": 100_000, "atmosphere": 500_000}
PACKAGES = {"openmpi": "openmpi-bin libopenmpi-dev", "mpich": "mpich libmpich-dev"}
CONNECTIONS = """
[[connection]]
from = "ocean.given"
to = "atmosphere.taken"
[[connection]]
from = "atmosphere.given"
to = "ocean.taken"
"""


class Half(NamedTuple):
    """How one of the programs runs."""

    library: str
    language: str
    processes: int


def exoskel(*words: str) -> str:
    """Return what the command prints."""
    command = [sys.executable, "-m", "exoskel", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@functools.cache
def starter(library: str) -> str:
    """Return the command that starts processes of an MPI library; skip the test if it isn't there."""
    command = shutil.which(f"mpiexec.{library}")
    if command is None:
        pytest.skip(f"mpiexec.{library} is missing: apt-get install {PACKAGES[library]}")
    options = ""
    if library == "openmpi":
        # There may be fewer processors than processes, and the tests of a container run as root.
        options = "--oversubscribe" + (" --allow-run-as-root" if os.geteuid() == 0 else "")
    return f"{command} {options}"


def command(half: Half, name: str, place: Path) -> str:
    """Return what starts a program, compiled where it has to be."""
    other = next(offset for program, offset in OFFSETS.items() if program != name)
    words = f"{name} {OFFSETS[name]} {other} {STEPS}"
    start = f"{starter(half.library)} -n {half.processes}"
    if half.language == "python":
        return f"{start} {sys.executable} {SOURCES / 'model.py'} {words}"
    compiler = {"c": "mpicc", "fortran": "mpifort"}[half.language] + f".{half.library}"
    if shutil.which(compiler) is None or shutil.which("gfortran") is None:
        pytest.skip(
            f"{compiler} or gfortran is missing: apt-get install gfortran {PACKAGES[half.library]}"
        )
    place.mkdir()
    program = place / "model"
    if half.language == "c":
        source = f"-std=c99 -Wall -Wextra {SOURCES / 'model.c'} $(exoskel config --cflags --libs)"
    else:
        source = (
            f"$(exoskel config --cflags --fortran) {SOURCES / 'model.f90'} $(exoskel config --libs)"
        )
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = f"{compiler} -o {program} {source}"
    done = subprocess.run(
        line,
        shell=True,
        cwd=place,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), line
    return f"{start} {program} {words}"


@pytest.mark.parametrize(
    ("ocean", "atmosphere"),
    [
        (Half("openmpi", "c", 3), Half("mpich", "c", 2)),
        (Half("mpich", "c", 2), Half("openmpi", "python", 3)),
        (Half("openmpi", "fortran", 2), Half("mpich", "c", 3)),
        (Half("mpich", "fortran", 3), Half("openmpi", "fortran", 1)),
        (Half("openmpi", "python", 2), Half("mpich", "python", 4)),
        (Half("mpich", "c", 1), Half("mpich", "fortran", 2)),
    ],
    ids=lambda half: f"{half.library}-{half.language}-{half.processes}",
)
def test_programs_of_two_mpis_and_languages_exchange_arrays(
    ocean: Half, atmosphere: Half, tmp_path: Path
) -> None:
    """Each process checks each element of each version, while its own MPI goes on."""
    lines = []
    for name, half in {"ocean": ocean, "atmosphere": atmosphere}.items():
        lines += [f"[program.{name}]", f"command = '{command(half, name, tmp_path / name)}'"]
    file = tmp_path / "climate.toml"
    file.write_text("\n".join(lines) + CONNECTIONS)
    words = [sys.executable, "-m", "exoskel", "couple", str(file)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=240, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    for name, half in {"ocean": ocean, "atmosphere": atmosphere}.items():
        # Its line stands behind its rank, which the starter has said.
        pattern = rf"^{name} 0 \| +{STEPS} steps on {half.processes} processes$"
        assert re.search(pattern, said, re.M), said
    for connection in ("ocean.given to atmosphere.taken", "atmosphere.given to ocean.taken"):
        assert re.search(rf"^{re.escape(connection)} +{STEPS} +27\.0 KiB ", said, re.M), said
    assert children(os.getpid()) == []
