"""Couplings with everything at once, for as long as you like: ``python -m tests.soak_coupling --minutes 10``, or ``make soak-coupling``.

In each round there are two couplings at a time, one on one host and one between three keepers. Their processes hand arrays to each other over
connections of every kind, and check each element. Meanwhile something goes wrong with each coupling. What comes of it must be what was to be
expected, and name who was lost. At the end stands how many versions and bytes there were, how many elements were wrong, how many processes
waited for ever, and by how much memory, descriptors and threads of coupler and keepers have grown.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import itertools
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.coupled_model import COUPLING, EVERY, SIZES
from tests.network_hosts import Program, stopped
from tests.soak import MEMORY_BYTES, Measure

from exoskel.cli import main as command_line

HEAD, *LABS = (f"{name}.example.org" for name in ("head", "lab1", "lab2"))
# A keeper that comes for one coupling, and may be killed.
GUEST = "guest.example.org"
PATIENCE = 3.0
STEPS_MAX = 150
# From then on the hosts shall not grow.
ROUNDS_BEFORE = 3
# A process that has not ended by then waits for ever. Ten times what a busy machine takes.
STUCK_SECONDS = 120.0
# What is allowed to come of it: by what went wrong, the outcomes of processes that have nothing to do with it.
LOSS = ["MemberLostError"]
GOOD = ["done"]
OUTCOMES = {
    "nothing": GOOD,
    "a process is killed": GOOD + LOSS,
    "a process fails": GOOD + LOSS,
    "a process stands still": GOOD,
    "a keeper stands still": GOOD,
    # Whoever can't go on without it fails for that reason, and is lost for others.
    "a process leaves early": [*GOOD, *LOSS, "ProgramLeftError"],
    "the plotter leaves early": GOOD,
    "a keeper is killed": GOOD + LOSS,
    "a keeper ends": GOOD + LOSS,
}
# Where a process's host is given up before it has attached, the coupler can't know that it never will.
WAITING = f"wait = {STUCK_SECONDS / 2}\n{COUPLING}"
BETWEEN_HOSTS_ONLY = ("a keeper stands still", "a keeper is killed", "a keeper ends")


class Model:
    """A process of a coupled program."""

    def __init__(self, program: str, rank: int, host: str, running: Program) -> None:
        self.program = program
        self.rank = rank
        self.host = host
        self.running = running
        self.is_spared = True
        self.said: dict[str, Any] = {}
        self._is_attached = False

    def attach(self, seconds: float) -> None:
        """Wait until it has attached, or has said why it couldn't."""
        if not self._is_attached:
            line = self.running.line(seconds)
            self._is_attached = True
            if line != "attached":
                self.said = json.loads(line)

    def outcome(self, ends: float) -> None:
        """Wait until it says what came of it."""
        self.attach(max(ends - time.monotonic(), 1.0))
        if not self.said:
            self.said = json.loads(self.running.line(max(ends - time.monotonic(), 1.0)))

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.program}"


class Coupling:
    """A coupling: its keepers, its processes, and what goes wrong with it."""

    def __init__(self, soak: Soak, name: str, is_between_hosts: bool) -> None:
        self.soak = soak
        self.name = name
        self.random = soak.random
        self.is_between_hosts = is_between_hosts
        choices = [one for one in OUTCOMES if is_between_hosts or one not in BETWEEN_HOSTS_ONLY]
        choices = [one for one in choices if soak.only in one]
        self.trouble = self.random.choice(choices)
        self.steps = self.random.randint(5, STEPS_MAX)
        self.guest: Program | None = None
        self.sockets = self._keepers()
        self.culprits: list[Model] = []
        self.models = [
            self._start(program, rank) for program, size in SIZES.items() for rank in range(size)
        ]

    def _keepers(self) -> dict[str, str]:
        """Start them; return their sockets, by their hosts."""
        head = self.soak.hosts[HEAD]
        if not self.is_between_hosts:
            return {HEAD: head.ask("alone", name=self.name, coupling=WAITING)}
        socket, at = head.ask("lead", name=self.name, coupling=WAITING)
        self.guest = self.soak.host(GUEST)
        joining = {**{lab: self.soak.hosts[lab] for lab in LABS}, GUEST: self.guest}
        sockets = {HEAD: socket}
        for name, host in joining.items():
            sockets[name] = host.ask("join", name=self.name, coupler=HEAD, at=at)
        return sockets

    def _start(self, program: str, rank: int) -> Model:
        host = self.random.choice(list(self.sockets))
        leaves = {"a process leaves early": "atmosphere", "the plotter leaves early": "plotter"}
        is_culprit = (program, rank) == (leaves.get(self.trouble), 0)
        is_culprit |= (self.trouble, program, rank) == ("a process fails", "atmosphere", 1)
        steps = self.steps if program != "plotter" else (self.steps - 1) // EVERY + 1
        terms = {
            "program": program,
            "rank": rank,
            "keeper": self.sockets[host],
            "steps": self.random.randint(0, steps - 1) if is_culprit else steps,
            "fails": is_culprit and self.trouble == "a process fails",
        }
        words = [sys.executable, "-m", "tests.coupled_model", json.dumps(terms)]
        model = Model(program, rank, host, Program(words, self.soak.log(), {}))
        if is_culprit:
            self.culprits.append(model)
        return model

    def disturb(self) -> None:
        """Have something go wrong with it."""
        victim = self.random.choice(self.models)
        if self.trouble == "a process is killed":
            # Who never attaches may only be late: `couple` would tell of its end.
            victim.attach(STUCK_SECONDS)
            self._lose([victim])
            victim.running.signal(signal.SIGKILL)
        elif self.trouble == "a process stands still":
            with stopped(victim.running):
                time.sleep(self.random.uniform(0.05, 1.0))
        elif self.trouble == "a keeper stands still":
            host = self.random.choice([*self.soak.hosts.values(), self.guest])
            assert host is not None
            with stopped(host):
                time.sleep(self.random.uniform(0.05, 0.5))
        elif self.trouble in ("a keeper is killed", "a keeper ends"):
            assert self.guest is not None
            lost = [model for model in self.models if model.host == GUEST]
            for model in lost:
                model.attach(STUCK_SECONDS)
            self._lose(lost)
            if self.trouble == "a keeper is killed":
                self.guest.signal(signal.SIGKILL)
            else:
                self.guest.ask("end", name=self.name)

    def _lose(self, culprits: list[Model]) -> None:
        self.culprits = culprits
        for model in culprits:
            model.is_spared = False

    def judge(self) -> None:
        """Wait for all processes, and count what isn't as it should be."""
        soak = self.soak
        ends = time.monotonic() + STUCK_SECONDS
        for model in self.models:
            if self.trouble == "a process is killed" and model in self.culprits:
                continue
            try:
                model.outcome(ends)
            except AssertionError as error:
                if model.running.process.poll() is None:
                    soak.stuck(f"{self}: {model} is stuck: {self._report()}")
                    # The others are, too.
                    break
                else:
                    soak.wrong(f"{self}: {model} has ended without a word: {error}")
        for model in self.models:
            self._judge(model)
        soak.deeds[self.trouble] += 1

    def _judge(self, model: Model) -> None:
        said, soak = model.said, self.soak
        if not said:
            return
        soak.counts["versions"] += said.get("versions", 0)
        soak.counts["bytes"] += said.get("bytes", 0)
        soak.counts["wrong elements"] += said.get("wrong", 0)
        soak.outcomes[said["outcome"]] += 1
        if said.get("wrong"):
            soak.wrong(f"{self}: {model} got wrong elements: {said}")
        if not model.is_spared or (model in self.culprits and said["outcome"] == "ArithmeticError"):
            return
        if said["outcome"] not in OUTCOMES[self.trouble]:
            soak.wrong(f"{self}: {model}: {said}")
        is_loss = said["outcome"] == "MemberLostError" and self.trouble != "a process leaves early"
        if is_loss and not any(f"{culprit} was lost" in said["text"] for culprit in self.culprits):
            names = ", ".join(map(str, self.culprits))
            soak.wrong(f"{self}: {model} doesn't name {names}: {said}")

    def end(self) -> None:
        """End its processes and its keepers."""
        for model in self.models:
            model.running.end(at_once=True)
        hosts = [self.soak.hosts[lab] for lab in LABS] if self.is_between_hosts else []
        # The coupler last: it sees who goes.
        for host in [*hosts, self.soak.hosts[HEAD]]:
            host.ask("end", name=self.name)
        if self.guest is not None:
            self.guest.end(at_once=True)

    def _report(self) -> Any:
        report = self.soak.hosts[HEAD].ask("report", name=self.name)
        hosts = self.soak.hosts | ({GUEST: self.guest} if self.guest else {})
        states = {
            name: hosts[name].ask("state", name=self.name)
            for name in self.sockets
            if hosts[name].process.poll() is None
        }
        places = {str(model): model.host for model in self.models}
        culprits = [str(culprit) for culprit in self.culprits]
        keys = ("connections", "waits", "first_lost", "refusals")
        return [{key: report[key] for key in keys}, states, places, culprits]

    def __str__(self) -> str:
        where = "between hosts" if self.is_between_hosts else "on one host"
        return f"{self.name} ({where}, {self.trouble}, {self.steps} steps)"


class Soak:
    """The hosts, and what came of the couplings."""

    def __init__(self, folder: Path, seed: int, only: str, tell: Callable[[str], None]) -> None:
        self.only = only
        self.random = random.Random(seed)
        self.tell = tell
        self.folder = folder
        self._numbers = itertools.count(1)
        self.counts: collections.Counter[str] = collections.Counter()
        self.deeds: collections.Counter[str] = collections.Counter()
        self.outcomes: collections.Counter[str] = collections.Counter()
        with contextlib.redirect_stdout(None):
            assert command_line(["pki", "init", str(folder / "pki"), "--json"]) == 0
            for name in (HEAD, *LABS, GUEST):
                where = [
                    "--directory",
                    str(folder / "pki"),
                    "--output",
                    str(folder / f"{name}.pem"),
                ]
                words = ["pki", "issue", *where, "--role", "peer", "--name", name, "--json"]
                assert command_line(words) == 0
        (folder / "policy.toml").write_text(
            '[[allow.rule]]\naction = ["coupler.join", "coupler.report", "coupler.stay"]\nname = "*"\n'
        )
        self.hosts = {name: self.host(name) for name in (HEAD, *LABS)}

    def log(self) -> Path:
        """Return where a process may write what goes wrong with it."""
        return self.folder / f"log-{next(self._numbers)}"

    def host(self, name: str) -> Program:
        """Start what has a host's keepers."""
        place = self.folder / f"{next(self._numbers)}"
        place.mkdir()
        settings = {
            "place": str(place),
            "credential": str(self.folder / f"{name}.pem"),
            "policy": str(self.folder / "policy.toml"),
            "patience": PATIENCE,
        }
        words = [sys.executable, "-m", "tests.coupled_host", json.dumps(settings)]
        host = Program(words, self.log(), {})
        assert host.line() == "ready", host.log()
        return host

    def wrong(self, what: str) -> None:
        """Count and tell what isn't as it should be."""
        self.counts["wrong"] += 1
        self.tell(f"WRONG {what}")

    def stuck(self, what: str) -> None:
        """Count and tell who waits for ever."""
        self.counts["stuck"] += 1
        self.tell(f"STUCK {what}")

    def round(self) -> None:
        """Have a coupling on one host and one between hosts at the same time."""
        with contextlib.ExitStack() as stack:
            couplings = []
            for is_between_hosts in (False, True):
                name = f"coupling{next(self._numbers)}"
                couplings.append(Coupling(self, name, is_between_hosts))
                stack.callback(couplings[-1].end)
            time.sleep(self.random.uniform(0.0, 3.0))
            for coupling in couplings:
                coupling.disturb()
            for coupling in couplings:
                coupling.judge()

    def measure(self) -> dict[str, Measure]:
        """Measure the hosts, when no coupling is there."""
        # Sessions give their spare memory back when nothing has left for a while.
        time.sleep(PATIENCE)
        measures = {}
        for name, host in self.hosts.items():
            measures[name] = measure = Measure(host.process.pid)
            allocated = host.ask("allocated")
            if allocated is not None:
                self.tell(
                    f"{name}: {measure.memory >> 20} MiB of memory, with what the C library keeps"
                )
                measure.memory = allocated
        return measures

    def close(self) -> None:
        """End everything."""
        for host in self.hosts.values():
            host.end(at_once=True)


def table(soak: Soak, before: dict[str, Measure], after: dict[str, Measure]) -> list[str]:
    """Give the lines of what came of it."""
    names = ("versions", "bytes", "wrong elements", "wrong", "stuck")
    lines = [f"{name:26} {soak.counts[name]:>16,}" for name in names]
    lines += [f"{what:26} {number:>16,}" for what, number in sorted(soak.deeds.items())]
    lines += [f"{what:26} {number:>16,}" for what, number in sorted(soak.outcomes.items())]
    return lines + [f"{name}: {after[name].growth(one)}" for name, one in before.items()]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.soak_coupling", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", default="", help='only troubles with these words, as "is killed"')
    arguments = parser.parse_args()
    ends = time.monotonic() + 60 * arguments.minutes
    before: dict[str, Measure] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        soak = Soak(
            Path(folder), arguments.seed, arguments.only, functools.partial(print, flush=True)
        )
        stack.callback(soak.close)
        rounds = 0
        while time.monotonic() < ends or rounds <= ROUNDS_BEFORE:
            soak.round()
            rounds += 1
            if rounds == ROUNDS_BEFORE:
                before = soak.measure()
        after = soak.measure()
        # They run on: who has ended would not be measured.
        has_ended = [name for name, one in soak.hosts.items() if one.process.poll() is not None]
        print(f"seed {arguments.seed}: {rounds} rounds")
        print("\n".join(table(soak, before, after)))
        grown = [name for name, one in before.items() if after[name].has_grown(one)]
        if grown or has_ended:
            print(f"grown: {grown}, ended: {has_ended}, more memory than {MEMORY_BYTES >> 20} MiB")
    is_wrong = any(soak.counts[name] for name in ("wrong elements", "wrong", "stuck"))
    return 1 if is_wrong or grown or has_ended else 0


if __name__ == "__main__":
    # Programs end with this one: they are told by their standard input.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
