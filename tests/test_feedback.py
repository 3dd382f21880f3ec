"""Farms that feed items back: in sequence, as slots do it alone, and on slots together."""

from __future__ import annotations

import copy
import os
import pickle
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import exoskel as ex
from exoskel import divide
from exoskel import feedback as fed_back
from exoskel.feedback import results_of, work_on
from exoskel.slot_stages import JoinedLists

SETTINGS = settings(deadline=None, max_examples=50, derandomize=True)
# A tree of items: each gives results, which are integers, and further items.
TREES = st.recursive(
    st.lists(st.integers()), lambda inner: st.lists(st.integers() | inner), max_leaves=40
)


def entries(tree: list[Any]) -> list[Any]:
    return [ex.Again(entry) if isinstance(entry, list) else entry for entry in tree]


def flat(tree: list[Any]) -> list[Any]:
    """What a recursion gives."""
    return [
        result for entry in tree for result in (flat(entry) if isinstance(entry, list) else [entry])
    ]


def queens(placed: tuple[int, ...]) -> Iterator[tuple[int, ...] | ex.Again[tuple[int, ...]]]:
    row = len(placed)
    if row == 7:
        yield placed
        return
    for column in range(7):
        if all(
            column != other and abs(column - other) != row - at for at, other in enumerate(placed)
        ):
            yield ex.Again((*placed, column))


def countdown(number: int) -> list[Any]:
    if number == 13:
        raise ValueError("got 13")
    return [number, ex.Again(number - 1), -number] if number else []


def endless(number: int) -> list[ex.Again[int]]:
    fed_back.FED_BACK_DEEP_MAX = 100
    return [ex.Again(number + 1)]


def endless_with_others(number: int) -> list[ex.Again[int]]:
    fed_back.FED_BACK_DEEP_MAX = 100
    return [ex.Again(number + 1), ex.Again(-1)] if number >= 0 else []


def never(number: int) -> bool:
    divide.DIVISIONS_DEEP_MAX = 100
    return False


def test_results_come_as_a_recursion_gives_them() -> None:
    assert list(ex.Farm(countdown, feedback=True).run_sequential([2, 0, 1])) == [
        *(2, 1, -1, -2),
        *(1, -1),
    ]


@SETTINGS
@given(TREES)
def test_the_order_is_that_of_the_tree(tree: list[Any]) -> None:
    assert list(results_of(entries, tree)) == flat(tree)


@SETTINGS
@given(TREES, st.randoms())
def test_what_is_given_up_comes_back_in_its_place(tree: list[Any], chance: Any) -> None:
    def solved(item: Any) -> list[Any]:
        seconds = chance.choice([0, 60])
        items, found = work_on((entries,), item, None, None, seconds)
        if items is None:
            return found
        assert len(items) > 1
        assert len(found) == len(items) + 1
        lists = [solved(item) for item in items]
        nothing, results = work_on((entries,), None, found, lists, seconds)
        assert nothing is None
        return results

    assert solved(tree) == flat(tree)


def test_a_chain_takes_no_memory_and_stays_at_its_slot() -> None:
    def chain(number: int) -> list[Any]:
        return [ex.Again(number - 1)] if number else ["end"]

    tracemalloc.start()
    try:
        assert work_on((chain,), 20_000, None, None, 0) == (None, ["end"])
        # What is left of 20,000 items would take more than this, each by itself.
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_comes_back_must_be_lists_of_results() -> None:
    with pytest.raises(TypeError, match="got 'abc' from a worker, expected a list of results"):
        work_on((entries,), None, [[], [], []], [[1], "abc"], 0)


@pytest.mark.parametrize(
    "back",
    [
        lambda many: work_on((entries,), None, [[], [], many], [[1], [2]], 0),
        lambda many: work_on((entries,), None, [many, []], [[1]], 0),
        lambda many: work_on((entries,), None, many, [], 0),
        lambda many: divide.work_on((len,) * 4, None, [[many, [0, 1], 2]], [1, 2], 0),
        lambda many: divide.work_on((len,) * 4, None, [[[0, 0], many, 2]], [1, 2], 0),
        lambda many: divide.work_on((len,) * 4, None, many, [1, 2], 0),
        lambda many: JoinedLists(None)([[1], many]),
    ],
)
def test_what_a_worker_gives_in_few_bytes_is_not_unfolded(back: Callable[[Any], Any]) -> None:
    """Attack: a range, for a list that another worker goes on with."""
    tracemalloc.start()
    try:
        with pytest.raises(TypeError, match="got <range object> from a worker, expected a list"):
            back(range(1_000_000))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_what_gives_too_much_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("exoskel.feedback.FED_BACK_MAX", 3)
    too_many = "got more than 3 results or items of one item from entries"
    assert work_on((entries,), [1, [2], 3], None, None, 60) == (None, [1, 2, 3])
    for tree in ([1, 2, 3, 4], [1, [2, [3, [4]]]]):
        with pytest.raises(ValueError, match=too_many):
            work_on((entries,), tree, None, None, 60)
    with pytest.raises(ValueError, match=too_many):
        work_on((entries,), None, [[1], [2], [3]], [[], [4]], 0)
    with pytest.raises(ValueError, match=too_many):
        work_on((entries,), [[[], [], []], [], []], None, None, 60)


def test_the_program_says_what_it_is() -> None:
    program = ex.Farm(queens, feedback=True)
    assert repr(program) == "Farm(queens, feedback=True)"
    assert pickle.loads(pickle.dumps(program)) == program != ex.Farm(queens_of)
    assert "- queens, again for each item that it feeds back" in program.explain()
    assert repr(ex.Again(3)) == "Again(3)"


def queens_of(placed: tuple[int, ...]) -> list[Any]:
    return list(queens(placed))


def test_what_cannot_feed_back_is_refused() -> None:
    farm: Any = ex.Farm
    stages: list[Any] = [ex.Pipeline(queens_of), ex.Seq(queens_of)]
    for stage in stages:
        with pytest.raises(TypeError, match="in Farm with feedback, expected a function"):
            farm(stage, feedback=True)
    with pytest.raises(TypeError, match="can't be called with 1 argument"):
        farm(lambda: [], feedback=True)
    with pytest.raises(TypeError, match="got 7 from <lambda>, expected an iterable"):
        list(farm(lambda item: item, feedback=True).run_sequential([7]))


SEARCH: Any = ex.Farm(queens, feedback=True)
DOWN: Any = ex.Farm(countdown, feedback=True)
FIRST: Any = max
SIZE: Any = abs
STAGES: dict[str, ex.Skeleton[Any, Any]] = {
    "alone": SEARCH,
    "in a pipeline": ex.Pipeline(ex.Seq(tuple), SEARCH, ex.Seq(sum), SIZE),
    "twice": ex.Pipeline(SEARCH, FIRST, DOWN, ex.Seq(SIZE)),
    "in a map": ex.Map(None, DOWN, sum),
    "reduced": ex.Pipeline(SEARCH, ex.Reduce(FIRST)),
}


@pytest.mark.parametrize("name", STAGES)
def test_slots_give_what_a_recursion_gives(name: str) -> None:
    program = STAGES[name]
    items: list[Any] = [(), (1,), (0, 0), (2, 5), ()]
    wanted = list(program.run_sequential(items))
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        assert list(manager.map(items)) == wanted
        assert list(manager.map(iter(items))) == wanted


def again(number: int) -> Any:
    return ex.Again(number)


def several(number: int) -> list[Any]:
    return [number, ex.Again(number)]


@pytest.mark.parametrize(
    "program", [ex.Farm(again), ex.Farm(several), ex.Seq(several), ex.FlatMap(several)]
)
def test_again_without_feedback_is_an_error_in_words(program: Any) -> None:
    text = r"got Again\(3\) in a result, .*exoskel.Farm\(function, feedback=True\)"
    with pytest.raises(ex.ProgramError, match=text):
        list(program.run_sequential([3]))
    with (
        ex.Manager(program, ex.ParDegree(1)) as manager,
        pytest.raises(ex.ProgramError, match=text),
    ):
        list(manager.map([3]))


def test_functions_may_hold_what_they_feed_back() -> None:
    held = ex.Again(0), copy.deepcopy(ex.Again(-1)), pickle.loads(pickle.dumps(ex.Again(-2)))

    def search(number: int) -> list[Any]:
        return [number] if number <= 0 else list(held)

    program: ex.Skeleton[int, int] = ex.Farm(search, feedback=True)
    with ex.Manager(program, ex.ParDegree(1)) as manager:
        assert list(manager.map([3])) == list(program.run_sequential([3])) == [0, -1, -2]


def test_an_exception_is_the_outcome_of_the_item_it_came_of() -> None:
    with ex.Manager(ex.Farm(countdown, feedback=True), ex.ParDegree(2)) as manager:
        found = list(manager.map([2, 15, 1], errors="return"))
    assert [found[:4], found[5:]] == [[2, 1, -1, -2], [1, -1]]
    assert isinstance(found[4], ValueError)
    assert str(found[4]) == "got 13"


def test_others_get_what_a_slot_has_not_begun(tmp_path: Path) -> None:
    def until_two_work(folder: Path) -> list[Any]:
        (folder / str(os.getpid())).touch()
        if len(os.listdir(folder)) > 1:
            return [os.getpid()]
        return [ex.Again(folder), ex.Again(folder)]

    with ex.Manager(ex.Farm(until_two_work, feedback=True), ex.ParDegree(2)) as manager:
        assert len(set(manager.map([tmp_path]))) == 2


@pytest.mark.parametrize("at", [(), (3,), (6, 4, 2), (1, 3, 5, 0, 2, 4, 6)])
def test_each_result_counts_once_when_a_slot_is_lost(at: tuple[int, ...], tmp_path: Path) -> None:
    mark = tmp_path / "lost"

    def loses_its_slot(placed: tuple[int, ...]) -> list[Any]:
        if placed == at and not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return queens_of(placed)

    wanted = list(ex.Farm(queens, feedback=True).run_sequential([(), ()]))
    with ex.Manager(ex.Farm(loses_its_slot, feedback=True), ex.ParDegree(2), retries=3) as manager:
        assert list(manager.map([(), ()])) == wanted
    assert mark.exists()


@pytest.mark.parametrize("function", [endless, endless_with_others])
def test_what_never_ends_is_an_error_in_words(function: Any) -> None:
    with ex.Manager(ex.Farm(function, feedback=True), ex.ParDegree(1)) as manager:
        (error,) = manager.map([1], errors="return")
    assert isinstance(error, RecursionError)
    assert "fed back more than 100 times in a row (FED_BACK_DEEP_MAX)" in str(error)


def test_a_division_that_never_ends_is_an_error_in_words() -> None:
    program = ex.DivideAndConquer(never, abs, lambda number: [number], sum)
    with ex.Manager(program, ex.ParDegree(1)) as manager:
        (error,) = manager.map([1], errors="return")
    assert isinstance(error, RecursionError)
    assert "divided more than 100 times in a row (DIVISIONS_DEEP_MAX)" in str(error)


def test_a_function_that_is_fed_back_may_keep_what_it_feeds_back() -> None:
    def counted(number: int) -> list[object]:
        import copy
        import pickle

        import exoskel

        kept = pickle.loads(pickle.dumps(copy.copy(exoskel.Again(number - 1))))
        return [kept] if number else ["done"]

    program: Any = ex.Farm(counted, feedback=True)
    assert list(ex.run(program, [3])) == ["done"]
