"""Draws what `run.py` has measured: ``python -m benches.links.plot REPORT.json``; the picture goes beside it."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt

OURS, PLAIN, SECURED = "#1b6ca8", "#9aa5b1", "#d1495b"
PEERS = ("libzmq", "nng", "tonic", "zenoh", "pyzmq", "grpcio", "mpich", "openmpi", "haproxy", "ssh")
SECURE_WORDS = ("curve", "tls", "rustls", "ssh")
COLUMNS = 3


def colour(lane: str) -> str:
    """Ours, and the others by whether they protect anything."""
    if any(word in lane for word in SECURE_WORDS):
        return SECURED
    return PLAIN if "raw" in lane or any(peer in lane for peer in PEERS) else OURS


def draw(axis: Any, contest: dict[str, Any]) -> None:
    """The lanes of a contest as bars."""
    is_stream = contest["part"].startswith(("gateway", "engine", "stream")) or any(
        lane.startswith("stream") for lane in contest["times"]
    )
    size = contest["size"]
    values = {lane: statistics.median(times) for lane, times in contest["times"].items() if times}
    shown = {
        lane: size / one / 1e9 if is_stream else one * 1e6
        for lane, one in sorted(values.items(), reverse=True)
    }
    axis.barh(list(shown), list(shown.values()), color=[colour(lane) for lane in shown])
    for index, value in enumerate(shown.values()):
        axis.text(value, index, f" {value:,.2f}", va="center", fontsize=7)
    unit = "GB/s, longer is better" if is_stream else "us there and back, shorter is better"
    axis.set_title(f"{contest['part']}, {size:,} bytes ({unit})", fontsize=9)
    axis.tick_params(labelsize=7)
    axis.margins(x=0.15)
    axis.spines[["top", "right"]].set_visible(False)


def main(source: Path) -> None:
    """A panel for each contest."""
    contests = [one for one in json.loads(source.read_text())["contests"] if one["times"]]
    if not contests:
        return
    rows = -(-len(contests) // COLUMNS)
    figure, axes = plt.subplots(rows, COLUMNS, figsize=(17, 3.6 * rows), squeeze=False)
    for axis, contest in zip(axes.flat, contests, strict=False):
        draw(axis, contest)
    for axis in list(axes.flat)[len(contests) :]:
        axis.set_visible(False)
    figure.tight_layout()
    figure.savefig(source.with_suffix(".png"), dpi=110)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
