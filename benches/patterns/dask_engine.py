"""Dask's side of `benches.patterns.run`: a cluster of local processes."""

from __future__ import annotations

import dask.array as da  # type: ignore[import-not-found]  # in the environment of the peers
import dask.bag as db  # type: ignore[import-not-found]
import work
from distributed import Client  # type: ignore[import-not-found]


def sums() -> dict[str, float]:
    """Add numbers: partitions of chunks that are made by hand."""
    expected = work.sum_of(range(work.NUMBERS))
    sizes = [size for size in work.CHUNKS if size < work.NUMBERS]
    return {
        "seconds": min(
            work.seconds_of(
                lambda bag=bag: bag.map(work.sum_of).sum().compute(),  # type: ignore[misc]
                expected,
            )
            for size in sizes
            for bag in [db.from_sequence(list(work.chunks(size)), partition_size=1)]
        )
    }


def words() -> dict[str, float]:
    """Count words by `frequencies`, of the best number of partitions."""
    paths = work.paths()

    def counted(partitions: int) -> dict[str, int]:
        bag = db.from_sequence(paths, npartitions=partitions)
        return dict(bag.map(work.words_of).flatten().frequencies().compute())

    expected = counted(2)
    return {
        "seconds": min(
            work.seconds_of(lambda partitions=partitions: counted(partitions), expected)  # type: ignore[misc]
            for partitions in (2, 8, 32)
        )
    }


def array() -> dict[str, float]:
    """Map over the blocks of an array."""
    whole = work.array()
    once = work.checked_array(work.transformed(whole))

    def mapped(parts: int) -> float:
        blocks = da.from_array(whole, chunks=(work.ROWS // parts, work.COLUMNS))
        return work.checked_array(blocks.map_blocks(work.transformed, dtype="f8").compute())

    return {
        "seconds": min(
            work.seconds_of(lambda parts=parts: mapped(parts), once)  # type: ignore[misc]
            for parts in (2, 8, 32)
        )
    }


def timed() -> None:
    """Run one part."""
    with Client(n_workers=work.SLOTS, threads_per_worker=1, dashboard_address=None):
        work.main({"sum": sums, "words": words, "array": array})


if __name__ == "__main__":
    timed()
