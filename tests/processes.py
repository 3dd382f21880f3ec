"""Processes as tests look at them, and conditions that come about by themselves."""

import time
from collections.abc import Callable
from pathlib import Path


def eventually(holds: Callable[[], bool], seconds: float = 60.0) -> bool:
    """Wait until a condition holds; say whether it came to that."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def gone(process: int) -> bool:
    """Say whether a process has ended; one that nobody has waited for yet counts as ended."""
    try:
        with open(f"/proc/{process}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def children(parent: int) -> list[int]:
    """List the processes that a process has started, by any of its threads, and that it has not waited for.

    Each process is asked for its parent: a thread's list in `/proc` goes with the thread, and leaves others out while one of them ends.
    """
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            _, _, tail = (entry / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):  # it ended while we looked
            continue
        if int(tail.split()[1]) == parent:
            found.append(int(entry.name))
    return sorted(found)


def zygotes_of(supervisor: int) -> list[int]:
    """List what forks the slots of a worker."""
    return [child for child in children(supervisor) if name_of(child) == "exoskel zygote"]


def slots_of(supervisor: int) -> list[int]:
    """List the slots of a worker: its children, without the one that forks them."""
    return [child for child in children(supervisor) if name_of(child).startswith("exoskel slot")]


def signers_of(supervisor: int) -> list[int]:
    """List what signs for the slots of a worker."""
    return [child for child in children(supervisor) if name_of(child) == "exoskel signer"]


def name_of(process: int) -> str:
    """Give the name of a process; none if it has ended."""
    try:
        with open(f"/proc/{process}/comm", encoding="ascii") as file:
            return file.read().removesuffix("\n")
    except (FileNotFoundError, ProcessLookupError):
        return ""
