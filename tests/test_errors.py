"""Every public exception comes out of a public door, and says where and why."""

from __future__ import annotations

import importlib
import math
import operator
import os
import pickle
import socket
import subprocess
import sys
import textwrap
import threading
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually
from tests.site import POLICY, Site, Worker, free_address

import exoskel as ex
from exoskel import _core, errors, links
from exoskel.links import Startpoint

NODE = "node1.lab.example.org"


def caught(call: Callable[[], object]) -> BaseException:
    """Return what a call raises."""
    with pytest.raises(ex.ExoskelError) as raised:
        call()
    return raised.value


def without_worker(site: Site, *workers: Worker, **options: Any) -> ex.NoWorkerError:
    """Return what a manager raises that gets none of these workers."""
    with pytest.raises(ex.NoWorkerError) as raised:
        site.connect(abs, 1, *workers, **options)
    return raised.value


def cause(site: Site, *workers: Worker) -> BaseException:
    """Return why there was no worker."""
    return without_worker(site, *workers).attempts[0]


def raised_by(script: str, place: Path) -> BaseException:
    """Return what a script in a process of its own puts into a file, for errors that need one."""
    path = place / "error"
    subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), str(path)], timeout=60, check=True
    )
    error = pickle.loads(path.read_bytes())
    assert isinstance(error, BaseException)
    return error


def outcome(
    task: Callable[..., Any], item: object, *, retries: int = 3, message_bytes_max: int = 1 << 30
) -> BaseException:
    """Return the exception of an item that a child of this process runs."""
    with ex.Manager(
        task, ex.ParDegree(1), retries=retries, message_bytes_max=message_bytes_max
    ) as manager:
        (error,) = manager.map([item], errors="return")
    assert isinstance(error, BaseException)
    return error


# Ways to have a worker that can't serve this manager, whatever time passes. They leave the worker running.


def under_another_name(site: Site) -> Worker:
    """Expect a name that the worker's certificate doesn't have."""
    worker = site.worker(NODE)
    worker.line = f"{worker.address} node2.lab.example.org"
    return worker


def of_another_authority(site: Site) -> Worker:
    """Start a worker whose certificate an authority of the same name has signed."""
    (site.place / "other").mkdir()
    return site.worker(NODE, credential=Site(site.place / "other").issue("worker", NODE))


def that_refuses_us(site: Site) -> Worker:
    """Start a worker whose policy doesn't allow this manager."""
    return site.worker(NODE, policy=POLICY + '\n[allow]\nmanagers = ["other.lab.example.org"]\n')


def that_we_refuse(site: Site) -> Worker:
    """Start a worker that this manager's policy doesn't allow."""
    site.policy.write_text(POLICY + '\n[allow]\nworkers = ["other.lab.example.org"]\n')
    return site.worker(NODE)


def of_another_python(site: Site) -> Worker:
    """Let this manager say that it is of another version."""
    pretended = types.SimpleNamespace(**vars(sys))
    pretended.version_info = types.SimpleNamespace(major=3, minor=9)
    importlib.import_module("exoskel.manager").sys = pretended  # type: ignore[attr-defined]
    return site.worker(NODE)


@pytest.fixture(autouse=True)
def own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give `exoskel.manager` its version back after each test."""
    monkeypatch.setattr("exoskel.manager.sys", sys)


def raise_exoskel(site: Site) -> BaseException:
    with ex.Manager(abs, ex.ParDegree(1)) as manager:
        streams = [manager.map([-1]) for _ in range(5000)]
        return caught(lambda: list(streams[-1]))


def raise_link(site: Site) -> BaseException:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = "{}:{}".format(*taken.getsockname())
        return caught(
            lambda: ex.Manager(abs, ex.ParDegree(1), listen=address, credential=site.credential)
        )


def raise_fork(site: Site) -> BaseException:
    script = """
        import os, pickle, sys, warnings
        import exoskel as ex

        warnings.simplefilter("ignore", DeprecationWarning)
        with ex.Manager(abs, ex.ParDegree(1)) as manager:
            child = os.fork()
            if child == 0:
                try:
                    manager.map([-1])
                except ex.ForkError as error:
                    with open(sys.argv[1], "wb") as file:
                        pickle.dump(error, file)
                os._exit(0)
            os.waitpid(child, 0)
    """
    return raised_by(script, site.place)


def raise_initializer(_site: Site) -> BaseException:
    with ex.Manager(abs, ex.ParDegree(1), initializer=math.sqrt, initargs=(-1,)) as manager:
        return caught(lambda: list(manager.map([-1])))


def raise_shared_lost(_site: Site) -> BaseException:
    table = ex.Shared([1])
    table.close()
    return outcome(operator.attrgetter("value"), table)


def raise_key_memory(site: Site) -> BaseException:
    script = """
        import os, pickle, resource, sys
        import exoskel as ex

        with open(sys.argv[1], "wb") as file:
            # Loads whatever is needed, which somebody else may not be able to read.
            ex.Manager(abs, ex.ParDegree(1)).close()
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
            if os.geteuid() == 0:
                # Who is root may lock all the same.
                os.setuid(65534)
            try:
                ex.Manager(abs, ex.ParDegree(1), key_memory="locked")
            except ex.KeyMemoryError as error:
                pickle.dump(error, file)
    """
    return raised_by(script, site.place)


def raise_policy(site: Site) -> BaseException:
    site.policy.write_text("[[rule]]\nprotection = 'strong'\n")
    return caught(lambda: site.connect(abs, 1, workers=["127.0.0.1:1"]))


def raise_program(site: Site) -> BaseException:
    lock = threading.Lock()
    with ex.Executor(1) as executor:
        return caught(lambda: executor.submit(lambda: lock))


def raise_result_rejected(site: Site) -> BaseException:
    site.policy.write_text(POLICY.replace('results = "pickle"\n', ""))
    with site.connect(iter, 1, site.worker(NODE)) as manager:
        return caught(lambda: list(manager.map([[1]])))


def raise_remote_traceback(site: Site) -> BaseException:
    error = outcome(math.sqrt, -1).__cause__
    assert error is not None
    return error


def timed_out() -> BaseException:
    with ex.Manager(time.sleep, ex.ParDegree(1), timeout=0.05) as manager:
        (error,) = manager.map([60], errors="return")
    assert isinstance(error, BaseException)
    return error


def raise_no_address(site: Site) -> BaseException:
    with links.Node(site.issue("peer", "ocean.lab.example.org")) as node:
        return caught(lambda: node.lookup("coupler", name=NODE))


def after_the_end_of(site: Site, error: BaseException | None) -> BaseException:
    """What reading from a program raises that has ended, in good order or by an error."""
    place = site.place / "keeper"
    text = '[program.a]\n[program.b]\n[[connection]]\nfrom = "a.x"\nto = "b.x"\n'
    keeper = _core.Keeper(place, text)
    try:
        layout = ex.Layout((4,), "f8", "block")
        with ex.Member("b", keeper=place) as reader:
            array = reader.array("x", layout)
            writer = ex.Member("a", keeper=place)
            writer.array("x", layout)
            writer.leave(error)
            return caught(lambda: array.read().__enter__())
    finally:
        keeper.end()


def ended_process() -> BaseException:
    with ex.Job() as job:
        return caught(lambda: job.start(["false"]).result(60.0))


CASES: dict[str, Callable[[Site], BaseException]] = {
    "AuthenticationError": lambda site: cause(site, under_another_name(site)),
    "CouplingError": lambda site: caught(lambda: _core.read_coupling("")),
    "CredentialError": lambda site: caught(
        lambda: ex.Manager(abs, ex.ParDegree(1), listen="127.0.0.1:0")
    ),
    "ExoskelError": raise_exoskel,
    "ForkError": raise_fork,
    "ItemTimeoutError": lambda site: timed_out(),
    "InitializerError": raise_initializer,
    "JournalError": lambda site: caught(
        lambda: ex.run(abs, [1], ex.Lines("/dev/null"), journal=site.place / "run.journal")
    ),
    "KeeperError": lambda site: caught(lambda: ex.Member("a", keeper=site.place / "nobody")),
    "KeyMemoryError": raise_key_memory,
    "LinkError": raise_link,
    "MemberLostError": lambda site: after_the_end_of(site, ZeroDivisionError("of a cell")),
    "NoAddressError": raise_no_address,
    "NoWorkerError": lambda site: without_worker(site, under_another_name(site)),
    "PolicyError": raise_policy,
    "ProcessEndedError": lambda site: ended_process(),
    "ProgramError": raise_program,
    "ProgramLeftError": lambda site: after_the_end_of(site, None),
    "RefusedError": lambda site: cause(site, that_refuses_us(site)),
    "RemoteTraceback": raise_remote_traceback,
    "ResultRejectedError": raise_result_rejected,
    "SharedLostError": raise_shared_lost,
    "SizeLimitError": lambda site: outcome(len, bytes(1 << 19), message_bytes_max=1 << 18),
    "StartpointError": lambda site: caught(lambda: Startpoint.parse("exo://damaged")),
    "TaskError": lambda site: outcome(sys.exit, 3),
    "VersionError": lambda site: cause(site, of_another_python(site)),
    "WorkerLostError": lambda site: outcome(os._exit, 3, retries=1),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_exception_comes_out_of_a_public_door(name: str, site: Site) -> None:
    error = CASES[name](site)
    assert type(error) is getattr(ex, name)
    assert str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy)) == (type(error), str(error))


def test_no_public_exception_is_without_a_case() -> None:
    public = {name: getattr(ex, name) for name in ex.__all__}
    public |= {name: getattr(errors, name) for name in errors.__all__}
    exceptions = {
        name
        for name, value in public.items()
        if isinstance(value, type) and issubclass(value, BaseException)
    }
    assert set(CASES) == exceptions


@pytest.mark.parametrize(
    ("trouble", "kind"),
    [
        (under_another_name, ex.AuthenticationError),
        (of_another_authority, ex.AuthenticationError),
        (that_refuses_us, ex.RefusedError),
        (that_we_refuse, ex.RefusedError),
        (of_another_python, ex.VersionError),
    ],
)
def test_what_time_cannot_change_ends_the_wait(
    trouble: Callable[[Site], Worker], kind: type[ex.LinkError], site: Site
) -> None:
    """Had the manager waited, the text would say for how long."""
    worker = trouble(site)
    error = without_worker(site, worker)
    assert str(error).startswith("no worker can be had, expected 1 slot\n  worker ")
    (attempt,) = error.attempts
    assert type(attempt) is kind
    assert attempt.place == worker.address.removeprefix("tcp://")
    assert attempt.place in str(attempt)
    # A traceback says it once.
    assert "".join(traceback.format_exception(error)).count(str(attempt)) == 1


def test_a_place_that_refuses_for_good_does_not_end_the_wait_for_another(site: Site) -> None:
    refusing = that_refuses_us(site)
    good = site.worker("node2.lab.example.org")
    with site.connect(abs, 1, refusing, good) as manager:
        assert list(manager.map([-1])) == [1]


def test_each_place_has_its_own_error(site: Site) -> None:
    refusing = that_refuses_us(site)
    other = site.worker("node2.lab.example.org")
    other.line = f"{other.address} node3.lab.example.org"
    # Their slots are up by then, and answer at once.
    assert [type(cause(site, worker)) for worker in (refusing, other)] == [
        ex.RefusedError,
        ex.AuthenticationError,
    ]
    nobody = free_address()
    # All have been dialled by then.
    error = without_worker(site, workers=[refusing.line, other.line, nobody], wait=15)
    found = {attempt.place: type(attempt) for attempt in error.attempts}
    assert found == {
        refusing.address.removeprefix("tcp://"): ex.RefusedError,
        other.address.removeprefix("tcp://"): ex.AuthenticationError,
        nobody: ex.LinkError,
    }
    copy = pickle.loads(pickle.dumps(error))
    assert {attempt.place: type(attempt) for attempt in copy.attempts} == found


def test_a_worker_that_joins_and_is_refused_is_told_of(site: Site) -> None:
    address = free_address()
    (site.place / "other").mkdir()
    credential = Site(site.place / "other").issue("worker", NODE)
    worker = site.worker(NODE, join=f"tcp://{address}", credential=credential)
    # It is up: all that the wait has to be long enough for is its next attempt.
    assert eventually(lambda: "no session" in worker.log.read_text())
    found: list[ex.NoWorkerError] = []

    def is_told() -> bool:
        found.append(without_worker(site, listen=address, wait=5))
        return bool(found[-1].attempts)

    # On a busy machine its next attempt may take longer than one wait.
    assert eventually(is_told)
    error = found[-1]
    assert str(error).startswith("no worker within 5 seconds, expected 1 slot\n  worker that ")
    (attempt,) = error.attempts
    assert (type(attempt), attempt.place) == (ex.AuthenticationError, "127.0.0.1")


def test_a_stream_that_loses_its_last_worker_says_why_there_is_no_other(site: Site) -> None:
    worker = site.worker(NODE)
    with site.connect(abs, 1, worker, patience=1) as manager:
        stream = manager.map(iter(int, 1))
        assert next(stream) == 0
        worker.kill()
        with pytest.raises(ex.NoWorkerError, match="no worker is left") as raised:
            for _ in stream:
                pass
    (attempt,) = raised.value.attempts
    assert type(attempt) is ex.LinkError
    assert attempt.place == worker.address.removeprefix("tcp://")
    assert "".join(traceback.format_exception(raised.value)).count(str(attempt)) == 1


def exit_at_two(item: int) -> int:
    """Leave as a script does, or return the slot's process."""
    if item == 2:
        sys.exit("no such file: the script would end here")
    return os.getpid()


def test_sys_exit_in_a_task_ends_its_item_only() -> None:
    with ex.Manager(ex.Farm(exit_at_two), ex.ParDegree(1)) as manager:
        first, left, third = manager.map([1, 2, 3], errors="return")
        assert first == third
        assert type(left) is ex.TaskError
        assert left.kind == "SystemExit"
        assert "the script would end here" in str(left)


def test_sys_exit_in_a_child_that_a_task_has_forked_ends_the_child() -> None:
    def task(code: int) -> int:
        import os
        import sys
        import warnings

        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            sys.exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    with ex.Manager(ex.Farm(task), ex.ParDegree(1)) as manager:
        assert list(manager.map([7, 0])) == [7, 0]


class Mute(Exception):
    """An exception whose text can't be had."""

    def __str__(self) -> str:
        raise LookupError("no text")


class Unsendable:
    """A result whose pickling raises what has no text."""

    def __reduce__(self) -> Any:
        raise Mute(self)


class Fields(Exception):
    """An exception that has what its argument has, and raises what that raises."""

    def __getattr__(self, name: str) -> Any:
        return self.args[0][name]


class Lookup:
    """A callable that has what it holds, and raises what that raises."""

    def __init__(self) -> None:
        self.held: dict[str, Any] = {}

    def __getattr__(self, name: str) -> Any:
        # What pickle asks for isn't there.
        if name != "__name__":
            raise AttributeError(name)
        return self.held[name]

    def __call__(self, item: int) -> int:
        """Raise for 0."""
        return 1 // item


def unsendable(item: int) -> Unsendable:
    return Unsendable()


def raise_fields(item: int) -> None:
    raise Fields({"item": item})


@pytest.mark.parametrize(
    ("function", "kind", "text"),
    [
        (unsendable, ex.ProgramError, "the result of unsendable can't be sent: Mute: "),
        (raise_fields, Fields, "{'item': 0}"),
        (Lookup(), ZeroDivisionError, "integer"),
    ],
    ids=["no text", "no notes", "no name"],
)
def test_what_does_not_let_itself_be_read_costs_no_slot(
    function: Callable[[int], Any], kind: type[Exception], text: str
) -> None:
    """What goes wrong in classes of the user's, while a message is written about them, is nobody's error."""
    with ex.Executor(1) as executor:
        slot = executor.submit(os.getpid).result()
        raised = executor.submit(function, 0).exception()
        assert type(raised) is kind
        assert str(raised).startswith(text)
        with pytest.raises(kind) as caught_of_item:
            list(executor.map(function, [0]))
        assert vars(caught_of_item.value)["__notes__"][-1] == "item 0"
        assert executor.submit(os.getpid).result() == slot
    with ex.Manager(ex.Pipeline(abs, function), ex.ParDegree(1)) as manager:
        (outcome,) = manager.map([0], errors="return")
    assert type(outcome) is kind


def test_errors_of_an_executor_speak_of_calls(site: Site) -> None:
    with ex.Executor(1, retries=1) as executor:
        lost = executor.submit(os._exit, 3).exception()
        assert isinstance(lost, ex.WorkerLostError)
        assert lost.item is None
        assert str(lost).startswith("this call took down 1 worker ")
        left = executor.submit(sys.exit, 3).exception()
        assert isinstance(left, ex.TaskError)
    site.policy.write_text(POLICY.replace('results = "pickle"\n', ""))
    worker = site.worker(NODE)
    options: dict[str, Any] = {"credential": site.credential, "policy": site.policy}
    with ex.Executor(1, workers=[worker.line], **options) as executor:
        rejected = executor.submit(iter, [1]).exception()
        assert isinstance(rejected, ex.ResultRejectedError)
        assert "for this call" in str(rejected)
        assert "item" not in str(rejected)
