"""Nothing outlives a job: what processes have started in sessions of its own ends with it, also when all that would end it is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.processes import children, eventually, gone

import exoskel as ex
from exoskel.job_orphans import MARK, begun, end_orphans, namespace, own_mark
from exoskel.job_process import JobNode

SECONDS = 60.0
# Where it has a session of its own, it says which process it is.
STRAY = 'setsid sh -c "echo \\$\\$ > $0.new; mv $0.new $0; exec sleep 600" & '


def fork_away(_here: JobNode, place: str) -> None:
    """Leave a child that was only forked, in a session of its own."""
    if os.fork() == 0:
        os.setsid()
        Path(f"{place}.new").write_text(str(os.getpid()))
        os.rename(f"{place}.new", place)
        signal.pause()


def strays(job: ex.Job, folder: Path) -> list[int]:
    """Start what leaves the sessions of its processes, and return it."""
    places = [folder / "program", folder / "fork"]
    job.start(["sh", "-c", f"{STRAY} sleep 600", str(places[0])])
    job.start(fork_away, arguments=[str(places[1])])
    assert eventually(lambda: all(place.exists() for place in places))
    return [int(place.read_text()) for place in places]


@pytest.mark.parametrize("what", ["nothing", "agent", "zygote", "both"])
def test_what_has_left_its_session_ends_with_its_job(tmp_path: Path, what: str) -> None:
    with ex.Job() as job:
        found = strays(job, tmp_path)
        [agent] = children(os.getpid())
        [zygote] = children(agent)
        ended = {"nothing": [], "agent": [agent], "zygote": [zygote], "both": [agent, zygote]}[what]
        # So that neither sees the end of the other one.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for process in ended:
                os.kill(process, number)
        if what == "zygote":
            assert eventually(lambda: all(map(gone, found)))
    if what == "both":
        # The next agent of the account finds it.
        with ex.Job() as other:
            assert other.start(["true"]).wait(SECONDS) == [0]
    assert eventually(lambda: all(map(gone, found)))


def test_what_comes_from_agents_that_run_is_left_alone(tmp_path: Path) -> None:
    with ex.Job() as job:
        found = strays(job, tmp_path)
        end_orphans()
        assert not any(map(gone, found))


def test_a_mark_names_an_agent_and_its_start() -> None:
    own = own_mark()
    assert own == f"agent-{namespace()}.{os.getpid()}.{begun(os.getpid())}"
    words = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]
    # Its number is that of an agent that runs, but another one has had it.
    marks = {"is": own, "was": f"agent-{namespace()}.{os.getpid()}.1"}
    # Of one in another namespace, and of one that doesn't say in which it was, nothing is known.
    left_alone = {"elsewhere": f"agent-1.{os.getpid()}.1", "before": f"agent-{os.getpid()}-1"}
    left_alone |= {"never": "agent-x.1.1", "slot": "77"}
    marks |= left_alone
    started = {}
    for name, mark in marks.items():
        started[name] = subprocess.Popen(
            words, env={**os.environ, MARK: mark}, stdout=subprocess.PIPE
        )
        output = started[name].stdout
        assert output is not None
        assert output.readline() == b"\n"
    try:
        end_orphans()
        assert started["was"].wait(SECONDS) == -signal.SIGKILL
        assert [started[name].poll() for name in ("is", *left_alone)] == [None] * 5
    finally:
        for one in started.values():
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


INSIDE = """
import sys

import exoskel as ex

with ex.Job() as job:
    program = job.start(["sh", "-c", "echo there; exec sleep 600"])
    sys.stdin.readline()
    with ex.Job() as other:
        print(other.start(["true"]).wait(60), flush=True)
    sys.stdin.readline()
    try:
        print("ended", program.wait(0), flush=True)
    except TimeoutError:
        print("runs", flush=True)
"""
# A container's processes: with numbers and a /proc of their own, but the account, its home and its temporary files are the same.
CONTAINER = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]


def hindrance() -> str:
    """Say why there can be no container here; nothing if there can be one."""
    try:
        done = subprocess.run([*CONTAINER, "true"], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "there is no unshare (util-linux)"
    return "" if done.returncode == 0 else f"no PID namespace can be made: {done.stderr.strip()}"


@pytest.mark.skipif(bool(hindrance()), reason=hindrance() or "there are PID namespaces")
def test_a_container_and_its_host_leave_the_jobs_of_each_other_alone(tmp_path: Path) -> None:
    """In each, the number of the other one's agent is that of something else, or nobody's."""
    program = tmp_path / "inside.py"
    program.write_text(INSIDE)
    words = [*CONTAINER, sys.executable, str(program)]
    with (
        subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        ) as inside,
        ex.Job() as job,
    ):
        assert inside.stdin is not None
        assert inside.stdout is not None
        assert inside.stdout.readline() == "there\n"
        outside = job.start(["sleep", "600"])
        end_orphans()
        inside.stdin.write("\n")
        assert inside.stdout.readline() == "[0]\n"
        with pytest.raises(TimeoutError):
            outside.wait(0)
        inside.stdin.write("\n")
        assert inside.stdout.readline() == "runs\n"
        assert inside.wait(SECONDS) == 0


def test_orphans_of_processes_are_no_business_of_a_job_that_runs(tmp_path: Path) -> None:
    # Each leaves children that end later: who adopts them takes note of that.
    program = textwrap.dedent(
        """
        for one in 1 2 3; do (setsid sh -c 'sleep 0.05' &) ; done
        """
    )
    with ex.Job() as job:
        assert job.start(["sh", "-c", program], count=2).wait(SECONDS) == [0, 0]
        [zygote] = children(children(os.getpid())[0])
        assert eventually(lambda: children(zygote) == [])
