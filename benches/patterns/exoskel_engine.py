"""Our side of `benches.patterns.run`."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import work

import exoskel as ex


def run(program: ex.Skeleton[Any, Any], items: Any, expected: Any, tries: int = 1) -> float:
    """Time a program that gives one result: the best of as many tries as peers have with chunks of different lengths."""
    with ex.Manager(program, ex.ParDegree(work.SLOTS)) as manager:
        return min(
            work.seconds_of(lambda: next(manager.map(items)), expected) for _ in range(tries)
        )


def sums() -> dict[str, float]:
    """Add numbers: nobody says how many go together."""
    program: Any = ex.Pipeline(work.value_of, ex.Reduce(operator.add))
    expected = work.sum_of(range(work.NUMBERS))
    return {"seconds": run(program, range(work.NUMBERS), expected, len(work.CHUNKS))}


def words() -> dict[str, float]:
    """Count words: by file, and by key."""
    counted = ex.Pipeline(work.count_words, ex.Reduce(work.merged))
    keyed = ex.Pipeline(
        ex.FlatMap(work.words_of), ex.Reduce(operator.add, key=str, value=lambda _: 1)
    )
    paths = work.paths()
    expected = dict(next(counted.run_sequential(paths)))
    return {
        "seconds": run(counted, paths, expected, len(work.FILES_TOGETHER)),
        "by_key": run(keyed, paths, expected),
    }


def array() -> dict[str, float]:
    """Map over the blocks of an array."""
    program: Any = ex.Map(lambda whole: np.array_split(whole, 32), work.transformed, np.concatenate)
    items = [work.array()]
    with ex.Manager(program, ex.ParDegree(work.SLOTS)) as manager:
        once = work.checked_array(work.transformed(items[0]))
        return {
            "seconds": work.seconds_of(lambda: work.checked_array(next(manager.map(items))), once)
        }


def divide() -> dict[str, float]:
    """Solve a problem that is divided as chance has it; alone, and on slots."""
    program = ex.DivideAndConquer(work.is_leaf, work.solved, work.divided, sum)
    items = [work.problem()]
    alone = work.seconds_of(lambda: next(program.run_sequential(items)), work.TREE)
    seconds = run(program, items, work.TREE)
    return {
        "seconds": seconds,
        "alone": alone,
        "efficiency": alone / seconds / work.SLOTS,
    }


if __name__ == "__main__":
    work.main({"sum": sums, "words": words, "array": array, "divide": divide})
