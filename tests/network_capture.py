"""What somebody on the wire sees: ``python -m tests.network_capture DEVICE`` counts packets, and those with each marker, when it is asked."""

from __future__ import annotations

import json
import os
import re
import select
import socket
import struct
import sys

ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_STATISTICS = 6
SO_RCVBUFFORCE = 33
PACKET_BYTES_MAX = 1 << 18
BUFFER_BYTES = 256 << 20
MARKER = re.compile(rb"MARKER-(\w+)-")


class Capture:
    """A device that is watched."""

    def __init__(self, wire: socket.socket) -> None:
        self.wire = wire
        self.seen: dict[str, int] = {"packets": 0, "bytes": 0, "missed": 0}
        # What the kernel has had for us, with what it had to drop.
        self.had = 0

    def take(self) -> None:
        """Look at one packet."""
        packet = self.wire.recv(PACKET_BYTES_MAX)
        self.seen["packets"] += 1
        self.seen["bytes"] += len(packet)
        # One packet may have the end of one message and the beginning of the next one.
        for start in {packet.find(b"MARKER-"), max(0, packet.rfind(b"MARKER-") - 100)}:
            if found := MARKER.search(packet, max(0, start)):
                marker = found[1].decode()
                self.seen[marker] = self.seen.get(marker, 0) + 1

    def count(self) -> dict[str, int]:
        """Look at all that has passed by now."""
        had, missed = struct.unpack("II", self.wire.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8))
        self.had += had
        self.seen["missed"] += missed
        while self.seen["packets"] < self.had - self.seen["missed"]:
            self.take()
        return self.seen


def main(name: str) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as wire:
        wire.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER_BYTES)
        wire.bind((name, ETH_P_ALL))
        capture = Capture(wire)
        print("ready", flush=True)
        while True:
            readable, _, _ = select.select([0, wire.fileno()], [], [])
            if wire.fileno() in readable:
                capture.take()
            if 0 in readable:
                if not os.read(0, 4096):
                    return
                print(json.dumps({"said": capture.count()}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
