"""Ours on a host behind `ssh`: ``over_ssh.py COUNT SSH...`` prints the nanoseconds of a whole job, from nothing to its end."""

from __future__ import annotations

import sys
import time

import exoskel as ex
from exoskel.job_process import JobNode

SECONDS = 300.0


def ours(here: JobNode) -> None:
    """Be there."""


if __name__ == "__main__":
    begin = time.perf_counter()
    launch = ex.Ssh(["127.0.0.1"], python=sys.executable, command=sys.argv[2:])
    with ex.Job(launch) as job:
        job.start(ours, count=int(sys.argv[1])).result(SECONDS)
    print(int((time.perf_counter() - begin) * 1e9))
