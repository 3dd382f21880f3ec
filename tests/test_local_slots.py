"""Slots of this machine: a zygote forks them, and they are children of the manager as though it had started each by itself."""

import functools
import logging
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes import children, eventually, gone, slots_of, zygotes_of

import exoskel as ex
from exoskel import manager as manager_module


@pytest.fixture
def executed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have each slot start by itself."""
    monkeypatch.setattr(manager_module, "forks", False)


def tell(_item: int) -> tuple[Any, ...]:
    """Say what a slot sees of itself and of others."""
    import os

    number = os.environ["EXOSKEL_SLOT"]
    with open("/proc/self/environ", "rb") as file:
        marks = file.read().count(os.fsencode(os.environ["EXOSKEL_STARTED_BY"]))
    with open("/proc/self/comm", encoding="ascii") as file:
        name = file.read().strip()
    own = os.getpid()
    return os.getppid(), os.getpgid(0) == own, os.getsid(0), name == f"exoskel slot {number}", marks


@pytest.mark.parametrize("way", ["forked", "executed"])
def test_a_slot_is_a_child_of_the_manager_with_a_group_of_its_own(
    way: str, request: pytest.FixtureRequest
) -> None:
    if way == "executed":
        request.getfixturevalue(way)
    with ex.Manager(ex.Farm(tell), ex.ParDegree(3)) as manager:
        own = os.getpid()
        assert set(manager.map(range(30))) == {(own, True, os.getsid(0), True, 1)}
        assert len(slots_of(own)) == 3
        assert len(zygotes_of(own)) == (way == "forked")
    assert children(own) == []


def see(_item: int) -> tuple[Any, ...]:
    import os
    import random
    import sys

    files = {os.readlink(f"/proc/self/fd/{number}") for number in (0, 1, 2)}
    return os.getpid(), random.random(), "/dev/null" in files, sys.stdin.read()


def test_forked_slots_share_no_seed_and_read_nothing() -> None:
    with ex.Manager(ex.Farm(see), ex.ParDegree(4)) as manager:
        seen = list(manager.map(range(40)))
    first = {process: number for process, number, *_ in reversed(seen)}
    assert len(set(first.values())) == len(first)
    assert {rest for _, _, *rest_ in seen for rest in [tuple(rest_)]} == {(True, "")}


def sockets_of(process: int) -> set[str]:
    links = Path(f"/proc/{process}/fd").iterdir()
    return {link for link in map(os.readlink, links) if link.startswith("socket:")}


def test_nothing_of_a_slot_stays_with_its_zygote_or_another_slot() -> None:
    """A connection that another process has, too, would never end."""
    with ex.Manager(ex.Farm(abs), ex.ParDegree(3)):
        (zygote,) = zygotes_of(os.getpid())
        # What it has forked may run before it goes on itself.
        assert eventually(lambda: len(sockets_of(zygote)) == 1)
        sockets = [sockets_of(process) for process in (zygote, *slots_of(os.getpid()))]
        secrets = [os.readlink(link) for link in Path(f"/proc/{zygote}/fd").iterdir()]
        assert not [link for link in secrets if "memfd" in link]
    # Those of the runtime's signals, and the connection.
    assert all(not one & other for one in sockets for other in sockets if one is not other)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_slots_do_not_depend_on_their_zygote(number: signal.Signals) -> None:
    """Another zygote forks what replaces them, once this one is seen to be gone or to stand still."""
    # So long it may stand still. Each start of a slot has to fit into it as well.
    with ex.Manager(ex.Farm(tell), ex.ParDegree(2), connect_timeout=10, retries=5) as manager:
        own = os.getpid()
        before = slots_of(own)
        (zygote,) = zygotes_of(own)
        os.kill(zygote, number)
        assert len(list(manager.map(range(10)))) == 10
        assert slots_of(own) == before
        os.kill(before[0], signal.SIGKILL)
        assert eventually(lambda: len(set(slots_of(own)) - {before[0]}) == 2)
        assert eventually(lambda: gone(zygote))
        assert len(list(manager.map(range(10)))) == 10
        assert len(set(zygotes_of(own)) - {zygote}) == 1


def test_slots_that_import_slowly_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a file server that is busy. Method: each Python that starts takes longer than an attempt to reach a worker may."""
    (tmp_path / "sitecustomize.py").write_text("import time; time.sleep(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    caplog.set_level(logging.INFO)
    with ex.Manager(ex.Farm(abs), ex.ParDegree(2), connect_timeout=1) as manager:
        assert list(manager.map(range(-10, 0))) == list(range(10, 0, -1))
    assert "no session with local worker" not in caplog.text


def start_daemon(place: Path) -> Callable[[int], int]:
    """Make a task that leaves a forked child in a session of its own, and falls."""

    def task(item: int) -> int:
        import os
        import time

        if item == 1:
            if os.fork() == 0:
                os.setsid()
                (place / "daemon").write_text(str(os.getpid()))
                time.sleep(600)
                os._exit(0)
            while not (place / "daemon").exists():
                time.sleep(0.005)
            os._exit(3)
        return item

    return task


def test_a_forked_child_that_leaves_its_session_ends_with_a_slot_that_falls(tmp_path: Path) -> None:
    """It has executed nothing, so its environment as others see it is its slot's. The other slot and the zygote stay."""
    own = os.getpid()
    with ex.Manager(ex.Farm(start_daemon(tmp_path)), ex.ParDegree(2), retries=1) as manager:
        (zygote,) = zygotes_of(own)
        before = set(slots_of(own))
        zero, lost = manager.map(range(2), errors="return")
        assert (zero, type(lost)) == (0, ex.WorkerLostError)
        daemon = int((tmp_path / "daemon").read_text())
        assert eventually(functools.partial(gone, daemon))
        assert eventually(lambda: len(set(slots_of(own)) - before) == 1)
        assert zygotes_of(own) == [zygote]
        assert eventually(lambda: len(before & set(slots_of(own))) == 1)


def test_slots_begin_where_their_manager_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the program changes later doesn't reach those that take the place of others."""

    def where(item: int) -> tuple[str, str | None]:
        import os

        if item == 3:
            os._exit(1)
        return os.getcwd(), os.environ.get("WHERE_THEY_BEGAN")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHERE_THEY_BEGAN", "first")
    with ex.Manager(ex.Farm(where), ex.ParDegree(2), retries=1) as manager:
        monkeypatch.chdir("/")
        monkeypatch.setenv("WHERE_THEY_BEGAN", "later")
        results = list(manager.map(range(100), errors="return"))
    assert set(results[:3] + results[4:]) == {(str(tmp_path), "first")}


def started(directory: Path, script: str, **variables: str) -> "subprocess.Popen[str]":
    (directory / "job.py").write_text(textwrap.dedent(script))
    return subprocess.Popen(
        [sys.executable, str(directory / "job.py")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*variables.values(), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


# It has a forked child of its own, which inherits all that it has open.
KILLED = """
    import os, signal, sys, time
    import exoskel as ex

    if __name__ == "__main__":
        with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager:
            if os.fork() == 0:
                time.sleep(600)
            print("ready", flush=True)
            signal.pause()
"""


def test_nothing_outlives_a_manager_that_is_killed(tmp_path: Path) -> None:
    with started(tmp_path, KILLED) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        zygotes, slots = zygotes_of(process.pid), slots_of(process.pid)
        assert (len(zygotes), len(slots)) == (1, 2)
        (other,) = set(children(process.pid)) - {*zygotes, *slots}
        process.kill()
        process.wait()
        # Long before the other one ends by itself.
        assert eventually(lambda: gone(zygotes[0]))
        os.kill(other, signal.SIGKILL)
        assert eventually(lambda: all(map(gone, slots)))


# Nobody hears of children that end.
DEAF = """
    import os, signal
    import exoskel as ex

    def fall(item):
        import os
        if item == 3:
            os._exit(1)
        return item

    if __name__ == "__main__":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        with ex.Manager(ex.Farm(fall), ex.ParDegree(2), retries=1) as manager:
            results = list(manager.map(range(50), errors="return"))
        print(sum(isinstance(result, int) for result in results), type(results[3]).__name__)
"""


def test_a_program_may_ignore_the_ends_of_its_children(tmp_path: Path) -> None:
    with started(tmp_path, DEAF) as process:
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "49 WorkerLostError\n"), errors


COUNTED = """
    import signal
    import exoskel as ex

    if __name__ == "__main__":
        with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager:
            print(sum(manager.map(range(-10, 1))), flush=True)
            signal.pause()
"""

# What some tools do to every Python process.
THREADED = """
import sys, threading
if "exoskel.slot" in sys.orig_argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
"""


def test_slots_start_by_themselves_where_a_zygote_has_threads(tmp_path: Path) -> None:
    """What another thread holds at a fork would be held for ever in the child."""
    (tmp_path / "sitecustomize.py").write_text(THREADED)
    with started(tmp_path, COUNTED, site=str(tmp_path)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "55\n"
        commands = [Path(f"/proc/{slot}/cmdline").read_bytes() for slot in slots_of(process.pid)]
        process.kill()
        process.communicate()
    assert len(commands) == 2
    assert all(b"--connection-fd" in command for command in commands)


# A zygote that is killed right behind each fork, before it can say which process that is.
FALLING = """
import os, signal, sys
if "exoskel.slot" in sys.orig_argv:
    from exoskel import _core
    fork = _core.fork_sibling

    def fork_and_fall():
        slot = fork()
        if slot:
            os.kill(os.getpid(), signal.SIGKILL)
        return slot

    _core.fork_sibling = fork_and_fall
"""

LEFT = """
    import exoskel as ex
    from tests.processes import children, eventually, slots_of
    import os

    if __name__ == "__main__":
        with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager:
            print(sum(manager.map(range(-10, 1))))
            assert eventually(lambda: len(slots_of(os.getpid())) == 2)
        print(children(os.getpid()), flush=True)
"""


def test_a_slot_says_itself_which_process_it_is_when_its_zygote_has_fallen(tmp_path: Path) -> None:
    """Nobody could wait for it otherwise: it would stay as a zombie."""
    (tmp_path / "sitecustomize.py").write_text(FALLING)
    root = str(Path(__file__).parent.parent)
    with started(tmp_path, LEFT, site=str(tmp_path), root=root) as process:
        out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, "55\n[]\n"), errors
