"""Streams: taken as they are needed, several at a time, in pieces, or not to their end."""

import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import exoskel as ex


@pytest.fixture
def manager() -> Iterator[ex.Manager]:
    """A manager of two slots that give back what they get."""
    with ex.Manager(ex.Farm(lambda item: item), ex.ParDegree(2)) as made:
        yield made


def wait_for(path: Path) -> Callable[[Any], Any]:
    """Make a task whose item 0 waits for a file; the others give back what they get."""
    awaited = str(path)

    def task(item: int) -> int:
        import os
        import time

        deadline = time.monotonic() + 60
        while item == 0 and not os.path.exists(awaited):
            assert time.monotonic() < deadline, "the file did not come"
            time.sleep(0.002)
        return item

    return task


def test_an_endless_iterable_is_taken_as_far_as_needed(manager: ex.Manager) -> None:
    pulled = itertools.count()
    stream = manager.map(pulled)
    assert list(itertools.islice(stream, 5000)) == list(range(5000))
    assert next(pulled) < 500_000


def test_a_caller_that_stops_reading_stops_the_input_and_can_come_back(manager: ex.Manager) -> None:
    taken = 0

    def items() -> Iterator[int]:
        nonlocal taken
        for item in range(1_000_000):
            taken = item
            yield item

    stream = manager.map(items())
    head = list(itertools.islice(stream, 10))
    seen = taken
    assert sum(manager.map(range(30_000))) == sum(range(30_000))
    assert taken == seen < 999_999
    assert sum(head) + sum(stream) == sum(range(1_000_000))


@pytest.mark.parametrize("as_completed", [False, True])
def test_streams_that_are_read_in_turn_do_not_wait_for_each_other(
    manager: ex.Manager, as_completed: bool
) -> None:
    count = 3000
    pairs = zip(
        manager.map(range(count), as_completed=as_completed),
        manager.map(range(count, 0, -1), as_completed=as_completed),
        strict=True,
    )
    assert sum(one + two for one, two in pairs) == count * count


def test_many_streams_open_at_a_time(manager: ex.Manager) -> None:
    streams = [manager.map(itertools.count(start)) for start in range(40)]
    for position in range(50):
        assert [next(stream) for stream in streams] == [position + start for start in range(40)]


def test_a_stream_can_be_the_input_of_another(manager: ex.Manager) -> None:
    assert list(manager.map(manager.map(manager.map(range(2000))))) == list(range(2000))


def test_an_input_may_use_the_manager_itself(manager: ex.Manager) -> None:
    def items() -> Iterator[int]:
        for start in range(0, 100, 10):
            yield sum(manager.map(range(start, start + 10)))

    assert sum(manager.map(items())) == sum(range(100))


def test_a_slow_first_item_is_delivered_first(tmp_path: Path) -> None:
    """It waits for one that the scheduler can only reach by running ahead of it."""
    opened = tmp_path / "opened"
    wait = wait_for(opened)
    place = str(opened)

    def task(item: int) -> int:
        if item == 200:
            open(place, "x").close()
        result: int = wait(item)
        return result

    with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
        assert list(manager.map(range(3000))) == list(range(3000))


@pytest.mark.parametrize("count", [5, 300])
def test_one_slow_item_does_not_hold_the_others(tmp_path: Path, count: int) -> None:
    opened = tmp_path / "opened"
    with ex.Manager(ex.Farm(wait_for(opened)), ex.ParDegree(2)) as manager:
        stream = manager.map(range(count), as_completed=True)
        others = [next(stream) for _ in range(count - 1)]
        assert sorted(others) == list(range(1, count))
        opened.touch()
        assert list(stream) == [0]


def test_a_slow_item_does_not_hold_the_unfarmed_stage_before_it(tmp_path: Path) -> None:
    """That stage moves on to the other slot. Only what has passed it in the same frame stays with the slow item."""
    opened = tmp_path / "opened"
    wait = wait_for(opened)

    def task(item: int) -> int:
        result: int = wait(item - 7000)
        return result + 7000

    program = ex.Pipeline(lambda item: item, ex.Farm(task))
    with ex.Manager(program, ex.ParDegree(2), frame_items_max=500) as manager:
        stream = manager.map(range(20_000), as_completed=True)
        others = [next(stream) for _ in range(19_500)]
        assert 7000 not in others
        opened.touch()
        assert sorted([*others, *stream]) == list(range(20_000))


def test_one_slow_item_does_not_hold_other_streams(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    with ex.Manager(ex.Farm(wait_for(opened)), ex.ParDegree(2)) as manager:
        slow = manager.map(range(100_000))
        threading_result: list[int] = []
        reader = threading.Thread(target=lambda: threading_result.append(next(slow)))
        reader.start()
        assert list(manager.map(range(1, 2000))) == list(range(1, 2000))
        assert not threading_result
        opened.touch()
        reader.join()
        assert threading_result == [0]
        assert sum(slow) == sum(range(100_000))


def test_a_slow_item_of_an_unfarmed_stage_holds_nobody_else_s_stream(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    program = ex.Pipeline(ex.Farm(lambda item: item), wait_for(opened))
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        slow = manager.map(range(50))
        reader: list[int] = []
        thread = threading.Thread(target=lambda: reader.extend(slow))
        thread.start()
        opened.touch()
        assert list(manager.map(range(1, 50))) == list(range(1, 50))
        thread.join()
    assert reader == list(range(50))


def test_closing_early_forgets_the_items(tmp_path: Path) -> None:
    runs, both = str(tmp_path / "runs"), str(tmp_path / "both")
    os.mkdir(runs)
    os.mkdir(both)

    def task(item: int) -> int:
        if item >= 0:
            open(f"{runs}/{item}", "x").close()
        else:
            # Each slot has to come here before one goes on, so both have ended what they had before.
            open(f"{both}/{os.getpid()}", "w").close()
            deadline = time.monotonic() + 30
            while len(os.listdir(both)) < 2 and time.monotonic() < deadline:
                time.sleep(0.001)
        return item

    with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
        stream: Any = manager.map(itertools.count())
        assert next(stream) == 0
        stream.close()
        stream.close()
        assert list(stream) == []
        assert list(manager.map([-1, -1])) == [-1, -1]
        begun = len(os.listdir(runs))
        assert list(manager.map([-1] * 2000)) == [-1] * 2000
        assert len(os.listdir(runs)) == begun


def test_closing_does_not_wait_for_a_task(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    with ex.Manager(ex.Farm(wait_for(opened)), ex.ParDegree(2)) as manager:
        stream: Any = manager.map(range(100), as_completed=True)
        assert next(stream) != 0
        stream.close()
        assert list(manager.map([5, 6])) == [5, 6]
        opened.touch()


def test_generators_are_closed_with_the_stream(manager: ex.Manager) -> None:
    closed = False

    def items() -> Iterator[int]:
        nonlocal closed
        try:
            yield from itertools.count()
        finally:
            closed = True

    stream: Any = manager.map(items())
    next(stream)
    stream.close()
    assert closed


def test_an_input_that_fails_ends_the_stream_with_its_exception(manager: ex.Manager) -> None:
    def items() -> Iterator[int]:
        yield 1
        raise LookupError("no more slices")

    stream = manager.map(items())
    with pytest.raises(LookupError, match="no more slices"):
        list(stream)
    assert list(stream) == []
    assert list(manager.map([1])) == [1]


def test_what_is_no_iterable_is_refused_at_once(manager: ex.Manager) -> None:
    with pytest.raises(TypeError, match="iterable"):
        manager.map(5)  # type: ignore[arg-type]


def test_an_exception_stands_at_its_item_or_ends_the_stream() -> None:
    def task(item: int) -> float:
        return 10 / item

    with ex.Manager(ex.Pipeline(task, ex.Farm(lambda value: value)), ex.ParDegree(2)) as manager:
        results = list(manager.map([1, 0, 2, 0, 5], errors="return"))
        assert [type(result) for result in results] == [
            float,
            ZeroDivisionError,
            float,
            ZeroDivisionError,
            float,
        ]
        stream = manager.map([1, 0, 2])
        assert next(stream) == 10
        with pytest.raises(ZeroDivisionError) as caught:
            next(stream)
        assert isinstance(caught.value.__cause__, ex.RemoteTraceback)
        assert "return 10 / item" in str(caught.value.__cause__)
        assert "local-" in str(caught.value.__cause__)
        assert next(stream, "ended") == "ended"
        assert list(manager.map([5])) == [2]


def test_exceptions_of_every_kind_arrive() -> None:
    class Trouble(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(f"{one} and {two}")

    class Holding(Exception):
        pass

    def task(item: str) -> None:
        import threading

        match item:
            case "own":
                error = Holding("own", 5)
                error.add_note("a note")
                raise error
            case "arguments":
                # It can't be made again from its text alone.
                raise Trouble(1, 2)
            case "unpicklable":
                raise Holding(threading.Lock())
            case "chained":
                try:
                    os.environ["NO_SUCH_VARIABLE"]
                except KeyError as error:
                    raise ValueError("outer") from error
            case "group":
                raise ExceptionGroup("several", [ValueError(1), TypeError(2)])
            case "stop":
                raise StopIteration(3)
            case "exit":
                raise GeneratorExit

    with ex.Manager(ex.Farm(task), ex.ParDegree(1)) as manager:

        def outcome(item: str) -> BaseException:
            (error,) = manager.map([item], errors="return")
            assert isinstance(error.__cause__, ex.RemoteTraceback)
            assert isinstance(error, BaseException)
            return error

        assert type(outcome("own")).__name__ == "Holding"
        assert outcome("own").args == ("own", 5)
        assert "1 and 2" in str(outcome("arguments"))
        assert "Holding" in str(outcome("unpicklable"))
        chained = outcome("chained")
        assert "KeyError: 'NO_SUCH_VARIABLE'" in str(chained.__cause__)
        group = outcome("group")
        assert isinstance(group, ExceptionGroup)
        assert [type(error) for error in group.exceptions] == [ValueError, TypeError]
        for item in ("stop", "exit"):
            assert not isinstance(outcome(item), (StopIteration, GeneratorExit))
            with pytest.raises(Exception, match=r"StopIteration|GeneratorExit"):
                list(manager.map([item]))


def test_a_stream_belongs_to_one_thread_at_a_time(manager: ex.Manager) -> None:
    def items() -> Iterator[int]:
        yield 1
        # As with a generator that asks itself for its next value.
        yield next(stream)

    stream = manager.map(items())
    with pytest.raises(ValueError, match="being iterated"):
        list(stream)


def test_threads_have_streams_of_their_own(manager: ex.Manager) -> None:
    sums = {}

    def read(number: int) -> None:
        sums[number] = sum(manager.map(range(number, number + 1000)))

    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {number: sum(range(number, number + 1000)) for number in range(8)}
