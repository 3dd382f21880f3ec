"""How the bench of links lets programs take turns, and what it makes of what they say. Nothing is measured here."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from benches.links import table, unused
from benches.links.lanes import LaneError, LaneProgram, play, ratio

LANES = """\
import sys
print("fast slow broken", flush=True)
for line in sys.stdin:
    lane, size, count = line.split()
    if lane == "broken":
        print("failed it is broken", flush=True)
    else:
        print(int(count) * (0.001 if lane == "fast" else 0.002), flush=True)
"""


@pytest.fixture
def program() -> Iterator[LaneProgram]:
    made = LaneProgram([sys.executable, "-c", LANES])
    yield made
    made.end()


def test_lanes_take_turns_and_a_broken_one_costs_itself(program: LaneProgram) -> None:
    said: list[str] = []
    lanes = ["fast", "slow", "broken"]
    times, failures = play([program], lanes, 64, rounds=3, seconds=0.1, say=said.append)
    assert {lane: [round(one, 6) for one in values] for lane, values in times.items()} == {
        "fast": [0.001] * 3,
        "slow": [0.002] * 3,
    }
    assert failures == {"broken": "it is broken"}
    assert ratio(times["slow"], times["fast"]) == pytest.approx(2)


def test_a_program_that_ends_says_why() -> None:
    with pytest.raises(LaneError, match="it ended: out of luck"):
        LaneProgram([sys.executable, "-c", "raise SystemExit('out of luck')"])


def test_ratios_stand_beside_their_goals() -> None:
    contest = {
        "part": "stream",
        "size": 1 << 20,
        "times": {"stream_raw": [1.0, 2.0, 3.0], "stream_encrypted": [1.25, 2.5, 3.75]},
        "failures": {"stream_rustls": "cargo is missing"},
    }
    report = {
        "machine": {
            "processor": "one",
            "cores": 2,
            "kernel": "6",
            "date": "today",
            "peers": [],
            "pinned": [],
        },
        "quick": False,
        "rounds": 3,
        "contests": [contest],
        "unused": {"memory_plain": {"cipher": 0.0, "memory": 1.0}},
    }
    text = table.render(report)
    [encrypted] = [line for line in text.splitlines() if "encrypted 1 MiB / raw TCP" in line[:40]]
    assert encrypted.split()[-4:] == ["0.80", ">=", "0.80", "reached"]
    assert "stream_rustls" in text
    assert "not measured: cargo is missing" in text
    assert "cipher 0.00, allocations 1.00" in text


def test_calls_are_summed_up_by_what_they_are() -> None:
    # Names stand in full only once; a call of a function by itself has a number behind its name.
    text = """\
fn=(1) main
cfn=(2) aws_lc_0_47_0_EVP_AEAD_CTX_seal_scatter
calls=7 10
cfn=(3) malloc
calls=5 10
fn=(4) other
cfn=(2)
calls=3 10
cfn=(5) malloc'2
calls=1 10
cfn=(6) aws_lc_0_47_0_EVP_AEAD_CTX_seal
calls=100 10
"""
    assert unused.read(text) == {"cipher": 10, "memory": 6}
