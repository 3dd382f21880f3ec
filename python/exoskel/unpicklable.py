"""What of a function can't be pickled: the variable that holds it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from .short_text import short_text

__all__ = ["unpicklable_variable"]


def unpicklable_variable(function: Callable[..., Any], dumps: Callable[[Any], bytes]) -> str | None:
    """Return which variable of a function, or of the functions that it uses, can't be pickled.

    Parameters
    ----------
    function : callable
        The function.
    dumps : callable
        Pickles a value.

    Returns
    -------
    str or None
        The variable in words, such as ``the global 'lock' of count()``; None if none is found.
    """
    seen: set[int] = set()
    waiting: list[Any] = [inspect.unwrap(function)]
    while waiting:
        used = waiting.pop()
        used = getattr(used, "func", used)
        used = getattr(used, "__func__", used)
        if not isinstance(used, FunctionType) or id(used) in seen:
            continue
        seen.add(id(used))
        for kind, name, value in _variables(used):
            try:
                dumps(value)
            except Exception:
                if isinstance(value, FunctionType):
                    waiting.append(value)
                else:
                    return f"the {kind} {name!r} of {used.__qualname__}(), {short_text(value)}"
    return None


def _variables(function: FunctionType) -> Iterator[tuple[str, str, Any]]:
    used = inspect.getclosurevars(function)
    for name, value in used.nonlocals.items():
        yield "variable", name, value
    for name, value in used.globals.items():
        yield "global", name, value
    for name, value in zip(_defaults(function), function.__defaults__ or (), strict=True):
        yield "default", name, value


def _defaults(function: FunctionType) -> list[str]:
    code, defaults = function.__code__, function.__defaults__ or ()
    names = code.co_varnames[: code.co_argcount]
    return list(names[len(names) - len(defaults) :])
