"""A program with links, as users write them, that a test tells what to do: ``python -m tests.link_program '{"credential": "ocean.pem"}'``."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from tests.link_traffic import Receiver, Traffic

from exoskel import links


class Allocated(ctypes.Structure):
    """``struct mallinfo2`` of mallinfo(3): ``uordblks`` are bytes in use, ``hblkhd`` those in regions of their own."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def allocated_bytes() -> int | None:
    """Say how many bytes are in use, of what the GNU C library has given out; what it keeps for later is not held by anybody."""
    gc.collect()
    tell = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if tell is None:
        return None
    tell.restype = Allocated
    told = tell()
    return int(told.uordblks + told.hblkhd)


class Program:
    """One node, which receives or sends."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.node = links.Node(**settings)
        self.receiver: Receiver | None = None
        self.startpoints: list[links.Startpoint] = []
        self.traffic: Traffic | None = None

    def serve(self, **more: Any) -> None:
        """Offer the endpoint."""
        self.receiver = Receiver(self.node, **more)

    def startpoint(self, hints: list[str] | None = None, **more: Any) -> str:
        """Make a startpoint."""
        assert self.receiver
        made = self.receiver.endpoint.startpoint(**more)
        self.startpoints.append(made)
        return (made.with_hints(hints) if hints else made).text()

    def revoke(self) -> int:
        """Take the last startpoint back, and say how many calls were handled by then."""
        assert self.receiver
        self.receiver.endpoint.revoke(self.startpoints[-1])
        return self.receiver.calls

    def calls(self) -> int:
        """Say how many calls were handled."""
        assert self.receiver
        return self.receiver.calls

    def forget(self, source: str) -> None:
        """Forget what has come of a source."""
        assert self.receiver
        self.receiver.forget(source)

    def bind(
        self,
        startpoint: str,
        source: str,
        row: int = 0,
        others: Sequence[str] = (),
        at: str = "",
        name: str = "",
    ) -> None:
        """Bind a startpoint; perhaps others, for groups, and a place where lookups are made."""
        self.traffic = Traffic(
            source,
            self.node.bind(startpoint),
            row,
            [self.node.bind(other) for other in others],
            (lambda: self.node.lookup("coupler", at=at, name=name)) if at else None,
        )

    def look_up(self, at: str, name: str, source: str) -> None:
        """Bind what rules give."""
        self.traffic = Traffic(source, self.node.lookup("coupler", at=at, name=name))

    def unbind(self) -> None:
        """Close the links that were opened."""
        for binding in (self._sender.binding, *self._sender.others):
            binding.close()
        self.traffic = None

    def hints(self) -> list[str]:
        """Say where the node is reached."""
        return self.node.hints

    def mark(self, marker: str) -> None:
        """Have what is posted from now on carry this marker."""
        self._sender.marker = marker

    def start(self, kinds: list[str]) -> None:
        """Begin with traffic."""
        self._sender.start(*kinds)

    def stop(self) -> Any:
        """Stop traffic."""
        return self._sender.stop()

    def now(self) -> Any:
        """Say how traffic stands."""
        return self._sender.now()

    def arrived(self) -> Any:
        """Say what has arrived."""
        return self._sender.arrived()

    def request(self) -> str:
        """Begin one request, wait for its outcome, and say it."""
        try:
            self._sender.arrived()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "answered"

    def reload(self, relax: bool = False) -> list[str]:
        """Read the policy again."""
        return self.node.reload(relax=relax)

    def allocated(self) -> int | None:
        """Say how many bytes are in use."""
        return allocated_bytes()

    def sessions(self) -> list[dict[str, str]]:
        """Say which sessions run."""
        return self.node.sessions()

    def link(self) -> list[str | None]:
        """Say how the link is protected, and what carries it."""
        return [self._sender.binding.protection, self._sender.binding.method]

    def audit(self) -> list[str]:
        """Say who was let in."""
        return self.node.audit()

    @property
    def _sender(self) -> Traffic:
        assert self.traffic
        return self.traffic


def main() -> None:
    program = Program(json.loads(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"said": getattr(program, command.pop("do"))(**command)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    # Threads that a test has left behind don't keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
