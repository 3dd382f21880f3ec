"""The examples of coupled programs run as a reader runs them, and their programs agree on what has moved: with ranks of their own, and of MPI."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

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
    ocean: str, atmosphere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for starter in (ocean, atmosphere):
        if shutil.which(starter) is None:
            pytest.skip(f"{starter} is missing: apt-get install openmpi-bin mpich")
    # An unbuffered Python writes a line and its end one after the other: a starter may put another rank's line between them.
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
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


def climate(*words: str) -> dict[str, Any]:
    """What the coupled climate has come to after a day on a small grid."""
    script = str(ROOT / "examples" / "coupled_climate.py")
    done = subprocess.run(
        [sys.executable, script, "--json", "--rows", "24", "--days", "1", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    said: dict[str, Any] = json.loads(done.stdout)
    return said


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """Both models on a process each."""
    return climate("--processes", "1", "1")


def test_a_climate_moves_heat_and_loses_none(alone: dict[str, Any], tmp_path: Path) -> None:
    assert abs(alone["drift"]) < 1e-10
    assert 0.001 < alone["moved"] < 0.1
    picture = tmp_path / "climate.png"
    # The picture is of the same run, on other processes.
    assert (
        climate("--processes", "3", "2", "--picture", str(picture))["digests"] == alone["digests"]
    )
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("hosts", "protection", "processes"),
    [
        ("2", "coupler", ("2", "1")),
        ("4", "none", ("4", "2")),
        ("4", "coupler", ("2", "3")),
        ("4", "all", ("3", "2")),
    ],
)
def test_a_climate_is_the_same_to_the_last_bit_on_any_hosts(
    alone: dict[str, Any], hosts: str, protection: str, processes: tuple[str, str]
) -> None:
    said = climate("--hosts", hosts, "--protection", protection, "--processes", *processes)
    assert abs(said["drift"]) < 1e-10
    assert said["digests"] == alone["digests"]


def test_the_file_of_the_climate_runs_as_it_is() -> None:
    said = couple(EXAMPLE / "climate.toml")
    assert re.search(r"^ocean \| ocean: 3 days, \d+\.\d+ degrees in this block$", said, re.M)
    moved = re.findall(r"^(\S+) to (\S+) +(\d+) +", said, re.MULTILINE)
    assert moved == [
        ("ocean.temperature", "atmosphere.surface", "36"),
        ("atmosphere.heat", "ocean.heat", "36"),
        ("ocean.temperature", "ocean.around", "216"),
        ("atmosphere.temperature", "atmosphere.around", "216"),
    ]
