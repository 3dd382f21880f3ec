"""Refused uploads over HTTP/2: a client such as curl reads its 403, whatever it had left to send."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from tests.certificates.grid import Grid, Holder
from tests.front import Front
from tests.test_front_rules import APPLICATION, configure

SMALL_TRIES = 20
LARGE_BYTES = 3_000_000
LARGE_TRIES = 3

PATHS = """
[[path]]
prefix = "/health"
certificate = false

[[path]]
prefix = "/files"
action = "submit"

[[path]]
prefix = "/results"

[[path]]
prefix = "/plain"
"""


def curl(front: Front, who: Holder | None, path: str, *words: str) -> str:
    """The status that curl has read, and its own complaint."""
    host, _, port = front.address.rpartition(":")
    command = ["curl", "-sS", "--http2", "-o", "/dev/null", "-w", "%{http_version} %{http_code}"]
    command += ["--cacert", str(front.grid.anchors / "0e50e150.0"), "--max-time", "20"]
    if who is not None:
        command += ["--cert", str(who.write(front.place / "curl.pem"))]
    done = subprocess.run(
        [*command, *words, f"https://{host}:{port}{path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    return f"{done.stdout} {done.stderr}".strip()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_reads_why_its_upload_is_refused(front: Front) -> None:
    front.uvicorn(*configure(front, PATHS), application=APPLICATION)
    small, large = front.place / "small", front.place / "large"
    small.write_bytes(b"abc")
    large.write_bytes(bytes(LARGE_BYTES))
    clients = [front.grid.user(), None, Grid(front.place / "elsewhere").user()]
    uploads = [
        ("/files/z", ["-T", str(small)], SMALL_TRIES),
        ("/files/z", ["-X", "PUT", "-d", "hello"], SMALL_TRIES),
        ("/files/z", ["-T", str(large)], LARGE_TRIES),
        # No rule is about this one.
        ("/elsewhere", ["-T", str(small)], SMALL_TRIES),
    ]
    # The server behind refuses these without a look at their bodies.
    behind = [
        ("/plain/x", ["-T", str(small)], SMALL_TRIES),
        ("/plain/x", ["-T", str(large)], LARGE_TRIES),
    ]
    for who in clients:
        for path, words, tries in uploads + (behind if who is clients[0] else []):
            got = [curl(front, who, path, *words) for _ in range(tries)]
            assert got == ["2 403"] * tries, (path, words)
