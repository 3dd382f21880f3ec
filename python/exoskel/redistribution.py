"""Arrays that the processes of a parallel program share, and what moves when another program shares them otherwise.

`plan` needs nothing that runs: it says who sends what to whom.
"""

from __future__ import annotations

import operator
import reprlib
from collections.abc import Iterator, Sequence
from copy import copy
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex, TypeAlias

from . import _core
from .layout_arguments import LENGTH_MAX, PROCESSES_MAX, integer, integers, rank_below

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike, NDArray

    Selection: TypeAlias = str | slice | tuple[slice, ...]
    _AxisSets: TypeAlias = _core.IndexSet | list[_core.IndexSet]

# A table of more processes than this is no help.
_TABLE_MAX = 16


class Indices:
    """An axis whose indices belong to processes in no regular way: the cells of an unstructured mesh, or of a partition by METIS.

    In a coupling each process gives its own indices alone: ``ex.Indices(mine)``. For `plan`, give those of all processes:
    ``ex.Indices.of([part0, part1])``.

    A source has each index once: an index of which two processes are the owners is an error. A target may list what others list as well,
    as cells at a boundary between processes do. An index that a target lists must have an owner in the source. An index that no process
    of the target lists goes nowhere.

    Parameters
    ----------
    mine : array of int, shape (cells,)
        This process's indices, each once, from 0 to below the axis's length. Memory has the cells in this order.

    Raises
    ------
    ValueError
        For what is no list of indices, and for an index that is there twice.

    Examples
    --------
    >>> import exoskel as ex
    >>> cells = ex.Layout((6,), "f8", (ex.Indices.of([[0, 4, 1], [5, 2, 3]]),), processes=2)
    >>> blocks = ex.Layout((6,), "f8", ("block",), processes=2)
    >>> [(m.source, m.target, m.elements) for m in ex.plan(cells, blocks).messages]
    [(0, 0, 2), (0, 1, 1), (1, 0, 1), (1, 1, 2)]
    """

    def __init__(self, mine: ArrayLike) -> None:
        self._sets = [_index_set(mine, "the indices")]
        self._has_all = False

    @classmethod
    def of(cls, parts: Sequence[ArrayLike]) -> Self:
        """Return the axis of all processes: `parts` has the indices of each, in the order of their ranks.

        In a grid of several dimensions the order is that of the coordinates on this axis.

        Raises
        ------
        ValueError
            As for the indices of one process.
        """
        made = cls.__new__(cls)
        made._sets = [
            _index_set(part, f"the indices of process {number}")
            for number, part in enumerate(parts)
        ]
        made._has_all = True
        if not made._sets:
            raise ValueError("got no indices, expected those of at least one process")
        return made

    @property
    def words(self) -> _core.IndexSet | list[_core.IndexSet]:
        """The indices as the core has them."""
        return self._sets if self._has_all else self._sets[0]

    def __repr__(self) -> str:
        """Say how many there are."""
        counts = [len(made) for made in self._sets]
        if not self._has_all:
            return f"<exoskel.Indices of one process, {counts[0]} cells>"
        return f"<exoskel.Indices of {len(counts)} processes, {sum(counts)} cells>"


def _index_set(indices: ArrayLike, what: str) -> _core.IndexSet:
    import numpy as np

    array = np.asarray(indices)
    if array.size == 0 and array.ndim == 1:
        array = array.astype("u8")
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise ValueError(
            f"got an array of {array.shape} of {array.dtype} for {what}, expected one axis of integers"
        )
    if array.dtype.kind == "i" and array.size and array.min() < 0:
        raise ValueError(
            f"got the index {array.min()} in {what}, expected none below 0: indices are those of the whole array"
        )
    try:
        return _core.IndexSet(np.ascontiguousarray(array, "u8"))
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None


def _word(axis: str | Sequence[int] | Indices) -> str | list[int] | _AxisSets:
    if isinstance(axis, str):
        return axis
    if isinstance(axis, Indices):
        return axis.words
    try:
        bounds = [operator.index(bound) for bound in axis]
    except TypeError:
        raise ValueError(
            f"got {reprlib.repr(axis)} for an axis, expected a word, bounds, as [0, 300, 1024], or ex.Indices.of(parts) for lists of indices"
        ) from None
    return integers("bounds", bounds, 0, LENGTH_MAX)


class Layout:
    """How the processes of a parallel program share an array: each axis over one dimension of a grid of processes.

    Parameters
    ----------
    shape : sequence of int
        The whole array's.
    dtype : numpy dtype or str
        Of its elements; any of a fixed size.
    axes : sequence of str, of sequences of int or of Indices
        For each axis ``"block"`` (one block for each process), ``"block(k)"``, ``"cyclic(k)"`` (blocks of k for the processes in turn),
        ``"cyclic"``, ``"whole"`` (or ``"*"``: not shared out), ``"replicated"`` (each process has all of it), or bounds: process p has the
        indices from ``bounds[p]`` to below ``bounds[p + 1]``. One text with commas is as good. With `Indices` each process has any
        indices.
    grid : sequence of int, optional
        Processes in each dimension. Ranks number it by rows, as ``MPI_Cart_create`` does.
    processes : int, optional
        As many as there are, put into a grid that is as even as it can be. A `Member` knows its program's processes: for its arrays
        neither `grid` nor `processes` is needed.
    halo : int or sequence of int
        Cells that each process's memory has on both sides of its block: what its neighbours own.
    order : "C" or "F"
        Which axis is contiguous in memory: the last or the first.

    Raises
    ------
    ValueError
        For what can't be a layout, and for numbers that are too small or too large.
    TypeError
        For a shape, grid or halo that is not of integers.
    """

    def __init__(
        self,
        shape: Sequence[SupportsIndex],
        dtype: DTypeLike,
        axes: str | Sequence[str | Sequence[int] | Indices],
        *,
        grid: Sequence[SupportsIndex] | None = None,
        processes: SupportsIndex | None = None,
        halo: SupportsIndex | Sequence[SupportsIndex] = 0,
        order: str = "C",
    ) -> None:
        import numpy as np

        if not isinstance(order, str) or order not in ("C", "F"):
            raise ValueError(f'got order={reprlib.repr(order)}, expected "C" or "F"')
        if grid is not None and processes is not None:
            raise ValueError(
                f"got grid={grid} and processes={processes}, expected one of the two: how many processes share the array"
            )
        self.shape = tuple(integers("shape", shape, 0, LENGTH_MAX))
        axis_count = len(self.shape)
        self.dtype = np.dtype(dtype)
        self.order = order
        try:
            words = axes.split(",") if isinstance(axes, str) else list(axes)
        except TypeError:
            raise TypeError(
                f"got axes={reprlib.repr(axes)}, expected a text or a sequence: a word for each axis"
            ) from None
        element = self.dtype.str if self.dtype.names is None else f"|V{self.dtype.itemsize}"
        if isinstance(halo, SupportsIndex):
            cells = integer("halo", halo, 0, LENGTH_MAX)
            # Where all is in one memory there is no neighbour.
            halos = [
                0
                if isinstance(word, str) and word.strip() in ("whole", "*", "replicated")
                else cells
                for word in words
            ]
        else:
            expected = "an integer or a sequence of integers"
            halos = integers("halo", halo, 0, LENGTH_MAX, axis_count, expected)
        self._axes = [_word(word) for word in words]
        self._halos = halos
        self._element = element.split("[")[0]
        _core.check_sharing(axis_count, self._axes)
        self._grid = None if grid is None else integers("grid", grid, 1, PROCESSES_MAX, axis_count)
        if processes is not None:
            processes = integer("processes", processes, 1, PROCESSES_MAX)
        self._processes = processes
        self._over: _core.Layout | None = None
        if not self._is_of_one and (grid is not None or processes is not None):
            self._over = self._made(processes or 0, 0)

    @property
    def _is_of_one(self) -> bool:
        """Whether the indices of one process alone are known."""
        return any(isinstance(axis, _core.IndexSet) for axis in self._axes)

    def _made(self, processes: int, rank: int) -> _core.Layout:
        fortran = self.order == "F"
        words = (self._axes, self._grid, processes, self._halos, fortran, rank)
        return _core.Layout(self.shape, self._element, *words)

    @property
    def made(self) -> _core.Layout:
        """The layout over its processes, as the core has it."""
        if self._over is None and self._is_of_one:
            raise ValueError(
                "got a layout with the indices of one process, expected those of all: ex.Indices.of(parts). One process's are for Member.array"
            )
        if self._over is None:
            raise ValueError(
                "got a layout without grid= or processes=, expected one of the two: how many processes share the array"
            )
        return self._over

    def over(self, processes: int, rank: int = 0) -> Layout:
        """Return the same layout over so many processes, unless it has a grid already.

        `rank` is the process whose indices ``ex.Indices(mine)`` are.

        Raises
        ------
        ValueError
            If it has a grid of another size, or no grid fits.
        """
        processes = integer("processes", processes, 1, PROCESSES_MAX)
        known = self
        if self._over is None:
            if self._processes is not None and self._processes != processes:
                raise _other_size(self._processes, processes)
            known = copy(self)
            known._over = self._made(processes, rank)
        if known.processes != processes:
            raise _other_size(known.processes, processes)
        return known

    @property
    def grid(self) -> tuple[int, ...]:
        """Processes in each dimension."""
        return tuple(self.made.grid)

    @property
    def processes(self) -> int:
        """How many processes share the array."""
        return self.made.processes

    def coordinates(self, rank: int) -> tuple[int, ...]:
        """Return where a process is in the grid."""
        return tuple(self.made.coordinates(rank_below(rank, self.processes)))

    def local_shape(self, rank: int) -> tuple[int, ...]:
        """Return the shape of a process's memory, its halo included."""
        return tuple(self.made.local_shape(rank_below(rank, self.processes)))

    def extents(self, rank: int) -> tuple[list[slice], ...]:
        """Return the indices that a process owns: slices of each axis, in ascending order whatever the order in memory."""
        axes = self.made.extents(rank_below(rank, self.processes))
        return tuple([slice(start, stop) for start, stop in ranges] for ranges in axes)

    def __str__(self) -> str:
        """Say how it is shared out."""
        if self._over is None:
            return f"{' x '.join(map(str, self.shape))} of {self._element}, not over processes yet"
        return str(self.made)

    def __repr__(self) -> str:
        """Say how it is shared out."""
        return f"<exoskel.Layout of {self}>"


def _other_size(got: int, processes: int) -> ValueError:
    return ValueError(f"got a layout for {got} processes, expected {processes}: the program's")


class PlannedMessage(NamedTuple):
    """What moves between two processes."""

    source: int
    """The rank of who sends."""
    target: int
    """The rank of who receives."""
    elements: int
    """How many elements."""
    bytes: int
    """How many bytes."""


def _selection_text(what: str, selection: Selection) -> str:
    """Return a selection as a coupling's file has it."""
    if isinstance(selection, str):
        return selection
    axes = selection if isinstance(selection, tuple) else (selection,)
    if not all(isinstance(axis, slice) for axis in axes):
        raise TypeError(
            f'got {what}={reprlib.repr(selection)}, expected slices, as "[::2, 10:20]" or np.s_[::2, 10:20]'
        )
    parts = []
    for axis in axes:
        numbers = [axis.start, axis.stop, *([] if axis.step is None else [axis.step])]
        words = ["" if number is None else str(operator.index(number)) for number in numbers]
        parts.append(":".join(words))
    return f"[{', '.join(parts)}]"


class RedistributionPlan:
    """Who sends what to whom. Made by `plan`; ``print`` shows it."""

    def __init__(
        self,
        source: Layout,
        target: Layout,
        select: Selection | None,
        into: Selection | None,
        permute: Sequence[int] | None,
    ) -> None:
        self.source = source
        self.target = target
        self.select = select = None if select is None else _selection_text("select", select)
        self.into = into = None if into is None else _selection_text("into", into)
        for name, layout in (("source", source), ("target", target)):
            if not isinstance(layout, Layout):
                raise TypeError(f"got {name}={reprlib.repr(layout)}, expected an exoskel.Layout")
        if permute is not None:
            permute = integers("permute", permute, 0, len(source.shape) - 1, len(source.shape))
        self._core = _core.RedistributionPlan(source.made, target.made, select, into, permute)
        self._messages: list[PlannedMessage] | None = None

    def sent_by(self, rank: int) -> list[PlannedMessage]:
        """Return the messages that one process of the source sends. Costs as much as they are, however many processes there are."""
        size = self.source.dtype.itemsize
        rank = rank_below(rank, self.source.processes)
        rows = self._core.sent_by(rank)
        return [PlannedMessage(rank, other, count, count * size) for other, count in rows]

    def received_by(self, rank: int) -> list[PlannedMessage]:
        """Return the messages that one process of the target receives."""
        size = self.source.dtype.itemsize
        rank = rank_below(rank, self.target.processes)
        rows = self._core.received_by(rank)
        return [PlannedMessage(other, rank, count, count * size) for other, count in rows]

    @property
    def messages(self) -> list[PlannedMessage]:
        """All messages, by the ranks of the source."""
        if self._messages is None:
            ranks = range(self.source.processes)
            self._messages = [message for rank in ranks for message in self.sent_by(rank)]
        return self._messages

    @property
    def elements(self) -> int:
        """How many elements move in all."""
        return sum(message.elements for message in self.messages)

    @property
    def bytes(self) -> int:
        """How many bytes move in all."""
        return sum(message.bytes for message in self.messages)

    def run(self, parts: Sequence[NDArray[Any]], fill: Any = 0) -> list[NDArray[Any]]:
        """Return what the processes of the target would have, in this process: to try a plan out.

        Parameters
        ----------
        parts : sequence of numpy arrays
            What the processes of the source have, by their ranks, each of the shape that `Layout.local_shape` says.
        fill : scalar
            What no element is moved to.

        Raises
        ------
        ValueError
            For parts that aren't the source's.
        """
        import numpy as np

        expected = [self.source.local_shape(rank) for rank in range(self.source.processes)]
        shapes = [np.shape(part) for part in parts]
        if shapes != expected:
            raise ValueError(f"got parts of the shapes {shapes}, expected {expected}")
        order: Any = self.target.order
        shapes = [self.target.local_shape(rank) for rank in range(self.target.processes)]
        made = [np.full(shape, fill, self.target.dtype, order) for shape in shapes]
        for rank, part in enumerate(parts):
            seen = np.asarray(part).transpose(self._core.permutation)
            for other, here, there in self._core.cells_sent_by(rank):
                made[other][np.ix_(*there)] = seen[np.ix_(*here)]
        return made

    def draw(self, path: str | PathLike[str]) -> None:
        """Draw who sends how much to whom, into a file whose kind its ending says.

        Of more than 1,000 processes several share a row or a column: a cell has the sum of what moves between them.

        Raises
        ------
        ModuleNotFoundError
            If matplotlib isn't there.
        """
        from .redistribution_picture import drawn

        drawn(self).savefig(path)

    def __str__(self) -> str:
        """Show who sends how much to whom."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        part = f"{self.select} of " if self.select else ""
        place = f"{self.into} of " if self.into else ""
        yield f"from {part}{self.source}"
        yield f"to {place}{self.target}"
        messages = self.messages
        yield f"{len(messages)} messages, {size_text(self.bytes)}"
        if not messages:
            return
        for name, count, ranks in (
            ("a process of the source sends", self.source.processes, [m.source for m in messages]),
            ("a process of the target gets", self.target.processes, [m.target for m in messages]),
        ):
            totals = [0] * count
            for rank, message in zip(ranks, messages, strict=True):
                totals[rank] += message.bytes
            least, most = size_text(min(totals)), size_text(max(totals))
            mean = size_text(sum(totals) / count)
            yield f"{name} {least} to {most}, {mean} on average"
        if max(self.source.processes, self.target.processes) > _TABLE_MAX:
            return
        sizes = {(message.source, message.target): message.bytes for message in messages}
        columns = range(self.target.processes)
        yield ""
        yield "".join(["  from\\to", *(f"{column:>11}" for column in columns)])
        for row in range(self.source.processes):
            cells = [sizes.get((row, column)) for column in columns]
            shown = [f"{'-' if cell is None else size_text(cell):>11}" for cell in cells]
            yield "".join([f"{row:>9}", *shown])

    def __repr__(self) -> str:
        """Say between whom it is."""
        return f"<exoskel.RedistributionPlan from {self.source} to {self.target}>"


def plan(
    source: Layout,
    target: Layout,
    *,
    select: Selection | None = None,
    into: Selection | None = None,
    permute: Sequence[int] | None = None,
) -> RedistributionPlan:
    r"""Return who sends what to whom when an array moves from one layout to another. Nothing has to run.

    Parameters
    ----------
    source, target : Layout
        How both programs share the array out.
    select : str, slice or tuple of slices, optional
        Which part of the source: slices with steps, as ``"[::2, 10:20]"``, which is how a coupling's file has them, or ``np.s_[::2, 10:20]``.
    into : str, slice or tuple of slices, optional
        Which part of the target gets it.
    permute : sequence of int, optional
        The target's axis a comes from the source's axis ``permute[a]``, as `numpy.transpose` has it.

    Returns
    -------
    RedistributionPlan
        ``print`` shows it; ``messages``, ``bytes``, ``sent_by(rank)``, ``draw(path)``.

    Raises
    ------
    ValueError
        For layouts that don't fit each other, with both shapes; for `Indices` that several processes of the source list, or that nobody
        there lists and the target wants.

    Examples
    --------
    >>> import exoskel as ex
    >>> rows = ex.Layout((8, 6), "f8", ("block", "*"), processes=2)
    >>> columns = ex.Layout((8, 6), "f8", ("*", "block"), processes=3)
    >>> print(ex.plan(rows, columns))
    from 8 x 6 of <f8, (block, whole) over 2 x 1 processes
    to 8 x 6 of <f8, (whole, block) over 1 x 3 processes
    6 messages, 384 B
    a process of the source sends 192 B to 192 B, 192 B on average
    a process of the target gets 128 B to 128 B, 128 B on average
    <BLANKLINE>
      from\to          0          1          2
            0       64 B       64 B       64 B
            1       64 B       64 B       64 B
    """
    return RedistributionPlan(source, target, select, into, permute)


def size_text(count: float) -> str:
    """Return a number of bytes in the unit that fits."""
    if count < 1024:
        return f"{count:.0f} B"
    units = ("KiB", "MiB", "GiB", "TiB")
    power = min(len(units), (int(count).bit_length() - 1) // 10)
    return f"{count / 1024**power:.1f} {units[power - 1]}"
