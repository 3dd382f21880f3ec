"""An initializer: once in each slot, before its first item; and what comes of one that raises."""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.processes import eventually
from tests.site import Site, free_address

import exoskel as ex

STATE = {"value": "unset"}


def begin(value: str, place: Path | None = None) -> None:
    """Set what tasks read, and count the calls."""
    STATE["value"] = value
    if place is not None:
        (place / f"begun-{os.getpid()}").open("x").close()


def state(_item: object) -> tuple[str, int]:
    """Say what the initializer has set here."""
    return STATE["value"], os.getpid()


def state_of_three(place: Path, _item: object) -> tuple[str, int]:
    """Say it once three slots have an item each."""
    (place / f"met-{os.getpid()}").touch()
    assert eventually(lambda: len(list(place.glob("met-*"))) >= 3)
    return state(None)


def fail() -> None:
    """Raise."""
    raise ValueError("error in initializer")


def leave() -> None:
    """Leave, as scripts do."""
    sys.exit(3)


def fail_where(place: Path, host: str) -> None:
    """Raise at a worker that runs in a directory of this name."""
    (place / f"tried-{os.getpid()}").touch()
    if Path.cwd().name == host:
        raise OSError("no such device")


def test_it_runs_once_in_each_slot_before_the_first_item(tmp_path: Path) -> None:
    from functools import partial

    with ex.Manager(
        ex.Farm(partial(state_of_three, tmp_path)),
        ex.ParDegree(3),
        initializer=begin,
        initargs=("set", tmp_path),
    ) as manager:
        seen = set(manager.map(range(12)))
        # They meet again, or one that wakes late would find nothing left to do.
        for path in tmp_path.glob("met-*"):
            path.unlink()
        assert set(manager.map(range(12))) == seen
    assert {value for value, _ in seen} == {"set"}
    begun = {int(path.name.removeprefix("begun-")) for path in tmp_path.glob("begun-*")}
    assert begun == {process for _, process in seen}


def test_it_runs_at_workers_too(site: Site) -> None:
    worker = site.worker("here")
    with site.connect(ex.Farm(state), 1, worker, initializer=begin, initargs=["far"]) as manager:
        assert [value for value, _ in manager.map(range(3))] == ["far"] * 3


def test_a_script_s_initializer_sets_globals_that_its_tasks_read() -> None:
    script = """
        import exoskel as ex

        table = None
        untouched = [1]

        def begin(start):
            global table
            table = list(range(start, start + 3))

        def helper(index):
            return table[index]

        def pick(index):
            return helper(index) + untouched[0]

        if __name__ == "__main__":
            with ex.Manager(ex.Pipeline(ex.Farm(pick), ex.Farm(lambda x: (x, table))), ex.ParDegree(2), initializer=begin, initargs=(5,)) as m:
                print(list(m.map(range(3))))
            with ex.Executor(1, initializer=begin, initargs=(7,)) as pool:
                print(pool.submit(helper, 0).result(), table)
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == "[(6, [5, 6, 7]), (7, [5, 6, 7]), (8, [5, 6, 7])]\n7 None\n"


@pytest.mark.parametrize(
    ("initializer", "text"),
    [(fail, "ValueError: error in initializer"), (leave, "SystemExit: 3")],
)
def test_one_that_raises_everywhere_ends_the_run_with_its_name(
    initializer: object, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        ex.Manager(ex.Farm(state), ex.ParDegree(2), initializer=initializer) as manager,  # type: ignore[arg-type]
        pytest.raises(ex.InitializerError) as caught,
    ):
        list(manager.map(range(5)))
    assert f"can't run the initializer: {text}" in str(caught.value)
    assert all(isinstance(attempt, ex.InitializerError) for attempt in caught.value.attempts)
    assert isinstance(caught.value, ex.NoWorkerError)
    tracebacks = [record.message for record in caplog.records if "Traceback" in record.message]
    assert len(tracebacks) == 1, "once, whatever the number of slots"


def fall() -> None:
    os._exit(3)


def test_one_that_ends_its_process_is_named() -> None:
    with (
        ex.Manager(ex.Farm(state), ex.ParDegree(2), initializer=fall) as manager,
        pytest.raises(ex.InitializerError, match="was lost while it ran the initializer"),
    ):
        list(manager.map(range(5)))


def test_futures_get_a_broken_executor() -> None:
    with ex.Executor(2, initializer=fail) as pool:
        futures = [pool.submit(state, number) for number in range(5)]
        for future in futures:
            with pytest.raises(concurrent.futures.BrokenExecutor, match="error in initializer"):
                future.result()
        # From now on they are not even taken.
        with pytest.raises(concurrent.futures.BrokenExecutor) as caught:
            pool.submit(state, 0)
        assert isinstance(caught.value, ex.InitializerError)
    # Callbacks are told by another thread.
    with ex.Executor(1, initializer=fail) as pool:
        done = concurrent.futures.wait([pool.submit(state, 0)], timeout=60).done
        assert isinstance(done.pop().exception(), concurrent.futures.BrokenExecutor)


def test_one_bad_host_doesn_t_end_the_run_of_a_good_one(site: Site, tmp_path: Path) -> None:
    good, bad = site.worker("good"), site.worker("bad")
    place = tmp_path / "tried"
    place.mkdir()
    with site.connect(
        ex.Farm(state), 2, good, bad, initializer=fail_where, initargs=(place, "home-bad")
    ) as manager:
        # Three slots were tried at the bad one, then no more.
        assert eventually(lambda: len(list(place.iterdir())) == 4)
        assert len(list(manager.map(range(20)))) == 20

        def states() -> dict[str, str]:
            return {report.name: report.state for report in manager.summary().workers}

        assert eventually(lambda: states() == {"good": "working", "bad": "unfit"}), states()
    assert len(list(place.iterdir())) == 4


def test_one_that_raises_at_all_that_join_ends_the_run_with_its_name(site: Site) -> None:
    """Others could still join: the run waits for them as long as it has patience."""
    address = free_address()
    workers = [site.worker(name, join=f"tcp://{address}") for name in ("one", "two")]
    options = {"listen": address, "wait": 60, "patience": 1.0, "initializer": fail}
    with (
        site.connect(ex.Farm(state), 2, **options) as manager,
        pytest.raises(ex.InitializerError, match="error in initializer"),
    ):
        list(manager.map(range(5)))
    assert all(worker.process.poll() is None for worker in workers)


def test_one_slot_that_fails_once_is_replaced(tmp_path: Path) -> None:
    with ex.Manager(
        ex.Farm(state), ex.ParDegree(1), initializer=fail_first, initargs=(tmp_path,)
    ) as manager:
        assert list(manager.map([1]))
    assert len(list(tmp_path.iterdir())) == 1


def fail_first(place: Path) -> None:
    """Raise in the first slot."""
    try:
        (place / "tried").open("x").close()
    except FileExistsError:
        return
    raise RuntimeError("not now")


def wait_for_word(place: Path) -> None:
    """Wait until the test says go on."""
    assert eventually(lambda: (place / "go").exists())


def test_a_slow_one_keeps_no_manager_waiting(tmp_path: Path) -> None:
    with ex.Manager(
        ex.Farm(state), ex.ParDegree(1), initializer=wait_for_word, initargs=(tmp_path,)
    ) as manager:
        # It is there, though its slot can't work yet.
        (tmp_path / "go").touch()
        assert len(list(manager.map(range(3)))) == 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"initializer": 3}, "got initializer=3, expected a function"),
        ({"initializer": abs, "initargs": 3}, "got initargs=3, expected a tuple"),
    ],
)
@pytest.mark.parametrize("of", [ex.Executor, ex.Pool])
def test_what_is_none_is_told(of: type, options: dict[str, object], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        of(1, **options)


def test_one_that_can_t_be_pickled_is_told() -> None:
    with pytest.raises(ex.ProgramError, match="can't send"):
        ex.Manager(abs, ex.ParDegree(1), initializer=begin, initargs=(sys.stdout,))


def test_one_of_an_executor_has_what_it_shares_as_long_as_there_are_slots() -> None:
    def begin_with(table: ex.Shared[list[int]]) -> None:
        os.environ["TEST_TABLE"] = str(table.value)

    # Nobody but the executor holds the table.
    arguments = [ex.Shared([3, 4])]
    with ex.Executor(1, initializer=begin_with, initargs=(arguments.pop(),)) as executor:
        assert executor.submit(os.getenv, "TEST_TABLE").result() == "[3, 4]"
        with pytest.raises(ex.WorkerLostError):
            executor.submit(os._exit, 3).result()
        assert executor.submit(os.getenv, "TEST_TABLE").result() == "[3, 4]"
