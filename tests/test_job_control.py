"""What agents say of their jobs: processes of other hosts, or of the account under which foreign code runs."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from exoskel import job_control
from exoskel.cli import job as job_commands
from exoskel.cli import main
from exoskel.errors import LinkError
from exoskel.job_orphans import namespace

JOB: dict[str, Any] = {
    "job": "abcdefgh",
    "agent": 1,
    "begun": 1.0e9,
    "is_detached": False,
    "has_creator": True,
    "processes": [],
    "groups": [{"program": "sleep 1", "begun": 1.0e9, "processes": 2}],
}


def test_what_is_told_of_jobs_is_shown() -> None:
    assert job_control.understood([JOB]) == [JOB]


@pytest.mark.parametrize(
    "wrong",
    [
        {"job": ""},
        {"job": 7},
        {"agent": "../x"},
        {"owner": ["x"]},
        {"begun": "now"},
        {"begun": float("nan")},
        {"begun": 1e300},
        {"begun": None},
        {"is_detached": "no"},
        {"groups": None},
        {"groups": ["x"]},
        {"groups": [{"program": "x", "begun": -1, "processes": 1}]},
        {"groups": [{"program": None, "begun": 1, "processes": 1}]},
    ],
)
def test_what_is_no_job_is_left_out(wrong: dict[str, Any]) -> None:
    assert job_control.understood([{**JOB, **wrong}, JOB]) == [JOB]
    assert job_control.understood([[], None, "job", JOB]) == [JOB]
    assert job_control.understood({"job": 1}) == []


def test_no_agent_drives_the_terminal_of_who_lists_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: a process of the account that answers in the place of an agent, and one that answers nonsense."""
    monkeypatch.setenv("HOME", str(tmp_path))
    folder = tmp_path / ".exoskel" / "run"
    folder.mkdir(mode=0o700, parents=True)
    hostile = {**JOB, "job": "\x1b]0;mine\x07", "owner": "a\nb", "groups": JOB["groups"] * 2}
    hostile["groups"] = [{**JOB["groups"][0], "program": "\x1b[2J\u202e"}]
    threads = []
    for number, said in enumerate([hostile, {**JOB, "begun": "soon"}, ["x"], JOB]):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / f"job-{os.uname().nodename}-{namespace()}-{number}.socket"))
        listener.listen()

        def answer(listener: socket.socket = listener, said: Any = said) -> None:
            with listener, listener.accept()[0] as asking:
                asking.recv(64)
                asking.sendall(json.dumps(said).encode() + b"\n")

        threads.append(threading.Thread(target=answer))
        threads[-1].start()
    assert main(["job", "list"]) == 0
    for thread in threads:
        thread.join()
    text = capsys.readouterr().out
    assert all(character.isprintable() for character in text.replace("\n", ""))
    assert "sleep 1" in text
    assert "\\x1b]0;mine" in text
    assert len(text.splitlines()) == 3


def asked_at(
    monkeypatch: pytest.MonkeyPatch, jobs: Callable[[int], list[dict[str, Any]]], count: int
) -> list[str]:
    """Put hosts in the place of those of ``--agents``; return who was told to end a job."""
    ended: list[str] = []

    def end(host: str, job: dict[str, Any]) -> None:
        ended.append(f"{host}:{job['job']}")

    @contextlib.contextmanager
    def places(_: object) -> Iterator[list[job_commands._Place]]:
        yield [
            job_commands._Place(
                f"lab{number}",
                partial(jobs, number),
                partial(end, f"lab{number}"),
            )
            for number in range(count)
        ]

    monkeypatch.setattr(job_commands, "_places", places)
    return ended


def test_a_host_that_does_not_answer_keeps_no_other_one_waiting(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: as many hosts as are asked at once at most. None answers before all are asked, and one has no answer at all."""
    count = job_commands._ASKED_MAX
    all_are_asked = threading.Barrier(count)

    def jobs(number: int) -> list[dict[str, Any]]:
        try:
            place = all_are_asked.wait(30)
        except threading.BrokenBarrierError:
            raise AssertionError("hosts are asked one after another") from None
        if number == 2:
            raise LinkError("nobody is there")
        return [{**JOB, "job": f"job{number:02}", "agent": place}]

    ended = asked_at(monkeypatch, jobs, count)
    assert main(["job", "list", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    answered = [number for number in range(count) if number != 2]
    assert [one["host"] for one in told["jobs"]] == [f"lab{number}" for number in answered]
    assert [one["job"] for one in told["jobs"]] == [f"job{number:02}" for number in answered]
    assert told["failed"] == ["lab2: nobody is there"]
    assert main(["job", "end", "job31", "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {
        "ended": [{"job": "job31", "host": "lab31"}],
        "failed": ["lab2: nobody is there"],
    }
    assert ended == ["lab31:job31"]


@pytest.mark.parametrize("host", ["", "lab1"], ids=["here", "elsewhere"])
def test_a_job_that_does_not_end_is_not_said_to_be_none(
    host: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def places(_: object) -> Iterator[list[job_commands._Place]]:
        yield [job_commands._Place(host, lambda: [{**JOB, "agent": 1}], stay)]

    def stay(_: dict[str, Any]) -> None:
        raise LinkError("its agent does not end")

    monkeypatch.setattr(job_commands, "_places", places)
    assert main(["job", "end", JOB["job"]]) == 1
    why = "its agent does not end" if not host else f"{host}: its agent does not end"
    assert f"error: job {JOB['job']} has not ended: {why}\n" in capsys.readouterr().err


def test_no_more_hosts_than_a_limit_are_asked_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Method: hosts answer in lots, each when as many as the limit have been asked, so that every thread is needed."""
    limit = 4
    monkeypatch.setattr(job_commands, "_ASKED_MAX", limit)
    lot = threading.Barrier(limit)
    threads: set[int] = set()

    def jobs(number: int) -> list[dict[str, Any]]:
        threads.add(threading.get_ident())
        lot.wait(30)
        return [{**JOB, "agent": number}]

    asked_at(monkeypatch, jobs, 50 * limit)
    assert main(["job", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["jobs"]) == 50 * limit
    assert len(threads) == limit
