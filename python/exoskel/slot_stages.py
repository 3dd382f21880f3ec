"""What a slot runs of a program in one call: several stages for one item, or a whole slice of items with the fold of their results."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from .folds import KeyedValue, MergedKeys, fold, fold_by_keys
from .frozen import shown
from .instances import Closable, close_instances
from .outcome import add_item_note
from .sequential import gives_many, results_of, single, split_reduction
from .short_text import describe_subject, name_of
from .skeletons import Skeleton, flatten
from .worker_lists import checked_list

__all__ = ["JoinedLists", "SliceFold", "SlotStages"]


class SlotStages(Closable):
    """Stages that a slot runs one after the other, as one function that returns the list of their results.

    Parameters
    ----------
    stages : Skeleton
        The stages; they don't reduce.
    """

    def __init__(self, stages: Skeleton[Any, Any]) -> None:
        self._stages = stages
        # As the notes of exceptions name it.
        self.__name__ = shown(stages)
        self._functions: list[Any] = []
        self._results: Callable[[Any], Iterator[Any]] | None = None

    def __call__(self, item: Any) -> list[Any]:
        """Return the results of an item."""
        results = self._results
        if results is None:
            structure, self._functions = flatten(self._stages)
            results = self._results = results_of(structure, self._functions)
        return list(results(item))

    def close(self) -> None:
        """Close the instances of classes among the functions."""
        close_instances(self._functions)

    def __reduce__(self) -> tuple[Any, ...]:
        return SlotStages, (self._stages,)


class JoinedLists:
    """What joins the results of parts that have a list of them each.

    Parameters
    ----------
    join : callable or None
        What joins the results.
    """

    def __init__(self, join: Callable[[list[Any]], Any] | None) -> None:
        self._join = join
        self.__name__ = "list" if join is None else name_of(join)

    def __call__(self, lists: list[list[Any]]) -> Any:
        """Join all results of all parts."""
        results = list(chain.from_iterable(map(checked_list, lists)))
        return results if self._join is None else self._join(results)

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedLists, (self._join,)


class SliceFold(Closable):
    """Runs a program that reduces over a slice of the items, and answers with what the slice folds to.

    Parameters
    ----------
    program : Skeleton
        The program.
    """

    def __init__(self, program: Skeleton[Any, Any]) -> None:
        self._program = program
        self.__name__ = shown(program)
        self._functions: list[Any] = []
        self._values: Callable[[Iterator[Any]], Iterator[Any]] | None = None
        self._fold: Callable[[Iterator[Any]], list[Any]] = list

    def __call__(self, numbered: tuple[int, Any]) -> list[Any]:
        """Fold a slice: the index of its first item, and the items.

        Returns
        -------
        list
            The seconds that it took, and what the slice folds to, unless there is nothing.
        """
        start, items = numbered
        began = time.perf_counter()
        values = self._values
        if values is None:
            values = self._compile()
        iterator = iter(items)
        try:
            folded = self._fold(values(iterator))
        except Exception as error:
            # The iterators of ranges, sequences and arrays know how much they have left.
            offset = max(0, len(items) - operator.length_hint(iterator) - 1)
            add_item_note(error, start + offset, describe_subject("item", items[offset], None))
            raise
        return [time.perf_counter() - began, *folded]

    def _compile(self) -> Callable[[Iterator[Any]], Iterator[Any]]:
        whole, functions = flatten(self._program)
        self._functions = functions
        structure, reduction = split_reduction(whole)
        if reduction is None:
            raise TypeError(f"got {self._program!r} to fold, expected a program that reduces")
        operation = functions[reduction[1]]
        stages = _stages_of(structure)
        lift = functions[stages[-1][1]] if stages and stages[-1][0] == "seq" else None
        if isinstance(operation, MergedKeys) and isinstance(lift, KeyedValue):
            # No dict for each result.
            stages.pop()
            self._fold = lambda values: fold_by_keys(lift, operation, values)
        else:
            self._fold = lambda values: fold(operation, values)
        self._values = _over(("pipeline", tuple(stages)), functions)
        return self._values

    def close(self) -> None:
        """Close the instances of classes among the functions."""
        close_instances(self._functions)

    def __reduce__(self) -> tuple[Any, ...]:
        return SliceFold, (self._program,)


def _stages_of(structure: Any) -> list[Any]:
    """Return the stages of a structure whose stages all run in one place."""
    if structure[0] == "farm":
        return _stages_of(structure[1])
    if structure[0] == "pipeline":
        return [stage for inner in structure[1] for stage in _stages_of(inner)]
    return [structure]


def _over(
    structure: Any, functions: list[Callable[[Any], Any]]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return what makes an iterator over results of one over items."""
    if structure == ("pipeline", ()):
        return lambda items: items
    if gives_many(structure):
        results = results_of(structure, functions)
        return lambda items: chain.from_iterable(map(results, items))
    call = single(structure, functions)
    return lambda items: map(call, items)
