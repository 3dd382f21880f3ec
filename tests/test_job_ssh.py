"""Jobs over the real OpenSSH."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import ssh_server
from tests.processes import eventually

import exoskel as ex
from exoskel.job_process import JobNode

SECONDS = 60.0


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[list[str]]:
    """Run a server, and return the command that leads to it."""
    what = ssh_server.missing()
    if what is not None:
        pytest.skip(what)
    with ssh_server.server(tmp_path) as command:
        yield command


def neighbours(here: JobNode) -> list[int]:
    """Return what the next process is."""

    @here.process.handler
    def rank() -> int:
        return here.rank

    asked = here.peers[(here.rank + 1) % here.size].request("rank")
    return [here.rank, asked.result(SECONDS)]


def test_processes_of_two_hosts_by_openssh(ssh: list[str], tmp_path: Path) -> None:
    launch = ex.Ssh(["127.0.0.1", "localhost"], python=sys.executable, command=ssh)
    with ex.Job(launch) as job:
        started = job.start(neighbours, count=4, cwd=tmp_path)
        assert started.values(timeout=SECONDS) == [[0, 1], [1, 2], [2, 3], [3, 0]]
        hosts = [process.host for process in started.result(timeout=SECONDS)]
        assert hosts == ["127.0.0.1", "127.0.0.1", "localhost", "localhost"]
        asleep = job.start(["sleep", "600"], count=2, cwd=tmp_path)
    assert asleep.wait(timeout=0) == [-15, -15]


def test_what_processes_of_two_hosts_print_has_their_ranks(
    ssh: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    launch = ex.Ssh(["127.0.0.1", "localhost"], python=sys.executable, command=ssh)
    with ex.Job(launch) as job:
        words = ["sh", "-c", "echo one; printf two"]
        assert job.start(words, count=4).wait(SECONDS) == [0] * 4
        assert job.start(["echo", "alone"]).wait(SECONDS) == [0]
    lines = capsys.readouterr().err.splitlines()
    expected = [f"[{rank}] {what}" for rank in range(4) for what in ("one", "two")]
    assert sorted(lines) == sorted([*expected, "alone"])


def test_a_python_may_be_in_the_home_of_its_host(tmp_path: Path) -> None:
    what = ssh_server.missing()
    if what is not None:
        pytest.skip(what)
    home = tmp_path / "its home"
    (home / "bin").mkdir(parents=True)
    (home / "bin" / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (home / "bin" / "python").chmod(0o755)
    (tmp_path / "server").mkdir()
    with ssh_server.server(tmp_path / "server", tmp_path / "home") as command:
        (tmp_path / "home").symlink_to(home)
        launch = ex.Ssh(["127.0.0.1"], python="~/bin/python", command=command)
        with ex.Job(launch) as job:
            assert job.start(["true"]).wait(SECONDS) == [0]
        absent = ex.Ssh(["127.0.0.1"], python="~/bin/other", command=command)
        text = r"agent of 127\.0\.0\.1 .*exit code 127: .*\(is ~/bin/other there\? see Ssh\(python=\)\)"
        with pytest.raises(ex.ProcessEndedError, match=text):
            ex.Job(absent)
        bare = home / "bin" / "bare"
        bare.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
        bare.chmod(0o755)
        text = r"is Exoskel installed for ~/bin/bare\?"
        with pytest.raises(ex.ProcessEndedError, match=text):
            ex.Job(ex.Ssh(["127.0.0.1"], python="~/bin/bare", command=command))
        own = command.index(f"IdentityFile={tmp_path / 'server' / 'user'}")
        refused = [*command[: own - 1], *command[own + 1 :], "-o", "IdentityFile=/dev/null"]
        with pytest.raises(ex.ProcessEndedError, match="work without a password"):
            ex.Job(ex.Ssh(["127.0.0.1"], python=sys.executable, command=refused))


def whereabouts(_item: int) -> tuple[str, int, int]:
    here = ex.links.here()
    return here.name.partition("#")[0], here.rank, int(os.environ["EXOSKEL_SLOT"])


def test_a_manager_has_slots_on_two_hosts_by_openssh(ssh: list[str]) -> None:
    launch = ex.Ssh(["127.0.0.1", "localhost"], python=sys.executable, command=ssh)
    with ex.Manager(whereabouts, ex.ParDegree(4), launch=launch) as manager:
        found = set(manager.map(range(2000)))
        workers = sorted(worker.name for worker in manager.summary().workers)
    assert workers == ["127.0.0.1", "localhost"]
    expected = {("127.0.0.1", 0, 0), ("127.0.0.1", 1, 1), ("localhost", 2, 0), ("localhost", 3, 1)}
    assert found <= expected
    assert len(found) >= 2


def cut_off_once(place: str) -> str:
    """End what starts processes on one of two hosts, once."""
    here = ex.links.here()
    host = here.name.partition("#")[0]
    marked = Path(place)
    if host == "localhost" and not marked.exists():
        marked.touch()
        zygote = Path(f"/proc/{os.getppid()}/stat").read_text()
        os.kill(int(zygote.rpartition(")")[2].split()[1]), signal.SIGKILL)
        signal.pause()
    return host


def test_items_of_a_host_that_is_lost_run_on_the_others(
    ssh: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    launch = ex.Ssh(["127.0.0.1", "localhost"], python=sys.executable, command=ssh)
    marked = tmp_path / "marked"
    with ex.Manager(cut_off_once, ex.ParDegree(2), launch=launch, frame_items_max=1) as manager:
        # Until the slot of the second host has had one.
        results = manager.map(itertools.repeat(str(marked)))
        assert eventually(lambda: next(results) == "127.0.0.1" and marked.exists())
        assert eventually(lambda: manager.status().slots_ready == 2)
        assert [next(results) for _ in range(20)] == ["127.0.0.1"] * 20
    assert "localhost" in caplog.text


def look_outside(_item: int) -> str:
    return Path("/etc/shadow").read_text()


def test_the_note_of_a_sandbox_comes_from_hosts_that_answer_in_data(ssh: list[str]) -> None:
    launch = ex.Ssh(["127.0.0.1"], python=sys.executable, command=ssh)
    with (
        ex.Manager(
            look_outside, ex.ParDegree(1), launch=launch, sandbox=ex.Sandbox(network="none")
        ) as manager,
        pytest.raises(PermissionError) as caught,
    ):
        list(manager.map([0]))
    why, item = caught.value.__notes__
    assert why.startswith("the sandbox in which this runs may be why: files and signals")
    assert item == "item 0"
