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
    assert keys.evictions == 0
    better = KINDS[: KINDS.index(keys.memory)]
    assert [line.partition(":")[0] for line in keys.memory_foregone] == list(better)
    assert manager.summary().as_dict()["keys"]["hits"] == manager.summary().keys.hits


def test_memory_that_is_asked_for_is_what_is_used() -> None:
    with ex.Executor(1, key_memory="ordinary") as executor:
        assert executor.submit(abs, -1).result() == 1
        keys = executor.summary().keys
    assert (keys.memory, keys.memory_foregone) == ("ordinary", [])


def test_managers_share_the_room_for_ready_keys() -> None:
    """Two managers of one process have more keys than it holds ready; a third one, which asked for another number, shares nothing."""
    with (
        ex.Manager(ex.Farm(abs), ex.ParDegree(3), ready_keys=4, frame_items_max=1) as one,
        ex.Manager(ex.Farm(abs), ex.ParDegree(3), ready_keys=4, frame_items_max=1) as other,
        ex.Manager(ex.Farm(abs), ex.ParDegree(1)) as apart,
    ):
        before = apart.summary().keys
        for _ in range(10):
            for manager in (one, other):
                assert list(manager.map(range(-20, 0))) == list(range(20, 0, -1))
        keys = one.summary().keys
        assert apart.summary().keys.evictions == before.evictions == 0
    assert keys.evictions > 0
    assert keys.ready <= 4
    # Both managers' keys: two directions of six sessions at least.
    assert keys.compact >= 12


@pytest.mark.parametrize("number", [0, -1, 1.5, True, (1 << 20) + 1])
def test_an_impossible_number_of_ready_keys_is_named(number: Any) -> None:
    with pytest.raises(ValueError, match=f"got ready_keys={number}, expected"):
        ex.Manager(abs, ex.ParDegree(1), ready_keys=number)


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
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
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
