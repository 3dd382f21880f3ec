"""`exoskel.service`: a TLS server in this process whose handlers get sockets and proven identities."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.certificates.grid import PRODUCTION, VO, Grid, Holder, server_options
from tests.whole_files import replace

import exoskel as ex
from exoskel.service import Connection, Handler, Identity, Peer, Server


class Door:
    """A server's options, and clients for it."""

    def __init__(self, grid: Grid, place: Path) -> None:
        self.grid = grid
        self.place = place
        self.numbers = itertools.count()
        self.options = server_options(grid, place)

    def serve(self, handler: Handler, **more: object) -> Server:
        """Start a server."""
        return Server(handler, **{**self.options, **more})

    def context(self, who: Holder | None) -> ssl.SSLContext:
        """What a client brings."""
        context = ssl.create_default_context(cafile=self.grid.anchors / "0e50e150.0")
        if who is not None:
            # A file for each: clients come at the same time.
            context.load_cert_chain(who.write(self.place / f"client-{next(self.numbers)}.pem"))
        return context

    @contextmanager
    def client(self, address: str, who: Holder | None) -> Iterator[ssl.SSLSocket]:
        """Connect as somebody."""
        host, _, port = address.rpartition(":")
        with (
            socket.create_connection((host, int(port)), timeout=20) as plain,
            self.context(who).wrap_socket(plain, server_hostname=host) as protected,
        ):
            yield protected

    def ask(self, address: str, who: Holder | None, text: bytes = b"") -> bytes:
        """Send a text, and read to the end; an abrupt end counts as an answer of nothing."""
        try:
            with self.client(address, who) as client:
                client.sendall(text)
                return b"".join(iter(lambda: client.recv(65536), b""))
        except (ssl.SSLError, ConnectionError):
            return b""


@pytest.fixture
def door(grid: Grid, tmp_path: Path) -> Door:
    """A door of a site."""
    return Door(grid, tmp_path)


def whoami(connection: Connection, identity: Identity) -> None:
    words = [identity.dn, identity.vo or "-", *identity.fqans, str(identity.limited)]
    connection.sendall("|".join(words).encode())


def test_a_handler_gets_a_socket_and_a_proven_identity(door: Door) -> None:
    alice = door.grid.user()
    proxy = door.grid.proxy(door.grid.proxy(alice, PRODUCTION, f"/{VO}"), kind="limited")
    seen: list[tuple[Identity, str]] = []

    def handler(connection: Connection, identity: Identity) -> None:
        seen.append((identity, connection.client_address))
        with connection.makefile("rwb") as file:
            for line in file:
                file.write(line.upper())
                file.flush()

    with door.serve(handler) as server, door.client(server.address, proxy) as client:
        client.sendall(b"one\n")
        assert client.recv(100) == b"ONE\n"
        client.sendall(b"two\n")
        assert client.recv(100) == b"TWO\n"
        own = client.getsockname()
    ((identity, address),) = seen
    assert identity.dn == alice.dn
    assert identity.rfc2253 == "CN=Alice,O=People,DC=exoskel,DC=test"
    assert (identity.vo, identity.fqans) == (VO, (PRODUCTION, f"/{VO}"))
    assert (identity.type, identity.depth, identity.limited) == ("rfc3820", 2, True)
    assert identity.expires == int(proxy.chain[0].not_valid_after_utc.timestamp())
    assert len(identity.chain) == 3
    assert identity.attribute(f"/{VO}/*") is not None
    assert identity.attribute("/other/*") is None
    assert address == f"{own[0]}:{own[1]}"


def test_a_handler_asks_what_the_policy_allows(door: Door) -> None:
    policy = door.place / "policy.toml"
    policy.write_text(
        f"""
        [[allow.rule]]
        action = "connect"
        dn = "/DC=test/*"

        [[allow.rule]]
        action = "submit"
        fqan = "{PRODUCTION}"

        [accounts]
        map = [{{ fqan = "{PRODUCTION}", account = "prod" }}]
        """
    )
    seen: list[Peer] = []

    def handler(connection: Connection, peer: Peer) -> None:
        seen.append(peer)
        connection.sendall(f"{peer.may('submit')} {peer.account}".encode())

    alice = door.grid.user()
    with door.serve(handler, policy=policy) as server:
        assert door.ask(server.address, alice) == b"False None"
        assert door.ask(server.address, door.grid.proxy(alice, PRODUCTION)) == b"True prod"
        assert PRODUCTION in str(seen[0].refusal("submit"))
        # The rules are those of now, and each decision has its line.
        replace(policy, '[[allow.rule]]\naction = "any"\ndn = "*"\n')
        server.reload()
        assert seen[0].may("submit")
    # Somebody who keeps a peer can still ask, and keeps nothing of the server alive.
    assert seen[0].may("submit")
    lines = [json.loads(line) for line in (door.place / "audit").read_text().splitlines()]
    decided = [line["verdict"] for line in lines if line["action"] == "submit"]
    assert decided == ["refused", "accepted", "refused", "accepted"]
    with door.serve(handler) as server:
        assert door.ask(server.address, alice) == b"False None"


def test_a_text_file_that_reads_and_writes_is_refused(door: Door) -> None:
    errors: list[ValueError] = []

    def handler(connection: Connection, peer: Peer) -> None:
        with pytest.raises(ValueError, match="loses lines") as error:
            connection.makefile("rw")
        errors.append(error.value)
        with connection.makefile("r", encoding="utf-8") as lines:
            for line in lines:
                connection.sendall(line.upper().encode())

    with (
        door.serve(handler) as server,
        door.client(server.address, door.grid.user()) as client,
    ):
        client.sendall(b"one\ntwo\nthree\n")
        got = b""
        while got.count(b"\n") < 3:
            got += client.recv(100)
    assert got == b"ONE\nTWO\nTHREE\n"
    assert errors


@pytest.mark.parametrize("version", ["1.2", "1.3"])
def test_a_client_of_openssl_comes_in_with_its_proxy(door: Door, version: str) -> None:
    """A peer that shares no code with us: two proxies with attributes, in either version of TLS."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("the command openssl (Debian's package of that name) is not installed")
    alice = door.grid.user()
    proxy = door.grid.proxy(door.grid.proxy(alice, PRODUCTION, f"/{VO}"), kind="limited")
    file = str(proxy.write(door.place / "proxy"))
    command = [openssl, "s_client", "-quiet", "-verify_return_error"]
    command += [
        "-CAfile",
        str(door.grid.anchors / "0e50e150.0"),
        f"-tls{version.replace('.', '_')}",
    ]
    command += ["-cert", file, "-key", file, "-cert_chain", file]
    with door.serve(whoami) as server:
        done = subprocess.run(
            [*command, "-connect", server.address],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
            check=False,
        )
    expected = "|".join([alice.dn, VO, PRODUCTION, f"/{VO}", "True"])
    assert done.stdout.decode() == expected, done.stderr.decode()


def test_large_answers_arrive_whole(door: Door) -> None:
    content = os.urandom(3_000_000)

    def first(connection: Connection, _: Identity) -> None:
        connection.sendall(content)

    user = door.grid.user()
    with door.serve(first) as server:
        assert door.ask(server.address, user) == content
        # What the client sent and nobody read does not spoil the answer.
        assert door.ask(server.address, user, b"unread" * 10_000) == content


def test_strangers_never_reach_a_handler(door: Door) -> None:
    reached: list[str] = []
    other = Grid(door.place / "elsewhere")
    expired = door.grid.user("Late", hours=-1)
    revoked = door.grid.user("Mallory")
    door.grid.revoke(revoked)
    with door.serve(lambda _, identity: reached.append(identity.dn)) as server:
        for who in (None, other.user(), expired, revoked, door.grid.proxy(revoked)):
            assert door.ask(server.address, who) == b""
    assert reached == []
    assert "is revoked" in (door.place / "audit").read_text()


def test_the_policy_says_who_may_connect(door: Door) -> None:
    policy = door.place / "policy.toml"
    policy.write_text(f'[[allow.rule]]\naction = "connect"\nfqan = "{PRODUCTION}"\n')
    alice = door.grid.user()
    with door.serve(whoami, policy=policy) as server:
        allowed = door.ask(server.address, door.grid.proxy(alice, PRODUCTION))
        assert allowed.startswith(alice.dn.encode())
        assert door.ask(server.address, door.grid.proxy(alice, f"/{VO}")) == b""


def test_who_is_revoked_is_out_at_the_reload_with_an_open_connection(door: Door) -> None:
    alice, bob = door.grid.user(), door.grid.user("Bob")

    def echo(connection: Connection, _: Identity) -> None:
        while data := connection.recv(100):
            connection.sendall(data)

    with (
        door.serve(echo) as server,
        door.client(server.address, door.grid.proxy(alice, PRODUCTION)) as hers,
        door.client(server.address, bob) as his,
    ):
        for client in (hers, his):
            client.sendall(b"hello")
            assert client.recv(100) == b"hello"
        door.grid.revoke(alice)
        assert server.reload() == []
        hers.settimeout(60)
        try:
            ended = hers.recv(100) == b""
        except (ssl.SSLError, ConnectionError):
            ended = True
        assert ended
        his.sendall(b"still")
        assert his.recv(100) == b"still"
        assert door.ask(server.address, door.grid.proxy(alice)) == b""


def test_an_exception_costs_one_connection(door: Door, caplog: pytest.LogCaptureFixture) -> None:
    user = door.grid.user()

    def handler(connection: Connection, _: Identity) -> None:
        if connection.recv(1) == b"x":
            raise RuntimeError("a fault of the handler")
        connection.sendall(b"fine")

    with door.serve(handler, threads=1) as server:
        assert door.ask(server.address, user, b"x") == b""
        assert door.ask(server.address, user, b"y") == b"fine"
    assert "a fault of the handler" in caplog.text


def test_more_connections_than_threads_wait(door: Door) -> None:
    user = door.grid.user()
    first, gate = threading.Event(), threading.Event()

    def handler(connection: Connection, _: Identity) -> None:
        first.set()
        gate.wait(60)
        connection.sendall(b"served")

    answers: list[bytes] = []
    with door.serve(handler, threads=1) as server:
        clients = [
            threading.Thread(target=lambda: answers.append(door.ask(server.address, user)))
            for _ in range(3)
        ]
        clients[0].start()
        assert first.wait(60)
        for client in clients[1:]:
            client.start()
        gate.set()
        for client in clients:
            client.join()
    assert answers == [b"served"] * 3


def test_closing_ends_connections_that_nobody_serves_or_closes(door: Door) -> None:
    user = door.grid.user()
    reached = threading.Event()

    def silent(connection: Connection, _: Identity) -> None:
        reached.set()
        connection.recv(1)

    with door.serve(silent) as server, door.client(server.address, user):
        assert reached.wait(60)
        server.close()
    with pytest.raises(RuntimeError, match="stopped"):
        server.reload()


def test_wrong_options_are_told_at_once(door: Door) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"listen": "localhost"}, ValueError, "address and a port"),
        ({"threads": 0}, ValueError, "at least 1"),
        ({"limits": {"handshakes": 1}}, ValueError, "unknown field"),
        ({"trust_anchors": door.place / "nowhere"}, OSError, "nowhere"),
        ({"policy": door.place / "nowhere"}, ex.PolicyError, "nowhere"),
        ({"certificate": door.place / "nowhere"}, OSError, "nowhere"),
    ]
    for more, kind, expected in cases:
        with pytest.raises(kind, match=expected):
            door.serve(whoami, **more)
    (door.place / "hostkey.pem").chmod(0o644)
    with pytest.raises((OSError, ValueError), match="0644"):
        door.serve(whoami)


def test_ctrl_c_ends_a_blocking_server(door: Door) -> None:
    script = """
        import sys
        from exoskel import service

        def handler(connection, identity):
            connection.sendall(identity.dn.encode())
            connection.recv(1)

        class Told(service.Server):
            def wait(self):
                print(self.address, flush=True)
                super().wait()

        service.Server = Told
        service.serve(handler, **{options!r})
        print("ended", flush=True)
    """
    options = {key: str(value) for key, value in door.options.items()}
    text = textwrap.dedent(script).replace("{options!r}", repr(options))
    with subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, process.communicate()[1]
        alice = door.grid.user()
        with door.client(address, alice) as client:
            assert client.recv(100).decode() == alice.dn
            # One handler waits for a client that says nothing.
            process.send_signal(signal.SIGINT)
            said, errors = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "ended\n"), errors
