"""A process of YAC, same grid at both ends: ``yac_end.py ROLE VERSIONS LENGTH``. Rank 0 prints the time of each version in nanoseconds."""

import sys
import time

import numpy as np
from mpi4py import MPI
from yac import (
    YAC,
    Calendar,
    Field,
    InterpolationStack,
    Location,
    NNNReductionType,
    Reg2dGrid,
    TimeUnit,
    def_calendar,
)


def main() -> None:
    """The source has blocks of rows, the target blocks of columns."""
    role, versions, length = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    is_source = role == "source"
    def_calendar(Calendar.PROLEPTIC_GREGORIAN)
    coupler = YAC()
    coupler.def_datetime("2000-01-01T00:00:00", "2000-01-02T00:00:00")
    component = coupler.def_comp(role)
    world, own = MPI.COMM_WORLD, component.comp_comm
    wide = length // own.size
    mine = slice(own.rank * wide, own.rank * wide + wide)
    rows, columns = (mine, slice(0, length)) if is_source else (slice(0, length), mine)
    # Radians; both ends have the same places.
    places = np.linspace(0.0, 1.0, length)
    grid = Reg2dGrid(f"{role}_grid", places[columns], places[rows])
    index = np.arange(length * length).reshape(length, length)[rows, columns].ravel()
    grid.set_global_index(index, Location.CORNER)
    points = grid.def_points(Location.CORNER, places[columns], places[rows])
    field = Field.create("field", component, points, 1, "1", TimeUnit.SECOND)
    if is_source:
        nearest = InterpolationStack()
        nearest.add_nnn(NNNReductionType.AVG, 1, 0.0, 1.0)
        ends = ("source", "source_grid", "field", "target", "target_grid", "field")
        coupler.def_couple(*ends, "1", TimeUnit.SECOND, 0, nearest)
    coupler.enddef()
    expected = index.astype(float)
    for version in range(versions):
        contents = expected + version
        world.Barrier()
        begin, end = time.monotonic_ns(), 0
        if is_source:
            field.put(contents)
        else:
            got, _ = field.get()
            end = time.monotonic_ns()
            if not np.array_equal(np.asarray(got).ravel(), contents):
                world.Abort(3)
        first = world.reduce(begin, MPI.MIN)
        last = world.reduce(end, MPI.MAX)
        if world.rank == 0:
            print(last - first, flush=True)


main()
