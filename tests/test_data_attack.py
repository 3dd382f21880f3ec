"""A short run of the attack on the reader of plain data, and proof that the attack notices what it looks for."""

from typing import Any

import pytest
from tests import data_attack
from tests.data_attack import unprintable

SEED = 20261122


def attack(*given: str) -> dict[str, Any]:
    return data_attack.run(data_attack.arguments_of(["--seed", str(SEED), *given]))


def test_answers_of_strangers_are_decoded_and_used_without_harm() -> None:
    """Reproduce a failure with: python -m tests.data_attack --seed SEED --generated 3000 --mutated 7000."""
    found = attack("--generated", "3000", "--mutated", "7000")
    assert found["failures"] == []
    assert (found["generated"], found["mutated"], found["events"]) == (3000, 7000, 0)
    # It attacks what lies behind the first check as well.
    assert found["accepted"] > 1000
    assert found["refused"] > 1000


def test_what_must_not_happen_is_noticed() -> None:
    planted = "import,exec,open,slow,memory,end,escape"
    found = attack("--generated", "400", "--mutated", "1", "--break", planted)
    noticed = {failure["kind"]: failure["what"] for failure in found["failures"]}
    assert {"event", "time", "memory", "error"} <= noticed.keys()
    events = {failure["what"] for failure in found["failures"] if failure["kind"] == "event"}
    for event in ("import", "exec", "open"):
        assert any(what.startswith(f"decode: {event} ") for what in events)


def test_a_crash_is_noticed() -> None:
    found = attack("--generated", "400", "--mutated", "1", "--break", "crash")
    assert [failure["kind"] for failure in found["failures"]] == ["died of SIGSEGV"]
    assert b"Broken" in bytes.fromhex(found["failures"][0]["body"])


def test_a_hang_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_attack, "HANG_WORK_SECONDS", 2.0)
    found = attack("--generated", "400", "--mutated", "1", "--break", "hang")
    assert [failure["kind"] for failure in found["failures"]] == ["hung"]
    assert b"Broken" in bytes.fromhex(found["failures"][0]["body"])


def test_texts_that_drive_a_terminal_are_noticed() -> None:
    assert unprintable(ValueError("a")) is None
    outer = ValueError("a")
    outer.__cause__ = ValueError("\x1b[31m")
    assert "x1b" in str(unprintable(outer))
