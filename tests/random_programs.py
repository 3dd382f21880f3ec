"""Random programs of all patterns, with items for them: pure functions of integers, texts and lists of integers."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st

import exoskel as ex

__all__ = ["items_of", "programs"]

Program = ex.Skeleton[Any, Any]

LENGTH_MAX = 12
DEPTH_MAX = 3


def plus(number: int) -> int:
    return (number + 1) % 1_000_003


def squared(number: int) -> int:
    return number * number % 1_000_003


def negative(number: int) -> int:
    return -number


def text_of(number: int) -> str:
    return str(number)


def countdown(number: int) -> list[int]:
    return [*range(abs(number) % 5)]


def reverse(text: str) -> str:
    return text[::-1][:LENGTH_MAX]


def doubled(text: str) -> str:
    return (text + text)[:LENGTH_MAX]


def codes(text: str) -> list[int]:
    return [ord(letter) % 100 for letter in text]


def total(numbers: list[int]) -> int:
    return sum(numbers)


def joined(numbers: list[int]) -> str:
    return "".join(map(str, numbers))[:LENGTH_MAX]


def ordered(numbers: list[int]) -> list[int]:
    return sorted(numbers)[:LENGTH_MAX]


def grown(numbers: list[int]) -> list[int]:
    return [*numbers, len(numbers)][:LENGTH_MAX]


# One result for an item, by what it takes and gives.
SINGLE: dict[tuple[str, str], list[Callable[[Any], Any]]] = {
    ("int", "int"): [plus, squared, negative, abs],
    ("int", "text"): [text_of],
    ("int", "list"): [countdown],
    ("text", "int"): [len],
    ("text", "text"): [reverse, doubled, str.upper],
    ("text", "list"): [codes],
    ("list", "int"): [total, len],
    ("list", "text"): [joined],
    ("list", "list"): [ordered, grown],
}


def some_numbers(number: int) -> Iterator[int]:
    for step in range(abs(number) % 4):
        yield number - step


def even_ones(number: int) -> tuple[int, ...]:
    return (number,) if number % 2 == 0 else ()


def texts_of(number: int) -> list[str]:
    return ["a" * (number % 3), str(number)]


def lists_of(number: int) -> list[list[int]]:
    return [[number]] * (number % 3)


def lengths(text: str) -> list[int]:
    return [len(text)] * (len(text) % 3)


def letters(text: str) -> str:
    return text


def suffixes(text: str) -> Iterator[list[int]]:
    for start in range(min(3, len(text))):
        yield codes(text[start:])


def members(numbers: list[int]) -> list[int]:
    return numbers


def texts(numbers: list[int]) -> Iterator[str]:
    yield from map(str, numbers)


def halves(numbers: list[int]) -> tuple[list[int], list[int]]:
    middle = len(numbers) // 2
    return numbers[:middle], numbers[middle:]


# Any number of results.
MANY: dict[tuple[str, str], list[Callable[[Any], Any]]] = {
    ("int", "int"): [some_numbers, even_ones],
    ("int", "text"): [texts_of],
    ("int", "list"): [lists_of],
    ("text", "int"): [lengths],
    ("text", "text"): [letters],
    ("text", "list"): [suffixes],
    ("list", "int"): [members],
    ("list", "text"): [texts],
    ("list", "list"): [halves],
}


def noted(state: int, value: Any) -> tuple[int, Any]:
    state = (31 * state + size_of(value)) % 1_000_003
    return state, state


def noted_text(state: str, value: Any) -> tuple[str, str]:
    state = f"{value}{state}"[:LENGTH_MAX]
    return state, state


def noted_list(state: list[int], value: Any) -> tuple[list[int], list[int]]:
    # In place, as users do.
    state.insert(0, size_of(value))
    del state[LENGTH_MAX:]
    return state, state[:]


# With a state, by what they give: a function and the first state.
STATEFUL: dict[str, tuple[Callable[[Any, Any], tuple[Any, Any]], Any]] = {
    "int": (noted, 5),
    "text": (noted_text, "."),
    "list": (noted_list, [0]),
}


def behind(first: Any, second: Any) -> Any:
    return (second + first)[:LENGTH_MAX]


def apart(first: int, second: int) -> int:
    return first - second


# Those that need not be associative.
SCANS: dict[str, list[Callable[[Any, Any], Any]]] = {
    "int": [apart, max],
    "text": [behind, max],
    "list": [behind],
}


def spread(number: int) -> Iterator[int | ex.Again[int]]:
    yield number
    for part in range(abs(number) % 3):
        yield ex.Again(int(number / 2) - part * (number > 3))
        yield part


def cut_again(value: Any) -> list[Any]:
    if len(value) < 2:
        return [value]
    return [ex.Again(value[: len(value) // 2]), ex.Again(value[len(value) // 2 :])]


def shrunk(value: Any) -> list[Any]:
    return [ex.Again(value[1:])] if value else []


# What they feed back is smaller: they end.
FEEDBACK: dict[str, list[Callable[[Any], Any]]] = {
    "int": [spread],
    "text": [cut_again, shrunk],
    "list": [cut_again, shrunk],
}


def sum_of(results: list[Any]) -> int:
    return sum(size_of(result) * place for place, result in enumerate(results, 1)) % 1_000_003


def text_of_all(results: list[Any]) -> str:
    return "|".join(map(str, results))[:LENGTH_MAX]


def list_of_all(results: list[Any]) -> list[int]:
    return [size_of(result) for result in results][:LENGTH_MAX]


def size_of(value: Any) -> int:
    return value if isinstance(value, int) else len(value)


# Of a list of anything.
JOINS: dict[str, Callable[[list[Any]], Any]] = {
    "int": sum_of,
    "text": text_of_all,
    "list": list_of_all,
}


def is_even(value: Any) -> bool:
    return size_of(value) % 2 == 0


def is_large(value: Any) -> bool:
    return size_of(value) > 5


def never(value: Any) -> bool:
    return False


def residue(value: Any) -> int:
    return size_of(value) % 3


def is_small(value: Any) -> bool:
    return len(value) < 2


def cut(value: Any) -> tuple[Any, Any]:
    middle = len(value) // 2
    return value[:middle], value[middle:]


def thirds(value: Any) -> Iterator[Any]:
    step = -(-len(value) // 3)
    for start in range(0, len(value), step):
        yield value[start : start + step]


# Associative ones. Those of texts and lists show the order.
OPERATIONS: dict[str, list[Callable[[Any, Any], Any]]] = {
    "int": [operator.add, max, min, operator.mul],
    "text": [operator.add, max],
    "list": [operator.add],
}
INITIAL: dict[str, Any] = {"int": 3, "text": ">", "list": [-1]}

KINDS = st.sampled_from(["int", "text", "list"])
VALUES = {
    "int": st.integers(-1000, 1000),
    "text": st.text("abcXYZ", max_size=LENGTH_MAX),
    "list": st.lists(st.integers(-100, 100), max_size=LENGTH_MAX),
}


def items_of(kind: str, max_size: int = 30) -> st.SearchStrategy[list[Any]]:
    """Return lists of items of a kind."""
    return st.lists(VALUES[kind], max_size=max_size)


@st.composite
def stages(draw: Any, takes: str, gives: str, depth: int, many: bool, ordered: bool = False) -> Any:
    """Draw a stage: a skeleton or a function. With `many`, it may have any number of results; if items are `ordered`, a state."""
    kinds = ["function", "function", "farm", "seq", "map"]
    kinds += ["flat map"] if many else []
    kinds += ["stateful"] if ordered else []
    kinds += ["scan"] if ordered and takes == gives else []
    kinds += ["feedback"] if many and takes == gives else []
    kinds += ["iterate"] if takes == gives else []
    kinds += ["divide"] if takes != "int" else []
    kinds += ["pipeline", "pipeline", "nested farm"] if depth else []
    inner = max(0, depth - 1)
    match draw(st.sampled_from(kinds)):
        case "farm":
            return ex.Farm(draw(st.sampled_from(SINGLE[takes, gives])))
        case "seq":
            return ex.Seq(draw(st.sampled_from(SINGLE[takes, gives])))
        case "flat map":
            return ex.FlatMap(draw(st.sampled_from(MANY[takes, gives])))
        case "feedback":
            return ex.Farm(draw(st.sampled_from(FEEDBACK[takes])), feedback=True)
        case "nested farm":
            return ex.Farm(draw(stages(takes, gives, inner, many)))
        case "pipeline":
            middle = draw(KINDS)
            first = draw(stages(takes, middle, inner, many, ordered))
            return ex.Pipeline(first, draw(stages(middle, gives, inner, many, ordered)))
        case "stateful":
            return ex.Stateful(*STATEFUL[gives])
        case "scan":
            initial = [INITIAL[gives]] if draw(st.booleans()) else []
            return ex.Scan(draw(st.sampled_from(SCANS[gives])), *initial)
        case "iterate":
            body = draw(stages(takes, takes, inner, False))
            until = draw(st.sampled_from([is_even, is_large, never]))
            return ex.Iterate(body, until, draw(st.integers(1, 4)))
        case "map":
            return draw(maps(takes, gives, inner))
        case "divide":
            divide = draw(st.sampled_from([cut, thirds]))
            base = draw(st.sampled_from(SINGLE[takes, gives]))
            return ex.DivideAndConquer(is_small, base, divide, JOINS[gives])
    return draw(st.sampled_from(SINGLE[takes, gives]))


@st.composite
def maps(draw: Any, takes: str, gives: str, depth: int) -> Program:
    """Draw a `Map`."""
    part, result = draw(KINDS), draw(KINDS)
    if takes == "list" and draw(st.booleans()):
        part, split = "int", None
    else:
        split = draw(st.sampled_from(MANY[takes, part]))
    worker = draw(stages(part, result, depth, True, True))
    # Without a join, a list of integers is what such an item is.
    if (result, gives) == ("int", "list") and draw(st.booleans()):
        return ex.Map(split, ex.Pipeline(worker, abs))
    return ex.Map(split, worker, JOINS[gives])


@st.composite
def programs(draw: Any, reduces: bool | None = None, ordered: bool = True) -> tuple[str, Program]:
    """Draw a program, and say which kind of items it takes. Not `ordered`, it has no state."""
    takes, gives = draw(KINDS), draw(KINDS)
    program = draw(stages(takes, gives, DEPTH_MAX, True, ordered))
    if not (draw(st.booleans()) if reduces is None else reduces):
        return takes, program if isinstance(program, ex.Skeleton) else ex.Farm(program)
    operation = draw(st.sampled_from(OPERATIONS[gives]))
    match draw(st.sampled_from(["plain", "initial", "keys", "values"])):
        case "plain":
            reduction: Program = ex.Reduce(operation)
        case "initial":
            reduction = ex.Reduce(operation, INITIAL[gives])
        case "keys":
            reduction = ex.Reduce(operation, key=residue)
        case _:
            reduction = ex.Reduce(operator.add, key=residue, value=size_of)
    return takes, ex.Pipeline(program, reduction)
