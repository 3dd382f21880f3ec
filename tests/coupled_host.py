"""The keepers of one host, which a soak tells what to do: ``python -m tests.coupled_host '{"credential": "lab1.pem", ...}'``.

The process lasts, while couplings come and go: what they leave behind in it shows.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.link_program import allocated_bytes

import exoskel as ex
from exoskel import _core, links


class Host:
    """A host's keepers, by the names of their couplings."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.place = Path(settings.pop("place"))
        self.settings = settings
        self.keepers: dict[str, Any] = {}
        self.nodes: dict[str, links.Node] = {}

    def alone(self, name: str, coupling: str) -> str:
        """Start a coupler whose programs are all on this host; return its socket."""
        socket = self.place / f"{name}.socket"
        self.keepers[name] = _core.Keeper(socket, coupling)
        return str(socket)

    def lead(self, name: str, coupling: str) -> list[Any]:
        """Start a coupler that keepers of other hosts join; return its socket and where it is reached."""
        socket = self.place / f"{name}.socket"
        node = self.nodes[name] = links.Node(listen="127.0.0.1:0", **self.settings)
        self.keepers[name] = _core.Keeper.lead(socket, coupling, node._node)
        return [str(socket), node.hints]

    def join(self, name: str, coupler: str, at: list[str]) -> str:
        """Join a coupler; return the socket."""
        socket = self.place / f"{name}.socket"
        node = self.nodes[name] = links.Node(listen="127.0.0.1:0", **self.settings)
        found = node.lookup("coupler", name=coupler, at=at)
        self.keepers[name] = _core.Keeper.join(socket, node._node, found.startpoint)
        return str(socket)

    def report(self, name: str) -> Any:
        """Say what the coupler has seen."""
        return self.keepers[name].report()

    def state(self, name: str) -> Any:
        """Say how many members are here, whether all is over, and why the coupler is gone if it is."""
        return self.keepers[name].state()

    def end(self, name: str) -> None:
        """End a coupling's keeper."""
        self.keepers.pop(name).end()
        if node := self.nodes.pop(name, None):
            with contextlib.suppress(ex.LinkError):
                node.close()

    def allocated(self) -> int | None:
        """Say how many bytes are in use."""
        return allocated_bytes()


def main() -> None:
    host = Host(json.loads(sys.argv[1]))
    print("ready", flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer = {"said": getattr(host, command.pop("do"))(**command)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    # What a test has left behind doesn't keep the process.
    os._exit(0)


if __name__ == "__main__":
    main()
