"""Folds of results: how a `Reduce` is done over a row of values, wherever they are."""

from __future__ import annotations

import copy
import functools
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Never

from .errors import SizeLimitError
from .short_text import name_of, short_text

__all__ = ["KeyedValue", "MergedKeys", "fold", "fold_by_keys", "spot_checked", "with_initial"]


# In the place of a value that isn't there.
_MISSING: Any = object()


class KeyedValue:
    """What a result becomes in a reduction by keys: a dict with its key and its value.

    Parameters
    ----------
    key : callable
        Gives the key.
    value : callable or None
        Gives the value; the result itself if None.
    """

    def __init__(self, key: Callable[[Any], Any], value: Callable[[Any], Any] | None) -> None:
        self.key = key
        self.value = value
        # As the notes of exceptions name it.
        self.__name__ = name_of(key)

    def __call__(self, result: Any) -> dict[Any, Any]:
        """Return the dict."""
        value = result if self.value is None else self.value(result)
        return {self.key(result): value}


class MergedKeys:
    """How two dicts of a reduction by keys are folded. The first one is changed.

    Parameters
    ----------
    operation : callable
        Folds two values of one key.
    max_keys : int
        How many keys there may be.
    """

    def __init__(self, operation: Callable[[Any, Any], Any], max_keys: int) -> None:
        self.operation = operation
        self.max_keys = max_keys
        self.__name__ = name_of(operation)

    def __call__(self, into: dict[Any, Any], other: dict[Any, Any]) -> dict[Any, Any]:
        """Return the first dict, with the second one merged into it."""
        operation, known = self.operation, into.get
        for key, value in other.items():
            earlier = known(key, _MISSING)
            into[key] = value if earlier is _MISSING else operation(earlier, value)
        if len(into) > self.max_keys:
            self.refuse()
        return into

    def refuse(self) -> Never:
        """Say that there are too many keys."""
        raise SizeLimitError(
            f"got more than {self.max_keys} keys in a reduction, expected at most max_keys={self.max_keys}; give Reduce a larger max_keys, or coarser keys"
        )


def fold(operation: Callable[[Any, Any], Any], values: Iterable[Any]) -> list[Any]:
    """Fold values from the left.

    Parameters
    ----------
    operation : callable
        Folds two values.
    values : iterable
        The values.

    Returns
    -------
    list
        The result alone; empty if there is no value.
    """
    iterator = iter(values)
    for first in iterator:
        # The interpreter has loops of its own for some; of integers, since sums of floats are rounded otherwise there.
        # By identity: a function need be neither hashable nor comparable.
        if type(first) is int and operation is operator.add:
            return [sum(iterator, first)]
        if type(first) is int and operation is operator.mul:
            return [math.prod(iterator, start=first)]
        if operation is max or operation is min:
            return [operation(itertools.chain((first,), iterator))]
        return [functools.reduce(operation, iterator, first)]
    return []


def fold_by_keys(lift: KeyedValue, merge: MergedKeys, results: Iterable[Any]) -> list[Any]:
    """Fold results by keys, without a dict for each.

    Parameters
    ----------
    lift : KeyedValue
        Gives key and value of a result.
    merge : MergedKeys
        Folds two values of one key.
    results : iterable
        The results.

    Returns
    -------
    list
        The dict alone; empty if there is no result.
    """
    key_of, value_of, operation = lift.key, lift.value, merge.operation
    into: dict[Any, Any] = {}
    known = into.get
    for result in results:
        key = key_of(result)
        value = result if value_of is None else value_of(result)
        earlier = known(key, _MISSING)
        if earlier is not _MISSING:
            into[key] = operation(earlier, value)
        else:
            into[key] = value
            if len(into) > merge.max_keys:
                merge.refuse()
    return [into] if into else []


def with_initial(
    operation: Callable[[Any, Any], Any], has_initial: bool, initial: Any, folded: list[Any]
) -> Any:
    """Return the result of a reduction.

    Parameters
    ----------
    operation : callable
        Folds two values.
    has_initial : bool
        Whether there is an initial value.
    initial : object
        That value. It stays as it is, also if the operation changes its first argument.
    folded : list
        What `fold` returned for all values.

    Returns
    -------
    object
        The result.

    Raises
    ------
    TypeError
        If there is neither a value nor an initial one.
    """
    if has_initial:
        own = copy.deepcopy(initial)
        return operation(own, folded[0]) if folded else own
    if not folded:
        # As `functools.reduce` does, and the engine.
        raise TypeError("got no items to reduce and no initial value, expected one of them")
    return folded[0]


def spot_checked(
    operation: Callable[[Any, Any], Any], values: Iterable[Any], checks_max: int
) -> Iterator[Any]:
    """Iterate over values, and try out on some in a row whether an operation on them is associative.

    Parameters
    ----------
    operation : callable
        The operation.
    values : iterable
        The values.
    checks_max : int
        How often it is tried out at most.

    Yields
    ------
    object
        The values.

    Raises
    ------
    ValueError
        If it isn't.
    """
    # Of a reduction by keys, the values of each key are folded.
    is_keyed = isinstance(operation, MergedKeys)
    folded = operation.operation if isinstance(operation, MergedKeys) else operation
    recent: dict[Any, list[Any]] = {}
    checks = 0
    for value in values:
        if checks < checks_max:
            for key, one in value.items() if is_keyed else [(None, value)]:
                if key not in recent and len(recent) >= checks_max:
                    continue
                last = recent[key] = [*recent.get(key, [])[-2:], copy.deepcopy(one)]
                if len(last) == 3:
                    _check_associative(folded, *last)
                    checks += 1
        yield value


def _check_associative(operation: Callable[[Any, Any], Any], a: Any, b: Any, c: Any) -> None:
    def called(first: Any, second: Any) -> Any:
        # It may change its first argument.
        return operation(copy.deepcopy(first), copy.deepcopy(second))

    left = called(called(a, b), c)
    right = called(a, called(b, c))
    if not _is_alike(left, right):
        name = name_of(operation)
        values = ", ".join(map(short_text, (a, b, c)))
        raise ValueError(
            f"{name} isn't associative, as Reduce expects: for {values} it gives {short_text(left)} from the left and "
            f"{short_text(right)} from the right"
        )


def _is_alike(left: Any, right: Any) -> bool:
    """Compare two results; floats are rounded."""
    if isinstance(left, float) and isinstance(right, float):
        is_same = left == right or (math.isnan(left) and math.isnan(right))
        return is_same or math.isclose(left, right, rel_tol=1e-6, abs_tol=1e-9)
    if isinstance(left, (list, tuple)) and type(left) is type(right):
        return len(left) == len(right) and all(map(_is_alike, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_is_alike(left[key], right[key]) for key in left)
    if hasattr(left, "dtype") and hasattr(left, "shape"):
        import numpy

        if left.shape != getattr(right, "shape", None):
            return False
        if left.dtype.kind in "fc":
            return bool(numpy.allclose(left, right, equal_nan=True))
        return bool(numpy.array_equal(left, right))
    return bool(left == right)
