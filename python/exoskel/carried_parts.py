"""What becomes of a `Map` whose worker carries a state: the parts of an item meet where that is needed, in their order."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, takewhile
from typing import Any

from .frozen import shown
from .patterns import Map
from .sequential import begun, iterated
from .skeletons import Farm, Pipeline, Skeleton, flatten

__all__ = ["maps_between"]


def maps_between(whole: Map[Any, Any]) -> Skeleton[Any, Any]:
    """Return a program that does the same in which no worker carries a state.

    What stands between two states is the worker of a `Map`, which joins at the next state.

    Parameters
    ----------
    whole : Map
        A `Map` whose worker carries a state.

    Returns
    -------
    Skeleton
        The program.
    """
    split, stages = whole.split, _stages_of(whole.worker)
    maps: list[Skeleton[Any, Any]] = []
    while stages:
        parallel = [*takewhile(lambda stage: not stage.carries, stages)]
        stages = stages[len(parallel) :]
        carrying = [*takewhile(lambda stage: stage.carries, stages)]
        stages = stages[len(carrying) :]
        join = None if stages else whole.join
        joined = CarriedParts(Pipeline(*carrying), join) if carrying else join
        if parallel:
            maps.append(Map(split, Pipeline(*parallel), joined))
        elif joined is not None:
            maps.append(Farm(SplitParts(split, joined)))
        split = None
    return Pipeline(*maps)


def _stages_of(stage: Skeleton[Any, Any]) -> list[Skeleton[Any, Any]]:
    if isinstance(stage, Pipeline):
        return [inner for outer in stage.stages for inner in _stages_of(outer)]
    return [stage]


class CarriedParts:
    """Takes the parts of one item through stages that carry a state, which begins anew, and joins their results.

    Parameters
    ----------
    stages : Skeleton
        The stages.
    join : callable or None
        What joins the results. Without it, they are a list.
    """

    def __init__(self, stages: Skeleton[Any, Any], join: Callable[[list[Any]], Any] | None) -> None:
        self._stages = stages
        self._join = join
        # As the notes of exceptions name it.
        self.__name__ = shown(stages)

    def __call__(self, parts: list[Any]) -> Any:
        """Return the result of an item."""
        before, results = begun(*flatten(self._stages))
        all_results = [*before, *chain.from_iterable(map(results, parts))]
        return all_results if self._join is None else self._join(all_results)

    def __reduce__(self) -> tuple[Any, ...]:
        return CarriedParts, (self._stages, self._join)


class SplitParts:
    """Splits an item whose parts are joined without being worked on before.

    Parameters
    ----------
    split : callable or None
        What splits it. Without it, the item is its parts.
    joined : callable
        What joins the parts.
    """

    def __init__(
        self, split: Callable[[Any], Any] | None, joined: Callable[[list[Any]], Any]
    ) -> None:
        self._split = split
        self._joined = joined
        self.__name__ = shown(joined)

    def __call__(self, item: Any) -> Any:
        """Return the result of an item."""
        parts = item if self._split is None else self._split(item)
        return self._joined([*iterated(parts, self._split)])

    def __reduce__(self) -> tuple[Any, ...]:
        return SplitParts, (self._split, self._joined)
