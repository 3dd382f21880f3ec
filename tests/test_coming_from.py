"""The programs in docs/guide/coming-from.md that need other libraries print what the page shows, where those libraries are installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import exoskel as ex

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "guide" / "coming-from.md"
# `make bench` installs them there.
PEERS = ROOT / ".venv-peers" / "bin" / "python"
# What a page's section holds: its program for a library, and what it prints, below ours.
THEIRS = re.findall(
    r"^<!-- not run: it needs (\w+) -->\n```python\n(.*?)^```\n.*?^```text\n(.*?)^```",
    PAGE.read_text(encoding="utf-8"),
    re.DOTALL | re.MULTILINE,
)
MODULES = {"joblib": "joblib", "Dask": "distributed", "mpi4py": "mpi4py"}


def test_the_page_has_a_program_for_each_library() -> None:
    assert {library for library, _, _ in THEIRS} == MODULES.keys()


@pytest.mark.parametrize(
    ("library", "program", "shown"), THEIRS, ids=[library for library, _, _ in THEIRS]
)
def test_a_program_of_another_library_prints_the_same(
    library: str, program: str, shown: str, tmp_path: Path
) -> None:
    python = str(PEERS) if PEERS.exists() else sys.executable
    probe = [python, "-c", f"import {MODULES[library]}"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip(f"{library} is not installed")
    (tmp_path / "script.py").write_text(program)
    command = [python, "script.py"]
    if library == "mpi4py":
        mpiexec = shutil.which("mpiexec", path=str(Path(python).parent)) or shutil.which("mpiexec")
        if mpiexec is None:
            pytest.skip("mpiexec is not installed")
        # As the page says, on whatever cores there are, and as whatever user.
        placed = ["--oversubscribe", "--allow-run-as-root"]
        command = [mpiexec, *placed, "-n", "3", python, "-m", "mpi4py.futures", "script.py"]
    # One of Dask's runs on our slots.
    paths = [str(Path(ex.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, shown), done.stderr
