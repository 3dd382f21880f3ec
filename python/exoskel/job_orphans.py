"""What is left of a job whose agent and zygote were ended at the same moment, without a word to their processes.

The kernel ends the processes themselves then, but not what those have started and what has left their sessions. The next agent of the account
finds that: programs by a mark in their environment, and processes that were only forked by their name.

Numbers of processes mean something within their PID namespace only, and a container has one of its own. So what is named by such a number has
the namespace in its name as well, and what is in another namespace is left to the agents there.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "MARK",
    "begun",
    "end_orphans",
    "has_ended",
    "named",
    "namespace",
    "number_in",
    "opened",
    "own_mark",
]

# The variable of the environment that says from where something comes; `net/descendants.rs` has the same for slots.
MARK = "EXOSKEL_STARTED_BY"
_AGENT = "agent-"
# Names of processes, as the kernel cuts them.
_PROCESS, _ZYGOTE = "exoskel process", "exoskel zygote"
# Processes that start others faster than they are ended are given up after this time.
_ENDING_SECONDS = 1.0
# Parents of parents that are looked at.
_ANCESTORS_MAX = 1024
# With dots, as versions that knew no namespaces would take this for names of their own otherwise.
_NAMED = re.compile(r"(\d+)\.(\d+)\.(\d+)")


def namespace() -> int:
    """Return what tells the PID namespace of this process from all others on the host; 0 if the kernel doesn't say it."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def named() -> str:
    """Return what tells this process from all others of the host, and from those that will have its number: its namespace, number and start."""
    return f"{namespace()}.{os.getpid()}.{begun('self')}"


def has_ended(name: str) -> bool:
    """Say whether a process has ended that `named` itself so. Nothing is known of one in another namespace."""
    found = _NAMED.fullmatch(name)
    if found is None or int(found[1]) != namespace():
        return False
    return _is_shown("self") and begun(int(found[2])) != found[3]


def number_in(name: str) -> int | None:
    """Return the number that a process which `named` itself so has, or had, in its namespace; None if that is no such name."""
    found = _NAMED.fullmatch(name)
    return None if found is None else int(found[2])


def opened(name: str) -> int | None:
    """Open a process that `named` itself so. As long as it is open, nobody else gets its number.

    Returns
    -------
    int, optional
        A descriptor of the process, to be closed; None if it has ended or is in another namespace.
    """
    found = _NAMED.fullmatch(name)
    if found is None or int(found[1]) != namespace():
        return None
    number = int(found[2])
    try:
        process = os.pidfd_open(number)
    except OSError as error:
        # The number may be that of a thread by now.
        if error.errno in (errno.ESRCH, errno.ENOENT, errno.EINVAL):
            return None
        raise
    # Another one may have had the number by then.
    if begun(number) == found[3]:
        return process
    os.close(process)
    return None


def begun(process: int | str) -> str | None:
    """Return when a process has begun, in the kernel's words; None if there is none that runs."""
    words = _stat(process)
    # One that has ended counts no more, whenever somebody takes note of that.
    return None if words is None or words[0] in ("Z", "X") else words[19]


def own_mark() -> str:
    """Return the mark of what this process starts as an agent."""
    return f"{_AGENT}{named()}"


def end_orphans() -> None:
    """End what agents of this account that have ended have left in this process's PID namespace."""
    if not _is_shown("self"):
        # What the kernel shows here are the processes of another namespace.
        return
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
    if begun(process) is None or process == os.getpid() or not _is_shown(process):
        return False
    agent = _agent_of(process)
    if agent is not None:
        return has_ended(agent)
    return _name(process) == _PROCESS and not any(
        _name(one) == _ZYGOTE for one in _ancestors(process)
    )


def _is_shown(process: int | str) -> bool:
    """Say whether a process is in the PID namespace whose processes the kernel shows here: one of a namespace below has a number in each."""
    try:
        text = Path(f"/proc/{process}/status").read_text(errors="replace")
    except OSError:
        return False
    found = re.search(r"^NSpid:(.*)$", text, re.MULTILINE)
    return found is not None and len(found[1].split()) == 1


def _agent_of(process: int) -> str | None:
    """Return which agent a process comes from, by its mark."""
    try:
        environment = Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return None
    for variable in environment.split(b"\0"):
        name, _, value = variable.decode(errors="replace").partition("=")
        agent = value.removeprefix(_AGENT)
        if name == MARK and value.startswith(_AGENT) and _NAMED.fullmatch(agent):
            return agent
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


def _stat(process: int | str) -> list[str] | None:
    """Return what the kernel says of a process, from its state on."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The name before it may hold anything, brackets included.
    return text.rpartition(")")[2].split()
