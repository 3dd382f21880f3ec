"""Jobs by agents that run already, each started by ``exoskel agent`` on its host: `Agents`."""

from __future__ import annotations

import contextlib
import copy
import socket
import threading
from typing import TYPE_CHECKING, Any, Self

from .agent_frames import CHANNEL, END, OUTPUT, REFUSED, read_frame
from .errors import ExoskelError, LinkError, ProcessEndedError, RefusedError
from .hosts import HostAddress, UnixAddress, read_hosts
from .job_output import LinePrinter
from .launchers import END_SECONDS, AgentChannel, host_name
from .options import PROOFS
from .peer_text import one_line

if TYPE_CHECKING:
    import io
    import os
    from collections.abc import Iterable, Mapping, Sequence

    from . import links
    from .launchers import Launcher

__all__ = ["AGENT_PORT", "ENDPOINT", "Agents", "agents_of", "place_of", "proven"]

# Where an agent listens, unless its line says another.
AGENT_PORT = 7602
# What it offers: `start` and `start_detached`, which are streams, `jobs` and `end`.
ENDPOINT = "agent"
# How long an agent may take to answer; a job's own time-out may be shorter.
_LOOKUP_SECONDS = 60.0
_READ_BYTES = 64 << 10


class Agents:
    """Processes on hosts whose agents run already: ``exoskel agent`` is a daemon there.

    The program that makes the job proves itself by its own credential, ``Job(..., credential="head.pem")``. Each host's policy says who may
    start processes there. The host proves itself by its certificate, whose name stands in those of its processes.

    Parameters
    ----------
    hosts : path or iterable of str
        A file with one ``host:port NAME`` a line, or a list of such lines. The port is 7602, and the name in the certificate that of the
        host, where a line says nothing else.
    """

    has_network = True

    def __init__(self, hosts: str | os.PathLike[str] | Iterable[str]) -> None:
        self._hosts = agents_of(hosts)
        self._proof: dict[str, Any] | None = None
        self._is_detached = False

    def proven_by(self, credential: str | os.PathLike[str], **more: Any) -> Self:
        """Return one that proves itself so; `exoskel.Job` asks for it."""
        same = copy.copy(self)
        same._proof = {"credential": credential, **more}
        return same

    def detached(self) -> Self:
        """Return one whose processes go on without the creator of their job."""
        same = copy.copy(self)
        same._is_detached = True
        return same

    def launch(self) -> Sequence[AgentChannel]:
        """Ask all agents at once."""
        if self._proof is None:
            raise ValueError(
                'got Agents(...) without a credential, expected Job(launch=Agents(...), credential="head.pem"): agents want to know who asks'
            )
        from . import links

        node = links.Node(**self._proof, live=False, patience=0.0)
        shared = _SharedNode(node, len(self._hosts))
        handler = "start_detached" if self._is_detached else "start"
        return [_AskedAgent(address, shared, handler) for address in self._hosts]

    def __repr__(self) -> str:
        """Say which hosts."""
        return f"Agents({[address.name for address in self._hosts]!r})"


def proven(launcher: Launcher, told: Mapping[str, Any]) -> Launcher:
    """Give a launcher what a program proves itself by, if it has a use for that.

    Parameters
    ----------
    launcher : Launcher
        How processes come to hosts.
    told : mapping
        Some of `PROOFS`, and ``policy``.

    Raises
    ------
    TypeError
        For something else.
    ValueError
        If the launcher has no use for it.
    """
    known = (*PROOFS, "policy")
    for name in told:
        if name not in known:
            raise TypeError(f"got {name}=, expected one of {', '.join(sorted(known))}")
    if isinstance(launcher, Agents):
        return launcher.proven_by(**told) if "credential" in told else launcher
    if told:
        raise ValueError(
            f"got {next(iter(told))}= with {launcher!r}, expected it with Agents(...) only: it needs none, as it proves itself otherwise"
        )
    return launcher


def agents_of(
    hosts: str | os.PathLike[str] | Iterable[str],
) -> list[HostAddress | UnixAddress]:
    """Return where agents are."""
    found = read_hosts(hosts, AGENT_PORT)
    for address in found:
        if host_name(address.name) != address.name.lower():
            raise ValueError(
                f"got {address.name!r} as the name of the agent at {address}, expected the name of a host, as its certificate proves it"
            )
        if isinstance(address, HostAddress) and address.options:
            raise ValueError(
                f"got {address.options[0][0]}= for the agent at {address}, expected an address and a name: exoskel up alone uses more"
            )
    return found


def place_of(address: HostAddress | UnixAddress) -> str:
    """Return where a node dials it."""
    return f"tcp://{address}" if isinstance(address, HostAddress) else str(address)


def _actions(handlers: Iterable[str]) -> str:
    return ", ".join(f"{ENDPOINT}.{handler}" for handler in handlers)


class _SharedNode:
    """The node by which a program asks all agents, which ends with the last of them."""

    def __init__(self, node: links.Node, users: int) -> None:
        self.node = node
        self._lock = threading.Lock()
        self._users = users

    def release(self) -> None:
        with self._lock:
            self._users -= 1
            is_last = self._users == 0
        if is_last:
            # Nothing is posted by it.
            with contextlib.suppress(LinkError):
                self.node.close()


class _AskedAgent:
    """An agent that the daemon of its host has started: what both say goes over a stream of a link."""

    def __init__(
        self, address: HostAddress | UnixAddress, shared: _SharedNode, handler: str
    ) -> None:
        self.host = host_name(address.name)
        self._address = address
        self._shared = shared
        self._handler = handler
        self._step = f"{address} is dialled"
        self._failure = ""
        self._end = ""
        self._stream: Any = None
        self._is_closed = False
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair()
        self.file: io.RawIOBase = self._socket.makefile("rwb", buffering=0)
        self._thread = threading.Thread(
            target=self._talk, args=[theirs], name=f"exoskel-agent-{self.host}", daemon=True
        )
        self._thread.start()

    def step(self) -> str:
        return self._step

    def absence(self) -> ProcessEndedError:
        how = self.close()
        return ProcessEndedError(
            f"the agent of {self.host} ({self._address}) has not started one for the job: {how}",
            host=self.host,
        )

    def leave(self) -> None:
        # The daemon keeps what it has started, and lets go of this.
        self.close()

    def close(self, patience: float = END_SECONDS) -> str:
        with self._lock:
            is_first, self._is_closed = not self._is_closed, True
        if is_first:
            # Who reads it sees its end, and says so to the other end.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._thread.join(patience)
            if self._thread.is_alive() and self._stream is not None:
                self._stream.abort("the job's creator has waited long enough")
            self._shared.release()
            self.file.close()
            self._socket.close()
        return self._failure or self._end or f"{self._step}, without an answer"

    def _talk(self, channel: socket.socket) -> None:
        with channel:
            try:
                self._exchange(channel)
            except (ExoskelError, ValueError, OSError) as error:
                self._failure = self._failure or f"{self._step}, and {one_line(str(error))}"
            with contextlib.suppress(OSError):
                channel.shutdown(socket.SHUT_RDWR)

    def _exchange(self, channel: socket.socket) -> None:
        node, name = self._shared.node, self._address.name
        place = place_of(self._address)
        binding = node.lookup(ENDPOINT, name=name, at=place, timeout=_LOOKUP_SECONDS)
        self._step = f"{self._handler} is asked for at {self._address}"
        given = binding.startpoint.handlers
        if given is not None and self._handler not in given:
            raise RefusedError(
                f"no rule allows it: who administers that host has to allow you the action {ENDPOINT}.{self._handler}, as it does {_actions(given)}"
            )
        self._stream = binding.stream(self._handler)
        writer = threading.Thread(target=self._write, args=[channel], daemon=True)
        writer.start()
        with contextlib.suppress(BrokenPipeError):
            self._read(channel)
        with contextlib.suppress(OSError):
            channel.shutdown(socket.SHUT_RDWR)
        writer.join()
        self._stream.close()

    def _write(self, channel: socket.socket) -> None:
        with contextlib.suppress(ExoskelError, OSError, ValueError):
            while part := channel.recv(_READ_BYTES):
                self._stream.write(part)
            self._stream.finish()

    def _read(self, channel: socket.socket) -> None:
        printer = LinePrinter()
        try:
            self._take_frames(channel, printer)
        finally:
            printer.finish()

    def _take_frames(self, channel: socket.socket, printer: LinePrinter) -> None:
        while (frame := read_frame(self._stream)) is not None:
            kind, contents = frame
            if kind == CHANNEL:
                self._step = f"what {self._handler} has begun at {self._address} is waited for"
                channel.sendall(contents)
            elif kind == OUTPUT:
                printer.take(contents)
            elif kind == REFUSED:
                self._failure = (
                    f"{self._address} refuses {self._handler}: {one_line(contents.decode())}"
                )
            elif kind == END:
                self._end = one_line(contents.decode())
