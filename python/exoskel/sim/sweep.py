"""Caches of many sizes and shapes, or whole scenarios: one table."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from .runs import Progress, execute, read_trace, trace_run
from .scenario import Scenario, effective
from .tables import Table

__all__ = ["keycache"]

_Files: TypeAlias = str | PathLike[str] | Iterable[str | PathLike[str]]
_Size = TypeVar("_Size", int, int | None)


def keycache(
    trace: _Files | None = None,
    *,
    entries: int | Iterable[int] | None = None,
    ways: int | Iterable[int | None] | None = None,
    lookup: str | Iterable[str] = "message",
    policy: str | Iterable[str] = "lru",
    rank: int | None = None,
    scenario: str | PathLike[str] | Mapping[str, Any] | None = None,
    seeds: int | None = None,
    progress: Progress | None = None,
) -> Table:
    """Run traces through session-key caches.

    Without a scenario, only the order of keys counts: each rank has a cache, each message or packet that it sends or receives looks up
    the key of its peer. There is no chance in it. With a scenario, cards, switches and schedulers run in virtual time.

    Parameters
    ----------
    trace : path or paths
        Files that `exoskel sim pack` or ``Manager(trace=...)`` has written. With a scenario: its jobs, in place of those that it names.
    entries : int or ints
        Keys that a cache holds.
    ways : int or ints, optional
        Places where a key may be; all of them if absent.
    lookup : str or strs
        What asks for a key: ``"message"``, or ``"packet"`` (of 256 bytes, those of a message one after another).
    policy : str or strs
        Which key leaves: ``"lru"``, ``"clock"``, ``"s3-fifo"``.
    rank : int, optional
        Whose cache alone is looked at, without a scenario: 0 is the manager in what ``Manager(trace=...)`` wrote. All ranks' if absent.
    scenario : path or mapping, optional
        A scenario file (see `exoskel.sim.scenario`), or what such a file would say.
    seeds : int, optional
        Runs of each combination of a scenario; its own number if absent.
    progress : callable, optional
        Called after each run with the numbers done and in all.

    Returns
    -------
    Table
        NumPy arrays by column. Without a scenario a row for each combination, with ``hit_rate`` (0..1, pooled over ranks, sends and
        receives), ``lookups`` and ``hits``; with one a row for each combination and seed.

    Raises
    ------
    ValueError
        If a parameter can't be, or a trace is torn: the text names it.
    OSError
        If a file can't be read.
    KeyboardInterrupt
        On Ctrl-C.
    """
    if scenario is not None:
        return _scenario(trace, scenario, seeds, progress)
    if trace is None or entries is None:
        missing = "trace" if trace is None else "entries"
        raise ValueError(f"{missing}: got none, expected one, or a scenario")
    shapes = itertools.product(_sizes(entries), _sizes(ways), _words(lookup), _words(policy))
    traces = [read_trace(file) for file in _files(trace)]
    runs = [trace_run(read, *shape, rank) for read, shape in itertools.product(traces, shapes)]
    return Table(execute(runs, progress))


def _scenario(
    trace: _Files | None,
    scenario: str | PathLike[str] | Mapping[str, Any],
    seeds: int | None,
    progress: Progress | None,
) -> Table:
    if isinstance(scenario, Mapping):
        return _run(Scenario.of(scenario, Path()), trace, seeds, progress)
    path = Path(scenario)
    try:
        return _run(Scenario.read(path), trace, seeds, progress)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _run(
    asked: Scenario, trace: _Files | None, seeds: int | None, progress: Progress | None
) -> Table:
    if trace is not None:
        asked.traces = _files(trace)
    if seeds is not None:
        asked.seeds = seeds
    rows = execute(asked.runs(), progress)
    names = " ".join(file.name for file in asked.traces)
    cells = [effective({**asked.parameters, **cell}) for cell in asked.cells()]
    fixed = {k: v for k, v in cells[0].items() if all(cell[k] == v for cell in cells)}
    # What follows from what is varied, as of a preset, stands in each row; what is varied does so already.
    others = [key for key in cells[0] if key not in fixed and key not in asked.sweep]
    for index, row in enumerate(rows):
        row.update({key: cells[index // asked.seeds][key] for key in others})
    return Table(rows, {"traces": names, **{k: fixed[k] for k in fixed if k not in asked.sweep}})


def _files(trace: _Files) -> list[Path]:
    return [Path(trace)] if isinstance(trace, (str, PathLike)) else [Path(file) for file in trace]


def _words(value: str | Iterable[str]) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def _sizes(value: _Size | Iterable[_Size]) -> list[_Size]:
    return list(value) if isinstance(value, Iterable) else [value]
