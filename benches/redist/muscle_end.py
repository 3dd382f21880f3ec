"""An end of MUSCLE3: ``muscle_end.py ROLE FOLDER VERSIONS LENGTH``. Writes a time for each version, in nanoseconds, into its folder."""

import sys
import time
from pathlib import Path

import numpy as np
from libmuscle import Instance, Message
from ymmsl import Operator


def send(ready: Path, versions: int, expected: np.ndarray) -> list[int]:
    """Send a version when the receiver says that it waits."""
    instance = Instance({Operator.O_I: ["out"]})
    times = []
    while instance.reuse_instance():
        with ready.open("rb", buffering=0) as barrier:
            for version in range(versions):
                contents = expected + version
                barrier.read(1)
                times.append(time.monotonic_ns())
                instance.send("out", Message(float(version), data=contents))
    return times


def receive(ready: Path, versions: int, expected: np.ndarray) -> list[int]:
    """Receive them, each by a run of its own, as MUSCLE3 has it for what is called again and again."""
    instance = Instance({Operator.F_INIT: ["in"]})
    times: list[int] = []
    with ready.open("wb", buffering=0) as barrier:
        barrier.write(b"!")
        while instance.reuse_instance():
            contents = instance.receive("in").data.array
            times.append(time.monotonic_ns())
            if not np.array_equal(contents, expected + len(times) - 1):
                raise SystemExit("got other elements than expected")
            if len(times) < versions:
                barrier.write(b"!")
    return times


def main() -> None:
    """The end that sends, or the one that receives."""
    role, folder, versions, length = (
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    expected = np.arange(length * length, dtype=float).reshape(length, length)
    run = send if role == "source" else receive
    times = run(folder / "ready", versions, expected)
    (folder / f"{role}.times").write_text("\n".join(map(str, times)))


main()
