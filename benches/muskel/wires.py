"""The hosts of the experiments: a manager's, eight of workers around it, and one far away, with credentials and policies for each.

Hosts are network namespaces, so root is needed. All data of a farm pass the manager's line, which `tbf` paces; each host of workers has four slots.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benches.links import delay_line
from benches.links.networks import NETWORK, Hosts, hosts

PORT = 7601
HOSTS, SLOTS = 8, 4
FAR, FAR_SLOTS = "far", HOSTS * SLOTS
# Of what a line carries, what is left for the bytes of TCP: 1,448 of the 1,538 that a full frame takes.
PAYLOAD_SHARE = 1448 / 1538
MANAGER = "head.example.org"
# Both may agree on clear text: the manager's policy decides.
WORKERS_POLICY = f"""
[domain.lab]
addresses = ["{NETWORK}.0/24", "10.78.0.0/24"]
names = ["*.example.org"]
results = "pickle"

[[rule]]
from = "lab"
to = "lab"
protection = "plain"
"""
# Nothing is said of wires here, so all are encrypted. Answers are taken as those of the lab are.
SECURE_POLICY = WORKERS_POLICY.partition("[[rule]]")[0]


def name_of(host: str) -> str:
    """What its certificate says."""
    return f"{host}.example.org"


class Wires:
    """Hosts with workers, and the manager's program on its own."""

    def __init__(self, folder: Path, network: Hosts) -> None:
        self._folder = folder
        self._network = network
        self._pki("init", folder / "pki")
        self._issue("manager", MANAGER, "head.pem")
        self.addresses = {"head": network.add("head")}
        (folder / "workers.toml").write_text(WORKERS_POLICY)
        (folder / "secure.toml").write_text(SECURE_POLICY)
        for number in range(1, HOSTS + 1):
            host = f"node{number}"
            self.addresses[host] = network.add(host)
            self._serve(host, self.addresses[host], SLOTS)
        words = network.command("head", sys.executable, "-m", "benches.muskel.farm")
        self._farm = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._line: subprocess.Popen[str] | None = None

    def pace(self, rate: str) -> None:
        """Let the manager's host send and receive no faster than this."""
        self._network.pace("head", rate)
        self._network.pace_towards("head", rate)

    def add_far(self, milliseconds: float) -> None:
        """Add a host at the end of a long line; a packet takes so long one way."""
        if FAR not in self.addresses:
            self._network.add(FAR)
            self.addresses[FAR] = delay_line.ADDRESSES[1]
        else:
            self._end_line()
        near, far = (str(self._network.process(host)) for host in ("head", FAR))
        words = [sys.executable, "-m", "benches.links.delay_line", near, far, str(milliseconds)]
        self._line = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
        assert self._line.stdout
        if self._line.stdout.readline() != "ready\n":
            raise RuntimeError("the long line can't be made")
        if not self._network.accepts(FAR, self.addresses[FAR], PORT):
            self._serve(FAR, self.addresses[FAR], FAR_SLOTS)

    def run(
        self,
        slots: int,
        *,
        sleep: float,
        size: int,
        count: int,
        policy: str = "workers.toml",
        on: Sequence[str] | None = None,
        alone: bool = False,
    ) -> dict[str, Any]:
        """Run a farm, on these hosts or on those around: seconds, and the shares of workers."""
        if on is None:
            on = [f"node{number}" for number in range(1, HOSTS + 1)]
        job = {
            "workers": [f"tcp://{self.addresses[host]}:{PORT} {name_of(host)}" for host in on],
            "credential": str(self._folder / "head.pem"),
            "policy": str(self._folder / policy),
            "slots": slots,
            "sleep": sleep,
            "bytes": size,
            "count": count,
            "alone": alone,
            "first": max(2 * slots, count // 10),
        }
        assert self._farm.stdin
        assert self._farm.stdout
        self._farm.stdin.write(json.dumps(job) + "\n")
        self._farm.stdin.flush()
        answer = self._farm.stdout.readline()
        if not answer:
            raise RuntimeError(f"the farm has ended with {self._farm.wait()}")
        found: dict[str, Any] = json.loads(answer)
        return found

    def mixed_policy(self, local: Sequence[str]) -> str:
        """Write a policy in which these hosts alone are near; return its name."""
        addresses = [f"{self.addresses[host]}/32" for host in ("head", *local)]
        text = WORKERS_POLICY.replace(f'["{NETWORK}.0/24", "10.78.0.0/24"]', json.dumps(addresses))
        name = f"mixed-{len(local)}.toml"
        # The others are trusted as much; only their wires are not.
        others = f'\n[domain.rented]\naddresses = ["{NETWORK}.0/24"]\nnames = ["*.example.org"]\nresults = "pickle"\n'
        (self._folder / name).write_text(text + others)
        return name

    def end(self) -> None:
        """End the manager's program and the long line."""
        self._farm.kill()
        self._farm.wait()
        self._end_line()

    def _end_line(self) -> None:
        if self._line is not None:
            self._line.kill()
            self._line.wait()

    def _serve(self, host: str, address: str, slots: int) -> None:
        self._issue("worker", name_of(host), f"{host}.pem")
        words = [sys.executable, "-m", "exoskel", "worker", "--slots", str(slots)]
        words += ["--listen", f"tcp://{address}:{PORT}"]
        words += ["--credential", str(self._folder / f"{host}.pem")]
        words += ["--policy", str(self._folder / "workers.toml")]
        self._network.serve(host, *words, ready=(address, PORT))

    def _issue(self, role: str, name: str, file: str) -> None:
        place = ["--directory", self._folder / "pki", "--output", self._folder / file]
        self._pki("issue", "--role", role, "--name", name, *place)

    def _pki(self, *words: object) -> None:
        command = [sys.executable, "-m", "exoskel", "pki", *map(str, words)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextlib.contextmanager
def wires() -> Iterator[Wires]:
    """All hosts; they go when the block ends."""
    with tempfile.TemporaryDirectory() as name, hosts(Path(name)) as network:
        made = Wires(Path(name), network)
        try:
            yield made
        finally:
            made.end()


def bare_sleep(seconds: float, count: int = 30) -> float:
    """What a sleep of so many seconds takes here, on the average: what one processor alone would take for an item."""
    begin = time.perf_counter()
    for _ in range(count):
        time.sleep(seconds)
    return (time.perf_counter() - begin) / count
