"""What engines with a `concurrent.futures.Executor` have in common: the standard library's, MPI's and ours."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Any

from protocol import Function, Program


class ExecutorProgram(Program):
    """Stages chained through `Executor.map`."""

    def __init__(self, executor: Executor, stages: Sequence[Function]) -> None:
        self.executor = executor
        self.stages = stages

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """One future an item."""
        return self.map_chunked(items, 1)

    def map_chunked(self, items: Iterable[Any], chunk: int) -> Iterator[Any]:
        """The executor's own chunks."""
        stream: Iterable[Any] = items
        for stage in self.stages:
            stream = self.executor.map(stage, stream, chunksize=chunk)
        return iter(stream)
