"""How a job's agent comes to a host. Once it is there, all hosts are alike."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import io
    from collections.abc import Sequence

__all__ = ["AgentChannel", "Launcher", "Local", "own_host"]

# How long an agent may take to end what it has started.
_END_SECONDS = 10.0


class AgentChannel(Protocol):
    """What an agent was started with: it ends with it."""

    host: str
    file: io.RawIOBase

    def close(self) -> None:
        """End the agent and all that it has started, and wait for that."""


class Launcher(Protocol):
    """Brings agents to hosts."""

    def launch(self) -> Sequence[AgentChannel]:
        """Start an agent on each host."""


class Local:
    """Processes on this machine, by an agent that is a child of this process."""

    def launch(self) -> Sequence[AgentChannel]:
        """Start the agent."""
        return [_LocalAgent()]

    def __repr__(self) -> str:
        """Say what it is."""
        return "Local()"


class _LocalAgent:
    def __init__(self) -> None:
        self.host = own_host()
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "exoskel.agent", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                # Ctrl-C is for this process, which ends the agent.
                start_new_session=True,
            )
        self._socket = ours
        self.file: io.RawIOBase = ours.makefile("rwb", buffering=0)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self.file.close()
        self._socket.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            # Its zygote and their processes end with it.
            self._process.kill()
            self._process.wait()


def own_host() -> str:
    """Return this machine's name, as it can stand in a certificate."""
    name = re.sub(r"[^a-z0-9.-]", "-", os.uname().nodename.lower()).strip("-.")
    return name or "localhost"
