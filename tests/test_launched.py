"""Managers whose slots are processes of a job: started by a launcher, with links to each other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.processes import children, eventually, gone

import exoskel as ex
from exoskel import links

SECONDS = 60.0


def square(number: int) -> tuple[int, int]:
    return number * number, os.getpid()


def test_a_farm_on_launched_slots() -> None:
    with ex.Manager(square, ex.ParDegree(3), launch=ex.Local()) as manager:
        found = list(manager.map(range(300)))
        [worker] = manager.summary().workers
        assert worker.slots == 3
    assert [one for one, _ in found] == [number * number for number in range(300)]
    processes = {process for _, process in found}
    assert os.getpid() not in processes
    assert all(eventually(partial(gone, process)) for process in processes)
    assert eventually(lambda: not children(os.getpid()))


def exchange(number: int) -> tuple[int, int, list[int]]:
    """Give a number to the next slot, and take that of the one before."""
    here = links.here()
    taken: list[int] = here.__dict__.setdefault("taken", [])

    @here.process.handler
    def give(given: int) -> None:
        taken.append(given)

    here.peers[(here.rank + 1) % here.size].request("give", number).result(SECONDS)
    assert eventually(lambda: bool(taken))
    return here.rank, number, [taken.pop()]


def test_tasks_talk_to_the_other_slots_directly() -> None:
    with ex.Manager(exchange, ex.ParDegree(4), launch=ex.Local()) as manager:
        found = sorted(manager.map(range(4)))
    numbers = {rank: number for rank, number, _ in found}
    assert sorted(numbers) == [0, 1, 2, 3]
    assert all(taken == [numbers[(rank - 1) % 4]] for rank, _, taken in found)


def exchange_by(name: str) -> int:
    """Have a handler of this name, and ask the other slot for its own."""
    here = links.here()

    def rank() -> int:
        return here.rank

    rank.__name__ = name
    made = here.process.inbox("made")
    here.process.handler(rank)
    other = here.peers[1 - here.rank]
    # Known since the first task, the other one may not have this task's handler yet.
    other.post("made", name)
    assert made.get(SECONDS) == name
    return int(other.request(name).result(SECONDS))


def test_tasks_may_have_handlers_of_other_names_than_those_before() -> None:
    with ex.Manager(exchange_by, ex.ParDegree(2), launch=ex.Local(), wait=SECONDS) as manager:
        for name in ("first", "second"):
            assert sorted(manager.map([name] * 2)) == [0, 1]


def sum_of_ranks(_item: int) -> int:
    here = links.here()

    @here.process.handler
    def rank() -> int:
        return here.rank

    return sum(peer.request("rank").result(SECONDS) for peer in here.peers)


def test_fewer_tasks_than_slots_that_wait_for_each_other_are_told_so() -> None:
    with ex.Manager(sum_of_ranks, ex.ParDegree(3), launch=ex.Local(), wait=SECONDS) as manager:
        # Two, for who asks when the other one has been told.
        text = r"[12] of 3 slots have no task, and no item waits for one: .* as many items as slots"
        with pytest.raises(ex.LinkError, match=text):
            list(manager.map(range(2)))
        # What was in vain is not, later.
        assert list(manager.map(range(3))) == [3, 3, 3]


def fail_or_ask(place: str) -> int:
    here = links.here()
    if here.rank == 0:
        assert eventually(Path(place).exists)
        raise ValueError("a bad item")
    Path(place).touch()
    return int(here.peers[0].request("rank").result(SECONDS))


def test_who_waits_for_a_task_that_has_failed_is_told_its_exception(tmp_path: Path) -> None:
    places = [str(tmp_path / "begun")] * 2
    with ex.Manager(
        fail_or_ask, ex.ParDegree(2), launch=ex.Local(), wait=SECONDS, frame_items_max=1
    ) as manager:
        found = [str(one) for one in manager.map(places, errors="return")]
    assert any("a bad item" in one for one in found)
    told = (
        "vain: the task of rank 0 has ended with ValueError: a bad item; 1 of 2 slots have no task"
    )
    assert any(told in one for one in found)
    assert not any("as many items as slots" in one for one in found)


def wait_in_a_handler(_item: int) -> bool:
    """Have a handler of slot 0, called by slot 1, wait for what slot 2 calls meanwhile."""
    here = links.here()
    has_come, has_begun = threading.Event(), threading.Event()

    @here.process.handler
    def waited() -> bool:
        here.peers[2].post("begun")
        return has_come.wait(SECONDS)

    @here.process.handler
    def come() -> None:
        has_come.set()

    @here.process.handler
    def begun() -> None:
        has_begun.set()

    if here.rank == 1:
        return bool(here.peers[0].request("waited").result(SECONDS))
    if here.rank == 2:
        assert here.peers[0] is not None
        assert has_begun.wait(SECONDS)
        here.peers[0].request("come").result(SECONDS)
    return here.peers[0] is not None


def test_handlers_of_slots_wait_for_each_other_on_several_threads() -> None:
    with ex.Manager(
        wait_in_a_handler, ex.ParDegree(3), launch=ex.Local(), handler_threads=2, wait=SECONDS
    ) as manager:
        assert list(manager.map(range(3))) == [True] * 3
    with pytest.raises(TypeError, match="got handler_threads= without launch="):
        ex.Manager(wait_in_a_handler, ex.ParDegree(3), handler_threads=2)


def test_a_task_of_a_slot_that_no_job_has_started_has_no_node() -> None:
    def look(_item: int) -> str:
        with pytest.raises(ex.LinkError, match="no job has started this process") as raised:
            links.here()
        return str(raised.value)

    with ex.Manager(look, ex.ParDegree(1)) as manager:
        assert list(manager.map([1]))


def die_once(place: str) -> int:
    marked = Path(place)
    if not marked.exists():
        marked.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid()


def test_a_slot_that_dies_is_replaced_and_its_item_runs_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    marked = tmp_path / "marked"
    with ex.Manager(die_once, ex.ParDegree(1), launch=ex.Local()) as manager:
        [process] = manager.map([str(marked)])
        assert process != int(marked.read_text())
    assert "was ended by SIGKILL; another slot takes its place" in caplog.text


def exit_once(place: str) -> int:
    """End the process without a word, the first time."""
    if not Path(place).exists():
        Path(place).touch()
        os._exit(3)
    return os.getpid()


def test_a_slot_that_ends_by_itself_is_told_with_its_exit_code(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with ex.Manager(exit_once, ex.ParDegree(1), launch=ex.Local()) as manager:
        list(manager.map([str(tmp_path / "marked")]))
    assert "has ended with exit code 3; another slot takes its place" in caplog.text


def meet(place: str) -> tuple[int, int]:
    """Ask the next slot who it is; the first time, one of them dies before it is asked."""
    here = links.here()

    @here.process.handler
    def process() -> int:
        return os.getpid()

    marked = Path(place)
    other = here.peers[(here.rank + 1) % here.size]
    if here.rank == 0 and not marked.exists():
        other.request("process").result(SECONDS)
        marked.write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)
    eventually(marked.exists)
    first = int(marked.read_text())

    def asked() -> int:
        try:
            return int(here.peers[(here.rank + 1) % here.size].request("process").result(SECONDS))
        except ex.LinkError:
            return first

    if here.rank == 1:
        # In the place of the one that has died there will be another one.
        assert eventually(lambda: asked() != first)
    return here.rank, asked()


def test_another_slot_comes_into_the_place_of_a_sibling(tmp_path: Path) -> None:
    marked = tmp_path / "marked"
    with ex.Manager(meet, ex.ParDegree(2), launch=ex.Local()) as manager:
        found = dict(manager.map([str(marked)] * 2))
    assert sorted(found) == [0, 1]
    assert int(marked.read_text()) not in found.values()


def test_executors_and_pools_have_launched_slots_too() -> None:
    with ex.Executor(2, launch=ex.Local()) as executor:
        assert executor.submit(pow, 2, 5).result(SECONDS) == 32
    with ex.Pool(2, launch=ex.Local()) as pool:
        assert pool.map(abs, [-1, -2]) == [1, 2]


def test_the_slots_of_a_killed_program_end(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(
            """
            import os, signal, exoskel as ex

            def own(_item):
                return os.getpid()

            if __name__ == "__main__":
                with ex.Manager(own, ex.ParDegree(2), launch=ex.Local()) as manager:
                    print(*manager.map(range(20)), flush=True)
                    os.kill(os.getpid(), signal.SIGKILL)
            """
        )
    )
    ended = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert ended.returncode == -signal.SIGKILL
    processes = set(map(int, ended.stdout.split()))
    assert processes, ended.stderr
    assert all(eventually(partial(gone, process)) for process in processes)


def own_number(_item: int) -> int:
    return os.getpid()


def test_a_manager_whose_only_agent_was_killed_has_nobody() -> None:
    # Nobody comes back for whom a patient manager could wait.
    options: Any = {"launch": ex.Local(), "patience": 3600.0}
    with ex.Manager(own_number, ex.ParDegree(1), **options) as manager:
        [slot] = manager.map([0])
        [agent] = children(os.getpid())
        os.kill(agent, signal.SIGKILL)
        assert eventually(partial(gone, slot))
        with pytest.raises(ex.NoWorkerError):
            list(manager.map([0]))


def fail() -> None:
    raise LookupError("of the initializer")


def test_an_initializer_that_raises_is_told() -> None:
    with (
        ex.Manager(
            abs, ex.ParDegree(2), launch=ex.Local(), initializer=fail, patience=20.0
        ) as manager,
        pytest.raises(ex.InitializerError, match="of the initializer"),
    ):
        list(manager.map([1]))


@pytest.mark.parametrize(
    ("launch", "text"),
    [
        (ex.Ssh(["lab1"], command=["/nowhere/ssh"]), "can't start /nowhere/ssh for lab1"),
        (ex.Ssh(["lab1"], command=["/bin/sh", "-c", "echo no route >&2; exit 255"]), "no route"),
    ],
)
def test_hosts_that_cannot_be_reached_are_named(launch: ex.Ssh, text: str) -> None:
    with pytest.raises(ex.NoWorkerError, match=text) as raised:
        ex.Manager(abs, ex.ParDegree(2), launch=launch)
    assert "lab1" in str(raised.value)
    assert raised.value.attempts
    assert not children(os.getpid())


# `ssh` to two hosts, of which one can't be reached.
ONE_IS_DOWN = 'if [ "$0" = down ]; then echo "no route" >&2; exit 255; fi; exec sh -c "$1"'


def test_slots_begin_on_the_hosts_that_can_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    launch = ex.Ssh(["down", "lab1"], python=sys.executable, command=["sh", "-c", ONE_IS_DOWN])
    with ex.Manager(abs, ex.ParDegree(2), launch=launch, wait=SECONDS) as manager:
        assert list(manager.map([-1, -2])) == [1, 2]
    assert "the agent of down has ended before it was there, exit code 255: no route" in caplog.text
    assert "the job goes on without this host" in caplog.text
    with pytest.raises(ex.NoWorkerError, match="down has ended before it was there"):
        ex.Manager(abs, ex.ParDegree(2), launch=launch, min=2)
    assert not children(os.getpid())


def test_a_number_of_hosts_is_for_launched_slots() -> None:
    with pytest.raises(TypeError, match="got min= without launch="):
        ex.Manager(abs, ex.ParDegree(1), min=1)


@pytest.mark.parametrize("options", [{"workers": ["lab1"]}, {"listen": "127.0.0.1:0"}], ids=str)
def test_what_is_launched_needs_no_place(options: dict[str, Any]) -> None:
    [name] = options
    with pytest.raises(TypeError, match=f"got {name}= beside launch="):
        ex.Manager(abs, ex.ParDegree(1), launch=ex.Local(), **options)


def test_what_is_launched_needs_no_credential() -> None:
    # As Job says it.
    with pytest.raises(
        ValueError, match=r"got credential= with Local\(\), expected it with Agents"
    ):
        ex.Manager(abs, ex.ParDegree(1), launch=ex.Local(), credential="head.pem")


def test_what_is_no_launcher_is_refused() -> None:
    with pytest.raises(TypeError, match="got launch='lab1', expected a launcher"):
        ex.Manager(abs, ex.ParDegree(1), launch="lab1")  # type: ignore[arg-type]  # what is tested


def read(path: str) -> str:
    try:
        return Path(path).read_text()
    except PermissionError:
        return "refused"


def test_slots_are_held_to_a_sandbox(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("word")
    with ex.Manager(
        read, ex.ParDegree(2), launch=ex.Local(), sandbox=ex.Sandbox(network="none")
    ) as manager:
        assert set(manager.map([str(secret)] * 10)) == {"refused"}
    with ex.Manager(
        read, ex.ParDegree(1), launch=ex.Local(), sandbox=ex.Sandbox(read=["/"])
    ) as manager:
        assert list(manager.map([str(secret)])) == ["word"]


def test_slots_in_a_sandbox_talk_to_each_other_and_share() -> None:
    numbers = ex.Shared(list(range(100_000)))

    def last(number: int) -> int:
        return numbers.value[number]

    options: Any = {"launch": ex.Local(), "sandbox": ex.Sandbox(), "transport": "shared memory"}
    with ex.Manager(exchange, ex.ParDegree(3), **options) as manager:
        assert len(list(manager.map(range(3)))) == 3
    with ex.Manager(last, ex.ParDegree(2), **options) as manager:
        assert list(manager.map([99_999, 0])) == [99_999, 0]


def test_a_sandbox_is_for_launched_slots() -> None:
    with pytest.raises(TypeError, match="got sandbox= without launch="):
        ex.Manager(abs, ex.ParDegree(1), sandbox=ex.Sandbox())


def test_tasks_of_a_later_run_give_their_handlers_again() -> None:
    with ex.Manager(exchange, ex.ParDegree(2), launch=ex.Local()) as manager:
        for _ in range(3):
            found = sorted(manager.map([7, 8]))
            assert [taken for _, _, taken in found] == [[number] for _, number, _ in found[::-1]]
