"""Runs workers under an account without rights, whose policy confines managers or doesn't. Prints what tasks could do, as JSON.

As root, nothing would be seen: it may do everything but for the sandbox.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests import key_scan
from tests.processes import signers_of, zygotes_of
from tests.sandbox_account import surroundings
from tests.sandbox_attacks import ATTACKS
from tests.site import POLICY, Site, Worker

import exoskel as ex

NAME = "node1.lab.example.org"
LIMITS = 'memory = "512 MiB"\nprocesses = 8\nfile_size = "1 MiB"\nnetwork = "none"\n'


def tried(item: tuple[str, dict[str, str]]) -> list[Any]:
    """Run a program of an attack from a slot."""
    text, env = item
    words = [sys.executable, "-c", text]
    env = {**os.environ, **env}
    ran = subprocess.run(words, env=env, capture_output=True, text=True, timeout=60, check=False)
    return [ran.returncode, *ran.stderr.strip().splitlines()[-1:]]


def opened(paths: Sequence[str]) -> dict[str, str]:
    """Open files and folders in this process, which has been a slot for long."""
    found = {}
    for path in paths:
        try:
            if os.path.isdir(path):
                os.listdir(path)
            else:
                os.close(os.open(path, os.O_RDONLY))
            found[path] = "opened"
        except OSError as error:
            found[path] = type(error).__name__
    return found


def place(_: object) -> list[Any]:
    """Say where this slot is, and leave something there."""
    Path("left").write_text("mine")
    return [os.getpid(), os.getcwd(), os.listdir(), os.environ["TMPDIR"] == os.getcwd()]


def initial(_: object) -> bool:
    """Whether the environment in which this process's forebear began still has a secret."""
    with open("/proc/self/environ", "rb") as file:
        return b"AGENT_TOKEN" in file.read()


def scanned(masked: dict[str, bytes]) -> list[str]:
    """Look for a key in the memory of this process."""
    return key_scan.found("self", masked)


def both(site: Site, worker: Worker, env: dict[str, str]) -> dict[str, Any]:
    """Try everything with one worker of two slots, of which one serves and the other one waits."""
    supervisor = worker.process.pid
    masked = key_scan.forms(site.place / f"{NAME}.pem")
    found: dict[str, Any] = {}

    def asked(function: Any, *items: Any) -> list[Any]:
        with site.connect(ex.Farm(function), 1, worker) as manager:
            return list(manager.map(items))

    [place_of_slot] = asked(place, 0)
    found["place"] = place_of_slot
    [found["environment"]] = asked(initial, 0)
    [found["key"]] = asked(scanned, masked)
    files = {
        "credential": site.place / f"{NAME}.pem",
        "policy": site.place / f"home-{NAME}" / "policy.toml",
        "folder of both": site.place,
    }
    related = {
        "supervisor": supervisor,
        "zygote": zygotes_of(supervisor)[0],
        "signer": signers_of(supervisor)[0],
    }
    for name, process in related.items():
        for what in ("mem", "environ"):
            files[f"{what} of the {name}"] = Path(f"/proc/{process}/{what}")
    with site.connect(ex.Farm(opened), 1, worker) as manager:
        said = next(manager.map([list(map(str, files.values()))]))
    found["files"] = {name: said[str(path)] for name, path in files.items()}
    env["SIBLING"] = str(supervisor)
    said = asked(tried, *((text, env) for text in ATTACKS.values()))
    found["attacks"] = dict(zip(ATTACKS, said, strict=True))
    found["log"] = worker.log.read_text()
    return found


def everything(folder: Path) -> dict[str, Any]:
    """Try it all, in a sandbox and free."""
    os.environ["AGENT_TOKEN"] = "secret"
    found: dict[str, Any] = {}
    for how, table in (("free", ""), ("sandboxed", f"[sandbox]\nmanagers = ['*']\n{LIMITS}")):
        own = folder / how
        own.mkdir()
        sockets: list[socket.socket] = []
        env = surroundings(own, sockets)
        site = Site(own)
        worker = site.worker(NAME, slots=2, policy=POLICY + table)
        try:
            found[how] = both(site, worker, env)
        finally:
            site.close()
            for one in sockets:
                one.close()
        _, directory, *_ = found[how]["place"]
        found[how]["gone"] = not os.path.exists(os.path.dirname(directory))
    return found


if __name__ == "__main__":
    print(json.dumps(everything(Path(sys.argv[2]))))
