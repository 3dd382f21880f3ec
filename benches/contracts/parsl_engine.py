"""Parsl's side of `benches.contracts.run`: its executor of processes, whose tasks run again when theirs is lost."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import parsl  # type: ignore[import-not-found]  # in the environment of the peers
import work
from parsl.executors import HighThroughputExecutor  # type: ignore[import-not-found]
from parsl.providers import LocalProvider  # type: ignore[import-not-found]


def kill() -> dict[str, Any]:
    """Lose one of two workers."""
    logged = parsl.python_app(work.slow_and_logged)

    def run(tasks: list[tuple[int, str]]) -> Iterator[int]:
        futures = [logged(task) for task in tasks]
        return iter([future.result() for future in futures])

    return work.killed(run)


def timed() -> None:
    """Run one part."""
    with tempfile.TemporaryDirectory() as folder:
        # As its documentation has it for one machine.
        executor = HighThroughputExecutor(
            label="local",
            address="127.0.0.1",
            max_workers_per_node=work.SLOTS,
            cores_per_worker=1,
            provider=LocalProvider(init_blocks=1, max_blocks=1),
            encrypted=False,
        )
        with parsl.load(parsl.Config(executors=[executor], retries=3, run_dir=folder)):
            parsl.python_app(work.halved)(1.0).result()
            work.main({"kill": kill})


if __name__ == "__main__":
    sys.exit(timed())
