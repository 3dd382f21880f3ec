"""Where one manager is at its end: a farm of 10,000 slots in virtual time, by grain and latency, as a table and a plot.

The manager's costs are those of `make bench` (no-op items over encrypted TCP, one item a frame and many): `--frame-nanos`, `--item-nanos`.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "benches" / "results" / "large-farm.csv"
FIGURE = ROOT / "docs" / "figures" / "large-farm.svg"

Rows = list[dict[str, str]]


def simulate(arguments: argparse.Namespace) -> Rows:
    """One row for each run, as `crates/sim/examples/large_farm.rs` prints them."""
    cargo = ["cargo", "run", "--locked", "--quiet", "--release", "--package", "exoskel-sim"]
    grains = ",".join(str(grain) for grain in arguments.grains)
    latencies = ",".join(str(latency) for latency in arguments.latencies)
    rows: Rows = []
    for frame_time in arguments.frame_times:
        numbers = [arguments.slots, arguments.items, arguments.frame_nanos, arguments.item_nanos]
        command = [*cargo, "--example", "large_farm", "--", *map(str, [*numbers, frame_time])]
        done = subprocess.run(
            [*command, grains, latencies], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
        )
        rows += csv.DictReader(done.stdout.splitlines())
    return rows


def draw(rows: Rows, figure: Path) -> None:
    """Speed-up and the manager's load over the grain, a line for each latency and frame time."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "large-farm"
    from matplotlib import pyplot as plt

    both, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    lines = sorted({(int(row["frame_time_us"]), int(row["latency_us"])) for row in rows})
    for frame_time, latency in lines:
        own = [
            row
            for row in rows
            if (int(row["frame_time_us"]), int(row["latency_us"])) == (frame_time, latency)
        ]
        grains = [int(row["grain_us"]) / 1000 for row in own]
        label = f"{latency / 1000:g} ms one way"
        if frame_time != lines[0][0]:
            label += f", frames of {frame_time / 1000:g} ms"
        style = "o-" if frame_time == lines[0][0] else "s--"
        left.plot(grains, [float(row["speed_up"]) for row in own], style, label=label)
        right.plot(grains, [float(row["manager_load"]) for row in own], style, label=label)
    slots = int(rows[0]["slots"])
    left.axhline(slots, color="grey", linewidth=0.8, linestyle=":")
    for axis in (left, right):
        axis.set_xscale("log")
        axis.set_xlabel("mean time of an item, ms")
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
    if not arguments.plot_only:
        rows = simulate(arguments)
        with TABLE.open("w", newline="") as table:
            writer = csv.DictWriter(table, rows[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
    with TABLE.open(newline="") as table:
        draw(list(csv.DictReader(table)), FIGURE)


if __name__ == "__main__":
    main()
