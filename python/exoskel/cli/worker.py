"""``exoskel worker``: slot processes on this host, kept alive by a supervisor."""

import argparse
import os
import sys
from pathlib import Path

from ..errors import CredentialError
from ..hosts import HostAddress, parse_address
from . import background, policy
from .report import Commands, report
from .supervisor import Supervisor, listening_socket

__all__ = ["add_commands"]

_MANAGER_PORT = 7600


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``worker``."""
    parser = commands.add_parser(
        "worker",
        parents=[common],
        help="offer slots of this host to managers",
        description="Offer slots of this host to managers. Each slot is a process; it serves one manager at a time and is replaced "
        "by a fresh one afterwards. Ends with Ctrl-C or SIGTERM, and leaves no process behind.",
    )
    way = parser.add_mutually_exclusive_group(required=True)
    way.add_argument(
        "--listen",
        metavar="tcp://HOST:PORT",
        help="wait for managers here, e.g. tcp://0.0.0.0:7601",
    )
    way.add_argument(
        "--join",
        metavar="tcp://HOST:PORT",
        help="dial a manager that listens: for workers behind a firewall",
    )
    parser.add_argument(
        "--slots",
        type=_slots,
        default=None,
        metavar="N",
        help="how many (default: one per usable core)",
    )
    parser.add_argument(
        "--credential",
        type=Path,
        metavar="FILE",
        help="as `exoskel pki issue --role worker` wrote it",
    )
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="the policy (default: the built-in one)"
    )
    parser.add_argument(
        "--manager-name",
        metavar="NAME",
        help="with --join: the name in the manager's certificate (default: the host in the address; an address in numbers "
        "accepts any manager that the authority and the policy allow)",
    )
    parser.add_argument(
        "--revocation-list",
        type=Path,
        metavar="FILE",
        help="the authority's revoked.crl, where it is newer than the credential; taken up when it changes",
    )
    parser.add_argument("--once", action="store_true", help="end when the first manager is gone")
    parser.add_argument(
        "--background",
        action="store_true",
        help="return once the worker listens; it logs to ~/.exoskel/run",
    )
    parser.add_argument(
        "--stop",
        action="store_true",
        help="stop the worker in the background that listens on this port",
    )
    # The background worker tells its parent through this descriptor that it listens.
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    parser.set_defaults(run=_worker, parser=parser)


def _worker(arguments: argparse.Namespace) -> int:
    if (arguments.background or arguments.stop) and not arguments.listen:
        arguments.parser.error("--background and --stop go with --listen")
    if arguments.stop:
        stopped = background.stop(_address(arguments.listen).port)
        report(
            arguments,
            "stopped" if stopped else "no worker was running in the background",
            {"stopped": stopped},
        )
        return 0
    if arguments.credential is None:
        arguments.parser.error(
            "--credential is required (issue one with: exoskel pki issue --role worker --name HOST)"
        )
    # Now, once, and not by each slot.
    _check_credential(arguments.credential)
    if arguments.policy is not None:
        policy.check(arguments.policy)
    slots = arguments.slots or len(os.sched_getaffinity(0))
    if arguments.background:
        return _in_background(arguments, slots)
    command = [
        sys.executable,
        "-P",
        "-m",
        "exoskel.slot",
        "--credential",
        os.path.abspath(arguments.credential),
        "--slots",
        str(slots),
    ]
    if arguments.policy is not None:
        command += ["--policy", os.path.abspath(arguments.policy)]
    if arguments.revocation_list is not None:
        command += ["--revocation-list", os.path.abspath(arguments.revocation_list)]
    if arguments.join:
        manager = _address(arguments.join, _MANAGER_PORT)
        command += ["--join", f"tcp://{manager}"]
        name = arguments.manager_name or (None if _is_number(manager.host) else manager.host)
        if name is not None:
            command += ["--manager-name", name]
        supervisor = Supervisor(command, slots, once=arguments.once)
        doing = {"join": f"tcp://{manager}"}
    else:
        listener = listening_socket(_address(arguments.listen))
        command += ["--listen-fd", str(listener.fileno())]
        supervisor = Supervisor(command, slots, once=arguments.once, listener=listener)
        host, port = listener.getsockname()[:2]
        doing = {"listen": f"tcp://{HostAddress(host, port, host)}"}
    with supervisor:
        (verb, address), *_ = doing.items()
        text = f"listening on {address}" if verb == "listen" else f"joining {address}"
        # An address may be refused here, but only after the system has bound it: say so when it is true.
        with background.registered(arguments.ready_fd, doing.get("listen")):
            report(
                arguments,
                f"worker {text} with {slots} slot{'s' if slots != 1 else ''}",
                {**doing, "slots": slots},
            )
            return supervisor.run()


def _in_background(arguments: argparse.Namespace, slots: int) -> int:
    address = _address(arguments.listen)
    options = [
        "--listen",
        f"tcp://{address}",
        "--slots",
        str(slots),
        "--credential",
        os.path.abspath(arguments.credential),
    ]
    if arguments.policy is not None:
        options += ["--policy", os.path.abspath(arguments.policy)]
    if arguments.revocation_list is not None:
        options += ["--revocation-list", os.path.abspath(arguments.revocation_list)]
    if arguments.once:
        options.append("--once")
    process_id, log = background.start(options, address.port)
    report(
        arguments,
        f"worker listening on tcp://{address} with {slots} slots, process {process_id}, log {log}",
        {"listen": f"tcp://{address}", "slots": slots, "process": process_id, "log": log},
    )
    return 0


def _check_credential(path: Path) -> None:
    """See that a file can be a credential; whether it is one, the slots find out."""
    with open(path, "rb") as file:
        mode = os.fstat(file.fileno()).st_mode
        text = file.read()
    if mode & 0o077:
        raise CredentialError(
            f"{path} can be read by others (mode {mode & 0o777:o}); run: chmod 600 {path}"
        )
    if b"-----BEGIN PRIVATE KEY-----" not in text or b"-----BEGIN CERTIFICATE-----" not in text:
        raise CredentialError(
            f"{path} is no credential, expected a file that `exoskel pki issue` wrote"
        )


def _address(text: str, port: int | None = None) -> HostAddress:
    return parse_address(text) if port is None else parse_address(text, port)


def _is_number(host: str) -> bool:
    """Whether a host is an IP address, which no certificate names."""
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _slots(text: str) -> int:
    slots = int(text)
    if not 1 <= slots <= 4096:
        raise argparse.ArgumentTypeError(f"got {text}, expected 1 to 4096 slots")
    return slots
