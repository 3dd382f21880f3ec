"""Jobs whose processes come to hosts by the real OpenSSH."""

from __future__ import annotations

import shutil
import sys

from tests.peers.peer import ROOT, Peer, run

TEST_SECONDS = 300
SERVER_PATH = "/usr/sbin:/usr/local/sbin:/usr/bin"


def missing() -> list[str]:
    """The server, or the client."""
    found = {"sshd": shutil.which("sshd", path=SERVER_PATH), "ssh": shutil.which("ssh")}
    return [name for name, path in found.items() if path is None]


def compare() -> list[str]:
    """Processes of two hosts talk to each other; nothing is skipped here."""
    words = ["-m", "pytest", "--quiet", "-rs", "tests/test_job_ssh.py"]
    done = run(sys.executable, *words, cwd=ROOT, timeout=TEST_SECONDS)
    is_whole = done.returncode == 0 and "SKIPPED" not in done.stdout
    return [] if is_whole else (done.stdout + done.stderr).splitlines()[-40:]


JOBS = [Peer("jobs over OpenSSH", ["openssh-server"], missing, compare)]
