"""The network of the part `gateway`: two nodes, gateways between them, HAProxy, and a login host for `ssh -J`."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benches.links import install
from benches.links.credentials import issue
from benches.links.install import Missing, program
from benches.links.lanes import LaneProgram
from benches.links.networks import Hosts, hosts

# Those that say what becomes of a paced hop; the others are about processors.
PACED = ("gateway_raw", "gateway_raw_again", "gateway_direct", "gateway_one", "gateway_two")
LANES = (*PACED, "gateway_haproxy", "gateway_ssh")
# Encryption must not be what is slow.
RATE = "1gbit"
START_SECONDS = 20.0

GATEWAY, NODE, RAW, HAPROXY, SSH, TUNNEL = 7700, 7701, 7702, 7703, 7722, 7723
EVERYBODY = '[[allow.tunnel]]\nfrom = "*"\nto = "*"\n'


class Network:
    """Hosts with everything that runs on them."""

    def __init__(self, network: Hosts, folder: Path) -> None:
        self._hosts = network
        self._folder = folder
        self._addresses = {
            name: network.add(name) for name in ("near", "first", "second", "only", "far")
        }
        self._ways: dict[str, str] = {}
        self._own = install.own()
        self._is_paced = False
        self.failures: dict[str, str] = {}

    @property
    def lanes(self) -> list[str]:
        """Those whose way is there."""
        return list(self._ways)

    def near(self) -> LaneProgram:
        """The near ends of all lanes."""
        ways = [f"{lane}={hint}" for lane, hint in self._ways.items()]
        return LaneProgram(self._hosts.command("near", self._own, "near", self._folder, *ways))

    def pace(self, is_paced: bool) -> None:
        """Pace the near end's line, or let it go."""
        if is_paced and not self._is_paced:
            self._hosts.pace("near", RATE)
        elif self._is_paced and not is_paced:
            self._hosts.free("near")
        self._is_paced = is_paced

    def build(self) -> None:
        """Start everything."""
        self._issue()
        far = self._addresses["far"]
        listen = [f"tcp://{far}:{NODE}", f"{far}:{RAW}"]
        self._hosts.serve("far", self._own, "far", self._folder, *listen, ready=(far, NODE))
        startpoint = self._folder / "startpoint"
        deadline = time.monotonic() + START_SECONDS
        while not startpoint.exists():
            if time.monotonic() > deadline:
                raise Missing("the far end has made no startpoint")
            time.sleep(0.02)
        for lane in ("gateway_raw", "gateway_raw_again"):
            self._ways[lane] = f"raw:{far}:{RAW}"
        self._ways["gateway_direct"] = f"tcp://{far}:{NODE}"
        self._start_gateways()
        for lane, start in (
            ("gateway_haproxy", self._start_haproxy),
            ("gateway_ssh", self._start_ssh),
        ):
            self._try(lane, start)

    def _try(self, lane: str, start: Callable[[], str]) -> None:
        try:
            self._ways[lane] = start()
        except Missing as error:
            self.failures[lane] = str(error)

    def _issue(self) -> None:
        peers = ["far", "gateway_direct", "gateway_one", "gateway_two", "gateway_haproxy"]
        roles = [("peer", name) for name in peers]
        roles += [("gateway", name) for name in ("first", "second", "only")]
        issue(self._folder, roles)

    def _start_gateways(self) -> None:
        (self._folder / "gateway-policy.toml").write_text(EVERYBODY)
        far = f'[node]\nfar = "tcp://{self._addresses["far"]}:{NODE}"\n'
        second = f'[{{ name = "second", address = "tcp://{self._addresses["second"]}:{GATEWAY}" }}]'
        beyond = f'[subnet.beyond]\nnames = ["far"]\ngateways = {second}\n\n'
        for name, site in (("only", far), ("first", beyond), ("second", beyond + far)):
            file = self._folder / f"{name}-site.toml"
            file.write_text(site)
            place = (self._addresses[name], GATEWAY)
            words = ["--listen", f"tcp://{place[0]}:{place[1]}", "--site", str(file)]
            words += ["--credential", str(self._folder / f"{name}.pem")]
            words += ["--policy", str(self._folder / "gateway-policy.toml")]
            self._hosts.serve(name, sys.executable, "-m", "exoskel", "gateway", *words, ready=place)
        for lane, name in (("gateway_one", "only"), ("gateway_two", "first")):
            self._ways[lane] = f"gateway:{name}@{self._addresses[name]}:{GATEWAY}"

    def _start_haproxy(self) -> str:
        binary = install.debian() / "usr" / "sbin" / "haproxy"
        place = (self._addresses["only"], HAPROXY)
        file = self._folder / "haproxy.cfg"
        file.write_text(
            "defaults\n  mode tcp\n  option splice-auto\n"
            "  timeout connect 10s\n  timeout client 10m\n  timeout server 10m\n"
            f"frontend near\n  bind {place[0]}:{place[1]}\n  default_backend far\n"
            f"backend far\n  server far {self._addresses['far']}:{NODE}\n"
        )
        self._hosts.serve(
            "only", binary, "-db", "-f", file, ready=place, environment=install.libraries()
        )
        return f"tcp://{place[0]}:{place[1]}"

    def _start_ssh(self) -> str:
        """A raw stream by `ssh -J`, which the two logins protect."""
        ssh, keygen = program("ssh", "openssh-client"), program("ssh-keygen", "openssh-client")
        daemon = install.debian() / "usr" / "sbin" / "sshd"
        key, here = self._folder / "ssh-key", self._folder
        install.run([keygen, "-q", "-t", "ed25519", "-N", "", "-f", key], "ssh-keygen")
        accounts = {"passwd": "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n", "shadow": ""}
        for name, line in accounts.items():
            text = Path("/etc", name).read_text()
            # An account that is locked can't log in, not even by a key.
            lines = [line, *text.splitlines(keepends=True)]
            if name == "shadow":
                lines = ["root:*:19000:0:99999:7:::\n"]
            (here / name).write_text("".join(lines))
        (here / "sshd.sh").write_text(
            "set -e\nmount -t tmpfs tmpfs /run\nmkdir /run/sshd\nchmod 755 /run/sshd\n"
            f"mount --bind {here}/passwd /etc/passwd\nmount --bind {here}/shadow /etc/shadow\n"
            f'exec {daemon} -D -e -f {here}/sshd.conf -o ListenAddress="$1"\n'
        )
        (here / "sshd.conf").write_text(
            f"Port {SSH}\nHostKey {key}\nAuthorizedKeysFile {key}.pub\nStrictModes no\n"
            "UsePAM no\nPermitRootLogin yes\nAllowTcpForwarding yes\nPidFile none\n"
        )
        # Its files are read by a login's own processes.
        here.chmod(0o755)
        for name in ("only", "far"):
            place = (self._addresses[name], SSH)
            self._hosts.serve(
                name, "sh", here / "sshd.sh", place[0], ready=place, environment=install.libraries()
            )
        hosts_of_ssh = "".join(
            f"Host {name}\n  HostName {self._addresses[name]}\n" for name in ("only", "far")
        )
        (here / "ssh.conf").write_text(
            f"{hosts_of_ssh}Host *\n  User root\n  Port {SSH}\n  IdentityFile {key}\n"
            "  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  BatchMode yes\n"
        )
        forward = f"127.0.0.1:{TUNNEL}:{self._addresses['far']}:{RAW}"
        words = ["-F", str(here / "ssh.conf"), "-N", "-J", "only", "-L", forward, "far"]
        self._hosts.serve("near", ssh, *words, ready=("127.0.0.1", TUNNEL))
        return f"raw:127.0.0.1:{TUNNEL}"


def build(folder: Path, stack: contextlib.ExitStack) -> Network:
    """Make the network, which goes when the stack is closed."""
    network = Network(stack.enter_context(hosts(folder)), folder)
    network.build()
    return network
