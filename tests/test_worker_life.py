"""How workers and slots end, and what doesn't end them: who is told to go finishes what runs, and no item is charged with it."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, gone, slots_of
from tests.promises import promised
from tests.site import Site
from tests.whole_files import replace

import exoskel as ex

NEAR, OTHER = "node1.lab.example.org", "node2.lab.example.org"


def waiting(place: Path, waits: int = 0) -> Callable[[int], int]:
    """Make a task that writes a line for each run; item ``waits`` says which processes run it, and waits for the file ``go``."""

    def task(item: int) -> int:
        import os
        import time

        with open(place / "runs", "a", encoding="ascii") as file:
            file.write(f"{item}\n")
        if item == waits:
            (place / "here.part").write_text(f"{os.getppid()} {os.getpid()}")
            os.replace(place / "here.part", place / "here")
            while not (place / "go").exists():
                time.sleep(0.005)
        return item

    return task


def where(place: Path) -> tuple[int, int]:
    """Wait until the item runs; give the process numbers of its slot's parent and of its slot."""
    assert eventually((place / "here").exists)
    parent, slot = (place / "here").read_text().split()
    return int(parent), int(slot)


def runs(place: Path) -> list[int]:
    return sorted(map(int, (place / "runs").read_text().split()))


@contextlib.contextmanager
def collected(stream: Iterator[Any]) -> Iterator[Callable[[], list[Any]]]:
    """Take the results in a thread."""
    with ThreadPoolExecutor(1) as pool:
        results = pool.submit(list, stream)
        yield results.result


def test_a_worker_that_is_told_to_end_finishes_what_runs(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The item that runs ends where it is, the others run elsewhere: each once, though one charge would end an item."""
    workers = [site.worker(name) for name in (NEAR, OTHER)]
    with site.connect(ex.Farm(waiting(tmp_path)), 2, *workers, retries=1) as manager:
        with collected(manager.map(range(60))) as results:
            parent, slot = where(tmp_path)
            (ending,) = [worker for worker in workers if worker.process.pid == parent]
            ending.process.terminate()
            assert eventually(lambda: "told to end" in ending.log.read_text())
            assert eventually(lambda: set(range(60)) <= set(runs(tmp_path)))
            assert not gone(slot)
            (tmp_path / "go").touch()
            assert results() == list(range(60))
        assert eventually(lambda: ending.process.poll() == 0)
        rows = {row.name: row for row in manager.summary().workers}
    assert runs(tmp_path) == list(range(60))
    name = ending.line.split()[1]
    assert (rows[name].state, rows[name].items_twice) == ("left", 0)
    assert f"worker {name} at 127.0.0.1 leaves" in caplog.text
    assert "lost" not in caplog.text


@pytest.mark.parametrize("way", ["time", "twice"])
def test_what_takes_too_long_goes_back_and_is_not_charged(
    way: str, site: Site, tmp_path: Path
) -> None:
    drain = "0.3" if way == "time" else "600"
    workers = [site.worker(name, "--drain", drain) for name in (NEAR, OTHER)]
    with site.connect(ex.Farm(waiting(tmp_path)), 2, *workers, retries=1) as manager:
        with collected(manager.map(range(3))) as results:
            parent, slot = where(tmp_path)
            (ending,) = [worker for worker in workers if worker.process.pid == parent]
            (tmp_path / "here").unlink()
            ending.process.terminate()
            if way == "twice":
                assert eventually(lambda: "told to end" in ending.log.read_text())
                ending.process.terminate()
            # At the other one.
            assert where(tmp_path)[0] != parent
            (tmp_path / "go").touch()
            assert results() == [0, 1, 2]
        assert eventually(lambda: gone(slot))
        assert eventually(lambda: ending.process.poll() == 0)


def test_slots_without_a_manager_leave_at_once(site: Site) -> None:
    """The drain is long, and nothing runs. The time is a promise to users."""
    worker = site.worker(NEAR, "--drain", "600", slots=3)
    worker.process.terminate()
    assert worker.process.wait(timeout=promised(5)) == 0


def test_a_worker_that_is_told_again_on_its_way_out_ends_in_order(site: Site) -> None:
    credential = site.issue("worker", NEAR)
    for _ in range(3):
        worker = site.worker(NEAR, credential=credential)
        is_over = False
        while not is_over:
            worker.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                is_over = worker.process.wait(timeout=0.002) is not None
        assert worker.process.returncode == 0


def test_a_slot_that_is_told_to_end_finishes_what_runs_wherever_it_is(tmp_path: Path) -> None:
    """A service manager signals all processes of a service, children of a manager too."""
    with ex.Manager(ex.Farm(waiting(tmp_path)), ex.ParDegree(1), retries=1) as manager:
        with collected(manager.map(range(20))) as results:
            _, slot = where(tmp_path)
            os.kill(slot, signal.SIGTERM)
            # The others go on in the slot that takes its place.
            (tmp_path / "go").touch()
            assert results() == list(range(20))
        assert eventually(lambda: gone(slot))
    assert runs(tmp_path) == list(range(20))


def test_a_task_that_ends_its_own_process_by_a_signal_is_charged() -> None:
    def task(item: int) -> int:
        import os
        import signal

        if item == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return item

    with ex.Manager(ex.Farm(task), ex.ParDegree(1), retries=2) as manager:
        zero, lost, two = manager.map(range(3), errors="return")
    assert (zero, two) == (0, 2)
    assert isinstance(lost, ex.WorkerLostError)


@pytest.mark.parametrize("how", ["exit code 3", "killed by signal 9 (SIGKILL)"])
def test_a_local_slot_that_is_lost_says_how_it_ended(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    def task(item: int) -> int:
        import os
        import signal

        if item == 1 and how == "exit code 3":
            os._exit(3)
        elif item == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with ex.Manager(ex.Farm(task), ex.ParDegree(1), retries=1) as manager:
        zero, lost, two = manager.map(range(3), errors="return")
    assert (zero, two) == (0, 2)
    assert isinstance(lost, ex.WorkerLostError)
    assert f"the last one: {how}" in str(lost)
    assert f"({how}); items put back" in caplog.text


def test_a_forked_child_of_a_task_ends_by_a_signal_as_others_do() -> None:
    def task(item: int) -> int:
        import os
        import signal

        child = os.fork()
        if child == 0:
            signal.pause()
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with ex.Manager(ex.Farm(task), ex.ParDegree(1)) as manager:
        assert list(manager.map([1, 2])) == [-signal.SIGTERM] * 2


# The whole group gets a Ctrl-C in the middle of an item, as from a terminal or a notebook.
INTERRUPTED = """
    import os, signal, sys, threading
    from pathlib import Path
    import exoskel as ex
    from tests.test_worker_life import waiting, where, runs

    place = Path(sys.argv[1])
    if __name__ == "__main__":
        def press() -> None:
            where(place)
            os.killpg(0, signal.SIGINT)

        with ex.Manager(ex.Farm(waiting(place)), ex.ParDegree(2), retries=1) as manager:
            stream = manager.map(range(10))
            presser = threading.Thread(target=press)
            try:
                # It may press before this thread goes on.
                presser.start()
                next(stream)
            except KeyboardInterrupt:
                (place / "go").touch()
            print(list(stream) == list(range(10)), runs(place) == list(range(10)))
            presser.join()
"""


def test_ctrl_c_is_not_for_slots(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(textwrap.dedent(INTERRUPTED))
    root = Path(__file__).parent.parent
    done = subprocess.run(
        [sys.executable, str(tmp_path / "job.py"), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_an_interrupt_that_reaches_a_slot_does_nothing(tmp_path: Path) -> None:
    with (
        ex.Manager(ex.Farm(waiting(tmp_path)), ex.ParDegree(1), retries=1) as manager,
        collected(manager.map(range(5))) as results,
    ):
        _, slot = where(tmp_path)
        os.kill(slot, signal.SIGINT)
        (tmp_path / "go").touch()
        assert results() == list(range(5))
    assert runs(tmp_path) == list(range(5))


def has_begun(slot: int) -> bool:
    """Say whether a slot has read its files: it waits for managers."""
    try:
        files = [os.readlink(file) for file in Path(f"/proc/{slot}/fd").iterdir()]
    except OSError:
        return False
    return "anon_inode:[eventpoll]" in files


def test_a_policy_that_is_being_edited_ends_nothing(site: Site) -> None:
    """The old one stays in force; a slot that is new waits, and all is well when the file is."""
    worker = site.worker(NEAR, slots=3)
    policy = site.place / f"home-{NEAR}" / "policy.toml"
    good = policy.read_text()
    assert eventually(lambda: sum(map(has_begun, slots_of(worker.process.pid))) == 3)
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        with site.connect(ex.Farm(abs), 1, worker) as other:
            replace(policy, "[[rule")
            assert list(other.map([-1])) == [1]
        # The slot that served is replaced by one that can't read the file.
        assert eventually(lambda: "waits: " in worker.log.read_text())
        with site.connect(ex.Farm(abs), 1, worker) as other:
            assert list(other.map([-2])) == [2]
        assert "what was in force before stays" in worker.log.read_text()
        assert list(manager.map([-3])) == [3]
        replace(policy, good)
        with site.connect(ex.Farm(abs), 2, worker) as other:
            assert list(other.map([-4])) == [4]
        assert list(manager.map([-5])) == [5]
    assert worker.process.poll() is None
    assert worker.log.read_text().count("waits: ") <= 2


def test_a_credential_that_is_being_edited_ends_nothing(site: Site) -> None:
    credential = site.issue("worker", NEAR)
    worker = site.worker(NEAR, credential=credential)
    good = credential.read_bytes()
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        replace(credential, good[:100])
        assert list(manager.map([-1])) == [1]
    assert eventually(lambda: "waits: " in worker.log.read_text())
    replace(credential, good)
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        assert list(manager.map([-2])) == [2]


@pytest.mark.parametrize("kind", ["full disk", "closed pipe", "full pipe"])
def test_a_worker_that_cannot_log_goes_on(kind: str, site: Site, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    if kind == "full disk":
        full = os.open("/dev/full", os.O_WRONLY)
        os.dup2(full, writer)
        os.close(full)
    elif kind == "closed pipe":
        os.close(reader)
    else:
        os.set_blocking(writer, False)
        with contextlib.suppress(BlockingIOError):
            while True:
                os.write(writer, bytes(4096))
        os.set_blocking(writer, True)
    home = tmp_path / "home"
    home.mkdir()
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--json", "--slots", "1"]
    command += ["--credential", str(site.issue("worker", NEAR)), "--policy", str(site.policy)]
    command += ["--listen", f"unix:{home}/worker.sock", "--drain", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=writer, text=True) as worker:
        os.close(writer)
        try:
            assert worker.stdout is not None
            assert worker.stdout.readline()
            for item in range(2):
                with ex.Manager(
                    ex.Farm(abs),
                    ex.ParDegree(1),
                    credential=site.credential,
                    policy=site.policy,
                    workers=[f"unix:{home}/worker.sock {NEAR}"],
                ) as manager:
                    assert list(manager.map([-item])) == [item]
            assert worker.poll() is None
        finally:
            worker.terminate()
        assert worker.wait(timeout=60) == 0
    if kind != "closed pipe":
        os.close(reader)


# Started by a task: it leaves its session, and the slot falls.
def fall(place: Path, code: int) -> Callable[[int], int]:
    def task(item: int) -> int:
        import os
        import subprocess

        if item == 1:
            for name, detached in (("group", False), ("session", True)):
                started = subprocess.Popen(["sleep", "600"], start_new_session=detached)
                (place / name).write_text(str(started.pid))
            os._exit(code)
        return item

    return task


@pytest.mark.parametrize("code", [0, 3])
def test_what_a_task_has_started_does_not_outlive_a_child_that_falls(
    tmp_path: Path, code: int
) -> None:
    with ex.Manager(ex.Farm(fall(tmp_path, code)), ex.ParDegree(1), retries=1) as manager:
        zero, lost = manager.map(range(2), errors="return")
        assert (zero, type(lost)) == (0, ex.WorkerLostError)
        for name in ("group", "session"):
            number = int((tmp_path / name).read_text())
            assert eventually(functools.partial(gone, number)), name


def close_all(seconds: float) -> Callable[[int], int]:
    def task(item: int) -> int:
        import os
        import time

        if item == 1:
            os.closerange(3, 4096)
            time.sleep(seconds)
        return item

    return task


@pytest.mark.parametrize("seconds", [0, 600])
def test_a_slot_that_has_lost_its_descriptors_is_replaced(site: Site, seconds: int) -> None:
    worker = site.worker(NEAR)
    assert eventually(lambda: len(slots_of(worker.process.pid)) == 1)
    (before,) = slots_of(worker.process.pid)
    with site.connect(ex.Farm(close_all(seconds)), 1, worker, retries=1) as manager:
        zero, lost = manager.map(range(2), errors="return")
    assert (zero, type(lost)) == (0, ex.WorkerLostError)
    assert eventually(lambda: gone(before))
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        assert list(manager.map([-2])) == [2]


# Its slot is killed when no descriptor is left for another one, and at the end not even for a module to load.
WITHOUT_DESCRIPTORS = """
    import os, resource, signal
    import exoskel as ex

    if __name__ == "__main__":
        with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager:
            list(manager.map(range(-10, 0)))
            slots = [number for worker in manager.summary().workers for number in worker.process_ids]
            held = []
            try:
                resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 3, 4096))
                while True:
                    held.append(os.dup(0))
            except OSError:
                pass
            os.kill(slots[0], signal.SIGKILL)
            print(sum(manager.map(range(-1000, 0))))
        print(manager.summary().workers[1].state)
"""

# One of two slots is killed when the one that takes its place may have no second thread. Both are ready before the limit holds, and the
# driver's own threads for their handshakes have gone: else chance decides who gets the last ones. Root may have any number, so it is
# somebody else.
WITHOUT_THREADS = """
    import os, resource, signal
    from pathlib import Path
    import exoskel as ex
    from tests.processes import eventually, slots_of, zygotes_of

    if __name__ == "__main__":
        with ex.Manager(ex.Farm(abs), ex.ParDegree(2)) as manager:
            assert eventually(lambda: manager.status().slots_ready == 2)
            assert eventually(lambda: len(os.listdir("/proc/self/task")) == 2)
            (zygote,) = zygotes_of(os.getpid())
            # Two threads here, a zygote, two threads of the slot that stays, and one of the other.
            for process in (os.getpid(), zygote):
                resource.prlimit(process, resource.RLIMIT_NPROC, (6, 6))
            os.kill(slots_of(os.getpid())[0], signal.SIGKILL)
            assert eventually(lambda: "can't start" in Path(__file__).with_name("said").read_text())
            print(sum(manager.map(range(-1000, 0))))
"""


def limited(directory: Path, script: str, *before: str) -> "subprocess.CompletedProcess[str]":
    """Run a script that has too little of something; what is said to users is in the file ``said`` beside it, too."""
    (directory / "job.py").write_text(textwrap.dedent(script))
    with (directory / "said").open("w") as said:
        done = subprocess.run(
            [*before, sys.executable, str(directory / "job.py")],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            timeout=60,
            check=False,
        )
    done.stderr = (directory / "said").read_text()
    return done


def test_a_manager_without_descriptors_goes_on_with_what_it_has(tmp_path: Path) -> None:
    done = limited(tmp_path, WITHOUT_DESCRIPTORS)
    assert (done.returncode, done.stdout) == (0, "500500\nworking\n"), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="needs root, to be a user who has no other processes",
)
def test_slots_that_can_have_no_thread_say_so_and_the_run_goes_on(tmp_path: Path) -> None:
    somebody = ["--reuid=54321", "--regid=54321", "--clear-groups"]
    reading = ["--inh-caps=+dac_override", "--ambient-caps=+dac_override"]
    done = limited(tmp_path, WITHOUT_THREADS, "setpriv", *somebody, *reading)
    assert (done.returncode, done.stdout) == (0, "500500\n"), done.stderr
    assert "panicked" not in done.stderr
    assert "slots that go on: 1" in done.stderr


@pytest.mark.parametrize("retries", [1, 2])
def test_an_item_that_takes_down_slots_of_a_worker_runs_no_more_often_than_asked(
    site: Site, tmp_path: Path, retries: int
) -> None:
    """The worker's other slots are still there, and say so: each loss is held against the item."""
    worker = site.worker("node1.lab.example.org", slots=4)
    runs = tmp_path / "runs"

    def crash(item: int) -> int:
        if item == 3:
            with runs.open("a") as file:
                file.write("x")
            os._exit(9)
        return item

    with site.connect(ex.Farm(crash), 4, worker, retries=retries) as manager:
        assert eventually(lambda: manager.status().slots_ready == 4)
        results = list(manager.map(range(8), errors="return"))
    assert isinstance(results[3], ex.WorkerLostError)
    assert results[3].workers == retries
    # Once among others, and then alone.
    assert retries <= len(runs.read_text()) <= retries + 1
