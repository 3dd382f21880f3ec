"""`multiprocessing.Pool.imap`: the fastest thing in the standard library for a stream of small items."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.pool import Pool
from typing import Any

from protocol import SLOTS, Engine, Function, Program, main


class PoolProgram(Program):
    """Stages chained through `imap`: the stream of one is the input of the next."""

    def __init__(self, pool: Pool, stages: Sequence[Function]) -> None:
        self.pool = pool
        self.stages = stages

    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """One item a message."""
        return self.map_chunked(items, 1)

    def map_chunked(self, items: Iterable[Any], chunk: int) -> Iterator[Any]:
        """The pool's own chunks."""
        stream: Iterable[Any] = items
        for stage in self.stages:
            stream = self.pool.imap(stage, stream, chunksize=chunk)
        return iter(stream)


class PoolEngine(Engine):
    """A pool with two processes, forked as the default is on Linux."""

    module = "multiprocessing.pool"
    chunks = (32, 256, 2048)

    @contextmanager
    def program(self, *stages: Function) -> Iterator[Program]:
        """A fresh pool."""
        with multiprocessing.Pool(SLOTS) as pool:
            yield PoolProgram(pool, stages)

    @contextmanager
    def caller(self, function: Function) -> Iterator[Function]:
        """`apply` in its asynchronous form, as a user who submits would write it."""
        with multiprocessing.Pool(SLOTS) as pool:
            yield lambda item: pool.apply_async(function, (item,)).get()


if __name__ == "__main__":
    main(PoolEngine)
