"""Programs for hosts of the discovery tests: one announces lies, one floods a network with them."""

from __future__ import annotations

import socket
import struct
import sys

from exoskel import _core

_GROUP = ("224.0.0.251", 5353)
_SERVICE = "_exoskel._tcp.local"
_POINTER, _TEXT, _SERVICE_PLACE, _ADDRESS = 12, 16, 33, 1
_ENTRIES_OF_MESSAGE = 8


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
    else:
        flood(sys.argv[2], sys.argv[3], int(sys.argv[4]))
