"""``exoskel links``, from the outside, and what else the command line says of peers and links."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from exoskel.cli import main

ROOT = Path(__file__).parent.parent
POLICY = """\
[domain.lab]
addresses = ["10.0.0.0/8"]
names = ["lab*.example.org"]

[[rule]]
from = "lab"
to = "lab"
endpoint = "flux.*"
protection = "plain"
"""
LAB1, LAB2 = "lab1.example.org@10.0.0.1", "lab2.example.org@10.0.0.2"


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.fixture
def policy(tmp_path: Path) -> str:
    """Write the policy."""
    file = tmp_path / "policy.toml"
    file.write_text(POLICY)
    return str(file)


def test_a_link_is_explained_with_its_rule_and_its_ways(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["links", "explain", LAB1, LAB2]
    answer = run(capsys, *words, "flux.heat", "--policy", policy)
    assert (answer["protection"], answer["holds"], answer["unproven"]) == (
        "plain",
        "plain",
        "encrypted",
    )
    assert answer["rule"] == "rule 1 (line 5)"
    assert [(way["method"], way["to"], way["protection"]) for way in answer["ways"]] == [
        ("tcp", "10.0.0.2", "plain"),
        ("tcp", "10.0.0.2", "encrypted"),
    ]
    other = run(capsys, *words, "coupler", "--policy", policy)
    assert other["protection"] == "encrypted"
    assert any("not for the endpoint coupler" in reason for reason in other["reasons"])
    assert run(capsys, *words, "flux.heat")["protection"] == "encrypted", "the built-in policy"


def test_the_stricter_policy_holds_on_each_way(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict = tmp_path / "strict.toml"
    strict.write_text(POLICY.replace('"plain"', '"integrity"'))
    words = ["links", "explain", LAB1, LAB2, "flux.heat", "--policy", policy]
    answer = run(capsys, *words, "--other", str(strict))
    assert (answer["protection"], answer["holds"]) == ("plain", "integrity")
    assert answer["ways"][0]["protection"] == "integrity"
    assert main([*words, "--other", str(strict)]) == 0
    assert ", with plain, and the other end" in capsys.readouterr().out


def test_a_name_alone_is_nowhere_and_the_answer_says_so(
    policy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["links", "explain", "lab1.example.org", "lab2.example.org", "flux.heat"]
    answer = run(capsys, *words, "--policy", policy)
    assert answer["holds"] == "encrypted"
    assert answer["ways"] == []
    assert main([*words, "--policy", policy]) == 0
    assert "give lab2.example.org@ADDRESS" in capsys.readouterr().out


def test_inside_one_machine_there_is_shared_memory(capsys: pytest.CaptureFixture[str]) -> None:
    answer = run(capsys, "links", "explain", "host", "host", "flux.heat")
    assert answer["holds"] == "plain"
    assert [way["method"] for way in answer["ways"]] == ["shared memory", "unix socket"]
    assert {way["protection"] for way in answer["ways"]} == {"plain"}


SITE = """\
[subnet.lab]
names = ["lab*.example.org"]
gateways = [{ name = "gate.lab.example.org", address = "tcp://192.0.2.1:7700" }]

[subnet.cloud]
names = ["*.cloud.example.org"]
gateways = [{ name = "gate.cloud.example.org", address = "tcp://198.51.100.1:7700" }]

[node]
"lab2.example.org" = "tcp://10.0.0.2:7700"
"""


def test_the_gateways_on_the_way_are_named(
    policy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.toml"
    site.write_text(SITE)
    files = ["--policy", policy, "--site", str(site)]
    far = run(capsys, "links", "explain", LAB1, "gpu.cloud.example.org", "flux.heat", *files)
    assert [(way["method"], way["to"], way["protection"]) for way in far["ways"]] == [
        ("gateway", "192.0.2.1:7700", "encrypted"),
        ("gateway", "198.51.100.1:7700", "encrypted"),
    ]
    assert "through gate.lab.example.org" in far["ways"][0]["note"]
    near = run(capsys, "links", "explain", LAB1, LAB2, "flux.heat", *files)
    assert [(way["method"], way["to"]) for way in near["ways"]] == [
        ("tcp", "10.0.0.2"),
        ("tcp", "10.0.0.2"),
        ("tcp", "10.0.0.2:7700"),
        ("gateway", "192.0.2.1:7700"),
    ]
    site.write_text(SITE.replace("[subnet.cloud]", 'via = ["ssh", "login"]\n[subnet.cloud]'))
    assert [
        (way["method"], way["to"], way["protection"])
        for way in run(capsys, "links", "explain", "host9", LAB2, "flux.heat", *files)["ways"][2:]
    ] == [("command", "10.0.0.2:7700", "encrypted"), ("gateway", "192.0.2.1:7700", "encrypted")]
    site.write_text("[subnet.lab]\n")
    words = ["links", "explain", LAB1, LAB2, "flux.heat", "--site", str(site)]
    assert "line 1" in run(capsys, *words, code=1)["error"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["a b", LAB2, "flux"], "expected a NAME (ocean.example.org)"),
        (["host", LAB2, "flux"], "stays inside one machine"),
        ([LAB1, LAB2, 101 * "f"], "expected a name of 1 to 100 bytes"),
        ([LAB1, LAB2, "flux", "--policy", "/nonexistent"], "/nonexistent: no such file"),
    ],
)
def test_a_link_that_cannot_be_explained_is_an_error_that_says_why(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in run(capsys, "links", "explain", *words, code=1)["error"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        *(
            (ends, "addresses are of IPv4 or IPv6 and have no port")
            for node in (
                *("ocean.test@300.0.0.1", "ocean.test@127.0.0.1:700", "300.0.0.1"),
                *("ocean.test@ocean.example.org:7700", "[::1]:7700", "[::g]"),
            )
            for ends in ([node, LAB2, "flux"], [LAB1, node, "flux"])
        ),
        ([LAB1, LAB2, "a b"], "got 'a b' as the endpoint's name"),
        ([LAB1, LAB2, ""], "got '' as the endpoint's name"),
    ],
)
def test_ends_and_endpoints_that_nobody_can_have_are_wrong_usage(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in run(capsys, "links", "explain", *words, code=2)["error"]


@pytest.mark.parametrize("node", ["robot@ocean.org", "lab.a1", "v1", "/CN=ocean:7", "a@[::1]"])
def test_names_that_only_look_odd_are_explained(
    node: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "links", "explain", node, LAB2, "flux.heat")["holds"] == "encrypted"


def test_a_rule_about_endpoints_that_is_wrong_is_named_with_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY.replace("flux.*", "flux[0-9]"))
    error = run(capsys, "policy", "check", str(file), code=1)["error"]
    assert error.startswith(f"{file}, line 8: `endpoint`: pattern")


def test_the_guides_link_is_explained_as_it_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = (ROOT / "docs/policy.md").read_text(encoding="utf-8")
    section = guide.split("### Rules for links")[1].split("\n## ")[0]
    blocks = dict(re.findall(r"```(toml|text)\n(.*?)```", section, re.DOTALL))
    (command,) = re.findall(r"^    exoskel (links explain .*)$", section, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    Path("policy.toml").write_text(blocks["toml"])
    assert main(shlex.split(command)) == 0
    assert capsys.readouterr().out == blocks["text"]


def test_a_peer_gets_a_credential_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "pki"
    assert main(["pki", "init", str(directory)]) == 0
    assert "for programs with links: --role peer" in capsys.readouterr().out
    words = ["--directory", str(directory), "--role", "peer", "--name", "ocean.example.org"]
    issued = run(capsys, "pki", "issue", *words, "--output", str(tmp_path / "ocean.pem"))
    assert issued["role"] == "peer"
    (row,) = run(capsys, "pki", "list", "--directory", str(directory))["issued"]
    assert (row["role"], row["name"]) == ("peer", "ocean.example.org")
    # A credential of a peer is none of a worker.
    worker = ["worker", "--listen", "tcp://127.0.0.1:0", "--credential", issued["file"]]
    assert main([*worker, "--slots", "1"]) == 1
    said = capsys.readouterr().err
    assert "got the credential of a peer, expected a worker's" in said
