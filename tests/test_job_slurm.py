"""Jobs over the real Slurm and MUNGE: a cluster of the test's own, with two nodes on loopback."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, gone
from tests.slurm_cluster import Cluster, cluster, logs, missing
from tests.test_job_joining import starting

import exoskel as ex
from exoskel import munge
from exoskel.errors import VersionError
from exoskel.job_process import JobNode

SECONDS = 60.0


@pytest.fixture(scope="module")
def slurm() -> Iterator[Cluster]:
    if (what := missing()) is not None:
        pytest.skip(what)
    with cluster() as made:
        yield made


@pytest.fixture(autouse=True)
def no_step_is_left(slurm: Cluster) -> Iterator[None]:
    yield
    assert eventually(lambda: not slurm.run("squeue", "--noheader")), slurm.run("squeue")
    assert eventually(lambda: slurm.states() == ["idle", "idle"]), logs(slurm.place)


def launcher(slurm: Cluster, nodes: int = 2, python: str = sys.executable, *words: str) -> ex.Slurm:
    return ex.Slurm(nodes, python=python, arguments=words, munge_socket=slurm.munge_socket)


def neighbours(here: JobNode) -> list[object]:
    """Return what the next process is."""

    @here.process.handler
    def rank() -> int:
        return here.rank

    asked = here.peers[(here.rank + 1) % here.size].request("rank")
    return [here.rank, asked.result(SECONDS), "SLURM_PROCID" in os.environ]


def test_processes_on_two_nodes(slurm: Cluster) -> None:
    with ex.Job(launcher(slurm)) as job:
        started = job.start(neighbours, count=4)
        assert started.values(SECONDS) == [
            [0, 1, False],
            [1, 2, False],
            [2, 3, False],
            [3, 0, False],
        ]
        hosts = [process.host for process in started.result(SECONDS)]
        assert hosts == ["node1", "node1", "node2", "node2"]
        asleep = job.start(["sleep", "600"], count=2)
    assert asleep.wait(timeout=0) == [-15, -15]


def test_a_step_of_an_allocation_takes_nothing_from_others(slurm: Cluster, tmp_path: Path) -> None:
    script = textwrap.dedent(
        f"""
        import subprocess
        import exoskel as ex
        with ex.Job(ex.Slurm(munge_socket={slurm.munge_socket!r})) as job:
            started = job.start(["sh", "-c", "echo $SLURMD_NODENAME >> {tmp_path}/names"], count=2)
            print(started.wait(60))
            subprocess.run(["srun", "--nodes=2", "--ntasks=8", "true"], check=True, timeout=60)
        print("over")
        """
    )
    (tmp_path / "script.py").write_text(script)
    words = ["salloc", "--nodes=2", "--ntasks=8", sys.executable, str(tmp_path / "script.py")]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.stdout == "[0, 0]\nover\n", done.stderr
    assert sorted((tmp_path / "names").read_text().split()) == ["node1", "node2"]


def test_the_end_of_the_creator_ends_the_step(slurm: Cluster) -> None:
    script = textwrap.dedent(
        f"""
        import os, signal
        import exoskel as ex
        job = ex.Job(ex.Slurm(2, munge_socket={slurm.munge_socket!r}))
        job.start(["sleep", "600"], count=4)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, timeout=SECONDS)
    assert done.returncode == -9


def test_the_end_of_srun_ends_the_agents(slurm: Cluster) -> None:
    with ex.Job(launcher(slurm)) as job:
        started = job.start(["sleep", "600"], count=2)
        channel = job._state._agents[1].channel
        channel._step._process.kill()  # type: ignore[attr-defined]
        for future in started:
            with pytest.raises(ex.ProcessEndedError, match="it was lost with what starts"):
                future.result(SECONDS)
    # Nobody gives the allocation back but srun, or Slurm when it finds nobody there.
    slurm.run("scancel", "--user=root")


def agent_here(here: JobNode) -> int:
    """Return which process the agent is: the parent of the one that has forked this one."""
    with open(f"/proc/{os.getppid()}/stat", encoding="ascii") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def test_the_end_of_one_agent_is_not_the_others(slurm: Cluster) -> None:
    with ex.Job(launcher(slurm)) as job:
        first, second = job.start(agent_here, count=2).values(SECONDS)
        asleep = job.start(["sleep", "600"], count=2)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ex.ProcessEndedError, match=r"on node1 .*lost with what starts"):
            asleep[0].result(SECONDS)
        assert not asleep[1].done()
        assert not gone(second)


def test_a_credential_is_opened_once_and_by_its_account_alone(slurm: Cluster) -> None:
    credential = munge.sealed(b"for once\nand all\n", slurm.munge_socket)
    assert credential.startswith(munge.BEGIN)
    assert b"once" not in credential
    assert munge.opened(credential, slurm.munge_socket) == b"for once\nand all\n"
    with pytest.raises(ex.ProcessEndedError, match=r"unmunge failed on .*Replayed credential"):
        munge.opened(credential, slurm.munge_socket)
    words = ["unmunge", "-S", slurm.munge_socket]
    ours = munge.sealed(b"ours", slurm.munge_socket)
    done = subprocess.run(words, input=ours, capture_output=True, check=False, user="nobody")
    assert b"Unauthorized credential" in done.stdout + done.stderr
    assert b"ours" not in done.stdout
    words = ["munge", "-S", slurm.munge_socket, "--string=x", "--uid=nobody"]
    of_another = subprocess.run(words, capture_output=True, check=True).stdout
    with pytest.raises(
        ex.ProcessEndedError,
        match=r"credential of UID: *nobody .65534., expected one of this account",
    ):
        munge.opened(of_another, slurm.munge_socket)


def test_failures_say_which_tool_and_where(
    slurm: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    munge_path = shutil.which("munge")
    assert munge_path is not None
    with pytest.raises(ex.ProcessEndedError, match=r"munge failed on .*Failed to access"):
        ex.Job(ex.Slurm(2, munge_socket=str(tmp_path / "nobody")))
    with pytest.raises(
        ex.ProcessEndedError, match=r"node [12] of 2 .*exit code 1: .*No module named"
    ):
        ex.Job(isolated(slurm, tmp_path))
    with pytest.raises(ex.ProcessEndedError, match=r"of 2 \(srun\).*exit code 127: .*not found"):
        ex.Job(launcher(slurm, 2, "/no/python"))
    with pytest.raises(ex.ProcessEndedError, match=r"exit code 1: srun: error: .*Node count"):
        ex.Job(launcher(slurm, 3))
    with pytest.raises(ex.ProcessEndedError, match=r"exit code 1: srun: error: .*partition"):
        ex.Job(launcher(slurm, 1, sys.executable, "--partition=none"))
    with pytest.raises(ex.ProcessEndedError, match=r"munge failed on node[12]: .*Failed to access"):
        ex.Job(launcher(slurm, 2, without_munged(tmp_path)))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ex.ProcessEndedError, match=r"can't start munge on .*: No such file"):
        ex.Job(launcher(slurm))
    (tmp_path / "munge").symlink_to(munge_path)
    with pytest.raises(ex.ProcessEndedError, match="can't start srun: No such file"):
        ex.Job(launcher(slurm))


def without_munged(tmp_path: Path) -> str:
    """Return a Python whose agents look for `munged` where it isn't."""
    python = tmp_path / "python-elsewhere"
    python.write_text(f"#!/bin/sh\nexec {sys.executable} $1 $2 /no/munged\n")
    python.chmod(0o755)
    return str(python)


def isolated(slurm: Cluster, tmp_path: Path) -> ex.Slurm:
    """Return a launcher whose Python has no Exoskel."""
    python = tmp_path / "bare-python"
    python.write_text(
        "#!/bin/sh\nshift 2\nexec python3 -c \"raise SystemExit('No module named exoskel')\"\n"
    )
    python.chmod(0o755)
    return launcher(slurm, 2, str(python))


@pytest.mark.parametrize("nodes", [0, -1, True, 1.5, 1025])
def test_counts_of_nodes_that_cannot_be(nodes: Any) -> None:
    with pytest.raises(ValueError, match="got nodes="):
        ex.Slurm(nodes)
    with pytest.raises(TypeError, match="expected a list of words"):
        ex.Slurm(1, arguments="--partition=debug")


def test_an_allocation_that_does_not_come_is_a_time_out(slurm: Cluster) -> None:
    with (
        ex.Job(launcher(slurm, 2, sys.executable, "--exclusive")),
        pytest.raises(TimeoutError, match=r"not there in time, .*queued and waiting for resources"),
    ):
        ex.Job(launcher(slurm, 2), timeout=10.0)


@pytest.mark.parametrize("kind", ["MPICH", "Open MPI"])
def test_ranks_of_mpiexec_on_a_node(slurm: Cluster, kind: str) -> None:
    script = "import time; import exoskel.links as links; links.init().ready(); time.sleep(600)"
    words = [*starting(kind, 2), sys.executable, "-c", script]
    with ex.Job(launcher(slurm, 1, sys.executable, "--cpus-per-task=2")) as job:
        ranks = job.start(words, joined=2).result(SECONDS)
        assert [rank.host for rank in ranks] == ["node1", "node1"]


def wrapped(tmp_path: Path, first: str) -> str:
    """Return a Python that does something else on the first node."""
    python = tmp_path / "python"
    python.write_text(
        f'#!/bin/sh\n[ "$SLURM_PROCID" = 0 ] && {first}\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    return str(python)


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("exec sleep 600", r"node 1 of 2 \(srun\) is not there in time"),
        ("exit 3", r"node 1 of 2 \(srun\) has ended before it was there, exit code 3"),
    ],
)
def test_a_node_that_is_not_there_leaves_the_others(
    slurm: Cluster, tmp_path: Path, first: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    with ex.Job(launcher(slurm, 2, wrapped(tmp_path, first)), min=1, timeout=20.0) as job:
        assert [one.host for one in job.start(neighbours, count=2).result(SECONDS)] == ["node2"] * 2
    assert re.search(said, caplog.text)


def test_another_version_is_refused(slurm: Cluster, tmp_path: Path) -> None:
    python = tmp_path / "python"
    code = "import sys, exoskel; exoskel.__version__ = '0.0.1'; from exoskel import slurm_agent; sys.exit(slurm_agent.main(sys.argv[3]))"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}" "$@"\n')
    python.chmod(0o755)
    with pytest.raises(VersionError, match=r"node[12] has Exoskel 0\.0\.1"):
        ex.Job(launcher(slurm, 2, str(python)))


def test_nothing_secret_is_seen_from_outside(slurm: Cluster) -> None:
    with ex.Job(launcher(slurm)) as job:
        job.start(neighbours, count=2).values(SECONDS)
        root = job._state._authority.root
        seen = (
            slurm.run("scontrol", "show", "job", "--details").encode() + logs(slurm.place).encode()
        )
        for process in Path("/proc").glob("[0-9]*"):
            try:
                seen += (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            except OSError:
                continue
    assert b"MUNGE:" not in seen
    assert root[:32] not in seen
