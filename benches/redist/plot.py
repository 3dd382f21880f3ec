"""Draws what `run.py` has measured: ``python -m benches.redist.plot REPORT.json``; the picture goes beside it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

OURS, LIMIT, PEERS = "#1b6ca8", "#c9d1d9", "#8a6d9e"
COLUMNS = 3
# Lanes that are ours, by the first word of their names.
OWN = ("ours", "plain", "encrypted")


def colour(lane: str) -> str:
    """Ours, the limit, and the others."""
    if lane.split()[0] in OWN:
        return OURS
    return LIMIT if lane.startswith(("strided", "line", "futex")) else PEERS


def draw(axis: Any, part: str, row: dict[str, Any]) -> None:
    """The lanes of a row as bars."""
    shown = dict(reversed(row["values"].items()))
    axis.barh(list(shown), list(shown.values()), color=[colour(lane) for lane in shown])
    for index, value in enumerate(shown.values()):
        axis.text(value, index, f" {value:,.3g}", va="center", fontsize=7)
    axis.set_title(f"{part.replace('_', ' ')}: {row['text']}", fontsize=9)
    better = "longer is better" if row["unit"].endswith("/s") else "shorter is better"
    axis.set_xlabel(f"{row['unit']} ({better})", fontsize=8)
    axis.tick_params(labelsize=7)
    axis.margins(x=0.15)
    axis.spines[["top", "right"]].set_visible(False)


def main(source: Path) -> None:
    """A panel for each row."""
    report = json.loads(source.read_text())
    rows = [
        (name, row)
        for name, part in report["parts"].items()
        for row in part["rows"]
        if row["values"]
    ]
    if not rows:
        return
    height = -(-len(rows) // COLUMNS)
    figure, axes = plt.subplots(height, COLUMNS, figsize=(17, 2.6 * height), squeeze=False)
    for axis, (name, row) in zip(axes.flat, rows, strict=False):
        draw(axis, name, row)
    for axis in list(axes.flat)[len(rows) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(source.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
