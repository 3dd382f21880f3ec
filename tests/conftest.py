"""A test that leaves descriptors, threads or processes behind fails, whatever else it has shown."""

from __future__ import annotations

import gc
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from matplotlib.figure import Figure
from tests.certificates.grid import Grid, server_options
from tests.front import Front
from tests.run_programs import no_fives, twice
from tests.site import Site

import exoskel as ex
from exoskel import manager, sim
from exoskel.service import Server

# Orderly ends are not instant: a closed manager's driver and its children may take this long to go.
SETTLE_SECONDS = 30.0

# Everything that a test starts inherits this variable, and keeps it when its parent has ended.
MARK = "EXOSKEL_TEST_RUN"
os.environ[MARK] = f"{os.getpid()}-{secrets.token_hex(8)}"

Inventory = dict[str, str]


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Compare what the process holds before and after; fixtures of wider scope are counted before.

    An autouse fixture of function scope is set up first and torn down last among those of its scope, so what a
    test's own fixtures release is released by then.
    """
    before = {kind: inventory() for kind, inventory in INVENTORIES.items()}
    yield
    deadline = time.monotonic() + SETTLE_SECONDS
    while (left := leaks(before)) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.02)
    if left:
        pytest.fail("left behind: " + "; ".join(left), pytrace=False)


@pytest.fixture(scope="session", autouse=True)
def kept_for_good(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Start the asynchronous runtime once: it keeps a pair of sockets for signals from then on, which is nobody's leak."""
    place = tmp_path_factory.mktemp("runtime")
    grid = Grid(place / "grid")
    with Server(lambda _connection, _identity: None, **server_options(grid, place)):
        pass


@pytest.fixture(scope="session")
def fonts(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Write text and a formula once: matplotlib keeps the files of its fonts open for good."""
    traces = Path(__file__).parent.parent / "traces"
    sim.paper(tmp_path_factory.mktemp("fonts"), figures=["3"], quick=True, traces=traces)
    drawn = Figure()
    drawn.text(0.5, 0.5, r"$x \mathdefault{10^{-1}}$")
    for ending in ("png", "svg"):
        drawn.savefig(tmp_path_factory.mktemp("formula") / f"formula.{ending}")


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    """Make a site in a new directory; its workers end with the test."""
    made = Site(tmp_path)
    # What the commands that made it have said is not the test's.
    capsys.readouterr()
    yield made
    made.close()


@pytest.fixture
def grid(tmp_path: Path) -> Grid:
    """Make a small grid in a new directory: an authority, a VOMS server, and whoever the test asks for."""
    return Grid(tmp_path / "grid")


@pytest.fixture
def front(grid: Grid, tmp_path: Path) -> Iterator[Front]:
    """Make a front that the test starts."""
    made = Front(grid, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module", name="manager")
def doubling_manager() -> Iterator[ex.Manager]:
    """Have two slots that double. A module with another program makes a manager of its own."""
    with ex.Manager(twice, ex.ParDegree(2)) as made:
        yield made


@pytest.fixture(scope="module", name="failing")
def failing_manager() -> Iterator[ex.Manager]:
    """Have one slot that raises at a five. It runs items in order: those before have their results."""
    with ex.Manager(no_fives, ex.ParDegree(1)) as made:
        yield made


def leaks(before: dict[str, Inventory]) -> list[str]:
    """What is there now and was not before."""
    left = []
    for kind, inventory in INVENTORIES.items():
        new = [
            f"{key} ({what})" for key, what in inventory().items() if before[kind].get(key) != what
        ]
        if new:
            left.append(f"{kind} {', '.join(new)}")
    return left


def descriptors() -> Inventory:
    """Open descriptors and what they point to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:  # the listing's own descriptor
            continue
        # Entropy and the null device are opened once by libraries and kept for good.
        if target not in {"/dev/urandom", "/dev/null"}:
            found[name] = target
    return found


def threads() -> Inventory:
    """Threads of this process, those of the extension module too."""
    found = {}
    for entry in Path("/proc/self/task").iterdir():
        try:
            found[entry.name] = (entry / "comm").read_text().strip()
        except OSError:  # it ended while we looked
            continue
    return found


def processes() -> Inventory:
    """Everything that comes from this process; a child that nobody has waited for counts.

    What is below this process is found by its parents. What has lost a parent is found by the mark in its environment.
    """
    children: dict[str, list[str]] = {}
    names = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            head, _, tail = (entry / "stat").read_text().rpartition(")")
        except OSError:
            continue
        children.setdefault(tail.split()[1], []).append(entry.name)
        names[entry.name] = head.partition("(")[2]
    found = []
    queue = [str(os.getpid())]
    for parent in queue:
        found += children.get(parent, [])
        queue += children.get(parent, [])
    others = names.keys() - queue
    return {process: names[process] for process in [*found, *filter(is_marked, others)]}


def is_marked(process: str) -> bool:
    """Say whether a process comes from this run of the tests. One that has ended doesn't say."""
    variable = f"{MARK}={os.environ[MARK]}".encode()
    try:
        return variable in Path("/proc", process, "environ").read_bytes().split(b"\0")
    except OSError:  # it ended while we looked, or is another account's
        return False


def drivers() -> Inventory:
    """Managers and executors whose driver has not been ended."""
    return {str(id(driver)): repr(driver) for driver in manager.running}


INVENTORIES: dict[str, Callable[[], Inventory]] = {
    "descriptors": descriptors,
    "threads": threads,
    "processes": processes,
    "drivers": drivers,
}
