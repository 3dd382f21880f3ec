"""Arrays whose indices belong to processes by index sets, between parallel programs: unstructured meshes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.test_coupling import at_once, members, start
from tests.test_coupling_hosts import Cluster, cluster, leave

import exoskel as ex

__all__ = ["cluster", "start"]

MESH = """
[program.ocean]
[program.atmosphere]
[[connection]]
from = "ocean.mesh"
to = "atmosphere.mesh"
"""
CELLS = 1000


def partition(processes: int, seed: int) -> list[NDArray[np.int64]]:
    """Each cell with one owner, and each owner's cells in an order of its own."""
    random = np.random.default_rng(seed)
    owner = random.integers(processes, size=CELLS)
    return [random.permutation(np.flatnonzero(owner == rank)) for rank in range(processes)]


def values(step: int, cells: Any, layers: int) -> NDArray[np.float64]:
    return step * 1e6 + np.asarray(cells)[:, None] * 10.0 + np.arange(layers)


@pytest.mark.parametrize("target", ["indices", "block", "cyclic(7)", "bounds", "replicated"])
@pytest.mark.parametrize("is_source", [True, False])
def test_sets_meet_every_other_way_to_share_an_axis_out(
    start: Callable[[str], Path], target: str, is_source: bool
) -> None:
    keeper = start(MESH)
    owned = partition(3, 1)
    wanted = partition(2, 2)
    others: dict[str, Any] = {"bounds": [0, 300, CELLS]}
    word = others.get(target, target)
    one = ("ocean", 3) if is_source else ("atmosphere", 3)
    two = ("atmosphere", 2) if is_source else ("ocean", 2)
    regular = ex.Layout((CELLS, 4), "f8", ("*" if word == "indices" else word, "*"), grid=None)
    with members(keeper, **dict([one, two])) as programs:

        def cells_of(program: str, rank: int) -> Any:
            if program == one[0]:
                return owned[rank]
            if target == "indices":
                return wanted[rank]
            own = regular.over(2).extents(rank)[0]
            return np.concatenate([np.r_[part] for part in own])

        def layout_of(program: str, rank: int) -> ex.Layout:
            if program == one[0] or target == "indices":
                return ex.Layout((CELLS, 4), "f8", (ex.Indices(cells_of(program, rank)), "*"))
            return regular

        def write(rank: int) -> None:
            mesh = programs["ocean"][rank].array("mesh", layout_of("ocean", rank))
            cells = cells_of("ocean", rank)
            for step in range(3):
                with mesh.write() as local:
                    local[...] = values(step, cells, 4)

        def read(rank: int) -> None:
            mesh = programs["atmosphere"][rank].array("mesh", layout_of("atmosphere", rank))
            cells = cells_of("atmosphere", rank)
            for step in range(3):
                with mesh.read() as local:
                    np.testing.assert_array_equal(local, values(step, cells, 4))

        writers = [lambda rank=rank: write(rank) for rank in range(len(programs["ocean"]))]
        readers = [lambda rank=rank: read(rank) for rank in range(len(programs["atmosphere"]))]
        at_once(*writers, *readers)


def test_targets_share_cells_and_parts_are_selected_in_a_grid(start: Callable[[str], Path]) -> None:
    keeper = start(MESH + 'select = "[100:900:2, 2:8]"\n')
    owned = partition(2, 3)
    # Cells of the selection, of which both processes have some, and neither has all.
    wanted = [np.arange(0, 260)[::-1], np.arange(240, 390)]
    with members(keeper, ocean=4, atmosphere=2) as programs:

        def write(rank: int) -> None:
            row, column = divmod(rank, 2)
            cells = ex.Indices(owned[row])
            layout = ex.Layout((CELLS, 10), "f8", (cells, "block"), grid=(2, 2), order="F")
            mesh = programs["ocean"][rank].array("mesh", layout)
            assert mesh.local.shape == (len(owned[row]), 5)
            with mesh.write() as local:
                local[...] = values(1, owned[row], 10)[:, 5 * column : 5 * column + 5]

        def read(rank: int) -> None:
            layout = ex.Layout((400, 6), "f8", (ex.Indices(wanted[rank]), "*"))
            mesh = programs["atmosphere"][rank].array("mesh", layout)
            with mesh.read() as local:
                expected = values(1, 100 + 2 * wanted[rank], 10)[:, 2:8]
                np.testing.assert_array_equal(local, expected)

        at_once(
            *[lambda rank=rank: write(rank) for rank in range(4)],
            *[lambda rank=rank: read(rank) for rank in range(2)],
        )


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ([4, 5, 1], "rank 0 and rank 1 of the source both list the index 1 on axis 0"),
        ([4, 5], "rank 0 of the target wants the index 3 on its axis 0"),
    ],
)
def test_sets_that_do_not_fit_fail_at_both_ends(
    start: Callable[[str], Path], second: list[int], words: str
) -> None:
    keeper = start(MESH)
    with members(keeper, ocean=2, atmosphere=1) as programs:

        def write(rank: int) -> None:
            own = ex.Indices([[0, 1, 2], second][rank])
            mesh = programs["ocean"][rank].array("mesh", ex.Layout((6,), "f8", (own,)))
            with mesh.write():
                pass
            with pytest.raises(ex.CouplingError, match=words), mesh.write():
                pass

        def read() -> None:
            mesh = programs["atmosphere"][0].array("mesh", ex.Layout((6,), "f8", ("block",)))
            with pytest.raises(ex.CouplingError, match=words), mesh.read():
                pass

        at_once(lambda: write(0), lambda: write(1), read)


def test_an_index_beyond_the_axis_is_refused(start: Callable[[str], Path]) -> None:
    keeper = start(MESH)
    with members(keeper, ocean=1) as programs:
        layout = ex.Layout((6,), "f8", (ex.Indices([5, 6]),))
        with pytest.raises(ValueError, match="process 0 lists the index 6"):
            programs["ocean"][0].array("mesh", layout)
        some = ex.Indices.of([[0, 1], [2, 3]])
        with pytest.raises(ValueError, match="can't be put into a grid"):
            programs["ocean"][0].array("mesh", ex.Layout((4,), "f8", (some,)))


def test_sets_of_many_runs_are_moved(start: Callable[[str], Path]) -> None:
    """More runs than one message has."""
    keeper = start(MESH)
    count = 300_001
    order = np.random.default_rng(5).permutation(count)
    with members(keeper, ocean=1, atmosphere=2) as programs:

        def write() -> None:
            mesh = programs["ocean"][0].array(
                "mesh", ex.Layout((count,), "i8", (ex.Indices(order),))
            )
            with mesh.write() as local:
                local[...] = order

        def read(rank: int) -> None:
            layout = ex.Layout((count,), "i8", (ex.Indices.of([order[:99], order[99:]]),))
            mesh = programs["atmosphere"][rank].array("mesh", layout)
            with mesh.read() as local:
                np.testing.assert_array_equal(local, [order[:99], order[99:]][rank])

        at_once(write, lambda: read(0), lambda: read(1))


@pytest.mark.parametrize("target", ["indices", "block"])
def test_sets_are_found_by_keepers_of_several_hosts(cluster: Cluster, target: str) -> None:
    cluster.lead(MESH)
    cluster.join()
    cluster.join()
    owned, wanted = partition(4, 7), partition(3, 8)
    # Cells of others, as at a boundary.
    wanted[0] = np.concatenate([wanted[0], wanted[2][:50]])
    if target == "block":
        wanted = [np.arange(0, 334), np.arange(334, 668), np.arange(668, CELLS)]
    ocean = cluster.members("ocean", [0, 1, 1, 2])
    atmosphere = cluster.members("atmosphere", [2, 1, 0])

    def write(rank: int) -> None:
        layout = ex.Layout((CELLS, 4), "f8", (ex.Indices(owned[rank]), "*"))
        mesh = ocean[rank].array("mesh", layout)
        for step in range(3):
            with mesh.write() as local:
                local[...] = values(step, owned[rank], 4)

    def read(rank: int) -> None:
        axis: Any = "block" if target == "block" else ex.Indices(wanted[rank])
        mesh = atmosphere[rank].array("mesh", ex.Layout((CELLS, 4), "f8", (axis, "*")))
        for step in range(3):
            with mesh.read() as local:
                np.testing.assert_array_equal(local, values(step, wanted[rank], 4))

    at_once(
        *[lambda rank=rank: write(rank) for rank in range(4)],
        *[lambda rank=rank: read(rank) for rank in range(3)],
    )
    leave(ocean, atmosphere)


def test_two_owners_on_two_hosts_are_named(cluster: Cluster) -> None:
    cluster.lead(MESH)
    cluster.join()
    ocean = cluster.members("ocean", [0, 1])
    atmosphere = cluster.members("atmosphere", [0])
    words = "rank 0 and rank 1 of the source both list the index 4 on axis 0"

    def write(rank: int) -> None:
        own = ex.Indices([[0, 1, 2, 4], [5, 4, 3]][rank])
        mesh = ocean[rank].array("mesh", ex.Layout((6,), "f8", (own,)))
        with mesh.write():
            pass
        with pytest.raises(ex.CouplingError, match=words), mesh.write():
            pass

    def read() -> None:
        mesh = atmosphere[0].array("mesh", ex.Layout((6,), "f8", ("block",)))
        with pytest.raises(ex.CouplingError, match=words), mesh.read():
            pass

    at_once(lambda: write(0), lambda: write(1), read)
    leave(ocean, atmosphere)


def test_long_stretches_and_single_cells_go_in_one_version(cluster: Cluster) -> None:
    """Between hosts, the first pieces of a version go from where they lie, and those behind them are packed."""
    count = 131_072
    wanted = np.r_[0 : 2 * count, 2 * count : 4 * count : 2, 4 * count - 1]
    cluster.lead(MESH)
    cluster.join()
    [ocean], [atmosphere] = cluster.members("ocean", [0]), cluster.members("atmosphere", [1])
    shape = (4 * count,)

    def write() -> None:
        mesh = ocean.array("mesh", ex.Layout(shape, "f8", "*"))
        for step in range(3):
            with mesh.write() as local:
                local[...] = np.arange(4 * count) + step

    def read() -> None:
        mesh = atmosphere.array("mesh", ex.Layout(shape, "f8", (ex.Indices(wanted),)))
        for step in range(3):
            with mesh.read() as local:
                np.testing.assert_array_equal(local, wanted + step)

    at_once(write, read)
    leave([ocean], [atmosphere])
