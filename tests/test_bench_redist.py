"""What the bench of redistributions makes of lanes that fail, and of goals. Nothing is measured here."""

from __future__ import annotations

import pytest
from benches.links.install import Missing
from benches.redist import frame, keepers, part_at_once, part_networks, table


def test_a_lane_that_is_missing_costs_itself(capsys: pytest.CaptureFixture[str]) -> None:
    def missing() -> list[float]:
        raise Missing("nobody has it")

    lanes = {"ours": lambda: [9.0, 9.0, 0.5, 0.25, 1.0], "peer": missing}
    row = frame.Bench(rounds=2).row("a case", lanes, bytes=10**9)
    assert row.values == {"ours": 2.0}
    assert row.failures == {"peer": "nobody has it"}
    assert row.ratio("ours", "peer") is None
    assert "peer is not measured: nobody has it" in capsys.readouterr().err
    assert "    peer: not measured: nobody has it" in table.row(row)


@pytest.mark.parametrize(
    ("value", "is_least", "verdict"),
    [
        (1.0, True, "reached"),
        (0.9, True, "missed"),
        (1.1, False, "missed"),
        (None, True, "not measured"),
    ],
)
def test_goals_stand_beside_what_was_measured(
    value: float | None, is_least: bool, verdict: str
) -> None:
    goal = frame.Goal("over a peer", value, 1.0, is_least)
    assert goal.verdict == verdict
    assert table.goal(goal).endswith(verdict)


def test_every_part_has_rows_and_goals() -> None:
    parts = frame.parts()
    known = {"at_once", "couplers", "networks", "own_memory", "plans", "same_host", "start"}
    assert known | {"two_hosts"} <= parts.keys()
    assert all(callable(part.measure) for part in parts.values())
    # A part of which nothing could be measured still says so.
    goals = [goal for part in parts.values() for goal in part.goals([])]
    assert {goal.verdict for goal in goals} == {"not measured"}


def test_the_middle_quarter_is_selected() -> None:
    assert 'select = "[2:6, 1:3]"' in keepers.coupling("centre", ["8x4"])
    assert "select" not in keepers.coupling("columns", ["8x4", "4x4"])


def test_arrays_that_go_at_once_are_in_the_coupling_each() -> None:
    names = [f"source.field{number}" for number in range(3)]
    text = keepers.coupling("columns", ["8x4+8x4", "4x4,own"])
    assert all(name in text for name in names)
    assert "field3" not in text


def test_a_row_says_how_much_of_each_turn_is_not_counted() -> None:
    bench = frame.Bench(rounds=2)
    row = bench.row("a start", {"ours": lambda: [0.5]}, unit="ms", scale=1e3, first=0)
    assert row.values == {"ours": 500.0}


def test_a_network_that_cannot_be_made_costs_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise Missing("root is missing")

    monkeypatch.setattr(part_networks, "coupled", missing)
    rows = list(part_networks.measure(frame.Bench(rounds=1)))
    assert [row.failures for row in rows] == [{"ours": "root is missing"}] * 3
    assert {goal.verdict for goal in part_networks.goals(rows)} == {"not measured"}


def test_times_at_once_and_in_turn_are_compared_by_their_hosts() -> None:
    values = {"ours at once": 21.0, "ours in turn": 20.0}
    rows = [frame.Row("four", "ms", values, keys={"hosts": "one host", "length": 8})]
    found = [(goal.value, goal.verdict) for goal in part_at_once.goals(rows)]
    assert found == [(1.05, "reached"), (None, "not measured"), (None, "not measured")]
