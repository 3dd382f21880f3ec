"""Ray's side of `benches.patterns.run`."""

from __future__ import annotations

import ray  # type: ignore[import-not-found]  # in the environment of the peers
import work


def sums() -> dict[str, float]:
    """Add numbers, by the best chunks that are made by hand."""
    expected = work.sum_of(range(work.NUMBERS))
    remote = ray.remote(work.sum_of)
    return {
        "seconds": min(
            work.seconds_of(
                lambda size=size: sum(  # type: ignore[misc]
                    ray.get([remote.remote(chunk) for chunk in work.chunks(size)])
                ),
                expected,
            )
            for size in work.CHUNKS
        )
    }


if __name__ == "__main__":
    ray.init(num_cpus=work.SLOTS, include_dashboard=False, log_to_driver=False)
    work.main({"sum": sums})
