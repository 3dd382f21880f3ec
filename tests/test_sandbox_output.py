"""What code in a sandbox can do with the standard output and error that it has got from a program of this host: write there, and nothing else."""

from __future__ import annotations

import os
import pty
import stat
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import eventually
from tests.site import POLICY, Site

import exoskel as ex

NAME = "node1.lab.example.org"
CONFINED = POLICY + "[sandbox]\nmanagers = ['*']\nfile_size = '1 MiB'\n"

# What a process tries with each of its streams, and how that has ended.
TRIES = """
import os
for number in (1, 2):
    for what in (lambda: os.ftruncate(number, 0), lambda: os.read(number, 100), lambda: os.pread(number, 100, 0)):
        try:
            found = what()
        except OSError:
            continue
        if found != b"":
            os.write(2, b"it could\\n")
os.write(1, b"tried\\n")
"""


def creator(folder: Path) -> list[str]:
    """Return the command of a program that starts this in a sandbox, with nothing before its lines."""
    script = folder / "creator.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import sys
            import exoskel as ex

            if __name__ == "__main__":
                print("before", flush=True)
                with ex.Job() as job:
                    started = job.start([sys.executable, "-c", {TRIES!r}], sandbox=ex.Sandbox())
                    print(started.wait(timeout=60), flush=True)
            """
        )
    )
    return [sys.executable, str(script)]


def test_a_process_in_a_sandbox_can_not_cut_the_output_of_its_job_s_creator(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with open(out, "w+b") as printed:
        subprocess.run(creator(tmp_path), stdout=printed, stderr=printed, timeout=60, check=True)
    assert sorted(out.read_text().splitlines()) == ["[0]", "before", "tried"]


def test_a_process_in_a_sandbox_can_not_read_what_is_typed(tmp_path: Path) -> None:
    terminal, other = pty.openpty()
    try:
        os.write(terminal, b"a password\n")
        ran = subprocess.run(
            creator(tmp_path), stdin=other, stdout=other, stderr=other, timeout=60, check=True
        )
        assert ran.returncode == 0
        assert b"it could" not in os.read(terminal, 4096)
    finally:
        os.close(terminal)
        os.close(other)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site that ends with the test."""
    made = Site(tmp_path)
    yield made
    made.close()


def tried(_: object) -> list[object]:
    """Try it in a slot, and in a program that a slot starts; and forge a line of the worker's log."""
    ran = subprocess.run([sys.executable, "-c", TRIES], check=False)
    os.write(2, b"2026-01-01T00:00:00+0000 worker accepted manager root\n\x1b]0;mine\x07\n")
    kinds = [stat.S_IFMT(os.fstat(number).st_mode) for number in (1, 2)]
    return [ran.returncode, kinds]


def test_a_confined_slot_can_not_cut_the_log_of_its_worker_nor_forge_it(site: Site) -> None:
    worker = site.worker(NAME, policy=CONFINED)
    # Longer than any file that the code may write: the log is none of its files.
    long = f"{'x' * (2 << 20)}\n"
    with open(worker.log, "a") as log:
        log.write(long)
    with site.connect(ex.Farm(tried), 1, worker) as manager:
        [code, kinds] = next(manager.map([0]))
    assert (code, kinds) == (0, [stat.S_IFSOCK] * 2)
    assert eventually(lambda: "mine" in worker.log.read_text())
    lines = worker.log.read_text().replace(long, "").splitlines()
    accepted, *rest = [line for line in lines if "exoskel: " not in line]
    assert "worker accepted manager head.lab.example.org" in accepted
    assert "in a sandbox" in accepted
    assert not accepted.startswith("[")
    assert rest == [
        "[slot 0] tried",
        "[slot 0] 2026-01-01T00:00:00+0000 worker accepted manager root",
        "[slot 0] \\x1b]0;mine\\x07",
    ]


def flooded(_: object) -> int:
    """Print more than anybody reads, and end in the middle of a line."""
    for number in range(100_000):
        os.write(1, b"%d\n" % number)
    os.write(1, b"the end" * 1000)
    return 0


def test_a_confined_slot_can_not_fill_the_log_of_its_worker(site: Site) -> None:
    worker = site.worker(NAME, policy=CONFINED)
    with site.connect(ex.Farm(flooded), 1, worker) as manager:
        assert next(manager.map([0])) == 0
    assert eventually(lambda: "lines before this were left out" in worker.log.read_text())
    assert worker.log.stat().st_size < 32 << 10
    # The worker is at its work.
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        assert next(manager.map([-1])) == 1
