"""Workers and managers that meet at a Unix socket: the kernel says who is at the other end, and certificates still have to."""

import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, gone, slots_of
from tests.site import POLICY, Site

import exoskel as ex
from exoskel.cli import main

NAME = "node1.lab.example.org"


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    """Choose a place for a socket, which is free again at the end."""
    chosen = tmp_path / "worker.sock"
    yield chosen
    assert eventually(lambda: not chosen.exists())


def absolutes(manager: ex.Manager) -> list[int]:
    return list(manager.map(range(-100, 0)))


EXPECTED = list(range(100, 0, -1))


def test_a_worker_of_this_account_is_on_this_host(
    site: Site, path: Path, caplog: pytest.LogCaptureFixture, request: pytest.FixtureRequest
) -> None:
    """With no policy at all: the built-in domain, whose data travel in clear."""
    worker = site.worker(NAME, listen=f"unix:{path}", slots=2, policy="# nothing\n")
    request.addfinalizer(worker.end)
    assert worker.address == f"unix:{path}"
    assert path.stat().st_mode & 0o7777 == 0o600
    with (
        caplog.at_level(logging.INFO, logger="exoskel.audit"),
        site.connect(ex.Farm(abs), 2, worker, policy=None) as manager,
    ):
        assert eventually(lambda: manager.status().slots_ready == 2)
        assert absolutes(manager) == EXPECTED
        (row,) = manager.summary().workers
        table = str(manager.summary())
    assert (row.name, row.transport, row.address) == (NAME, "unix", str(path))
    assert (row.domain, row.protection, row.slots) == ("host", "plain", 2)
    assert "unix:/" in table
    # At both ends, the kernel's word on who it is: the one that listens, and the one that connects.
    account = os.geteuid()
    listens = f"unix:{path} (process {worker.process.pid} of account {account})"
    assert f"accepted worker {NAME} at {listens}: " in caplog.text
    assert "(SameHost, domain host)" in caplog.text
    connects = f"unix:{path} (process {os.getpid()} of account {account})"
    written = worker.log.read_text()
    assert f"accepted manager head.lab.example.org at {connects}: " in written
    assert written.count(", domain host") == 2


def test_the_stricter_end_decides_inside_a_host_too(site: Site, path: Path) -> None:
    strict = '[[rule]]\nfrom = "host"\nto = "host"\nprotection = "encrypted"\n'
    worker = site.worker(NAME, listen=f"unix:{path}", policy=strict)
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        assert absolutes(manager) == EXPECTED
        (row,) = manager.summary().workers
    assert (row.domain, row.protection) == ("host", "encrypted")
    worker.end()


def test_the_kernel_s_word_replaces_no_certificate(site: Site, path: Path, tmp_path: Path) -> None:
    worker = site.worker(NAME, listen=f"unix:{path}")
    with pytest.raises(ex.NoWorkerError, match=r"worker\.sock.*node1.*other"):
        site.connect(ex.Farm(abs), 1, workers=[f"{worker.address} other.lab.example.org"])
    (tmp_path / "strangers").mkdir()
    stranger = Site(tmp_path / "strangers")
    with pytest.raises(ex.NoWorkerError, match=r"worker\.sock.*refused"):
        stranger.connect(ex.Farm(abs), 1, worker)
    worker.end()


def test_the_name_is_that_of_this_machine_unless_the_line_says_another(
    site: Site, path: Path
) -> None:
    worker = site.worker(os.uname().nodename, listen=f"unix:{path}")
    hosts = site.place / "hosts.txt"
    hosts.write_text(f"# beside us\nunix:{path}\n")
    with site.connect(ex.Farm(abs), 1, workers=hosts) as manager:
        assert absolutes(manager) == EXPECTED
    worker.end()


def test_workers_join_at_a_unix_socket(site: Site, path: Path) -> None:
    for number in (1, 2):
        site.worker(f"node{number}.lab.example.org", join=f"unix:{path}", policy="# nothing\n")
    with site.connect(ex.Farm(abs), 2, listen=f"unix:{path}", wait=60, policy=None) as manager:
        assert path.stat().st_mode & 0o7777 == 0o600
        assert absolutes(manager) == EXPECTED
        rows = manager.summary().workers
        # A second manager doesn't take the place of the first.
        with pytest.raises(ex.LinkError, match=r"worker\.sock: the address is in use"):
            site.connect(ex.Farm(abs), 1, listen=f"unix:{path}", wait=1)
        assert absolutes(manager) == EXPECTED
    assert {(row.name, row.transport, row.domain, row.protection) for row in rows} == {
        (f"node{number}.lab.example.org", "unix", "host", "plain") for number in (1, 2)
    }


def test_a_killed_worker_s_socket_is_replaced_and_a_live_one_s_is_not(
    site: Site, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = site.worker(NAME, listen=f"unix:{path}")
    second = ["worker", "--listen", f"unix:{path}", "--slots", "1", "--credential"]
    assert main([*second, str(site.issue("worker", "node2.lab.example.org"))]) == 1
    assert "is in use; is another program running there?" in capsys.readouterr().err
    with site.connect(ex.Farm(abs), 1, first) as manager:
        assert absolutes(manager) == EXPECTED
    first.kill()
    assert path.exists()
    worker = site.worker("node3.lab.example.org", listen=f"unix:{path}")
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        assert absolutes(manager) == EXPECTED
    worker.end()


def test_a_relay_under_this_account_is_not_this_host(site: Site, path: Path) -> None:
    """As `ssh -L /here.sock:/there.sock` is: the kernel vouches for it at both ends."""
    relay = path.with_name("relay.sock")
    worker = site.worker(NAME, listen=f"unix:{path}", policy=POLICY)
    program = f"""
        import socket, threading

        def carry(source, sink):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

        listener = socket.socket(socket.AF_UNIX)
        listener.bind({str(relay)!r})
        listener.listen()
        print("ready", flush=True)
        near, _ = listener.accept()
        far = socket.socket(socket.AF_UNIX)
        far.connect({str(path)!r})
        threading.Thread(target=carry, args=(near, far)).start()
        carry(far, near)
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE
    ) as carrier:
        assert carrier.stdout is not None
        assert carrier.stdout.readline() == b"ready\n"
        with site.connect(ex.Farm(abs), 1, workers=[f"unix:{relay} {NAME}"]) as manager:
            assert absolutes(manager) == EXPECTED
            (row,) = manager.summary().workers
        carrier.wait(timeout=60)
    assert (row.domain, row.protection) == ("", "encrypted")
    worker.end()


ACCOUNT = 54_321

# Another account, which may yet read where this Python is installed.
AS_ANOTHER_ACCOUNT = [
    "setpriv",
    f"--reuid={ACCOUNT}",
    f"--regid={ACCOUNT}",
    "--clear-groups",
    "--inh-caps=+dac_read_search",
    "--ambient-caps=+dac_read_search",
]


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None,
    reason="only root, with setpriv, can start a worker of another account",
)
def test_a_worker_of_another_account_is_not_trusted(site: Site) -> None:
    """Root can connect to everybody's sockets; that doesn't make everybody root's."""
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        credential = place / f"{NAME}.pem"
        shutil.copy(site.issue("worker", NAME), credential)
        for one in (place, credential):
            os.chown(one, ACCOUNT, ACCOUNT)
        path = place / "worker.sock"
        listen = ["--listen", f"unix:{path}", "--slots", "1", "--credential", str(credential)]
        with subprocess.Popen(
            [*AS_ANOTHER_ACCOUNT, sys.executable, "-P", "-m", "exoskel", "worker", *listen],
            stdout=subprocess.PIPE,
            cwd=place,
            env={**os.environ, "HOME": name},
        ) as worker:
            assert worker.stdout is not None
            assert b"listening" in worker.stdout.readline()
            with site.connect(ex.Farm(abs), 1, workers=[f"unix:{path} {NAME}"]) as manager:
                assert absolutes(manager) == EXPECTED
                (row,) = manager.summary().workers
            worker.terminate()
        assert not path.exists()
    assert (row.transport, row.domain, row.protection) == ("unix", "", "encrypted")


def test_the_worker_in_the_background_is_found_by_its_socket(site: Site, path: Path) -> None:
    def worker(*options: str) -> Any:
        command = [sys.executable, "-m", "exoskel", "worker", "--listen", f"unix:{path}", "--json"]
        done = subprocess.run(
            [*command, *options],
            capture_output=True,
            check=True,
            env={**os.environ, "HOME": str(site.place)},
        )
        return json.loads(done.stdout)

    credential = str(site.issue("worker", NAME))
    started = worker("--credential", credential, "--slots", "1", "--background")
    assert started["listen"] == f"unix:{path}"
    with site.connect(ex.Farm(abs), 1, workers=[f"unix:{path} {NAME}"]) as manager:
        assert absolutes(manager) == EXPECTED
    assert worker("--stop") == {"stopped": True}
    assert eventually(lambda: gone(started["process"]))
    assert not path.exists()
    assert worker("--stop") == {"stopped": False}


def test_a_socket_goes_with_its_manager_however_it_ends(site: Site, path: Path) -> None:
    script = f"""
        import os, signal, sys
        try:
            connect(abs, slots=1, workers=None, listen="unix:{path}", wait=0.1)
        except ex.NoWorkerError:
            print(os.path.exists({str(path)!r}))
    """
    assert site.run(script).stdout == "False\n"


def test_slots_outlive_no_worker_whose_socket_was_removed(site: Site, path: Path) -> None:
    worker = site.worker(NAME, listen=f"unix:{path}", slots=2)
    assert eventually(lambda: len(slots_of(worker.process.pid)) == 2)
    path.unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        slots = slots_of(worker.process.pid)
        worker.process.send_signal(signal.SIGTERM)
        worker.end()
        assert not any(Path(f"/proc/{slot}").exists() for slot in slots)
        # What somebody else has put there stays.
        assert path.exists()
    path.unlink()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("relative.sock", "expected an absolute path"),
        ("/" + "x" * 120, "name too long"),
        ("/nowhere/worker.sock", "no such file"),
        ("/dev/null", "no socket"),
    ],
)
def test_places_that_cannot_be_had_are_named(
    place: str, said: str, site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    credential = site.issue("worker", NAME)
    command = ["worker", "--listen", f"unix:{place}", "--credential", str(credential)]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert said in error.lower()
    assert place in error
    with pytest.raises((ex.LinkError, ValueError), match=f"(?i){said}"):
        site.connect(ex.Farm(abs), 1, listen=f"unix:{place}", wait=1)
