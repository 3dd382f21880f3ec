r"""A TLS server that lets grid users in: TCP in, a socket and a proven `Peer` out.

The handshake, the verdict on the client's certificates, the limits, the metrics and the audit trail are those of the Rust acceptor, on
threads of its own; a handler only sees connections whose clients have proved who they are::

    from exoskel import service

    def handler(connection, peer):
        connection.sendall(f"hello {peer.dn}\n".encode())

    service.serve(handler, listen="[::]:8443")          # until Ctrl-C

    with service.Server(handler, listen="127.0.0.1:0") as server:
        print(server.address)
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from . import _core
from . import identity as grid
from .identity import Identity, Peer

__all__ = ["Connection", "Handler", "Identity", "Peer", "Server", "options", "serve"]

_log = logging.getLogger(__name__)

# How long handlers may take to notice that their connections have ended, when the server stops.
_PATIENCE_SECONDS = 1.0
_THREADS = 16


class Connection(socket.socket):
    """A connection with a client, in clear: what is sent here is encrypted on its way.

    It is a Unix socket of this process, so everything that works on sockets works on it: ``makefile``, ``select``, ``asyncio``,
    ``http.server``. It ends when the client's does, and when the client's identity is no longer good.
    """

    client_address: str
    """Where the client's packets come from, ``HOST:PORT``."""

    def makefile(self, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        """Return a file object, as ``socket.socket.makefile`` does.

        Parameters
        ----------
        mode : str
            ``"r"``, ``"w"``, ``"rb"``, ``"wb"`` or ``"rwb"``.
        *arguments, **options : Any
            As for ``socket.socket.makefile``.

        Returns
        -------
        file object

        Raises
        ------
        ValueError
            If one text file is to read and write. Python's text files forget what they have read ahead when something is written, so
            lines would be lost.
        """
        if "b" not in mode and {"r", "w"} <= set(mode):
            raise ValueError(
                f"got mode {mode!r}: a text file that reads and writes a connection loses lines; "
                'expected two files, makefile("r") and makefile("w"), or sendall to write'
            )
        return super().makefile(mode, *arguments, **options)  # type: ignore[call-overload]


Handler = Callable[[Connection, Peer], object]


class Server:
    """A server while it runs, from its making to `close`; a context manager closes it.

    Parameters
    ----------
    handler : callable
        Called with a `Connection` and the client as a `Peer`, on a thread of the server's. The connection is closed when it returns; an
        exception is logged and costs this connection only.
    listen : str
        Address and port in numbers: ``"[::]:8443"``; port 0 takes any free one.
    certificate, key : path, optional
        The host certificate with its intermediates, and its key, which only its owner may read. By default those of
        ``/etc/grid-security``.
    trust_anchors, vomsdir : path, optional
        Whom to trust; by default ``X509_CERT_DIR`` and ``X509_VOMS_DIR``, else the directories of ``/etc/grid-security``.
    policy : path, optional
        A policy file: its rules for the action ``connect`` say who may come in. Everybody with a good identity without one. Ask
        ``peer.may(action)`` for other actions; without a policy it allows none.
    threads : int
        How many handlers run at once. More connections wait.
    limits : mapping, optional
        The keys of ``[limits]`` in the configuration of a service, ``connections_max`` for example.
    **more : Any
        Any other of `options`.

    Raises
    ------
    OSError
        If it can't listen, or a directory can't be read.
    ValueError
        If an option can't be used; `CredentialError` if it is the host certificate, `PolicyError` if it is the policy.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        threads: int = _THREADS,
        **more: Any,
    ) -> None:
        if threads < 1:
            raise ValueError(f"got {threads} threads, expected at least 1")
        # Handlers are cut off when the server stops; that takes as long as they do to notice.
        limits = {"shutdown_seconds": 1, **(more.pop("limits", None) or {})}
        self._handler = handler
        self._acceptor = _core.Acceptor(options(limits=limits, **more))
        self._threads = [
            threading.Thread(target=self._take, name=f"exoskel-handler-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def address(self) -> str:
        """Where it listens, ``HOST:PORT``."""
        return self._acceptor.address

    def reload(self) -> list[str]:
        """Read trust, rules and host certificate again now, and end the connections of clients who are no longer good.

        Returns
        -------
        list of str
            What could not be read, and what counts in its place. This is logged too, with what has changed and what now refuses people
            that nobody may have meant, a stale revocation list for example.
        """
        faults, changes, warnings = self._acceptor.reload()
        for change in changes:
            _log.info("reloaded: %s", change)
        for fault in faults:
            _log.error("%s", fault)
        for warning in warnings:
            _log.warning("%s", warning)
        return faults

    def wait(self) -> None:
        """Wait until the server is closed by another thread, or until Ctrl-C."""
        for thread in self._threads:
            while thread.is_alive():
                # A wait without end would not see the signal on every platform.
                thread.join(0.5)

    def close(self) -> None:
        """Stop accepting, end all connections, and wait for the handlers.

        A handler that computes goes on until it next touches its connection; after a second it is left behind, on a thread that doesn't
        keep the process from ending.
        """
        self._acceptor.close()
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Self:
        """Return the server, which runs already."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close it."""
        self.close()

    def _take(self) -> None:
        while (accepted := self._acceptor.accept()) is not None:
            descriptor, fields, address, rights = accepted
            with Connection(fileno=descriptor) as connection:
                connection.client_address = address
                try:
                    more = {"account": rights.account, "reason_against": rights.refusal}
                    self._handler(connection, Peer.of({**fields, **more}))
                except (BrokenPipeError, ConnectionResetError):
                    # The client has gone, which is its right.
                    _log.debug("a client left in the middle of its connection")
                except Exception:
                    _log.exception("the handler of a connection failed")
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)


def serve(handler: Handler, **options: Any) -> None:
    """Serve until Ctrl-C; see `Server` for the parameters.

    Parameters
    ----------
    handler : callable
        Called with a `Connection` and the client as a `Peer`.
    **options : Any
        Those of `Server`.
    """
    with Server(handler, **options) as server:
        _log.info("listening on %s", server.address)
        with contextlib.suppress(KeyboardInterrupt):
            server.wait()


def options(
    *,
    configuration: str | os.PathLike[str] | None = None,
    listen: str | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    trust_anchors: str | os.PathLike[str] | None = None,
    vomsdir: str | os.PathLike[str] | None = None,
    trust_interval: int | None = None,
    policy: str | os.PathLike[str] | None = None,
    audit: str | None = None,
    access_log: str | None = None,
    refusals: str | None = None,
    monitor: str | None = None,
    upstream: str | None = None,
    secret: str | os.PathLike[str] | None = None,
    chain: bool | None = None,
    judgement: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Gather what a service is told. What is not given keeps the configuration file's value, or the default.

    Parameters
    ----------
    configuration : path, optional
        A configuration file.
    listen, certificate, key, trust_anchors, vomsdir, policy, limits
        As for `Server`.
    trust_interval : int, optional
        Seconds between two looks at the trust directories.
    audit : str, optional
        Where decisions are written: ``"stderr"``, ``"none"``, or a file.
    access_log : str, optional
        Where a front writes its requests: ``"none"`` (default), ``"stderr"``, or a file.
    refusals : str, optional
        How a front refuses whom the policy refuses: ``"http"`` (default) answers with 403 and the reason, ``"tls"`` ends the handshake
        with an alert.
    monitor : str, optional
        Where metrics and health are served, without TLS.
    upstream : str, optional
        The HTTP server behind a front: ``unix:/path`` or ``tcp://127.0.0.1:PORT``.
    secret : path, optional
        The file with the secret that a front shares with that server.
    chain : bool, optional
        Whether the front sends the whole chain.
    judgement : mapping, optional
        The rules by which chains are judged.

    Returns
    -------
    dict
        As the extension module takes it.
    """
    if configuration is None:
        trust_anchors = trust_anchors or grid.trust_anchors()
        vomsdir = vomsdir or grid.vomsdir()
    return {
        "configuration": configuration,
        "listen": listen,
        "certificate": certificate,
        "key": key,
        "trust_anchors": trust_anchors,
        "vomsdir": vomsdir,
        "trust_interval": trust_interval,
        "policy": policy,
        "audit": audit,
        "access_log": access_log,
        "refusals": refusals,
        "monitor": monitor,
        "upstream": upstream,
        "secret": secret,
        "chain": chain,
        "judgement": None if judgement is None else dict(judgement),
        "limits": None if limits is None else json.dumps(dict(limits)),
    }
