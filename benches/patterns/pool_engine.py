"""`multiprocessing.Pool`'s side of `benches.patterns.run`."""

from __future__ import annotations

import multiprocessing
from collections import Counter

import work


def sums() -> dict[str, float]:
    """Add numbers: by the best chunks that are made by hand, and by the pool's own."""
    expected = work.sum_of(range(work.NUMBERS))
    with multiprocessing.Pool(work.SLOTS) as pool:
        by_hand = min(
            work.seconds_of(
                lambda size=size: sum(pool.imap_unordered(work.sum_of, work.chunks(size))),  # type: ignore[misc]
                expected,
            )
            for size in work.CHUNKS
        )
        own = min(
            work.seconds_of(
                lambda size=size: sum(  # type: ignore[misc]
                    pool.imap_unordered(work.value_of, range(work.NUMBERS), size)
                ),
                expected,
                1,
            )
            for size in (10_000, 100_000)
        )
    return {"seconds": by_hand, "chunksize": own}


def words() -> dict[str, float]:
    """Count words: a counter for each file, added here."""
    paths = work.paths()

    def counted(size: int) -> Counter[str]:
        total: Counter[str] = Counter()
        for counter in pool.imap_unordered(work.count_words, paths, size):
            total.update(counter)
        return total

    with multiprocessing.Pool(work.SLOTS) as pool:
        expected = counted(1)
        return {
            "seconds": min(
                work.seconds_of(lambda size=size: counted(size), expected)  # type: ignore[misc]
                for size in work.FILES_TOGETHER
            )
        }


if __name__ == "__main__":
    work.main({"sum": sums, "words": words})
