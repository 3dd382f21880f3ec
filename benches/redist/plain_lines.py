"""What the lines of a network give plain TCP, when each of some hosts sends to each of others at the same time.

``plain_lines.py receive ADDRESS STREAMS BYTES VERSIONS`` takes so many bytes of each stream for each version, and prints when all were there;
``plain_lines.py send BYTES VERSIONS ADDRESS...`` sends at each line of its input, and prints when it began. Times are in nanoseconds.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence

PORT = 7801
READ_BYTES = 1 << 18


def all_at_once(work: Callable[[socket.socket], None], streams: Sequence[socket.socket]) -> None:
    """Do something for each stream, with a thread for each."""
    threads = [threading.Thread(target=work, args=[stream]) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def receive(address: str, count: int, length: int, versions: int) -> None:
    """Take what comes."""
    rooms = threading.local()

    def take(stream: socket.socket) -> None:
        room = rooms.__dict__.setdefault("room", memoryview(bytearray(READ_BYTES)))
        left = length
        while left:
            got = stream.recv_into(room[: min(left, READ_BYTES)])
            if not got:
                raise EOFError(f"{left} of {length} bytes are missing")
            left -= got

    with socket.create_server((address, PORT), backlog=count) as listener:
        print("ready", flush=True)
        streams = [listener.accept()[0] for _ in range(count)]
    for _ in range(versions):
        all_at_once(take, streams)
        print(time.monotonic_ns(), flush=True)


def send(length: int, versions: int, addresses: Sequence[str]) -> None:
    """Send when told to."""
    streams = [socket.create_connection((address, PORT)) for address in addresses]
    print("ready", flush=True)
    contents = bytes(length)
    for _ in range(versions):
        sys.stdin.readline()
        print(time.monotonic_ns(), flush=True)
        all_at_once(lambda stream: stream.sendall(contents), streams)


def seconds(
    command: Callable[..., list[str]],
    near: Sequence[str],
    far: dict[str, str],
    length: int,
    versions: int,
) -> list[float]:
    """Seconds for each version.

    `command` gives the words that run a command on a host, `near` are the hosts that send, `far` the addresses of those that receive, `length` is
    the bytes of each pair.
    """
    module = (sys.executable, "-u", "-m", "benches.redist.plain_lines")

    def started(host: str, *words: object) -> subprocess.Popen[str]:
        line = command(host, *module, *map(str, words))
        pipe = subprocess.PIPE
        process = subprocess.Popen(line, stdin=pipe, stdout=pipe, text=True)
        assert read(process) == "ready"
        return process

    def read(process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        return process.stdout.readline().strip()

    def tell(process: subprocess.Popen[str]) -> None:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()

    targets = [
        started(host, "receive", address, len(near), length, versions)
        for host, address in far.items()
    ]
    sources = [started(host, "send", length, versions, *far.values()) for host in near]
    times = []
    for _ in range(versions):
        for source in sources:
            tell(source)
        begin = min(int(read(source)) for source in sources)
        times.append((max(int(read(target)) for target in targets) - begin) / 1e9)
    for process in (*sources, *targets):
        with process:
            pass
    return times


def main() -> None:
    """One of the two."""
    role, *words = sys.argv[1:]
    if role == "receive":
        receive(words[0], *map(int, words[1:]))
    else:
        send(int(words[0]), int(words[1]), words[2:])


if __name__ == "__main__":
    main()
