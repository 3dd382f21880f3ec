"""Programs that couple others: YAC in one MPI world, ADIOS2's SST and MUSCLE3 between two processes; ours beside each."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benches.links.install import Missing
from benches.redist import keepers, programs
from benches.redist.frame import (
    COMPLAINT_MAX,
    FIRST,
    SOURCES,
    Bench,
    Goal,
    Lane,
    Row,
    least,
    lines,
)

PEERS = {"yac": "YAC", "sst": "ADIOS2 SST", "muscle3": "MUSCLE3"}
VERSIONS = 5
SECONDS = 240
# MUSCLE3 starts both ends by this file.
MODEL = """\
ymmsl_version: v0.1
model:
  name: bench
  components:
    source:
      implementation: source
      ports: {{o_i: out}}
    target:
      implementation: target
      ports: {{f_init: in}}
  conduits:
    source.out: target.in
implementations:
  source:
    executable: {python}
    args: [{script}, source, {folder}, "{versions}", "{length}"]
  target:
    executable: {python}
    args: [{script}, target, {folder}, "{versions}", "{length}"]
resources:
  source: {{threads: 1}}
  target: {{threads: 1}}
"""


def measure(bench: Bench) -> Iterator[Row]:
    """One process to one; and YAC, whose search needs its time, on less and on four to four."""
    for length in bench.lengths(1024, 4096):
        peers = {"sst": partial(sst, length), "muscle3": partial(muscle3, length)}
        yield row(bench, length, 1, peers)
    length = 256 if bench.is_quick else 1024
    for size in bench.sizes(1, 2):
        yield row(bench, length, size, {"yac": partial(yac, length, size)})


def row(bench: Bench, length: int, size: int, peers: dict[str, Lane]) -> Row:
    """Ours beside peers."""
    own = partial(
        keepers.ours, "columns", f"{length}x{length}", size, FIRST + VERSIONS, keepers.one_host
    )
    return bench.row(
        f"rows to columns, {length} x {length}, {size}x{size}",
        {"ours": own, **peers},
        bytes=length**2 * 8,
        keys={"length": length, "size": size},
    )


def yac(length: int, size: int) -> list[float]:
    """Both components in one world, on the same grid."""
    python = programs.python()
    ends = [
        [python, SOURCES / "yac_end.py", role, FIRST + VERSIONS, length]
        for role in ("source", "target")
    ]
    return lines([*programs.starter("openmpi", size), *ends[0], ":", "-n", size, *ends[1]])


def sst(length: int) -> list[float]:
    """A stream between two processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.mkfifo(folder / "ready")
        more = [str(folder), str(FIRST + VERSIONS), str(length)]
        started = [
            subprocess.Popen(
                [programs.python(), SOURCES / "sst_end.py", role, *more],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for role in ("source", "target")
        ]
        try:
            said = [process.communicate(timeout=SECONDS) for process in started]
        except subprocess.TimeoutExpired as error:
            raise Missing(f"SST: {error}") from error
        finally:
            for process in started:
                process.kill()
        if any(process.returncode for process in started):
            raise Missing(
                f"SST has failed: {said[0][1][-COMPLAINT_MAX:]}{said[1][1][-COMPLAINT_MAX:]}"
            )
    return between(*(times.split() for times, _ in said))


def muscle3(length: int) -> list[float]:
    """Two instances, and the manager that starts them."""
    python = programs.python()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.mkfifo(folder / "ready")
        model = folder / "model.ymmsl"
        script = SOURCES / "muscle_end.py"
        words = {"python": python, "script": script, "folder": folder}
        model.write_text(MODEL.format(versions=FIRST + VERSIONS, length=length, **words))
        command = [
            python.with_name("muscle_manager"),
            "--start-all",
            "--run-dir",
            folder / "run",
            model,
        ]
        (folder / "run").mkdir()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=SECONDS
            )
        except subprocess.TimeoutExpired as error:
            raise Missing(f"MUSCLE3: {error}") from error
        files = [folder / f"{role}.times" for role in ("source", "target")]
        if done.returncode or not all(file.exists() for file in files):
            said = " ".join((done.stderr or done.stdout).split())
            raise Missing(f"MUSCLE3 has failed: {said[-COMPLAINT_MAX:]}")
        return between(*(file.read_text().split() for file in files))


def between(begins: list[str], ends: list[str]) -> list[float]:
    """Seconds of each version."""
    return [(int(end) - int(begin)) / 1e9 for begin, end in zip(begins, ends, strict=True)]


def goals(rows: list[Row]) -> list[Goal]:
    """Ahead of each."""
    return [
        Goal(f"over {name}: each", least(one.ratio("ours", peer) for one in rows), 1.0)
        for peer, name in PEERS.items()
    ]
