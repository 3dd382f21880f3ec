"""What the pickle of a function depends on, where that can be seen without making it."""

import types
from collections.abc import Callable, Iterator
from typing import Any

from .script import NAMES

__all__ = ["is_same", "state_of"]

# A global or an attribute that isn't there: it may come.
_MISSING = object()
# What is by itself all that a pickle says of it.
_PLAIN = (int, float, complex, str, bytes, bool, type(None), types.ModuleType, types.CodeType)


def state_of(function: Callable[..., Any]) -> list[Any] | None:
    """Return the objects that make up a function of the script and of those that it calls.

    As long as these are the same objects its pickle stays the same.

    Parameters
    ----------
    function : callable
        The function.

    Returns
    -------
    list of object or None
        The objects; None where one of them may change by itself, such as a list.
    """
    found: list[Any] = []
    return found if _add(function, found) else None


def is_same(state: list[Any] | None, other: list[Any] | None) -> bool:
    """Say whether nothing has changed, as far as is known.

    Parameters
    ----------
    state, other : list of object or None
        What `state_of` returned at two times.

    Returns
    -------
    bool
        False also where one of them is None.
    """
    if state is None or other is None or len(state) != len(other):
        return False
    return all(one is another for one, another in zip(state, other, strict=True))


def _add(value: Any, found: list[Any]) -> bool:
    """Add a value and what it refers to; say whether it can't change by itself."""
    kind = type(value)
    if kind in _PLAIN or value is _MISSING:
        found.append(value)
        return True
    if kind is tuple:
        # Made anew each time, some of them: what counts is what they hold.
        found.append(len(value))
        return all(_add(part, found) for part in value)
    if kind in (types.BuiltinFunctionType, type, types.FunctionType):
        is_of_script = value.__module__ in NAMES or "<locals>" in value.__qualname__
        if not is_of_script or any(known is value for known in found):
            found.append(value)
            return True
        return kind is types.FunctionType and _add_function(value, found)
    return False


def _add_function(function: types.FunctionType, found: list[Any]) -> bool:
    found.append(function)
    if function.__dict__ or function.__kwdefaults__:
        return False
    parts: list[Any] = [function.__code__, function.__defaults__]
    for cell in function.__closure__ or ():
        try:
            parts.append(cell.cell_contents)
        except ValueError:
            parts.append(_MISSING)
    names = {name for code in _codes(function.__code__) for name in code.co_names}
    parts += [function.__globals__.get(name, _MISSING) for name in sorted(names)]
    return all(_add(part, found) for part in parts)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
