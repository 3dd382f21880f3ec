"""grpcio: unary calls with bytes as they are, between two processes, plain and with TLS at both ends."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from benches.links.turns import Turn, take_turns

METHOD = "/bench.Echo/echo"
NO_LIMIT = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


def far(folder: Path) -> None:
    """Echo at two ports, until killed."""
    handler = grpc.unary_unary_rpc_method_handler(lambda value, _: value)
    handlers = grpc.method_handlers_generic_handler("bench.Echo", {"echo": handler})
    server = grpc.server(ThreadPoolExecutor(2), options=NO_LIMIT)
    server.add_generic_rpc_handlers((handlers,))
    authority, chain, key = (
        (folder / name).read_bytes() for name in ("authority.pem", "chain.pem", "key.pem")
    )
    secure = grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=True)
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    print(server.add_secure_port("127.0.0.1:0", secure), flush=True)
    server.start()
    server.wait_for_termination()


def turn(channel: Any) -> Turn:
    """Ask and wait."""
    echo = channel.unary_unary(METHOD)

    def play(size: int, count: int) -> None:
        value = bytes(size)
        for _ in range(count):
            if len(echo(value)) != size:
                raise AssertionError("the answer is not what was asked")

    return play


def main(folder: Path) -> None:
    """Connect both kinds."""
    command = [sys.executable, "-m", "benches.links.grpcio_lanes", str(folder), "far"]
    other = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert other.stdout
    plain, secure = int(other.stdout.readline()), int(other.stdout.readline())
    authority, chain, key = (
        (folder / name).read_bytes() for name in ("authority.pem", "chain.pem", "key.pem")
    )
    credentials = grpc.ssl_channel_credentials(authority, key, chain)
    take_turns(
        {
            "python_grpcio_plain": turn(
                grpc.insecure_channel(f"127.0.0.1:{plain}", options=NO_LIMIT)
            ),
            "python_grpcio_tls": turn(
                grpc.secure_channel(f"localhost:{secure}", credentials, options=NO_LIMIT)
            ),
        }
    )


if __name__ == "__main__":
    if len(sys.argv) > 2:
        far(Path(sys.argv[1]))
    else:
        main(Path(sys.argv[1]))
