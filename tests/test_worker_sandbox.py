"""Slots of a worker whose policy confines managers: what gets out of them, what they find of the host's key, and what their managers are told."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import key_scan
from tests.processes import eventually, signers_of, slots_of, zygotes_of
from tests.sandbox_attacks import ATTACKS
from tests.site import MANAGER, POLICY, Site, free_address
from tests.test_sandbox import OTHER_ENDS, folder, run
from tests.whole_files import replace

import exoskel as ex
from exoskel import confining, links, outcome
from exoskel.job_process import JobNode

__all__ = ["folder"]

NAME = "node1.lab.example.org"
WHY = "the sandbox in which this runs may be why"
CONFINED = POLICY + "[sandbox]\nmanagers = ['*']\n"
pytestmark = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the attacks have the numbers of system calls of x86-64"
)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    """A site that ends with the test."""
    made = Site(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def tried(folder: Path) -> dict[str, Any]:
    """What tasks could do at a worker of an account without rights, in a sandbox and free."""
    found: dict[str, Any] = run("everything", folder, "worker_sandbox_account")
    return found


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_a_task_may_do_at_a_worker_a_sandbox_holds_back(
    tried: dict[str, Any], attack: str
) -> None:
    """Each attack succeeds without a sandbox, or it would show nothing."""
    free, held = (tried[how]["attacks"][attack] for how in ("free", "sandboxed"))
    assert free[0] == 0, free
    assert held[0] == 1
    assert OTHER_ENDS.get(attack, "PermissionError") in held[1]


def test_a_confined_slot_opens_neither_the_credential_nor_what_other_processes_hold(
    tried: dict[str, Any],
) -> None:
    assert set(tried["sandboxed"]["files"].values()) == {"PermissionError"}
    free = tried["free"]["files"]
    # Of its own account, which has the file: only a sandbox keeps that from it. The memory of who holds the key is nobody's.
    assert {name for name, end in free.items() if end != "opened"} == {
        "mem of the signer",
        "environ of the signer",
    }


def test_a_confined_slot_has_a_folder_of_its_own_which_goes_with_it(tried: dict[str, Any]) -> None:
    process, directory, listed, is_own = tried["sandboxed"]["place"]
    assert (Path(directory).name, listed, is_own) == (str(process), ["left"], True)
    assert (tried["sandboxed"]["gone"], tried["free"]["gone"]) == (True, False)


def test_a_confined_slot_finds_nothing_of_the_environment_in_which_its_worker_began(
    tried: dict[str, Any],
) -> None:
    assert (tried["free"]["environment"], tried["sandboxed"]["environment"]) == (True, False)


def test_no_task_finds_the_key_of_its_worker_in_its_memory(tried: dict[str, Any]) -> None:
    assert [tried[how]["key"] for how in ("free", "sandboxed")] == [[], []]


def test_the_log_says_what_holds_a_slot(tried: dict[str, Any]) -> None:
    line = tried["sandboxed"]["log"].splitlines()[0]
    assert 'in a sandbox (by "*" in [sandbox] managers (line 10)): 8 processes and threads' in line
    assert "files and signals (Landlock)" in line
    assert "sandbox" not in tried["free"]["log"]


def look_outside(_item: int) -> str:
    return Path("/etc/shadow").read_text()


def divide(item: int) -> float:
    return 1 / item


def test_a_manager_learns_that_a_sandbox_may_be_why(site: Site) -> None:
    worker = site.worker(NAME, policy=CONFINED)
    with site.connect(ex.Farm(look_outside), 1, worker) as manager:
        with pytest.raises(PermissionError) as caught:
            list(manager.map([0]))
        assert "the sandbox in which this runs may be why: files and signals" in str(
            caught.value.__cause__
        )
    with site.connect(ex.Farm(divide), 1, worker) as manager:
        with pytest.raises(ZeroDivisionError) as other:
            list(manager.map([0]))
        assert "may be why" not in str(other.value.__cause__)


def test_a_job_says_that_a_sandbox_may_be_why() -> None:
    with ex.Job() as job:
        started = job.start(look_outside, sandbox=ex.Sandbox(network="none"))
        # The exception is what is said last.
        with pytest.raises(
            ex.ProcessEndedError, match=r"exit code 1: PermissionError: .*shadow'\n"
        ) as caught:
            started.values(60)
        assert notes_of(caught.value) == [WHY]
        said = job.summary().processes[0].stderr
        assert "exoskel: the sandbox in which this runs may be why: files and signals" in said
        # A program says it in its own words.
        for words, is_why in (("cat /etc/shadow", True), ("echo no such thing >&2; exit 3", False)):
            program = job.start(["sh", "-c", words], sandbox=ex.Sandbox(network="none"))
            with pytest.raises(ex.ProcessEndedError) as ended:
                program.result(60)
            assert notes_of(ended.value) == ([WHY] if is_why else [])
        [served] = job.start(serve_outside, sandbox=ex.Sandbox(network="none")).result(60)
        with pytest.raises(links.HandlerError, match=rf"shadow' \({WHY}"):
            served.request("outside").result(60)
        with pytest.raises(links.HandlerError, match=r"division by zero$"):
            served.request("inside").result(60)


def notes_of(error: BaseException) -> list[str]:
    """Return how the notes of an exception begin."""
    return [note.partition(":")[0] for note in getattr(error, "__notes__", [])]


def serve_outside(here: JobNode) -> None:
    """Fail by the sandbox, and for another reason."""

    @here.process.handler
    def outside() -> str:
        return look_outside(0)

    @here.process.handler
    def inside() -> float:
        return divide(0)


def test_a_library_that_is_not_loaded_may_be_so_by_the_sandbox(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(confining, "holds", ("100 MiB of memory",))
    lacking = ImportError("libopenblas.so: failed to map segment from shared object")
    around = ImportError("Importing the numpy C-extensions failed.")
    around.__cause__ = lacking
    denied = ImportError("_ssl.so: cannot open shared object file: Permission denied")
    for error in (lacking, around, denied, MemoryError()):
        assert confining.reason_of(error) == f"{WHY}: 100 MiB of memory"
    for other in (ImportError("No module named 'x'"), ValueError("Permission denied")):
        assert confining.reason_of(other) == ""


def test_an_answer_in_plain_data_keeps_the_note_of_a_sandbox() -> None:
    """Managers read the exceptions of hosts that they don't trust so: those of `Ssh`, for example."""
    error = PermissionError(13, "Permission denied")
    error.add_note(f"{WHY}: \x1b[2J")
    kind, text, lines, data = outcome.encode_exception(error, as_data=True)
    assert isinstance(lines, list)
    read = outcome.exception_from_data(str(kind), str(text), lines, data, "lab1", 3, "lab1")
    assert read.__notes__ == [f"{WHY}: \\x1b[2J", "item 3"]


@pytest.mark.skipif(os.getuid() != 0, reason="reading others' memory takes the rights of root")
def test_of_a_worker_s_processes_the_signer_alone_has_the_key(site: Site) -> None:
    worker = site.worker(NAME, slots=2)
    masked = key_scan.forms(site.place / f"{NAME}.pem")
    supervisor = worker.process.pid
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        assert next(manager.map([-1])) == 1
        [signer], [zygote] = signers_of(supervisor), zygotes_of(supervisor)
        # For the slot that waits. It shows that the search would find it elsewhere, too.
        assert "words" in key_scan.found(signer, masked)
        for other in (supervisor, zygote, *slots_of(supervisor)):
            assert key_scan.found(other, masked) == []


def test_sandboxes_that_can_not_be_had_are_an_error_for_the_manager(site: Site) -> None:
    """The slot is not confined by less."""
    missing = site.place / "missing"
    missing.mkdir()
    worker = site.worker(NAME, policy=f"{CONFINED}write = ['{missing}']\n")
    missing.rmdir()
    with pytest.raises(ex.NoWorkerError) as caught:
        site.connect(ex.Farm(abs), 1, worker, patience=3).close()
    text = str(caught.value)
    assert "this host can't hold it" in text
    assert str(missing) in text
    assert "the worker's policy confines this manager's code" in worker.log.read_text()


def test_a_sandbox_that_covers_the_worker_s_files_later_is_no_sandbox(site: Site) -> None:
    worker = site.worker(NAME, policy=CONFINED)
    policy = site.place / f"home-{NAME}" / "policy.toml"
    replace(policy, f"{CONFINED}read = ['/usr', '{site.place}']\n")
    with pytest.raises(ex.NoWorkerError) as caught:
        site.connect(ex.Farm(abs), 1, worker, patience=3).close()
    assert "it would let that code use files of the worker itself" in str(caught.value)
    assert str(site.place) not in str(caught.value)
    assert f"[sandbox] read covers {site.place / NAME}.pem" in worker.log.read_text()


@pytest.mark.parametrize("kind", ["read", "write", "write policy", "key"])
def test_a_worker_whose_sandbox_covers_its_own_files_does_not_start(kind: str, site: Site) -> None:
    """Not by another name, either."""
    rules, secrets = site.place / "rules", site.place / "secrets"
    for one in (rules, secrets):
        one.mkdir()
    policy, other = rules / "policy.toml", site.place / "other"
    other.symlink_to(rules if kind == "write policy" else secrets)
    word = kind.partition(" ")[0] if kind != "key" else "read"
    policy.write_text(f"{CONFINED}{word} = ['{other}']\n")
    credential = site.issue("worker", NAME).rename(secrets / "worker.pem")
    own = policy if kind == "write policy" else credential
    more = []
    if kind == "key":
        own = secrets / "key.pem"
        certificate = site.place / "certificate.pem"
        text = credential.read_text()
        start = text.index("-----BEGIN PRIVATE KEY")
        end = text.index("-----BEGIN", start + 1)
        own.write_text(text[start:end])
        own.chmod(0o600)
        certificate.write_text(text[:start] + text[end:])
        credential, more = certificate, ["--key", str(own)]
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--listen", "tcp://127.0.0.1:0"]
    command += ["--credential", str(credential), "--policy", str(policy), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"[sandbox] {word} covers {own}, which is" in done.stderr


@pytest.mark.parametrize("kind", ["ban list", "link", "link on the way"])
def test_a_worker_whose_sandbox_may_change_by_what_managers_are_judged_does_not_start(
    kind: str, site: Site
) -> None:
    """A list that the policy names, or a link in whose place another one can be put."""
    rules, scratch = site.place / "rules", site.place / "scratch"
    for one in (rules, scratch):
        one.mkdir()
    policy = rules / "policy.toml"
    text = f"{CONFINED}write = ['{scratch}']\n"
    own, said = policy, policy
    if kind == "ban list":
        said = scratch / "banned.txt"
        said.write_text("# nobody\n")
        text += f"[deny]\nban_list = '{said}'\n"
    elif kind == "link":
        own = said = scratch / "policy.toml"
        own.symlink_to(policy)
    else:
        (scratch / "rules").symlink_to(rules)
        own = said = scratch / "rules" / "policy.toml"
    policy.write_text(text)
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--listen", "tcp://127.0.0.1:0"]
    command += ["--credential", str(site.issue("worker", NAME)), "--policy", str(own)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        f"[sandbox] write covers {said}, which is a file by which peers are judged" in done.stderr
    )


@pytest.mark.parametrize("kind", ["read", "write", "link on the way"])
def test_a_worker_whose_sandbox_could_change_what_its_paths_lead_to_does_not_start(
    kind: str, site: Site
) -> None:
    """A task could put a link to anything into the place of a listed path, for the slots behind it."""
    scratch, data = site.place / "scratch", site.place / "data"
    for one in (scratch, data):
        one.mkdir()
    inner = scratch / "inner"
    if kind == "link on the way":
        inner.symlink_to(data)
    else:
        inner.mkdir()
    lists = f"write = ['{scratch}', '{inner}']" if kind == "write" else f"write = ['{scratch}']"
    if kind != "write":
        lists += f"\nread = ['{inner}']"
    policy = site.place / "policy.toml"
    policy.write_text(f"{CONFINED}{lists}\n")
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--listen", "tcp://127.0.0.1:0"]
    command += ["--credential", str(site.issue("worker", NAME)), "--policy", str(policy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{inner}, which is reached by way of {scratch}, where code may write" in done.stderr


@pytest.mark.parametrize("kind", ["second name", "mount", "mount below"])
def test_a_worker_whose_credential_has_another_name_in_its_sandbox_does_not_start(
    kind: str, site: Site
) -> None:
    """A path that leads elsewhere doesn't show that. The file itself does, and the folders in which it lies."""
    secrets, data = site.place / "secrets", site.place / "data"
    (data / "below").mkdir(parents=True)
    secrets.mkdir()
    credential = site.issue("worker", NAME).rename(secrets / "worker.pem")
    policy = site.place / "policy.toml"
    policy.write_text(f"{CONFINED}read = ['{data}']\n")
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--listen", "tcp://127.0.0.1:0"]
    command += ["--credential", str(credential), "--policy", str(policy)]
    said = f"[sandbox] read covers {credential}, which is its own credential"
    if kind == "second name":
        os.link(credential, data / "other.pem")
        said = f"got {credential} with 2 names, expected one"
    else:
        place = data / "below" if kind == "mount below" else data
        mount = 'mount --bind "$0" "$1" && shift && exec "$@"'
        shell = ["sh", "-c", mount, str(secrets), str(place)]
        command = ["unshare", "--user", "--map-root-user", "--mount", *shell, *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    "kind",
    [
        "modules",
        "below modules",
        "package",
        "prefix",
        "told workers",
        "temporary",
        "the account's modules",
        "commands",
        "libraries",
    ],
)
def test_a_worker_whose_sandbox_may_change_what_runs_outside_of_it_does_not_start(
    kind: str, site: Site
) -> None:
    """A `sitecustomize.py` there would run in the next worker, which nothing confines."""
    modules, home = site.place / "modules", site.place / "home"
    commands, libraries = site.place / "commands", site.place / "libraries"
    made = (
        modules / "below",
        home / ".exoskel" / "run",
        home / ".local" / "lib",
        commands,
        libraries,
    )
    for one in (*made, site.place / "temporary"):
        one.mkdir(parents=True)
    written = {
        "modules": modules,
        "below modules": modules / "below",
        "package": Path(ex.__file__).parent / "cli",
        "prefix": Path(sys.prefix),
        "told workers": home,
        "temporary": site.place / "temporary",
        # Python will look there once it is there.
        "the account's modules": home / ".local" / "lib",
        "commands": commands,
        "libraries": libraries,
    }[kind]
    policy = site.place / "policy.toml"
    policy.write_text(f"{CONFINED}write = ['{written}']\n")
    own = {
        "HOME": str(home),
        "PYTHONPATH": str(modules),
        "TMPDIR": str(site.place / "temporary"),
        "PATH": f"{os.environ['PATH']}:{commands}",
        "LD_LIBRARY_PATH": str(libraries),
    }
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--listen", "tcp://127.0.0.1:0"]
    command += ["--credential", str(site.issue("worker", NAME)), "--policy", str(policy)]
    environment = {**os.environ, **own}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert f"write names {written}, where code could change what runs outside" in done.stderr


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("total_memory = '1 GiB'", "[sandbox] total_memory: it holds the processes of jobs"),
        ("read = ['/missing']", "[sandbox] read: there is no /missing on this host"),
    ],
)
def test_a_worker_that_can_not_hold_slots_to_its_policy_does_not_start(
    line: str, said: str, site: Site
) -> None:
    policy = site.place / "policy.toml"
    policy.write_text(f"{CONFINED}{line}\n")
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--listen", "tcp://127.0.0.1:0"]
    command += ["--credential", str(site.issue("worker", NAME)), "--policy", str(policy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr


def test_a_table_that_would_confine_nobody_is_refused(site: Site) -> None:
    policy = site.place / "policy.toml"
    policy.write_text(f"{POLICY}[sandbox]\nnetwork = 'none'\n")
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--listen", "tcp://127.0.0.1:0"]
    command += ["--credential", str(site.issue("worker", NAME)), "--policy", str(policy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert 'nobody of a grid can come: add managers = ["*"]' in done.stderr


def where(_: object) -> str:
    return os.getcwd()


def test_slots_that_dial_their_manager_are_confined_too(site: Site) -> None:
    """By a name, which is looked up: that must leave no other thread, or nothing could be confined."""
    address = free_address()
    more = ["--manager-name", MANAGER]
    join = f"tcp://localhost:{address.rpartition(':')[2]}"
    site.worker(NAME, *more, join=join, slots=2, policy=CONFINED)
    options = {"workers": None, "listen": address, "wait": 60}
    with site.connect(ex.Farm(where), 2, **options) as manager:
        folders = {Path(one).parent.name for one in manager.map(range(8))}
    assert [one.startswith("exoskel-worker-") for one in folders] == [True]


def test_a_policy_that_is_replaced_reaches_slots_in_sandboxes(site: Site) -> None:
    worker = site.worker(NAME, policy=CONFINED)
    policy = site.place / f"home-{NAME}" / "policy.toml"
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        assert next(manager.map([-1])) == 1
        new = policy.with_suffix(".new")
        new.write_text(f"{CONFINED}[allow]\nmanagers = ['somebody.else']\n")
        new.replace(policy)
        assert eventually(lambda: manager.status().slots_ready == 0)
    assert eventually(lambda: bool(slots_of(worker.process.pid)))


def test_slots_are_replaced_when_their_signer_is_gone(site: Site) -> None:
    worker = site.worker(NAME, slots=3, policy=CONFINED)
    with site.connect(ex.Farm(abs), 2, worker) as manager:
        assert sorted(manager.map([-1, -2])) == [1, 2]
        before = set(slots_of(worker.process.pid))
        [signer] = signers_of(worker.process.pid)
        os.kill(signer, signal.SIGKILL)
        assert eventually(lambda: signers_of(worker.process.pid) not in ([], [signer]))
        assert sorted(manager.map([-3, -4])) == [3, 4]
        assert eventually(lambda: manager.status().slots_ready == 2)
        # The one that has waited as well: nobody would sign for it.
        assert eventually(lambda: before.isdisjoint(slots_of(worker.process.pid)))
        with site.connect(ex.Farm(abs), 1, worker) as other:
            assert list(other.map([-5])) == [5]
    assert "the signer ended with code -9" in worker.log.read_text()


def sockets_of(_: object) -> list[list[Any]]:
    """Say of each socket of this slot which kind it is, and whether others can connect to it."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
            listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            found.append([one.family.name, one.type.name, bool(listens)])
    return found


@pytest.mark.parametrize("policy", [POLICY, CONFINED], ids=["free", "confined"])
def test_no_task_has_a_socket_at_which_signatures_or_slots_are_asked_for(
    site: Site, policy: str
) -> None:
    """That of its session and streams of its own: to the signer, and what wakes its threads."""
    worker = site.worker(NAME, slots=2, policy=policy)
    with site.connect(ex.Farm(sockets_of), 1, worker) as manager:
        found = next(manager.map([0]))
    assert ["AF_INET", "SOCK_STREAM", False] in found
    assert {tuple(one[1:]) for one in found} == {("SOCK_STREAM", False)}


def signed(path: str) -> str:
    """Ask for a signature at every socket of this slot but that of its session; keep what comes. An item that runs again says what that was."""
    kept = Path(path)
    if kept.exists():
        return kept.read_text()
    kept.write_text("nothing")
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
            if one.family != socket.AF_UNIX:
                continue
            for request in (
                b'"Credential"',
                b'"Turn"',
                b'{"Sign": {"key": 1, "scheme": 1027, "message": [1, 2, 3]}}',
            ):
                one.setblocking(True)
                one.settimeout(1.0)
                one.sendall(len(request).to_bytes(4) + request)
                if b"Signature" in (answer := one.recv(1 << 16)) or b"public" in answer:
                    kept.write_text(repr(answer[:100]))
    return kept.read_text()


def test_a_task_has_nothing_signed_over_its_slot_s_own_connection(site: Site) -> None:
    """It can end that, and so its session: the item runs again elsewhere."""
    worker = site.worker(NAME, slots=2)
    with site.connect(ex.Farm(signed), 1, worker) as manager:
        assert next(manager.map([str(site.place / "kept")])) == "nothing"
    # The signer is at its work.
    assert len(signers_of(worker.process.pid)) == 1
    with site.connect(ex.Farm(abs), 1, worker) as manager:
        assert next(manager.map([-1])) == 1
