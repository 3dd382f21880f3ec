"""What all figures share: how much is run, and on which traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import _core
from ..files import checksum
from ..runs import Run, read_trace
from ..tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["BENCHMARKS", "REQUESTS", "Figure", "Setting"]

# The files of class A (LU: 20 of its 250 iterations) and of class S, by the benchmark's name.
BENCHMARKS = {
    "CG": ("cg.A.16.skct.zst", "cg.S.16.skct.zst"),
    "MG": ("mg.A.16.skct.zst", "mg.S.16.skct.zst"),
    "LU": ("lu.A.16.it20.skct.zst", "lu.S.16.skct.zst"),
    "SP": ("sp.A.16.skct.zst", "sp.S.16.skct.zst"),
    "BT": ("bt.A.16.skct.zst", "bt.S.16.skct.zst"),
    "FT": ("ft.A.16.skct.zst", "ft.S.16.skct.zst"),
}
# Stands in for the paper's commercial workload, which isn't free: ranks, and requests of each.
REQUESTS = "requests"
REQUESTS_SHAPE = (16, 2_000)


@dataclass
class Setting:
    """How much is run.

    Attributes
    ----------
    seeds : int
        Runs of each point.
    quick : bool
        Little input, few points.
    folder : Path
        Where the traces are.
    """

    seeds: int
    quick: bool
    folder: Path
    # By benchmark, per cent of its computation, and after how many messages it ends: each is made ready to run once.
    _made: dict[tuple[str, int, int], _core.KeyCacheTrace] = field(default_factory=dict)

    def trace(
        self, benchmark: str, *, percent: int = 100, messages: int = 0
    ) -> _core.KeyCacheTrace:
        """Return the trace of a benchmark: class A, or, in a quick run, the small class S.

        Parameters
        ----------
        benchmark : str
            One of `BENCHMARKS`, or `REQUESTS`.
        percent : int
            How long its computation takes, in per cent of what it took when the trace was taken.
        messages : int
            A job of it ends when so many were delivered; 0: with the trace.
        """
        wanted = (benchmark, percent, messages)
        if wanted not in self._made:
            self._made[wanted] = self._make(*wanted)
        return self._made[wanted]

    def _make(self, benchmark: str, percent: int, messages: int) -> _core.KeyCacheTrace:
        if messages:
            return self.trace(benchmark, percent=percent).ending_after(messages)
        if percent != 100:
            return self.trace(benchmark).with_computation(percent)
        if benchmark == REQUESTS:
            return _core.KeyCacheTrace.requests(*REQUESTS_SHAPE, seed=1)
        return read_trace(self.folder / BENCHMARKS[benchmark][self.quick])

    def checksums(self, benchmarks: Iterable[str] = BENCHMARKS) -> str:
        """Return by what their traces are known again, as `files.checksum` has it; `REQUESTS` has no file.

        Parameters
        ----------
        benchmarks : iterable of str
            Of `BENCHMARKS` and `REQUESTS`.
        """
        files = {name: BENCHMARKS[name][self.quick] for name in benchmarks if name != REQUESTS}
        return " ".join(f"{name}:{checksum(self.folder / file)}" for name, file in files.items())


@dataclass(frozen=True)
class Figure:
    """One figure or table.

    Attributes
    ----------
    name : str
        How ``--figure`` calls it.
    title : str
        What it shows, in one line.
    runs : callable
        Takes the setting; returns what has to be run.
    measures : tuple of str
        The columns that a run measures and that are averaged over seeds.
    draw : callable
        Draws the averaged table.
    parameters : callable
        Takes the setting; returns what was fixed.
    """

    name: str
    title: str
    runs: Callable[[Setting], Sequence[Run]]
    measures: tuple[str, ...]
    draw: Callable[[Table], Canvas]
    parameters: Callable[[Setting], Mapping[str, Any]]
