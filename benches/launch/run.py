"""`make bench-launch`: many processes by one request, ours beside those of the standard library, in turn, on this machine.

What comes out goes to ``benches/results/launch.json`` and ``launch.txt``. Quick runs go to ``target/bench``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

from benches.machine import ROOT, describe
from benches.redist import table
from benches.redist.frame import Bench, Goal, Lane, Row, lines

RESULTS = ROOT / "benches" / "results" / "launch.json"
SCRATCH = ROOT / "target" / "bench" / "launch.json"
OURS = ("ours", "ours answered", "ours in turn")


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=1000, help="processes")
    parser.add_argument("--quick", action="store_true", help="few processes, not kept")
    arguments = parser.parse_args()
    count = 50 if arguments.quick else arguments.count
    bench = Bench(arguments.rounds, is_quick=arguments.quick)
    rows = [measured(bench, count), in_sandboxes(bench, count // 5)]
    part = {
        "date": time.strftime("%Y-%m-%d"),
        "rounds": bench.rounds,
        "quick": bench.is_quick,
        "goals": [asdict(goal) for goal in goals(*rows)],
        "rows": [asdict(row) for row in rows],
    }
    report = {"machine": describe([]), "parts": {"processes": part}}
    target = SCRATCH if arguments.quick else RESULTS
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    text = table.render(report)
    target.with_suffix(".txt").write_text(text + "\n")
    print(text)


def measured(bench: Bench, count: int) -> Row:
    """Each lane starts so many processes."""

    def lane(script: str, *words: str) -> list[float]:
        return lines([sys.executable, Path(__file__).with_name(script), *words, count])

    lanes: dict[str, Lane] = {name: partial(lane, "processes.py", name) for name in OURS}
    lanes["forkserver"] = partial(lane, "forkserver.py")
    return bench.row(f"{count} processes", lanes, unit="s", first=0, keys={"count": count})


def in_sandboxes(bench: Bench, count: int) -> Row:
    """Each lane starts so many programs that end at once."""

    def lane(name: str) -> list[float]:
        return lines([sys.executable, Path(__file__).with_name("sandboxes.py"), name, count])

    names = [
        "free",
        "sandboxed",
        "free function",
        "sandboxed function",
        *(["bwrap"] if shutil.which("bwrap") else []),
    ]
    lanes: dict[str, Lane] = {name: partial(lane, name) for name in names}
    return bench.row(f"{count} programs", lanes, unit="s", first=0, keys={"count": count})


def goals(row: Row, sandboxes: Row) -> list[Goal]:
    """What is to be reached."""

    def over(lane: str, beside: str, row: Row = row) -> float | None:
        values = row.values
        return values[lane] / values[beside] if lane in values and beside in values else None

    return [
        Goal(
            "one request, all there / forkserver", over("ours", "forkserver"), 1.0, is_least=False
        ),
        Goal(
            "the same, each having answered / forkserver",
            over("ours answered", "forkserver"),
            2.0,
            is_least=False,
        ),
        Goal("a request for each / one request", over("ours in turn", "ours answered"), 5.0),
        Goal(
            "a program in a sandbox / without",
            over("sandboxed", "free", sandboxes),
            1.2,
            is_least=False,
        ),
        Goal(
            "a function in a sandbox / without",
            over("sandboxed function", "free function", sandboxes),
            1.2,
            is_least=False,
        ),
    ]


if __name__ == "__main__":
    main()
