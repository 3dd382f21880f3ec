"""``exoskel up``, with a shell in the place of ssh."""

import argparse
import json
import os
import stat
from pathlib import Path

import pytest

from exoskel.cli import main
from exoskel.cli.up import start_script
from exoskel.hosts import HostAddress

SECRET = b"-----BEGIN PRIVATE KEY-----\nsecret\x00bytes\n"

SSH = """#!/bin/sh
# Each host is a directory beside this script; "down" is one that doesn't answer.
while [ "$1" != -- ]; do shift; done
echo "$*" >> "$(dirname "$0")/commands"
if [ "$2" = down ]; then
    echo "ssh: connect to host down port 22: Connection refused" >&2
    exit 255
fi
export HOME="$(dirname "$0")/$2"
mkdir -p "$HOME"
exec sh -c "$3"
"""

PYTHON = """#!/bin/sh
echo "$*" > "$HOME/started"
case "$*" in
    *--stop*) echo stopped ;;
    *7666*) echo "exoskel: error: can't listen on tcp://0.0.0.0:7666: address already in use" >&2; exit 1 ;;
    *) echo "worker listening" ;;
esac
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Make a place with a client, a remote Python, a credential, a policy and hosts."""
    for name, text in (("ssh", SSH), ("python", PYTHON)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "worker-lab1.pem").write_bytes(SECRET)
    (tmp_path / "worker-node2.example.org.pem").write_bytes(SECRET * 2)
    (tmp_path / "policy.toml").write_text("# a policy\n")
    (tmp_path / "hosts.txt").write_text("lab1:7601\nlab2:7602 node2.example.org\n")
    return tmp_path


def up(site: Path, *arguments: str) -> int:
    fixed = [
        "--ssh",
        f"{site}/ssh -o BatchMode=yes",
        "--python",
        f"{site}/python",
        "--credential",
        f"{site}/worker-{{name}}.pem",
    ]
    return main(["up", str(site / "hosts.txt"), *fixed, *arguments])


def test_each_host_gets_its_credential_and_its_worker(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert up(site, "--slots", "3", "--policy", str(site / "policy.toml")) == 0
    for host, port, secret in (("lab1", 7601, SECRET), ("lab2", 7602, SECRET * 2)):
        run = site / host / ".exoskel/run"
        credential = run / f"worker-{port}.pem"
        assert credential.read_bytes() == secret
        assert stat.S_IMODE(credential.stat().st_mode) == 0o600
        assert stat.S_IMODE(run.stat().st_mode) == 0o700
        assert (run / f"worker-{port}.toml").read_text() == "# a policy\n"
        started = (site / host / "started").read_text()
        assert f"-m exoskel worker --listen tcp://0.0.0.0:{port}" in started
        assert "--slots 3 --policy" in started
    assert b"secret" not in (site / "commands").read_bytes()
    captured = capsys.readouterr()
    assert "[2/2]" in captured.err
    assert captured.out.splitlines()[1].split() == ["lab1:7601", "done", "worker", "listening"]


def test_an_older_credential_that_others_could_read_is_replaced(site: Path) -> None:
    run = site / "lab1/.exoskel/run"
    run.mkdir(parents=True)
    (run / "worker-7601.pem").touch(0o644)
    assert up(site) == 0
    assert stat.S_IMODE((run / "worker-7601.pem").stat().st_mode) == 0o600


def test_each_host_fails_by_itself(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (site / "hosts.txt").write_text("lab1\ndown node2.example.org\nlab1:7666\nlab3\n")
    assert up(site, "--json") == 1
    answers = {entry["host"]: entry for entry in json.loads(capsys.readouterr().out)["hosts"]}
    assert answers["lab1:7601"]["done"]
    assert answers["down:7601"]["answer"] == (
        "ssh: connect to host down port 22: Connection refused (does `ssh` to it work without a password?)"
    )
    assert (
        answers["lab1:7666"]["answer"]
        == "can't listen on tcp://0.0.0.0:7666: address already in use"
    )
    assert not answers["lab3:7601"]["done"]
    assert "worker-lab3.pem" in answers["lab3:7601"]["answer"]


def test_what_a_host_says_drives_no_terminal(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weapons = "\\033[2Jone\\302\\233two\\342\\200\\256three\\b"
    (site / "python").write_text(f"#!/bin/sh\nprintf '{weapons}\\n' >&2\nexit 1\n")
    assert up(site) == 1
    (site / "python").write_text(f"#!/bin/sh\nprintf '{weapons}\\n'\n")
    assert up(site) == 0
    captured = capsys.readouterr()
    for text in captured:
        assert "three" in text
        assert text.replace("\n", "").isprintable()


def test_nothing_is_written_through_a_link(site: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("unharmed")
    runs = site / "lab1/.exoskel/run"
    runs.mkdir(parents=True)
    runs.chmod(0o777)
    for name in ("worker-7601.pem.new", "worker-7601.pem"):
        (runs / name).symlink_to(victim)
    up(site)
    assert victim.read_text() == "unharmed"
    written = runs / "worker-7601.pem"
    assert not written.is_symlink()
    assert written.read_bytes() != b"unharmed"
    assert stat.S_IMODE(written.stat().st_mode) == 0o600
    assert stat.S_IMODE(runs.stat().st_mode) == 0o700


def test_stop(site: Path) -> None:
    assert up(site, "--stop") == 0
    assert "--stop" in (site / "lab1/started").read_text()
    assert not (site / "lab1/.exoskel").exists()


def test_no_client(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert up(site, "--ssh", "surely-no-ssh") == 1
    assert "install the OpenSSH client" in capsys.readouterr().err


def test_nothing_of_the_hosts_file_reaches_a_shell() -> None:
    arguments = argparse.Namespace(slots=None, policy=None, python="/opt/my python")
    script = start_script(arguments, HostAddress("$(reboot)", 7601, "`reboot`"), 10)
    assert "reboot" not in script
    assert "'/opt/my python'" in script
    assert os.linesep not in script
