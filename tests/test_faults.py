"""Slots that die, stop or never end, and callers that do: each item has one outcome, and no process is left."""

import collections
import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, gone
from tests.promises import promised

import exoskel as ex


def processes_of(manager: ex.Manager) -> list[int]:
    return [number for worker in manager.summary().workers for number in worker.process_ids]


def crash_at(*items: int) -> Callable[[int], int]:
    def task(item: int) -> int:
        import os

        if item in items:
            os._exit(1)
        return item

    return task


@pytest.mark.parametrize("as_completed", [False, True])
def test_an_item_that_ends_its_process_is_the_only_one_charged(as_completed: bool) -> None:
    with ex.Manager(ex.Farm(crash_at(37)), ex.ParDegree(2)) as manager:
        results = list(manager.map(range(300), errors="return", as_completed=as_completed))
    lost = [result for result in results if not isinstance(result, int)]
    assert sorted(result for result in results if isinstance(result, int)) == [
        item for item in range(300) if item != 37
    ]
    (error,) = lost
    assert isinstance(error, ex.WorkerLostError)
    assert isinstance(error, RuntimeError)
    assert (error.item, error.workers) == (37, 3)
    assert as_completed or results[37] is error


def test_retries_are_as_many_as_asked_for() -> None:
    with ex.Manager(ex.Farm(crash_at(0)), ex.ParDegree(1), retries=1) as manager:
        first, second = manager.map([0, 1], errors="return")
    assert (first.item, first.workers, second) == (0, 1, 1)


def test_a_lost_item_ends_the_stream_unless_asked_to_go_on() -> None:
    with ex.Manager(ex.Farm(crash_at(0)), ex.ParDegree(2), retries=2) as manager:
        stream = manager.map(range(5))
        with pytest.raises(ex.WorkerLostError, match="item 0 took down 2 workers"):
            next(stream)
        assert list(stream) == []
        assert list(manager.map([1, 2, 3])) == [1, 2, 3]


def test_several_deadly_items_in_every_stage_of_a_pipeline() -> None:
    program: ex.Skeleton[Any, Any] = ex.Pipeline(
        crash_at(3), ex.Seq(crash_at(11)), crash_at(3, 40), ex.Seq(lambda item: item)
    )
    with ex.Manager(program, ex.ParDegree(2), retries=1) as manager:
        results = list(manager.map(range(60), errors="return"))
    deadly = {3, 11, 40}
    for item, result in enumerate(results):
        assert isinstance(result, ex.WorkerLostError) if item in deadly else result == item


def test_a_task_that_ends_its_process_in_order_is_charged_too() -> None:
    def task(item: int) -> int:
        if item == 2:
            os._exit(0)
        return item

    with ex.Manager(ex.Farm(task), ex.ParDegree(2), retries=1) as manager:
        results = list(manager.map(range(4), errors="return"))
    assert [results[0], results[1], results[3]] == [0, 1, 3]
    assert isinstance(results[2], ex.WorkerLostError)


class Leaving(Exception):
    """Ends whoever pickles it."""

    def __reduce__(self) -> Any:
        sys.exit(5)


def test_an_exception_that_exits_while_it_is_sent_ends_its_item_only() -> None:
    def task(item: int) -> int:
        if item == 2:
            raise Leaving("now")
        return item

    with ex.Manager(ex.Farm(task), ex.ParDegree(2), retries=1) as manager:
        results = list(manager.map(range(4), errors="return"))
    assert [results[0], results[1], results[3]] == [0, 1, 3]
    assert type(results[2]) is Leaving
    assert results[2].args == ("now",)


@pytest.mark.parametrize("stage", [ex.Farm, ex.Seq])
def test_a_forked_child_leaves_by_sys_exit_with_its_own_code(stage: Callable[..., Any]) -> None:
    def task(item: int) -> int:
        import os
        import sys

        child = os.fork()
        if child == 0:
            sys.exit(item)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with ex.Manager(stage(task), ex.ParDegree(1)) as manager:
        assert list(manager.map([0, 7])) == [0, 7]


@pytest.mark.parametrize("as_completed", [False, True])
def test_killed_slots_are_replaced_and_no_result_is_lost_or_given_twice(as_completed: bool) -> None:
    def task(item: int) -> tuple[int, int]:
        import os

        return item, os.getpid()

    count = 60_000
    with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
        seen: collections.Counter[int] = collections.Counter()
        used = set()
        killed: set[int] = set()
        due = [5000, 20_000, 35_000]
        for item, process in manager.map(range(count), as_completed=as_completed):
            seen[item] += 1
            used.add(process)
            # One that works. What a killed one has sent may come after its end.
            if due and len(seen) >= due[0] and process not in killed:
                del due[0]
                killed.add(process)
                os.kill(process, signal.SIGKILL)

        def states() -> set[str]:
            rows = manager.summary().workers
            return {row.state for row in rows if killed & set(row.process_ids)}

        # All may be done before the last one is missed.
        assert eventually(lambda: states() == {"lost"}), states()
    assert len(seen) == count
    assert set(seen.values()) == {1}
    assert len(killed) == 3
    assert len(used) >= 3


def test_slots_that_are_killed_while_they_work_on_one_long_item_each(tmp_path: Path) -> None:
    place = str(tmp_path)

    def task(item: int) -> int:
        import os
        import time

        # The first run of an item waits to be killed, the next one ends.
        if not os.path.exists(f"{place}/{item}"):
            open(f"{place}/{item}", "x").close()
            time.sleep(60)
        return item

    with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
        stream = manager.map(range(2))
        results: list[int] = []
        import threading

        reader = threading.Thread(target=lambda: results.extend(stream))
        reader.start()
        assert eventually(lambda: len(list(tmp_path.iterdir())) == 2)
        for process in processes_of(manager):
            os.kill(process, signal.SIGKILL)
        reader.join()
        assert results == [0, 1]
        assert sum(worker.items_twice for worker in manager.summary().workers) == 2


def test_all_slots_killed_between_two_streams() -> None:
    with ex.Manager(ex.Farm(lambda item: item), ex.ParDegree(2)) as manager:
        for _ in range(3):
            assert list(manager.map(range(100))) == list(range(100))
            for worker in manager.summary().workers:
                if worker.state != "lost":
                    for process in worker.process_ids:
                        # One of the round before may have gone, and its manager not have heard of it: the other one had all items.
                        with contextlib.suppress(ProcessLookupError):
                            os.kill(process, signal.SIGKILL)
        assert list(manager.map(range(100))) == list(range(100))


def test_a_slot_that_stops_is_noticed() -> None:
    def task(item: int) -> tuple[int, int]:
        import os
        import time

        time.sleep(0.005)
        return item, os.getpid()

    with ex.Manager(ex.Farm(task), ex.ParDegree(2), dead_after=1.0) as manager:
        stream = manager.map(range(200))
        _, process = next(stream)
        os.kill(process, signal.SIGSTOP)
        noticed = lambda: any(worker.state == "lost" for worker in manager.summary().workers)  # noqa: E731
        assert eventually(noticed)
        assert [item for item, _ in stream] == list(range(1, 200))
        assert eventually(lambda: gone(process))


def test_a_slot_that_computes_without_a_pause_is_not_taken_for_dead() -> None:
    """Its heartbeats come from a thread that needs no interpreter."""

    def task(item: int) -> int:
        import ctypes

        # Holds the interpreter's lock all the time, for longer than silence is borne.
        ctypes.PyDLL(None).sleep(6)
        return item

    with ex.Manager(ex.Farm(task), ex.ParDegree(1), dead_after=4.0) as manager:
        assert list(manager.map([1])) == [1]
        assert [worker.state for worker in manager.summary().workers].count("lost") == 0


# --- scripts: what becomes of a manager's process and its slots ---------------------------------


@contextmanager
def script(directory: Path, text: str) -> Iterator["subprocess.Popen[str]"]:
    """Run a script in a session of its own; none of its processes survives the test."""
    path = directory / "job.py"
    path.write_text(textwrap.dedent(text))
    with subprocess.Popen(
        [sys.executable, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def numbers(process: "subprocess.Popen[str]") -> list[int]:
    """Read a line of process numbers."""
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line, process.stderr and process.stderr.read()
    return [int(word) for word in line.split()]


BUSY = """
    import os, sys, time
    import exoskel as ex

    def task(item):
        if {first} or item > 1:
            time.sleep(600)
        return os.getpid()

    with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
        pids = [pid for worker in manager.summary().workers for pid in worker.process_ids]
        print(*pids, flush=True)
        {use}
"""
USES = {
    "waiting for a result": "next(manager.map(range(100)))",
    "waiting in as_completed": "next(manager.map(range(100), as_completed=True))",
    "between results": "stream = manager.map(range(100)); next(stream); time.sleep(600)",
    "in the input": "next(manager.map(time.sleep(600) for _ in range(5)))",
    "with progress": "next(manager.map(range(100), progress=True))",
}


@pytest.mark.parametrize("to_all", [False, True], ids=["to the manager", "to the group"])
@pytest.mark.parametrize("use", USES)
def test_ctrl_c_ends_everything(use: str, to_all: bool, tmp_path: Path) -> None:
    text = BUSY.format(first=use != "between results", use=USES[use])
    with script(tmp_path, text) as process:
        slots = numbers(process)
        assert len(slots) == 2
        wait_until_asleep(process.pid)
        if to_all:
            os.killpg(process.pid, signal.SIGINT)
        else:
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=promised(2))
        assert process.returncode == -signal.SIGINT
        assert errors.rstrip().endswith("KeyboardInterrupt")
        # One traceback: the slots have nothing to say.
        assert errors.count("Traceback") <= 2
        assert eventually(lambda: all(map(gone, slots)), promised(0.5))


def wait_until_asleep(process: int) -> None:
    """Wait until the main thread waits for something and has stayed there."""
    asleep = 0

    def holds() -> bool:
        nonlocal asleep
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            asleep = asleep + 1 if file.read().rpartition(")")[2].split()[0] == "S" else 0
        return asleep >= 20

    assert eventually(holds)


def test_ctrl_c_while_slots_start(tmp_path: Path) -> None:
    text = """
        import os, signal, threading
        import exoskel as ex

        threading.Timer(0.03, os.kill, (os.getpid(), signal.SIGINT)).start()
        managers = []
        while True:
            with ex.Manager(abs, ex.ParDegree(2)):
                pass
    """
    with script(tmp_path, text) as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == -signal.SIGINT, errors
        assert nobody_in_session(process.pid)


def nobody_in_session(session: int) -> bool:
    def members() -> list[int]:
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(int(entry.name))
        return found

    return eventually(lambda: not members())


@pytest.mark.parametrize("transport", ["socketpair", "tcp", "shared memory"])
def test_slots_do_not_outlive_a_killed_manager(tmp_path: Path, transport: str) -> None:
    """Neither those that wait nor those whose task would take ten minutes."""
    for use in ("time.sleep(600)", USES["waiting for a result"]):
        text = BUSY.format(first=True, use=use).replace(
            "ParDegree(2)", f"ParDegree(2), transport={transport!r}"
        )
        with script(tmp_path, text) as process:
            slots = numbers(process)
            wait_until_asleep(process.pid)
            process.kill()
            assert eventually(lambda: all(map(gone, slots)))  # noqa: B023  # called in this round


def test_a_manager_that_is_not_closed_ends_with_its_script(tmp_path: Path) -> None:
    text = """
        import os
        import exoskel as ex

        manager = ex.Manager(ex.Farm(abs), ex.ParDegree(2))
        stream = manager.map(range(-1000, 0))
        print(*[pid for worker in manager.summary().workers for pid in worker.process_ids], next(stream))
    """
    with script(tmp_path, text) as process:
        *slots, first = numbers(process)
        _, errors = process.communicate(timeout=60)
        assert (process.returncode, errors, first) == (0, "", 1000)
        assert eventually(lambda: all(map(gone, slots)))


def test_a_script_that_fails_inside_the_block_ends(tmp_path: Path) -> None:
    text = """
        import exoskel as ex

        with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager:
            for result in manager.map(range(10_000_000)):
                if result == 1000:
                    raise ValueError("enough")
    """
    with script(tmp_path, text) as process:
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 1
        assert errors.rstrip().endswith("ValueError: enough")
        assert nobody_in_session(process.pid)


def test_a_forked_child_gets_a_clear_error_and_harms_nobody(tmp_path: Path) -> None:
    text = """
        import os, warnings
        import exoskel as ex

        warnings.simplefilter("ignore", DeprecationWarning)

        def told(action):
            try:
                action()
            except ex.ForkError as error:
                assert "spawn" in str(error), error
                return True
            return False

        with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager:
            executor = ex.Executor(1)
            future = executor.submit(abs, -1)
            future.add_done_callback(lambda done: None)
            assert future.result() == 1
            stream = manager.map(range(100_000))
            shown = manager.map(range(10), progress=True)
            next(shown)
            head = []
            # The threads of the parent are somewhere else each time, maybe with a lock in hand.
            for number in range(50):
                head += [next(stream) for _ in range(500)]
                child = os.fork()
                if child == 0:
                    good = told(lambda: list(manager.map([1])))
                    good &= told(lambda: list(stream))
                    good &= told(manager.summary)
                    good &= told(lambda: executor.submit(abs, -1))
                    executor.shutdown()
                    if number == 0:
                        with ex.Manager(ex.Farm(abs), ex.ParDegree(1)) as own:
                            good &= list(own.map([-3])) == [3]
                    # Through the interpreter's orderly end: it must leave the parent's links alone.
                    raise SystemExit(0 if good else 1)
                _, status = os.waitpid(child, 0)
                assert os.waitstatus_to_exitcode(status) == 0
            assert head + list(stream) == list(range(100_000))
            assert executor.submit(abs, -2).result() == 2
            executor.shutdown()
        print("good")
    """
    with script(tmp_path, text) as process:
        out, errors = process.communicate(timeout=120)
        assert out == "good\n", errors
        assert errors == ""


def test_futures_of_the_parent_are_refused_in_a_forked_child(tmp_path: Path) -> None:
    text = """
        import concurrent.futures, os, warnings
        import exoskel as ex

        warnings.simplefilter("ignore", DeprecationWarning)

        def told(action):
            try:
                action()
            except ex.ForkError:
                return True
            return False

        def wait(place):
            return open(place).read()

        place = __file__ + ".pipe"
        os.mkfifo(place)
        with ex.Executor(1) as executor:
            future = executor.submit(wait, place)
            child = os.fork()
            if child == 0:
                good = told(future.result)
                good &= told(lambda: future.add_done_callback(print))
                good &= told(lambda: concurrent.futures.wait([future]))
                good &= told(lambda: list(concurrent.futures.as_completed([future])))
                os._exit(0 if good else 1)
            _, status = os.waitpid(child, 0)
            with open(place, "w") as pipe:
                pipe.write("done")
            assert future.result() == "done"
            assert os.waitstatus_to_exitcode(status) == 0
    """
    with script(tmp_path, text) as process:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors


def test_a_child_of_a_task_may_print_and_never_answers(tmp_path: Path) -> None:
    """It has the keys of its slot's session, and would use the numbers of records that the slot will."""
    text = """
        import multiprocessing, os
        import exoskel as ex

        def prints(item):
            process = multiprocessing.get_context("fork").Process(target=print, args=(f"child {item}",))
            process.start()
            process.join()
            print("task", item)
            return item

        def comes_back(item):
            child = os.fork()
            if child == 0:
                return "child"
            return os.waitpid(child, 0)[0] == child

        def raises(item):
            child = os.fork()
            if child == 0:
                raise ValueError("child")
            return os.waitpid(child, 0)[0] == child

        for protection in ("plain", "encrypted"):
            for task, expected in ((prints, [0, 1, 2]), (comes_back, [True] * 3), (raises, [True] * 3)):
                with ex.Manager(ex.Farm(task), ex.ParDegree(1), protection=protection) as manager:
                    assert list(manager.map(range(3))) == expected
    """
    with script(tmp_path, text) as process:
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        lines = out.splitlines()
        assert sorted(line for line in lines if line.startswith("child")) == [
            f"child {item}" for item in (0, 0, 1, 1, 2, 2)
        ]
        assert sum(line.endswith("] task 1") for line in lines) == 2
        assert errors.count("end such a child inside the task") == 12
        assert nobody_in_session(process.pid)


def test_a_task_may_use_a_manager_of_its_own() -> None:
    def task(item: int) -> Any:
        import exoskel as ex

        with ex.Manager(ex.Farm(abs), ex.ParDegree(1)) as manager:
            return sum(manager.map(range(-item, 0)))

    with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
        assert list(manager.map([3, 4])) == [6, 10]
