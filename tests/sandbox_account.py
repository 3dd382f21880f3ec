"""Runs a job's processes under an account without rights, with a sandbox and without. Prints what has become of them, as JSON.

As root, nothing would be seen: it may do everything but for the sandbox.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from tests.sandbox_attacks import ATTACKS

import exoskel as ex
from exoskel.job_process import JobNode

SANDBOX = ex.Sandbox(network="none", memory="256 MiB", processes=8, file_size="1 MiB")


def surroundings(folder: Path, stack: list[socket.socket]) -> dict[str, str]:
    """Make what attacks aim at, and return where it is."""
    left = folder / "own-of-another-job"
    left.mkdir(mode=0o700)
    found = {"SECRET": folder / "credential.pem", "REMOVED": folder / "removed", "LEFT": left / "x"}
    for path in found.values():
        path.write_text("secret")
        path.chmod(0o600)
    four = socket.create_server(("127.0.0.1", 0), backlog=64)
    six = socket.create_server(("::1", 0), family=socket.AF_INET6, backlog=64)
    stream, abstract = (socket.socket(socket.AF_UNIX) for _ in range(2))
    datagram = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    stream.bind(str(folder / "stream"))
    abstract.bind(f"\0exoskel-{os.getpid()}")
    datagram.bind(str(folder / "datagram"))
    stream.listen(64)
    abstract.listen(64)
    stack += [four, six, stream, abstract, datagram]
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
        # Who opens it waits for the other end.
        os.mkfifo(folder / "pid")
        job.start(["sh", "-c", "echo $$ >pid && exec sleep 1000"], cwd=folder)
        number = os.open(folder / "pid", os.O_RDONLY)
        env["SIBLING"] = os.read(number, 64).decode().strip()
        os.close(number)
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


def multiplied(here: JobNode, size: int) -> list[Any]:
    """Compute with NumPy, in a folder of its own."""
    import numpy as np

    ones = np.ones((size, size))
    Path("written").write_text("mine")
    return [float((ones @ ones).sum()), os.listdir(), os.environ["TMPDIR"] == os.getcwd()]


def greeted(here: JobNode) -> list[Any]:
    """Ask the next one."""

    @here.process.handler
    def greet(who: int) -> list[int]:
        return [here.rank, who]

    following = here.peers[(here.rank + 1) % here.size]
    return [following.request("greet", here.rank).result(timeout=60)]


def refused(here: JobNode) -> str:
    """Ask a sibling, which the sandbox is against."""
    try:
        here.peers[1 - here.rank].request("greet", 0).result(timeout=60)
    except Exception as error:
        return str(error)
    return "answered"


def dialled(here: JobNode, path: str) -> str:
    """Have the agent connect to what is no sibling."""
    ours, theirs = socket.socketpair()
    with socket.socket(fileno=os.dup(4)) as asked:
        socket.send_fds(asked, [f"unix:{path}".encode()], [theirs.fileno()])
    theirs.close()
    said, descriptors, *_ = socket.recv_fds(ours, 1024, 1)
    return "connected" if descriptors else said.decode()


def reopened(here: JobNode, port: int) -> str:
    """Connect by the first bytes of what was a listener of this process's node."""
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as one:
            listens = one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and one.family == socket.AF_INET:
                one.shutdown(socket.SHUT_RDWR)
                try:
                    one.sendto(b"x", socket.MSG_FASTOPEN, ("127.0.0.1", port))
                except PermissionError:
                    return "refused"
                except BlockingIOError:
                    # It is under way.
                    pass
                return "connected"
    return "no listener"


JOINING = """
import exoskel.links, threading
here, ready, found = exoskel.links.init(), threading.Event(), []
@here.process.handler
def rank():
    return here.rank
@here.process.handler
def asked():
    return ready.wait(60) and found[0]
other = here.peers[1 - here.rank]
found.append(other.request("rank").result(timeout=60))
ready.set()
threading.Event().wait()
"""


def functions(folder: Path) -> dict[str, Any]:
    """Run functions in sandboxes; return what they have returned."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "stream"))
    listening.listen(8)
    with ex.Job() as job:
        limited = ex.Sandbox(memory="4 GiB", processes=64)
        computed = job.start(multiplied, 2, arguments=[100], sandbox=limited).values(60)
        ring = job.start(greeted, 3, sandbox=ex.Sandbox()).values(60)
        started = job.start([sys.executable, "-c", JOINING], 2, threads=2, sandbox=ex.Sandbox())
        joined = [one.request("asked").result(timeout=60) for one in started.result(60)]
        alone = job.start(refused, 2, sandbox=ex.Sandbox(network="none")).values(60)
        arguments = [str(folder / "stream")]
        asked = job.start(dialled, 1, arguments=arguments, sandbox=ex.Sandbox()).values(60)
        text = str(job.summary())
    listening.close()
    place = folder / "ssh"
    place.write_text('#!/bin/sh\ncd / && exec sh -c "$2"\n')
    place.chmod(0o700)
    # Processes that listen on a network, as those of several hosts do.
    hosts = ex.Ssh(["lab1"], python=sys.executable, command=[str(place)])
    with socket.create_server(("127.0.0.1", 0)) as server, ex.Job(hosts) as job:
        arguments = [server.getsockname()[1]]
        reconnected = [
            job.start(reopened, arguments=arguments, sandbox=sandbox).values(60)[0]
            for sandbox in (ex.Sandbox(), None)
        ]
    return {
        "reconnected": reconnected,
        "joined": joined,
        "computed": computed,
        "ring": ring,
        "alone": alone,
        "asked": asked,
        "summary": text,
    }


if __name__ == "__main__":
    what = {"attack": attack, "functions": functions}[sys.argv[1]]
    print(json.dumps(what(Path(sys.argv[2]))))
