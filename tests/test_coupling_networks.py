"""Coupled programs on hosts of different networks: gateways between their keepers, and all that can be lost in between.

Hosts are network namespaces. The near and the far one see the middle only, where gateways run.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import network_hosts
from tests.network_hosts import MIDDLE, Capture, Hosts, Program, hosts, stopped
from tests.processes import eventually

from exoskel.cli import main

_MISSING = network_hosts.missing()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))

BOUND_SECONDS = 30.0
NAMES = {"near": "near.example.org", "far": "far.example.org", "middle": "head.example.org"}
HEAD_PORT, KEEPER_PORT = 7700, 7702
# Both run in the middle.
GATES = {"gate1.example.org": 7711, "gate2.example.org": 7712}
GATE, OTHER_GATE = GATES
# In a chain each is the end of one host's subnet.
BEHIND = {"near": GATE, "far": OTHER_GATE}
# Rows of 64 bytes: 64 MiB, so that something is under way when a test looks.
LONG, SHORT = 1 << 20, 64
COUPLING = """
[program.ocean]
[program.atmosphere]
[[connection]]
from = "ocean.sst"
to = "atmosphere.sst"
[[connection]]
from = "atmosphere.heat"
to = "ocean.heat"
"""
# All that can be plain is plain.
POLICY = """\
[domain.all]
addresses = ["10.88.0.0/16"]
names = ["*.example.org"]
[[rule]]
from = "all"
to = "all"
protection = "plain"
[[allow.rule]]
action = ["coupler.join", "coupler.report", "coupler.stay"]
name = "*.example.org"
"""
EVERYBODY = '[[allow.tunnel]]\nfrom = "*"\nto = "*"\n'
CHAIN = "".join(
    f"""\
[subnet.{host}]
names = {names}
gateways = [{{ name = "{gate}", address = "tcp://{MIDDLE[host]}:{GATES[gate]}" }}]
"""
    for host, gate, names in (
        ("near", GATE, [NAMES["near"], NAMES["middle"]]),
        ("far", OTHER_GATE, [NAMES["far"]]),
    )
)


class Networks:
    """A coupler, keepers and gateways, as commands on hosts of their own."""

    def __init__(self, between: Hosts) -> None:
        self.hosts = between
        self.place = between.place
        self.patience = 10.0
        self.gates: dict[str, Program] = {}
        assert main(["pki", "init", str(self.place / "pki"), "--json"]) == 0
        (self.place / "policy.toml").write_text(POLICY)
        (self.place / "coupling.toml").write_text(COUPLING)
        (self.place / "tunnels.toml").write_text(EVERYBODY)

    def credential(self, role: str, name: str) -> str:
        """Issue a credential, once."""
        path = self.place / f"{name}.pem"
        if not path.exists():
            where = ["--directory", str(self.place / "pki"), "--output", str(path), "--json"]
            assert main(["pki", "issue", *where, "--role", role, "--name", name]) == 0
        return str(path)

    def gateway(self, name: str, site: str = "") -> Program:
        """Start a gateway in the middle."""
        path = self.place / f"{name}.site"
        path.write_text(site)
        words = ["--listen", f"tcp://0.0.0.0:{GATES[name]}", "--json", "--site", str(path)]
        words += ["--credential", self.credential("gateway", name)]
        words += ["--policy", str(self.place / "tunnels.toml")]
        program = self.hosts.python("middle", "-m", "exoskel", "gateway", *words)
        assert name in program.line(), program.log()
        return program

    def chain(self) -> None:
        """Start two gateways of which each host reaches one, and which reach each other."""
        self.hosts.part()
        for name in GATES:
            self.gates[name] = self.gateway(name, CHAIN)

    def passed(self, gate: str) -> list[str]:
        """Return who had tunnels of a gateway through another one."""
        lines = (self.place / "log-middle").read_text().splitlines()
        ways = [line for line in lines if "accepted tunnel" in line]
        return [way for way in ways if f"through gateway {gate}" in way]

    def couple(self, host: str, *gates: str) -> Program:
        """Couple, on one of the hosts; the name is of another one than its keeper's."""
        words = self._node(host, HEAD_PORT, gates, NAMES["middle"])
        file = str(self.place / "coupling.toml")
        log = self.place / f"log-{host}"
        # Of those before it on this host, too.
        before = log.read_text().count("--join ")
        program = self.hosts.python(host, "-m", "exoskel", "couple", file, *words)
        assert eventually(lambda: log.read_text().count("--join ") > before, BOUND_SECONDS)
        return program

    def keeper(self, host: str, join: str, coupler: str, *gates: str) -> Program:
        """Start a keeper, and wait until it has joined."""
        words = ["--join", join, "--coupler", NAMES[coupler]]
        words += self._node(host, KEEPER_PORT, gates, NAMES[host])
        words += ["--socket", self.socket(host)]
        program = self.hosts.python(host, "-m", "exoskel", "keeper", *words)
        assert NAMES[host] in program.line(), program.log()
        return program

    def member(self, host: str, program: str, rows: int) -> Program:
        """Start a program's only process, with its arrays."""
        words = ("-m", "tests.member_program", self.socket(host), program)
        process = self.hosts.python(host, *words)
        assert process.line() == "ready", process.log()
        for name in ("sst", "heat"):
            is_source = (program == "ocean") == (name == "sst")
            axes = ["block", "*"] if is_source else ["*", "block"]
            process.ask("array", name=name, rows=rows, axes=axes)
        return process

    def socket(self, host: str) -> str:
        """Return where members of a host attach."""
        return str(self.place / f"socket-{host}")

    def _node(self, host: str, port: int, gates: tuple[str, ...], name: str) -> list[str]:
        words = ["--credential", self.credential("peer", name), "--json"]
        words += ["--listen", f"tcp://0.0.0.0:{port}", "--policy", str(self.place / "policy.toml")]
        for gate in gates:
            words += ["--gateway", at(gate, host)]
        return [*words, "--patience", str(self.patience), "--dead-after", "1"]


def at(gate: str, host: str) -> str:
    """Return a gateway as a host names it."""
    return f"{gate}@{MIDDLE[host]}:{GATES[gate]}"


@pytest.fixture
def networks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Networks]:
    with hosts(tmp_path, forwards=False) as between:
        yield Networks(between)
    capsys.readouterr()


class Coupled:
    """Both programs, with their keepers behind gateways, and the coupler on a third host."""

    def __init__(self, networks: Networks, *gates: str, rows: int) -> None:
        self.networks = networks
        self.head = networks.couple("middle")
        self.keepers = {
            host: networks.keeper(host, f"tcp://{MIDDLE[host]}:{HEAD_PORT}", "middle", *gates)
            for host in ("near", "far")
        }
        self._attach(rows)

    def _attach(self, rows: int) -> None:
        self.ocean = self.networks.member("near", "ocean", rows)
        self.atmosphere = self.networks.member("far", "atmosphere", rows)

    def exchange(self, marker: str) -> None:
        """Hand a version there and another one back."""
        self.ocean.begin("write", name="sst", marker=marker)
        self.atmosphere.begin("read", name="sst")
        assert self.ocean.answer() == {"value": None}
        assert self.atmosphere.answer() == {"value": marker}
        self.atmosphere.begin("write", name="heat", marker=f"{marker}back")
        self.ocean.begin("read", name="heat")
        assert self.atmosphere.answer() == {"value": None}
        assert self.ocean.answer() == {"value": f"{marker}back"}

    def begin(self, marker: str, capture: Capture) -> None:
        """Begin with a version there, and wait until some of it is on its way."""
        before = capture.seen()["bytes"]
        self.ocean.ask("write", name="sst", marker=marker)
        self.atmosphere.begin("read", name="sst")
        assert eventually(lambda: capture.seen()["bytes"] > before + 2_000_000, BOUND_SECONDS)

    def leave(self) -> dict[str, Any]:
        """Leave with both, and return what the coupler says at its end."""
        for process in (self.ocean, self.atmosphere):
            assert process.ask("leave") == {"value": None}
        found: dict[str, Any] = json.loads(self.head.line())
        return found


class Chained(Coupled):
    """The same behind two gateways, each of which one of the keepers can reach."""

    def __init__(self, networks: Networks, rows: int, *, is_beside: bool = False) -> None:
        self.networks = networks
        # Beside the near keeper, or on a third host that both can dial.
        joins = {host: f"tcp://{MIDDLE[host]}:{HEAD_PORT}" for host in MIDDLE}
        if is_beside:
            joins = {host: f"gateway:{at(gate, host)}" for host, gate in BEHIND.items()}
        self.head = networks.couple("near", GATE) if is_beside else networks.couple("middle")
        self.keepers = {
            host: networks.keeper(host, joins[host], "middle", gate)
            for host, gate in BEHIND.items()
        }
        self._attach(rows)


def test_versions_go_through_a_gateway_that_cannot_read_them(networks: Networks) -> None:
    """The coupler is on a third host, and none of it passes there; what may be plain elsewhere is encrypted."""
    networks.gateway(GATE)
    coupled = Coupled(networks, GATE, rows=SHORT)
    capture = Capture(networks.hosts)
    for step in range(3):
        coupled.exchange(f"hidden{step}")
    seen = capture.seen()
    assert seen["bytes"] > 3 * 2 * SHORT * 64
    assert seen["missed"] == 0
    assert not [name for name in seen if "hidden" in name]
    report = coupled.leave()
    assert [one["versions"] for one in report["connections"]] == [3, 3]


@pytest.mark.parametrize("is_beside", [False, True])
def test_versions_go_through_two_gateways_in_a_chain(networks: Networks, is_beside: bool) -> None:
    """Neither keeper reaches the other one's gateway, and no wire has anything clear, that between the gateways neither."""
    networks.chain()
    coupled = Chained(networks, SHORT, is_beside=is_beside)
    wires = {wire: Capture(networks.hosts, wire) for wire in ("near", "lo", "far")}
    for step in range(3):
        coupled.exchange(f"hidden{step}")
    for wire, capture in wires.items():
        seen = capture.seen()
        assert seen["bytes"] > 3 * 2 * SHORT * 64, wire
        assert seen["missed"] == 0
        assert not [name for name in seen if "hidden" in name], wire
    assert networks.passed(GATE) or networks.passed(OTHER_GATE)
    report = coupled.leave()
    assert [one["versions"] for one in report["connections"]] == [3, 3]


@pytest.mark.parametrize("lost", GATES)
def test_a_version_goes_on_when_a_gateway_of_a_chain_is_back(networks: Networks, lost: str) -> None:
    networks.chain()
    networks.hosts.pace("100mbit")
    coupled = Chained(networks, LONG)
    coupled.begin("first", Capture(networks.hosts))
    networks.gates[lost].signal(signal.SIGKILL)
    networks.gates[lost].process.wait()
    networks.gateway(lost, CHAIN)
    assert coupled.atmosphere.answer() == {"value": "first"}
    assert coupled.leave()["first_lost"] is None


@pytest.mark.parametrize("lost", GATES)
def test_both_sides_are_told_when_a_gateway_of_a_chain_is_gone(
    networks: Networks, lost: str
) -> None:
    networks.patience = 1.0
    networks.chain()
    networks.hosts.pace("100mbit")
    coupled = Chained(networks, LONG)
    coupled.begin("first", Capture(networks.hosts))
    networks.gates[lost].signal(signal.SIGKILL)
    both_are_told(coupled)


def test_the_same_can_be_read_on_a_plain_wire(networks: Networks) -> None:
    """What the tests with gateways don't find is there to be found."""
    networks.hosts.forward()
    coupled = Coupled(networks, rows=SHORT)
    capture = Capture(networks.hosts)
    coupled.exchange("open")
    seen = capture.seen()
    assert seen["open"] > 0
    assert seen["openback"] > 0
    coupled.leave()


def assert_lost(answer: dict[str, str], *words: str) -> None:
    """An answer is a loss, with these words in its text."""
    assert answer.get("error") == "MemberLostError", answer
    assert all(word in answer["text"] for word in words), answer


def test_a_version_goes_on_by_another_gateway(networks: Networks) -> None:
    """Both keepers are registered at two; the one that carries a version is killed."""
    gates = {name: networks.gateway(name) for name in GATES}
    networks.hosts.pace("100mbit")
    coupled = Coupled(networks, *gates, rows=LONG)
    capture = Capture(networks.hosts)
    coupled.begin("first", capture)
    gates[GATE].signal(signal.SIGKILL)
    assert coupled.atmosphere.answer() == {"value": "first"}
    report = coupled.leave()
    assert report["first_lost"] is None


def test_a_version_goes_on_by_the_same_gateway_when_it_is_back(networks: Networks) -> None:
    gate = networks.gateway(GATE)
    networks.hosts.pace("100mbit")
    coupled = Coupled(networks, GATE, rows=LONG)
    coupled.begin("first", Capture(networks.hosts))
    gate.signal(signal.SIGKILL)
    gate.process.wait()
    networks.gateway(GATE)
    assert coupled.atmosphere.answer() == {"value": "first"}
    assert coupled.leave()["first_lost"] is None


def test_both_sides_are_told_when_the_only_gateway_is_gone(networks: Networks) -> None:
    """And the same programs are coupled anew when it is back."""
    networks.patience = 1.0
    gate = networks.gateway(GATE)
    networks.hosts.pace("100mbit")
    coupled = Coupled(networks, GATE, rows=LONG)
    coupled.begin("first", Capture(networks.hosts))
    gate.signal(signal.SIGKILL)
    both_are_told(coupled)
    networks.gateway(GATE)
    Coupled(networks, GATE, rows=SHORT).exchange("again")


def test_both_sides_are_told_of_a_partition_in_the_middle_of_a_version(networks: Networks) -> None:
    """Both still see the coupler, which has to decide who of the two is lost."""
    networks.patience = 1.0
    networks.hosts.forward()
    networks.hosts.pace("100mbit")
    coupled = Coupled(networks, rows=LONG)
    coupled.begin("first", Capture(networks.hosts))
    networks.hosts.cut()
    both_are_told(coupled)
    networks.hosts.pass_all()
    Coupled(networks, rows=SHORT).exchange("again")


def test_a_partition_shorter_than_patience_loses_nothing(networks: Networks) -> None:
    networks.hosts.forward()
    networks.hosts.pace("100mbit")
    coupled = Coupled(networks, rows=LONG)
    capture = Capture(networks.hosts)
    coupled.begin("first", capture)
    networks.hosts.cut()
    assert eventually(lambda: networks.hosts.dropped() > 3, BOUND_SECONDS)
    networks.hosts.pass_all()
    assert coupled.atmosphere.answer() == {"value": "first"}
    assert coupled.leave()["first_lost"] is None


def test_a_keeper_that_stands_still_for_a_moment_loses_nothing(networks: Networks) -> None:
    networks.hosts.forward()
    networks.hosts.pace("100mbit")
    coupled = Coupled(networks, rows=LONG)
    capture = Capture(networks.hosts)
    coupled.begin("first", capture)
    for keeper in coupled.keepers.values():
        with stopped(keeper):
            pass
        goes_on(capture)
    assert coupled.atmosphere.answer() == {"value": "first"}
    assert coupled.leave()["first_lost"] is None


@pytest.mark.parametrize("host", ["near", "far"])
def test_both_sides_are_told_of_a_keeper_that_stands_still(networks: Networks, host: str) -> None:
    """It gives as well as takes; when it goes on, its own process is told as well."""
    networks.patience = 1.0
    networks.hosts.forward()
    networks.hosts.pace("100mbit")
    coupled = Coupled(networks, rows=LONG)
    coupled.begin("first", Capture(networks.hosts))
    program = {"near": "ocean", "far": "atmosphere"}[host]
    with stopped(coupled.keepers[host]):
        if host == "near":
            assert_lost(coupled.atmosphere.answer(), f"rank 0 of {program} was lost", NAMES[host])
        else:
            told = coupled.ocean.ask("write", name="sst", marker="second")
            assert_lost(told, f"rank 0 of {program} was lost", NAMES[host])
    if host == "near":
        told = coupled.ocean.ask("write", name="sst", marker="second")
    else:
        told = coupled.atmosphere.answer()
    assert_lost(told, f"rank 0 of {program} was lost")


def goes_on(capture: Capture) -> None:
    """More passes than has by now."""
    before = capture.seen()["bytes"]
    assert eventually(lambda: capture.seen()["bytes"] > before, BOUND_SECONDS)


def both_are_told(coupled: Coupled) -> None:
    """Whoever gives and whoever takes hear of the same loss, and go on hearing of it."""
    answers = [
        coupled.atmosphere.answer(),
        coupled.ocean.ask("write", name="sst", marker="second"),
        coupled.atmosphere.ask("read", name="sst"),
    ]
    for told in answers:
        assert_lost(told)
    lost = {told["text"].partition(" was lost")[0] for told in answers}
    assert len(lost) == 1, answers
    assert lost < {"rank 0 of ocean", "rank 0 of atmosphere"}, answers
    for process in (coupled.ocean, coupled.atmosphere, coupled.head, *coupled.keepers.values()):
        process.end(at_once=True)
