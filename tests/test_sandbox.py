"""Sandboxes of a job's processes: what gets out of them, and what runs in them. Attacks run under an account without rights."""

from __future__ import annotations

import json
import os
import platform
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.sandbox_account import greeted
from tests.sandbox_attacks import ATTACKS

import exoskel as ex
from exoskel.job_dialling import ConnectionMaker, is_of_network

# No account of any system has it.
ACCOUNT = 63_127
ROOT = Path(__file__).parents[1]
# What an attack ends with, if it is something else than a right that is missing.
OTHER_ENDS = {
    "finds a secret of its agent in the environment": "KeyError",
    "takes more memory": "MemoryError",
    "takes more memory by a shared mapping": "Cannot allocate memory",
    "takes more memory by what waits in sockets": "Too many open files",
    "writes a longer file": "File too large",
    "starts more processes": "Resource temporarily unavailable",
}
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the attacks have the numbers of system calls of x86-64"
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder of the account."""
    with tempfile.TemporaryDirectory(prefix="exoskel-sandbox-", dir="/tmp") as name:
        if os.getuid() == 0:
            os.chown(name, ACCOUNT, ACCOUNT)
        yield Path(name)


def python_for_all() -> str:
    """Return a Python of this version that every account may run: this one may be in somebody's own folder."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for found in (
        os.path.realpath(sys.executable),
        shutil.which(version, path="/usr/bin:/usr/local/bin"),
    ):
        if found and all(one.stat().st_mode & 0o001 for one in Path(found).parents):
            return found
    pytest.skip(f"there is no {version} that every account may run")


def run(what: str, folder: Path, module: str = "sandbox_account") -> Any:
    """Run a function of a module under an account without rights, and return what it prints."""
    is_root = os.getuid() == 0
    own = folder / what
    own.mkdir()
    if is_root:
        os.chown(own, ACCOUNT, ACCOUNT)
    modules = [path for path in sys.path if path.endswith("site-packages")]
    env = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(own),
        "TMPDIR": str(folder),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "python"), *modules, str(ROOT)]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    account = {"user": ACCOUNT, "group": ACCOUNT, "extra_groups": []} if is_root else {}
    ran = subprocess.run(
        [python_for_all(), "-m", f"tests.{module}", what, str(own)],
        env=env,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        **account,  # type: ignore[call-overload]
    )
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def tried(folder: Path) -> dict[str, dict[str, list[Any]]]:
    """How all attacks have ended, in a sandbox and free."""
    found: dict[str, dict[str, list[Any]]] = run("attack", folder)
    return found


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_an_account_may_do_a_sandbox_holds_back(
    tried: dict[str, dict[str, list[Any]]], attack: str
) -> None:
    """Each attack succeeds without a sandbox, or it would show nothing."""
    free, held = tried[attack]["free"], tried[attack]["sandboxed"]
    assert free[0] == 0, free
    assert held[0] == 1
    assert OTHER_ENDS.get(attack, "PermissionError") in held[1]


@pytest.fixture(scope="module")
def returned(folder: Path) -> dict[str, Any]:
    """What functions in sandboxes have returned."""
    found: dict[str, Any] = run("functions", folder)
    return found


def test_numpy_computes_in_a_sandbox_with_limits(returned: dict[str, Any]) -> None:
    assert returned["computed"] == [[1_000_000.0, ["written"], True]] * 2


def test_siblings_in_sandboxes_reach_each_other_by_their_agent(returned: dict[str, Any]) -> None:
    assert returned["ring"] == [[[1, 0]], [[2, 1]], [[0, 2]]]


def test_a_process_without_network_is_told_so_and_still_answers_its_creator(
    returned: dict[str, Any],
) -> None:
    assert all('network="none"' in text for text in returned["alone"])


def test_an_agent_connects_processes_with_siblings_alone(returned: dict[str, Any]) -> None:
    [said] = returned["asked"]
    assert "siblings alone" in said


def test_siblings_in_sandboxes_reach_each_other_between_hosts(tmp_path: Path) -> None:
    """An agent takes the word of another one for where its processes listen."""
    place = tmp_path / "ssh"
    place.write_text('#!/bin/sh\ncd / && exec sh -c "$2"\n')
    place.chmod(0o700)
    hosts = ex.Ssh(["lab1", "lab2"], python=sys.executable, command=[str(place)])
    with ex.Job(hosts) as job:
        # The function is imported from where these tests are.
        sandbox = ex.Sandbox(read=["/"], memory="8 GiB")
        started = job.start(greeted, 2, sandbox=sandbox)
        assert [one.host for one in started.result(60)] == ["lab1", "lab2"]
        assert started.values(timeout=60) == [[[1, 0]], [[0, 1]]]


@pytest.mark.parametrize(
    ("address", "leads"),
    [
        ("192.0.2.7:7000", True),
        ("[2001:db8::7]:7000", True),
        ("127.0.0.1:22", False),
        ("[::1]:22", False),
        ("0.0.0.0:22", False),
        ("169.254.169.254:80", False),
        ("[::ffff:127.0.0.1]:22", False),
        ("unix:/run/docker.sock", False),
        ("lab1:22", False),
        ("192.0.2.7:x", False),
        ("", False),
    ],
)
def test_an_agent_takes_no_address_of_its_own_host_from_another_one(
    address: str, leads: bool
) -> None:
    assert is_of_network(address) is leads


def test_programs_in_sandboxes_join_their_job(returned: dict[str, Any]) -> None:
    assert returned["joined"] == [1, 0]


def test_a_listener_that_is_shut_down_connects_to_nobody(returned: dict[str, Any]) -> None:
    """Without a sandbox, its first bytes would."""
    assert returned["reconnected"] == ["refused", "connected"]


def test_a_summary_says_what_holds_each_process(returned: dict[str, Any]) -> None:
    assert "held to 64 processes and threads, 4294967296 bytes of memory" in returned["summary"]
    assert "sockets among them (seccomp): process" in returned["summary"]


def ended(sandbox: ex.Sandbox, what: Any = ("true",)) -> str:
    """Start a process that can't be confined, and return why not."""
    with ex.Job() as job:
        started = job.start(what, sandbox=sandbox)
        assert started.wait(timeout=60) == [126]
        summary = job.summary().processes[0]
        assert summary.sandbox == ()
        return summary.stderr


def nothing(here: Any) -> None:
    """Must not run."""
    os.write(2, b"it runs")


def test_what_can_not_be_held_is_an_error_and_nothing_runs(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    for sandbox in (ex.Sandbox(read=[gone]), ex.Sandbox(write=[gone])):
        assert f"can't let it use {gone}: No such file" in ended(sandbox)
    text = ended(ex.Sandbox(read=[tmp_path], system=False), nothing)
    assert "contradicts itself" in text
    assert "add it to `read`" in text
    assert "it runs" not in text


@pytest.mark.parametrize("kind", ["read", "write", "link"])
def test_no_path_is_used_that_code_could_put_another_into_the_place_of(
    tmp_path: Path, kind: str
) -> None:
    """Code of one process could leave a link to anything there for the next one. How paths are written doesn't show it: the host sees it."""
    scratch, other = tmp_path / "scratch", tmp_path / "other"
    scratch.mkdir()
    other.symlink_to(scratch)
    inner = other / "inner"
    if kind == "link":
        inner.symlink_to(tmp_path)
    else:
        inner.mkdir()
    read = [] if kind == "write" else [inner]
    write = [scratch, inner] if kind == "write" else [scratch]
    said = f"{inner}, which is reached by way of {scratch}, where code may write"
    sandbox = ex.Sandbox(read=read, write=write)
    text = ended(sandbox, nothing)
    assert said in text
    assert "it runs" not in text
    with ex.Job() as job, pytest.raises(ex.ProcessEndedError, match=re.escape(said)):
        job.start(("true",), sandbox=sandbox).wait(timeout=60)


def read_file(_here: Any, place: str) -> str:
    """Read a file in a sandbox."""
    return Path(place).read_text()


def test_what_may_be_read_is_added_to_what_programs_need(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
        (folder / "file").write_text(folder.name)
    with ex.Job() as job:
        sandbox = ex.Sandbox(read=[own])
        places = [str(folder / "file") for folder in (own, other)]
        assert job.start(read_file, arguments=places[:1], sandbox=sandbox).values(60) == ["own"]
        with pytest.raises(ex.ProcessEndedError, match="PermissionError"):
            job.start(read_file, arguments=places[1:], sandbox=sandbox).values(60)
        # Without what programs need, what is listed is all.
        bare = ex.Sandbox(read=["/bin/true", own], system=False)
        assert job.start(["/bin/true"], sandbox=bare).wait(60) == [126]
        whole = ex.Sandbox(read=["/usr", "/bin", "/lib", "/lib64"], system=False)
        assert job.start(["cat", "/etc/hosts"], sandbox=whole).wait(60) == [1]
        assert job.start(["cat", "/etc/hosts"], sandbox=ex.Sandbox()).wait(60) == [0]


@pytest.mark.skipif(
    os.getuid() != 0, reason="it is about the account root, and this is another one"
)
def test_a_limit_on_processes_that_root_would_not_have_is_an_error() -> None:
    assert "can't be held for the account root" in ended(ex.Sandbox(processes=8))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"network": "some"}, "got network='some'"),
        ({"read": ["usr"]}, "got the path 'usr', expected one that begins with /"),
        ({"write": ["/"]}, "to write everywhere is no sandbox"),
        ({"write": ["//tmp/.."]}, "to write everywhere is no sandbox"),
        *(
            (
                {"read": ["/usr", inner], "write": ["/data/w", *more]},
                f"got {inner!r} in `read`, {why}",
            )
            for inner in ("/data/w/in", "//data/./w//in/deep/")
            for more in ([], ["/x"])
            for why in ["which lies below '/data/w' in `write`"]
        ),
        ({"write": ["/w/in", "/w"]}, "got '/w/in' in `write`, which lies below '/w' in `write`"),
        ({"processes": 0}, "got processes=0"),
        ({"processes": True}, "got processes=True"),
        ({"memory": "4 GB"}, "got memory='4 GB'"),
        ({"memory": "-1"}, "got memory='-1'"),
        ({"memory": 4096}, "expected at least 64 MiB"),
        ({"file_size": "9" * 19 + "GiB"}, "got file_size="),
        ({"file_size": 0}, "got file_size=0"),
    ],
)
def test_a_sandbox_that_can_not_be_meant_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        ex.Sandbox(**options)


def test_paths_that_are_not_surely_below_one_another_are_for_the_host() -> None:
    for read, write in (
        ("/data", "/data/w"),
        ("/data/w", "/data/w"),
        ("/data/w/", "/data/w"),
        ("/data/w2", "/data/w"),
        ("/data/w/../x", "/data/w"),
        ("/data/x/y", "/data/w/../x"),
    ):
        assert ex.Sandbox(read=[read], write=[write]).told()["read"] == [read]


def test_a_path_alone_is_no_list_of_paths() -> None:
    with pytest.raises(TypeError, match="expected a list of paths"):
        ex.Sandbox(read="/usr")
    with ex.Job() as job, pytest.raises(TypeError, match=r"exoskel\.Sandbox"):
        job.start(["true"], sandbox={"network": "none"})  # type: ignore[arg-type]


def test_a_host_that_confines_connects_nobody_with_itself(tmp_path: Path) -> None:
    with (
        selectors.DefaultSelector() as selector,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        place = f"127.0.0.1:{listener.getsockname()[1]}"
        for reaches, answer in ((True, b"\0"), (False, b"it leads to this host")):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            reply, replying = socket.socketpair()
            maker = ConnectionMaker(theirs, {place}, selector, reaches_own_host=reaches)
            with ours, reply:
                socket.send_fds(ours, [place.encode()], [replying.fileno()])
                replying.close()
                selector.select()[0][0].data(selectors.EVENT_READ)
                while selector.get_map().keys() - {theirs.fileno()}:
                    for ready, events in selector.select():
                        ready.data(events)
                told, descriptors, _, _ = socket.recv_fds(reply, 100, 1)
                assert told.startswith(answer)
                assert len(descriptors) == reaches
                for descriptor in descriptors:
                    os.close(descriptor)
            maker.close()


@pytest.mark.parametrize(
    "address", ["10.0.0.1:99999", "10.0.0.1:0", "10.0.0.1:-1", "10.0.0.1:\u00b2"]
)
def test_what_has_no_port_is_no_place(address: str) -> None:
    assert not is_of_network(address)


def test_a_process_with_a_network_joins_its_job() -> None:
    with ex.Job() as job:
        started = job.start(
            lambda here: [here.rank, len(here.peers)], count=2, sandbox=ex.Sandbox(network="all")
        )
        assert started.values(timeout=60) == [[0, 2], [1, 2]]


def test_what_a_process_has_written_goes_with_it(tmp_path: Path) -> None:
    deep = "for _ in range(1500):\n    os.mkdir('deep'); os.chdir('deep')"
    with ex.Job() as job:
        done = job.start(
            [
                sys.executable,
                "-c",
                f"import os\nprint(os.getcwd(), file=sys.stderr)\n{deep}".replace(
                    "import os", "import os, sys"
                ),
            ],
            sandbox=ex.Sandbox(),
        )
        assert done.wait(timeout=60) == [0]
        folder = job.summary().processes[0].stderr.strip()
        assert not os.path.exists(folder)
