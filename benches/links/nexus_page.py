"""The page of `nexus.py`: the paper's figures with ours beside them, and what it says of them."""

from __future__ import annotations

import statistics
from typing import Any

from benches.links.lanes import ratio

LANES = {
    "ping_memory_plain": "shared memory, plain",
    "ping_memory_integrity": "shared memory, integrity",
    "ping_memory_encrypted": "shared memory, encrypted",
    "ping_tcp_plain": "TCP, plain",
    "ping_tcp_integrity": "TCP, integrity",
    "ping_tcp_encrypted": "TCP, encrypted",
}
# Microseconds for a message of 10 bytes one way: all numbers that the text of section 8.1 gives.
PAPER = {
    "ping_memory_plain": ("MPL, no security", 78),
    "ping_memory_encrypted": ("MPL, secure", 128),
    "ping_tcp_plain": ("TCP, no security", 394),
    "ping_tcp_encrypted": ("TCP, secure", 472),
}
# DES and MD5 on a Power 2 processor, in bytes a second.
PAPER_CIPHER = 1e6
FIGURE_6_MAX = 1_000


def one_way(values: list[float]) -> float:
    """Microseconds of a message one way: half of there and back."""
    return statistics.median(values) * 1e6 / 2


def page(report: dict[str, Any]) -> str:
    """All of `docs/paper-nexus.md`."""
    about = report["machine"]
    by_size = {one["size"]: one["times"] for one in report["sizes"]}
    return "\n".join(
        [
            "# A secure communications infrastructure, again",
            "",
            "I. Foster, N. Karonis, C. Kesselman, G. Koenig and S. Tuecke measured what security costs in Nexus (1997, section 8.1). A vector goes to",
            "the other processor by a remote service request, and the handler there sends it back. The method was IBM's MPL, the switch library of",
            "an SP2, or TCP; *secure* was DES and MD5. `make paper-nexus` does the same with our links and writes this page. In the place of MPL",
            "stands shared memory: the fastest method between two processes of this machine. Both ends poll, as Nexus did.",
            "",
            f"Measured on {about['date']}: {about['processor']}, {about['cores']} cores, Linux {about['kernel']}; medians of {report['rounds']} rounds.",
            *(
                ["A quick run: it shows that everything works, not how fast."]
                if report["quick"]
                else []
            ),
            "",
            "![Time of a message against its size](figures/paper-nexus.png)",
            "",
            "## Figure 6: small messages, microseconds one way",
            "",
            *table({size: times for size, times in by_size.items() if size <= FIGURE_6_MAX}),
            "",
            "The paper's text has four numbers, for 10 bytes; the others stand in its figures only.",
            "",
            *paper_table(by_size),
            "",
            "## Figure 7: larger messages, microseconds one way",
            "",
            *table({size: times for size, times in by_size.items() if size > FIGURE_6_MAX}),
            "",
            "## What the paper says of them",
            "",
            *statements(by_size),
            "",
            "## What differs",
            "",
            "- The cipher is AES-256-GCM, which encrypts and authenticates at once. DES and MD5 were two passes.",
            "- `integrity` has no counterpart in the figures.",
            "- Plain over TCP authenticates who sends what in which order: each head has a tag. Plain over shared memory has none.",
            "- TCP is this machine's loopback. The SP2's was a network like Ethernet.",
            "- Their processors were two; ours are two cores that share a host with other guests. Compare ratios.",
            "",
        ]
    )


def table(by_size: dict[int, dict[str, list[float]]]) -> list[str]:
    """Times by size and lane."""
    lines = ["| bytes | " + " | ".join(LANES.values()) + " |", "|---:" * (len(LANES) + 1) + "|"]
    for size, times in by_size.items():
        cells = [f"{one_way(times[lane]):,.2f}" for lane in LANES]
        lines.append(f"| {size:,} | " + " | ".join(cells) + " |")
    return lines


def paper_table(by_size: dict[int, dict[str, list[float]]]) -> list[str]:
    """The paper's numbers beside ours."""
    times = by_size[10]
    lines = [
        "| paper | us | secure / not | ours | us | encrypted / plain |",
        "|---|---:|---:|---|---:|---:|",
    ]
    for method in ("memory", "tcp"):
        plain, secure = f"ping_{method}_plain", f"ping_{method}_encrypted"
        theirs = PAPER[secure][1] / PAPER[plain][1]
        ours = ratio(times[secure], times[plain])
        for lane, ratios in ((plain, ("", "")), (secure, (f"{theirs:.2f}", f"{ours:.2f}"))):
            name, value = PAPER[lane]
            lines.append(
                f"| {name} | {value} | {ratios[0]} | {LANES[lane]} | {one_way(times[lane]):.2f} | {ratios[1]} |"
            )
    return lines


def statements(by_size: dict[int, dict[str, list[float]]]) -> list[str]:
    """Each sentence of the paper, and whether it holds here."""
    small, largest = by_size[10], max(by_size)
    large = by_size[largest]
    method = ratio(small["ping_tcp_plain"], small["ping_memory_plain"])
    security = ratio(small["ping_memory_encrypted"], small["ping_memory_plain"])
    slower = [
        size
        for size, times in by_size.items()
        if ratio(times["ping_memory_encrypted"], times["ping_tcp_plain"]) > 1
    ]
    crossing = f"from {min(slower):,} bytes on" if slower else f"at no size up to {largest:,} bytes"
    alike = ratio(large["ping_tcp_encrypted"], large["ping_memory_encrypted"])
    cost = one_way(large["ping_memory_encrypted"]) - one_way(large["ping_memory_plain"])
    speed = f"{largest / cost / 1e3:.1f} GB/s" if cost > 0 else "not to be told apart from plain"
    return [
        "| the paper | paper | here |",
        "|---|---|---|",
        f"| for small messages the method matters more than security | TCP / MPL {394 / 78:.1f}, secure / not {128 / 78:.2f} | TCP / shared memory {method:.1f}, encrypted / plain {security:.2f} |",
        f"| the secure fast method becomes slower than the slow one without security | beyond 300 bytes | {crossing} |",
        f"| for large messages both secure methods cost the same | TCP / MPL about 1 beyond a few thousand bytes | TCP / shared memory {alike:.2f} at {largest:,} bytes |",
        f"| encryption and decryption, in sequence | {PAPER_CIPHER / 1e6:.0f} MB/s | {speed}, from the difference at {largest:,} bytes |",
    ]
