"""What became of a manager's slots: when, and why."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import _core

__all__ = ["History", "SlotChange"]


@dataclasses.dataclass(frozen=True, slots=True)
class SlotChange:
    """One change of what a manager does to keep its contract.

    Attributes
    ----------
    seconds : float
        When, in seconds since the manager began.
    kind : str
        ``begin``; ``recruit`` and ``release``: the manager wants more slots, or fewer; ``loss``: a slot has gone, and another is
        to take its place; ``replace``: that has come; ``lack``: the contract can't be kept; ``met``: it is kept.
    slots_wanted : int
        How many slots the manager wants since then.
    slots_ready : int
        How many could work at that moment.
    reason : str
        Why.
    """

    seconds: float
    kind: str
    slots_wanted: int
    slots_ready: int
    reason: str


class History(list[SlotChange]):
    """The changes of a manager, the oldest first; the last 1,000. ``print`` shows a line for each."""

    def __str__(self) -> str:
        """Return a line for each change: seconds, what, slots ready and wanted, why."""
        return "\n".join(
            f"{change.seconds:9.2f} s  {change.kind:7}  {change.slots_ready:4} of {change.slots_wanted:<4}  {change.reason}"
            for change in self
        )

    def as_dicts(self) -> list[dict[str, Any]]:
        """Return the changes, ready for JSON."""
        return [dataclasses.asdict(change) for change in self]


def history_of(core: _core.Manager) -> History:
    """Return what became of the slots of a driver so far; nothing if it has ended.

    Parameters
    ----------
    core : _core.Manager
        The driver.
    """
    return History(SlotChange(*row) for row in core.history() or ())
