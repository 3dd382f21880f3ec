"""`make paper-nexus`: Figures 6 and 7 of "A secure communications infrastructure for high-performance distributed computing", with ours.

I. Foster, N. Karonis, C. Kesselman, G. Koenig and S. Tuecke bounced vectors between two processors by remote service requests, over IBM's MPL and
over TCP, without security and with DES and MD5. Here both ends poll as theirs did, over shared memory and over TCP. What comes out goes to
``benches/results/nexus.json`` and ``docs/paper-nexus.md``.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from benches import figures
from benches.links import install, nexus_page
from benches.links.lanes import LaneError, LaneProgram, calibrate, turning
from benches.machine import ROOT, describe

RESULTS = ROOT / "benches" / "results" / "nexus.json"
SCRATCH = ROOT / "target" / "bench" / "nexus.json"
PAGE = ROOT / "docs" / "paper-nexus.md"
FIGURE = ROOT / "docs" / "figures" / "paper-nexus.png"
# The paper's axes, as far as the text tells.
SIZES = (10, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)


def main() -> int:
    """Measure, write data, page and picture."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes; says little"
    )
    arguments = parser.parse_args()
    rounds, seconds = (3, 0.02) if arguments.quick else (arguments.rounds, 0.08)
    lanes = list(nexus_page.LANES)
    times: dict[int, dict[str, list[float]]] = {
        size: {lane: [] for lane in lanes} for size in SIZES
    }
    try:
        program = LaneProgram([install.own(), "ping"])
    except install.Missing as error:
        print(error, file=sys.stderr)
        return 1
    try:
        say("how many messages take a turn")
        counts = {
            (size, lane): calibrate(program, lane, size, seconds)
            for size in SIZES
            for lane in lanes
        }
        # All sizes in each round: a machine that is slow for a while is slow for all of them.
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for size in SIZES:
                for lane in turning(lanes, number):
                    spent = program.turn(lane, size, counts[size, lane])
                    times[size][lane].append(spent / counts[size, lane])
    except LaneError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        program.end()
    sizes = [{"size": size, "times": of_lanes} for size, of_lanes in times.items()]
    report = {"machine": describe([]), "quick": arguments.quick, "rounds": rounds, "sizes": sizes}
    target = SCRATCH if arguments.quick else RESULTS
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report) + "\n")
    page, figure = (
        (target.with_suffix(".md"), target.with_suffix(".png"))
        if arguments.quick
        else (PAGE, FIGURE)
    )
    text = nexus_page.page(report)
    page.write_text(text)
    figures.draw("links.nexus_plot", target, Path(figure))
    print(text)
    return 0


def say(text: str) -> None:
    """Progress, beside the page's stream."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
