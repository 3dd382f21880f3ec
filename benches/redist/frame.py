"""What the parts of `make bench-redist` have in common: lanes that take turns, rows, and goals.

A part is a module ``part_NAME.py`` in this folder, and is found by its name. It has two functions:

- ``measure(bench)`` yields a `Row` for each thing that it has measured;
- ``goals(rows)`` gives the goals of the part, with what its rows say of them.

A lane is a function that gives seconds, one for each version that it has moved. The lanes of a row take turns (`Bench.row`), so that what
disturbs the machine disturbs all of them. A lane that can't be had costs itself: it raises `Missing` with a text that names what is missing.
"""

from __future__ import annotations

import contextlib
import importlib
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

from benches.links.install import Missing

SOURCES = Path(__file__).parent
# Not counted: pages are touched for the first time, connections are made.
FIRST = 2
# Kept of what a lane has said when it fails.
COMPLAINT_MAX = 300

Lane: TypeAlias = Callable[[], list[float]]


@dataclass
class Row:
    """What lanes did with the same job."""

    # For people: "rows to columns, 4096 x 4096, 2x2".
    text: str
    unit: str
    # What each lane did.
    values: dict[str, float]
    # Why lanes have nothing.
    failures: dict[str, str] = field(default_factory=dict)
    # What goals and pictures find it by.
    keys: dict[str, Any] = field(default_factory=dict)

    def ratio(self, lane: str, *beside: str) -> float | None:
        """A lane's value over the best of others, where more is better; None if one side is missing."""
        others = [self.values[name] for name in beside if name in self.values]
        return self.values[lane] / max(others) if lane in self.values and others else None


@dataclass
class Goal:
    """What is to be reached, and what was."""

    text: str
    # None: not measured.
    value: float | None
    bound: float
    # Otherwise at most.
    is_least: bool = True
    unit: str = ""

    @property
    def verdict(self) -> str:
        """Whether it is reached."""
        if self.value is None:
            return "not measured"
        reached = self.value >= self.bound if self.is_least else self.value <= self.bound
        return "reached" if reached else "missed"


def median(values: Iterable[float | None]) -> float | None:
    """The median of those that are there."""
    there = [value for value in values if value is not None]
    return statistics.median(there) if there else None


def least(values: Iterable[float | None]) -> float | None:
    """The least of those that are there."""
    return min((value for value in values if value is not None), default=None)


class Bench:
    """How much is measured."""

    def __init__(
        self,
        rounds: int,
        *,
        is_quick: bool = False,
        lengths: Sequence[int] = (),
        sizes: Sequence[int] = (),
    ) -> None:
        self.rounds = rounds
        self.is_quick = is_quick
        self._lengths = lengths
        self._sizes = sizes

    def lengths(self, *usual: int) -> Sequence[int]:
        """The lengths of square arrays that were asked for, or the usual ones. In a quick run: the least."""
        return self._lengths or (usual[:1] if self.is_quick else usual)

    def sizes(self, *usual: int) -> Sequence[int]:
        """The processes of a side that were asked for, or the usual ones."""
        return self._sizes or usual

    def row(
        self,
        text: str,
        lanes: Mapping[str, Lane],
        *,
        bytes: int = 0,
        keys: dict[str, Any] | None = None,
        unit: str = "GB/s",
        scale: float = 1.0,
        first: int = FIRST,
    ) -> Row:
        """Let lanes take turns; of each the median, as GB/s of so many bytes, or times `scale` in another unit.

        The first values of each turn are not counted, so many as `first` says.
        """
        times, failures = self.turns(text, lanes, first)
        middle = {name: statistics.median(found) for name, found in times.items()}
        values = {
            name: bytes / one / 1e9 if unit == "GB/s" else one * scale
            for name, one in middle.items()
        }
        return Row(text, unit, values, failures, keys or {})

    def turns(
        self, text: str, lanes: Mapping[str, Lane], first: int = FIRST
    ) -> tuple[dict[str, list[float]], dict[str, str]]:
        """The seconds of each lane in all rounds, and why lanes have none."""
        times: dict[str, list[float]] = {name: [] for name in lanes}
        failures: dict[str, str] = {}
        for _ in range(self.rounds):
            for name in list(times):
                try:
                    times[name] += lanes[name]()[first:]
                except Missing as error:
                    failures[name] = str(error)
                    del times[name]
                    say(f"{text}: {name} is not measured: {error}")
        return times, failures


def lines(words: Sequence[object], environment: Mapping[str, str] | None = None) -> list[float]:
    """A lane's seconds, from a program that prints nanoseconds."""
    command = [str(word) for word in words]
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env=environment, timeout=300
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Missing(str(error)) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[-COMPLAINT_MAX:]
        raise Missing(f"{Path(command[0]).name} ended with {done.returncode}: {said}")
    return [float(line) / 1e9 for line in done.stdout.split()]


def parts() -> dict[str, ModuleType]:
    """All parts by their names, as the folder has them."""
    names = sorted(path.stem for path in SOURCES.glob("part_*.py"))
    return {
        name.removeprefix("part_"): importlib.import_module(f"benches.redist.{name}")
        for name in names
    }


def say(text: str) -> None:
    """Progress, beside the table's stream."""
    with contextlib.suppress(BrokenPipeError):
        print(text, file=sys.stderr, flush=True)
