"""`python -m benches.site.front_rules`: what a front's access log and rules by path cost.

The same front runs with and without them at once, both on one core, so that whatever else the machine does slows both; clients and the
application behind them have the other core. Each connection carries a hundred requests. What counts is CPU time of a front's process for each request,
its log writer's included. The goal: with them at least 0.95 times as many requests a second and core as without.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benches.machine import ROOT, describe
from benches.site import clients, machine, servers
from benches.site.people import FQANS, USER, People, make_people

RESULTS = ROOT / "benches" / "results" / "front-rules.json"
GOAL = 0.95
CONNECTIONS = 16
REQUESTS_EACH = 100
# As many rules as a large site has; the request is about the last one.
RULES = 20


def configuration(people: People, folder: Path, *, ruled: bool) -> Path:
    """A front's configuration, with or without log and rules. The policy is there in both."""
    folder.mkdir(parents=True)
    table = {
        "listen": address(ruled=ruled),
        "audit": str(folder / "audit"),
        "policy": str(folder / "policy.toml"),
        "host.certificate": str(people.host("ecdsa", "cert")),
        "host.key": str(people.host("ecdsa", "key")),
        "trust.anchors": str(people.anchors),
        "trust.vomsdir": str(people.vomsdir),
        "upstream.address": f"unix:{folder.parent / 'application.sock'}",
    }
    if ruled:
        table["access_log"] = str(folder / "access")
    text = "".join(f"{name} = {json.dumps(value)}\n" for name, value in table.items())
    rules = [("/" if number == RULES else f"/part{number}") for number in range(1, RULES + 1)]
    if ruled:
        text += "".join(f'[[path]]\nprefix = "{one}"\naction = "read"\n' for one in rules)
    (folder / "policy.toml").write_text(
        f'[[allow.rule]]\naction = ["connect", "read"]\nfqan = "{FQANS[0]}"\n'
    )
    file = folder / "front.toml"
    file.write_text(text)
    return file


def address(*, ruled: bool) -> str:
    """Where a front listens."""
    return f"127.0.0.1:{servers.PORT + ruled}"


def await_port(address: str) -> None:
    """Waits until somebody listens there."""
    host, _, port = address.rpartition(":")
    end = time.monotonic() + servers.START_SECONDS
    while True:
        with socket.socket() as probe:
            if probe.connect_ex((host, int(port))) == 0:
                return
        if time.monotonic() > end:
            raise RuntimeError(f"no front listens at {address}")
        time.sleep(0.05)


def measure(server: servers.Running, people: People, core: int, seconds: float) -> float:
    """Requests a second and core of this front."""
    settings = {"connections": CONNECTIONS, "requests": REQUESTS_EACH}
    values = clients.load(server, people, core, seconds=seconds, **settings)
    served: int = values["served"]
    return served / float(values["server_cpu_seconds"])


def main() -> int:
    """Measures, prints the ratio, and keeps the report of a full run."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each round")
    parser.add_argument("--quick", action="store_true", help="three short rounds, not kept")
    arguments = parser.parse_args()
    rounds, seconds = (3, 1.0) if arguments.quick else (arguments.rounds, arguments.seconds)
    servers.build()
    cores = machine.cores()
    found: dict[bool, list[float]] = {False: [], True: []}
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        people = make_people(place / "people")
        application = [str(servers.EXAMPLES / "application"), str(place / "application.sock")]
        folders = {ruled: place / f"ruled-{ruled}" for ruled in found}
        for ruled, folder in folders.items():
            configuration(people, folder, ruled=ruled)
        with contextlib.ExitStack() as running:
            running.enter_context(servers.process(application, place, cores[1]))
            fronts = {}
            for ruled, folder in folders.items():
                command = [str(servers.EXAMPLES / "front"), str(folder / "front.toml")]
                front = running.enter_context(servers.process(command, folder, cores[0]))
                expect = (USER, *FQANS)
                fronts[ruled] = servers.Running(address(ruled=ruled), (front.pid,), expect)
                await_port(address(ruled=ruled))
            pool = running.enter_context(ThreadPoolExecutor(len(fronts)))
            for _ in range(rounds):
                asked = {
                    ruled: pool.submit(measure, front, people, cores[1], seconds)
                    for ruled, front in fronts.items()
                }
                for ruled, result in asked.items():
                    found[ruled].append(result.result())
    pairs = zip(found[True], found[False], strict=True)
    ratio = statistics.median(dear / cheap for dear, cheap in pairs)
    without, with_rules = (statistics.median(found[key]) for key in (False, True))
    sys.stdout.write(
        f"without: {without:.0f} requests/s/core; with log and {RULES} rules: {with_rules:.0f}\n"
        f"ratio {ratio:.3f} (goal: at least {GOAL})\n"
    )
    if not arguments.quick:
        report = {
            "machine": describe([]),
            "ratio": ratio,
            "without": found[False],
            "with": found[True],
        }
        RESULTS.write_text(json.dumps(report, indent=1) + "\n")
    return 0 if ratio >= GOAL else 1


if __name__ == "__main__":
    sys.exit(main())
