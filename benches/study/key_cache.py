"""How fast the key cache is beside libCacheSim, which does nothing else: lookups in a second, both on one core, in one run.

`make bench-key-cache` runs this. Both read the same file of synthetic ON/OFF traffic, record by record, and look each key up in a fully
associative cache of 1024 entries. libCacheSim runs its own loop over the file, without Python in it. The rounds of both take turns; a round is seconds
long, so the best one is what the machine can do, and the median what it does. The goal is 0.4 of libCacheSim's rate.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.peers import caches
from tests.peers.peer import PYTHON, ROOT, install_wheels

RESULTS = ROOT / "benches" / "results"
SEQUENCE = ROOT / "target" / "release" / "examples" / "key_sequence"
# Keys, OFF/ON, packets of an ON period, seed: 99 of 100 lookups hit.
TRAFFIC = [8000, 8, 100, 1]
ENTRIES = 1024
GOAL = 0.4
POLICIES = {"lru": "LRU", "clock": "Clock", "s3-fifo": "S3FIFO"}
THEIRS = """
import json, sys, time
import libcachesim
file, policy, entries = sys.argv[1], sys.argv[2], int(sys.argv[3])
reader = libcachesim.TraceReader(file, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
cache = getattr(libcachesim, policy)(entries)
start = time.perf_counter()
missed, _ = cache.process_trace(reader)
seconds = time.perf_counter() - start
lookups = reader.get_num_of_req()
print(json.dumps({"lookups": lookups, "hits": round((1 - missed) * lookups), "seconds": seconds}))
"""


def printed(command: list[str | Path]) -> Any:
    """The JSON in the last line of what a program prints."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout.splitlines()[-1])


def rate(round_: dict[str, Any]) -> float:
    """Lookups in a second."""
    return float(round_["lookups"] / round_["seconds"])


def measure(file: Path, rounds: int) -> list[dict[str, Any]]:
    """For each policy the rates of both, and whether they found the same."""
    found = []
    for ours, theirs in POLICIES.items():
        own, other = [], []
        for _ in range(rounds):
            own += printed([SEQUENCE, "count", file, ours, str(ENTRIES)])
            other.append(printed([PYTHON, "-c", THEIRS, file, theirs, str(ENTRIES)]))
        rates = [statistics.median(map(rate, side)) for side in (own, other)]
        best = [max(map(rate, side)) for side in (own, other)]
        found.append(
            {
                "policy": theirs,
                "ours": rates[0],
                "theirs": rates[1],
                "ratio": rates[0] / rates[1],
                "ratio_of_best": best[0] / best[1],
                "hits": [own[0]["hits"], other[0]["hits"]],
            }
        )
    return found


def main() -> int:
    """Measures, prints a table and keeps the numbers."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--lookups", type=int, default=10_000_000)
    arguments = parser.parse_args()
    if caches.missing() and (why := install_wheels([f"libcachesim=={caches.VERSION}"])):
        raise SystemExit(f"libCacheSim can't be installed: {why}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sequence"
        traffic = map(str, [*TRAFFIC, arguments.lookups])
        subprocess.run([SEQUENCE, "synthetic", *traffic, file], check=True)
        found = measure(file, arguments.rounds)
    print(f"{'policy':8} {'ours M/s':>10} {'theirs M/s':>10} {'ratio':>7}  hits, ours and theirs")
    for one in found:
        millions = [one[side] / 1e6 for side in ("ours", "theirs")]
        hits = " ".join(map(str, one["hits"]))
        print(
            f"{one['policy']:8} {millions[0]:10.1f} {millions[1]:10.1f} {one['ratio']:7.2f}  {hits}"
        )
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": platform.platform(),
        "libcachesim": caches.VERSION,
        "lookups": arguments.lookups,
        "rounds": arguments.rounds,
        "found": found,
    }
    (RESULTS / "key_cache.json").write_text(json.dumps(report, indent=1) + "\n")
    return 0 if found[0]["ratio"] >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
