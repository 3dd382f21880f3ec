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
from exoskel.job_orphans import MARK, begun, end_orphans, own_mark
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
    assert own == f"agent-{os.getpid()}-{begun(os.getpid())}"
    words = [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"]
    # Its number is that of an agent that runs, but another one has had it.
    marks = {"is": own, "was": f"agent-{os.getpid()}-1", "never": "agent-x-1", "slot": "77"}
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
        assert [started[name].poll() for name in ("is", "never", "slot")] == [None] * 3
    finally:
        for one in started.values():
            one.kill()
            one.wait()
            assert one.stdout is not None
            one.stdout.close()


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
