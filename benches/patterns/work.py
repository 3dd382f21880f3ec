"""What all engines do, and how it is measured."""

from __future__ import annotations

import json
import random
import re
import sys
import sysconfig
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

SLOTS = 2
# For `sum`.
NUMBERS = 10_000_000
# For `array`: 256 MiB of floats.
ROWS, COLUMNS = 4096, 8192
# For `divide`: leaves of a tree that is as deep as chance has it, and the seconds of one at most.
LEAF_SECONDS = 0.004
TREE = 1200

WORD = re.compile(r"[A-Za-z]+")


def value_of(number: int) -> int:
    """Compute a little of a number."""
    return number * number % 7


def sum_of(numbers: range) -> int:
    """Compute and add: a chunk as somebody would make it by hand."""
    return sum(map(value_of, numbers))


def chunks(size: int) -> Iterator[range]:
    """Cut the numbers by hand."""
    for start in range(0, NUMBERS, size):
        yield range(start, min(NUMBERS, start + size))


CHUNKS = [NUMBERS // parts for parts in (2, 4, 8, 16, 64, 256)]

# How many files a chunk has, where somebody chooses it.
FILES_TOGETHER = (1, 8, 32, 128)


def paths() -> list[str]:
    """Return the files of Python's library, with the topics of its documentation."""
    library = Path(sysconfig.get_path("stdlib"))
    found = [path for path in sorted(library.rglob("*.py")) if "site-packages" not in path.parts]
    return [str(path) for path in found]


def words_of(path: str) -> list[str]:
    """Read a file's words."""
    return WORD.findall(Path(path).read_text(encoding="utf-8", errors="replace"))


def count_words(path: str) -> Counter[str]:
    """Count a file's words."""
    return Counter(words_of(path))


def merged(into: Counter[str], other: Counter[str]) -> Counter[str]:
    """Add counts to the first ones."""
    into.update(other)
    return into


@cache
def array() -> Any:
    """Make the array."""
    import numpy

    return numpy.arange(ROWS * COLUMNS, dtype=numpy.float64).reshape(ROWS, COLUMNS)


def transformed(block: Any) -> Any:
    """Compute a little of each element."""
    import numpy

    return numpy.sin(block)


def busy(seconds: float) -> None:
    """Keep a core busy."""
    ends = time.perf_counter() + seconds
    while time.perf_counter() < ends:
        pass


def is_leaf(problem: tuple[int, int]) -> bool:
    """Say whether a problem is small enough."""
    return problem[1] <= 1


def solved(problem: tuple[int, int]) -> int:
    """Take some time, as chance has it."""
    busy(random.Random(problem[0]).random() * LEAF_SECONDS)
    return 1


def divided(problem: tuple[int, int]) -> list[tuple[int, int]]:
    """Divide as chance has it: one part may be nearly all."""
    seed, size = problem
    part = 1 + int(random.Random(seed).random() ** 2 * (size - 1) / 2)
    return [(2 * seed, part), (2 * seed + 1, size - part)]


def problem() -> tuple[int, int]:
    """Return the whole problem."""
    return 1, TREE


def seconds_of(run: Callable[[], Any], expected: Any, rounds: int = 3) -> float:
    """Time a run whose workers are there, at its best; its result is compared."""
    best = float("inf")
    for number in range(rounds + 1):
        start = time.perf_counter()
        result = run()
        spent = time.perf_counter() - start
        if expected is not None and result != expected:
            raise AssertionError(f"got {result!r:.80}, expected {expected!r:.80}")
        # The first one starts what isn't there yet.
        best = min(best, spent) if number else best
    return best


def checked_array(result: Any) -> float:
    """Return a number of the array's last part, and its shape's."""
    return float(result[-1, -1]) + result.shape[0]


def main(parts: dict[str, Callable[[], dict[str, float]]]) -> None:
    """Run the part that the command line names, and print its seconds."""
    part = sys.argv[1]
    print(json.dumps(parts[part]() if part in parts else {}))
