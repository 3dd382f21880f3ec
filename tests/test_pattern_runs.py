"""Programs of all patterns on managers: the same as in sequence, with errors that name the user's items."""

import operator
import re
import threading
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy
import pytest
from tests.site import POLICY, Site
from tests.test_patterns import SORT, add, is_large, letters, merged, plus, words

import exoskel as ex
from exoskel.slices import SLICE_BYTES_MAX, WAITING_MAX, Partials, Slices

NODE = "node1.lab.example.org"


def square(number: int) -> int:
    return number * number


def no_hundreds(number: int) -> int:
    if number and number % 100 == 0:
        raise ValueError(f"got {number}")
    return number


class Numbered:
    """A step that says whether it is the same instance."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, item: int) -> int:
        """Count the calls."""
        self.calls += 1
        return self.calls


class Closing:
    """A step that leaves a trace when it is closed."""

    def __init__(self) -> None:
        self.path: Path | None = None

    def __call__(self, path: Path) -> bool:
        """Remember the path."""
        first, self.path = self.path is None, path
        return first

    def close(self) -> None:
        """Leave the trace."""
        assert self.path is not None
        with self.path.open("a") as file:
            file.write("closed\n")


def expected(program: ex.Skeleton[Any, Any], items: Any) -> list[Any]:
    return list(program.run_sequential(items))


SUM: ex.Skeleton[Any, Any] = ex.Pipeline(ex.Farm(square), ex.Reduce(operator.add))

PROGRAMS: dict[str, tuple[ex.Skeleton[Any, Any], list[Any]]] = {
    "flat map": (ex.FlatMap(words), ["a b", "", "c d e"]),
    "stages around": (ex.Pipeline(str.upper, ex.FlatMap(words), len), ["a bc", "", "def"]),
    "serial stages around": (
        ex.Pipeline(ex.Seq(str.upper), ex.FlatMap(letters), ex.Seq(ord), plus),
        ["ab", "", "c"],
    ),
    "map": (ex.Map(words, len, sum), ["a bc", "", "def"]),
    "map of many": (ex.Map(words, ex.FlatMap(letters), "-".join), ["a bc", "", "def"] * 20),
    "map of maps": (ex.Map(None, ex.Map(words, len), merged), [["a bc", "d"], []]),
    "iterate": (ex.Iterate(plus, is_large, 30), [1, 5, 20]),
    "divide and conquer": (SORT, [[3, 1, 2], [], [2, 1], list(range(40, 0, -1))]),
    "a reduction of words": (ex.Pipeline(ex.FlatMap(words), ex.Reduce(add)), ["a b", "", "c"]),
    "a reduction behind a serial stage": (
        ex.Pipeline(ex.Seq(str.upper), ex.FlatMap(letters), ex.Reduce(add, ">")),
        ["ab", "", "c"],
    ),
    "a reduction alone": (ex.Reduce(add), [[1], [2], [3]]),
    "a reduction by keys": (
        ex.Pipeline(ex.FlatMap(letters), ex.Reduce(add, key=str.lower, value=len)),
        ["Ab", "ba", "c"],
    ),
    "a reduction by keys behind a serial stage": (
        ex.Pipeline(ex.Seq(len), ex.Reduce(add, key=is_large)),
        ["Ab", "ba", "c" * 20],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_do_on_slots_what_they_do_in_sequence(name: str) -> None:
    program, items = PROGRAMS[name]
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        for given in (items, tuple(items), items * 20):
            assert list(manager.map(given)) == expected(program, given)
        assert list(manager.map(items, indices=True)) == list(enumerate(expected(program, items)))
        completed = manager.map(items, as_completed=True, errors="return")
        assert sorted(completed, key=repr) == sorted(expected(program, items), key=repr)


def test_ex_run_returns_the_value_of_a_reduction(tmp_path: Path) -> None:
    assert ex.run(SUM, range(1000)) == expected(SUM, range(1000))[0]
    assert ex.run(ex.FlatMap(words), ["a b", "c"]) == ["a", "b", "c"]
    sink = ex.JsonLines(tmp_path / "sum.jsonl")
    summary = ex.run(SUM, range(1000), sink)
    assert (summary.results, summary.skipped) == (1, 0)
    assert (tmp_path / "sum.jsonl").read_text() == f"{expected(SUM, range(1000))[0]}\n"


SOURCES = {
    "a range": range(3, 100_003, 7),
    "a list": [*range(2000)],
    "a tuple": (1, 2, 3),
    "an array": numpy.arange(2000),
    "a text": "abc" * 500,
    "bytes": bytes(range(256)),
}


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("timeout", [None, 60.0])
def test_what_is_cut_into_slices_folds_to_the_same(name: str, timeout: float | None) -> None:
    items: Any = SOURCES[name]
    items = items[:300] if timeout else items
    program: ex.Skeleton[Any, Any] = ex.Reduce(add)
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        (result,) = manager.map(items, timeout=timeout)
    assert result == expected(program, items)[0]


def test_progress_of_a_reduction_counts_items(capsys: pytest.CaptureFixture[str]) -> None:
    with ex.Manager(SUM, ex.ParDegree(1)) as manager:
        for items in (range(1000), iter(range(1000))):
            assert list(manager.map(items, progress=True)) == expected(SUM, range(1000))
            assert "1000" in capsys.readouterr().err


def test_progress_of_a_run_knows_no_number_of_results_that_is_none(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert len(ex.run(ex.FlatMap(range), [20, 3], progress=True)) == 23
    said = capsys.readouterr().err
    assert "results: 23 in " in said
    assert ex.run(plus, [20, 3], progress=True) == [21, 4]
    assert "items: 2 of 2 in " in capsys.readouterr().err


def test_a_source_of_files_is_mapped_as_it_is_run(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("a\nb c\n")
    with ex.Manager(ex.FlatMap(words), ex.ParDegree(1)) as manager:
        assert list(manager.map(ex.Lines(tmp_path / "in.txt"))) == ["a", "b", "c"]


def test_what_divides_into_no_iterable_is_named() -> None:
    program: Any = ex.DivideAndConquer(is_large, plus, plus, sum)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got 2 from plus, expected an iterable"):
        ex.run(program, [1])


def test_a_recursion_of_a_million_leaves_ends() -> None:
    leaves = ex.DivideAndConquer(
        lambda depth: depth == 0, lambda depth: 1, lambda depth: [depth - 1] * 2, sum
    )
    assert ex.run(leaves, [20]) == [1 << 20]


def test_nothing_to_reduce_is_the_initial_value_or_an_error() -> None:
    with ex.Manager(SUM, ex.ParDegree(1)) as manager:
        empty: list[Any] = [range(0), [], iter(())]
        for nothing in empty:
            with pytest.raises(TypeError, match="got no items to reduce and no initial value"):
                list(manager.map(nothing))
            (error,) = manager.map(nothing, errors="return")
            assert isinstance(error, TypeError)
    with ex.Manager(ex.Reduce(add, "start"), ex.ParDegree(1)) as manager:
        assert list(manager.map([])) == ["start"]
        assert list(manager.map(["-"])) == ["start-"]


@pytest.mark.parametrize("kind", [list, tuple, numpy.array])
def test_an_exception_in_a_slice_names_the_item(kind: Any) -> None:
    program = ex.Pipeline(no_hundreds, ex.Reduce(add))
    with ex.Manager(program, ex.ParDegree(1)) as manager:
        with pytest.raises(ValueError, match="got 100") as caught:
            list(manager.map(kind(range(50, 150))))
        assert caught.value.__notes__[0].startswith("item 50: ")
        (error,) = manager.map(kind(range(50, 150)), errors="return")
        assert len(error.__notes__) == 1
        assert error.__notes__[0].startswith("item 50: ")
        # The manager goes on.
        assert list(manager.map(range(10))) == [45]


def test_where_results_are_counted_an_exception_shows_the_value_alone() -> None:
    serial: ex.Skeleton[int, int] = ex.Pipeline(ex.Seq(plus), no_hundreds, ex.Reduce(add))
    for program in (serial, ex.Pipeline(ex.FlatMap(range), no_hundreds)):
        with ex.Manager(program, ex.ParDegree(1)) as manager:
            with pytest.raises(ValueError, match="got 100") as caught:
                list(manager.map(iter([99, 101])))
            outcomes = manager.map(iter([99, 101]), errors="return")
            errors = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
            assert len(errors) == 1
            for error in (caught.value, *errors):
                assert error.__notes__[-1].startswith("an item")
                assert error.__notes__[-1].endswith("100")


def undecided(_value: int) -> Any:
    return numpy.array([True, False])


def test_what_until_returns_may_be_no_truth() -> None:
    with ex.Manager(ex.Iterate(plus, undecided, 3), ex.ParDegree(1)) as manager:
        with pytest.raises(ValueError, match="ambiguous") as caught:
            list(manager.map([5]))
        assert caught.value.__notes__ == [f"item 0, in undecided: {plus(5)}"]
        assert list(manager.map([])) == []


def none_of_seven(number: int) -> Any:
    return None if number == 7 else [number]


def breaks_off_at_seven(number: int) -> Iterator[int]:
    yield number
    if number == 7:
        raise ValueError("got seven")


@pytest.mark.parametrize("function", [none_of_seven, breaks_off_at_seven])
def test_what_is_wrong_with_parts_shows_the_item(function: Any) -> None:
    programs = (ex.FlatMap(function), ex.Map(function, abs))
    for program in (*programs, *(ex.Pipeline(ex.Seq(abs), one) for one in programs)):
        with ex.Manager(program, ex.ParDegree(1)) as manager:
            found = list(manager.map(iter([6, 7] * 20), errors="return"))
        errors = [one for one in found if isinstance(one, Exception)]
        assert len(errors) == 20
        for error in errors:
            assert error.__notes__[-1].endswith("7"), (program, error.__notes__)


def test_too_many_parts_are_refused_everywhere() -> None:
    text = r"got more than 1048576 parts of one item \(PARTS_MAX\), expected fewer"
    program = ex.Map(range, abs, len)
    with pytest.raises(ValueError, match=text):
        list(program.run_sequential([(1 << 20) + 1]))
    with ex.Manager(program, ex.ParDegree(1)) as manager:
        # Few items are split here, many at slots.
        for others in ([], [3] * 40):
            found = list(manager.map([(1 << 20) + 1, *others], errors="return"))
            assert found[1:] == others
            assert re.match(text, str(found[0]))


def test_an_operation_that_raises_is_the_outcome() -> None:
    with ex.Manager(ex.Reduce(add), ex.ParDegree(2)) as manager:
        with pytest.raises(TypeError):
            list(manager.map([1, 2, "a", 3]))
        assert list(manager.map(["a", "b"])) == ["ab"]


def test_what_the_items_raise_is_raised() -> None:
    def numbers() -> Iterator[int]:
        yield from range(10)
        raise OSError("no more")

    for program in (SUM, ex.Pipeline(ex.Seq(plus), ex.Reduce(add)), ex.FlatMap(range)):
        with ex.Manager(program, ex.ParDegree(1)) as manager, pytest.raises(OSError, match="no mo"):
            list(manager.map(numbers()))


def test_an_exception_of_a_part_is_that_of_its_item() -> None:
    program = ex.Map(range, no_hundreds, sum)
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        results = list(manager.map([3, 150, 4], errors="return"))
        assert (results[0], results[2]) == (3, 6)
        assert results[1].__notes__ == ["item 1, part 100: 100"]
        with pytest.raises(ValueError, match="got 100"):
            list(manager.map([150]))
        # With many items, each runs at one slot.
        results = list(manager.map([3] * 20 + [150], errors="return"))
        assert results[:20] == [3] * 20
        assert results[20].__notes__[0].startswith("item 20: ")


def test_a_split_or_join_that_raises_is_that_of_its_item() -> None:
    with ex.Manager(ex.Map(words, len, sum), ex.ParDegree(1)) as manager:
        results = list(manager.map(["a", 7, "b c"], errors="return"))
        assert results[::2] == [1, 2]
        assert isinstance(results[1], AttributeError)
        assert results[1].__notes__ == ["item 1: 7"]
    with ex.Manager(ex.Map(words, len, max), ex.ParDegree(1)) as manager:
        results = list(manager.map(["a", "", "b c"], errors="return"))
        assert isinstance(results[1], ValueError)
        assert results[1].__notes__ == ["item 1"]


def test_a_lost_worker_names_the_items_of_the_user() -> None:
    def deadly(number: int) -> int:
        if number == 7:
            import os

            os._exit(3)
        return number

    program = ex.Pipeline(deadly, ex.Reduce(add))
    with ex.Manager(program, ex.ParDegree(1), retries=1) as manager:
        with pytest.raises(ex.WorkerLostError, match=r"^item 2 took down") as caught:
            list(manager.map(range(5, 9)))
        assert caught.value.item == 2
        assert list(manager.map(range(3))) == [3]


def test_an_infinite_flat_map_is_read_as_far_as_it_is_used() -> None:
    with ex.Manager(ex.FlatMap(range), ex.ParDegree(2)) as manager:
        results: Any = manager.map(count())
        assert [next(results) for _ in range(6)] == [0, 0, 1, 0, 1, 2]
        results.close()
        assert list(results) == []


def test_a_reduction_that_is_closed_has_no_result() -> None:
    ready = threading.Event()

    def numbers() -> Iterator[int]:
        for number in count():
            if number == 1000:
                ready.set()
            yield number

    with ex.Manager(SUM, ex.ParDegree(1)) as manager:
        results: Any = manager.map(numbers())
        got: list[Any] = []
        thread = threading.Thread(target=lambda: got.extend(results))
        thread.start()
        assert ready.wait(60)
        results.close()
        thread.join()
        assert got == []


def test_a_reduction_skips_nothing(tmp_path: Path) -> None:
    sink = ex.JsonLines(tmp_path / "out.jsonl")
    expected = pytest.raises(ValueError, match="'skip' for a program that reduces")
    with ex.Manager(SUM, ex.ParDegree(1)) as manager, expected:
        manager.run([1], sink, errors="skip")


def test_a_class_is_made_once_in_each_slot() -> None:
    with ex.Manager(ex.Seq(Numbered), ex.ParDegree(1)) as manager:
        assert list(manager.map(range(5))) == [1, 2, 3, 4, 5]
    with ex.Manager(ex.Pipeline(Numbered, ex.Reduce(max)), ex.ParDegree(1)) as manager:
        assert list(manager.map(range(100))) == [100]


def test_an_instance_is_closed_when_its_stream_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "closed.txt"
    path.touch()
    with ex.Manager(ex.Farm(Closing), ex.ParDegree(1)) as manager:
        assert list(manager.map([path, path])) == [True, False]
        # The slot forgets the function before it takes the next item.
        assert list(manager.map([path])) == [True]
        assert path.read_text() == "closed\n"
        assert list(manager.map([path])) == [True]
        assert path.read_text() == "closed\n" * 2


def sizes(items: Any, slots: int, seconds: float | None) -> list[int]:
    """The sizes of slices whose items take so long, each answered at once."""
    slices = Slices(items, slots)
    found = []
    for number, (start, piece) in enumerate(slices):
        assert slices.place(number) == (start, len(piece))
        found.append(len(piece))
        if seconds is not None:
            slices.measured(len(piece), seconds * len(piece))
    assert slices.are_over
    return found


def test_slices_become_smaller_towards_the_end() -> None:
    fast = sizes(range(10**7), 2, 1e-7)
    assert sum(fast) == 10**7
    assert len(fast) < 80
    assert fast[:6] == [1, 1, 2, 2, 4, 4]
    largest = fast.index(max(fast))
    assert fast[largest:] == sorted(fast[largest:], reverse=True)
    assert 10**6 < max(fast) <= 10**7 // 6
    # Nothing is known of items that have not been answered for.
    assert max(sizes(range(10**7), 2, None)) == 256
    assert max(sizes(range(100), 2, None)) == 12
    # What takes long travels alone.
    assert sizes(range(50), 2, 1.0) == [1] * 50
    assert sizes([b"x" * SLICE_BYTES_MAX] * 5, 1, 1e-7) == [1] * 5


def test_what_a_worker_says_of_its_time_only_changes_sizes() -> None:
    for seconds in (-1.0, 0.0, 1e300, float("nan"), float("inf")):
        assert sum(sizes(range(10**5), 2, seconds)) == 10**5


def test_neighbours_are_folded_in_order_whatever_comes_first() -> None:
    partials = Partials(operator.add)
    for start, text in ((4, "e"), (0, "ab"), (5, "f"), (3, ""), (2, "c")):
        partials.add(start, max(1, len(text)), [text] if text else [])
    assert partials.whole() == ["abcef"]
    assert Partials(operator.add).whole() == []
    waiting = Partials(operator.add)
    places = [*range(1, 3 * WAITING_MAX)]
    for start in [*places[::2], *places[1::2], 0]:
        waiting.add(start, 1, [[start]])
    assert waiting.whole() == [[0, *places]]


def counted(text: str) -> Counter[str]:
    return Counter(text)


def test_workers_that_are_not_trusted_fold_plain_data(site: Site) -> None:
    """Slices, parts and lists are data there, and what slots and managers fold of them stays data."""
    site.policy.write_text(POLICY.replace('results = "pickle"\n', ""))
    programs: list[tuple[ex.Skeleton[Any, Any], list[Any]]] = [
        (ex.Pipeline(counted, ex.Reduce(add)), ["abc", "", "cd"] * 9),
        (ex.Pipeline(ex.Seq(counted), ex.Reduce(add)), ["abc", "", "cd"] * 9),
        (ex.Pipeline(ex.FlatMap(letters), ex.Reduce(add, key=str.upper)), ["ab", "", "bA"]),
        (ex.Map(words, len, sum), ["a bc", "", "def"]),
        (ex.Map(words, ex.FlatMap(letters), tuple), ["a bc", "", "def"] * 9),
        (ex.FlatMap(words), ["a b", "", "c"]),
        (SORT, [[3, 1, 2], [2, 1]]),
    ]
    worker = site.worker(NODE)
    for program, items in programs:
        with site.connect(program, 1, worker) as manager:
            assert list(manager.map(items)) == expected(program, items)
    # An iterator is no plain data.
    rejected: ex.Skeleton[Any, Any] = ex.Pipeline(iter, ex.Reduce(add))
    with (
        site.connect(rejected, 1, worker) as manager,
        pytest.raises(ex.ResultRejectedError, match="list_iterator"),
    ):
        list(manager.map([[1]]))


def test_a_journal_refuses_other_functions_wherever_they_stand(tmp_path: Path) -> None:
    def journalled(worker: Any) -> None:
        program = ex.Map(words, ex.Pipeline(ex.FlatMap(letters), worker), len)
        with ex.Manager(program, ex.ParDegree(1)) as manager:
            manager.run(["a b"], ex.JsonLines(tmp_path / "out"), journal=tmp_path / "journal")

    journalled(lambda letter: letter)
    journalled(lambda letter: letter)
    with pytest.raises(ex.JournalError, match="the program"):
        journalled(lambda letter: letter + "!")
