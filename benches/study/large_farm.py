"""Where one manager is at its end: farms and pipelines of 10,000 slots in virtual time, by grain and latency, as a table and a plot.

A program is its stages: f in a farm, s serial. Rows of other runs stay in the table. The manager's costs are those of `make bench` (no-op items over encrypted TCP, one item a frame and many): `--frame-nanos`, `--item-nanos`.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
from itertools import product
from pathlib import Path

from benches.machine import ROOT

TABLE = ROOT / "benches" / "results" / "large-farm.csv"
FIGURE = ROOT / "docs" / "figures" / "large-farm.svg"

# What a row is of; the others are what came out.
INPUT = (
    "program",
    "serial_ns",
    "slots",
    "frame_cost_ns",
    "item_cost_ns",
    "frame_time_us",
    "grain_us",
    "latency_us",
)
STAGES = {"f": "farm", "fs": "farm, serial stage", "fsf": "farm, serial stage, farm"}

Rows = list[dict[str, str]]


def simulate(arguments: argparse.Namespace) -> Rows:
    """One row for each run, as `crates/sim/examples/large_farm.rs` prints them."""
    cargo = ["cargo", "run", "--locked", "--quiet", "--release", "--package", "exoskel-sim"]
    grains = ",".join(str(grain) for grain in arguments.grains)
    latencies = ",".join(str(latency) for latency in arguments.latencies)
    rows: Rows = []
    for program, frame_time in product(arguments.programs, arguments.frame_times):
        serial = 0 if program == "f" else arguments.serial_nanos
        numbers = [serial, arguments.slots, arguments.items]
        numbers += [arguments.frame_nanos, arguments.item_nanos, frame_time]
        command = [*cargo, "--example", "large_farm", "--", program, *map(str, numbers)]
        done = subprocess.run(
            [*command, grains, latencies], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        )
        rows += csv.DictReader(done.stdout.splitlines())
    return rows


def merged(older: Rows, newer: Rows) -> Rows:
    """All rows in order, newer ones in the place of older ones of the same input."""

    def place(row: dict[str, str]) -> tuple[str, ...]:
        return (row["program"], *(row[name].zfill(12) for name in INPUT[1:]))

    rows = {place(row): row for row in [*older, *newer]}
    return [rows[key] for key in sorted(rows)]


def draw(rows: Rows, figure: Path) -> None:
    """Speed-up and the manager's load over the grain, a line for each latency and frame time."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "large-farm"
    from matplotlib import pyplot as plt

    both, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    key = ("program", "frame_time_us", "latency_us")
    lines = sorted({(row[key[0]], int(row[key[1]]), int(row[key[2]])) for row in rows})
    plain_time, least = lines[0][1:]
    for program, frame_time, latency in lines:
        if program != "f" and latency != least:
            continue
        same = (program, str(frame_time), str(latency))
        own = [row for row in rows if tuple(row[name] for name in key) == same]
        own.sort(key=lambda row: int(row["grain_us"]))
        grains = [int(row["grain_us"]) / 1000 for row in own]
        label = f"{STAGES.get(program, program)}: {latency / 1000:g} ms one way"
        if frame_time != plain_time:
            label += f", frames of {frame_time / 1000:g} ms"
        style = "o-" if (program, frame_time) == ("f", plain_time) else "s--"
        left.plot(grains, [float(row["speed_up"]) for row in own], style, label=label)
        right.plot(grains, [float(row["manager_load"]) for row in own], style, label=label)
    slots = int(rows[0]["slots"])
    left.axhline(slots, color="grey", linewidth=0.8, linestyle=":")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xlabel("mean time of an item in a farm's function, ms")
    left.set_yscale("log")
    left.set_ylabel(f"speed-up with {slots:,} slots")
    right.set_ylabel("share of the time in which the manager works")
    right.set_ylim(0, 1.05)
    left.legend(fontsize="small")
    both.tight_layout()
    figure.parent.mkdir(parents=True, exist_ok=True)
    both.savefig(figure, metadata={"Date": None})


def main() -> None:
    """Runs, writes the table, draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--programs", nargs="+", default=["f"], help="stages: f, fs, fsf, ...")
    parser.add_argument("--serial-nanos", type=int, default=1000, help="an item in a serial stage")
    parser.add_argument("--slots", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=10_000_000)
    parser.add_argument("--frame-nanos", type=int, default=9340)
    parser.add_argument("--item-nanos", type=int, default=230)
    grains = [1000, 10_000, 30_000, 100_000, 300_000, 1_000_000]
    parser.add_argument("--grains", type=int, nargs="+", default=grains, help="microseconds")
    latencies = [100, 10_000, 100_000]
    parser.add_argument("--latencies", type=int, nargs="+", default=latencies, help="microseconds")
    parser.add_argument("--frame-times", type=int, nargs="+", default=[2000], help="microseconds")
    parser.add_argument("--plot-only", action="store_true", help="draw the table that is there")
    arguments = parser.parse_args()
    rows: Rows = []
    if TABLE.exists():
        with TABLE.open(newline="") as table:
            rows = list(csv.DictReader(table))
    if not arguments.plot_only:
        rows = merged(rows, simulate(arguments))
        with TABLE.open("w", newline="") as table:
            # Older rows may lack what newer ones have.
            columns = dict.fromkeys(name for row in rows for name in row)
            writer = csv.DictWriter(table, columns, restval="", lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    draw(rows, FIGURE)


if __name__ == "__main__":
    main()
