"""pyzmq: REQ and REP over TCP between two processes, plain and with CURVE."""

from __future__ import annotations

import subprocess
import sys

import zmq
from benches.links.turns import Turn, take_turns

# Larger frames are handed over without a copy, as pyzmq's documentation recommends.
COPIED_BYTES_MAX = 65536


def far(public: str, secret: str) -> None:
    """Echo on two sockets, until killed."""
    context = zmq.Context()
    sockets = []
    for is_secure in (False, True):
        socket = context.socket(zmq.REP)
        if is_secure:
            socket.setsockopt(zmq.CURVE_SERVER, 1)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, public.encode())
            socket.setsockopt(zmq.CURVE_SECRETKEY, secret.encode())
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        sockets.append(socket)
        print(port, flush=True)
    poller = zmq.Poller()
    for socket in sockets:
        poller.register(socket, zmq.POLLIN)
    while True:
        for socket, _ in poller.poll():
            frame = socket.recv(copy=False)
            socket.send(frame, copy=len(frame) <= COPIED_BYTES_MAX)


def turn(socket: zmq.Socket) -> Turn:
    """Ask and wait."""

    def play(size: int, count: int) -> None:
        value = bytes(size)
        is_copied = size <= COPIED_BYTES_MAX
        for _ in range(count):
            socket.send(value, copy=is_copied)
            if len(socket.recv(copy=is_copied)) != size:
                raise AssertionError("the answer is not what was asked")

    return play


def main() -> None:
    """Connect both kinds."""
    public, secret = zmq.curve_keypair()
    own_public, own_secret = zmq.curve_keypair()
    command = [sys.executable, "-m", "benches.links.pyzmq_lanes", public, secret]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout
    context = zmq.Context()
    lanes: dict[str, Turn] = {}
    for name in ("python_pyzmq_plain", "python_pyzmq_curve"):
        socket = context.socket(zmq.REQ)
        if name.endswith("curve"):
            socket.setsockopt(zmq.CURVE_SERVERKEY, public)
            socket.setsockopt(zmq.CURVE_PUBLICKEY, own_public)
            socket.setsockopt(zmq.CURVE_SECRETKEY, own_secret)
        socket.connect(f"tcp://127.0.0.1:{int(other.stdout.readline())}")
        lanes[name] = turn(socket)
    take_turns(lanes)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        far(sys.argv[1], sys.argv[2])
    else:
        main()
