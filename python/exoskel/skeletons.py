"""Skeletons: the shape of a parallel program, made of plain functions.

`Farm` runs its stage on every free slot, `Seq` runs a function for one item at a time, `Pipeline` hands the result of each stage to
the next. A function alone means ``Farm(function)``. Skeletons nest at will; `patterns` has those that split, repeat and fold. A
skeleton is frozen: it describes a program, and many managers can run one description.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, TypeVar, overload

from .frozen import Frozen, shown

if TYPE_CHECKING:
    from .feedback import Again
    from .sources import Source

__all__ = [
    "Farm",
    "Feedback",
    "Pipeline",
    "Seq",
    "Skeleton",
    "Structure",
    "flatten",
    "skeleton_of",
]

Function: TypeAlias = Callable[..., Any]
# What kind of pattern it is, and what `flatten` says of each.
Structure: TypeAlias = tuple[Any, ...]

In = TypeVar("In", contravariant=True)
Out = TypeVar("Out", covariant=True)
_A = TypeVar("_A")
_B = TypeVar("_B")
_C = TypeVar("_C")
_D = TypeVar("_D")
_E = TypeVar("_E")
_F = TypeVar("_F")
_G = TypeVar("_G")

# Code flags of `inspect`, which is too slow to import for two numbers.
_GENERATOR = 0x20
_COROUTINE = 0x80 | 0x200


class Step(Protocol[In, Out]):
    """What the instances of a class are that stands for a function: made once in each slot."""

    def __call__(self, item: In, /) -> Out: ...


class Skeleton(Frozen, Generic[In, Out]):
    """The base class of `Seq`, `Farm`, `Pipeline` and the other patterns.

    To type checkers it is generic: a ``Skeleton[A, B]`` takes items of type ``A`` and gives results of type ``B``.
    """

    __slots__ = ()

    def run_sequential(
        self, items: Iterable[In] | AsyncIterable[In] | Source, *, check: bool = False
    ) -> Iterator[Out]:
        """Run the program over items in this process, one after the other: what it means, without a manager.

        Parameters
        ----------
        items : iterable, asynchronous iterable or Source
            The items, or a source such as ``Files``.
        check : bool
            Try out on some results that the operation of a `Reduce` is associative.

        Returns
        -------
        iterator
            The results, in the order of the items. What a function raises is raised here, with a note that names the item.

        Raises
        ------
        TypeError
            While iterating, for a `Reduce` without an initial value, if there is no item.
        ValueError
            With ``check``, while iterating, if the operation isn't associative.
        """
        from .sequential import run_sequential
        from .sources import iterable_of

        return run_sequential(self, iterable_of(items), check)

    def explain(self) -> str:
        """Say in words what becomes of the program when a manager runs it.

        Returns
        -------
        str
            A line for each step: what runs on every free slot, what one item at a time, and what is split or folded where.
        """
        from .explaining import explain

        return explain(self)

    @property
    def inner(self) -> tuple[Skeleton[Any, Any], ...]:
        """The skeletons inside, in order."""
        return ()

    @property
    def gives_many(self) -> bool:
        """Whether an item can have any number of results."""
        return False

    @property
    def reduces(self) -> bool:
        """Whether all items together have one result."""
        return False

    @property
    def carries(self) -> bool:
        """Whether an item finds what those before it have left."""
        return False

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return the structure of this skeleton; see `flatten`.

        Parameters
        ----------
        index : callable
            Returns the place of a function in the table of functions.

        Returns
        -------
        tuple
            The structure.
        """
        raise TypeError(
            f"got {shown(self)} in a program, expected Seq, Farm, Pipeline or another pattern of exoskel"
        )


class Seq(Skeleton[In, Out]):
    """A function that processes one item at a time, in the order of the items.

    Inside a `Farm`, a `Map` or an `Iterate`, a `Seq` runs on every free slot too.

    Parameters
    ----------
    function : callable
        It takes one item and returns its result. It must not keep state in memory between two items: another slot may process the
        next item, and an item runs again when its worker is lost. A class whose instances can be called stands for one of them,
        made in each slot when it is first needed; if it has a ``close()``, the slot calls it when the stream has ended.

    Raises
    ------
    TypeError
        If it can't be called with one argument, or if it is a generator or coroutine function, whose results can't travel.
    """

    __slots__ = ()

    @overload
    def __init__(self: Seq[_A, _B], function: type[Step[_A, _B]]) -> None: ...
    @overload
    def __init__(self: Seq[_A, _B], function: Callable[[_A], _B]) -> None: ...
    def __init__(self, function: Any) -> None:
        check_step(function, "Seq")
        super().__init__(function)

    @property
    def function(self) -> Function:
        """The function."""
        function: Function = self._held[0]
        return function

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("seq", function)``."""
        from .instances import OneInstance, is_step

        function: Any = self.function
        is_class = isinstance(function, type) and is_step(function)
        return ("seq", index(OneInstance(function) if is_class else function))


class Farm(Skeleton[In, Out]):
    """A stage that runs on every free slot, on different items at the same time.

    A function alone, as a program or as a stage, means ``Farm(function)``. A `Farm` inside a `Farm` changes nothing.

    Parameters
    ----------
    stage : Skeleton or callable
        The stage. A class is taken as `Seq` takes it.
    feedback : bool
        The stage is a function that returns an iterable, such as a list; it may be a generator function. What is marked by
        ``Again(x)`` in it is an item that the function runs on again, and everything else is a result. This goes on until no such
        item is left. Results come in the order in which a recursion gives them: those of ``Again(x)`` stand in its place.

    Raises
    ------
    TypeError
        If the stage is neither a skeleton nor a function, or reduces; with feedback, if it is no function of one argument. If
        `feedback` is not a bool.
    """

    __slots__ = ()

    @overload
    def __init__(
        self: Farm[_A, _B],
        stage: Callable[[_A], Iterable[_B | Again[_A]]],
        feedback: Literal[True],
    ) -> None: ...
    @overload
    def __init__(
        self: Farm[_A, _B], stage: type[Step[_A, _B]], feedback: Literal[False] = False
    ) -> None: ...
    @overload
    def __init__(
        self: Farm[_A, _B], stage: Stage[_A, _B], feedback: Literal[False] = False
    ) -> None: ...
    def __init__(self, stage: Any, feedback: bool = False) -> None:
        if not isinstance(feedback, bool):
            raise TypeError(
                f"got feedback={shown(feedback)} in Farm, expected True or False; how many slots there are is said to the manager, as in ParDegree(4)"
            )
        if feedback:
            if isinstance(stage, Skeleton):
                raise TypeError(
                    f"got {shown(stage)} in Farm with feedback, expected a function that returns its results, and its further items as Again(item)"
                )
            stage = Feedback(stage)
        # A bare function here is what the farm runs, and no farm of its own.
        stage = _skeleton_or_none(stage, "Farm") or Seq(stage)
        refuse_reduction(stage, "Farm")
        refuse_carried(stage, "Farm")
        super().__init__(stage)

    def __repr__(self) -> str:
        if isinstance(self.stage, Feedback):
            return f"Farm({shown(self.stage.function)}, feedback=True)"
        return f"Farm({as_written(self.stage)})"

    @property
    def stage(self) -> Skeleton[Any, Any]:
        """The stage that runs on every free slot."""
        stage: Skeleton[Any, Any] = self._held[0]
        return stage

    @property
    def inner(self) -> tuple[Skeleton[Any, Any], ...]:
        """The stage."""
        return (self.stage,)

    @property
    def gives_many(self) -> bool:
        """Whether the stage does."""
        return self.stage.gives_many

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("farm", structure)``."""
        return ("farm", self.stage.structure(index))


class Feedback(Skeleton[In, Out]):
    """What a `Farm` with feedback runs: a function that gives any number of results and of further items.

    Parameters
    ----------
    function : callable
        It takes one item and returns an iterable, in which `Again` marks items.

    Raises
    ------
    TypeError
        If it can't be called with one argument.
    """

    __slots__ = ()

    def __init__(self, function: Callable[[In], Iterable[Out | Again[In]]]) -> None:
        check_function(function, "Farm with feedback", 1, gives_iterable=True)
        super().__init__(function)

    @property
    def function(self) -> Function:
        """The function."""
        function: Function = self._held[0]
        return function

    @property
    def gives_many(self) -> bool:
        """Yes."""
        return True

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("feedback", function)``."""
        return ("feedback", index(self.function))


class Pipeline(Skeleton[In, Out]):
    """Stages in a row. Each stage takes the results of the one before it.

    A function alone is a stage that runs on every free slot. A stage in `Seq` processes one item at a time.

    Parameters
    ----------
    *stages : Skeleton or callable
        The stages, at least one.

    Raises
    ------
    TypeError
        If there is no stage, one is neither a skeleton nor a function, or one that isn't the last one reduces.
    """

    __slots__ = ()

    # Type checkers compare what each stage gives with what the next one takes, in pipelines of up to six.
    @overload
    def __init__(self: Pipeline[_A, _B], _a: AnyStage[_A, _B], /) -> None: ...
    @overload
    def __init__(self: Pipeline[_A, _C], _a: AnyStage[_A, _B], _b: AnyStage[_B, _C], /) -> None: ...
    @overload
    def __init__(
        self: Pipeline[_A, _D], _a: AnyStage[_A, _B], _b: AnyStage[_B, _C], _c: AnyStage[_C, _D], /
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[_A, _E],
        _a: AnyStage[_A, _B],
        _b: AnyStage[_B, _C],
        _c: AnyStage[_C, _D],
        _d: AnyStage[_D, _E],
        /,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[_A, _F],
        _a: AnyStage[_A, _B],
        _b: AnyStage[_B, _C],
        _c: AnyStage[_C, _D],
        _d: AnyStage[_D, _E],
        _e: AnyStage[_E, _F],
        /,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[_A, _G],
        _a: AnyStage[_A, _B],
        _b: AnyStage[_B, _C],
        _c: AnyStage[_C, _D],
        _d: AnyStage[_D, _E],
        _e: AnyStage[_E, _F],
        _f: AnyStage[_F, _G],
        /,
    ) -> None: ...
    @overload
    def __init__(
        self: Pipeline[_A, Any],
        _a: AnyStage[_A, _B],
        _b: AnyStage[_B, _C],
        _c: AnyStage[_C, _D],
        _d: AnyStage[_D, _E],
        _e: AnyStage[_E, _F],
        _f: AnyStage[_F, _G],
        _g: AnyStage[_G, Any],
        /,
        *stages: AnyStage[Any, Any],
    ) -> None: ...
    def __init__(self, *stages: Any) -> None:
        if not stages:
            raise TypeError(
                "got a Pipeline without stages, expected at least one function or skeleton"
            )
        skeletons = [
            skeleton_of(stage, f"stage {number} of Pipeline")
            for number, stage in enumerate(stages, 1)
        ]
        for number, stage in enumerate(skeletons[:-1], 1):
            refuse_reduction(stage, f"stage {number} of {len(skeletons)} of Pipeline")
        super().__init__(*skeletons)

    @property
    def stages(self) -> tuple[Skeleton[Any, Any], ...]:
        """The stages, in order."""
        return self._held

    @property
    def inner(self) -> tuple[Skeleton[Any, Any], ...]:
        """The stages."""
        return self._held

    @property
    def gives_many(self) -> bool:
        """Whether one of the stages does."""
        return any(stage.gives_many for stage in self.stages)

    @property
    def reduces(self) -> bool:
        """Whether the last stage does."""
        return self.stages[-1].reduces

    @property
    def carries(self) -> bool:
        """Whether one of the stages does."""
        return any(stage.carries for stage in self.stages)

    def structure(self, index: Callable[[object], int]) -> Structure:
        """Return ``("pipeline", (structure, ...))``."""
        return ("pipeline", tuple(stage.structure(index) for stage in self.stages))


# What a stage is, and what a pipeline takes as one.
Stage: TypeAlias = Skeleton[_A, _B] | Callable[[_A], _B]
AnyStage: TypeAlias = Skeleton[_A, _B] | Callable[[_A], _B] | type[Step[_A, _B]]


def skeleton_of(stage: Any, place: str = "a program") -> Skeleton[Any, Any]:
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
    return _skeleton_or_none(stage, place) or Farm(stage)


def flatten(program: Skeleton[Any, Any] | Function) -> tuple[Structure, list[Any]]:
    """Take a program apart into its structure and its functions.

    Parameters
    ----------
    program : Skeleton or callable
        The program.

    Returns
    -------
    structure : tuple
        ``("seq", index)``, ``("farm", structure)`` or ``("pipeline", (structure, ...))``; the index points into the functions. Of the
        other patterns, what their ``structure`` says.
    functions : list of callable
        Each function once, in the order in which the program names them. Initial values stand among them. A class that stands for
        its instance is a `OneInstance`.

    Raises
    ------
    TypeError
        If the program is neither a skeleton nor a function.
    """
    functions: list[Any] = []
    # By identity: callables need be neither hashable nor comparable.
    indices: dict[int, int] = {}

    def index_of(function: object) -> int:
        index = indices.setdefault(id(function), len(functions))
        if index == len(functions):
            functions.append(function)
        return index

    return skeleton_of(program).structure(index_of), functions


def _skeleton_or_none(stage: object, place: str) -> Skeleton[Any, Any] | None:
    """Return a skeleton as it is, and None for a function."""
    if isinstance(stage, Skeleton):
        return stage
    if isinstance(stage, type) and issubclass(stage, Skeleton):
        raise TypeError(
            f"got the class {stage.__name__} itself in {place}, expected an instance such as {stage.__name__}(function)"
        )
    check_step(stage, place)
    return None


def refuse_reduction(stage: Skeleton[Any, Any], place: str) -> None:
    """Check that a stage doesn't reduce.

    Parameters
    ----------
    stage : Skeleton
        The stage.
    place : str
        Where it stands, for the error.

    Raises
    ------
    TypeError
        If it does.
    """
    if stage.reduces:
        raise TypeError(
            f"got {shown(stage)} in {place}, expected Reduce as the last stage of a program: it takes the results of all items"
        )


def refuse_carried(stage: Skeleton[Any, Any], place: str) -> None:
    """Check that a stage takes nothing along from item to item.

    Parameters
    ----------
    stage : Skeleton
        The stage.
    place : str
        Where it stands, for the error.

    Raises
    ------
    TypeError
        If it does.
    """
    if stage.carries:
        raise TypeError(
            f"got {shown(stage)} in {place}, where items run at the same time, expected Stateful and Scan as stages of the program's "
            "own pipeline: they take items in their order"
        )


def check_step(function: object, place: str) -> None:
    """Check what stands for a function that takes one item: a function, or a class of steps.

    Parameters
    ----------
    function : object
        What stands there.
    place : str
        Where it stands, for the error.

    Raises
    ------
    TypeError
        If it can't be called with one argument, or doesn't return one result.
    """
    check_function(function, place, 1, is_stage=True)


def check_function(
    function: object,
    place: str,
    arguments: int,
    *,
    gives_iterable: bool = False,
    is_stage: bool = False,
) -> None:
    """Check a function of a skeleton.

    Parameters
    ----------
    function : object
        What stands there.
    place : str
        Where it stands, for the error.
    arguments : int
        How many arguments it gets.
    gives_iterable : bool
        Whether it may be a generator function.
    is_stage : bool
        Whether a skeleton or a class of steps may stand there, too.

    Raises
    ------
    TypeError
        If it can't be called like that.
    """
    if not callable(function):
        hint = (
            " (Farm takes one stage; how many slots it gets is said by ParDegree)"
            if isinstance(function, int)
            else ""
        )
        expected = "a function or a skeleton" if is_stage else "a function"
        raise TypeError(f"got {shown(function)} in {place}, expected {expected}{hint}")
    if not is_stage and isinstance(function, type):
        _check_no_step(function, place)
    flags = getattr(getattr(function, "__code__", None), "co_flags", 0)
    if flags & _COROUTINE:
        raise TypeError(
            f"got the coroutine function {shown(function)} in {place}, expected a plain function that returns its result"
        )
    if flags & _GENERATOR and not gives_iterable:
        raise TypeError(
            f"got the generator function {shown(function)} in {place}, expected a function that returns one result, such as a list"
        )

    from .arity import check_arity

    check_arity(function, place, arguments)


def _check_no_step(kind: type, place: str) -> None:
    """Refuse a class of steps where classes are called themselves, as ``list`` is."""
    from .instances import is_step

    if is_step(kind):
        name = kind.__qualname__
        raise TypeError(
            f"got the class {name} in {place}, expected a function: slots make instances of stages alone, as of Farm({name})"
        )


def as_written(skeleton: Skeleton[Any, Any]) -> str:
    """Show a skeleton where a function alone is parallel: `Seq` says one item at a time.

    Parameters
    ----------
    skeleton : Skeleton
        What stands there.

    Returns
    -------
    str
        The text.
    """
    return shown(skeleton.function if isinstance(skeleton, Seq) else skeleton)
