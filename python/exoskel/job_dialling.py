"""How an agent connects for processes that may not: those in a sandbox with ``network="links"``.

Such a process asks over a socket of its own for each connection, with the address and one end of a pair of sockets. The answer goes into that
pair: what is connected, or why nothing is. It is connected with siblings on this host alone, at places that the agent itself has chosen: what
a startpoint says may have been written by anybody.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["connect_for"]

# An address, as processes write it.
_ADDRESS_BYTES_MAX = 1024
_UNIX = "unix:"


def connect_for(asked: socket.socket, places: Collection[str]) -> bool:
    """Answer the next request that has come over a process's socket.

    Parameters
    ----------
    asked : socket.socket
        It keeps messages apart.
    places : collection of str
        Where the process may be connected: paths of Unix sockets.

    Returns
    -------
    bool
        Whether more can come.
    """
    try:
        message, descriptors, _, _ = socket.recv_fds(
            asked, _ADDRESS_BYTES_MAX, 1, socket.MSG_DONTWAIT
        )
    except BlockingIOError:
        return True
    except OSError:
        return False
    replies = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    for reply in replies:
        # One that doesn't take its answer has none.
        with reply, contextlib.suppress(OSError):
            _answer(reply, message.decode(errors="replace"), places)
    return bool(message)


def _answer(reply: socket.socket, address: str, places: Collection[str]) -> None:
    reply.setblocking(False)
    path = address.removeprefix(_UNIX)
    if not address.startswith(_UNIX) or path not in places:
        reply.send(b"its sandbox lets this process connect to its siblings on this host alone")
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        # Nobody waits here: a listener whose queue is full is asked again by whoever wants it.
        connection.setblocking(False)
        try:
            connection.connect(path)
        except OSError as error:
            reply.send((error.strerror or str(error)).encode())
            return
        socket.send_fds(reply, [b"\0"], [connection.fileno()])
