"""A line with a delay between two hosts: ``delay_line.py NEAR_PID FAR_PID MILLISECONDS`` makes a device in the network of each, and runs until it is ended.

What one end sends comes out at the other so much later, as from a kernel with `netem`. The hosts are network namespaces, named by a process in each; root is
needed. The near end is 10.78.0.1, the far end 10.78.0.2.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import itertools
import os
import select
import struct
import subprocess
import sys
import time

ADDRESSES = ("10.78.0.1", "10.78.0.2")
# Of `linux/if_tun.h`: a device of packets, without a word before each.
TUN_SET_INTERFACE, TUN, NO_WORD = 0x400454CA, 0x0001, 0x1000
NEW_NETWORK = 0x40000000
PACKET_BYTES_MAX = 1 << 16
# As on other lines of such length.
QUEUE_PACKETS = 10_000


def end_of(process: int, address: str) -> int:
    """Make a device in the network of a process, and return the descriptor of its packets."""
    with open(f"/proc/{process}/ns/net", "rb") as network:
        if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), NEW_NETWORK):
            raise OSError(ctypes.get_errno(), "can't enter the network of a host")
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUN_SET_INTERFACE, struct.pack("16sH", b"delay", TUN | NO_WORD))
    other = ADDRESSES[ADDRESSES[0] == address]
    for words in (
        ["ip", "address", "add", address, "peer", other, "dev", "delay"],
        ["ip", "link", "set", "delay", "up", "txqueuelen", str(QUEUE_PACKETS)],
    ):
        subprocess.run(words, check=True)
    return device


def carry(ends: list[int], seconds: float) -> None:
    """Carry packets from each end to the other."""
    ready = select.poll()
    for end in ends:
        ready.register(end, select.POLLIN)
    # By when they are due; of the same moment, the first first.
    flying: list[tuple[float, int, int, bytes]] = []
    numbers = itertools.count()
    while True:
        now = time.monotonic()
        while flying and flying[0][0] <= now:
            _, _, end, packet = heapq.heappop(flying)
            try:
                os.write(end, packet)
            except BlockingIOError:
                # As a line does that is full.
                continue
        left = max(0, (flying[0][0] - now) * 1000) if flying else None
        for end, _ in ready.poll(left):
            other = ends[ends[0] == end]
            while True:
                try:
                    packet = os.read(end, PACKET_BYTES_MAX)
                except BlockingIOError:
                    break
                heapq.heappush(flying, (time.monotonic() + seconds, next(numbers), other, packet))


def main() -> None:
    """Make the line, say so, and carry."""
    near, far, milliseconds = sys.argv[1:]
    ends = [
        end_of(int(process), address)
        for process, address in zip((near, far), ADDRESSES, strict=True)
    ]
    print("ready", flush=True)
    carry(ends, float(milliseconds) / 1000)


if __name__ == "__main__":
    main()
