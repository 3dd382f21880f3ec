"""Ctrl-C at a moment that a seed decides, in programs of every kind; ``python -m tests.interrupts`` plays more of them."""

from pathlib import Path

import pytest
from tests.interrupts import PROGRAMS, interrupt


@pytest.mark.parametrize("seed", range(len(PROGRAMS)))
def test_ctrl_c_ends_a_program_with_one_traceback(seed: int, tmp_path: Path) -> None:
    interrupted = interrupt(seed, tmp_path)
    assert interrupted.faults() == [], interrupted.errors
