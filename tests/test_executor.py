"""`Executor` where scripts expect a `concurrent.futures.Executor`."""

import asyncio
import concurrent.futures
import functools
import operator
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

import pytest
from tests.processes import eventually

import exoskel as ex


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


def test_slots_must_be_a_number() -> None:
    for slots in (0, -1, True, 2.0, "2"):
        with pytest.raises((ValueError, TypeError), match="expected"):
            ex.Executor(slots)  # type: ignore[arg-type]


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
        [sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    numbers = sorted(int(line.partition("] ")[2]) for line in done.stdout.splitlines())
    assert numbers == sorted([*range(10), *range(10)])


@pytest.mark.parametrize("block", [True, False], ids=["with", "without a block"])
@pytest.mark.parametrize("use", ["result()", "add_done_callback(print); time.sleep(60)"])
def test_ctrl_c_ends_everything_within_two_seconds(use: str, block: bool, tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    head = "with ex.Executor(2) as executor:" if block else "executor = ex.Executor(2)\nif True:"
    script.write_text(
        "import time\nimport exoskel as ex\n"
        f"{head}\n"
        "    futures = [executor.submit(time.sleep, 60) for _ in range(10)]\n"
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
            interrupted = time.monotonic()
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=20)
        finally:
            process.kill()
    # A promise to users, and so the one kind of time that tests assert.
    assert time.monotonic() - interrupted < 2
    assert process.returncode == -signal.SIGINT, errors
    assert not any(os.path.exists(f"/proc/{slot}") for slot in slots)


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
        [sys.executable, str(script)], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    slots = [int(word) for word in done.stdout.split()]
    assert len(slots) == 2
    assert eventually(lambda: not any(os.path.exists(f"/proc/{slot}") for slot in slots))


def test_an_executor_that_is_dropped_leaves_nothing() -> None:
    """The check is the one behind every test: no process, thread or descriptor stays."""
    executor = ex.Executor(1)
    concurrent.futures.wait([executor.submit(abs, -1)])
