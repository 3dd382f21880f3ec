"""One process of a coupled program that checks each element: ``python -m tests.coupled_model '{"program": "ocean", "rank": 0, ...}'``.

What an array holds can be worked out from its version, so each process knows what it must get. It says by a line of JSON what came of it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import exoskel as ex

SIZES = {"ocean": 2, "atmosphere": 2, "plotter": 1}
COUPLING = """
[program.ocean]
[program.atmosphere]
[program.plotter]
[[connection]]
from = "ocean.sst"
to = "atmosphere.sst"
select = "[::2, 1::3]"
[[connection]]
from = "ocean.sst"
to = "plotter.sst"
permute = [1, 0]
every = 3
[[connection]]
from = "ocean.deep"
to = "atmosphere.deep"
[[connection]]
from = "ocean.new"
to = "ocean.old"
[[connection]]
from = "atmosphere.heat"
to = "ocean.heat"
into = "[5:45, 5:35]"
"""
EVERY = 3
# One number for each element, and so many for each version: exact in four bytes, too.
VERSIONS, STRIDE = 20, 500_000


class Source(NamedTuple):
    """An array that is given."""

    layout: ex.Layout

    def numbers(self) -> NDArray[Any]:
        """Return a number for each element of the whole array, from 1."""
        shape = self.layout.shape
        return np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)


SOURCES = {
    "ocean.sst": Source(ex.Layout((96, 80), "f8", ("block", "block"), processes=2)),
    # Between hosts a version of it goes in several pieces.
    "ocean.deep": Source(ex.Layout((700, 600), "f8", ("block", "*"), processes=2)),
    "ocean.new": Source(ex.Layout((240,), "f8", "block", processes=2)),
    "atmosphere.heat": Source(ex.Layout((40, 30), "f4", ("block", "block"), processes=2)),
}


class Target(NamedTuple):
    """An array that is taken: from where, its layout, and what becomes of the source's numbers."""

    source: str
    layout: ex.Layout
    of: Callable[[NDArray[Any]], NDArray[Any]]
    every: int = 1


TARGETS = {
    "atmosphere.sst": Target(
        "ocean.sst",
        ex.Layout((48, 27), ">f8", ("cyclic(2)", "block"), processes=2),
        lambda numbers: numbers[::2, 1::3],
    ),
    "plotter.sst": Target(
        "ocean.sst",
        ex.Layout((80, 96), "f8", ("block", "*"), processes=1, order="F"),
        np.transpose,
        EVERY,
    ),
    "atmosphere.deep": Target(
        "ocean.deep", ex.Layout((700, 600), "f8", ("*", "block"), processes=2), lambda same: same
    ),
    "ocean.old": Target(
        "ocean.new", ex.Layout((240,), "f8", "block", halo=2, processes=2), lambda same: same
    ),
    "ocean.heat": Target(
        "atmosphere.heat",
        ex.Layout((50, 40), "f4", ("*", "cyclic(3)"), processes=2),
        lambda numbers: np.pad(numbers, 5),
    ),
}
# What a step is made of. The atmosphere answers what it has got, so nobody runs away.
STEPS = {
    "ocean": ["write sst", "write deep", "write new", "read old", "read heat"],
    "atmosphere": ["read sst", "read deep", "write heat"],
    "plotter": ["read sst"],
}


def owned(layout: ex.Layout, rank: int) -> tuple[NDArray[Any], ...]:
    """Return the indices of the whole array that a process has, as an index."""
    axes = [np.concatenate([np.r_[part] for part in axis]) for axis in layout.extents(rank)]
    return np.ix_(*axes)


def expected(target: Target, rank: int) -> NDArray[Any]:
    """Return the numbers of a process's part; 0 where nobody writes."""
    whole = target.of(SOURCES[target.source].numbers())
    local = target.layout.local_shape(rank)
    index = owned(target.layout, rank)
    halo = local[0] - index[0].size
    if not halo:
        part: NDArray[Any] = whole[index]
        return part
    first = int(index[0].flat[0])
    return np.pad(whole, halo // 2)[first : first + local[0]]


class Model:
    """A process, and what it has seen."""

    def __init__(self, member: ex.Member) -> None:
        self.counts = {"versions": 0, "bytes": 0, "wrong": 0}
        self.member = member
        self.arrays: dict[str, ex.SharedArray] = {}
        self.numbers: dict[str, NDArray[Any]] = {}
        for name, source in SOURCES.items():
            if name.startswith(member.program + "."):
                self.arrays[name] = member.array(name.partition(".")[2], source.layout)
                self.numbers[name] = source.numbers()[owned(source.layout, member.rank)]
        for name, target in TARGETS.items():
            if name.startswith(member.program + "."):
                self.arrays[name] = member.array(name.partition(".")[2], target.layout)
                self.numbers[name] = expected(target, member.rank)

    def step(self) -> None:
        """Give and take each array once."""
        for deed in STEPS[self.member.program]:
            verb, _, name = deed.partition(" ")
            getattr(self, verb)(f"{self.member.program}.{name}")

    def fail(self) -> None:
        """Fail, as models do."""
        raise ArithmeticError("it was told to fail")

    def write(self, name: str) -> None:
        """Give the next version."""
        array = self.arrays[name]
        with array.write() as local:
            local[...] = self.numbers[name] + STRIDE * ((array.exported + 1) % VERSIONS)

    def read(self, name: str) -> None:
        """Take the next version, and check it."""
        array, numbers, every = self.arrays[name], self.numbers[name], TARGETS[name].every
        with array.read() as local:
            version = (array.version - 1) * every + 1 if every > 1 else array.version
            wanted = np.where(numbers > 0, numbers + STRIDE * (version % VERSIONS), 0)
            self.counts["wrong"] += int(np.count_nonzero(local != wanted))
            self.counts["versions"] += 1
            self.counts["bytes"] += local.nbytes


def main(terms: dict[str, Any]) -> None:
    """Take part for so many steps, or until there is nothing more."""
    outcome, text = "done", ""
    counts: dict[str, int] = {}
    place = {"rank": terms["rank"], "size": SIZES[terms["program"]], "keeper": terms["keeper"]}
    try:
        with ex.Member(terms["program"], **place) as member:
            print("attached", flush=True)
            model = Model(member)
            counts = model.counts
            for _ in range(terms["steps"]):
                model.step()
            if terms["fails"]:
                model.fail()
    except (ex.ExoskelError, ArithmeticError) as error:
        outcome, text = type(error).__name__, str(error)
    print(json.dumps({"outcome": outcome, "text": text, **counts}), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
