"""Slots of this machine: ``slots.py LANE COUNT`` prints the nanoseconds until a manager has so many, then the bytes that each has (PSS).

- ``children``: the manager's own children.
- ``executed``: the same, each a Python that starts by itself.
- ``launched``: processes of a job (``launch=exoskel.Local()``).
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import exoskel as ex
from exoskel import manager as manager_module


def run(lane: str, count: int) -> tuple[float, float]:
    """Return the seconds, and the bytes of a slot that waits for work."""
    options: dict[str, Any] = {"launch": ex.Local()} if lane == "launched" else {}
    manager_module.forks = lane != "executed"
    begin = time.perf_counter()
    with ex.Manager(abs, ex.ParDegree(count), wait=300, **options) as manager:
        seconds = time.perf_counter() - begin
        processes = [one for worker in manager.summary().workers for one in worker.process_ids]
        assert len(processes) == count
        return seconds, sum(map(memory, processes)) / count


def memory(process: int) -> int:
    """Return the bytes of a process, what it shares counted in parts."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    [line] = [line for line in lines if line.startswith("Pss:")]
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    taken, held = run(sys.argv[1], int(sys.argv[2]))
    # The runner takes all numbers as nanoseconds.
    print(int((held if "memory" in sys.argv else taken) * 1e9))
