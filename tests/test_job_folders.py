"""Folders that killed creators and agents have left are removed, and no others."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import eventually

import exoskel as ex
from exoskel import job_folders

LONG_AGO = 1_700_000_000


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    # A path of a socket has a hundred characters.
    place = Path(tempfile.mkdtemp(prefix="exoskel-", dir="/tmp"))
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield place
    shutil.rmtree(place)


def left(name: str) -> Path:
    """Return an old folder with a socket at which nobody listens."""
    folder = job_folders.made()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(folder / name))
    os.utime(folder, (LONG_AGO, LONG_AGO))
    return folder


def test_what_was_left_is_removed() -> None:
    folders = [left(job_folders.CREATOR), left(job_folders.AGENT)]
    (folders[1] / "own-3").mkdir(mode=0o500)
    os.utime(folders[1], (LONG_AGO, LONG_AGO))
    job_folders.sweep()
    assert not any(folder.exists() for folder in folders)


def test_what_is_used_new_or_of_another_host_stays(place: Path) -> None:
    used, new, bare = left(job_folders.CREATOR), left(job_folders.CREATOR), job_folders.made()
    os.utime(new)
    os.utime(bare, (LONG_AGO, LONG_AGO))
    elsewhere = left(job_folders.CREATOR).rename(place / "exoskel-job-0123abcd-elsewhere")
    linked = job_folders.made()
    linked.rmdir()
    linked.symlink_to(elsewhere)
    (used / job_folders.CREATOR).unlink()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(used / job_folders.CREATOR))
        one.listen(1)
        os.utime(used, (LONG_AGO, LONG_AGO))
        job_folders.sweep()
        assert all(folder.is_dir() for folder in (used, new, bare, elsewhere, linked))


def test_an_agent_removes_what_others_have_left() -> None:
    folder = left(job_folders.AGENT)
    with ex.Job() as job:
        assert job.start(["true"]).wait(60) == [0]
        assert eventually(lambda: not folder.exists())


CREATOR = """
import sys
import exoskel as ex

class Network(ex.Local):
    has_network = True

job = ex.Job(Network())
print(job._state.folder, flush=True)
sys.stdin.read()
"""


def test_what_a_killed_creator_has_left_goes_with_the_next_job() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", CREATOR], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / job_folders.CREATOR).is_socket()
        process.send_signal(signal.SIGKILL)
    os.utime(folder, (LONG_AGO, LONG_AGO))
    with ex.Job():
        assert eventually(lambda: not folder.exists())
