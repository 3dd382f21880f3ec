"""joblib's side of `benches.numeric.run`."""

from __future__ import annotations

import json
import sys

import work
from joblib import Parallel, delayed  # type: ignore[import-not-found]  # in the environment of the peers


def main() -> None:
    """Run one part."""
    part, slots, megabytes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    table = work.make_table(megabytes)

    def run() -> list[float]:
        # By the pool that joblib keeps between calls; large arrays go to a memory map, once.
        with Parallel(n_jobs=slots, backend="loky") as parallel:
            if part == "cov":
                calls = (delayed(work.cov)(seed) for seed in range(work.COV_TASKS))
            else:
                calls = (delayed(work.part_of)(table, index) for index in range(work.SHARED_TASKS))
            return list(parallel(calls))

    print(json.dumps(work.measure(run)))


if __name__ == "__main__":
    main()
