"""Foreign code that leaves very many files holds up nobody: not the slots of its worker, and no other process of its job."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.processes import children, eventually, gone, name_of
from tests.site import POLICY, Site

import exoskel as ex
from exoskel.folder_remover import FolderRemover

SECONDS = 60.0
NAME = "node1.lab.example.org"
CONFINED = POLICY + "[sandbox]\nmanagers = ['*']\n"
# So many take longer than it takes to stop who removes them.
FILES = 30_000
LEAVING = """
import os
for number in range(%d):
    os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
os.write(2, os.getcwd().encode())
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A lab whose processes end with the test."""
    lab = Site(tmp_path)
    yield lab
    lab.close()


def leave(count: int) -> str:
    """Leave files, and return where they are."""
    for number in range(count):
        os.close(os.open(str(number), os.O_CREAT | os.O_WRONLY))
    return os.getcwd()


def removers_of(process: int) -> list[int]:
    """List the processes that remove folders for another one."""
    return [child for child in children(process) if name_of(child) == "exoskel remover"]


def stopped_remover(process: int) -> int:
    """Wait until a process has another one remove folders, and stop that."""
    assert eventually(lambda: bool(removers_of(process)))
    [remover] = removers_of(process)
    os.kill(remover, signal.SIGSTOP)
    return remover


def left_in(folder: Path) -> list[Path]:
    """List the folders that wait to be removed beside that of a process that has ended."""
    return list(folder.parent.glob(f"{folder.name}-*"))


def test_files_that_a_slot_leaves_keep_no_manager_waiting(site: Site) -> None:
    worker = site.worker(NAME, policy=CONFINED)
    with site.connect(ex.Farm(leave), 1, worker) as manager:
        folder = Path(next(manager.map([FILES])))
    remover = stopped_remover(worker.process.pid)
    assert os.getpriority(os.PRIO_PROCESS, remover) == 19
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        assert next(manager.map([-1])) == 1
    [left] = left_in(folder)
    assert any(left.iterdir())
    os.kill(remover, signal.SIGCONT)
    assert eventually(lambda: left_in(folder) == [])
    assert eventually(lambda: gone(remover))


def test_files_that_a_slot_leaves_go_with_the_worker(site: Site) -> None:
    worker = site.worker(NAME, policy=CONFINED)
    with site.connect(ex.Farm(leave), 1, worker) as manager:
        folder = Path(next(manager.map([FILES])))
    remover = stopped_remover(worker.process.pid)
    worker.process.terminate()
    assert worker.process.wait(SECONDS) == 0
    assert gone(remover)
    assert not folder.parent.exists()


def test_files_that_a_process_leaves_keep_no_other_one_of_its_job_waiting() -> None:
    with ex.Job() as job:
        leaving = job.start([sys.executable, "-c", LEAVING % FILES], sandbox=ex.Sandbox())
        assert leaving.wait(SECONDS) == [0]
        folder = Path(job.summary().processes[0].stderr.strip())
        [agent] = children(os.getpid())
        remover = stopped_remover(agent)
        assert job.start(["true"], sandbox=ex.Sandbox()).wait(SECONDS) == [0]
        assert len(left_in(folder)) == 1
    # The job ends with what is left of it.
    assert gone(remover)
    assert not folder.parent.exists()


def filled(folder: Path) -> Path:
    """Make a folder that isn't empty."""
    folder.mkdir()
    (folder / "file").write_text("left")
    return folder


def test_the_name_of_a_folder_is_free_at_once(tmp_path: Path) -> None:
    with selectors.DefaultSelector() as selector:
        remover = FolderRemover(selector)
        remover.remove(tmp_path / "none")
        (tmp_path / "empty").mkdir()
        remover.remove(tmp_path / "empty")
        assert removers_of(os.getpid()) == []
        assert not selector.get_map()
        assert os.listdir(tmp_path) == []
        for _ in range(3):
            remover.remove(filled(tmp_path / "1"))
        remover.remove(filled(tmp_path / "2"))
        # One child at a time; all that has come meanwhile is the work of the next one.
        processes = []
        while remover.process is not None:
            processes.append(remover.process)
            [(ready, _)] = selector.select(SECONDS)
            ready.data()
        assert len(processes) == 2
        assert os.listdir(tmp_path) == []


def test_who_removes_folders_ends_with_whom_it_does_so_for(tmp_path: Path) -> None:
    program = f"""
import os, selectors, signal, sys
from pathlib import Path
from exoskel.folder_remover import FolderRemover
remover = FolderRemover(selectors.DefaultSelector())
remover.remove({str(tmp_path / "full")!r})
print(remover.process, flush=True)
sys.stdin.readline()
{{end}}
"""
    for end in ("remover.close()", "os.kill(os.getpid(), signal.SIGKILL)"):
        full = filled(tmp_path / "full")
        for number in range(FILES):
            (full / str(number)).touch()
        words = [sys.executable, "-c", program.replace("{end}", end)]
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as owner:
            assert owner.stdout is not None
            child = int(owner.stdout.readline())
            assert stopped_remover(owner.pid) == child
            owner.communicate("\n")
        assert eventually(partial(gone, child))
