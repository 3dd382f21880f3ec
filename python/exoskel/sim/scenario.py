"""Scenario files: what runs on the cards, and what is varied.

Flat TOML. ``preset`` names where to begin, every other key of a card (docs/key-cache-study.md lists them) overrides it. Three keys are ours::

    preset = "paper"
    traces = ["cg.S.16.skct.zst"]     # each is a job; they are looked for beside this file; twice the same: two instances
    seeds = 20
    cache_entries = 10

    [sweep]                            # each combination is run; presets can be varied, too
    scheduler = ["batch", "gang"]
    prefetch_buffer_entries = [0, 8]
"""

from __future__ import annotations

import difflib
import functools
import itertools
import json
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

import numpy

from .. import _core
from .arguments import refused, several, whole_number
from .files import named, read_text
from .runs import Run, read_trace

__all__ = ["Scenario", "card_run", "effective"]

# Longest scenario file.
SCENARIO_BYTES_MAX = 1 << 20
# Most runs of a scenario, all combinations and seeds together: each is in memory with its parameters and its row.
RUNS_MAX = 100_000


@dataclass
class Scenario:
    """What is run on cards in virtual time.

    Attributes
    ----------
    traces : list of Path
        One for each job; all jobs share the nodes.
    parameters : dict
        What differs from the preset.
    sweep : dict
        Parameters with several values; each combination is run.
    seeds : int
        Runs of each combination.
    """

    traces: list[Path]
    parameters: dict[str, Any] = field(default_factory=dict)
    sweep: dict[str, list[Any]] = field(default_factory=dict)
    seeds: int = 1

    @classmethod
    def read(cls, path: Path) -> Scenario:
        """Read a file.

        Parameters
        ----------
        path : Path
            The file.

        Raises
        ------
        ValueError
            If it is wrong: the text names the file, and the key or the place.
        OSError
            If it can't be read.
        """
        text = read_text(path, SCENARIO_BYTES_MAX)
        try:
            return cls.of(tomllib.loads(text), path.parent)
        except ValueError as error:
            raise ValueError(f"{named(path)}: {error}") from None

    @classmethod
    def of(cls, table: Mapping[str, Any], folder: Path) -> Scenario:
        """Return what a table says.

        Parameters
        ----------
        table : mapping
            The content of a scenario file.
        folder : Path
            Where traces with relative names are.

        Raises
        ------
        ValueError
            If a key is unknown, or has the wrong kind of value, or a list has a value twice.
        """
        given = dict(table)
        traces = given.pop("traces", None)
        names = [] if traces is None else several("traces", traces, "a list of files")
        for name in names:
            if not isinstance(name, (str, PathLike)):
                raise refused("traces", name, "names of files")
        seeds = whole_number("seeds", given.pop("seeds", 1), least=1, most=RUNS_MAX)
        sweep = given.pop("sweep", {})
        if not isinstance(sweep, Mapping):
            raise refused("sweep", sweep, "a table")
        return cls(
            [folder / name for name in names],
            {key: _value(key, key, value) for key, value in given.items()},
            {key: _values(key, values) for key, values in sweep.items()},
            seeds,
        )

    def vary(self, key: str, values: object) -> None:
        """Set a key to one value or several, in place of what the scenario says; None leaves it.

        Parameters
        ----------
        key : str
            Of a card.
        values : object
            One, or a list of them.

        Raises
        ------
        ValueError
            If it can't have such a value.
        """
        if values is None:
            return
        self.parameters.pop(key, None)
        self.sweep.pop(key, None)
        if isinstance(values, Iterable) and not isinstance(values, str):
            self.sweep[key] = _values(key, values)
        else:
            self.parameters[key] = _value(key, key, values)

    def runs(self) -> list[Run]:
        """Return one run for each combination and seed.

        Raises
        ------
        ValueError
            If the seeds, a parameter, or a combination of them, can't be.
        OSError
            If a trace can't be read.
        """
        whole_number("seeds", self.seeds, least=1, most=RUNS_MAX)
        total = math.prod(map(len, self.sweep.values())) * self.seeds
        if total > RUNS_MAX:
            raise ValueError(f"sweep: got {total} runs, expected at most {RUNS_MAX}")
        if not self.traces:
            raise ValueError(
                "traces: got none, expected at least one file (traces = [...] in the scenario, or --trace)"
            )
        read = {path: read_trace(path) for path in self.traces}
        jobs = [read[path] for path in self.traces]
        return [
            card_run({**cell}, jobs, {**self.parameters, **cell}, seed)
            for cell in self.cells()
            for seed in range(self.seeds)
        ]

    def cells(self) -> Iterator[dict[str, Any]]:
        """Yield each combination of what is varied."""
        for values in itertools.product(*self.sweep.values()):
            yield dict(zip(self.sweep, values, strict=True))


def card_run(
    cell: Mapping[str, object],
    traces: Sequence[_core.KeyCacheTrace],
    parameters: Mapping[str, Any],
    seed: int,
) -> Run:
    """Return one run on cards.

    Parameters
    ----------
    cell : mapping
        Where it stands in the table.
    traces : sequence of KeyCacheTrace
        One for each job.
    parameters : mapping
        What differs from the preset.
    seed : int
        Of all randomness.

    Raises
    ------
    ValueError
        If a parameter can't be.
    """
    scenario = _text(parameters)
    job = {"kind": "cards", "scenario": scenario, "traces": list(traces), "seed": seed}
    return Run({**cell, "seed": seed}, job, _key_source(scenario) == "cache")


# Seeds differ, parameters seldom do.
@functools.lru_cache
def _key_source(scenario: str) -> object:
    return tomllib.loads(_core.key_cache_parameters(scenario))["keys"]


def effective(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return every parameter of a card, those of the preset included.

    Parameters
    ----------
    parameters : mapping
        What differs from the preset.

    Raises
    ------
    ValueError
        If one is unknown or can't be.
    """
    return tomllib.loads(_core.key_cache_parameters(_text(parameters)))


def _text(parameters: Mapping[str, Any]) -> str:
    # Words, numbers and truth values are written in TOML as in JSON.
    return "".join(f"{json.dumps(key)} = {json.dumps(v)}\n" for key, v in parameters.items())


@functools.cache
def _known() -> dict[str, Any]:
    """Every key of a card, with a value of the kind that it has."""
    return {"preset": "paper", **tomllib.loads(_core.key_cache_parameters(""))}


def _value(name: str, key: str, value: object) -> str | int | bool:
    """What a key of a card is set to, if it is of its kind. Which words and numbers can be, the engine knows."""
    if key not in _known():
        near = difflib.get_close_matches(key, _known(), n=1) or _known()
        raise ValueError(f"{name}: got an unknown key, expected {', '.join(near)}")
    plain = value.item() if isinstance(value, numpy.generic) else value
    kind = type(_known()[key])
    if kind is int:
        return whole_number(name, plain)
    if kind is bool:
        if isinstance(plain, bool):
            return plain
        raise refused(name, value, "true or false")
    if isinstance(plain, str) and plain.isascii() and plain.isprintable():
        return plain
    raise refused(name, value, "a word in quotes")


def _values(key: str, values: object) -> list[Any]:
    name = f"sweep.{key}"
    listed = [
        _value(name, key, value) for value in several(name, values, "a list of at least one value")
    ]
    for index, value in enumerate(listed):
        if value in listed[:index]:
            raise ValueError(f"{name}: got {value!r} twice, expected each value once")
    return listed
