"""Skeletons: the shape of a parallel program, made of plain functions.

`Farm` runs its stage on every free slot, `Seq` runs a function for one item at a time, `Pipeline` hands the result of each stage to
the next. A function alone means ``Farm(function)``. Skeletons nest at will. A skeleton is frozen: it describes a program, and many
managers can run one description.
"""

from collections.abc import Callable
from typing import Any, Never, TypeAlias

__all__ = [
    "Farm",
    "ParDegree",
    "Pipeline",
    "Seq",
    "Skeleton",
    "Structure",
    "flatten",
    "skeleton_of",
]

Function: TypeAlias = Callable[[Any], Any]
Structure: TypeAlias = "tuple[str, int] | tuple[str, Structure] | tuple[str, tuple[Structure, ...]]"

# Code flags of `inspect`, which is too slow to import for two numbers.
_GENERATOR = 0x20
_COROUTINE = 0x80 | 0x200


class _Frozen:
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
        return f"{type(self).__name__}({', '.join(map(_shown, self._held))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._held


class Skeleton(_Frozen):
    """The base class of `Seq`, `Farm` and `Pipeline`."""

    __slots__ = ()


class Seq(Skeleton):
    """A function that processes one item at a time, in the order of the items.

    Inside a `Farm`, a `Seq` runs on every free slot too.

    Parameters
    ----------
    function : callable
        It takes one item and returns its result. It must not keep state in memory between two items: another slot may process the
        next item, and an item runs again when its worker is lost.

    Raises
    ------
    TypeError
        If it can't be called, or if it is a generator or coroutine function, whose results can't travel.
    """

    __slots__ = ()

    def __init__(self, function: Function) -> None:
        _check_function(function, "Seq")
        super().__init__(function)

    @property
    def function(self) -> Function:
        """The function."""
        function: Function = self._held[0]
        return function


class Farm(Skeleton):
    """A stage that runs on every free slot, on different items at the same time.

    A function alone, as a program or as a stage, means ``Farm(function)``. A `Farm` inside a `Farm` changes nothing.

    Parameters
    ----------
    stage : Skeleton or callable
        The stage.

    Raises
    ------
    TypeError
        If the stage is neither a skeleton nor a function.
    """

    __slots__ = ()

    def __init__(self, stage: Skeleton | Function) -> None:
        # A bare function here is what the farm runs, and no farm of its own.
        super().__init__(_skeleton_or_none(stage, "Farm") or Seq(stage))  # type: ignore[arg-type]  # a function

    def __repr__(self) -> str:
        stage = self.stage
        # As it is written: in a Farm a function is parallel, and `Seq` says one at a time.
        return f"Farm({_shown(stage.function if isinstance(stage, Seq) else stage)})"

    @property
    def stage(self) -> Skeleton:
        """The stage that runs on every free slot."""
        stage: Skeleton = self._held[0]
        return stage


class Pipeline(Skeleton):
    """Stages in a row. Each stage takes the results of the one before it.

    A function alone is a stage that runs on every free slot. A stage in `Seq` processes one item at a time.

    Parameters
    ----------
    *stages : Skeleton or callable
        The stages, at least one.

    Raises
    ------
    TypeError
        If there is no stage, or one is neither a skeleton nor a function.
    """

    __slots__ = ()

    def __init__(self, *stages: Skeleton | Function) -> None:
        if not stages:
            raise TypeError(
                "got a Pipeline without stages, expected at least one function or skeleton"
            )
        super().__init__(
            *(
                skeleton_of(stage, f"stage {number} of Pipeline")
                for number, stage in enumerate(stages, 1)
            )
        )

    @property
    def stages(self) -> tuple[Skeleton, ...]:
        """The stages, in order."""
        return self._held


class ParDegree(_Frozen):
    """A number of slots to run a program on. A slot is one Python process.

    Parameters
    ----------
    slots : int
        At least 1.

    Raises
    ------
    TypeError
        If it is not an integer.
    ValueError
        If it is less than 1.
    """

    __slots__ = ()

    def __init__(self, slots: int) -> None:
        if isinstance(slots, bool) or not hasattr(slots, "__index__"):
            raise TypeError(
                f"got {_shown(slots)} as parallel degree, expected a number of slots such as ParDegree(4)"
            )
        if slots < 1:
            raise ValueError(f"got a parallel degree of {slots}, expected at least 1 slot")
        super().__init__(slots.__index__())

    @property
    def slots(self) -> int:
        """The number of slots."""
        slots: int = self._held[0]
        return slots


def skeleton_of(stage: object, place: str = "a program") -> Skeleton:
    """Return a skeleton as it is, and a function as a `Farm` of it.

    Parameters
    ----------
    stage : Skeleton or callable
        What stands there.
    place : str
        Where it stands, for the error.

    Returns
    -------
    Skeleton
        The skeleton.

    Raises
    ------
    TypeError
        If it is neither a skeleton nor a function.
    """
    return _skeleton_or_none(stage, place) or Farm(stage)  # type: ignore[arg-type]  # a function


def flatten(program: Skeleton | Function) -> tuple[Structure, list[Function]]:
    """Take a program apart into its structure and its functions.

    Parameters
    ----------
    program : Skeleton or callable
        The program.

    Returns
    -------
    structure : tuple
        ``("seq", index)``, ``("farm", structure)`` or ``("pipeline", (structure, ...))``; the index points into the functions.
    functions : list of callable
        Each function once, in the order in which the program names them.

    Raises
    ------
    TypeError
        If the program is neither a skeleton nor a function.
    """
    functions: list[Function] = []
    # By identity: callables need be neither hashable nor comparable.
    indices: dict[int, int] = {}

    def structure_of(skeleton: Skeleton) -> Structure:
        match skeleton:
            case Seq():
                index = indices.setdefault(id(skeleton.function), len(functions))
                if index == len(functions):
                    functions.append(skeleton.function)
                return ("seq", index)
            case Farm():
                return ("farm", structure_of(skeleton.stage))
            case Pipeline():
                return ("pipeline", tuple(map(structure_of, skeleton.stages)))
            case _:
                raise TypeError(
                    f"got {_shown(skeleton)} in a program, expected Seq, Farm or Pipeline"
                )

    return structure_of(skeleton_of(program)), functions


def _skeleton_or_none(stage: object, place: str) -> Skeleton | None:
    """Return a skeleton as it is, and None for a function."""
    if isinstance(stage, Skeleton):
        return stage
    if isinstance(stage, type) and issubclass(stage, Skeleton):
        raise TypeError(
            f"got the class {stage.__name__} itself in {place}, expected an instance such as {stage.__name__}(function)"
        )
    _check_function(stage, place)
    return None


def _check_function(function: object, place: str) -> None:
    if not callable(function):
        hint = (
            " (Farm takes one stage; how many slots it gets is said by ParDegree)"
            if isinstance(function, int)
            else ""
        )
        raise TypeError(
            f"got {_shown(function)} in {place}, expected a function or a skeleton{hint}"
        )
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if flags & _COROUTINE:
        raise TypeError(
            f"got the coroutine function {_shown(function)} in {place}, expected a plain function that returns its result"
        )
    if flags & _GENERATOR:
        raise TypeError(
            f"got the generator function {_shown(function)} in {place}, expected a function that returns one result, such as a list"
        )


def _shown(value: object) -> str:
    """Show a value in an error: functions by name, others by a short repr."""
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        return name
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
