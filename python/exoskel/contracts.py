"""Contracts: what a manager is asked to keep to, joined with ``&``.

`ParDegree` says how many slots, `Throughput` and `Deadline` how fast, `Cost` how many slots may be outside the trusted domains. A
manager recruits and releases slots as the contract and the work need it.
"""

from __future__ import annotations

import math
import operator
from typing import Any

from .frozen import Frozen, shown

__all__ = ["Contract", "Cost", "Deadline", "ParDegree", "Throughput"]

# The most slots of a manager: what its scheduler takes.
SLOTS_MAX = 4096
# The most items that a deadline counts.
_ITEMS_MAX = 1 << 53


class Contract(Frozen):
    """The base class of `ParDegree`, `Throughput`, `Deadline` and `Cost`. Contracts are joined with ``&``."""

    __slots__ = ()

    def __and__(self, other: object) -> Contract:
        """Return a contract that asks for both.

        Raises
        ------
        ValueError
            If both contradict each other.
        """
        if not isinstance(other, Contract):
            return NotImplemented
        return _Joint(*self._parts(), *other._parts())

    def _parts(self) -> tuple[Contract, ...]:
        return (self,)


class ParDegree(Contract):
    """A number of slots to run a program on, or a range of numbers. A slot is one Python process.

    Parameters
    ----------
    slots : int
        How many slots, at least 1; the fewest if there is a range. A manager takes at most 4,096.
    slots_max : int, optional
        The most slots. Between both, the manager uses as many as the work keeps busy, or as other parts of the contract need.

    Raises
    ------
    TypeError
        If they are not integers.
    ValueError
        If there is less than 1 slot, or the most are fewer than the fewest.
    """

    __slots__ = ()

    def __init__(self, slots: int, slots_max: int | None = None) -> None:
        for number in (slots, slots if slots_max is None else slots_max):
            if isinstance(number, bool) or not hasattr(number, "__index__"):
                raise TypeError(
                    f"got {shown(number)} as parallel degree, expected a number of slots such as ParDegree(4)"
                )
        if slots < 1:
            raise ValueError(f"got a parallel degree of {slots}, expected at least 1 slot")
        if slots_max is not None and slots_max < slots:
            raise ValueError(
                f"got ParDegree({slots}, {slots_max}), expected the fewest slots first, as in ParDegree({slots_max}, {slots})"
            )
        if slots_max is None or slots_max == slots:
            super().__init__(slots.__index__())
        else:
            super().__init__(slots.__index__(), slots_max.__index__())

    @property
    def slots(self) -> int:
        """The number of slots; the fewest if there is a range."""
        slots: int = self._held[0]
        return slots

    @property
    def slots_max(self) -> int:
        """The most slots."""
        slots_max: int = self._held[-1]
        return slots_max


class Throughput(Contract):
    """A rate that the manager keeps, with as few slots as it needs.

    It recruits only while slots are what limits. Where the input, a serial stage, the reader of the results or the wire is slower,
    `Manager.history` says so.

    Parameters
    ----------
    items_per_second : float
        How many items are to be done in a second, all streams of the manager together.

    Raises
    ------
    TypeError, ValueError
        If it is not a number above 0.
    """

    __slots__ = ()

    def __init__(self, items_per_second: float) -> None:
        super().__init__(_positive("Throughput", "items_per_second", items_per_second))

    @property
    def items_per_second(self) -> float:
        """How many items a second."""
        items_per_second: float = self._held[0]
        return items_per_second


class Deadline(Contract):
    """A time in which a number of items is to be done, with as few slots as that needs.

    Parameters
    ----------
    seconds : float
        How long it may take, from the first item of the manager on.
    items : int
        How many items.

    Raises
    ------
    TypeError, ValueError
        If they are not numbers above 0.
    """

    __slots__ = ()

    def __init__(self, seconds: float, items: int) -> None:
        seconds = _positive("Deadline", "seconds", seconds)
        if isinstance(items, bool) or not hasattr(items, "__index__"):
            raise TypeError(f"got Deadline(items={shown(items)}), expected a number of items")
        items = operator.index(items)
        if not 1 <= items <= _ITEMS_MAX:
            raise ValueError(f"got Deadline(items={items}), expected 1 to {_ITEMS_MAX} items")
        super().__init__(seconds, items)

    @property
    def seconds(self) -> float:
        """How long it may take."""
        seconds: float = self._held[0]
        return seconds

    @property
    def items(self) -> int:
        """How many items."""
        items: int = self._held[1]
        return items


class Cost(Contract):
    """A bound on what the manager uses of other people's machines.

    Parameters
    ----------
    remote_slots : int
        The most slots outside the trusted domains of the policy. Child processes are always inside.

    Raises
    ------
    TypeError, ValueError
        If it is not an integer from 0 on.
    """

    __slots__ = ()

    def __init__(self, *, remote_slots: int) -> None:
        if isinstance(remote_slots, bool) or not hasattr(remote_slots, "__index__"):
            raise TypeError(
                f"got Cost(remote_slots={shown(remote_slots)}), expected a number of slots"
            )
        remote_slots = operator.index(remote_slots)
        if not 0 <= remote_slots <= SLOTS_MAX:
            raise ValueError(
                f"got Cost(remote_slots={remote_slots}), expected 0 to {SLOTS_MAX} slots"
            )
        super().__init__(remote_slots)

    @property
    def remote_slots(self) -> int:
        """The most slots outside the trusted domains."""
        remote_slots: int = self._held[0]
        return remote_slots

    def __repr__(self) -> str:
        return f"Cost(remote_slots={self.remote_slots})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _cost, self._held


def _cost(remote_slots: int) -> Cost:
    return Cost(remote_slots=remote_slots)


class _Joint(Contract):
    """Contracts that hold together."""

    __slots__ = ()

    def __init__(self, *parts: Contract) -> None:
        kinds: dict[type, Contract] = {}
        for part in parts:
            known = kinds.setdefault(type(part), part)
            if known is not part:
                raise ValueError(
                    f"got {known} & {part}, expected one {type(part).__name__} in a contract"
                )
        degree, cost = kinds.get(ParDegree), kinds.get(Cost)
        rates = [kinds[kind] for kind in (Throughput, Deadline) if kind in kinds]
        if isinstance(degree, ParDegree) and degree.slots == degree.slots_max and rates:
            raise ValueError(
                f"got {degree} & {rates[0]}, expected a range such as ParDegree(1, {max(2, degree.slots)}): a fixed number of slots can't follow a rate"
            )
        if (
            isinstance(degree, ParDegree)
            and isinstance(cost, Cost)
            and cost.remote_slots > degree.slots_max
        ):
            raise ValueError(
                f"got {degree} & {cost}, expected at most {degree.slots_max} remote slots: there are no more slots than that"
            )
        super().__init__(*parts)

    def _parts(self) -> tuple[Contract, ...]:
        return self._held

    def __repr__(self) -> str:
        return " & ".join(map(repr, self._held))


def counts_items(contract: Contract) -> bool:
    """Say whether a contract is about how fast items are done.

    Parameters
    ----------
    contract : Contract
        The contract.

    Returns
    -------
    bool
        Whether it has a `Throughput` or a `Deadline`.
    """
    return any(isinstance(part, (Throughput, Deadline)) for part in contract._parts())


def terms(contract: Contract, slots_max: int | None) -> dict[str, Any]:
    """Return what a contract asks for, all parts together.

    Parameters
    ----------
    contract : Contract
        The contract.
    slots_max : int, optional
        The most slots where it doesn't say; none if it has to.

    Returns
    -------
    dict
        ``slots_min``, ``slots_max``, ``throughput``, ``deadline``, ``remote_slots``; None for what it doesn't say.

    Raises
    ------
    TypeError
        If it has to say how many slots there may be, and doesn't.
    ValueError
        If it asks for more slots than a manager takes.
    """
    parts: dict[type, Any] = {type(part): part for part in contract._parts()}
    degree = parts.get(ParDegree)
    if degree is None:
        if slots_max is None:
            raise TypeError(
                f"got {contract} as contract, expected the most slots as well, as in {contract} & ParDegree(1, 8): the launcher does not say how many its hosts take"
            )
        degree = ParDegree(1, slots_max)
    least, most = degree.slots, degree.slots_max
    if most > SLOTS_MAX:
        raise ValueError(
            f"got {most} slots, expected at most {SLOTS_MAX} (slots_max): more would be started and get no work"
        )
    throughput, deadline = parts.get(Throughput), parts.get(Deadline)
    cost = parts.get(Cost)
    return {
        "slots_min": least,
        "slots_max": most,
        "throughput": throughput and throughput.items_per_second,
        "deadline": deadline and (deadline.seconds, deadline.items),
        "remote_slots": None if cost is None else cost.remote_slots,
    }


def _positive(kind: str, name: str, number: float) -> float:
    if isinstance(number, bool) or not hasattr(number, "__float__"):
        raise TypeError(f"got {kind}({name}={shown(number)}), expected a number above 0")
    number = float(number)
    if not 0 < number < math.inf:
        raise ValueError(f"got {kind}({name}={number:g}), expected a number above 0")
    return number
