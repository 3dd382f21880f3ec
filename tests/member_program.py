"""A process of a coupled program that a test tells what to do: ``python -m tests.member_program SOCKET PROGRAM``."""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np

import exoskel as ex

# What a capture looks for, in as many bytes as an array's row is a multiple of.
MARKER_BYTES = 64


class Process:
    """One member, whose arrays hold nothing but a marker and a number."""

    def __init__(self, keeper: str, program: str) -> None:
        self.member = ex.Member(program, rank=0, size=1, keeper=keeper)
        self.arrays: dict[str, ex.SharedArray] = {}

    def array(self, name: str, rows: int, axes: list[str]) -> None:
        """Describe an array of bytes."""
        layout = ex.Layout((rows, MARKER_BYTES), "u1", axes)
        self.arrays[name] = self.member.array(name, layout)

    def write(self, name: str, marker: str) -> None:
        """Export a version that says this again and again."""
        with self.arrays[name].write() as local:
            local[...] = pattern(marker)

    def read(self, name: str) -> str:
        """Take a version, and return what all of it says."""
        with self.arrays[name].read() as local:
            assert (local == local[0]).all(), "of two versions"
            return bytes(local[0]).decode().split("-")[1]

    def leave(self) -> None:
        """Leave in good order."""
        self.member.leave()


def pattern(marker: str) -> np.ndarray:
    """Return a row that a capture finds."""
    return np.frombuffer(f"MARKER-{marker}-".encode().ljust(MARKER_BYTES, b"."), "u1")


def main(keeper: str, program: str) -> None:
    process = Process(keeper, program)
    print("ready", flush=True)
    for line in sys.stdin:
        order: dict[str, Any] = json.loads(line)
        do = order.pop("do")
        try:
            said = {"said": {"value": getattr(process, do)(**order)}}
        except ex.ExoskelError as error:
            said = {"said": {"error": type(error).__name__, "text": str(error)}}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
