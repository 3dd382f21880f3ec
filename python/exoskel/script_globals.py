"""What an initializer of the user's script has set there, for the functions that are loaded after it.

Functions of the script travel by value, each with globals of its own. In one process they share them, and users expect that: an
initializer sets a global that tasks read.
"""

from __future__ import annotations

import io
import pickle

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FunctionType
    from typing import Any

__all__ = ["ScriptGlobals"]

# By this function, a pickle of cloudpickle gives a function its globals.
_SET_STATE = ("cloudpickle.cloudpickle", "_function_setstate")


class ScriptGlobals:
    """The globals that the initializer has set."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def initialize(self, pickled: bytes, load: Callable[[bytes, Any], Any]) -> None:
        """Run an initializer, and remember what it sets.

        Parameters
        ----------
        pickled : bytes
            Its pickle.
        load : callable
            Loads a pickle with an unpickler that it is given.
        """
        spaces: dict[int, dict[str, Any]] = {}

        def remember(function: FunctionType) -> None:
            spaces[id(function.__globals__)] = function.__globals__

        initializer = load(pickled, lambda contents: _loads(contents, remember))
        before = [(space, dict(space)) for space in spaces.values()]
        initializer()
        missing = object()
        for space, values in before:
            for name, value in space.items():
                if values.get(name, missing) is not value:
                    self._values[name] = value

    def loads(self, pickled: bytes) -> Any:
        """Return what a pickle holds. Its functions of the script see what the initializer has set.

        Parameters
        ----------
        pickled : bytes
            The pickle.

        Returns
        -------
        object
            Its contents.
        """
        if not self._values:
            return pickle.loads(pickled)
        return _loads(pickled, lambda function: function.__globals__.update(self._values))


def _loads(pickled: bytes, visit: Callable[[FunctionType], object]) -> Any:
    """Load a pickle and visit each function in it that came by value."""

    class Unpickler(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            found = super().find_class(module, name)
            if (module, name) != _SET_STATE:
                return found

            def set_state(function: FunctionType, state: Any) -> None:
                found(function, state)
                visit(function)

            return set_state

    return Unpickler(io.BytesIO(pickled)).load()
