"""What a program means, without any manager: one item after the other, in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from functools import partial
from itertools import chain, islice
from typing import Any

from .divide import DIVISIONS_DEEP_MAX, endless
from .instances import close_instances
from .outcome import add_item_note
from .short_text import describe_subject, name_of, short_text
from .skeletons import Skeleton, Structure, flatten

__all__ = [
    "begun",
    "iterated",
    "pair_of",
    "parts_of",
    "results_of",
    "run_sequential",
    "single",
    "split_reduction",
]

# How often `check=True` tries out an operation.
CHECKS_MAX = 100
# So many parts an item of a `Map` may have: as `crates/task/src/message.rs` has it.
PARTS_MAX = 1 << 20


def run_sequential(
    program: Skeleton[Any, Any],
    items: Iterable[Any],
    check: bool = False,
    return_errors: bool = False,
) -> Iterator[Any]:
    """Run a program over items in this process.

    Parameters
    ----------
    program : Skeleton
        The program.
    items : iterable
        The items.
    check : bool
        Try out on some results that the operation of a `Reduce` is associative.
    return_errors : bool
        Yield an exception as a result, and go on with the next item.

    Yields
    ------
    object
        The results, in the order of the items.

    Raises
    ------
    Exception
        What a function raises. A note of it names the item.
    TypeError
        For a reduction without items and without an initial value.
    ValueError
        With ``check``, for an operation that isn't associative.
    """
    structure, functions = flatten(program)
    structure, reduction = split_reduction(structure)
    try:
        numbered = enumerate(items)
        if gives_many(structure):
            before, results = begun(structure, functions, return_errors)
            values: Iterator[Any] = chain(
                _each(before, None, return_errors), _all_noted(results, numbered, return_errors)
            )
        else:
            values = _noted(single(structure, functions), numbered, return_errors)
        if reduction is None:
            yield from values
        else:
            yield _reduced(reduction, functions, values, check)
    finally:
        close_instances(functions)


def split_reduction(structure: Structure) -> tuple[Structure, Structure | None]:
    """Return the structure of a program without its last stage, and that one, if it is a reduction.

    Parameters
    ----------
    structure : tuple
        What `flatten` returned.

    Returns
    -------
    structure : tuple
        What gives the results; an empty pipeline if there is nothing before the reduction.
    reduction : tuple or None
        The structure of the reduction.
    """
    if structure[0] == "reduce":
        return ("pipeline", ()), structure
    if structure[0] == "pipeline" and structure[1]:
        *stages, last = structure[1]
        rest, reduction = split_reduction(last)
        if reduction is not None:
            return ("pipeline", (*stages, rest)), reduction
    return structure, None


def before_reduction(structure: Structure) -> Structure | None:
    """Return the structure of the stages before a reduction.

    Parameters
    ----------
    structure : tuple
        What `flatten` returned.

    Returns
    -------
    tuple or None
        Their structure; None if there is none.
    """
    stages: list[Structure] = []
    rest = structure
    while rest[0] == "pipeline":
        *first, rest = rest[1]
        stages += first
    return ("pipeline", tuple(stages)) if stages else None


def _noted(
    call: Callable[[Any], Any], numbered: Iterable[tuple[int, Any]], return_errors: bool
) -> Iterator[Any]:
    """Iterate over the results of all items, one of each; exceptions name the item."""
    for index, item in numbered:
        try:
            result = call(item)
            _refuse_again(result)
        except Exception as error:
            result = _raised(error, (index, item), return_errors)
        yield result


class _Raised:
    """An exception in the place of a result."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _raised(error: Exception, numbered: tuple[int, Any] | None, return_errors: bool) -> Exception:
    """Raise an exception with a note of its item, or return it."""
    if numbered is not None:
        number, item = numbered
        add_item_note(error, number, describe_subject("item", item, None))
    if return_errors:
        return error
    if isinstance(error, StopIteration):
        # No iterator can raise that.
        told = RuntimeError("the function raised StopIteration")
        for note in error.__notes__:
            told.add_note(note)
        raise told from error
    raise error


def _refuse_again(result: Any) -> None:
    """Refuse an `Again` as a result. Nobody has one who has not loaded its module."""
    feedback = sys.modules.get(f"{__package__}.feedback")
    if feedback is not None:
        feedback.refuse(result)


def _all_noted(
    results: Callable[[Any], Iterator[Any]],
    numbered: Iterable[tuple[int, Any]],
    return_errors: bool,
) -> Iterator[Any]:
    """Iterate over all results of all items; exceptions name the item."""
    for number, item in numbered:
        yield from _each(results(item), (number, item), return_errors)


def _each(
    results: Iterator[Any], numbered: tuple[int, Any] | None, return_errors: bool
) -> Iterator[Any]:
    """Iterate over the results of an item; exceptions name it."""
    while True:
        try:
            result = next(results)
        except StopIteration:
            return
        except Exception as error:
            yield _raised(error, numbered, return_errors)
            return
        try:
            _refuse_again(result)
        except Exception as error:
            result = _Raised(error)
        if type(result) is _Raised:
            result = _raised(result.error, numbered, return_errors)
        yield result


def _reduced(reduction: Structure, functions: list[Any], values: Iterator[Any], check: bool) -> Any:
    from .folds import fold, spot_checked, with_initial

    _, operation, has_initial, initial = reduction
    if check:
        values = spot_checked(functions[operation], values, CHECKS_MAX)
    folded = fold(functions[operation], values)
    return with_initial(
        functions[operation], has_initial, functions[initial] if has_initial else None, folded
    )


def begun(
    structure: Structure, functions: list[Callable[[Any], Any]], return_errors: bool = False
) -> tuple[Iterator[Any], Callable[[Any], Iterator[Any]]]:
    """Return what iterates over the results of an item, and over those that come before all items.

    Parameters
    ----------
    structure : tuple
        A structure without a reduction.
    functions : list of callable
        Its functions.
    return_errors : bool
        Give a `_Raised` in the place of what raises, and go on.

    Returns
    -------
    before : iterator
        The initial values of scans, and what the stages behind those make of them. It is to be used up first.
    results : callable
        As `results_of` returns it, for items in their order.
    """
    structures = _stages_in(structure)
    stages = [results_of(stage, functions) for stage in structures]

    def before() -> Iterator[Any]:
        for place in reversed(range(len(stages))):
            match structures[place]:
                case ("scan", _, True, initial):
                    value = deepcopy(functions[initial])
                    yield from _chained(stages[place + 1 :], return_errors)(value)

    return before(), _chained(stages, return_errors)


def _stages_in(structure: Structure) -> list[Structure]:
    if structure[0] == "pipeline":
        return [stage for inner in structure[1] for stage in _stages_in(inner)]
    if structure[0] == "farm":
        return _stages_in(structure[1])
    return [structure]


def results_of(
    structure: Structure, functions: list[Callable[[Any], Any]]
) -> Callable[[Any], Iterator[Any]]:
    """Return what iterates over the results of an item.

    Parameters
    ----------
    structure : tuple
        A structure without a reduction.
    functions : list of callable
        Its functions.

    Returns
    -------
    callable
        It takes an item and returns an iterator. Functions are called as the results are asked for.
    """
    kind = structure[0]
    if kind == "farm":
        return results_of(structure[1], functions)
    if kind == "flat_map":
        return _iterated(functions[structure[1]])
    if kind == "feedback":
        return partial(_fed_back, functions[structure[1]])
    if kind == "pipeline" and gives_many(structure):
        return _chained([results_of(stage, functions) for stage in structure[1]])
    call = single(structure, functions)

    def one_result(item: Any) -> Iterator[Any]:
        yield call(item)

    return one_result


def gives_many(structure: Structure) -> bool:
    """Say whether an item can have any number of results; see `Skeleton.gives_many`.

    Parameters
    ----------
    structure : tuple
        A structure.

    Returns
    -------
    bool
        Whether it can.
    """
    kind = structure[0]
    if kind == "farm":
        return gives_many(structure[1])
    if kind == "pipeline":
        return any(map(gives_many, structure[1]))
    return kind in ("flat_map", "feedback") or bool(kind == "scan" and structure[2])


def single(structure: Structure, functions: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    """Return a function that does what a structure says for an item, which has one result.

    Parameters
    ----------
    structure : tuple
        A structure that gives one result for an item.
    functions : list of callable
        Its functions.

    Returns
    -------
    callable
        The function.
    """
    kind = structure[0]
    if kind == "seq":
        return functions[structure[1]]
    if kind == "farm":
        return single(structure[1], functions)
    if kind == "pipeline":
        return _composed([single(stage, functions) for stage in structure[1]])
    if kind == "map":
        _, split, worker, join = structure
        return _mapped(
            None if split is None else functions[split],
            _of_parts(worker, functions),
            None if join is None else functions[join],
        )
    if kind == "stateful":
        _, function, initial = structure
        stateful: Callable[..., Any] = functions[function]
        return _with_state(stateful, functions[initial])
    if kind == "scan":
        _, number, has_initial, initial = structure
        operation: Callable[..., Any] = functions[number]
        return _scanned(operation, functions[initial] if has_initial else ...)
    if kind == "iterate":
        _, body, until, at_most = structure
        return _repeated(single(body, functions), functions[until], at_most)
    if kind == "divide":
        return _divided(*(functions[index] for index in structure[1:]))
    raise TypeError(f"got {kind!r} in a program, where one result is expected")


def iterated(value: Any, function: Callable[[Any], Any] | None) -> Iterator[Any]:
    """Iterate over what a function has returned.

    Parameters
    ----------
    value : object
        What it returned.
    function : callable or None
        The function; None if it is the item itself.

    Returns
    -------
    iterator
        The iterator.

    Raises
    ------
    TypeError
        If it is no iterable.
    """
    try:
        return iter(value)
    except TypeError:
        whose = (
            "as the item of a Map without a split"
            if function is None
            else f"from {name_of(function)}"
        )
        raise TypeError(f"got {short_text(value)} {whose}, expected an iterable") from None


def parts_of(value: Any, split: Callable[[Any], Any] | None) -> list[Any]:
    """Return the parts of an item of a `Map`.

    Parameters
    ----------
    value : object
        The item.
    split : callable or None
        What splits it; None if it is itself the parts.

    Returns
    -------
    list
        The parts.

    Raises
    ------
    TypeError
        If it is no iterable.
    ValueError
        If there are too many.
    """
    parts = list(islice(iterated(value if split is None else split(value), split), PARTS_MAX + 1))
    if len(parts) > PARTS_MAX:
        # As slots say it.
        raise ValueError(
            f"got more than {PARTS_MAX} parts of one item (PARTS_MAX), expected fewer: give parts that are lists"
        )
    return parts


def _iterated(function: Callable[[Any], Any]) -> Callable[[Any], Iterator[Any]]:
    return lambda item: iterated(function(item), function)


def _fed_back(function: Callable[[Any], Any], item: Any) -> Iterator[Any]:
    from .feedback import results_of

    return results_of(function, item)


def _chained(
    stages: list[Callable[[Any], Iterator[Any]]], return_errors: bool = False
) -> Callable[[Any], Iterator[Any]]:
    """Return what iterates over the results of an item; with ``return_errors``, parts that raise have a `_Raised` instead, and the others go on."""
    if not stages:
        return lambda item: iter((item,))

    def opened(stage: Callable[[Any], Iterator[Any]], value: Any) -> Iterator[Any]:
        if not return_errors:
            return stage(value)
        try:
            # All of its parts, or none.
            return iter(list(stage(value)))
        except Exception as error:
            return iter([_Raised(error)])

    def results(item: Any) -> Iterator[Any]:
        # The last stage gives the results; the others are on their way. Each item goes through all stages before the next one does.
        open_stages = [opened(stages[0], item)]
        while open_stages:
            for value in open_stages[-1]:
                if len(open_stages) == len(stages) or type(value) is _Raised:
                    yield value
                else:
                    open_stages.append(opened(stages[len(open_stages)], value))
                    break
            else:
                open_stages.pop()

    return results


def _composed(functions: list[Callable[[Any], Any]]) -> Callable[[Any], Any]:
    if len(functions) == 1:
        return functions[0]

    def composed(value: Any) -> Any:
        for function in functions:
            value = function(value)
        return value

    return composed


def _mapped(
    split: Callable[[Any], Any] | None,
    worker: Callable[[list[Any]], list[Any]],
    join: Callable[[list[Any]], Any] | None,
) -> Callable[[Any], Any]:
    def mapped(item: Any) -> Any:
        results = worker(parts_of(item, split))
        return results if join is None else join(results)

    return mapped


def _with_state(
    function: Callable[[Any, Any], tuple[Any, Any]], initial: Any
) -> Callable[[Any], Any]:
    state = deepcopy(initial)

    def with_state(item: Any) -> Any:
        nonlocal state
        following, result = pair_of(function(state, item), function)
        _refuse_again(result)
        state = following
        return result

    return with_state


def _scanned(operation: Callable[[Any, Any], Any], initial: Any) -> Callable[[Any], Any]:
    made = deepcopy(initial)

    def scanned(item: Any) -> Any:
        nonlocal made
        following = item if made is ... else operation(made, item)
        _refuse_again(following)
        made = following
        return made

    return scanned


def pair_of(value: Any, function: Callable[..., Any]) -> tuple[Any, Any]:
    """Return the next state and the result that the function of a `Stateful` has returned.

    Parameters
    ----------
    value : object
        What it returned.
    function : callable
        The function.

    Returns
    -------
    tuple of two objects
        The same.

    Raises
    ------
    TypeError
        If it is no tuple of two.
    """
    if isinstance(value, tuple) and len(value) == 2:
        return value
    raise TypeError(
        f"got {short_text(value)} from {name_of(function)}, expected a tuple of two: the next state, and the result of the item"
    )


def _of_parts(
    worker: Structure, functions: list[Callable[[Any], Any]]
) -> Callable[[list[Any]], list[Any]]:
    if not _carries(worker):
        results = results_of(worker, functions)
        return lambda parts: [result for part in parts for result in results(part)]

    def of_parts(parts: list[Any]) -> list[Any]:
        # States begin anew with each item.
        before, results = begun(worker, functions)
        return [*before, *chain.from_iterable(map(results, parts))]

    return of_parts


def _carries(structure: Structure) -> bool:
    if structure[0] == "pipeline":
        return any(map(_carries, structure[1]))
    return structure[0] in ("stateful", "scan")


def _repeated(
    body: Callable[[Any], Any], until: Callable[[Any], Any], at_most: int
) -> Callable[[Any], Any]:
    def repeated(value: Any) -> Any:
        for _ in range(at_most):
            value = body(value)
            if until(value):
                break
        return value

    return repeated


def _divided(
    is_base: Callable[[Any], Any],
    base: Callable[[Any], Any],
    divide: Callable[[Any], Any],
    conquer: Callable[[list[Any]], Any],
) -> Callable[[Any], Any]:
    def divided(item: Any) -> Any:
        # A stack of its own: an item may be divided more often than the interpreter can call.
        opened: list[tuple[Iterator[Any], list[Any]]] = [(iter((item,)), [])]
        while True:
            parts, results = opened[-1]
            for part in parts:
                if is_base(part):
                    results.append(base(part))
                else:
                    if len(opened) > DIVISIONS_DEEP_MAX:
                        raise endless(is_base)
                    opened.append((iter(list(iterated(divide(part), divide))), []))
                    break
            else:
                opened.pop()
                if not opened:
                    return results[0]
                opened[-1][1].append(conquer(results))

    return divided
