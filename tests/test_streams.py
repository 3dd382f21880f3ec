"""Streams: taken as they are needed, several at a time, in pieces, or not to their end."""

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from tests.processes import eventually

import exoskel as ex
from exoskel import by_value


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


@pytest.mark.parametrize("as_completed", [False, True])
def test_a_slow_iterable_holds_back_no_result_that_is_there(
    manager: ex.Manager, as_completed: bool
) -> None:
    given = 0

    def done() -> int:
        return sum(worker.items for worker in manager.summary().workers)

    before = done()

    def has_all() -> bool:
        return done() >= before + given

    def items() -> Iterator[int]:
        nonlocal given
        for item in range(40):
            time.sleep(0.002)
            # The manager has the results of all before.
            assert eventually(has_all)
            given += 1
            yield item

    for count, _ in enumerate(manager.map(items(), as_completed=as_completed), 1):
        # One more has been asked for meanwhile.
        assert given <= count + 2


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


def test_a_slow_item_does_not_hold_the_serial_stage_before_it(tmp_path: Path) -> None:
    """That stage moves on to the other slot. Only what has passed it in the same frame stays with the slow item."""
    opened = tmp_path / "opened"
    wait = wait_for(opened)

    def task(item: int) -> int:
        result: int = wait(item - 7000)
        return result + 7000

    program: ex.Skeleton[Any, Any] = ex.Pipeline(ex.Seq(lambda item: item), task)
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


def test_a_slow_item_of_a_serial_stage_holds_nobody_else_s_stream(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    program = ex.Pipeline(lambda item: item, ex.Seq(wait_for(opened)))
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


def test_what_is_no_iterable_is_refused_at_once(manager: ex.Manager) -> None:
    with pytest.raises(TypeError, match="iterable"):
        manager.map(5)  # type: ignore[arg-type]


def test_an_exception_stands_at_its_item_or_ends_the_stream() -> None:
    def task(item: int) -> float:
        return 10 / item

    with ex.Manager(ex.Pipeline(ex.Seq(task), lambda value: value), ex.ParDegree(2)) as manager:
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


def test_an_input_can_t_ask_for_its_own_results(manager: ex.Manager) -> None:
    def items() -> Iterator[int]:
        yield 1
        # As with a generator that asks itself for its next value.
        yield next(stream)

    stream = manager.map(items())
    with pytest.raises(ValueError, match="can't ask for its results"):
        list(stream)


def in_threads(count: int, call: Callable[[], object]) -> list[object]:
    """Call something in so many threads at once; return what each got, exceptions included."""
    outcomes: list[object] = []

    def run() -> None:
        try:
            outcomes.append(call())
        except Exception as error:
            outcomes.append(error)

    threads = [threading.Thread(target=run) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return outcomes


@pytest.mark.parametrize("progress", [False, True])
def test_threads_take_turns_at_one_stream(manager: ex.Manager, progress: bool) -> None:
    stream = manager.map(range(2000), progress=progress)
    got: list[Any] = in_threads(4, lambda: list(stream))
    assert sorted(item for part in got for item in part) == list(range(2000))
    assert all(part == sorted(part) for part in got)


@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize("as_completed", [False, True])
def test_closing_ends_the_wait_of_other_threads(
    tmp_path: Path, as_completed: bool, progress: bool
) -> None:
    opened = tmp_path / "opened"
    with ex.Manager(ex.Farm(wait_for(opened)), ex.ParDegree(1)) as manager:
        stream: Any = manager.map([0, 0], as_completed=as_completed, progress=progress)
        entered = threading.Event()

        def read() -> list[object]:
            entered.set()
            return list(stream)

        readers = threading.Thread(target=lambda: outcomes.extend(in_threads(3, read)))
        outcomes: list[object] = []
        readers.start()
        assert entered.wait(60)
        stream.close()
        readers.join(60)
        assert outcomes == [[], [], []]
        opened.touch()
        assert list(manager.map([5, 6])) == [5, 6]


def test_closing_the_manager_ends_the_wait_of_other_threads(tmp_path: Path) -> None:
    manager = ex.Manager(ex.Farm(wait_for(tmp_path / "never")), ex.ParDegree(1))
    entered = threading.Event()

    def items() -> Iterator[int]:
        yield 0
        entered.set()
        yield 0

    outcomes: list[object] = []
    reader = threading.Thread(
        target=lambda: outcomes.extend(in_threads(1, lambda: list(manager.map(items()))))
    )
    reader.start()
    assert entered.wait(60)
    manager.close()
    reader.join(60)
    (error,) = outcomes
    assert isinstance(error, ex.NoWorkerError)
    assert "the manager was closed" in str(error)


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


@pytest.mark.parametrize("as_completed", [False, True])
@pytest.mark.parametrize("count", [0, 1, 100, 5000])
def test_what_the_input_raises_comes_after_all_results_before_it(
    manager: ex.Manager, count: int, as_completed: bool
) -> None:
    def items() -> Iterator[int]:
        yield from range(count)
        raise LookupError("no more slices")

    results: list[int] = []
    stream = manager.map(items(), as_completed=as_completed)
    with pytest.raises(LookupError, match="no more slices") as caught:
        results.extend(iter(stream.__next__, None))
    assert "items" in [entry.name for entry in caught.traceback]
    assert sorted(results) == list(range(count))
    assert next(stream, "ended") == "ended"


def test_ctrl_c_in_the_input_does_not_wait_for_results(tmp_path: Path) -> None:
    def items() -> Iterator[int]:
        yield 0
        raise KeyboardInterrupt

    opened = tmp_path / "opened"
    with ex.Manager(wait_for(opened), ex.ParDegree(1)) as manager:
        with pytest.raises(KeyboardInterrupt):
            list(manager.map(items()))
        opened.touch()


def test_an_item_that_cannot_be_pickled_comes_in_its_turn(manager: ex.Manager) -> None:
    items = [*range(10), threading.Lock(), *range(10)]
    stream = manager.map(items)
    for item in range(10):
        assert next(stream) == item
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        next(stream)
    assert caught.value.__notes__ == ["item 10: <lock object>"]
    assert next(stream, "ended") == "ended"
    pairs = list(manager.map(items, errors="return", indices=True))
    error = pairs.pop(10)[1]
    assert error.__notes__ == ["item 10: <lock object>"]
    # It was raised here, so there is no worker's traceback.
    assert error.__cause__ is None or "at the worker" not in str(error.__cause__)
    assert [pair for pair in pairs if pair[0] < 10] == [(item, item) for item in range(10)]


@pytest.mark.parametrize("as_completed", [False, True])
def test_outcomes_come_with_the_index_of_their_item(
    manager: ex.Manager, as_completed: bool
) -> None:
    letters = [chr(ord("a") + index % 26) for index in range(500)]
    pairs = list(manager.map(letters, as_completed=as_completed, indices=True))
    assert dict(pairs) == dict(enumerate(letters))
    assert as_completed or pairs == list(enumerate(letters))


class Item:
    """Its text takes for ever."""

    def __repr__(self) -> str:
        """Never come back."""
        while True:
            pass


def fail(item: Any) -> Any:
    """Fail."""
    raise ValueError("odd")


class Frozen(ex.ExoskelError):
    """Can't be changed."""

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse."""
        raise AttributeError("frozen")


@pytest.mark.parametrize(
    ("item", "shown"),
    [
        (17, "17"),
        ("scan.dcm", "'scan.dcm'"),
        ("x" * 10_000_000, f"'{'x' * 60}'..."),
        (list(range(1_000_000)), "[0, 1, 2, 3, ...]"),
        ({"a": (1, [2, [3, [4, [5]]]])}, "{'a': (1, [2, [..., ...]])}"),
        (10**5000, "<int of 16610 bits>"),
        (Item(), "<Item object>"),
        (Path("here"), "PosixPath('here')"),
        (numpy.zeros((3, 4)), "<ndarray float64 (3, 4)>"),
        (numpy.float32(0.5), "float32(0.5)"),
        (len, "len"),
    ],
    ids=lambda value: str(type(value).__name__),
)
def test_an_exception_says_which_item_it_belongs_to(item: Any, shown: str) -> None:
    with ex.Manager(fail, ex.ParDegree(1)) as manager:
        (error,) = manager.map([item], errors="return")
    assert error.__notes__ == [f"item 0: {shown}"]
    # The traceback that came along doesn't say it a second time.
    assert "item 0" not in str(error.__cause__)


def test_notes_name_the_stage_and_stand_beside_others() -> None:
    def second(value: int) -> int:
        if value == 4:
            error = ValueError("four")
            error.add_note("of my own")
            raise error
        if value == 6:
            raise Frozen("six")
        return value

    def last(value: int) -> Any:
        return threading.Lock() if value == 8 else value

    program: ex.Skeleton[int, Any] = ex.Pipeline(lambda item: 2 * item, ex.Seq(second), last)
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        results = list(manager.map(range(5), errors="return"))
    assert results[:2] == [0, 2]
    assert results[2].__notes__ == ["of my own", "item 2, in second: 4"]
    assert isinstance(results[3], Frozen)
    assert results[3].__notes__ == ["item 3, in second: 6"]
    assert results[4].__notes__ == ["item 4, its result: <lock object>"]


def test_whatever_a_task_raises_is_its_outcome_and_costs_no_worker() -> None:
    def task(item: int) -> int:
        match item:
            case 1:
                sys.exit(3)
            case 2:
                raise KeyboardInterrupt
            case 3:
                raise GeneratorExit
            case 4:
                raise asyncio.CancelledError
            case 5:
                raise BaseExceptionGroup("several", [KeyboardInterrupt(), ValueError()])
        return os.getpid()

    for program in (task, ex.Pipeline(ex.Seq(task), lambda pid: pid)):
        with ex.Manager(program, ex.ParDegree(1)) as manager:
            results = list(manager.map(range(7), errors="return"))
            with pytest.raises(ex.TaskError, match="KeyboardInterrupt"):
                list(manager.map([2]))
        assert results[0] == results[6]
        assert [type(result) for result in results[1:6]] == [ex.TaskError] * 5
        assert [result.kind.rpartition(".")[2] for result in results[1:5]] == [
            "SystemExit",
            "KeyboardInterrupt",
            "GeneratorExit",
            "CancelledError",
        ]
        assert "BaseExceptionGroup" in results[5].kind


@pytest.mark.parametrize("as_completed", [False, True])
def test_ctrl_c_takes_no_result_away(*, as_completed: bool) -> None:
    def interrupt(item: int) -> int:
        os.kill(os.getppid(), signal.SIGINT)
        return item

    is_awaited = False

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal is_awaited
        if is_awaited:
            is_awaited = False
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    results: list[int] = []
    is_over = False
    try:
        with ex.Manager(interrupt, ex.ParDegree(1), frame_items_max=1) as manager:
            stream = manager.map(range(20), as_completed=as_completed)
            while not is_over:
                with contextlib.suppress(KeyboardInterrupt):
                    is_awaited = True
                    # What it has taken, it keeps.
                    results.extend(stream)
                    is_over = True
                is_awaited = False
    finally:
        signal.signal(signal.SIGINT, before)
    assert results == list(range(20))


def test_threads_that_outlive_the_main_thread_are_told_of_the_end(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent("""
            import itertools
            import threading
            import time
            import exoskel as ex

            manager = ex.Manager(abs, ex.ParDegree(1))
            executor = ex.Executor(1)
            begun = threading.Barrier(3)

            def iterate():
                stream = manager.map(itertools.count())
                next(stream)
                begun.wait()
                try:
                    for _ in stream:
                        pass
                except ex.NoWorkerError:
                    print("told")

            def wait():
                future = executor.submit(time.sleep, 3600)
                begun.wait()
                try:
                    future.result()
                except ex.NoWorkerError:
                    print("told")

            def end():
                threading.main_thread().join()
                begun.wait()
                manager.close()
                executor.terminate_workers()

            for target in (iterate, wait, end):
                threading.Thread(target=target).start()
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\ntold\n", "")


LIMIT = 3
LIMITS = [3]


def test_what_changes_between_two_maps_counts_and_nothing_else_is_pickled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def limited(item: int) -> int:
        return min(item, LIMIT)

    def listed(item: int) -> int:
        return min(item, LIMITS[0])

    def both(item: int) -> tuple[int, int]:
        return limited(item), listed(item)

    pickled = []
    dumps = by_value.dumps_by_value

    def noted(function: Callable[..., Any]) -> bytes:
        pickled.append(function)
        return dumps(function)

    monkeypatch.setattr(by_value, "dumps_by_value", noted)
    # As those of a script: by value, with the globals that they have then.
    for function in (limited, listed, both):
        function.__module__ = "__main__"
    with ex.Manager(limited, ex.ParDegree(1)) as manager:
        assert list(manager.map([9])) == list(manager.map([9])) == [3]
        assert pickled == [limited]
        monkeypatch.setitem(globals(), "LIMIT", 5)
        assert list(manager.map([9])) == [5]
        assert pickled == [limited, limited]
    with ex.Manager(both, ex.ParDegree(1)) as manager:
        assert list(manager.map([9])) == [(5, 3)]
        LIMITS[0] = 7
        assert list(manager.map([9])) == [(5, 7)]
