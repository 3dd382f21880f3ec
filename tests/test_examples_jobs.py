"""The examples of jobs run as a reader runs them, and say what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parent.parent / "examples/heat.py"


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("words", [[], ["--manager"]], ids=["job", "manager"])
def test_edges_that_siblings_exchange_give_the_field_of_one_process(
    words: list[str], processes: int
) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), "--processes", str(processes), *words],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "6.480707 degrees on average; as in one process: True\n"
