"""`make bench-redist`: an array from one program's layout to another's, ours beside the peers, in turn, on this machine.

Ours are always two programs. What is timed is a version, from the first export to the last import, and each element is checked. What comes
out goes to ``benches/results/redist.json``, ``redist.txt`` and ``redist.png``. A run of one part replaces what that part has there. Quick
runs go to ``target/bench``. `frame.py` says how a part is added.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from benches import figures
from benches.machine import ROOT, describe
from benches.redist import frame, table

RESULTS = ROOT / "benches" / "results" / "redist.json"
SCRATCH = ROOT / "target" / "bench" / "redist.json"
PACKAGES = ("openmpi-bin", "mpich", "libscalapack-openmpi2.2")


def main() -> None:
    """Measure, print and keep."""
    parts = frame.parts()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--part", choices=parts, action="append", help="this one only")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[], help="of square arrays")
    parser.add_argument("--sizes", type=int, nargs="+", default=[], help="processes of a side")
    parser.add_argument("--quick", action="store_true", help="few rounds, small arrays, not kept")
    arguments = parser.parse_args()
    bench = frame.Bench(
        2 if arguments.quick else arguments.rounds,
        is_quick=arguments.quick,
        lengths=arguments.lengths,
        sizes=arguments.sizes,
    )
    target = SCRATCH if arguments.quick else RESULTS
    target.parent.mkdir(parents=True, exist_ok=True)
    known = json.loads(target.read_text())["parts"] if target.exists() else {}
    for name in arguments.part or parts:
        known[name] = measured(parts[name], bench)
        # By names, as the folder has them; parts that are gone leave.
        report = {
            "machine": describe(PACKAGES),
            "parts": {name: known[name] for name in parts if name in known},
        }
        target.write_text(json.dumps(report, indent=1) + "\n")
    text = table.render(report)
    target.with_suffix(".txt").write_text(text + "\n")
    figures.draw("redist.plot", Path(target))
    print(text)


def measured(part: ModuleType, bench: frame.Bench) -> dict[str, Any]:
    """What a part has to say, as the file has it."""
    rows = []
    for row in part.measure(bench):
        frame.say("\n".join(table.row(row)))
        rows.append(row)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "rounds": bench.rounds,
        "quick": bench.is_quick,
        "goals": [asdict(goal) for goal in part.goals(rows)],
        "rows": [asdict(row) for row in rows],
    }


if __name__ == "__main__":
    main()
