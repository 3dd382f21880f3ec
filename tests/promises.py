"""What users are promised about time.

How busy the machine of a test is, nobody knows: with pytest, such an end only has to come. ``python -m tests.promises`` plays the same
tests with the times that are promised; it wants a machine that has nothing else to do.
"""

from __future__ import annotations

import os
import sys

import pytest

_ARE_KEPT = "EXOSKEL_TEST_PROMISES"
# What has not ended by then hangs.
_HANGS_SECONDS = 60.0

_TESTS = [
    "tests/test_cli_worker.py::test_all_ends_soon_after_a_signal",
    "tests/test_executor.py::test_ctrl_c_ends_everything",
    "tests/test_faults.py::test_ctrl_c_ends_everything",
    "tests/test_worker_life.py::test_slots_without_a_manager_leave_at_once",
]


def promised(seconds: float) -> float:
    """Return how long something may take that is promised to users within so many seconds."""
    return seconds if _ARE_KEPT in os.environ else _HANGS_SECONDS


def main() -> int:
    """Play the tests of what is promised."""
    os.environ[_ARE_KEPT] = "1"
    return pytest.main(["--quiet", *_TESTS])


if __name__ == "__main__":
    sys.exit(main())
