"""The blocks of docs/service.md and docs/administration.md run, against a grid that is made for them."""

from __future__ import annotations

import json
import re
import shlex
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.certificates.grid import PRODUCTION
from tests.front import Front
from tests.processes import eventually
from tests.site import free_address

DOCUMENTS = Path(__file__).parent.parent / "docs"
PACKAGED = DOCUMENTS.parent / "packaging" / "systemd" / "exoskel-front.toml"
# How shell blocks begin that start the page's script, or a client of it.
CLIENTS = ("python ", "(echo ", "curl ")
# The addresses of the pages.
DOORS = re.compile(r"127\.0\.0\.1:844[34]")
BEHIND_PORT = "8000"


def blocks(page: str) -> list[tuple[str, str]]:
    """The language and the text of each block of a page that makes a service; clients are this test's own."""
    text = (DOCUMENTS / page).read_text(encoding="utf-8")
    found = re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [
        (language, block)
        for language, block in found
        if language not in {"json", "text", "ini"} and not block.startswith(CLIENTS)
    ]


class Page:
    """A page's blocks in one fresh directory, in which its files stand."""

    def __init__(self, page: str, front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
        self.front = front
        self.left = blocks(page)
        monkeypatch.setenv("X509_CERT_DIR", str(front.grid.anchors))
        monkeypatch.setenv("X509_VOMS_DIR", str(front.grid.vomsdir))
        self.address = free_address()
        self.behind_port = free_address().rpartition(":")[2]

    def next(self, language: str) -> str:
        """The next block, with addresses that are free here."""
        got, block = self.left.pop(0)
        assert got == language, block
        return DOORS.sub(self.address, block).replace(BEHIND_PORT, self.behind_port)

    def file(self, language: str) -> Path:
        """The next block, as the file that its first line names."""
        block = self.next(language)
        path = self.front.place / block.splitlines()[0].removeprefix("# ")
        path.write_text(block)
        return path

    def run(self, **places: str) -> None:
        """Run the next block of shell to its end, or leave it running if it is a server."""
        for line in self.next("sh").replace("\\\n", " ").splitlines():
            command = line
            for said, here in places.items():
                command = command.replace(said.replace("_", "/"), here)
            words = shlex.split(command)
            if words[0] in {"exoskel", "uvicorn"}:
                program = [sys.executable, "-P", "-m", *words]
                if words[0] == "uvicorn":
                    program.remove("-P")
                if "--check" not in words:
                    self.front.run(program)
                    continue
                command = shlex.join(program)
            subprocess.run(command, shell=True, cwd=self.front.place, check=True, timeout=60)

    def is_listening(self, address: str | None = None) -> bool:
        """Whether somebody listens, at the front's address if no other is said."""
        host, _, port = (address or self.address).rpartition(":")
        with socket.socket() as probe:
            return probe.connect_ex((host, int(port))) == 0


def test_the_blocks_of_service_md_run(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page("service.md", front, monkeypatch)
    alice = front.grid.user()
    producer = front.grid.proxy(alice, PRODUCTION)
    page.file("toml")

    echo = page.file("python")
    server = front.run([sys.executable, str(echo)])
    assert server.stdout is not None
    assert server.stdout.readline() == f"{page.address}\n"
    host, _, port = page.address.rpartition(":")
    for who in (producer, alice):
        with (
            socket.create_connection((host, int(port)), timeout=60) as plain,
            front.context(who).wrap_socket(plain, server_hostname=host) as client,
        ):
            # All at once: what was read ahead must not be lost.
            client.sendall(b"one\ntwo\nthree\n")
            lines = client.makefile("r", encoding="utf-8")
            said = [next(lines) for _ in range(3)]
            assert said == [f"{alice.dn} said {word}\n" for word in ("one", "two", "three")]
    server.send_signal(signal.SIGINT)
    server.wait(60)

    # The front before any server.
    upstream = front.place / "app.sock"
    page.run(**{"_run_app_app.sock": str(upstream)})
    assert eventually(page.is_listening), (front.place / "errors").read_text()
    front.address = page.address
    assert front.status(alice, "GET", "/")[0] == 502
    front.close()

    # The front before an application.
    page.address = free_address()
    page.run()
    page.file("python")
    page.run()
    page.run()
    behind = f"127.0.0.1:{page.behind_port}"
    assert eventually(lambda: page.is_listening() and page.is_listening(behind)), (
        front.place / "errors"
    ).read_text()
    front.address = page.address
    assert front.ask(producer, "POST", "/jobs") == (200, {"owner": alice.dn, "account": "prod"})
    assert front.ask(alice, "POST", "/jobs")[0] == 403
    assert front.status(producer, "GET", "/other/x") == (204, "")
    assert front.status(alice, "GET", "/other/x")[0] == 403
    assert page.left == []


def test_the_blocks_of_administration_md_run(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    page = Page("administration.md", front, monkeypatch)
    place = front.place

    def local(configuration: str) -> str:
        for said, here in (
            ("/etc/grid-security/hostcert.pem", "hostcert.pem"),
            ("/etc/grid-security/hostkey.pem", "hostkey.pem"),
            ("/etc/grid-security/certificates", str(front.grid.anchors)),
            ("/etc/grid-security/vomsdir", str(front.grid.vomsdir)),
            ("/var/log/exoskel/", ""),
        ):
            assert said in configuration
            configuration = configuration.replace(said, here)
        return configuration

    # The page's own configuration and policy.
    (place / "front.toml").write_text(local(page.next("toml")))
    page.file("toml")
    check = page.left[0]
    page.run()
    # The configuration that is shipped, with what the page adds to it.
    shipped = local(PACKAGED.read_text())
    said = '# policy = "policy.toml"'
    assert said in shipped
    shipped = shipped.replace(said, said.removeprefix("# "))
    paths = page.next("toml")
    balancers = page.next("toml")
    (place / "front.toml").write_text(f"{balancers}{shipped}\n{paths}")
    (place / "policy.toml").write_text(blocks("service.md")[0][1])
    page.left.insert(0, check)
    page.run()
    # Credentials to try with; a reader's own test runs these, but for the tool of others.
    assert [language for language, _ in page.left] == ["sh"] * 5


def test_the_page_has_the_unit_that_is_shipped() -> None:
    text = (DOCUMENTS / "administration.md").read_text(encoding="utf-8")
    shown = re.findall(r"^```ini\n(.*?)^```", text, re.S | re.M)
    assert shown == [PACKAGED.with_suffix(".service").read_text()]


def test_lines_of_the_logs_have_the_fields_that_the_page_shows(front: Front) -> None:
    text = (DOCUMENTS / "administration.md").read_text(encoding="utf-8")
    shown = [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", text, re.S | re.M)]
    front.node("--access-log", str(front.place / "access"))
    front.ask(front.grid.proxy(front.grid.user(), PRODUCTION), "GET", "/")
    logs = [front.place / "audit", front.place / "access"]
    assert eventually(lambda: all(log.exists() and log.read_text() for log in logs))
    for expected, log in zip(shown, logs, strict=True):
        assert list(json.loads(log.read_text().splitlines()[0])) == list(expected)
