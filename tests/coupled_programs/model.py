"""One process of a program that ``mpiexec`` starts, as ``model.c``: ``model.py PROGRAM GIVES TAKES STEPS``.

It has mpi4py's world if that is installed, or else no MPI at all.
"""

import contextlib
import sys

import numpy as np

import exoskel as ex

with contextlib.suppress(ModuleNotFoundError):
    import mpi4py.MPI  # noqa: F401

ROWS, COLUMNS = 24, 36
CELLS = COLUMNS * np.arange(ROWS, dtype="f8")[:, None] + np.arange(COLUMNS, dtype="f8")


def main(program: str, gives: float, takes: float, steps: int) -> None:
    """Give and take, and check each element."""
    with ex.Member(program) as me:
        given = me.array("given", ex.Layout((ROWS, COLUMNS), "f8", ("block", "block")))
        taken = me.array("taken", ex.Layout((ROWS, COLUMNS), "f8", ("*", "block")))
        mine, theirs = (
            np.ix_(*(np.concatenate([np.r_[part] for part in axis]) for axis in array.extents))
            for array in (given, taken)
        )
        for step in range(1, steps + 1):
            with given.write() as local:
                local[...] = gives + 1000 * step + CELLS[mine]
            with taken.read() as local:
                np.testing.assert_array_equal(local, takes + 1000 * step + CELLS[theirs])
        if me.rank == 0:
            # In one piece, also where Python is told not to buffer: a starter may name the rank before each.
            sys.stdout.write(f"{steps} steps on {me.size} processes\n")


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
