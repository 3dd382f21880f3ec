"""``exoskel worker``: slot processes on this host, kept alive by a supervisor."""

import argparse
import os
import pickle
import secrets
import signal
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core, inner_threads, worker_sandbox
from ..cores import usable_cores
from ..errors import CredentialError, PolicyError
from ..hosts import HostAddress, UnixAddress, parse_address_alone
from ..identity import read_private
from ..options import SECONDS_MAX, WorkerOptions, add_arguments, as_command_line, checked, given
from ..start_options import number_of_slots
from . import background, policy
from .apart import in_child
from .report import Commands, report
from .supervisor import Supervisor

if TYPE_CHECKING:
    import ipaddress

__all__ = ["add_commands"]

_MANAGER_PORT = 7600
_DRAIN_SECONDS = 30.0
# Of the name of a folder that nobody else is to guess.
_FOLDER_BYTES = 8
_ENDS = {
    "stopped": "stopped",
    "killed": "killed: it did not end when it was told to",
    "none": "no worker was running in the background",
}


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``worker``."""
    parser = commands.add_parser(
        "worker",
        parents=[common],
        help="offer slots of this host to managers",
        description="Offer slots of this host to managers. Each slot is a process. It serves one manager, and is then replaced by a new one. "
        "Managers whose code the [sandbox] of the policy confines, and those of a grid, get slots that the kernel holds to it. "
        "Ctrl-C or SIGTERM ends the worker when its running items are done (see --drain). A second signal ends it at once. No "
        "process is left behind.",
    )
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument(
        "--listen",
        metavar="ADDRESS",
        help="wait for managers here: tcp://HOST:PORT, e.g. tcp://0.0.0.0:7601, or unix:/path for those of this account on this machine; "
        "without a port: 7601",
    )
    way.add_argument(
        "--join",
        metavar="ADDRESS",
        help="dial a manager that listens at tcp://HOST:PORT or unix:/path: for workers behind a firewall; without a port: 7600. "
        "A manager that isn't there is asked again, at last every 30 seconds; one that has the slots it needs calls when it needs more",
    )
    parser.add_argument(
        "--announce",
        action="store_true",
        help="with --listen on TCP: say on this network (multicast DNS) that the worker is there, and under which name, for managers with "
        'workers="discover"; everybody there can hear that. Its managers are told who else is heard there',
    )
    parser.add_argument(
        "--slots",
        type=number_of_slots,
        default=None,
        metavar="N",
        help="how many slots to offer (default: one per usable core)",
    )
    parser.add_argument(
        "--manager-name",
        metavar="NAME",
        help="with --join: the name in the manager's certificate (default: the host in the address). Without a name, for an IP address or a Unix "
        "socket, every manager that the authority and the policy allow is accepted",
    )
    add_arguments(parser, WorkerOptions)
    parser.add_argument(
        "--drain",
        type=_seconds,
        default=None,
        metavar="SECONDS",
        help="how long running items may go on after the worker was told to end. Then they run elsewhere, and are not charged "
        f"(default: {_DRAIN_SECONDS:g}; with --stop: as the worker was started)",
    )
    parser.add_argument("--once", action="store_true", help="end when the first manager is gone")
    background_ = parser.add_mutually_exclusive_group()
    background_.add_argument(
        "--background",
        action="store_true",
        help="return once the worker listens; it logs to ~/.exoskel/run",
    )
    background_.add_argument(
        "--stop",
        action="store_true",
        help="stop the worker in the background that listens on this port or Unix socket",
    )
    background_.add_argument(
        "--status",
        action="store_true",
        help="say whether a worker runs in the background on this port or Unix socket; exit code 1 if not",
    )
    # The background worker tells its parent through this descriptor that it listens.
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    parser.set_defaults(run=_worker, parser=parser)


def _worker(arguments: argparse.Namespace) -> int:
    if (arguments.background or arguments.stop or arguments.status) and not arguments.listen:
        arguments.parser.error("--background, --stop and --status go with --listen")
    if arguments.background and getattr(parse_address_alone(arguments.listen), "port", None) == 0:
        arguments.parser.error(
            "--background needs a port other than 0, by which --status and --stop find the worker"
        )
    if arguments.announce:
        _check_announced(arguments)
    if arguments.status:
        return _status(arguments)
    if arguments.stop:
        end = background.stop(parse_address_alone(arguments.listen), arguments.drain)
        killed = {"killed": True} if end == "killed" else {}
        report(arguments, _ENDS[end], {"stopped": end != "none", **killed})
        return 0
    if arguments.credential is None:
        arguments.parser.error(
            "--credential is required (issue one with: exoskel pki issue --role worker --name HOST)"
        )
    if arguments.policy is not None:
        policy.check(Path(arguments.policy))
    if arguments.key_memory is not None:
        _core.check_key_memory(arguments.key_memory)
    options = given(WorkerOptions, arguments)
    node = dict(checked(WorkerOptions, "worker", options))
    # Now, once, and not by each slot, and before the port is bound: nobody is to be told that a worker listens which can let nobody in.
    name, sandbox = in_child(lambda: _checked(arguments, node))
    if sandbox is not None:
        worker_sandbox.check(sandbox, node)
        from ..host_sandbox import check_table

        try:
            check_table(sandbox, is_root=os.geteuid() == 0)
        except ValueError as error:
            raise PolicyError(f"{arguments.policy}: {error}") from None
        if arguments.policy is not None:
            has_grid = node["trust_anchors"] is not None
            policy.check_confines(Path(arguments.policy), has_grid=has_grid)
    told: dict[str, Any] = {
        "options": node,
        "slots": arguments.slots or usable_cores(),
        "drain": _DRAIN_SECONDS if arguments.drain is None else arguments.drain,
    }
    if arguments.background:
        return _in_background(arguments, told["slots"], told["drain"], options)
    slots = told["slots"]
    # Made by the first slot that is confined.
    told["folder"] = os.path.join(
        tempfile.gettempdir(), f"exoskel-worker-{secrets.token_hex(_FOLDER_BYTES)}"
    )
    told["environment"] = inner_threads.variables(told["options"]["inner_threads"], slots)
    listener: _core.Listener | None = None
    announced: list[str] = []
    if arguments.join:
        manager = parse_address_alone(arguments.join, _MANAGER_PORT)
        told["join"] = str(manager)
        told["manager_name"] = arguments.manager_name or _name_of_manager(manager)
        listens_at = None
        doing = {"join": _url(manager)}
    else:
        listener = _core.Listener(str(parse_address_alone(arguments.listen)))
        listens_at = parse_address_alone(listener.address)
        doing = {"listen": _url(listens_at)}
        if arguments.announce:
            announced = _announced(name, listens_at)
    supervisor = Supervisor(
        [sys.executable, "-P", "-m", "exoskel.slot"],
        pickle.dumps(told, 5),
        slots,
        once=arguments.once,
        drain=told["drain"],
        listener=listener,
        has_signer=True,
        folder=told["folder"],
        announced=announced,
    )
    # Its place is its own until all slots have ended.
    place = background.registered(
        arguments.ready_fd,
        listens_at,
        told["drain"],
        name,
        node["policy"] or "",
    )
    with place, supervisor:
        background.announce(arguments.ready_fd)
        (verb, address), *_ = doing.items()
        text = f"listening on {address}" if verb == "listen" else f"joining {address}"
        # An address may be refused here, but only after the system has bound it: say so when it is true.
        try:
            report(
                arguments,
                f"worker {text} with {_slots_text(slots)}{_confined_text(arguments.policy)}",
                {**doing, "slots": slots},
            )
        except OSError:
            # Nobody is there to read it, or the disk is full. What couldn't be written must not fail the end either.
            with open(os.devnull, "wb") as nowhere:
                os.dup2(nowhere.fileno(), sys.stdout.fileno())
        code = supervisor.run()
        # Told again on its way out, it would end by the signal and not with this code.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        return code


def _status(arguments: argparse.Namespace) -> int:
    address = parse_address_alone(arguments.listen)
    there = background.running(address)
    if there is None:
        report(
            arguments, f"no worker runs in the background on {_url(address)}", {"running": False}
        )
        return 1
    named = f" as {there.name}" if there.name else ""
    ruled = f", policy {there.policy}" if there.policy else ", no policy"
    report(
        arguments,
        f"a worker runs in the background on {_url(address)}{named}, process {there.process}, log {there.log}{ruled}",
        {
            "running": True,
            "process": there.process,
            "log": there.log,
            "name": there.name,
            "policy": there.policy,
        },
    )
    return 0


def _in_background(
    arguments: argparse.Namespace, slots: int, drain: float, options: dict[str, Any]
) -> int:
    address = parse_address_alone(arguments.listen)
    words = ["--listen", str(address), "--slots", str(slots), "--drain", str(drain)]
    words += as_command_line(options)
    if arguments.once:
        words.append("--once")
    if arguments.announce:
        words.append("--announce")
    process_id, log = background.start(words, address)
    report(
        arguments,
        f"worker listening on {_url(address)} with {_slots_text(slots)}, process {process_id}, log {log}",
        {"listen": _url(address), "slots": slots, "process": process_id, "log": log},
    )
    return 0


def _checked(
    arguments: argparse.Namespace, node: dict[str, Any]
) -> tuple[str, dict[str, Any] | None]:
    """See that the worker can prove who it is; return its name, and what its policy lets code in a sandbox use."""
    _check_credential(Path(arguments.credential), arguments.key and Path(arguments.key))
    sandbox = _core.check_worker(node)
    return _certified_name(arguments.credential), sandbox


def _check_announced(arguments: argparse.Namespace) -> None:
    """See that managers elsewhere can reach the address that is announced."""
    address = arguments.listen and parse_address_alone(arguments.listen)
    if not isinstance(address, HostAddress):
        arguments.parser.error("--announce goes with --listen tcp://HOST:PORT")
    elif _ip_address(address.host).is_loopback:
        arguments.parser.error(
            f"got --announce with --listen {arguments.listen}, expected an address that others reach, such as tcp://0.0.0.0:7601"
        )


def _announced(name: str, address: HostAddress | UnixAddress) -> list[str]:
    """Return what an announcer is told: the worker's name, its port, and its address unless it listens at all."""
    if not name:
        raise CredentialError(
            "got --announce with a certificate that doesn't name a worker, expected one of a private authority: exoskel pki issue --role worker"
        )
    assert isinstance(address, HostAddress), "it was checked"
    ip = _ip_address(address.host)
    return [name, str(address.port), *([] if ip.is_unspecified else [str(ip)])]


def _ip_address(host: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address":
    """Return the address of a host; the first one where it has several."""
    import ipaddress
    import socket

    found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return ipaddress.ip_address(str(found[0][4][0]).partition("%")[0])


def _check_credential(path: Path, key: Path | None) -> None:
    """See that files can be a credential, and nobody else can read the key."""
    secret = path if key is None else key
    text = read_private(secret, bytes_max=1 << 23, is_pem=True)
    certificates = text if key is None else path.read_bytes()
    if b" PRIVATE KEY-----" not in text or b"-----BEGIN CERTIFICATE-----" not in certificates:
        raise CredentialError(
            f"{path} is no credential, expected a file that `exoskel pki issue` wrote, or a host certificate and its key"
        )


def _certified_name(credential: str) -> str:
    """Return the name that a private authority has certified; nothing for the host certificate of a grid, which may have many."""
    leaf, *_ = _core.certificates_of(Path(credential).read_bytes())
    if not _core.states_role(leaf):
        return ""
    identity: str = _core.chain_details([leaf])["identity"]
    return identity.removeprefix("/CN=worker ")


def _confined_text(path: str | None) -> str:
    told = None if path is None else policy.confined(Path(path))
    return "" if told is None else f"; {told}"


def _slots_text(slots: int) -> str:
    return f"{slots} slot{'s' if slots != 1 else ''}"


def _url(address: HostAddress | UnixAddress) -> str:
    return f"tcp://{address}" if isinstance(address, HostAddress) else str(address)


def _name_of_manager(address: HostAddress | UnixAddress) -> str | None:
    """Return the name that an address gives its manager: its host, unless that is an IP address, which no certificate names."""
    import ipaddress

    if isinstance(address, UnixAddress):
        return None
    try:
        ipaddress.ip_address(address.host)
    except ValueError:
        return address.host
    return None


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= SECONDS_MAX:
        raise argparse.ArgumentTypeError(f"got {text}, expected seconds from 0 to {SECONDS_MAX:g}")
    return seconds
