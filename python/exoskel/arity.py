"""Whether a function can be called with so many arguments, as far as can be seen without calling it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from .instances import is_step

__all__ = ["check_arity"]

_VARIABLE = 0x04  # Code flag of `inspect`: the function takes any number of positional arguments.


def check_arity(function: Callable[..., Any], place: str, arguments: int) -> None:
    """Check that a function can be called with so many positional arguments.

    What says nothing about its arguments, as some builtins, passes.

    Parameters
    ----------
    function : callable
        The function, or a class of steps.
    place : str
        Where it stands, for the error.
    arguments : int
        How many arguments it gets.

    Raises
    ------
    TypeError
        If it takes another number, or if a class of steps can't be made without arguments.
    """
    if isinstance(function, type) and is_step(function):
        if not _takes(function, 0):
            raise TypeError(
                f"got the class {function.__qualname__} in {place}, which needs arguments to be made, expected one that needs none, "
                f"because each slot makes an instance of its own; {_instead(function)}"
            )
        called: Any = function.__call__
        takes = _takes(called, arguments + 1)
    else:
        takes = _takes(function, arguments)
    if not takes:
        name = getattr(function, "__qualname__", None) or repr(function)
        told = f"{arguments} argument{'s' if arguments != 1 else ''}"
        hint = ""
        made = function.func if isinstance(function, functools.partial) else None
        if isinstance(made, type) and is_step(made):
            hint = f"; {_instead(made)}"
        elif arguments == 1 and _takes(function, 2):
            hint = "; unpack a tuple with `lambda pair: f(*pair)`"
        raise TypeError(
            f"got {name} in {place}, which can't be called with {told}, expected a function of {told}{hint}"
        )


def _instead(step: type) -> str:
    name = step.__qualname__
    return f"give an instance, {name}(...), which travels to the slots, or a subclass of {name} whose __init__ needs none"


def _takes(function: Any, arguments: int) -> bool:
    if isinstance(function, types.MethodType) and isinstance(function.__func__, types.FunctionType):
        function, arguments = function.__func__, arguments + 1
    if type(function) is types.FunctionType:
        return _code_takes(function, arguments)
    # It takes longer to import than all the rest, and most programs are functions.
    import inspect

    try:
        # What wraps a function may take other arguments than that.
        signature = inspect.signature(function, follow_wrapped=False)
    except Exception:
        # Builtins say nothing of themselves, and a class of the user's may raise anything when it is asked.
        return True
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def _code_takes(function: types.FunctionType, arguments: int) -> bool:
    code = function.__code__
    defaults = len(function.__defaults__ or ())
    named = code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]
    if any(name not in (function.__kwdefaults__ or {}) for name in named):
        return False
    is_enough = arguments >= code.co_argcount - defaults
    return is_enough and (arguments <= code.co_argcount or bool(code.co_flags & _VARIABLE))
