"""What a job's creator may ask an agent to start: whatever else is asked for is refused before anything is done."""

from __future__ import annotations

from typing import Any

import pytest

from exoskel.start_request import check_listen, check_number, check_start

WHAT = {"words": ["true"], "directory": None, "environment": {"A": "b"}, "sandbox": None}


def test_a_request_is_taken() -> None:
    check_start(1, [2, 3], [0, 1], WHAT, {"size": 2})
    check_start(1, [2], [0], {**WHAT, "joined": [3, 4]}, {"size": 2})
    check_listen(["0.0.0.0:0"])
    check_listen([])


@pytest.mark.parametrize("number", ["../../x", "/etc/x", 1.5, -1, True, None, 100_001, [1]])
def test_what_is_no_number_makes_no_path(number: Any) -> None:
    with pytest.raises(ValueError, match="expected a whole number"):
        check_number(number)
    for request in (
        (number, [2], [0], WHAT, {"size": 1}),
        (1, [number], [0], WHAT, {"size": 1}),
        (1, [2], [number], WHAT, {"size": 1}),
        (1, [2], [0], WHAT, {"size": number}),
        (1, [2], [0], {**WHAT, "joined": [number]}, {"size": 1}),
    ):
        with pytest.raises(ValueError, match="expected a whole number"):
            check_start(*request)


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ({"words": "true"}, "words"),
        ({"words": [1]}, "words"),
        ({"words": ["a\0b"]}, "words"),
        ({"directory": 3}, "directory"),
        ({"environment": {"A=B": "c"}}, "variables"),
        ({"environment": {"A": 1}}, "variables"),
        ({"environment": None}, "variables"),
        ({"sandbox": "none"}, "sandbox"),
        ({"joined": 3}, "join"),
        ({"joined": [2]}, "different numbers"),
    ],
)
def test_what_can_not_be_started_is_refused(what: dict[str, Any], expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        check_start(1, [2], [0], {**WHAT, **what}, {"size": 1})


@pytest.mark.parametrize("numbers", [([2, 2], [0, 1]), ([2], [0, 1]), ([], []), (2, 0)])
def test_each_process_has_a_number_and_a_rank(numbers: tuple[Any, Any]) -> None:
    with pytest.raises(ValueError, match="expected"):
        check_start(1, *numbers, WHAT, {"size": 1})


@pytest.mark.parametrize(
    "addresses",
    [
        ["unix:/home/x"],
        [" unix:/home/x"],
        "0.0.0.0:0",
        [1],
        ["0.0.0.0:7601"],
        ["127.0.0.1:631"],
        ["0.0.0.0:0"] * 5,
    ],
)
def test_nobody_listens_at_paths_and_ports_that_a_creator_chooses(addresses: Any) -> None:
    with pytest.raises(ValueError, match="listen at"):
        check_listen(addresses)
