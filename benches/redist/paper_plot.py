"""Draws what `paper.py` has measured: ``python -m benches.redist.paper_plot REPORT.json FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
from benches.redist import paper_page
from benches.redist.paper_page import LINE, MODES, NEXUS, constant_bytes, median, rate
from matplotlib import pyplot as plt

COLOURS = ("#1b6ca8", "#3a9188", "#c98b1d", "#a8324a")
GREY = "#9aa5b1"
PATTERN = {"color": GREY, "linestyle": "--", "linewidth": 1}


def lines(report: dict[str, Any]) -> Any:
    """Figure 3: (a) against the matrix, (b) with a constant part; on lines and in shared memory."""
    figure, axes = plt.subplots(2, 2, figsize=(13, 7.5), layout="constrained")
    for row, (part, title) in zip(
        axes, (("lines", "1 Gbit/s"), ("host", "shared memory")), strict=True
    ):
        found = report.get(part, {})
        for (size, times), colour in zip(found.items(), COLOURS, strict=False):
            label = f"{size}x{size}"
            lengths = [name for name in times if name.isdecimal()]
            values = [rate(int(one), int(size), times[one]) for one in lengths]
            row[0].plot(list(map(int, lengths)), values, "o-", color=colour, label=label)
        constant(row[1], found)
        row[0].set_xscale("log", base=2)
        row[0].set_xticks([256, 512, 1024, 2048, 4096], ["256", "512", "1024", "2048", "4096"])
        row[0].set_xlabel("rows and columns of the matrix (float64)")
        row[0].set_title(f"(a) {title}, square matrices", fontsize=10)
        row[1].set_title(f"(b) {title}, a constant part for each process", fontsize=10)
        for axis in row:
            if part == "lines":
                axis.axhline(LINE["1 Gbit/s"] / 1e6, label="line", **PATTERN)
            axis.set_ylabel("MB/s for each process of a side")
            axis.set_ylim(bottom=0)
            axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def constant(axis: Any, found: dict[str, Any]) -> None:
    """Bars of constant parts, by the number of processes."""
    sizes = list(found)
    if not sizes:
        return
    names = [name for name in found[sizes[0]] if name.endswith("MB")]
    width = 0.8 / len(names)
    for number, (name, colour) in enumerate(zip(names, COLOURS, strict=False)):
        values = [rate((constant_bytes(name), 1), int(size), found[size][name]) for size in sizes]
        places = [at + (number - (len(names) - 1) / 2) * width for at in range(len(sizes))]
        axis.bar(places, values, width, color=colour, label=f"{name} a process")
    axis.set_xticks(range(len(sizes)), [f"{size}x{size}" for size in sizes])
    axis.set_xlabel("processes of source and target")


def routed(report: dict[str, Any]) -> Any:
    """Figure 4a."""
    figure, axis = plt.subplots(figsize=(10, 4.2), layout="constrained")
    found = report["routed"]
    ways = {
        "direct 1": ("direct, 1x1", "o-", COLOURS[0]),
        "direct 2": ("direct, 2x2 together", "o--", COLOURS[0]),
        "routed 1": ("two gateways, encrypted, 1x1", "s-", COLOURS[1]),
        "routed 2": ("two gateways, encrypted, 2x2 together", "s--", COLOURS[1]),
        "relay 1": ("two relays of whole messages, 1x1", "^-", COLOURS[3]),
    }
    for way, (label, mark, colour) in ways.items():
        lengths = list(map(int, found[way]))
        values = [rate(length, 1, found[way][str(length)]) for length in lengths]
        axis.plot(lengths, values, mark, color=colour, label=label)
    line = LINE["100 Mbit/s"] / 1e6
    axis.axhline(line, label="one line of 100 Mbit/s", **PATTERN)
    axis.axhline(line / 3, color=GREY, linestyle=":", label="the paper's bound, routed: a third")
    axis.set_xscale("log", base=2)
    axis.set_xticks(lengths, list(map(str, lengths)))
    axis.set_xlabel("rows and columns of the matrix (float64)")
    axis.set_ylabel("MB/s of all processes")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def steps(report: dict[str, Any]) -> Any:
    """Figure 4b."""
    figure, axis = plt.subplots(figsize=(7.5, 4.2), layout="constrained")
    parts = paper_page.split(report)
    width = 0.26
    for number, (name, colour) in enumerate(
        zip(("protocol", "pack", "send"), COLOURS, strict=False)
    ):
        places = [at + (number - 1) * width for at in range(len(parts))]
        values = [row[name] * 1e3 for row in parts.values()]
        axis.bar(places, values, width, color=colour, label=name)
    axis.set_xticks(range(len(parts)), list(parts))
    axis.set_yscale("log")
    axis.set_xlabel("rows and columns of the matrix (float64), 4x4 on 1 Gbit/s")
    axis.set_ylabel("milliseconds")
    axis.legend(fontsize=8)
    return figure


def climate(report: dict[str, Any]) -> Any:
    """Nexus's Table 1: seconds of ours, and ratios of both."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
    seconds = report["climate"]["seconds"]
    names = {"tcp": "TCP inside", "memory": "shared memory inside"}
    for number, (mode, colour) in enumerate(zip(MODES, COLOURS, strict=False)):
        for at, inside in enumerate(names):
            times = seconds[f"{inside} {mode}"]
            middle = median(times)
            spread = [[middle - min(times)], [max(times) - middle]]
            label = MODES[mode] if at == 0 else None
            place = at + (number - 1) * 0.26
            left.bar(place, middle, 0.26, yerr=spread, color=colour, label=label, capsize=3)
    left.set_xticks(range(len(names)), list(names.values()))
    left.set_ylabel("seconds for a simulated day")
    left.set_title("ours; lines from the fastest run to the slowest", fontsize=10)
    left.legend(fontsize=8)
    # Coupler secure and all secure, TCP and the other method: the paper's beside ours.
    labels, theirs, ours = [], [], []
    for inside, theirs_name in (("tcp", "TCP"), ("memory", "MPL, or\nshared memory")):
        measured = paper_page.ratios(report, inside)
        for mode in ("coupler", "all"):
            labels.append(f"{MODES[mode]}\n{theirs_name}")
            theirs.append(NEXUS[inside][mode] / NEXUS[inside]["none"])
            ours.append(measured[mode])
    places = range(len(labels))
    right.bar([at - 0.2 for at in places], theirs, 0.4, color=GREY, label="paper, 1997")
    right.bar([at + 0.2 for at in places], ours, 0.4, color=COLOURS[0], label="ours")
    for at, (one, other) in enumerate(zip(theirs, ours, strict=True)):
        right.text(at - 0.2, one, f"{one:.2f}", ha="center", va="bottom", fontsize=8)
        right.text(at + 0.2, other, f"{other:.2f}", ha="center", va="bottom", fontsize=8)
    right.axhline(1, **PATTERN)
    right.set_xticks(list(places), labels, fontsize=8)
    right.set_ylabel("time / time without encryption")
    right.legend(fontsize=8)
    return figure


def main(source: Path, folder: Path) -> None:
    """A file for each figure whose part was measured."""
    report = json.loads(source.read_text())
    for part, draw in (
        ("lines", lines),
        ("routed", routed),
        ("steps", steps),
        ("climate", climate),
    ):
        if part in report:
            draw(report).savefig(folder / f"paper-redistribution-{part}.png", dpi=100)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
