"""``exoskel gateway``: connect networks that can't reach each other, without a key of theirs."""

import argparse
import contextlib
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from ..options import WorkerOptions, checked
from ..worker_log import WorkerLog
from . import policy
from .report import Commands, report

__all__ = ["add_commands"]

_PATHS = ("credential", "key", "policy", "revocation_list", "trust_anchors", "vomsdir")


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``gateway``."""
    parser = commands.add_parser(
        "gateway",
        parents=[common],
        help="connect nodes of networks that can't reach each other; it sees ciphertext only",
        description="Connect nodes of networks that can't reach each other. A node proves itself and names the node it wants. The policy says "
        "who may reach whom ([[allow.tunnel]]); without a rule nobody may. The gateway dials that node, calls it if it has registered, or asks "
        "another gateway, and then forwards bytes that it has no key for. Each decision is a line on standard error. Credential, policy and site "
        "file are read again when they change. SIGTERM and Ctrl-C end the gateway and its tunnels. docs/gateways.md explains all of it.",
    )
    parser.add_argument(
        "--listen",
        required=True,
        metavar="ADDRESS",
        help="wait for nodes and other gateways here: tcp://HOST:PORT, e.g. tcp://0.0.0.0:7700",
    )
    parser.add_argument(
        "--credential",
        required=True,
        type=Path,
        metavar="FILE",
        help="the gateway's credential (exoskel pki issue --role gateway --name HOST)",
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="its key, if it doesn't hold it")
    parser.add_argument(
        "--policy",
        required=True,
        type=Path,
        metavar="FILE",
        help="who may reach whom: [[allow.tunnel]] and [[deny.tunnel]]",
    )
    parser.add_argument(
        "--site",
        type=Path,
        metavar="FILE",
        help="where nodes and other gateways are; without it the gateway reaches registered nodes only",
    )
    parser.add_argument(
        "--revocation-list",
        type=Path,
        metavar="FILE",
        help="a newer revocation list than the one in the credential",
    )
    parser.add_argument(
        "--trust-anchors",
        type=Path,
        metavar="DIR",
        help="a grid's authorities, where nodes have its certificates",
    )
    parser.add_argument(
        "--vomsdir", type=Path, metavar="DIR", help="the VOMS servers whose attributes count"
    )
    parser.add_argument(
        "--tunnels",
        type=_count,
        metavar="N",
        help="how many tunnels there can be at once (default: 4096, or as many as the limit of open files allows: six for each, beside those of "
        "registered nodes)",
    )
    parser.add_argument(
        "--tunnels-of-node",
        type=_count,
        metavar="N",
        help="how many of them one node can ask for (default: 256)",
    )
    parser.set_defaults(run=_gateway)


def _count(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1_000_000:
        raise argparse.ArgumentTypeError(f"got {text}, expected a whole number from 1 to 1000000")
    return int(text)


def _gateway(arguments: argparse.Namespace) -> int:
    from .. import _core

    if not arguments.listen.startswith("tcp://"):
        raise ValueError(f"got --listen {arguments.listen}, expected tcp://HOST:PORT")
    policy.check(arguments.policy)
    values = {name: getattr(arguments, name) for name in _PATHS}
    options = checked(
        WorkerOptions,
        "gateway",
        {name: value for name, value in values.items() if value is not None},
    )
    start: dict[str, Any] = {
        "listen": arguments.listen,
        "site": arguments.site,
        "tunnels": arguments.tunnels,
        "tunnels_of_node": arguments.tunnels_of_node,
    }
    log = WorkerLog()

    def listening(address: str, name: str, tunnels: int) -> None:
        report(
            arguments,
            f"gateway {name} listening on tcp://{address}, with at most {tunnels} tunnels",
            {"listen": f"tcp://{address}", "name": name, "tunnels": tunnels},
        )

    def audit(line: str) -> None:
        log.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} gateway {line}")

    signal.signal(signal.SIGTERM, _end)
    # Ctrl-C is the usual end of one that was started by hand.
    with contextlib.suppress(KeyboardInterrupt):
        _core.run_gateway(dict(options), start, listening, audit)
    return 0


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
