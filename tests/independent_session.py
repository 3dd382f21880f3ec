"""TLS, the handshake and the records of an independent peer, written from `docs/protocol.md` alone: nothing of the exoskel package."""

from __future__ import annotations

import os
import re
import socket
import struct
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from OpenSSL import SSL
from OpenSSL.crypto import X509
from tests.protocol_reference import (
    CIPHERS,
    CLASSES,
    MESSAGE_KINDS,
    PROTECTIONS,
    Direction,
    Item,
    after_control,
    decode_control,
    decode_hello,
    encode_control,
    extract,
    seal_message,
    transcript_hash,
)

ALPN = b"exoskel/1"
EXPORTER_LABEL = b"EXPORTER-exoskel/1"
# SSL_MODE_NO_AUTO_CHAIN: the chain in the transcript is the one that the credential holds, and so is the one that is shown.
NO_AUTO_CHAIN = 8
MESSAGE_OVERHEAD_BYTES = 64
SEGMENT_BYTES = 262_144
# No step of a test takes so long: a manager that has fallen silent fails the test instead of hanging it.
PATIENCE_SECONDS = 20.0
# So long a manager that should end the session may take.
END_SECONDS = 15.0


class PeerError(Exception):
    """The manager broke the protocol."""


class EndOfSession(Exception):
    """The connection is over; `reason` and `text` are those of the manager's Close, if it sent one."""

    def __init__(self, reason: int | None, text: str) -> None:
        super().__init__(f"closed with {reason}: {text}")
        self.reason = reason
        self.text = text


class Credential:
    """A certificate chain, its key, and the authorities that it trusts, from one PEM file."""

    def __init__(self, path: Path) -> None:
        pem = path.read_bytes()
        blocks = re.findall(rb"-----BEGIN ([A-Z0-9 ]+)-----.*?-----END \1-----", pem, re.DOTALL)
        first = blocks.index(b"PRIVATE KEY")
        certificates = x509.load_pem_x509_certificates(pem)
        own = blocks[:first].count(b"CERTIFICATE")
        self.chain, self.authorities = certificates[:own], certificates[own:]
        found = re.search(rb"-----BEGIN PRIVATE KEY-----.*?-----END PRIVATE KEY-----", pem, re.S)
        assert found is not None
        key = load_pem_private_key(found.group(), None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self.key = key
        self.role, self.name = statement(self.chain[0])

    def der(self) -> list[bytes]:
        """Give the chain in DER, leaf first."""
        return [certificate.public_bytes(Encoding.DER) for certificate in self.chain]


def statement(certificate: x509.Certificate) -> tuple[str, str]:
    """Read the role and the name that a certificate states."""
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    uris = names.value.get_values_for_type(x509.UniformResourceIdentifier)
    said = dict(uri.removeprefix("exoskel:").split(":", 1) for uri in uris)
    return said["role"], said["name"]


class Tls:
    """A TLS engine over a socket that reads one TLS record at a time and nothing behind it."""

    def __init__(
        self,
        connection: socket.socket,
        credential: Credential,
        *,
        is_server: bool,
        protocol: bytes = ALPN,
    ) -> None:
        self.socket = connection
        self.credential = credential
        context = SSL.Context(SSL.TLS_METHOD)
        context.set_min_proto_version(SSL.TLS1_3_VERSION)
        context.set_mode(NO_AUTO_CHAIN)
        context.use_certificate(credential.chain[0])
        for certificate in credential.chain[1:]:
            context.add_extra_chain_cert(certificate)
        context.use_privatekey(credential.key)
        store = context.get_cert_store()
        assert store is not None
        for authority in credential.authorities:
            store.add_cert(X509.from_cryptography(authority))
        required = SSL.VERIFY_PEER | SSL.VERIFY_FAIL_IF_NO_PEER_CERT
        context.set_verify(required, lambda _connection, _certificate, _error, _depth, ok: bool(ok))
        if is_server:
            chosen = protocol or SSL.NO_OVERLAPPING_PROTOCOLS
            context.set_alpn_select_callback(lambda _connection, _offered: chosen)
        else:
            context.set_alpn_protos([protocol])
        self.engine = SSL.Connection(context, None)
        if is_server:
            self.engine.set_accept_state()
        else:
            self.engine.set_connect_state()

    def complete(self) -> None:
        """Do the handshake of TLS."""
        while True:
            try:
                self.engine.do_handshake()
            except SSL.WantReadError:
                self.write()
                self.read_record()
            else:
                break
        self.write()

    def read_record(self) -> None:
        """Hand exactly one TLS record to the engine."""
        header = receive_exactly(self.socket, 5)
        self.engine.bio_write(header + receive_exactly(self.socket, header[3] << 8 | header[4]))

    def receive(self) -> bytes:
        """Receive one record of application data."""
        while True:
            try:
                return self.engine.recv(16_384)
            except SSL.WantReadError:
                self.read_record()

    def seal(self, plaintext: bytes) -> bytes:
        """Make one TLS record of application data."""
        self.engine.send(plaintext)
        return self.outgoing()

    def send(self, plaintext: bytes) -> None:
        """Send one record of application data."""
        self.socket.sendall(self.seal(plaintext))

    def outgoing(self) -> bytes:
        """Take what the engine wants to send."""
        out = b""
        while True:
            try:
                out += self.engine.bio_read(65_536)
            except SSL.WantReadError:
                return out

    def write(self) -> None:
        """Send what the engine wants to send."""
        self.socket.sendall(self.outgoing())

    def peer_chain(self) -> list[x509.Certificate]:
        """Give the manager's certificates as presented, leaf first."""
        leaf = self.engine.get_peer_certificate(as_cryptography=True)
        assert leaf is not None
        # As a server, OpenSSL gives them without the leaf.
        others = self.engine.get_peer_cert_chain(as_cryptography=True) or []
        return [leaf, *(other for other in others if other != leaf)]

    def exporter(self) -> bytes:
        """Export the secret of this TLS session."""
        return self.engine.export_keying_material(EXPORTER_LABEL, 32, None)


def receive_exactly(connection: socket.socket, count: int) -> bytes:
    """Receive so many bytes."""
    data = bytearray()
    while len(data) < count:
        try:
            piece = connection.recv(min(count - len(data), 1 << 20))
        except ConnectionError:
            piece = b""
        if not piece:
            raise EndOfSession(None, "the connection ended")
        data += piece
    return bytes(data)


@dataclass
class Limits:
    """What one side is willing to hold."""

    message_bytes_max: int = 1 << 30
    credit_bytes: int = 8 << 20
    bulk_parts_max: int = 1024
    links_max: int = 256


@dataclass
class Handshake:
    """A handshake under way: what was said, and the answer that is due."""

    tls: Tls
    is_server: bool
    hello: Item = field(default_factory=dict)
    hello_bytes: bytes = b""
    answer: Item = field(default_factory=dict)
    answer_bytes: bytes = b""

    def own_fields(self) -> Item:
        """What this side says of itself, as client and as server."""
        local, remote = self.tls.socket.getsockname(), self.tls.socket.getpeername()
        return {
            "role": self.tls.credential.role,
            "name": self.tls.credential.name,
            "message_bytes_max": Limits.message_bytes_max,
            "credit_bytes": Limits.credit_bytes,
            "bulk_parts_max": Limits.bulk_parts_max,
            "links_max": Limits.links_max,
            "dead_after_milliseconds": 15_000,
            "path": [*local[:2], *remote[:2]],
            "policy_generation": 0,
            "group": 0,
            "process": os.urandom(16).hex(),
            "versions": self.hello.get("versions", []),
            "properties": [["pid", "1"], ["slots", "1"]],
        }

    def judge(self, fields: Item) -> None:
        """Check that the manager is who it says, and a manager."""
        proved = statement(self.tls.peer_chain()[0])
        if proved != (fields["role"], fields["name"]) or proved[0] != "manager":
            raise PeerError(f"got {proved}, expected a manager that says who it is")

    def agreed(self) -> Item:
        """Decide on protections and cipher by section 1.1, with minimum protections of nothing."""
        own = self.own_fields()
        theirs = self.hello["path"]
        proven = own["path"] == [*theirs[2:], *theirs[:2]]
        minima = [self.hello["floors"]]
        if not proven:
            minima.append(self.hello["floors_unproven"])
        minima.append(["encrypted", "integrity", "plain"])
        protections = [
            max((minimum[position] for minimum in minima), key=PROTECTIONS.index)
            for position in range(len(CLASSES))
        ]
        offered = self.hello["ciphers"]
        first = next(name for name in offered if name in CIPHERS)
        ours = next(name for name in CIPHERS if name in offered)
        cipher = first if first == ours else "chacha20-poly1305"
        return own | {"protections": protections, "cipher": cipher}

    def session_secret(self) -> bytes:
        """Derive the secret of the session."""
        peer = [each.public_bytes(Encoding.DER) for each in self.tls.peer_chain()]
        chains = [self.tls.credential.der(), peer]
        if self.is_server:
            chains.reverse()
        transcript = transcript_hash(self.hello_bytes, self.answer_bytes, chains)
        return extract(transcript, self.tls.exporter())


class Session:
    """The records of one session, in both directions."""

    def __init__(self, connection: socket.socket, handshake: Handshake) -> None:
        self.socket = connection
        said, answer = handshake.hello, handshake.answer
        secret = handshake.session_secret()
        sides = ["server", "client"] if handshake.is_server else ["client", "server"]
        cipher, protections = answer["cipher"], answer["protections"]
        self.sending = Direction.start(cipher, secret, sides[0], protections)
        self.receiving = Direction.start(cipher, secret, sides[1], protections)
        peer = said if handshake.is_server else answer
        self.peer_limits = {name: peer[name] for name in Limits.__annotations__}
        self.group = peer["group"]
        self.first_link = 2 if handshake.is_server else 1
        stated = (said["dead_after_milliseconds"], answer["dead_after_milliseconds"])
        self.heartbeat_seconds = max(100, min(stated)) / 4000
        self.credit = self.peer_limits["credit_bytes"]
        self.queue: list[Item] = []
        self.opened = 0
        self.wrote = time.monotonic()
        self._unfinished: dict[int, tuple[Item, list[int], bytearray]] = {}

    def seal_control(self, **item: Any) -> bytes:
        """Seal a control message; the keys and the counter move on."""
        sealed = self.sending.seal("control", True, 0, 0, encode_control(item))
        after_control(self.sending, item)
        return sealed

    def control(self, **item: Any) -> None:
        """Send a control message."""
        self.write(self.seal_control(**item))

    def heartbeat(self) -> None:
        """Send a Heartbeat with the right counts."""
        self.control(control="heartbeat", sealed=self.sending.counter, opened=self.opened)

    def write(self, data: bytes) -> None:
        """Write to the connection."""
        self.wrote = time.monotonic()
        try:
            self.socket.sendall(data)
        except ConnectionError:
            # The manager may have said why it went.
            self.read_to_the_end()

    def seal_post(self, link: int, handler: int, head: bytes, bulk: list[bytes]) -> bytes:
        """Seal a post as its records."""
        item = {"link": link, "group": self.group, "handler": handler, "kind": "post", "id": 0}
        return seal_message(self.sending, item | {"head": head, "bulk": bulk}, SEGMENT_BYTES)

    def post(self, link: int, handler: int, head: bytes, bulk: list[bytes]) -> None:
        """Send a post as soon as there is credit for it."""
        self.queue.append({"link": link, "handler": handler, "head": head, "bulk": bulk})
        self.send_queued()

    def send_queued(self) -> None:
        """Send what there is credit for."""
        while self.queue and self.credit > 0:
            item = self.queue.pop(0)
            size = len(item["head"]) + sum(map(len, item["bulk"])) + MESSAGE_OVERHEAD_BYTES
            self.credit -= size
            self.write(self.seal_post(item["link"], item["handler"], item["head"], item["bulk"]))

    def read_to_the_end(self) -> None:
        """Read until the manager has closed, and raise how it did."""
        deadline = time.monotonic() + END_SECONDS
        while time.monotonic() < deadline:
            self.receive()
        raise PeerError(f"the manager has not ended the session within {END_SECONDS} seconds")

    def receive(self) -> Item:
        """Receive one control message, or one message as soon as it is whole; heartbeats go out meanwhile."""
        while True:
            kind, end, link, group, body = self._receive_record()
            if kind == "control":
                item = decode_control(body)
                after_control(self.receiving, item)
                if item["control"] == "close":
                    raise EndOfSession(item["reason"], item["text"])
                return item
            if kind == "head":
                handler, code, number, head, parts = struct.unpack(">HBQQH", body[:21])
                lengths = [head, *struct.unpack(f">{parts}Q", body[21 : 21 + 8 * parts])]
                item = {"link": link, "group": group, "handler": handler}
                item |= {"kind": MESSAGE_KINDS[code], "id": number}
                content = bytearray(body[21 + 8 * parts :])
            else:
                item, lengths, content = self._unfinished.pop(link)
                content += body
            if end != (len(content) == sum(lengths)):
                raise PeerError("an END flag that does not agree with the lengths")
            if end:
                return item | self._taken_apart(link, lengths, bytes(content))
            self._unfinished[link] = (item, lengths, content)

    def _taken_apart(self, link: int, lengths: list[int], content: bytes) -> Item:
        parts, position = [], 0
        for length in lengths:
            parts.append(content[position : position + length])
            position += length
        self.control(control="credit", link=link, bytes=len(content) + MESSAGE_OVERHEAD_BYTES)
        return {"head": parts[0], "bulk": parts[1:]}

    def _receive_record(self) -> tuple[str, bool, int, int, bytes]:
        self._wait_for_bytes()
        header = receive_exactly(self.socket, 16)
        length = int.from_bytes(header[12:], "big")
        record = header + receive_exactly(self.socket, length + 16)
        kind, end, link, group, body, _ = self.receiving.open(record)
        self.opened += 1
        return kind, end, link, group, body

    def _wait_for_bytes(self) -> None:
        started = time.monotonic()
        while (now := time.monotonic()) - started < PATIENCE_SECONDS:
            # Counted from what was written last: the manager's heartbeats come as often, and put nothing off.
            due = self.wrote + self.heartbeat_seconds
            if now >= due:
                self.heartbeat()
                continue
            self.socket.settimeout(due - now)
            try:
                self.socket.recv(1, socket.MSG_PEEK)
            except TimeoutError:
                continue
            except ConnectionError:
                return
            else:
                return
            finally:
                self.socket.settimeout(PATIENCE_SECONDS)
        raise PeerError(f"got nothing for {PATIENCE_SECONDS} seconds")


def decode_answer(data: bytes) -> Item:
    """Read an Accept; its middle is laid out like a Hello's."""
    if data[10] != 1:
        raise EndOfSession(None, f"refused with reason {data[11]}")
    # As in a Hello: identity, then (here) one set of protections and one cipher.
    length = 14 + int.from_bytes(data[12:14], "big")
    protections = [PROTECTIONS[code] for code in data[length : length + 3]]
    cipher = {number: name for name, number in CIPHERS.items()}[data[length + 3]]
    hello = data[:10] + data[11:length] + bytes(6) + bytes([0]) + data[length + 4 :] + bytes([0])
    return decode_hello(hello) | {"protections": protections, "cipher": cipher}
