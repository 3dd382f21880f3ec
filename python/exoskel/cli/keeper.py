"""``exoskel keeper``: hold the arrays of a host's members, for a coupling that is led from elsewhere."""

import argparse
import contextlib
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

from .. import _core
from ..errors import AuthenticationError, KeeperError, LinkError
from ..link_places import dialled
from ..links import Node
from ..member import KEEPER_VARIABLE
from ..peer_text import one_line
from .report import Commands, report

__all__ = ["add_commands", "add_node_arguments", "node_of"]

# How long links between hosts wait for a connection that was lost, in seconds.
PATIENCE = 10.0
# After how much silence another host counts as gone, in seconds.
DEAD_AFTER = 10.0
# How long gateways may take before others are told of them.
_GATEWAY_SECONDS = 10.0
# Between two looks at whether all is over.
_LOOK_SECONDS = 0.1
# How long members may go on when the coupling has ended: they may not have heard yet who was lost.
_GRACE_SECONDS = 10.0


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``keeper``."""
    parser = commands.add_parser(
        "keeper",
        parents=[common],
        help="hold the arrays of this host's members, for programs that are coupled across hosts",
        description="Hold the arrays of the parallel programs on this host, and exchange versions with the keepers of other hosts. One is needed "
        "on each host, beside the one that exoskel couple --listen has itself. Programs are started as the site does it, and find the keeper by "
        "itself. It ends when the coupling has ended. docs/guide/coupling.md explains it.",
    )
    parser.add_argument(
        "--join",
        required=True,
        metavar="ADDRESS",
        help="where exoskel couple listens: tcp://HOST:PORT, or gateway:NAME@HOST:PORT",
    )
    parser.add_argument(
        "--coupler",
        metavar="NAME",
        help="the name in the certificate of who couples (default: the host in the address)",
    )
    add_node_arguments(parser, is_listening_required=True)
    parser.add_argument(
        "--socket",
        type=Path,
        metavar="PATH",
        help=f"where members attach (default: this account's own place, where they look without {KEEPER_VARIABLE})",
    )
    parser.set_defaults(run=_keeper)


def add_node_arguments(parser: argparse.ArgumentParser, *, is_listening_required: bool) -> None:
    """Add what a node of a coupling needs."""
    parser.add_argument(
        "--listen",
        required=is_listening_required,
        metavar="ADDRESS",
        help="wait for keepers of other hosts here: tcp://HOST:PORT",
    )
    parser.add_argument(
        "--credential",
        required=is_listening_required,
        type=Path,
        metavar="FILE",
        help="a credential (exoskel pki issue --role peer --name HOST)",
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="its key, if it doesn't hold it")
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="which wires get which protection"
    )
    parser.add_argument(
        "--gateway",
        action="append",
        default=[],
        metavar="NAME@HOST:PORT",
        help="a gateway through which other hosts reach this one",
    )
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE,
        metavar="SECONDS",
        help=f"how long a lost connection between hosts may take to come back (default: {PATIENCE:.0f})",
    )
    parser.add_argument(
        "--dead-after",
        type=float,
        default=DEAD_AFTER,
        metavar="SECONDS",
        help="after how many seconds of silence a connection between hosts counts as lost; of two hosts the smaller number holds "
        f"(default: {DEAD_AFTER:.0f})",
    )


@contextlib.contextmanager
def node_of(arguments: argparse.Namespace, policy: Path | None) -> Iterator[Node]:
    """Yield the node that arguments describe."""
    more = {} if arguments.key is None else {"key": arguments.key}
    node = Node(
        arguments.credential,
        policy=policy,
        listen=arguments.listen.removeprefix("tcp://"),
        gateways=arguments.gateway,
        patience=arguments.patience,
        dead_after=arguments.dead_after,
        **more,
    )
    try:
        _wait_for_gateways(node)
        yield node
    finally:
        # Who was lost is said already; the log names what didn't arrive there.
        with contextlib.suppress(LinkError):
            node.close()


def _wait_for_gateways(node: Node) -> None:
    """Wait until the gateways can lead others here: whoever is told of them asks at once."""
    deadline = time.monotonic() + _GATEWAY_SECONDS
    while (missing := node._node.unregistered()) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)
    for gateway in missing:
        print(
            f"not registered at the gateway {gateway} yet: other hosts reach this one through it when it answers",
            file=sys.stderr,
            flush=True,
        )


def _keeper(arguments: argparse.Namespace) -> int:
    [place] = dialled("--join", arguments.join)
    name = arguments.coupler or _host_of(place)
    signal.signal(signal.SIGTERM, _end)
    with _socket(arguments.socket) as socket, node_of(arguments, arguments.policy) as node:
        try:
            found = node.lookup("coupler", name=name, at=place, timeout=20.0)
        except AuthenticationError as error:
            if arguments.coupler is not None:
                raise
            raise AuthenticationError(
                f"{error}. Or give --coupler NAME, as exoskel couple prints it: without it the coupler's name is the host in --join"
            ) from error
        keeper = _core.Keeper.join(socket, node._node, found.startpoint)
        try:
            # Ctrl-C is the usual end of one that was started by hand, as soon as it has said that it is there.
            with contextlib.suppress(KeyboardInterrupt):
                report(
                    arguments,
                    f"keeper {node.name} has joined {name}; members attach at {socket}",
                    {"name": node.name, "coupler": name, "socket": str(socket)},
                )
                return _wait(keeper.state)
        finally:
            keeper.end()
    return 0


def _wait(state: Callable[[], tuple[int, bool, str | None]]) -> int:
    deadline = None
    while True:
        members, has_ended, coupler_lost = state()
        if has_ended:
            deadline = deadline or time.monotonic() + _GRACE_SECONDS
            if not members or time.monotonic() > deadline:
                return 0
        # Connections that were ready go on without it.
        elif coupler_lost and not members:
            raise KeeperError(f"the coupler was lost: {one_line(coupler_lost)}")
        time.sleep(_LOOK_SECONDS)


def _host_of(place: str) -> str:
    if not place.startswith("tcp://"):
        raise ValueError(f"got --join {place}, expected --coupler NAME with it")
    return place.removeprefix("tcp://").rpartition(":")[0].strip("[]")


@contextlib.contextmanager
def _socket(told: Path | None) -> Iterator[Path]:
    if told is not None:
        yield told
        return
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    place = _core.keeper_socket(Path(runtime) if runtime else None)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = place.parent.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise KeeperError(
            f"got {place.parent}, expected a folder of this account that nobody else can enter: remove it, or give --socket"
        )
    yield place


def _end(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
