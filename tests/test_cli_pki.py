"""The commands about certificates and policies, from the outside."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from exoskel.cli import main

POLICY = """\
[domain.lab]
addresses = ["10.0.0.0/8"]
names = ["lab*.example.org"]

[[rule]]
from = "lab"
to = "lab"
protection = "plain"
"""


def run(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


@pytest.fixture
def authority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """Make an authority."""
    directory = tmp_path / "pki"
    run(capsys, "pki", "init", str(directory))
    return directory


def issue(
    capsys: pytest.CaptureFixture[str], authority: Path, name: str, *more: str, code: int = 0
) -> dict[str, Any]:
    output = authority.parent / f"{name}.pem"
    place = ["--directory", str(authority), "--output", str(output)]
    return run(capsys, "pki", "issue", *place, "--role", "worker", "--name", name, *more, code=code)


def test_credentials_are_issued_listed_and_revoked(
    authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issued = issue(capsys, authority, "lab1.example.org", "--days", "2")
    file = Path(issued["file"])
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert file.read_bytes().count(b"BEGIN CERTIFICATE") >= 2
    second = issue(capsys, authority, "lab2.example.org")
    place = ["--directory", str(authority)]

    def states() -> dict[str, tuple[str, str, bool]]:
        rows = run(capsys, "pki", "list", *place)["issued"]
        return {row["serial"]: (row["role"], row["name"], row["revoked"]) for row in rows}

    assert states() == {
        issued["serial"]: ("worker", "lab1.example.org", False),
        second["serial"]: ("worker", "lab2.example.org", False),
    }
    assert run(capsys, "pki", "revoke", *place, "lab1.example.org")["revoked"] == [issued["serial"]]
    assert states()[issued["serial"]][2]
    assert not states()[second["serial"]][2]
    assert main(["pki", "list", *place]) == 0
    assert "revoked" in capsys.readouterr().out


def test_a_credential_is_not_overwritten_unasked(
    authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issue(capsys, authority, "lab1")
    assert "--force" in issue(capsys, authority, "lab1", code=1)["error"]
    issue(capsys, authority, "lab1", "--force")


def test_a_link_that_leads_nowhere_is_not_replaced_unasked(
    authority: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    link = tmp_path / "link.pem"
    link.symlink_to(tmp_path / "nowhere")
    words = ("pki", "issue", "--directory", authority, "--role", "worker", "--name", "lab1")
    answer = run(capsys, *map(str, words), "--output", str(link), code=1)
    assert "--force" in answer["error"]
    run(capsys, *map(str, words), "--output", str(link), "--force")
    assert not link.is_symlink()
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("above", [False, True], ids=["itself", "above"])
def test_an_authority_is_not_made_where_others_can_write(
    above: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    directory = shared / "deep" / "ca" if above else shared
    answer = run(capsys, "pki", "init", str(directory), code=1)
    assert f"others can replace files in {shared} (mode 777" in answer["error"]
    assert f'run "chmod go-w {shared}"' in answer["error"]
    assert list(shared.iterdir()) == []
    shared.chmod(0o755)
    run(capsys, "pki", "init", str(directory))
    (directory / "issued").chmod(0o777)
    words = ("pki", "issue", "--directory", str(directory), "--role", "worker", "--name", "lab1")
    answer = run(capsys, *words, code=1)
    assert "issued (mode 777" in answer["error"]


def test_an_authority_is_not_overwritten(
    authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(capsys, "pki", "init", str(authority), code=1)["error"]


def test_without_an_authority_the_command_to_make_one_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = str(tmp_path / "none")
    for arguments in (["issue", "--role", "worker", "--name", "x"], ["revoke", "x"], ["list"]):
        error = run(capsys, "pki", *arguments, "--directory", missing, code=1)["error"]
        assert f"exoskel pki init {missing}" in error


def test_what_was_never_issued_cannot_be_revoked(
    authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        "nobody"
        in run(capsys, "pki", "revoke", "--directory", str(authority), "nobody", code=1)["error"]
    )


def test_policy_explain_names_the_rule(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    ends = ["lab1.example.org@10.0.0.1", "lab2.example.org@10.0.0.2"]
    verdict = run(capsys, "policy", "explain", *ends, "data", "--policy", str(policy))
    assert verdict["protection"] == "plain"
    assert "rule 1" in verdict["rule"]
    assert run(capsys, "policy", "explain", *ends, "data")["protection"] == "encrypted"
    assert main(["policy", "explain", *ends, "code", "--policy", str(policy)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "code from lab1.example.org@10.0.0.1 to lab2.example.org@10.0.0.2: integrity\n"
    )
    assert "decided by: rule 1" in out


def test_policy_check_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    assert run(capsys, "policy", "check", str(policy))["valid"]
    policy.write_text(POLICY.replace("addresses", "adresses"))
    assert "line 2" in run(capsys, "policy", "check", str(policy), code=1)["error"]
    policy.write_bytes(b"\xff")
    assert "UTF-8" in run(capsys, "policy", "check", str(policy), code=1)["error"]


def test_policy_check_reads_the_lists_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('[deny]\nban_list = "banned.txt"\n')
    error = run(capsys, "policy", "check", str(policy), code=1)["error"]
    assert str(tmp_path / "banned.txt") in error
    (tmp_path / "banned.txt").write_text("/DC=org/DC=example/CN=Mallory\n")
    assert run(capsys, "policy", "check", str(policy))["valid"]
    (tmp_path / "banned.txt").write_text('"/DC=org/CN=Mallory Doe\n')
    assert "line 1" in run(capsys, "policy", "check", str(policy), code=1)["error"]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    from exoskel import __version__, _core

    assert run(capsys, "version")["exoskel"] == __version__ == _core.__version__
