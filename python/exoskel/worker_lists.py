"""Lists that workers have sent, who may send anything."""

from __future__ import annotations

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["checked_list"]


def checked_list(value: Any, of: str = "values") -> list[Any]:
    """Return what is to be a list. A range of a few bytes would be unfolded by whoever takes it for one.

    Parameters
    ----------
    value : object
        What a worker has sent.
    of : str
        What should be in it.

    Raises
    ------
    TypeError
        If it is none.
    """
    if type(value) is list:
        return value
    from .short_text import short_text

    raise TypeError(f"got {short_text(value)} from a worker, expected a list of {of}")
