"""The commands about certificates and policies, from the outside."""

import json
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually

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


def test_a_renewed_credential_replaces_its_file(
    authority: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    issued = issue(capsys, authority, "lab1", "--days", "2")
    file = Path(issued["file"])
    before = file.read_text()
    file.chmod(0o400)
    link = tmp_path / "link.pem"
    link.symlink_to(file)
    place = ["--directory", str(authority)]
    renewed = run(capsys, "pki", "renew", *place, str(link))
    assert (renewed["file"], renewed["old_serial"]) == (str(file), issued["serial"])
    assert (renewed["role"], renewed["name"]) == ("worker", "lab1")
    assert renewed["new_serial"] != issued["serial"]
    assert renewed["new_not_after"] - renewed["old_not_after"] < 3600
    assert link.is_symlink()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key_of(file.read_text()) != key_of(before)
    assert [one.name for one in tmp_path.iterdir() if ".new" in one.name] == []
    longer = run(capsys, "pki", "renew", *place, str(file), "--days", "30")
    assert longer["new_not_after"] - renewed["new_not_after"] > 27 * 86_400
    run(capsys, "pki", "revoke", *place, "lab1")
    after = file.read_text()
    error = run(capsys, "pki", "renew", *place, str(file), code=1)["error"]
    assert error.startswith(f"{file}: serial number {longer['new_serial']} is revoked")
    assert file.read_text() == after


def test_an_expired_credential_is_renewed_for_long(
    authority: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = ["--directory", str(authority)]
    short = issue(capsys, authority, "lab1", "--days", "2")
    file = short["file"]
    late = time.time() + 3 * 86_400
    monkeypatch.setattr(time, "time", lambda: late)
    assert main(["pki", "renew", *place, file]) == 0
    said = capsys.readouterr().out
    assert f"serial {short['serial']}, expired on " in said
    assert "stays valid" not in said
    monkeypatch.undo()
    again = run(capsys, "pki", "renew", *place, file)
    assert again["old_not_after"] > time.time() + 89 * 86_400
    # Asked for, it is as short as asked.
    monkeypatch.setattr(time, "time", lambda: late + 100 * 86_400)
    brief = run(capsys, "pki", "renew", *place, file, "--days", "1")
    assert brief["new_not_after"] < again["old_not_after"]


@pytest.mark.parametrize(
    ("days", "said"), [("90", "90 days"), ("1", "1 day"), ("0.5", "12:00:00"), ("3e-5", "0:00:03")]
)
def test_how_long_a_credential_is_valid_is_said_in_words(
    days: str, said: str, authority: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["pki", "issue", "--directory", str(authority), "--role", "worker", "--name", "lab1"]
    assert main([*words, "--output", str(tmp_path / "lab1.pem"), "--days", days]) == 0
    assert f"valid {said}, serial" in capsys.readouterr().out


def key_of(pem: str) -> str:
    return pem.partition("PRIVATE KEY-----")[2].partition("-----END")[0]


def test_a_renewed_list_is_good_for_as_long_as_asked(
    authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ["--directory", str(authority)]
    begun = time.time()
    before = (authority / "revoked.crl").read_bytes()
    first = run(capsys, "pki", "renew", *place, "--list")
    assert first["list"] == str(authority / "revoked.crl")
    assert (authority / "revoked.crl").read_bytes() != before
    longer = run(capsys, "pki", "renew", *place, "--list", "--days", "200")
    assert 109 * 86_400 < longer["not_after"] - first["not_after"] < 111 * 86_400
    # Certificates count seconds: in the next one the authority itself is good for less than that.
    assert eventually(lambda: time.time() > begun + 1)
    assert (
        "days" in run(capsys, "pki", "renew", *place, "--list", "--days", "3650", code=1)["error"]
    )
    with pytest.raises(SystemExit):
        main(["pki", "renew", *place])
    assert "FILE" in capsys.readouterr().err


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
    for arguments in (
        ["issue", "--role", "worker", "--name", "x"],
        ["renew", "x.pem"],
        ["revoke", "x"],
        ["list"],
    ):
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
    assert "the policy of the other end may ask for more" in out


def test_policy_explain_names_the_worker_whose_results_are_meant(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In whichever order somebody asks, the rented machine is not said to run code here, and our own is not said to be harmless."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY.replace("[[rule]]", 'results = "pickle"\n\n[[rule]]', 1))
    ours, rented = "lab1.example.org@10.0.0.1", "cloud1.rented.net@192.0.2.7"
    lines = [
        f"  results of {ours}: read as pickles: where it is a worker, it can run code at its manager",
        f"  results of {rented}: read as data",
    ]
    for ends, expected in (((ours, rented), lines), ((rented, ours), lines[::-1])):
        assert main(["policy", "explain", *ends, "data", "--policy", str(policy)]) == 0
        assert capsys.readouterr().out.splitlines()[-2:] == expected
        verdict = run(capsys, "policy", "explain", *ends, "data", "--policy", str(policy))
        formats = {ours: "pickle", rented: "data"}
        assert verdict["results"] == formats[ends[1]]
        assert verdict["results_of_from"] == formats[ends[0]]


def test_policy_explain_with_both_policies_says_what_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The stricter one wins, whichever it is; the answer names the rule that asks for it."""
    lax, strict = tmp_path / "lax.toml", tmp_path / "strict.toml"
    lax.write_text(POLICY)
    strict.write_text(POLICY.replace('protection = "plain"', 'protection = "encrypted"'))
    ends = ["lab1.example.org@10.0.0.1", "lab2.example.org@10.0.0.2", "data"]
    for own, other in ((lax, strict), (strict, lax)):
        asked = ["policy", "explain", *ends, "--policy", str(own), "--other", str(other)]
        verdict = run(capsys, *asked)
        assert verdict["holds"] == "encrypted"
        assert {verdict["protection"], verdict["other"]["protection"]} == {"plain", "encrypted"}
    assert main(["policy", "explain", *ends, "--policy", str(lax), "--other", str(strict)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].endswith(": encrypted")
    assert f"the policy of the other end, {strict}, asks for encrypted by rule 1" in out


def test_policy_check_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    assert run(capsys, "policy", "check", str(policy))["valid"]
    policy.write_text(POLICY.replace("addresses", "adresses"))
    assert "line 2" in run(capsys, "policy", "check", str(policy), code=1)["error"]
    wire = ["policy", "explain", "host", "host", "data"]
    for option in ("--policy", "--other"):
        error = run(capsys, *wire, option, str(policy), code=1)["error"]
        assert error.startswith(f"{policy}, line 2: ")
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
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(f"exoskel {__version__}, Python ")
