"""What a behaviour is: what a worker does, in which step, and what the manager must do about it."""

from __future__ import annotations

import contextlib
import pickle
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.independent_session import Credential, EndOfSession, Handshake
from tests.independent_worker import Worker
from tests.protocol_reference import seal_message
from tests.task_reference import Frame

# The honest worker holds its answers for no longer than this while the hostile one is about to strike.
STRIKE_SECONDS = 15.0


@dataclass(frozen=True)
class Must:
    """What the manager must do. Always: no code runs, honest items arrive, nothing is left behind, memory stays small."""

    kind: str
    """``refused``: no session comes about. ``ended``: the session ends. ``item``: the items that were answered so fail, and the session
    goes on. ``value``: those items have some outcome. ``harmless``: all results arrive, and the session goes on. ``stalled``: only the items it has are missing."""
    text: str = ""
    """What the stated reason or the item's error says, as a regular expression."""
    error: str = ""
    """The class of the item's error."""
    options: dict[str, Any] = field(default_factory=dict)
    """Arguments of the manager that the behaviour needs."""
    memory_mebibytes: int = 48
    """How much the manager may grow by while it lasts."""


def refused(text: str, **options: Any) -> Must:
    """No session comes about, for this reason."""
    return Must("refused", text, options=options)


def ended(text: str, **options: Any) -> Must:
    """The session ends, for this reason; what the worker had runs elsewhere."""
    return Must("ended", text, options=options)


def failed(error: str, text: str = "") -> Must:
    """The items that were answered so fail with this error."""
    return Must("item", text, error)


def harmless(memory_mebibytes: int = Must.memory_mebibytes, **options: Any) -> Must:
    """Nothing comes of it."""
    return Must("harmless", options=options, memory_mebibytes=memory_mebibytes)


def stalled(**options: Any) -> Must:
    """Only the items that the worker keeps are missing, as with a function that never ends."""
    return Must("stalled", options=options)


@dataclass(frozen=True)
class Behaviour:
    """One way to break a rule, or to keep one that is easily broken."""

    name: str
    does: str
    must: Must
    step: str
    act: Callable[..., None]
    credential: str = "hostile"


BEHAVIOURS: dict[str, Behaviour] = {}

Act = Callable[..., None]


def _register(
    step: str, does: str, must: Must, credential: str = "hostile"
) -> Callable[[Act], Act]:
    def register(act: Act) -> Act:
        name = act.__name__
        assert name not in BEHAVIOURS, name
        BEHAVIOURS[name] = Behaviour(name, does, must, step, act, credential)
        return act

    return register


def on_connect(does: str, must: Must, credential: str = "hostile") -> Callable[[Act], Act]:
    """Instead of the whole handshake: ``act(worker)``."""
    return _register("connect", does, must, credential)


def on_accept(does: str, must: Must) -> Callable[[Act], Act]:
    """Instead of Accept, which is made ready: ``act(handshake)``."""
    return _register("accept", does, must)


def on_greet(does: str, must: Must) -> Callable[[Act], Act]:
    """Instead of Hello, by a worker that dials in: ``act(handshake)``."""
    return _register("greet", does, must)


def on_link(does: str, must: Must) -> Callable[[Act], Act]:
    """Instead of the answer to each link that the manager opens: ``act(worker, link, handlers)``."""
    return _register("link", does, must)


def on_ready(does: str, must: Must) -> Callable[[Act], Act]:
    """Instead of Ready, at which work would come: ``act(worker)``."""
    return _register("ready", does, must)


def on_execute(does: str, must: Must) -> Callable[[Act], Act]:
    """Instead of the answer to the first frame of work: ``act(worker, frame)``."""
    return _register("execute", does, must)


def on_nothing(does: str, must: Must) -> Callable[[Act], Act]:
    """In no step: the protocol is kept."""
    return _register("nothing", does, must)


@dataclass
class Scene:
    """One behaviour on stage, over as many connections as the manager makes."""

    behaviour: Behaviour
    struck: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    reports: list[dict[str, Any]] = field(default_factory=list)
    canary: str = ""


class HonestWorker(Worker):
    """Keeps to the protocol; answers once the hostile worker has struck, so that this one gets work too."""

    def __init__(
        self,
        connection: socket.socket,
        credential: Credential,
        scene: Scene,
        *,
        is_server: bool = True,
    ) -> None:
        super().__init__(connection, credential, is_server=is_server)
        self.scene = scene

    def execute(self, frame: Frame) -> None:
        """Run a frame when it is time."""
        waited = 0.0
        while self.scene.behaviour.step == "execute" and waited < STRIKE_SECONDS:
            if self.scene.struck.wait(self.session.heartbeat_seconds):
                break
            waited += self.session.heartbeat_seconds
            self.session.heartbeat()
        super().execute(frame)


class HostileWorker(Worker):
    """Behaves as its behaviour says in one step, and keeps to the protocol in all others."""

    def __init__(
        self,
        connection: socket.socket,
        credential: Credential,
        scene: Scene,
        *,
        is_server: bool = True,
    ) -> None:
        super().__init__(connection, credential, is_server=is_server)
        self.scene = scene
        self.behaviour = scene.behaviour
        self.struck_items: list[int] = []
        self.is_waiting_for_grant = False
        # What is done instead of a step of the honest worker, by the step's name.
        self.instead: dict[str, Callable[..., None]] = {}

    def report(self) -> dict[str, Any]:
        """Serve a manager, and say what came of it."""
        end = EndOfSession(None, "")
        try:
            end = self.serve()
        except Exception as error:
            end = EndOfSession(None, f"{type(error).__name__}: {error}")
        finally:
            self.scene.struck.set()
        return {"reason": end.reason, "text": end.text, "items": self.struck_items}

    def meet(self) -> Handshake:
        """Do the handshake, or what is done instead."""
        if self.behaviour.step == "connect":
            self.behaviour.act(self)
        return super().meet()

    def accept(self, handshake: Handshake) -> None:
        """Say Accept, or what is said instead."""
        if self.behaviour.step != "accept":
            return super().accept(handshake)
        handshake.answer = handshake.agreed()
        self.behaviour.act(handshake)
        return None

    def greet(self, handshake: Handshake) -> None:
        """Say Hello, or what is said instead."""
        if self.behaviour.step == "greet":
            self.behaviour.act(handshake)
            # Whatever the manager answers is read by nobody: it ends the connection.
            wait_for_the_end(self.socket)
        super().greet(handshake)

    def accept_link(self, link: int, protection: str, handlers: list[str]) -> None:
        """Accept a link, or say what is said instead."""
        if self.behaviour.step == "link":
            self.behaviour.act(self, link, protection, handlers)
        else:
            super().accept_link(link, protection, handlers)

    def ready(self) -> None:
        """Say Ready, or what is said instead."""
        if self.behaviour.step == "ready":
            self.behaviour.act(self)
        else:
            super().ready()

    def execute(self, frame: Frame) -> None:
        """Answer a frame, the first one as the behaviour says."""
        if self.behaviour.step != "execute" or self.struck_items:
            return self.instead.get("execute", super().execute)(frame)
        self.struck_items = list(range(frame.first, frame.first + frame.count))
        try:
            self.behaviour.act(self, frame)
        finally:
            if not self.is_waiting_for_grant:
                self.scene.struck.set()
        return None

    def granted(self, frame: int, index: int) -> None:
        """Send a result that waited, or do what is done instead."""
        try:
            self.instead.get("granted", super().granted)(frame, index)
        finally:
            self.scene.struck.set()

    # --- what behaviours have in common ------------------------------------------------------------

    def answer(self, frame: Frame) -> None:
        """Answer a frame honestly."""
        super().execute(frame)

    def raw_message(self, **changes: Any) -> bytes:
        """Seal a message that would be an Output of one line."""
        item = {"link": self.result_link, "group": self.session.group, "handler": 4, "kind": "post"}
        item |= {"id": 0, "head": b"\0line\n", "bulk": []} | changes
        return seal_message(self.session.sending, item, 262_144)

    def raw_record(self, kind: str, body: bytes, *, end: bool = True) -> bytes:
        """Seal one record of the link of results."""
        session = self.session
        return session.sending.seal(kind, end, self.result_link, session.group, body)

    def raw_control(self, body: bytes) -> bytes:
        """Seal a control record of any content."""
        return self.session.sending.seal("control", True, 0, 0, body)


def wait_for_the_end(connection: socket.socket) -> None:
    """Read until the manager has gone; nothing of it counts."""
    with contextlib.suppress(OSError):
        while connection.recv(65_536):
            pass
    raise EndOfSession(None, "the manager has gone")


class Canary:
    """Unpickled, it makes a directory."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        """Name the function that would run."""
        import os

        return os.mkdir, (self.path,)

    def pickle(self) -> bytes:
        """Give the program."""
        return pickle.dumps(self, 5)
