"""What a site's administrator is told: by ``exoskel front --check`` before something is in force, by a running front's log afterwards."""

from __future__ import annotations

import json
import signal
import ssl
import urllib.request
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from tests.certificates.grid import PRODUCTION, VO, Grid
from tests.front import Front
from tests.processes import eventually
from tests.site import free_address
from tests.whole_files import replace

from exoskel.asgi import require
from exoskel.cli import main
from exoskel.identity import Peer

CONNECT = '[[allow.rule]]\naction = "connect"\ndn = "/DC=test/DC=exoskel/*"\n'
LIST = "0e50e150.r0"

APPLICATION = """
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request

from exoskel.asgi import GridIdentity, Peer, Required, identity_of, require

app = FastAPI()
app.add_middleware(GridIdentity, secret="secret")


@app.get("/health")
def health(request: Request) -> Any:
    return {"who": identity_of(request.scope)}


@app.get("/health/mine")
def mine(who: Annotated[Peer, Depends(require("connect"))]) -> Any:
    return {"who": who.dn}


@app.get("/organisation")
def organisation(who: Annotated[Peer, Depends(require(vo="elsewhere"))]) -> Any:
    return {}


@app.get("/attribute")
def attribute(who: Annotated[Peer, Depends(require(fqan="/elsewhere/Role=*"))]) -> Any:
    return {}


@app.get("/person")
def person(who: Annotated[Peer, Depends(require(dn='/CN=Somebody "Else"'))]) -> Any:
    return {}


@app.get("/full")
def full(who: Annotated[Peer, Depends(require(limited=False))]) -> Any:
    return {}


@app.get("/other")
def other(who: Annotated[Peer, Depends(require("other"))]) -> Any:
    return {}


async def nothing(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 204, "headers": []})
    await send({"type": "http.response.body"})


app.mount("/plain", Required(nothing, "submit"))
"""


class Checked:
    """What ``--check`` says of a configuration with these tables and this policy."""

    def __init__(self, front: Front, capsys: pytest.CaptureFixture[str]) -> None:
        self.front = front
        self.capsys = capsys
        self.policy = front.place / "policy.toml"
        self.file = front.place / "front.toml"

    def words(self, policy: str = CONNECT, more: str = "") -> list[str]:
        """Write both files; the words for them."""
        self.policy.write_text(policy)
        upstream = f'[upstream]\naddress = "unix:{self.front.place / "app.sock"}"'
        self.file.write_text(
            f'listen = "127.0.0.1:0"\npolicy = "policy.toml"\n{upstream}\n{more}\n'
        )
        return self.front.words("--configuration", str(self.file))

    def _run(self, words: list[str]) -> tuple[int, Any]:
        self.capsys.readouterr()
        code = main(["front", "--check", "--json", *words])
        return code, json.loads(self.capsys.readouterr().out)

    def fault(self, policy: str = CONNECT, more: str = "") -> str:
        """Why the configuration can't be used."""
        code, said = self._run(self.words(policy, more))
        assert code == 1, said
        return str(said["error"])

    def notes(self, policy: str = CONNECT, more: str = "") -> list[str]:
        """What is said of one that can be used."""
        code, said = self._run(self.words(policy, more))
        assert code == 0, said
        return [str(note) for note in said["notes"]]


@pytest.fixture
def checked(front: Front, capsys: pytest.CaptureFixture[str]) -> Checked:
    """A configuration that is checked."""
    return Checked(front, capsys)


def stale(grid: Grid) -> bytes:
    """A list whose time is over."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(grid.subject)
        .last_update(grid.now - timedelta(days=9))
        .next_update(grid.now - timedelta(days=2))
        .add_extension(x509.CRLNumber(9), critical=False)
    )
    return builder.sign(grid.key, hashes.SHA256()).public_bytes(Encoding.PEM)


# --- before it is in force ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (CONNECT.replace("connect", "conect"), '"connect": no [[allow.rule]] of the policy is about it (line 1 is about "conect": is the same meant?)'),
        (CONNECT.replace("connect", "read"), 'expected one with action = "connect", or "any"'),
        ("[deny]\n", 'expected one with action = "connect", or "any"'),
        (CONNECT + '[[deny.rule]]\naction = "any"\ndn = "*"\n', "[[deny.rule]] at line 4 of the policy denies it to everybody"),
    ],
)  # fmt: skip
def test_a_policy_by_which_nobody_could_come_in_is_an_error(
    checked: Checked, policy: str, expected: str
) -> None:
    fault = checked.fault(policy)
    assert fault.startswith(str(checked.policy))
    assert expected in fault
    # The start says the same.
    assert main(["front", "--json", *checked.words(policy)]) == 1
    assert json.loads(checked.capsys.readouterr().out)["error"] == fault


def test_a_denied_action_that_a_path_needs_is_an_error(checked: Checked) -> None:
    policy = CONNECT.replace('"connect"', '["connect", "write"]')
    path = '[[path]]\nprefix = "/"\naction = "write"\n'
    assert checked.notes(policy, path) == []
    denied = policy + '[[deny.rule]]\naction = "write"\ndn = "*"\n'
    fault = checked.fault(denied, path)
    assert f"{checked.file}: line 5: " in fault
    assert "line 4 of the policy denies it to everybody" in fault


def test_what_can_hardly_be_meant_is_noted_with_its_line(checked: Checked) -> None:
    assert checked.notes() == []
    [method] = checked.notes(CONNECT, '[[path]]\nprefix = "/"\nmethods = ["GET", "PSOT"]\n')
    assert method == (
        f'{checked.file}, line 5: the method "PSOT" is none of HTTP\'s: is "POST" meant?'
    )
    for rule, expected in [
        ('vo = "tesvo"', 'no file of the virtual organisation "tesvo"'),
        ('fqan = "/tesvo/Role=production"', 'no file of the virtual organisation "tesvo"'),
        ('dn = "/DC=test/DC=exoskle/*"', "no trusted authority may sign"),
        ('dn = "/DC=other/CN=Alice"', "no trusted authority may sign"),
    ]:
        [note] = checked.notes(f'{CONNECT}[[allow.rule]]\naction = "read"\n{rule}\n')
        assert note.startswith(f"{checked.policy}, line 4: ")
        assert expected in note
    [slip] = checked.notes(CONNECT + CONNECT.replace("connect", "connct"))
    assert slip.startswith(f"{checked.policy}, line 4: ")
    assert 'is "connect" meant?' in slip
    # An action of the application's own, and names and attributes that there can be.
    good = '[[allow.rule]]\naction = "other"\ndn = ["*", "/DC=test/*", "/dc=test/dc=exoskel/o=People/cn=*"]\n'
    assert checked.notes(f'{CONNECT}{good}vo = "{VO}"\nfqan = "{PRODUCTION}"\n') == []
    (checked.front.grid.vomsdir / VO / "voms.exoskel.test.lsc").unlink()
    [gone] = checked.notes(f'{CONNECT}[[allow.rule]]\naction = "other"\nvo = "{VO}"\n')
    assert f'no file of the virtual organisation "{VO}"' in gone


@pytest.mark.parametrize(
    ("table", "line", "expected"),
    [
        ('[[deny.rule]]\naction = "any"\ndn = "/DC=test/DC=exoskle/CN=Dave"', 4, "no trusted authority"),
        ('[deny]\nbanned = [\n    "/DC=test/DC=exoskle/CN=Dave",\n]', 6, "no trusted authority"),
        ('[deny]\nbanned = ["/DC=test/DC=exoskel/XX=Dave"]', 5, 'has a part "XX="'),
        ('[deny]\nbanned = ["/tyr/Role=pilot"]', 5, 'virtual organisation "tyr"'),
        ('[accounts]\nmap = [{ fqan = "/tyr/Role=pilot", account = "pilot" }]', 5, 'virtual organisation "tyr"'),
        ('[accounts]\nmap = [{ dn = "/DC=tset/CN=Dave", account = "dave" }]', 5, "no trusted authority"),
    ],
)  # fmt: skip
def test_a_name_that_nobody_can_have_is_noted_wherever_it_stands(
    checked: Checked, table: str, line: int, expected: str
) -> None:
    [note] = checked.notes(f"{CONNECT}{table}\n")
    assert note.startswith(f"{checked.policy}, line {line}: ")
    assert expected in note


def test_names_that_nobody_can_have_are_noted_in_lists(checked: Checked) -> None:
    place = checked.front.place
    (place / "bans").write_text("# bans\n/DC=test/DC=exoskel/CN=Mallory\n/DC=test/CN=Dave\n")
    (place / "mapfile").write_text('"/DC=tset/CN=Dave" dave\n')
    lists = '[deny]\nban_list = "bans"\n[accounts]\ngrid_mapfile = "mapfile"\n'
    bans, accounts = checked.notes(CONNECT + lists)
    assert bans.startswith(f"{place / 'bans'}, line 3: no trusted authority may sign")
    assert accounts.startswith(f"{place / 'mapfile'}, line 1: no trusted authority may sign")
    # A list that several sites share: some are named, the others counted.
    (place / "bans").write_text("".join(f"/DC=elsewhere/CN={name}\n" for name in range(100)))
    notes = checked.notes(CONNECT + lists)
    assert len(notes) == 10
    assert f"{place / 'bans'}: 92 other lines like these" in notes


def test_an_action_without_a_rule_is_named_with_the_one_that_is_like_it(checked: Checked) -> None:
    for asked, ruled in [("files.write", "files.wirte"), ("amdin", "admin")]:
        policy = f'{CONNECT}[[allow.rule]]\naction = "{ruled}"\ndn = "*"\n'
        fault = checked.fault(policy, f'[[path]]\nprefix = "/"\naction = "{asked}"\n')
        assert f'{checked.file}: line 5: action "{asked}": no [[allow.rule]]' in fault
        assert f'(line 4 is about "{ruled}": is the same meant?)' in fault


def test_a_path_rule_of_which_another_takes_a_part_is_noted(checked: Checked) -> None:
    policy = CONNECT.replace('"connect"', '["connect", "read", "admin"]')
    files = '[[path]]\nprefix = "/files"\nmethods = ["GET"]\naction = "read"\n'
    secret = '[[path]]\nprefix = "/files/secret"\naction = "admin"\n'
    [note] = checked.notes(policy, files + secret)
    assert note.startswith(f"{checked.file}, line 9: ")
    assert "does not decide about GET: the rule at line 5 comes first" in note
    assert checked.notes(policy, secret + files) == []


def test_faults_of_the_configuration_are_one_line_with_its_place(checked: Checked) -> None:
    for more, line, expected in [
        ("surprise = 1", 5, "unknown field `surprise`, expected one of"),
        ("[trust]\nrevocation = 'never'", 6, "unknown variant `never`"),
        ("[trust", 5, ""),
    ]:
        fault = checked.fault(CONNECT, more)
        assert fault.startswith(f"{checked.file}: line {line}: ")
        assert expected in fault
        assert "\n" not in fault
    words = checked.words()
    checked.policy.unlink()
    for code, said in (checked._run(words), (main(["front", "--json", *words]), None)):
        text = (said or json.loads(checked.capsys.readouterr().out))["error"]
        assert code == 1
        assert text.startswith(f"{checked.file}: line 2: policy: can't read the policy ")
        assert str(checked.policy) in text
    # A file that the command line names has no line.
    code, said = checked._run([*words, "--policy", "nowhere"])
    assert (code, said["error"].startswith("policy: can't read the policy nowhere: ")) == (1, True)


def test_every_list_for_whose_sake_people_are_refused_is_an_error(checked: Checked) -> None:
    grid = checked.front.grid
    file = grid.anchors / LIST
    file.write_bytes(stale(grid))
    assert f"its revocation list {LIST} is stale since" in checked.fault()
    file.write_text("garbage\n")
    assert f"its revocation list {LIST} can't be used: got no PEM block" in checked.fault()
    file.unlink()
    assert "it has no revocation list (HASH.r0): run fetch-crl" in checked.fault()
    # A missing one is accepted if the site says so; one that can't be read never.
    words = '[trust]\nrevocation = "where-listed"\n'
    assert all("exoskel" in note for note in checked.notes(CONNECT, words))
    file.write_text("garbage\n")
    assert "can't be used" in checked.fault(CONNECT, words)


def test_a_copy_is_checked_before_it_is_put_in_place(checked: Checked) -> None:
    words = checked.words()
    copy = checked.front.place / "policy.new"
    copy.write_text(CONNECT.replace("connect", "conect"))
    code, said = checked._run([*words, "--policy", str(copy)])
    assert (code, said["error"].startswith(f"{copy}: ")) == (1, True)
    assert checked._run(words)[0] == 0


# --- in a running front ------------------------------------------------------------------------------


def test_a_running_front_warns_of_lists_and_rules_that_shut_people_out(
    front: Front, checked: Checked
) -> None:
    words = checked.words()[len(front.words()) :]
    process = front.node(*words, "--trust-interval", "1")
    said = front.place / "errors"

    def log() -> str:
        return said.read_text()

    file = front.grid.anchors / LIST
    replace(file, stale(front.grid))
    expected = f"WARN /DC=test/DC=exoskel/CN=Test CA: its revocation list {LIST} is stale since"
    assert eventually(lambda: expected in log()), log()
    file.unlink()
    assert eventually(
        lambda: "WARN /DC=test/DC=exoskel/CN=Test CA: it has no revocation list" in log()
    )
    replace(file, "garbage\n")
    # The log names it with its directory.
    assert eventually(lambda: f"ERROR {file}: got no PEM block" in log()), log()
    assert "are accepted again" not in log()
    front.grid.list_revoked()
    again = "reloaded: users of /DC=test/DC=exoskel/CN=Test CA are accepted again"
    assert eventually(lambda: again in log()), log()
    # The rules are in force as they are written, with the line that is new.
    replace(checked.policy, "# moved\n" + CONNECT.replace("connect", "conect"))
    assert eventually(lambda: 'WARN nobody may do "connect" by the rules in force' in log()), log()
    rule = 'for dn "/DC=test/DC=exoskel/*"'
    now, before = f'action "conect" {rule}', f'action "connect" {rule}'
    assert f"reloaded: the [[allow.rule]] at line 2 has changed: {now}; it was: {before}" in log()
    replace(checked.policy, CONNECT)
    back = f"reloaded: the [[allow.rule]] at line 1 has changed: {before}; it was: {now}"
    assert eventually(lambda: back in log()), log()
    replace(checked.policy, f"# the same\n{CONNECT}")
    same = "reloaded: the rules, bans and accounts in force are the same as before"
    assert eventually(lambda: same in log()), log()
    # A slip that would let somebody in, said when it comes into force.
    replace(checked.policy, f'{CONNECT}[deny]\nbanned = ["/DC=tset/CN=Dave"]\n')
    slip = f'WARN {checked.policy}, line 5: no trusted authority may sign a name like "/DC=tset/'
    assert eventually(lambda: slip in log()), log()
    replace(checked.policy, CONNECT)
    assert eventually(lambda: 'the ban of "/DC=tset/CN=Dave" is gone' in log())
    # What can't be read is said once by the watch, and again to whoever asks, who isn't told that all is well.
    replace(checked.policy, "[[allow.rule]]\n")
    fault = "ERROR the rules in force are kept: "
    assert eventually(lambda: fault in log())
    process.send_signal(signal.SIGHUP)
    assert eventually(lambda: log().count(fault) >= 2)
    assert "nothing has changed" not in log()
    assert "the last good state is kept: the rules" not in log()
    replace(checked.policy, CONNECT)
    assert eventually(lambda: log().count("policy.toml has changed") >= 3)
    # The configuration is read at the start only.
    replace(checked.file, checked.file.read_text() + '[[path]]\nprefix = "/jobs"\n')
    process.send_signal(signal.SIGHUP)
    expected = f"WARN {checked.file} has changed, and is read at the start only: restart to use it"
    assert eventually(lambda: expected in log()), log()


PATHS = """
[[path]]
prefix = "/health"
certificate = false

[[path]]
prefix = "/jobs"
action = "submit"

[[path]]
prefix = "/"
"""
POLICY = f"""{CONNECT}
[[allow.rule]]
action = "submit"
fqan = "{PRODUCTION}"

[[allow.rule]]
action = "other"
fqan = "{PRODUCTION}"
limited = false
"""


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def refusals(front: Front, count: int) -> list[dict[str, Any]]:
    """Wait until the trail has so many refusals, which a thread of its own writes; return all that there are."""
    found: list[dict[str, Any]] = []

    def are_there() -> bool:
        found[:] = [one for one in lines(front.place / "audit") if one["verdict"] == "refused"]
        return len(found) >= count

    assert eventually(are_there), found
    return found


def numbers(monitor: str) -> dict[str, str]:
    with urllib.request.urlopen(f"http://{monitor}/metrics", timeout=60) as response:
        text = response.read().decode()
    return dict(line.rsplit(" ", 1) for line in text.splitlines() if line[0] != "#")


def test_an_application_says_and_the_trail_has_what_the_front_would(
    front: Front, checked: Checked
) -> None:
    monitor = free_address()
    words = checked.words(POLICY, PATHS)[len(front.words()) :]
    words[words.index("--configuration") + 1] = str(checked.file)
    text = checked.file.read_text().replace("listen", f'monitor = "{monitor}"\nlisten', 1)
    checked.file.write_text(text)
    front.uvicorn(*words, application=APPLICATION)
    # A nought is there before the first event.
    rules = 'exoskel_identities_refused_total{reason="rules"}'
    address = 'exoskel_connections_refused_total{reason="connections_per_address_max"}'
    assert (numbers(monitor)[rules], numbers(monitor)[address]) == ("0", "0")
    alice = front.grid.user()
    limited = front.grid.proxy(front.grid.proxy(alice, PRODUCTION), kind="limited")
    status, by_path = front.status(alice, "GET", "/jobs")
    assert status == 403
    assert front.status(alice, "GET", "/plain/x") == (403, by_path)
    status, answer = front.ask(limited, "GET", "/other")
    assert status == 403
    assert "a proxy that is not limited" in answer["detail"]
    refused = refusals(front, 3)
    assert [line["action"] for line in refused] == ["submit", "submit", "other"]
    assert refused[1]["reason"] + "\n" == by_path
    assert refused[2]["reason"] == answer["detail"]
    assert numbers(monitor)[rules] == "3"
    # What the application requires by itself has its lines too.
    for count, (path, action) in enumerate(
        [
            ("organisation", "require organisation elsewhere"),
            ("attribute", "require /elsewhere/Role=*"),
            ("person", 'require /CN=Somebody "Else"'),
            ("full", "require a proxy that is not limited"),
        ],
        start=4,
    ):
        status, answer = front.ask(limited, "GET", f"/{path}")
        assert status == 403
        line = refusals(front, count)[-1]
        assert line["action"] == action
        assert line["reason"] == answer["detail"]
    assert numbers(monitor)[rules] == "7"
    assert front.status(limited, "GET", "/plain/x")[0] == 204
    # Somebody without a certificate has come through the front, and is told what to do.
    assert front.ask(None, "GET", "/health") == (200, {"who": None})
    status, answer = front.ask(None, "GET", "/health/mine")
    assert (status, "show a certificate" in answer["detail"]) == (401, True)
    status, text = front.status(None, "GET", "/other")
    assert (status, "you sent none" in text) == (403, True)


def test_a_faulty_chain_is_as_good_as_none(front: Front, checked: Checked) -> None:
    words = checked.words(POLICY, PATHS)[len(front.words()) :]
    front.uvicorn(*words, application=APPLICATION)
    expired = front.grid.proxy(front.grid.user(), PRODUCTION, hours=-1)
    stranger = Grid(front.place / "elsewhere").user()
    for who, reason in [(expired, "has expired"), (stranger, "no authority")]:
        assert front.ask(who, "GET", "/health") == (200, {"who": None})
        status, text = front.status(who, "GET", "/other")
        assert (status, reason in text) == (403, True), text
    refused = refusals(front, 4)
    assert len(refused) == 4
    assert all("subject" not in line and line["claimed_subject"] for line in refused)
    # A site that keeps refusals inside TLS has it so for these too.
    front.start(*words, "--refusals", "tls", "--upstream", f"unix:{front.place / 'app.sock'}")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        front.status(expired, "GET", "/health")


def test_a_host_is_named_by_its_subject(front: Front, checked: Checked) -> None:
    policy = CONNECT.replace("/DC=test/DC=exoskel/*", "/DC=test/DC=exoskel/O=People/*")
    words = checked.words(policy)[len(front.words()) :]
    front.node(*words)
    host = front.grid.host("worker.exoskel.test")
    status, reason = front.status(host, "GET", "/")
    assert status == 403
    assert f"asked by {host.dn} without attributes" in reason


@pytest.mark.parametrize(
    "required",
    [{"dn": "/DC=org/*"}, {"dn": "/DC=org/CN=*"}, {"dn": "CN=x"}, {"vo": "/testvo"}, {"vo": ""}],
)
def test_a_requirement_that_nobody_can_meet_fails_when_it_is_written(
    required: dict[str, str],
) -> None:
    with pytest.raises(ValueError, match=r"expected (a whole distinguished name|the name of a)"):
        require(**required)  # type: ignore[arg-type]
    assert callable(require(dn="/DC=org/CN=*.example.org", vo="vo.example.org"))


def test_a_peer_is_printed_without_its_certificates() -> None:
    peer = Peer(dn="/CN=Alice", chain=(bytes(4000),))
    assert "/CN=Alice" in repr(peer)
    assert len(repr(peer)) < 400
