"""``exoskel links``: the links of running nodes; and which way a link takes, how it is protected, and by which rule."""

import argparse
import glob
import ipaddress
import json
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..peer_text import one_line
from . import UsageError
from .background import run_directory
from .policy import Explained, explained
from .report import Commands, duration, report

__all__ = ["Way", "add_commands", "running_nodes", "ways"]

# The name of the domain of processes on one host.
_HOST = "host"
_NOBODY = "no node of this account runs on this machine"
_WATCH_SECONDS = 1.0
# What has made a link stricter than the policy of its node wants.
_RAISED_BY = {
    "endpoint": "the endpoint or the startpoint",
    "user": "a user of this node",
    "relay": "the safety rule that what others forward is always encrypted",
    "earlier_policy": "this node's policy of before",
    "peer_policy": "the other end's policy",
    "peer": "the other end, by its policy or its user",
}
# Numbers with dots, brackets, and what ends with a port: no name that people give.
_LIKE_AN_ADDRESS = re.compile(r"[\d.]*\.[\d.]*|\[.*|[^/].*:\d+")
# How long a node may take to say how it stands.
_ANSWER_SECONDS = 2.0
# What it may say: a hundred thousand links.
_STATUS_BYTES_MAX = 64 << 20


@dataclass(frozen=True)
class Way:
    """One way that a link could take."""

    method: str
    """What carries the bytes."""
    to: str
    """Where it leads: an address, or what is still missing."""
    protection: str
    """What the policies ask for on this way."""
    note: str
    """When the way is taken, for people."""


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``links`` and ``links explain``."""
    parser = commands.add_parser(
        "links",
        parents=[common],
        help="show the links of running nodes, how they are protected, and by which rule",
        description="Show the nodes of this account that run on this machine, each with its endpoints, its sessions and the links of these.",
    )
    parser.add_argument(
        "--watch", action="store_true", help="show them again every second, until Ctrl-C"
    )
    parser.set_defaults(run=_show)
    actions = parser.add_subparsers(title="actions", metavar="ACTION")
    explain = actions.add_parser(
        "explain",
        parents=[common],
        help="say how a link would be protected, by which rule, and over which ways",
        description="Say which ways a link from one node to an endpoint of another could take, how the policy protects the link, which "
        "rule decides, and why the other rules don't. The minimum of the endpoint and what its users require can make the link stricter.",
    )
    explain.add_argument(
        "from_",
        metavar="FROM",
        help="who opens the link: NAME@ADDRESS, a name, an address, a domain, or `host` for this machine",
    )
    explain.add_argument("to", metavar="TO", help="whose endpoint it is, in the same way")
    explain.add_argument("endpoint", metavar="ENDPOINT", help="the name of the endpoint")
    explain.add_argument(
        "--policy", type=Path, metavar="FILE", help="the policy (default: the built-in one)"
    )
    explain.add_argument(
        "--other",
        type=Path,
        metavar="FILE",
        help="the policy of the host at the other end; the stricter of both holds",
    )
    explain.add_argument(
        "--site",
        type=Path,
        metavar="FILE",
        help="where nodes and gateways are: names the gateways on the way",
    )
    explain.set_defaults(run=_explain)


def ways(
    from_: str,
    to: str,
    answer: Explained,
    hints: Sequence[tuple[str, str, str]] = (),
) -> list[Way]:
    """Return the ways that a link could take, in the order in which they are tried.

    Parameters
    ----------
    from_, to : str
        The nodes, as the command has them.
    answer : Explained
        What the policies say of the link.
    hints : sequence of (str, str, str)
        What the site file says: methods, the names of gateways and commands, and addresses.

    Returns
    -------
    list of Way
        The ways; empty if nothing says where the node is.
    """
    if to == _HOST:
        note = "both are processes of one account on this machine"
        return [
            Way(method, "this machine", answer.holds, note)
            for method in ("shared memory", "unix socket")
        ]
    found = []
    if (address := _address(to)) is not None:
        note = "if both ends see the same pair of addresses"
        found.append(Way("tcp", address, answer.holds, note))
        if answer.holds_unproven is not None:
            note = "if a NAT, relay or tunnel is between"
            found.append(Way("tcp", address, answer.holds_unproven, note))
    # Whoever forwards is to see nothing, whatever policies say.
    for method, name, place in hints:
        match method:
            case "gateway":
                note = f"through {name}, if its policy allows the tunnel"
                found.append(Way(method, place, "encrypted", note))
            case "command":
                found.append(Way(method, place, "encrypted", f"by running {name}"))
            case _:
                note = "as the site file says"
                found.append(Way(method, place, answer.holds_unproven or answer.holds, note))
    return found


def _show(arguments: argparse.Namespace) -> int:
    while True:
        nodes = running_nodes()
        if arguments.watch and not arguments.json and sys.stdout.isatty():
            # Home, and clear what is below.
            print("\x1b[H\x1b[J", end="")
        report(arguments, "\n\n".join(map(_told, nodes)) or _NOBODY, {"nodes": nodes})
        if not arguments.watch:
            return 0
        try:
            time.sleep(_WATCH_SECONDS)
        except KeyboardInterrupt:
            return 0


def running_nodes() -> list[dict[str, Any]]:
    """Return how the nodes of this account on this host stand, by process, as `exoskel.links.Node.status` has it.

    The sockets of processes that were killed are removed.
    """
    host = os.uname().nodename.replace("/", "-")
    paths = run_directory().glob(f"links-{glob.escape(host)}-*.socket")
    found = [status for path in paths if (status := _status(path)) is not None]
    return sorted(found, key=lambda status: int(status["process"]))


def _status(path: Path) -> dict[str, Any] | None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asking:
        asking.settimeout(_ANSWER_SECONDS)
        try:
            asking.connect(str(path))
            if not _is_own(asking):
                return None
            text = _read(asking)
        except ConnectionRefusedError:
            # Nobody listens any more.
            path.unlink(missing_ok=True)
            return None
        except OSError:
            return None
    try:
        status = json.loads(text)
    except ValueError:
        return None
    return status if isinstance(status, dict) and "process" in status else None


def _is_own(asking: socket.socket) -> bool:
    """Say whether the process at the other end is of this account, or root's."""
    credentials = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    account: int = struct.unpack("3i", credentials)[1]
    return account in (0, os.geteuid())


def _read(asking: socket.socket) -> bytes:
    parts = []
    size = 0
    while part := asking.recv(1 << 16):
        parts.append(part)
        size += len(part)
        if size > _STATUS_BYTES_MAX:
            raise OSError("the answer has no end")
    return b"".join(parts)


def _told(status: dict[str, Any]) -> str:
    places = ", ".join(status["hints"])
    lines = [
        f"{status['name']}, process {status['process']}, for {duration(status['seconds'])}"
        + (f", at {places}" if places else "")
    ]
    lines += [
        f"  endpoint {row['endpoint']}: {', '.join(row['handlers']) or 'no handlers'}; at least {row['minimum']}"
        for row in status["endpoints"]
    ]
    lines += [f"  {one_line(trouble)}" for trouble in status.get("troubles", [])]
    lines += [
        f"  no link to {row['endpoint']} of {row['peer']}: {one_line(row['why'])}"
        for row in status.get("troubled_links", [])
    ]
    for session in status["sessions"]:
        lines.append(
            f"  {session['role']} {session['peer']} by {session['method']} ({session['address']}), for {duration(session['seconds'])}"
        )
        lines += [f"    {_told_link(link)}" for link in session["links"]]
    return "\n".join(lines)


def _told_link(link: dict[str, Any]) -> str:
    whose = "to its" if link["opened_here"] else "from it to our"
    raised = f" (raised by {_RAISED_BY[link['raised_by']]})" if link["raised"] else ""
    given = ", given by a rule" if link["by_rule"] else ""
    return (
        f"{whose} {link['endpoint']}{given}: {link['protection']}{raised}; "
        f"{_counted(link['messages_sent'], 'message')}, {_counted(link['bytes_sent'], 'byte')} sent; "
        f"{_counted(link['messages_received'], 'message')}, {_counted(link['bytes_received'], 'byte')} received; "
        f"for {duration(link['seconds'])}; policy: {link['rule']}"
    )


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _explain(arguments: argparse.Namespace) -> int:
    from .. import _core
    from ..link_arguments import checked_name

    for node in (arguments.from_, arguments.to):
        _check_node(node)
    try:
        checked_name("endpoint", arguments.endpoint)
    except ValueError as error:
        raise UsageError(*error.args) from None
    link = (arguments.from_, arguments.to, arguments.endpoint)
    answer = explained(
        arguments.policy, arguments.other, lambda text: _core.policy_explain_link(text, *link)
    )
    hints = (
        _core.site_ways(arguments.site, _name(arguments.from_), _name(arguments.to))
        if arguments.site
        else []
    )
    found = ways(arguments.from_, arguments.to, answer, hints)
    lines = [
        f"link from {arguments.from_} to the endpoint {arguments.endpoint} of {arguments.to}: {answer.holds}",
        *answer.lines,
        *(f"  way: {way.method} to {way.to}, {way.note}: {way.protection}" for way in found),
    ]
    if not found:
        lines.append(
            f"  way: none is known, as nothing says where {arguments.to} is: give {arguments.to}@ADDRESS, or --site"
        )
    data = {
        "from": arguments.from_,
        "to": arguments.to,
        "endpoint": arguments.endpoint,
        **answer.data,
        "ways": [asdict(way) for way in found],
    }
    # How results are read is the business of managers and workers.
    del data["results"]
    report(arguments, "\n".join(lines), data)
    return 0


def _check_node(node: str) -> None:
    """Refuse a name that somebody has meant as an address."""
    if _address(node) is None and _LIKE_AN_ADDRESS.fullmatch(node.rpartition("@")[2]):
        raise UsageError(
            f"got {node}, expected NAME@ADDRESS, a name or an address; addresses are of IPv4 or IPv6 and have no port"
        )


def _name(node: str) -> str:
    """Return the name of ``NAME@ADDRESS``."""
    return node.rpartition("@")[0] or node if _address(node) else node


def _address(node: str) -> str | None:
    """Return the address of ``NAME@ADDRESS`` or ``ADDRESS``; None for a name alone, and for a domain."""
    address = node.rpartition("@")[2].removeprefix("[").removesuffix("]")
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return None
