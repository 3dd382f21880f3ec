"""Where nodes are, as `exoskel.links` is told: where they listen, where others dial, and which commands lead there."""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from . import _core
from .hosts import HostAddress, UnixAddress, parse_address
from .link_arguments import checked_text, several

Command: TypeAlias = str | Sequence[str]

# Of a node that listens.
_DEFAULT_PORT = 7700
# What stands before the place of a gateway.
_GATEWAY = "gateway:"
# What people write for every address of a machine.
_EVERY_HOST = ("*", "")
# For each address that means every one of a machine's: families, and an address in another network. (These are for documentation.)
_EVERY_ADDRESS = {
    "0.0.0.0": [(socket.AF_INET, "192.0.2.1")],
    "::": [(socket.AF_INET6, "2001:db8::1"), (socket.AF_INET, "192.0.2.1")],
}
# Not a variable of a shell.
_PLACEHOLDER = re.compile(r"(?<!\$)\{\w+\}")
_PLACEHOLDERS = ("{host}", "{port}")


@dataclass(frozen=True)
class BoundBefore:
    """What a node has that must make no socket itself any more."""

    listeners: Sequence[_core.Listener]
    #: As `reached_by` returns it.
    reached_by: Mapping[str, str]
    #: The descriptor of a socket to who connects for the node; it connects nowhere without one.
    dial_fd: int | None


def listening(listen: str | Iterable[str]) -> list[HostAddress | UnixAddress]:
    """Return the addresses at which a node listens."""
    texts = several("listen", listen)
    for text in texts:
        if len(text.split()) != 1:
            raise ValueError(f"got listen={text!r}, expected HOST:PORT or unix:/PATH")
        if text.isdigit():
            raise ValueError(
                f"got listen={text!r}, expected HOST:PORT: *:{text} for every address of this machine, 127.0.0.1:{text} for this machine alone"
            )
    return [parse_address(_written_out(text), _DEFAULT_PORT) for text in texts]


def _written_out(text: str) -> str:
    """Return an address at which to listen with what ``*`` or no host at all stands for."""
    host, colon, port = text.removeprefix("tcp://").rpartition(":")
    return f"0.0.0.0{colon}{port}" if colon and host in _EVERY_HOST else text


def dialled(name: str, places: str | Iterable[str]) -> list[str]:
    """Return the places at which a node is dialled."""
    texts = several(name, places)
    for text in texts:
        if not _can_be_dialled(text):
            raise ValueError(
                f"got {name}={text!r}, expected tcp://HOST:PORT, unix:/PATH or {_GATEWAY}NAME@HOST:PORT, with brackets around an IPv6 address"
            )
    return texts


def _can_be_dialled(text: str) -> bool:
    gateway, at, place = text.removeprefix(_GATEWAY).partition("@")
    if not text.startswith(_GATEWAY):
        place = text
    elif not gateway or not at:
        return False
    if place.split() != [place]:
        return False
    try:
        # Nobody listens at port 0: it stands for none.
        address = parse_address(place, 0)
    except ValueError:
        return False
    return isinstance(address, UnixAddress) or address.port != 0


def reached_by(addresses: Iterable[HostAddress | UnixAddress]) -> dict[str, str]:
    """Return what others have to dial for addresses that mean every one of this machine's."""
    found = {}
    for address in addresses:
        if isinstance(address, HostAddress) and address.host.strip("[]") in _EVERY_ADDRESS:
            written = str(address).rpartition(":")[0]
            found[written] = _own_address(address.host.strip("[]"))
    return found


def _own_address(listening: str) -> str:
    """Return the address from which this machine sends to other networks, or else its name."""
    for family, elsewhere in _EVERY_ADDRESS[listening]:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as sender:
            # This sends nothing: it asks the routing table.
            sender.connect((elsewhere, 9))
            own = str(sender.getsockname()[0])
            return f"[{own}]" if ":" in own else own
    return socket.gethostname()


def commands(via: Command | Mapping[str, Command]) -> list[tuple[str | None, list[str]]]:
    """Return the words of commands, and to which nodes they lead."""
    if isinstance(via, Mapping):
        return [(checked_text("via", nodes), _words(command)) for nodes, command in via.items()]
    if isinstance(via, str) and not via.strip():
        raise ValueError(
            f"got via={via!r}, expected a command, such as 'ssh -W {{host}}:{{port}} login'"
        )
    return [(None, words)] if (words := _words(via)) else []


def _words(command: Command) -> list[str]:
    words = shlex.split(command) if isinstance(command, str) else several("via", command)
    for word in words:
        for placeholder in _PLACEHOLDER.findall(word):
            if placeholder not in _PLACEHOLDERS:
                raise ValueError(
                    f"got {placeholder} in a command of `via`, expected {' or '.join(_PLACEHOLDERS)}; put other braces into a script"
                )
    return words
