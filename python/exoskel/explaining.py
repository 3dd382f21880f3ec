"""What becomes of a program when a manager runs it, in words."""

from __future__ import annotations

from typing import Any

from .carried import Scan, Stateful
from .frozen import shown
from .patterns import DivideAndConquer, FlatMap, Iterate, Map, Reduce
from .plans import map_of, steps_of
from .skeletons import Feedback, Seq, Skeleton, as_written

__all__ = ["explain"]


def explain(program: Skeleton[Any, Any]) -> str:
    """Say what becomes of a program.

    Parameters
    ----------
    program : Skeleton
        The program.

    Returns
    -------
    str
        A line for each step.
    """
    lines = [repr(program)]
    steps = steps_of(program)
    has_serial = any(is_serial for is_serial, _ in steps)
    number = 0
    is_many = False
    while steps:
        is_serial = steps[0][0]
        together = [steps.pop(0)]
        while not is_serial and steps and not steps[0][0] and not steps[0][1].reduces:
            together.append(steps.pop(0))
        number += 1
        skeletons = [skeleton for _, skeleton in together]
        lines += _lines(number, is_serial, skeletons, is_many)
        is_many = is_many or any(skeleton.gives_many for skeleton in skeletons)
    if program.reduces and not has_serial:
        lines.append(
            "A range, a sequence or an array is cut into slices; items of anything else travel one by one."
        )
    elif map_of(program) is not None:
        lines.append(
            "If items are few, the manager splits and joins them: only their parts travel."
        )
    return "\n".join(lines)


def _lines(
    number: int,
    is_serial: bool,
    skeletons: list[Skeleton[Any, Any]],
    is_many: bool,
) -> list[str]:
    first = skeletons[0]
    if isinstance(first, Reduce):
        return [
            f"{number}. folded by {_of_reduce(first)}: neighbours at the slots, then what they fold to"
        ]
    what = "result of an item" if is_many else "item"
    if is_serial:
        return [f"{number}. one {what} at a time, in order: {_told(first)}"]
    lines = [f"{number}. on every free slot, for each {what}:"]
    return [*lines, *(f"   - {_told(skeleton)}" for skeleton in skeletons)]


def _of_reduce(reduction: Reduce[Any, Any]) -> str:
    if reduction.key is None:
        return shown(reduction.operation)
    return f"{shown(reduction.operation)} for each {shown(reduction.key)}, at most {reduction.max_keys} of them"


def _told(skeleton: Skeleton[Any, Any]) -> str:
    match skeleton:
        case Seq():
            function = skeleton.function
            made = " (made once in each slot)" if _is_made(function) else ""
            return f"{shown(function)}{made}"
        case Stateful():
            return (
                f"{shown(skeleton.function)}, with a state that begins as {shown(skeleton.initial)}"
            )
        case Scan():
            before = f", from {shown(skeleton.initial)} on" if skeleton.has_initial else ""
            return f"what {shown(skeleton.operation)} makes of it and all before it{before}"
        case FlatMap():
            return f"{shown(skeleton.function)}, which gives any number of results"
        case Feedback():
            return f"{shown(skeleton.function)}, again for each item that it feeds back"
        case Map():
            split = "itself" if skeleton.split is None else f"by {shown(skeleton.split)}"
            join = "a list" if skeleton.join is None else shown(skeleton.join)
            return f"split {split}; for each part {_nested(skeleton.worker)}; joined by {join}"
        case Iterate():
            return (
                f"repeat {_nested(skeleton.body)} until {shown(skeleton.until)}, "
                f"at most {skeleton.at_most} times"
            )
        case DivideAndConquer():
            is_base, base, divide, conquer = map(shown, skeleton.functions)
            return f"divide by {divide} until {is_base}; then {base}; combined by {conquer}"
    return repr(skeleton)


def _nested(skeleton: Skeleton[Any, Any]) -> str:
    steps = [step for _, step in steps_of(skeleton, True)]
    texts = [as_written(step) if isinstance(step, Seq) else f"({_told(step)})" for step in steps]
    return ", then ".join(texts)


def _is_made(function: object) -> bool:
    from .instances import is_step

    return isinstance(function, type) and is_step(function)
