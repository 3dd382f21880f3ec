"""``exoskel policy explain --identity`` of credentials of a private authority, as an agent of that authority judges them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exoskel.cli import main

POLICY = """
[[allow.rule]]
action = "agent.start"
name = "head.example.org"

[sandbox]
managers = ["head.example.org"]
memory = "4 GiB"
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("policy")
    (place / "policy.toml").write_text(POLICY)
    for authority, names in (("ours", ("lab1", "head", "guest")), ("theirs", ("stranger",))):
        assert main(["pki", "init", str(place / authority)]) == 0
        for name in names:
            words = ["--role", "peer", "--name", f"{name}.example.org"]
            words += ["--output", str(place / f"{name}.pem"), "--directory", str(place / authority)]
            assert main(["pki", "issue", *words]) == 0
    return place


def asked(place: Path, name: str, action: str, *more: str) -> list[str]:
    words = ["policy", "explain", "--identity", str(place / f"{name}.pem"), "--action", action]
    words += ["--policy", str(place / "policy.toml"), "--credential", str(place / "lab1.pem")]
    return [*words, "--json", *more]


@pytest.mark.parametrize(
    ("name", "action", "rule"),
    [
        ("head", "agent.start", "line 2 of the policy"),
        ("head", "agent.start_detached", None),
        ("guest", "agent.start", None),
    ],
)
def test_who_may_what_is_said_of_our_own(
    place: Path, capsys: pytest.CaptureFixture[str], name: str, action: str, rule: str | None
) -> None:
    capsys.readouterr()
    assert main(asked(place, name, action)) == (1 if rule is None else 0)
    said = json.loads(capsys.readouterr().out)
    assert said["identity"] == f"{name}.example.org"
    assert (said["allowed"], said["rule"]) == (rule is not None, rule)
    assert ("4294967296 bytes of memory" in (said["sandbox"] or "")) == (name == "head")


def test_somebody_of_another_authority_is_nobody(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(asked(place, "stranger", "agent.start")) == 1
    assert "none of the 1 trusted authorities" in capsys.readouterr().out


def test_one_authority_judges(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(asked(place, "head", "agent.start", "--vomsdir", str(place))) == 2
    assert "expected one of both" in capsys.readouterr().out
