"""An ocean and an atmosphere, each on as many processes as you like, that exchange heat at the surface.

    python examples/coupled_climate.py                                    # both on this host, by shared memory
    python examples/coupled_climate.py --hosts 2 --protection coupler     # a host for each, encrypted between them
    python examples/coupled_climate.py --hosts 4 --processes 4 2          # each model on two hosts
    python examples/coupled_climate.py --picture climate.png

In both models a current carries heat around and diffusion spreads it, over a closed basin. Each process has a block of the basin, and gets the
cells around its block by a connection of the model to itself. ``coupled/climate.toml`` says what is connected. "Hosts" are keepers with
TCP between them, all on this machine; ``coupled/starting.py`` starts them as a site would.

No heat is lost, and the fields are the same to the last bit on any number of processes and hosts: no sum depends on an order.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import exoskel as ex

# Seconds of a step, of which a day has 72. The models exchange heat in each sixth: `every` in the coupling's file.
STEP, COUPLED = 1200.0, 6
STEPS_A_DAY = round(86_400 / STEP)
# Of the basin, in metres: from south to north and from west to east.
EXTENT = (5.12e6, 10.24e6)
# What passes the surface, in watts for each square metre and degree.
EXCHANGE = 40.0


@dataclass(frozen=True)
class Model:
    """What makes an ocean or an atmosphere."""

    # Cells of the ocean for each of its cells, on an axis.
    coarseness: int
    # The fastest current in m/s, and the diffusivity in square metres a second.
    speed: float
    diffusivity: float
    # Joules for each square metre and degree.
    capacity: float
    # Degrees Celsius in the far south and in the far north.
    south: float
    north: float


# A mixed layer of 50 m of water, and a column of air.
MODELS = {
    "ocean": Model(1, speed=0.5, diffusivity=2e3, capacity=2e8, south=28.0, north=4.0),
    "atmosphere": Model(2, speed=8.0, diffusivity=5e4, capacity=1e7, south=8.0, north=8.0),
}


class Basin:
    """One process's block of a model: how heat moves in it. Cells have `spacing` metres on each axis."""

    def __init__(self, model: Model, layout: ex.Layout, rank: int) -> None:
        self.rows, self.columns = (axis[0] for axis in layout.extents(rank))
        rows, columns = layout.shape
        self.spacing = EXTENT[0] / rows
        # The stream function at the corners of cells. It is made for whole axes, so that each process has the same numbers.
        south_north, west_east = (np.sin(np.pi * np.arange(n + 1) / n) for n in layout.shape)
        for walls in (south_north, west_east):
            walls[[0, -1]] = 0.0
        corners = south_north[self.rows.start : self.rows.stop + 1, None] * west_east[None, :]
        corners = corners[:, self.columns.start : self.columns.stop + 1]
        corners *= model.speed * EXTENT[0] / np.pi
        # Metres a second through the faces of cells: to the east, and to the north.
        self._east = -np.diff(corners, axis=0) / self.spacing
        self._north = np.diff(corners, axis=1) / self.spacing
        # Nothing spreads through a wall.
        spreads = model.diffusivity / self.spacing
        self._spread_east = np.full(self._east.shape, spreads)
        self._spread_north = np.full(self._north.shape, spreads)
        for face, wall in ((self.columns.start, 0), (self.columns.stop - columns, -1)):
            self._spread_east[:, wall] *= face != 0
        for face, wall in ((self.rows.start, 0), (self.rows.stop - rows, -1)):
            self._spread_north[wall, :] *= face != 0

    def start(self, model: Model, shape: tuple[int, ...]) -> np.ndarray:
        """The temperature of this block at the beginning: warm in the south, and a warm pool."""
        y, x = ((np.arange(n) + 0.5) / n for n in shape)
        south_north = model.north + (model.south - model.north) * (1 - y)
        pool_y, pool_x = np.exp(-(((y - 0.4) / 0.1) ** 2)), np.exp(-(((x - 0.3) / 0.08) ** 2))
        pool = (model.south - model.north) / 4 * pool_y[self.rows, None] * pool_x[self.columns]
        return south_north[self.rows, None] + pool

    def carried(self, cells: np.ndarray) -> np.ndarray:
        """The temperature after a step, from that of the block and of the cells around it.

        What leaves a cell through a face enters the next cell, which another process may have: both find the same number.
        """
        middle = cells[1:-1, 1:-1]
        east = flow(self._east, self._spread_east, cells[1:-1, :-1], cells[1:-1, 1:])
        north = flow(self._north, self._spread_north, cells[:-1, 1:-1], cells[1:, 1:-1])
        lost = np.diff(east, axis=1) + np.diff(north, axis=0)
        return middle - STEP / self.spacing * lost


def flow(speed: np.ndarray, spread: np.ndarray, here: np.ndarray, there: np.ndarray) -> np.ndarray:
    """What passes the faces between cells: the current carries what is upstream, and differences spread."""
    carried = np.where(speed > 0, here, there) * speed
    return carried - spread * (there - here)


class Process:
    """One process of a model, with its arrays."""

    def __init__(self, name: str, member: ex.Member, rows: int) -> None:
        self.model = model = MODELS[name]
        # Cells of the atmosphere, shared out; those of the ocean are shared out in the same way, so that each lies below one of them.
        coarse = ex.Layout((rows // 2, rows), "f8", ("block", "block"), processes=member.size)
        fine = 2 // model.coarseness
        bounds = [
            sorted(
                {fine * end for at in range(member.size) for end in ends(coarse.extents(at)[axis])}
            )
            for axis in (0, 1)
        ]
        shape = tuple(fine * length for length in coarse.shape)
        inner = ex.Layout(shape, "f8", bounds, grid=coarse.grid)
        self.temperature = member.array("temperature", inner)
        # The same with the cells around it.
        self.around = member.array(
            "around", ex.Layout(shape, "f8", bounds, grid=coarse.grid, halo=1)
        )
        self.heat = member.array("heat", coarse)
        self.surface = member.array("surface", coarse) if name == "atmosphere" else None
        self.basin = Basin(model, inner, member.rank)
        self.field = self.basin.start(model, shape)

    def step(self, number: int) -> None:
        """Go on by a step."""
        if self.surface is not None and number % COUPLED == 0:
            with self.surface.read() as below, self.heat.write() as heat:
                heat[...] = EXCHANGE * (below - self.field)
                self.warm(heat)
        with self.temperature.write() as local:
            local[...] = self.field
        with self.around.read() as cells:
            self.field = self.basin.carried(cells)
        if self.surface is None and number % COUPLED == 0:
            with self.heat.read() as heat:
                self.warm(-heat.repeat(2, axis=0).repeat(2, axis=1))

    def warm(self, heat: np.ndarray) -> None:
        """Take so many watts for each square metre until heat is exchanged again."""
        self.field = self.field + heat * (COUPLED * STEP / self.model.capacity)


def ends(ranges: list[slice]) -> tuple[int, int]:
    """Where the one block of an axis begins and ends."""
    return ranges[0].start, ranges[0].stop


def run_process(name: str, days: int, rows: int, output: Path | None) -> None:
    """What each process of a model does."""
    with ex.Member(name) as member:
        process = Process(name, member, rows)
        before, seconds = process.field, []
        for day in range(days):
            begin = time.perf_counter()
            for step in range(STEPS_A_DAY):
                process.step(day * STEPS_A_DAY + step)
            seconds.append(time.perf_counter() - begin)
        where = [[axis.start, axis.stop] for axis in (process.basin.rows, process.basin.columns)]
    if output is not None:
        file = output / f"{name}-{member.rank}.npz"
        np.savez(file, where=where, before=before, after=process.field, seconds=seconds)
    elif member.rank == 0:
        print(f"{name}: {days} days, {process.field.mean():.3f} degrees in this block")


@dataclass
class Outcome:
    """What both models have come to."""

    # Whole fields by the model's name, in degrees Celsius, before and after.
    fields: dict[str, tuple[np.ndarray, np.ndarray]]
    # Of the slowest process, for each day.
    seconds: list[float]

    def heat(self, name: str, *, is_after: bool) -> float:
        """Joules above zero degrees in a model. `math.fsum` rounds once, so that no order counts."""
        field = self.fields[name][is_after]
        area = EXTENT[0] * EXTENT[1] / field.size
        return math.fsum(field.flat) * area * MODELS[name].capacity

    def all_heat(self, *, is_after: bool) -> float:
        """Joules in both."""
        return math.fsum(self.heat(name, is_after=is_after) for name in self.fields)

    @property
    def drift(self) -> float:
        """The share of the heat that was lost or made."""
        before = self.all_heat(is_after=False)
        return (self.all_heat(is_after=True) - before) / before

    @property
    def moved(self) -> float:
        """The share of the heat that has gone from the ocean into the atmosphere."""
        before, after = (self.heat("atmosphere", is_after=when) for when in (False, True))
        return (after - before) / self.all_heat(is_after=False)

    def digests(self) -> dict[str, str]:
        """What two runs have in common if all bits are the same."""
        return {
            name: hashlib.sha256(after.tobytes()).hexdigest()[:16]
            for name, (_, after) in self.fields.items()
        }


def collected(output: Path, rows: int) -> Outcome:
    """Put whole fields together from what the processes have left."""
    fields, seconds = {}, []
    for name, model in MODELS.items():
        shape = (rows // model.coarseness, 2 * rows // model.coarseness)
        fields[name] = (np.full(shape, np.nan), np.full(shape, np.nan))
        for file in sorted(output.glob(f"{name}-*.npz")):
            with np.load(file) as found:
                where = tuple(slice(*bounds) for bounds in found["where"])
                for whole, part in zip(fields[name], ("before", "after"), strict=True):
                    whole[where] = found[part]
                seconds.append(found["seconds"])
    return Outcome(fields, np.max(seconds, axis=0).tolist())


def draw(outcome: Outcome, days: int, path: Path) -> None:
    """Draw both models before and after, and what has changed."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(
        2, 3, figsize=(14, 5.4), sharex=True, sharey=True, layout="constrained"
    )
    place: dict[str, Any] = {
        "origin": "lower",
        "extent": (0, EXTENT[1] / 1e3, 0, EXTENT[0] / 1e3),
    }
    for row, (name, (before, after)) in zip(axes, outcome.fields.items(), strict=True):
        reach = {"vmin": min(before.min(), after.min()), "vmax": max(before.max(), after.max())}
        row[0].imshow(before, cmap="inferno", **reach, **place)
        image = row[1].imshow(after, cmap="inferno", **reach, **place)
        figure.colorbar(image, ax=list(row[:2]), label="temperature (°C)")
        most = np.abs(after - before).max()
        image = row[2].imshow(after - before, cmap="RdBu_r", vmin=-most, vmax=most, **place)
        figure.colorbar(image, ax=row[2], label="change (°C)")
        for axis, when in zip(
            row, ("at the beginning", f"after {days} days", "has changed by"), strict=True
        ):
            axis.set_title(f"{name} {when}", fontsize=10)
    for axis in axes[1]:
        axis.set_xlabel("west to east (km)")
    for axis in axes[:, 0]:
        axis.set_ylabel("south to north (km)")
    text = f"{outcome.moved:.2%} of the heat has moved into the atmosphere, {abs(outcome.drift):.1e} was lost or made"
    figure.suptitle(text, fontsize=11)
    figure.savefig(path, dpi=100)


def main() -> None:
    """Start both models, or be a process of one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model", nargs="?", choices=MODELS, help="be a process of this model")
    parser.add_argument("--days", type=int, default=3, help="simulated days")
    parser.add_argument("--rows", type=int, default=128, help="of the ocean's grid, an even number")
    parser.add_argument(
        "--processes", type=int, nargs=2, default=(2, 2), metavar="N", help="of each model"
    )
    parser.add_argument(
        "--hosts",
        type=int,
        choices=(1, 2, 4),
        default=1,
        help="all on one, a host for each model, or two hosts for each",
    )
    parser.add_argument(
        "--protection",
        choices=("none", "coupler", "all"),
        default="all",
        help="which wires between hosts are encrypted: none, those between the models, all",
    )
    parser.add_argument("--picture", type=Path, metavar="FILE", help="draw both models")
    parser.add_argument("--json", action="store_true", help="print one line for machines")
    parser.add_argument("--output", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rows < 2 or arguments.rows % 2:
        parser.error(f"got --rows {arguments.rows}, expected an even number")
    if arguments.model:
        run_process(arguments.model, arguments.days, arguments.rows, arguments.output)
        return
    # Beside this file; a process of a model needs neither.
    from coupled import starting

    with tempfile.TemporaryDirectory(prefix="climate-") as folder:
        starting.start(
            [__file__, "--days", str(arguments.days), "--rows", str(arguments.rows)],
            Path(folder),
            dict(zip(MODELS, arguments.processes, strict=True)),
            arguments.hosts,
            arguments.protection,
        )
        outcome = collected(Path(folder), arguments.rows)
    if arguments.picture:
        draw(outcome, arguments.days, arguments.picture)
    said = {
        "seconds": outcome.seconds,
        "drift": outcome.drift,
        "moved": outcome.moved,
        "digests": outcome.digests(),
    }
    if arguments.json:
        print(json.dumps(said))
        return
    print(f"{np.median(outcome.seconds):.2f} s a simulated day")
    print(f"heat moved into the atmosphere: {outcome.moved:.3%}, lost or made: {outcome.drift:.1e}")
    for name, (_, after) in outcome.fields.items():
        print(f"{name}: {after.min():.3f} to {after.max():.3f} degrees, {said['digests'][name]}")


if __name__ == "__main__":
    sys.exit(main())
