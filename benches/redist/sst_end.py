"""An end of ADIOS2's SST: ``sst_end.py ROLE FOLDER VERSIONS LENGTH``. Prints a time for each version, in nanoseconds."""

import sys
import time
from pathlib import Path

import adios2
import numpy as np


def main() -> None:
    """The end that writes, or the one that reads."""
    role, folder, versions, length = (
        sys.argv[1],
        Path(sys.argv[2]),
        int(sys.argv[3]),
        int(sys.argv[4]),
    )
    io = adios2.Adios().declare_io("field")
    io.set_engine("SST")
    io.set_parameters({"QueueLimit": "1", "QueueFullPolicy": "Block", "RendezvousReaderCount": "1"})
    expected = np.arange(length * length, dtype=float).reshape(length, length)
    # A barrier: the reader says that it waits.
    ready = folder / "ready"
    shape = [length, length]
    if role == "source":
        with (
            adios2.Stream(io, str(folder / "field"), "w") as stream,
            ready.open("rb", buffering=0) as barrier,
        ):
            for version in range(versions):
                contents = expected + version
                barrier.read(1)
                print(time.monotonic_ns(), flush=True)
                stream.begin_step()
                stream.write("field", contents, shape, [0, 0], shape)
                stream.end_step()
        return
    with (
        adios2.Stream(io, str(folder / "field"), "r") as stream,
        ready.open("wb", buffering=0) as barrier,
    ):
        for version in range(versions):
            barrier.write(b"!")
            stream.begin_step()
            contents = stream.read("field")
            stream.end_step()
            print(time.monotonic_ns(), flush=True)
            if not np.array_equal(contents, expected + version):
                raise SystemExit("got other elements than expected")


main()
