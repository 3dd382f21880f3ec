"""What both engines do, and how it is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

COV_TASKS = 400
SHARED_TASKS = 100


def cov(seed: int) -> float:
    """Compute a covariance: a product of matrices, which BLAS does with as many threads as it has."""
    samples = np.random.default_rng(seed).standard_normal((120, 1000))
    return float(np.cov(samples).sum())


def part_of(table: np.ndarray[Any, Any], index: int) -> float:
    """Read a part of a table, and one number of each of its pages."""
    parts = table.reshape(SHARED_TASKS, -1)
    return float(parts[index].sum()) + float(table[:: 4096 // table.itemsize].sum())


def make_table(megabytes: int) -> np.ndarray[Any, Any]:
    """Make the constant."""
    count = megabytes * (1 << 20) // 8 // SHARED_TASKS * SHARED_TASKS
    return np.arange(count, dtype=np.float64)


def memory_bytes() -> int:
    """Measure this process and its children: pages that several map count once."""
    parent = os.getpid()
    with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
        processes = {parent, *map(int, file.read().split())}
    for thread in os.listdir(f"/proc/{parent}/task"):
        with open(f"/proc/{parent}/task/{thread}/children", encoding="ascii") as file:
            processes.update(map(int, file.read().split()))
    total = 0
    for process in processes:
        try:
            with open(f"/proc/{process}/smaps_rollup", encoding="ascii") as file:
                total += next(int(line.split()[1]) for line in file if line.startswith("Pss:"))
        except OSError:
            continue  # it has just ended
    return total * 1024


def measure(run: Callable[[], Iterable[float]]) -> dict[str, float]:
    """Time the first run of a pool, with its start, and later ones."""
    start = time.perf_counter()
    expected = sum(run())
    cold = time.perf_counter() - start
    warm = []
    for _ in range(3):
        start = time.perf_counter()
        assert sum(run()) == expected
        warm.append(time.perf_counter() - start)
    return {
        "cold_seconds": cold,
        "warm_seconds": min(warm),
        "memory_bytes": memory_bytes(),
        "sum": expected,
    }
