"""Who asks a host's agent how jobs stand, or has one ended, is answered whoever else asks and whichever job stands still."""

from __future__ import annotations

import json
import os
import signal
import threading
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest
from tests.processes import eventually
from tests.test_job_agents import HEAD, OTHER, SECONDS, Lab, lab

import exoskel as ex
from exoskel import agent_jobs, links
from exoskel.agent_jobs import AgentLimits, HostJobs
from exoskel.cli import main

__all__ = ["lab"]


def test_an_agent_that_stands_still_keeps_nobody_waiting(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    """Code of a job under the agent's account can stop it. Its job is in the list all the same."""
    daemon = lab.daemon("lab1.example.org")
    asked = ["--agents", daemon.line, "--credential", str(lab.credential(HEAD)), "--json"]
    with lab.job(daemon) as job, lab.job(daemon) as other:
        for one in (job, other):
            one.start(["sleep", "600"], cwd="/")
        assert eventually(lambda: daemon.log.read_text().count("has begun") == 2)
        found = {}
        for is_late in (False, True, False):
            capsys.readouterr()
            assert main(["job", "list", *asked]) == 0
            jobs = json.loads(capsys.readouterr().out)["jobs"]
            found = {one["job"]: one for one in jobs}
            assert found.keys() == {job._state.job, other._state.job}
            stopped = found[job._state.job]
            assert stopped["is_late"] is is_late
            assert [group["program"] for group in stopped["groups"]] == ["sleep 600"]
            assert found[other._state.job]["is_late"] is False
            os.kill(stopped["agent"], signal.SIGCONT if is_late else signal.SIGSTOP)
        os.kill(found[job._state.job]["agent"], signal.SIGCONT)


class StillJob:
    """A job in the place of a daemon's, whose agent says and ends nothing before it is told to."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.job = f"job-of-{owner}"
        self.answer: Future[bytes] = Future()
        self.may_end = threading.Event()

    def ask(self) -> Future[bytes]:
        """Say when there will be an answer."""
        return self.answer

    def status(self, asked: Future[bytes]) -> dict[str, Any]:
        """Say whether there is one."""
        return {"job": self.job, "is_late": not asked.done()}

    def is_running(self) -> bool:
        """Say that it does."""
        return True

    def begin_end(self) -> threading.Thread:
        """Return who waits for its end."""
        ender = threading.Thread(target=self.may_end.wait)
        ender.start()
        return ender


def test_nobody_takes_the_threads_of_a_daemon_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: jobs whose agents say nothing, of as many owners as are waited for at most. All calls but one of each are answered at once."""
    monkeypatch.setattr(agent_jobs, "_STATUS_SECONDS", SECONDS)
    jobs = HostJobs(AgentLimits(16, 16), None, lambda _: None, lambda _: None, list)
    owners = [f"owner{number}" for number in range(agent_jobs._WAITING_MAX)]
    still = {owner: StillJob(owner) for owner in (*owners, OTHER)}
    still[OTHER].answer.set_result(b"{}")
    still[OTHER].may_end.set()
    jobs._jobs.update(still.values())  # type: ignore[arg-type]

    def call(owner: str) -> links.Call:
        return links.Call(owner, "jobs", (), {})

    found: list[Any] = []

    def list_jobs(owner: str) -> None:
        found.extend(jobs.jobs(call(owner)))

    def end_job(owner: str) -> None:
        found.append(jobs.end(call(owner), f"job-of-{owner}"))

    for asking, waiting in ((list_jobs, jobs._asking), (end_job, jobs._ending)):
        for owner in owners:
            threading.Thread(target=asking, args=[owner]).start()
        assert eventually(partial(waiting._owners.issuperset, owners))
    assert found == []
    assert len(owners) * 2 < agent_jobs.THREADS
    for owner in owners:
        assert jobs.jobs(call(owner)) == [{"job": f"job-of-{owner}", "is_late": True}]
        with pytest.raises(ex.ExoskelError, match="is being ended; nobody waits for that"):
            jobs.end(call(owner), f"job-of-{owner}")
    assert jobs.jobs(call(OTHER)) == [{"job": f"job-of-{OTHER}", "is_late": False}]
    for job in still.values():
        if not job.answer.done():
            job.answer.set_result(b"{}")
        job.may_end.set()
    assert eventually(lambda: len(found) == 2 * len(owners))
    assert {"job": "job-of-owner0", "is_late": False} in found
    assert jobs.end(call(OTHER), f"job-of-{OTHER}") is True
    assert jobs.end(call(OTHER), "job-of-owner0") is False
