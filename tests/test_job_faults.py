"""Jobs whose owners and processes don't do what they should."""

from __future__ import annotations

import base64
import gc
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, gone

from exoskel import Job, LinkError, ProcessEndedError, Ssh
from exoskel.agent import OWN_NAMES
from exoskel.errors import StartpointError
from exoskel.job_control import local_jobs
from exoskel.job_orphans import MARK
from exoskel.job_process import JobNode
from exoskel.job_state import JobState
from exoskel.link_arguments import said_startpoint
from exoskel.links import Call
from exoskel.process_zygote import AGENT, RANK, SIZE

SECONDS = 60.0


@pytest.fixture
def job() -> Iterator[Job]:
    with Job() as job:
        yield job


def stay(here: JobNode) -> int:
    return here.rank


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise SystemExit(3)", 3)])
def test_a_program_that_does_not_close_its_job_ends(end: str, code: int) -> None:
    program = textwrap.dedent(
        f"""
        import exoskel
        job = exoskel.Job()
        job.start(["sleep", "600"])
        print(job.start(len, arguments=[]))
        {end}
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, timeout=SECONDS, check=False
    )
    assert done.returncode == code


def process_of(here: JobNode) -> int:
    return os.getpid()


def test_a_job_ends_with_the_last_reference_to_its_processes() -> None:
    started = Job().start(process_of, count=2)
    gc.collect()
    processes = started.values(timeout=SECONDS)
    assert not any(map(gone, processes))
    del started
    gc.collect()
    assert all(map(gone, processes))


def test_signals_without_a_name_are_said_by_their_number(job: Job) -> None:
    started = job.start(["sh", "-c", f"kill -{signal.SIGRTMIN + 1} $$"])
    with pytest.raises(ProcessEndedError, match=f"was ended by signal {signal.SIGRTMIN + 1}"):
        started.result(timeout=SECONDS)
    asleep = job.start(["sleep", "600"])
    asleep.send_signal(signal.SIGRTMIN + 2)
    assert asleep.wait(SECONDS) == [-signal.SIGRTMIN - 2]
    for number in (0, -1, 10_000):
        with pytest.raises(ValueError, match="got the signal"):
            asleep.send_signal(number)


def test_nobody_can_cancel_a_process_by_its_future(job: Job) -> None:
    started = job.start(stay, count=2)
    assert not started[1].cancel()
    assert started.values(timeout=SECONDS) == [0, 1]


def own_variables(_here: Any) -> dict[str, str]:
    """Return what the agent has said to this process in its environment, but for the rank."""
    return {name: os.environ.get(name, "") for name in sorted(OWN_NAMES - {RANK})}


GARBAGE = {
    "no key": b'{"key": "AAAA"}',
    "nested": b"[" * 8000,
    "no words": b"3",
    "a startpoint of somebody else": b'{"here": "exo://nobody"}',
    "a startpoint that is no text": b'{"here": "exo://\\ud800"}',
    "no sibling": b'{"sibling": 7}',
    "not JSON": b"\xff\xfe",
}
HOSTILE = """
import os, socket, struct, sys
context = socket.socket(fileno=int(os.environ["EXOSKEL_PROCESS_FD"]))
for word in {words!r}:
    context.sendall(struct.pack("!I", len(word)) + word)
{then}
"""


@pytest.mark.parametrize("what", GARBAGE)
def test_what_a_process_says_wrongly_harms_nobody_else(job: Job, what: str) -> None:
    script = HOSTILE.format(words=[GARBAGE[what]], then="")
    assert job.start([sys.executable, "-c", script]).wait(SECONDS) == [0]
    assert job.start(stay, count=2).values(timeout=SECONDS) == [0, 1]


def test_what_is_said_wrongly_loses_none_that_is_said_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An agent hands over together what many processes say, wherever they have said it at the same time."""
    taken_in = JobState.here

    def here(state: JobState, call: Call, found: list[tuple[int, str]]) -> None:
        taken_in(state, call, [(number, "exo://\ud800") for number, _ in found] + found)

    monkeypatch.setattr(JobState, "here", here)
    with Job() as job:
        assert job.start(stay, count=2).values(timeout=SECONDS) == [0, 1]


def test_what_a_peer_says_names_no_file_of_this_host(tmp_path: Path) -> None:
    place = tmp_path / "file"
    place.write_text("")
    for text in (str(place), "exo://\ud800"):
        with pytest.raises(StartpointError) as raised:
            said_startpoint(text)
        assert "the name of a file" not in str(raised.value)


def test_nobody_replaces_what_an_agent_says_to_its_processes(job: Job, tmp_path: Path) -> None:
    """By its mark an agent finds them again; by the others they know who they are, and where their agent is."""
    said = {name: "agent-1-1" for name in OWN_NAMES}
    [plain] = job.start(own_variables, env={"OTHER": "1"}).values(SECONDS)
    assert plain[MARK]
    assert job.start(own_variables, env=said).values(SECONDS) == [plain]
    assert job.start(read_rank, count=2, env=said).values(SECONDS) == ["0", "1"]
    words = ["sh", "-c", f'test "${MARK}${SIZE}${RANK}${AGENT}" = "{plain[MARK]}10"']
    assert job.start(words, env=said).wait(SECONDS) == [0]
    # Nor does it lose what begins it: another job's may stand in the environment that its creator hands on.
    place = str(tmp_path / "nowhere")
    assert job.start(stay, env={AGENT: place}).values(timeout=SECONDS) == [0]


def read_rank(_here: Any) -> str:
    """Return the rank as a program finds it."""
    return os.environ[RANK]


def test_a_process_that_floods_and_never_reads_holds_up_nobody(job: Job) -> None:
    then = "import time; time.sleep(600)"
    script = HOSTILE.format(words=[b'{"sibling": 0}'] * 2000, then=then)
    job.start([sys.executable, "-c", script])
    assert job.start(stay, count=2).values(timeout=SECONDS) == [0, 1]


def test_many_processes_start_where_sockets_hold_little(job: Job) -> None:
    started = job.start(["true"], count=400, env={"FILLING": "x" * 10_000})
    assert started.wait(SECONDS) == [0] * 400


def test_a_forked_child_is_not_the_jobs_owner(job: Job) -> None:
    started = job.start(stay)
    assert started.values(SECONDS) == [0]
    child = os.fork()
    if child == 0:
        job.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert started[0].result(SECONDS).exit_code is None


def test_what_a_process_has_left_running_ends_with_it(job: Job, tmp_path: Path) -> None:
    place = tmp_path / "left"
    assert job.start(["sh", "-c", f"sleep 600 & echo $! > {place}"]).wait(SECONDS) == [0]
    left = int(place.read_text())
    assert eventually(lambda: gone(left))


def test_a_host_whose_command_cannot_be_given_ends_the_others(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(ProcessEndedError, match=r"can't start /bin/sh for la-b: .*null"):
        Job(Ssh(["lab1", "la\0b"], command=["/bin/sh", "-c", "sleep 600"]))
    assert eventually(lambda: threading.active_count() == before)


def test_words_that_cannot_travel_are_refused_before_anything_starts(job: Job) -> None:
    bad: Any = ["true", "\udcff"]
    with pytest.raises(ValueError, match="surrogates"):
        job.start(bad)
    assert not job.summary().processes


def test_a_process_that_has_only_been_forked_ends_with_its_agent() -> None:
    for _ in range(20):
        with Job() as job:
            job.start(["sleep", "600"], count=4)
            os.kill(job._state._agents[1].channel._process.pid, signal.SIGKILL)  # type: ignore[attr-defined]


def test_an_agent_to_which_there_is_no_link_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exoskel.job_state._PATIENCE_SECONDS", 0.5)
    with Job() as job:
        asleep = job.start(["sleep", "600"], count=2)
        agent = job._state._agents[1].channel._process.pid  # type: ignore[attr-defined]
        os.kill(agent, signal.SIGSTOP)
        stat = Path(f"/proc/{agent}/stat")
        assert eventually(lambda: stat.read_text().rpartition(") ")[2].startswith("T"))
        with pytest.raises(LinkError):
            job.start(["true"])
        for future in asleep:
            with pytest.raises(ProcessEndedError, match="it was lost with what starts"):
                future.result(SECONDS)
        assert all(one.exit_code is None for one in job.summary().processes)


def test_an_agent_answers_while_its_creator_signs_nothing(tmp_path: Path) -> None:
    """A creator that is stopped leaves an agent without the signature that it has asked for."""
    begun, go, asks = tmp_path / "begun", tmp_path / "go", tmp_path / "asks"
    key = base64.b64encode(b"\x04" + bytes(64)).decode()
    joining = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\n" + HOSTILE.format(
        words=[json.dumps({"key": key}).encode()],
        then=f"pathlib.Path({str(asks)!r}).touch(); time.sleep(600)",
    ).replace(
        "for word", f"while not pathlib.Path({str(go)!r}).exists(): time.sleep(0.01)\nfor word"
    )
    program = textwrap.dedent(
        f"""
        import os, signal, sys, time, exoskel
        job = exoskel.Job()
        job.start([sys.executable, "-c", {joining!r}])
        while not os.path.exists({str(begun)!r}):
            time.sleep(0.01)
        print(job._state.job, flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        """
    )
    creator = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert creator.stdout is not None
    try:
        with creator.stdout as said:
            job = said.readline().decode().strip()
        os.waitid(os.P_PID, creator.pid, os.WSTOPPED)
        go.touch()
        assert eventually(asks.exists)
        for _ in range(3):
            [listed] = [one for one in local_jobs() if one["job"] == job]
            [process] = listed["processes"]
    finally:
        creator.kill()
        creator.wait()
    assert all(eventually(partial(gone, one)) for one in (process["process"], listed["agent"]))
