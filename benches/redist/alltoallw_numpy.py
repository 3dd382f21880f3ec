"""The same as ``alltoallw.c`` with mpi4py, on NumPy's memory: ``alltoallw_numpy.py JOB VERSIONS LENGTH``; JOB is columns or centre."""

import sys
import time

import numpy as np
from mpi4py import MPI


def main() -> None:
    """One process."""
    job, versions, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    world = MPI.COMM_WORLD
    half = world.size // 2
    is_source, place = world.rank < half, world.rank % half
    own = length // half
    # What the target has of all: from this row and column on, so many.
    start, reach = (length // 4, length // 2) if job == "centre" else (0, length)
    wide = reach // half
    cells = np.zeros((own, length) if is_source else (reach, wide))
    counts = np.zeros((2, world.size), int)
    types = [[MPI.DOUBLE] * world.size for _ in range(2)]
    for other in range(half):
        source, target = (place, other) if is_source else (other, place)
        first, last = max(source * own, start), min(source * own + own, start + reach)
        if first >= last:
            continue
        part, corner = (last - first, wide), (first - start, 0)
        if is_source:
            corner = (first - place * own, start + target * wide)
        kind = MPI.DOUBLE.Create_subarray(cells.shape, part, corner).Commit()
        peer = other + half * is_source
        counts[int(not is_source), peer] = 1
        types[int(not is_source)][peer] = kind
    zeros = np.zeros(world.size, int)
    rows = np.arange(own)[:, None] + place * own if is_source else np.arange(reach)[:, None] + start
    columns = np.arange(length) if is_source else np.arange(wide) + start + place * wide
    expected = rows * float(length) + columns
    for version in range(versions):
        if is_source:
            np.add(expected, version, out=cells)
        world.Barrier()
        begin = time.monotonic_ns()
        world.Alltoallw((cells, counts[0], zeros, types[0]), (cells, counts[1], zeros, types[1]))
        end = time.monotonic_ns()
        # Who has all early doesn't take the processors of those who haven't.
        world.Barrier()
        if not is_source and not np.array_equal(cells, expected + version):
            world.Abort(3)
        first, last = world.reduce(begin, MPI.MIN), world.reduce(end, MPI.MAX)
        if world.rank == 0:
            print(last - first, flush=True)


main()
