"""Programs with links of their own in virtual time, through the command line and from Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from exoskel import sim
from exoskel.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    assert main(["sim", "links", *map(str, arguments), "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_seed_is_played_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    played = sim.links(seed=7)
    assert (played.broken, played.trace) == (None, ())
    assert played == sim.links(7)
    assert run(capsys, "--seed", 7)["digest"] == played.digest
    assert main(["sim", "links", "--seed", "7", "--scenario"]) == 0
    told = capsys.readouterr().out
    for number in (played.posts, played.requests, played.calls, played.replies, played.wire_bytes):
        assert f"{number:,}" in told
    assert played.digest in told
    # What it is made of.
    assert "seed: 7" in told
    assert "bindings: [" in told


def test_many_seeds_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "--from", 1, "--count", 20)
    assert [row["seed"] for row in answer["runs"]] == list(range(1, 21))
    assert answer["failed"] == []
    for row in answer["runs"]:
        assert row["calls"] <= row["posts"] + row["requests"]
        assert row["replies"] + row["requests_lost"] <= row["requests"]
    assert any(row["losses"] for row in answer["runs"])
    assert any(row["refused"] for row in answer["runs"])
    assert answer["runs"][6]["digest"] == sim.links(7).digest
    assert main(["sim", "links", "--from", "1", "--count", "3"]) == 0
    shown = capsys.readouterr()
    assert "3 seeds from 1" in shown.out
    assert "0 failed" in shown.out


def test_what_is_asked_for_is_played(capsys: pytest.CaptureFixture[str]) -> None:
    played = sim.links(11, nodes=6, links=9, messages=4, faults=())
    assert (played.nodes, played.links, played.faults) == (6, 9, 0)
    assert 0 < played.posts + played.requests <= 9 * 4
    words = ("--nodes", 6, "--links", 9, "--messages", 4, "--faults", "none")
    assert run(capsys, "--seed", 11, *words)["digest"] == played.digest
    assert main(["sim", "links", "--seed", "11", *map(str, words), "--scenario"]) == 0
    assert "faults: []" in capsys.readouterr().out
    cuts = [sim.links(seed, faults=["cut"]) for seed in range(30)]
    assert any(one.faults for one in cuts)
    # Links outlive cut connections: somebody without a right is the only one who loses something.
    assert not any(one.losses for one in cuts if not one.refused)


def test_a_broken_promise_says_how_to_play_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No seed is known that fails: what the engine would say of one is put in its place."""
    held = sim.links(3)._asdict()

    def engine(
        first: int,
        count: int | None,
        _seconds: float | None,
        _threads: int,
        _shape: dict[str, Any],
        finished: Callable[[dict[str, Any]], object],
    ) -> None:
        for seed in range(first, first + (count or 1)):
            broken = {"broken": "message 3 came twice", "trace": ["0.5 s: process 1 begins"]}
            finished({**held, "seed": seed, **(broken if seed == 4 else {})})

    monkeypatch.setattr("exoskel._core.links_runs", engine)
    command = "exoskel sim links --nodes 3 --faults cut,kill --seed 4"
    narrower = ("--nodes", "3", "--faults", "cut,kill")
    for words in (["--seed", "4"], ["--from", "2", "--count", "5"]):
        assert main(["sim", "links", *words, *narrower]) == 1
        told = capsys.readouterr().out
        assert "seed 4 broke a promise" in told
        assert "message 3 came twice" in told
        assert "0.5 s: process 1 begins" in told
        assert f"replay: {command}\n" in told
    [failed] = run(capsys, "--from", 2, "--count", 5, *narrower, code=1)["failed"]
    assert (failed["seed"], failed["replay"]) == (4, command)
    assert failed["trace"] == ["0.5 s: process 1 begins"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--seed"),
        (("--from", 1), "got --from alone, expected --count"),
        (("--scenario",), "--seed"),
        (("--seed", 1, "--count", 2), "--count"),
        (("--seed", -1), "seed: got -1"),
        (("--from", 1, "--count", 0), "count"),
        (("--seed", 1, "--nodes", 1), "nodes: got 1"),
        (("--seed", 1, "--nodes", 9), "nodes: got 9"),
        (("--seed", 1, "--links", 0), "links: got 0"),
        (("--seed", 1, "--messages", 0), "messages: got 0"),
        (("--seed", 1, "--faults", "flood"), "faults: got 'flood', expected some of cut,"),
        (("--seed", 1, "--faults", ""), "faults: got ''"),
    ],
)
def test_what_can_not_be_played_names_the_parameter(
    arguments: tuple[object, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in run(capsys, *arguments, code=2)["error"]


def test_a_text_is_no_list_of_faults() -> None:
    with pytest.raises(ValueError, match="faults: got 'cut', expected several texts"):
        sim.links(1, faults="cut")
