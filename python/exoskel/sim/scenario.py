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

import itertools
import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import _core
from .runs import Run, read_trace

__all__ = ["Scenario", "card_run", "effective"]


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
            If it is wrong: the text names the key, or the place.
        OSError
            If it can't be read.
        """
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(str(error)) from None
        return cls.of(table, path.parent)

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
            If a key has the wrong kind of value.
        """
        parameters = dict(table)
        traces = _expected(parameters.pop("traces", []), list, "traces", "a list of files")
        seeds = _expected(parameters.pop("seeds", 1), int, "seeds", "a number of runs")
        sweep = _expected(parameters.pop("sweep", {}), dict, "sweep", "a table")
        for key, values in sweep.items():
            if not _expected(values, list, f"sweep.{key}", "a list of values"):
                raise ValueError(f"sweep.{key}: got an empty list, expected at least one value")
        files = [folder / _expected(name, str, "traces", "names of files") for name in traces]
        return cls(files, parameters, sweep, seeds)

    def runs(self) -> list[Run]:
        """Return one run for each combination and seed.

        Raises
        ------
        ValueError
            If the seeds, a parameter, or a combination of them, can't be.
        OSError
            If a trace can't be read.
        """
        if self.seeds < 1:
            raise ValueError(f"seeds: got {self.seeds}, expected at least 1")
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
    return Run({**cell, "seed": seed}, job)


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
    # Strings, numbers and truth values are written in TOML as in JSON; what is none of these, the reader refuses by name.
    return "".join(f"{json.dumps(key)} = {json.dumps(v)}\n" for key, v in parameters.items())


def _expected(value: Any, kind: type, key: str, expected: str) -> Any:
    if isinstance(value, kind) and not isinstance(value, bool):
        return value
    raise ValueError(f"{key}: got {value!r}, expected {expected}")
