"""An independent worker, written from `docs/protocol.md` alone.

It serves one manager on one connection, in one thread, and keeps to the protocol. Every step is a method,
so that `tests/hostile_worker.py` can break each rule by itself.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

from tests.independent_session import (
    PATIENCE_SECONDS,
    Credential,
    EndOfSession,
    Handshake,
    Session,
    Tls,
    decode_answer,
)
from tests.protocol_reference import (
    CIPHERS,
    CLASSES,
    Item,
    decode_hello,
    encode_accept,
    encode_hello,
)
from tests.task_reference import Frame, exception_record, read_execute, read_program, value_record

TASK_HANDLERS = ["execute", "recall", "grant", "forget", "probe", "interrupt"]
CODE_HANDLERS = ["setup", "function", "define", "discard", "piece"]
RESULT_HANDLERS = [
    *("results", "released", "recalled", "announced", "output", "ready"),
    *("retriable", "initialized", "fetch", "leaving", "differs", "probed"),
]


class Worker:
    """A worker of one slot; it serves one manager on one connection."""

    def __init__(
        self, connection: socket.socket, credential: Credential, *, is_server: bool = True
    ) -> None:
        connection.settimeout(PATIENCE_SECONDS)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = connection
        self.credential = credential
        self.is_server = is_server
        self.functions: dict[bytes, Callable[[Any], Any]] = {}
        self.programs: dict[int, list[list[bytes]]] = {}
        self.links: dict[int, str] = {}
        self.held: dict[tuple[int, int], tuple[bytes, list[bytes]]] = {}
        # By frame, the segment behind the last one that it runs through.
        self.reached: dict[int, int] = {}
        self.frames: list[Frame] = []
        self.result_link = 0
        self.is_data = True
        self.session: Session

    def serve(self) -> EndOfSession:
        """Serve the manager until the session is over, and say how it ended."""
        try:
            handshake = self.meet()
            self.session = Session(self.socket, handshake)
            self.begin()
            while True:
                self.handle(self.session.receive())
        except EndOfSession as end:
            if end.reason is not None:
                self.leave()
            return end

    def leave(self) -> None:
        """Answer the manager's Close."""
        try:
            self.socket.sendall(self.session.seal_control(control="close", reason=0, text=""))
        except OSError:
            return

    # --- the handshake -----------------------------------------------------------------------------

    def meet(self) -> Handshake:
        """Do the handshake."""
        handshake = Handshake(
            Tls(self.socket, self.credential, is_server=self.is_server), self.is_server
        )
        handshake.tls.complete()
        if self.is_server:
            handshake.hello_bytes = handshake.tls.receive()
            handshake.hello = decode_hello(handshake.hello_bytes)
            handshake.judge(handshake.hello)
            self.accept(handshake)
        else:
            self.greet(handshake)
        return handshake

    def accept(self, handshake: Handshake) -> None:
        """Say Accept."""
        handshake.answer = handshake.agreed()
        handshake.answer_bytes = encode_accept(handshake.answer)
        handshake.tls.send(handshake.answer_bytes)

    def greet(self, handshake: Handshake) -> None:
        """Say Hello and read the answer."""
        minimum = {"floors": ["plain"] * 3, "floors_unproven": ["plain"] * 3}
        python = [["python", "{}.{}".format(*__import__("sys").version_info[:2])]]
        fields = handshake.own_fields() | minimum | {"ciphers": list(CIPHERS), "versions": python}
        handshake.hello = fields
        fields["purpose"] = {"wants": "session"}
        handshake.hello_bytes = encode_hello(fields)
        handshake.tls.send(handshake.hello_bytes)
        handshake.answer_bytes = handshake.tls.receive()
        handshake.answer = decode_answer(handshake.answer_bytes)
        handshake.judge(handshake.answer)

    # --- links and code ----------------------------------------------------------------------------

    def begin(self) -> None:
        """Open the link on which results go."""
        self.result_link = self.session.first_link
        self.session.control(**self.opening(self.result_link, "exoskel.result"))

    def opening(self, link: int, endpoint: str) -> Item:
        """Make a LinkOpen of class data."""
        item = {"control": "link_open", "link": link, "group": self.session.group}
        protection = self.session.sending.protections[CLASSES.index("data")]
        return item | {
            "class": "data",
            "protection": protection,
            "endpoint": endpoint,
            "right": b"",
        }

    def handle(self, item: Item) -> None:
        """Do what the manager says."""
        if "control" in item:
            self.handle_control(item)
        elif self.links[item["link"]] == "exoskel.code":
            self.handle_code(CODE_HANDLERS[item["handler"]], item["head"])
        else:
            self.handle_task(TASK_HANDLERS[item["handler"]], item["head"], item["bulk"])

    def handle_control(self, item: Item) -> None:
        """Accept links, count credit, and follow raised protections."""
        match item["control"]:
            case "link_open":
                handlers = {"exoskel.task": TASK_HANDLERS, "exoskel.code": CODE_HANDLERS}
                self.links[item["link"]] = item["endpoint"]
                self.accept_link(item["link"], item["protection"], handlers[item["endpoint"]])
            case "credit" if item["link"] == self.result_link:
                self.session.credit += item["bytes"]
                self.session.send_queued()
            case "protections" if item["protections"] != self.session.sending.protections:
                self.session.control(control="protections", protections=item["protections"])

    def accept_link(self, link: int, protection: str, handlers: list[str]) -> None:
        """Accept a link of the manager's, with the protection that it asks for."""
        self.session.control(
            control="link_accept", link=link, protection=protection, handlers=handlers
        )

    def handle_code(self, handler: str, head: bytes) -> None:
        """Take in functions and programs."""
        match handler:
            case "setup":
                self.is_data = head[0] == 1
                self.ready()
            case "function":
                self.functions[head[:32]] = pickle.loads(head[32:])
            case "discard":
                del self.functions[head]
            case "define":
                (stream,) = struct.unpack_from(">I", head)
                self.programs[stream] = read_program(head)
                frames, self.frames = self.frames, []
                for frame in frames:
                    self.execute(frame)

    def ready(self) -> None:
        """Say that work may come."""
        self.say("ready", b"")

    def say(self, handler: str, head: bytes, bulk: list[bytes] | None = None) -> None:
        """Post on the link of results."""
        self.session.post(self.result_link, RESULT_HANDLERS.index(handler), head, bulk or [])

    # --- work --------------------------------------------------------------------------------------

    def handle_task(self, handler: str, head: bytes, bulk: list[bytes]) -> None:
        """Take in work and what is said of it."""
        match handler:
            case "execute":
                frame = read_execute(head, bulk)
                if frame.stream in self.programs:
                    self.execute(frame)
                else:
                    self.frames.append(frame)
            case "recall":
                # All that came has been run by now, or waits for its program, which comes.
                self.recalled(*struct.unpack(">QI", head))
            case "probe":
                self.say("probed", b"")
            case "grant":
                number, index = struct.unpack(">QQ", head)
                self.granted(number, index)
            case "forget":
                (stream,) = struct.unpack(">I", head)
                self.programs.pop(stream, None)

    def execute(self, frame: Frame) -> None:
        """Run a frame and answer for it."""
        self.reached[frame.number] = frame.end + 1
        records = self.outcomes(frame)
        if frame.lease == 2:
            self.say("released", struct.pack(">QQ", frame.number, 0))
        for position, record in enumerate(records):
            index = frame.first + position
            if len(record) > frame.grant:
                self.held[frame.number, index] = record, []
                self.announce(frame, index, len(record))
            else:
                self.results(frame.number, index, 1, [record])

    def outcomes(self, frame: Frame) -> list[bytes]:
        """Run the functions of a frame's segments on each item, and write what came of it."""
        pairs = zip(frame.items, frame.is_data, strict=True)
        return [self.outcome(frame, item, self.is_data or is_data) for item, is_data in pairs]

    def outcome(self, frame: Frame, item: Any, is_data: bool) -> bytes:
        """Run the functions of a frame's segments on one item."""
        try:
            value = item
            for segment in self.programs[frame.stream][frame.start : frame.end + 1]:
                for digest in segment:
                    value = self.functions[digest](value)
        except Exception as error:
            return exception_record(error, is_data=is_data)
        return value_record(value, is_data=is_data)

    def results(
        self,
        frame: int,
        first: int,
        count: int,
        records: list[bytes],
        bulk: list[bytes] | None = None,
        busy: int = 1000,
        reached: int | None = None,
    ) -> None:
        """Send the results of consecutive items, which have passed all segments of their frame if nothing else is said."""
        if reached is None:
            reached = self.reached.get(frame, 1)
        head = struct.pack(">QQHIQ", frame, first, reached, count, busy) + b"".join(records)
        self.say("results", head, bulk)

    def announce(self, frame: Frame, index: int, size: int) -> None:
        """Say that a result waits."""
        self.say("announced", struct.pack(">QQIQQ", frame.number, index, 1, size, 1000))

    def granted(self, frame: int, index: int) -> None:
        """Send a result that waited."""
        record, bulk = self.held.pop((frame, index))
        self.results(frame, index, 1, [record], bulk)

    def recalled(self, frame: int, _count: int) -> None:
        """Give nothing back: everything has been run."""
        self.say("recalled", struct.pack(">QQI", frame, 0, 0))
