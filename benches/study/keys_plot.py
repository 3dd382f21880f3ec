"""Draws what `keys.py` has measured: ``python -m benches.study.keys_plot benches/results/keys.json docs/figures/key-cache-speed.svg``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

# Text stays text, and the same numbers give the same file.
mpl.rcParams["svg.fonttype"] = "none"
mpl.rcParams["svg.hashsalt"] = "exoskel"

LINES = {
    "ready": ("ready table", "#9aa5b1", "o"),
    "small_cache": ("cache, 256 contexts", "#7fb3d5", "x"),
    "cache": ("cache, 4,096 contexts", "#1b6ca8", "s"),
    "derive_hkdf": ("derive each time, HKDF", "#d1495b", "v"),
    "derive_cmac": ("derive each time, PSP's CMAC", "#edae49", "D"),
}
TRAFFIC = {"even": "every message to any peer", "jobs": "jobs of 16 peers, 64 messages a turn"}


def main(source: Path, target: Path) -> None:
    """One panel for each kind of traffic and three lengths of messages."""
    table = json.loads(source.read_text())["table"]
    lengths = [32, 256, 2048]
    figure, axes = plt.subplots(
        len(TRAFFIC), len(lengths), figsize=(12, 6.4), sharex=True, sharey="row", squeeze=False
    )
    for row, (traffic, title) in zip(axes, TRAFFIC.items(), strict=True):
        for axis, length in zip(row, lengths, strict=True):
            points = [p for p in table if (p["traffic"], p["bytes"]) == (traffic, length)]
            for way, (label, colour, marker) in LINES.items():
                axis.plot(
                    [p["keys"] for p in points],
                    [p[way] for p in points],
                    label=label,
                    color=colour,
                    marker=marker,
                    markersize=4,
                    linewidth=1.4,
                )
            axis.set_xscale("log")
            axis.set_yscale("log")
            axis.set_title(f"{title}, {length:,} bytes", fontsize=9)
            axis.grid(alpha=0.3)
            axis.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("ns a message (less is better)")
    for axis in axes[-1]:
        axis.set_xlabel("live keys")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, fontsize=8, frameon=False)
    figure.tight_layout(rect=(0, 0.07, 1, 1))
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
