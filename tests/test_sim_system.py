"""The whole system in virtual time, through the command line and from Python."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from exoskel import _core, sim
from exoskel.cli import main

# Skeletons of which there may be another number of outcomes than of items.
CHANGES_NUMBER = re.compile(r"\b(FlatMap\(|Feedback\(|Reduce \{|Scan \{[^}]*initial: Some)")


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    assert main(["sim", "system", *map(str, arguments), "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_a_seed_is_played_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    played = sim.system(seed=954)
    assert played.broken is None
    assert played == sim.system(954)
    assert run(capsys, "--seed", 954)["digest"] == played.digest
    assert main(["sim", "system", "--seed", "954", "--scenario"]) == 0
    told = capsys.readouterr().out
    for number in (played.workers, played.items, played.outcomes, played.events):
        assert f"{number:,}" in told
    assert played.digest in told
    # What it is made of.
    assert "seed: 954" in told
    assert "faults: [" in told


def test_many_seeds_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "--from", 1, "--count", 20)
    assert [row["seed"] for row in answer["runs"]] == list(range(1, 21))
    assert answer["failed"] == []
    # Each item has one outcome but in programs that split or fold, where there may be other numbers.
    sums = {row["seed"]: row["outcomes"] + row["cancelled"] + row["left"] for row in answer["runs"]}
    items = {row["seed"]: row["items"] for row in answer["runs"]}
    changing = {seed for seed in items if CHANGES_NUMBER.search(_core.system_scenario(seed))}
    assert 5 <= len(changing) <= 15
    assert all(sums[seed] == items[seed] for seed in items if seed not in changing)
    assert any(sums[seed] != items[seed] for seed in changing)
    assert any(row["left"] for row in answer["runs"])
    assert answer["runs"][6]["digest"] == sim.system(7).digest
    assert main(["sim", "system", "--from", "1", "--count", "3"]) == 0
    shown = capsys.readouterr()
    assert "3 seeds from 1" in shown.out
    assert "0 failed" in shown.out
    assert "3 of 3 seeds" in shown.err


def test_seeds_of_some_time_are_fresh(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "--minutes", 0.01)
    assert answer["played"] == len(answer["runs"]) > 0
    assert answer["from"] > 1_000_000_000
    given = run(capsys, "--minutes", 0.01, "--from", 5)
    assert [row["seed"] for row in given["runs"]] == list(range(5, 5 + given["played"]))


def test_the_end_of_the_time_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "system", "--minutes", "0.02", "--from", "1"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines.count("from seed 1: 1 of 1 seconds") <= 1
    assert len(lines) == len(set(lines))


def test_a_broken_promise_says_how_to_play_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """No seed is known that fails: what the engine would say of one is put in its place."""
    held = sim.system(3)._asdict()

    def engine(
        first: int,
        count: int | None,
        _seconds: float | None,
        _threads: int,
        finished: Callable[[dict[str, Any]], object],
    ) -> None:
        for seed in range(first, first + (count or 1)):
            finished({**held, "seed": seed, "broken": "item 3 came twice" if seed == 4 else None})

    monkeypatch.setattr("exoskel._core.system_runs", engine)
    for words in (["--seed", "4"], ["--from", "2", "--count", "5"]):
        assert main(["sim", "system", *words]) == 1
        told = capsys.readouterr().out
        assert "seed 4 broke a promise" in told
        assert "item 3 came twice" in told
        assert "replay: exoskel sim system --seed 4\n" in told
    [failed] = run(capsys, "--from", 2, "--count", 5, code=1)["failed"]
    assert (failed["seed"], failed["replay"]) == (4, "exoskel sim system --seed 4")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--seed"),
        (("--from", 1), "got --from alone, expected --count"),
        (("--count", 5), "got --count alone, expected --from"),
        (("--scenario",), "--seed"),
        (("--seed", 1, "--count", 2), "--count"),
        (("--seed", -1), "seed: got -1"),
        (("--seed", 2**64), "seed"),
        (("--from", -1, "--count", 2), "first"),
        (("--from", 1, "--count", 0), "count"),
        (("--from", 2**64 - 1, "--count", 2), "count"),
        (("--minutes", 0), "minutes"),
        (("--minutes", "nan"), "minutes"),
        (("--minutes", "inf"), "minutes"),
    ],
)
def test_what_can_not_be_played_names_the_parameter(
    arguments: tuple[object, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in run(capsys, *arguments, code=2)["error"]


def test_ctrl_c_leaves_what_is_finished() -> None:
    command = [
        sys.executable,
        "-m",
        "exoskel",
        "sim",
        "system",
        "--from",
        "1",
        "--count",
        "1000000",
    ]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        assert any("of 1000000 seeds" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        told = process.stdout.read()
        process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 130
    played = re.search(r"(\d+) seeds from 1 in .*; interrupted", told)
    assert played is not None
    assert int(played[1]) >= 1
