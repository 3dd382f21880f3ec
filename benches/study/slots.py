"""Many slots from many workers on this machine: how long until all have come, beside the time that their processes take to start.

Both are told as seconds of the clock and as seconds of processors. On a machine that has other work the clock favours whoever has more
processes, so that only the ratio of the second kind counts there.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.processes import slots_of
from tests.site import Site, Worker

import exoskel as ex

# A slot's imports and no more; it ends when it finds no descriptors.
IMPORTS = "import exoskel.slot"


def start_alone(slots: int) -> tuple[float, float]:
    """Seconds that so many Python processes with a slot's imports take, two for each core at a time: of the clock, of processors."""
    begin, before = time.monotonic(), used_by_processes()
    running: list[subprocess.Popen[bytes]] = []
    most = 2 * len(os.sched_getaffinity(0))
    for _ in range(slots):
        running.append(subprocess.Popen([sys.executable, "-P", "-c", IMPORTS]))
        if len(running) >= most:
            running.pop(0).wait()
    for process in running:
        process.wait()
    return time.monotonic() - begin, used_by_processes() - before


def used_by_processes() -> float:
    """Seconds of processors that this process has used, and all that it has started and waited for."""
    own, ended = (
        resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    return own.ru_utime + own.ru_stime + ended.ru_utime + ended.ru_stime


def used_by(process: int) -> float:
    """Seconds of processors that a running process has used."""
    threads = Path(f"/proc/{process}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def used_by_workers(workers: list[Worker]) -> float:
    """Seconds of processors that workers have used, with their slots."""
    supervisors = [worker.process.pid for worker in workers]
    slots = [slot for supervisor in supervisors for slot in slots_of(supervisor)]
    return sum(map(used_by, [*supervisors, *slots]))


def main() -> int:
    """Ask for all slots at once and print how many came, and when."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slots", type=int, default=1000, help="how many altogether")
    parser.add_argument("--workers", type=int, default=20, help="from how many workers")
    parser.add_argument("--seconds", type=float, default=600.0, help="how long to wait for them")
    arguments = parser.parse_args()
    logging.getLogger("exoskel").setLevel(logging.ERROR)
    of_each = arguments.slots // arguments.workers
    wanted = of_each * arguments.workers
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    alone, used_alone = start_alone(wanted)
    print(
        f"{wanted} processes with a slot's imports: {alone:.1f} s, {used_alone:.1f} s of processors",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as directory:
        names = [f"node{number}.lab.example.org" for number in range(arguments.workers)]
        with contextlib.redirect_stdout(io.StringIO()):
            site = Site(Path(directory))
            begin, before = time.monotonic(), used_by_processes()
            workers = [site.worker(name, slots=of_each) for name in names]
        options = {"wait": arguments.seconds, "dead_after": 60.0}
        with site.connect(ex.Farm(abs), wanted, *workers, **options) as manager:
            while (status := manager.status()).slots_ready < wanted:
                if time.monotonic() - begin > arguments.seconds:
                    break
                time.sleep(0.1)
            took = time.monotonic() - begin
            used = used_by_processes() - before + used_by_workers(workers)
            results = list(manager.map(range(-10 * wanted, 0)))
        site.close()
    is_right = results == list(range(10 * wanted, 0, -1))
    print(
        f"{status.slots_ready} of {wanted} slots came in {took:.1f} s, {used:.1f} s of processors, "
        f"ratio {took / alone:.2f}, of processors {used / used_alone:.2f}"
    )
    return 0 if is_right and status.slots_ready == wanted else 1


if __name__ == "__main__":
    sys.exit(main())
