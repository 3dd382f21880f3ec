"""Actions and accounts of a policy, asked by path at the front and by name behind it."""

from __future__ import annotations

import asyncio
import json
import signal
import ssl
import time
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from tests.certificates.grid import PRODUCTION, VO, write_private
from tests.front import Front
from tests.processes import eventually
from tests.site import free_address

from exoskel.asgi import GridIdentity, Required, identity_of, require
from exoskel.cli import main

APPLICATION = """
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request
from starlette.responses import JSONResponse

from exoskel.asgi import GridIdentity, Peer, Required, identity_of, require

app = FastAPI()
app.add_middleware(GridIdentity, secret="secret")


@app.get("/health")
def health(request: Request) -> Any:
    return {"who": identity_of(request.scope)}


@app.get("/where")
def where(request: Request) -> Any:
    return {"host": request.client.host, "url": str(request.url)}


@app.post("/jobs")
def jobs(who: Annotated[Peer, Depends(require("submit"))]) -> Any:
    may = [action for action in ("submit", "read", "administer") if who.may(action)]
    return {"owner": who.dn, "account": who.account, "may": may}


@app.get("/results")
def results(who: Annotated[Peer, Depends(require("administer"))]) -> Any:
    return {}


async def plain(scope: Any, receive: Any, send: Any) -> None:
    await JSONResponse({"plain": identity_of(scope).dn})(scope, receive, send)


app.mount("/plain", Required(plain, "submit"))
"""

POLICY = f"""
[deny]
ban_list = "bans"

[[allow.rule]]
action = ["connect", "read"]
dn = "/DC=test/*"

[[allow.rule]]
action = "submit"
fqan = "{PRODUCTION}"

[[allow.rule]]
action = "administer"
dn = "/DC=test/DC=exoskel/CN=Root"

[accounts]
map = [{{ fqan = "{PRODUCTION}", account = "prod" }}]
"""

PATHS = """
[[path]]
prefix = "/health"
certificate = false

[[path]]
prefix = "/jobs"
methods = ["POST"]
action = "submit"

[[path]]
prefix = "/"
"""


def configure(front: Front, paths: str = PATHS) -> tuple[str, ...]:
    """Write a policy and a configuration; the words for them."""
    (front.place / "bans").write_text("# nobody\n")
    (front.place / "policy.toml").write_text(POLICY)
    file = front.place / "front.toml"
    file.write_text(
        'listen = "127.0.0.1:0"\npolicy = "policy.toml"\naccess_log = "access"\n'
        f'[upstream]\naddress = "unix:/nowhere"\n{paths}'
    )
    return ("--configuration", str(file))


def lines(file: Path) -> list[dict[str, Any]]:
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines()]


def test_an_application_asks_what_the_policy_allows(front: Front) -> None:
    monitor = free_address()
    process = front.uvicorn(*configure(front), "--monitor", monitor, application=APPLICATION)
    alice = front.grid.user()
    producer = front.grid.proxy(alice, PRODUCTION, f"/{VO}")
    status, answer = front.ask(producer, "POST", "/jobs", b"")
    assert (status, answer) == (
        200,
        {"owner": alice.dn, "account": "prod", "may": ["submit", "read"]},
    )
    # The application's own requirement, with what the front says of the policy.
    status, answer = front.ask(producer, "GET", "/results")
    assert status == 403
    assert answer["detail"].startswith('action "administer" asked by ')
    assert front.ask(producer, "GET", "/plain/x") == (200, {"plain": alice.dn})
    # The front's own rule by path: the server behind never sees it.
    status, reason = front.status(alice, "POST", "/jobs")
    assert (status, PRODUCTION in reason) == (403, True)
    assert front.status(alice, "GET", "/plain/x")[0] == 403
    # What needs no certificate, and where uvicorn believes the client to be.
    assert front.ask(None, "GET", "/health") == (200, {"who": None})
    assert front.status(None, "GET", "/where")[0] == 403
    claims = {"X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "http", "Host": "service.test"}
    status, answer = front.ask(alice, "GET", "/where", None, claims)
    assert answer == {"host": "127.0.0.1", "url": "https://service.test/where"}

    log = front.place / "access"
    assert eventually(lambda: len(lines(log)) == 8)
    first = lines(log)[0]
    assert (first["subject"], first["method"], first["path"]) == (alice.dn, "POST", "/jobs")
    assert (first["status"], first["bytes"] > 20, first["milliseconds"] > 0) == (200, True, True)
    assert [line["status"] for line in lines(log)] == [200, 403, 200, 403, 403, 200, 403, 200]

    # Numbers for an alarm: the host's certificate, the lists, and who was refused why.
    with urllib.request.urlopen(f"http://{monitor}/metrics", timeout=60) as response:
        metrics = response.read().decode()
    numbers = dict(line.rsplit(" ", 1) for line in metrics.splitlines() if line[0] != "#")
    authority = '{authority="/DC=test/DC=exoskel/CN=Test CA"}'
    made = int(numbers[f"exoskel_revocation_list_made_timestamp_seconds{authority}"])
    due = int(numbers[f"exoskel_revocation_list_due_timestamp_seconds{authority}"])
    assert made <= time.time() < due
    assert int(numbers["exoskel_host_certificate_end_timestamp_seconds"]) > time.time()
    assert numbers['exoskel_identities_refused_total{reason="no_certificate"}'] == "1"

    # SIGHUP opens the log again and says what has changed; who is banned is told why.
    log.rename(front.place / "access.1")
    (front.place / "bans").write_text(f"{alice.dn}\n")
    said = front.place / "errors"
    assert eventually(lambda: "bans has changed" in said.read_text())
    process.send_signal(signal.SIGHUP)
    assert eventually(log.exists)
    assert eventually(lambda: "reloaded: nothing has changed" in said.read_text())
    status, reason = front.status(alice, "GET", "/where")
    assert (status, "is banned (line 1 of the ban list)" in reason) == (403, True)

    def audited() -> tuple[str, str]:
        last = lines(front.place / "audit")[-1]
        return last["verdict"], last.get("reason", "") + "\n"

    # A thread of its own writes the trail.
    assert eventually(lambda: audited() == ("refused", reason)), audited()
    assert eventually(lambda: [line["status"] for line in lines(log)] == [403])


def test_refusals_stay_inside_tls_if_the_site_wants_it(front: Front) -> None:
    front.node(*configure(front), "--refusals", "tls")
    alice = front.grid.user()
    assert front.ask(alice, "GET", "/")[0] == 200
    (front.place / "bans").write_text(f"{alice.dn}\n")

    def is_refused() -> bool:
        try:
            front.ask(alice, "GET", "/")
        except (ssl.SSLError, ConnectionError, HTTPException):
            return True
        return False

    assert eventually(is_refused)


@pytest.mark.parametrize(
    ("paths", "line", "expected"),
    [
        (PATHS + '[[path]]\nprefix = "/jobs"\n', 18, "can never match"),
        (PATHS.replace('"submit"', '"send"'), 11, "no [[allow.rule]]"),
        (PATHS.replace('"/jobs"', '"jobs"'), 11, '"/jobs"'),
        (PATHS.replace('"POST"', '"post"'), 11, "capitals"),
    ],
)
def test_a_rule_that_can_t_work_is_named_with_file_and_line_before_anything_starts(
    front: Front, capsys: pytest.CaptureFixture[str], paths: str, line: int, expected: str
) -> None:
    words = configure(front, paths)
    for more in ([], ["--check"]):
        capsys.readouterr()
        assert main(["front", *more, "--json", *front.words(*words)]) == 1
        error = json.loads(capsys.readouterr().out)["error"]
        assert error.startswith(f"{words[1]}: ")
        assert f"line {line}: " in error
        assert expected in error
    assert not (front.place / "access").exists()


# --- the middleware by itself ------------------------------------------------------------------------

SECRET = "0123456789abcdef0123456789abcdef"
ALICE = [
    (b"exoskel-front-secret", SECRET.encode()),
    (b"exoskel-subject", b'"/CN=Alice"'),
    (b"client-cert", b":AAEC:"),
]
NOBODY = [(b"exoskel-front-secret", SECRET.encode()), (b"exoskel-anonymous", b"?1")]


def ask(place: Path, headers: Any, kind: str = "http", **required: Any) -> tuple[Any, list[Any]]:
    """Send a request through the middleware and a requirement: what the application saw, what was answered."""
    seen: list[Any] = []
    answers: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        answers.append(message)

    behind = Required(application, **required) if required else application
    app = GridIdentity(behind, secret=write_private(place / "secret", SECRET.encode()))
    asyncio.run(app({"type": kind, "headers": headers}, receive, send))
    return (seen[0] if seen else None), answers


@pytest.mark.parametrize(
    ("actions", "allowed", "refused"),
    [
        (b'"submit", "read"', "submit read", "administer any !submit"),
        (b'"any", "!submit"', "read other", "submit"),
        (b"", "", "submit any"),
        (None, "", "submit any"),
    ],
)
def test_actions_are_those_that_the_front_states(
    actions: bytes | None, allowed: str, refused: str, tmp_path: Path
) -> None:
    stated = [] if actions is None else [(b"exoskel-actions", actions)]
    scope, _ = ask(tmp_path, [*ALICE, *stated, (b"exoskel-account", b'"prod"')])
    peer = identity_of(scope)
    assert peer is not None
    assert peer.account == "prod"
    assert [peer.may(action) for action in allowed.split()] == [True] * len(allowed.split())
    for action in refused.split():
        assert not peer.may(action)
        assert action in str(peer.refusal(action))
    if actions is None:
        assert "no policy" in str(peer.refusal("submit"))


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_requirement_needs_no_framework(kind: str, tmp_path: Path) -> None:
    may = [*ALICE, (b"exoskel-actions", b'"submit"')]
    scope, _ = ask(tmp_path, may, kind, action="submit")
    assert scope is not None
    for headers, status in ((ALICE, 403), (NOBODY, 401)):
        scope, answers = ask(tmp_path, headers, kind, action="submit")
        assert scope is None
        if kind == "http":
            assert answers[0]["status"] == status
        else:
            assert answers[0]["code"] == 1008
    scope, _ = ask(tmp_path, may, kind, action="submit", dn="/CN=Bob")
    assert scope is None


def test_who_needs_no_certificate_has_no_identity_and_no_claims(tmp_path: Path) -> None:
    forwarded = (b"x-forwarded-for", b"192.0.2.7")
    scope, _ = ask(tmp_path, [*NOBODY, forwarded, (b"x-kept", b"1")])
    assert identity_of(scope) is None
    assert scope["headers"] == [forwarded, (b"x-kept", b"1")]
    for more in (ALICE[1], ALICE[2], (b"exoskel_anonymous", b"?1"), (b"exoskel-actions", b'"any"')):
        scope, answers = ask(tmp_path, [*NOBODY, more])
        assert (scope, answers[0]["status"]) == (None, 403)
    # Without the front's secret nobody is believed, not even that they are nobody.
    scope, answers = ask(tmp_path, NOBODY[1:])
    assert (scope, answers[0]["status"]) == (None, 403)


def test_a_requirement_that_can_t_be_meant_fails_when_it_is_written() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None: ...

    with pytest.raises(ValueError, match="empty action"):
        require("")
    with pytest.raises(ValueError, match="empty action"):
        Required(application, "")
