"""Keepers on hosts that are network namespaces, each with a line of its own, and a coupler on one more host."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benches.links.credentials import issue
from benches.links.install import Missing
from benches.links.networks import NETWORK, Hosts, hosts
from benches.redist import keepers, programs

PORT = 7700
# By rates, in which a line lets pass what it owes: a millisecond of them, as timers come late here and what a smaller one lets lapse is lost.
# Small matrices would go faster than the line in larger ones; in less than 32 KB no packet of this kernel fits.
BURSTS = {"100mbit": "32kb", "1gbit": "128kb", "2gbit": "256kb"}
POLICY = """
[domain.all]
addresses = ["{network}.0/24"]
names = ["*"]
[[rule]]
from = "all"
to = "all"
protection = "{protection}"
[[allow.rule]]
action = ["coupler.join", "coupler.report", "coupler.stay"]
name = "*"
"""
EVERYBODY = '[[allow.tunnel]]\nfrom = "*"\nto = "*"\n'
SITE = (
    '[subnet.other]\nnames = ["{}*"]\ngateways = [{{ name = "{}", address = "tcp://{}:7700" }}]\n'
)


class Coupled:
    """So many hosts of a source, as many of a target, and two gateways if they can't see each other."""

    def __init__(
        self, stack: contextlib.ExitStack, size: int, *, is_routed: bool, protection: str
    ) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        self.network: Hosts = stack.enter_context(hosts(self.folder))
        self.size = size
        # Those that run now.
        self.keepers: list[subprocess.Popen[str]] = []
        self.near = [f"source{number}" for number in range(size)]
        self.far = [f"target{number}" for number in range(size)]
        self._gates = {"gate1": self.near, "gate2": self.far} if is_routed else {}
        names = ["head", *self.near, *self.far, *self._gates]
        self.addresses = {name: self.network.add(name) for name in names}
        roles = [("peer", name) for name in ("head", *self.near, *self.far)]
        issue(self.folder, [*roles, *(("gateway", gate) for gate in self._gates)])
        (self.folder / "policy.toml").write_text(
            POLICY.format(network=NETWORK, protection=protection)
        )
        (self.folder / "tunnels.toml").write_text(EVERYBODY)
        for gate, other in zip(self._gates, reversed(self._gates), strict=True):
            self._start_gateway(gate, other)
            self._hide([*self._gates[other], other], *self._gates[gate])

    def _hide(self, hidden: Sequence[str], *hosts: str) -> None:
        """Leave hosts no way to others but through their own gateway."""
        for host in hosts:
            for other in hidden:
                route = ["unreachable", f"{self.addresses[other]}/32"]
                self.network.run(host, "ip", "route", "add", *route)

    def pace(self, rate: str) -> None:
        """Let nobody send or receive faster than this, the coupler aside."""
        for name in self.addresses:
            if name != "head":
                self.network.pace(name, rate, BURSTS[rate])
                self.network.pace_towards(name, rate, BURSTS[rate])

    def run(self, job: str, shapes: Sequence[str], versions: int) -> list[list[float]]:
        """Seconds for each version of each shape, by one coupling."""
        (self.folder / "coupling.toml").write_text(keepers.coupling(job, shapes))
        words = [programs.ours(), job, self.size, versions, *shapes]
        with contextlib.ExitStack() as stack:
            self._couple(stack)
            started = [
                [
                    keepers.process(
                        self.network.command(host), words, name, rank, self._socket(host)
                    )
                    for rank, host in enumerate(at)
                ]
                for name, at in (("source", self.near), ("target", self.far))
            ]
            times = keepers.versions_of(*started)
        return [times[at : at + versions] for at in range(0, len(times), versions)]

    def _couple(self, stack: contextlib.ExitStack) -> None:
        """Start the coupler, and then all keepers at once."""
        at = f"tcp://{self.addresses['head']}:{PORT}"
        coupling = self.folder / "coupling.toml"
        head = self._start(stack, "head", "couple", coupling, *self._node("head"), "--listen", at)
        wait_for_line(head, "--join ")
        self.keepers = [
            self._start(stack, host, *self._keeper(host, gate))
            for gate, of_gate in (self._gates or {"": [*self.near, *self.far]}).items()
            for host in of_gate
        ]
        for keeper in self.keepers:
            wait_for_line(keeper, "has joined")

    def _keeper(self, host: str, gate: str) -> list[object]:
        """The command of a host's keeper. With a gateway nobody can dial it."""
        words: list[object] = ["keeper", *self._node(host), "--socket", self._socket(host)]
        words += ["--join", f"tcp://{self.addresses['head']}:{PORT}", "--coupler", "head"]
        if gate:
            place = f"{gate}@{self.addresses[gate]}:{PORT}"
            return [*words, "--listen", f"tcp://127.0.0.1:{PORT}", "--gateway", place]
        return [*words, "--listen", f"tcp://{self.addresses[host]}:{PORT}"]

    def _start_gateway(self, gate: str, other: str) -> None:
        """A gateway that knows the nodes registered at it, and asks the other gateway for the rest."""
        names = {"gate1": "target", "gate2": "source"}[gate]
        site = self.folder / f"{gate}.toml"
        site.write_text(SITE.format(names, other, self.addresses[other]))
        words = ["--credential", self.folder / f"{gate}.pem", "--site", site]
        words += ["--policy", self.folder / "tunnels.toml"]
        at = self.addresses[gate]
        words += ["--listen", f"tcp://{at}:{PORT}"]
        command = [sys.executable, "-m", "exoskel", "gateway", *map(str, words)]
        self.network.serve(gate, *command, ready=(at, PORT))

    def _node(self, name: str) -> list[object]:
        policy = ["--policy", self.folder / "policy.toml"]
        return ["--credential", self.folder / f"{name}.pem", *policy]

    def _socket(self, host: str) -> Path:
        return self.folder / f"socket-{host}"

    def _start(
        self, stack: contextlib.ExitStack, host: str, *words: object
    ) -> subprocess.Popen[str]:
        python = self.network.command(host, sys.executable, "-u", "-m", "exoskel")
        process = subprocess.Popen(
            [*python, *map(str, words)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        stack.enter_context(process)
        stack.callback(process.kill)
        return process


def wait_for_line(process: subprocess.Popen[str], text: str) -> None:
    """Wait until a process has printed a line with a text."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if text not in line:
        raise Missing(f"{process.args!r} said {line!r}")


@contextlib.contextmanager
def coupled(size: int, *, is_routed: bool = False, protection: str = "plain") -> Iterator[Coupled]:
    """Hosts that go when the block ends; those that see each other have this protection."""
    with contextlib.ExitStack() as stack:
        yield Coupled(stack, size, is_routed=is_routed, protection=protection)
