"""How a program runs: what the engine is given, and what the manager's process does beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .carried import Scan, Stateful
from .patterns import DivideAndConquer, Iterate, Map, Reduce
from .skeletons import Farm, Feedback, Pipeline, Seq, Skeleton, Structure, flatten

if TYPE_CHECKING:
    from .slot_stages import SliceFold

__all__ = ["Plan", "map_of", "plan_of", "steps_of"]


@dataclass(frozen=True)
class Plan:
    """How a program runs."""

    program: Skeleton[Any, Any]
    """The program."""
    structure: Structure
    """What the engine runs."""
    functions: list[Any]
    """The functions of that."""
    slice_fold: SliceFold | None = None
    """What folds a slice at a slot, if the program reduces and has no serial stage."""
    split: Map[Any, Any] | None = None
    """The `Map` that the program is, if it is nothing else."""

    @property
    def reduction(self) -> Reduce[Any, Any] | None:
        """The reduction at the end of the program, if there is one."""
        last = steps_of(self.program)[-1][1]
        return last if isinstance(last, Reduce) else None

    @property
    def gives_many(self) -> bool:
        """Whether there isn't one result for each item."""
        return self.program.gives_many or self.program.reduces

    @property
    def has_parts(self) -> bool:
        """Whether slots can work on one item together."""
        return _has_parts(self.program)


def plan_of(program: Skeleton[Any, Any]) -> Plan:
    """Return how a program runs.

    Parameters
    ----------
    program : Skeleton
        The program.

    Returns
    -------
    Plan
        The plan.
    """
    structure, functions = flatten(_for_engine(program))
    if isinstance(program, Farm | Seq):
        # The commonest programs: nothing else is loaded for them.
        return Plan(program, structure, functions, split=map_of(program))
    slice_fold: SliceFold | None = None
    if program.reduces and not any(is_serial for is_serial, _ in steps_of(program)):
        from .slot_stages import SliceFold as Fold

        slice_fold = Fold(program)
    return Plan(program, structure, functions, slice_fold, map_of(program))


def steps_of(
    skeleton: Skeleton[Any, Any], is_farmed: bool = False
) -> list[tuple[bool, Skeleton[Any, Any]]]:
    """Return the steps of a program.

    Parameters
    ----------
    skeleton : Skeleton
        The program.
    is_farmed : bool
        Whether it stands in a `Farm`.

    Returns
    -------
    list of tuple of bool, Skeleton
        In order: whether a step is serial, and the step, which is neither a pipeline nor a farm.
    """
    match skeleton:
        case Pipeline():
            return [step for stage in skeleton.stages for step in steps_of(stage, is_farmed)]
        case Farm():
            return steps_of(skeleton.stage, True)
        case Seq():
            return [(not is_farmed, skeleton)]
        case Stateful() | Scan():
            return [(True, skeleton)]
    return [(False, skeleton)]


def map_of(program: Skeleton[Any, Any]) -> Map[Any, Any] | None:
    """Return the `Map` that a program is, if it is nothing else.

    Parameters
    ----------
    program : Skeleton
        The program.

    Returns
    -------
    Map or None
        The `Map`.
    """
    steps = steps_of(program)
    only = steps[0][1]
    if len(steps) > 1 or not isinstance(only, Map) or only.worker.carries:
        return None
    return only


def _has_parts(skeleton: Skeleton[Any, Any]) -> bool:
    return isinstance(skeleton, Map | DivideAndConquer | Feedback) or any(
        map(_has_parts, skeleton.inner)
    )


def _for_engine(skeleton: Skeleton[Any, Any]) -> Skeleton[Any, Any]:
    """Return a program that does the same, in which the parts of a `Map` have one result each, as the engine has it."""
    match skeleton:
        case Farm() if skeleton.inner:
            return Farm(_for_engine(skeleton.stage))
        case Pipeline():
            return Pipeline(*map(_for_engine, skeleton.stages))
        case Iterate():
            return Iterate(_for_engine(skeleton.body), skeleton.until, skeleton.at_most)
        case Map() if skeleton.worker.carries:
            from .carried_parts import maps_between

            return _for_engine(maps_between(skeleton))
        case Map() if skeleton.worker.gives_many:
            from .slot_stages import JoinedLists, SlotStages

            worker = SlotStages(skeleton.worker)
            return Map(skeleton.split, worker, JoinedLists(skeleton.join))
        case Map():
            return Map(skeleton.split, _for_engine(skeleton.worker), skeleton.join)
    return skeleton
