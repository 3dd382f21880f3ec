"""Programs of the tests of runs, where slots find them; `conftest` makes managers of them."""

from __future__ import annotations

from typing import Any


def twice(item: Any) -> Any:
    """Double an item."""
    return 2 * item


def no_fives(item: int) -> int:
    """Return an item as it is, but raise at a five."""
    if item == 5:
        raise ValueError("got a five")
    return item
