"""How fast messages are replayed: us at message level beside SimGrid's SMPI, in one run on one core; and how fast we simulate packets.

`make bench-replay` runs this. Both replay the same messages of each trace on the same network (`tests/peers/simgrid.py`), in turns. A replay is timed as a
process, from its start to its end, with reading its input: SimGrid's text, our compressed trace. What SimGrid needs for sixteen ranks without
messages is measured as well and taken off its times. The goal is ten times SimGrid's messages in a second over all traces.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tests.peers import simgrid
from tests.peers.peer import ROOT, install

RESULTS = ROOT / "benches" / "results"
TRACES = ["cg.A.16", "lu.A.16.it20", "mg.A.16", "sp.S.16", "bt.S.16"]
GOAL = 10


def seconds(work: Callable[[], Any]) -> float:
    """What it takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def empty(both: simgrid.Bench) -> Path:
    """Programs of nothing."""
    texts = both.folder / "empty"
    texts.mkdir()
    for rank in range(simgrid.RANKS):
        (texts / f"rank{rank}").write_text(f"{rank} init\n{rank} finalize\n")
    listed = texts / "traces"
    listed.write_text("".join(f"{texts / f'rank{rank}'}\n" for rank in range(simgrid.RANKS)))
    return listed


def measure(both: simgrid.Bench, rounds: int) -> list[dict[str, Any]]:
    """For each trace the messages in a second of both."""
    nothing = empty(both)
    start = statistics.median(seconds(partial(both.theirs, nothing)) for _ in range(rounds))
    found = []
    for name in TRACES:
        texts = both.prepare(name)
        messages = both.ours(name)["messages"]
        own, other = [], []
        for _ in range(rounds):
            own.append(seconds(partial(both.ours, name)))
            other.append(seconds(partial(both.theirs, texts)) - start)
        ours, theirs = (statistics.median(side) for side in (own, other))
        found.append(
            {
                "trace": name,
                "messages": messages,
                "ours_seconds": ours,
                "theirs_seconds": theirs,
                "ratio": theirs / ours,
            }
        )
    return found


def packets(both: simgrid.Bench, rounds: int) -> dict[str, float]:
    """Packet events in a second, with the paper's card; the best of some rounds."""
    tool = [both.tool("-", 1, simgrid.TRACES / "cg.A.16.skct.zst") for _ in range(rounds)]
    runs = [json.loads(text) for text in tool]
    best = max(runs, key=lambda one: float(one["events_per_second"]))
    return {
        "events_per_second": best["events_per_second"],
        "packets_per_second": best["packets"] / best["run_seconds"],
    }


def main() -> int:
    """Measures, prints a table and keeps the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    if simgrid.missing() and (why := install(simgrid.SIMGRID.packages)):
        raise SystemExit(f"SimGrid can't be installed: {why}")
    with simgrid.bench("release") as both:
        found = measure(both, rounds)
        speed = packets(both, rounds)
    total = {side: sum(one[f"{side}_seconds"] for one in found) for side in ("ours", "theirs")}
    messages = sum(one["messages"] for one in found)
    ratio = total["theirs"] / total["ours"]
    print(f"{'trace':14} {'messages':>9} {'ours k/s':>9} {'SMPI k/s':>9} {'ratio':>6}")
    for one in [*found, {"trace": "all", "messages": messages, "ratio": ratio}]:
        ours = one.get("ours_seconds", total["ours"])
        theirs = one.get("theirs_seconds", total["theirs"])
        thousands = [one["messages"] / side / 1e3 for side in (ours, theirs)]
        print(
            f"{one['trace']:14} {one['messages']:9} {thousands[0]:9.0f} {thousands[1]:9.0f} {one['ratio']:6.1f}"
        )
    print(
        f"packet level, cg.A.16: {speed['events_per_second'] / 1e6:.1f} M events/s, "
        f"{speed['packets_per_second'] / 1e6:.1f} M packets/s"
    )
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.platform(),
        "simgrid": simgrid.VERSION,
        "rounds": rounds,
        "traces": found,
        "ratio": ratio,
        "packet_level": speed,
    }
    (RESULTS / "replay.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
