"""Programs for hosts of the discovery tests: one announces lies, one floods a network with them, one is a worker that tells lies of others."""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path
from typing import Any

from tests.independent_session import Credential
from tests.independent_worker import Worker
from tests.task_reference import put_heard

from exoskel import _core

_GROUP = ("224.0.0.251", 5353)
_SERVICE = "_exoskel._tcp.local"
_POINTER, _TEXT, _SERVICE_PLACE, _ADDRESS = 12, 16, 33, 1
_ENTRIES_OF_MESSAGE = 8
# The number of a handler, and the most workers of which it is told at once.
_HEARD, _HEARD_MAX = 15, 256


def lie(name: str, places: list[str]) -> None:
    """Announce a worker of this name at each place until the input ends."""
    said = []
    for place in places:
        address, _, port = place.rpartition(":")
        said.append(_core.Announcement(name, address, int(port)))
    print("ready", flush=True)
    sys.stdin.read()
    for one in said:
        one.close()


def flood(own: str, pattern: str, count: int) -> None:
    """Announce so many workers at once, by messages of our own; each number stands in a name at the star."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(own))
        sender.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
        sender.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sender.bind(("", 5353))
        for first in range(0, count, _ENTRIES_OF_MESSAGE):
            numbers = range(first, min(first + _ENTRIES_OF_MESSAGE, count))
            records = [
                record
                for number in numbers
                for record in _records(number, pattern.replace("*", str(number)), own)
            ]
            head = struct.pack("!6H", 0, 0x8400, 0, len(records), 0, 0)
            sender.sendto(head + b"".join(records), _GROUP)
    print("done", flush=True)


class Teller(Worker):
    """A worker that tells its manager of others, if that wants to know."""

    heard = b""

    def handle_control(self, item: dict[str, Any]) -> None:
        """Tell as soon as the manager has said that it wants to know."""
        super().handle_control(item)
        if item["control"] == "link_accept" and item["link"] == self.result_link:
            assert item["handlers"][_HEARD] == "heard"
            self.session.post(self.result_link, _HEARD, self.heard, [])


def tell(port: int, credential: str, name: str, other: str, lie: str) -> None:
    """Serve managers one after the other, and tell each that workers of two names are at as many ports of an address."""
    Teller.heard = put_heard(
        [((other, name)[number % 2], [(lie, 9000 + number)]) for number in range(_HEARD_MAX)]
    )
    with socket.create_server(("", port)) as listener:
        print("ready", flush=True)
        while True:
            connection, _ = listener.accept()
            with connection:
                Teller(connection, Credential(Path(credential))).serve()


def _records(number: int, name: str, address: str) -> list[bytes]:
    instance, host = f"liar-{number}.{_SERVICE}", f"liar-{number}.local"
    text = f"name={name}".encode()
    return [
        _record(_SERVICE, _POINTER, _words(instance)),
        _record(instance, _SERVICE_PLACE, struct.pack("!3H", 0, 0, 9) + _words(host)),
        _record(instance, _TEXT, bytes([len(text)]) + text),
        _record(host, _ADDRESS, socket.inet_aton(address)),
    ]


def _record(name: str, kind: int, data: bytes) -> bytes:
    return _words(name) + struct.pack("!HHIH", kind, 1, 120, len(data)) + data


def _words(name: str) -> bytes:
    words = [word.encode() for word in name.split(".")]
    return b"".join(bytes([len(word)]) + word for word in words) + b"\0"


if __name__ == "__main__":
    if sys.argv[1] == "lie":
        lie(sys.argv[2], sys.argv[3:])
    elif sys.argv[1] == "tell":
        tell(int(sys.argv[2]), *sys.argv[3:])
    else:
        flood(sys.argv[2], sys.argv[3], int(sys.argv[4]))
