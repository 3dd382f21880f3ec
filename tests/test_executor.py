"""`Executor` where scripts expect a `concurrent.futures.Executor`."""

import asyncio
import concurrent.futures
import contextlib
import functools
import itertools
import json
import multiprocessing
import operator
import os
import signal
import subprocess
import sys
import textwrap
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, gone
from tests.promises import promised

import exoskel as ex
from exoskel import cores


@pytest.fixture
def executor() -> Iterator[ex.Executor]:
    """Two slots."""
    with ex.Executor(2) as made:
        yield made


def wait_for(path: Path) -> Callable[[Any], Any]:
    """Make a function that waits for a file."""
    awaited = str(path)

    def function(value: Any) -> Any:
        import os
        import time

        deadline = time.monotonic() + 60
        while not os.path.exists(awaited):
            assert time.monotonic() < deadline, "the file did not come"
            time.sleep(0.002)
        return value

    return function


def test_it_is_an_executor_and_its_futures_are_futures(executor: ex.Executor) -> None:
    assert isinstance(executor, concurrent.futures.Executor)
    future = executor.submit(pow, 2, 10)
    assert isinstance(future, concurrent.futures.Future)
    assert future.result() == 1024
    assert future.result(0) == 1024
    assert future.exception() is None
    assert future.done()
    assert not future.cancelled()
    assert not future.cancel()


def test_positional_and_keyword_arguments(executor: ex.Executor) -> None:
    def function(*positional: Any, **keywords: Any) -> Any:
        return positional, keywords

    assert executor.submit(function).result() == ((), {})
    assert executor.submit(function, 1, (2,)).result() == ((1, (2,)), {})
    assert executor.submit(function, fn=3, self=4).result() == ((), {"fn": 3, "self": 4})
    large = bytes(300_000)
    assert executor.submit(function, large, key=large).result() == ((large,), {"key": large})


def test_exceptions_bring_their_traceback(executor: ex.Executor) -> None:
    future = executor.submit(operator.truediv, 1, 0)
    with pytest.raises(ZeroDivisionError) as caught:
        future.result()
    assert isinstance(caught.value.__cause__, ex.RemoteTraceback)
    assert future.exception() is caught.value


def test_a_second_ctrl_c_in_the_end_of_an_executor_ends_it_all_the_same(tmp_path: Path) -> None:
    class Interrupted:
        """Where the second one comes."""

        def __init__(self, core: Any) -> None:
            self._core = core

        def report(self) -> Any:
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(self._core, name)

    executor = ex.Executor(1)
    executor.submit(wait_for(tmp_path / "never"), 1)
    core = executor._engine.core
    executor._engine.core = Interrupted(core)  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        executor.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    # Its driver has gone, and nothing waits for the call.
    assert core.status() is None


def test_many_futures_in_any_order(executor: ex.Executor) -> None:
    futures = [executor.submit(operator.mul, 3, number) for number in range(3000)]
    assert [future.result() for future in reversed(futures)] == [
        3 * number for number in reversed(range(3000))
    ]


def test_many_functions(executor: ex.Executor) -> None:
    """More than the workers keep."""
    futures = [executor.submit(functools.partial(operator.add, n), 1) for n in range(600)]
    assert [future.result() for future in futures] == list(range(1, 601))


def test_map_like_the_one_of_one_process(executor: ex.Executor) -> None:
    assert list(executor.map(pow, range(2000), [2] * 2000)) == [n**2 for n in range(2000)]
    assert list(executor.map(abs, range(-100, 0), chunksize=7)) == list(range(100, 0, -1))
    assert list(executor.map(operator.add, range(3), range(10))) == [0, 2, 4]
    with pytest.raises(ZeroDivisionError):
        list(executor.map(operator.truediv, [1, 1], [1, 0], timeout=60))
    with pytest.raises(TypeError, match="unexpected keyword argument 'ordered'"):
        executor.map(abs, [1], ordered=True)  # type: ignore[call-arg]
    with pytest.raises(ValueError, match="chunksize must be >= 1: got 0"):
        executor.map(abs, [1], chunksize=0)


def test_map_reads_an_infinite_input_as_far_as_its_buffer(executor: ex.Executor) -> None:
    numbers = itertools.count()
    results = executor.map(operator.mul, numbers, itertools.repeat(2), buffersize=5)
    assert next(numbers) == 5
    assert [next(results) for _ in range(3)] == [0, 2, 4]
    assert next(numbers) == 9
    assert list(executor.map(abs, [-1, -2], buffersize=9)) == [1, 2]
    for size, error in ((0, ValueError), ("1", TypeError)):
        with pytest.raises(error, match="buffersize must be"):
            executor.map(abs, [1], buffersize=size)  # type: ignore[arg-type]


def test_map_cancels_what_nobody_waits_for(tmp_path: Path) -> None:
    opened, begun = tmp_path / "opened", tmp_path / "begun"
    wait, place = wait_for(opened), str(begun)

    def task(item: int) -> Any:
        if item == 0:
            raise ValueError(item)
        open(f"{place}{item}", "x").close()
        return wait(item)

    with ex.Executor(1) as executor:
        with pytest.raises(ValueError, match="0"):
            list(executor.map(task, range(5000)))
        opened.touch()
    # Some were at the slot by then.
    assert not Path(f"{place}4999").exists()


def test_an_exception_says_which_call_it_belongs_to(executor: ex.Executor) -> None:
    def fail(*_positional: Any, **_named: Any) -> None:
        raise ValueError("no")

    class Counter:
        def fail(self, number: int) -> None:
            raise ValueError(number)

    def notes(future: concurrent.futures.Future[Any]) -> list[str]:
        notes: list[str] = future.exception().__notes__  # type: ignore[union-attr]
        return notes

    assert notes(executor.submit(fail)) == ["call: fail()"]
    assert notes(executor.submit(fail, 1, "two", key=[3])) == ["call: fail(1, 'two', key=[3])"]
    assert notes(executor.submit(fail, *range(9))) == ["call: fail(0, 1, 2, 3, ...)"]
    assert notes(executor.submit(Counter().fail, 7)) == ["call: fail(7)"]
    (note,) = notes(executor.submit(fail, "x" * 1000, "y" * 1000))
    assert len(note) < 130
    with pytest.raises(ZeroDivisionError) as caught:
        list(executor.map(operator.truediv, [1, 2, 3], [1, 0, 1]))
    assert caught.value.__notes__ == ["call: truediv(2, 0)", "item 1"]
    with pytest.raises(TypeError, match="cannot pickle") as caught_here:
        list(executor.map(id, [1, threading.Lock()]))
    assert caught_here.value.__notes__ == ["item 1: id(<lock object>)"]


def end(_item: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Ender:
    """Whose method travels with each call."""

    def end(self, item: int) -> None:
        """End the slot."""
        end(item)


def test_what_the_manager_says_of_a_call_names_its_function() -> None:
    with ex.Executor(1, retries=1) as executor:
        error = executor.submit(end, 1).exception()
        assert isinstance(error, ex.WorkerLostError)
        assert error.__notes__ == ["call: end(...)"]
        whole = executor.submit(Ender().end, 1).exception()
        assert isinstance(whole, ex.WorkerLostError)
        assert whole.__notes__ == ["call: end(...)"]
        with pytest.raises(ex.WorkerLostError) as caught:
            list(executor.map(functools.partial(end), [1]))
        assert caught.value.__notes__ == ["call: end(...)", "item 0"]


# Four calls begin, as two slots are there; Ctrl-C comes while two of them run.
INTERRUPTED = """
    import concurrent.futures, os, signal, sys, threading, time
    import exoskel as ex

    place, kind = sys.argv[1:]

    def task(item):
        open(os.path.join(place, str(item)), "x").close()
        deadline = time.monotonic() + 60
        while not os.path.exists(os.path.join(place, "opened")):
            assert time.monotonic() < deadline
            time.sleep(0.002)
        return item

    def is_waiting():
        # These calls have begun before anybody waits for them, and Ctrl-C would come too early.
        frame = sys._current_frames()[threading.main_thread().ident]
        return kind != "kept" or frame.f_code.co_name == "collect"

    def interrupt():
        while len(os.listdir(place)) < 2 or not is_waiting():
            time.sleep(0.002)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    def pairs():
        return ((item,) for item in range(20))

    pool, executor = ex.Pool(2), ex.Executor(2)
    if kind == "Executor.map":
        pool.terminate()
        run = lambda: list(executor.map(task, range(20)))
        again = lambda: list(executor.map(task, [100]))
    else:
        executor.terminate_workers()
        run = {
            "map": lambda: pool.map(task, range(20)),
            "starmap": lambda: pool.starmap(task, pairs()),
            "imap": lambda: list(pool.imap(task, range(20))),
            "imap_unordered": lambda: list(pool.imap_unordered(task, range(20))),
            "kept": lambda: list(kept),
        }[kind]
        again = lambda: pool.map(task, [100])
    if kind == "kept":
        kept = pool.imap(task, range(20))
    threading.Thread(target=interrupt).start()
    try:
        run()
    except KeyboardInterrupt:
        open(os.path.join(place, "opened"), "x").close()
        print("interrupted")
    # The next calls have slots as soon as those that ran are done.
    print(again())
    if kind == "kept":
        try:
            next(kept)
        except concurrent.futures.CancelledError:
            print("cancelled")
    print(sorted(int(name) for name in os.listdir(place) if name.isdigit()))
"""


@pytest.mark.parametrize(
    "kind", ["Executor.map", "map", "starmap", "imap", "imap_unordered", "kept"]
)
def test_ctrl_c_drops_the_calls_that_have_not_begun(kind: str, tmp_path: Path) -> None:
    script, place = tmp_path / "job.py", tmp_path / "place"
    script.write_text(textwrap.dedent(INTERRUPTED))
    place.mkdir()
    done = subprocess.run(
        [sys.executable, str(script), str(place), kind],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    *said, begun = done.stdout.splitlines()
    assert said == ["interrupted", "[100]", *(["cancelled"] if kind == "kept" else [])]
    # What a slot had got beforehand may have begun before it was asked back.
    numbers = json.loads(begun)
    assert (numbers[:2], numbers[-1]) == ([0, 1], 100)
    assert len(numbers) < 10


def test_ctrl_c_leaves_other_calls_of_the_function_alone(executor: ex.Executor) -> None:
    """They are done, and so may be what slots had of the dropped ones; nothing hangs."""
    others = [executor.submit(operator.neg, number) for number in range(100)]

    def items() -> Iterator[int]:
        yield from range(1000)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        executor.map(operator.neg, items())
    assert [other.result() for other in others] == [-number for number in range(100)]
    assert list(executor.map(operator.neg, [7])) == [-7]


def test_it_says_how_many_slots_it_has_as_other_pools_do(executor: ex.Executor) -> None:
    assert executor._max_workers == 2


def test_a_result_that_cannot_be_sent_is_no_exception_of_the_function(
    executor: ex.Executor,
) -> None:
    def open_nothing(_item: object) -> Any:
        import threading

        return threading.Lock()

    error = executor.submit(open_nothing, 1).exception()
    assert isinstance(error, ex.ProgramError)
    assert isinstance(error, TypeError)
    told = "the result of open_nothing can't be sent: TypeError: cannot pickle '_thread.lock' object; return what pickle takes"
    assert str(error) == told
    assert error.__notes__ == ["call: open_nothing(...), its result: <lock object>"]
    assert "open_nothing" not in str(error.__cause__).replace(told, "")
    with ex.Manager(open_nothing, ex.ParDegree(1), retries_on=TypeError) as manager:
        (error,) = manager.map([1], errors="return")
    assert str(error) == told
    # It is what pickling raised that is compared with `retries_on`.
    assert error.__notes__ == [
        "item 0, its result: <lock object>",
        "attempt 3 of 3 (retries=3)",
    ]


def test_an_outcome_that_is_there_needs_no_time(executor: ex.Executor) -> None:
    future = executor.submit(pow, 2, 2)
    results: list[int] = []

    def is_there() -> bool:
        with contextlib.suppress(concurrent.futures.TimeoutError):
            results.append(future.result(timeout=0))
        return bool(results)

    assert eventually(is_there)
    assert results == [4]


def test_a_time_out_is_that_of_concurrent_futures(executor: ex.Executor, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    future = executor.submit(wait_for(opened), 5)
    for wait in (future.result, future.exception):
        with pytest.raises(concurrent.futures.TimeoutError):
            wait(0.05)
        with pytest.raises(concurrent.futures.TimeoutError):
            wait(0)
    with pytest.raises(concurrent.futures.TimeoutError):
        list(executor.map(wait_for(opened), [1], timeout=0.05))
    assert not future.done()
    opened.touch()
    assert future.result(60) == 5


def test_wait_and_as_completed(executor: ex.Executor, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    slow = executor.submit(wait_for(opened), "slow")
    quick = [executor.submit(operator.neg, number) for number in range(100)]
    done, pending = concurrent.futures.wait(quick, timeout=60)
    assert (done, pending) == (set(quick), set())
    done, pending = concurrent.futures.wait(
        [slow, *quick], return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert pending == {slow}
    failing = executor.submit(operator.truediv, 1, 0)
    done, pending = concurrent.futures.wait(
        [slow, failing], timeout=60, return_when=concurrent.futures.FIRST_EXCEPTION
    )
    assert (done, pending) == ({failing}, {slow})
    order = concurrent.futures.as_completed([slow, *quick], timeout=60)
    assert {next(order) for _ in quick} == set(quick)
    opened.touch()
    assert next(order) is slow


def test_callbacks_run_without_anybody_waiting(executor: ex.Executor) -> None:
    called = threading.Event()
    results = []

    def note(future: "concurrent.futures.Future[int]") -> None:
        results.append(future.result())
        if len(results) == 50:
            called.set()

    for number in range(50):
        executor.submit(operator.neg, number).add_done_callback(note)
    assert called.wait(60)
    assert sorted(results) == list(range(-49, 1))
    # One that is added afterwards runs at once.
    future = executor.submit(abs, -1)
    future.result()
    future.add_done_callback(note)
    assert results[-1] == 1


def test_asyncio_waits_without_a_thread_of_its_own(executor: ex.Executor) -> None:
    async def gather() -> list[int]:
        wrapped = [asyncio.wrap_future(executor.submit(pow, 2, number)) for number in range(100)]
        loop = asyncio.get_running_loop()
        return [*await asyncio.gather(*wrapped), await loop.run_in_executor(executor, abs, -7)]

    assert asyncio.run(gather()) == [*(2**number for number in range(100)), 7]


def test_asyncio_can_cancel(executor: ex.Executor, tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    blocking = [executor.submit(wait_for(opened), number) for number in range(2)]

    async def cancel() -> bool:
        future = executor.submit(wait_for(opened), 3)
        wrapped = asyncio.wrap_future(future)
        wrapped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wrapped
        return future.cancelled()

    asyncio.run(cancel())
    opened.touch()
    assert [future.result() for future in blocking] == [0, 1]


def test_what_has_not_begun_can_be_cancelled(executor: ex.Executor, tmp_path: Path) -> None:
    opened, runs = tmp_path / "opened", tmp_path / "runs"
    runs.mkdir()
    place = str(runs)
    wait = wait_for(opened)

    def task(number: int) -> int:
        open(f"{place}/{number}", "x").close()
        result: int = wait(number)
        return result

    futures = [executor.submit(task, number) for number in range(300)]
    assert eventually(lambda: len(list(runs.iterdir())) == 2)
    cancelled = [future for future in futures if future.cancel()]
    begun = [future for future in futures if not future.cancelled()]
    # What waits at a slot counts as begun, as with other executors.
    assert 2 <= len(begun) < 20
    assert all(future.cancelled() and future.done() for future in cancelled)
    with pytest.raises(concurrent.futures.CancelledError):
        cancelled[0].result()
    done, _ = concurrent.futures.wait(cancelled, timeout=60)
    assert done == set(cancelled)
    opened.touch()
    assert all(isinstance(future.result(), int) for future in begun)
    assert executor.submit(abs, -1).result() == 1
    assert len(list(runs.iterdir())) == len(begun)


def test_shutdown_waits_for_what_was_submitted(tmp_path: Path) -> None:
    executor = ex.Executor(2)
    futures = [executor.submit(operator.neg, number) for number in range(1000)]
    executor.shutdown()
    assert all(future.done() for future in futures)
    assert [future.result() for future in futures] == [-number for number in range(1000)]
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(abs, 1)
    executor.shutdown()


def test_shutdown_can_cancel_and_need_not_wait(tmp_path: Path) -> None:
    opened = tmp_path / "opened"
    begun = tmp_path / "begun"
    executor = ex.Executor(1)
    place, wait = str(begun), wait_for(opened)

    def task(number: int) -> int:
        open(place, "w").close()
        result: int = wait(number)
        return result

    futures = [executor.submit(task, number) for number in range(20)]
    assert eventually(begun.exists)
    executor.shutdown(wait=False, cancel_futures=True)
    left = [future for future in futures if not future.cancelled()]
    assert 1 <= len(left) < 10
    with pytest.raises(RuntimeError, match="shut down"):
        executor.submit(abs, 1)
    opened.touch()
    assert [future.result(60) for future in left] == list(range(len(left)))


def test_several_threads_at_once(executor: ex.Executor) -> None:
    """The same function and different ones, waiting by `result` and by `wait`."""
    trouble: list[BaseException] = []
    same = functools.partial(operator.add, 1)

    def use(number: int) -> None:
        try:
            own = functools.partial(operator.add, number)
            for start in range(0, 400, 20):
                futures = [
                    executor.submit(function, value)
                    for function in (same, own)
                    for value in range(start, start + 20)
                ]
                if number % 2:
                    concurrent.futures.wait(futures, timeout=60)
                expected = [start + value + by for by in (1, number) for value in range(20)]
                assert [future.result(60) for future in futures] == expected
        except BaseException as error:
            trouble.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not trouble


def test_a_future_can_be_waited_for_by_several_threads(
    executor: ex.Executor, tmp_path: Path
) -> None:
    opened = tmp_path / "opened"
    future = executor.submit(wait_for(opened), 5)
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(future.result(60))) for _ in range(6)]
    for thread in threads:
        thread.start()
    opened.touch()
    for thread in threads:
        thread.join()
    assert results == [5] * 6


def test_arguments_and_functions_that_cannot_travel_are_named(executor: ex.Executor) -> None:
    with pytest.raises(ex.ProgramError, match="can't send"):
        executor.submit(threading.Lock().acquire)
    with pytest.raises(TypeError, match="pickle"):
        executor.submit(repr, threading.Lock())
    assert executor.submit(abs, -5).result() == 5
    with pytest.raises(TypeError, match="pickle"):
        executor.submit(lambda: __import__("threading").Lock()).result()


def test_what_stays_here_is_named(executor: ex.Executor) -> None:
    future = executor.submit(abs, -1)
    with pytest.raises(TypeError, match=r"got a Future to send, .* send its result\(\)"):
        executor.submit(abs, future)
    with pytest.raises(ex.ProgramError, match="got an Executor to send, which stays here"):
        executor.submit(lambda: executor.submit(abs, -1).result())
    with (
        ex.Manager(abs, ex.ParDegree(1)) as manager,
        pytest.raises(TypeError, match="got a Manager to send, which stays here"),
    ):
        executor.submit(repr, manager)
    with pytest.raises(TypeError, match=r"got 1 to call, expected a function"):
        executor.submit(future.result())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="cannot pickle 'generator' object") as caught:
        executor.submit(sum, (number for number in range(3)))
    # The two ways to write it fail alike, which is said once.
    assert caught.value.__cause__ is None


def test_lost_slots_are_replaced(executor: ex.Executor) -> None:
    def crash() -> None:
        import os

        os._exit(1)

    victim = executor.submit(os.getpid).result()
    assert victim != os.getpid()
    os.kill(victim, signal.SIGKILL)
    futures = [executor.submit(operator.neg, number) for number in range(100)]
    assert [future.result() for future in futures] == [-number for number in range(100)]
    error = executor.submit(crash).exception()
    assert isinstance(error, ex.WorkerLostError)
    assert executor.submit(abs, -5).result() == 5


def test_output_and_summary(executor: ex.Executor, capsys: pytest.CaptureFixture[str]) -> None:
    executor.submit(print, "hello").result()
    assert eventually(lambda: bool(executor.submit(abs, 1).result()))
    summary = executor.summary()
    assert sum(worker.items for worker in summary.workers) == 2
    executor.shutdown()
    assert capsys.readouterr().out in ("[local-1] hello\n", "[local-2] hello\n")


def test_the_summary_outlives_the_block() -> None:
    with ex.Executor(2) as executor:
        assert [future.result() for future in [executor.submit(abs, -1)] * 3] == [1] * 3
    assert sum(worker.items for worker in executor.summary().workers) == 1
    assert "local-1" in str(executor.summary())


def test_workers_must_be_a_number() -> None:
    for workers in (0, -1):
        with pytest.raises(ValueError, match="max_workers must be greater than 0"):
            ex.Executor(workers)
    for given in (True, 2.0, "2"):
        with pytest.raises(TypeError, match="expected a whole number"):
            ex.Executor(given)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="inherit nothing"):
        ex.Executor(1, mp_context=multiprocessing.get_context("fork"))
    with pytest.raises(ValueError, match="max_tasks_per_child=1"):
        ex.Executor(1, max_tasks_per_child=1)  # type: ignore[arg-type]
    for name in ("n_jobs", "n_workers", "processes"):
        other: dict[str, Any] = {name: 2}
        with pytest.raises(TypeError, match=f"'{name}'; the number of slots is max_workers=N"):
            ex.Executor(**other)
    with pytest.raises(TypeError, match="'max_workers'; the number of slots is processes=N"):
        ex.Pool(max_workers=2)
    with pytest.raises(TypeError, match=r"'max_workers'; the number of slots is ParDegree\(N\)"):
        ex.Manager(abs, ex.ParDegree(2), max_workers=3)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError,
        match=r"got workers=2, expected a file or a list of lines, .* max_workers=N of an Executor",
    ):
        ex.Executor(workers=2)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got an unexpected option 'address'; there are "):
        ex.Executor(address=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected option 'max_worker'; there is 'max_workers'"):
        ex.Executor(max_worker=2)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match="Pool got an unexpected option 'process'; there is 'processes'"
    ):
        ex.Pool(process=2)
    with pytest.raises(TypeError, match="unexpected option 'thread_name_prefix'"):
        ex.Executor(1, thread_name_prefix="x")  # type: ignore[call-arg]


@pytest.mark.parametrize("quota", [None, 1.5])
def test_without_a_number_there_is_a_slot_for_each_core(
    quota: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "cpu_quota", lambda: quota)
    expected = len(os.sched_getaffinity(0)) if quota is None else 1
    with ex.Executor(mp_context=multiprocessing.get_context("spawn")) as executor:
        assert sum(worker.slots for worker in executor.summary().workers) == expected


def test_a_future_runs_when_a_slot_has_it(tmp_path: Path) -> None:
    opened, begun = tmp_path / "opened", tmp_path / "begun"
    wait, place = wait_for(opened), str(begun)

    def task() -> Any:
        open(place, "x").close()
        return wait(1)

    with ex.Executor(1) as executor:
        first = executor.submit(task)
        later = [executor.submit(wait, number) for number in range(50)]
        assert eventually(begun.exists)
        assert first.running()
        assert "state=running" in repr(first)
        assert not first.cancel()
        waiting = [future for future in later if not future.running()]
        # Those that don't run can be taken back, and then they don't run either.
        assert len(waiting) > 40
        assert waiting[-1].cancel()
        assert not waiting[-1].running()
        assert "state=pending" in repr(waiting[-2])
        assert "state=cancelled" in repr(waiting[-1])
        opened.touch()
        assert first.result(60) == 1
        assert not first.running()
        assert "state=finished returned int" in repr(first)
    assert not any(future.running() for future in later)


def grown(pages: int) -> int:
    """Say by how many bytes this process has grown since it had so many pages."""
    return (resident_pages() - pages) * os.sysconf("SC_PAGE_SIZE")


def resident_pages() -> int:
    """Count the pages of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1])


@pytest.mark.parametrize("function", [repr, operator.neg], ids=["result", "exception"])
def test_what_nobody_keeps_leaves_nothing(executor: ex.Executor, function: Any) -> None:
    """Not while arguments wait, and not when all is done."""
    for _ in range(2):
        executor.submit(function, None).exception()
        before = resident_pages()
        for _ in range(30_000):
            executor.submit(function, None)
    assert grown(before) < 4_000_000
    executor.submit(function, None).exception()
    assert grown(before) < 4_000_000


def test_results_that_nobody_keeps_go_beside_others_that_somebody_does(
    executor: ex.Executor,
) -> None:
    """100 MB of results come, of which 1 MB is wanted, while nobody looks for them."""
    executor.submit(bytes, 1000).result()
    before = resident_pages()
    kept = []
    for number in range(100_000):
        future = executor.submit(bytes, 1000)
        if number % 100 == 0:
            kept.append(future)
    del future
    assert grown(before) < 50_000_000
    assert {future.result() for future in kept} == {bytes(1000)}


class Owner:
    """Has a method."""

    def method(self, number: int) -> int:
        """Return the number."""
        return number


def test_an_object_goes_though_its_method_was_submitted(executor: ex.Executor) -> None:
    owner = Owner()
    freed = threading.Event()
    weakref.finalize(owner, freed.set)
    assert executor.submit(owner.method, 3).result() == 3
    executor.submit(owner.method, 4)
    del owner
    assert freed.wait(60)


def test_a_method_is_called_as_its_object_is(executor: ex.Executor) -> None:
    numbers = [3, 1, 2]
    assert executor.submit(numbers.__len__).result() == 3
    numbers.append(0)
    assert executor.submit(numbers.__len__).result() == 4


def test_a_function_that_is_forgotten_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Closures of 2 MB go here and at the slot, least recently used first; one that is needed again comes again."""
    monkeypatch.setattr("exoskel.executor.FUNCTION_BYTES_MAX", 8_000_000)

    def closure(number: int) -> Callable[[], Any]:
        large = bytes([number]) * 2_000_000

        def function() -> tuple[int, int]:
            import pathlib

            pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
            return large[0], pages

        return function

    with ex.Executor(1) as executor:
        first = closure(0)
        _, slot_before = executor.submit(first).result()
        before = resident_pages()
        for number in range(1, 100):
            assert executor.submit(closure(number)).result()[0] == number
        assert grown(before) < 40_000_000
        assert len(executor._engine._streams) <= 4
        value, slot_after = executor.submit(first).result()
        assert value == 0
        # The slot keeps 64 MiB, and its allocator as much again of what was freed.
        assert (slot_after - slot_before) * os.sysconf("SC_PAGE_SIZE") < 160_000_000


def test_more_functions_than_streams(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The functions of calls beyond the limit travel with these."""
    monkeypatch.setattr("exoskel.executor.STREAMS_MAX", 10)
    opened = tmp_path / "opened"
    with ex.Executor(1) as executor:
        blocking = executor.submit(wait_for(opened), -1)
        futures = [executor.submit(functools.partial(operator.add, n), 1) for n in range(100)]
        assert len(executor._engine._streams) <= 11
        opened.touch()
        assert [future.result(60) for future in futures] == list(range(1, 101))
        assert blocking.result() == -1


def test_terminated_workers_leave_errors(tmp_path: Path) -> None:
    executor = ex.Executor(1)
    futures = [executor.submit(wait_for(tmp_path / "never"), 1) for _ in range(3)]
    executor.terminate_workers()
    assert all("state=finished raised NoWorkerError" in repr(future) for future in futures)
    for future in futures:
        with pytest.raises(ex.NoWorkerError, match="slots were ended"):
            future.result()
    with pytest.raises(RuntimeError, match="cannot schedule new futures"):
        executor.submit(abs, 1)
    executor.shutdown()


def test_futures_of_nobody(executor: ex.Executor) -> None:
    """A future that no executor has made is as any other."""
    future: ex.executor.Future[int] = type(executor.submit(abs, 1))()
    assert not future.done()
    assert not future.running()
    with pytest.raises(concurrent.futures.TimeoutError):
        future.result(0.01)
    threading.Thread(target=future.set_result, args=(5,)).start()
    assert future.result(60) == 5
    assert future.exception() is None
    with pytest.raises(AttributeError, match="no attribute 'missing'"):
        future.missing  # noqa: B018


SCRIPTS = {
    "nothing shut down": "future.result()",
    "callback pending": "future.add_done_callback(lambda future: None)",
    "result pending": "",
    "dropped": "future.result(); del executor; gc.collect()",
    "dropped with collector": "import concurrent.futures as c; c.wait([future]); del executor, future; gc.collect()",
}


def test_what_was_submitted_is_done_even_if_nobody_waits(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent("""
            import pathlib, sys, time
            import exoskel as ex

            def task(number):
                time.sleep(0.01)
                print(number)

            def submit(executor):
                for number in range(10):
                    executor.submit(task, number)

            submit(ex.Executor(1))      # dropped at once
            executor = ex.Executor(1)   # ends with the script
            submit(executor)
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    numbers = sorted(int(line.partition("] ")[2]) for line in done.stdout.splitlines())
    assert numbers == sorted([*range(10), *range(10)])


@pytest.mark.parametrize("block", [True, False], ids=["with", "without a block"])
@pytest.mark.parametrize("use", ["result()", "add_done_callback(print); time.sleep(600)"])
def test_ctrl_c_ends_everything(use: str, block: bool, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    head = "with ex.Executor(2) as executor:" if block else "executor = ex.Executor(2)\nif True:"
    script.write_text(
        "import time\nimport exoskel as ex\n"
        f"{head}\n"
        "    futures = [executor.submit(time.sleep, 600) for _ in range(10)]\n"
        "    executor.submit(abs, 1)\n"
        "    print(*[pid for row in executor.summary().workers for pid in row.process_ids], flush=True)\n"
        f"    futures[0].{use}\n"
    )
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            assert process.stdout is not None
            slots = process.stdout.readline().split()
            assert len(slots) == 2
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=promised(2))
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT, errors
    assert eventually(lambda: all(gone(int(slot)) for slot in slots), promised(0.5))


@pytest.mark.parametrize("use", SCRIPTS)
def test_a_script_that_forgets_to_shut_down_ends(use: str, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent(f"""
            import gc
            import exoskel as ex

            executor = ex.Executor(2)
            print(*[pid for worker in executor.summary().workers for pid in worker.process_ids])
            future = executor.submit(abs, -5)
            {SCRIPTS[use]}
        """)
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    slots = [int(word) for word in done.stdout.split()]
    assert len(slots) == 2
    assert eventually(lambda: not any(os.path.exists(f"/proc/{slot}") for slot in slots))


def test_ctrl_c_takes_no_outcome_away() -> None:
    def interrupt(item: int) -> int:
        os.kill(os.getppid(), signal.SIGINT)
        return item

    is_waiting = False

    def interrupt_a_wait(_number: int, _frame: Any) -> None:
        nonlocal is_waiting
        if is_waiting:
            is_waiting = False
            raise KeyboardInterrupt

    results: dict[int, int] = {}
    before = signal.signal(signal.SIGINT, interrupt_a_wait)
    try:
        with ex.Executor(1) as executor:
            futures = [executor.submit(interrupt, item) for item in range(20)]
            while len(results) < 20:
                item = len(results)
                with contextlib.suppress(KeyboardInterrupt):
                    is_waiting = True
                    results[item] = futures[item].result(timeout=60)
                    is_waiting = False
    finally:
        signal.signal(signal.SIGINT, before)
    assert list(results.values()) == list(range(20))


def test_ctrl_c_while_outcomes_are_handed_out_takes_none_away(executor: ex.Executor) -> None:
    futures = [executor.submit(abs, -item) for item in range(500)]
    interruptions = itertools.count()

    def interrupt(frame: Any, _event: str, _argument: object) -> Any:
        if frame.f_code.co_name not in ("collect", "_hand_out"):
            return None
        if next(interruptions) % 97 == 50:
            raise KeyboardInterrupt
        return interrupt

    results: list[int] = []
    while len(results) < 500:
        sys.settrace(interrupt)
        try:
            futures[len(results)].result(timeout=60)
        except KeyboardInterrupt:
            continue
        finally:
            sys.settrace(None)
        results.append(futures[len(results)].result(timeout=60))
    assert results == list(range(500))


def test_an_executor_that_is_dropped_leaves_nothing() -> None:
    """The check is the one behind every test: no process, thread or descriptor stays."""
    executor = ex.Executor(1)
    concurrent.futures.wait([executor.submit(abs, -1)])
