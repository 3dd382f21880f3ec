"""What may happen to an item: it runs too long, its function raises what it runs again for."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import exoskel as ex

# Only what never ends runs longer: what takes no time has so much of it that a machine which stands still for a moment charges no item.
LIMIT_SECONDS = 4.0

# A result of so many bytes is larger than a message of them.
LARGE = 1 << 18


def sleep_at(item: int) -> Callable[[int], int]:
    """Make a task that waits for ever at one item."""

    def task(value: int) -> int:
        while value == item:
            time.sleep(60)
        return value

    return task


def spin_at(item: int) -> Callable[[int], int]:
    """Make a task that computes for ever at one item."""

    def task(value: int) -> int:
        while value == item:
            pass
        return value

    return task


def ignore_at(item: int) -> Callable[[int], int]:
    """Make a task that ignores every exception at one item."""

    def task(value: int) -> int:
        while value == item:
            try:
                time.sleep(60)
            except BaseException:
                continue
        return value

    return task


def block_at(item: int) -> Callable[[int], int]:
    """Make a task that stays in native code at one item, with the interpreter's lock."""

    def task(value: int) -> int:
        return sum(range(10**12)) if value == item else value

    return task


@pytest.mark.parametrize("stuck_at", [sleep_at, spin_at, ignore_at, block_at])
@pytest.mark.parametrize("slots", [1, 2])
def test_only_the_item_that_runs_too_long_is_charged(
    stuck_at: Callable[[int], Callable[[int], int]], slots: int
) -> None:
    with ex.Manager(
        ex.Farm(stuck_at(7)), ex.ParDegree(slots), timeout=LIMIT_SECONDS, retries=1
    ) as manager:
        results = list(manager.map(range(30), errors="return"))
        # The slot, or one in its place, goes on.
        assert list(manager.map(range(100, 130), timeout=60)) == list(range(100, 130))
    error = results[7]
    assert isinstance(error, ex.ItemTimeoutError)
    assert isinstance(error, TimeoutError)
    assert f"longer than timeout={LIMIT_SECONDS:g} seconds" in str(error)
    assert [result for item, result in enumerate(results) if item != 7] == [
        item for item in range(30) if item != 7
    ]


@pytest.mark.parametrize("stuck_at", [sleep_at, ignore_at])
def test_time_is_limited_in_every_stage(stuck_at: Callable[[int], Callable[[int], int]]) -> None:
    stages = [ex.Farm(stuck_at(3)), ex.Seq(stuck_at(5)), ex.Farm(stuck_at(8))]
    with ex.Manager(ex.Pipeline(*stages), ex.ParDegree(2), timeout=LIMIT_SECONDS) as manager:
        results = list(manager.map(range(20), errors="return"))
    for item, result in enumerate(results):
        if item in {3, 5, 8}:
            assert isinstance(result, ex.ItemTimeoutError)
        else:
            assert result == item


def test_a_function_may_clean_up_and_answer_when_its_time_is_over() -> None:
    def task(item: int) -> str:
        try:
            time.sleep(60)
        except TimeoutError as error:
            return f"{type(error).__name__} at {item}"
        return "slept"

    with ex.Manager(ex.Farm(task), ex.ParDegree(1), timeout=LIMIT_SECONDS) as manager:
        assert list(manager.map([1, 2])) == ["ItemTimeoutError at 1", "ItemTimeoutError at 2"]


def test_a_map_may_have_a_limit_of_its_own() -> None:
    with ex.Manager(ex.Farm(sleep_at(1)), ex.ParDegree(1), timeout=1000) as manager:
        zero, one = manager.map([0, 1], timeout=LIMIT_SECONDS, errors="return")
        assert zero == 0
        assert isinstance(one, ex.ItemTimeoutError)
        assert f"timeout={LIMIT_SECONDS:g}" in str(one)


def test_items_that_end_in_time_are_left_alone() -> None:
    # Each ends about when its time is over; whether one is early or late, the next one must not get its exception.
    def task(item: int) -> int:
        end = time.monotonic() + 0.005
        while time.monotonic() < end:
            pass
        return item

    with ex.Manager(ex.Farm(task), ex.ParDegree(2), timeout=0.005) as manager:
        results = list(manager.map(range(300), errors="return"))
    assert len(results) == 300
    for item, result in enumerate(results):
        assert result == item or isinstance(result, ex.ItemTimeoutError)


def test_loading_a_function_is_not_the_time_of_an_item() -> None:
    # A function that is loaded slowly, once in each slot.
    class Slow:
        def __reduce__(self) -> Any:
            return slowly_loaded, ()

        def __call__(self, item: int) -> int:
            raise AssertionError(item)

    def slowly_loaded() -> Callable[[int], int]:
        time.sleep(LIMIT_SECONDS + 1)
        return lambda item: item

    with ex.Manager(ex.Farm(Slow()), ex.ParDegree(1), timeout=LIMIT_SECONDS) as manager:
        assert list(manager.map([1, 2])) == [1, 2]


def test_an_import_is_not_interrupted(tmp_path: Path) -> None:
    # It is imported until the item is overdue.
    (tmp_path / "imported_slowly.py").write_text(
        """
import signal, time
told = []
before = signal.getsignal(signal.SIGRTMAX)
signal.signal(signal.SIGRTMAX, lambda number, frame: (told.append(number), before(number, frame)))
while not told:
    time.sleep(0.001)
signal.signal(signal.SIGRTMAX, before)
"""
    )
    directory = str(tmp_path)

    def load(_item: int) -> int:
        import sys

        sys.path.append(directory)
        import imported_slowly  # type: ignore[import-not-found]

        return len(imported_slowly.told)

    with ex.Manager(load, ex.ParDegree(1), timeout=LIMIT_SECONDS) as manager:
        assert list(manager.map(range(2))) == [1, 1]


def test_a_slot_that_ends_for_an_overdue_item_is_not_called_lost(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with ex.Manager(ex.Farm(ignore_at(1)), ex.ParDegree(1), timeout=LIMIT_SECONDS) as manager:
        slow, *fast = manager.map(range(1, 5), errors="return")
        assert isinstance(slow, ex.ItemTimeoutError)
        assert fast == [2, 3, 4]
        states = {worker.state for worker in manager.summary().workers}
    assert "an item runs for too long" in caplog.text
    assert "lost" not in caplog.text
    assert "lost" not in states


def test_a_call_that_runs_too_long_has_a_future_that_says_so() -> None:
    with ex.Executor(2, timeout=LIMIT_SECONDS) as executor:
        slow = executor.submit(ignore_at(1), 1)
        fast = [executor.submit(ignore_at(1), item) for item in range(2, 20)]
        with pytest.raises(ex.ItemTimeoutError, match="longer than"):
            slow.result()
        assert [future.result() for future in fast] == list(range(2, 20))


class SometimesError(Exception):
    """What a function of this module raises."""


def failing(times: int, error: type[Exception]) -> Callable[[str], int]:
    """Make a task that raises so many times; its item is a directory in which it keeps count."""

    def task(directory: str) -> int:
        runs = len(os.listdir(directory))
        Path(directory, f"{runs}-{os.getpid()}").touch()
        if runs < times:
            raise error(f"run {runs + 1}")
        return runs

    return task


def runs(directory: Path) -> list[str]:
    """Return the process of each run, in order."""
    return [name.partition("-")[2] for name in sorted(os.listdir(directory))]


@pytest.mark.parametrize("retries_on", [OSError, (ValueError, OSError), ConnectionError.__mro__[1]])
def test_an_item_runs_again_elsewhere(tmp_path: Path, retries_on: Any) -> None:
    task = failing(2, ConnectionResetError)
    with ex.Manager(ex.Farm(task), ex.ParDegree(2), retries_on=retries_on) as manager:
        assert list(manager.map([str(tmp_path)])) == [2]
    first, second, third = runs(tmp_path)
    assert first == third != second


def test_exceptions_of_the_program_s_own_classes_are_known(tmp_path: Path) -> None:
    class LocalError(SometimesError):
        pass

    task = failing(1, LocalError)
    with ex.Manager(ex.Farm(task), ex.ParDegree(1), retries_on=LocalError) as manager:
        assert list(manager.map([str(tmp_path)])) == [1]


def test_the_last_exception_is_the_outcome(tmp_path: Path) -> None:
    with ex.Manager(
        ex.Farm(failing(9, OSError)), ex.ParDegree(2), retries=4, retries_on=OSError
    ) as manager:
        (error,) = manager.map([str(tmp_path)], errors="return")
    assert isinstance(error, OSError)
    assert str(error) == "run 4"
    assert "attempt 4 of 4 (retries=4)" in error.__notes__
    assert len(runs(tmp_path)) == 4


def test_what_is_not_named_runs_once(tmp_path: Path) -> None:
    with ex.Manager(ex.Farm(failing(9, KeyError)), ex.ParDegree(2), retries_on=OSError) as manager:
        (error,) = manager.map([str(tmp_path)], errors="return")
        assert isinstance(error, KeyError)
        assert not any("attempt" in note for note in getattr(error, "__notes__", []))
        assert len(runs(tmp_path)) == 1
        with pytest.raises(KeyError) as caught:
            list(manager.map([str(tmp_path)], retries_on=KeyError))
        assert "attempt 3 of 3 (retries=3)" in caught.value.__notes__


def test_results_keep_their_order_when_items_run_again() -> None:
    def task(item: int) -> int:
        # Each slot refuses another third of the items.
        if (item + int(os.environ["EXOSKEL_SLOT"])) % 3 == 0:
            raise BlockingIOError(item)
        return item

    with ex.Manager(
        ex.Pipeline(ex.Farm(task), ex.Seq(lambda item: item)),
        ex.ParDegree(3),
        retries=200,
        retries_on=BlockingIOError,
    ) as manager:
        assert list(manager.map(range(2000))) == list(range(2000))


@pytest.mark.parametrize("stuck_at", [sleep_at, ignore_at])
def test_what_ran_too_long_may_run_again(
    tmp_path: Path, stuck_at: Callable[[int], Callable[[int], int]]
) -> None:
    stuck = stuck_at(0)

    def task(directory: str) -> int:
        runs = len(os.listdir(directory))
        Path(directory, f"{runs}-{os.getpid()}").touch()
        return stuck(runs)

    with ex.Manager(
        ex.Farm(task), ex.ParDegree(2), timeout=LIMIT_SECONDS, retries_on=TimeoutError
    ) as manager:
        assert list(manager.map([str(tmp_path)])) == [1]
    assert len(set(runs(tmp_path))) == 2


def test_calls_run_again_too(tmp_path: Path) -> None:
    with ex.Executor(2, retries_on=SometimesError) as executor:
        assert executor.submit(failing(2, SometimesError), str(tmp_path)).result() == 2


class Unreadable:
    """What can be sent, and not be read."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


class Forked:
    """What forks while it is read, and whose child comes back."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return fork_once, (self.path,)


def fork_once(path: str) -> str:
    """Return the path, in a child as well."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
    return path


def first_of_two(value: Any) -> Any:
    """Go wrong with every fiftieth number, in one of five ways."""
    if isinstance(value, int) and value % 50 == 0:
        match value // 50 % 5:
            case 0:
                raise KeyError(value)
            case 1:
                return bytes(LARGE)
            case 2:
                raise SometimesError(value)
            case 3:
                # Larger than what leaves at once.
                return bytes(LARGE // 4)
            case _:
                return str(value)
    return value


def second_of_two(value: Any) -> Any:
    """Go wrong with what the first has made a text."""
    if isinstance(value, bytes) and len(value) == LARGE:
        return value + b"more"
    if str(value) == value:
        raise LookupError(value)
    return (part for part in "a generator") if value == 1 else value


@pytest.mark.parametrize("stages", ["farms", "a farm of two"])
def test_each_item_of_a_long_stream_has_its_own_end(stages: str) -> None:
    """Items follow each other, and every fiftieth one is in trouble, each kind of it in turn: all others come to what they come to alone."""
    both = ex.Pipeline(ex.Farm(first_of_two), ex.Farm(second_of_two))
    program: Any = both if stages == "farms" else ex.Farm(ex.Pipeline(first_of_two, second_of_two))
    items: list[Any] = [Unreadable() if item % 50 == 25 else item for item in range(20_000)]
    options: dict[str, Any] = {"retries_on": SometimesError, "message_bytes_max": LARGE}
    with ex.Manager(program, ex.ParDegree(2), **options) as manager:
        results = list(manager.map(items, errors="return"))
    assert len(results) == len(items)
    expected = {0: KeyError, 1: ex.SizeLimitError, 2: SometimesError, 3: bytes, 4: LookupError}
    for item, result in enumerate(results):
        notes: list[str] = getattr(result, "__notes__", [])
        arguments: Any = getattr(result, "args", None)
        if item == 1:
            assert type(result) is ex.ProgramError
            assert "second_of_two" in str(result)
        elif item % 50 == 25:
            assert type(result) is ValueError
            assert "no number" in str(result)
        elif item % 50:
            assert result == item
        else:
            kind = item // 50 % 5
            assert type(result) is expected[kind], (item, result)
            assert kind == 3 or any(note.startswith(f"item {item}") for note in notes), notes
            assert any("attempt 3 of 3" in note for note in notes) == (kind == 2)
            if kind in (0, 2):
                assert arguments == (item,)
            elif kind == 4:
                assert arguments == (str(item),)
                assert any("second_of_two" in note for note in notes), notes


def test_a_child_that_reading_an_item_has_forked_runs_nothing(tmp_path: Path) -> None:
    def task(path: str) -> int:
        with Path(path).open("a") as runs:
            return runs.write("run\n")

    with ex.Manager(ex.Farm(task), ex.ParDegree(1)) as manager:
        paths = [tmp_path / str(number) for number in range(3)]
        assert list(manager.map([Forked(str(path)) for path in paths])) == [4, 4, 4]
    assert [path.read_text() for path in paths] == ["run\n"] * 3


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"timeout": 0}, ValueError, "got timeout=0, expected seconds above 0"),
        ({"timeout": -1}, ValueError, "got timeout=-1"),
        ({"timeout": "5"}, ValueError, "got timeout='5'"),
        ({"timeout": float("nan")}, ValueError, "got timeout=nan"),
        ({"timeout": float("inf")}, ValueError, "got timeout=inf"),
        ({"retries_on": "OSError"}, TypeError, "expected a class of exceptions or a tuple"),
        ({"retries_on": [OSError]}, TypeError, "expected a class of exceptions or a tuple"),
        ({"retries_on": (OSError, 3)}, TypeError, "expected a class of exceptions or a tuple"),
        ({"retries_on": KeyboardInterrupt}, TypeError, "expected a class of exceptions"),
        ({"retries_on": int}, TypeError, "expected a class of exceptions or a tuple"),
    ],
)
def test_what_makes_no_sense_is_an_error_in_words(
    given: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        ex.Manager(ex.Farm(abs), ex.ParDegree(1), **given)
    with pytest.raises(kind, match=text):
        ex.Executor(1, **given)
    with ex.Manager(ex.Farm(abs), ex.ParDegree(1)) as manager, pytest.raises(kind, match=text):
        manager.map([1], **given)
