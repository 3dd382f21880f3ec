"""What the comparisons with other programs share: a peer, and what it needs to be there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
# Where the peers from PyPI are installed.
ENVIRONMENT = ROOT / "target" / "peers"
PYTHON = ENVIRONMENT / "bin" / "python"
# Seconds for one question to a peer; the longest chain takes a tenth of one.
PEER_SECONDS = 60
INSTALL_SECONDS = 900


@dataclass
class Peer:
    """Another program: the packages it needs, and what it finds wrong with us (or we with it)."""

    name: str
    packages: list[str]
    missing: Callable[[], list[str]]
    compare: Callable[[], list[str]]
    # Requirements, with versions, from PyPI.
    wheels: list[str] = field(default_factory=list)


def run(*command: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """One process with its output, however it ends."""
    options.setdefault("timeout", PEER_SECONDS)
    return subprocess.run(
        list(map(str, command)),
        capture_output=True,
        text=True,
        errors="backslashreplace",
        check=False,
        **options,
    )


def install(packages: list[str]) -> str:
    """Installs Debian packages where that is possible, and says why not elsewhere."""
    if os.geteuid() != 0:
        return "only root can install packages"
    if not shutil.which("apt-get"):
        return "there is no apt-get"
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    patience = ["--option=Acquire::Retries=0", "--option=Acquire::http::Timeout=20"]
    for words in [["update"], ["install", "--yes", "--no-install-recommends", *packages]]:
        try:
            done = subprocess.run(
                ["apt-get", "--quiet=2", *patience, *words],
                env=environment,
                capture_output=True,
                text=True,
                timeout=INSTALL_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return f"apt-get {words[0]} did not end within {INSTALL_SECONDS} s"
        if done.returncode:
            last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
            return f"apt-get {words[0]}: {last[0]}"
    return ""


def install_wheels(wheels: list[str]) -> str:
    """Installs from PyPI, into an environment of the peers, and says why not."""
    if not PYTHON.exists():
        done = run(sys.executable, "-m", "venv", "--clear", ENVIRONMENT)
        if done.returncode:
            return f"no environment for them: {done.stderr.strip()}"
    pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = run(PYTHON, *pip, *wheels, timeout=INSTALL_SECONDS)
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        return f"pip: {last[0]}"
    return ""
