"""Jobs over the real OpenSSH: a server of the test's own, on loopback, with keys of its own."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import eventually
from tests.site import free_address

import exoskel as ex
from exoskel.job_process import JobNode

SECONDS = 60.0
CONFIGURATION = """
Port {port}
ListenAddress 127.0.0.1
HostKey {place}/host
AuthorizedKeysFile {place}/user.pub
PidFile none
StrictModes no
UsePAM no
"""


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[list[str]]:
    """Run a server, and return the command that leads to it."""
    server = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")
    if server is None or shutil.which("ssh") is None:
        pytest.skip("sshd or ssh is missing: apt-get install openssh-server")
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(words, check=True)
    port = int(free_address().rpartition(":")[2])
    configuration = tmp_path / "configuration"
    configuration.write_text(CONFIGURATION.format(port=port, place=tmp_path))
    # Where Debian's server gives up its rights; it has to be there.
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    log = tmp_path / "log"
    words = [server, "-D", "-f", str(configuration), "-E", str(log)]
    with subprocess.Popen(words) as process:
        assert eventually(lambda: is_listening(port)), log.read_text()
        options = ["BatchMode=yes", "StrictHostKeyChecking=accept-new"]
        options += [f"UserKnownHostsFile={tmp_path / 'known'}", f"IdentityFile={tmp_path / 'user'}"]
        known = [word for option in options for word in ("-o", option)]
        yield ["ssh", "-q", "-p", str(port), *known]
        process.terminate()


def is_listening(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


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
