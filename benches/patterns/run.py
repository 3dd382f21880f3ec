"""`make bench-patterns`: programs that split, count and fold, ours and the peers' in turn, in one run, on this machine.

Each run is a process of its own whose workers are there before it is timed. Peers get the best of the chunks that somebody would try
by hand; ours are the engine's affair. Ratios above 1 are ours: the peer's seconds over ours.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from benches.engines.run import PEERS, install_peers

HERE = Path(__file__).parent
# By part: the peers, and what their seconds should be over ours at least.
PARTS: dict[str, dict[str, float]] = {
    "sum": {"pool": 1.1, "joblib": 1.1, "dask": 1.1, "ray": 1.1},
    "words": {"pool": 1.1, "dask": 3.0},
    "array": {"joblib": 1.2, "dask": 1.2},
    "divide": {},
}
EFFICIENCY_GOAL = 0.95
TIMEOUT_SECONDS = 600


def one_run(python: str, engine: str, part: str) -> dict[str, float]:
    """Run an engine once."""
    command = [python, str(HERE / f"{engine}_engine.py"), part]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    ran = subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    if ran.returncode != 0:
        raise SystemExit(ran.stderr)
    measured: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return measured


def main() -> None:
    """Print the medians of each engine's figures, and the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="an interpreter with the peers (default: .venv-peers')")
    parser.add_argument("--engines", default="", help="comma-separated peers (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", choices=PARTS, action="append")
    arguments = parser.parse_args()
    if arguments.peers is None:
        install_peers()
    theirs = arguments.peers or str(PEERS / "bin" / "python")
    for part in arguments.part or PARTS:
        chosen = [name for name in PARTS[part] if name in (arguments.engines or name).split(",")]
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in ("exoskel", *chosen)}
        for _ in range(arguments.rounds):
            for engine, measured in runs.items():
                python = theirs if engine in ("joblib", "dask", "ray") else sys.executable
                measured.append(one_run(python, engine, part))
        report(part, runs)


def report(part: str, runs: dict[str, list[dict[str, float]]]) -> None:
    """Print what a part has come to."""
    for engine, measured in runs.items():
        figures = {
            name: round(statistics.median(run[name] for run in measured), 4) for name in measured[0]
        }
        print(json.dumps({"part": part, "engine": engine, **figures}))
        if "efficiency" in figures:
            print(f"{part} efficiency: {figures['efficiency']:.2f} (goal {EFFICIENCY_GOAL})")
    for engine, goal in PARTS[part].items():
        if engine in runs:
            pairs = zip(runs["exoskel"], runs[engine], strict=True)
            ratios = sorted(peer["seconds"] / ours["seconds"] for ours, peer in pairs)
            middle = statistics.median(ratios)
            print(
                f"{part} {engine} / ours: {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}), goal {goal}"
            )


if __name__ == "__main__":
    main()
