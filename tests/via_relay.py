"""A program that connects to HOST PORT and joins that with its own input and output, as ``ssh -W`` does."""

import os
import socket
import sys
import threading


def main(host: str, port: str) -> None:
    """Carry bytes both ways until both ends are done."""
    with socket.create_connection((host.strip("[]"), int(port))) as peer:
        there = threading.Thread(target=carry_there, args=[peer], daemon=True)
        there.start()
        while data := peer.recv(1 << 16):
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()


def carry_there(peer: socket.socket) -> None:
    """Carry what comes in."""
    while data := os.read(sys.stdin.fileno(), 1 << 16):
        peer.sendall(data)
    peer.shutdown(socket.SHUT_WR)


if __name__ == "__main__":
    main(*sys.argv[1:])
