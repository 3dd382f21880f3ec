"""`exoskel front` before servers that nobody has changed, and `exoskel.asgi` behind it."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import secrets
import signal
import ssl
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from tests.certificates.grid import PRODUCTION, VO, write_private
from tests.front import Front
from tests.processes import eventually

import exoskel as ex
from exoskel.asgi import GridIdentity, Peer, identity_of, require
from exoskel.cli import main

# --- before other people's servers -------------------------------------------------------------------


def test_a_fastapi_application_on_uvicorn_knows_who_asks(front: Front) -> None:
    front.uvicorn("--chain")
    alice = front.grid.user()
    proxy = front.grid.proxy(alice, PRODUCTION, f"/{VO}")
    status, answer = front.ask(proxy, "GET", "/whoami")
    assert status == 200
    assert (answer["dn"], answer["vo"]) == (alice.dn, VO)
    assert answer["fqans"] == [PRODUCTION, f"/{VO}"]
    presented = [one.public_bytes(Encoding.PEM).decode() for one in proxy.chain]
    assert answer["chain"] == presented
    assert "exoskel-front-secret" not in answer["headers"]
    body = secrets.token_bytes(300_000)
    assert front.ask(proxy, "POST", "/jobs", body) == (200, {"owner": alice.dn, "bytes": len(body)})
    # The same user without the role, and with it in a limited proxy.
    status, answer = front.ask(front.grid.proxy(alice, f"/{VO}"), "POST", "/jobs", b"")
    assert status == 403
    assert PRODUCTION in answer["detail"]
    limited = front.grid.proxy(front.grid.proxy(alice, PRODUCTION), kind="limited")
    status, answer = front.ask(limited, "POST", "/jobs", b"")
    assert (status, "limited" in answer["detail"]) == (403, True)
    # Headers of a client's own are worth nothing.
    claims = {
        "Exoskel-Subject": '"/CN=Root"',
        "Exoskel_FQAN": f'"{PRODUCTION}"',
        "Exoskel-FQAN": f'"{PRODUCTION}"',
    }
    bob = front.grid.user("Bob")
    assert front.ask(bob, "POST", "/jobs", b"", claims)[0] == 403
    assert front.ask(bob, "GET", "/whoami", None, claims)[1]["dn"] == bob.dn


def test_websockets_pass_and_are_for_those_who_may(front: Front) -> None:
    from websockets.exceptions import InvalidStatus
    from websockets.sync.client import connect

    front.uvicorn()
    alice = front.grid.user()
    url = f"wss://{front.address}/talk"
    context = front.context(front.grid.proxy(alice, PRODUCTION))
    with connect(url, ssl=context) as talk:
        talk.send("hello")
        assert talk.recv() == f"{alice.dn} says hello"
    with (
        pytest.raises(InvalidStatus, match="403"),
        connect(url, ssl=front.context(front.grid.proxy(alice))),
    ):
        pass


def test_a_server_of_node_knows_who_asks(front: Front) -> None:
    front.node("--chain")
    alice = front.grid.user()
    proxy = front.grid.proxy(alice, PRODUCTION)
    status, answer = front.ask(proxy, "POST", "/", b"x" * 100_000, {"Exoskel-VO": '"other"'})
    assert (status, answer["bytes"]) == (200, 100_000)
    headers = answer["headers"]
    assert headers["exoskel-subject"] == f'"{alice.dn}"'
    assert (headers["exoskel-vo"], headers["exoskel-fqan"]) == (f'"{VO}"', f'"{PRODUCTION}"')
    leaf = base64.b64encode(proxy.certificate.public_bytes(Encoding.DER)).decode()
    assert headers["client-cert"] == f":{leaf}:"
    assert headers["client-cert-chain"].count(":") == 2


def test_strangers_get_no_answer_and_who_is_revoked_gets_no_further_one(front: Front) -> None:
    front.node("--trust-interval", "1")
    alice = front.grid.user()
    with pytest.raises((ssl.SSLError, ConnectionError, HTTPException)):
        front.ask(None, "GET", "/")
    host, _, port = front.address.rpartition(":")
    connection = HTTPSConnection(host, int(port), context=front.context(alice), timeout=60)
    connection.connect()
    # The library would quietly open another one.
    connection.auto_open = 0

    def is_answered() -> bool:
        try:
            connection.request("GET", "/")
            connection.getresponse().read()
        except (OSError, HTTPException):
            return False
        return True

    try:
        assert is_answered()
        front.grid.revoke(alice)
        assert eventually(lambda: not is_answered())
    finally:
        connection.close()
    with pytest.raises((ssl.SSLError, ConnectionError, HTTPException)):
        front.ask(alice, "GET", "/")
    assert front.ask(front.grid.user("Bob"), "GET", "/")[0] == 200


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_it_in_order(front: Front, how: signal.Signals) -> None:
    process = front.start("--upstream", f"unix:{front.place / 'nobody.sock'}")
    process.send_signal(how)
    assert process.wait(60) == 0


def test_check_reads_everything_and_says_what_is_wrong(
    front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    def check(*more: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main(["front", "--check", "--json", *front.words(*more)])
        return code, json.loads(capsys.readouterr().out)

    upstream = ["--upstream", "tcp://127.0.0.1:8000"]
    assert check(*upstream, "--secret", str(front.secret)) == (0, {"usable": True, "notes": []})
    assert not (front.place / "audit").exists()
    later = front.grid.anchors / "22222222.0"
    later.write_text("half a certi")
    code, answer = check(*upstream, "--secret", str(front.secret))
    assert code == 0
    assert "22222222.0" in answer["notes"][0]
    for words, expected in [
        ([], "upstream"),
        (upstream, "secret"),
        (["--upstream", "ftp://elsewhere"], "ftp://elsewhere"),
        (["--upstream", "unix:/run/app.sock", "--policy", "nowhere"], "nowhere"),
        (["--upstream", "unix:/run/app.sock", "--configuration", "nowhere"], "nowhere"),
    ]:
        code, answer = check(*words)
        assert code == 1
        assert expected in answer["error"]
    front.secret.chmod(0o640)
    code, answer = check(*upstream, "--secret", str(front.secret))
    assert (code, "0640" in answer["error"]) == (1, True)


def test_a_configuration_file_says_it_all_and_options_win(
    front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    file = front.place / "front.toml"
    file.write_text(
        textwrap.dedent("""
            listen = "127.0.0.1:1"
            audit = "none"
            [host]
            certificate = "hostcert.pem"
            key = "hostkey.pem"
            [trust]
            anchors = "grid/certificates"
            vomsdir = "grid/vomsdir"
            [upstream]
            address = "unix:/run/app.sock"
        """)
    )
    command = ["front", "--configuration", str(file), "--check", "--json"]
    assert main(command) == 0
    assert main([*command, "--key", str(front.place / "gone")]) == 1
    file.write_text(file.read_text() + "surprise = 1\n")
    capsys.readouterr()
    assert main(command) == 1
    assert "surprise" in json.loads(capsys.readouterr().out)["error"]


# --- the middleware by itself ------------------------------------------------------------------------


SECRET = "0123456789abcdef0123456789abcdef"
GOOD = [
    (b"exoskel-front-secret", SECRET.encode()),
    (b"exoskel-subject", b'"/DC=test/CN=Alice \\"A\\""'),
    (b"exoskel-vo", b'"vo"'),
    (b"exoskel-fqan", b'"/vo/Role=production", "/vo"'),
    (b"exoskel-limited", b"?1"),
    (b"client-cert", b":AAEC:"),
]


@contextmanager
def middleware(place: Path, **more: Any) -> Iterator[tuple[GridIdentity, list[dict[str, Any]]]]:
    """The middleware before an application that remembers what it has seen."""
    seen: list[dict[str, Any]] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope)

    secret = write_private(place / "secret", SECRET.encode())
    yield GridIdentity(application, secret=secret, **more), seen


def ask(app: GridIdentity, headers: Any, kind: str = "http", **more: Any) -> list[Any]:
    """Send one request through; what was answered."""
    answers: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        answers.append(message)

    asyncio.run(app({"type": kind, "headers": headers, **more}, receive, send))
    return answers


def test_what_the_front_states_is_believed(tmp_path: Path) -> None:
    with middleware(tmp_path) as (app, seen):
        state: dict[str, Any] = {"of": "the server"}
        assert ask(app, [(b"host", b"x"), *GOOD], state=state, extensions={"tls": {"x": 1}}) == []
    (scope,) = seen
    identity = identity_of(scope)
    assert identity == Peer(
        dn='/DC=test/CN=Alice "A"',
        vo="vo",
        fqans=("/vo/Role=production", "/vo"),
        limited=True,
        chain=(b"\0\1\2",),
    )
    chain = ["-----BEGIN CERTIFICATE-----\nAAEC\n-----END CERTIFICATE-----\n"]
    assert scope["extensions"]["tls"] == {"x": 1, "client_cert_chain": chain}
    assert scope["state"]["of"] == "the server"
    assert set(state) == {"of"}
    assert SECRET not in repr(scope["headers"])


def changed(name: bytes, value: bytes | None) -> list[tuple[bytes, bytes]]:
    """The good headers with another value, or without the field."""
    others = [one for one in GOOD if one[0] != name]
    return others if value is None else [*others, (name, value)]


BAD = [
    changed(b"exoskel-front-secret", None),
    changed(b"exoskel-front-secret", SECRET.upper().encode()),
    changed(b"exoskel-front-secret", SECRET[:-1].encode()),
    changed(b"exoskel-front-secret", b""),
    [*GOOD, (b"exoskel-front-secret", SECRET.encode())],
    [*GOOD, (b"exoskel-front-secret", b"another")],
    [*GOOD, (b"Exoskel-Subject", b'"/CN=Root"')],
    [*GOOD, (b"exoskel-fqan", b'"/vo/Role=admin"')],
    [*GOOD, (b"Exoskel_Fqan", b'"/vo/Role=admin"')],
    [*GOOD, (b"exoskel_front_secret", b"another")],
    [*changed(b"exoskel-subject", None), (b"exoskel_subject", b'"/CN=Root"')],
    changed(b"exoskel-subject", None),
    changed(b"exoskel-subject", b"/CN=Alice"),
    changed(b"exoskel-subject", b'"/CN=A", "/CN=B"'),
    changed(b"exoskel-fqan", b'"/vo" "/vo/x"'),
    changed(b"exoskel-fqan", b'"/vo", '),
    changed(b"exoskel-limited", b"yes"),
    changed(b"client-cert", None),
    changed(b"client-cert", b":A:"),
    changed(b"client-cert", b"AAEC"),
]


@pytest.mark.parametrize("headers", BAD, ids=range(len(BAD)))
def test_everything_else_is_refused(headers: list[tuple[bytes, bytes]], tmp_path: Path) -> None:
    with middleware(tmp_path) as (app, seen):
        start, _ = ask(app, headers)
        assert (start["type"], start["status"]) == ("http.response.start", 403)
        (close,) = ask(app, headers, "websocket")
        assert close["type"] == "websocket.close"
        ask(app, [], "lifespan")
    assert [scope["type"] for scope in seen] == ["lifespan"]


CLAIMS = [
    b"exoskel_subject",
    b"Exoskel_Subject",
    b"EXOSKEL-FQAN",
    b"exoskel.vo",
    b"exoskel_front_secret",
    b"client_cert",
    b"Client-Cert_Chain",
    b"x-forwarded-for",
    b"X_Forwarded_Proto",
    b"X_Real_IP",
    b"forwarded",
]


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_anonymous_requests_keep_no_claims(kind: str, tmp_path: Path) -> None:
    state = {"grid_identity": Peer(dn="/CN=Root"), "of": "the server"}
    of_server = {"client_cert_chain": ["x"], "client_cert_name": "CN=Root", "tls_version": 772}
    with middleware(tmp_path, anonymous=True) as (app, seen):
        ask(
            app,
            [
                (b"host", b"x"),
                *changed(b"exoskel-front-secret", b"wrong" * 8),
                *((name, b'"/CN=Root"') for name in CLAIMS),
            ],
            kind,
            state=state,
            extensions={"tls": of_server},
        )
    (scope,) = seen
    assert scope["headers"] == [(b"host", b"x")]
    assert identity_of(scope) is None
    assert scope["state"] == {"grid_identity": None, "of": "the server"}
    assert scope["extensions"]["tls"] == {"client_cert_chain": [], "tls_version": 772}


@pytest.mark.parametrize("anonymous", [False, True])
def test_a_scope_of_an_unknown_type_is_refused(anonymous: bool, tmp_path: Path) -> None:
    with middleware(tmp_path, anonymous=anonymous) as (app, seen):
        with pytest.raises(ValueError, match="webtransport"):
            ask(app, GOOD, "webtransport")
        ask(app, [], "lifespan")
    assert [scope["type"] for scope in seen] == ["lifespan"]


def test_a_server_s_own_certificates_are_not_those_of_the_client(tmp_path: Path) -> None:
    of_server = {"client_cert_name": "CN=Root", "client_cert_error": None, "tls_version": 772}
    with middleware(tmp_path) as (app, seen):
        ask(app, GOOD, extensions={"tls": of_server}, state={"grid_identity": "x"})
    (scope,) = seen
    assert set(scope["extensions"]["tls"]) == {"client_cert_chain", "tls_version"}
    assert identity_of(scope) is not None


def test_a_secret_that_others_can_read_or_guess_is_none(tmp_path: Path) -> None:
    secret = write_private(tmp_path / "secret", b"short")
    with pytest.raises(ex.CredentialError, match="expected 32 to"):
        GridIdentity(None, secret=secret)  # type: ignore[arg-type]
    write_private(secret, SECRET.encode())
    secret.chmod(0o644)
    with pytest.raises(ex.CredentialError, match="0644"):
        GridIdentity(None, secret=secret)  # type: ignore[arg-type]


def test_a_requirement_that_can_t_be_meant_is_refused_when_it_is_written() -> None:
    with pytest.raises(ValueError, match=re.escape("/Role=production")):
        require(fqan="/Role=production")
