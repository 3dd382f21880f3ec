"""`make bench-identity`: a proxy with attributes at the door of our servers, and at mod_gridsite's, on this machine.

Every request is a new connection with mutual TLS whose answer states who the client is. The server has one core, its client
another one; the servers take turns, a whole round before the next one begins, and the table shows medians over the rounds.
What comes out goes to `benches/results/identity.*`.

The script makes its own authority and people. It needs Debian's `apache2`, `gridsite`, `voms-clients` and `siege`, which it
installs where it is root; mod_gridsite reads /etc/grid-security, where the authority of the run is put and removed again.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches import figures
from benches.machine import ROOT, describe
from benches.site import clients, identity_table, machine, servers
from benches.site.people import People, make_people
from benches.site.servers import Subject

RESULTS = ROOT / "benches" / "results"
# Quick runs say little and are not kept.
SCRATCH = ROOT / "target" / "bench"

OURS = [
    Subject(name, key, cached)
    for cached in (True, False)
    for key in ("rsa", "ecdsa")
    for name in ("axum", "generic")
]
PEERS = [
    Subject(name, key) for key in ("rsa", "ecdsa") for name in ("gridsite", "gridsite-prefork")
]
# Once is enough for what takes minutes.
ONCE = {"siege"}


class Bench:
    """What all parts of a run share."""

    def __init__(self, folder: Path, people: People, *, quick: bool, siege_seconds: int) -> None:
        self.folder = folder
        self.people = people
        self.quick = quick
        self.siege_seconds = siege_seconds
        self.server_core, self.client_core = machine.cores()
        self._runs = 0

    def measure(
        self, subject: Subject, part: str, ask: Callable[[servers.Running], dict[str, Any]]
    ) -> dict[str, Any]:
        """One server, one part. A failure is a result too."""
        self._runs += 1
        folder = self.folder / f"{self._runs:03}-{subject.name}"
        say(f"{part}: {subject.label}")
        try:
            with servers.serve(subject, self.people, folder, self.server_core) as server:
                values = ask(server)
        except (RuntimeError, OSError) as error:
            say(f"failed: {error}")
            values = {"error": str(error)}
        return {"subject": subject.label, "part": part, "values": values}

    def load(self, server: servers.Running, **settings: float) -> dict[str, Any]:
        """The load generator, on its core."""
        return clients.load(server, self.people, self.client_core, **settings)

    def cost(self) -> list[dict[str, Any]]:
        """CPU for each request at 16 connections, times at 100."""

        def ask(server: servers.Running) -> dict[str, Any]:
            self.load(server, seconds=0.5, connections=100)
            few = self.load(server, seconds=0.5 if self.quick else 2.0, connections=16)
            many = self.load(server, seconds=0.5 if self.quick else 2.0, connections=100)
            return {"few": few, "many": many}

        return [self.measure(subject, "cost", ask) for subject in [*OURS, *PEERS]]

    def kept(self) -> list[dict[str, Any]]:
        """A hundred requests on each connection."""

        def ask(server: servers.Running) -> dict[str, Any]:
            seconds = 0.5 if self.quick else 2.0
            return self.load(server, seconds=seconds, connections=16, requests=100)

        return [
            self.measure(subject, "kept", ask) for subject in (Subject("axum"), Subject("gridsite"))
        ]

    def siege(self) -> list[dict[str, Any]]:
        """The paper's load, against default limits."""

        def ask(server: servers.Running) -> dict[str, Any]:
            return clients.siege(
                server, self.people, self.client_core, self.folder, self.siege_seconds
            )

        return [
            self.measure(subject, "siege", ask)
            for subject in (Subject("axum"), Subject("gridsite"))
        ]


PARTS: dict[str, Callable[[Bench], list[dict[str, Any]]]] = {
    "cost": Bench.cost,
    "kept": Bench.kept,
    "siege": Bench.siege,
}


def main() -> int:
    """Measure what was asked for, print the table, write the files."""
    arguments = parse()
    folder = SCRATCH if arguments.quick else RESULTS
    target = folder / "identity.json"
    runs: list[dict[str, Any]] = []
    if arguments.append and target.exists():
        runs = json.loads(target.read_text())["runs"]
    try:
        machine.install("openssl", "voms-proxy-fake", "apache2", "siege")
        servers.build()
        with tempfile.TemporaryDirectory(prefix="exoskel-identity-") as name:
            # Apache's workers, who are not root, read their pages in it.
            Path(name).chmod(0o755)
            people = make_people(Path(name) / "people")
            bench = Bench(
                Path(name), people, quick=arguments.quick, siege_seconds=arguments.siege_seconds
            )
            with machine.trusted_by_gridsite(people):
                for part in arguments.part:
                    for _ in range(1 if arguments.quick or part in ONCE else arguments.rounds):
                        runs += PARTS[part](bench)
    except machine.Missing as error:
        say(str(error))
        return 1
    about = describe(["apache2", "gridsite", "siege", "openssl", "voms-clients"])
    report = {"machine": about, "quick": arguments.quick, "runs": runs}
    text = identity_table.render(report)
    print(json.dumps(report, indent=1) if arguments.json else text)
    folder.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    target.with_suffix(".txt").write_text(text + "\n")
    figures.draw("site.identity_plot", target)
    return 1 if any("error" in run["values"] for run in runs) else 0


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--part", help=f"comma-separated, of: {', '.join(PARTS)}", default=",".join(PARTS)
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--siege-seconds", type=int, default=120)
    parser.add_argument(
        "--append", action="store_true", help="add to what is in the results already"
    )
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes; says little"
    )
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    arguments = parser.parse_args()
    arguments.part = arguments.part.split(",")
    if arguments.quick:
        arguments.siege_seconds = 5
    unknown = sorted(set(arguments.part) - set(PARTS))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    return arguments


def say(text: str) -> None:
    """Progress, beside the table's stream."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
