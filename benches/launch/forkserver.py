"""The standard library's: ``forkserver.py COUNT`` prints the nanoseconds until each of so many processes has said a word to this one."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from multiprocessing.connection import Connection, wait


def theirs(connection: Connection, rank: int) -> None:
    """Say a word."""
    connection.send(rank)


def run(count: int) -> float:
    """Return the seconds of the standard library."""
    context = multiprocessing.get_context("forkserver")
    said(context, 1)
    begin = time.perf_counter()
    started = said(context, count)
    seconds = time.perf_counter() - begin
    for process in started:
        process.join()
    return seconds


def said(
    context: multiprocessing.context.ForkServerContext, count: int
) -> list[multiprocessing.context.ForkServerProcess]:
    """Start processes, and wait for the word of each."""
    ends: list[Connection] = []
    started = []
    for rank in range(count):
        ours_end, its_end = context.Pipe(duplex=False)
        process = context.Process(target=theirs, args=(its_end, rank))
        process.start()
        its_end.close()
        ends.append(ours_end)
        started.append(process)
    heard = set()
    while ends:
        for end in wait(ends):
            assert isinstance(end, Connection)
            heard.add(end.recv())
            ends.remove(end)
    assert heard == set(range(count))
    return started


if __name__ == "__main__":
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(int(run(int(sys.argv[1])) * 1e9))
