"""Dask's side of `benches.contracts.run`: a cluster of local processes, which it starts again when they are lost."""

from __future__ import annotations

from typing import Any

import work
from distributed import Client  # type: ignore[import-not-found]  # in the environment of the peers


def timed() -> None:
    """Run one part."""
    with Client(n_workers=work.SLOTS, threads_per_worker=1, dashboard_address=None) as client:

        def run(tasks: list[tuple[int, str]]) -> Any:
            futures = client.map(work.slow_and_logged, tasks, pure=False)
            return iter(client.gather(futures))

        def kill() -> dict[str, Any]:
            return work.killed(run)

        def iterate() -> dict[str, Any]:
            rounds = 20

            def repeated() -> None:
                blocks = [1e300, 1e300]
                for _ in range(rounds):
                    futures = client.map(work.halved, blocks, pure=False)
                    blocks = client.gather(futures)
                    if blocks[0] == 0.0:
                        break

            return {"seconds": work.median_seconds(repeated, 5) / rounds}

        work.main({"kill": kill, "iterate": iterate})


if __name__ == "__main__":
    timed()
