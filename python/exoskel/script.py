"""What a slot has of the user's script.

Functions and classes of ``__main__`` travel by value, since no other process can import them. A slot finds them in a
``__main__`` of its own, so that whatever it makes of them goes home by name: the user gets instances of the script's own classes.
`by_value` writes the pickles that call the functions below.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from functools import lru_cache

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = [
    "NAMES",
    "Script",
    "define",
    "dumps_by_name",
    "enter",
    "is_own",
    "lend",
    "make",
    "make_cached",
    "make_exception",
    "set_state",
]

# So many classes of items are remembered by their definitions.
DEFINITIONS_MAX = 256

# Found in a pickle, it refers to the script: to `__main__`, or in a child of multiprocessing to `__mp_main__`. Text that
# looks so does no harm. `py/src/pickle.rs` looks for the same.
_SCRIPT = b"_main__"

# What the module of a script is called: at a child of `multiprocessing` by the second name.
NAMES = ("__main__", "__mp_main__")

# By name what came here by value. It stays as long as something uses it.
_entered: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
# Classes that came from another process, and those of this process that others have got.
_borrowed: weakref.WeakSet[type] = weakref.WeakSet()
_lent: weakref.WeakSet[type] = weakref.WeakSet()


class Script(type(sys)):  # type: ignore[misc]  # the type of modules, without an import
    """The ``__main__`` of a slot: what came by value has its name there."""

    def __getattr__(self, name: str) -> Any:
        found = _entered.get(name)
        if found is None:
            raise AttributeError(
                f"the script's {name!r} is not at this worker", name=name, obj=self
            )
        return found

    def __repr__(self) -> str:
        # `pickle` says "can't get attribute 'x' on" this.
        return f"<what this worker has of the script: {', '.join(sorted(_entered)) or 'nothing'}>"


def enter() -> None:
    """Stand for the script in this process, under both of its names."""
    script = Script("__main__")
    for name in NAMES:
        sys.modules[name] = script


def is_own(value: Any) -> bool:
    """Say whether a function or class is found by its name in the script."""
    if value.__module__ not in NAMES:
        return False
    found: Any = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is value


def dumps_by_name(value: Any, buffer_callback: Callable[[Any], Any] | None = None) -> bytes | None:
    """Pickle something for processes that have nothing of the script; None if they can't import all of it."""
    import pickle

    try:
        by_name = pickle.dumps(value, 5, buffer_callback=buffer_callback)
    except Exception:
        # A closure or lambda of a module: by value, like those of the script itself.
        return None
    return None if _SCRIPT in by_name else by_name


def lend(value: type) -> None:
    """Note that another process gets this class, so that its own state counts when the class comes back."""
    if value not in _borrowed:
        _lent.add(value)


def make(maker: Callable[..., Any], name: str | None, *arguments: Any) -> Any:
    """Make a function or a class of a pickle, still without its state.

    Parameters
    ----------
    maker : callable
        What makes it.
    name : str or None
        Its name in the script, if it can be found there by name.
    *arguments
        For the maker.

    Returns
    -------
    function or type
        What was made; of a class that is here already, that class.
    """
    made = maker(*arguments)
    if isinstance(made, type) and made not in _lent:
        _borrowed.add(made)
    if name is not None and isinstance(sys.modules.get("__main__"), Script):
        _entered[name] = made
    return made


def set_state(made: Any, state: tuple[Callable[[Any, Any], Any], Any]) -> None:
    """Give a function or a class its state, unless the class is this process's own: that has a newer one.

    Parameters
    ----------
    made : function or type
        What `make` returned.
    state : tuple
        What sets the state, and the state.
    """
    setter, inner = state
    if not (isinstance(made, type) and made in _lent):
        setter(made, inner)


@lru_cache(maxsize=DEFINITIONS_MAX)
def define(definition: bytes) -> Any:
    """Return the class that a pickle defines; each definition is read once as long as it is in use."""
    import pickle

    return pickle.loads(definition)


def make_exception(
    kind: type[BaseException], arguments: tuple[Any, ...], attributes: dict[str, Any]
) -> BaseException:
    """Make an exception of what it holds, without its ``__init__``, which may want other arguments."""
    error = kind.__new__(kind, *arguments)
    BaseException.__setattr__(error, "args", arguments)
    for name, value in attributes.items():
        BaseException.__setattr__(error, name, value)
    return error


def make_cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Callable[..., Any]:
    """Make what `functools.lru_cache` makes of a function; its cache is empty."""
    cached: Callable[..., Any] = lru_cache(**parameters)(function)
    return cached
