"""Values that can't change once made: skeletons and contracts."""

from typing import Any, Never

__all__ = ["Frozen", "shown"]


class Frozen:
    """A value that can't change once made, compared by what it holds."""

    __slots__ = ("_held",)
    _held: tuple[Any, ...]

    def __init__(self, *held: Any) -> None:
        object.__setattr__(self, "_held", held)

    def __setattr__(self, name: str, value: object) -> Never:
        raise AttributeError(
            f"{type(self).__name__} is frozen: make a new one instead of setting {name!r}"
        )

    def __delattr__(self, name: str) -> Never:
        raise AttributeError(f"{type(self).__name__} is frozen: {name!r} can't be deleted")

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._held == other._held

    def __hash__(self) -> int:
        return hash((type(self), self._held))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(shown, self._held))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._held


def shown(value: object) -> str:
    """Show a value in an error: functions by name, others by a short repr.

    Parameters
    ----------
    value : object
        The value.
    """
    try:
        name = getattr(value, "__qualname__", None)
        text = name if isinstance(name, str) else repr(value)
    except Exception:
        # The value's own code may raise anything.
        return f"<{type(value).__name__} object>"
    if isinstance(name, str):
        return name
    # What is made of others shows all of them.
    return text if len(text) <= 60 or isinstance(value, Frozen) else f"{text[:57]}..."
