"""What of a function can't be pickled: the variable that holds it."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType
from typing import Any

from .program_text import global_names
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
    waiting: list[Any] = [function]
    while waiting:
        used = waiting.pop()
        if id(used) in seen:
            continue
        seen.add(id(used))
        for what, value in _held(used):
            try:
                dumps(value)
            except Exception:
                if not isinstance(value, (FunctionType, MethodType, functools.partial)):
                    return f"{what}, {short_text(value)}"
                waiting.append(value)
    return None


def _held(used: Any) -> Iterator[tuple[str, Any]]:
    """Iterate over what a function holds, with a name for each."""
    if isinstance(used, functools.partial):
        yield "the function of a partial", used.func
        for argument in used.args:
            yield "an argument of a partial", argument
        for name, argument in used.keywords.items():
            yield f"the argument {name!r} of a partial", argument
    elif isinstance(used, MethodType):
        yield f"the object whose method {used.__name__}() is", used.__self__
        yield "its function", used.__func__
    elif isinstance(used, FunctionType):
        code, owner = used.__code__, f"{used.__qualname__}()"
        for name, cell in zip(code.co_freevars, used.__closure__ or (), strict=True):
            # What has no value yet has an empty cell.
            with contextlib.suppress(ValueError):
                yield f"the variable {name!r} of {owner}", cell.cell_contents
        for name in dict.fromkeys(global_names(code)):
            if name in used.__globals__:
                yield f"the global {name!r} of {owner}", used.__globals__[name]
        defaults = used.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        for name, value in zip(names[len(names) - len(defaults) :], defaults, strict=True):
            yield f"the default {name!r} of {owner}", value
        for name, value in (used.__kwdefaults__ or {}).items():
            yield f"the default {name!r} of {owner}", value
