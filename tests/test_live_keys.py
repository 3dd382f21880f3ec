"""The runtime's keys under the messages of a real program: what the simulation predicts is what happens."""

from __future__ import annotations

import json
import math
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
    assert main([*words, "--live", "--policy", "clock"]) == 2
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


def eager_exchange(folder: Path, messages: int) -> Path:
    """A trace of two ranks that both send all that they have before they receive."""
    lines = []
    for me, other in [(0, 1), (1, 0)]:
        sends = [f"{me} send {other} 0 100 6"] * messages
        receives = [f"{me} recv {other} 0 100 6"] * messages
        lines += [f"{me} init", *sends, *receives, f"{me} finalize"]
    text = folder / "text"
    text.write_text("\n".join(lines))
    file = folder / "eager.skct"
    sim.pack(text, file)
    return file


def test_two_that_send_before_they_receive_do_not_wait_for_each_other(tmp_path: Path) -> None:
    found = sim.live(eager_exchange(tmp_path, 5000), 1)
    assert (found.lookups, found.hits) == (found.predicted_lookups, found.predicted_hits)
    # Sends in a row, then receives in a row: with one entry each rank asks anew where they change. Each end's last word when
    # the link was opened decides whether the first one is there.
    assert found.lookups == 4 * 5000
    assert found.lookups - found.hits in (2, 3, 4)


def test_silent_and_talking_ranks_find_their_keys_as_predicted(tmp_path: Path) -> None:
    sim.on_off(tmp_path / "oo.skct")
    found = sim.live(tmp_path / "oo.skct", 6)
    assert found.lookups > 0
    assert (found.lookups, found.hits) == (found.predicted_lookups, found.predicted_hits)


def test_messages_that_nobody_receives_do_not_hold_their_sender_up(tmp_path: Path) -> None:
    lines = ["0 init", *["0 send 1 0 100 6"] * 5000, "0 finalize", "1 init", "1 finalize"]
    (tmp_path / "text").write_text("\n".join(lines))
    sim.pack(tmp_path / "text", tmp_path / "trace.skct")
    found = sim.live(tmp_path / "trace.skct", 2)
    assert (found.lookups, found.hits) == (5000, found.predicted_hits)


def test_a_trace_without_messages_has_no_hit_rate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("0 init\n0 finalize\n1 init\n1 finalize\n")
    sim.pack(tmp_path / "text", tmp_path / "trace.skct", name="silence")
    words = ["sim", "keycache", "--trace", str(tmp_path / "trace.skct"), "--entries", "2"]
    for more in ([], ["--live"]):
        assert main([*words, *more]) == 0
        assert capsys.readouterr().out.startswith("silence: hit rate - ")
        assert main([*words, *more, "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert answer["trace"] == "silence"
        assert answer["hit_rate"] is None
        assert answer["lookups"] == 0
    [rate] = sim.keycache(tmp_path / "trace.skct", entries=2)["hit_rate"]
    assert math.isnan(rate)
