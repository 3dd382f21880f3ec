"""What a job says of its processes: which has failed first, how, and what was asked for in vain."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import exoskel as ex
from exoskel import job_state
from exoskel.job_process import JobNode

SECONDS = 60.0
FAILING = """
import os, sys, time
rank = int(os.environ["EXOSKEL_RANK"])
if rank == 2:
    sys.exit("diverged\\n----------")
time.sleep(600)
"""


@pytest.fixture
def job() -> Iterator[ex.Job]:
    with ex.Job() as job:
        yield job


def rank_of(here: JobNode) -> int:
    return here.rank


def test_the_first_to_fail_is_said_at_once(job: ex.Job, tmp_path: Path) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    started = job.start([sys.executable, "failing.py"], count=4, cwd=tmp_path)
    # The line that says nothing is left out.
    with pytest.raises(
        ex.ProcessEndedError, match=r"rank 2, python\S* failing.py\) .* exit code 1: diverged$"
    ):
        started.wait(SECONDS, check=True)
    assert repr(started) == f"<exoskel.Processes of {started._records[0].program}: 3 of 4 run>"


def test_a_check_of_what_ends_well_returns_exit_codes(job: ex.Job) -> None:
    assert job.start(["true"], count=3).wait(SECONDS, check=True) == [0, 0, 0]


def test_a_summary_begins_with_what_has_failed_first(job: ex.Job) -> None:
    words = "test $EXOSKEL_RANK = 1 || sleep 600; echo it was rank 1 >&2; exit 4"
    first = job.start(["sh", "-c", words], count=2)
    with pytest.raises(ex.ProcessEndedError):
        first.wait(SECONDS, check=True)
    # What many say is said once.
    others = job.start(["sh", "-c", "echo >&2; echo as everybody >&2; exit 5"], count=20)
    assert others.wait(SECONDS) == [5] * 20
    [one] = job.start(rank_of).result(SECONDS)
    assert one.value(SECONDS) == 0
    lines = str(job.summary()).splitlines()
    assert lines.index("process 3 (rank 1):") + 1 == lines.index("it was rank 1")
    assert lines.index("it was rank 1") < lines.index("as everybody")
    assert lines.count("as everybody") == 1
    assert "" not in lines
    assert any("and 12 more:" in line for line in lines)
    [row] = [line for line in lines if "rank_of()" in line]
    assert "returned" in row


def test_who_has_failed_without_a_word_is_named(job: ex.Job) -> None:
    job.start(["sh", "-c", "kill -9 $$"]).wait(SECONDS)
    job.start(["sh", "-c", "exit 3"], count=2).wait(SECONDS)
    job.start(["sleep", "600"])
    job.close()
    lines = str(job.summary()).splitlines()
    killed = lines.index("ended with -9, and has said nothing")
    assert lines[killed - 1] == "process 2 (rank 0):"
    assert lines[killed + 1 :] == ["process 3, 4:", "ended with 3, and has said nothing"]


def test_ranks_of_a_program_have_no_figures_of_their_own(job: ex.Job, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import exoskel.links as links; links.init().ready()\n")
    words = f'"{sys.executable}" model.py & "{sys.executable}" model.py & wait'
    ranks = job.start(["sh", "-c", words], joined=2, cwd=tmp_path)
    assert ranks.wait(SECONDS, check=True) == [0, 0]
    starter, *rows = [line.split() for line in str(job.summary()).splitlines()[1:]]
    assert starter[-1] != "-"
    assert all(row[-3:] == ["0", "-", "-"] for row in rows)
    words = f'"{sys.executable}" model.py & wait; echo "  is why" >&2; exit 3'
    ranks = job.start(["sh", "-c", words], joined=1, cwd=tmp_path)
    with pytest.raises(ex.ProcessEndedError, match=r"exit code 3: is why$"):
        ranks.wait(SECONDS, check=True)
    [said, *_] = [line for line in str(job.summary()).splitlines() if line.endswith("):")]
    one = ranks._records[0].starter
    assert one is not None
    assert said == f"process {one.number} (rank 0):"


@pytest.mark.parametrize(
    "ask", [lambda one: one.values(60), lambda one: one.result(60)[0].value(60)]
)
def test_a_program_returns_no_value(job: ex.Job, ask: Any) -> None:
    with pytest.raises(TypeError, match=r"got true, which returns nothing, expected a function"):
        ask(job.start(["true"]))


def test_the_command_of_ssh_is_a_list() -> None:
    with pytest.raises(TypeError, match=r"got command='ssh -p 2222', expected a list of words"):
        ex.Ssh(["lab1"], command="ssh -p 2222")


def test_who_starts_ranks_without_saying_so_is_told_how(job: ex.Job, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import exoskel.links as links; links.init().ready()\n")
    # As Open MPI does it.
    words = f'exec 3>&-; "{sys.executable}" model.py'
    started = job.start(["sh", "-c", words], cwd=tmp_path)
    assert started.wait(SECONDS) == [1]
    assert "as mpiexec does, needs joined= at Job.start" in job.summary().processes[0].stderr


def listens(here: JobNode) -> None:
    here.process.handler(noted)


def noted() -> None:
    """Take what is posted."""


def test_what_was_posted_to_ended_processes_is_nobodys(caplog: pytest.LogCaptureFixture) -> None:
    with ex.Job() as job:
        [one] = job.start(listens).result(SECONDS)
        one.request("noted").result(SECONDS)
        # It takes nothing more, and ends with the job.
        one.send_signal(signal.SIGSTOP)
        one.post("noted")
    assert "may be lost" not in caplog.text


def returns_an_object(here: JobNode) -> object:
    return object()


def test_a_value_that_cannot_be_sent_names_its_function(
    job: ex.Job, capfd: pytest.CaptureFixture[str]
) -> None:
    started = job.start(returns_an_object, count=2)
    text = r"^process 2 \(rank 0, returns_an_object\(\)\) on \S+ has returned what can't be sent: got an instance of builtins.object"
    with pytest.raises(ex.ResultRejectedError, match=text):
        started.values(SECONDS)
    with pytest.raises(ex.ResultRejectedError, match=text):
        started[0].result(SECONDS).value(SECONDS)
    job.close()
    # No line is empty.
    assert all(line.split("] ", 1)[1] for line in capfd.readouterr().err.splitlines())


def test_who_waits_for_what_stays_is_told_so(
    job: ex.Job, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_state, "_WARNING_SECONDS", 0.1)
    started = job.start(rank_of, count=2)
    assert started.values(SECONDS) == [0, 1]
    stays = "2 have returned, and stay until the job ends: values() waits for what functions return"
    with pytest.raises(
        TimeoutError, match=re.escape(f"2 of 2 processes still run after 0.5 seconds; {stays}")
    ):
        started.wait(0.5)
    assert f"2 of 2 processes still run; {stays}" in caplog.messages
    caplog.clear()
    with pytest.raises(TimeoutError, match=r"still run after 0\.5 seconds$"):
        job.start(["sleep", "600"]).wait(0.5)
    assert not caplog.messages


@pytest.mark.parametrize("launch", ["lab1", ["lab1", "lab2"], ex.Local])
def test_what_launches_nothing_is_said(launch: Any) -> None:
    with pytest.raises(
        TypeError, match=r"got launch=.*, expected a launcher, such as exoskel\.Ssh"
    ):
        ex.Job(launch)


def test_what_is_asked_for_wrongly_is_said(job: ex.Job) -> None:
    with pytest.raises(TypeError, match=r"got env=\['A=1'\], expected a dict"):
        job.start(["true"], env=["A=1"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got the word 3 of a program, expected a text: str\(3\)"):
        job.start(["echo", 3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match=r"got the signal 'TERM', expected a number"):
        job.start(["sleep", "600"]).send_signal("TERM")  # type: ignore[arg-type]


def test_a_process_whose_job_is_over_before_it_begins_says_nothing() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()
        words = [
            sys.executable,
            "-c",
            "import exoskel.job_process as it; raise SystemExit(it.run_function())",
        ]
        environment = {**os.environ, "EXOSKEL_PROCESS_FD": str(theirs.fileno())}
        done = subprocess.run(
            words,
            env=environment,
            pass_fds=[theirs.fileno()],
            capture_output=True,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stdout, done.stderr) == (143, "", "")


def leave(here: JobNode, code: Any) -> None:
    sys.exit(code)


@pytest.mark.parametrize(
    ("code", "expected", "said"),
    [(None, 0, ""), (3, 3, ""), (0, 0, ""), ("bad input deck: nx<0", 1, "bad input deck: nx<0")],
)
def test_a_function_leaves_as_a_program_does(
    job: ex.Job, code: object, expected: int, said: str
) -> None:
    started = job.start(leave, arguments=[code])
    assert started.wait(SECONDS) == [expected]
    with pytest.raises(ex.ProcessEndedError, match=f"has ended with exit code {expected}.*{said}$"):
        started.values(timeout=SECONDS)
    assert said in job.summary().processes[0].stderr


def end_or_wait(here: JobNode) -> None:
    if here.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    here.process.inbox("nobody").get()


def test_who_waits_for_all_is_told_at_once_that_one_has_ended(job: ex.Job) -> None:
    started = job.start(end_or_wait, count=3)
    with pytest.raises(ex.ProcessEndedError, match=r"rank 1, .* was ended by SIGKILL"):
        started.result()
