"""joblib's side of `benches.patterns.run`: its loky workers, with its memory maps."""

from __future__ import annotations

from typing import Any

import numpy as np
import work
from joblib import Parallel, delayed  # type: ignore[import-not-found]  # in the environment of the peers


def sums() -> dict[str, float]:
    """Add numbers, by the best chunks that are made by hand."""
    expected = work.sum_of(range(work.NUMBERS))
    with Parallel(n_jobs=work.SLOTS) as parallel:
        return {
            "seconds": min(
                work.seconds_of(
                    lambda size=size: sum(  # type: ignore[misc]
                        parallel(delayed(work.sum_of)(chunk) for chunk in work.chunks(size))
                    ),
                    expected,
                )
                for size in work.CHUNKS
            )
        }


def array() -> dict[str, float]:
    """Map over the blocks of an array, which workers map into their memory."""
    whole = work.array()
    once = work.checked_array(work.transformed(whole))
    with Parallel(n_jobs=work.SLOTS) as parallel:

        def mapped(parts: int) -> Any:
            blocks = np.array_split(whole, parts)
            return np.concatenate(parallel(delayed(work.transformed)(block) for block in blocks))

        return {
            "seconds": min(
                work.seconds_of(lambda parts=parts: work.checked_array(mapped(parts)), once)  # type: ignore[misc]
                for parts in (2, 8, 32)
            )
        }


if __name__ == "__main__":
    work.main({"sum": sums, "array": array})
