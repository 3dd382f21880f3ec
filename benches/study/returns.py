"""Runs that survive: a worker restarts, one side stands still, the network refuses. How many runs go on, and how soon after the return.

Real processes on this machine. Each row is played as often as asked; a run survives if it goes on without an error, and its slots are
back within so many seconds of the return.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.processes import children
from tests.site import Site, Worker, free_address

import exoskel as ex

NAME = "node1.lab.example.org"
# A worker's slots work again within this time of its return.
PROMISED_SECONDS = 5.0
# Longer than this, and the run counts as lost.
GIVEN_UP_SECONDS = 60.0


def task(item: int) -> int:
    """Take a little time."""
    time.sleep(0.002)
    return item


class Place:
    """A worker that can be taken away and brought back."""

    def __init__(self, site: Site, slots: int) -> None:
        self.site = site
        self.slots = slots
        self.address = free_address()
        with contextlib.redirect_stdout(io.StringIO()):
            site.issue("worker", NAME)
        self.worker = self.start()

    def start(self) -> Worker:
        """Start it at its address."""
        credential = self.site.place / f"{NAME}.pem"
        listen = f"tcp://{self.address}"
        return self.site.worker(NAME, listen=listen, slots=self.slots, credential=credential)

    def processes(self) -> list[int]:
        """List its supervisor and its slots."""
        return [self.worker.process.pid, *children(self.worker.process.pid)]


def restart(place: Place, seconds: float) -> None:
    """Take the worker away, and start it again."""
    place.worker.kill()
    time.sleep(seconds)
    place.worker = place.start()


def suspend_worker(place: Place, seconds: float) -> None:
    """Have the worker stand still."""
    processes = place.processes()
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    time.sleep(seconds)
    for process in processes:
        os.kill(process, signal.SIGCONT)


def suspend_manager(place: Place, seconds: float) -> None:
    """Have this process stand still; a child of it wakes it."""
    del place
    own = os.getpid()
    waker = os.posix_spawn(
        "/bin/sh", ["sh", "-c", f"sleep {seconds}; kill -CONT {own}"], os.environ
    )
    os.kill(own, signal.SIGSTOP)
    os.waitpid(waker, 0)


KINDS: dict[str, tuple[Callable[[Place, float], None], int, float]] = {
    "worker restarts": (restart, 64, 3.0),
    "suspends of the worker": (suspend_worker, 10, 30.0),
    "suspends of the manager": (suspend_manager, 10, 30.0),
    "refusals": (restart, 20, 30.0),
}


def play(kind: str, count: int, seconds: float, slots: int) -> tuple[int, list[float]]:
    """Play one row in one run; give how often it went on, and the seconds between each return and all slots."""
    disturb = KINDS[kind][0]
    survived, returns = 0, []
    with tempfile.TemporaryDirectory() as directory:
        with contextlib.redirect_stdout(io.StringIO()):
            site = Site(Path(directory))
        place = Place(site, slots)
        ended = threading.Event()
        errors: list[BaseException] = []

        def items() -> Iterator[int]:
            item = 0
            while not ended.is_set():
                yield item
                item += 1

        def take(manager: ex.Manager) -> None:
            try:
                for number, result in enumerate(manager.map(items())):
                    assert result == number, f"got {result} for item {number}"
            except BaseException as error:
                errors.append(error)

        with site.connect(ex.Farm(task), slots, place.worker) as manager:
            taker = threading.Thread(target=take, args=(manager,))
            taker.start()
            for _ in range(count):
                disturb(place, seconds)
                back = time.monotonic()
                # Slots that nobody has missed yet don't count as back: a session outlives a short absence.
                time.sleep(0.2)
                while manager.status().slots_ready < slots and not errors:
                    if time.monotonic() - back > GIVEN_UP_SECONDS:
                        break
                    time.sleep(0.02)
                else:
                    survived += not errors
                returns.append(time.monotonic() - back)
                if errors:
                    print(f"{kind}: {errors[0]!r}", file=sys.stderr)
                    break
            ended.set()
            taker.join()
        site.close()
    return survived, returns


def main() -> int:
    """Play all rows, or those asked for, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append", help="one row (default: all)")
    parser.add_argument("--count", type=int, help="how often, in place of the row's own number")
    parser.add_argument(
        "--seconds", type=float, help="how long each absence, in place of the row's own"
    )
    parser.add_argument("--slots", type=int, default=4, help="slots of the worker")
    arguments = parser.parse_args()
    # Losses are what this is about.
    logging.getLogger("exoskel").setLevel(logging.ERROR)
    print(f"{'':26}{'survived':>12}{'median':>10}{'longest':>10}")
    is_good = True
    for kind in arguments.kind or KINDS:
        _, count, seconds = KINDS[kind]
        count, seconds = arguments.count or count, arguments.seconds or seconds
        survived, returns = play(kind, count, seconds, arguments.slots)
        middle, longest = statistics.median(returns), max(returns)
        is_good &= survived == count and longest <= PROMISED_SECONDS
        print(
            f"{kind:26}{f'{survived} of {count}':>12}{middle:>8.2f} s{longest:>8.2f} s", flush=True
        )
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
