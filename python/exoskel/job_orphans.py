"""What is left of a job whose agent and zygote were ended at the same moment, without a word to their processes.

The kernel ends the processes themselves then, but not what those have started and what has left their sessions. The next agent of the account
finds that: programs by a mark in their environment, and processes that were only forked by their name.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MARK", "begun", "end_orphans", "own_mark"]

# The variable of the environment that says from where something comes; `net/descendants.rs` has the same for slots.
MARK = "EXOSKEL_STARTED_BY"
_AGENT = "agent-"
# Names of processes, as the kernel cuts them.
_PROCESS, _ZYGOTE = "exoskel process", "exoskel zygote"
# Processes that start others faster than they are ended are given up after this time.
_ENDING_SECONDS = 1.0
# Parents of parents that are looked at.
_ANCESTORS_MAX = 1024


def begun(process: int) -> str | None:
    """Return when a process has begun, in the kernel's words; None if there is none that runs."""
    words = _stat(process)
    # One that has ended counts no more, whenever somebody takes note of that.
    return None if words is None or words[0] in ("Z", "X") else words[19]


def own_mark() -> str:
    """Return the mark of what this process starts as an agent. Its start is in it: the number alone will be another one's."""
    return f"{_AGENT}{os.getpid()}-{begun(os.getpid())}"


def end_orphans() -> None:
    """End what agents of this account that have ended have left."""
    until = time.monotonic() + _ENDING_SECONDS
    while True:
        count = 0
        for process in _own_processes():
            count += _ended(process)
        # What one of them has started meanwhile is found by another look.
        if not count or time.monotonic() > until:
            return


def _ended(process: int) -> bool:
    """End a process if it was left. Say whether it was."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        # Its number is nobody else's as long as this is open.
        held = os.pidfd_open(process)
        try:
            if _is_orphan(process):
                signal.pidfd_send_signal(held, signal.SIGKILL)
                return True
        finally:
            os.close(held)
    return False


def _own_processes() -> Iterator[int]:
    with os.scandir("/proc") as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.name.isdecimal() and entry.stat().st_uid == os.geteuid():
                    yield int(entry.name)


def _is_orphan(process: int) -> bool:
    if begun(process) is None or process == os.getpid():
        return False
    agent = _agent_of(process)
    if agent is not None:
        number, start = agent
        return begun(number) != start
    return _name(process) == _PROCESS and not any(
        _name(one) == _ZYGOTE for one in _ancestors(process)
    )


def _agent_of(process: int) -> tuple[int, str] | None:
    """Return which agent a process comes from, by its mark: the number, and when that has begun."""
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return None
    for variable in environment.split(b"\0"):
        name, _, value = variable.decode(errors="replace").partition("=")
        number, _, start = value.removeprefix(_AGENT).partition("-")
        if name == MARK and value.startswith(_AGENT) and number.isdecimal():
            return int(number), start
    return None


def _ancestors(process: int) -> Iterator[int]:
    for _ in range(_ANCESTORS_MAX):
        words = _stat(process)
        process = 0 if words is None else int(words[1])
        if process <= 1:
            return
        yield process


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text().removesuffix("\n")
    except OSError:
        return ""


def _stat(process: int) -> list[str] | None:
    """Return what the kernel says of a process, from its state on."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name before it may hold anything, brackets included.
    return text.rpartition(")")[2].split()
