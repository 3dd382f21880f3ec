"""How an agent connects for processes that may not: those in a sandbox with ``network="links"``.

Such a process asks over a socket of its own for each connection, with the address and one end of a pair of sockets. The answer goes into that
pair: what is connected, or why nothing is. It is connected with its siblings alone, where they have listened before they ran foreign code:
what a startpoint says may have been written by anybody.
"""

from __future__ import annotations

import contextlib
import errno
import ipaddress
import os
import selectors
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["ConnectionMaker", "is_address", "is_of_network", "is_of_this_host"]

# An address, as processes write it.
_ADDRESS_BYTES_MAX = 1024
# Connections that one process waits for.
_UNDER_WAY_MAX = 64
_UNIX = "unix:"
_NO_SIBLING = "its sandbox lets this process connect to its siblings alone"


class ConnectionMaker:
    """Makes the connections that one process asks for.

    Parameters
    ----------
    asked : socket.socket
        Over it, the process asks. It keeps messages apart.
    places : collection of str
        Where the process may be connected: ``unix:PATH`` or ``ADDRESS:PORT``.
    selector : selectors.BaseSelector
        It calls what stands beside a descriptor with what has happened.
    reaches_own_host : bool
        Whether addresses of this host may be among these places. Not where the host's policy confines the process: whoever has made the job
        has said where its processes are.
    """

    def __init__(
        self,
        asked: socket.socket,
        places: Collection[str],
        selector: selectors.BaseSelector,
        *,
        reaches_own_host: bool = True,
    ) -> None:
        self._reaches_own_host = reaches_own_host
        self._asked = asked
        self._places = places
        self._selector = selector
        self._under_way: dict[socket.socket, socket.socket] = {}
        selector.register(asked, selectors.EVENT_READ, self._hear)

    def close(self) -> None:
        """Make no connections any more."""
        for connection, reply in self._under_way.items():
            self._selector.unregister(connection)
            connection.close()
            reply.close()
        self._under_way.clear()
        if self._asked.fileno() >= 0:
            self._selector.unregister(self._asked)
            self._asked.close()

    def _hear(self, _events: int) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(
                self._asked, _ADDRESS_BYTES_MAX, 1, socket.MSG_DONTWAIT
            )
        except BlockingIOError:
            return
        except OSError:
            message, descriptors = b"", []
        for descriptor in descriptors:
            try:
                reply = socket.socket(fileno=descriptor)
            except OSError:
                # Whatever it is, it is no socket.
                os.close(descriptor)
                continue
            self._connect(message.decode(errors="replace"), reply)
        if not message:
            self.close()

    def _connect(self, address: str, reply: socket.socket) -> None:
        reply.setblocking(False)
        if address not in self._places:
            _answer(reply, _NO_SIBLING)
        elif len(self._under_way) >= _UNDER_WAY_MAX:
            _answer(reply, f"it waits for {_UNDER_WAY_MAX} connections already")
        else:
            try:
                self._begin(address, reply)
            except (OSError, OverflowError, ValueError) as error:
                _answer(reply, str(error))

    def _begin(self, address: str, reply: socket.socket) -> None:
        family, place = _place(address)
        is_guarded = not self._reaches_own_host and family != socket.AF_UNIX
        if is_guarded and is_of_this_host(address):
            raise ValueError("it leads to this host, where siblings have sockets in a folder")
        connection = socket.socket(family, socket.SOCK_STREAM)
        connection.setblocking(False)
        number = connection.connect_ex(place)
        if number == errno.EINPROGRESS:
            self._under_way[connection] = reply
            self._selector.register(
                connection, selectors.EVENT_WRITE, lambda _: self._connected(connection)
            )
            return
        with connection:
            _answer(reply, os.strerror(number) if number else connection)

    def _connected(self, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        reply = self._under_way.pop(connection)
        with connection:
            number = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            _answer(reply, os.strerror(number) if number else connection)


def _place(address: str) -> tuple[socket.AddressFamily, str | tuple[str, int]]:
    if address.startswith(_UNIX):
        return socket.AF_UNIX, address.removeprefix(_UNIX)
    host, _, port = address.rpartition(":")
    numeric = ipaddress.ip_address(host.strip("[]"))
    family = socket.AF_INET6 if numeric.version == 6 else socket.AF_INET
    return family, (str(numeric), int(port))


def is_address(address: str) -> bool:
    """Whether this is a numeric address with a port."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(host.strip("[]"))
        return port.isdecimal()
    return False


def is_of_network(address: str) -> bool:
    """Whether this is an address that leads to another host: another host's word must lead nowhere on this one that others don't get to."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(ValueError):
        numeric = ipaddress.ip_address(host.strip("[]"))
        # IPv4 in the clothes of IPv6 is IPv4.
        numeric = getattr(numeric, "ipv4_mapped", None) or numeric
        return (
            not (numeric.is_loopback or numeric.is_unspecified or numeric.is_link_local)
            and port.isdecimal()
            and 0 < int(port) < 1 << 16
        )
    return False


def is_of_this_host(address: str) -> bool:
    """Whether a numeric address is one of this host's own: what listens there may trust this host alone."""
    family, place = _place(address)
    with contextlib.suppress(OSError, OverflowError), socket.socket(family) as tried:
        tried.bind((place[0], 0))
        return True
    return False


def _answer(reply: socket.socket, what: str | socket.socket) -> None:
    # One that doesn't take its answer has none.
    with reply, contextlib.suppress(OSError):
        if isinstance(what, str):
            reply.send(what.encode())
        else:
            socket.send_fds(reply, [b"\0"], [what.fileno()])
