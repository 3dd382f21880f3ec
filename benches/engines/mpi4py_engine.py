"""`mpi4py.futures` on Open MPI, forced to TCP by the runner's `mpiexec` line.

Started as ``mpiexec -n 3 python -m mpi4py.futures mpi4py_engine.py ...``: rank 0 runs this script, the others serve.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from executor_program import ExecutorProgram
from mpi4py.futures import MPIPoolExecutor
from protocol import SLOTS, Engine, Function, Program, descendants, main


class MpiEngine(Engine):
    """The manager's rank and two worker ranks; all of them spin, three on two cores."""

    module = "mpi4py.futures"
    chunks = (32, 256, 2048)
    unsupported = {  # noqa: RUF012 - read only
        "kill": "a killed rank ends the whole MPI job",
        "startup": "the ranks start before the program does",
    }

    @contextmanager
    def program(self, *stages: Function) -> Iterator[Program]:
        """The pool over the ranks that `mpiexec` has started."""
        with MPIPoolExecutor(SLOTS) as executor:
            executor.bootup()
            yield ExecutorProgram(executor, stages)

    @contextmanager
    def caller(self, function: Function) -> Iterator[Function]:
        """`submit` and `result`."""
        with MPIPoolExecutor(SLOTS) as executor:
            executor.bootup()
            yield lambda item: executor.submit(function, item).result()

    def processes(self) -> list[int]:
        """The ranks are siblings: all that `mpiexec` has started, without `mpiexec` itself."""
        return descendants(os.getppid())


if __name__ == "__main__":
    main(MpiEngine)
