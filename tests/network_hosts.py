"""Hosts for tests: network namespaces that exist as long as a block, and a wire between them that can be cut.

Two hosts, ``near`` and ``far``, are in subnets of their own, and ``middle`` is in both. It forwards packets by rules of nftables, or it doesn't,
and a gateway runs there. Each host has a mount namespace of its own too, so that processes of two hosts can share neither Unix sockets nor memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ADDRESSES = {"near": "10.88.1.2", "far": "10.88.2.2"}
# Of the middle, as each host sees it.
MIDDLE = {"near": "10.88.1.1", "far": "10.88.2.1"}
BOUND_SECONDS = 30.0
ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = {
    "ip": "iproute2",
    "tc": "iproute2",
    "nft": "nftables",
    "unshare": "util-linux",
    "nsenter": "util-linux",
    "mount": "mount",
}

# A host is there as long as this process, which ends with the one that has its standard input.
_HOLD = "mount -t tmpfs none /dev/shm && mount -t tmpfs none /run && ip link set lo up && echo ready && exec cat"
_OTHER = {"near": "far", "far": "near"}


def missing() -> str | None:
    """Name what is missing for such hosts here; None if nothing is."""
    if os.geteuid():
        return "root is missing: hosts are network namespaces"
    for name, package in PROGRAMS.items():
        if shutil.which(name) is None:
            return f"{name} is missing: apt-get install {package}"
    if not os.access("/dev/net/tun", os.R_OK | os.W_OK):
        return "/dev/net/tun is missing: slow wires are TUN devices"
    words = ["unshare", "--net", "--mount", "nft", "list", "ruleset"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"network namespaces with nftables can't be made here: {done.stderr.strip()[-200:]}"
    return None


class Program:
    """A process that is told what to do, a line of JSON at a time, and answers each by a line."""

    def __init__(self, command: list[str], log: Path, environment: dict[str, str]) -> None:
        self._log = log
        self._read = b""
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=ROOT,
                env=os.environ | environment,
                start_new_session=True,
            )

    def ask(self, do: str, /, *, seconds: float = BOUND_SECONDS, **more: Any) -> Any:
        """Have it do something, and return what it says."""
        self.begin(do, **more)
        return self.answer(seconds)

    def begin(self, do: str, /, **more: Any) -> None:
        """Have it do something whose answer is asked for later."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **more}).encode() + b"\n")
        self.process.stdin.flush()

    def answer(self, seconds: float = BOUND_SECONDS) -> Any:
        """Return what it says next."""
        said = json.loads(self.line(seconds))
        assert "error" not in said, f"{said['error']}\n{self.log()}"
        return said["said"]

    def line(self, seconds: float = BOUND_SECONDS) -> str:
        """Wait for a line that it prints."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + seconds
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._read:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([descriptor], [], [], left)[0]
            piece = os.read(descriptor, 1 << 20) if ready else b""
            assert piece, f"got no line of {self.process.args!r}: {self.log()}"
            self._read += piece
        line, _, self._read = self._read.partition(b"\n")
        return line.decode()

    def log(self) -> str:
        """Return the end of what it has said of errors."""
        return self._log.read_text(errors="replace")[-4000:]

    def signal(self, number: int) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def end(self, at_once: bool = False) -> None:
        """Close its input, and kill it if that doesn't end it, or at once."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(0 if at_once else BOUND_SECONDS)
        self.process.kill()
        # One that stands still ends by this as well.
        self.process.wait()


class Hosts:
    """Two hosts, and what is between them."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self._programs: list[Program] = []
        self._holders: dict[str, int] = {}
        for name in ("middle", "near", "far"):
            home = place / f"home-{name}"
            home.mkdir()
            holder = self._start(["unshare", "--net", "--mount", "sh", "-c", _HOLD], name)
            assert holder.line() == "ready"
            self._holders[name] = holder.process.pid

    def connect(self, delay: float = 0.0, forwards: bool = True) -> None:
        """Lay the wires. A packet to or from the near host is on its way for `delay` seconds at least."""
        for name in ("near", "far"):
            if delay and name == "near":
                self._slow_line(name, delay)
            else:
                peer = ["peer", "name", name, "netns", str(self._holders["middle"])]
                self.run(name, "ip", "link", "add", "line", "type", "veth", *peer)
            for host, device, address in (
                ("middle", name, MIDDLE[name]),
                (name, "line", ADDRESSES[name]),
            ):
                self.run(host, "ip", "address", "add", f"{address}/24", "dev", device)
                self.run(host, "ip", "link", "set", device, "up")
            self.run(name, "ip", "route", "add", "default", "via", MIDDLE[name])
        if forwards:
            self.forward()

    def forward(self) -> None:
        """Have the middle pass packets on from one host to the other."""
        self.run("middle", "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        self.pass_all()

    def part(self) -> None:
        """Have the middle look like two machines: each host reaches its own address of it only."""
        drops = "\n".join(
            f'iifname "{host}" ip daddr != {address} drop' for host, address in MIDDLE.items()
        )
        chain = f"chain enter {{ type filter hook input priority 0; policy accept;\n{drops}\n}}"
        self.run("middle", "nft", "-f", "-", text=f"table ip parted {{ {chain}\n}}\n")

    def pass_all(self) -> None:
        """Let every packet through from now on."""
        self._rules()

    def cut(self, *sources: str) -> None:
        """Drop the packets that come from these hosts; those of both, if none is named."""
        self._rules(*(f'iifname "{source}"' for source in sources or _OTHER))

    def lose(self, percent: int) -> None:
        """Drop packets at random."""
        self._rules(f"numgen random mod 100 < {percent}")

    def dropped(self) -> int:
        """Say how many packets the present rules have dropped."""
        words = ["nft", "--json", "list", "counter", "ip", "wire", "dropped"]
        listing = json.loads(self.run("middle", *words))["nftables"]
        return sum(entry["counter"]["packets"] for entry in listing if "counter" in entry)

    def command(self, host: str, *words: str) -> list[str]:
        """Return the command that runs a command there."""
        return ["nsenter", "--target", str(self._holders[host]), "--net", "--mount", *words]

    def run(self, host: str, *words: str, text: str = "") -> str:
        """Run a command there to its end, and return what it prints."""
        command = self.command(host, *words)
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    def python(self, host: str, *words: str) -> Program:
        """Start a Python program there."""
        return self._start(self.command(host, sys.executable, "-P", *words), host)

    def end(self) -> None:
        """End all programs, and the hosts with them."""
        for program in reversed(self._programs):
            program.end(at_once=True)

    def _start(self, command: list[str], host: str) -> Program:
        log = self.place / f"log-{host}"
        # -P keeps the working directory out of the path.
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {"HOME": str(self.place / f"home-{host}"), "PYTHONPATH": path}
        program = Program(command, log, environment)
        self._programs.append(program)
        return program

    def _slow_line(self, name: str, delay: float) -> None:
        line = self.python("middle", "-m", "tests.network_line", "line", name, str(delay))
        assert line.line() == "ready"
        self.run("middle", "ip", "link", "set", "line", "netns", str(self._holders[name]))

    def pace(self, rate: str) -> None:
        """Let the near host and the middle send to each other no faster than this."""
        words = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        for host, device in (("near", "line"), ("middle", "near")):
            self.run(host, "tc", "qdisc", "replace", "dev", device, *words)

    def _rules(self, *conditions: str) -> None:
        drops = "\n".join(f"{condition} counter name dropped drop" for condition in conditions)
        chain = f"type filter hook forward priority 0; policy accept;\n{drops}"
        # One transaction: no packet meets half of it.
        rules = f"""\
            table ip wire {{}}
            delete table ip wire
            table ip wire {{
                counter dropped {{}}
                chain pass {{ {chain}
                }}
            }}
        """
        self.run("middle", "nft", "-f", "-", text=rules)


class Capture:
    """What passes in the middle: from or to the near host, unless another device is named."""

    def __init__(self, hosts: Hosts, device: str = "near") -> None:
        self._program = hosts.python("middle", "-m", "tests.network_capture", device)
        assert self._program.line() == "ready"

    def seen(self) -> dict[str, int]:
        """Count the packets, their bytes, those with each marker, and those that the capture has missed."""
        seen: dict[str, int] = self._program.ask("count")
        return seen


@contextlib.contextmanager
def hosts(place: Path, delay: float = 0.0, forwards: bool = True) -> Iterator[Hosts]:
    """Make hosts that go when the block ends."""
    made = None
    try:
        made = Hosts(place)
        made.connect(delay, forwards)
        yield made
    finally:
        if made:
            made.end()


@contextlib.contextmanager
def stopped(program: Program) -> Iterator[None]:
    """Have a program stand still in a block."""
    program.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        program.signal(signal.SIGCONT)
