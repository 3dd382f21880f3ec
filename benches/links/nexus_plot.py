"""Draws what `nexus.py` has measured: ``python -m benches.links.nexus_plot REPORT.json PICTURE.png``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl
from benches.links.nexus_page import FIGURE_6_MAX, LANES, PAPER, PAPER_CIPHER, one_way

mpl.use("Agg")
from matplotlib import pyplot as plt

COLOURS = {"memory": "#1b6ca8", "tcp": "#d1495b"}
STYLES = {"plain": "-", "integrity": ":", "encrypted": "--"}
PAPERS = "#6b7680"


def draw(axis: Any, sizes: list[dict[str, Any]], title: str) -> None:
    """Our lines, and the paper's points."""
    for lane, name in LANES.items():
        _, method, protection = lane.split("_")
        axis.plot(
            [one["size"] for one in sizes],
            [one_way(one["times"][lane]) for one in sizes],
            STYLES[protection],
            color=COLOURS[method],
            marker="o",
            markersize=3,
            label=name,
        )
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xlabel("bytes of a message")
    axis.set_ylabel("microseconds one way")
    axis.set_title(title, fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)


def main(source: Path, target: Path) -> None:
    """Both figures side by side."""
    sizes = json.loads(source.read_text())["sizes"]
    figure, (small, large) = plt.subplots(1, 2, figsize=(12, 4.8))
    draw(small, [one for one in sizes if one["size"] <= FIGURE_6_MAX], "Figure 6: small messages")
    for name, value in PAPER.values():
        small.plot([10], [value], "s", color=PAPERS)
        small.annotate(f"paper: {name}", (10, value), (6, -3), textcoords="offset points", size=7)
    draw(large, sizes, "Figure 7: all sizes")
    reach = [one["size"] for one in sizes if one["size"] >= FIGURE_6_MAX]
    cipher = [size / PAPER_CIPHER * 1e6 for size in reach]
    large.plot(reach, cipher, color=PAPERS, label="paper: DES and MD5 alone, 1 MB/s")
    large.legend(frameon=False, fontsize=7)
    figure.tight_layout()
    target.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(target, dpi=130)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
