"""Runs a job's processes under an account without rights, with a sandbox and without. Prints what has become of them, as JSON.

As root, nothing would be seen: it may do everything but for the sandbox.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from tests.sandbox_attacks import ATTACKS

import exoskel as ex

SANDBOX = ex.Sandbox(network="none", memory="256 MiB", processes=8, file_size="1 MiB")


def surroundings(folder: Path, stack: list[socket.socket]) -> dict[str, str]:
    """Make what attacks aim at, and return where it is."""
    left = folder / "own-of-another-job"
    left.mkdir(mode=0o700)
    found = {"SECRET": folder / "credential.pem", "REMOVED": folder / "removed", "LEFT": left / "x"}
    for path in found.values():
        path.write_text("secret")
        path.chmod(0o600)
    (folder / "removed-inside").write_text("secret")
    four = socket.create_server(("127.0.0.1", 0), backlog=64)
    six = socket.create_server(("::1", 0), family=socket.AF_INET6, backlog=64)
    path, abstract, datagram = (socket.socket(socket.AF_UNIX) for _ in range(3))
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    path.bind(str(folder / "stream"))
    abstract.bind(f"\0exoskel-{os.getpid()}")
    datagram.bind(str(folder / "datagram"))
    path.listen(64)
    abstract.listen(64)
    stack += [four, six, path, abstract, datagram]
    return {
        **{name: str(path) for name, path in found.items()},
        "OUTSIDE": str(folder / "written"),
        "PORT": str(four.getsockname()[1]),
        "PORT6": str(six.getsockname()[1]),
        "UNIX": str(folder / "stream"),
        "ABSTRACT": f"exoskel-{os.getpid()}",
        "DATAGRAM": str(folder / "datagram"),
    }


def attack(folder: Path) -> dict[str, dict[str, list[object]]]:
    """Let each attack be tried with and without a sandbox; return exit codes and last words."""
    os.environ["AGENT_TOKEN"] = "secret"
    sockets: list[socket.socket] = []
    env = surroundings(folder, sockets)
    found: dict[str, dict[str, list[object]]] = {}
    with ex.Job() as job:
        sibling = job.start(["sh", "-c", "echo $$ >pid && exec sleep 1000"], cwd=folder)
        while not (folder / "pid").exists() or not (folder / "pid").read_text().strip():
            if sibling[0].done():
                raise RuntimeError("the sibling has ended")
        env["SIBLING"] = (folder / "pid").read_text().strip()
        for how, sandbox in (("sandboxed", SANDBOX), ("free", None)):
            scratch = folder / how
            scratch.mkdir()
            for name, text in ATTACKS.items():
                cwd = None if sandbox else scratch
                words = [sys.executable, "-c", text]
                started = job.start(words, env=env, sandbox=sandbox, cwd=cwd)
                code = started.wait(timeout=60)[0]
                said = job.summary().processes[-1]
                last = said.stderr.strip().splitlines()[-1:]
                found.setdefault(name, {})[how] = [code, *last, list(said.sandbox)]
    for one in sockets:
        one.close()
    return found


if __name__ == "__main__":
    print(json.dumps(attack(Path(sys.argv[1]))))
