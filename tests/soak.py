"""Everything at once, for as long as you like: ``python -m tests.soak --minutes 60``, or ``make soak-workers``.

Managers come and go and have their programs run by workers that are killed, stopped, told to end, started anew and given broken
policies, while their tasks flood the output and fail. Each outcome is checked. At the end stands by how much memory, descriptors and
threads of this process (the manager) and of the supervisors of workers have grown, and what was left running.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import gc
import logging
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.processes import children, eventually, gone, slots_of
from tests.site import POLICY, Site, Worker, free_address

import exoskel as ex

ITEMS = 3000
NAMES = [f"node{number}.lab.example.org" for number in range(1, 4)]
SLOTS = 3
# What of memory comes and goes by itself.
MEMORY_BYTES = 24 << 20


def task(item: int) -> Any:
    """Do one of the things that tasks do."""
    import logging
    import subprocess
    import time

    kind = item % 97
    if kind == 1:
        raise ValueError(item)
    if kind == 2:
        print("\n".join(["flood"] * 2000))
    elif kind == 3:
        for _ in range(500):
            logging.getLogger("flood").warning("flood %d", item)
    elif kind == 4:
        return bytes([item % 251]) * 1_000_000
    elif kind == 5:
        subprocess.Popen(["sleep", "600"], start_new_session=True)
    elif kind % 10 == 6:
        time.sleep(0.02)
    return item * item


def expected(item: int) -> Any:
    """Say what becomes of an item; an exception by its text."""
    if item % 97 == 1:
        return repr(ValueError(item))
    return bytes([item % 251]) * 1_000_000 if item % 97 == 4 else item * item


class Trouble:
    """What goes wrong, one thing after another, until it is told to end."""

    def __init__(self, site: Site, seed: int) -> None:
        self.site = site
        self.random = random.Random(seed)
        self.workers: dict[str, Worker] = {}
        self.counts: collections.Counter[str] = collections.Counter()
        self._ending = threading.Event()
        self.address = {name: f"tcp://{free_address()}" for name in NAMES}
        for name in NAMES:
            self.start(name)

    def start(self, name: str) -> None:
        """Start a worker where it was."""
        home = self.site.place / f"home-{name}"
        if home.exists():
            for file in home.iterdir():
                file.unlink()
            home.rmdir()
        credential = self.site.place / f"{name}.pem"
        if not credential.exists():
            self.site.issue("worker", name)
        self.workers[name] = self.site.worker(
            name, "--drain", "2", listen=self.address[name], slots=SLOTS, credential=credential
        )

    def run(self) -> None:
        """Do one thing after another."""
        deeds = [self.kill, self.stop, self.ask, self.interrupt, self.edit, self.restart, self.join]
        while not self._ending.wait(self.random.uniform(0.05, 0.6)):
            deed = self.random.choice(deeds)
            with contextlib.suppress(ProcessLookupError):
                deed()
                self.counts[deed.__name__] += 1

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Do so for the length of a block."""
        thread = threading.Thread(target=self.run)
        self._ending.clear()
        thread.start()
        try:
            yield
        finally:
            self._ending.set()
            thread.join()

    def _name(self) -> str:
        return self.random.choice(NAMES)

    def _slot(self) -> int:
        # With what forks them.
        slots = [*children(self.workers[self._name()].process.pid), *own_slots()]
        if not slots:
            raise ProcessLookupError
        return self.random.choice(slots)

    def kill(self) -> None:
        """Kill a slot."""
        os.kill(self._slot(), signal.SIGKILL)

    def ask(self) -> None:
        """Tell a slot to end."""
        os.kill(self._slot(), signal.SIGTERM)

    def interrupt(self) -> None:
        """Have Ctrl-C reach a slot."""
        os.kill(self._slot(), signal.SIGINT)

    def stop(self) -> None:
        """Have a slot stand still for a while."""
        slot = self._slot()
        os.kill(slot, signal.SIGSTOP)
        self._ending.wait(self.random.uniform(0.05, 1.5))
        os.kill(slot, signal.SIGCONT)

    def edit(self) -> None:
        """Make a policy unreadable for a while."""
        policy = self.site.place / f"home-{self._name()}" / "policy.toml"
        policy.write_text("[[rule")
        self._ending.wait(self.random.uniform(0.05, 1.0))
        policy.write_text(POLICY)

    def restart(self) -> None:
        """End a worker in order, now and then in a hurry, and start it anew."""
        name = self._name()
        worker = self.workers[name]
        worker.process.terminate()
        if self.random.random() < 0.3:
            worker.process.terminate()
        worker.end()
        self.start(name)

    def join(self) -> None:
        """Have a worker ask a manager that isn't there, and tell it to end."""
        command = [sys.executable, "-P", "-m", "exoskel", "worker", "--slots", "1", "--json"]
        command += ["--join", f"tcp://{free_address()}", "--manager-name", "nobody.example.org"]
        command += ["--credential", str(self.site.place / f"{NAMES[0]}.pem")]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            process.terminate()
            assert process.wait(timeout=120) == 0


def own_slots() -> list[int]:
    found = []
    for child in children(os.getpid()):
        with contextlib.suppress(OSError):
            if b"--connection-fd" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return found


def has_slots(supervisor: int) -> bool:
    return len(slots_of(supervisor)) == SLOTS


class Measure:
    """Memory, descriptors and threads of a process."""

    def __init__(self, process: int) -> None:
        fields = Path(f"/proc/{process}/statm").read_text().split()
        self.memory = int(fields[1]) * os.sysconf("SC_PAGE_SIZE")
        self.descriptors = len(os.listdir(f"/proc/{process}/fd"))
        self.threads = len(os.listdir(f"/proc/{process}/task"))

    def growth(self, before: Measure) -> str:
        """Say what there was, and how much more there is."""
        memory = (self.memory - before.memory) / (1 << 20)
        return (
            f"memory {before.memory / (1 << 20):.1f} MiB {memory:+.1f}, "
            f"descriptors {before.descriptors} {self.descriptors - before.descriptors:+d}, "
            f"threads {before.threads} {self.threads - before.threads:+d}"
        )

    def has_grown(self, before: Measure) -> bool:
        """Say whether that is too much."""
        return (
            self.memory > before.memory + MEMORY_BYTES
            or self.descriptors > before.descriptors
            or self.threads > before.threads
        )


def sleepers() -> set[int]:
    """Find what tasks have started, wherever it hangs."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError):
            if (entry / "cmdline").read_bytes() == b"sleep\x00600\x00":
                found.add(int(entry.name))
    return found


def serve(manager: ex.Manager, tell: Callable[[str], None]) -> tuple[int, int]:
    """Run the items once; give how many outcomes there were, and how many were wrong."""
    outcomes = wrong = 0
    for item, result in enumerate(manager.map(range(ITEMS), errors="return")):
        got = repr(result) if isinstance(result, Exception) else result
        outcomes += 1
        if got != expected(item):
            wrong += 1
            tell(f"wrong: item {item}: {got!r:.200}")
    return outcomes, wrong


def main() -> int:
    parser = argparse.ArgumentParser(prog="tests.soak", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    screen = os.fdopen(os.dup(1), "w", buffering=1)
    # What tasks print and what is told of workers is what the soak makes, not what it says.
    logging.getLogger("exoskel").addHandler(logging.NullHandler())
    logging.getLogger("exoskel").propagate = False
    nowhere = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for as long as the process
    sys.stdout = sys.stderr = nowhere
    broken = 0

    def tell_of(error: type[BaseException], value: BaseException | None, trace: Any) -> None:
        """Say on the screen what has ended this program or its thread."""
        nonlocal broken
        broken += 1
        traceback.print_exception(error, value, trace, file=screen)

    sys.excepthook = tell_of
    threading.excepthook = lambda ended: tell_of(
        ended.exc_type, ended.exc_value, ended.exc_traceback
    )
    ends = time.monotonic() + 60 * arguments.minutes
    before_all = sleepers()
    rounds = outcomes = wrong = unserved = 0
    baseline: Measure | None = None
    supervisors: dict[int, Measure] = {}
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        site = Site(Path(place))
        stack.callback(site.close)
        trouble = Trouble(site, arguments.seed)
        while time.monotonic() < ends or rounds < 3:
            hosts = [worker for worker in trouble.workers.values()] if rounds % 3 else []
            try:
                with (
                    site.connect(ex.Farm(task), 4, *hosts, retries=200, wait=20)
                    if hosts
                    else ex.Manager(ex.Farm(task), ex.ParDegree(3), retries=200) as manager,
                    trouble.going_on(),
                ):
                    done, bad = serve(manager, lambda text: print(text, file=screen))
                    outcomes, wrong = outcomes + done, wrong + bad
                    if done < ITEMS:
                        wrong += 1
                        print(f"missing: {ITEMS - done} outcomes of a round", file=screen)
            except ex.NoWorkerError:
                unserved += 1
            rounds += 1
            gc.collect()
            eventually(lambda: not own_slots(), 60)
            if rounds == 3:
                baseline = Measure(os.getpid())
            for worker in trouble.workers.values():
                number = worker.process.pid
                supervisors.setdefault(number, Measure(number))
        assert baseline is not None
        now = Measure(os.getpid())
        print(
            f"seed {arguments.seed}: {rounds} rounds, {outcomes} outcomes, {wrong} wrong, {unserved} rounds without a worker; "
            + ", ".join(f"{name} {count}" for name, count in sorted(trouble.counts.items())),
            file=screen,
        )
        print(f"manager: {now.growth(baseline)}", file=screen)
        grown = now.has_grown(baseline)
        for name, worker in trouble.workers.items():
            number = worker.process.pid
            # Its slots come and go with a descriptor each.
            eventually(functools.partial(has_slots, number), 60)
            measure, before = Measure(number), supervisors[number]
            print(f"supervisor of {name}: {measure.growth(before)}", file=screen)
            grown |= measure.memory > before.memory + MEMORY_BYTES
        last = [worker.process.pid for worker in trouble.workers.values()]
    left = [process for process in sleepers() - before_all if not gone(process)]
    left += [process for process in last if not gone(process)]
    print(f"left running: {len(left)}", file=screen)
    return 1 if wrong or left or grown or broken else 0


if __name__ == "__main__":
    sys.exit(main())
