"""`make paper-grid-services`: the tables of "Development of Grid Services using Erlang" with our doors, and its overload.

E. Atanassov measured three servers in Erlang with `siege -b -c 400 -t 120s`, one request on each connection, the credential a VOMS
proxy, verdicts cached and not (tables 1 and 2 of the paper). It then saw time-outs once more was offered than a server could
do, and would have refused connections instead. Both are done here with our three doors; what comes out goes to
`benches/results/grid-services.json` and `docs/paper-grid-services.md`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benches import figures
from benches.machine import ROOT, describe
from benches.site import clients, grid_services_table, machine, servers
from benches.site.people import People, make_people
from benches.site.servers import Subject

RESULTS = ROOT / "benches" / "results" / "grid-services.json"
SCRATCH = ROOT / "target" / "bench" / "grid-services.json"
PAGE = ROOT / "docs" / "paper-grid-services.md"
FIGURE = ROOT / "docs" / "figures" / "paper-grid-services.png"

DOORS = ("generic", "axum", "front")
TABLES = [Subject(door, cached=cached) for cached in (True, False) for door in DOORS]
# The dearest of our requests: the client's core can offer several times what the server's can do.
OVERLOADED = (Subject("axum", cached=False), Subject("gridsite"))
# Parts of what the server does when as much as possible is asked by clients that wait.
OFFERED = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
# Our clients come from so many addresses, or the bound for each would be the one that refuses. mod_gridsite has no such bound,
# and asks the DNS for the name of each: it gets the one that is in /etc/hosts.
SOURCES = 64
# Whoever waits longer goes away; the paper's clients counted a time-out.
PATIENCE_SECONDS = 10
# Connections under way at once, on the client's side.
UNDER_WAY_MAX = 12000
PARTS = ("tables", "overload")


def main() -> int:
    """Measure what was asked for, write data, page and picture."""
    arguments = parse()
    target = SCRATCH if arguments.quick else RESULTS
    runs: list[dict[str, Any]] = []
    if arguments.append and target.exists():
        runs = json.loads(target.read_text())["runs"]
    try:
        machine.install("openssl", "voms-proxy-fake", "apache2", "siege")
        servers.build()
        with tempfile.TemporaryDirectory(prefix="exoskel-grid-") as name:
            # Apache's workers, who are not root, read their pages in it.
            Path(name).chmod(0o755)
            people = make_people(Path(name) / "people")
            with machine.trusted_by_gridsite(people):
                if "tables" in arguments.part:
                    runs += tables(Path(name), people, arguments.subject, arguments.siege_seconds)
                if "overload" in arguments.part:
                    seconds = 2.0 if arguments.quick else arguments.overload_seconds
                    runs += overload(
                        Path(name), people, arguments.subject, arguments.offered, seconds
                    )
    except machine.Missing as error:
        print(error, file=sys.stderr)
        return 1
    about = describe(["apache2", "gridsite", "siege"])
    report = {"machine": about, "quick": arguments.quick, "runs": runs}
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(report, indent=1) + "\n")
    page, figure = (
        (target.with_suffix(".md"), target.with_suffix(".png"))
        if arguments.quick
        else (PAGE, FIGURE)
    )
    text = grid_services_table.page(report)
    page.write_text(text)
    figures.draw("site.grid_services_plot", target, figure)
    print(text)
    return 0


def wanted(subject: Subject, beginnings: list[str]) -> bool:
    """Whether the user named this server, or none at all."""
    return not beginnings or any(subject.label.startswith(one) for one in beginnings)


def tables(folder: Path, people: People, named: list[str], seconds: int) -> list[dict[str, Any]]:
    """Both tables: siege against each door, with the cache and without it."""
    server_core, client_core = machine.cores()
    runs = []
    for number, subject in enumerate(one for one in TABLES if wanted(one, named)):
        print(f"siege, {seconds} s: {subject.label}", file=sys.stderr, flush=True)
        with servers.serve(subject, people, folder / f"siege-{number}", server_core) as server:
            besieged = clients.siege(server, people, client_core, folder, seconds)
            # siege's own core is full long before the server's: what the server could do, by a client that costs less.
            loaded = clients.load(server, people, client_core, seconds=4, connections=400)
        values = {"siege": besieged, "load": loaded}
        runs.append({"part": "tables", "subject": subject.label, "values": values})
    return runs


def overload(
    folder: Path, people: People, named: list[str], offered: list[float], seconds: float
) -> list[dict[str, Any]]:
    """More is offered than can be done, at a rate that does not adapt to the server."""
    server_core, client_core = machine.cores()
    runs = []
    for number, subject in enumerate(one for one in OVERLOADED if wanted(one, named)):
        with servers.serve(subject, people, folder / f"overload-{number}", server_core) as server:
            asked = clients.load(server, people, client_core, seconds=3, connections=64)
            capacity = asked["served"] / asked["seconds"]
            for part in offered:
                rate = round(part * capacity)
                print(f"{rate}/s offered: {subject.label}", file=sys.stderr, flush=True)
                values = clients.load(
                    server,
                    people,
                    client_core,
                    rate=rate,
                    seconds=seconds,
                    connections=UNDER_WAY_MAX,
                    timeout=PATIENCE_SECONDS,
                    sources=SOURCES if subject.is_ours else 1,
                )
                values |= {"rate": rate, "offered_seconds": seconds, "capacity": capacity}
                runs.append({"part": "overload", "subject": subject.label, "values": values})
    return runs


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--part", help=f"comma-separated, of: {', '.join(PARTS)}", default="")
    parser.add_argument(
        "--subject", help='beginnings of names, semicolons between: "front;axum, RSA"', default=""
    )
    parser.add_argument("--siege-seconds", type=int, default=120)
    parser.add_argument(
        "--offered",
        help="parts of the server's capacity, commas between",
        default=",".join(map(str, OFFERED)),
    )
    parser.add_argument("--overload-seconds", type=float, default=10)
    parser.add_argument(
        "--append", action="store_true", help="add to what is in the results already"
    )
    parser.add_argument(
        "--quick", action="store_true", help="seconds instead of minutes; says little"
    )
    arguments = parser.parse_args()
    arguments.part = [one for one in arguments.part.split(",") if one] or list(PARTS)
    arguments.subject = [one.strip() for one in arguments.subject.split(";") if one.strip()]
    arguments.offered = [float(one) for one in arguments.offered.split(",")]
    if arguments.quick:
        arguments.siege_seconds = 3
    unknown = sorted(set(arguments.part) - set(PARTS))
    if unknown:
        parser.error(f"no such part: {', '.join(unknown)}; there are: {', '.join(PARTS)}")
    return arguments


if __name__ == "__main__":
    sys.exit(main())
