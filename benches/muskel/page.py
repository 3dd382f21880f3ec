"""The page of `paper.py`: what the paper says, with ours beside."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

# Shares of the bound, ratios of secure to plain, grains.
BOUND_GOAL, SECURE_GOAL, GRAIN_GOAL, LATENCY_GRAIN, PAPER_GRAIN = 0.9, 0.95, 1.2, 2, 8
SCALES = 0.9

Point = Mapping[str, Any]


def page(report: dict[str, Any]) -> str:
    """All of `docs/paper-muskel.md`."""
    about = report["machine"]
    sections = {
        "figure_3": figure_3,
        "figure_4_left": figure_4_left,
        "figure_4_right": figure_4_right,
        "figure_5": figure_5,
        "long_line": long_line,
    }
    return "\n".join(
        [
            "# Security in a skeletal system, again",
            "",
            "M. Aldinucci and M. Danelutto measured what SSL costs a farm of muskel, on Fast Ethernet, with up to two dozen workers. `make paper-muskel` does the same",
            "with a `Farm` and writes this page. An item has C bytes, takes the time W, and gives C bytes back. A speed-up compares with one processor that runs the",
            "items one after the other, without any engine.",
            "",
            f"Measured on {about['date']}: {about['processor']}, {about['cores']} cores, Linux {about['kernel']}; medians of {report['rounds']} runs, plain and secure in turn.",
            *(
                ["A quick run: it shows that everything works, not how fast."]
                if report["quick"]
                else []
            ),
            "",
            "All data of a farm pass the manager's line. So no engine gains more than W x bandwidth / C, whatever it does. This *bound*, or the number of workers",
            "where that is smaller, stands beside each figure and is drawn in grey. The bandwidth is what TCP has of it: 1,448 of 1,538 bytes.",
            "",
            "![Speed-up on three lines, bandwidth, effect of grain, and mixed runs](figures/paper-muskel.png)",
            *(
                line
                for name, section in sections.items()
                if name in report
                for line in section(report[name])
            ),
            "",
            "## Goals",
            "",
            "| | goal | here |",
            "|---|---|---|",
            *goals(report),
            "",
            "## What differs",
            "",
            "- Hosts are network namespaces of one machine: eight with four workers each. `tbf` paces the manager's line, each way. Items sleep where the paper's",
            "  computed, so that 32 workers need no 32 processors. All of them, the manager and both ends of each cipher share the cores of this machine, though:",
            "  at 10 Gbit/s they are the limit, and not the line.",
            "- A long line is a pair of TUN devices; a program between them holds each packet back.",
            "- SSL with RSA and RC4 or 3DES has become TLS 1.3 for handshakes, and AES-256-GCM for records. Both ends prove who they are in either mode: *plain* are the",
            "  data alone, by a rule of the manager's policy.",
            "- The paper's grain counts SSL's own time as communication. Here the grain is that of the plain way, and secure runs have the same W.",
            "",
        ]
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of a table."""
    return [
        f"| {' | '.join(heads)} |",
        "|---" * len(heads) + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def item_text(point: Point) -> str:
    """As in the paper's legends."""
    return f"W = {point['sleep'] * 1e3:.0f} ms, C = {point['size'] / 1e3:,.0f} kB"


def by_items(points: Sequence[Point]) -> dict[str, list[Point]]:
    """The points of each kind of item."""
    found: dict[str, list[Point]] = {}
    for point in points:
        found.setdefault(item_text(point), []).append(point)
    return found


def speed_ups(points: Sequence[Point]) -> list[str]:
    """A row for each kind of item: plain, secure and bound by the number of workers."""
    items = by_items(points)
    workers = [point["workers"] for point in next(iter(items.values()))]
    heads = ["", *(f"{number} workers" for number in workers)]
    rows = [
        [
            name,
            *(
                f"{point['plain']:.1f}, {point['secure']:.1f} of {point['bound']:.1f}"
                for point in its
            ),
        ]
        for name, its in items.items()
    ]
    return table(heads, rows)


def figure_3(lines: dict[str, list[Point]]) -> list[str]:
    """Speed-up by the number of workers."""
    text = ["", "## Figure 3: speed-up, plain and secure, of the bound"]
    for line, points in lines.items():
        text += ["", f"{line}:", "", *speed_ups(points)]
    return text


def figure_4_left(lines: dict[str, list[Point]]) -> list[str]:
    """Bandwidth."""
    text = [
        "",
        "## Figure 4, left: bandwidth with serialization",
        "",
        "MB/s of one worker, there and back together; plain, secure:",
        "",
    ]
    sizes = [point["size"] for point in next(iter(lines.values()))]
    heads = ["line", *(f"{size / 1e3:,.0f} kB" for size in sizes)]
    rows = [
        [line, *(f"{point['plain'] / 1e6:,.1f}, {point['secure'] / 1e6:,.1f}" for point in points)]
        for line, points in lines.items()
    ]
    return text + table(heads, rows)


def figure_4_right(lines: dict[str, Any]) -> list[str]:
    """Effect of the grain."""
    text = ["", "## Figure 4, right: effect of grain, 32 workers"]
    for line, found in lines.items():
        text += [
            "",
            f"{line}, C = {found['size'] / 1e3:,.1f} kB; an item alone takes {found['way'] * 1e3:.2f} ms there and back:",
            "",
            *table(
                ["grain", "plain", "secure", "bound"],
                (
                    [
                        f"{point['grain']:g}",
                        *(f"{point[name]:.1f}" for name in ("plain", "secure", "bound")),
                    ]
                    for point in found["points"]
                ),
            ),
        ]
    return text


def figure_5(mixes: list[Point]) -> list[str]:
    """Mixed runs."""
    rows = [
        [
            item_text(mix),
            f"{mix['near']} + {32 - mix['near']}",
            f"{mix['speed_up']:.1f}",
            f"{mix['far_share']:.1%}",
        ]
        for mix in mixes
    ]
    return [
        "",
        "## Figure 5: near workers in clear, the others encrypted",
        "",
        *table(["item", "near + others", "speed-up", "share of the others"], rows),
    ]


def long_line(points: list[Point]) -> list[str]:
    """Workers around the world."""
    return ["", "## 100 ms there and back", "", *speed_ups(points)]


def goals(report: dict[str, Any]) -> list[str]:
    """What was to be reached."""
    rows = []
    points = [point for its in report.get("figure_3", {}).values() for point in its]
    if points:
        for line, its in report["figure_3"].items():
            worst = min(its, key=lambda point: point["plain"] / point["bound"])
            rows.append(
                row(
                    f"plain speed-up of the bound, worst of {line} ({item_text(worst)}, {worst['workers']} workers)",
                    f">= {BOUND_GOAL}",
                    worst["plain"] / worst["bound"],
                    BOUND_GOAL,
                )
            )
            worst = min(its, key=lambda point: point["secure"] / point["plain"])
            rows.append(
                row(
                    f"secure / plain at the same W, worst of {line} ({item_text(worst)}, {worst['workers']} workers)",
                    f">= {SECURE_GOAL}",
                    worst["secure"] / worst["plain"],
                    SECURE_GOAL,
                )
            )
    for line, found in report.get("figure_4_right", {}).items():
        grains = {name: grain_that_scales(found["points"], name) for name in ("plain", "secure")}
        plain, secure = grains.values()
        if plain is None or secure is None:
            rows.append(f"| grain that scales, {line} | <= {GRAIN_GOAL} x plain | none does |")
            continue
        rows.append(
            row(
                f"grain from which on 32 workers get {SCALES:.0%} of the bound, secure / plain, {line} (the paper: over {PAPER_GRAIN})",
                f"<= {GRAIN_GOAL}",
                secure / plain,
                GRAIN_GOAL,
                is_least=False,
            )
        )
        if all(point["bound"] == point["workers"] for point in found["points"]):
            rows.append(
                row(
                    f"grain from which on 32 workers get {SCALES:.0%}, {line}, C = {found['size'] / 1e3:.1f} kB",
                    f"<= {LATENCY_GRAIN}",
                    plain,
                    LATENCY_GRAIN,
                    is_least=False,
                )
            )
    return rows


def grain_that_scales(points: Sequence[Point], name: str) -> float | None:
    """The smallest measured grain from which on so much of the bound is got."""
    found = None
    for point in reversed(points):
        if point[name] < SCALES * point["bound"]:
            break
        found = float(point["grain"])
    return found


def row(text: str, goal: str, value: float, limit: float, *, is_least: bool = True) -> str:
    """A goal's row."""
    is_met = value >= limit if is_least else value <= limit
    return f"| {text} | {goal} | {value:.2f}{'' if is_met else ', missed'} |"
