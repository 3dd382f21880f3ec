"""The runtime's keys under the messages of a real program: what the simulation predicts is what happens."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exoskel import sim
from exoskel.cli import main

TRACES = Path(__file__).parent.parent / "traces"


@pytest.mark.parametrize("name", ["mg", "sp", "ft"])
@pytest.mark.parametrize("entries", [2, 5, 12, 28])
def test_nodes_find_their_keys_as_predicted(name: str, entries: int) -> None:
    found = sim.live(TRACES / f"{name}.S.16.skct.zst", entries)
    assert found.lookups == found.predicted_lookups
    assert found.hits == found.predicted_hits


def test_nodes_find_their_keys_under_a_larger_program() -> None:
    found = sim.live(TRACES / "cg.A.16.skct.zst", 6)
    assert found.lookups > 90_000
    assert found.hits == found.predicted_hits


@pytest.mark.parametrize(("entries", "ways"), [(8, 4), (16, 2), (16, 1)])
def test_sets_are_placed_as_predicted(entries: int, ways: int) -> None:
    found = sim.live(TRACES / "mg.S.16.skct.zst", entries, ways=ways)
    assert 0 < found.hits < found.lookups
    assert found.hits == found.predicted_hits


def test_the_command_shows_both(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sim", "keycache", "--trace", str(TRACES / "mg.S.16.skct.zst"), "--entries", "6"]
    assert main([*words, "--live", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["hit_rate"] == answer["predicted_hit_rate"]
    assert main([*words, "--live", "--policy", "clock"]) == 1
    assert "expected neither" in capsys.readouterr().err


def test_messages_that_do_not_fit_together_end_in_an_error(tmp_path: Path) -> None:
    file = tmp_path / "text"
    # Rank 1 ends without sending.
    file.write_text("0 init\n0 recv 1 0 100 6\n0 finalize\n1 init\n1 finalize\n")
    sim.pack(file, tmp_path / "trace.skct")
    with pytest.raises(ValueError, match="rank 0, message 0, with rank 1: got no message"):
        sim.live(tmp_path / "trace.skct", 4)


def test_impossible_sizes_are_named() -> None:
    for entries, ways, message in [(0, None, "entries: got 0"), (4, 3, "a multiple of ways = 3")]:
        with pytest.raises(ValueError, match=message):
            sim.live(TRACES / "mg.S.16.skct.zst", entries, ways=ways)
