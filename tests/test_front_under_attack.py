"""A front whose clients mean harm: its memory is bounded, it stays up, and honest clients are served meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import re
import resource
import socket
import ssl
import threading
import urllib.request
from collections import deque
from http.client import HTTPException
from typing import Self

import pytest
from tests.certificates.grid import Holder
from tests.front import Front
from tests.processes import eventually
from tests.site import free_address

CONNECTIONS = 10_000
# What connections_per_address_max leaves to one client.
OF_ONE_ADDRESS = 500
# Of docs/administration.md: the default of handshakes_max, and what one handshake may take of the front's memory. That is a message of
# 64 KiB, which is all that the TLS engine collects, and its state.
HANDSHAKES_MAX = 2048
HANDSHAKE_BYTES = 96 * 1024
# Beside the handshakes: those that are just being refused, the verdicts on chains, the allocator's own.
BESIDE_BYTES = 32 << 20


def client_hello() -> bytes:
    """The first message of an ordinary client."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(
        ssl.MemoryBIO(), outgoing, server_hostname="localhost"
    )
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def unfinished_hello() -> bytes:
    """The longest message that a TLS engine collects, but for its last bytes."""
    message = b"\x01\x00\xff\xf0" + bytes(0xFFF0 - 16)
    records = (message[at : at + (1 << 14)] for at in range(0, len(message), 1 << 14))
    return b"".join(b"\x16\x03\x01" + len(one).to_bytes(2, "big") + one for one in records)


class Attacker:
    """A client of many addresses that begins handshakes and stops in the middle, more and more until it is told to stop."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._server = (host, int(port))
        self._held: deque[socket.socket] = deque(maxlen=CONNECTIONS)
        self._enough = threading.Event()
        self.has_all = threading.Event()
        self._thread = threading.Thread(target=self._attack)

    def __enter__(self) -> Self:
        """Begin."""
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._limits[1], self._limits[1]))
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Let go of everything."""
        self._enough.set()
        self._thread.join()
        for one in self._held:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)

    def _attack(self) -> None:
        # The worst ones first: nobody is there yet who could have their places.
        kinds = [unfinished_hello(), client_hello(), b"", bytes(range(256)) * 16]
        for number in itertools.count():
            if self._enough.is_set():
                return
            kind = kinds[number * len(kinds) // CONNECTIONS % len(kinds)]
            host = f"127.0.1.{1 + number // OF_ONE_ADDRESS % (CONNECTIONS // OF_ONE_ADDRESS)}"
            one = socket.socket()
            if len(self._held) == CONNECTIONS:
                self._held[0].close()
            self._held.append(one)
            one.bind((host, 0))
            # A reset may be there before the connection is.
            with contextlib.suppress(ConnectionError):
                one.connect(self._server)
                one.sendall(kind)
            if number == CONNECTIONS:
                self.has_all.set()


def memory(process: int, what: str) -> int:
    """`VmRSS` or `VmHWM` of a process, in bytes."""
    with open(f"/proc/{process}/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024


def count(monitor: str, name: str) -> int:
    """One of the front's numbers."""
    with urllib.request.urlopen(f"http://{monitor}/metrics", timeout=60) as answer:
        found = re.search(rf"^exoskel_{name} (\d+)$", answer.read().decode(), re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def is_served(front: Front, who: Holder) -> bool:
    """Whether the front lets somebody through to the server behind."""
    try:
        return front.ask(who, "GET", "/whoami")[0] == 200
    except (OSError, HTTPException):
        return False


# `ssl` forgets a socket whose peer resets it before the handshake; the interpreter closes it.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_strangers_take_no_more_than_their_limits(front: Front) -> None:
    """10,000 connections that stop in mid-handshake or send garbage, then chains that are too long and too large."""
    monitor = free_address()
    process = front.uvicorn("--monitor", monitor)
    honest = front.grid.proxy(front.grid.user())
    assert is_served(front, honest)
    before = memory(process.pid, "VmRSS")
    with Attacker(front.address) as attacker:
        for _ in range(3):
            assert eventually(lambda: is_served(front, honest), 60)
        assert attacker.has_all.wait(60)
        for _ in range(3):
            assert eventually(lambda: is_served(front, honest), 60)
        assert count(monitor, "connections_total") > CONNECTIONS
        assert count(monitor, "handshakes_open") <= HANDSHAKES_MAX
    assert memory(process.pid, "VmHWM") - before < HANDSHAKES_MAX * HANDSHAKE_BYTES + BESIDE_BYTES
    long = front.grid.user("Long")
    for _ in range(100):
        long = front.grid.proxy(long)
    large = front.grid.proxy(front.grid.user("Large"), padding=50 * 1024)
    for _ in range(20):
        assert not is_served(front, long)
        assert not is_served(front, large)
    assert is_served(front, honest)
    assert memory(process.pid, "VmHWM") - before < HANDSHAKES_MAX * HANDSHAKE_BYTES + BESIDE_BYTES
    assert count(monitor, "panics_total") == 0
    assert process.poll() is None
