"""The page of `paper.py`: what the papers' texts say, with ours beside."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

# Seconds of a simulated day on an SP2, of Nexus's Table 1. In the place of MPL, its switch library, stands shared memory.
NEXUS = {
    "tcp": {"none": 854, "coupler": 897, "all": 1459},
    "memory": {"none": 574, "coupler": 590, "all": 1187},
}
# What Exoskel wants to reach over TCP, as ratios to no encryption.
GOALS = {"coupler": 1.02, "all": 1.2}
MODES = {"none": "no secure", "coupler": "coupler secure", "all": "all secure"}
# Bytes a second of a line, and of a TCP segment's contents in what is on an Ethernet line with it.
LINE = {"1 Gbit/s": 125e6, "100 Mbit/s": 12.5e6}


def median(values: Iterable[float]) -> float:
    """The median, for short."""
    return statistics.median(values)


def rate(shape: tuple[int, int] | int, size: int, seconds: list[float]) -> float:
    """MB/s for each process of a side: of a square array, or of so many bytes a process."""
    own = shape[0] * shape[1] if isinstance(shape, tuple) else shape * shape * 8 / size
    return own / median(seconds) / 1e6


def constant_bytes(name: str) -> int:
    """What a process has, of a name such as `0.5 MB`."""
    return int(float(name.split()[0]) * (1 << 20))


def page(report: dict[str, Any]) -> str:
    """All of `docs/paper-redistribution.md`."""
    about = report["machine"]
    sections = [
        ("lines", figure_3),
        ("routed", figure_4a),
        ("steps", figure_4b),
        ("climate", nexus_table),
    ]
    quick = ["A quick run: it shows that everything works, not how fast.", ""]
    return "\n".join(
        [
            "# Redistribution in TGrid, and a coupled climate in Nexus, again",
            "",
            "S. Hunold, T. Rauber and G. Rünger measured how TGrid hands a matrix from one parallel component to another (2006). I. Foster, N. Karonis,",
            "C. Kesselman, G. Koenig and S. Tuecke measured what security costs a coupled climate model (1997, section 8.2). `make paper-redistribution`",
            "does the same with [coupled programs](guide/coupling.md) and writes this page. The papers' numbers are those of their texts; the other ones",
            "stand in their figures only.",
            "",
            f"Measured on {about['date']}: {about['processor']}, {about['cores']} cores, Linux {about['kernel']}; medians of {report['rounds']} versions or runs.",
            "",
            *(quick if report["quick"] else []),
            "Elements are float64. A matrix goes from blocks of rows to blocks of columns, so that each process sends to each. A version is timed from",
            "the first process that exports to the last one that has its part, and each element is checked.",
            *(line for part, section in sections if part in report for line in section(report)),
            "",
            "## What differs",
            "",
            "- Hosts are network namespaces of one machine, with a keeper each; `tbf` paces what each may send and receive. All share two cores. TGrid had a",
            "  node for each process.",
            "- In the place of Infiniband stands shared memory of one host. With it no packing and no message is needed: the reader copies.",
            "- TGrid's managers get one port for each receiving process, and send it the list of its messages. Our keepers have one port a host, and each works",
            "  out its own part of the plan. So nothing is exchanged before a version but the word that it is wanted.",
            "- The paper's redistribution is new each time. Ours is a connection that stays: the first version, which connects the hosts, is not counted.",
            "- TGrid routed in clear. Through gateways ours is encrypted from end to end, and the gateways can't read it.",
            "- The climate of Table 1 was FOAM, with MPI on Nexus. Ours is [a small example](../examples/coupled_climate.py): advection, diffusion, and heat that passes",
            "  the surface every two hours. Processes of a model exchange the cells around their blocks 72 times a day. DES has become AES-256-GCM.",
            "",
        ]
    )


def figure_3(report: dict[str, Any]) -> list[str]:
    """Throughput of a process, on lines and in shared memory."""
    lines, host = report["lines"], report.get("host", {})
    return [
        "",
        "## Figure 3: throughput of a process",
        "",
        "![Throughput of a process against the matrix, and with a constant part for each process](figures/paper-redistribution-lines.png)",
        "",
        "### (a) Square matrices, MB/s for each process of a side",
        "",
        *(throughput("1 Gbit/s, a host for each process", lines)),
        "",
        *(throughput("shared memory, one host", host)),
        "",
        "### (b) A constant part for each process, MB/s",
        "",
        *(constant("1 Gbit/s", lines)),
        "",
        *(constant("shared memory", host)),
        "",
        "| the paper says | here |",
        "|---|---|",
        *statements_of_3(lines, host),
    ]


def throughput(title: str, found: dict[str, Any]) -> list[str]:
    """A table of square matrices."""
    if not found:
        return []
    sizes = list(found)
    lengths = [name for name in found[sizes[0]] if name.isdecimal()]
    head = " | ".join(f"{size}x{size}" for size in sizes)
    rows = [
        f"| {int(length):,} | "
        + " | ".join(f"{rate(int(length), int(size), found[size][length]):,.1f}" for size in sizes)
        + " |"
        for length in lengths
    ]
    return [f"| {title}: rows | {head} |", "|---" + "|---:" * len(sizes) + "|", *rows]


def constant(title: str, found: dict[str, Any]) -> list[str]:
    """A table of constant parts."""
    if not found:
        return []
    sizes = list(found)
    names = [name for name in found[sizes[0]] if name.endswith("MB")]
    head = " | ".join(f"{size}x{size}" for size in sizes)
    rows = [
        f"| {name} | "
        + " | ".join(
            f"{rate((constant_bytes(name), 1), int(size), found[size][name]):,.1f}"
            for size in sizes
        )
        + " |"
        for name in names
    ]
    return [f"| {title}: a process's part | {head} |", "|---" + "|---:" * len(sizes) + "|", *rows]


def statements_of_3(lines: dict[str, Any], host: dict[str, Any]) -> list[str]:
    """What the text says of Figure 3."""
    most = max(lines, key=int)
    first, last = (rate(4096, int(size), lines[size]["4096"]) for size in ("1", most))
    small, large = (rate(length, 1, lines["1"][str(length)]) for length in (256, 4096))
    share = large * 1e6 / LINE["1 Gbit/s"]
    alike = [rate((constant_bytes("8 MB"), 1), int(size), lines[size]["8 MB"]) for size in lines]
    little = [
        rate((constant_bytes("0.5 MB"), 1), int(size), lines[size]["0.5 MB"]) for size in lines
    ]
    rows = [
        f"| throughput grows with the matrix | 1x1: {small:,.1f} MB/s at 256, {large:,.1f} at 4,096, which is {share:.0%} of the line |",
        f"| 4,096: 1x1 is faster than 8x8 | {first:,.1f} and {last:,.1f} MB/s ({most}x{most}) |",
        f"| 8 MB a process: almost the same on any number of processes | {min(alike):,.1f} to {max(alike):,.1f} MB/s |",
        f"| 0.5 MB a process: the protocol costs more | {min(little):,.1f} to {max(little):,.1f} MB/s |",
    ]
    if host:
        memory = rate(4096, 1, host["1"]["4096"])
        rows.append(
            f"| the faster network is hardly faster, as serialisation limits both | shared memory is {memory / large:,.0f} times as fast at 4,096, 1x1 |"
        )
    return rows


def figure_4a(report: dict[str, Any]) -> list[str]:
    """Directly, and between subnets."""
    found = report["routed"]
    lengths = list(found["direct 1"])
    ways = {
        "direct 1": "direct, 1x1",
        "routed 1": "two gateways, 1x1",
        "relay 1": "whole messages, 1x1",
        "direct 2": "direct, 2x2",
        "routed 2": "two gateways, 2x2",
    }
    # What all processes of a side get: they share the gateways' lines.
    totals = {way: [rate(int(length), 1, found[way][length]) for length in lengths] for way in ways}
    largest = lengths[-1]
    line = LINE["100 Mbit/s"] / 1e6
    relay, through = totals["relay 1"][-1], totals["routed 1"][-1]
    rows = [
        f"| {ways[way]} | " + " | ".join(f"{value:.2f}" for value in values) + " |"
        for way, values in totals.items()
    ]
    return [
        "",
        "## Figure 4a: directly and between subnets, on 100 Mbit/s",
        "",
        "![Throughput directly, through gateways, and by whole messages](figures/paper-redistribution-routed.png)",
        "",
        "| MB/s of all processes; rows | " + " | ".join(f"{int(one):,}" for one in lengths) + " |",
        "|---" + "|---:" * len(lengths) + "|",
        *rows,
        "",
        "*Whole messages* are two relays of a few lines that forward a message when they have all of it, as TGrid's managers did.",
        "",
        "| the paper says | here |",
        "|---|---|",
        f"| a line of 12.5 MB/s at most | {totals['direct 1'][-1]:.2f} MB/s directly |",
        f"| routed: 12.5/3, about 4 MB/s at most, as a message goes on when it is whole | whole messages: {relay:.2f} MB/s, {relay / line:.2f} of the line |",
        f"| - | two gateways, encrypted: {through:.2f} MB/s, {through / line:.2f} of the line, {through / relay:.1f} times as fast (at {int(largest):,}) |",
        "| several processes wait for each other at the managers | "
        f"2x2 through the same two gateways: {totals['routed 2'][-1]:.2f} MB/s together |",
    ]


def figure_4b(report: dict[str, Any]) -> list[str]:
    """Where the time goes."""
    parts = split(report)
    rows = [
        f"| {int(length):,} | " + " | ".join(f"{one * 1e3:,.2f}" for one in row.values()) + " |"
        for length, row in parts.items()
    ]
    lengths = list(parts)
    growth = parts[lengths[-1]]["pack"] / parts[lengths[0]]["pack"]
    elements = (int(lengths[-1]) / int(lengths[0])) ** 2
    protocol = parts[lengths[0]]["protocol"] * 1e3
    return [
        "",
        "## Figure 4b: where the time goes, 4x4 on 1 Gbit/s",
        "",
        "![Time of protocol, packing and sending](figures/paper-redistribution-steps.png)",
        "",
        "*Protocol* is the time of a matrix that has one element for each pair of processes. *Pack* is what one process needs to pack all that it sends, with",
        "nothing else on the machine. *Send* is the rest. Ours packs a piece while the one before is on the line: much of *pack* costs no time.",
        "",
        "| rows | protocol (ms) | pack (ms) | send (ms) | all (ms) |",
        "|---:|---:|---:|---:|---:|",
        *rows,
        "",
        "| the paper says | here |",
        "|---|---|",
        f"| the protocol costs the same for all matrices | {protocol:.2f} ms: a version that is wanted, given and confirmed |",
        f"| packing and sending grow with the number of elements | {elements:,.0f} times the elements: packing takes {growth:,.0f} times as long |",
    ]


def split(report: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Seconds of each step, by the length of the matrix."""
    found = report["steps"]
    protocol = median(found["all"]["pair"])
    parts = {}
    for length, packed in found["pack"].items():
        whole, pack = median(found["all"][length]), median(packed)
        send = max(0.0, whole - protocol - pack)
        parts[length] = {"protocol": protocol, "pack": pack, "send": send, "all": whole}
    return parts


def ratios(report: dict[str, Any], inside: str) -> dict[str, float]:
    """Seconds of a simulated day over those without encryption: medians of the rounds' ratios."""
    seconds = report["climate"]["seconds"]
    return {
        mode: median(
            one / other
            for one, other in zip(
                seconds[f"{inside} {mode}"], seconds[f"{inside} none"], strict=True
            )
        )
        for mode in MODES
    }


def nexus_table(report: dict[str, Any]) -> list[str]:
    """Nexus's Table 1."""
    seconds = report["climate"]["seconds"]
    names = {"tcp": ("TCP", "TCP inside"), "memory": ("MPL", "shared memory inside")}
    rows, verdicts = [], []
    for inside, (theirs, ours) in names.items():
        ours_ratios = ratios(report, inside)
        for mode, name in MODES.items():
            paper, base = NEXUS[inside][mode], NEXUS[inside]["none"]
            rows.append(
                f"| {name} | {theirs} | {paper:,} | {paper / base:.2f} | {ours} | {median(seconds[f'{inside} {mode}']):.3f} | {ours_ratios[mode]:.2f} |"
            )
        if inside == "tcp":
            verdicts = [
                f"| {MODES[mode]} / none, TCP inside | {ours_ratios[mode]:.2f} | at most {bound} | {'reached' if ours_ratios[mode] <= bound else 'missed'} |"
                for mode, bound in GOALS.items()
            ]
    return [
        "",
        "## Nexus, Table 1: a coupled climate, seconds for a simulated day",
        "",
        "An ocean and an atmosphere run at the same time, on two processes each, with TCP between the models. Inside of a model is TCP too, between two hosts,",
        "or shared memory. *Coupler secure* encrypts between the models, *all secure* everything that goes over TCP. Shared memory has no wire to secure:",
        "*coupler secure* and *all secure* are the same there.",
        "",
        "![Seconds of a simulated day, and ratios beside the paper's](figures/paper-redistribution-climate.png)",
        "",
        "| mode | paper: inside | s/day | ratio | ours: inside | s/day | ratio |",
        "|---|---|---:|---:|---|---:|---:|",
        *rows,
        "",
        "| | measured | goal | |",
        "|---|---:|---:|---|",
        *verdicts,
        "",
        f"The fields are the same to the last bit in all modes. Heat that was lost or made: {abs(report['climate']['drift']):.1e} of all.",
        "",
        "![Temperature of the ocean and of the atmosphere, before and after](figures/coupled-climate.png)",
    ]
