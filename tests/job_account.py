"""A daemon of root whose processes are another account's: what holds them together. Prints limits, last words, and what is left, as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import exoskel as ex
from exoskel.cli import main
from exoskel.control_groups import own_places
from exoskel.job_orphans import namespace

HOST, HEAD = "lab1.example.org", "head.example.org"
POLICY = f"""
[[allow.rule]]
action = ["agent.start"]
name = "{HEAD}"
[sandbox]
managers = ["{HEAD}"]
processes = 30
total_processes = 50
"""


def held(job: ex.Job, daemon: int) -> list[object]:
    """Start more processes than there may be together; return limits with their owners, and what was said."""
    asleep = "for one in $(seq 20); do sleep 600 & done; wait"
    started = job.start(["sh", "-c", asleep], count=3, cwd="/")
    # One of them can't go on.
    while not any(one.has_ended for one in job.summary().processes):
        pass
    said = [one.stderr for one in job.summary().processes]
    [folder] = own_places()["pids"].folder.glob(f"exoskel-{namespace()}.{daemon}.*/processes")
    files = [one / "pids.max" for one in (folder, *folder.glob("start-*"))]
    assert len(started) == 3
    return [[[one.stat().st_uid, one.read_text()] for one in files], said]


def run(place: Path) -> None:
    """Have an authority, a daemon and a job in a folder."""
    assert main(["pki", "init", str(place / "pki"), "--json"]) == 0
    for name in (HOST, HEAD):
        words = ["--directory", str(place / "pki"), "--role", "peer", "--name", name, "--json"]
        assert main(["pki", "issue", *words, "--output", str(place / f"{name}.pem")]) == 0
    (place / "policy.toml").write_text(POLICY)
    words = ["--listen", "tcp://127.0.0.1:0", "--policy", str(place / "policy.toml"), "--json"]
    words += ["--credential", str(place / f"{HOST}.pem"), "--user", "nobody"]
    command = [sys.executable, "-P", "-m", "exoskel", "agent", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        listen = json.loads(daemon.stdout.readline())["listen"].removeprefix("tcp://")
        try:
            agents = ex.Agents([f"{listen} {HOST}"])
            with ex.Job(agents, credential=str(place / f"{HEAD}.pem")) as job:
                found = held(job, daemon.pid)
        finally:
            daemon.terminate()
    left = own_places()["pids"].folder.glob(f"exoskel-{namespace()}.{daemon.pid}.*")
    print(json.dumps([*found, [str(one) for one in left]]))


if __name__ == "__main__":
    run(Path(sys.argv[1]))
