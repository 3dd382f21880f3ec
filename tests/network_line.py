"""A slow wire: two TUN devices, and what comes out of one goes into the other some time later.

``python -m tests.network_line ONE OTHER SECONDS`` makes the devices in its own network namespace. They may be moved. It ends with its input.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import select
import struct
import sys
import time

TUNSETIFF = 0x400454CA
IFF_TUN = 0x0001
IFF_NO_PI = 0x1000
PACKET_BYTES_MAX = 65_536
# What is on its way in one direction at most; what comes above that is dropped, as wires do.
PACKETS_MAX = 100_000


def device(name: str) -> int:
    """Make a TUN device."""
    made = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(made, TUNSETIFF, struct.pack("16sH", name.encode(), IFF_TUN | IFF_NO_PI))
    return made


def main(one: str, other: str, seconds: float) -> None:
    ends = [device(one), device(other)]
    targets = {ends[0]: ends[1], ends[1]: ends[0]}
    under_way: dict[int, collections.deque[tuple[float, bytes]]] = {
        end: collections.deque() for end in ends
    }
    print("ready", flush=True)
    while True:
        due = [packets[0][0] for packets in under_way.values() if packets]
        wait = max(0.0, min(due) - time.monotonic()) if due else None
        readable, _, _ = select.select([0, *ends], [], [], wait)
        if 0 in readable and not os.read(0, 1):
            return
        now = time.monotonic()
        for end in ends:
            packets = under_way[end]
            # A device that is down has nothing, and takes nothing.
            with contextlib.suppress(BlockingIOError, OSError):
                while end in readable:
                    packet = os.read(end, PACKET_BYTES_MAX)
                    if len(packets) < PACKETS_MAX:
                        packets.append((now + seconds, packet))
            while packets and packets[0][0] <= now:
                with contextlib.suppress(OSError):
                    os.write(targets[end], packets.popleft()[1])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], float(sys.argv[3]))
