"""The report of `identity.py` as text: what each server did, then every goal. A goal missed says so."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benches.site.servers import Subject

CACHED_RSA, CACHED_ECDSA = Subject("axum", "rsa"), Subject("axum", "ecdsa")
UNCACHED_RSA, UNCACHED_ECDSA = Subject("axum", "rsa", False), Subject("axum", "ecdsa", False)
PEER_NAMES = ("gridsite", "gridsite-prefork")


class Numbers:
    """Values of the runs, by server and part."""

    def __init__(self, report: dict[str, Any]) -> None:
        self.runs = report["runs"]

    def values(self, subject: Subject, part: str) -> list[dict[str, Any]]:
        """One for each round that did not fail; a part measured under two loads has one for each."""
        return [
            run["values"]
            for run in self.runs
            if (run["subject"], run["part"]) == (subject.label, part)
            and "error" not in run["values"]
        ]

    def median(
        self, subject: Subject, part: str, value: Callable[[dict[str, Any]], float]
    ) -> float | None:
        """The middle over the rounds, or nothing."""
        found = [value(values) for values in self.values(subject, part)]
        return statistics.median(found) if found else None

    def best_peer(
        self,
        key: str,
        value: Callable[[dict[str, Any]], float],
        choose: Callable[[Sequence[float]], float],
    ) -> float | None:
        """Of Apache's two ways to work, what was better in this measure."""
        found = [self.median(Subject(name, key), "cost", value) for name in PEER_NAMES]
        known = [one for one in found if one is not None]
        return choose(known) if known else None

    def subjects(self, part: str) -> list[str]:
        """Who was measured, in the order of the first round."""
        return list(dict.fromkeys(run["subject"] for run in self.runs if run["part"] == part))


def cpu_ms(load: str) -> Callable[[dict[str, Any]], float]:
    """Server CPU for each request, in milliseconds."""
    return lambda values: 1e3 * values[load]["server_cpu_seconds"] / max(1, values[load]["served"])


def per_core(load: str) -> Callable[[dict[str, Any]], float]:
    """Requests for each second of server CPU."""
    return lambda values: values[load]["served"] / max(0.01, values[load]["server_cpu_seconds"])


def time(load: str, name: str) -> Callable[[dict[str, Any]], float]:
    """A percentile of the time of one request."""
    return lambda values: float(values[load][name])


def wall(load: str) -> Callable[[dict[str, Any]], float]:
    """Requests for each second that passed: often what the client's core can do."""
    return lambda values: values[load]["served"] / values[load]["seconds"]


def failures(load: str) -> Callable[[dict[str, Any]], float]:
    """Requests without a good answer."""
    kinds = ("failed", "overloaded", "reset", "timed_out")
    return lambda values: float(sum(values[load][kind] for kind in kinds))


@dataclass(frozen=True)
class Goal:
    """One line of the second table: our value against the better of the peer's two."""

    text: str
    ours: Subject
    value: Callable[[dict[str, Any]], float]
    bound: float
    at_least: bool = True

    def line(self, numbers: Numbers) -> str:
        """What came out, and whether that is what was wanted."""
        ours = numbers.median(self.ours, "cost", self.value)
        theirs = numbers.best_peer(self.ours.host_key, self.value, max if self.at_least else min)
        if ours is None or not theirs:
            return f"  {self.text:<62} not measured"
        ratio = ours / theirs
        met = ratio >= self.bound if self.at_least else ratio <= self.bound
        return f"  {self.text:<62} {ratio:6.2f}   {'met' if met else 'MISSED'}"


GOALS = [
    Goal("RSA, cached: requests per core, at least 4 x", CACHED_RSA, per_core("few"), 4),
    Goal("ECDSA, cached: requests per core, at least 8 x", CACHED_ECDSA, per_core("few"), 8),
    Goal("RSA, no cache: requests per core, at least 2 x", UNCACHED_RSA, per_core("few"), 2),
    Goal("ECDSA, no cache: requests per core, at least 2 x", UNCACHED_ECDSA, per_core("few"), 2),
    Goal("RSA, cached: p99 at 100, at most 0.5 x", CACHED_RSA, time("many", "p99_ms"), 0.5, False),
    Goal("RSA, no cache: p99 at 100, at most 0.5 x", UNCACHED_RSA, time("many", "p99_ms"), 0.5, False),
]  # fmt: skip


def render(report: dict[str, Any]) -> str:
    """All tables."""
    about = report["machine"]
    lines = [
        f"{about['date']}, {about['processor']}, {about['cores']} cores, Linux {about['kernel']}",
        *([f"peers: {', '.join(about['peers'])}"] if about["peers"] else []),
        "server and client on one core each; a proxy with attributes (RSA-2048), a new connection for each request",
    ]
    if report["quick"]:
        lines.append("a quick run: it shows that everything works, not how fast")
    numbers = Numbers(report)
    lines += cost_table(numbers) + kept_table(numbers) + siege_table(numbers)
    lines += [
        "",
        "goals, our HTTP door (axum) against the better of event and prefork, same host key",
    ]
    lines += [goal.line(numbers) for goal in GOALS]
    lines += siege_goal(numbers)
    return "\n".join(lines)


def cost_table(numbers: Numbers) -> list[str]:
    """What a request costs, and how long it takes."""
    head = f"{'':<28} {'16 connections at once':^47} | {'100 at once':^45}"
    names = f"{'server, host key':<28} {'CPU ms':>7} {'/s/core':>8} {'wall /s':>8} {'p50 ms':>7} {'p99 ms':>7} {'failed':>6}"
    names += (
        f" | {'CPU ms':>7} {'/s/core':>8} {'wall /s':>8} {'p50 ms':>7} {'p99 ms':>7} {'failed':>6}"
    )
    lines = ["", head, names]
    for label in numbers.subjects("cost"):
        cells = [f"{label:<28}"]
        for load in ("few", "many"):
            columns = [
                (cpu_ms(load), "7.3f"),
                (per_core(load), "8.0f"),
                (wall(load), "8.0f"),
                (time(load, "p50_ms"), "7.1f"),
                (time(load, "p99_ms"), "7.1f"),
                (failures(load), "6.0f"),
            ]
            for value, form in columns:
                found = numbers.median(parsed(label), "cost", value)
                width = int(form.partition(".")[0])
                cells.append(f"{'-':>{width}}" if found is None else f"{found:{form}}")
            cells += ["|"] if load == "few" else []
        lines.append(" ".join(cells))
    return lines


def parsed(label: str) -> Subject:
    """The subject of a label."""
    words = label.split(", ")
    return Subject(words[0], words[1].lower(), "no cache" not in words)


def kept_table(numbers: Numbers) -> list[str]:
    """Many requests on one connection."""
    if not numbers.subjects("kept"):
        return []
    lines = ["", f"{'100 requests on one connection':<32} {'CPU ms':>7} {'wall /s':>8}"]
    for label in numbers.subjects("kept"):
        subject = parsed(label)
        cpu = numbers.median(subject, "kept", lambda v: 1e3 * v["server_cpu_seconds"] / v["served"])
        rate = numbers.median(subject, "kept", lambda v: v["served"] / v["seconds"])
        if cpu is not None and rate is not None:
            lines.append(f"{label:<32} {cpu:7.3f} {rate:8.0f}")
    return lines


def siege_table(numbers: Numbers) -> list[str]:
    """The paper's load."""
    lines: list[str] = []
    for label in numbers.subjects("siege"):
        for values in numbers.values(parsed(label), "siege"):
            if not lines:
                lines = [
                    "",
                    f"{'siege -b -c 400':<28} {'/s':>6} {'served':>8} {'failed':>7} {'longest s':>9} {'seconds':>8} {'server core busy':>17}",
                ]
            # siege costs more than what it asks for: its own core is full first.
            busy = f"{100 * values['server_cpu_seconds'] / values['seconds']:.0f} %"
            lines.append(
                f"{label:<28} {values['per_second']:6.0f} {values['served']:8d} {values['failed']:7d} {values['longest_s']:9.2f} {values['seconds']:8.1f} {busy:>17}"
            )
    return lines


def siege_goal(numbers: Numbers) -> list[str]:
    """None may fail."""
    found = numbers.values(CACHED_RSA, "siege")
    text = "siege -b -c 400 with default limits: none failed"
    if not found:
        return [f"  {text:<62} not measured"]
    failed = sum(values["failed"] for values in found)
    return [f"  {text:<62} {failed:6d}   {'met' if failed == 0 else 'MISSED'}"]
