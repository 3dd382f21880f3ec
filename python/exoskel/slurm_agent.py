"""A job's agent on one node of a Slurm step. What it says, and what is told to it, travels as MUNGE credentials over the step's output and input."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

from . import agent_program, munge
from .errors import ProcessEndedError

if TYPE_CHECKING:
    import io

__all__ = ["NAME_VARIABLE", "main"]

# Which node of the step this is, and what the cluster calls it.
_NUMBER_VARIABLE, NAME_VARIABLE = "SLURM_PROCID", "SLURMD_NODENAME"
# They say which of the step's tasks an agent is, and nothing of the processes that it starts.
_OF_THE_TASK = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_TASK_PID", "SLURM_NTASKS")
# Slurm breaks longer lines when it labels them.
_LINE_BYTES = 512
_READ_BYTES = 64 << 10
# A credential for one agent is shorter.
_CREDENTIAL_BYTES_MAX = 64 << 10


class _Incoming:
    """The step's input, which goes to all of its nodes: of that, what is for this one."""

    def __init__(self, file: io.RawIOBase, number: str, socket: str | None) -> None:
        self._file = file
        self._number = number.encode()
        self._socket = socket

    def fileno(self) -> int:
        return self._file.fileno()

    def readline(self) -> bytes:
        """Return the line that is for this node; nothing at the end."""
        while line := self._file.readline(_CREDENTIAL_BYTES_MAX):
            number, _, credential = line.strip().partition(b" ")
            if number == self._number:
                return munge.opened(credential, self._socket)
        return b""

    def read(self, size: int = _READ_BYTES) -> bytes | None:
        return self._file.read(size)


class _Outgoing:
    """The step's output."""

    def __init__(self, file: io.RawIOBase, name: str, socket: str | None) -> None:
        self._file = file
        self._name = name
        self._socket = socket

    def fileno(self) -> int:
        return self._file.fileno()

    def write(self, line: bytes) -> int:
        said = json.dumps({"node": self._name, "said": line.decode()}).encode()
        credential = munge.sealed(said, self._socket)
        for begin in range(0, len(credential), _LINE_BYTES):
            self._file.write(credential[begin : begin + _LINE_BYTES] + b"\n")
        return len(line)


def main(socket: str | None) -> int:
    """Be the agent of this node. Return the exit code.

    Parameters
    ----------
    socket : str, optional
        Where ``munged`` listens here, if that is not where it does everywhere.
    """
    number, name = os.environ[_NUMBER_VARIABLE], os.environ[NAME_VARIABLE]
    for variable in _OF_THE_TASK:
        os.environ.pop(variable, None)
    with agent_program.standard_channel() as (incoming, outgoing):
        try:
            return agent_program.main(
                _Incoming(incoming, number, socket), _Outgoing(outgoing, name, socket)
            )
        except ProcessEndedError as error:
            print(f"exoskel: {error}", file=sys.stderr, flush=True)
            # The zygote ends with this process.
            return 1


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(main(sys.argv[1] if len(sys.argv) > 1 else None))
