"""What an agent knows of the processes of its host, and how it shows them."""

from __future__ import annotations

import shlex
import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable, Mapping, Sequence

    from .job_dialling import ConnectionMaker
    from .job_output import Pipe

__all__ = ["ORDERED", "AgentGroup", "AgentProcess", "described", "shown_program"]

# Why processes end that have more to do, with their creator there.
ORDERED = "its job was ended on its host, as by `exoskel job end`"
# What is shown of a program's words.
_PROGRAM_CHARACTERS_MAX = 200


class AgentGroup:
    """Processes that were started together."""

    def __init__(self, number: int, program: str = "") -> None:
        self.number = number
        # What people call what they run.
        self.program = program
        # Where they listen, for those that can't connect themselves.
        self.places: set[str] = set()


class AgentProcess:
    """A process of this host, from the request that it be started to its end."""

    def __init__(
        self,
        number: int,
        told: dict[str, Any],
        group: AgentGroup,
        context: socket.socket,
        pipes: Sequence[Pipe] = (),
        pidfd: int | None = None,
    ) -> None:
        self.number = number
        self.begun = time.time()
        self.told = told
        self.group = group
        self.context = context
        # Where it is held with others, in a sandbox that does so.
        self.control_groups: Sequence[str] = ()
        # Over it, one in a sandbox asks for connections.
        self.connecting: ConnectionMaker | None = None
        # What holds it, in a sandbox, as it has said before it has run anything.
        self.confined: list[str] | None = None
        # Its standard error, and its output if that has its rank before its lines.
        self.pipes = pipes
        # Of one that the zygote has not started.
        self.pidfd = pidfd
        self.said = b""
        self.unsent: deque[bytes | memoryview] = deque()
        # Siblings that it has asked for.
        self.asked: set[int] = set()
        # From when on the creator is told that it waits for them.
        self.waits_at = 0.0
        # And that its task waits for posts of any of them, and whether it does.
        self.idles_at = 0.0
        self.is_idle = False
        # And that a task of it has failed.
        self.failed_at = 0.0
        self.key = b""
        # Whether it has been told who it is.
        self.is_joined = False
        # Where it is reached.
        self.startpoint = ""
        self.process: int | None = None


def shown_program(words: Sequence[str], told: dict[str, Any]) -> str:
    """Return what people call a program: its words, or the name of the function."""
    shown = shlex.join(words) if words else str(told.get("program", "a function"))
    return shown[:_PROGRAM_CHARACTERS_MAX]


def described(processes: Iterable[AgentProcess], ranks: Mapping[int, int]) -> dict[str, Any]:
    """Return which processes there are, by numbers with their ranks, and what they run, by those that were started together."""
    groups: dict[AgentGroup, list[AgentProcess]] = {}
    for process in processes:
        groups.setdefault(process.group, []).append(process)
    return {
        "processes": [
            {"number": one.number, "rank": ranks[one.number], "process": one.process}
            for its in groups.values()
            for one in its
        ],
        "groups": [
            {
                "program": group.program,
                "begun": min(one.begun for one in its),
                "processes": len(its),
            }
            for group, its in groups.items()
        ],
    }
