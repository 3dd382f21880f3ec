"""`make bench-launch`: processes and slots, ours beside the peers', in turn, on this machine.

A part is a module ``part_NAME.py`` in this folder, with the two functions that those of `make bench-redist` have. What comes out goes to
``benches/results/launch.json`` and ``launch.txt``; parts that didn't run keep their figures. Quick runs go to ``target/bench``.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType

from benches.machine import ROOT, describe
from benches.redist import table
from benches.redist.frame import Bench

RESULTS = ROOT / "benches" / "results" / "launch.json"
SCRATCH = ROOT / "target" / "bench" / "launch.json"


def parts() -> dict[str, ModuleType]:
    """All parts by their names, as the folder has them."""
    names = sorted(path.stem for path in Path(__file__).parent.glob("part_*.py"))
    return {
        name.removeprefix("part_"): importlib.import_module(f"benches.launch.{name}")
        for name in names
    }


def main() -> None:
    """Measure, print and keep."""
    known = parts()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(known)}; all of them"
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few processes, not kept")
    arguments = parser.parse_args()
    target = SCRATCH if arguments.quick else RESULTS
    before = json.loads(target.read_text())["parts"] if target.exists() else {}
    report = {"machine": describe([]), "parts": before}
    for name in arguments.parts or known:
        bench = Bench(arguments.rounds, is_quick=arguments.quick)
        rows = list(known[name].measure(bench))
        report["parts"][name] = {
            "date": time.strftime("%Y-%m-%d"),
            "rounds": bench.rounds,
            "quick": bench.is_quick,
            "goals": [asdict(goal) for goal in known[name].goals(rows)],
            "rows": [asdict(row) for row in rows],
        }
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(report, indent=1) + "\n")
        target.with_suffix(".txt").write_text(table.render(report) + "\n")
    print(table.render(report))


if __name__ == "__main__":
    main()
