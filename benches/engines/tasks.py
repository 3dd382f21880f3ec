"""What the workers of every engine run: one module, so that nobody has a lighter task than the others."""

from __future__ import annotations

import os
import time


def noop(item: object) -> object:
    """Give the item back."""
    return item


def noop_many(items: list[object]) -> list[object]:
    """Give a hand-made chunk of items back, for engines that have no chunks of their own."""
    return [noop(item) for item in items]


def increment(item: int) -> int:
    """Add one: either stage of the pipeline, so that a stage left out shows in the result."""
    return item + 1


def echo(payload: bytes) -> bytes:
    """Give the payload back; what arrives must really leave again."""
    return payload


def slow_and_logged(task: tuple[int, float, str]) -> int:
    """Sleep, and log the start and the end: one `write` each, so that lines of two workers never mix."""
    index, seconds, log = task
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, f"start {index} {os.getpid()}\n".encode())
        time.sleep(seconds)
        os.write(descriptor, f"end {index} {os.getpid()}\n".encode())
    finally:
        os.close(descriptor)
    return index
