"""What an engine's script has to provide, and how the runner talks to it.

Every engine is one script beside this file, run as a process of its own::

    python benches/engines/pool_engine.py --variant default --part noop --result FILE [--quick]

It runs one part and writes one JSON object to FILE: ``{"engine", "variant", "part", "values"}``. Standard output
stays free for whatever the engine likes to say.
"""

from __future__ import annotations

import abc
import argparse
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar

SLOTS = 2

Function = Callable[[Any], Any]


class Program(abc.ABC):
    """One or more stages, ready to take items."""

    @abc.abstractmethod
    def map(self, items: Iterable[Any]) -> Iterator[Any]:
        """Results in order; the caller hands over single items and never thinks of chunks."""

    def map_chunked(self, items: Sequence[Any], chunk: int) -> Iterator[Any]:
        """The same with the engine's own chunks, or with chunks the user makes."""
        raise NotImplementedError

    def bulk(self, payloads: list[bytes]) -> Iterator[bytes]:
        """Large items by the fastest way the engine's documentation recommends."""
        return self.map(payloads)


class Engine(abc.ABC):
    """A running engine with two slots.

    Attributes
    ----------
    module
        What a user imports; the start-up part measures it.
    chunks
        Chunk sizes worth trying; empty when there is no such thing.
    unsupported
        Parts that make no sense here, with the reason that the table prints.
    """

    module: ClassVar[str]
    chunks: ClassVar[tuple[int, ...]] = ()
    unsupported: ClassVar[Mapping[str, str]] = {}

    def __init__(self, variant: str) -> None:
        self.variant = variant

    @abc.abstractmethod
    def program(self, *stages: Function) -> AbstractContextManager[Program]:
        """Workers started, stages known to them."""

    def serial_program(self, *stages: Function) -> AbstractContextManager[Program] | None:
        """The same with a first stage that handles one item at a time, where the engine knows of such stages."""
        return None

    @abc.abstractmethod
    def caller(self, function: Function) -> AbstractContextManager[Function]:
        """A callable that submits one item and waits for its result."""

    def processes(self) -> list[int]:
        """Every process of the engine, the caller's included."""
        return [os.getpid(), *descendants(os.getpid())]


def descendants(root: int) -> list[int]:
    """All living processes below `root`, breadth first."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:  # it ended while we looked
                continue
            if fields[0] != "Z":
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found = list(children.get(root, []))
    for process in found:
        found.extend(children.get(process, []))
    return found


def main(engine: Callable[[str], Engine]) -> None:
    """Run the part that the command line names, and write its values."""
    import parts  # after the engine's own imports: it measures with them loaded

    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", default="default")
    parser.add_argument("--part", required=True, choices=sorted(parts.PARTS))
    parser.add_argument("--result", required=True, type=Path)
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    it = engine(arguments.variant)
    reason = it.unsupported.get(arguments.part)
    values = {"skipped": reason} if reason else parts.PARTS[arguments.part](it, arguments.quick)
    arguments.result.write_text(
        json.dumps({"variant": arguments.variant, "part": arguments.part, "values": values})
    )
