"""`make bench-contracts`: what a manager's word is worth, ours and the peers' in turn, in one run, on this machine.

Each run is a process of its own whose workers are there before it is timed. Items sleep where more slots than cores are asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benches.engines.run import PEERS, RESULTS, end_group, install_peers, say
from benches.machine import describe

HERE = Path(__file__).parent
# By part: the peers that have it.
PARTS: dict[str, list[str]] = {
    "kill": ["dask", "ray", "parsl"],
    "loss": [],
    "share": [],
    "step": [],
    "iterate": ["dask", "ray"],
    "stragglers": [],
    "pipeline": [],
    "short": [],
}
TIMEOUT_SECONDS = 300


def one_run(python: str, engine: str, part: str) -> dict[str, Any]:
    """Run an engine once. What it leaves behind is ended with its process group."""
    process = subprocess.Popen(
        [python, str(HERE / f"{engine}_engine.py"), part],
        env={
            **os.environ,
            "PYTHONPATH": str(HERE),
            "PYTHONWARNINGS": "ignore",
            # Parsl looks for its own programs there.
            "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        end_group(process.pid)
    if process.returncode:
        raise SystemExit(errors)
    measured: dict[str, Any] = json.loads(output.splitlines()[-1])
    return measured


def main() -> None:
    """Print the medians of each engine's figures, with the goals."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engines", default="", help="comma-separated peers (default: all)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--part", choices=PARTS, action="append")
    arguments = parser.parse_args()
    wanted = arguments.engines.split(",") if arguments.engines else None
    parts = arguments.part or list(PARTS)
    if any(PARTS[part] for part in parts) and wanted != ["none"]:
        install_peers()
    report: dict[str, dict[str, dict[str, float]]] = {}
    for part in parts:
        engines = [name for name in PARTS[part] if wanted is None or name in wanted]
        runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ("exoskel", *engines)}
        for number in range(arguments.rounds):
            for engine, measured in runs.items():
                say(f"{part}, round {number + 1} of {arguments.rounds}: {engine}")
                python = sys.executable if engine == "exoskel" else str(PEERS / "bin" / "python")
                measured.append(one_run(python, engine, part))
        report[part] = {engine: medians(measured) for engine, measured in runs.items()}
    text = "\n".join(rendered(report))
    print(text)
    if arguments.part is None and wanted is None:
        kept = {"machine": describe([]), "rounds": arguments.rounds, "parts": report}
        (RESULTS / "contracts.json").write_text(json.dumps(kept, indent=1) + "\n")
        (RESULTS / "contracts.txt").write_text(text + "\n")


def medians(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return the middle of each figure."""
    return {name: round(statistics.median(run[name] for run in runs), 5) for name in runs[0]}


def rendered(report: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """Return a line for each figure: what was measured, and what the goal is."""
    lines = []

    def row(text: str, value: float, goal: str, met: bool) -> None:
        lines.append(f"{text:<66} {value:>8.3f}  goal {goal:<18} {'met' if met else 'MISSED'}")

    if "kill" in report:
        ours = report["kill"]["exoskel"]
        row("1 of 2 killed, 80 tasks: results", ours["results"], "80", ours["results"] == 80)
        twice, there = ours["twice"], ours["unfinished_there"]
        row("  ran twice", twice, f"{there:.0f} (unfinished)", twice <= there)
        row("  seconds", ours["seconds"], "fewer than each", True)
        for engine, theirs in report["kill"].items():
            if engine != "exoskel":
                text = f"  {engine}: {theirs['results']:.0f} results, {theirs['twice']:.0f} twice; its seconds / ours"
                ratio = theirs["seconds"] / ours["seconds"]
                row(text, ratio, "1", ratio >= 1)
    if "loss" in report:
        ours = report["loss"]["exoskel"]
        row(
            "1 of 8 lost: seconds below 7/8", ours["seconds_below"], "2", ours["seconds_below"] <= 2
        )
        replaced = ours["seconds_to_replacement"]
        row("  seconds until it is replaced", replaced, "5", replaced <= 5)
    if "share" in report:
        share = report["share"]["exoskel"]["share"]
        row(
            "items of a slot half as fast / of the other",
            share,
            "0.5, 5 %",
            0.475 <= share <= 0.525,
        )
    if "step" in report:
        ours = report["step"]["exoskel"]
        meets, many = ours["seconds_to_meet"], ours["slots_too_many"]
        row("Throughput after items take 3 times as long: seconds", meets, "10", meets <= 10)
        row("  slots too many", many, "1", many <= 1)
    if "iterate" in report:
        trip = report["iterate"]["exoskel"]["round_trip"]
        for engine, figures in report["iterate"].items():
            trips = figures["seconds"] / trip
            goal = "3" if engine == "exoskel" else "-"
            row(
                f"a round of Iterate over two blocks, {engine}: round trips of ours",
                trips,
                goal,
                engine != "exoskel" or trips <= 3,
            )
    if "stragglers" in report:
        makespan = report["stragglers"]["exoskel"]["makespan"]
        row(
            "1 item of 100 takes 50x where it is: makespan over none",
            makespan,
            "1.1",
            makespan <= 1.1,
        )
    if "pipeline" in report:
        for name, value in report["pipeline"]["exoskel"].items():
            row(
                f"pipeline of exponential times, {name.replace('_', ' ')}",
                value,
                "0.96",
                value >= 0.96,
            )
    if "short" in report:
        over = report["short"]["exoskel"]["over_best"]
        row("short streams over the best length of frames", over, "1.05", over <= 1.05)
    return lines


if __name__ == "__main__":
    main()
