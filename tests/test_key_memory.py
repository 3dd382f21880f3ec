"""The memory in which keys wait, and what a manager reports of its keys."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import pytest

import exoskel as ex
from exoskel import _core

KINDS = ("secret", "locked", "ordinary")


def test_a_summary_says_what_became_of_the_keys() -> None:
    with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager:
        assert list(manager.map(range(-50, 0))) == list(range(50, 0, -1))
        keys = manager.summary().keys
    # Two directions of two sessions, and none of them had to go.
    assert keys.derivations >= 4
    assert keys.ready >= 4
    assert keys.compact >= keys.ready
    assert keys.hits > 0
    assert keys.misses == keys.derivations
    assert (keys.evictions, keys.prefetches) == (0, 0)
    better = KINDS[: KINDS.index(keys.memory)]
    assert [line.partition(":")[0] for line in keys.memory_foregone] == list(better)
    assert manager.summary().as_dict()["keys"]["hits"] == manager.summary().keys.hits


def test_memory_that_is_asked_for_is_what_is_used() -> None:
    with ex.Executor(1, key_memory="ordinary") as executor:
        assert executor.submit(abs, -1).result() == 1
        keys = executor.summary().keys
    assert (keys.memory, keys.memory_foregone) == ("ordinary", [])


def test_an_unknown_kind_is_named() -> None:
    wrong: Any = "safe"
    with pytest.raises(ValueError, match='key_memory: got "safe", expected "secret"'):
        ex.Manager(abs, ex.ParDegree(1), key_memory=wrong)


@pytest.mark.parametrize("kind", ["secret", "locked"])
def test_memory_that_is_not_there_is_an_error_and_no_other_memory(
    kind: Literal["secret", "locked"],
) -> None:
    program = f"""
import os, resource
import exoskel as ex
from exoskel import _core

try:
    # Loads whatever is needed, which somebody else may not be able to read.
    ex.Manager(abs, ex.ParDegree(1), key_memory="none")
except (ex.KeyMemoryError, ValueError):
    pass
resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
if os.geteuid() == 0:
    # Who is root may lock all the same.
    os.setuid(65534)
for ask in (
    lambda: ex.Manager(abs, ex.ParDegree(1), key_memory={kind!r}),
    lambda: _core.check_key_memory({kind!r}),
):
    try:
        ask()
    except ex.KeyMemoryError as error:
        print(error)
_core.check_key_memory("ordinary")
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=False
    )
    first, second = ran.stdout.splitlines()
    assert first.startswith(f"got no {kind} memory of 528 bytes for keys (")
    assert "ulimit -l" in first
    assert second == first
    assert ran.stderr == ""


def test_a_worker_asks_once_for_all_its_slots() -> None:
    _core.check_key_memory("ordinary")
    with pytest.raises(ValueError, match="expected"):
        _core.check_key_memory("best")
