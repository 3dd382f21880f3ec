"""Agents on the nodes of a Slurm allocation: `Slurm`."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING

from . import munge
from .errors import ProcessEndedError
from .launchers import END_SECONDS, host_name
from .peer_text import one_line

if TYPE_CHECKING:
    import io
    from collections.abc import Callable, Sequence

    from .launchers import AgentChannel

__all__ = ["NODES_MAX", "Slurm"]

# Slurm gives the step's input, a line for each node, to all of its nodes.
NODES_MAX = 1024
# How long srun may take to end a step that doesn't end by itself.
_QUIT_SECONDS = 10.0
# Of what is said, so much is kept.
_SAID_BYTES_MAX = 16 << 10
# What an agent says first, as a credential, is shorter.
_CREDENTIAL_BYTES_MAX = 64 << 10
_READ_BYTES = 64 << 10
_LABELLED = re.compile(rb"\s*(\d+): ?(.*)")
# Says on a node that the agent has ended, after all that it has said; srun itself would say so of all nodes together.
_WRAPPER = 'marker=$1; shift; "$@"; echo "$marker $?" >&2'


class Slurm:
    """Processes on nodes that Slurm gives: in the allocation that this program runs in, or in one that ``srun`` makes.

    One agent runs on each node. What lets it in travels as MUNGE credentials: encrypted, for this account alone, opened once.

    Parameters
    ----------
    nodes : int, optional
        On how many nodes; on all of the allocation, if not given, and on one where there is no allocation.
    python : str
        The Python there, which has the same version of Exoskel: by default the one that runs this.
    arguments : sequence of str
        More words for ``srun``, as ``--partition=debug`` or ``--cpus-per-task=8``.
    munge_socket : str, optional
        Where ``munged`` listens, if the cluster has a place of its own for that.
    """

    has_network = True

    def __init__(
        self,
        nodes: int | None = None,
        *,
        python: str = sys.executable,
        arguments: Sequence[str] = (),
        munge_socket: str | None = None,
    ) -> None:
        if nodes is None:
            nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", 1))
        if isinstance(nodes, bool) or not isinstance(nodes, int) or not 1 <= nodes <= NODES_MAX:
            raise ValueError(f"got nodes={nodes!r}, expected a whole number from 1 to {NODES_MAX}")
        if isinstance(arguments, str):
            raise TypeError(
                f'got arguments={arguments!r}, expected a list of words, as in ["--partition=debug"]'
            )
        self._nodes = nodes
        self._python = python
        self._arguments = list(arguments)
        self._munge_socket = munge_socket

    def launch(self) -> Sequence[AgentChannel]:
        """Start a step that has an agent on each node."""
        # Whoever waits for an allocation wants to know before whether it will be of use.
        munge.sealed(b"", self._munge_socket)
        marker = f"exoskel-agent-{secrets.token_hex(8)}"
        agent = [self._python, "-m", "exoskel.slurm_agent"]
        agent += [self._munge_socket] if self._munge_socket is not None else []
        words = ["srun", *self._options(), "sh", "-c", _WRAPPER, "exoskel", marker, *agent]
        return _Step(words, self._nodes, marker.encode(), self._munge_socket).channels

    def _options(self) -> list[str]:
        count = self._nodes
        options = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
        options += ["--job-name=exoskel", "--label", "--input=all", "--output=all", "--error=all"]
        # An agent has the whole of its node's share, and is no rank of anything.
        options += ["--cpu-bind=none", "--mpi=none"]
        # The end of one agent is not the others'; a single SIGINT ends what doesn't end by itself.
        options += ["--kill-on-bad-exit=0", "--wait=0", "--no-kill", "--quit-on-interrupt"]
        if "SLURM_JOB_ID" in os.environ:
            # It must not take what other steps of the allocation wait for.
            options.append("--overlap")
        return options + self._arguments

    def __repr__(self) -> str:
        """Say how many nodes."""
        return f"Slurm(nodes={self._nodes})"


class _NodeChannel:
    """The agent of one node."""

    def __init__(self, step: _Step, number: int, nodes: int) -> None:
        self._step = step
        self.host = f"node {number + 1} of {nodes} (srun)"
        self._ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.file: io.RawIOBase = self._ours.makefile("rwb", buffering=0)
        # Of what it says over the step's output.
        self.credential = b""
        self.line = b""
        self.said = b""
        self.code: int | None = None
        self.is_closed = False
        self._how = ""

    def step(self) -> str:
        """Say nothing: only Slurm knows whether it waits for nodes."""
        return ""

    def absence(self) -> ProcessEndedError:
        """Let go of it, as it has said nothing, and return why."""
        how = self.close()
        text = f"the agent of {self.host} has ended before it was there, {how}"
        return ProcessEndedError(text, host=self.host)

    def leave(self) -> None:
        """Let go of the agent: Slurm ends what a step has started."""
        self.close()

    def close(self, patience: float = END_SECONDS) -> str:
        """Let go of the agent; the step ends with the last one."""
        if not self.is_closed:
            with contextlib.suppress(OSError):
                self._ours.shutdown(socket.SHUT_RDWR)
            self._step.leave(self, patience)
            self._how = self._step.end_of(self)
            self.file.close()
            self._ours.close()
        return self._how


class _Step:
    """A step of Slurm, and a thread that hands on what goes to and from its agents."""

    def __init__(
        self, words: Sequence[str], nodes: int, marker: bytes, munge_socket: str | None
    ) -> None:
        self._marker = marker
        self._munge_socket = munge_socket
        self._lock = threading.Lock()
        self._said = b""
        self._unsent = bytearray()
        self._is_over = False
        try:
            self._process = subprocess.Popen(
                words,
                bufsize=0,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                # Ctrl-C is for this process, which ends the agents.
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ProcessEndedError(f"can't start srun: {reason}") from None
        self.channels = [_NodeChannel(self, number, nodes) for number in range(nodes)]
        self._selector = selectors.DefaultSelector()
        self._reader = threading.Thread(target=self._serve, name="exoskel-srun", daemon=True)
        self._reader.start()

    def leave(self, channel: _NodeChannel, patience: float) -> None:
        """Do without an agent. Without the last one, wait for the end of the step."""
        with self._lock:
            channel.is_closed = True
            is_last = all(one.is_closed for one in self.channels)
        if not is_last:
            return
        try:
            # Its input has ended, which ends the agents.
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(_QUIT_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._reader.join()

    def end_of(self, channel: _NodeChannel) -> str:
        """Say how an agent has ended, and what was said last."""
        code = channel.code
        if code is None and self._is_over:
            code = self._process.wait()
        how = "it has not ended" if code is None else f"exit code {code}"
        lines = (channel.said or self._said).decode(errors="replace").strip().splitlines()
        return f"{how}: {one_line(lines[-1]) if lines else 'it has said nothing'}"

    def _serve(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        os.set_blocking(process.stdin.fileno(), False)
        with self._selector, process.stdin, process.stdout, process.stderr:
            for file, take in (
                (process.stdout, self._take_output),
                (process.stderr, self._take_error),
            ):
                self._selector.register(
                    file, selectors.EVENT_READ, _Lines(file.fileno(), take).read
                )
            for number, channel in enumerate(self.channels):
                read = partial(self._read_channel, number, channel)
                self._selector.register(channel.theirs, selectors.EVENT_READ, read)
            output = {process.stdout.fileno(), process.stderr.fileno()}
            while output & self._selector.get_map().keys():
                for ready, _ in self._selector.select():
                    if self._selector.get_map().get(ready.fd) is ready and not ready.data():
                        self._selector.unregister(ready.fileobj)
        # Before the channels' ends, which whoever reads them asks about.
        self._is_over = True
        for channel in self.channels:
            channel.theirs.close()

    def _take_output(self, line: bytes) -> None:
        """Take a line of an agent's first words: a part of a credential."""
        labelled = _LABELLED.fullmatch(line)
        if labelled is None or int(labelled[1]) >= len(self.channels):
            return
        channel = self.channels[int(labelled[1])]
        if len(channel.credential) < _CREDENTIAL_BYTES_MAX:
            channel.credential += labelled[2].strip()
        if channel.credential.startswith(munge.BEGIN) and labelled[2].endswith(munge.END):
            credential, channel.credential = channel.credential, b""
            self._let_speak(channel, credential)

    def _let_speak(self, channel: _NodeChannel, credential: bytes) -> None:
        try:
            said = json.loads(munge.opened(credential, self._munge_socket))
            channel.host, line = host_name(said["node"]), said["said"].encode()
        except (ValueError, TypeError, KeyError, AttributeError, ProcessEndedError) as error:
            self._finish(channel, None, str(error).encode())
            return
        with contextlib.suppress(OSError):
            channel.theirs.send(line)

    def _take_error(self, line: bytes) -> None:
        """Take a line that an agent, one of its processes or srun says."""
        labelled = _LABELLED.fullmatch(line)
        if labelled is None or int(labelled[1]) >= len(self.channels):
            self._said = (self._said + line + b"\n")[-_SAID_BYTES_MAX:]
        else:
            channel, line = self.channels[int(labelled[1])], labelled[2]
            marker, _, code = line.partition(b" ")
            if marker == self._marker:
                self._finish(channel, int(code) if code.isdigit() else None, b"")
                return
            channel.said = (channel.said + line + b"\n")[-_SAID_BYTES_MAX:]
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(line.decode(errors="replace") + "\n")
            sys.stderr.flush()

    def _finish(self, channel: _NodeChannel, code: int | None, text: bytes) -> None:
        """End the channel of an agent that has ended, or that won't be heard."""
        channel.code = code
        channel.said += text
        with contextlib.suppress(OSError):
            channel.theirs.shutdown(socket.SHUT_RDWR)

    def _read_channel(self, number: int, channel: _NodeChannel) -> bool:
        """Hand on what is told to an agent. Return whether it may be told more."""
        try:
            part = channel.theirs.recv(_READ_BYTES)
        except OSError:
            part = b""
        channel.line += part
        *lines, channel.line = channel.line.split(b"\n")
        for line in lines:
            try:
                credential = munge.sealed(line, self._munge_socket)
            except ProcessEndedError as error:
                self._finish(channel, None, str(error).encode())
                return True
            self._send(b"%d %s\n" % (number, credential))
        if not part:
            self._left(channel)
        return bool(part)

    def _left(self, channel: _NodeChannel) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        its = {one.theirs.fileno() for one in self.channels if one is not channel}
        if not its & self._selector.get_map().keys() and not stdin.closed:
            with contextlib.suppress(KeyError):
                self._selector.unregister(stdin)
            stdin.close()

    def _send(self, line: bytes) -> None:
        stdin = self._process.stdin
        assert stdin is not None
        if not self._unsent and not stdin.closed:
            self._selector.register(stdin, selectors.EVENT_WRITE, self._write)
        self._unsent += line

    def _write(self) -> bool:
        stdin = self._process.stdin
        assert stdin is not None
        try:
            count = os.write(stdin.fileno(), self._unsent[:_READ_BYTES])
        except BlockingIOError:
            return True
        except OSError:
            count = len(self._unsent)
        del self._unsent[:count]
        return bool(self._unsent)


class _Lines:
    """What comes line by line over a descriptor."""

    def __init__(self, descriptor: int, take: Callable[[bytes], None]) -> None:
        self._descriptor = descriptor
        self._take = take
        self._begun = b""

    def read(self) -> bool:
        """Take what is there. Return whether more may come."""
        part = os.read(self._descriptor, _READ_BYTES)
        *lines, self._begun = (self._begun + part).split(b"\n")
        if (not part or len(self._begun) > _READ_BYTES) and self._begun:
            lines.append(self._begun)
            self._begun = b""
        for line in lines:
            self._take(line)
        return bool(part)
