"""What can't work says so at once, names what it got, and says what to do."""

import contextlib
import functools
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.site import Site, free_address

import exoskel as ex

# The last one has a variable without a value, wraps itself, and uses an attribute of the name of a global.
_SCRIPT = """
def inner(): return LOCK
def outer(item): return inner()
def make(value):
    if value:
        def log(item): return item
    def wrapped(item):
        if value: log(item)
        return item.LOCK, CONNECTION
    wrapped.__wrapped__ = wrapped
    return wrapped
wrapped = make(False)
"""


class _Raising:
    """Holds what can't travel."""

    def __init__(self) -> None:
        self.__dict__["lock"] = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name in ("func", "__wrapped__", "__name__", "__qualname__"):
            raise RuntimeError(name)
        raise AttributeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("no text")

    def __call__(self, item: int) -> int:
        return item


def _of_script(name: str) -> Callable[[Any], Any]:
    """Return a function of a script that uses a global of it, by another function."""
    names: dict[str, Any] = {"__name__": "__main__", "LOCK": threading.Lock()}
    names["CONNECTION"] = threading.Lock()
    exec(_SCRIPT, names)
    function: Callable[[Any], Any] = names[name]
    return function


def _holding(lock: Any, *, is_default: bool = False) -> Callable[[Any], Any]:
    def held(item: Any) -> Any:
        return lock

    def by_default(item: Any, lock: Any = lock) -> Any:
        return lock

    return by_default if is_default else held


ARGUMENTS: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a number as contract": (
        lambda: ex.Manager(abs, 4),  # type: ignore[arg-type]
        TypeError,
        r"ParDegree\(4\)",
    ),
    "no program": (
        lambda: ex.Manager(5, ex.ParDegree(1)),  # type: ignore[arg-type]
        TypeError,
        "got 5 .* expected a function",
    ),
    "an unknown skeleton": (
        lambda: ex.Farm("render"),  # type: ignore[call-overload]
        TypeError,
        "'render' in Farm",
    ),
    "an unknown argument of a skeleton": (
        lambda: ex.Farm(abs, slots=4),  # type: ignore[call-overload]
        TypeError,
        "slots",
    ),
    "a number of slots in a farm": (
        lambda: ex.Farm(abs, 4),  # type: ignore[call-overload]
        TypeError,
        r"got feedback=4 in Farm, .* ParDegree\(4\)",
    ),
    "a degree that is none": (
        lambda: ex.ParDegree(None),  # type: ignore[arg-type]
        TypeError,
        "got None as parallel degree",
    ),
    "a file as the path of a sink": (
        lambda: ex.JsonLines(threading),  # type: ignore[arg-type]
        TypeError,
        "got .* in JsonLines, expected a path such as",
    ),
    "a number as a folder": (
        lambda: ex.Files(3),  # type: ignore[arg-type]
        TypeError,
        "got 3 in Files, expected a path",
    ),
    "no slots": (lambda: ex.ParDegree(0), ValueError, "at least 1"),
    "more slots than get work": (
        lambda: ex.Manager(abs, ex.ParDegree(4097)),
        ValueError,
        "at most 4096",
    ),
    "an executor with more slots": (lambda: ex.Executor(5000), ValueError, "at most 4096"),
    "no retries": (
        lambda: ex.Manager(abs, ex.ParDegree(1), retries=0),
        ValueError,
        "retries=0",
    ),
    "a transport of another kind": (
        lambda: ex.Manager(abs, ex.ParDegree(1), transport="udp"),  # type: ignore[arg-type]
        ValueError,
        'transport: got "udp", expected "socketpair", "tcp" or "shared memory"',
    ),
    "a protection of another kind": (
        lambda: ex.Manager(abs, ex.ParDegree(1), protection="strong"),  # type: ignore[arg-type]
        ValueError,
        "strong",
    ),
    "negative patience": (
        lambda: ex.Manager(abs, ex.ParDegree(1), dead_after=-1),
        ValueError,
        "dead_after=-1",
    ),
    "patience that is no number": (
        lambda: ex.Manager(abs, ex.ParDegree(1), connect_timeout=float("nan")),
        ValueError,
        "connect_timeout=nan",
    ),
    "an item limit that is too small": (
        lambda: ex.Manager(abs, ex.ParDegree(1), message_bytes_max=1),
        ValueError,
        "message_bytes_max=1",
    ),
    "a function that can't travel": (
        lambda: ex.Manager(ex.Farm(threading.Lock().acquire), ex.ParDegree(1)),
        ex.ProgramError,
        "can't send .* make them inside the function",
    ),
    "a function with a global that can't travel": (
        lambda: ex.Manager(ex.Farm(_of_script("outer")), ex.ParDegree(1)),
        ex.ProgramError,
        r"can't send outer, with the global 'LOCK' of inner\(\), <lock object>, to a worker: .* make them inside the function",
    ),
    "a function with a variable that can't travel": (
        lambda: ex.Manager(_holding(threading.Lock()), ex.ParDegree(1)),
        ex.ProgramError,
        r"with the variable 'lock' of _holding.<locals>.held\(\)",
    ),
    "a function with a default that can't travel": (
        lambda: ex.Manager(_holding(threading.Lock(), is_default=True), ex.ParDegree(1)),
        ex.ProgramError,
        r"with the default 'lock' of _holding.<locals>.by_default\(\)",
    ),
    "a function of others that can't travel": (
        lambda: ex.Manager(_of_script("wrapped"), ex.ParDegree(1)),
        ex.ProgramError,
        r"can't send wrapped, with the global 'CONNECTION' of make.<locals>.wrapped\(\), ",
    ),
    "a partial that can't travel": (
        lambda: ex.Manager(functools.partial(pow, threading.Lock()), ex.ParDegree(1)),
        ex.ProgramError,
        "with an argument of a partial, <lock object>, to a worker",
    ),
    "an instance that raises whatever is asked": (
        lambda: ex.Manager(_Raising(), ex.ParDegree(1)),
        ex.ProgramError,
        "can't send _Raising to a worker: cannot pickle",
    ),
    "a policy that is not there": (
        lambda: ex.Manager(abs, ex.ParDegree(1), policy="/nowhere/policy.toml"),
        FileNotFoundError,
        "/nowhere/policy.toml",
    ),
    "hosts without a credential": (
        lambda: ex.Manager(abs, ex.ParDegree(1), workers=["127.0.0.1:1"]),
        ex.CredentialError,
        "exoskel pki issue --role manager",
    ),
    "a hosts file that is not there": (
        lambda: ex.Manager(abs, ex.ParDegree(1), workers="/nowhere/hosts.txt"),
        FileNotFoundError,
        "/nowhere/hosts.txt",
    ),
    "a host that is none": (
        lambda: ex.Manager(abs, ex.ParDegree(1), workers=["127.0.0.1:port"]),
        ValueError,
        "port",
    ),
    "no host": (
        lambda: ex.Manager(abs, ex.ParDegree(1), workers=[]),
        ValueError,
        "no address",
    ),
    "an address to listen at that is none": (
        lambda: ex.Manager(abs, ex.ParDegree(1), listen="udp://0.0.0.0:1"),
        ValueError,
        "expected tcp://host:port",
    ),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_make_no_sense_are_named(name: str) -> None:
    action, kind, text = ARGUMENTS[name]
    with pytest.raises(kind, match=text):
        action()


def test_map_knows_two_ways_with_errors() -> None:
    with (
        ex.Manager(abs, ex.ParDegree(1)) as manager,
        pytest.raises(ValueError, match='expected "raise" or "return"'),
    ):
        manager.map([1], errors="ignore")  # type: ignore[arg-type]


POLICIES = {
    "no toml": ("[domain.lab\n", "line 1"),
    "an unknown key": ('[domain.lab]\nadresses = ["10.0.0.0/8"]\n', "line 2"),
    "an unknown domain": ('[[rule]]\nfrom = "lab"\nto = "any"\nprotection = "plain"\n', "lab"),
    "an unknown protection": ('[[rule]]\nfrom = "any"\nto = "any"\nprotection = "weak"\n', "weak"),
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_that_cannot_be_used_names_the_place(name: str, tmp_path: Path) -> None:
    text, said = POLICIES[name]
    policy = tmp_path / "policy.toml"
    policy.write_text(text)
    with pytest.raises(ex.PolicyError, match=said):
        ex.Manager(abs, ex.ParDegree(1), policy=policy)


def test_an_item_that_cannot_be_pickled_ends_its_stream_only() -> None:
    with ex.Manager(ex.Farm(lambda item: item), ex.ParDegree(2)) as manager:
        stream = manager.map([1, threading.Lock(), 3])
        with pytest.raises((TypeError, ex.ProgramError), match="pickle"):
            list(stream)
        assert list(stream) == []
        assert list(manager.map([1])) == [1]


def test_a_result_that_cannot_be_pickled_is_its_item_s_exception() -> None:
    def task(item: int) -> Any:
        return threading.Lock() if item == 1 else item

    with ex.Manager(ex.Pipeline(task, ex.Seq(lambda item: item)), ex.ParDegree(2)) as manager:
        results = list(manager.map(range(4), errors="return"))
    assert [results[0], results[2], results[3]] == [0, 2, 3]
    # Between two stages of one slot nothing needs to travel; at the end it does.
    assert isinstance(results[1], TypeError)
    assert "pickle" in str(results[1])


def test_what_cannot_be_unpickled_is_its_item_s_exception() -> None:
    class Broken:
        def __reduce__(self) -> tuple[Any, ...]:
            return int, ("no number",)

    with ex.Manager(
        ex.Farm(lambda item: Broken() if item == 1 else item), ex.ParDegree(2)
    ) as manager:
        results = list(manager.map([0, 1, Broken(), 3], errors="return"))
    assert [results[0], results[3]] == [0, 3]
    assert isinstance(results[1], ValueError)
    assert isinstance(results[2], ValueError)


LIMIT = 1 << 20
ROOM = f"expected at most {LIMIT - 65536}: message_bytes_max={LIMIT}, less 65536 "


@pytest.mark.parametrize("kind", ["bytes", "many", "text"])
def test_a_result_over_the_size_limit_is_its_item_s_exception(kind: str) -> None:
    def task(item: int) -> Any:
        if item != 1:
            return item
        return {"bytes": bytes(2 * LIMIT), "many": list(range(LIMIT)), "text": "x" * 2 * LIMIT}[
            kind
        ]

    with ex.Manager(ex.Farm(task), ex.ParDegree(2), message_bytes_max=LIMIT) as manager:
        results = list(manager.map(range(4), errors="return"))
        assert [results[0], results[2], results[3]] == [0, 2, 3]
        assert isinstance(results[1], ex.SizeLimitError)
        assert f"expected at most {LIMIT - 65536}; return less, or raise the limit" in str(
            results[1]
        )
        assert all(worker.state != "lost" for worker in manager.summary().workers)


def test_an_item_over_the_size_limit_is_refused_and_nothing_else_is_lost() -> None:
    with ex.Manager(
        ex.Farm(lambda item: len(item)), ex.ParDegree(2), message_bytes_max=LIMIT
    ) as manager:
        with pytest.raises(ex.SizeLimitError, match=ROOM):
            list(manager.map([b"1", bytes(2 * LIMIT)]))
        assert list(manager.map([b"123"])) == [3]
        assert all(worker.state != "lost" for worker in manager.summary().workers)


def test_an_exception_over_the_size_limit_keeps_its_item() -> None:
    def task(item: int) -> int:
        if item == 1:
            raise ValueError("x" * 2 * LIMIT)
        return item

    with ex.Manager(ex.Farm(task), ex.ParDegree(1), message_bytes_max=LIMIT) as manager:
        results = list(manager.map(range(3), errors="return"))
    assert [results[0], results[2]] == [0, 2]
    assert isinstance(results[1], Exception)


def connect(credential: Path, *hosts: str, **options: Any) -> ex.Manager:
    options = {"connect_timeout": 2.0, **options}
    return ex.Manager(
        ex.Farm(abs), ex.ParDegree(len(hosts) or 1), workers=hosts, credential=credential, **options
    )


def test_a_credential_that_others_can_read_is_refused(site: Site) -> None:
    credential = site.credential
    credential.chmod(0o640)
    with pytest.raises(ex.CredentialError, match=r"chmod 600"):
        connect(credential, "127.0.0.1:1")


CREDENTIALS = {
    "nothing": (b"", "head.lab.example.org.pem"),
    "no pem": (b"\x00\xff" * 100, "head.lab.example.org.pem"),
    "no key": (None, "PRIVATE KEY"),
}


@pytest.mark.parametrize("name", CREDENTIALS)
def test_a_credential_that_is_none_is_refused(name: str, site: Site) -> None:
    contents, said = CREDENTIALS[name]
    credential = site.credential
    if contents is None:
        contents = credential.read_bytes().partition(b"-----BEGIN PRIVATE KEY")[0]
    credential.write_bytes(contents)
    with pytest.raises(ex.CredentialError, match=said):
        connect(credential, "127.0.0.1:1")


def test_a_worker_s_credential_makes_no_manager(site: Site) -> None:
    with pytest.raises(ex.CredentialError, match="manager"):
        connect(site.issue("worker", "lab1"), "127.0.0.1:1")


def test_an_expired_credential_is_refused_before_anybody_is_bothered(site: Site) -> None:
    credential = site.issue("manager", "short", "--days", "0.00001")
    # It lasts for about a second; until then it is as good as any other.
    deadline = time.monotonic() + 30

    def use_it() -> None:
        while time.monotonic() < deadline:
            with contextlib.suppress(ex.NoWorkerError):
                connect(credential, free_address(), wait=0.5)

    with pytest.raises(ex.CredentialError, match="expired"):
        use_it()


def test_no_worker_in_reach_is_one_error_that_names_each_reason(site: Site) -> None:
    """A port nobody listens on, a host that doesn't exist, and peers that accept and say nothing or the wrong thing."""
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        socket.create_server(("127.0.0.1", 0)) as rude,
    ):

        def be_rude() -> None:
            connection, _ = rude.accept()
            with connection, contextlib.suppress(ConnectionError):
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n" * 10)
                while connection.recv(4096):
                    pass

        thread = threading.Thread(target=be_rude)
        thread.start()
        hosts = [
            free_address(),
            "no-such-host.invalid:7601",
            "{}:{}".format(*silent.getsockname()),
            "{}:{}".format(*rude.getsockname()),
        ]
        with pytest.raises(ex.NoWorkerError) as caught:
            connect(site.credential, *hosts, connect_timeout=3.0, wait=10)
        thread.join()
    for host in hosts:
        assert host in str(caught.value)
    assert "refused" in str(caught.value)


def test_nobody_joins(site: Site) -> None:
    with pytest.raises(ex.NoWorkerError, match=r"within 0\.5 seconds"):
        ex.Manager(
            abs,
            ex.ParDegree(1),
            listen="127.0.0.1:0",
            wait=0.5,
            credential=site.credential,
        )


def test_a_port_that_is_taken_is_named(site: Site) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        with pytest.raises((OSError, ex.LinkError), match=r"(?i)in use"):
            ex.Manager(abs, ex.ParDegree(1), listen=address, wait=1, credential=site.credential)
