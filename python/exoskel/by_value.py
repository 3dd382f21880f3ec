"""Pickles for processes that don't have the user's script.

What a worker can import travels by name. What refers to the script, or has no name, travels by value: `cloudpickle` writes out its
functions and classes.
"""

import functools
import io
import pickle
import sys
import types
import weakref
from collections.abc import Callable, MutableMapping
from typing import Any

import cloudpickle

from . import script

__all__ = [
    "ExceptionPickler",
    "HomePickler",
    "ItemPickler",
    "Pickler",
    "definitions",
    "dumps",
    "dumps_by_value",
    "dumps_exception",
    "dumps_home",
]

_KeepInBand = Callable[[pickle.PickleBuffer], bool]

# Such as the cache of a function by `functools.singledispatch`.
_WEAK = (weakref.WeakKeyDictionary, weakref.WeakValueDictionary)


class Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # it comes without types
    """Writes for a process that may have nothing of the script."""

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        spawned = sys.modules.get("__mp_main__")
        # cloudpickle knows by itself that nobody can import `__main__`, but not that of a child of multiprocessing.
        if isinstance(spawned, types.ModuleType) and spawned.__name__ in sys.modules:
            cloudpickle.register_pickle_by_value(spawned)

    def reducer_override(self, obj: Any) -> Any:
        """Return how a function or class is written by value, and anything else as cloudpickle does it."""
        kind = type(obj)
        if kind is functools._lru_cache_wrapper:
            return self._cached(obj)
        if kind is functools.cached_property:
            # Before Python 3.12 there is a lock in it.
            return functools.cached_property, (obj.func,), {"attrname": obj.attrname}
        if kind in _WEAK:
            return kind, (dict(obj),)
        reduced = super().reducer_override(obj)
        # Six parts: something to make, and a state to set later.
        if reduced is NotImplemented or len(reduced) != 6:
            return reduced
        maker, arguments, state, _, _, setter = reduced
        if isinstance(obj, type):
            script.lend(obj)
            arguments = _with_slots(obj, arguments)
        name = obj.__name__ if "." not in obj.__qualname__ and script.is_own(obj) else None
        return script.make, (maker, name, *arguments), (setter, state), None, None, script.set_state

    def _cached(self, function: Any) -> Any:
        """Of a cached function pickle knows only the name."""
        module, name = function.__module__, function.__qualname__
        if module not in script.NAMES and "<locals>" not in name:
            return NotImplemented
        return script.make_cached, (function.__wrapped__, function.cache_parameters())


class ItemPickler(Pickler):
    """Writes the items of one stream: each class is written out once, and its definition is copied into the items that need it.

    Parameters
    ----------
    *arguments, **keywords
        As for `pickle.Pickler`.
    definitions : mapping
        What has been written out for this stream; made by `definitions`.
    """

    def __init__(
        self, *arguments: Any, definitions: MutableMapping[type, bytes], **keywords: Any
    ) -> None:
        super().__init__(*arguments, **keywords)
        self._definitions = definitions

    def reducer_override(self, obj: Any) -> Any:
        """Return a class as its definition, and anything else as `Pickler` does it."""
        if not isinstance(obj, type):
            return super().reducer_override(obj)
        definition = self._definitions.get(obj)
        if definition is None:
            reduced = super().reducer_override(obj)
            if reduced is NotImplemented or len(reduced) != 6:
                return reduced
            definition = self._definitions[obj] = _dumped(Pickler, obj)
        return script.define, (definition,)


def definitions() -> MutableMapping[type, bytes]:
    """Return a new mapping from classes to their definitions, which keeps no class alive."""
    return weakref.WeakKeyDictionary()


def _with_slots(kind: type, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Have a class made with its ``__slots__``, which cloudpickle leaves out: its instances would have another state there than here."""
    slots = kind.__dict__.get("__slots__")
    if not slots or not isinstance(arguments[3], dict):
        return arguments
    return (*arguments[:3], {**arguments[3], "__slots__": slots}, *arguments[4:])


class HomePickler(Pickler):
    """Writes for the process that has the script."""

    def reducer_override(self, obj: Any) -> Any:
        """Return how something is written that the script doesn't have; the rest has its name there."""
        if isinstance(obj, (type, types.FunctionType)) and script.is_own(obj):
            return NotImplemented
        return super().reducer_override(obj)


class ExceptionPickler(HomePickler):
    """Writes exceptions whose class can't make them again of their arguments."""

    def reducer_override(self, obj: Any) -> Any:
        """Return an exception as its class, its arguments, and those of its attributes that can be pickled."""
        if isinstance(obj, BaseException):
            kept = {name: value for name, value in vars(obj).items() if _can_go_home(value)}
            return script.make_exception, (type(obj), obj.args, kept)
        return super().reducer_override(obj)


def _can_go_home(value: Any) -> bool:
    try:
        _dumped(ExceptionPickler, value)
    except Exception:
        return False
    return True


def dumps(value: Any, begin: Callable[[], _KeepInBand] | None = None) -> bytes:
    """Pickle something for slots: by name if they can import all of it, else by value.

    Parameters
    ----------
    value : object
        A function, or whatever travels with the program.
    begin : callable, optional
        Called before each attempt. Returns what is asked of each buffer whether it stays in the pickle; all do if not given.

    Returns
    -------
    bytes
        The pickle.

    Raises
    ------
    Exception
        Whatever its parts raise, and `pickle.PicklingError`.
    """
    by_name = script.dumps_by_name(value, begin and begin())
    return dumps_by_value(value, begin and begin()) if by_name is None else by_name


def dumps_by_value(value: Any, buffer_callback: _KeepInBand | None = None) -> bytes:
    """Pickle what slots can't import; see `dumps`."""
    return _dumped(Pickler, value, buffer_callback=buffer_callback)


def dumps_home(value: Any) -> bytes:
    """Pickle by value something that a slot made, for the manager; see `dumps`."""
    return _dumped(HomePickler, value)


def dumps_exception(error: BaseException) -> bytes:
    """Pickle an exception for the manager, such that no ``__init__`` of it has to run there; see `dumps`."""
    return _dumped(ExceptionPickler, error)


def _dumped(pickler: type[Pickler], value: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    pickler(file, 5, **options).dump(value)
    return file.getvalue()
