"""What all figures share: how much is run, and on which traces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import _core
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
REQUESTS_SHAPE = (16, 500)


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
    _read: dict[str, _core.KeyCacheTrace] = field(default_factory=dict)

    def trace(self, benchmark: str, *, small: bool = False) -> _core.KeyCacheTrace:
        """Return the trace of a benchmark: class A, or the small class S.

        Parameters
        ----------
        benchmark : str
            One of `BENCHMARKS`, or `REQUESTS`.
        small : bool
            Class S in any case; a quick run takes it always.
        """
        if benchmark == REQUESTS:
            if REQUESTS not in self._read:
                self._read[REQUESTS] = _core.KeyCacheTrace.requests(*REQUESTS_SHAPE, seed=1)
            return self._read[REQUESTS]
        file = BENCHMARKS[benchmark][small or self.quick]
        if file not in self._read:
            self._read[file] = read_trace(self.folder / file)
        return self._read[file]

    @cached_property
    def parameters(self) -> dict[str, object]:
        """What stands in the head of every CSV file."""
        return {"seeds": self.seeds, "quick": self.quick}


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
