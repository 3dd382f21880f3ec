"""What numerical programs ask of a pool: BLAS inside tasks, and a large constant for all of them; beside joblib's loky.

Each run is a process of its own, and the two engines take turns. Ratios below 1 are ours. `copies` is what the constant adds to the memory of all
processes at the end of a run, where joblib has removed its memory map.
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
SLOTS = {"cov": 2, "shared": 4}
MEGABYTES = 256


def one_run(python: str, engine: str, part: str, megabytes: int) -> dict[str, float]:
    """Run an engine once."""
    command = [python, str(HERE / f"{engine}_engine.py"), part, str(SLOTS[part]), str(megabytes)]
    # Whoever runs this may have set what the engines are to set themselves.
    environment = {name: value for name, value in os.environ.items() if "NUM_THREADS" not in name}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode != 0:
        raise SystemExit(ran.stderr)
    measured: dict[str, float] = json.loads(ran.stdout.splitlines()[-1])
    return measured


def main() -> None:
    """Print the median of each figure, and the ratios of the times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--peers", help="an interpreter with joblib and NumPy (default: that of .venv-peers)"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--part", choices=SLOTS, action="append")
    arguments = parser.parse_args()
    if arguments.peers is None:
        install_peers()
    peers = arguments.peers or str(PEERS / "bin" / "python")
    engines = {"exoskel": sys.executable, "loky": peers}
    for part in arguments.part or SLOTS:
        runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in engines}
        for _ in range(arguments.rounds):
            for engine, python in engines.items():
                runs[engine].append(one_run(python, engine, part, MEGABYTES))
        for engine, python in engines.items():
            figures = {
                name: round(statistics.median(run[name] for run in runs[engine]), 3)
                for name in runs[engine][0]
            }
            if part == "shared":
                # What the processes have without it.
                least = one_run(python, engine, part, 1)
                surplus = figures["memory_bytes"] - least["memory_bytes"]
                figures["copies"] = round(surplus / ((MEGABYTES - 1) << 20), 2)
            print(json.dumps({"part": part, "engine": engine, **figures}))
        for name in ("cold_seconds", "warm_seconds"):
            pairs = zip(runs["exoskel"], runs["loky"], strict=True)
            ratios = sorted(ours[name] / theirs[name] for ours, theirs in pairs)
            middle = statistics.median(ratios)
            print(f"{part} {name} ours / loky: {middle:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
