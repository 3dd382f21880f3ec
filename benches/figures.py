"""Pictures of results, by whatever Python on this machine has matplotlib, or one that is made for it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from benches.machine import ROOT

LOCK = ROOT / "benches" / "peers.lock"
OWN = ROOT / "target" / "figures"


def draw(module: str, *words: Path) -> None:
    """Runs a module of `benches` that needs matplotlib, and says so where there is none."""
    for python in (Path(sys.executable), ROOT / ".venv-peers" / "bin" / "python", own()):
        if python is not None and has_matplotlib(python):
            command = [
                str(python),
                "-m",
                f"benches.{module}",
                *(str(word.resolve()) for word in words),
            ]
            subprocess.run(command, cwd=ROOT, check=True)
            return
    print("no picture: matplotlib can't be had here", file=sys.stderr)


def has_matplotlib(python: Path) -> bool:
    """Whether this interpreter is there and can draw."""
    if not python.exists():
        return False
    command = [str(python), "-c", "import matplotlib"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def own() -> Path | None:
    """An environment with nothing else, of the version that the peers' one has."""
    python = OWN / "bin" / "python"
    if not python.exists():
        [version] = re.findall(r"^matplotlib==\S+", LOCK.read_text(), re.MULTILINE)
        make = [sys.executable, "-m", "venv", "--clear", str(OWN)]
        get = [str(python), "-m", "pip", "install", "--quiet", version]
        for command in (make, get):
            if subprocess.run(command, check=False).returncode:
                return None
    return python
