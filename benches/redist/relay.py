"""What the paper's subnet managers did: messages that go on only when they have come whole.

``relay.py forward ADDRESS NEXT`` passes messages on, ``relay.py target ADDRESS COUNT BYTES`` takes them and prints when each was whole, and
``relay.py source NEXT COUNT BYTES`` sends them one by one and prints when each began. Times are in nanoseconds.
"""

from __future__ import annotations

import socket
import sys
import time

PORT = 7800
LENGTH_BYTES = 8


def message(number: int, length: int) -> bytes:
    """What is sent: other bytes for each message."""
    return bytes([number % 251]) * length


def read(connection: socket.socket, length: int) -> bytes:
    """Wait for so many bytes; none if the other end has ended."""
    data = bytearray(length)
    at = 0
    while at < length:
        count = connection.recv_into(memoryview(data)[at:])
        if not count:
            return b""
        at += count
    return bytes(data)


def whole(connection: socket.socket) -> bytes:
    """Wait for a whole message."""
    head = read(connection, LENGTH_BYTES)
    return read(connection, int.from_bytes(head, "big")) if head else b""


def send(connection: socket.socket, contents: bytes) -> None:
    """Send a message."""
    connection.sendall(len(contents).to_bytes(LENGTH_BYTES, "big"))
    connection.sendall(contents)


def accepted(address: str) -> socket.socket:
    """Wait for whoever connects."""
    with socket.create_server((address, PORT)) as listener:
        return listener.accept()[0]


def main() -> None:
    """One of the three."""
    role, address, *more = sys.argv[1:]
    if role == "forward":
        with accepted(address) as before, socket.create_connection((more[0], PORT)) as after:
            while contents := whole(before):
                send(after, contents)
                before.sendall(read(after, 1))
        return
    count, length = map(int, more)
    if role == "source":
        with socket.create_connection((address, PORT)) as connection:
            for number in range(count):
                contents = message(number, length)
                print(time.monotonic_ns(), flush=True)
                send(connection, contents)
                # One message at a time, as the paper's bound has it.
                read(connection, 1)
        return
    with accepted(address) as connection:
        for number in range(count):
            contents = whole(connection)
            print(time.monotonic_ns(), flush=True)
            if contents != message(number, length):
                raise SystemExit("got other bytes than expected")
            connection.sendall(b"!")


main()
