"""Draws what `identity.py` has measured: ``python -m benches.site.identity_plot benches/results/identity.json``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl
from benches.site.identity_table import Numbers, cpu_ms, parsed, time

mpl.use("Agg")
from matplotlib import pyplot as plt

OURS, UNCACHED, PEER = "#1b6ca8", "#d1495b", "#9aa5b1"
PANELS = [
    ("server CPU for each request, ms (less is better)", cpu_ms("few"), "{:.2f}"),
    ("p99 at 100 connections, ms (less is better)", time("many", "p99_ms"), "{:,.0f}"),
]


def colour(label: str) -> str:
    """Ours stand out, and those without the cache have their own."""
    if label.startswith("gridsite"):
        return PEER
    return OURS if parsed(label).cached else UNCACHED


def main(source: Path) -> None:
    """One panel a measure."""
    numbers = Numbers(json.loads(source.read_text()))
    labels = numbers.subjects("cost")
    if not labels:
        return
    figure, axes = plt.subplots(1, len(PANELS), figsize=(6.4 * len(PANELS), 4.6), squeeze=False)
    for axis, (title, value, form) in zip(axes[0], PANELS, strict=True):
        values = {label: numbers.median(parsed(label), "cost", value) for label in labels}
        shown = {label: one for label, one in reversed(values.items()) if one is not None}
        axis.barh(list(shown), list(shown.values()), color=[colour(label) for label in shown])
        axis.set_title(title, fontsize=10)
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.15)
        for index, one in enumerate(shown.values()):
            axis.text(one, index, " " + form.format(one), va="center", fontsize=8)
    figure.tight_layout()
    figure.savefig(source.with_suffix(".png"), dpi=150)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
