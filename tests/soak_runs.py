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
from collections.abc import Sequence
from pathlib import Path

# Items of various length, some of which come before their turn; the results have various sizes. Some programs give any number of results
# for an item, and some fold them.
SCRIPT = """
import operator, sys, time
import exoskel as ex

def work(item):
    time.sleep(0.03 if item % 37 == 5 else 0.001)
    return {"item": item, "text": "x" * (item * 7919 % 700)}

def parts(item):
    time.sleep(0.02 if item % 37 == 5 else 0.0)
    return [item * 10 + part for part in range(item * 7919 % 5)]

def numbers(count):
    yield from range(count)

def text(result):
    return str(result["item"])[-3:]

def last_digit(result):
    return result["item"] % 10

def size(result):
    return len(result["text"])

PROGRAMS = {
    "one": (work, range),
    "many": (ex.Pipeline(ex.FlatMap(parts), ex.Farm(work)), range),
    "serial_many": (ex.Pipeline(ex.Seq(work), ex.FlatMap(lambda result: [result] * (result["item"] % 3))), range),
    "fold": (ex.Pipeline(work, text, ex.Reduce(operator.add)), range),
    "streamed_fold": (ex.Pipeline(ex.FlatMap(parts), work, text, ex.Reduce(operator.add)), numbers),
    "key_fold": (ex.Pipeline(work, ex.Reduce(operator.add, key=last_digit, value=size)), range),
    "serial_fold": (ex.Pipeline(ex.Seq(work), text, ex.Reduce(operator.add)), range),
}

if __name__ == "__main__":
    program, items = PROGRAMS[sys.argv[2]]
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        print("ready", flush=True)
        print(manager.run(items(int(sys.argv[1])), ex.JsonLines("out.jsonl"), journal="run.journal"))
"""
NAMES = ("one", "many", "serial_many", "fold", "streamed_fold", "key_fold", "serial_fold")
# A run that is killed so often is one that doesn't go on.
LIVES_MAX = 1000


def started(folder: Path, items: int, name: str) -> subprocess.Popen[str]:
    """Start the run of a folder, and wait until its slots are ready."""
    command = [sys.executable, "job.py", str(items), name]
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


def kill_run(folder: Path, items: int, name: str, chance: random.Random) -> int:
    """Kill the run of a folder until it is complete; say how often that was."""
    folder.mkdir()
    (folder / "job.py").write_text(SCRIPT)
    for life in range(LIVES_MAX):
        process = started(folder, items, name)
        try:
            process.wait(chance.uniform(0.0, 1.0))
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
        code = ended(process)
        if code == 0:
            return life
        assert code == -signal.SIGKILL, f"the run in {folder} ended with {code}"
    raise AssertionError(f"the run in {folder} doesn't come to its end")


def kill_runs(
    kills: int, seed: int, folder: Path, items: int = 1500, names: Sequence[str] = NAMES
) -> int:
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
    names : sequence of str
        The programs, one run after the other.

    Returns
    -------
    int
        How many managers were killed.
    """
    chance = random.Random(seed)
    expected: dict[str, bytes] = {}
    for name in names:
        undisturbed = folder / f"undisturbed-{name}"
        undisturbed.mkdir()
        (undisturbed / "job.py").write_text(SCRIPT)
        assert ended(started(undisturbed, items, name)) == 0
        expected[name] = (undisturbed / "out.jsonl").read_bytes()
    killed = runs = 0
    while killed < kills or runs % len(names):
        name = names[runs % len(names)]
        runs += 1
        run = folder / f"run-{runs}"
        killed += kill_run(run, items, name, chance)
        got = (run / "out.jsonl").read_bytes()
        assert got == expected[name], (
            f"the sink in {run} is not that of a run of {name} that nobody has killed"
        )
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
