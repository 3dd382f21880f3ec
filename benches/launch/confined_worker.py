"""Items through a worker of this host: ``confined_worker.py LANE KIND COUNT`` prints the nanoseconds that so many take.

- ``free``: a worker whose policy confines nobody; ``sandboxed``: one that confines the manager.
- ``no-op``: items that are numbers, through a function that does nothing; ``1 MiB``: bytes there, their length back.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import exoskel as ex

NAME = "lab1.example.org"
LANES = {"free": "# nobody\n", "sandboxed": "[sandbox]\nmanagers = ['*']\n"}


@contextlib.contextmanager
def worker(folder: Path, policy: str) -> Iterator[str]:
    """Run a worker with one slot; give its line of a hosts file."""

    def exoskel(*words: object) -> list[str]:
        return [sys.executable, "-P", "-m", "exoskel", *map(str, words)]

    def issue(role: str, name: str, file: str) -> None:
        place = ["--directory", folder / "pki", "--output", folder / file]
        command = exoskel("pki", "issue", "--role", role, "--name", name, *place)
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    command = exoskel("pki", "init", folder / "pki")
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    issue("manager", "head.example.org", "head.pem")
    issue("worker", NAME, "worker.pem")
    (folder / "policy.toml").write_text(policy)
    own = ["--credential", folder / "worker.pem", "--policy", folder / "policy.toml"]
    command = exoskel("worker", "--json", "--listen", "tcp://127.0.0.1:0", "--slots", 1, *own)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        try:
            yield f"{json.loads(running.stdout.readline())['listen']} {NAME}"
        finally:
            running.terminate()


def length(item: bytes) -> int:
    """Take bytes, and say how many they are."""
    return len(item)


def run(lane: str, kind: str, count: int) -> float:
    """Return the seconds of so many items."""
    item = bytes(1 << 20)
    with (
        tempfile.TemporaryDirectory() as name,
        worker(Path(name), LANES[lane]) as line,
        ex.Manager(
            ex.Farm(length if kind == "1 MiB" else abs),
            ex.ParDegree(1),
            workers=[line],
            credential=Path(name) / "head.pem",
        ) as manager,
    ):

        def all_of(items: int) -> int:
            given = (item for _ in range(items)) if kind == "1 MiB" else iter(range(items))
            return sum(1 for _ in manager.map(given))

        # What is new on the way is not to count.
        all_of(max(1, count // 10))
        begin = time.perf_counter()
        assert all_of(count) == count
        return time.perf_counter() - begin


if __name__ == "__main__":
    print(int(run(sys.argv[1], sys.argv[2], int(sys.argv[3])) * 1e9))
