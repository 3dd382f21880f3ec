"""The supervisor of a worker: slots live as long as they should, and no longer."""

import ctypes
import fcntl
import functools
import itertools
import json
import operator
import os
import select
import selectors
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tests.processes import children, eventually, gone, slots_of, zygotes_of
from tests.promises import promised
from tests.site import Site, free_address

import exoskel
from exoskel.cli import background, main
from exoskel.cli.supervisor import Supervisor
from exoskel.errors import ExoskelError
from exoskel.hosts import HostAddress
from exoskel.job_orphans import namespace

# Runs the supervisor with a slot program of the test's own.
DRIVER = """
    import sys
    from exoskel import _core
    from exoskel.cli.supervisor import Supervisor

    program, slots, once = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "once"
    listener = _core.Listener("127.0.0.1:0")
    with Supervisor([sys.executable, program], b"", slots, once=once, listener=listener) as supervisor:
        print(listener.address.rpartition(":")[2], flush=True)
        code = supervisor.run()
    sys.exit(code)
"""

# Before a slot program.
ZYGOTE = """import sys
from exoskel import zygote

sys.argv[1:] = zygote.serve(sys.argv[1:])
"""

# Serves one connection: sends its process number and that of a process it has started, and ends with the peer.
SLOT = """
    import os, signal, socket, subprocess, sys

    signal.signal(signal.SIGTERM, {on_term})
    signal.signal(signal.SIGHUP, {on_term})
    listener = socket.socket(fileno=int(sys.argv[sys.argv.index("--listen-fd") + 1]))
    connection, _ = listener.accept()
    child = subprocess.Popen(["sleep", "600"])
    connection.sendall(f"{{os.getpid()}} {{child.pid}}\\n".encode())
    connection.recv(1)
    os._exit(0)
"""


@contextmanager
def supervised(
    directory: Path, program: str, slots: int = 1, mode: str = "forever", driver: str = DRIVER
) -> Iterator["subprocess.Popen[str]"]:
    (directory / "driver.py").write_text(textwrap.dedent(driver))
    (directory / "slot.py").write_text(ZYGOTE + textwrap.dedent(program))
    command = [
        sys.executable,
        str(directory / "driver.py"),
        str(directory / "slot.py"),
        str(slots),
        mode,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            # In order: what tasks have started outlives a supervisor that is killed.
            process.terminate()
            try:
                process.wait(timeout=60)
            finally:
                process.kill()


def port_of(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


@contextmanager
def served(port: int) -> Iterator[tuple[int, int]]:
    """Connect to a slot; give its process number and that of its child."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        slot, child = connection.recv(100).split()
        yield int(slot), int(child)


def test_a_slot_that_has_served_is_replaced_and_leaves_nothing(tmp_path: Path) -> None:
    with supervised(tmp_path, SLOT.format(on_term="signal.SIG_DFL")) as process:
        port = port_of(process)
        with served(port) as (first, child):
            pass
        with served(port) as (second, _):
            assert second != first
            assert eventually(lambda: gone(child))


def test_files_that_are_edited_while_the_first_slots_start_end_no_worker(tmp_path: Path) -> None:
    """A slot says so by its exit code."""
    slot = textwrap.dedent(SLOT.format(on_term="signal.SIG_DFL"))
    slot = "import sys\nif '--replacement' not in sys.argv:\n    sys.exit(2)\n" + slot
    with supervised(tmp_path, slot) as process, served(port_of(process)) as (served_by, _):
        assert not gone(served_by)


def test_a_slot_is_a_child_of_the_supervisor_in_a_session_of_its_own(tmp_path: Path) -> None:
    program = SLOT.format(on_term="signal.SIG_DFL")
    with (
        supervised(tmp_path, program, slots=3) as process,
        served(port_of(process)) as (slot, _),
    ):
        assert eventually(lambda: len(slots_of(process.pid)) == 3)
        assert slot in slots_of(process.pid)
        assert os.getsid(slot) == slot


# In the driver: a zygote that has answered before is given up soon. Its start may take long.
IMPATIENT = """from exoskel import zygote
    fork = zygote.Zygote.fork

    def impatient(self, *words):
        zygote._ANSWER_SECONDS = 10.0 if hasattr(self, "has_answered") else 60.0
        number = fork(self, *words)
        self.has_answered = True
        return number

    zygote.Zygote.fork = impatient
    program, slots"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_slots_are_replaced_when_the_zygote_is_gone_or_stands_still(
    number: signal.Signals, tmp_path: Path
) -> None:
    driver = DRIVER.replace("program, slots", IMPATIENT, 1)
    program = SLOT.format(on_term="signal.SIG_DFL")
    with supervised(tmp_path, program, driver=driver) as process:
        port = port_of(process)
        with served(port) as (slot, _):
            (zygote,) = zygotes_of(process.pid)
            os.kill(zygote, number)
        with served(port) as (another, _):
            assert another != slot
            assert gone(zygote)
        assert eventually(lambda: zygotes_of(process.pid) not in ([zygote], []))
        process.terminate()
        _, errors = process.communicate(timeout=60)
    assert errors.count("can't be started (its zygote") == 1


# The same, and its child detaches: another session, and no parent.
DETACHING_SLOT = """
    import os, signal, socket, sys, time

    def detached():
        reader, writer = os.pipe()
        if not os.fork():
            os.setsid()
            if not os.fork():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
                os.write(writer, str(os.getpid()).encode())
                time.sleep(600)
            os._exit(0)
        os.wait()
        return os.read(reader, 20).decode()

    listener = socket.socket(fileno=int(sys.argv[sys.argv.index("--listen-fd") + 1]))
    connection, _ = listener.accept()
    connection.sendall(f"{os.getpid()} {detached()}\\n".encode())
    connection.recv(1)
    os._exit(0)
"""


def test_what_a_task_detaches_ends_with_its_slot(tmp_path: Path) -> None:
    with supervised(tmp_path, DETACHING_SLOT, slots=2) as process:
        port = port_of(process)
        with served(port) as (_, stays):
            with served(port) as (_, goes):
                assert not gone(goes)
            assert eventually(lambda: gone(goes))
            assert not gone(stays)
            process.terminate()
            assert process.wait(timeout=60) == 0
            # It was told by then, and may not have had a processor since.
            assert eventually(lambda: gone(stays))


def test_what_a_task_detaches_does_not_outlive_a_killed_slot(tmp_path: Path) -> None:
    with supervised(tmp_path, DETACHING_SLOT) as process, served(port_of(process)) as (slot, child):
        os.kill(slot, signal.SIGKILL)
        assert eventually(lambda: gone(child))


def test_all_ends_soon_after_a_signal(tmp_path: Path) -> None:
    """Also a slot that doesn't want to, and what its task has started. Two seconds are a promise to users."""
    for number in (signal.SIGTERM, signal.SIGINT):
        with supervised(tmp_path, SLOT.format(on_term="signal.SIG_IGN"), slots=2) as process:
            port = port_of(process)
            with served(port) as one, served(port) as two:
                process.send_signal(number)
                assert process.wait(timeout=promised(2)) == 0
                assert eventually(lambda: all(map(gone, (*one, *two))), promised(0.5))


def test_a_signal_that_comes_when_the_supervisor_is_about_to_wait_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    woken: list[Any] = []

    class Selector(selectors.EpollSelector):
        def select(self, timeout: float | None = None) -> Any:
            # Both calls without a moment for Python's handlers between them.
            send = functools.partial(ctypes.PyDLL(None)["raise"], int(signal.SIGTERM))
            wait = functools.partial(select.epoll.poll, self._selector, 10)  # type: ignore[attr-defined]
            _, ready = map(operator.call, (send, wait))
            woken.append(ready)
            return []

    monkeypatch.setattr(selectors, "DefaultSelector", Selector)
    with Supervisor([], b"", 0) as supervisor:
        assert supervisor.run() == 0
    assert woken[0], "it waited for the time to pass"


def test_slots_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path, SLOT.format(on_term="signal.SIG_DFL")) as process:
        with served(port_of(process)) as (slot, child):
            process.kill()
            assert eventually(lambda: gone(slot))
        os.kill(child, signal.SIGKILL)


# Starts a zygote that begins to serve when it is told by standard input, and asks it for a slot.
STARTER = """
    import sys
    from exoskel.zygote import Zygote

    asked = []

    def is_ending():
        asked or print(zygote.process, flush=True)
        asked.append(True)
        return False

    zygote = Zygote([sys.executable, "-c", sys.argv[1], sys.argv[2]], [])
    zygote.fork(["--slot", "0"], is_ending)
"""

LATE_ZYGOTE = """
    import sys
    from exoskel import zygote

    open(sys.argv[1]).close()
    zygote.serve(sys.argv[2:])
    print("a slot lives")
"""


def test_a_zygote_does_not_outlive_a_supervisor_that_is_killed_while_it_starts(
    tmp_path: Path,
) -> None:
    """A request waits for the zygote then, and its slot would wait for managers for ever."""
    told = tmp_path / "told"
    os.mkfifo(told)
    programs = [textwrap.dedent(program) for program in (STARTER, LATE_ZYGOTE)]
    command = [sys.executable, "-c", *programs, str(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        zygote = int(starter.stdout.readline())
        starter.kill()
        starter.wait()
        told.write_text("")
        # The zygote and its slots have this pipe too: it ends when all of them have ended.
        assert starter.stdout.read() == ""
    assert eventually(lambda: gone(zygote))


@pytest.mark.parametrize("when", ["starting", "idle", "shaking hands", "serving"])
def test_a_worker_leaves_nothing_behind_when_its_supervisor_is_killed(
    when: str, site: Site
) -> None:
    """The port is free again, and no process is left: the fixture for leaks looks for those without a parent as well."""
    worker = site.worker("node1.lab.example.org", slots=2)
    place = ("127.0.0.1", int(worker.address.rpartition(":")[2]))
    with ExitStack() as stack:
        if when != "starting":
            supervisor = worker.process.pid
            assert eventually(lambda: len(slots_of(supervisor)) == 2)
            left = [*slots_of(supervisor), *zygotes_of(supervisor)]
        else:
            left = children(worker.process.pid)
        if when == "shaking hands":
            stranger = stack.enter_context(socket.create_connection(place))
            # The first bytes of a record of TLS, whose rest doesn't come.
            stranger.sendall(b"\x16\x03\x01")
        if when == "serving":
            manager = stack.enter_context(site.connect(exoskel.Farm(abs), 2, worker))
            assert list(manager.map([-1, 2])) == [1, 2]
        worker.process.kill()
        worker.process.wait()
        assert all(eventually(functools.partial(gone, process)) for process in left)
        assert eventually(functools.partial(is_free, place))


def is_free(place: tuple[str, int]) -> bool:
    """Say whether somebody else can listen there."""
    with socket.socket() as probe:
        # As workers do: connections that have ended are in nobody's way.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(place)
            probe.listen()
        except OSError:
            return False
    return True


def test_a_slot_that_stands_still_is_replaced(tmp_path: Path) -> None:
    driver = DRIVER.replace(
        "program, slots",
        "from exoskel.cli import supervisor as module; module._STOPPED_SECONDS = 0.2\n    program, slots",
        1,
    )
    program = SLOT.format(on_term="signal.SIG_DFL")
    with supervised(tmp_path, program, driver=driver) as process:
        port = port_of(process)
        with served(port) as (slot, child):
            os.kill(slot, signal.SIGSTOP)
            assert eventually(lambda: gone(slot) and gone(child))
        with served(port) as (another, _):
            assert another != slot


def test_once_ends_with_the_first_manager(tmp_path: Path) -> None:
    with supervised(
        tmp_path, SLOT.format(on_term="signal.SIG_DFL"), slots=3, mode="once"
    ) as process:
        with served(port_of(process)) as (slot, _):
            assert not gone(slot)
            assert process.poll() is None
        assert process.wait(timeout=60) == 0


def test_a_slot_that_fails_at_once_is_started_again_less_and_less_often(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    program = f"""
        import time
        with open({str(starts)!r}, "a") as file:
            print(time.monotonic(), file=file)
        raise SystemExit(1)
    """
    starts.touch()
    with supervised(tmp_path, program) as process:
        port_of(process)
        assert eventually(lambda: starts.read_text().count("\n") >= 5)
        process.terminate()
        _, errors = process.communicate(timeout=60)
    times = list(map(float, starts.read_text().split()))
    # On a busy machine a pause is longer than meant, on none is it shorter.
    pauses = [after - before for before, after in itertools.pairwise(times[:4])]
    assert all(pause >= least for pause, least in zip(pauses, (0.2, 0.4, 0.8), strict=True))
    assert errors.count("starting another") == 1


def test_the_worker_in_the_background_is_found_by_its_port(tmp_path: Path) -> None:
    credential = Site(tmp_path).issue("worker", "lab1")
    port = free_address().rpartition(":")[2]
    paths = [fake_slot(tmp_path, "import time; time.sleep(30)"), Path(exoskel.__file__).parents[1]]
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }

    def worker(*options: str) -> tuple[int, Any]:
        command = [
            sys.executable,
            "-m",
            "exoskel",
            "worker",
            "--json",
            "--listen",
            f"tcp://127.0.0.1:{port}",
            *options,
        ]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
        return done.returncode, json.loads(done.stdout)

    start = ["--credential", str(credential), "--slots", "1", "--background"]
    code, started = worker(*start)
    assert code == 0, started
    assert not gone(started["process"])
    assert (tmp_path / ".exoskel/run").stat().st_mode & 0o777 == 0o700

    running = {"running": True, **{key: started[key] for key in ("process", "log")}}
    running |= {"name": "lab1", "policy": ""}
    assert worker("--status") == (0, running)

    log = Path(started["log"])
    said = log.read_bytes()
    code, refused = worker(*start)
    assert code == 1
    there = f"a worker runs in the background on 127.0.0.1:{port} already (process {started['process']}); --stop stops it"
    assert refused == {"error": there}
    assert not gone(started["process"])
    assert log.read_bytes() == said

    assert worker("--stop") == (0, {"stopped": True})
    assert gone(started["process"])
    assert worker("--stop") == (0, {"stopped": False})
    assert worker("--status") == (1, {"running": False})


def test_a_worker_that_takes_the_place_of_a_stopped_one_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    address = HostAddress("127.0.0.1", 7601, "lab1")
    path = background.run_directory() / f"worker-{os.uname().nodename}-7601.pid"
    first = """if True:
        import fcntl, os, signal, sys
        from exoskel.job_orphans import named
        def end(*_):
            os.unlink(sys.argv[1])
            print("gone", flush=True)
            sys.stdin.readline()
            sys.exit()
        file = open(sys.argv[1], "w")
        fcntl.flock(file, fcntl.LOCK_EX)
        signal.signal(signal.SIGTERM, end)
        print(named(), 60.0, "lab1", end="", file=file, flush=True)
        print("runs", flush=True)
        signal.pause()
    """
    with (
        subprocess.Popen(
            [sys.executable, "-c", first, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process,
        ThreadPoolExecutor(1) as stopping,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"runs\n"
        stopped = stopping.submit(background.stop, address)
        assert process.stdout.readline() == b"gone\n"
        # The first one has let go of its port; it is about to end.
        with background.registered(1, address, 0.0, "lab2", ""):
            process.stdin.close()
            assert stopped.result(30) == "stopped"
            found = background.running(address)
    assert found is not None
    assert (found.process, found.name) == (os.getpid(), "lab2")


def test_a_worker_whose_file_is_removed_while_it_takes_it_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one's ``--stop`` has seen the file before."""
    monkeypatch.setenv("HOME", str(tmp_path))
    address = HostAddress("127.0.0.1", 7601, "lab1")
    path = background.run_directory() / f"worker-{os.uname().nodename}-7601.pid"
    flock = fcntl.flock
    removed: list[Path] = []

    def late(file: Any, operation: int) -> None:
        if not removed:
            path.unlink()
            removed.append(path)
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", late)
    with background.registered(1, address, 0.0, "lab1", ""):
        found = background.running(address)
    assert removed
    assert found is not None
    assert found.process == os.getpid()


@pytest.fixture
def number_of_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Have the file of a worker that was ended without a word, and whose number another process has got since."""
    monkeypatch.setenv("HOME", str(tmp_path))
    path = background.run_directory() / f"worker-{os.uname().nodename}-7601.pid"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as another:
        # A worker of this number that began one tick after the machine.
        path.write_text(f"{namespace()}.{another.pid}.1 0.0 lab1 ")
        yield path
        assert another.poll() is None, "a process that is no worker was ended"
        another.communicate(b"\n")
        # Signals that it got end it otherwise.
        assert another.returncode == 0


def test_a_process_that_has_got_the_number_of_a_worker_is_not_ended(
    number_of_another: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is gone, but somebody else looks whether it is there at the very moment, and holds its file for that."""
    address = HostAddress("127.0.0.1", 7601, "lab1")
    flock = fcntl.flock
    tried: list[int] = []

    def held_at_first(file: Any, operation: int) -> None:
        tried.append(operation)
        if len(tried) == 1:
            raise BlockingIOError
        flock(file, operation)

    monkeypatch.setattr(fcntl, "flock", held_at_first)
    assert background.stop(address) == "none"
    assert len(tried) > 1
    assert not number_of_another.exists()


def test_a_place_that_a_worker_has_left_to_what_it_started_is_said(
    number_of_another: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = HostAddress("127.0.0.1", 7601, "lab1")
    monkeypatch.setattr(background, "_END_SECONDS", 0.0)
    with number_of_another.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert background.running(address) is None
        with pytest.raises(
            ExoskelError, match=r"has ended, but something .* holds .*7601\.pid open"
        ):
            background.stop(address)
    assert background.stop(address) == "none"


def test_a_worker_of_another_namespace_or_version_is_left_alone(
    number_of_another: Path,
) -> None:
    address = HostAddress("127.0.0.1", 7601, "lab1")
    number = number_of_another.read_text().split(".")[1]
    with number_of_another.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        number_of_another.write_text(f"{namespace() + 1}.{number}.1 0.0 lab1 ")
        with pytest.raises(ExoskelError, match="in another PID namespace"):
            background.stop(address)
        assert background.running(address) is not None
        number_of_another.write_text(f"{number} 0.0 lab1 ")
        with pytest.raises(ExoskelError, match=f"earlier version .*kill {number}"):
            background.stop(address)


def test_a_worker_that_does_not_want_to_end_is_ended_before_stop_returns(tmp_path: Path) -> None:
    """So that another one can listen there at once. Slots that ignore signals are killed by the worker, a worker that does by ``--stop``."""
    credential = Site(tmp_path).issue("worker", "lab1")
    port = free_address().rpartition(":")[2]
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.signal(signal.SIGHUP, signal.SIG_IGN); time.sleep(60)"
    paths = [fake_slot(tmp_path, stubborn), Path(exoskel.__file__).parents[1]]
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }

    def worker(*options: str) -> Any:
        command = [
            sys.executable,
            "-m",
            "exoskel",
            "worker",
            "--json",
            "--listen",
            f"tcp://127.0.0.1:{port}",
        ]
        done = subprocess.run(
            [*command, *options], capture_output=True, text=True, env=environment, check=False
        )
        return json.loads(done.stdout)

    start = ["--credential", str(credential), "--slots", "2", "--background", "--drain", "0"]
    for end in ({"stopped": True}, {"stopped": True, "killed": True}):
        process = worker(*start)["process"]
        assert eventually(lambda: len(slots_of(process)) == 2)  # noqa: B023  # called in this round
        slots = slots_of(process)
        if "killed" in end:
            os.kill(process, signal.SIGSTOP)
        assert worker("--stop") == end
        assert gone(process)
        assert all(eventually(functools.partial(gone, slot)) for slot in slots)


def write_credential(path: Path) -> None:
    """Write what looks like a credential from outside."""
    path.touch(0o600)
    path.write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n")


def fake_slot(directory: Path, code: str) -> Path:
    """Make slots of new Python processes something else."""
    place = directory / "site"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        "import sys\nif 'exoskel.slot' in sys.orig_argv:\n    from exoskel import zygote\n"
        "    zygote.serve(sys.orig_argv[sys.orig_argv.index('exoskel.slot') + 1 :])\n"
        f"    exec({code!r})\n    sys.exit(0)\n"
    )
    return place


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["worker"], "one of the arguments --listen --join is required"),
        (["worker", "--listen", "tcp://:1", "--join", "tcp://a:1"], "not allowed with"),
        (["worker", "--listen", "tcp://0.0.0.0:1"], "--credential is required"),
        (["worker", "--listen", "tcp://a:1", "--slots", "0"], "expected 1 to 4096 slots"),
        (["worker", "--join", "tcp://a:1", "--background"], "go with --listen"),
        (["worker", "--join", "tcp://a:1", "--status"], "go with --listen"),
        (["worker", "--listen", "tcp://127.0.0.1:0", "--background"], "a port other than 0"),
        (["worker", "--listen", "tcp://a:1", "--stop", "--status"], "not allowed with"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_exits_with_2(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["role", "time", "policy", "sandbox"])
def test_a_worker_judges_its_files_before_it_listens(fault: str, tmp_path: Path) -> None:
    """It says what is wrong once, however many slots it has, and nobody is told that it listens."""
    site = Site(tmp_path)
    credential = site.credential
    policy = "# nothing\n"
    if fault == "time":
        credential = site.issue("worker", "lab1", "--days", "0.00001")
    elif fault == "policy":
        credential = site.issue("worker", "lab1")
        policy = "[deny]\nban_list = 'none.txt'\n"
    elif fault == "sandbox":
        credential = site.issue("worker", "lab1")
        policy = f"[sandbox]\nmanagers = ['*']\nread = ['/usr', '{tmp_path}']\n"
    (tmp_path / "policy.toml").write_text(policy)
    # A second or so.
    assert eventually(lambda: fault != "time" or is_over(credential))
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--listen", "tcp://127.0.0.1:0"]
    command += ["--slots", "3", "--credential", str(credential)]
    command += ["--policy", str(tmp_path / "policy.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert done.stderr.endswith("\n")
    assert line.startswith("exoskel: error: ")
    expected = {"role": "worker", "time": "expired", "policy": "none.txt"}
    expected["sandbox"] = "which is its own credential"
    assert expected[fault] in line
    assert fault == "policy" or str(credential) in line


def is_over(credential: Path) -> bool:
    """Say whether a credential's time is over."""
    text = credential.read_bytes().partition(b"-----END CERTIFICATE-----")
    certificate = x509.load_pem_x509_certificate(text[0] + text[1])
    # It is good until the end of its last second.
    return certificate.not_valid_after_utc + timedelta(seconds=1) <= datetime.now(UTC)


def test_what_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    listen = ["worker", "--listen", "tcp://127.0.0.1:0", "--credential"]
    assert main([*listen, str(tmp_path / "none.pem")]) == 1
    assert (
        capsys.readouterr().err
        == f"exoskel: error: {tmp_path}/none.pem: no such file or directory\n"
    )
    credential = tmp_path / "worker.pem"
    credential.touch(0o600)
    assert main([*listen, str(credential)]) == 1
    assert "is empty" in capsys.readouterr().err
    credential.write_text("hello")
    # Nobody is to make a text without a secret unreadable for others.
    for mode in (0o600, 0o644):
        credential.chmod(mode)
        assert main([*listen, str(credential)]) == 1
        assert "is no credential" in capsys.readouterr().err
        with pytest.raises(exoskel.CredentialError, match="is no credential"):
            exoskel.Manager(abs, exoskel.ParDegree(1), workers=["lab1"], credential=credential)
    write_credential(credential)
    credential.chmod(0o640)
    assert main([*listen, str(credential)]) == 1
    assert (
        f"(mode 0640, expected 0600 or 0400): run chmod 600 {credential}" in capsys.readouterr().err
    )
    credential.chmod(0o600)
    assert main([*listen, str(credential)]) == 1
    assert str(credential) in capsys.readouterr().err
    credential = Site(tmp_path).issue("worker", "lab1")
    capsys.readouterr()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert (
            main(
                [
                    "worker",
                    "--json",
                    "--listen",
                    f"tcp://127.0.0.1:{port}",
                    "--credential",
                    str(credential),
                ]
            )
            == 1
        )
    assert "can't listen on tcp://127.0.0.1" in json.loads(capsys.readouterr().out)["error"]
    assert main(["worker", "--listen", "udp://a:1", "--credential", str(credential)]) == 1
    assert "expected tcp://host:port" in capsys.readouterr().err
