"""Processes that join a job which its agents haven't forked: ranks of the real mpiexec, of a shell, and those that were invited."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, gone

from exoskel import Job, ProcessEndedError
from exoskel.job_control import local_jobs

SECONDS = 60.0
# Each asks the next one, and stays until its input says otherwise.
MODEL = """
import os, sys, time
import exoskel.links
here = exoskel.links.init()
assert "EXOSKEL_AGENT" not in os.environ
@here.process.handler
def rank():
    return [here.rank, here.size, os.getpid()]
@here.process.handler
def leave(code):
    os._exit(code)
after = here.peers[(here.rank + 1) % here.size].request("rank").result(60)
assert after[0] == (here.rank + 1) % here.size, after
time.sleep(600)
"""


@pytest.fixture
def job() -> Iterator[Job]:
    with Job() as job:
        yield job


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return str(path)


MPIEXECS = {
    "MPICH": ("mpiexec.mpich", [], "apt-get install mpich"),
    "Open MPI": (
        "mpiexec.openmpi",
        ["--allow-run-as-root", "--oversubscribe"],
        "apt-get install openmpi-bin",
    ),
}


def starting(kind: str, count: int) -> list[str]:
    """Return the words that start so many of what follows."""
    if kind == "shell":
        return ["sh", "-c", f'for one in $(seq {count}); do "$@" & done; wait', "sh"]
    name, options, remedy = MPIEXECS[kind]
    if shutil.which(name) is None:
        pytest.skip(f"{name} is missing: {remedy}")
    return [name, *options, "-n", str(count)]


KINDS = ["shell", *MPIEXECS]


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_join_and_end_with_what_has_started_them(job: Job, model: str, kind: str) -> None:
    started = job.start([*starting(kind, 3), sys.executable, model], joined=3)
    ranks = started.result(timeout=SECONDS)
    said = [rank.request("rank").result(SECONDS) for rank in ranks]
    assert [one[:2] for one in said] == [[0, 3], [1, 3], [2, 3]]
    assert len({one[2] for one in said}) == 3
    job.close()
    for _, _, process in said:
        assert eventually(lambda one=process: gone(one))  # type: ignore[misc]


@pytest.mark.parametrize("kind", KINDS)
def test_the_exit_code_is_that_of_what_has_started_them(job: Job, model: str, kind: str) -> None:
    script = "import exoskel.links as links, sys; links.init().ready(); sys.exit(0)"
    started = job.start([*starting(kind, 2), sys.executable, "-c", script], joined=2)
    assert started.wait(SECONDS) == [0, 0]
    [first, *others] = job.summary().processes
    assert first.exit_code == 0
    assert [one.exit_code for one in others] == [0, 0]


def test_a_rank_that_ends_before_what_has_started_it(job: Job, model: str) -> None:
    started = job.start([*starting("shell", 2), sys.executable, model], joined=2)
    ranks = started.result(SECONDS)
    ranks[1].post("leave", 3)
    assert eventually(lambda: job.summary().processes[2].has_ended)
    with pytest.raises(
        ProcessEndedError, match=r"rank 1, sh.* has ended: only what has started it knows"
    ):
        ranks[1].request("rank")
    assert ranks[0].request("rank").result(SECONDS)[0] == 0
    with pytest.raises(TimeoutError):
        started.wait(0.01)


def test_what_ends_early_ends_its_ranks(job: Job, model: str) -> None:
    script = f'"{sys.executable}" {model} & setsid "{sys.executable}" {model} & read line < {model}.pipe; exit 5'
    os.mkfifo(f"{model}.pipe")
    started = job.start(["sh", "-c", script], joined=2)
    ranks = started.result(SECONDS)
    processes = [rank.request("rank").result(SECONDS)[2] for rank in ranks]
    Path(f"{model}.pipe").write_text("\n")
    assert started.wait(SECONDS) == [5, 5]
    assert all(eventually(lambda one=one: gone(one)) for one in processes)  # type: ignore[misc]
    with pytest.raises(ProcessEndedError, match="has ended with exit code 5"):
        ranks[0].request("rank").result(SECONDS)


def test_ranks_that_never_join(job: Job) -> None:
    started = job.start(["sh", "-c", "echo no model >&2; exit 4"], joined=2)
    text = r"never joined, as 0 of 2 have, by exoskel\.links\.init\(\); .*exit code 4: no model"
    with pytest.raises(ProcessEndedError, match=text) as caught:
        started.result(SECONDS)
    assert caught.value.exit_code == 4
    assert started.wait(SECONDS) == [4, 4]
    with pytest.raises(ProcessEndedError, match="can't execute /no/mpiexec"):
        job.start(["/no/mpiexec"], joined=2).result(SECONDS)


def test_fewer_ranks_than_announced_say_how_many_have_come(job: Job, tmp_path: Path) -> None:
    script = "import exoskel.links as links; here = links.init(); here.ready(); input()"
    python = f'"{sys.executable}" -c "{script}" < pipe'
    # One joins, one says a rank that nobody has announced, one is not of the job.
    words = f"mkfifo pipe; exec 3<>pipe; PMI_RANK=1 {python} & PMI_RANK=7 {python}; touch tried; sleep 600"
    started = job.start(["bash", "-c", words], joined=3, cwd=tmp_path)
    started[1].result(SECONDS)
    assert eventually((tmp_path / "tried").exists)
    with pytest.raises(TimeoutError, match=r"2 of 3 processes are not there.*bash.* still runs"):
        started.result(0.01)
    starter = started._records[0].starter
    assert starter is not None
    job._state.send_signal([starter], signal.SIGTERM)
    text = r"never joined, as 1 of 3 have, .*; one was refused: it has rank 7, and joined=3 at Job.start announces ranks up to 2: .*SIGTERM"
    with pytest.raises(ProcessEndedError, match=text):
        started[2].result(SECONDS)


def test_a_rank_that_comes_twice_is_refused(job: Job, tmp_path: Path) -> None:
    script = "import exoskel.links as links; links.init().ready(); input()"
    once = f'PMI_RANK=0 "{sys.executable}" -c "{script}" < pipe'
    # Whichever comes first stays.
    words = f"mkfifo pipe; exec 3<>pipe; {once} & {once} & wait -n; exit $?"
    started = job.start(["bash", "-c", words], joined=2, cwd=tmp_path)
    with pytest.raises(ProcessEndedError, match="another process has joined as rank 0"):
        started[1].result(SECONDS)


def test_who_does_not_descend_from_it_is_refused(job: Job, tmp_path: Path) -> None:
    place = tmp_path / "place"
    job.start(["sh", "-c", f"echo $EXOSKEL_AGENT > {place}; sleep 600"], joined=1)
    assert eventually(lambda: place.exists() and place.read_text().endswith("\n"))
    agent = place.read_text().strip()
    mode = os.stat(os.path.dirname(agent)).st_mode & 0o777
    assert mode == 0o700
    environment = {**os.environ, "EXOSKEL_AGENT": agent}
    words = [sys.executable, "-c", "import exoskel.links as links; links.init()"]
    done = subprocess.run(
        words, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert "the job does not let this process in: process" in done.stderr
    assert "does not descend from" in done.stderr


@pytest.mark.parametrize(
    "said", [b"", b"\0\0\0\2{", b"\xff\xff\xff\xff", b"\0\0\0\2[]", b'\0\0\0\x0d{"rank": "x"}']
)
def test_what_a_guest_says_wrongly_harms_nobody(job: Job, tmp_path: Path, said: bytes) -> None:
    invited = job.invite(tmp_path / "invitation")
    agent = json.loads((tmp_path / "invitation").read_text())["agent"]
    with socket.socket(socket.AF_UNIX) as guest:
        guest.connect(agent)
        guest.sendall(said)
        guest.shutdown(socket.SHUT_WR)
        guest.settimeout(SECONDS)
        assert b"refused" in guest.recv(4096)
    assert not invited[0].done()


INVITED = """
import sys
import exoskel.links as links
here = links.init(sys.argv[1])
@here.process.handler
def double(value):
    return 2 * value
here.ready()
print("there", flush=True)
sys.stdin.readline()
print("on", here.rank, here.size)
"""


def test_a_process_that_runs_already_is_invited_and_runs_on(tmp_path: Path) -> None:
    path = tmp_path / "invitation"
    words = [sys.executable, "-c", INVITED, str(path)]
    with Job() as job:
        invited = job.invite(path)
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(FileExistsError, match="of a job that was killed, remove it"):
            job.invite(path)
        copy = tmp_path / "copy"
        copy.touch(0o600)
        copy.write_text(path.read_text())
        with subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process:
            [there] = invited.result(SECONDS)
            assert there.request("double", 21).result(SECONDS) == 42
            assert not path.exists()
            assert "it is removed when it has been used" in run_invited(path)
            assert "another process has used this invitation" in run_invited(copy)
            job.close()
            said, _ = process.communicate("\n", timeout=SECONDS)
            assert said == "there\non 0 1\n"
            assert process.returncode == 0


def test_invitations_go_with_their_job(tmp_path: Path) -> None:
    path, other = tmp_path / "invitation", tmp_path / "other"
    with Job() as job:
        job.invite(path)
        job.invite(other)
        other.unlink()
        other.write_text("of somebody else")
    assert not path.exists()
    # What has come into its place is another file.
    assert other.read_text() == "of somebody else"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_invitations_that_others_can_read_are_refused(job: Job, tmp_path: Path, mode: int) -> None:
    path = tmp_path / "invitation"
    job.invite(path)
    path.chmod(mode)
    done = run_invited(path)
    assert f"has mode {mode:04o}" in done


def test_invitations_of_others_links_and_what_is_none_are_refused(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "invitation"
    job.invite(path)
    (tmp_path / "link").symlink_to(path)
    assert "can't read the invitation" in run_invited(tmp_path / "link")
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
        assert "the owner 65534" in run_invited(path)
    none = tmp_path / "none"
    none.write_text("exo://nothing")
    none.chmod(0o600)
    assert "is no invitation" in run_invited(none)
    assert "can't read the invitation" in run_invited(tmp_path / "missing")
    none.write_text('{"agent": "/no/where", "word": "x"}')
    assert "can't join the job by its agent at /no/where" in run_invited(none)


def run_invited(path: Path) -> str:
    words = [sys.executable, "-c", INVITED, str(path)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)
    return done.stderr


def test_what_can_join_is_checked_before_anything_starts(job: Job) -> None:
    bad: Any
    for bad in (0, -1, True, 1.5):
        with pytest.raises(ValueError, match="got joined="):
            job.start(["true"], joined=bad)
    with pytest.raises(TypeError, match="got joined= beside"):
        job.start(["true"], count=2, joined=2)
    with pytest.raises(TypeError, match="got joined= beside"):
        job.start(len, joined=2)
    assert not job.summary().processes


def test_a_job_ends_at_once_whoever_has_not_come(tmp_path: Path) -> None:
    with Job() as job:
        invited = job.invite(tmp_path / "invitation")
        started = job.start(["sleep", "600"], joined=2)
    for future in (*invited, *started):
        with pytest.raises(ProcessEndedError, match=r"its job is over|has never joined"):
            future.result(0)
    assert not any("lost with" in one.stderr for one in job.summary().processes)


def test_nobody_is_invited_where_nothing_starts_processes(job: Job, tmp_path: Path) -> None:
    agent = job._state._agents[1]
    agent.channel._process.kill()  # type: ignore[attr-defined]
    assert eventually(lambda: not job._state._machine.has_hosts)
    with pytest.raises(ProcessEndedError, match=r"what starts processes on .* has ended"):
        job.invite(tmp_path / "invitation")
    with pytest.raises(ProcessEndedError, match=r"what starts processes on .* has ended"):
        job.start(["true"], joined=1)
    assert not (tmp_path / "invitation").exists()
    assert not job.summary().processes


def test_a_job_whose_program_starts_processes_is_listed(job: Job) -> None:
    started = job.start(["sleep", "600"], joined=2)
    listed = [one for one in local_jobs() if one["job"] == job._state.job]
    assert [[one["rank"] for one in status["processes"]] for status in listed] == [[0]]
    assert not any(future.done() for future in started)
