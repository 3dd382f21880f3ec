"""What people get wrong with arrays between programs, and what they are told."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided
from tests.test_coupling import SECONDS, TWO
from tests.test_coupling_hosts import HEAD, Cluster, cluster, command

import exoskel as ex
from exoskel import _core

__all__ = ["cluster"]

LAYOUT = ex.Layout((6, 4), "f8", "block,*", processes=1)


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Path]:
    """Return the socket of a keeper of both programs."""
    started = _core.Keeper(tmp_path / "keeper", TWO)
    yield tmp_path / "keeper"
    started.end()


def test_what_is_assigned_to_local_is_not_lost(keeper: Path) -> None:
    """Aim: an array that is put in the place of `local` is none that others see, so it is refused; adding in place is not."""
    with ex.Member("ocean", keeper=keeper) as ocean:
        sst = ocean.array("sst", LAYOUT)
        with pytest.raises(AttributeError, match=r"expected array\.local\[\.\.\.\] = values"):
            sst.local = np.ones((6, 4))
        sst.local += 2
        with ex.Member("atmosphere", keeper=keeper) as atmosphere:
            read = atmosphere.array("sst", LAYOUT)
            with sst.write():
                pass
            with read.read() as local:
                assert (local == 2).all()


def test_arrays_end_with_their_member(keeper: Path) -> None:
    with ex.Member("ocean", keeper=keeper) as ocean:
        sst = ocean.array("sst", LAYOUT)
        with ex.Member("atmosphere", keeper=keeper) as atmosphere:
            read = atmosphere.array("sst", LAYOUT)
            for number in (1, 2):
                with sst.write() as local:
                    local[...] = number
                if number == 1:
                    with read.read() as local:
                        kept = local
        said = r"^atmosphere\.sst can't be used any more, as this process has left"
        # There is a second version, which the process no longer takes.
        with pytest.raises(ex.CouplingError, match=said), read.read():
            pass
        with pytest.raises(ex.CouplingError, match=said):
            _ = read.local
        assert (kept == 1).all()
        assert read.version == 1
        with pytest.raises(ex.CouplingError, match=r"^atmosphere\.heat can't be used any more"):
            atmosphere.array("heat", LAYOUT)
    said = r"^ocean\.sst can't be used any more, as this process has left"
    with pytest.raises(ex.CouplingError, match=said), sst.write():
        pass


def test_a_write_that_outlives_its_member_exports_nothing(keeper: Path) -> None:
    ocean = ex.Member("ocean", keeper=keeper)
    sst = ocean.array("sst", LAYOUT)
    with pytest.raises(ex.CouplingError, match="this process has left"), sst.write():
        ocean.leave()
    assert sst.exported == 0


@pytest.mark.parametrize(
    ("strides", "step"), [((8, 16), 16), ((0, 8), 0), ((40, -4), 4), ((24, 8), 24)]
)
def test_memory_whose_cells_overlap_is_no_target(
    keeper: Path, strides: tuple[int, int], step: int
) -> None:
    memory: Any = as_strided(np.zeros(400)[200:], (6, 4), strides)
    with ex.Member("atmosphere", keeper=keeper) as atmosphere:
        said = rf"strides \({strides[0]}, {strides[1]}\) for atmosphere\.sst.* A step of {step} bytes is within"
        with pytest.raises(ValueError, match=said):
            atmosphere.array("sst", LAYOUT, memory=memory)
        # Nothing is read into this one.
        atmosphere.array("heat", LAYOUT, memory=memory)


@pytest.mark.parametrize("part", ["[::-1, ::-2]", "[::2, 4:]", "[:6, :4].T.copy().T", "[:6, :4]"])
def test_memory_with_gaps_is_a_target(keeper: Path, part: str) -> None:
    memory = np.zeros((12, 8))
    chosen = {
        "[::-1, ::-2]": memory[:6][::-1, ::-2],
        "[::2, 4:]": memory[::2, 4:],
        "[:6, :4].T.copy().T": memory[:6, :4].T.copy().T,
        "[:6, :4]": memory[:6, :4],
    }[part]
    with (
        ex.Member("ocean", keeper=keeper) as ocean,
        ex.Member("atmosphere", keeper=keeper) as atmosphere,
    ):
        read = atmosphere.array("sst", LAYOUT, memory=chosen)
        values = np.arange(24.0).reshape(6, 4)
        with ocean.array("sst", LAYOUT).write() as local:
            local[...] = values
        with read.read() as local:
            np.testing.assert_array_equal(local, values)


def test_a_program_that_has_described_other_arrays_is_told_by_them(keeper: Path) -> None:
    with ex.Member("atmosphere", keeper=keeper) as atmosphere:
        read = atmosphere.array("sst", LAYOUT)
        with ex.Member("ocean", keeper=keeper) as ocean:
            for name in ("heat", "ssst"):
                with ocean.array(name, LAYOUT).write():
                    pass
        said = (
            r"atmosphere\.sst has no version 1: rank 0 of ocean has left before it has described the array "
            r"\(.*has not said what ocean\.sst is; ocean has described heat, ssst\)"
        )
        with pytest.raises(ex.ProgramLeftError, match=said), read.read():
            pass


class _World:
    """What mpi4py has as its world."""

    def __init__(self, rank: int, size: int) -> None:
        self._rank = rank
        self._size = size

    def Get_rank(self) -> int:
        return self._rank

    def Get_size(self) -> int:
        return self._size


def _mpi4py(rank: int, size: int) -> types.ModuleType:
    """Return what a program has imported as mpi4py."""
    module: Any = types.ModuleType("mpi4py.MPI")
    module.Is_initialized = lambda: True
    module.Is_finalized = lambda: False
    module.COMM_WORLD = _World(rank, size)
    module.Get_library_version = lambda: "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4"
    made: types.ModuleType = module
    return made


@pytest.fixture
def without_starter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the tests' own starter out of the environment."""
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("without_starter")
def test_a_starter_of_another_mpi_than_mpi4py_s_is_said(
    keeper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", _mpi4py(0, 1))
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    said = "PMI_SIZE=2, but mpi4py knows of 1 process alone: mpi4py is built for Open MPI v4.1.4, and the starter is of another MPI"
    with pytest.raises(ValueError, match=said):
        ex.Member("ocean", keeper=keeper)
    # Who says both is asked nothing.
    with ex.Member("ocean", rank=0, size=1, keeper=keeper) as ocean:
        assert (ocean.rank, ocean.size) == (0, 1)


@pytest.mark.usefixtures("without_starter")
def test_what_an_outer_job_has_left_is_no_starter_of_another_mpi(
    keeper: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", _mpi4py(0, 1))
    for name, value in {
        "OMPI_COMM_WORLD_RANK": "3",
        "OMPI_COMM_WORLD_SIZE": "4",
        "PMI_RANK": "0",
        "PMI_SIZE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with ex.Member("ocean", keeper=keeper) as ocean:
        assert (ocean.rank, ocean.size) == (0, 1)


@pytest.mark.parametrize("is_in_file", [False, True])
def test_programs_elsewhere_that_never_come_end_a_wait_that_was_asked_for(
    cluster: Cluster, is_in_file: bool
) -> None:
    file = cluster.place / "climate.toml"
    file.write_text("wait = 0.5\n" + TWO if is_in_file else TWO)
    words = ["--listen", "tcp://127.0.0.1:0", "--credential", str(cluster.credential(HEAD))]
    words += [] if is_in_file else ["--wait", "0.5"]
    with command("couple", str(file), "--json", *words) as couple:
        output, _ = couple.communicate(timeout=SECONDS)
    said = "no process of atmosphere, ocean has attached within 0.5 s"
    assert (couple.returncode, json.loads(output)["failures"]) == (1, [said])


def test_a_keeper_that_takes_the_host_for_the_coupler_s_name_is_told_of_coupler(
    cluster: Cluster,
) -> None:
    cluster.lead(TWO)
    lab = str(cluster.credential("lab1.example.org"))
    [where] = cluster.nodes[0].hints
    words = ["--join", f"tcp://{where}", "--listen", "tcp://127.0.0.1:0", "--credential", lab]
    words += ["--socket", str(cluster.place / "members")]
    with command("keeper", *words) as keeper:
        _, errors = keeper.communicate(timeout=SECONDS)
    assert keeper.returncode == 1
    assert "Or give --coupler NAME, as exoskel couple prints it" in errors
    assert HEAD in errors
