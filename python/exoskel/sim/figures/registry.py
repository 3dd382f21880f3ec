"""Which figures there are."""

from __future__ import annotations

from collections.abc import Sequence

from . import capacities, cards, schedulers, sequences
from .setting import Figure

__all__ = ["FIGURES", "chosen"]

# In the order in which they are made: those that are soon done come first.
FIGURES: tuple[Figure, ...] = (
    capacities.CAPACITIES,
    cards.SILICON,
    sequences.LOOKUPS,
    sequences.POLICIES,
    sequences.ASSOCIATIVITY,
    sequences.LARGE_CLUSTERS,
    cards.COMPLETION_TIMES,
    cards.SINGLE,
    cards.SENSITIVITY,
    cards.KEY_MEMORY,
    cards.PACKET_LENGTHS,
    schedulers.SCHEDULERS,
    schedulers.BUFFERS,
)


def chosen(names: Sequence[str]) -> list[Figure]:
    """Return the figures of these names, in our order.

    Parameters
    ----------
    names : sequence of str
        Names; all figures if empty.

    Raises
    ------
    ValueError
        If there is no such figure; the text names those there are.
    """
    known = {figure.name for figure in FIGURES}
    for name in names:
        if name not in known:
            there = ", ".join(figure.name for figure in FIGURES)
            raise ValueError(f"figure: got {name!r}, expected one of {there}")
    return [figure for figure in FIGURES if not names or figure.name in names]
