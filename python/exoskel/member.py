"""One process of a parallel program whose arrays are handed to other programs, and taken from them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakSet

from . import _core
from .errors import CouplingError, ForkError
from .redistribution import Layout

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

# Names the keeper's socket to the programs that a coupling starts.
KEEPER_VARIABLE = "EXOSKEL_KEEPER"

# Memory of a process, in DLPack's numbers.
_DLPACK_CPU = 1

# Cells that NumPy may try, to say whether two arrays with gaps share memory.
_OVERLAP_WORK = 1_000_000

# What MPI's and Slurm's starters tell each process: its rank and how many there are.
_STARTERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)


class Member:
    """A process of a parallel program, attached to the keeper of its host.

    Its arrays are shared with other programs as the coupling's file says. Nothing of MPI is called, and there is no thread: any MPI will
    do, or none.

    Parameters
    ----------
    program : str
        The program's name in the coupling's file.
    rank, size : int, optional
        Which process this is, and how many there are. Without them mpi4py's world is asked if it is loaded, then what ``mpiexec`` or
        ``srun`` have put into the environment; a process that was started alone is rank 0 of 1.
    keeper : path, optional
        The keeper's socket; ``exoskel couple`` tells it to the programs that it starts. Where nothing is there, as on another host, it
        is the place at which ``exoskel keeper`` waits without ``--socket``.

    Raises
    ------
    KeeperError
        If no keeper answers; the text says how one is started.
    CouplingError
        If the coupling has no such program, or somebody else has this rank.
    ValueError
        For a rank that isn't below the size; and if mpi4py knows of one process where the starter says that there are several.

    Examples
    --------
    ::

        with ex.Member("ocean") as ocean:
            sst = ocean.array("sst", ex.Layout((1024, 2048), "f8", ("block", "block")))
            for step in range(steps):
                with sst.write() as local:
                    local[...] = temperature
    """

    def __init__(
        self,
        program: str,
        *,
        rank: int | None = None,
        size: int | None = None,
        keeper: str | os.PathLike[str] | None = None,
    ) -> None:
        if (rank is None) != (size is None):
            raise ValueError(f"got rank={rank} and size={size}, expected both or neither")
        if rank is None or size is None:
            rank, size = _place_in_world()
        if keeper is None:
            keeper = _keeper_of_environment()
        if not 0 <= rank < size:
            raise ValueError(
                f"got rank={rank} and size={size}, expected a rank from 0 to below the size"
            )
        self.program = program
        self.rank = rank
        self.size = size
        self._left = False
        self._process = os.getpid()
        self._arrays: WeakSet[SharedArray] = WeakSet()
        self._core = _core.Member(Path(keeper), program, rank, size)
        _MEMBERS.add(self)

    def array(self, name: str, layout: Layout, memory: Any = None) -> SharedArray:
        """Describe an array, and return this process's part of it.

        Each process of the program gives the same name and layout; of `Indices` each gives its own. It is made of zeros, in memory that other programs on this host can
        read.

        Parameters
        ----------
        name : str
            What the coupling's file calls it, behind the program's name.
        layout : Layout
            How the program's processes share it out.
        memory : numpy array, DLPack or any buffer, optional
            Memory of your own, of the shape that ``layout.local_shape(rank)`` says and in the layout's order. What is read is copied
            straight into it. What is written is copied out of it when the ``write`` block ends, after which it is yours again. Memory
            with gaps, or in another order, costs one more copy. Cells that no connection writes stay as they are.

        Raises
        ------
        CouplingError
            If other processes of the program say something else, or this process has left.
        ValueError
            If `memory` isn't of the layout's shape and type, or is not in this process's own address space; and if it overlaps the memory of
            another array, when versions are read into one of the two, or if its own cells overlap, when versions are read into it.
        TypeError
            If `memory` is neither an array nor a buffer.
        """
        _check_process(self._process)
        if self._left:
            raise _has_left(f"{self.program}.{name}")
        over = layout.over(self.size, self.rank)
        if over.dtype.names is not None or over.dtype.kind in "Mm":
            raise ValueError(
                f"got elements of {over.dtype}, whose fields or units other programs aren't told; expected plain ones, as i8, or V{over.dtype.itemsize} for mere bytes"
            )
        own = None if memory is None else _own_memory(memory, over, self.rank)
        view = None if own is None else _bytes_without_gaps(own, over.order)
        core = self._core.array(name, over.made, view)
        array = SharedArray(
            core, name, over, self.rank, own, program=self.program, is_direct=view is not None
        )
        _check_own_cells(array)
        _check_overlaps(array)
        self._arrays.add(array)
        return array

    def leave(self, error: BaseException | None = None) -> None:
        """Go. What was exported stays until it has been taken. The arrays can't be used any more.

        Parameters
        ----------
        error : exception, optional
            What ends the process early: the processes at the other ends of its connections are told.
        """
        _check_process(self._process)
        if not self._left:
            self._left = True
            for array in list(self._arrays):
                array._left = True
            text = None if error is None else f"{type(error).__name__}: {error}"[:1000]
            self._core.leave(text)

    def __enter__(self) -> Self:
        """Return the member itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Leave, and tell of the exception if there is one. ``sys.exit()`` and ``sys.exit(0)`` are good order."""
        if self._process != os.getpid():
            # A forked child that ends: it is the parent that is the member.
            return
        if isinstance(error, SystemExit) and error.code in (None, 0):
            error = None
        try:
            self.leave(error)
        except ConnectionError:
            if error is None:
                raise

    def __repr__(self) -> str:
        """Say who it is."""
        return f"<exoskel.Member {self.program}, rank {self.rank} of {self.size}>"


class SharedArray:
    """One process's part of an array that programs hand to each other. Made by `Member.array`.

    Attributes
    ----------
    layout : Layout
        How the program's processes share it out.
    extents : tuple of lists of slices
        The indices of the whole array that this process has, for each axis.
    """

    def __init__(
        self,
        core: _core.SharedArray,
        name: str,
        layout: Layout,
        rank: int,
        memory: NDArray[Any] | None,
        *,
        program: str,
        is_direct: bool = False,
    ) -> None:
        import numpy as np

        self.name = name
        self._said = f"{program}.{name}"
        self.layout = layout
        self._process = os.getpid()
        self._left = False
        self.extents = layout.extents(rank)
        self._core = core
        shape: Sequence[int] = layout.local_shape(rank)
        order: Any = layout.order
        buffer: Any = core
        shared: NDArray[Any] = np.ndarray(shape, layout.dtype, buffer, order=order)
        self._local = shared if memory is None else memory
        # What is between memory with gaps and other programs.
        self._between: NDArray[Any] | None = None
        if memory is not None and not is_direct:
            self._between = shared
            # Cells that no connection writes stay as they are.
            shared[...] = memory

    @property
    def local(self) -> NDArray[Any]:
        """The process's part, its halo included. Its contents are yours inside of `write` and `read`.

        Raises
        ------
        CouplingError
            If this process has left.
        """
        self._check_is_here()
        return self._local

    @local.setter
    def local(self, values: object) -> None:
        # What array.local += 1 comes to.
        if values is not self._local:
            raise AttributeError(
                f"got another object for the contents of {self._said}, which other programs don't see: expected array.local[...] = values"
            )

    @property
    def dtype(self) -> DTypeLike:
        """Of its elements."""
        return self.layout.dtype

    @property
    def exported(self) -> int:
        """The number of the last version that was exported; 0 before the first."""
        return self._core.versions[0]

    @property
    def version(self) -> int:
        """The number of the last version that was read; 0 before the first."""
        return self._core.versions[1]

    @contextmanager
    def write(self) -> Iterator[NDArray[Any]]:
        """Wait until the last version was taken by all who take it, then let it be written; leaving exports the next version.

        An exception inside exports nothing.

        Raises
        ------
        MemberLostError
            If a process that takes it was lost. Processes that have left take nothing more, which is no error.
        CouplingError
            If this process itself has left.
        """
        self._check_is_here()
        self._core.begin_write()
        try:
            yield self._local
            self._check_is_here()
            if self._between is not None:
                self._between[...] = self._local
        except BaseException:
            self._core.abandon()
            raise
        self._core.export()

    @contextmanager
    def read(self) -> Iterator[NDArray[Any]]:
        """Wait for the next version over each connection that ends here, and let it be read: all of it, or an error.

        Raises
        ------
        CouplingError
            If nothing is connected here, or both ends don't fit; the text names both. Also if this process itself has left.
        ProgramLeftError
            If the other program has ended in good order and has no further version.
        MemberLostError
            If a process of it was lost. The contents are then of no version; a further call tries the same version again.
        """
        self._check_is_here()
        self._core.begin_read()
        try:
            if self._between is not None:
                self._local[...] = self._between
            yield self._local
        finally:
            self._core.end_read()

    def _check_is_here(self) -> None:
        _check_process(self._process)
        if self._left:
            raise _has_left(self._said)

    def __repr__(self) -> str:
        """Say what it is."""
        return f"<exoskel.SharedArray {self.name}: {self.layout}>"


def _own_memory(memory: Any, layout: Layout, rank: int) -> NDArray[Any]:
    """Return memory of the user's own as an array, if it is of the layout's shape and type."""
    import numpy as np

    own = memory
    if not isinstance(memory, np.ndarray) and hasattr(memory, "__dlpack__"):
        kind, _ = memory.__dlpack_device__()
        if kind != _DLPACK_CPU:
            raise ValueError(
                f"got memory of a device (DLPack's kind {int(kind)}), expected memory of this process: copy it to the host first"
            )
        own = np.from_dlpack(memory)
    elif not isinstance(memory, np.ndarray):
        try:
            own = np.asarray(memoryview(memory))
        except TypeError as error:
            raise TypeError(
                f"got memory={type(memory).__name__}, expected a NumPy array, DLPack or a buffer"
            ) from error
    shape = layout.local_shape(rank)
    if own.shape != shape or own.dtype != layout.dtype:
        raise ValueError(
            f"got memory of {own.shape} of {own.dtype}, expected {shape} of {layout.dtype}: the layout's part of rank {rank}"
        )
    array: NDArray[Any] = own
    return array


def _bytes_without_gaps(own: NDArray[Any], order: Any) -> memoryview | None:
    """Return a view of an array's bytes, or None if they don't lie as the layout says."""
    flags = own.flags
    lies = flags.c_contiguous if order == "C" else flags.f_contiguous
    if not lies:
        return None
    return own.reshape(-1, order=order).view("u1").data


def _check_own_cells(array: SharedArray) -> None:
    """Look whether cells of memory with gaps overlap each other: each axis has to step over all that the finer ones reach."""
    if array._between is None or not array._core.is_read_into or not array._local.size:
        return
    local = array._local
    steps = [(abs(step), n) for step, n in zip(local.strides, local.shape, strict=True) if n > 1]
    reach = local.itemsize
    for step, count in sorted(steps):
        if step < reach:
            raise ValueError(
                f"got memory of {local.shape} with the strides {local.strides} for {array._said}, expected cells that don't overlap: versions are read into them. "
                f"A step of {step} bytes is within the {reach} bytes that other cells reach over"
            )
        reach += (count - 1) * step


def _check_overlaps(array: SharedArray) -> None:
    """Look whether memory with gaps has cells in common with another array's. The core knows of memory without gaps, where bounds say it."""
    import numpy as np

    for member in list(_MEMBERS):
        for other in [] if member._left else list(member._arrays):
            has_gaps = array._between is not None or other._between is not None
            read_into = [one for one in (array, other) if one._core.is_read_into]
            if not (has_gaps and read_into):
                continue
            try:
                # NumPy's stubs know two of the numbers.
                work: Any = _OVERLAP_WORK
                shares = np.shares_memory(array._local, other._local, max_work=work)
            # Of another class in other versions of NumPy.
            except RuntimeError:
                # It can't be ruled out.
                shares = True
            if shares:
                raise ValueError(
                    f"the memory of {_place(array)} overlaps that of {_place(other)}, and versions are read into {read_into[0]._said}: "
                    "expected memory that no other array has"
                )


def _place(array: SharedArray) -> str:
    """Say between which bytes an array's memory lies."""
    local = array._local
    first = local.__array_interface__["data"][0]
    last = [(count - 1) * step for count, step in zip(local.shape, local.strides, strict=True)]
    begin = first + sum(min(0, way) for way in last)
    end = first + sum(max(0, way) for way in last) + local.itemsize
    return f"{array._said} (bytes {begin:#x} to {end:#x})"


def _has_left(array: str) -> CouplingError:
    return CouplingError(
        f"{array} can't be used any more, as this process has left: expected all reads and writes before the with block of ex.Member ends, or before leave()"
    )


def _check_process(process: int) -> None:
    if process != os.getpid():
        raise ForkError(
            "a member was used in a forked child of its process: only that process is a member of the program"
        )


def _forget_in_child() -> None:
    for member in list(_MEMBERS):
        member._core.forget()


# A child that lives on must not keep the socket: the keeper notices the end of the process by it.
_MEMBERS: WeakSet[Member] = WeakSet()
os.register_at_fork(after_in_child=_forget_in_child)


def _place_in_world() -> tuple[int, int]:
    """Which process this is, and how many there are."""
    # A world that nobody has asked for must not be made here.
    module = sys.modules.get("mpi4py.MPI")
    said = [
        (size, int(os.environ[rank]), int(os.environ[size]))
        for rank, size in _STARTERS
        if rank in os.environ and size in os.environ
    ]
    if module is not None and module.Is_initialized() and not module.Is_finalized():
        world = module.COMM_WORLD
        rank, size = world.Get_rank(), world.Get_size()
        # What an outer job has left in the environment may stand beside what this one's starter says.
        if size == 1 and said and all(count > 1 for _, _, count in said):
            variable, _, count = said[0]
            library = module.Get_library_version().split(",")[0].splitlines()[0]
            raise ValueError(
                f"the starter says {variable}={count}, but mpi4py knows of 1 process alone: mpi4py is built for {library}, and the starter is of another MPI. "
                "Start it with the mpiexec of that MPI, or give rank= and size="
            )
        return rank, size
    return said[0][1:] if said else (0, 1)


def _keeper_of_environment() -> Path:
    named = os.environ.get(KEEPER_VARIABLE)
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    usual = _core.keeper_socket(Path(runtime) if runtime else None)
    # A starter such as mpiexec hands the variable on to processes on other hosts, whose keepers are elsewhere.
    if named and (os.path.exists(named) or not os.path.exists(usual)):
        return Path(named)
    return usual
