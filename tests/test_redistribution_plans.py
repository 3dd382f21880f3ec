"""Plans of redistributions, with nothing running: against NumPy, and what people see of them."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import exoskel as ex

SHARINGS = ("block", "cyclic", "cyclic(3)", "*", "replicated", "bounds")


def owned(layout: ex.Layout, rank: int) -> tuple[Any, ...]:
    """The indices that a process owns, for `numpy.ix_`."""
    axes = layout.extents(rank)
    return np.ix_(
        *(
            np.concatenate([np.r_[part] for part in [*parts, slice(0)]]).astype(int)
            for parts in axes
        )
    )


def layout_of(shape: tuple[int, ...], words: tuple[str, ...], order: str) -> ex.Layout:
    axes: list[str | list[int]] = []
    grid = []
    for length, word in zip(shape, words, strict=True):
        axes.append([0, length // 4, length // 4, length] if word == "bounds" else word)
        grid.append(1 if word == "*" else 3 if word == "bounds" else 2)
    return ex.Layout(shape, "f8", axes, grid=grid, order=order)


@pytest.mark.parametrize("source", list(itertools.product(SHARINGS, SHARINGS[:3])))
@pytest.mark.parametrize(
    "target", [("block", "*"), ("cyclic(3)", "bounds"), ("replicated", "cyclic")]
)
def test_all_ends_up_where_numpy_puts_it(source: tuple[str, ...], target: tuple[str, ...]) -> None:
    whole = np.random.default_rng(7).random((17, 22))
    there = np.zeros((30, 9))
    rows = layout_of(whole.shape, source, "C")
    columns = layout_of(there.shape, target, "F")
    planned = ex.plan(rows, columns, select="[1::2, 2:20]", into="[5:23, :8]", permute=(1, 0))
    there[5:23, :8] = whole[1::2, 2:20].T
    parts = [np.ascontiguousarray(whole[owned(rows, rank)]) for rank in range(rows.processes)]
    for rank, part in enumerate(planned.run(parts)):
        np.testing.assert_array_equal(part, there[owned(columns, rank)])
    sent = sorted(planned.messages)
    received = [planned.received_by(rank) for rank in range(columns.processes)]
    assert sent == sorted(itertools.chain.from_iterable(received))
    assert planned.bytes == 8 * planned.elements


def test_halos_get_what_the_neighbours_own() -> None:
    field = ex.Layout((8,), "i4", "block", processes=4, halo=1)
    assert [field.local_shape(rank) for rank in range(4)] == [(4,)] * 4
    parts = [np.array([-1, 2 * rank, 2 * rank + 1, -1], "i4") for rank in range(4)]
    filled = ex.plan(field, field).run(parts, fill=-1)
    expected = [[-1, 0, 1, 2], [1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, -1]]
    assert [part.tolist() for part in filled] == expected


def test_other_byte_orders_and_records_keep_their_values() -> None:
    big = ex.Layout((6,), ">f4", "cyclic", processes=2)
    little = ex.Layout((6,), "<f4", "block", processes=3)
    parts = [np.arange(rank, 6, 2).astype(">f4") for rank in range(2)]
    assert [part.tolist() for part in ex.plan(big, little).run(parts)] == [[0, 1], [2, 3], [4, 5]]
    pixel = np.dtype([("red", "u1"), ("depth", "f4")])
    pixels = ex.Layout((4,), pixel, "block", processes=2)
    assert ex.plan(pixels, pixels).bytes == 4 * pixel.itemsize


def test_thousands_of_processes_cost_one_its_own_part() -> None:
    source = ex.Layout((1 << 33,), "f8", "cyclic(37)", processes=4096)
    target = ex.Layout((1 << 33,), "f8", "block", processes=4095)
    sent = ex.plan(source, target).sent_by(5)
    assert sum(message.elements for message in sent) == sum(
        len(range(part.start, part.stop)) for part in source.extents(5)[0]
    )
    assert len(sent) == 4095


@pytest.mark.usefixtures("fonts")
def test_it_can_be_read_and_drawn(tmp_path: Path) -> None:
    rows = ex.Layout((1024, 1024), "f8", "block, *", processes=2)
    columns = ex.Layout((1024, 1024), "f8", "*, block", processes=4)
    planned = ex.plan(rows, columns)
    assert str(planned).splitlines()[2:] == [
        "8 messages, 8.0 MiB",
        "a process of the source sends 4.0 MiB to 4.0 MiB, 4.0 MiB on average",
        "a process of the target gets 2.0 MiB to 2.0 MiB, 2.0 MiB on average",
        "",
        "  from\\to          0          1          2          3",
        "        0    1.0 MiB    1.0 MiB    1.0 MiB    1.0 MiB",
        "        1    1.0 MiB    1.0 MiB    1.0 MiB    1.0 MiB",
    ]
    assert (
        repr(rows) == "<exoskel.Layout of 1024 x 1024 of <f8, (block, whole) over 2 x 1 processes>"
    )
    planned.draw(tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
    empty = ex.plan(rows, columns, select="[:0]", into="[:0]")
    assert (empty.messages, empty.bytes) == ([], 0)
    assert str(empty).endswith("0 messages, 0 B")


@pytest.mark.usefixtures("fonts")
def test_a_picture_of_many_processes_has_sums() -> None:
    """Aim: a picture costs no more than its cells, also where all of thousands send to all, of which no list can be made."""
    from exoskel.redistribution_picture import drawn

    rows = ex.Layout((6000, 2500), "f8", "block, *", processes=3000)
    columns = ex.Layout((6000, 2500), "f8", "*, block", processes=2500)
    planned = ex.plan(rows, columns)
    [panel, _] = drawn(planned).axes
    assert panel.get_title() == f"{3000 * 2500} messages, {6000 * 2500 * 8} bytes"
    cells = panel.images[0].get_array()
    assert cells is not None
    # Three processes by three: a process sends two cells to each.
    assert cells.shape == (1000, 834)
    assert (cells[:, :-1] == 3 * 3 * 2 * 8).all()
    assert (cells[:, -1] == 3 * 1 * 2 * 8).all()
    assert (panel.get_xlim(), panel.get_ylim()) == ((-0.5, 2499.5), (2999.5, -0.5))
    assert planned._messages is None
    halves = ex.plan(
        ex.Layout((8,), "f8", "block", processes=4), ex.Layout((8,), "f8", "block", processes=2)
    )
    [small, bar] = drawn(halves).axes
    cells = small.images[0].get_array()
    assert cells is not None
    assert cells.tolist() == [[16, None], [16, None], [None, 16], [None, 16]]
    assert bar.get_ylabel() == "bytes of a message"


def test_grids_are_as_even_as_they_can_be() -> None:
    def grid(axes: str, processes: int) -> tuple[int, ...]:
        return ex.Layout((64,) * (axes.count(",") + 1), "f8", axes, processes=processes).grid

    assert grid("block, block", 12) == (4, 3)
    assert grid("block, *, cyclic(4)", 7) == (7, 1, 1)
    assert grid("block, block, block", 8) == (2, 2, 2)
    assert grid("replicated, block", 6) == (1, 6)
    assert grid("*, replicated", 6) == (1, 6)
    assert ex.Layout((8,), "f8", [[0, 3, 8]], processes=2).grid == (2,)


@pytest.mark.parametrize(
    ("axes", "options", "words"),
    [
        ("blocks", {"processes": 2}, "expected block"),
        ("block(0)", {"processes": 2}, "expected block"),
        ("block(3)", {"processes": 2}, "take cyclic"),
        ("block, block", {"processes": 2}, "a shape of 1 axes, 2 words"),
        ("blocks", {}, "expected block"),
        ("block, block", {}, "a shape of 1 axes, 2 words"),
        ("block", {"processes": 2, "grid": (2,)}, "how many processes"),
        ("block", {"processes": 0}, r"got processes=0, expected an integer from 1 to 2\*\*31"),
        ("*", {"processes": 2}, "can't be put into a grid"),
        ("*", {"grid": (2,)}, "an axis that is whole"),
        ("cyclic", {"processes": 2, "halo": 1}, "one block"),
        ([[0, 9]], {"processes": 1}, "rising numbers from 0 to 8"),
        ([[0, 5, 8]], {"processes": 1}, "got bounds of 2 blocks for 1 processes, expected a block"),
        ([[0, 5, 8]], {"processes": 4}, "got bounds of 2 blocks for 4 processes, expected a block"),
        ("block", {"processes": 2, "order": "K"}, 'expected "C" or "F"'),
    ],
)
def test_what_is_no_layout_says_why(axes: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ex.Layout((8,), "f8", axes, **options)


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((-1, 8), {}, r"got shape=\(-1, 8\) with -1, expected integers from 0 to 2\*\*63 - 1"),
        ((2**70, 8), {}, r"with 2\*\*70, expected integers from 0 to 2\*\*63 - 1"),
        ((2**63, 8), {}, r"with 2\*\*63, expected"),
        ((2**60, 8), {}, r"got the shape \[1152921504606846976, 8\] with the halo \[0, 0\] of "),
        (8, {}, "got shape=8, expected a sequence of integers"),
        ("88", {}, "got shape='88', expected a sequence of integers"),
        ((8, 1.5), {}, r"got shape=\(8, 1\.5\), expected a sequence of integers"),
        ((), {"axes": ()}, "got a shape of 0 axes, expected 1 to 8"),
        ((8, 8), {"axes": None}, "got axes=None, expected a text or a sequence"),
        ((8, 8), {"axes": (3, "*")}, "got 3 for an axis, expected a word, bounds"),
        ((8, 8), {"axes": ([0, -1, 8], "*")}, r"got bounds=\[0, -1, 8\] with -1, expected"),
        ((8, 8), {"axes": ([0, 2**70], "*")}, r"with 2\*\*70, expected integers from 0"),
        ((8, 8), {"grid": (2,)}, r"got grid=\(2,\) of length 1, expected 2: one integer for each"),
        ((8, 8), {"grid": (-2, 1)}, r"got grid=\(-2, 1\) with -2, expected integers from 1 to"),
        ((8, 8), {"grid": (2**40, 1)}, r"with 2\*\*40, expected integers from 1 to 2\*\*31"),
        ((8, 8), {"grid": (2**20, 2**20)}, r"got the grid \[1048576, 1048576\], expected at least"),
        ((8, 8), {"grid": 2}, "got grid=2, expected a sequence of integers"),
        ((8, 8), {"processes": -1}, "got processes=-1, expected an integer from 1"),
        ((8, 8), {"processes": 2**40}, r"got processes=2\*\*40, expected an integer from 1"),
        ((8, 8), {"processes": 2.5}, "got processes=2.5, expected an integer"),
        ((8, 8), {"halo": -1}, r"got halo=-1, expected an integer from 0 to 2\*\*63 - 1"),
        ((8, 8), {"halo": 2**70}, r"got halo=2\*\*70, expected an integer from 0"),
        ((8, 8), {"halo": (1,)}, r"got halo=\(1,\) of length 1, expected 2: one integer for"),
        ((8, 8), {"halo": (1, -1)}, r"got halo=\(1, -1\) with -1, expected integers from 0"),
        ((8, 8), {"halo": 0.5}, "got halo=0.5, expected an integer or a sequence of integers"),
        ((8, 8), {"order": np.array([1, 2])}, r'got order=array\(\[1, 2\]\), expected "C" or "F"'),
    ],
)
def test_numbers_that_no_layout_has_are_named(
    shape: Any, options: dict[str, Any], words: str
) -> None:
    axes = options.pop("axes", ("block", "*"))
    if "grid" not in options:
        options = {"processes": 2, **options}
    with pytest.raises((ValueError, TypeError), match=words):
        ex.Layout(shape, "f8", axes, **options)


def test_ranks_and_permutations_that_do_not_exist_are_named() -> None:
    layout = ex.Layout((8, 8), "f8", "block, *", processes=2, halo=np.int64(1))
    planned = ex.plan(layout, layout)
    calls = (layout.local_shape, layout.extents, layout.coordinates, planned.sent_by)
    for call in (*calls, planned.received_by):
        for rank, shown in ((-1, "-1"), (2, "2"), (2**40, r"2\*\*40")):
            with pytest.raises(IndexError, match=f"got the rank {shown}.*, expected one of 0 to 1"):
                call(rank)
    with pytest.raises(ValueError, match="got processes=-1, expected an integer from 1"):
        ex.Layout((8,), "f8", "block").over(-1)
    with pytest.raises(
        ValueError, match=r"got permute=\(0, -1\) with -1, expected integers from 0"
    ):
        ex.plan(layout, layout, permute=(0, -1))
    with pytest.raises(TypeError, match=r"got target=3, expected an exoskel\.Layout"):
        ex.plan(layout, 3)  # type: ignore[arg-type]


def test_layouts_that_do_not_fit_say_why() -> None:
    def layout(shape: tuple[int, ...], dtype: str = "f8") -> ex.Layout:
        return ex.Layout(shape, dtype, ["block"] * len(shape), processes=2)

    with pytest.raises(ValueError, match=r"shape \[8, 6\] and the target's \[6, 8\]"):
        ex.plan(layout((8, 6)), layout((6, 8)))
    with pytest.raises(ValueError, match="source of 1 axes and a target of 2"):
        ex.plan(layout((8,)), layout((6, 8)))
    with pytest.raises(ValueError, match="source of <f8 and a target of <f4"):
        ex.plan(layout((8,)), layout((8,), "f4"))
    with pytest.raises(ValueError, match="selection of the source: got the selection"):
        ex.plan(layout((8,)), layout((8,)), select="[::-1]")
    with pytest.raises(ValueError, match=r"permutation \[0, 0\]"):
        ex.plan(layout((8, 8)), layout((8, 8)), permute=(0, 0))
    with pytest.raises(ValueError, match="expected a byte order"):
        layout((8,), "O")
    with pytest.raises(IndexError, match="expected one of 0 to 1"):
        ex.plan(layout((8,)), layout((8,))).sent_by(2)
    with pytest.raises(ValueError, match="parts of the shapes"):
        ex.plan(layout((8,)), layout((8,))).run([np.zeros(8)])


def mesh_parts(cells: int, processes: int, seed: int) -> list[Any]:
    """Each cell belongs to one process, and each process has its cells in an order of its own."""
    random = np.random.default_rng(seed)
    owner = random.integers(processes, size=cells)
    return [random.permutation(np.flatnonzero(owner == rank)) for rank in range(processes)]


def test_any_sets_of_indices_end_up_where_numpy_puts_them() -> None:
    field = np.random.default_rng(1).random((57, 5))
    sources, targets = mesh_parts(57, 4, 2), mesh_parts(57, 3, 3)
    # A target may list what others list, too: cells that its own touch.
    targets[0] = np.concatenate([targets[0], targets[1][:4]]).astype("u4")
    source = ex.Layout((57, 5), "f8", (ex.Indices.of(sources), "*"), processes=4)
    target = ex.Layout((57, 5), "f8", (ex.Indices.of(targets), "block"), grid=(3, 2), order="F")
    assert source.local_shape(1) == (len(sources[1]), 5)
    planned = ex.plan(source, target)
    moved = planned.run([field[cells] for cells in sources])
    for rank, part in enumerate(moved):
        row, column = target.coordinates(rank)
        columns = slice(0, 3) if column == 0 else slice(3, 5)
        np.testing.assert_array_equal(part, field[targets[row]][:, columns])
    blocks = ex.Layout((10, 5), "f8", ("*", "cyclic"), processes=2)
    selected = ex.plan(source, blocks, select="[7:57:5]").run([field[cells] for cells in sources])
    np.testing.assert_array_equal(selected[1], field[7:57:5, 1::2])
    assert str(source) == "57 x 5 of <f8, (indices, whole) over 4 x 1 processes"
    owned_cells = np.concatenate([np.r_[part] for part in source.extents(2)[0]])
    np.testing.assert_array_equal(owned_cells, np.sort(sources[2]))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ([[0, 1], [2, 3, 1]], "rank 0 and rank 1 of the source both list the index 1 on axis 0"),
        ([[0, 1], [3]], "rank 0 of the target wants the index 2 on its axis 0"),
        ([[0, 1], [2, 4]], "process 1 lists the index 4, expected indices from 0 to below 4"),
        ([[0, 1, 2, 3]], "index sets of 1 processes, expected one for each of the 2"),
        ([[0, 1, 0], [2, 3]], "of process 0: got the index 0 at the places 0 and 2"),
        ([[0, -1], [2, 3]], "got the index -1 in the indices of process 0"),
        ([[0.0, 1.0], [2, 3]], "of float64 for the indices of process 0"),
        ([[[0, 1]], [2, 3]], r"an array of \(1, 2\)"),
        ([], "got no indices"),
    ],
)
def test_sets_that_do_not_fit_name_the_process_and_the_index(parts: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ex.plan(
            ex.Layout((4,), "f8", (ex.Indices.of(parts),), grid=(2,)),
            ex.Layout((4,), "f8", ("*",), processes=1),
        )


def test_bounds_and_lists_of_indices_are_not_mistaken() -> None:
    with pytest.raises(ValueError, match=r"ex\.Indices\.of\(parts\) for lists of indices"):
        ex.Layout((4,), "f8", ([[0, 1], [2, 3]],), processes=2)  # type: ignore[list-item]
    alone = ex.Layout((4,), "f8", (ex.Indices([3, 1]),), processes=2)
    with pytest.raises(ValueError, match="indices of one process, expected those of all"):
        ex.plan(alone, alone)
    assert alone.over(2, 1).local_shape(1) == (2,)
    with pytest.raises(ValueError, match="indices of rank 0 on axis 0 are not known"):
        alone.over(2, 1).local_shape(0)
    with pytest.raises(ValueError, match="got a layout for 2 processes, expected 3"):
        alone.over(3, 1)


def test_parts_are_slices_as_numpy_has_them() -> None:
    fine = ex.Layout((60, 40), "f8", ("block", "*"), processes=3)
    coarse = ex.Layout((32, 20), "f8", ("*", "block"), processes=2)
    planned = ex.plan(fine, coarse, select=np.s_[::2, :-1:2], into=np.s_[1:31])
    assert (planned.select, planned.into) == ("[::2, :-1:2]", "[1:31]")
    as_text = ex.plan(fine, coarse, select="[::2, :-1:2]", into="[1:31]")
    assert planned.messages == as_text.messages
    for wrong in (np.s_[::2, 3], [slice(2)], 3, np.s_[..., ::2]):
        with pytest.raises(TypeError, match=r"got select=.*, expected slices, as .* or np\.s_"):
            ex.plan(fine, coarse, select=wrong)  # type: ignore[arg-type]
