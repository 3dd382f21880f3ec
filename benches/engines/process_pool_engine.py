"""`concurrent.futures.ProcessPoolExecutor`."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager

from executor_program import ExecutorProgram
from protocol import SLOTS, Engine, Function, Program, main


class ProcessPoolEngine(Engine):
    """Two processes, forked as the default is on Linux."""

    module = "concurrent.futures.process"
    chunks = (32, 256, 2048)

    @contextmanager
    def program(self, *stages: Function) -> Iterator[Program]:
        """A fresh executor."""
        with ProcessPoolExecutor(SLOTS) as executor:
            yield ExecutorProgram(executor, stages)

    @contextmanager
    def caller(self, function: Function) -> Iterator[Function]:
        """`submit` and `result`."""
        with ProcessPoolExecutor(SLOTS) as executor:
            yield lambda item: executor.submit(function, item).result()


if __name__ == "__main__":
    main(ProcessPoolEngine)
