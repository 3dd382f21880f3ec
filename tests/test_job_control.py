"""What agents say of their jobs: processes of other hosts, or of the account under which foreign code runs."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from exoskel import job_control
from exoskel.cli import main
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
