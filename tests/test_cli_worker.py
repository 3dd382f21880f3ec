"""The supervisor of a worker: slots live as long as they should, and no longer."""

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, gone
from tests.site import free_address

import exoskel
from exoskel.cli import main

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

# Serves one connection: sends its process number and that of a process it has started, and ends with the peer.
SLOT = """
    import os, signal, socket, subprocess, sys

    signal.signal(signal.SIGTERM, {on_term})
    listener = socket.socket(fileno=int(sys.argv[sys.argv.index("--listen-fd") + 1]))
    connection, _ = listener.accept()
    child = subprocess.Popen(["sleep", "60"])
    connection.sendall(f"{{os.getpid()}} {{child.pid}}\\n".encode())
    connection.recv(1)
    os._exit(0)
"""


@contextmanager
def supervised(
    directory: Path, program: str, slots: int = 1, mode: str = "forever"
) -> Iterator["subprocess.Popen[str]"]:
    (directory / "driver.py").write_text(textwrap.dedent(DRIVER))
    (directory / "slot.py").write_text(textwrap.dedent(program))
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
            process.kill()


def port_of(process: "subprocess.Popen[str]") -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


@contextmanager
def served(port: int) -> Iterator[tuple[int, int]]:
    """Connect to a slot; give its process number and that of its child."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
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
                time.sleep(60)
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
            assert process.wait(timeout=2) == 0
            assert gone(stays)


def test_what_a_task_detaches_does_not_outlive_a_killed_slot(tmp_path: Path) -> None:
    with supervised(tmp_path, DETACHING_SLOT) as process, served(port_of(process)) as (slot, child):
        os.kill(slot, signal.SIGKILL)
        assert eventually(lambda: gone(child))


def test_all_ends_within_two_seconds_of_a_signal(tmp_path: Path) -> None:
    """Also a slot that doesn't want to, and what its task has started.

    The two seconds are a promise to users, and so the one kind of time that tests assert.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        with supervised(tmp_path, SLOT.format(on_term="signal.SIG_IGN"), slots=2) as process:
            port = port_of(process)
            with served(port) as one, served(port) as two:
                process.send_signal(number)
                assert process.wait(timeout=2) == 0
                assert eventually(lambda: all(map(gone, (*one, *two))), 0.5)


def test_slots_do_not_outlive_a_killed_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path, SLOT.format(on_term="signal.SIG_DFL")) as process:
        with served(port_of(process)) as (slot, child):
            process.kill()
            assert eventually(lambda: gone(slot))
        os.kill(child, signal.SIGKILL)


def test_once_ends_with_the_first_manager(tmp_path: Path) -> None:
    with supervised(
        tmp_path, SLOT.format(on_term="signal.SIG_DFL"), slots=3, mode="once"
    ) as process:
        with served(port_of(process)) as (slot, _):
            assert not gone(slot)
            assert process.poll() is None
        assert process.wait(timeout=5) == 0


def test_a_slot_that_can_never_start_ends_the_worker(tmp_path: Path) -> None:
    program = "import sys; print('the credential has expired', file=sys.stderr); sys.exit(2)"
    with supervised(tmp_path, program, slots=2) as process:
        _, errors = process.communicate(timeout=10)
        assert process.returncode == 1
        assert "the credential has expired" in errors


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
        assert eventually(lambda: starts.read_text().count("\n") == 4)
        process.terminate()
        _, errors = process.communicate(timeout=5)
    times = list(map(float, starts.read_text().split()))
    # On a busy machine a pause is longer than meant, on none is it shorter.
    pauses = [after - before for before, after in itertools.pairwise(times)]
    assert all(pause >= least for pause, least in zip(pauses, (0.2, 0.4, 0.8), strict=True))
    assert errors.count("starting another") == 1


def test_the_worker_in_the_background_is_found_by_its_port(tmp_path: Path) -> None:
    credential = tmp_path / "worker.pem"
    write_credential(credential)
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

    code, refused = worker(*start)
    assert code == 1
    assert "is another worker running there?" in refused["error"]
    assert not gone(started["process"])

    assert worker("--stop") == (0, {"stopped": True})
    assert eventually(lambda: gone(started["process"]))
    assert worker("--stop") == (0, {"stopped": False})


def write_credential(path: Path) -> None:
    """Write what looks like a credential from outside."""
    path.touch(0o600)
    path.write_text("-----BEGIN CERTIFICATE-----\n-----BEGIN PRIVATE KEY-----\n")


def fake_slot(directory: Path, code: str) -> Path:
    """Make the slot module of a new Python process something else."""
    place = directory / "site"
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        f"import sys\nif 'exoskel.slot' in sys.orig_argv:\n    exec({code!r})\n    sys.exit(0)\n"
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
    assert main([*listen, str(credential)]) == 1
    assert "is no credential" in capsys.readouterr().err
    write_credential(credential)
    credential.chmod(0o640)
    assert main([*listen, str(credential)]) == 1
    assert (
        f"(mode 0640, expected 0600 or 0400): run chmod 600 {credential}" in capsys.readouterr().err
    )
    credential.chmod(0o600)
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
