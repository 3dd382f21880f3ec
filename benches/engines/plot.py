"""Draws what `run.py` has measured: ``python -m benches.engines.plot benches/results/bench.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from benches.engines.table import Numbers

mpl.use("Agg")
from matplotlib import pyplot as plt

OURS, OURS_ENCRYPTED, PEER = "#1b6ca8", "#d1495b", "#9aa5b1"
BARS = [
    ("noop", "items_per_s", "no-op, items/s (more is better)"),
    ("roundtrip", "p50_us", "submit to result, median µs (less is better)"),
    ("bulk", "mib_per_s", "1 MiB out and back, MiB/s (more is better)"),
]


def colour(engine: str) -> str:
    """Ours stand out, and the encrypted one of ours has its own."""
    if not engine.startswith("exoskel"):
        return PEER
    return OURS_ENCRYPTED if "encrypted" in engine else OURS


def draw_engines(report: dict[str, Any], path: Path) -> None:
    """One panel a measure, logarithmic: the engines are orders of magnitude apart."""
    numbers = Numbers(report)
    engines = list(dict.fromkeys(run["engine"] for run in report["runs"]))
    panels = [bar for bar in BARS if any(numbers.all(engine, bar[0], bar[1]) for engine in engines)]
    if not panels:
        return
    figure, axes = plt.subplots(1, len(panels), figsize=(5.2 * len(panels), 3.8), squeeze=False)
    for axis, (part, name, title) in zip(axes[0], panels, strict=True):
        values = {engine: numbers.median(engine, part, name) for engine in engines}
        shown = {engine: value for engine, value in reversed(values.items()) if value is not None}
        axis.barh(list(shown), list(shown.values()), color=[colour(engine) for engine in shown])
        axis.set_xscale("log")
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.25)
        for index, value in enumerate(shown.values()):
            axis.text(value, index, f" {value:,.0f}", va="center", fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def draw_grain(report: dict[str, Any], path: Path) -> None:
    """Efficiency against grain, plain and encrypted."""
    points = [
        point
        for run in report["runs"]
        if run["part"] == "grain"
        for point in run["values"].get("points", [])
    ]
    if not points:
        return
    figure, axis = plt.subplots(figsize=(6.4, 4))
    for kib, marker in ((64, "o"), (1024, "s")):
        for protection, line in (("plain", OURS), ("encrypted", OURS_ENCRYPTED)):
            mine = [p for p in points if (p["kib"], p["protection"]) == (kib, protection)]
            axis.plot(
                [p["grain"] for p in mine],
                [100 * p["efficiency"] for p in mine],
                marker=marker,
                color=line,
                linestyle="-" if kib == 64 else "--",
                label=f"{kib} KiB, {protection}",
            )
    axis.axhline(95, color=PEER, linewidth=0.8)
    axis.set_xscale("log")
    axis.set_ylim(0, 105)
    axis.set_xlabel("grain: task time in round trips of its payload")
    axis.set_ylabel("efficiency of two slots, %")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    source = Path(sys.argv[1])
    measured = json.loads(source.read_text())
    draw_engines(measured, source.with_name(f"{source.stem}-engines.png"))
    draw_grain(measured, source.with_name(f"{source.stem}-grain.png"))
