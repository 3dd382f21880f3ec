"""A worker that keeps the protocol and breaks each of its rules, one at a time.

`tests/hostile/` holds the behaviours as data: what is done, and what the manager must do. This module is the process that
performs them: it reads commands from standard input, one JSON object a line, and answers each with one.

``{"begin": NAME, "canary": PATH}`` puts a behaviour on stage: at ``hostile`` and ``honest`` of the answer listen a worker that behaves so and an
honest one. ``{"join": PORT}`` has both dial in there. ``{"end": true}`` ends it and says how each session of the hostile one ended.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.hostile import answers, controls, handshakes, messages, records, values
from tests.hostile.behaviour import BEHAVIOURS, HonestWorker, HostileWorker, Scene
from tests.independent_session import Credential

__all__ = ["BEHAVIOURS", "CATALOGUE"]

CATALOGUE = [handshakes, records, controls, messages, answers, values]
DIAL_SECONDS = 0.01
# Everything has ended long before; a thread that has not is a mistake of this process.
JOIN_SECONDS = 30.0


class Stage:
    """Where one behaviour at a time is performed."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.scene: Scene
        self.listeners: list[socket.socket] = []
        self.threads: list[threading.Thread] = []

    def credential(self, name: str) -> Credential:
        """Read a credential of this name."""
        return Credential(self.place / f"{name}.pem")

    def begin(self, name: str, canary: str) -> dict[str, Any]:
        """Listen as this behaviour's worker, and as an honest one."""
        self.scene = Scene(BEHAVIOURS[name], canary=canary)
        self.threads, self.listeners = [], []
        return {"hostile": self.listen(self.hostile), "honest": self.listen(self.honest)}

    def listen(self, serve: Callable[[socket.socket], object]) -> int:
        """Serve each connection to a new port in a thread of its own."""
        listener = socket.create_server(("127.0.0.1", 0))
        self.listeners.append(listener)
        self.start(self.accept, listener, serve)
        port: int = listener.getsockname()[1]
        return port

    def start(self, act: Callable[..., object], *arguments: Any) -> None:
        """Start a thread."""
        thread = threading.Thread(target=act, args=arguments)
        self.threads.append(thread)
        thread.start()

    def accept(self, listener: socket.socket, serve: Callable[[socket.socket], object]) -> None:
        """Accept connections until the listener is shut down."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            self.start(serve, connection)

    def hostile(self, connection: socket.socket, *, is_server: bool = True) -> None:
        """Serve a connection as the behaviour says."""
        with connection:
            credential = self.credential(self.scene.behaviour.credential)
            worker = HostileWorker(connection, credential, self.scene, is_server=is_server)
            self.scene.reports.append(worker.report())

    def honest(self, connection: socket.socket, *, is_server: bool = True) -> bool:
        """Serve a connection honestly, and say whether a session came about."""
        with connection:
            worker = HonestWorker(
                connection, self.credential("honest"), self.scene, is_server=is_server
            )
            with contextlib.suppress(ConnectionError):
                worker.serve()
        return bool(worker.links)

    def join(self, port: int) -> dict[str, Any]:
        """Dial in: the hostile worker, and once that is over the honest one."""

        def serve() -> None:
            self.hostile(self.dial(port), is_server=False)
            # Again, if the manager had no time for its handshake, as a worker does that joins.
            while not self.honest(self.dial(port), is_server=False):
                pass

        self.start(serve)
        return {}

    def dial(self, port: int) -> socket.socket:
        """Dial until somebody listens, as a worker does that joins."""
        while not self.scene.over.wait(DIAL_SECONDS):
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", port))
        raise TimeoutError

    def end(self) -> dict[str, Any]:
        """End the scene."""
        self.scene.struck.set()
        self.scene.over.set()
        for listener in self.listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for thread in self.threads:
            thread.join(JOIN_SECONDS)
        left = [thread.name for thread in self.threads if thread.is_alive()]
        return {"sessions": self.scene.reports, "left": left}


def main() -> None:
    """Perform what standard input asks for."""
    stage = Stage(Path(sys.argv[1]))
    for line in sys.stdin:
        match json.loads(line):
            case {"begin": str(name), "canary": str(canary)}:
                answer = stage.begin(name, canary)
            case {"join": int(port)}:
                answer = stage.join(port)
            case _:
                answer = stage.end()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
