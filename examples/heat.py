"""Heat in a plate, on several processes that send the edges of their parts to each other.

``python examples/heat.py`` starts four processes of this machine, ``python examples/heat.py --ssh lab1 lab2`` as many on two hosts. With ``--manager``,
the processes are the slots of a manager, and each has one task.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

import exoskel as ex
from exoskel.job_process import JobNode

Plate = NDArray[np.float64]


def start_of(rows: int, columns: int) -> Plate:
    """Return a cold plate with a hot spot, warm at its left edge."""
    plate = np.zeros((rows, columns))
    plate[rows // 4 : rows // 2, columns // 3 : columns // 2] = 100.0
    plate[:, 0] = 50.0
    return plate


def step(plate: Plate) -> Plate:
    """Return the inner rows a moment later. The outer columns stay as they are."""
    later = plate[1:-1].copy()
    middle = plate[1:-1, 1:-1]
    around = plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]
    later[:, 1:-1] = middle + 0.2 * (around - 4.0 * middle)
    return later


def whole(rows: int, columns: int, steps: int) -> Plate:
    """Do all of it in one process."""
    plate = start_of(rows, columns)
    for _ in range(steps):
        plate[1:-1] = step(plate)
    return plate


def simulate(here: JobNode, rows: int, columns: int, steps: int) -> Plate:
    """Do a block of rows, in one process of several."""
    first, last = (rows * rank // here.size for rank in (here.rank, here.rank + 1))
    plate = start_of(rows, columns)[max(first - 1, 0) : last + 1]
    from_above, from_below = here.process.inbox("above"), here.process.inbox("below")
    here.ready()
    for _ in range(steps):
        plate[1:-1] = step(plate)
        if first > 0:
            here.peers[here.rank - 1].post("below", plate[1].copy())
        if last < rows:
            here.peers[here.rank + 1].post("above", plate[-2].copy())
        if first > 0:
            plate[0] = from_above.get()
        if last < rows:
            plate[-1] = from_below.get()
    return plate[first > 0 : len(plate) - (last < rows)]


def task(size: tuple[int, int, int]) -> tuple[int, Plate]:
    """Do a block of rows, in one slot of several."""
    here = ex.links.here()
    return here.rank, simulate(here, *size)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Heat in a plate.")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--manager", action="store_true", help="on the slots of a manager")
    parser.add_argument("--ssh", nargs="+", metavar="HOST", help="hosts that ssh leads to")
    arguments = parser.parse_args()
    size = (256, 200, 300)
    launch = ex.Ssh(arguments.ssh) if arguments.ssh else ex.Local()
    if arguments.manager:
        with ex.Manager(task, ex.ParDegree(arguments.processes), launch=launch) as manager:
            by_rank = dict(manager.map([size] * arguments.processes))
        parts = [by_rank[rank] for rank in range(arguments.processes)]
    else:
        with ex.Job(launch) as job:
            started = job.start(simulate, count=arguments.processes, arguments=size)
            parts = started.values(timeout=120)
    together = np.concatenate(parts)
    is_same = np.array_equal(together, whole(*size))
    print(f"{together.mean():.6f} degrees on average; as in one process: {is_same}")
    raise SystemExit(not is_same)
