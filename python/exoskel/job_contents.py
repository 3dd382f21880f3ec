"""What a process of a job is to run, as it travels: where modules are found, the modules beside the script, and the function.

They travel with the function as they do with a manager's. What is installed where the process runs is used from there.
"""

from __future__ import annotations

import io
import pickle
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["of_function", "of_slot", "opened"]


def of_function(function: Callable[..., Any], arguments: Sequence[Any]) -> bytes:
    """Return what a process is told that runs a function.

    Parameters
    ----------
    function : callable
        What it calls with its node and the arguments.
    arguments : sequence
        These.

    Raises
    ------
    ProgramError
        If the modules beside the script that it needs are larger than 16 MiB together, or one can't be read.
    Exception
        Whatever pickling raises.
    """
    from . import by_value, modules

    class NamingPickler(by_value.Pickler):
        """Notes which modules are named; data without code are written as fast as ever."""

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, type | FunctionType):
                names.add(obj.__module__ or "")
            if isinstance(obj, FunctionType):
                names.update(modules.names_of_code(obj.__code__))
            elif isinstance(obj, ModuleType):
                names.add(obj.__name__)
            return super().reducer_override(obj)

    names: set[str] = set()
    run = io.BytesIO()
    NamingPickler(run, 5).dump((function, tuple(arguments)))
    sources = [tuple(source) for source in modules.collect_named(names).values()]
    return _packed(is_slot=False, sources=sources, run=run.getvalue())


def of_slot(told: dict[str, Any]) -> bytes:
    """Return what a process is told that is a manager's slot. Modules come with the manager's functions."""
    return _packed(is_slot=True, sources=[], run=pickle.dumps(told))


def _packed(*, is_slot: bool, sources: list[tuple[Any, ...]], run: bytes) -> bytes:
    # Where modules are found comes before anything is imported.
    return pickle.dumps((sys.prefix, sys.path, is_slot, sources, run))


def opened(contents: bytes) -> tuple[bool, bytes]:
    """Prepare this process for what it is to run. Return whether it is a slot, and the pickle of the rest."""
    prefix, path, is_slot, sources, run = pickle.loads(contents)
    # Another Python has its modules elsewhere.
    sys.path[:] = (
        path if prefix == sys.prefix else [*sys.path, *(one for one in path if one not in sys.path)]
    )
    if sources:
        from . import modules

        modules.install(sources)
    return is_slot, run
