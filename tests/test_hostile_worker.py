"""An honest manager against a worker that breaks each rule of the protocol, mostly beside an honest worker."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from tests.hostile_worker import BEHAVIOURS
from tests.site import Site, free_address

import exoskel as ex
from exoskel.cli import main

HOSTILE, HONEST = "vm7.rented.example.org", "node1.lab.example.org"
ITEMS = range(-32, 0)
RESULTS = [-item for item in ITEMS]
# What must not reach a terminal.
UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Company:
    """The process of the hostile and the honest worker, and the site they belong to."""

    def __init__(self, place: Path) -> None:
        self.site = Site(place)
        self.issue("revoked", HOSTILE)
        directory = str(place / "pki")
        assert main(["pki", "revoke", "--directory", directory, HOSTILE, "--json"]) == 0
        self.issue("honest", HONEST)
        self.issue("hostile", HOSTILE)
        self.issue("other", "other.rented.example.org")
        self.issue("expired", HOSTILE, "--days", "0.0000001")
        self.issue("manager", HOSTILE, role="manager")
        stranger = place / "stranger"
        stranger.mkdir()
        Site(stranger).issue("worker", HOSTILE).rename(place / "stranger.pem")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.hostile_worker", str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parent.parent,
        )

    def issue(self, file: str, name: str, *more: str, role: str = "worker") -> None:
        """Issue a credential."""
        self.site.issue(role, name, "--force", *more).rename(self.site.place / f"{file}.pem")

    def ask(self, **command: Any) -> dict[str, Any]:
        """Have the process do something, and say what came of it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def close(self) -> None:
        """End the process."""
        with self.process:
            assert self.process.stdin is not None
            self.process.stdin.close()
        self.site.close()


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    made = Company(tmp_path_factory.mktemp("company"))
    yield made
    made.close()


def peak_mebibytes(*, reset: bool = False) -> float:
    """Say how much memory this process has had at most since the last reset."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def test_there_are_behaviours_enough_and_each_says_what_it_does() -> None:
    assert len(BEHAVIOURS) >= 60
    assert all(behaviour.does and behaviour.must.kind for behaviour in BEHAVIOURS.values())


@pytest.mark.parametrize("name", BEHAVIOURS)
def test_the_manager_bears_it(
    name: str,
    company: Company,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    behaviour = BEHAVIOURS[name]
    must = behaviour.must
    canary = tmp_path / "canary"
    caplog.set_level(logging.INFO)
    ports = company.ask(begin=name, canary=str(canary))
    before = peak_mebibytes(reset=True)
    try:
        with connected(company, ports, behaviour.step, must.options) as manager:
            if must.kind == "stalled":
                stream = manager.map(ITEMS, as_completed=True, errors="return")
                outcomes: list[Any] = list(itertools.islice(stream, len(ITEMS) - 1))
            else:
                outcomes = list(manager.map(ITEMS, errors="return"))
            rows = {row.name: row for row in manager.summary().workers}
    finally:
        played = company.ask(end=True)
    grown = peak_mebibytes() - before
    said = capfd.readouterr()

    assert not canary.exists()
    assert played["left"] == []
    sessions = played["sessions"]
    struck = {index for session in sessions for index in session["items"]}
    written = caplog.text + "".join(session["text"] for session in sessions)
    match must.kind:
        case "refused":
            assert outcomes == RESULTS
            assert HOSTILE not in rows
            assert not must.text or re.search(f"no session with .*({must.text})", caplog.text)
        case "ended":
            assert outcomes == RESULTS
            told = f"(lost worker {HOSTILE}|worker {HOSTILE}.* has ended a slot).*({must.text})"
            assert re.search(told, caplog.text), written
        case "item":
            assert struck
            assert rows[HOSTILE].state == "working", written
            for index, outcome in enumerate(outcomes):
                if index not in struck:
                    assert outcome == RESULTS[index]
                    continue
                assert re.fullmatch(must.error, type(outcome).__name__), repr(outcome)
                assert re.search(must.text, str(outcome))
                shown = "".join(traceback.format_exception(outcome))
                assert not UNSHOWN.search(shown)
        case "value":
            assert struck
            assert rows[HOSTILE].state == "working", written
            others = [outcome for index, outcome in enumerate(outcomes) if index not in struck]
            assert others == [result for index, result in enumerate(RESULTS) if index not in struck]
        case "harmless":
            assert outcomes == RESULTS
            assert rows[HOSTILE].state == "working", written
        case "stalled":
            assert set(outcomes) < set(RESULTS)
    assert not UNSHOWN.search(said.out + said.err + caplog.text)
    assert grown < must.memory_mebibytes


@contextlib.contextmanager
def connected(
    company: Company,
    ports: dict[str, int],
    step: str,
    options: dict[str, Any],
    program: Any = abs,
) -> Iterator[ex.Manager]:
    """Make a manager of the hostile worker and an honest one."""
    common: dict[str, Any] = {
        "credential": company.site.credential,
        "policy": company.site.policy,
        "revocation_list": company.site.place / "pki" / "revoked.crl",
        "connect_timeout": 5.0,
        # What seals in Python is silent for long where the machine is busy.
        "dead_after": 15.0,
        **options,
    }
    if step == "greet":
        address = free_address()
        company.ask(join=int(address.rpartition(":")[2]))
        common |= {"listen": address, "wait": 60.0}
        slots = 1
    else:
        names = {"hostile": HOSTILE, "honest": HONEST}
        hosts = [f"127.0.0.1:{port} {names[of]}" for of, port in ports.items()]
        common["workers"] = hosts + options.get("workers", [])
        slots = len(common["workers"])
    skeleton = program if isinstance(program, ex.Skeleton) else ex.Farm(program)
    with ex.Manager(skeleton, ex.ParDegree(slots), **common) as manager:
        yield manager


@contextlib.contextmanager
def staged(company: Company, name: str, tmp_path: Path) -> Iterator[dict[str, int]]:
    """Put a behaviour on stage."""
    try:
        yield company.ask(begin=name, canary=str(tmp_path / "canary"))
    finally:
        assert company.ask(end=True)["left"] == []


@pytest.mark.parametrize("of", ["hostile", "honest"], ids=["answers data", "answers pickles"])
def test_an_independent_worker_computes_alone(of: str, company: Company, tmp_path: Path) -> None:
    """Values, exceptions, and results that have to be announced."""

    def task(item: int) -> Any:
        if item == 3:
            raise KeyError("three")
        return bytes(item), [item, float(item), str(item), None, True, {"a": -item}]

    items = [*range(50), 70_000, 1_000_000]
    task.__module__ = "__main__"  # by value: the worker has no tests
    with (
        staged(company, "good_worker", tmp_path) as ports,
        connected(company, {of: ports[of]}, "nothing", {}, task) as manager,
    ):
        outcomes = list(manager.map(items, errors="return"))
        (row,) = manager.summary().workers
    assert isinstance(outcomes.pop(3), KeyError)
    items.remove(3)
    assert outcomes == [task(item) for item in items]
    assert (row.domain, row.items) == ("" if of == "hostile" else "lab", len(items) + 1)


@pytest.mark.parametrize(
    "program",
    [
        # abs is generic: whether float fits behind it depends on the order in which mypy looks at files.
        ex.Pipeline(ex.Seq(abs), cast(Any, float)),
        ex.Pipeline(abs, ex.Seq(float)),
        ex.Pipeline(ex.Seq(abs), ex.Seq(float)),
    ],
    ids=["serial first", "serial last", "all serial"],
)
def test_independent_workers_run_serial_functions(
    program: ex.Skeleton[Any, Any], company: Company, tmp_path: Path
) -> None:
    with (
        staged(company, "good_worker", tmp_path) as ports,
        connected(company, ports, "nothing", {}, program) as manager,
    ):
        assert list(manager.map(range(-500, 0))) == [float(-item) for item in range(-500, 0)]


def test_who_breaks_its_session_again_and_again_is_set_aside(
    company: Company, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No item is blamed for it: each may take down one worker here, and none is lost."""
    with (
        staged(company, "replayed_record", tmp_path) as ports,
        connected(company, ports, "execute", {"retries": 1}) as manager,
    ):
        for index, result in enumerate(manager.map(itertools.count(1), errors="return")):
            assert result == index + 1
            if index % 256 == 0 and "is set aside" in caplog.text:
                break
        rows = {row.name: row for row in manager.summary().workers}
        table = str(manager.summary())
    assert "does not verify" in rows[HOSTILE].set_aside
    assert rows[HONEST].set_aside == ""
    assert f"set aside: worker {HOSTILE}: broke its session 3 times" in table


@pytest.mark.parametrize("name", ["replayed_record", "unannounced_result", "records_of_noise"])
def test_a_real_worker_beside_it_loses_nothing(
    name: str, company: Company, site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    worker = site.worker(HONEST, credential=company.site.place / "honest.pem")
    with (
        staged(company, name, tmp_path) as ports,
        connected(
            company, {"hostile": ports["hostile"]}, "execute", {"workers": [worker.line]}
        ) as manager,
    ):
        for index, result in enumerate(manager.map(itertools.count(1))):
            assert result == index + 1
            if index % 256 == 0 and f"lost worker {HOSTILE}" in caplog.text:
                break
        rows = {row.name: row for row in manager.summary().workers}
    assert rows[HONEST].state == "working"
    assert BEHAVIOURS[name].must.kind == "ended"
