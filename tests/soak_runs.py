"""`make soak-runs`: managers of runs with a journal, ended by SIGKILL at any moment, until their sinks are complete.

Each run is a process of its own. It is killed after a time that is drawn from the seed, and started again, as often as it takes. Then
its sink must be that of a run that nobody has killed, byte for byte.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Items of various length, some of which come before their turn; the results have various sizes.
SCRIPT = """
import sys, time
import exoskel as ex

def work(item):
    time.sleep(0.03 if item % 37 == 5 else 0.001)
    return {"item": item, "text": "x" * (item * 7919 % 700)}

if __name__ == "__main__":
    with ex.Manager(work, ex.ParDegree(2)) as manager:
        print("ready", flush=True)
        print(manager.run(range(int(sys.argv[1])), ex.JsonLines("out.jsonl"), journal="run.journal"))
"""
# A run that is killed so often is one that doesn't go on.
LIVES_MAX = 1000


def started(folder: Path, items: int) -> subprocess.Popen[str]:
    """Start the run of a folder, and wait until its slots are ready."""
    command = [sys.executable, "job.py", str(items)]
    process = subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def ended(process: subprocess.Popen[str]) -> int:
    """Wait for the end of a run."""
    with process:
        code: int = process.wait()
    return code


def kill_run(folder: Path, items: int, chance: random.Random) -> int:
    """Kill the run of a folder until it is complete; say how often that was."""
    folder.mkdir()
    (folder / "job.py").write_text(SCRIPT)
    for life in range(LIVES_MAX):
        process = started(folder, items)
        try:
            process.wait(chance.uniform(0.0, 1.0))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        code = ended(process)
        if code == 0:
            return life
        assert code == -signal.SIGKILL, f"the run in {folder} ended with {code}"
    raise AssertionError(f"the run in {folder} doesn't come to its end")


def kill_runs(kills: int, seed: int, folder: Path, items: int = 1500) -> int:
    """Kill runs so often; say how often it was.

    Parameters
    ----------
    kills : int
        How often at least.
    seed : int
        What the times are drawn from.
    folder : Path
        Where the runs are.
    items : int
        Of each run.

    Returns
    -------
    int
        How many managers were killed.
    """
    chance = random.Random(seed)
    undisturbed = folder / "undisturbed"
    undisturbed.mkdir()
    (undisturbed / "job.py").write_text(SCRIPT)
    assert ended(started(undisturbed, items)) == 0
    expected = (undisturbed / "out.jsonl").read_bytes()
    killed = runs = 0
    while killed < kills:
        runs += 1
        run = folder / f"run-{runs}"
        killed += kill_run(run, items, chance)
        got = (run / "out.jsonl").read_bytes()
        assert got == expected, f"the sink in {run} is not that of a run that nobody has killed"
    return killed


def main() -> None:
    """Kill as many as the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        killed = kill_runs(arguments.kills, arguments.seed, Path(folder))
    seconds = time.monotonic() - begin
    print(
        f"{killed} managers killed in {seconds:.0f} s, every sink complete: 0 results lost, doubled or altered"
    )


if __name__ == "__main__":
    main()
