"""The example of coupled programs runs as a reader runs it, and its programs agree on what has moved."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def test_an_ocean_and_an_atmosphere_exchange_heat() -> None:
    pytest.importorskip("numpy")
    python = Path(sys.executable).parent
    done = subprocess.run(
        [sys.executable, "-m", "exoskel", "couple", "examples/coupled/heat.toml"],
        cwd=ROOT,
        env={**os.environ, "PATH": f"{python}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "ocean | ocean: 20 steps, 10.768 degrees in this block" in done.stdout
    taken = [float(text) for text in re.findall(r"has taken (\d+\.\d)", done.stdout)]
    assert taken == [2860.1, 2860.2] or taken == [2860.2, 2860.1]
    moved = re.findall(r"^(\S+) to (\S+) +(\d+) +", done.stdout, re.MULTILINE)
    assert moved == [
        ("ocean.temperature", "atmosphere.surface", "20"),
        ("ocean.temperature", "ocean.around", "20"),
        ("atmosphere.cooling", "ocean.cooling", "20"),
    ]
