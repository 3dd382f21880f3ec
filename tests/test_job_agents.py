"""Jobs by agents that run already: real daemons on loopback, with credentials of a throw-away authority."""

from __future__ import annotations

import ctypes
import io
import json
import os
import pwd
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.certificates.grid import PRODUCTION, Grid, write_private
from tests.processes import children, eventually, gone
from tests.site import free_address

import exoskel as ex
from exoskel import _core, control_groups, links
from exoskel.agent_frames import frame, read_frame
from exoskel.cli import main
from exoskel.host_sandbox import check_manager, narrowed
from exoskel.job_control import ask_to_end, local_jobs
from exoskel.job_orphans import namespace
from exoskel.job_process import JobNode
from exoskel.job_state import JobState
from exoskel.link_arguments import as_startpoint
from exoskel.start_request import creator_within

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
        found = children(self.process.pid)
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
        words = ["--listen", "tcp://127.0.0.1:0", "--policy", str(rules), "--json", *more]
        if "--credential" not in more:
            words += ["--credential", str(self.credential(name))]
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
    # Those that go on by themselves, if a test has failed before it has ended them.
    for job in local_jobs():
        ask_to_end(job["agent"])
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
        job.start(add_rank, cwd="/").result(timeout=SECONDS)
        pending = job.start(["sh", "-c", "sleep 600 & sleep 600"], cwd="/")
        assert eventually(lambda: len(daemon.processes()) == 6)
        running = daemon.processes()
        daemon.process.kill()
        # The agents end what runs, and may still say so.
        with pytest.raises(ex.ProcessEndedError, match=r"lost with what starts|ended by SIGTERM"):
            pending.result(timeout=SECONDS)
        assert eventually(lambda: all(one.has_ended for one in job.summary().processes))
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


def slot_host(_item: int) -> str:
    return ex.links.here().name.partition("#")[0]


def test_a_manager_has_slots_on_hosts_whose_agents_run(lab: Lab) -> None:
    lines = [lab.daemon(f"lab{number}.example.org").line for number in (1, 2)]
    with ex.Manager(
        slot_host, ex.ParDegree(2), launch=ex.Agents(lines), credential=lab.credential(HEAD)
    ) as manager:
        assert set(manager.map(range(500))) <= {"lab1.example.org", "lab2.example.org"}
        workers = sorted(worker.name for worker in manager.summary().workers)
    assert workers == ["lab1.example.org", "lab2.example.org"]


def test_a_manager_whom_an_agents_policy_does_not_let_start_says_so(lab: Lab) -> None:
    line = lab.daemon("lab1.example.org", policy=POLICY.replace(HEAD, "else.example.org")).line
    with pytest.raises(ex.NoWorkerError, match=r"lab1\.example\.org") as raised:
        ex.Manager(abs, ex.ParDegree(1), launch=ex.Agents([line]), credential=lab.credential(HEAD))
    assert raised.value.attempts


def test_a_detached_job_goes_on_without_its_creator(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = lab.daemon("lab1.example.org")
    with creator(lab, daemon, detach=True) as program:
        program.kill()
    assert eventually(lambda: "goes on without its creator" in listed(lab, capsys, daemon))
    assert len(daemon.processes()) == 9
    asked = ["--agents", daemon.line, "--credential", str(lab.credential(HEAD)), "--json"]
    others = ["--agents", daemon.line, "--credential", str(lab.credential(OTHER)), "--json"]
    capsys.readouterr()
    assert main(["job", "list", *asked]) == 0
    [job] = json.loads(capsys.readouterr().out)["jobs"]
    assert (job["owner"], job["host"]) == (HEAD, "lab1.example.org")
    assert len(job["processes"]) == 3
    # Nobody else sees it, or ends it.
    assert main(["job", "list", *others]) == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == []
    assert main(["job", "end", job["job"], *others]) == 1
    assert "no job" in capsys.readouterr().out
    running = daemon.processes()
    assert main(["job", "end", job["job"][:6], *asked]) == 0
    assert json.loads(capsys.readouterr().out)["ended"] == [
        {"job": job["job"], "host": "lab1.example.org"}
    ]
    assert eventually(lambda: all(map(gone, running)))
    assert daemon.said(f"is ended by {HEAD}")
    assert daemon.said("has ended, exit code 0")


def listed(lab: Lab, capsys: pytest.CaptureFixture[str], daemon: Daemon) -> str:
    """Return what `exoskel job list` says of an agent."""
    asked = ["--agents", daemon.line, "--credential", str(lab.credential(HEAD))]
    assert main(["job", "list", *asked]) == 0
    return capsys.readouterr().out


def test_jobs_of_this_account_are_listed_and_ended(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = lab.daemon("lab1.example.org")
    with ex.Job() as local, lab.job(daemon) as other:
        asleep = local.start(["sleep", "600"], count=2)
        assert other.start(["true"], cwd="/").wait(SECONDS) == [0]
        found = listed_here(capsys)
        names = {local._state.job: 2, other._state.job: 0}
        assert {job["job"]: len(job["processes"]) for job in found} == names
        assert main(["job", "end", local._state.job]) == 0
        assert capsys.readouterr().out == f"job {local._state.job} has ended on this machine\n"
        with pytest.raises(ex.ProcessEndedError):
            asleep.result(timeout=SECONDS)
        # The account of a daemon may end what it has started.
        assert main(["job", "end", other._state.job, "--json"]) == 0
        assert daemon.said("has ended, exit code 0")
    capsys.readouterr()
    assert main(["job", "list"]) == 0
    assert capsys.readouterr().out == "no job of this account runs on this machine\n"
    assert main(["job", "end", "abcdef", "--json"]) == 1
    assert "exoskel job list shows those that do" in capsys.readouterr().out
    assert main(["job", "end", "ab"]) == 2
    assert main(["job", "list", "--agents", daemon.line]) == 2
    assert main(["job", "list", "--credential", "head.pem"]) == 2


def test_a_list_says_what_runs_and_since_when(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    before = time.time()
    with ex.Job() as job:
        name = job._state.job
        assert table_of(capsys) == [[name[:12], "here", "-", "0", "runs"]]
        asleep = job.start(["sleep", "600"], count=2)
        long = job.start(["sh", "-c", "true; exec sleep 600", "an argument", "\x1b[2J"])
        job.start(add_nothing, count=3).result(timeout=SECONDS)
        [found] = listed_here(capsys)
        begun = [group.pop("begun") for group in found["groups"]]
        assert all(before <= one <= time.time() for one in begun)
        assert begun == sorted(begun)
        assert found["groups"] == [
            {"program": "sleep 600", "processes": 2},
            {
                "program": "sh -c 'true; exec sleep 600' 'an argument' '\x1b[2J'",
                "processes": 1,
            },
            {"program": "add_nothing()", "processes": 3},
        ]
        long.send_signal(signal.SIGTERM)
        assert long.wait(SECONDS) == [-signal.SIGTERM]
        rows = table_of(capsys)
        assert [row[2:-1] for row in rows] == [["sleep 600", "2"], ["add_nothing()", "3"]]
        asleep.send_signal(signal.SIGKILL)


def add_nothing(here: JobNode) -> None:
    here.ready()


def table_of(capsys: pytest.CaptureFixture[str]) -> list[list[str]]:
    """Return the rows of `exoskel job list`, without the times."""
    assert main(["job", "list"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "JOB",
        "HOST",
        "OWNER",
        "PROGRAM",
        "PROCESSES",
        "BEGAN",
        "TIME",
        "STATE",
    ]
    time_of_day = r"  \d{4}-\d\d-\d\d \d\d:\d\d  \d+:\d\d:\d\d"
    return [re.split(r"\s{2,}", re.sub(time_of_day, "", row)) for row in rows]


def test_a_detached_job_of_this_machine_goes_on(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    place = lab.place / "printed"
    program = textwrap.dedent(
        f"""
        import exoskel as ex
        with ex.Job(detach=True) as job:
            loop = "echo $$; while true; do echo here || exit 9; sleep 0.1; done"
            job.start(["sh", "-c", "(" + loop + ") | tee {place}"])
            job.start(["sh", "-c", loop])
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=SECONDS, check=False
    )
    assert done.returncode == 0, done.stderr
    begun = eventually(lambda: all(one["process"] for one in listed_here(capsys)[0]["processes"]))
    assert begun
    [job] = listed_here(capsys)
    assert not job["has_creator"]
    running = [one["process"] for one in job["processes"]]
    assert len(running) == 2
    # Nobody reads what it prints, which harms it as little as it did before.
    before = place.read_text().count("here")
    assert eventually(lambda: place.read_text().count("here") > before + 2)
    assert not any(map(gone, running))
    assert main(["job", "end", job["job"]]) == 0
    assert all(map(gone, [*running, job["agent"]]))


def listed_here(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """Return the jobs of this account."""
    capsys.readouterr()
    assert main(["job", "list", "--json"]) == 0
    jobs: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["jobs"]
    return jobs


def test_sandboxed_programs_of_a_detached_job_go_on(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    with ex.Job(detach=True) as job:
        job.start(["sleep", "600"], count=3, sandbox=ex.Sandbox())
    [listed] = listed_here(capsys)
    assert len(listed["processes"]) == 3
    assert main(["job", "end", listed["job"]]) == 0


def test_a_detached_job_ends_when_all_functions_have_returned(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    with ex.Job(detach=True) as job:
        started = job.start(add_rank, count=2)
        assert started.values(timeout=SECONDS) == [1, 0]
    assert eventually(lambda: not listed_here(capsys))
    with pytest.raises(ex.ProcessEndedError, match="goes on without this program"):
        started[0].result(0).wait(0)


def test_who_may_not_start_is_told_the_rule(lab: Lab) -> None:
    start = POLICY.replace("start_detached", "nothing").replace(f', "{OTHER}"', "")
    daemon = lab.daemon("lab1.example.org", policy=start)
    with pytest.raises(
        ex.ProcessEndedError, match=r"agent of lab1\.example\.org \(127.*no \[\[allow\.rule\]\]"
    ) as caught:
        lab.job(daemon, credential=OTHER)
    assert caught.value.host == "lab1.example.org"
    # Of actions that have the same rule, it is told once.
    assert str(caught.value).count("the one at line 1 asks for name") == 1
    for action in ("agent.start", "agent.jobs", "agent.end"):
        assert f"'{action}'" in str(caught.value)
    with pytest.raises(
        ex.ProcessEndedError,
        match=r"start_detached is asked for.*has to allow you the action agent\.start_detached, as it does agent\.end, agent\.jobs, agent\.start$",
    ):
        lab.job(daemon, detach=True)
    assert daemon.said(OTHER)
    assert daemon.processes() == []
    with lab.job(daemon) as job:
        assert job.start(["true"], cwd="/").wait(SECONDS) == [0]


def test_limits_of_a_daemon_are_said(lab: Lab) -> None:
    daemon = lab.daemon("lab1.example.org", "--jobs", "1", "--processes", "2")
    with lab.job(daemon) as job:
        with pytest.raises(ex.ProcessEndedError, match=r"limit of 1 jobs at once \(--jobs\)"):
            lab.job(daemon)
        started = job.start(["sleep", "600"], count=3, cwd="/")
        with pytest.raises(ex.ProcessEndedError, match="limit of 2 processes at once"):
            started[2].result(SECONDS)
    assert daemon.said("refused a job of head.example.org: the limit of 1 jobs")
    assert daemon.said("has ended, exit code 0")
    assert eventually(lambda: daemon.processes() == [])
    with lab.job(daemon):
        pass


def test_hosts_that_are_not_there_are_named(lab: Lab) -> None:
    daemon = lab.daemon("lab1.example.org")
    nobody = f"{free_address()} lab2.example.org"
    with pytest.raises(
        ex.ProcessEndedError, match=r"agent of lab2\.example\.org \(127.*is dialled, and"
    ) as caught:
        lab.job(daemon, nobody)
    assert caught.value.host == "lab2.example.org"
    with lab.job(daemon, nobody, min=1) as job:
        assert job.start(["true"], count=2, cwd="/").wait(SECONDS) == [0, 0]
    # Who listens there is somebody else.
    with pytest.raises(ex.ProcessEndedError, match=r"lab3\.example\.org"):
        lab.job(f"{daemon.line.split()[0]} lab3.example.org")
    assert eventually(lambda: daemon.processes() == [])


def test_an_agent_that_does_not_answer_is_too_late(lab: Lab) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as mute:
        port = mute.getsockname()[1]
        with pytest.raises(
            TimeoutError, match=r"lab2\.example\.org is not there in time: .* is dialled"
        ):
            lab.job(f"127.0.0.1:{port} lab2.example.org", timeout=3.0)


def test_credentials_are_for_agents_alone(lab: Lab) -> None:
    for launch in (ex.Local(), ex.Ssh(["lab1"])):
        with pytest.raises(ValueError, match=r"got credential= with .*, expected it with Agents"):
            ex.Job(launch, credential="head.pem")
    with pytest.raises(ValueError, match="got delegate=True, expected"):
        ex.Job(delegate=True)
    with pytest.raises(TypeError, match="got colour=, expected one of credential, key"):
        ex.Job(colour="red")
    with pytest.raises(ValueError, match=r"Agents\(\.\.\.\) without a credential"):
        ex.Job(ex.Agents(["lab1"]))
    for line in ("lab1 lab_1", "lab1 slots=3"):
        with pytest.raises(ValueError, match="expected"):
            ex.Agents([line])


def test_a_user_of_a_grid_starts_processes(
    lab: Lab,
    grid: Grid,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "lab1.exoskel.test"
    host = grid.host(name)
    certificate = lab.place / "hostcert.pem"
    certificate.write_bytes(host.certificates())
    key = write_private(lab.place / "hostkey.pem", host.private_key())
    alice = grid.proxy(grid.user(), PRODUCTION)
    rules = POLICY.replace(f'name = ["{HEAD}", "{OTHER}"]', f'fqan = "{PRODUCTION}"')
    rules = f'[allow]\npeers = ["/DC=test/DC=exoskel/O=People/CN=*"]\n\n{rules}'
    words = ["--credential", str(certificate), "--key", str(key), *grid.trust]
    daemon = lab.daemon(name, *words, policy=rules)
    proxy = alice.write(lab.place / "proxy")
    trust: dict[str, Any] = {"trust_anchors": grid.anchors, "vomsdir": grid.vomsdir}
    lab_place = str(lab.place)
    with ex.Job(ex.Agents([daemon.line]), credential=proxy, **trust) as job:

        def whereabouts(here: JobNode) -> list[object]:
            try:
                found: object = os.listdir(lab_place)
            except PermissionError:
                found = "refused"
            return [here.name.partition("#")[0], found]

        # Whom only a grid knows is confined.
        assert job.start(whereabouts).values(timeout=SECONDS) == [[name, "refused"]]
        assert daemon.said("in a sandbox (as people and hosts of a grid are")
        asked = ["--agents", daemon.line, "--credential", str(proxy), *grid.trust, "--json"]
        capsys.readouterr()
        assert main(["job", "list", *asked]) == 0
        [listed] = json.loads(capsys.readouterr().out)["jobs"]
        assert listed["owner"] == grid.user().dn
    with ex.Job(ex.Agents([daemon.line]), credential=proxy, delegate=True, **trust) as job:

        def proxy_of(here: JobNode) -> list[object]:
            path = os.environ["X509_USER_PROXY"]
            with open(path, "rb") as file:
                return [os.stat(path).st_mode & 0o777, file.read(), path]

        # It is theirs, whatever their creator says besides.
        started = job.start(proxy_of, env={"X509_USER_PROXY": "/etc/passwd"})
        [[mode, content, path]] = started.values(timeout=SECONDS)
        assert mode == 0o600
        judged = lab.place / "delegated"
        write_private(judged, content)
        capsys.readouterr()
        monkeypatch.setenv("X509_USER_PROXY", str(judged))
        assert main(["whoami", *grid.trust]) == 0
        said = capsys.readouterr().out
        assert grid.user().dn in said
        assert "limited" in said
        # Its key was made there.
        assert proxy.read_bytes().partition(b"PRIVATE KEY")[2][:80] not in content
    assert eventually(lambda: not os.path.exists(path))
    nobody = grid.proxy(grid.user("Mallory")).write(lab.place / "other-proxy")
    with pytest.raises(ex.ProcessEndedError, match="asks for fqan"):
        ex.Job(ex.Agents([daemon.line]), credential=nobody, **trust)


def test_nothing_of_the_host_reaches_its_jobs(lab: Lab) -> None:
    environment = {**os.environ, "SSH_AUTH_SOCK": "/secret/agent", "X509_USER_KEY": "/secret/key"}
    daemon = lab.daemon("lab1.example.org", env=environment)
    secret = lab.credential("lab1.example.org").read_bytes()
    with lab.job(daemon) as job:
        job.start(["sleep", "600"], cwd="/")
        job.start(add_rank, cwd="/").values(timeout=SECONDS)
        assert eventually(lambda: len(daemon.processes()) == 4)
        for process in daemon.processes():
            place = Path(f"/proc/{process}")
            for name in ("environ", "cmdline"):
                contents = (place / name).read_bytes()
                assert b"secret" not in contents
                assert b".pem" not in contents
            opened = [os.readlink(one) for one in (place / "fd").iterdir()]
            assert not any(str(lab.place) in one for one in opened)
        # The key is a line of the file, and in no memory of the job's.
        [line] = [one for one in secret.splitlines() if len(one) == 64][:1]
        assert not any(line in memory(process) for process in daemon.processes())


def memory(process: int) -> bytes:
    """Return what a process can write to."""
    found = []
    with open(f"/proc/{process}/maps") as maps, open(f"/proc/{process}/mem", "rb", 0) as whole:
        for line in maps:
            words = line.split()
            if words[1].startswith("rw"):
                begin, end = (int(word, 16) for word in words[0].split("-"))
                whole.seek(begin)
                try:
                    found.append(whole.read(end - begin))
                except OSError:
                    continue
    return b"".join(found)


def test_what_hides_itself_is_not_to_be_traced() -> None:
    is_dumpable = 3
    child = os.fork()
    if child == 0:
        prctl = ctypes.CDLL(None).prctl
        before = prctl(is_dumpable, 0, 0, 0, 0)
        _core.hide_process()
        os._exit(0 if (before, prctl(is_dumpable, 0, 0, 0, 0)) == (1, 0) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_daemon_is_hidden_from_processes_of_its_account(lab: Lab) -> None:
    daemon = lab.daemon("lab1.example.org")
    # Root may read everything; who owns these files shows whether others of the account may.
    if os.geteuid() == 0:
        pytest.skip("an unprivileged account is missing: root reads what is hidden from others")
    with pytest.raises(PermissionError):
        Path(f"/proc/{daemon.process.pid}/environ").read_bytes()


def test_root_has_to_say_whose_processes_they_are(
    lab: Lab, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = lab.place / "policy.toml"
    policy.write_text(POLICY)
    words = ["agent", "--listen", "tcp://127.0.0.1:0", "--policy", str(policy)]
    words += ["--credential", str(lab.credential("lab1.example.org"))]
    assert main([*words, "--user", "no-such-account"]) == 2
    assert "an account of this machine" in capsys.readouterr().err
    assert main([*words, "--user", pwd.getpwuid(os.geteuid()).pw_name, "--jobs", "0"]) == 2
    assert "got --jobs 0" in capsys.readouterr().err
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert main(words) == 2
    assert "got no --user from root" in capsys.readouterr().err


def test_processes_are_those_of_the_account_that_is_said(lab: Lab) -> None:
    if os.geteuid() != 0:
        pytest.skip("root is missing: nobody else can start processes of another account")
    nobody = pwd.getpwnam("nobody")
    if not is_executable_by(nobody):
        pytest.skip("a Python that the account `nobody` can execute is missing")
    daemon = lab.daemon("lab1.example.org", "--user", "nobody")
    with lab.job(daemon) as job:
        assert job.start(account_of, cwd="/").values(timeout=SECONDS) == [
            [nobody.pw_uid, nobody.pw_gid, nobody.pw_dir, "nobody"]
        ]
        secret = str(lab.credential("lab1.example.org"))
        reading = job.start(["cat", secret], cwd="/")
        assert reading.wait(SECONDS) == [1]
        assert "Permission denied" in job.summary().processes[-1].stderr


def is_executable_by(account: pwd.struct_passwd) -> bool:
    """Say whether an account may run this Python with this package."""
    words = [sys.executable, "-P", "-c", "import exoskel._core"]
    ids = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    try:
        done = subprocess.run(words, check=False, capture_output=True, cwd="/", **ids)  # type: ignore[call-overload]
    except PermissionError:
        return False
    return bool(done.returncode == 0)


def account_of(here: JobNode) -> list[object]:
    """Say whose process it is."""
    return [os.getuid(), os.getgid(), os.environ["HOME"], os.environ["USER"]]


def test_a_creator_that_says_nothing_holds_up_nobody(lab: Lab) -> None:
    daemon = lab.daemon("lab1.example.org")
    place, name = daemon.line.split()
    with links.Node(lab.credential(OTHER), patience=0.0) as node:
        stream = node.lookup("agent", name=name, at=f"tcp://{place}").stream("start")
        assert eventually(lambda: len(daemon.processes()) == 2)
        # Nor is it a job that anybody could list.
        binding = node.lookup("agent", name=name, at=f"tcp://{place}")
        assert binding.request("jobs").result(SECONDS) == []
        with lab.job(daemon) as job:
            assert job.start(add_rank, cwd="/").values(timeout=SECONDS) == [0]
        stream.abort()
        assert daemon.said(f"a job of {OTHER} was not begun")
    garbage = "{}", "[]", '{"certificate": 3}', "\xff"
    for words in garbage:
        with links.Node(lab.credential(OTHER), patience=0.0) as node:
            binding = node.lookup("agent", name=name, at=f"tcp://{place}")
            with binding.stream("start", timeout=SECONDS) as stream:
                stream.write(words.encode("latin-1") + b"\n")
                assert b"its agent has ended, exit code 1" in stream.read()
    assert eventually(lambda: daemon.processes() == [])
    assert daemon.process.poll() is None


def test_what_a_daemon_wrongly_says_is_a_failure_of_its_host() -> None:
    assert read_frame(io.BytesIO(frame(1, b"said") + b"\x01")) == (1, b"said")
    for cut in (b"", b"\x01", frame(1, b"said")[:-1]):
        assert read_frame(io.BytesIO(cut)) is None
    with pytest.raises(ex.LinkError, match="got a frame of 4294967295 bytes"):
        read_frame(io.BytesIO(b"\x01" + b"\xff" * 4))


def test_an_agent_of_another_version_is_named(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = lab.daemon("lab1.example.org"), lab.daemon("lab2.example.org")
    # As seen from a creator that is newer than both.
    monkeypatch.setattr("exoskel.job_state.__version__", "99.0")
    with pytest.raises(
        ex.VersionError, match=r"lab[12]\.example\.org has Exoskel .*, expected 99\.0"
    ):
        lab.job(one, two)
    assert eventually(lambda: one.processes() + two.processes() == [])


CONFINING = f"""\
{POLICY}
[sandbox]
managers = ["{HEAD}"]
system = false
read = ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"]
memory = "8 GiB"
"""


def test_a_hosts_policy_confines_whatever_the_creator_asks_for(lab: Lab) -> None:
    daemon = lab.daemon("lab1.example.org", policy=CONFINING)
    secret = lab.place / "secret"
    secret.write_text("word")
    wide = ex.Sandbox(read=["/", "/usr", str(lab.place)], network="all")
    with lab.job(daemon) as job:
        assert job.start(["cat", str(secret)]).wait(SECONDS) == [1]
        assert job.start(["cat", str(secret)], sandbox=wide).wait(SECONDS) != [0]
        assert job.start(["sh", "-c", "exit 7"]).wait(SECONDS) == [7]
        starter = job.start(["sh", "-c", "true"], joined=1)
        with pytest.raises(ex.ProcessEndedError, match="start none of their job"):
            starter[0].result(SECONDS)
        assert all(one.sandbox for one in job.summary().processes[:3])
        [refused] = [one for one in job.summary().processes[1].sandbox if one.startswith("no use")]
        assert refused.startswith(f"no use of /, {lab.place}, ")
    assert daemon.said(f'in a sandbox (by "{HEAD}" in [sandbox] managers')
    with lab.job(daemon, credential=OTHER) as job:
        assert job.start(["cat", str(secret)]).wait(SECONDS) == [0]


def test_a_hosts_policy_holds_the_processes_of_a_job_together(lab: Lab) -> None:
    totals = {"total_memory": 1 << 30, "total_processes": 40}
    try:
        control_groups.check({**ex.Sandbox().told(), **totals})
    except ValueError as error:
        pytest.skip(str(error))
    entries = 'total_memory = "1 GiB"\ntotal_processes = 40\n'
    daemon = lab.daemon("lab1.example.org", policy=f"{CONFINING}{entries}")
    places = {place.folder for place in control_groups.own_places().values()}

    def groups() -> list[Path]:
        return [
            one
            for place in places
            for one in place.glob(f"exoskel-{namespace()}.{daemon.process.pid}.*")
        ]

    with lab.job(daemon) as job:
        assert groups() != []
        asleep = "for one in $(seq 30); do sleep 60 & done; wait"
        # What a creator asks for besides holds as well.
        sandbox = ex.Sandbox(total_processes=35)
        one = job.start(["sh", "-c", asleep], sandbox=sandbox)
        assert eventually(lambda: bool(job.summary().processes[0].sandbox))
        held = " ".join(job.summary().processes[0].sandbox)
        assert "1073741824 bytes of memory with all processes of its job on this host" in held
        assert "40 processes and threads with all processes of its job" in held
        assert "35 processes and threads with all that were started with it here" in held
        other = job.start(["sh", "-c", asleep])
        assert eventually(lambda: one._records[0].has_ended or other._records[0].has_ended)
        assert "fork" in job.summary().processes[0].stderr + job.summary().processes[1].stderr
    assert eventually(lambda: groups() == [])


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ('read = ["/no/such/folder"]', "[sandbox] read: there is no /no/such/folder on this host"),
        ('write = ["/no/such/place"]', "[sandbox] write: there is no /no/such/place"),
        ("processes = 64", "can't be held for the account root: start this under another account"),
        ("network = 'none'", "names nobody whose code it confines"),
    ],
)
def test_a_host_that_can_not_hold_its_policy_does_not_start(
    lab: Lab, entry: str, reason: str
) -> None:
    if entry.startswith("processes") and os.geteuid() != 0:
        pytest.skip("it is about the account root, and this is another one")
    policy = lab.place / "policy.toml"
    policy.write_text(f"{POLICY}\n[sandbox]\n{entry}\n")
    words = ["--listen", "tcp://127.0.0.1:0", "--policy", str(policy)]
    words += ["--credential", str(lab.credential("lab1.example.org"))]
    words += ["--user", pwd.getpwuid(os.geteuid()).pw_name]
    ran = subprocess.run(
        [sys.executable, "-P", "-m", "exoskel", "agent", *words],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    assert ran.returncode == 2
    assert f"{policy}: " in ran.stderr
    assert reason in ran.stderr


def read_file(path: str) -> str:
    try:
        return Path(path).read_text()
    except PermissionError:
        return "refused"


def test_a_hosts_policy_confines_the_slots_of_managers(lab: Lab) -> None:
    own = 'system = false\nread = ["/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache"]\n'
    confining = CONFINING.replace(own, "")
    assert confining != CONFINING
    line = lab.daemon("lab1.example.org", policy=confining).line
    secret = lab.place / "secret"
    secret.write_text("word")
    # A manager on the host itself is one of what a confined creator must not get to.
    with pytest.raises(ex.NoWorkerError, match="doesn't let it be connected with a manager"):
        ex.Manager(
            read_file, ex.ParDegree(1), launch=ex.Agents([line]), credential=lab.credential(HEAD)
        )
    with ex.Manager(
        read_file,
        ex.ParDegree(2),
        launch=ex.Agents([line]),
        credential=lab.credential(OTHER),
        sandbox=ex.Sandbox(),
    ) as manager:
        assert set(manager.map([str(secret)] * 10)) == {"refused"}


def test_a_confined_creator_is_dialled_where_it_has_come_from_and_nowhere_else(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    with links.Node(lab.credential(HEAD), patience=0.0, listen="127.0.0.1:0") as node:
        said = node.endpoint("job").startpoint(to="*")
    stated = ["unix:/run/docker.sock", "10.9.8.7:22", "lab7:23", "[::1]:22", "gateway:g@h:1"]
    text = said.with_hints(stated).text()
    found = creator_within(text, ["192.0.2.1", "[2001:db8::1]"])
    assert found.hints == [
        "192.0.2.1:22",
        "[2001:db8::1]:22",
        "192.0.2.1:23",
        "[2001:db8::1]:23",
    ]
    assert creator_within(text, None).hints == stated
    for hints in ([], stated[:1], [f"192.0.2.1:{port}" for port in range(1, 6)]):
        with pytest.raises(ex.LinkError, match=r"dialled only at 192\.0\.2\.1, from where"):
            creator_within(said.with_hints(hints).text(), ["192.0.2.1"])
    # What it says to a host that confines it leads nowhere else.
    daemon = lab.daemon("lab1.example.org", policy=CONFINING)
    place = lab.place / "probed"
    with socket.socket(socket.AF_UNIX) as probed:
        probed.bind(str(place))
        probed.listen(1)
        probed.setblocking(False)
        made = JobState._made_node

        def stating(state: JobState) -> links.Node:
            node = made(state)
            own = as_startpoint(state._for_agents)
            state._for_agents = own.with_hints([f"unix:{place}"]).text()
            return node

        monkeypatch.setattr(JobState, "_made_node", stating)
        with pytest.raises(ex.ProcessEndedError, match="the job's creator listens"):
            lab.job(daemon)
        with pytest.raises(BlockingIOError):
            probed.accept()


@pytest.mark.parametrize(
    ("host", "asked", "found"),
    [
        ({}, {}, {}),
        ({"network": "links"}, {"network": "all"}, {"network": "links"}),
        ({"network": "links"}, {"network": "none"}, {"network": "none"}),
        ({"memory": 2}, {}, {"memory": 2}),
        ({"memory": 2}, {"memory": 3}, {"memory": 2}),
        ({"memory": 3}, {"memory": 2}, {"memory": 2}),
        (
            {"read": ["/usr", "/data"]},
            {"read": ["/", "/data"]},
            {"read": ["/data"], "left_out": ["/"]},
        ),
        (
            {"read": ["/data"]},
            {"read": ["/usr", "/data"], "system": False},
            {"read": ["/data", "/usr"], "system": False},
        ),
        (
            {"read": ["/usr", "/data"], "system": False},
            {"read": ["/data", "/lib"], "system": False},
            {"read": ["/data"], "system": False, "left_out": ["/lib"]},
        ),
        # It lists what programs need there.
        (
            {"read": ["/usr", "/data"], "system": False},
            {"read": ["/data"]},
            {"read": ["/usr", "/data"], "system": False},
        ),
        (
            {"write": ["/data"]},
            {"write": ["/etc", "/data/link"]},
            {"write": [], "left_out": ["/etc", "/data/link"]},
        ),
    ],
)
def test_what_is_asked_for_is_never_wider(
    host: dict[str, Any], asked: dict[str, Any], found: dict[str, Any]
) -> None:
    all_of = {**ex.Sandbox().told(), **host}
    assert narrowed(all_of, {**ex.Sandbox().told(), **asked}) == {**all_of, **found}


@pytest.mark.parametrize(
    "place",
    ["unix:/run/docker.sock", "127.0.0.1:22", "[::1]:22", "[::ffff:127.0.0.1]:22", "host:1"],
)
def test_no_slot_is_connected_within_its_host(place: str) -> None:
    with pytest.raises(PermissionError, match="doesn't let it be connected"):
        check_manager(ex.Sandbox().told(), place)
    check_manager(ex.Sandbox().told(), "10.1.2.3:1")
    with pytest.raises(PermissionError, match="doesn't let it be connected"):
        check_manager(ex.Sandbox(network="none").told(), "10.1.2.3:1")


@pytest.mark.parametrize("kind", ["read", "write"])
def test_an_agent_whose_sandbox_covers_its_own_files_does_not_start(
    lab: Lab, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Processes run under its account: they could read its key, or write what they may."""
    credential = lab.credential("lab1.example.org")
    policy = lab.place / "policy.toml"
    policy.write_text(f"{POLICY}[sandbox]\n{kind} = ['{lab.place}']\n")
    words = ["agent", "--listen", "tcp://127.0.0.1:0", "--policy", str(policy)]
    words += ["--user", pwd.getpwuid(os.geteuid()).pw_name, "--credential", str(credential)]
    assert main(words) == 2
    assert f"[sandbox] {kind} covers {credential}, which is its own" in capsys.readouterr().err


def test_a_sandbox_that_covers_an_agent_s_files_later_is_no_sandbox(lab: Lab) -> None:
    confined = f"{POLICY}[sandbox]\nmanagers = ['*']\n"
    daemon = lab.daemon("lab1.example.org", policy=confined)
    policy = lab.place / "lab1.example.org.toml"
    new = policy.with_suffix(".new")
    new.write_text(f"{confined}read = ['{lab.place}']\n")
    new.replace(policy)
    assert eventually(lambda: "use files of the agent itself" in refusal(lab, daemon))
    assert str(lab.place) not in refusal(lab, daemon)
    assert daemon.said(f"[sandbox] read covers {lab.credential('lab1.example.org')}")


def refusal(lab: Lab, daemon: Daemon) -> str:
    """Return why an agent takes no job; nothing if it takes one."""
    try:
        lab.job(daemon).close()
    except ex.ExoskelError as error:
        return str(error)
    return ""
