"""Draws what `grid_services.py` has measured: ``python benches/grid_services_plot.py REPORT.json PICTURE.png``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from benches.site.grid_services_table import DOORS, OPEN_LOOP, PAPER, last
from benches.site.servers import Subject

mpl.use("Agg")
from matplotlib import pyplot as plt

CACHED, UNCACHED, PAPERS = "#1b6ca8", "#d1495b", "#9aa5b1"
SERVED, REFUSED, TIMED_OUT = "#1b6ca8", "#9aa5b1", "#d1495b"


def draw_tables(axis: Any, runs: list[dict[str, Any]]) -> None:
    """Requests per second, cached and not."""
    bars: list[tuple[str, float, str]] = []
    for name, pair in PAPER.items():
        bars += [
            (f"paper: {name}, {word}", one, PAPERS)
            for word, one in zip(("cached", "not"), pair, strict=True)
        ]
    for door in DOORS:
        for cached, word in ((True, "cached"), (False, "not")):
            values = last(runs, Subject(door, cached=cached).label)
            if values:
                bars.append(
                    (
                        f"{door}, {word}",
                        values["siege"]["per_second"],
                        CACHED if cached else UNCACHED,
                    )
                )
    bars.reverse()
    axis.barh(
        [name for name, _, _ in bars],
        [one for _, one, _ in bars],
        color=[colour for _, _, colour in bars],
    )
    for index, (_, one, _) in enumerate(bars):
        axis.text(one, index, f" {one:,.0f}", va="center", fontsize=8)
    axis.set_title("siege -b -c 400, requests/s (paper: 12 cores, ours: 1)", fontsize=10)
    axis.margins(x=0.12)


def draw_overload(axis: Any, runs: list[dict[str, Any]], label: str) -> None:
    """What became of what was offered, for each second of offering."""
    mine = [run["values"] for run in runs if run["subject"] == label]
    offered = [one["rate"] for one in mine]

    def rate(*names: str) -> list[float]:
        return [sum(one[name] for name in names) / one["seconds"] for one in mine]

    axis.plot(offered, rate("served"), marker="o", color=SERVED, label="served")
    axis.plot(
        offered, rate("reset", "overloaded"), marker="s", color=REFUSED, label="refused at once"
    )
    axis.plot(offered, rate("timed_out"), marker="x", color=TIMED_OUT, label="timed out")
    axis.set_title(OPEN_LOOP[label.partition(",")[0]], fontsize=10)
    axis.set_xlabel("connections offered for each second")
    axis.set_ylabel("for each second")
    axis.legend(frameon=False, fontsize=8)


def main(source: Path, target: Path) -> None:
    """Both tables and both overloads in one picture."""
    runs = json.loads(source.read_text())["runs"]
    tables = [run for run in runs if run["part"] == "tables"]
    overload = [run for run in runs if run["part"] == "overload"]
    labels = list(dict.fromkeys(run["subject"] for run in overload))
    figure, axes = plt.subplots(
        1, 1 + len(labels), figsize=(6.5 + 4.5 * len(labels), 4.4), squeeze=False
    )
    draw_tables(axes[0][0], tables)
    for axis, label in zip(axes[0][1:], labels, strict=True):
        draw_overload(axis, overload, label)
    for axis in axes[0]:
        axis.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
