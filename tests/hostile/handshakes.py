"""What a worker does wrong before the session begins."""

from __future__ import annotations

import contextlib
import socket
import struct

from tests.hostile.behaviour import (
    HostileWorker,
    ended,
    harmless,
    on_accept,
    on_connect,
    on_greet,
    refused,
    wait_for_the_end,
)
from tests.independent_session import Handshake, Tls
from tests.protocol_reference import encode_accept, encode_hello

# A handshake that is not finished by then is given up.
# Also for those who are honest.
SHORT = {"connect_timeout": 2.0}
MAGIC = b"exoskel\0"


# --- before and in TLS -----------------------------------------------------------------------------


@on_connect("takes the connection and says nothing", refused("no handshake within 2s", **SHORT))
def silence_from_the_start(worker: HostileWorker) -> None:
    wait_for_the_end(worker.socket)


@on_connect("closes the connection at once", refused("connection broke during the handshake"))
def close_at_once(worker: HostileWorker) -> None:
    worker.socket.close()
    wait_for_the_end(worker.socket)


@on_connect(
    "ends its direction and goes on reading", refused("connection broke during the handshake")
)
def half_close_at_once(worker: HostileWorker) -> None:
    worker.socket.shutdown(socket.SHUT_WR)
    wait_for_the_end(worker.socket)


@on_connect("speaks something that isn't TLS", refused("no TLS record"))
def not_tls(worker: HostileWorker) -> None:
    worker.socket.sendall(b"SSH-2.0-OpenSSH_9.9\r\n")
    wait_for_the_end(worker.socket)


@on_connect("sends a TLS record that is longer than TLS allows", refused("no TLS record"))
def tls_record_too_long(worker: HostileWorker) -> None:
    worker.socket.sendall(b"\x16\x03\x03\xff\xff" + bytes(65_535))
    wait_for_the_end(worker.socket)


@on_connect("sends a handshake of TLS that is noise", refused("certificate|protocol|message|TLS"))
def tls_of_noise(worker: HostileWorker) -> None:
    worker.socket.sendall(b"\x16\x03\x03\x00\x40" + b"\x02" * 64)
    wait_for_the_end(worker.socket)


@on_connect("sends empty TLS records without end", refused("no session|TLS|bytes"))
def tls_records_without_end(worker: HostileWorker) -> None:
    for _ in range(1000):
        worker.socket.sendall(b"\x14\x03\x03\x00\x01\x01" * 100)
    wait_for_the_end(worker.socket)


@on_connect("sends one byte of TLS every 50 ms", refused("no handshake within 2s", **SHORT))
def slow_drip_of_tls(worker: HostileWorker) -> None:
    worker.socket.settimeout(0.05)
    for byte in b"\x16\x03\x03\x40\x00" + bytes(1000):
        worker.socket.sendall(bytes([byte]))
        try:
            while worker.socket.recv(65_536):
                pass
        except TimeoutError:
            continue
        break
    wait_for_the_end(worker.socket)


@on_connect("agrees on no protocol", refused("agree on the protocol exoskel/1"))
def no_protocol_agreed(worker: HostileWorker) -> None:
    Tls(worker.socket, worker.credential, is_server=True, protocol=b"").complete()
    wait_for_the_end(worker.socket)


@on_connect("agrees on another protocol", refused("TLS failed"))
def other_protocol_agreed(worker: HostileWorker) -> None:
    Tls(worker.socket, worker.credential, is_server=True, protocol=b"h2").complete()
    wait_for_the_end(worker.socket)


@on_connect("completes TLS and says nothing", refused("no handshake within 2s", **SHORT))
def silence_after_tls(worker: HostileWorker) -> None:
    Tls(worker.socket, worker.credential, is_server=True).complete()
    wait_for_the_end(worker.socket)


@on_connect("completes TLS, reads Hello and closes TLS", refused("closed before it answered"))
def close_after_hello(worker: HostileWorker) -> None:
    tls = Tls(worker.socket, worker.credential, is_server=True)
    tls.complete()
    tls.receive()
    tls.engine.shutdown()
    tls.write()
    wait_for_the_end(worker.socket)


def honest(_worker: HostileWorker) -> None:
    """Nothing is done instead."""


@on_connect(
    "shows a certificate of another authority", refused("certificate was refused"), "stranger"
)
def other_authority(worker: HostileWorker) -> None:
    honest(worker)


@on_connect("shows a certificate that has expired", refused("expired"), "expired")
def expired_certificate(worker: HostileWorker) -> None:
    honest(worker)


@on_connect("shows a certificate that was revoked", refused("revoked"), "revoked")
def revoked_certificate(worker: HostileWorker) -> None:
    honest(worker)


@on_connect("shows the certificate of a manager", refused("manager"), "manager")
def certificate_of_a_manager(worker: HostileWorker) -> None:
    honest(worker)


@on_connect("shows the certificate of another worker", refused(r"other\.rented"), "other")
def certificate_of_another_name(worker: HostileWorker) -> None:
    honest(worker)


# --- Accept ----------------------------------------------------------------------------------------


def send(handshake: Handshake, answer: bytes) -> None:
    """Send the bytes of an answer as one record, and go on with them as if they were right."""
    handshake.answer_bytes = answer
    handshake.tls.send(answer)


def change(handshake: Handshake, **fields: object) -> None:
    """Send an Accept that says something else."""
    handshake.answer |= fields
    send(handshake, encode_accept(handshake.answer))


@on_accept("begins Accept with another magic", refused("cannot read the peer's handshake message"))
def wrong_magic(handshake: Handshake) -> None:
    send(handshake, b"exoskul\0" + encode_accept(handshake.answer)[8:])


@on_accept("answers in version 2", refused("protocol version 2, expected 1"))
def other_version(handshake: Handshake) -> None:
    send(handshake, MAGIC + b"\0\2" + encode_accept(handshake.answer)[10:])


@on_accept(
    "answers with neither Accept nor Refuse", refused("cannot read the peer's handshake message")
)
def unknown_answer(handshake: Handshake) -> None:
    answer = encode_accept(handshake.answer)
    send(handshake, answer[:10] + b"\3" + answer[11:])


@on_accept("cuts Accept short", refused("ends early"))
def short_accept(handshake: Handshake) -> None:
    send(handshake, encode_accept(handshake.answer)[:-3])


@on_accept("puts bytes behind Accept, within the record", refused("too many"))
def long_accept(handshake: Handshake) -> None:
    send(handshake, encode_accept(handshake.answer) + bytes(3))


@on_accept(
    "sends an Accept of 16,200 bytes", refused("over its limit: got 16200, expected at most 16128")
)
def oversize_accept(handshake: Handshake) -> None:
    send(handshake, encode_accept(handshake.answer).ljust(16_200, b"\0"))


@on_accept("sends Accept in two TLS records", refused("ends early"))
def accept_in_two_records(handshake: Handshake) -> None:
    answer = encode_accept(handshake.answer)
    handshake.answer_bytes = answer
    handshake.tls.send(answer[:50])
    handshake.tls.send(answer[50:])


@on_accept("goes on writing TLS after Accept", ended("invalid header"))
def tls_after_accept(handshake: Handshake) -> None:
    answer = encode_accept(handshake.answer)
    handshake.answer_bytes = answer
    handshake.tls.socket.sendall(handshake.tls.seal(answer) + handshake.tls.seal(b"more"))


@on_accept("says that it is a manager", refused("certificate says"))
def accept_of_a_manager(handshake: Handshake) -> None:
    change(handshake, role="manager")


@on_accept("says another name than its certificate", refused("certificate says"))
def accept_of_another_name(handshake: Handshake) -> None:
    change(handshake, name="node1.lab.example.org")


@on_accept("lowers the protection of data to plain", refused("downgrade"))
def downgraded_protection(handshake: Handshake) -> None:
    change(handshake, protections=["encrypted", "encrypted", "plain"])


@on_accept("names a protection that there isn't", refused("got 7 as protection"))
def unknown_protection(handshake: Handshake) -> None:
    answer = bytearray(encode_accept(handshake.answer))
    answer[14 + len(handshake.answer["name"])] = 7
    send(handshake, bytes(answer))


@on_accept("names a cipher that there isn't", refused("got 3 as cipher"))
def unknown_cipher(handshake: Handshake) -> None:
    answer = bytearray(encode_accept(handshake.answer))
    answer[17 + len(handshake.answer["name"])] = 3
    send(handshake, bytes(answer))


@on_accept("has a name of 2,000 bytes", refused("over its limit"))
def huge_name(handshake: Handshake) -> None:
    change(handshake, name="a" * 2000)


@on_accept("puts terminal escapes into a property", refused("not plain UTF-8 text"))
def escapes_in_a_property(handshake: Handshake) -> None:
    change(handshake, properties=[["slots", "1\x1b[2J"]])


@on_accept("has 65 properties", refused("over its limit: got 65, expected at most 64"))
def too_many_properties(handshake: Handshake) -> None:
    change(handshake, properties=[[f"name{number}", "x"] for number in range(65)])


@on_accept("has a property of 1,001 bytes", refused("over its limit: got 1001"))
def huge_property(handshake: Handshake) -> None:
    change(handshake, properties=[["slots", "1" * 1001]])


@on_accept("names a property twice", refused("occurs twice"))
def property_twice(handshake: Handshake) -> None:
    change(handshake, properties=[["slots", "1"], ["slots", "2"]])


@on_accept("says that it has 10^30 slots of process 2^64", harmless())
def absurd_properties(handshake: Handshake) -> None:
    change(handshake, properties=[["slots", "1" + "0" * 30], ["pid", str(1 << 64)]])


@on_accept("has a property that isn't UTF-8", refused("not plain UTF-8 text"))
def property_of_noise(handshake: Handshake) -> None:
    handshake.answer |= {"properties": [["slots", "noise"]]}
    send(handshake, encode_accept(handshake.answer).replace(b"noise", b"\xff\xfe\xfd\xfc\xfb"))


@on_accept("takes messages of 2^63 bytes", refused("message_bytes_max is over its limit"))
def absurd_message_limit(handshake: Handshake) -> None:
    change(handshake, message_bytes_max=1 << 63)


@on_accept("takes 5,000 bulk parts", refused("bulk_parts_max is over its limit"))
def absurd_parts_limit(handshake: Handshake) -> None:
    change(handshake, bulk_parts_max=5000)


@on_accept("takes 2^31 links", refused("links_max is over its limit"))
def absurd_links_limit(handshake: Handshake) -> None:
    change(handshake, links_max=1 << 31)


@on_accept("takes messages of no byte", ended("over the limit message_bytes_max"))
def no_message_fits(handshake: Handshake) -> None:
    change(handshake, message_bytes_max=0)


@on_accept("takes no link", refused("over the limit links_max"))
def no_link_fits(handshake: Handshake) -> None:
    change(handshake, links_max=0)


@on_accept("gives no credit, ever", harmless(wait=5.0))
def no_credit(handshake: Handshake) -> None:
    change(handshake, credit_bytes=0)


@on_accept("wants heartbeats every 0 ms", harmless())
def no_patience(handshake: Handshake) -> None:
    change(handshake, dead_after_milliseconds=0)


@on_accept("lies about the addresses: it says it is in the lab", harmless())
def other_place(handshake: Handshake) -> None:
    change(handshake, path=["10.0.0.1", 1, "10.0.0.2", 2])


@on_accept("runs another Python", refused('got python "3.9" at the peer'))
def other_python(handshake: Handshake) -> None:
    change(handshake, versions=[["python", "3.9"]])


@on_accept("derives its keys from another Accept than it has sent", ended("does not verify"))
def other_transcript(handshake: Handshake) -> None:
    change(handshake)
    handshake.answer_bytes += b"x"


def refuse(reason: int, text: bytes) -> bytes:
    """Make a Refuse of a reason without fields of its own."""
    return MAGIC + struct.pack(">HBB", 1, 2, reason) + struct.pack(">H", len(text)) + text


def send_refusal(handshake: Handshake, refusal: bytes) -> None:
    """Send a Refuse and wait for the manager to go."""
    handshake.tls.send(refusal)
    wait_for_the_end(handshake.tls.socket)


@on_accept("refuses, with terminal escapes in the text", refused("not plain UTF-8 text"))
def refusal_with_escapes(handshake: Handshake) -> None:
    send_refusal(handshake, refuse(3, b"\x1b]0;owned\x07"))


@on_accept("refuses with a text of 5,000 bytes", refused("over its limit"))
def huge_refusal(handshake: Handshake) -> None:
    send_refusal(handshake, refuse(3, b"a" * 5000))


@on_accept("refuses for a reason that there isn't", refused("got 99 as reason"))
def unknown_refusal(handshake: Handshake) -> None:
    send_refusal(handshake, refuse(99, b""))


@on_accept("says that it is busy, whenever it is asked", refused("", **SHORT))
def busy_for_ever(handshake: Handshake) -> None:
    send_refusal(handshake, refuse(5, b"busy with others"))


# --- Hello, of a worker that dials in ----------------------------------------------------------------


def hello(handshake: Handshake, **fields: object) -> bytes:
    """Make the Hello of a worker that dials in, honest but for these fields."""
    minimum = {"floors": ["plain"] * 3, "floors_unproven": ["plain"] * 3}
    version = "{}.{}".format(*__import__("sys").version_info[:2])
    own = handshake.own_fields() | minimum | {"ciphers": ["aes-256-gcm"]}
    own |= {"purpose": {"wants": "session"}}
    return encode_hello(own | {"versions": [["python", version]]} | fields)


@on_greet(
    "dials in and sends a Hello of 16,200 bytes", refused("got 16200, expected at most 16128")
)
def oversize_hello(handshake: Handshake) -> None:
    handshake.tls.send(hello(handshake).ljust(16_200, b"\0"))


@on_greet("dials in and says Hello with another magic", refused("cannot read"))
def hello_of_another_magic(handshake: Handshake) -> None:
    handshake.tls.send(b"exoskul\0" + hello(handshake)[8:])


@on_greet("dials in with version 7", refused("protocol version 7, expected 1"))
def hello_of_another_version(handshake: Handshake) -> None:
    handshake.tls.send(MAGIC + b"\0\7" + hello(handshake)[10:])


@on_greet("dials in and says that it is a manager", refused("certificate says"))
def hello_of_a_manager(handshake: Handshake) -> None:
    handshake.tls.send(hello(handshake, role="manager"))


@on_greet("dials in with no cipher", refused("cipher"))
def hello_without_a_cipher(handshake: Handshake) -> None:
    handshake.tls.send(hello(handshake, ciphers=[]))


# With the handshake's last flight, the two records may come at once.
@on_greet(
    "dials in and sends Hello in two records",
    refused("ends early|more bytes than one record"),
)
def hello_in_two_records(handshake: Handshake) -> None:
    whole = hello(handshake)
    handshake.tls.socket.sendall(handshake.tls.seal(whole[:40]) + handshake.tls.seal(whole[40:]))


@on_greet(
    "dials in with terminal escapes as its version of Python", refused("not plain UTF-8 text")
)
def escapes_in_a_version(handshake: Handshake) -> None:
    handshake.tls.send(hello(handshake, versions=[["python", "3\x1b[2J"]]))


@on_greet("dials in and never says Hello", refused("no handshake within", **SHORT))
def silence_before_hello(handshake: Handshake) -> None:
    wait_for_the_end(handshake.tls.socket)


# Those who say nothing make room long before the time of a handshake is over.
@on_greet(
    "dials in a hundred times and says nothing",
    refused("others needed its place", connect_timeout=3.0),
)
def silent_crowd(handshake: Handshake) -> None:
    manager = handshake.tls.socket.getpeername()
    with contextlib.ExitStack() as crowd:
        for _ in range(100):
            crowd.enter_context(socket.create_connection(manager))
        wait_for_the_end(handshake.tls.socket)
