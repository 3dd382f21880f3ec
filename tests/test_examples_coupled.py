"""The example of coupled programs runs as a reader runs it, and its programs agree on what has moved: with ranks of its own, and of MPI."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "coupled"
OPTIONS = {"mpiexec.openmpi": "--allow-run-as-root --oversubscribe", "mpiexec.mpich": ""}


def couple(file: Path) -> str:
    python = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, "-m", "exoskel", "couple", str(file)],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{python}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def check(said: str) -> None:
    # Behind the program's name its rank, if an MPI's starter says it.
    assert re.search(
        r"^ocean(?: 0)? \| ocean: 20 steps, 10\.768 degrees in this block$", said, re.M
    )
    taken = re.findall(r"process (\d) of 2 has taken (\d+\.\d)", said)
    assert sorted(taken) == [("0", "2860.1"), ("1", "2860.2")]
    assert "lost" not in said
    moved = re.findall(r"^(\S+) to (\S+) +(\d+) +", said, re.MULTILINE)
    assert moved == [
        ("ocean.temperature", "atmosphere.surface", "20"),
        ("ocean.temperature", "ocean.around", "20"),
        ("atmosphere.cooling", "ocean.cooling", "20"),
    ]


def test_an_ocean_and_an_atmosphere_exchange_heat() -> None:
    check(couple(EXAMPLE / "heat.toml"))


@pytest.mark.parametrize(
    ("ocean", "atmosphere"),
    [("mpiexec.openmpi", "mpiexec.mpich"), ("mpiexec.mpich", "mpiexec.mpich")],
)
def test_ranks_of_one_mpi_or_of_two_are_coupled(
    ocean: str, atmosphere: str, tmp_path: Path
) -> None:
    for starter in (ocean, atmosphere):
        if shutil.which(starter) is None:
            pytest.skip(f"{starter} is missing: apt-get install openmpi-bin mpich")
    text = (EXAMPLE / "heat.toml").read_text()
    for size, starter in (("4", ocean), ("2", atmosphere)):
        words = f"{starter} {OPTIONS[starter]} -n {size} python"
        text = text.replace(f"python examples/coupled/ranks.py {size}", words)
    file = tmp_path / "heat.toml"
    file.write_text(text)
    said = couple(file)
    check(said)
    taken = re.findall(r"^atmosphere (\d) \| atmosphere: process (\d) of 2 has taken", said, re.M)
    assert sorted(taken) == [("0", "0"), ("1", "1")]
