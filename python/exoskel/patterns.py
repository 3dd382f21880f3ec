"""Patterns beside `Farm` and `Pipeline`: they split items, repeat a body, and fold results.

All of them run on every free slot. A `Seq` inside one of them runs on every free slot too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import EllipsisType
from typing import Any, TypeVar, overload

from .frozen import shown
from .skeletons import (
    AnyStage,
    Function,
    In,
    Out,
    Skeleton,
    Structure,
    as_written,
    check_function,
    refuse_carried,
    refuse_reduction,
    skeleton_of,
)

__all__ = ["DivideAndConquer", "FlatMap", "Iterate", "Map", "Reduce"]

_A = TypeVar("_A")
_B = TypeVar("_B")
_K = TypeVar("_K")
_P = TypeVar("_P")
_R = TypeVar("_R")

# A reduction by keys holds so many, unless it is told another number.
KEYS_MAX = 1_000_000


class FlatMap(Skeleton[In, Out]):
    """A function that gives any number of results for an item: none, one, or many.

    The results of an item come in their order, behind those of the items before it. So it also filters: no result, no item.

    Parameters
    ----------
    function : callable
        It takes one item and returns an iterable, such as a list. It may be a generator function.

    Raises
    ------
    TypeError
        If it can't be called with one argument.
    """

    __slots__ = ()

    def __init__(self, function: Callable[[In], Iterable[Out]]) -> None:
        check_function(function, "FlatMap", 1, gives_iterable=True)
        super().__init__(function)

    @property
    def function(self) -> Function:
        """The function."""
        function: Function = self._held[0]
        return function

    @property
    def gives_many(self) -> bool:
        """Yes."""
        return True

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("flat_map", function)``."""
        return ("flat_map", index(self.function))


class Map(Skeleton[In, Out]):
    """Splits an item, processes its parts at the same time, and joins their results.

    Parameters
    ----------
    split : callable or None
        It takes the item and returns an iterable of parts. Without one, the item is itself an iterable of parts.
    worker : Skeleton or callable
        It processes one part. It may be a whole program of its own, such as a `Pipeline` or another `Map`. A state, as of `Scan`,
        begins anew with each item and goes through its parts in order.
    join : callable or None, optional
        It takes the list of the parts' results, in the order of the parts, and returns the result of the item. Without one, the
        list is the result.

    Raises
    ------
    TypeError
        If one of these is no function of one argument, or the worker reduces.
    """

    __slots__ = ()

    # What a join takes isn't checked: for the commonest one, `sum`, type checkers can't tell.
    @overload
    def __init__(
        self: Map[_A, _B],
        split: Callable[[_A], Iterable[_P]],
        worker: AnyStage[_P, _R],
        join: Callable[[list[Any]], _B],
    ) -> None: ...
    @overload
    def __init__(
        self: Map[_A, list[_R]],
        split: Callable[[_A], Iterable[_P]],
        worker: AnyStage[_P, _R],
        join: None = None,
    ) -> None: ...
    @overload
    def __init__(
        self: Map[Iterable[_P], _B],
        split: None,
        worker: AnyStage[_P, _R],
        join: Callable[[list[Any]], _B],
    ) -> None: ...
    @overload
    def __init__(
        self: Map[Iterable[_P], list[_R]],
        split: None,
        worker: AnyStage[_P, _R],
        join: None = None,
    ) -> None: ...
    def __init__(self, split: Any, worker: Any, join: Any = None) -> None:
        if split is not None:
            check_function(split, "split of Map", 1, gives_iterable=True)
        worker = skeleton_of(worker, "worker of Map")
        refuse_reduction(worker, "Map")
        if join is not None:
            check_function(join, "join of Map", 1)
        super().__init__(split, worker, join)

    def __repr__(self) -> str:
        split, worker, join = self._held
        texts = [shown(split), _alone(worker), *([shown(join)] if join is not None else [])]
        return f"Map({', '.join(texts)})"

    @property
    def split(self) -> Function | None:
        """What splits an item, if anything does."""
        split: Function | None = self._held[0]
        return split

    @property
    def worker(self) -> Skeleton[Any, Any]:
        """What processes a part."""
        worker: Skeleton[Any, Any] = self._held[1]
        return worker

    @property
    def join(self) -> Function | None:
        """What joins the results, if anything does."""
        join: Function | None = self._held[2]
        return join

    @property
    def inner(self) -> tuple[Skeleton[Any, Any], ...]:
        """The worker."""
        return (self.worker,)

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("map", split, structure, join)``, with None for a function that isn't there."""
        split = None if self.split is None else index(self.split)
        worker = self.worker.structure(index)
        return ("map", split, worker, None if self.join is None else index(self.join))


class Reduce(Skeleton[In, Out]):
    """Folds the results of all items into one: the last stage of a program.

    Neighbours are folded where they are, and then the results of that. The order of the items is kept.

    Parameters
    ----------
    operation : callable
        It takes two results, the earlier one first, and returns one of the same kind. It must be associative: ``f(f(a, b), c)`` is
        ``f(a, f(b, c))``. It need not be commutative. It may change its first argument and return it.
    initial : object, optional
        Stands before the first result, and is the result where there is none. Without it, no items are an error.
    key : callable, optional
        Gives the key of a result. Results with the same key are folded, and the program's result is a dict by key, in the order in
        which the keys come first. There is no initial value then.
    value : callable, optional
        With ``key``: gives what is folded of a result, which is the whole result if it isn't given.
    max_keys : int
        With ``key``: so many keys may come. One more is an error.

    Raises
    ------
    TypeError
        If one of the functions has another number of arguments, or if ``key`` stands with ``initial`` or ``value`` without ``key``.
    ValueError
        If ``max_keys`` is less than 1.

    Notes
    -----
    Floats are rounded where they are added, and neighbours may be other ones in the next run. So the last digits of a sum of
    floats may differ from run to run.
    """

    __slots__ = ()

    @overload
    def __init__(
        self: Reduce[_A, _A],
        operation: Callable[[_A, _A], _A],
        initial: _A | EllipsisType = ...,
        key: None = None,
        value: None = None,
        max_keys: int = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Reduce[_A, dict[_K, _A]],
        operation: Callable[[_A, _A], _A],
        initial: EllipsisType = ...,
        *,
        key: Callable[[_A], _K],
        value: None = None,
        max_keys: int = ...,
    ) -> None: ...
    @overload
    def __init__(
        self: Reduce[_A, dict[_K, _B]],
        operation: Callable[[_B, _B], _B],
        initial: EllipsisType = ...,
        *,
        key: Callable[[_A], _K],
        value: Callable[[_A], _B],
        max_keys: int = ...,
    ) -> None: ...
    def __init__(
        self,
        operation: Any,
        initial: Any = ...,
        key: Any = None,
        value: Any = None,
        max_keys: int = KEYS_MAX,
    ) -> None:
        check_function(operation, "Reduce", 2)
        if key is None and value is not None:
            raise TypeError(
                "got value= without key= in Reduce, expected both; a stage before Reduce does the same for all results"
            )
        if key is not None:
            check_function(key, "key= of Reduce", 1)
            if initial is not ...:
                raise TypeError(
                    "got initial= with key= in Reduce, expected one of them: there is a key only where there is a result to begin with"
                )
            if value is not None:
                check_function(value, "value= of Reduce", 1)
            if isinstance(max_keys, bool) or not isinstance(max_keys, int):
                raise TypeError(f"got max_keys={shown(max_keys)}, expected a number of keys")
            if max_keys < 1:
                raise ValueError(f"got max_keys={max_keys}, expected at least 1")
        super().__init__(operation, initial, key, value, max_keys)

    def __repr__(self) -> str:
        operation, initial, key, value, max_keys = self._held
        texts = [shown(operation)]
        texts += [f"initial={shown(initial)}"] if initial is not ... else []
        texts += [f"key={shown(key)}"] if key is not None else []
        texts += [f"value={shown(value)}"] if value is not None else []
        texts += [f"max_keys={max_keys}"] if max_keys != KEYS_MAX else []
        return f"Reduce({', '.join(texts)})"

    @property
    def operation(self) -> Function:
        """What folds two results."""
        operation: Function = self._held[0]
        return operation

    @property
    def merge(self) -> Function:
        """What folds two results that are folded already: by keys, two dicts."""
        if self.key is None:
            return self.operation
        from .folds import MergedKeys

        return MergedKeys(self.operation, self.max_keys)

    def result_of(self, folded: list[Any]) -> Any:
        """Return the result of a program.

        Parameters
        ----------
        folded : list
            What all results fold to; empty if there is none.

        Returns
        -------
        object
            The result.

        Raises
        ------
        TypeError
            If there is neither a result nor an initial value.
        """
        from .folds import with_initial

        if self.key is None:
            return with_initial(self.operation, self.has_initial, self.initial, folded)
        return with_initial(self.merge, True, {}, folded)

    def lift(self) -> Function | None:
        """Return what a result becomes before it is folded by keys; None without keys."""
        if self.key is None:
            return None
        from .folds import KeyedValue

        return KeyedValue(self.key, self.value)

    @property
    def has_initial(self) -> bool:
        """Whether there is a value before the first result."""
        return self.initial is not ...

    @property
    def initial(self) -> Any:
        """What stands before the first result; ``...`` if nothing does."""
        return self._held[1]

    @property
    def key(self) -> Function | None:
        """What gives the key of a result, if results are folded by keys."""
        key: Function | None = self._held[2]
        return key

    @property
    def value(self) -> Function | None:
        """What gives the value that is folded by keys, if it isn't the whole result."""
        value: Function | None = self._held[3]
        return value

    @property
    def max_keys(self) -> int:
        """How many keys may come."""
        max_keys: int = self._held[4]
        return max_keys

    @property
    def reduces(self) -> bool:
        """Yes."""
        return True

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("reduce", operation, has_initial, initial)``.

        By keys, it is a pipeline: each result becomes a dict with one key, and dicts are merged. No items are an empty dict.
        """
        lift = self.lift()
        if lift is None:
            operation = index(self.operation)
            return (
                "reduce",
                operation,
                self.has_initial,
                index(self.initial) if self.has_initial else None,
            )
        stages = ("farm", ("seq", index(lift))), ("reduce", index(self.merge), True, index({}))
        return ("pipeline", stages)


class Iterate(Skeleton[In, Out]):
    """Repeats a body on an item: each round takes what the last one gave.

    Parameters
    ----------
    body : Skeleton or callable
        What is repeated. It gives one result, which it can take again.
    until : callable
        It takes the result of a round and says whether that is the last one. There is at least one round.
    at_most : int
        So many rounds are done at most.

    Raises
    ------
    TypeError
        If ``until`` is no function of one argument, or if the body reduces or can give any number of results.
    ValueError
        If ``at_most`` is less than 1.
    """

    __slots__ = ()

    def __init__(
        self: Iterate[_A, _A], body: AnyStage[_A, _A], until: Callable[[_A], object], at_most: int
    ) -> None:
        skeleton = skeleton_of(body, "body of Iterate")
        refuse_reduction(skeleton, "Iterate")
        refuse_carried(skeleton, "Iterate")
        if skeleton.gives_many:
            raise TypeError(
                f"got {skeleton!r} as body of Iterate, expected one result for each item; a Map makes one of many, by its join"
            )
        check_function(until, "until of Iterate", 1)
        if isinstance(at_most, bool) or not hasattr(at_most, "__index__"):
            raise TypeError(f"got at_most={shown(at_most)} in Iterate, expected a number of rounds")
        if at_most < 1:
            raise ValueError(f"got at_most={at_most} in Iterate, expected at least 1 round")
        super().__init__(skeleton, until, at_most.__index__())

    def __repr__(self) -> str:
        return f"Iterate({_alone(self.body)}, {shown(self.until)}, {self.at_most})"

    @property
    def body(self) -> Skeleton[Any, Any]:
        """What is repeated."""
        body: Skeleton[Any, Any] = self._held[0]
        return body

    @property
    def until(self) -> Function:
        """What says of a result whether it is the last one."""
        until: Function = self._held[1]
        return until

    @property
    def at_most(self) -> int:
        """How many rounds are done at most."""
        at_most: int = self._held[2]
        return at_most

    @property
    def inner(self) -> tuple[Skeleton[Any, Any], ...]:
        """The body."""
        return (self.body,)

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("iterate", structure, until, at_most)``."""
        return ("iterate", self.body.structure(index), index(self.until), self.at_most)


class DivideAndConquer(Skeleton[In, Out]):
    """Divides an item into smaller ones of the same kind, until they are small enough, and combines the results.

    Parameters
    ----------
    is_base : callable
        It takes an item and says whether it is small enough to be solved as it is.
    base : callable
        It solves such an item.
    divide : callable
        It takes a larger item and returns an iterable of smaller ones.
    conquer : callable
        It takes the list of their results, in the same order, and returns the result of the larger one.

    Raises
    ------
    TypeError
        If one of these is no function of one argument.
    """

    __slots__ = ()

    def __init__(
        self,
        is_base: Callable[[In], object],
        base: Callable[[In], Out],
        divide: Callable[[In], Iterable[In]],
        conquer: Callable[[list[Any]], Out],
    ) -> None:
        check_function(is_base, "is_base of DivideAndConquer", 1)
        check_function(base, "base of DivideAndConquer", 1)
        check_function(divide, "divide of DivideAndConquer", 1, gives_iterable=True)
        check_function(conquer, "conquer of DivideAndConquer", 1)
        super().__init__(is_base, base, divide, conquer)

    @property
    def functions(self) -> tuple[Function, Function, Function, Function]:
        """The four functions: is_base, base, divide and conquer."""
        is_base, base, divide, conquer = self._held
        return is_base, base, divide, conquer

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("divide", is_base, base, divide, conquer)``."""
        return ("divide", *map(index, self.functions))


def _alone(skeleton: Skeleton[Any, Any]) -> str:
    """Show a skeleton where a function alone means a farm of it."""
    from .skeletons import Farm, Seq

    if isinstance(skeleton, Farm) and isinstance(skeleton.stage, Seq):
        return as_written(skeleton.stage)
    return shown(skeleton)
