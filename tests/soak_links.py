"""Links with everything at once, for as long as you like: ``python -m tests.soak_links --minutes 10``, or ``make soak-links``.

Two nodes take posts, requests, streams, regions, groups and lookups, one that lasts and others that come and go send them. The connections are
cut, the nodes stand still, their policies change. Each outcome is checked. At the end stands how many were wrong, missing, doubled or out of
order, and by how much memory, descriptors and threads of the nodes that last have grown.
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

from tests.link_traffic import ENDPOINT, ROWS, faults
from tests.network_hosts import Program, stopped
from tests.processes import eventually
from tests.soak import MEMORY_BYTES, Measure
from tests.test_links_lasting import Relay

from exoskel.cli import main as command_line

OCEAN, ARCHIVE, ATMOSPHERE = (f"{name}.example.org" for name in ("ocean", "archive", "atmosphere"))
VISITORS = [f"visitor{number}.example.org" for number in range(2)]
PATIENCE = 4.0
DEAD_AFTER = 1.5
# Between two looks at what has come of it.
ROUND_SECONDS = 20.0
# From then on nodes shall not grow.
ROUNDS_BEFORE = 3
ANSWER_SECONDS = 300.0
HANDLERS = ["note", "double", "report", "echo", "field.get", "field.put"]
POLICY = """\
[domain.lab]
addresses = ["127.0.0.0/8"]
names = ["*.example.org"]

[[rule]]
from = "lab"
to = "lab"
protection = "{}"

[[allow.rule]]
action = {}
name = "*.example.org"
"""


class Place:
    """An authority, and programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._numbers = itertools.count(1)
        self._call("pki", "init", str(folder / "pki"))
        for name in (OCEAN, ARCHIVE, ATMOSPHERE, *VISITORS):
            where = ["--directory", str(folder / "pki"), "--output", str(folder / f"{name}.pem")]
            self._call("pki", "issue", *where, "--role", "peer", "--name", name)
            self.write_policy(name, "plain")

    def write_policy(self, name: str, protection: str) -> None:
        """Write what a node wants of its wires."""
        actions = json.dumps([f"{ENDPOINT}.{handler}" for handler in HANDLERS])
        (self.folder / f"{name}.toml").write_text(POLICY.format(protection, actions))

    def program(self, name: str, **more: Any) -> Program:
        """Start a program."""
        settings = {
            "credential": str(self.folder / f"{name}.pem"),
            "policy": str(self.folder / f"{name}.toml"),
            "patience": PATIENCE,
            "dead_after": DEAD_AFTER,
            "connect_timeout": 2.0,
            **more,
        }
        words = [sys.executable, "-m", "tests.link_program", json.dumps(settings)]
        log = self.folder / f"log-{next(self._numbers)}"
        program = Program(words, log, {"HOME": str(self.folder)})
        assert program.line() == "ready", program.log()
        return program

    @staticmethod
    def _call(*words: str) -> None:
        with contextlib.redirect_stdout(None):
            assert command_line([*words, "--json"]) == 0


class Visitor:
    """A program that comes, sends for a while, and goes."""

    def __init__(self, program: Program, source: str, ends: float, goes: str) -> None:
        self.program = program
        self.source = source
        self.ends = ends
        self.goes = goes


class Soak:
    """The nodes, what goes wrong with them, and what came of it."""

    def __init__(self, folder: Path, seed: int, tell: Callable[[str], None]) -> None:
        self.random = random.Random(seed)
        self.tell = tell
        self.place = Place(folder)
        self.counts: collections.Counter[str] = collections.Counter()
        self.deeds: collections.Counter[str] = collections.Counter()
        self.faults: collections.Counter[str] = collections.Counter()
        self.visitors: list[Visitor] = []
        self._sources = itertools.count(1)
        self._rows = 0
        listen = "127.0.0.1:0"
        self.lasting = {
            OCEAN: self.place.program(OCEAN, listen=listen),
            ARCHIVE: self.place.program(ARCHIVE, listen=listen),
            ATMOSPHERE: self.place.program(ATMOSPHERE),
        }
        self.relays: list[Relay] = []
        self.texts: list[str] = []
        for name in (OCEAN, ARCHIVE):
            self.lasting[name].ask("serve")
            (hint,) = self.lasting[name].ask("hints")
            relay = Relay(hint)
            self.relays.append(relay)
            text = self.lasting[name].ask("startpoint", to="*.example.org", hints=[relay.hint])
            self.texts.append(text)

    def round(self, ends: float) -> None:
        """Have traffic and trouble for a while, then look at what came of it."""
        source = self.begin(self.lasting[ATMOSPHERE], 0)
        deeds = [self.cut, self.cut, self.part, self.stand_still, self.reload, self.visit]
        while time.monotonic() < ends:
            self.say_goodbye(time.monotonic())
            deed = self.random.choice(deeds)
            deed()
            self.deeds[deed.__name__.replace("_", " ")] += 1
            time.sleep(self.random.uniform(0.0, 0.6))
        self.say_goodbye(ends + ROUND_SECONDS)
        self.judge(self.lasting[ATMOSPHERE], source)

    def begin(self, program: Program, row: int) -> str:
        """Have a program send."""
        source = f"source {next(self._sources)}"
        one, other = self.texts
        at = self.relays[0].hint
        program.ask(
            "bind", startpoint=one, source=source, row=row, others=[other], at=at, name=OCEAN
        )
        program.ask("start", kinds=[])
        return source

    def judge(self, program: Program, source: str) -> None:
        """Stop a program's traffic, and count what is wrong with it."""
        outcome = program.ask("stop", seconds=ANSWER_SECONDS)
        arrived = program.ask("arrived", seconds=ANSWER_SECONDS)
        # Whoever asks is told of posts that were lost last.
        outcome |= program.ask("now")
        program.ask("unbind")
        found = faults(outcome, arrived)
        self.faults.update(found)
        self.counts.update(outcome["counts"])
        if any(found.values()):
            self.tell(f"{source}: {found}, {outcome}, {arrived}")
        self.forget(source)

    def forget(self, source: str) -> None:
        """Have the nodes forget what has come of a source."""
        for name in (OCEAN, ARCHIVE):
            self.lasting[name].ask("forget", source=source)

    def say_goodbye(self, now: float) -> None:
        """End the visitors whose time has come."""
        for visitor in [one for one in self.visitors if one.ends <= now]:
            self.visitors.remove(visitor)
            if visitor.goes == "in order":
                self.judge(visitor.program, visitor.source)
            visitor.program.end(at_once=visitor.goes == "killed")
            # What it has begun may still come.
            if visitor.goes != "in order":
                self.forget(visitor.source)

    def visit(self) -> None:
        """Have somebody come."""
        taken = len(self.visitors)
        if taken < len(VISITORS):
            program = self.place.program(self.random.choice(VISITORS))
            # A row of its own: no two of them are here with the same one.
            self._rows = self._rows % (ROWS - 1) + 1
            source = self.begin(program, self._rows)
            ends = time.monotonic() + self.random.uniform(0.2, 4.0)
            goes = self.random.choice(["in order", "in order", "killed", "at once"])
            self.visitors.append(Visitor(program, source, ends, goes))

    def cut(self) -> None:
        """Cut all connections to a node."""
        self.random.choice(self.relays).cut()

    def part(self) -> None:
        """Let nobody reach a node for a while, now and then for longer than links wait."""
        relay = self.random.choice(self.relays)
        relay.refuse(True)
        is_long = self.random.random() < 0.1
        time.sleep(PATIENCE * 1.5 if is_long else self.random.uniform(0.05, 1.0))
        relay.refuse(False)

    def stand_still(self) -> None:
        """Have a node stand still, for less or more time than a session lasts."""
        with stopped(self.lasting[self.random.choice(list(self.lasting))]):
            time.sleep(self.random.uniform(0.05, 1.5 * DEAD_AFTER))

    def reload(self) -> None:
        """Give a node another policy."""
        name = self.random.choice(list(self.lasting))
        self.place.write_policy(name, self.random.choice(["plain", "integrity", "encrypted"]))
        self.lasting[name].ask("reload", relax=self.random.random() < 0.5, seconds=ANSWER_SECONDS)

    def is_quiet(self) -> bool:
        """Say whether nodes have forgotten those that have gone."""
        return all(len(program.ask("sessions")) <= 1 for program in self.lasting.values())

    def measure(self) -> dict[str, Measure]:
        """Measure the nodes that last, when they have come to rest."""
        eventually(self.is_quiet, 10 * PATIENCE)
        # Sessions give their spare memory back when nothing has left for a while.
        time.sleep(2 * DEAD_AFTER)
        measures = {}
        for name, one in self.lasting.items():
            measures[name] = measure = Measure(one.process.pid)
            allocated = one.ask("allocated")
            if allocated is not None:
                self.tell(
                    f"{name}: {measure.memory >> 20} MiB of memory, with what the C library keeps"
                )
                measure.memory = allocated
        return measures

    def close(self) -> None:
        """End everything."""
        # First: they dial the nodes.
        for relay in self.relays:
            relay.close()
        for visitor in self.visitors:
            visitor.program.end(at_once=True)
        for program in self.lasting.values():
            program.end(at_once=True)


def table(soak: Soak, before: dict[str, Measure], after: dict[str, Measure]) -> list[str]:
    """Give the lines of what came of it."""
    counts = soak.counts
    rows = [
        ("posts", counts["posted"], counts["told lost"], "told lost"),
        ("requests", counts["answered"], counts["requests failed"], "errors"),
        ("group answers", counts["group answers"], counts["groups failed"], "errors"),
        ("streams", counts["streams"], counts["broken streams"], "errors"),
        ("stream bytes", counts["echoed"], 0, ""),
        ("region transfers", counts["transfers"], counts["regions failed"], "errors"),
        ("lookups", counts["lookups"], counts["lookups failed"], "errors"),
    ]
    lines = [f"{what:18} {number:>14,} {errors:>8,} {word}" for what, number, errors, word in rows]
    lines += [f"{what:18} {number:>14,}" for what, number in sorted(soak.deeds.items())]
    lines += [f"{what:18} {number:>14,}" for what, number in soak.faults.items()]
    return lines + [f"{name}: {after[name].growth(one)}" for name, one in before.items()]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="tests.soak_links", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    ends = time.monotonic() + 60 * arguments.minutes
    before: dict[str, Measure] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        soak = Soak(Path(folder), arguments.seed, functools.partial(print, flush=True))
        stack.callback(soak.close)
        rounds = 0
        while time.monotonic() < ends or rounds <= ROUNDS_BEFORE:
            soak.round(time.monotonic() + ROUND_SECONDS)
            rounds += 1
            if rounds == ROUNDS_BEFORE:
                before = soak.measure()
        after = soak.measure()
        # They run on: who has ended would not be measured.
        has_ended = [name for name, one in soak.lasting.items() if one.process.poll() is not None]
        print(f"seed {arguments.seed}: {rounds} rounds")
        print("\n".join(table(soak, before, after)))
        grown = [name for name, one in before.items() if after[name].has_grown(one)]
        if grown or has_ended:
            print(f"grown: {grown}, ended: {has_ended}, more memory than {MEMORY_BYTES >> 20} MiB")
    return 1 if any(soak.faults.values()) or grown or has_ended else 0


if __name__ == "__main__":
    # Programs end with this one: they are told by their standard input.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
