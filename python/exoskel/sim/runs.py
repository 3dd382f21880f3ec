"""Many runs on all processors: what is done is kept when the user interrupts, and when one of them ends in an error."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

from .. import _core
from ..cores import usable_cores
from .arguments import whole_number
from .files import named, read_bounded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .tables import Table

__all__ = [
    "Failed",
    "Progress",
    "Run",
    "Stopped",
    "Unfinished",
    "execute",
    "read_trace",
    "trace_rows",
    "trace_run",
]

# What is measured over so many of something.
_OVER = {
    "packets": ("latency_us", "latency_p50_us", "latency_p99_us"),
    "lookups": ("hit_rate", "cache_hit_rate", "prefetch_hit_rate"),
}

# Keys of the largest cache that there is.
ENTRIES_MAX = 1 << 22

# Takes how many of how many runs are done.
Progress = Callable[[int, int], None]


class Run(NamedTuple):
    """One run.

    Parameters
    ----------
    cell : mapping
        Where it stands in the table: the columns that are known before.
    job : mapping or None
        What is run, in the terms of ``_core.key_cache_runs``; None if the cell says it all.
    has_cache : bool
        Whether lookups are those of a cache: of a card that derives its keys, no hit rate was measured.
    """

    cell: Mapping[str, object]
    job: Mapping[str, Any] | None
    has_cache: bool = True


class Stopped(BaseException):
    """Something ended the runs before all were done.

    Attributes
    ----------
    rows : list of dict
        Those of the runs that were done.
    total : int
        How many there would have been.
    parameters : dict
        What was fixed.
    """

    why = ""

    def __init__(self, text: str, rows: list[dict[str, Any]], total: int) -> None:
        super().__init__(text)
        self.rows = rows
        self.total = total
        self.parameters: dict[str, object] = {}

    @property
    def table(self) -> Table:
        """What was done; a parameter ``unfinished`` says that it isn't all."""
        from .tables import Table

        unfinished = f"{len(self.rows)} of {self.total} runs, {self.why}"
        return Table(self.rows, {**self.parameters, "unfinished": unfinished})


class Unfinished(Stopped, KeyboardInterrupt):
    """The user interrupted."""

    why = "interrupted"


class Failed(Stopped, ValueError):
    """A run ended in an error; the text says which one."""

    why = "one failed"


def execute(
    runs: Sequence[Run], progress: Progress | None = None, threads: int | None = None
) -> list[dict[str, Any]]:
    """Run all, on as many threads as there are processors.

    Parameters
    ----------
    runs : sequence of Run
        What is run. Results don't depend on the order, nor on the threads.
    progress : callable, optional
        Called after each run with the numbers done and in all.
    threads : int, optional
        How many at a time; one for each processor that this process may use if absent.

    Returns
    -------
    list of dict
        For each run, in their order: its cell, and what was measured; NaN for a mean or a share of nothing.

    Raises
    ------
    ValueError
        If a run can't be made: the text names the parameter, the file or the offset.
    Failed
        If a run ends in an error: the text says which one. The others end, too.
    Unfinished
        On Ctrl-C.
    """
    done = {index: dict(run.cell) for index, run in enumerate(runs) if run.job is None}
    asked = [index for index in range(len(runs)) if index not in done]

    def kept() -> list[dict[str, Any]]:
        return [done[index] for index in sorted(done)]

    def finished(number: int, measured: dict[str, Any] | ValueError) -> None:
        index = asked[number]
        if isinstance(measured, ValueError):
            place = ", ".join(f"{name} = {value}" for name, value in runs[index].cell.items())
            raise Failed(f"the run with {place}: {measured}", kept(), len(runs))
        done[index] = {**runs[index].cell, **_measured(measured, runs[index].has_cache)}
        if progress is not None:
            progress(len(done), len(runs))

    jobs = [dict(run.job) for run in runs if run.job is not None]
    try:
        _core.key_cache_runs(jobs, threads or usable_cores(), finished)
    except KeyboardInterrupt:
        text = f"interrupted after {len(done)} of {len(runs)} runs"
        raise Unfinished(text, kept(), len(runs)) from None
    return kept()


def _measured(measured: dict[str, Any], has_cache: bool) -> dict[str, Any]:
    """What was measured, with NaN for a mean or a share of nothing: only a cache has hits."""
    counts = {**measured} if has_cache else {**measured, "lookups": 0}
    nothing = [name for count, names in _OVER.items() if counts.get(count) == 0 for name in names]
    return {**measured, **{name: math.nan for name in nothing if name in measured}}


def read_trace(path: str | PathLike[str]) -> _core.KeyCacheTrace:
    """Read a trace.

    Parameters
    ----------
    path : path
        A file that `exoskel sim pack` or ``Manager(trace=...)`` has written.

    Raises
    ------
    OSError
        If it can't be read.
    ValueError
        If it is no trace, or torn: the text names file, part and offset.
    """
    content = read_bounded(path, _core.KeyCacheTrace.FILE_BYTES_MAX)
    return _core.KeyCacheTrace(named(path), content)


def trace_rows(runs: Sequence[Run], progress: Progress | None = None) -> list[dict[str, Any]]:
    """Run traces through caches, and count the first uses of keys, which miss in a cache of any size.

    Parameters
    ----------
    runs : sequence of Run
        As `trace_run` makes them.
    progress : callable, optional
        Called after each run with the numbers done and in all.

    Returns
    -------
    list of dict
        As `execute` returns them, each with ``first_uses``, and ``hit_rate_max``, which no cache exceeds; NaN without lookups.

    Raises
    ------
    ValueError, Failed, Unfinished
        As `execute` does.
    """
    jobs = [dict(run.job or {}) for run in runs]
    kinds = [(id(job["trace"]), job["lookup"], job["ranks_per_card"]) for job in jobs]
    # With room for all keys nothing leaves a cache: what misses is a first use.
    whole = {
        kind: trace_run(
            job["trace"],
            _keys_max(job["trace"], job["ranks_per_card"]),
            None,
            job["lookup"],
            "lru",
            job["rank"],
            job["ranks_per_card"],
        )
        for kind, job in zip(kinds, jobs, strict=True)
    }
    unbounded = dict(zip(whole, execute([*whole.values()]), strict=True))
    rows = execute(runs, progress)
    for kind, row in zip(kinds, rows, strict=True):
        of_all = unbounded[kind]
        row["first_uses"] = of_all["lookups"] - of_all["hits"]
        row["hit_rate_max"] = of_all["hit_rate"]
    return rows


def _keys_max(trace: _core.KeyCacheTrace, ranks_per_card: int) -> int:
    """How many keys a card can need: of its ranks with all those on other cards, or of a single one with itself, too."""
    others = trace.ranks if ranks_per_card == 1 else trace.ranks - ranks_per_card
    return min(max(ranks_per_card * others, 1), ENTRIES_MAX)


def trace_run(
    trace: _core.KeyCacheTrace,
    entries: int,
    ways: int | None,
    lookup: str,
    policy: str,
    rank: int | None = None,
    ranks_per_card: int | None = None,
) -> Run:
    """Return the run of one trace through one shape of cache.

    Parameters
    ----------
    trace : KeyCacheTrace
        The messages.
    entries : int
        Keys that the cache of each card holds.
    ways : int or None
        Places where a key may be; None for all.
    lookup : str
        ``"message"`` or ``"packet"``.
    policy : str
        ``"lru"``, ``"clock"`` or ``"s3-fifo"``.
    rank : int, optional
        Whose card's cache alone is looked at; those of all if absent.
    ranks_per_card : int, optional
        Ranks that share a card and its cache; 1 if absent.

    Raises
    ------
    ValueError
        If a size or the rank can't be.
    """
    entries = whole_number("entries", entries, least=1)
    shape = {
        "entries": entries,
        "ways": entries if ways is None else whole_number("ways", ways, least=1),
    }
    if rank is not None:
        rank = whole_number("rank", rank)
    words = {"lookup": lookup, "policy": policy}
    if ranks_per_card is not None:
        ranks_per_card = whole_number("ranks_per_card", ranks_per_card, least=1)
    asked = {"rank": rank, "ranks_per_card": ranks_per_card}
    cell = {"trace": trace.name, **shape, **words}
    cell |= {name: number for name, number in asked.items() if number is not None}
    job = {"kind": "trace", "trace": trace, **shape, **words, **asked}
    return Run(cell, {**job, "ranks_per_card": ranks_per_card or 1})
