"""Ray, two actors: its fastest way to call a function many times.

The variant is ``local`` (one raylet, objects through shared memory) or ``tcp`` (a head without CPUs and two raylets
with one each, so that objects cross TCP as ours do). Token authentication is off, which is in Ray's favour.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any

os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray
import tasks
from protocol import SLOTS, Engine, Function, Program, main
from ray.cluster_utils import Cluster


@ray.remote(num_cpus=1, max_restarts=-1, max_task_retries=3)
class Caller:
    """Runs what it is told."""

    def __init__(self, stages: Sequence[Function]) -> None:
        self.stages = stages

    def ready(self) -> None:
        """Answer, so that the caller knows the actor's process is up."""

    def run(self, stage: int, item: Any) -> Any:
        """One stage on one item."""
        return self.stages[stage](item)

    def run_many(self, items: list[Any]) -> list[Any]:
        """A chunk that the user has made by hand."""
        return tasks.noop_many(items)


class RayProgram(Program):
    """Stages chained through object references."""

    def __init__(self, stages: Sequence[Function]) -> None:
        self.stages = stages
        self.actors = [Caller.remote(stages) for _ in range(SLOTS)]  # type: ignore[attr-defined]
        ray.get([actor.ready.remote() for actor in self.actors])

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """One call an item, to the actors in turn; references are resolved a thousand at a time."""
        references = []
        for item, actor in zip(items, cycle(self.actors), strict=False):
            reference = item
            for stage in range(len(self.stages)):
                reference = actor.run.remote(stage, reference)
            references.append(reference)
        for start in range(0, len(references), 1000):
            yield from ray.get(references[start : start + 1000])

    def map_chunked(self, items: Sequence[Any], chunk: int) -> Iterator[Any]:
        """Chunks that the user makes by hand."""
        pieces = [list(items[start : start + chunk]) for start in range(0, len(items), chunk)]
        calls = [
            actor.run_many.remote(piece)
            for piece, actor in zip(pieces, cycle(self.actors), strict=False)
        ]
        for piece in ray.get(calls):
            yield from piece


class RayEngine(Engine):
    """Two slots in a cluster of our own; no dashboard."""

    module = "ray"
    chunks = (100, 1000)

    @contextmanager
    def program(self, *stages: Function) -> Iterator[Program]:
        """A fresh cluster and two actors."""
        with self.cluster():
            yield RayProgram(stages)

    @contextmanager
    def caller(self, function: Function) -> Iterator[Function]:
        """One call to one actor, and its result."""
        with self.cluster():
            actor = Caller.remote([function])  # type: ignore[attr-defined]
            yield lambda item: ray.get(actor.run.remote(0, item))

    @contextmanager
    def cluster(self) -> Iterator[None]:
        """One raylet, or three."""
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if self.variant == "local":
            ray.init(num_cpus=SLOTS, include_dashboard=False, object_store_memory=1 << 30, **quiet)
            try:
                yield
            finally:
                ray.shutdown()
            return
        cluster = Cluster(
            initialize_head=True,
            head_node_args={
                "num_cpus": 0,
                "include_dashboard": False,
                "object_store_memory": 1 << 30,
            },
        )
        try:
            for _ in range(SLOTS):
                cluster.add_node(num_cpus=1, object_store_memory=1 << 30)
            ray.init(address=cluster.address, **quiet)
            yield
        finally:
            ray.shutdown()
            cluster.shutdown()


if __name__ == "__main__":
    main(RayEngine)
