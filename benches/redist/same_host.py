"""Rows of one host beside the large arrays: memory of a program's own, one number there and back, and how soon the first version is there."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from exoskel import _core

ROUND_TRIP = """
[program.there]
[program.back]
[[connection]]
from = "there.given"
to = "back.taken"
[[connection]]
from = "back.given"
to = "there.taken"
"""


@contextlib.contextmanager
def keeper_of(coupling: str) -> Iterator[Path]:
    """A keeper in this process: where its members find it."""
    with tempfile.TemporaryDirectory() as folder:
        keeper = _core.Keeper(Path(folder, "keeper"), coupling)
        try:
            yield Path(folder, "keeper")
        finally:
            keeper.end()


def started(place: Path, *words: object) -> subprocess.Popen[str]:
    """Start a member."""
    return subprocess.Popen(
        list(map(str, words)),
        env={"EXOSKEL_KEEPER": str(place)},
        stdout=subprocess.PIPE,
        text=True,
    )


def round_trip(program: Path, times: int) -> dict[str, float]:
    """Return the seconds of one number there and back: ours, and two processes that wake each other by futexes."""
    medians = {}
    with keeper_of(ROUND_TRIP) as place:
        pair = [started(place, program, name, times) for name in ("there", "back")]
        medians["ours"] = median_of(pair[0].communicate()[0])
        if any(process.wait() for process in pair):
            raise SystemExit("a round trip has failed")
    done = subprocess.run(
        [program, "futex", str(times)], check=True, capture_output=True, text=True
    )
    medians["futex"] = median_of(done.stdout)
    return medians


def median_of(printed: str) -> float:
    """Return seconds of nanoseconds, of which the first tenth are not counted."""
    values = [float(line) / 1e9 for line in printed.split()]
    return statistics.median(values[len(values) // 10 :])


def first_version(program: Path, coupling: str, length: int, sizes: tuple[int, int]) -> float:
    """Return the seconds from when the last process attaches to when the last has its first version."""
    with keeper_of(coupling) as place:
        kinds = [("source", "block,*", sizes[0]), ("target", "*,block", sizes[1])]
        members = [
            started(place, program, name, rank, size, length, axes, 1, "first")
            for name, axes, size in kinds
            for rank in range(size)
        ]
        printed = [process.communicate()[0].split() for process in members]
        if any(process.returncode for process in members):
            raise SystemExit("a first version has failed")
    attached = max(int(words[0]) for words in printed)
    taken = max(int(words[1]) for words in printed)
    return (taken - attached) / 1e9


def shared_bytes() -> int:
    """Return the bytes of arrays in the memory that this process's keeper holds."""
    found = {}
    for descriptor in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if "exoskel array" in os.readlink(f"/proc/self/fd/{descriptor}"):
                status = os.stat(int(descriptor))
                found[status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def highest(run: Callable[[], Any]) -> int:
    """Run something, and return the most bytes of arrays that the keeper had meanwhile."""
    most, is_over = [0], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.005):
            most[0] = max(most[0], shared_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        run()
    finally:
        is_over.set()
        watcher.join()
    return most[0]
