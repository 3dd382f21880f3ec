"""What asks the servers: our load generator, and siege as the paper had it. Each runs on one core."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

from benches.site.people import People
from benches.site.servers import EXAMPLES, Running

# More than a client waits for any single answer, and less than anybody waits for a bench.
GRACE_SECONDS = 60
# What siege gets for its last requests and its summary.
LIFT_SECONDS = 10


def load(server: Running, people: People, core: int, **settings: float) -> dict[str, Any]:
    """One run of the load generator (`crates/service/examples/load.rs` explains the settings).

    Beside what it prints: `server_cpu_seconds` and `client_cpu_seconds`, all processes of each.
    """
    words = [f"{name}={value}" for name, value in settings.items()]
    words += [f"expect={text}" for text in server.expect]
    command = [str(EXAMPLES / "load"), server.address, str(people.proxy), str(people.authority)]
    timeout = settings.get("seconds", 5) + settings.get("timeout", 30) + GRACE_SECONDS
    output, server_cpu, client_cpu = observed(server, [*command, *words], core, timeout)
    values: dict[str, Any] = json.loads(output.splitlines()[-1])
    if values["fault"]:
        raise RuntimeError(f"{server.address}: {values['failed']} failed: {values['fault']}")
    return values | {"server_cpu_seconds": server_cpu, "client_cpu_seconds": client_cpu}


def siege(server: Running, people: People, core: int, folder: Path, seconds: int) -> dict[str, Any]:
    """`siege -b -c 400` with a proxy in its siegerc: one request on each connection.

    siege ends its threads wherever they are when its time is over; one that holds a lock of OpenSSL's then stops all others for
    ever, and no summary comes. So its lines are counted, one for each request, and a siege that does not end is ended.
    """
    configuration, report = folder / "siegerc", folder / "siege.txt"
    # `limit` is how many users siege would have at most; it comes with 255.
    configuration.write_text(
        f"ssl-cert = {people.proxy}\nssl-key = {people.proxy}\n"
        "connection = close\nlimit = 400\nparser = false\nverbose = true\ncolor = off\n"
        "protocol = HTTP/1.1\njson_output = false\nlogging = false\nshow-logfile = false\n"
    )
    command = ["taskset", "--cpu-list", str(core), "stdbuf", "--output=L"]
    command += ["siege", "-R", str(configuration), "-b", "-c", "400", "-t", f"{seconds}s"]
    command.append(f"https://{server.address}/")
    before, client_before = server.cpu_seconds(), os.times()
    hung = False
    with report.open("wb") as output:
        running = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            running.wait(seconds + LIFT_SECONDS)
        except subprocess.TimeoutExpired:
            hung = True
            running.kill()
            running.wait()
    client_after = os.times()
    text = report.read_text(errors="replace")
    answers = re.findall(r"^HTTP/1\.1 (\d+)\s+([\d.]+) secs", text, re.MULTILINE)
    served = [float(took) for status, took in answers if status == "200"]
    if not served:
        raise RuntimeError(f"siege: {text[-1000:]}")
    faults = re.findall(r"^\[(?:error|alert|fatal)\].*", text, re.MULTILINE)
    return {
        "served": len(served),
        "failed": len(answers) - len(served) + len(faults),
        "fault": faults[0] if faults else None,
        "per_second": len(served) / seconds,
        "longest_s": max(served),
        "seconds": float(seconds),
        "hung": hung,
        "server_cpu_seconds": server.cpu_seconds() - before,
        "client_cpu_seconds": sum(client_after[2:4]) - sum(client_before[2:4]),
    }


def observed(
    server: Running, command: list[str], core: int, timeout: float
) -> tuple[str, float, float]:
    """What a client prints, and the CPU seconds of server and client meanwhile."""
    before = server.cpu_seconds()
    client_before = os.times()
    done = subprocess.run(
        ["taskset", "--cpu-list", str(core), *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    client_after = os.times()
    if done.returncode:
        raise RuntimeError(f"{command[0]}: {done.returncode} {done.stdout.strip()[-1000:]}")
    client = sum(client_after[2:4]) - sum(client_before[2:4])
    return done.stdout, server.cpu_seconds() - before, client
