"""Caches of many sizes and shapes, or whole scenarios: one table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

from .arguments import refused, several
from .files import checksum, named
from .runs import Failed, Progress, Run, Stopped, execute, read_trace, trace_rows, trace_run
from .scenario import Scenario, card_run, effective
from .tables import Table

__all__ = ["keycache"]

_Files: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]

# Parameters that only matter to cards with keys begin so.
_OF_KEYS = ("cache_", "prefetch_", "key_", "derivation_", "lookup_", "cipher_", "receive_lookup_")
# What a scenario has in place of the arguments that shape a cache.
_IN_SCENARIO = {
    "entries": "cache_entries in it",
    "ways": "cache_ways in it",
    "lookup": "lookup_unit in it",
    "policy": "cache_policy in it",
    "rank": "none: all ranks have cards",
}


def keycache(
    trace: _Files | None = None,
    *,
    entries: int | Iterable[int] | None = None,
    ways: int | Iterable[int | None] | None = None,
    lookup: str | Iterable[str] | None = None,
    policy: str | Iterable[str] | None = None,
    rank: int | None = None,
    ranks_per_card: int | Iterable[int] | None = None,
    scenario: str | PathLike[str] | Mapping[str, Any] | None = None,
    seeds: int | None = None,
    slowdown: bool = False,
    progress: Progress | None = None,
) -> Table:
    """Run traces through session-key caches.

    Without a scenario, only the order of keys counts: each rank has a card with a cache, each message or packet that it sends or receives looks up
    the key of its peer. There is no chance in it. With a scenario, cards, switches and schedulers run in virtual time.

    Parameters
    ----------
    trace : path or paths
        Files that `exoskel sim pack` or ``Manager(trace=...)`` has written. With a scenario: its jobs, in place of those that it names.
    entries : int or ints
        Keys that a cache holds.
    ways : int or ints, optional
        Places where a key may be; all of them if absent.
    lookup : str or strs, optional
        What asks for a key: ``"message"``, as if absent, or ``"packet"`` (of 256 bytes, those of a message one after another).
    policy : str or strs, optional
        Which key leaves: ``"lru"``, as if absent, ``"clock"``, ``"s3-fifo"``.
    rank : int, optional
        Whose cache alone is looked at, without a scenario: 0 is the manager in what ``Manager(trace=...)`` wrote. All ranks' if absent.
    ranks_per_card : int or ints, optional
        Consecutive ranks that are on one node and share its card and cache, 1 if absent. What they send each other needs no key. With a scenario: in place of
        what that says.
    scenario : path or mapping, optional
        A scenario file (see `exoskel.sim.scenario`), or what such a file would say.
    seeds : int, optional
        Runs of each combination of a scenario; its own number if absent.
    slowdown : bool
        Also run each combination of a scenario without security (``keys = "none"``), with the same seeds. The column ``slowdown`` is
        the completion time over that of the run without security: 1.05 is five percent longer.
    progress : callable, optional
        Called after each run with the numbers done and in all.

    Returns
    -------
    Table
        NumPy arrays by column. Without a scenario a row for each combination, with ``hit_rate`` (0..1, pooled over ranks, sends and
        receives), ``lookups``, ``hits``, ``first_uses`` (lookups that no cache can hit) and ``hit_rate_max``; with one a row for each combination and seed, where NaN stands for what was not measured.

    Raises
    ------
    ValueError
        If a parameter can't be, or a trace is torn: the text names it. If a run ends in an error, the text names the run, and the
        error is a `Stopped`, too, whose ``table`` has those that were done.
    OSError
        If a file can't be read.
    KeyboardInterrupt
        On Ctrl-C; while runs are under way a `Stopped`, too.
    """
    if scenario is not None:
        for name, given in (
            ("entries", entries),
            ("ways", ways),
            ("lookup", lookup),
            ("policy", policy),
            ("rank", rank),
        ):
            if given is not None:
                raise ValueError(
                    f"{name}: got {given!r} beside a scenario, expected {_IN_SCENARIO[name]}"
                )
        return _scenario(trace, scenario, seeds, ranks_per_card, slowdown, progress)
    if seeds is not None:
        raise ValueError(
            f"seeds: got {seeds!r} without a scenario, expected none: there is no chance in it"
        )
    if slowdown:
        raise ValueError(
            f"slowdown: got {slowdown!r} without a scenario, expected none: there is no time in it"
        )
    if trace is None or entries is None:
        missing = "trace" if trace is None else "entries"
        raise ValueError(f"{missing}: got none, expected one, or a scenario")
    traces = [read_trace(file) for file in _files(trace)]
    runs = [
        trace_run(file, size, places, unit, kind, rank, sharing)
        for file, size, places, unit, kind, sharing in itertools.product(
            traces,
            _sizes("entries", entries),
            _sizes("ways", ways),
            _words("lookup", "message" if lookup is None else lookup),
            _words("policy", "lru" if policy is None else policy),
            _sizes("ranks_per_card", ranks_per_card),
        )
    ]
    return Table(trace_rows(runs, progress))


def _scenario(
    trace: _Files | None,
    scenario: str | PathLike[str] | Mapping[str, Any],
    seeds: int | None,
    ranks_per_card: int | Iterable[int] | None,
    slowdown: bool,
    progress: Progress | None,
) -> Table:
    if isinstance(scenario, Mapping):
        asked = Scenario.of(scenario, Path())
        asked.vary("ranks_per_card", ranks_per_card)
        return _run(asked, trace, seeds, slowdown, progress)
    path = Path(scenario)
    asked = Scenario.read(path)
    asked.vary("ranks_per_card", ranks_per_card)
    try:
        return _run(asked, trace, seeds, slowdown, progress)
    except Failed as failed:
        failed.args = (f"{named(path)}: {failed}",)
        raise
    except ValueError as error:
        raise ValueError(f"{named(path)}: {error}") from None


def _run(
    asked: Scenario,
    trace: _Files | None,
    seeds: int | None,
    slowdown: bool,
    progress: Progress | None,
) -> Table:
    if trace is not None:
        asked.traces = _files(trace)
    if seeds is not None:
        asked.seeds = seeds
    runs = asked.runs()
    cells = [effective({**asked.parameters, **cell}) for cell in asked.cells()]
    fixed = {k: v for k, v in cells[0].items() if all(cell[k] == v for cell in cells)}
    # What follows from what is varied, as of a preset, stands in each row; what is varied does so already.
    others = [key for key in cells[0] if key not in fixed and key not in asked.sweep]
    runs = [
        run._replace(cell={**run.cell, **{key: cell[key] for key in others}})
        for run, cell in zip(
            runs, (cell for cell in cells for _ in range(asked.seeds)), strict=True
        )
    ]
    names = " ".join(named(file.name) for file in asked.traces)
    sums = " ".join(checksum(file) for file in asked.traces)
    parameters = {
        "traces": names,
        "sha256": sums,
        **{k: fixed[k] for k in fixed if k not in asked.sweep},
    }
    try:
        rows = _with_slowdown(asked, runs, progress) if slowdown else execute(runs, progress)
    except Stopped as stopped:
        stopped.parameters = parameters
        raise
    return Table(rows, parameters)


def _with_slowdown(
    asked: Scenario, runs: list[Run], progress: Progress | None
) -> list[dict[str, Any]]:
    """Run all, and before them each combination once without security; what differs in keys alone shares one."""
    read = {path: read_trace(path) for path in asked.traces}
    jobs = [read[path] for path in asked.traces]
    bare: dict[tuple[object, ...], Run] = {}
    places = []
    for cell in asked.cells():
        parameters = {**asked.parameters, **cell, "keys": "none"}
        # What is no matter without keys would make one run into many.
        shape = {k: v for k, v in effective(parameters).items() if not k.startswith(_OF_KEYS)}
        kept = {k: v for k, v in parameters.items() if not k.startswith(_OF_KEYS)}
        for seed in range(asked.seeds):
            place = (*shape.items(), seed)
            places.append(place)
            if place not in bare:
                bare[place] = card_run({}, jobs, kept, seed)
    total = len(bare) + len(runs)

    def shown(before: int) -> Progress | None:
        return None if progress is None else lambda done, _total: progress(before + done, total)

    try:
        ends = execute([*bare.values()], shown(0))
    except Stopped as stopped:
        # Of what was asked for nothing is done.
        stopped.rows = []
        raise
    without = dict(zip(bare, ends, strict=True))

    def compared(rows: list[dict[str, Any]]) -> None:
        known = {(*((name, row[name]) for name in asked.sweep), row["seed"]): row for row in rows}
        combinations = (
            (*cell.items(), seed) for cell in asked.cells() for seed in range(asked.seeds)
        )
        for combination, place in zip(combinations, places, strict=True):
            if (row := known.get(combination)) is not None:
                row["slowdown"] = row["completion_ms"] / without[place]["completion_ms"]

    try:
        rows = execute(runs, shown(len(bare)))
    except Stopped as stopped:
        compared(stopped.rows)
        raise
    compared(rows)
    return rows


def _files(trace: _Files) -> list[Path]:
    if isinstance(trace, (str, PathLike)):
        return [Path(trace)]
    return [Path(file) for file in several("trace", trace, "a file or a list of files")]


def _words(name: str, value: str | Iterable[str]) -> list[str]:
    if isinstance(value, str):
        return [value]
    words = several(name, value, "a word or a list of words")
    for word in words:
        if not isinstance(word, str):
            raise refused(name, word, "a word")
    return words


def _sizes(name: str, value: int | Iterable[int | None] | None) -> list[Any]:
    if isinstance(value, Iterable):
        return several(name, value, "a whole number or a list of them")
    return [value]
