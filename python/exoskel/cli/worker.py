"""``exoskel worker``: slot processes on this host, kept alive by a supervisor."""

import argparse
import os
import pickle
import sys
from pathlib import Path
from typing import Any

from .. import _core
from ..errors import CredentialError
from ..hosts import HostAddress, UnixAddress, parse_address
from ..identity import read_private
from ..options import NodeOptions, add_arguments, as_command_line, checked, given
from . import background, judgement, policy
from .report import Commands, report
from .supervisor import Supervisor

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
        metavar="ADDRESS",
        help="wait for managers here: tcp://HOST:PORT, e.g. tcp://0.0.0.0:7601, or unix:/path for those of this account on this machine",
    )
    way.add_argument(
        "--join",
        metavar="ADDRESS",
        help="dial a manager that listens at tcp://HOST:PORT or unix:/path: for workers behind a firewall",
    )
    parser.add_argument(
        "--slots",
        type=_slots,
        default=None,
        metavar="N",
        help="how many (default: one per usable core)",
    )
    parser.add_argument(
        "--manager-name",
        metavar="NAME",
        help="with --join: the name in the manager's certificate (default: the host in the address; an address in numbers "
        "or a Unix socket accepts any manager that the authority and the policy allow)",
    )
    add_arguments(parser, NodeOptions)
    parser.add_argument("--once", action="store_true", help="end when the first manager is gone")
    parser.add_argument(
        "--background",
        action="store_true",
        help="return once the worker listens; it logs to ~/.exoskel/run",
    )
    parser.add_argument(
        "--stop",
        action="store_true",
        help="stop the worker in the background that listens on this port or Unix socket",
    )
    # The background worker tells its parent through this descriptor that it listens.
    parser.add_argument("--ready-fd", type=int, help=argparse.SUPPRESS)
    parser.set_defaults(run=_worker, parser=parser)


def _worker(arguments: argparse.Namespace) -> int:
    if (arguments.background or arguments.stop) and not arguments.listen:
        arguments.parser.error("--background and --stop go with --listen")
    if arguments.stop:
        stopped = background.stop(parse_address(arguments.listen))
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
    _check_credential(Path(arguments.credential), arguments.key and Path(arguments.key))
    if arguments.trust_anchors is not None:
        # Also before the port is bound: nobody is to be told that a worker listens which can let nobody in.
        _core.GridTrust(arguments.trust_anchors, arguments.vomsdir, judgement.rules(arguments))
    if arguments.policy is not None:
        policy.check(Path(arguments.policy))
    if arguments.key_memory is not None:
        _core.check_key_memory(arguments.key_memory)
    options = given(NodeOptions, arguments)
    told: dict[str, Any] = {
        "options": dict(checked(NodeOptions, "worker", options)),
        "slots": arguments.slots or len(os.sched_getaffinity(0)),
    }
    if arguments.background:
        return _in_background(arguments, told["slots"], options)
    slots = told["slots"]
    listener: _core.Listener | None = None
    if arguments.join:
        manager = parse_address(arguments.join, _MANAGER_PORT)
        told["join"] = str(manager)
        told["manager_name"] = arguments.manager_name or _name_of_manager(manager)
        listens_at = None
        doing = {"join": _url(manager)}
    else:
        listener = _core.Listener(str(parse_address(arguments.listen)))
        listens_at = parse_address(listener.address)
        doing = {"listen": _url(listens_at)}
    supervisor = Supervisor(
        [sys.executable, "-P", "-m", "exoskel.slot"],
        pickle.dumps(told, 5),
        slots,
        once=arguments.once,
        listener=listener,
    )
    with supervisor:
        (verb, address), *_ = doing.items()
        text = f"listening on {address}" if verb == "listen" else f"joining {address}"
        # An address may be refused here, but only after the system has bound it: say so when it is true.
        with background.registered(arguments.ready_fd, listens_at):
            report(
                arguments,
                f"worker {text} with {slots} slot{'s' if slots != 1 else ''}",
                {**doing, "slots": slots},
            )
            return supervisor.run()


def _in_background(arguments: argparse.Namespace, slots: int, options: dict[str, Any]) -> int:
    address = parse_address(arguments.listen)
    words = ["--listen", str(address), "--slots", str(slots), *as_command_line(options)]
    if arguments.once:
        words.append("--once")
    process_id, log = background.start(words, address)
    report(
        arguments,
        f"worker listening on {_url(address)} with {slots} slots, process {process_id}, log {log}",
        {"listen": _url(address), "slots": slots, "process": process_id, "log": log},
    )
    return 0


def _check_credential(path: Path, key: Path | None) -> None:
    """See that files can be a credential; whether they are one, the slots find out."""
    secret = path if key is None else key
    text = read_private(secret, bytes_max=1 << 23)
    certificates = text if key is None else path.read_bytes()
    if b" PRIVATE KEY-----" not in text or b"-----BEGIN CERTIFICATE-----" not in certificates:
        raise CredentialError(
            f"{path} is no credential, expected a file that `exoskel pki issue` wrote, or a host certificate and its key"
        )


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


def _slots(text: str) -> int:
    try:
        slots = int(text)
    except ValueError:
        slots = 0
    if not 1 <= slots <= 4096:
        raise argparse.ArgumentTypeError(f"got {text}, expected 1 to 4096 slots")
    return slots
