"""Hosts for the lanes of gateways: network namespaces on one bridge, which go when the block ends.

The near host's line can be paced. Each host has mounts of its own, too, so that a server can have accounts of its own. Root is needed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO

from benches.links.install import Missing, program

NETWORK = "10.77.0"
START_SECONDS = 10.0


class Hosts:
    """Hosts by name, with an address each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._holders: dict[str, int] = {}
        self._unshare = program("unshare", "util-linux")
        self._enter = program("nsenter", "util-linux")
        program("ip", "iproute2")
        program("tc", "iproute2")
        if os.geteuid():
            raise Missing("root is missing: hosts are network namespaces")
        self._hold("switch")
        self.run("switch", "ip", "link", "add", "bridge", "type", "bridge")
        self.run("switch", "ip", "link", "set", "bridge", "up")

    def add(self, name: str) -> str:
        """Connect one more host with the others, and return its address."""
        self._hold(name)
        address = f"{NETWORK}.{len(self._holders)}"
        peer = ["type", "veth", "peer", "name", name, "netns", str(self._holders["switch"])]
        self.run(name, "ip", "link", "add", "line", *peer)
        self.run("switch", "ip", "link", "set", name, "master", "bridge", "up")
        self.run(name, "ip", "address", "add", f"{address}/24", "dev", "line")
        for device in ("line", "lo"):
            self.run(name, "ip", "link", "set", device, "up")
        return address

    def pace(self, name: str, rate: str, burst: str = "256kb") -> None:
        """Let a host send no faster than this, but for bursts of so many bytes."""
        self._pace(name, "line", rate, burst)

    def pace_towards(self, name: str, rate: str, burst: str = "256kb") -> None:
        """Let a host receive no faster than this."""
        self._pace("switch", name, rate, burst)

    def _pace(self, host: str, device: str, rate: str, burst: str) -> None:
        words = ["root", "tbf", "rate", rate, "burst", burst, "latency", "20ms"]
        self.run(host, "tc", "qdisc", "replace", "dev", device, *words)

    def free(self, name: str) -> None:
        """Let it send as fast as it can."""
        self.run(name, "tc", "qdisc", "delete", "dev", "line", "root")

    def command(self, name: str, *words: str | Path) -> list[str]:
        """The command that runs a command there."""
        holder = str(self._holders[name])
        # Where it runs stays: mounts and network are the host's.
        enter = [self._enter, "--target", holder, "--net", "--mount", f"--wd={Path.cwd()}"]
        return [*enter, *(str(word) for word in words)]

    def process(self, name: str) -> int:
        """The number of a process there, which does nothing."""
        return self._holders[name]

    def run(self, name: str, *words: str | Path) -> None:
        """Run a command there, to its end."""
        done = subprocess.run(
            self.command(name, *words), capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Missing(f"{words[0]} failed: {done.stderr.strip()[-300:]}")

    def serve(
        self,
        name: str,
        *words: str | Path,
        ready: tuple[str, int] | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Start a server there, and wait until it accepts connections at `ready`."""
        log = (self.folder / f"server-{len(self._processes)}.log").open("w+b")
        process = self._start(self.command(name, *words), log, environment)
        deadline = time.monotonic() + START_SECONDS
        while ready and not self.accepts(name, *ready):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                said = log.read().decode(errors="replace").strip()[-300:]
                raise Missing(f"{Path(words[0]).name} doesn't run: {said}")
            time.sleep(0.05)

    def end(self) -> None:
        """End all servers and hosts."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _hold(self, name: str) -> None:
        words = [self._unshare, "--net", "--mount", "sleep", "infinity"]
        process = self._start(words, subprocess.DEVNULL)
        self._holders[name] = process.pid
        # It is in its own namespaces when it has become another program.
        deadline = time.monotonic() + START_SECONDS
        while Path(f"/proc/{process.pid}/comm").read_text().strip() != "sleep":
            if process.poll() is not None or time.monotonic() > deadline:
                raise Missing("unshare failed: network namespaces can't be made here")
            time.sleep(0.01)

    def _start(
        self,
        command: list[str],
        log: IO[bytes] | int,
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | dict(environment or {}),
            start_new_session=True,
        )
        self._processes.append(process)
        return process

    def accepts(self, name: str, address: str, port: int) -> bool:
        """Whether somebody accepts connections there."""
        # Asked of the kernel there, so that no connection is made.
        words = self.command(name, "cat", "/proc/net/tcp")
        listing = subprocess.run(words, capture_output=True, text=True, check=False).stdout
        number = "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
        places = {f"{number}:{port:04X}", f"{0:08X}:{port:04X}"}
        rows = (line.split() for line in listing.splitlines()[1:])
        return any(row[1] in places and row[3] == "0A" for row in rows)


@contextlib.contextmanager
def hosts(folder: Path) -> Iterator[Hosts]:
    """A network that goes when the block ends."""
    made = None
    try:
        made = Hosts(folder)
        yield made
    finally:
        if made:
            made.end()
