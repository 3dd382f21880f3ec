"""Ray's side of `benches.contracts.run`: tasks that run again when their process is lost, and actors that keep blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray  # type: ignore[import-not-found]  # in the environment of the peers
import work


@ray.remote(num_cpus=1)
class Block:
    """Keeps a block."""

    def __init__(self, number: float) -> None:
        self.number = number

    def halve(self) -> float:
        """Do a round."""
        self.number = work.halved(self.number)
        return self.number


def kill() -> dict[str, Any]:
    """Lose one of two workers."""
    logged = ray.remote(num_cpus=1, max_retries=3)(work.slow_and_logged)

    def run(tasks: list[tuple[int, str]]) -> Iterator[int]:
        return iter(ray.get([logged.remote(task) for task in tasks]))

    return work.killed(run)


def iterate() -> dict[str, Any]:
    """Repeat a map over two blocks, which two actors keep."""
    actors = [Block.remote(1e300) for _ in range(2)]  # type: ignore[attr-defined]
    ray.get([actor.halve.remote() for actor in actors])
    rounds = 100

    def repeated() -> None:
        for _ in range(rounds):
            if ray.get([actor.halve.remote() for actor in actors])[0] == 1.0:
                break

    return {"seconds": work.median_seconds(repeated, 5) / rounds}


if __name__ == "__main__":
    ray.init(num_cpus=work.SLOTS, include_dashboard=False, log_to_driver=False)
    work.main({"kill": kill, "iterate": iterate})
