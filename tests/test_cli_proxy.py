"""`exoskel proxy`, `whoami` and `trust check`: what users of a grid type."""

from __future__ import annotations

import io
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import pkcs12
from tests.certificates.grid import PRODUCTION, VO, Grid, Holder, write_private

from exoskel.cli import main

VECTORS = Path(__file__).parent.parent / "vectors" / "identity"
MANIFEST: dict[str, Any] = json.loads((VECTORS / "manifest.json").read_text(encoding="utf-8"))
KEYS = {"accepted", "reason", "subject", "identity", "type", "limited", "depth", "vo", "fqans"}


@pytest.fixture(autouse=True)
def no_credential_of_ours(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever runs the tests may have a proxy, and a trust directory."""
    for variable in ("X509_USER_CERT", "X509_USER_KEY", "X509_CERT_DIR", "X509_VOMS_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("X509_USER_PROXY", str(tmp_path / "no-proxy"))


Run = Any


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command; say its exit code and its JSON."""

    def run(*words: object) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main([str(word) for word in words] + ["--json"])
        return code, json.loads(capsys.readouterr().out)

    return run


# --- info --------------------------------------------------------------------------------------------


def options(case: dict[str, Any]) -> list[str]:
    """The settings of a case on the command line."""
    words = []
    for key, value in case["settings"].items():
        option = "--" + key.replace("_", "-")
        if value is True:
            words.append(option)
        elif isinstance(value, list):
            words += [word for one in value for word in (option.removesuffix("s"), one)]
        else:
            words += [option, str(value)]
    return words


@pytest.mark.parametrize("case", MANIFEST["cases"], ids=lambda case: case["name"])
def test_the_command_judges_as_the_vectors_say(case: dict[str, Any], run: Run) -> None:
    directories = [
        "--trust-anchors",
        VECTORS / case["trust"],
        "--vomsdir",
        VECTORS / case["vomsdir"],
    ]
    place = [VECTORS / case["chain"], *directories, "--at", MANIFEST["time"]]
    code, verdict = run("proxy", "info", *place, *options(case))
    expect = case["expect"]
    assert verdict["accepted"] == expect["accepted"], verdict["reason"]
    assert code == (0 if expect["accepted"] else 1)
    assert set(verdict) >= {*KEYS, "expires"}
    if not expect["accepted"]:
        assert verdict["reason"]
        assert (verdict["identity"], verdict["vo"], verdict["fqans"]) == (None, None, [])
        return
    assert verdict["reason"] is None
    for key in {*KEYS, "expires", "independent"} & set(expect):
        assert verdict[key] == expect[key], key
    assert len(verdict["attribute_faults"]) == expect["attribute_faults"]


def test_the_text_shows_what_grid_users_look_for(
    grid: Grid, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    alice = grid.user()
    proxy = grid.proxy(alice, PRODUCTION, f"/{VO}").write(tmp_path / "proxy")
    assert main(["proxy", "info", str(proxy), *grid.trust]) == 0
    said = capsys.readouterr().out
    assert f"identity  : {alice.dn}\n" in said
    assert "type      : RFC 3820 compliant proxy\n" in said
    assert "timeleft  : 11:59:" in said or "timeleft  : 12:00:" in said
    assert f"VO        : {VO}\n" in said
    assert said.index(f"attribute : {PRODUCTION}\n") < said.index(f"attribute : /{VO}\n")
    assert f"accepted  : yes, by {grid.anchors}\n" in said
    grid.revoke(alice)
    assert main(["proxy", "info", str(proxy), *grid.trust]) == 1
    said = capsys.readouterr().out
    assert f"accepted  : no, by {grid.anchors}\n" in said
    assert "is revoked" in said


POLICY = """[[allow.rule]]
action = "submit"
fqan = "/testvo/Role=production"

[[allow.rule]]
action = "read"
dn = "*"

[deny]
ban_list = "banned.txt"

[accounts]
map = [{ dn = "/DC=org/DC=example/*", account = "guest" }]
"""


def test_the_policy_explains_what_somebody_may_do(
    tmp_path: Path, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY)
    banned = tmp_path / "banned.txt"
    banned.write_text("# nobody\n")
    cases = {case["name"]: case for case in MANIFEST["cases"]}

    def words(name: str, action: str) -> list[object]:
        case = cases[name]
        directories = ["--trust-anchors", VECTORS / case["trust"]]
        directories += ["--vomsdir", VECTORS / case["vomsdir"], "--at", MANIFEST["time"]]
        asked = ["--identity", VECTORS / case["chain"], "--action", action, "--policy", policy]
        return ["policy", "explain", *asked, *directories]

    code, answer = run(*words("voms", "submit"))
    assert (code, answer["allowed"], answer["rule"]) == (0, True, "line 1 of the policy")
    assert answer["identity"] == cases["voms"]["expect"]["identity"]
    assert answer["account"] == "guest"
    code, answer = run(*words("voms_none", "submit"))
    assert (code, answer["allowed"], answer["rule"]) == (1, False, None)
    assert answer["reason"].endswith('asks for fqan "/testvo/Role=production"')
    assert main([str(word) for word in words("voms_none", "submit")]) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0] == f"submit by {answer['identity']}: denied"
    assert said[1] == "  decided by: no rule, and what nothing allows is denied"
    assert said[3] == "  local account: guest"
    assert "as people and hosts of a grid are, unless [sandbox] free names them: reads" in said[4]

    assert run(*words("independent_below_attributes", "read"))[1]["allowed"] is False
    banned.write_text(f'"{answer["identity"]}"\n')
    code, answer = run(*words("voms", "submit"))
    assert (code, answer["rule"]) == (1, "line 1 of the ban list")
    # Nobody is allowed anything by a chain that is not good.
    code, answer = run(*words("voms_of_a_revoked_user", "read"))
    assert code == 1
    assert "is revoked" in answer["error"]
    code, answer = run("policy", "explain", "host", "host", "data", "--action", "read")
    assert code == 1
    assert (
        "expected either FROM, TO and CLASS (with --other if there are two policies), or all of"
        in answer["error"]
    )


def test_where_nobody_is_trusted_the_verdict_says_so(
    grid: Grid, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = grid.proxy(grid.user()).write(tmp_path / "proxy")
    monkeypatch.setenv("X509_CERT_DIR", str(tmp_path / "nowhere"))
    code, verdict = run("proxy", "info", proxy)
    assert code == 1
    assert not verdict["accepted"]
    assert "nowhere" in verdict["reason"]
    assert verdict["type"] == "rfc3820"
    # A directory that was asked for is another thing.
    code, answer = run("proxy", "info", proxy, "--trust-anchors", tmp_path / "nowhere")
    assert code == 1
    assert "nowhere" in answer["error"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"no PEM",
        b"-----BEGIN CERTIFICATE-----\nMIIB",
        b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0LXRleHQ=\n-----END PRIVATE KEY-----\n",
        b"-----BEGIN PRIVATE KEY-----\nsecret-text!!\n",
        b"\0" * 4096,
    ],
)
def test_what_is_no_credential_is_refused_without_its_text(
    content: bytes, tmp_path: Path, run: Run
) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    code, verdict = run("proxy", "info", file)
    assert (code, verdict["accepted"], verdict["subject"], verdict["type"]) == (
        1,
        False,
        None,
        None,
    )
    assert "PEM" in verdict["reason"] or "no block CERTIFICATE" in verdict["reason"]
    assert "secret" not in json.dumps(verdict)


def test_names_of_strangers_drive_no_terminal(
    grid: Grid, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hostile = grid.user("Eve\n\x1b[2Jaccepted  : yes\u202e")
    assert main(["proxy", "info", str(hostile.write(tmp_path / "eve")), *grid.trust]) in (0, 1)
    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\u202e" not in said
    assert "\naccepted  : yes\n" not in said


# --- init --------------------------------------------------------------------------------------------


@pytest.fixture
def alice(grid: Grid) -> Holder:
    """A user."""
    return grid.user()


def write_own(alice: Holder, place: Path, phrase: bytes | None = None) -> list[str]:
    """Write certificate and key into two files; return the options that name them."""
    place.mkdir(exist_ok=True)
    (place / "usercert.pem").write_bytes(alice.certificates())
    write_private(place / "userkey.pem", alice.private_key(phrase))
    return ["--certificate", str(place / "usercert.pem"), "--key", str(place / "userkey.pem")]


@pytest.mark.parametrize("key_type", ["p256", "rsa2048"])
@pytest.mark.parametrize("wishes", [(), ("--limited",), ("--path-length", "2", "--hours", "1")])
def test_what_is_made_is_accepted(
    key_type: str, wishes: tuple[str, ...], alice: Holder, grid: Grid, tmp_path: Path, run: Run
) -> None:
    own = write_own(alice, tmp_path / "own")
    out = tmp_path / "proxy"
    code, _ = run("proxy", "init", *own, "--out", out, "--key-type", key_type, *wishes)
    assert code == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    code, verdict = run("proxy", "info", out, *grid.trust)
    assert code == 0, verdict["reason"]
    assert verdict["identity"] == alice.dn
    assert verdict["limited"] == ("--limited" in wishes)
    assert (verdict["type"], verdict["depth"]) == ("rfc3820", 1)
    proxy, entity = x509.load_pem_x509_certificates(out.read_bytes())
    assert proxy.issuer.public_bytes() == entity.subject.public_bytes()
    assert entity.subject.rdns == proxy.subject.rdns[:-1]
    critical = {one.oid.dotted_string for one in proxy.extensions if one.critical}
    assert critical == {"2.5.29.15", "1.3.6.1.5.5.7.1.14"}
    left = proxy.not_valid_after_utc - grid.now
    assert abs(left.total_seconds() - (3600 if "--hours" in wishes else 43_200)) < 120


def test_a_second_reader_accepts_what_is_made(
    alice: Holder, grid: Grid, tmp_path: Path, run: Run
) -> None:
    own = write_own(alice, tmp_path / "own")
    first, second = tmp_path / "first", tmp_path / "second"
    assert run("proxy", "init", *own, "--out", first)[0] == 0
    assert run("proxy", "init", "--certificate", first, "--out", second, "--limited")[0] == 0
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    place = [
        "-CAfile",
        str(grid.anchors / "0e50e150.0"),
        "-CRLfile",
        str(grid.anchors / "0e50e150.r0"),
    ]
    checks = ["verify", "-allow_proxy_certs", "-crl_check_all", *place]
    for proxy in (first, second):
        done = subprocess.run(
            [openssl, *checks, "-untrusted", str(proxy), str(proxy)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr


def test_the_grid_s_own_tools_read_what_is_made(
    alice: Holder, grid: Grid, tmp_path: Path, run: Run
) -> None:
    tool = shutil.which("voms-proxy-info")
    if tool is None:
        pytest.skip("voms-proxy-info (Debian's voms-clients) is not installed")
    out = tmp_path / "proxy"
    own = write_own(alice, tmp_path / "own")
    assert run("proxy", "init", *own, "--out", out, "--key-type", "rsa2048")[0] == 0
    environment = {
        **os.environ,
        "X509_CERT_DIR": str(grid.anchors),
        "X509_VOMS_DIR": str(grid.vomsdir),
    }
    done = subprocess.run(
        [tool, "-all", "-file", str(out)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    assert f"identity  : {alice.dn}\n" in done.stdout
    assert "type      : RFC compliant proxy\n" in done.stdout


def test_a_proxy_of_a_proxy_never_gets_more_than_its_issuer_has(
    alice: Holder, grid: Grid, tmp_path: Path, run: Run
) -> None:
    short = grid.user("Short", hours=3)
    out = [tmp_path / f"proxy{number}" for number in range(4)]
    own = write_own(short, tmp_path / "own")
    limits = ["--limited", "--path-length", "1", "--hours", "100"]
    assert run("proxy", "init", *own, "--out", out[0], *limits)[0] == 0
    assert run("proxy", "init", "--certificate", out[0], "--out", out[1], "--hours", "100")[0] == 0
    code, verdict = run("proxy", "info", out[1], *grid.trust)
    assert code == 0, verdict["reason"]
    assert verdict["limited"]
    assert verdict["expires"] == int(short.certificate.not_valid_after_utc.timestamp())
    code, answer = run("proxy", "init", "--certificate", out[1], "--out", out[2])
    assert code == 1
    assert "allows 1 proxies below it" in answer["error"]
    assert not out[2].exists()


@pytest.mark.parametrize("form", ["pem", "traditional", "p12"])
def test_locked_keys_open_with_their_phrase_only(
    form: str,
    alice: Holder,
    grid: Grid,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phrase = b"open sesame"
    own = write_own(alice, tmp_path / "own", phrase)
    if form == "traditional":
        kind = serialization.PrivateFormat.TraditionalOpenSSL
        lock = serialization.BestAvailableEncryption(phrase)
        text = alice.key.private_bytes(serialization.Encoding.PEM, kind, lock)
        write_private(tmp_path / "own" / "userkey.pem", text)
    elif form == "p12":
        lock = serialization.BestAvailableEncryption(phrase)
        store = pkcs12.serialize_key_and_certificates(
            b"alice", alice.key, alice.certificate, [grid.certificate], lock
        )
        own = ["--certificate", str(write_private(tmp_path / "own" / "alice.p12", store))]
    out = tmp_path / "proxy"
    monkeypatch.setattr(sys, "stdin", io.StringIO("something else\n"))
    code, answer = run("proxy", "init", *own, "--out", out, "--pass-phrase-stdin")
    assert code == 1
    assert "pass phrase was wrong" in answer["error"]
    assert "something else" not in answer["error"]
    assert not out.exists()
    monkeypatch.setattr(sys, "stdin", io.StringIO("open sesame\n"))
    assert run("proxy", "init", *own, "--out", out, "--pass-phrase-stdin")[0] == 0
    assert run("proxy", "info", out, *grid.trust)[0] == 0


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_key_that_others_can_read_is_refused(
    mode: int, alice: Holder, tmp_path: Path, run: Run
) -> None:
    own = write_own(alice, tmp_path / "own")
    (tmp_path / "own" / "userkey.pem").chmod(mode)
    code, answer = run("proxy", "init", *own, "--out", tmp_path / "proxy")
    assert code == 1
    assert f"mode {mode:04o}" in answer["error"]
    assert not (tmp_path / "proxy").exists()


@pytest.mark.parametrize("mode", [0o600, 0o644])
def test_a_forgotten_key_is_called_that(mode: int, alice: Holder, tmp_path: Path, run: Run) -> None:
    """The mode of a certificate is no reason to get a new key."""
    certificate = tmp_path / "usercert.pem"
    certificate.write_bytes(alice.certificates())
    certificate.chmod(mode)
    code, answer = run("proxy", "init", "--certificate", certificate, "--out", tmp_path / "proxy")
    assert code == 1
    assert "without its private key" in answer["error"]
    certificate.write_bytes(b"")
    code, answer = run("proxy", "init", "--certificate", certificate, "--out", tmp_path / "proxy")
    assert code == 1
    assert "is empty" in answer["error"]


def test_errors_of_files_name_what_was_asked_for(alice: Holder, tmp_path: Path, run: Run) -> None:
    own = write_own(alice, tmp_path / "own")
    nowhere, folder = tmp_path / "nowhere" / "proxy", tmp_path / "folder"
    folder.mkdir()
    for out, expected in ((nowhere, "no such file or directory"), (folder, "is a directory")):
        code, answer = run("proxy", "init", *own, "--out", out)
        assert (code, answer["error"]) == (1, f"{out}: {expected}")
    assert not [one for one in tmp_path.iterdir() if one.name.endswith(".new")]
    code, answer = run("proxy", "init", "--certificate", folder)
    assert (code, answer["error"]) == (1, f"{folder} is no regular file")


@pytest.mark.parametrize("hours", ["abc", "", "0", "-1", "nan", "1e9"])
def test_hours_that_are_none_are_wrong_usage(
    hours: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["proxy", "init", "--hours", hours])
    assert left.value.code == 2
    assert f"got {hours}, expected more than 0 and at most 8784 hours" in capsys.readouterr().err


def test_the_proxy_replaces_a_link_and_not_what_it_leads_to(
    alice: Holder, tmp_path: Path, run: Run
) -> None:
    own = write_own(alice, tmp_path / "own")
    victim = tmp_path / "victim"
    victim.write_text("unharmed")
    victim.chmod(0o666)
    out = tmp_path / "proxy"
    out.symlink_to(victim)
    assert run("proxy", "init", *own, "--out", out)[0] == 0
    assert victim.read_text() == "unharmed"
    assert not out.is_symlink()
    assert stat.S_IMODE(out.stat().st_mode) == 0o600
    assert sorted(tmp_path.glob(".*")) == []


def test_what_must_not_sign_proxies_does_not(
    grid: Grid, alice: Holder, tmp_path: Path, run: Run
) -> None:
    authority = write_own(Holder((grid.certificate,), grid.key), tmp_path / "authority")
    expired = write_own(grid.user("Late", hours=-1), tmp_path / "late")
    own = write_own(alice, tmp_path / "own")
    foreign = [*own[:3], write_own(grid.user("Bob"), tmp_path / "bob")[3]]
    for files, expected in [
        (authority, "authority"),
        (expired, "expired on"),
        (foreign, "is not that of"),
        ([*own, "--path-length", "128"], "path length"),
    ]:
        code, answer = run("proxy", "init", *files, "--out", tmp_path / "proxy")
        assert code == 1
        assert expected in answer["error"]
    assert not (tmp_path / "proxy").exists()


def test_defaults_are_those_of_the_grid(
    alice: Holder, grid: Grid, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_own(alice, tmp_path / ".globus")
    monkeypatch.setenv("X509_USER_PROXY", str(tmp_path / "mine"))
    monkeypatch.setenv("X509_CERT_DIR", str(grid.anchors))
    monkeypatch.setenv("X509_VOMS_DIR", str(grid.vomsdir))
    assert run("proxy", "init")[0] == 0
    code, verdict = run("proxy", "info")
    assert code == 0
    assert verdict["file"] == str(tmp_path / "mine")
    code, found = run("trust", "check")
    assert code == 0, found


# --- delegation --------------------------------------------------------------------------------------


@pytest.mark.parametrize("key_type", ["p256", "rsa2048"])
def test_delegation_sends_no_key(
    key_type: str,
    alice: Holder,
    grid: Grid,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = grid.proxy(alice, PRODUCTION).write(tmp_path / "mine")
    key, request, chain, theirs = (
        tmp_path / word for word in ("key", "request", "chain", "theirs")
    )
    assert run("proxy", "request", "--key", key, "--out", request, "--key-type", key_type)[0] == 0
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    monkeypatch.setenv("X509_USER_PROXY", str(mine))
    assert run("proxy", "sign", request, "--out", chain, "--hours", "1")[0] == 0
    assert run("proxy", "store", chain, "--key", key, "--out", theirs)[0] == 0
    for public in (request, chain):
        assert b"PRIVATE" not in public.read_bytes()
    code, verdict = run("proxy", "info", theirs, *grid.trust)
    assert code == 0, verdict["reason"]
    assert (verdict["identity"], verdict["depth"]) == (alice.dn, 2)
    # The attributes of the proxy above go with it.
    assert verdict["fqans"] == [PRODUCTION]
    # Somebody else's key doesn't fit.
    other = tmp_path / "other-key"
    assert run("proxy", "request", "--key", other, "--out", request)[0] == 0
    code, answer = run("proxy", "store", chain, "--key", other, "--out", tmp_path / "other")
    assert code == 1
    assert "another key" in answer["error"]
    # Nor does a request.
    code, answer = run("proxy", "store", request, "--key", other, "--out", tmp_path / "other")
    assert code == 1
    assert "holds no certificate that can be read" in answer["error"]
    assert "http" not in answer["error"]


def test_what_is_no_secret_follows_no_link_either(
    alice: Holder, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = write_own(alice, tmp_path / "own")
    victim = tmp_path / "victim"
    victim.write_text("unharmed")
    request, chain = tmp_path / "request", tmp_path / "chain"
    for out in (request, chain):
        out.symlink_to(victim)
    assert run("proxy", "request", "--key", tmp_path / "key", "--out", request)[0] == 0
    assert run("proxy", "sign", request, *mine, "--out", chain)[0] == 0
    assert victim.read_text() == "unharmed"
    for out in (request, chain):
        assert not out.is_symlink()
        assert stat.S_IMODE(out.stat().st_mode) == 0o644


def test_a_secret_is_not_written_where_others_can_replace_it(
    alice: Holder, tmp_path: Path, run: Run
) -> None:
    own = write_own(alice, tmp_path / "own")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    code, answer = run("proxy", "init", *own, "--out", shared / "proxy")
    assert code == 1
    assert f"others can replace files in {shared} (mode 777" in answer["error"]
    assert f'run "chmod go-w {shared}"' in answer["error"]
    code, answer = run("proxy", "request", "--key", shared / "key", "--out", tmp_path / "request")
    assert code == 1
    assert list(shared.iterdir()) == []
    # As /tmp is.
    shared.chmod(0o1777)
    assert run("proxy", "init", *own, "--out", shared / "proxy")[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of other accounts")
def test_what_somebody_else_planted_is_left_alone(alice: Holder, tmp_path: Path, run: Run) -> None:
    own = write_own(alice, tmp_path / "own")
    victim, out = tmp_path / "victim", tmp_path / "proxy"
    victim.write_text("unharmed")
    for plant in (lambda: out.symlink_to(victim), lambda: out.write_text("theirs")):
        plant()
        os.chown(out, 54321, -1, follow_symlinks=False)
        code, answer = run("proxy", "init", *own, "--out", out)
        assert code == 1
        assert f"{out} belongs to account 54321" in answer["error"]
        assert victim.read_text() == "unharmed"
        out.unlink()


def test_a_request_ends_no_key_that_is_there(alice: Holder, tmp_path: Path, run: Run) -> None:
    write_own(alice, tmp_path / "own")
    own, request = tmp_path / "own" / "userkey.pem", tmp_path / "request"
    before = own.read_bytes()
    code, answer = run("proxy", "request", "--key", own, "--out", request)
    assert code == 1
    assert "is there already" in answer["error"]
    assert own.read_bytes() == before
    assert not request.exists()


def test_requests_that_prove_nothing_are_not_signed(
    alice: Holder, grid: Grid, tmp_path: Path, run: Run
) -> None:
    own = write_own(alice, tmp_path / "own")
    request, key = tmp_path / "request", tmp_path / "key"
    assert run("proxy", "request", "--key", key, "--out", request)[0] == 0
    der = bytearray(
        x509.load_pem_x509_csr(request.read_bytes()).public_bytes(serialization.Encoding.DER)
    )
    der[-1] ^= 1
    forged = x509.load_der_x509_csr(bytes(der)).public_bytes(serialization.Encoding.PEM)
    weak_key = rsa.generate_private_key(65537, 1024)
    weak = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    from cryptography.hazmat.primitives import hashes

    texts = {
        "not signed with its own key": forged,
        "weak": weak.sign(weak_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM),
        "no certificate request": b"hello",
    }
    for expected, text in texts.items():
        request.write_bytes(text)
        code, answer = run("proxy", "sign", request, *own, "--out", tmp_path / "chain")
        assert code == 1
        assert expected in answer["error"]
    assert not (tmp_path / "chain").exists()


# --- whoami ------------------------------------------------------------------------------------------


def test_whoami_finds_the_credential_in_the_order_of_the_grid(
    alice: Holder, grid: Grid, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("X509_USER_PROXY")
    monkeypatch.setattr(os, "getuid", lambda: 987_654_321)
    for _ in range(2):
        code, answer = run("whoami", *grid.trust)
        assert code == 1
        assert "there is no credential" in answer["error"]
        # Set to nothing is not set.
        monkeypatch.setenv("X509_USER_PROXY", "")
    write_own(alice, tmp_path / ".globus")
    code, found = run("whoami", *grid.trust)
    assert (code, found["identity"], found["type"]) == (0, alice.dn, "end-entity")
    bob = grid.user("Bob")
    write_own(bob, tmp_path / "bob")
    monkeypatch.setenv("X509_USER_CERT", str(tmp_path / "bob" / "usercert.pem"))
    code, answer = run("whoami", *grid.trust)
    assert code == 1
    assert "X509_USER_KEY is not set" in answer["error"]
    monkeypatch.setenv("X509_USER_KEY", str(tmp_path / "bob" / "userkey.pem"))
    assert run("whoami", *grid.trust)[1]["identity"] == bob.dn
    carol = grid.user("Carol")
    monkeypatch.setenv(
        "X509_USER_PROXY", str(grid.proxy(carol, PRODUCTION).write(tmp_path / "carol"))
    )
    code, found = run("whoami", *grid.trust)
    assert (code, found["identity"], found["fqans"]) == (0, carol.dn, [PRODUCTION])
    assert (found["role"], found["name"]) == ("manager", carol.dn)


def test_whoami_shows_the_time_left(
    alice: Holder,
    grid: Grid,
    tmp_path: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    proxy = grid.proxy(alice).write(tmp_path / "proxy")
    monkeypatch.setenv("X509_USER_PROXY", str(proxy))
    (end,) = {min(one["not_after"] for one in run("whoami", *grid.trust)[1]["certificates"])}
    assert run("whoami", *grid.trust, "--at", end - 3600)[1]["seconds_left"] == 3600
    capsys.readouterr()
    assert main(["whoami", *grid.trust, "--at", str(end - 3600)]) == 0
    assert "timeleft  : 1:00:00, until 20" in capsys.readouterr().out
    code, found = run("whoami", *grid.trust, "--at", end + 60)
    assert (code, found["seconds_left"]) == (1, -60)
    capsys.readouterr()
    assert main(["whoami", *grid.trust, "--at", str(end + 60)]) == 1
    assert "timeleft  : 0:00:00, until 20" in capsys.readouterr().out


def test_a_limited_proxy_is_told_that_links_refuse_it(
    alice: Holder,
    grid: Grid,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    own = write_own(alice, tmp_path / "own")
    proxy = tmp_path / "proxy"
    assert main(["proxy", "init", *own, "--limited", "--out", str(proxy)]) == 0
    monkeypatch.setenv("X509_USER_PROXY", str(proxy))
    for command in (["whoami"], ["proxy", "info"]):
        capsys.readouterr()
        assert main([*command, *grid.trust]) == 0
        said = capsys.readouterr().out
        assert "; as a manager refused, as a limited proxy starts no jobs" in said
        assert f"manager {alice.dn}" not in said


def test_whoami_says_what_is_wrong_with_the_file(
    alice: Holder, grid: Grid, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = grid.proxy(alice).write(tmp_path / "proxy")
    monkeypatch.setenv("X509_USER_PROXY", str(proxy))
    proxy.chmod(0o644)
    code, found = run("whoami", *grid.trust)
    assert (code, found["accepted"], found["usable"]) == (1, True, False)
    assert "0644" in found["unusable_because"]
    monkeypatch.setenv("X509_USER_PROXY", str(tmp_path / "gone"))
    code, answer = run("whoami", *grid.trust)
    assert code == 1
    assert "gone" in answer["error"]


# --- trust check -------------------------------------------------------------------------------------


def test_trust_check_says_what_would_be_refused(grid: Grid, run: Run, tmp_path: Path) -> None:
    place = [grid.anchors, "--vomsdir", grid.vomsdir]
    code, found = run("trust", "check", *place)
    assert (code, found["sound"], found["voms_files"]) == (0, True, 1)
    (authority,) = found["authorities"]
    assert authority["refused_because"] == []
    assert 3600 <= authority["revocation_list"]["age_seconds"] < 3900
    assert authority["signing_policy"]
    # Eight days later nobody has run fetch-crl.
    later = int(grid.now.timestamp()) + 8 * 86_400
    code, found = run("trust", "check", *place, "--at", later)
    assert code == 1
    (why,) = found["authorities"][0]["refused_because"]
    assert why.startswith("its revocation list 0e50e150.r0 is stale since")
    assert found["stale_lists"] == [f"/DC=test/DC=exoskel/CN=Test CA: {why}"]
    (grid.anchors / "0e50e150.r0").unlink()
    code, found = run("trust", "check", *place)
    assert code == 1
    assert "no revocation list" in found["authorities"][0]["refused_because"][0]
    assert run("trust", "check", *place, "--revocation", "where-listed")[0] == 0
    (grid.anchors / "11111111.0").write_text("half a certi")
    code, found = run("trust", "check", *place, "--revocation", "where-listed")
    assert code == 1
    assert [bad["name"] for bad in found["bad_files"]] == ["11111111.0"]
    code, answer = run("trust", "check", tmp_path / "nowhere")
    assert code == 1
    assert "nowhere" in answer["error"]


def test_trust_check_reads_well(grid: Grid, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trust", "check", str(grid.anchors), "--vomsdir", str(grid.vomsdir)]) == 0
    said = capsys.readouterr().out
    assert "ok      /DC=test/DC=exoskel/CN=Test CA\n" in said
    assert "revocation list 0e50e150.r0 1:0" in said
    assert "due in 7 days 0:00:0" in said or "due in 6 days 23:59:" in said
    assert said.endswith("1 authorities, 0 of them refused; 0 bad files; 1 files of VOMS servers\n")
