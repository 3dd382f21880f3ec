"""Workers that announce themselves, and managers that hear them: by multicast between hosts that are network namespaces.

The manager is on the near host. Workers and liars are in the middle, which has an address in the near host's network and one in another. Multicast
of the far host reaches the middle only, which passes everything else on.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import network_hosts
from tests.network_hosts import ADDRESSES, MIDDLE, Hosts, Program, hosts
from tests.processes import children, eventually, gone, name_of

import exoskel as ex
from exoskel.cli import main
from exoskel.errors import NoWorkerError, PolicyError

_MISSING = network_hosts.missing()
in_networks = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))

MANAGER, WORKER, OTHER = "head.example.org", "lab1.example.org", "lab2.example.org"
THIRD, STRANGER = "lab3.example.org", "lab9.example.org"
POLICY = """\
[domain.all]
addresses = ["10.88.0.0/16"]
names = ["*.example.org"]
results = "pickle"
[[rule]]
from = "all"
to = "all"
protection = "plain"
"""
DISCOVER = f'[discover]\nworkers = ["{WORKER}"]\n'
DISCOVER_OTHER = f'[discover]\nworkers = ["{OTHER}"]\n'
# What the manager's host runs: the names of the workers that have worked, or the words of the error.
RUN = """\
import json, logging, sys
from tests.processes import eventually
import exoskel as ex
logging.basicConfig(level=logging.INFO)
slots, workers, credential, policy, wait = sys.argv[1:]
options = {"workers": json.loads(workers), "credential": credential, "policy": policy, "wait": float(wait)}
try:
    with ex.Manager(abs, ex.ParDegree(int(slots)), **options) as manager:
        def have_all_worked():
            list(manager.map(range(-64, 0)))
            return sum(worker.items > 0 for worker in manager.status().workers) == int(slots)
        assert eventually(have_all_worked), manager.status()
        results = list(manager.map([-1, -2]))
        names = sorted(worker.name for worker in manager.status().workers)
    print(json.dumps({"results": results, "names": names}))
except ex.ExoskelError as error:
    print(json.dumps({"error": str(error)}))
"""


class Network:
    """A manager's host and workers, with credentials of one authority."""

    def __init__(self, between: Hosts) -> None:
        self.hosts = between
        self.place = between.place
        assert main(["pki", "init", str(self.place / "pki"), "--json"]) == 0

    def file(self, name: str, text: str) -> str:
        """Write a file; return where it is."""
        path = self.place / name
        path.write_text(text)
        return str(path)

    def credential(self, role: str, name: str) -> str:
        """Issue a credential, once."""
        path = self.place / f"{name}.pem"
        if not path.exists():
            where = ["--directory", str(self.place / "pki"), "--output", str(path), "--json"]
            assert main(["pki", "issue", *where, "--role", role, "--name", name]) == 0
        return str(path)

    def worker(self, name: str, port: int, *more: str, host: str = "middle") -> Program:
        """Start a worker, in the middle if nothing else is said."""
        words = ["--listen", f"tcp://0.0.0.0:{port}", "--slots", "1", "--json", *more]
        words += ["--credential", self.credential("worker", name)]
        words += ["--policy", self.file("worker.toml", POLICY)]
        program = self.hosts.python(host, "-m", "exoskel", "worker", *words)
        assert str(port) in program.line(), program.log()
        return program

    def liar(self, name: str, *places: str, host: str = "middle") -> Program:
        """Announce a worker that is none, in the middle if nothing else is said."""
        program = self.hosts.python(host, "-m", "tests.discovery_program", "lie", name, *places)
        assert program.line() == "ready"
        return program

    def begin(
        self,
        wait: float = 60.0,
        workers: str | list[str] = "discover",
        rules: str = DISCOVER,
        slots: int = 1,
    ) -> Program:
        """Start a manager on the near host."""
        words = [str(slots), json.dumps(workers), self.credential("manager", MANAGER)]
        words += [self.file("policy.toml", POLICY + rules), str(wait)]
        return self.hosts.python("near", "-c", RUN, *words)

    def run(self, wait: float = 60.0) -> Any:
        """Run a manager on the near host to its end."""
        return json.loads(self.begin(wait).line(wait + 30.0))

    def heard(self, seconds: float = 2.0, *more: str, host: str = "near") -> Any:
        """Return what `exoskel discover` says, on the near host if nothing else is said."""
        words = ["-m", "exoskel", "discover", "--json", "--seconds", str(seconds), *more]
        program = self.hosts.python(host, *words)
        return json.loads(program.line())["workers"]

    def wait_for(self, *names: str, host: str = "near") -> None:
        """Wait until these workers are heard on a host, and no others."""
        assert eventually(lambda: {one["name"] for one in self.heard(host=host)} == set(names))

    def log(self) -> str:
        """Return all that has been logged on the near host."""
        return (self.place / "log-near").read_text()


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    """Two hosts and a middle."""
    with hosts(tmp_path) as between:
        yield Network(between)


def announcers_of(worker: Program) -> list[int]:
    """List the announcers of a worker."""
    return [child for child in children(worker.process.pid) if name_of(child) == "exoskel mdns"]


@in_networks
def test_a_manager_works_on_a_worker_that_it_hears(network: Network) -> None:
    # Whoever comes first: the manager waits.
    manager = network.begin()
    network.worker(WORKER, 7601, "--announce")
    assert json.loads(manager.line(90.0)) == {"results": [1, 2], "names": [WORKER]}
    # One that is there already, by the command.
    program = network.file("double.py", "def double(x):\n    return 2 * x\n")
    source, sink = network.file("in.jsonl", "1\n2\n"), network.place / "out.jsonl"
    words = ["-m", "exoskel", "run", f"{program}:double", "--source", source, "--sink", str(sink)]
    words += ["--workers", "discover", "--json"]
    words += ["--credential", network.credential("manager", MANAGER)]
    words += ["--policy", str(network.place / "policy.toml")]
    done = network.hosts.python("near", *words)
    said = json.loads(done.line(90.0))
    assert said.get("results") == 2, said
    assert sink.read_text() == "2\n4\n"
    # Both: who is heard stands in for one that is listed and isn't there.
    hosts = network.file("hosts.txt", f"# the other one\n{MIDDLE['near']}:7602 {OTHER}\n")
    done = network.hosts.python("near", *words, "--workers", hosts)
    said = json.loads(done.line(90.0))
    assert said.get("results") == 2, said
    assert sink.read_text() == "2\n4\n2\n4\n"


@in_networks
def test_who_does_not_announce_itself_is_not_heard(network: Network) -> None:
    network.worker(WORKER, 7601)
    # One that begins later is heard, and the other one isn't.
    network.worker(OTHER, 7602, "--announce")
    network.wait_for(OTHER)


@in_networks
def test_names_that_the_policy_does_not_allow_are_not_dialled(network: Network) -> None:
    worker = network.worker(OTHER, 7601, "--announce")
    allowed = ["--policy", network.file("manager.toml", POLICY + DISCOVER)]
    network.wait_for(OTHER)
    heard: list[Any] = []

    def is_heard() -> bool:
        heard[:] = network.heard(4.0, *allowed)
        return bool(heard)

    assert eventually(is_heard)
    assert [(one["name"], one["allowed"]) for one in heard] == [(OTHER, False)]
    assert f"{MIDDLE['near']}:7601" in heard[0]["addresses"]
    said = network.run(wait=8.0)
    assert "no worker was heard whose name the policy's [discover] allows" in said["error"]
    assert "head" not in worker.log()


@in_networks
def test_liars_cost_time_and_nothing_else(network: Network) -> None:
    # Another worker of the site says that it is this one.
    network.worker(OTHER, 7602)
    network.liar(WORKER, f"{MIDDLE['near']}:7602")
    network.wait_for(WORKER)
    said = network.run(wait=15.0)
    assert "certificate" in said["error"], said
    # Others say that it is where nobody is, or at addresses of the manager itself.
    network.liar(WORKER, *(f"10.88.1.{host}:{host}" for host in range(50, 56)))
    network.liar(WORKER, "127.0.0.1:7601", "224.0.0.251:7603", f"{ADDRESSES['near']}:9")
    network.liar("a b\x1b[2J.example.org", f"{MIDDLE['near']}:7602")
    network.worker(WORKER, 7601, "--announce")
    assert network.run(wait=100.0) == {"results": [1, 2], "names": [WORKER]}
    network.wait_for(WORKER)
    places = {place for one in network.heard(4.0) for place in one["addresses"]}
    assert f"{MIDDLE['near']}:7601" in places
    assert not any(place.startswith(("127.", "224.")) for place in places)


@in_networks
def test_a_flood_of_announcements_does_not_hide_a_worker(network: Network) -> None:
    manager = network.begin(rules='[discover]\nworkers = ["*.example.org"]\n')

    def flood(pattern: str, count: int) -> None:
        words = ["flood", MIDDLE["near"], pattern, str(count)]
        program = network.hosts.python("middle", "-m", "tests.discovery_program", *words)
        assert program.line() == "done"

    def is_fooled() -> bool:
        flood("liar*.example.org", 400)
        return "worker liar" in manager.log()

    # Places that are dialled, and then more than the events that the library keeps.
    assert eventually(is_fooled)
    flood("liar*.elsewhere.org", 6000)
    network.worker(WORKER, 7601, "--announce")
    assert json.loads(manager.line(90.0)) == {"results": [1, 2], "names": [WORKER]}


@in_networks
@pytest.mark.parametrize("is_known", [True, False], ids=["in a list", "heard itself"])
def test_a_worker_tells_of_another_that_the_manager_can_not_hear(
    is_known: bool, network: Network
) -> None:
    network.worker(WORKER, 7601, "--announce")
    network.worker(OTHER, 7601, "--announce", host="far")
    network.wait_for(WORKER)
    place = f"{MIDDLE['near']}:7601 {WORKER}"
    manager = (
        network.begin(workers=[place, "discover"], rules=DISCOVER_OTHER, slots=2)
        if is_known
        else network.begin(rules=f'[discover]\nworkers = ["{WORKER}", "{OTHER}"]\n', slots=2)
    )
    assert json.loads(manager.line(90.0)) == {"results": [1, 2], "names": [WORKER, OTHER]}
    heard = [line for line in network.log().splitlines() if "heard worker" in line]
    assert any(f"heard worker {OTHER} at {ADDRESSES['far']}:7601" in line for line in heard)
    assert is_known == (not any(f"heard worker {WORKER} " in line for line in heard))


@in_networks
def test_what_a_worker_tells_is_believed_no_more_than_what_is_heard(network: Network) -> None:
    network.worker(WORKER, 7601, "--announce")
    # Another worker of the site in the place of the one that is looked for, and a name that nobody looks for.
    network.worker(THIRD, 7602, host="far")
    network.liar(OTHER, f"{ADDRESSES['far']}:7602", host="far")
    network.liar(STRANGER, f"{ADDRESSES['far']}:7603", host="far")
    network.wait_for(WORKER, OTHER, STRANGER, host="middle")
    listed = [f"{MIDDLE['near']}:7601 {WORKER}", "discover"]
    manager = network.begin(workers=listed, rules=DISCOVER_OTHER, slots=2)
    lie = f"no session with worker {OTHER} at {ADDRESSES['far']}:7602"
    assert eventually(lambda: lie in network.log()), network.log()
    network.worker(OTHER, 7601, "--announce", host="far")
    assert json.loads(manager.line(90.0)) == {"results": [1, 2], "names": [WORKER, OTHER]}
    assert STRANGER not in network.log()


@in_networks
def test_a_worker_that_tells_lies_hides_nobody_of_whom_others_tell(network: Network) -> None:
    network.worker(WORKER, 7601, "--announce")
    words = ["tell", "7602", network.credential("worker", THIRD), OTHER, STRANGER, MIDDLE["near"]]
    teller = network.hosts.python("middle", "-m", "tests.discovery_program", *words)
    assert teller.line() == "ready"
    listed = [f"{MIDDLE['near']}:{port}" for port in (7601, 7602)]
    workers = [f"{listed[0]} {WORKER}", f"{listed[1]} {THIRD}", "discover"]
    manager = network.begin(workers=workers, rules=DISCOVER_OTHER, slots=3)
    lie = f"no session with worker {OTHER} at {MIDDLE['near']}:9"
    assert eventually(lambda: lie in network.log()), network.log()
    network.worker(OTHER, 7601, "--announce", host="far")
    assert json.loads(manager.line(90.0)) == {"results": [1, 2], "names": [WORKER, OTHER, THIRD]}
    assert STRANGER not in network.log()


@in_networks
def test_an_announcement_ends_with_its_worker_and_comes_again_with_its_announcer(
    network: Network,
) -> None:
    worker = network.worker(WORKER, 7601, "--announce")
    assert eventually(lambda: bool(announcers_of(worker)))
    (first,) = announcers_of(worker)
    os.kill(first, signal.SIGKILL)
    assert eventually(lambda: announcers_of(worker) not in ([first], []))
    network.wait_for(WORKER)
    (second,) = announcers_of(worker)
    # Nothing of the worker's is in it but its output, and where it writes whom it hears.
    links = [os.readlink(one) for one in Path(f"/proc/{second}/fd").iterdir()]
    memory = [link for link in links if "memfd" in link]
    assert len(memory) == 1, links
    assert "exoskel-heard" in memory[0]
    worker.signal(signal.SIGTERM)
    assert worker.process.wait(60) == 0
    assert eventually(lambda: gone(second))
    network.wait_for()


def test_a_policy_without_names_to_discover_is_refused(tmp_path: Path) -> None:
    place = ["--directory", str(tmp_path / "pki"), "--output", str(tmp_path / "head.pem")]
    assert main(["pki", "init", str(tmp_path / "pki"), "--json"]) == 0
    assert main(["pki", "issue", *place, "--role", "manager", "--name", MANAGER, "--json"]) == 0
    (tmp_path / "policy.toml").write_text(POLICY)
    with pytest.raises(
        PolicyError, match=r"without a policy that has a \[discover\], expected one"
    ):
        ex.Manager(
            abs,
            ex.ParDegree(1),
            workers="discover",
            credential=tmp_path / "head.pem",
            policy=tmp_path / "policy.toml",
        )


def test_a_file_named_discover_is_still_a_file(tmp_path: Path) -> None:
    (tmp_path / "discover").write_text("127.0.0.1:1 lab1\n")
    with pytest.raises(ex.ExoskelError, match="credential") as caught:
        ex.Manager(abs, ex.ParDegree(1), workers=tmp_path / "discover", wait=1.0)
    assert not isinstance(caught.value, NoWorkerError)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--listen", "tcp://127.0.0.1:7601"], "expected an address that others reach"),
        (["--listen", "unix:/nowhere"], "--announce goes with --listen tcp://"),
        (["--join", "head:7600"], "--announce goes with --listen tcp://"),
    ],
)
def test_what_nobody_reaches_is_not_announced(words: list[str], expected: str) -> None:
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--announce", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert expected in done.stderr
