"""`make paper-redistribution`: the figures of two papers, with ours.

S. Hunold, T. Rauber and G. Rünger redistributed matrices between the components of TGrid: on 1 Gbit/s (Fig. 3), between subnets (Fig. 4a), and
step by step (Fig. 4b). I. Foster, N. Karonis, C. Kesselman, G. Koenig and S. Tuecke measured a coupled climate with Nexus (Table 1). What
comes out goes to ``benches/results/redistribution.json`` and ``docs/paper-redistribution.md``. A run of one part replaces what that part
has there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches import figures
from benches.links.install import Missing, run
from benches.links.lanes import turning
from benches.machine import ROOT, describe
from benches.redist import keepers, paper_page, programs
from benches.redist.coupled_hosts import Coupled, coupled
from benches.redist.frame import SOURCES, say

RESULTS = ROOT / "benches" / "results" / "redistribution.json"
SCRATCH = ROOT / "target" / "bench" / "redistribution.json"
PAGE = ROOT / "docs" / "paper-redistribution.md"
FIGURES = ROOT / "docs" / "figures"
CLIMATE = ROOT / "examples" / "coupled_climate.py"

SIZES = (1, 2, 4, 8)
LENGTHS = (256, 512, 1024, 2048, 4096)
ROUTED_LENGTHS = (256, 512, 1024)
# Figure 3b: what each process has, as rows and columns of a process's block.
CONSTANT = {"0.5": (256, 256), "2": (512, 512), "8": (1024, 1024)}
# Not counted: the first version connects the hosts.
FIRST = 1
PROTECTIONS = ("none", "coupler", "all")
INSIDE = {"tcp": "4", "memory": "2"}
# Simulated days of a run, and the first of them is not counted.
DAYS = 4


def main() -> int:
    """Measure, write data, page and pictures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--part", choices=PARTS, action="append", help="this one only")
    parser.add_argument("--rounds", type=int, default=5, help="of the climate; more versions")
    parser.add_argument("--quick", action="store_true", help="seconds instead of minutes")
    arguments = parser.parse_args()
    rounds = 2 if arguments.quick else arguments.rounds
    target = SCRATCH if arguments.quick else RESULTS
    target.parent.mkdir(parents=True, exist_ok=True)
    report: dict[str, Any] = json.loads(target.read_text()) if target.exists() else {}
    try:
        for part in arguments.part or PARTS:
            report[part] = PARTS[part](rounds, arguments.quick)
            report |= {"machine": describe([]), "quick": arguments.quick, "rounds": rounds}
            target.write_text(json.dumps(report, indent=1) + "\n")
    except Missing as error:
        print(error, file=sys.stderr)
        return 1
    page = target.with_suffix(".md") if arguments.quick else PAGE
    page.write_text(paper_page.page(report))
    folder = target.parent if arguments.quick else FIGURES
    figures.draw("redist.paper_plot", target, Path(folder))
    print(page.read_text())
    return 0


def shapes(size: int, lengths: tuple[int, ...]) -> dict[str, str]:
    """Matrices by what they are for: squares, those with so many megabytes a process, and one with an element for each pair."""
    wide = 1 << (size.bit_length() - 1) // 2
    constant = {
        f"{name} MB": f"{rows * size // wide}x{columns * wide}"
        for name, (rows, columns) in CONSTANT.items()
    }
    squares = {str(length): f"{length}x{length}" for length in lengths}
    return {"pair": f"{size}x{size}", **squares, **constant}


def on_lines(rounds: int, is_quick: bool) -> dict[str, Any]:
    """Figure 3: a host for each process, and a line of 1 Gbit/s for each host."""
    found = {}
    for size in SIZES[:2] if is_quick else SIZES:
        with coupled(size) as hosts:
            hosts.pace("1gbit")
            found[str(size)] = of_coupling(hosts, size, rounds)
    return found


def of_coupling(hosts: Coupled, size: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each version, by what the matrix is for."""
    asked = shapes(size, LENGTHS)
    say(f"1 Gbit/s, {size}x{size}")
    times = hosts.run("columns", list(asked.values()), FIRST + rounds)
    return {name: versions[FIRST:] for name, versions in zip(asked, times, strict=True)}


def on_one_host(rounds: int, is_quick: bool) -> dict[str, Any]:
    """Figure 3 once more: all processes on this host. In the place of the faster network stands shared memory."""
    found = {}
    for size in SIZES[:2] if is_quick else SIZES:
        say(f"shared memory, {size}x{size}")
        asked = shapes(size, LENGTHS)
        words = [programs.ours(), "columns", size, FIRST + rounds, *asked.values()]
        with keepers.one_host(keepers.coupling("columns", list(asked.values()))) as places:
            started = [keepers.start(words, name, places[name]) for name in ("source", "target")]
            times = keepers.versions_of(*started)
        each = [
            times[at + FIRST : at + FIRST + rounds] for at in range(0, len(times), FIRST + rounds)
        ]
        found[str(size)] = dict(zip(asked, each, strict=True))
    return found


def routed(rounds: int, is_quick: bool) -> dict[str, Any]:
    """Figure 4a: lines of 100 Mbit/s; directly, through two gateways, and by two relays that wait for whole messages."""
    lengths = ROUTED_LENGTHS[:2] if is_quick else ROUTED_LENGTHS
    asked = [f"{length}x{length}" for length in lengths]
    found: dict[str, Any] = {}
    for way in ("direct", "routed"):
        for size in (1, 2):
            say(f"100 Mbit/s, {size}x{size}, {way}")
            with coupled(size, is_routed=way == "routed") as hosts:
                hosts.pace("100mbit")
                times = hosts.run("columns", asked, FIRST + rounds)
                each = [versions[FIRST:] for versions in times]
                found[f"{way} {size}"] = dict(zip(map(str, lengths), each, strict=True))
                if way == "routed" and size == 1:
                    found["relay 1"] = {
                        str(length): relayed(hosts, length, FIRST + rounds)[FIRST:]
                        for length in lengths
                    }
    return found


def relayed(hosts: Coupled, length: int, count: int) -> list[float]:
    """Seconds of each message through two relays that forward it when they have all of it."""
    say(f"100 Mbit/s, whole messages, {length}")
    bytes_each = length * length * 8
    python, script = Path(sys.executable), SOURCES / "relay.py"
    first, second, far = (hosts.addresses[name] for name in ("gate1", "gate2", "target0"))
    chain = [
        ("target0", "target", far, count, bytes_each),
        ("gate2", "forward", second, far),
        ("gate1", "forward", first, second),
        ("source0", "source", first, count, bytes_each),
    ]
    started = []
    for host, role, address, *more in chain:
        command = hosts.network.command(host, python, script, role, address, *map(str, more))
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        if role != "source":
            wait_for(lambda: hosts.network.accepts(host, address, 7800))  # noqa: B023
    said = [process.communicate()[0].split() for process in started]
    if any(process.returncode for process in started):
        raise Missing("a relay has failed")
    pairs = zip(map(int, said[-1]), map(int, said[0]), strict=True)
    return [(end - begin) / 1e9 for begin, end in pairs]


def wait_for(is_true: Callable[[], bool]) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + 20.0
    while not is_true():
        if time.monotonic() > deadline:
            raise Missing("a relay doesn't run")
        time.sleep(0.02)


def steps(rounds: int, is_quick: bool) -> dict[str, Any]:
    """Figure 4b: what packing alone takes. Protocol and all together are in Figure 3's numbers for 4x4."""
    say("packing")
    example = ["--package", "exoskel-redist", "--example", "pack_speed"]
    run(["cargo", "build", "--locked", "--release", "--quiet", *example], "pack_speed")
    command = [ROOT / "target" / "release" / "examples" / "pack_speed", *map(str, LENGTHS)]
    packed: dict[str, list[float]] = {str(length): [] for length in LENGTHS}
    for _ in range(rounds):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        for line in done.stdout.splitlines():
            length, nanoseconds = line.split()
            packed[length].append(int(nanoseconds) / 1e9)
    with coupled(4) as hosts:
        hosts.pace("1gbit")
        return {"pack": packed, "all": of_coupling(hosts, 4, 2 if is_quick else rounds)}


def climate(rounds: int, is_quick: bool) -> dict[str, Any]:
    """Nexus's Table 1: seconds of a simulated day, by what is inside of a model and by what is secure."""
    modes = [(inside, protection) for inside in INSIDE for protection in PROTECTIONS]
    names = [f"{inside} {protection}" for inside, protection in modes]
    seconds: dict[str, list[float]] = {name: [] for name in names}
    digests = set()
    for number in range(rounds):
        say(f"coupled climate, round {number + 1} of {rounds}")
        for name in turning(names, number):
            inside, protection = name.split()
            words = ["--hosts", INSIDE[inside], "--protection", protection]
            rows = ["--rows", "64"] if is_quick else ["--rows", "256"]
            command = [sys.executable, CLIMATE, "--json", "--days", str(DAYS), *words, *rows]
            done = subprocess.run(command, check=False, capture_output=True, text=True)
            if done.returncode:
                raise Missing(f"the climate has failed: {done.stderr.strip()[-300:]}")
            said = json.loads(done.stdout)
            seconds[name].append(statistics.median(said["seconds"][1:]))
            digests.add((said["drift"], *sorted(said["digests"].values())))
    picture = (SCRATCH.parent if is_quick else FIGURES) / "coupled-climate.png"
    say("coupled climate, its picture")
    run([sys.executable, CLIMATE, "--days", 10, "--picture", picture], "the climate")
    if len(digests) != 1:
        raise SystemExit(f"got different fields in different modes: {digests}")
    return {"seconds": seconds, "drift": next(iter(digests))[0]}


PARTS: dict[str, Callable[[int, bool], dict[str, Any]]] = {
    "lines": on_lines,
    "host": on_one_host,
    "routed": routed,
    "steps": steps,
    "climate": climate,
}

if __name__ == "__main__":
    started = time.monotonic()
    code = main()
    say(f"{time.monotonic() - started:.0f} s")
    sys.exit(code)
