"""Draws what `paper.py` has measured: ``python -m benches.muskel.plot REPORT.json PICTURE.png``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from benches.muskel.page import by_items

mpl.use("Agg")
from matplotlib import pyplot as plt

COLOURS = ("#1b6ca8", "#d1495b", "#3a7d44", "#edae49", "#6a4c93")
STYLES = {"plain": "-", "secure": "--"}
BOUND = "#b8bec4"


def draw_speed_ups(axis: Any, points: list[dict[str, Any]], title: str) -> None:
    """Against the number of workers; what no engine can pass in grey."""
    for (name, its), colour in zip(by_items(points).items(), COLOURS, strict=False):
        workers = [point["workers"] for point in its]
        axis.plot(workers, [point["bound"] for point in its], color=BOUND, linewidth=3, zorder=0)
        for mode, style in STYLES.items():
            label = name if mode == "plain" else None
            axis.plot(
                workers,
                [point[mode] for point in its],
                style,
                color=colour,
                marker="o",
                markersize=3,
                label=label,
            )
    axis.set_xlabel("workers")
    axis.set_ylabel("speed-up")
    finish(axis, title)


def draw_bandwidth(axis: Any, lines: dict[str, Any]) -> None:
    """Against the bytes of an item."""
    for (line, points), colour in zip(lines.items(), COLOURS, strict=False):
        for mode, style in STYLES.items():
            axis.plot(
                [point["size"] for point in points],
                [point[mode] / 1e6 for point in points],
                style,
                color=colour,
                marker="o",
                markersize=3,
                label=line if mode == "plain" else None,
            )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("bytes of an item")
    axis.set_ylabel("MB/s, there and back")
    finish(axis, "Figure 4, left: bandwidth")


def draw_grain(axis: Any, lines: dict[str, Any]) -> None:
    """Against the grain."""
    for (line, found), colour in zip(lines.items(), COLOURS, strict=False):
        grains = [point["grain"] for point in found["points"]]
        axis.plot(grains, [point["bound"] for point in found["points"]], color=BOUND, linewidth=3)
        for mode, style in STYLES.items():
            axis.plot(
                grains,
                [point[mode] for point in found["points"]],
                style,
                color=colour,
                marker="o",
                markersize=3,
                label=line if mode == "plain" else None,
            )
    axis.set_xscale("log")
    axis.set_xlabel("grain")
    axis.set_ylabel("speed-up of 32 workers")
    finish(axis, "Figure 4, right: effect of grain")


def draw_mixes(axis: Any, mixes: list[dict[str, Any]]) -> None:
    """Speed-up of the mixes."""
    for (name, its), colour in zip(by_items(mixes).items(), COLOURS, strict=False):
        far = [32 - mix["near"] for mix in its]
        axis.plot(far, [mix["speed_up"] for mix in its], color=colour, marker="o", label=name)
        for x, mix in zip(far, its, strict=True):
            axis.annotate(
                f"{mix['far_share']:.0%}",
                (x, mix["speed_up"]),
                (0, 6),
                textcoords="offset points",
                size=7,
            )
    axis.set_xlabel("encrypted workers of 32; their share of the items")
    axis.set_ylabel("speed-up")
    # Above 32 there is room for the shares and the legend.
    axis.set_ylim(0, 42)
    finish(axis, "Figure 5: mixed runs")


def finish(axis: Any, title: str) -> None:
    """What all have."""
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=7)


def main(source: Path, target: Path) -> None:
    """All figures; solid lines are plain, dashed ones secure."""
    report = json.loads(source.read_text())
    draws = [
        (draw_speed_ups, points, f"Figure 3: {line}")
        for line, points in report.get("figure_3", {}).items()
    ]
    draws += [
        (drawn, report[name], *title)
        for name, drawn, title in (
            ("figure_4_left", draw_bandwidth, ()),
            ("figure_4_right", draw_grain, ()),
            ("figure_5", draw_mixes, ()),
            ("long_line", draw_speed_ups, ("100 ms there and back",)),
        )
        if name in report
    ]
    columns = 3
    rows = -(-len(draws) // columns)
    figure, axes = plt.subplots(rows, columns, figsize=(15, 4.4 * rows), squeeze=False)
    for axis, (drawn, *what) in zip(axes.flat, draws, strict=False):
        drawn(axis, *what)
    for axis in axes.flat[len(draws) :]:
        axis.set_axis_off()
    figure.suptitle("solid: plain, dashed: secure, grey: what no engine can pass", size=9)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
