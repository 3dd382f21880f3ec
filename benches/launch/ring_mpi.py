"""The ring of `ring.py` in mpi4py, whose processes give up the processor when they wait: ``mpiexec -n PROCESSES ... ring_mpi.py STEPS``."""

from __future__ import annotations

import sys
import time

import numpy as np
from mpi4py import MPI

EDGE = 1 << 13
FIRST = 10


def exchange(steps: int) -> list[int]:
    """Send and take edges; return the time of each step."""
    world = MPI.COMM_WORLD
    rank, size = world.rank, world.size
    left, right = (rank - 1) % size, (rank + 1) % size
    own, from_left, from_right = np.empty(EDGE), np.empty(EDGE), np.empty(EDGE)
    times = []
    for step in range(steps + FIRST):
        own.fill(step * size + rank)
        begin = time.perf_counter_ns()
        requests = [world.Irecv(from_left, left, 0), world.Irecv(from_right, right, 1)]
        requests += [world.Isend(own, right, 0), world.Isend(own, left, 1)]
        MPI.Request.Waitall(requests)
        times.append(time.perf_counter_ns() - begin)
        assert from_left[-1] == step * size + left
        assert from_right[-1] == step * size + right
    return times[FIRST:]


if __name__ == "__main__":
    found = exchange(int(sys.argv[1]))
    if MPI.COMM_WORLD.rank == 0:
        print(*found, sep="\n")
