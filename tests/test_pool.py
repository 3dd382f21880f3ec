"""`Pool` where scripts expect a `multiprocessing.pool.Pool`."""

import contextlib
import itertools
import multiprocessing
import operator
import pickle
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually
from tests.test_executor import wait_for

import exoskel as ex
from exoskel.pool_results import CALLS_AHEAD_MAX


@pytest.fixture
def pool() -> Iterator[ex.Pool]:
    """Two slots."""
    with ex.Pool(2) as made:
        yield made


def reciprocal(number: int) -> float:
    return 1 / (number - 5)


def keywords(*positional: Any, **named: Any) -> Any:
    return positional, named


def test_calls(pool: ex.Pool) -> None:
    assert pool.apply(pow, (2, 10)) == 1024
    assert pool.apply(keywords, [1], {"kwds": 2, "func": 3}) == ((1,), {"kwds": 2, "func": 3})
    result = pool.apply_async(pow, (2, 3))
    result.wait()
    assert result.ready()
    assert result.successful()
    assert result.get() == result.get(timeout=0) == 8
    failed = pool.apply_async(reciprocal, (5,))
    with pytest.raises(ZeroDivisionError):
        failed.get()
    assert not failed.successful()


def test_maps(pool: ex.Pool) -> None:
    numbers = range(10_000)
    expected = [-number for number in numbers]
    assert pool.map(operator.neg, numbers) == expected
    assert pool.map(operator.neg, iter(numbers), chunksize=100) == expected
    assert pool.map_async(operator.neg, numbers, 7).get(60) == expected
    assert pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
    assert pool.starmap_async(pow, [(2, 3), [3, 2]]).get(60) == [8, 9]
    assert list(pool.imap(operator.neg, numbers)) == expected
    assert sorted(pool.imap_unordered(operator.neg, numbers, 10)) == expected[::-1]
    assert pool.map(operator.neg, []) == pool.map_async(operator.neg, []).get() == []
    assert list(pool.imap_unordered(operator.neg, [])) == []


def test_an_exception_stands_in_the_place_of_its_result(pool: ex.Pool) -> None:
    for function in (pool.map, lambda *arguments: pool.map_async(*arguments).get()):
        with pytest.raises(ZeroDivisionError):
            function(reciprocal, range(10))
    results = pool.imap(reciprocal, range(10))
    for number in range(10):
        if number == 5:
            with pytest.raises(ZeroDivisionError):
                next(results)
        else:
            assert next(results) == 1 / (number - 5)
    with pytest.raises(StopIteration):
        next(results)
    unordered = pool.imap_unordered(reciprocal, range(10))
    outcomes: list[float | None] = []
    while True:
        try:
            outcomes.append(next(unordered))
        except ZeroDivisionError:
            outcomes.append(None)
        except StopIteration:
            break
    assert outcomes.count(None) == 1
    assert len(outcomes) == 10


def test_an_exception_says_which_item_it_belongs_to(pool: ex.Pool) -> None:
    told: list[BaseException] = []
    uses: list[Callable[[], object]] = [
        lambda: pool.map(reciprocal, range(3, 8)),
        lambda: list(pool.imap(reciprocal, range(3, 8))),
        lambda: list(pool.imap_unordered(reciprocal, range(3, 8))),
        lambda: pool.map_async(reciprocal, range(3, 8), error_callback=told.append).get(60),
    ]
    for use in uses:
        with pytest.raises(ZeroDivisionError) as caught:
            use()
        assert caught.value.__notes__ == ["call: reciprocal(5)", "item 2"]
    assert told == [caught.value]
    with pytest.raises(ZeroDivisionError) as caught:
        pool.apply(reciprocal, (5,))
    assert caught.value.__notes__ == ["call: reciprocal(5)"]


def test_map_runs_everything_before_it_raises(pool: ex.Pool, tmp_path: Path) -> None:
    place = str(tmp_path)

    def task(number: int) -> None:
        open(f"{place}/{number}", "x").close()
        if number < 3:
            raise KeyError(number)

    with pytest.raises(KeyError, match="0"):
        pool.map(task, range(50))
    assert len(list(tmp_path.iterdir())) == 50


def test_arguments_that_cannot_travel_are_their_calls_outcome(pool: ex.Pool) -> None:
    lock = threading.Lock()
    with pytest.raises(TypeError, match="pickle"):
        pool.apply(repr, (lock,))
    errors: list[BaseException] = []
    pool.apply_async(repr, (lock,), error_callback=errors.append)
    assert eventually(lambda: len(errors) == 1)
    results = pool.imap(repr, [1, lock, 2])
    assert next(results) == "1"
    with pytest.raises(TypeError, match="pickle"):
        next(results)
    assert next(results) == "2"
    with pytest.raises(ex.ProgramError, match="can't send"):
        pool.map(lock.acquire, [1])


def test_arguments_that_are_no_tuple_are_named(pool: ex.Pool) -> None:
    for result in (
        pool.apply_async(abs, -3),  # type: ignore[arg-type]
        pool.starmap_async(abs, [(1,), -3]),  # type: ignore[list-item]
    ):
        with pytest.raises(TypeError, match="got -3 as the arguments of a call, expected a tuple"):
            result.get()


def test_an_endless_input_is_read_as_it_is_needed(pool: ex.Pool) -> None:
    for results in (pool.imap, pool.imap_unordered):
        numbers = itertools.count()
        stream = results(operator.neg, numbers)
        assert len([next(stream) for _ in range(2 * CALLS_AHEAD_MAX)]) == 2 * CALLS_AHEAD_MAX
        assert next(numbers) <= 3 * CALLS_AHEAD_MAX


def test_an_input_that_raises_has_its_results_first(pool: ex.Pool) -> None:
    def numbers() -> Iterator[int]:
        yield from range(100)
        raise OSError("the input broke")

    for results in (pool.imap, pool.imap_unordered):
        stream = results(operator.neg, numbers())
        assert sorted(next(stream) for _ in range(100)) == list(range(-99, 1))
        with pytest.raises(OSError, match="the input broke"):
            next(stream)
        with pytest.raises(StopIteration):
            next(stream)


def test_time_outs_are_those_of_multiprocessing(pool: ex.Pool, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    function = wait_for(opened)
    single, several = pool.apply_async(function, (1,)), pool.map_async(function, [2, 3])
    ordered, unordered = pool.imap(function, [4]), pool.imap_unordered(function, [5])
    waits: list[Callable[[float], Any]] = [
        single.get,
        several.get,
        ordered.next,
        unordered.next,
    ]
    for wait in waits:
        for seconds in (-1, 0, 0.01):
            with pytest.raises(multiprocessing.TimeoutError):
                wait(seconds)
    single.wait(0.01)
    several.wait(0.01)
    for result in (single, several):
        assert not result.ready()
        with pytest.raises(ValueError, match="not ready"):
            result.successful()
    opened.touch()
    assert [wait(60) for wait in waits] == [1, [2, 3], 4, 5]

    def raise_one() -> None:
        raise TimeoutError("of the task")

    with pytest.raises(TimeoutError, match="of the task"):
        pool.apply(raise_one)


def nap(longest: float) -> None:
    time.sleep(longest * random.random())


def test_a_result_that_comes_as_its_wait_ends_is_no_time_out_of_the_call(pool: ex.Pool) -> None:
    for _ in range(1000):
        result = pool.apply_async(nap, (0.0003,))
        done = False
        while not done:
            with contextlib.suppress(multiprocessing.TimeoutError):
                result.get(0.0001)
                done = True


def test_callbacks(pool: ex.Pool) -> None:
    results: list[Any] = []
    errors: list[BaseException] = []
    pool.apply_async(pow, (2, 3), callback=results.append, error_callback=errors.append)
    assert eventually(lambda: results == [8])
    pool.map_async(abs, range(5), callback=results.extend, error_callback=errors.append)
    pool.starmap_async(pow, [], callback=results.append)
    assert eventually(lambda: len(results) == 7)
    assert [] in results
    pool.apply_async(reciprocal, (5,), callback=results.append, error_callback=errors.append)
    pool.map_async(reciprocal, range(9), callback=results.append, error_callback=errors.append)
    pool.apply_async(reciprocal, (5,), callback=results.append)
    assert eventually(lambda: len(errors) == 2)
    assert all(isinstance(error, ZeroDivisionError) for error in errors)
    assert len(results) == 7


def test_what_a_callback_raises_is_logged(pool: ex.Pool, caplog: pytest.LogCaptureFixture) -> None:
    def fall(_result: object) -> None:
        raise LookupError("of the callback")

    assert pool.map_async(abs, [], callback=fall).get(60) == []
    assert pool.map_async(abs, [-1], callback=fall).get(60) == [1]
    assert pool.apply_async(abs, (-1,), callback=fall).get(60) == 1
    # A result is there as soon as its callback was called; what that raised is logged after.
    assert eventually(lambda: caplog.text.count("LookupError: of the callback") == 3)


@pytest.mark.parametrize("is_of_map", [False, True], ids=["apply", "map"])
def test_a_result_is_there_when_its_callback_has_seen_it(
    is_of_map: bool, pool: ex.Pool, tmp_path: Path
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def see(_result: object) -> None:
        begun.set()
        goes_on.wait(60)

    opened = tmp_path / "opened"
    function = wait_for(opened)
    result: Any = (
        pool.map_async(function, [1], callback=see)
        if is_of_map
        else pool.apply_async(function, (1,), callback=see)
    )
    opened.touch()
    assert begun.wait(60)
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(0)
    goes_on.set()
    assert result.get(60) == ([1] if is_of_map else 1)


def test_closed_and_joined() -> None:
    pool = ex.Pool(1)
    results = [pool.apply_async(operator.neg, (number,)) for number in range(100)]
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    pool.close()
    uses: list[Callable[..., Any]] = [
        pool.apply,
        pool.apply_async,
        pool.map,
        pool.map_async,
        pool.imap,
        pool.imap_unordered,
    ]
    for use in uses:
        with pytest.raises(ValueError, match="not running"):
            use(abs, [1])
    with pytest.raises(ValueError, match="not running"):
        pool.__enter__()
    pool.join()
    pool.join()
    pool.close()
    assert [result.get(0) for result in results] == [-number for number in range(100)]
    assert pool.summary().workers[0].items == 100


def test_terminated_at_once() -> None:
    with ex.Pool(1) as pool:
        results = [pool.apply_async(time.sleep, (60,)) for _ in range(10)]
        assert not results[0].ready()
    pool.join()
    for result in results:
        with pytest.raises(ex.NoWorkerError, match="slots were ended"):
            result.get()
    pool.terminate()


def test_what_makes_no_sense_is_refused(pool: ex.Pool) -> None:
    for processes in (0, -1):
        with pytest.raises(ValueError, match="at least 1"):
            ex.Pool(processes)
    with pytest.raises(TypeError, match="processes='2'"):
        ex.Pool("2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='got context of "fork"'):
        ex.Pool(1, context=multiprocessing.get_context("fork"))
    with pytest.raises(TypeError, match="got context='spawn', expected None or a context such as"):
        ex.Pool(1, context="spawn")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got mp_context='spawn', expected None or a context"):
        ex.Executor(1, mp_context="spawn")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="maxtasksperchild=3"):
        ex.Pool(1, maxtasksperchild=3)  # type: ignore[arg-type]
    for chunksize in (0, -1, 1.5):
        with pytest.raises(ValueError, match="Chunksize"):
            pool.imap(abs, [], chunksize)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="Chunksize"):
            pool.map(abs, [], chunksize)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="iterable"):
        pool.map(abs, 1)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match="passed between processes"):
        pickle.dumps(pool)
