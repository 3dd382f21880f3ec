"""Traces that nobody recorded."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.command import refused, run

from exoskel import sim


def test_made_up_traffic_runs_on_cards(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "traffic.skct"
    made = run(capsys, "sim", "on-off", str(trace), "--periods", "10", "--ranks", "4")
    # A send, a receive that is begun, and one wait of each process for all of them.
    assert (made["ranks"], made["records"]) == (4, 4 * (10 * 20 * 2 + 1))
    assert "synthetic" in made["note"]
    runs = sim.keycache(trace, scenario={"nodes": 4, "cache_entries": 2})
    assert 0.5 < runs["hit_rate"][0] < 1


def test_a_seed_makes_the_same_trace(tmp_path: Path) -> None:
    def made(seed: int) -> bytes:
        return sim.requests(
            tmp_path / "requests.skct", ranks=5, each=20, seed=seed
        ).file.read_bytes()

    assert made(1) == made(1)
    assert made(1) != made(2)
    table = sim.keycache(tmp_path / "requests.skct", entries=[1, 4])
    assert table["hit_rate"][0] < table["hit_rate"][1]


@pytest.mark.parametrize(
    ("command", "option"),
    [("on-off", "ranks"), ("on-off", "periods"), ("requests", "ranks"), ("requests", "each")],
)
def test_impossible_numbers_are_named(
    command: str, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in ("0", "-1", "999999999999"):
        text = refused(capsys, command, str(tmp_path / "x.skct"), f"--{option}", number, code=2)
        assert option in text
        assert not (tmp_path / "x.skct").exists()
