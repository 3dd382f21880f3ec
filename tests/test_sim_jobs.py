"""Jobs in virtual time, through the command line and from Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from exoskel import sim
from exoskel.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    assert main(["sim", "jobs", *map(str, arguments), "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_seed_is_played_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    played = sim.jobs(seed=7)
    assert played.broken is None
    assert played == sim.jobs(7)
    assert run(capsys, "--seed", 7)["digest"] == played.digest
    assert main(["sim", "jobs", "--seed", "7", "--scenario"]) == 0
    told = capsys.readouterr().out
    for number in (played.processes, played.there, played.siblings, played.hosts):
        assert f"{number}" in told
    assert played.digest in told
    # What it is made of.
    assert "seed: 7" in told
    assert "groups: [" in told


def test_many_seeds_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "--from", 1, "--count", 50)
    assert [row["seed"] for row in answer["runs"]] == list(range(1, 51))
    assert answer["failed"] == []
    for row in answer["runs"]:
        assert row["there"] <= row["processes"]
        assert row["met"] <= row["siblings"]
    for seen in ("replaced", "lost", "killed", "refused", "agents_lost"):
        assert any(row[seen] for row in answer["runs"])
    assert answer["runs"][6]["digest"] == sim.jobs(7).digest


def test_a_broken_promise_says_how_to_play_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No seed is known that fails: what the engine would say of one is put in its place."""
    held = sim.jobs(3)._asdict()

    def engine(
        first: int,
        count: int | None,
        _seconds: float | None,
        _threads: int,
        finished: Callable[[dict[str, Any]], object],
    ) -> None:
        for seed in range(first, first + (count or 1)):
            broken = {"broken": "group 3 is told twice"} if seed == 4 else {}
            finished({**held, "seed": seed, **broken})

    monkeypatch.setattr("exoskel._core.jobs_runs", engine)
    assert main(["sim", "jobs", "--from", "2", "--count", "5"]) == 1
    told = capsys.readouterr().out
    assert "seed 4 broke a promise" in told
    assert "group 3 is told twice" in told
    assert "replay: exoskel sim jobs --seed 4\n" in told
    [failed] = run(capsys, "--from", 2, "--count", 5, code=1)["failed"]
    assert (failed["seed"], failed["replay"]) == (4, "exoskel sim jobs --seed 4")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--seed"),
        (("--seed", 1, "--count", 2), "--count"),
        (("--seed", -1), "seed: got -1"),
    ],
)
def test_what_can_not_be_played_names_the_parameter(
    arguments: tuple[object, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in run(capsys, *arguments, code=2)["error"]
