"""Workers that go and come back, networks and managers that stand still: runs go on, and say what they wait for."""

import contextlib
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, gone, slots_of
from tests.site import Site, Worker, free_address
from tests.whole_files import replace

import exoskel as ex
from exoskel import manager as manager_module

NODE = "node1.lab.example.org"
# Slots and managers notice that the other one is silent.
SHORT = "0.5"


def slow(item: int) -> int:
    time.sleep(0.005)
    return -item


def ready(manager: ex.Manager) -> int:
    return manager.status().slots_ready


def pause(recruiting: Sequence[str]) -> float:
    """Return how long recruiting pauses before it dials a worker again."""
    found = re.findall(r"again in ([0-9.]+) s", " ".join(recruiting))
    return max(map(float, found), default=0.0)


class Stream:
    """A stream that a thread takes results of, so that the test can look at its manager meanwhile."""

    def __init__(self, manager: ex.Manager, items: Iterator[int]) -> None:
        self.taken = 0
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._take, args=(manager.map(items),))
        self._thread.start()

    def _take(self, results: Iterator[int]) -> None:
        try:
            for item, result in enumerate(results):
                assert result == -item
                self.taken = item + 1
        except BaseException as error:
            self.error = error

    def goes_on(self) -> bool:
        """Whether more results come."""
        before = self.taken
        return eventually(lambda: self.taken > before + 50)

    def end(self) -> None:
        """Wait for the last result."""
        self._thread.join()


@contextlib.contextmanager
def running(manager: ex.Manager) -> Iterator[Stream]:
    """Have a run go on until the block ends, and then end well."""
    wanted = threading.Event()

    def items() -> Iterator[int]:
        item = 0
        while not wanted.is_set():
            yield item
            item += 1

    stream = Stream(manager, items())
    try:
        yield stream
    finally:
        wanted.set()
        stream.end()
    assert stream.error is None


def start(site: Site, address: str, *more: str, slots: int = 1) -> Worker:
    """Start a worker at this address, again if need be."""
    credential = site.place / f"{NODE}.pem"
    known = credential if credential.exists() else None
    return site.worker(NODE, *more, listen=f"tcp://{address}", slots=slots, credential=known)


def test_a_worker_that_is_away_for_seconds_comes_back_with_all_its_slots(site: Site) -> None:
    """Six refusals, half a second apart, ended it before; and eight slots that were lost counted as eight failures."""
    address = free_address()
    worker = start(site, address, slots=8)
    seen: list[str] = []

    def pauses(manager: ex.Manager) -> bool:
        seen[:] = manager.status().recruiting
        return pause(seen) > 2.05

    with site.connect(ex.Farm(slow), 8, worker) as manager, running(manager) as stream:
        for _ in range(2):
            assert stream.goes_on()
            worker.kill()
            assert eventually(lambda: pauses(manager))
            (line,) = seen
            assert line.startswith(f"dialling worker {NODE} at {address} again in ")
            assert "refused" in line
            worker = start(site, address, slots=8)
            assert eventually(lambda: ready(manager) == 8)


def test_the_constructor_waits_for_workers_that_it_dials(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    address = free_address()
    site.issue("worker", NODE)
    hosts = [f"{address} {NODE}"]
    with caplog.at_level(logging.INFO, logger="exoskel.audit"), ThreadPoolExecutor() as pool:
        begin = pool.submit(site.connect, ex.Farm(abs), 2, workers=hosts, wait=60)
        assert eventually(lambda: caplog.text.count("can't connect") >= 4)
        start(site, address, slots=2)
        with begin.result() as manager:
            assert list(manager.map([-1])) == [1]


def test_the_wait_ends_with_the_reason(site: Site) -> None:
    address = free_address()
    with pytest.raises(
        ex.NoWorkerError, match=r"no worker within 1\.5 seconds, expected 2 slots"
    ) as raised:
        site.connect(abs, 2, workers=[address], wait=1.5)
    (attempt,) = raised.value.attempts
    assert address in str(attempt)
    assert "refused" in str(attempt)


def test_an_attempt_that_may_take_no_time_is_an_error_in_words(site: Site) -> None:
    """Nobody answers there: an answer that is there already is taken, however late it is."""
    site.issue("worker", NODE)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(ex.NoWorkerError, match=r"expected 1 slot\n  worker .*within 1ns"),
    ):
        ex.Manager(
            abs,
            ex.ParDegree(1),
            workers=[f"127.0.0.1:{silent.getsockname()[1]} {NODE}"],
            credential=site.credential,
            connect_timeout=1e-9,
            wait=1,
        )


def test_a_run_without_a_slot_ends_when_its_patience_is_over(site: Site) -> None:
    worker = site.worker(NODE)
    # Time that a process stood still counts for a second at most: one attempt is always made.
    with site.connect(ex.Farm(slow), 1, worker, patience=1.5) as manager:
        stream = manager.map(range(10_000))
        assert next(stream) == 0
        worker.kill()
        with pytest.raises(
            ex.NoWorkerError, match=r"none has come within 1\.5s \(patience\)"
        ) as raised:
            list(stream)
        (attempt,) = raised.value.attempts
        assert "refused" in str(attempt)


MANAGER = """
    import os, sys, time

    def slow(item):
        time.sleep(0.005)
        return os.getpid()

    with connect(ex.Farm(slow), 2) as manager:
        for number, process in enumerate(manager.map(range(1_000_000))):
            print(number, process, flush=True)
            if os.path.exists("stop"):
                break
    print("done", flush=True)
"""


def test_a_manager_that_stood_still_goes_on(site: Site) -> None:
    """As behind a laptop's lid: its slots hear nothing and leave. That was taken for a fault of their worker, once for each slot."""
    worker = site.worker(NODE, "--dead-after", SHORT, slots=2)
    script = site.script(MANAGER, worker.line)
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, text=True, cwd=site.place
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        try:
            # As many times as would set a worker aside.
            for _ in range(4):
                slots = {int(next(lines).split()[1]) for _ in range(100)}
                process.send_signal(signal.SIGSTOP)
                assert eventually(lambda: all(map(gone, slots)))  # noqa: B023
                process.send_signal(signal.SIGCONT)
                assert any(int(line.split()[1]) not in slots for line in lines)
            (site.place / "stop").touch()
            assert [line for line in lines if not line[0].isdigit()] == ["done\n"]
        finally:
            process.kill()
    assert process.returncode == 0


def test_a_worker_that_stood_still_comes_back(site: Site) -> None:
    worker = site.worker(NODE, slots=4)
    options = {"dead_after": 2.0}
    with site.connect(ex.Farm(slow), 4, worker, **options) as manager, running(manager):
        for _ in range(2):
            assert eventually(lambda: ready(manager) == 4)
            stopped = [worker.process.pid, *slots_of(worker.process.pid)]
            for process in stopped:
                os.kill(process, signal.SIGSTOP)
            assert eventually(lambda: ready(manager) == 0)
            assert [row.state for row in manager.status().workers] == ["lost"]
            for process in stopped:
                os.kill(process, signal.SIGCONT)
        assert eventually(lambda: ready(manager) == 4)


def test_silence_is_called_silence(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    worker = site.worker(NODE)
    with site.connect(ex.Farm(slow), 1, worker, dead_after=3.0) as manager, running(manager):
        (slot,) = slots_of(worker.process.pid)
        os.kill(slot, signal.SIGSTOP)
        lost = f"lost worker {NODE} at 127.0.0.1 (heard nothing from the peer for 3s"
        assert eventually(lambda: lost in caplog.text)
        os.kill(slot, signal.SIGKILL)


def test_a_manager_grows_when_the_slots_of_others_come_free(site: Site) -> None:
    worker = site.worker(NODE, slots=3)
    options: dict[str, Any] = {"workers": [worker.line], "policy": site.policy}
    options |= {"credential": site.credential}
    with ex.Manager(abs, ex.ParDegree(2), **options) as first:
        assert eventually(lambda: ready(first) == 2)
        # It asks for two more in vain, for so long.
        second = ex.Manager(abs, ex.ParDegree(3), connect_timeout=3.0, **options)
        with second:
            assert (ready(first), ready(second)) == (2, 1)
            first.close()
            assert eventually(lambda: ready(second) == 3)


def test_the_host_file_is_read_again(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = site.worker(NODE), site.worker("node2.lab.example.org")
    file = tmp_path / "hosts.txt"
    file.write_text(f"{one.line}\n")
    with site.connect(ex.Farm(slow), 2, workers=file) as manager:
        assert ready(manager) == 1
        replace(file, f"# both\n{one.line}\n{two.line}  # new\n")
        assert eventually(lambda: ready(manager) == 2)
        replace(file, f"{two.line}\n")
        assert eventually(lambda: "not listed" in " ".join(manager.status().recruiting))
        assert ready(manager) == 2
        one.kill()
        assert eventually(lambda: ready(manager) == 1)
        assert "again in" not in " ".join(manager.status().recruiting)
        replace(file, "a b c\n")

        def told() -> bool:
            assert list(manager.map([1])) == [-1]
            return "kept the list of workers of before" in caplog.text

        assert eventually(told)
        assert list(manager.map(range(5))) == [0, -1, -2, -3, -4]


def test_workers_are_a_file_or_a_list() -> None:
    with pytest.raises(
        FileNotFoundError, match=r"expected the path of a file with one .host:port NAME. a line"
    ):
        ex.Manager(abs, ex.ParDegree(1), workers="lab1:7601 lab2:7601")


def test_a_worker_that_is_against_its_manager_is_told_of(site: Site) -> None:
    """It proves who it is and goes, because of rules of its own: nobody was heard of, it said before."""
    address = free_address()
    refusing = '[allow]\nmanagers = ["nobody.example.org"]\n'
    worker = site.worker(NODE, join=f"tcp://{address}", policy=refusing)
    assert eventually(lambda: bool(slots_of(worker.process.pid)))
    found: list[ex.NoWorkerError] = []

    def is_told() -> bool:
        with pytest.raises(ex.NoWorkerError) as raised:
            site.connect(abs, 1, listen=address, wait=5)
        found.append(raised.value)
        return f"{NODE} proved who it is and left" in str(raised.value)

    # On a busy machine its next attempt may take longer than one wait.
    assert eventually(is_told), found
    (attempt,) = found[-1].attempts
    assert attempt.place == "127.0.0.1"


def test_status_tells_what_happens(site: Site) -> None:
    worker = site.worker(NODE, slots=2)
    nobody = free_address()
    told: list[ex.Status] = []
    seen: list[ex.Status] = []
    begun = threading.Event()

    def note(status: ex.Status) -> None:
        told.append(status)
        begun.set()

    hosts = [worker.line, nobody]
    with site.connect(ex.Farm(slow), 3, workers=hosts, on_capacity=note) as manager:
        assert begun.wait(60)
        with running(manager) as stream:
            assert stream.goes_on()

            def works() -> bool:
                # There are moments in which no slot has an item: when the stream's thread is late.
                seen.append(manager.status())
                return seen[-1].slots_ready == 2 and seen[-1].slots_busy > 0

            assert eventually(works)
            status = seen[-1]
            assert (status.slots_ready, status.slots_wanted) == (2, 3)
            assert 0 < status.slots_busy <= 2
            (one,) = status.streams
            assert one.items_running > 0
            assert one.items_waiting >= 0
            assert one.items_done > 0
            (row,) = status.workers
            assert (row.name, row.state, row.slots) == (NODE, "working", 2)
            assert any(line.startswith(f"dialling worker {nobody}") for line in status.recruiting)
            table = str(status).splitlines()
            assert table[0] == f"slots: 2 of 3 ready, {status.slots_busy} busy"
            assert table[1].startswith(f"stream 1: items: {one.items_waiting} waiting, ")
            assert table[2].split() == ["worker", "address", "state", "slots", "items"]
            assert table[3].split()[:3] == [NODE, row.address, "working"]
            assert table[4].startswith(f"recruiting: dialling worker {nobody}")
            worker.kill()
            assert eventually(lambda: told[-1].slots_ready == 0)
            (row,) = manager.status().workers
            assert (row.state, row.slots) == ("lost", 0)
            assert row.seconds < 60
            start(site, worker.address.removeprefix("tcp://"), slots=2)
            assert eventually(lambda: told[-1].slots_ready == 2)
    with pytest.raises(RuntimeError, match="the manager is closed"):
        manager.status()


def test_a_manager_without_a_thread_for_on_capacity_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    running = set(manager_module.running)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            ex.Manager(abs, ex.ParDegree(1), on_capacity=print)
    assert set(manager_module.running) == running


@pytest.mark.parametrize("end", ["manager.close()", "pass"])
def test_the_thread_of_on_capacity_ends_before_the_interpreter(end: str) -> None:
    script = f"""
        import threading
        import exoskel as ex

        def note(_status):
            assert not threading.current_thread().daemon

        manager = ex.Manager(abs, ex.ParDegree(1), on_capacity=note)
        {end}
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_what_on_capacity_raises_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_status: ex.Status) -> None:
        raise ValueError("no such pager")

    with ex.Manager(abs, ex.ParDegree(1), on_capacity=fail) as manager:
        assert list(manager.map([-1])) == [1]
        assert eventually(lambda: "no such pager" in caplog.text)
    assert "on_capacity failed" in caplog.text
