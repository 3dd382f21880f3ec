"""Jobs by agents that run already: real daemons on loopback, with credentials of a throw-away authority."""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import children, eventually, gone
from tests.site import free_address

import exoskel as ex
from exoskel.cli import main
from exoskel.job_process import JobNode

SECONDS = 60.0
HEAD, OTHER = "head.example.org", "other.example.org"
ACTIONS = [f"agent.{name}" for name in ("start", "start_detached", "jobs", "end")]
POLICY = f"""\
[[allow.rule]]
action = {ACTIONS!r}
name = ["{HEAD}", "{OTHER}"]
"""


class Daemon:
    """An agent that runs: its process, its line in a hosts file, and what it has written."""

    def __init__(self, process: subprocess.Popen[str], line: str, log: Path) -> None:
        self.process = process
        self.line = line
        self.log = log

    def said(self, text: str) -> bool:
        """Wait for a text in its log."""
        return eventually(lambda: text in self.log.read_text())

    def processes(self) -> list[int]:
        """List what it has started, and what that has started."""
        # Any of its threads may have started one.
        threads = os.listdir(f"/proc/{self.process.pid}/task")
        places = [f"/proc/{self.process.pid}/task/{thread}/children" for thread in threads]
        found = [int(word) for place in places for word in Path(place).read_text().split()]
        for process in found:
            found += children(process)
        return found


class Lab:
    """An authority, credentials, and agents."""

    def __init__(self, place: Path) -> None:
        self.place = place
        assert main(["pki", "init", str(place / "pki"), "--json"]) == 0
        self.daemons: list[Daemon] = []

    def credential(self, name: str) -> Path:
        """Issue a credential, unless there is one."""
        path = self.place / f"{name}.pem"
        if not path.exists():
            where = ["--directory", str(self.place / "pki"), "--output", str(path), "--json"]
            assert main(["pki", "issue", *where, "--role", "peer", "--name", name]) == 0
        return path

    def daemon(self, name: str, *more: str, policy: str = POLICY, **process: Any) -> Daemon:
        """Start an agent; it ends with the test."""
        rules = self.place / f"{name}.toml"
        rules.write_text(policy)
        log = self.place / f"{name}.log"
        words = ["--listen", "tcp://127.0.0.1:0", "--credential", str(self.credential(name))]
        words += ["--policy", str(rules), "--json", *more]
        if "--user" not in more:
            words += ["--user", pwd.getpwuid(os.geteuid()).pw_name]
        with open(log, "ab") as errors:
            started = subprocess.Popen(
                [sys.executable, "-P", "-m", "exoskel", "agent", *words],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                **process,
            )
        assert started.stdout is not None
        said = started.stdout.readline()
        assert said, log.read_text()
        line = f"{json.loads(said)['listen'].removeprefix('tcp://')} {name}"
        daemon = Daemon(started, line, log)
        self.daemons.append(daemon)
        return daemon

    def job(self, *daemons: Daemon | str, credential: str = HEAD, **options: Any) -> ex.Job:
        """Make a job of these agents."""
        lines = [one if isinstance(one, str) else one.line for one in daemons]
        return ex.Job(ex.Agents(lines), credential=self.credential(credential), **options)


@pytest.fixture
def lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Lab]:
    # Short enough for the path of a socket.
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for daemon in made.daemons:
        with daemon.process:
            daemon.process.terminate()
        assert daemon.process.returncode in (0, -signal.SIGKILL), daemon.log.read_text()


def add_rank(here: JobNode) -> int:
    """What a process of the tests is there for."""

    @here.process.handler
    def rank() -> int:
        return here.rank

    asked = here.peers[(here.rank + 1) % here.size].request("rank")
    return int(asked.result(SECONDS))


def test_processes_of_two_hosts_whose_agents_run(lab: Lab) -> None:
    one, two = lab.daemon("lab1.example.org"), lab.daemon("lab2.example.org")
    hosts = lab.place / "hosts.txt"
    hosts.write_text(f"{one.line}\n{two.line}\n")
    with ex.Job(ex.Agents(hosts), credential=lab.credential(HEAD)) as job:
        started = job.start(add_rank, count=4, cwd="/")
        assert started.values(timeout=SECONDS) == [1, 2, 3, 0]
        ranks = started.result(timeout=SECONDS)
        assert [rank.host for rank in ranks] == ["lab1.example.org"] * 2 + ["lab2.example.org"] * 2
        asleep = job.start(["sleep", "600"], count=2, cwd="/")
        assert one.said("has begun")
        # An agent, its zygote, and half of the processes on each.
        assert eventually(lambda: len(one.processes() + two.processes()) == 10)
        running = one.processes() + two.processes()
    assert asleep.wait(timeout=0) == [-signal.SIGTERM] * 2
    assert eventually(lambda: all(map(gone, running)))
    assert one.said("has ended, exit code 0")
    assert f"of {HEAD} has begun" in one.log.read_text()


def test_a_daemon_that_is_killed_takes_its_processes_with_it(lab: Lab) -> None:
    daemon = lab.daemon("lab1.example.org")
    with lab.job(daemon) as job:
        [there] = job.start(add_rank, cwd="/").result(timeout=SECONDS)
        pending = job.start(["sh", "-c", "sleep 600 & sleep 600"], cwd="/")
        assert eventually(lambda: len(daemon.processes()) == 6)
        running = daemon.processes()
        daemon.process.kill()
        with pytest.raises(ex.ProcessEndedError, match="lost with what starts the processes"):
            pending.result(timeout=SECONDS)
        with pytest.raises(ex.ProcessEndedError, match="lost with what starts the processes"):
            there.wait(timeout=SECONDS)
        assert eventually(lambda: all(map(gone, running)))


@pytest.mark.parametrize("detach", [False, True])
def test_a_daemon_that_ends_takes_its_processes_with_it(lab: Lab, detach: bool) -> None:
    daemon = lab.daemon("lab1.example.org")
    job = lab.job(daemon, detach=detach)
    started = job.start(["sh", "-c", "trap '' TERM; sleep 600 & sleep 600"], cwd="/")
    assert eventually(lambda: len(daemon.processes()) == 5)
    running = daemon.processes()
    if detach:
        job.close()
    daemon.process.terminate()
    assert daemon.process.wait(SECONDS) == 0
    assert eventually(lambda: all(map(gone, running)))
    if not detach:
        with pytest.raises(ex.ProcessEndedError):
            started.result(timeout=SECONDS)
    job.close()


CREATOR = """
import exoskel as ex
job = ex.Job(ex.Agents([{line!r}]), credential={credential!r}, detach={detach})
job.start(["sh", "-c", "sleep 600 & sleep 600"], count=2, cwd="/")
print("begun", flush=True)
job.start(["sleep", "600"], cwd="/").result()
"""


def creator(lab: Lab, daemon: Daemon, *, detach: bool = False) -> subprocess.Popen[str]:
    """Start a program that makes a job, and wait until its processes run."""
    lines = CREATOR.format(line=daemon.line, credential=str(lab.credential(HEAD)), detach=detach)
    program = subprocess.Popen(
        [sys.executable, "-c", lines], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdout.readline() == "begun\n"
    assert eventually(lambda: len(daemon.processes()) == 9)
    return program


def test_nothing_is_left_of_a_creator_that_is_killed(lab: Lab) -> None:
    daemon = lab.daemon("lab1.example.org")
    with creator(lab, daemon) as program:
        running = daemon.processes()
        program.kill()
    assert eventually(lambda: all(map(gone, running)))
    assert daemon.said("has ended, exit code")
    assert daemon.process.poll() is None


def host_of(_item: int) -> str:
    return ex.links.here().name.partition("#")[0]


def test_a_manager_has_slots_on_hosts_whose_agents_run(lab: Lab) -> None:
    lines = [lab.daemon(f"lab{number}.example.org").line for number in (1, 2)]
    with ex.Manager(
        host_of, ex.ParDegree(2), launch=ex.Agents(lines), credential=lab.credential(HEAD)
    ) as manager:
        assert set(manager.map(range(500))) <= {"lab1.example.org", "lab2.example.org"}
        workers = sorted(worker.name for worker in manager.summary().workers)
    assert workers == ["lab1.example.org", "lab2.example.org"]


def test_a_manager_whom_an_agents_policy_does_not_let_start_says_so(lab: Lab) -> None:
    line = lab.daemon("lab1.example.org", policy=POLICY.replace(HEAD, "else.example.org")).line
    with pytest.raises(ex.NoWorkerError, match="lab1.example.org") as raised:
        ex.Manager(abs, ex.ParDegree(1), launch=ex.Agents([line]), credential=lab.credential(HEAD))
    assert raised.value.attempts
