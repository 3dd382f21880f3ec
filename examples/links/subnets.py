"""Two subnets that can't see each other, and a gateway that is in both.

The ocean is in the lab's subnet, the atmosphere in the cloud's. The ocean registers at the gateway, and the atmosphere reaches it through
that. Both prove to each other who they are through the gateway, which can't read what they say.

As root the script makes real networks, with network namespaces of the kernel; without, all processes share this machine's loopback.
"""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lab

import exoskel as ex
from exoskel import links

OCEAN, ATMOSPHERE = "ocean.lab.example.org", "atmosphere.cloud.example.org"
GATE = "gate.example.org"
POLICY = """\
[[allow.tunnel]]
from = "*.cloud.example.org"
to = "ocean.lab.example.org"
"""
# Where the gateway, the ocean and the atmosphere are: namespaces of the kernel, and what each subnet begins with.
SUBNETS = {"lab": "10.98.1", "cloud": "10.98.2"}


@dataclass
class Networks:
    """Where processes run; on this machine as it is, without names."""

    gate: str | None = None
    lab: str | None = None
    cloud: str | None = None


def ip(*words: str) -> None:
    """Configure networks."""
    subprocess.run(["ip", *words], check=True, capture_output=True)


@contextmanager
def networks() -> Iterator[Networks]:
    """Make two networks with the gateway between them, and remove them with the block."""
    names = {which: f"example-{which}" for which in ("gate", *SUBNETS)}
    try:
        try:
            for name in names.values():
                ip("netns", "add", name)
            gate = names["gate"]
            for which, start in SUBNETS.items():
                name = names[which]
                near = f"to-{which}"
                ip("-n", gate, "link", "add", near, "type", "veth", "peer", "up0", "netns", name)
                for network, device, host in ((gate, near, 1), (name, "up0", 2)):
                    ip("-n", network, "addr", "add", f"{start}.{host}/24", "dev", device)
                    ip("-n", network, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError):
            made = Networks()
        else:
            made = Networks(**names)
        yield made
    finally:
        for name in names.values():
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)


def ocean(place: Path, near: str, far: str) -> None:
    """Register at the gateway, and say the startpoint: others reach the gateway at its far side."""
    with links.Node(place / f"{OCEAN}.pem", gateways=near, hints=[f"gateway:{far}"]) as node:
        coupler = node.endpoint("coupler")

        @coupler.handler
        def surface() -> float:
            return 15.0

        while not any("registered at" in line for line in node.audit()):
            time.sleep(0.01)
        print(coupler.startpoint(to="*.cloud.example.org").text(), flush=True)
        sys.stdin.read()


def atmosphere(place: Path, text: str) -> None:
    """Reach the ocean."""
    with links.Node(place / f"{ATMOSPHERE}.pem") as node:
        coupler = node.bind(text)
        print("the surface has", coupler.request("surface").result(timeout=20), "degrees")
        print(coupler.protection, "over", coupler.method)
        direct = coupler.startpoint.with_hints(["10.98.1.2:7700"])
    with links.Node(place / f"{ATMOSPHERE}.pem", connect_timeout=0.5) as node:
        try:
            node.bind(direct).request("surface").result(timeout=20)
        except ex.LinkError:
            print("there is no other way")


def main(place: Path) -> None:
    """Start the gateway and the ocean, then the atmosphere."""
    lab.issue(place, OCEAN, ATMOSPHERE)
    lab.issue(place, GATE, role="gateway")
    policy, site = place / "policy.toml", place / "site.toml"
    policy.write_text(POLICY)
    site.write_text("")
    with networks() as made:
        print("two networks" if made.gate else "one network: making others takes root")
        listen = "tcp://0.0.0.0:0" if made.gate else "tcp://127.0.0.1:0"
        files: list[object] = [
            "--credential",
            place / f"{GATE}.pem",
            "--policy",
            policy,
            "--site",
            site,
        ]
        gateway = ["-m", "exoskel", "gateway", "--listen", listen, *files, "--json"]
        with lab.process(*gateway, network=made.gate) as started:
            port = json.loads(started)["listen"].rpartition(":")[2]
            starts = SUBNETS.values() if made.gate else ["127.0.0"] * 2
            near, far = (f"{GATE}@{start}.1:{port}" for start in starts)
            words = [__file__, "ocean", place, near, far]
            with lab.process(*words, network=made.lab) as text:
                inside = ["ip", "netns", "exec", made.cloud] if made.cloud else []
                asking = [*inside, sys.executable, __file__, "atmosphere", str(place), text]
                sys.stdout.flush()
                subprocess.run(asking, check=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ocean", folder, near, far]:
            ocean(Path(folder), near, far)
        case ["atmosphere", folder, text]:
            atmosphere(Path(folder), text)
        case _:
            with tempfile.TemporaryDirectory() as folder:
                main(Path(folder))
