"""``exoskel gateway`` as people run it: between two networks that can't see each other, and with what they can get wrong."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exoskel.cli import main

PATIENCE = 60.0


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    assert main(["pki", "init", str(tmp_path / "pki"), "--json"]) == 0
    return tmp_path


def issue(place: Path, role: str, name: str) -> Path:
    path = place / f"{name}.pem"
    words = ["pki", "issue", "--directory", str(place / "pki"), "--output", str(path), "--json"]
    assert main([*words, "--role", role, "--name", name]) == 0
    return path


def files(place: Path, policy: str, site: str) -> list[str]:
    (place / "policy.toml").write_text(policy)
    (place / "site.toml").write_text(site)
    credential = place / "gate.pem"
    if not credential.exists():
        issue(place, "gateway", "gate")
    words = ["--credential", str(credential), "--policy", str(place / "policy.toml")]
    return [*words, "--site", str(place / "site.toml")]


EVERYBODY = '[[allow.tunnel]]\nfrom = "*"\nto = "*"\n'


@contextlib.contextmanager
def gateway(
    words: list[str], log: Path, listen: str, *before: str
) -> Iterator[tuple[dict[str, Any], subprocess.Popen[str]]]:
    command = [*before, sys.executable, "-m", "exoskel", "gateway", "--listen", listen, "--json"]
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [*command, *words], stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, log.read_text()
            yield json.loads(line), process
        finally:
            process.kill()


def wait_for_line(log: Path, *words: str) -> str:
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        for line in log.read_text().splitlines():
            if all(word in line for word in words):
                return line
        time.sleep(0.02)
    raise AssertionError(f"no line with {words} in\n{log.read_text()}")


def test_it_says_where_it_listens_and_ends_in_order(authority: Path) -> None:
    words = [*files(authority, EVERYBODY, ""), "--tunnels", "3"]
    log = authority / "log"
    with gateway(words, log, "tcp://127.0.0.1:0") as (told, process):
        assert told["name"] == "gate"
        assert told["listen"].startswith("tcp://127.0.0.1:")
        assert told["tunnels"] == 3
        (authority / "site.toml").write_text("[node]\nlab1 = 7\n")
        wait_for_line(log, " gateway ", "site.toml, line 2", "what was in force before stays")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


def test_a_policy_that_connects_nobody_is_told_at_the_start(authority: Path) -> None:
    words, log = files(authority, "[allow]\n", ""), authority / "log"
    expected = "the policy has no [[allow.tunnel]], so this gateway connects nobody"
    with gateway(words, log, "tcp://127.0.0.1:0"):
        wait_for_line(log, " gateway ", expected)
    words = files(authority, EVERYBODY, "")
    with gateway(words, log, "tcp://127.0.0.1:0"):
        (authority / "policy.toml").write_text("[allow]\n")
        wait_for_line(log, "have changed, and hold from now on")
        wait_for_line(log, expected)
        before_change = log.read_text().partition("have changed")[0]
    assert expected not in before_change


@pytest.mark.parametrize(
    ("policy", "site", "expected"),
    [
        ('[[allow.tunnel]]\nfrom = "*"\n', "", "line 1"),
        (EVERYBODY, '\n[node]\nlab1 = "lab1"\n', "site.toml, line 3"),
        (EVERYBODY, "[subnet.lab]\nnames = []\n", "has no names"),
    ],
)
def test_files_that_are_wrong_are_refused_with_their_line(
    authority: Path, capsys: pytest.CaptureFixture[str], policy: str, site: str, expected: str
) -> None:
    words = files(authority, policy, site)
    capsys.readouterr()
    assert main(["gateway", "--listen", "tcp://127.0.0.1:0", *words, "--json"]) == 1
    assert expected in json.loads(capsys.readouterr().out)["error"]


def test_other_credentials_and_addresses_are_refused(
    authority: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = files(authority, EVERYBODY, "")
    worker = issue(authority, "worker", "lab1")
    capsys.readouterr()
    for more, expected in (
        (["--listen", "tcp://127.0.0.1:0", *words, "--credential", str(worker)], "gateway"),
        (["--listen", "unix:/tmp/gate", *words], "tcp://HOST:PORT"),
        (["--listen", "tcp://127.0.0.1", *words], "host:port"),
    ):
        assert main(["gateway", *more, "--json"]) == 1
        assert expected in json.loads(capsys.readouterr().out)["error"]
