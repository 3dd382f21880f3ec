"""Our lanes in Python: a request and its answer, between two processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy
from benches.links.credentials import issue
from benches.links.turns import Turn, take_turns

from exoskel import links

PLAIN = """\
[domain.here]
addresses = ["127.0.0.0/8"]
names = ["*"]

[[rule]]
from = "here"
to = "here"
protection = "plain"
"""
PATIENCE_SECONDS = 30
# Larger values are arrays, which aren't copied, as the other library's larger frames.
COPIED_BYTES_MAX = 65536


def far(folder: Path) -> None:
    """Echo, for three kinds of links, until standard input ends."""
    node = links.Node(
        folder / "far.pem",
        policy=folder / "policy.toml",
        listen=["127.0.0.1:0", f"unix:{folder / 'socket'}"],
    )
    tcp, unix = node.hints
    for name, protection, hint in (
        ("python_exoskel_plain", "plain", tcp),
        ("python_exoskel_encrypted", "encrypted", tcp),
        ("python_exoskel_chosen_plain", "plain", unix),
        ("python_exoskel_chosen_encrypted", "encrypted", unix),
    ):
        endpoint = node.endpoint(name, protection=protection)  # type: ignore[arg-type]

        @endpoint.handler
        def echo(value: object) -> object:
            return value

        print(name, endpoint.startpoint(to="*").with_hints([hint]).text(), flush=True)
    print("end", flush=True)
    sys.stdin.read()
    node.close()


def turn(binding: links.Binding) -> Turn:
    """Ask and wait."""

    def play(size: int, count: int) -> None:
        value = bytes(size) if size <= COPIED_BYTES_MAX else numpy.zeros(size, numpy.uint8)
        for _ in range(count):
            if len(binding.request("echo", value).result(PATIENCE_SECONDS)) != size:
                raise AssertionError("the answer is not what was asked")

    return play


def near(folder: Path) -> None:
    """Ask what is to be asked."""
    (folder / "policy.toml").write_text(PLAIN)
    issue(folder, [("peer", name) for name in ("far", "near-tcp", "near-unix")])
    command = [sys.executable, "-m", "benches.links.exoskel_lanes", str(folder)]
    other = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert other.stdout
    nodes = {
        # A node has one session with another one: a node for each method.
        method: links.Node(folder / f"near-{method}.pem", policy=folder / "policy.toml")
        for method in ("tcp", "unix")
    }
    lanes: dict[str, Turn] = {}
    for line in iter(other.stdout.readline, "end\n"):
        name, text = line.split()
        lanes[name] = turn(nodes["unix" if "chosen" in name else "tcp"].bind(text))
    take_turns(lanes)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        far(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as name:
            near(Path(name))
