"""Patterns that take something along from item to item: `Stateful` a state, `Scan` what all items so far make.

Items come to them one at a time, in their order, on one slot after another. The state goes along with the items.
"""

from __future__ import annotations

from collections.abc import Callable
from types import EllipsisType
from typing import Any, TypeVar, overload

from .frozen import shown
from .skeletons import Function, In, Out, Skeleton, Structure, check_function

__all__ = ["Scan", "Stateful"]

_A = TypeVar("_A")
_B = TypeVar("_B")
_S = TypeVar("_S")


class Stateful(Skeleton[In, Out]):
    """A function of a state and an item, which returns the next state and a result.

    It processes one item at a time, in the order of the items. Each item finds the state that the item before it has left, whichever
    slot has processed that. A state counts exactly once, with the result that came with it: what a lost slot had is computed again
    from the state that counts.

    Parameters
    ----------
    function : callable
        It takes the state and an item, and returns a tuple of two: the next state, and the result of the item. If it raises, the
        exception is the outcome of the item, and the next item finds the state that this one has found.
    initial : object
        The state that the first item finds. Each run begins with a copy of it.

    Raises
    ------
    TypeError
        If the function can't be called with two arguments, or if it is a generator or coroutine function.

    Notes
    -----
    The function may change the state in place and return it. What it has changed before it raises stays changed, though: return
    a new state where that matters, or change the state last.

    States are pickled, or plain data on workers that the manager doesn't trust, and take at most half of a message.
    """

    __slots__ = ()

    def __init__(
        self: Stateful[_A, _B], function: Callable[[_S, _A], tuple[_S, _B]], initial: _S
    ) -> None:
        check_function(function, "Stateful", 2)
        super().__init__(function, initial)

    @property
    def function(self) -> Function:
        """The function."""
        function: Function = self._held[0]
        return function

    @property
    def initial(self) -> Any:
        """The state that the first item finds."""
        return self._held[1]

    @property
    def carries(self) -> bool:
        """Yes."""
        return True

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("stateful", function, initial)``."""
        return ("stateful", index(self.function), index(self.initial))


class Scan(Skeleton[In, Out]):
    """Gives for each item what all items up to it make, as `itertools.accumulate` does.

    It processes one item at a time, in the order of the items. An item that raises is passed over: the next one goes on with what
    the items before it have made.

    Parameters
    ----------
    operation : callable
        It takes what the items so far have made, and an item, and returns one of the same kind. It should not change what it gets.
    initial : object, optional
        Stands before the first item, and is one more result before all others, even if there is no item. Without it, the first
        item is the first result.

    Raises
    ------
    TypeError
        If the operation can't be called with two arguments, or if it is a generator or coroutine function.
    """

    __slots__ = ()

    @overload
    def __init__(self: Scan[_A, _A], operation: Callable[[_A, _A], _A]) -> None: ...
    @overload
    def __init__(self: Scan[_A, _B], operation: Callable[[_B, _A], _B], initial: _B) -> None: ...
    def __init__(self, operation: Any, initial: Any | EllipsisType = ...) -> None:
        check_function(operation, "Scan", 2)
        super().__init__(operation, initial)

    def __repr__(self) -> str:
        initial = f", initial={shown(self.initial)}" if self.has_initial else ""
        return f"Scan({shown(self.operation)}{initial})"

    @property
    def operation(self) -> Function:
        """What makes one of two."""
        operation: Function = self._held[0]
        return operation

    @property
    def has_initial(self) -> bool:
        """Whether there is a value before the first item."""
        return self.initial is not ...

    @property
    def initial(self) -> Any:
        """What stands before the first item; ``...`` if nothing does."""
        return self._held[1]

    @property
    def carries(self) -> bool:
        """Yes."""
        return True

    @property
    def gives_many(self) -> bool:
        """Whether there is an initial value: then there is one result more than items."""
        return self.has_initial

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("scan", operation, has_initial, initial)``."""
        initial = index(self.initial) if self.has_initial else None
        return ("scan", index(self.operation), self.has_initial, initial)
