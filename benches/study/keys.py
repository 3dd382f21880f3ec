"""`make bench-keys`: what keys cost ready, cached, made again, and in the ways that others go, in one run on this machine.

A Rust program measures (`crates/net/examples/key_speed.rs`); its candidates take turns, and every ratio is the median over the rounds of
the ratios in one round. What comes out goes to `benches/results/keys.*`, the picture to `docs/figures/`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benches import figures
from benches.machine import ROOT, describe

RESULTS = ROOT / "benches" / "results"
# Quick runs say little and are not kept.
SCRATCH = ROOT / "target" / "bench"
FIGURE = ROOT / "docs" / "figures" / "key-cache-speed.svg"

WAYS = {
    "ready": "ready table",
    "small_cache": "cache of 256",
    "cache": "cache of 4,096",
    "derive_hkdf": "derive (HKDF)",
    "derive_cmac": "derive (PSP's)",
}


@dataclass(frozen=True)
class Goal:
    """One ratio that has a bound."""

    text: str
    numerator: str
    denominator: str
    bound: float

    def line(self, times: dict[str, list[float]]) -> str:
        """The ratio, the bound, and whether that is enough."""
        pairs = zip(times[self.numerator], times[self.denominator], strict=True)
        ratio = statistics.median(a / b for a, b in pairs)
        verdict = "met" if ratio <= self.bound else "MISSED"
        return f"{self.text:<66} <= {self.bound:<6.4g} {ratio:>8.4g}  {verdict}"


GOALS = [
    Goal("64-byte seal, cache hit / direct handle", "cache_hit", "direct", 1.2),
    Goal(
        "... of a node's store, 8 records a batch / direct handle",
        "store_hit_batch_of_8",
        "direct",
        1.2,
    ),
    Goal("... of a node's store, 1 record a batch / direct handle", "store_hit", "direct", 1.2),
    Goal("store: miss with the compact key / hit", "miss_compact", "store_hit", 2.6),
    Goal("store: miss with derivation / hit", "miss_derived", "store_hit", 9),
    Goal("65,536 peers, 99 % of it on 256 / all on 256", "skewed", "all_hot", 1.1),
    Goal("new key from an epoch's secret / mutual TLS handshake", "new_key", "handshake", 0.01),
]


def main() -> int:
    """Measure, print, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="seconds; says little")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the tables")
    arguments = parser.parse_args()
    report = {"machine": describe([]), "quick": arguments.quick}
    report |= measure(quick=arguments.quick)
    text = "\n".join(render(report))
    print(json.dumps(report, indent=1) if arguments.json else text)
    folder = SCRATCH if arguments.quick else RESULTS
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "keys.json"
    path.write_text(json.dumps(report, indent=1) + "\n")
    (folder / "keys.txt").write_text(text + "\n")
    figures.draw("study.keys_plot", path, folder / "keys.svg" if arguments.quick else FIGURE)
    return 0


def measure(*, quick: bool) -> dict[str, Any]:
    """Run the Rust program."""
    command = ["cargo", "run", "--locked", "--release", "--quiet", "--package", "exoskel-net"]
    command += ["--example", "key_speed", "--", *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def render(report: dict[str, Any]) -> Iterator[str]:
    """The report as text."""
    yield ", ".join(f"{name}: {value}" for name, value in report["machine"].items())
    yield ""
    times = report["ratios"]
    yield "nanoseconds for each 64-byte message, median: " + ", ".join(
        f"{name} {statistics.median(values):,.0f}" for name, values in times.items()
    )
    rates = report["lookups_per_second"].items()
    yield "million lookups a second: " + ", ".join(
        f"{name} {rate / 1e6:.0f}" for name, rate in rates
    )
    yield ""
    yield from (goal.line(times) for goal in GOALS)
    for traffic, title in (
        ("even", "every message to any peer"),
        ("jobs", "jobs of 16 peers, 64 messages a turn"),
    ):
        yield ""
        yield f"nanoseconds a message, {title}"
        heads = "".join(f"{way:>16}" for way in WAYS.values())
        yield f"{'live keys':>10} {'bytes':>6}{heads}   hits % of the caches"
        for row in report["table"]:
            if row["traffic"] == traffic:
                cells = "".join(f"{row[way]:>16,.0f}" for way in WAYS)
                rates = [row[f"{way}_hit_rate"] for way in ("small_cache", "cache")]
                hits = "".join(f"{100 * rate:>8.1f}" for rate in rates)
                yield f"{row['keys']:>10,} {row['bytes']:>6}{cells}{hits}"


if __name__ == "__main__":
    sys.exit(main())
