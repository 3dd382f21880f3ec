"""The patterns that split, repeat and fold: what they mean, what they refuse, and how they are shown."""

import functools
import operator
import pickle
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import exoskel as ex
from exoskel.skeletons import flatten


def words(text: str) -> list[str]:
    return text.split()


def letters(text: str) -> Iterator[str]:
    yield from text


def plus(number: int) -> int:
    return number + 1


def add(one: Any, two: Any) -> Any:
    return one + two


def subtract(one: int, two: int) -> int:
    return one - two


def is_large(number: int) -> bool:
    return number >= 10


def is_short(numbers: list[int]) -> bool:
    return len(numbers) < 2


def halves(numbers: list[int]) -> Iterator[list[int]]:
    middle = len(numbers) // 2
    yield numbers[:middle]
    yield numbers[middle:]


def merged(parts: list[list[int]]) -> list[int]:
    return sorted(number for part in parts for number in part)


async def coroutine(item: int) -> int:
    return item


class Counting:
    """A step that counts its calls and its ends."""

    made = 0
    closed = 0

    def __init__(self) -> None:
        Counting.made += 1

    def __call__(self, item: int) -> int:
        """Add one."""
        return item + 1

    def close(self) -> None:
        """Count it."""
        Counting.closed += 1


class Needy:
    """A step that can't be made."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, item: int) -> int:
        """Do nothing."""
        return item


SORT: ex.Skeleton[Any, Any] = ex.DivideAndConquer(is_short, list, halves, merged)


def run(program: ex.Skeleton[Any, Any], *items: Any) -> list[Any]:
    return list(program.run_sequential(items))


def test_flat_map_gives_none_one_or_many() -> None:
    assert run(ex.FlatMap(words), "a b", "", "c") == ["a", "b", "c"]
    assert run(ex.Pipeline(ex.FlatMap(words), ex.FlatMap(letters), str.upper), "ab c") == [*"ABC"]
    assert run(ex.Farm(ex.FlatMap(letters)), "ab") == ["a", "b"]


def test_map_splits_and_joins() -> None:
    assert run(ex.Map(words, len, sum), "a bcd", "") == [4, 0]
    assert run(ex.Map(None, plus), [1, 2], []) == [[2, 3], []]
    assert run(ex.Map(words, ex.Map(letters, ord, sum)), "a bc") == [[97, 197]]
    assert run(ex.Map(words, ex.FlatMap(letters)), "ab c") == [["a", "b", "c"]]


def test_reduce_folds_from_the_left() -> None:
    assert run(ex.Pipeline(str.upper, ex.Reduce(add)), "a", "b", "c") == ["ABC"]
    assert run(ex.Reduce(add, "<"), "a", "b") == ["<ab"]
    assert run(ex.Reduce(operator.add, 0)) == [0]
    assert run(ex.Pipeline(ex.FlatMap(words), ex.Reduce(max, "")), "a c", "b") == ["c"]
    with pytest.raises(TypeError, match="got no items to reduce and no initial value"):
        run(ex.Reduce(add))


def test_an_initial_value_is_not_changed_by_an_operation_that_changes_its_argument() -> None:
    program: ex.Skeleton[list[int], list[int]] = ex.Reduce(operator.iadd, [])
    assert run(program, [1], [2]) == run(program, [1], [2]) == [[1, 2]]


def test_reduce_by_keys_gives_a_dict() -> None:
    by_parity = ex.Reduce(add, key=lambda number: number % 2)
    assert run(by_parity, 3, 2, 5) == [{1: 8, 0: 2}]
    assert run(by_parity) == [{}]
    count = ex.Pipeline(ex.FlatMap(words), ex.Reduce(add, key=str.lower, value=lambda _: 1))
    assert run(count, "a b", "A") == [{"a": 2, "b": 1}]
    with pytest.raises(ex.SizeLimitError, match=r"more than 2 keys .* max_keys=2"):
        run(ex.Reduce(add, key=plus, max_keys=2), 1, 2, 3)


def test_iterate_does_one_round_at_least_and_so_many_at_most() -> None:
    assert run(ex.Iterate(plus, is_large, 100), 3, 20) == [10, 21]
    assert run(ex.Iterate(plus, is_large, 2), 3) == [5]


def test_divide_and_conquer_divides_deeper_than_the_interpreter_can_call() -> None:
    assert run(SORT, [3, 1, 2, 5, 4], [], [1]) == [[1, 2, 3, 4, 5], [], [1]]
    deep = ex.DivideAndConquer(lambda n: n == 0, lambda n: 0, lambda n: [n - 1], lambda r: r[0] + 1)
    assert run(deep, 100_000) == [100_000]
    assert run(ex.DivideAndConquer(lambda n: False, plus, lambda n: [], len), 3) == [0]


def test_what_is_never_small_enough_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("divide", "sequential"):
        monkeypatch.setattr(f"exoskel.{module}.DIVISIONS_DEEP_MAX", 100)
    endless = ex.DivideAndConquer(bool, plus, lambda n: [n], len)
    with pytest.raises(
        RecursionError, match=r"divided more than 100 times .*, expected bool to be"
    ) as caught:
        run(endless, 0)
    assert caught.value.__notes__ == ["item 0: 0"]


def test_a_source_runs_in_sequence_too(tmp_path: Path) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1
        yield 2

    (tmp_path / "in.txt").write_text("a\nb c\n")
    lines = ex.Lines(tmp_path / "in.txt")
    assert list(ex.FlatMap(words).run_sequential(lines)) == ["a", "b", "c"]
    assert list(ex.Pipeline(len, ex.Reduce(add)).run_sequential(lines)) == [4]
    assert list(ex.Farm(plus).run_sequential(numbers())) == [2, 3]


def test_results_before_an_exception_come_first_and_a_note_names_the_item() -> None:
    def inverse(text: str) -> Iterator[float]:
        for word in text.split():
            yield 1 / int(word)

    results = ex.FlatMap(inverse).run_sequential(["1", "2 0 4"])
    assert [next(results), next(results)] == [1.0, 0.5]
    with pytest.raises(ZeroDivisionError) as caught:
        next(results)
    assert caught.value.__notes__ == ["item 1: '2 0 4'"]


def test_what_gives_no_iterable_is_named() -> None:
    wrong: list[ex.Skeleton[Any, Any]] = [
        ex.FlatMap(plus),  # type: ignore[arg-type]
        ex.Map(plus, plus),  # type: ignore[arg-type]
        ex.DivideAndConquer(lambda _: False, plus, plus, sum),  # type: ignore[arg-type]
    ]
    for program in wrong:
        with pytest.raises(TypeError, match="got 2 from plus, expected an iterable"):
            run(program, 1)
    with pytest.raises(TypeError, match="got 1 as the item of a Map without a split"):
        run(ex.Map(None, plus), 1)


def test_operations_that_are_not_associative_are_found() -> None:
    with pytest.raises(ValueError, match=r"subtract isn't associative.* for 1, 2, 3 it gives -4"):
        list(ex.Reduce(subtract).run_sequential([1, 2, 3], check=True))
    assert list(ex.Reduce(subtract).run_sequential([1, 2, 3])) == [-4]
    assert list(ex.Reduce(add).run_sequential([0.1, 0.2, 0.3, 0.4], check=True)) == [1.0]
    count = ex.Reduce(add, key=is_large)
    assert list(count.run_sequential([1, 2, 30, 4], check=True)) == [{False: 7, True: 30}]
    of_parity = ex.Reduce(subtract, key=lambda number: number % 2)
    with pytest.raises(ValueError, match=r"subtract isn't associative.* for 0, 2, 4 it gives -6"):
        list(of_parity.run_sequential(range(20), check=True))


# To type checkers they are mistakes as well.
FLAT_MAP: Any = ex.FlatMap
MAP: Any = ex.Map
ITERATE: Any = ex.Iterate
DIVIDE: Any = ex.DivideAndConquer
REDUCE: Any = ex.Reduce
FARM: Any = ex.Farm
SEQ: Any = ex.Seq
PIPELINE: Any = ex.Pipeline


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FARM(add), "got add in Farm, which can't be called with 1 argument, .* pair"),
        (lambda: REDUCE(plus), "got plus in Reduce, which can't be called with 2 arguments"),
        (lambda: PIPELINE(plus, lambda: 1), "<lambda> in stage 2 of Pipeline"),
        (lambda: SEQ(lambda item, *, how: item), "can't be called with 1 argument"),
        (lambda: FLAT_MAP(coroutine), "got the coroutine function coroutine in FlatMap"),
        (lambda: MAP(words, letters), "got the generator function letters in worker of Map"),
        (lambda: MAP(add, len), "got add in split of Map"),
        (lambda: MAP(words, len, add), "got add in join of Map"),
        (lambda: MAP(words, REDUCE(add)), "inside|in Map, expected Reduce as the last"),
        (lambda: FARM(PIPELINE(plus, REDUCE(add))), "in Farm, expected Reduce as the"),
        (lambda: PIPELINE(REDUCE(add), plus), "stage 1 of 2 of Pipeline, expected Reduce"),
        (lambda: ITERATE(REDUCE(add), plus, 3), "in Iterate, expected Reduce as the last"),
        (lambda: ITERATE(FLAT_MAP(words), plus, 3), "expected one result for each item"),
        (lambda: ITERATE(plus, add, 3), "got add in until of Iterate"),
        (lambda: ITERATE(plus, plus, "3"), "got at_most='3' in Iterate"),
        (lambda: DIVIDE(plus, plus, plus, add), "got add in conquer of Divide"),
        (lambda: REDUCE(add, 0, plus), "got initial= with key= in Reduce"),
        (lambda: REDUCE(add, value=plus), "got value= without key= in Reduce"),
        (lambda: REDUCE(add, key=add), "got add in key= of Reduce"),
        (
            lambda: FLAT_MAP(Counting),
            r"got the class Counting in FlatMap, expected a function: .* Farm",
        ),
        (lambda: DIVIDE(plus, Counting, plus, add), "got the class Counting in base of Divide"),
        (lambda: FLAT_MAP(FARM(plus)), r"got Farm\(plus\) in FlatMap, expected a function$"),
        (
            lambda: FARM(Needy),
            r"got the class Needy in Farm, which needs arguments .* give an instance, Needy\(\.\.\.\), ",
        ),
        (
            lambda: FARM(functools.partial(Needy, "3")),
            r"got functools\.partial.*Needy.* in Farm, .* or a subclass of Needy whose __init__ needs none",
        ),
    ],
)
def test_what_does_not_fit_is_named_when_it_is_built(make: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make()


def test_numbers_that_make_no_sense_are_named() -> None:
    with pytest.raises(ValueError, match="at_most=0 in Iterate, expected at least 1 round"):
        ex.Iterate(plus, plus, 0)
    with pytest.raises(ValueError, match="max_keys=0, expected at least 1"):
        ex.Reduce(add, key=plus, max_keys=0)


def test_what_says_nothing_of_its_arguments_passes() -> None:
    class Wrapped:
        def __call__(self, *items: int) -> int:
            return sum(items)

    for function in (int, abs, str.upper, max, Wrapped(), operator.itemgetter(0), "".join):
        ex.Farm(function)
    ex.Reduce(max)
    ex.Reduce(Wrapped())


PROGRAMS: list[tuple[ex.Skeleton[Any, Any], str]] = [
    (ex.FlatMap(words), "FlatMap(words)"),
    (ex.Map(words, len, sum), "Map(words, len, sum)"),
    (ex.Map(None, ex.Seq(len)), "Map(None, Seq(len))"),
    (ex.Map(words, ex.Pipeline(len, plus)), "Map(words, Pipeline(Farm(len), Farm(plus)))"),
    (ex.Reduce(add), "Reduce(add)"),
    (ex.Reduce(add, 0), "Reduce(add, initial=0)"),
    (
        ex.Reduce(add, key=plus, value=plus, max_keys=3),
        "Reduce(add, key=plus, value=plus, max_keys=3)",
    ),
    (ex.Iterate(plus, is_large, 3), "Iterate(plus, is_large, 3)"),
    (SORT, "DivideAndConquer(is_short, list, halves, merged)"),
]


@pytest.mark.parametrize(("program", "text"), PROGRAMS, ids=[text for _, text in PROGRAMS])
def test_patterns_are_values(program: ex.Skeleton[Any, Any], text: str) -> None:
    assert repr(program) == text
    assert eval(text, {**vars(ex), **globals()}) == program
    assert pickle.loads(pickle.dumps(program)) == program
    assert hash(pickle.loads(pickle.dumps(program))) == hash(program)
    with pytest.raises(AttributeError, match="frozen"):
        program.operation = add


def test_patterns_flatten_to_structures() -> None:
    farm = ("farm", ("seq", 1))
    assert flatten(ex.FlatMap(words)) == (("flat_map", 0), [words])
    assert flatten(ex.Map(words, len, sum)) == (("map", 0, farm, 2), [words, len, sum])
    assert flatten(ex.Map(None, ex.Seq(len))) == (("map", None, ("seq", 0), None), [len])
    assert flatten(ex.Reduce(add)) == (("reduce", 0, False, None), [add])
    assert flatten(ex.Reduce(add, 7)) == (("reduce", 0, True, 1), [add, 7])
    iterated = ("iterate", ("farm", ("seq", 0)), 1, 9)
    assert flatten(ex.Iterate(plus, is_large, 9)) == (iterated, [plus, is_large])
    assert flatten(SORT) == (("divide", 0, 1, 2, 3), [is_short, list, halves, merged])


def test_a_class_is_made_once_and_closed_at_the_end() -> None:
    made, closed = Counting.made, Counting.closed
    program = ex.Pipeline(Counting, ex.Farm(Counting))
    assert repr(program) == "Pipeline(Farm(Counting), Farm(Counting))"
    assert run(program, 1, 2, 3) == [3, 4, 5]
    assert Counting.made == made + 2
    assert Counting.closed == closed + 2
    # A plain class is a function.
    assert run(ex.Farm(str), 1) == ["1"]


def test_type_checkers_find_stages_that_do_not_fit(tmp_path: Path) -> None:
    """Aim: mypy accepts programs whose stages fit, and names those that don't. Method: a file with marked lines."""
    text = textwrap.dedent("""
        import operator
        from typing import assert_type
        import exoskel as ex

        def length(text: str) -> int:
            return len(text)

        def half(number: int) -> float:
            return number / 2

        def words(text: str) -> list[str]:
            return text.split()

        def is_large(number: float) -> bool:
            return number > 9

        class Render:
            def __call__(self, number: int) -> bytes:
                return bytes(number)

        assert_type(ex.Pipeline(length, half), ex.Pipeline[str, float])
        assert_type(ex.Pipeline(length, Render), ex.Pipeline[str, bytes])
        assert_type(ex.Farm(Render), ex.Farm[int, bytes])
        assert_type(ex.Pipeline(ex.FlatMap(words), ex.Seq(length)), ex.Pipeline[str, int])
        assert_type(ex.Map(words, length, sum), ex.Map[str, int])
        assert_type(ex.Map(words, length), ex.Map[str, list[int]])
        assert_type(ex.Reduce(max, 0, key=None), ex.Reduce[int, int])
        assert_type(list(ex.Farm(length).run_sequential(["a"])), list[int])
        ex.Pipeline(length, ex.Reduce(operator.add))
        ex.Pipeline(half, ex.Iterate(half, is_large, 9))  # wrong
        ex.Pipeline(half, length)  # wrong
        ex.Pipeline(length, words)  # wrong
        ex.Pipeline(ex.FlatMap(words), Render)  # wrong
        ex.Pipeline(words, ex.Seq(length))  # wrong
        ex.Map(length, half, sum)  # wrong
        ex.Farm(length).run_sequential([1])  # wrong
        ex.FlatMap(length)  # wrong
        ex.DivideAndConquer(is_large, half, words, sum)  # wrong
    """)
    file = tmp_path / "typed.py"
    file.write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--no-error-summary"]
    package = Path(ex.__file__).parent.parent
    checked = subprocess.run(
        [*command, f"--cache-dir={tmp_path}", str(file)],
        capture_output=True,
        text=True,
        check=False,
        env={"MYPYPATH": str(package), "PATH": ""},
    )
    found = {int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error: " in line}
    wrong = {number for number, line in enumerate(text.splitlines(), 1) if line.endswith("# wrong")}
    assert found == wrong, checked.stdout + checked.stderr


def test_explain_says_what_becomes_of_a_program() -> None:
    program: ex.Skeleton[Any, Any] = PIPELINE(
        ex.Seq(str.upper),
        ex.FlatMap(words),
        ex.Farm(Counting),
        ex.Map(letters, ex.Pipeline(ord, ex.Iterate(plus, is_large, 9)), sum),
        ex.Reduce(add, key=is_large),
    )
    assert program.explain().splitlines()[1:] == [
        "1. one item at a time, in order: str.upper",
        "2. on every free slot, for each item:",
        "   - words, which gives any number of results",
        "   - Counting (made once in each slot)",
        "   - split by letters; for each part ord, then (repeat plus until is_large, at most 9 times); joined by sum",
        "3. folded by add for each is_large, at most 1000000 of them: neighbours at the slots, then what they fold to",
    ]
    assert SORT.explain().splitlines()[1:] == [
        "1. on every free slot, for each item:",
        "   - divide by halves until is_short; then list; combined by merged",
    ]
    assert "cut into slices" in ex.Reduce(add).explain()
    assert "only their parts travel" in ex.Farm(ex.Map(None, plus)).explain()
    serial: ex.Skeleton[str, int] = ex.Pipeline(ex.FlatMap(words), ex.Seq(len))
    assert "2. one result of an item at a time, in order: len" in serial.explain()
