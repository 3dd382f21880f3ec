"""Classes as steps of a program: one instance in each slot, made when it is first needed."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Closable", "OneInstance", "close_instances", "is_step"]


def is_step(kind: type) -> bool:
    """Say whether a class stands for its instance: whether its instances can be called.

    Parameters
    ----------
    kind : type
        The class. ``int`` and the like are plain functions: nobody calls their instances.

    Returns
    -------
    bool
        Whether it does.
    """
    return not issubclass(kind, type) and any("__call__" in vars(base) for base in kind.__mro__)


class Closable(ABC):
    """A function that can end what it has opened; it opens it again when it is called again."""

    @abstractmethod
    def close(self) -> None:
        """End it."""


class OneInstance(Closable):
    """A function that is an instance of a class, made at its first call in this process. Each copy of it makes one of its own.

    Parameters
    ----------
    kind : type
        The class. It is made without arguments. If it has a ``close``, that is called when nobody needs the function any more.
    """

    def __init__(self, kind: type) -> None:
        self.kind = kind
        self.__name__ = kind.__name__
        self.__qualname__ = kind.__qualname__
        self.__module__ = kind.__module__
        self._call: Callable[[Any], Any] | None = None
        self._end: Callable[[], object] | None = None

    def __call__(self, item: Any) -> Any:
        """Call the instance."""
        call = self._call
        if call is None:
            call = self._made()
        return call(item)

    def _made(self) -> Callable[[Any], Any]:
        instance = self.kind()
        close = getattr(instance, "close", None)
        if callable(close):
            # Also when the process ends, if it ends in good order.
            self._end = weakref.finalize(self, close)
        self._call = instance
        return instance  # type: ignore[no-any-return]  # its class has been asked

    def close(self) -> None:
        """End the instance, if there is one; a later call makes another one."""
        self._call, end, self._end = None, self._end, None
        if end is not None:
            end()

    def __reduce__(self) -> tuple[Any, ...]:
        return OneInstance, (self.kind,)

    def __repr__(self) -> str:
        return f"OneInstance({self.__qualname__})"


def close_instances(functions: Iterable[Any]) -> None:
    """Close the instances among functions. What that raises is printed: nobody waits for it.

    Parameters
    ----------
    functions : iterable of callable
        The functions.
    """
    for function in functions:
        if isinstance(function, Closable):
            try:
                function.close()
            except Exception:
                import traceback

                traceback.print_exc()
