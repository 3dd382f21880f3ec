"""How a job's agent comes to a host. Once it is there, all hosts are alike."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Protocol

from .errors import ProcessEndedError
from .job_output import LinePrinter
from .peer_text import one_line
from .ssh_commands import SSH, hint_of, python_words

if TYPE_CHECKING:
    import io
    from collections.abc import Sequence

__all__ = ["AgentChannel", "Launcher", "Local", "Ssh", "host_name", "own_host"]

# How long an agent may take to end what it has started.
END_SECONDS = 10.0
# Of what an agent says, so much is kept.
_SAID_BYTES_MAX = 16 << 10
_READ_BYTES = 64 << 10
# How long what it has said last may be on its way.
_READER_SECONDS = 1.0


class AgentChannel(Protocol):
    """What an agent was started with: it ends with it."""

    host: str
    file: io.RawIOBase

    def step(self) -> str:
        """Say what is being waited for, until it is there; nothing if that is all one can know."""

    def absence(self) -> ProcessEndedError:
        """End it, as it has said nothing, and return why."""

    def close(self, patience: float = END_SECONDS) -> str:
        """End the agent and all that it has started, and wait for that. Return how it has ended, and what it has said last."""

    def leave(self) -> None:
        """Leave the agent of a detached job alone. Who reads the file sees its end, and closes it."""


class Launcher(Protocol):
    """Brings agents to hosts."""

    #: Whether processes must reach each other over a network.
    has_network: bool

    def launch(self) -> Sequence[AgentChannel]:
        """Start an agent on each host."""


class Local:
    """Processes on this machine, by an agent that is a child of this process."""

    has_network = False
    _more: tuple[str, ...] = ()

    def launch(self) -> Sequence[AgentChannel]:
        """Start the agent."""
        words = [sys.executable, "-m", "exoskel.agent_program", *self._more]
        return [_StartedAgent(own_host(), words, is_here=True)]

    def detached(self) -> Launcher:
        """Return one whose processes go on without the creator of their job."""
        return _detached(self)

    def __repr__(self) -> str:
        """Say what it is."""
        return "Local()"


class Ssh:
    """Processes on hosts that OpenSSH leads to: no credential, authority or daemon is needed there, only Exoskel.

    The agent's certificate and all that starts it go over the connection that ``ssh`` makes; links go over TCP, from each host to each.

    Parameters
    ----------
    hosts : sequence of str
        As ``ssh`` knows them: ``lab1``, ``user@lab1``, or a name of its configuration.
    python : str
        The Python there, which has the same version of Exoskel; ``~/`` before it stands for the home there.
    command : sequence of str
        What comes before the host's name.
    """

    has_network = True
    _more: tuple[str, ...] = ()

    def __init__(
        self,
        hosts: Sequence[str],
        *,
        python: str = "python3",
        command: Sequence[str] = SSH,
    ) -> None:
        if isinstance(hosts, str) or not hosts:
            raise TypeError(
                f'got hosts={hosts!r}, expected a list of names, as in ["lab1", "lab2"]'
            )
        for host in hosts:
            if not isinstance(host, str) or not host or host.startswith("-"):
                raise ValueError(f"got the host {host!r}, expected a name as ssh takes it")
        if isinstance(command, str):
            raise TypeError(
                f'got command={command!r}, expected a list of words, as in ["ssh", "-p", "2222"]'
            )
        self._hosts = list(hosts)
        self._python = python
        self._command = list(command)

    def launch(self) -> Sequence[AgentChannel]:
        """Start the agents, all at once."""
        options = ["-m", "exoskel.agent_program", *self._more, "--stdio"]
        words = python_words(self._python, options)
        started: list[_StartedAgent] = []
        try:
            for host in self._hosts:
                command = [*self._command, host, words]
                started.append(_SshAgent(host_name(host), command, self._python))
        except BaseException:
            for agent in started:
                agent.close()
            raise
        return started

    def detached(self) -> Launcher:
        """Return one whose processes go on without the creator of their job."""
        return _detached(self)

    def __repr__(self) -> str:
        """Say which hosts."""
        return f"Ssh({self._hosts!r})"


def _detached(launcher: Local | Ssh) -> Local | Ssh:
    same = copy.copy(launcher)
    same._more = ("--detach",)
    return same


class _StartedAgent:
    """An agent that a command of this machine has started: over a socket of its own, or over its input and output."""

    def __init__(self, host: str, words: Sequence[str], *, is_here: bool) -> None:
        self.host = host
        self._said = b""
        self._has_left = False
        self._is_alone = is_here
        ours, theirs = socket.socketpair()
        with theirs:
            number = theirs.fileno()
            try:
                self._process = subprocess.Popen(
                    [*words, str(number)] if is_here else words,
                    stdin=subprocess.DEVNULL if is_here else number,
                    stdout=None if is_here else number,
                    stderr=subprocess.PIPE,
                    pass_fds=[number] if is_here else [],
                    # Ctrl-C is for this process, which ends the agent.
                    start_new_session=True,
                )
            except (OSError, ValueError) as error:
                ours.close()
                reason = error.strerror if isinstance(error, OSError) else str(error)
                raise ProcessEndedError(
                    f"can't start {words[0]} for {host}: {reason}", host=host
                ) from None
        self._socket = ours
        self.file: io.RawIOBase = ours.makefile("rwb", buffering=0)
        self._reader = threading.Thread(
            target=self._read, name=f"exoskel-agent-{host}", daemon=True
        )
        self._reader.start()

    def step(self) -> str:
        return ""

    def absence(self) -> ProcessEndedError:
        code, last = self._ended(END_SECONDS)
        text = f"the agent of {self.host} has ended before it was there, {_how(code, last)}{self._hint(code, last)}"
        return ProcessEndedError(text, host=self.host)

    def _hint(self, _code: int, _last: str) -> str:
        return ""

    def leave(self) -> None:
        # Who reads it sees its end. Who reads what it says waits for it, if this program goes on so long.
        self._has_left = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        # It ends with the file.
        self._socket.close()

    def close(self, patience: float = END_SECONDS) -> str:
        return _how(*self._ended(patience))

    def _ended(self, patience: float) -> tuple[int, str]:
        """End it, and return its exit code and what was said last."""
        # Who reads it sees its end.
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            code = self._process.wait(patience)
        except subprocess.TimeoutExpired:
            # Its zygote and their processes end with it.
            os.killpg(self._process.pid, signal.SIGKILL)
            code = self._process.wait()
        # What has left its session may still have the pipe.
        self._reader.join(_READER_SECONDS)
        self.file.close()
        self._socket.close()
        lines = self._said.decode(errors="replace").strip().splitlines()
        return code, lines[-1] if lines else "it has said nothing"

    def _read(self) -> None:
        """Hand on what the agent and its processes say, and keep the end of it."""
        assert self._process.stderr is not None
        printer = LinePrinter(is_alone=self._is_alone)
        with self._process.stderr as said:
            while part := os.read(said.fileno(), _READ_BYTES):
                self._said = (self._said + part)[-_SAID_BYTES_MAX:]
                printer.take(part)
        printer.finish()
        if self._has_left:
            self._process.wait()


class _SshAgent(_StartedAgent):
    """An agent that `ssh` has started."""

    def __init__(self, host: str, words: Sequence[str], python: str) -> None:
        self._python = python
        super().__init__(host, words, is_here=False)

    def _hint(self, code: int, last: str) -> str:
        return hint_of(code, last, self._python, "Ssh(python=)")


def _how(code: int, last: str) -> str:
    return f"exit code {code}: {one_line(last)}"


def host_name(place: str) -> str:
    """Return the name of a host as it can stand in a certificate; of ``user@host`` that of the host."""
    return re.sub(r"[^a-z0-9.-]", "-", place.rpartition("@")[2].lower()).strip("-.") or "localhost"


def own_host() -> str:
    """Return this machine's name, as it can stand in a certificate."""
    return host_name(os.uname().nodename)
