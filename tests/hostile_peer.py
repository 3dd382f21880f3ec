"""A peer with links that keeps to no rules, written from `docs/protocol.md`: it shakes hands as it should, and does anything after that."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from tests.capability_reference import (
    encode_right,
    next_tag,
    proof_of,
    read_startpoint,
    read_text,
)
from tests.independent_session import (
    PATIENCE_SECONDS,
    SEGMENT_BYTES,
    Credential,
    Handshake,
    PeerError,
    Session,
    Tls,
    decode_answer,
    statement,
)
from tests.protocol_reference import CIPHERS, Item, encode_hello, expand, seal_message


class PeerHandshake(Handshake):
    """A handshake with a peer."""

    def judge(self, fields: Item) -> None:
        """Check that the other end is a peer that says who it is."""
        proved = statement(self.tls.peer_chain()[0])
        if proved != (fields["role"], fields["name"]) or proved[0] != "peer":
            raise PeerError(f"got {proved}, expected a peer that says who it is")


class HostilePeer:
    """One session with a node, under the control of a test.

    ``before_hello`` runs when it has proved who it is and before it says what it wants. ``process`` is the number that it states as its
    own, in hexadecimal: its own, if it is the same one as before.
    """

    def __init__(
        self,
        address: str,
        credential: Path,
        *,
        before_hello: Callable[[], object] = lambda: None,
        process: str | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_SECONDS)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        tls = Tls(self.socket, Credential(credential), is_server=False)
        handshake = PeerHandshake(tls, False)
        tls.complete()
        before_hello()
        encrypted = ["encrypted"] * 3
        fields = handshake.own_fields() | {"floors": encrypted, "floors_unproven": encrypted}
        fields |= {"ciphers": list(CIPHERS), "purpose": {"wants": "session"}}
        if process:
            fields |= {"process": process}
        handshake.hello = fields
        handshake.hello_bytes = encode_hello(fields)
        tls.send(handshake.hello_bytes)
        handshake.answer_bytes = tls.receive()
        handshake.answer = decode_answer(handshake.answer_bytes)
        handshake.judge(handshake.answer)
        self.session = Session(self.socket, handshake)
        self.secret = handshake.session_secret()
        self.binding = expand(self.secret, "exoskel/1 binding", 32)
        self.requests = 0

    def open(self, link: int, endpoint: str, right: bytes, **life: Any) -> None:
        """Ask for a link, of which `life` says how long it lasts."""
        self.session.write(self.opening(link, endpoint, right, **life))

    def answer(self) -> Item:
        """Wait for what comes of a link that was asked for, or of a request."""
        while True:
            item = self.session.receive()
            if item.get("control") not in ("credit", "heartbeat", "link_closed", "link_protection"):
                if item.get("control") == "link_accept":
                    # Records of the node on it are of this class.
                    self.session.receiving.links[item["link"]] = "data"
                return item

    def sealed_request(self, link: int, handler: int, head: bytes, *bulk: bytes) -> bytes:
        """Seal a request."""
        self.requests += 1
        item = {"link": link, "group": 0, "handler": handler, "kind": "request"}
        item |= {"id": self.requests, "head": head, "bulk": list(bulk)}
        return seal_message(self.session.sending, item, SEGMENT_BYTES)

    def request(self, link: int, handler: int, head: bytes, *bulk: bytes) -> None:
        """Send a request, whatever credit there is."""
        self.session.write(self.sealed_request(link, handler, head, *bulk))

    def end(self, *records: bytes) -> None:
        """Send records, and read until the node has ended the session, which raises `EndOfSession`."""
        for record in records:
            self.session.write(record)
        self.session.read_to_the_end()

    def opening(
        self,
        link: int,
        endpoint: str,
        right: bytes,
        early: Sequence[str] = (),
        **life: Any,
    ) -> bytes:
        """Seal what asks for a link, with the handlers of early messages."""
        item: Item = {"link": link, "group": 0, "class": "data", "protection": "encrypted"}
        item |= {"early": list(early)}
        if life:
            item |= {"life": life}
        return self.session.seal_control(
            control="link_open", endpoint=endpoint, right=right, **item
        )

    def close(self) -> None:
        """Go without a word."""
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stolen:
    """A startpoint taken apart: its conditions, and its tag."""

    def __init__(self, text: str) -> None:
        self.item, self.tag = read_startpoint(read_text(text))

    def right(self, binding: bytes, link: int) -> bytes:
        """Make the right that it gives on a link."""
        return encode_right(self.item, proof_of(self.tag, binding, link))

    def changed(self, **changes: Any) -> Stolen:
        """Change conditions, without the tag that would fit."""
        copy = object.__new__(Stolen)
        copy.item, copy.tag = self.item | changes, self.tag
        return copy

    def narrowed(self, caveat: list[Any]) -> Stolen:
        """Narrow it, as anybody may."""
        copy = object.__new__(Stolen)
        copy.item = self.item | {"caveats": [*self.item["caveats"], caveat]}
        copy.tag = next_tag(self.tag, caveat)
        return copy
