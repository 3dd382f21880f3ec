"""An end of MUSCLE3: ``muscle_end.py ROLE FOLDER VERSIONS LENGTH``. Writes a time for each version, in nanoseconds, into its folder."""

import sys
import time
from pathlib import Path

import numpy as np
from libmuscle import Instance, Message
from ymmsl import Operator


def main() -> None:
    """The end that sends, or the one that receives."""
    role, folder, versions, length = (
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    ports = {Operator.O_I: ["out"]} if role == "source" else {Operator.S: ["in"]}
    instance = Instance(ports)
    expected = np.arange(length * length, dtype=float).reshape(length, length)
    # A barrier: the receiver says that it waits.
    ready = folder / "ready"
    times = []
    while instance.reuse_instance():
        with ready.open("rb" if role == "source" else "wb", buffering=0) as barrier:
            for version in range(versions):
                if role == "source":
                    contents = expected + version
                    barrier.read(1)
                    times.append(time.monotonic_ns())
                    instance.send("out", Message(float(version), data=contents))
                    continue
                barrier.write(b"!")
                contents = instance.receive("in").data.array
                times.append(time.monotonic_ns())
                if not np.array_equal(contents, expected + version):
                    raise SystemExit("got other elements than expected")
    (folder / f"{role}.times").write_text("\n".join(map(str, times)))


main()
