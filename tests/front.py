"""`exoskel front` and a server behind it, in processes of their own."""

from __future__ import annotations

import json
import secrets
import shutil
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import ExitStack
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from tests.certificates.grid import PRODUCTION, Grid, Holder, server_options, write_private
from tests.processes import eventually

APPLICATION = """
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Request, WebSocket

from exoskel.asgi import GridIdentity, Identity, require

app = FastAPI()
app.add_middleware(GridIdentity, secret="secret")
Production = Annotated[Identity, Depends(require(fqan="PRODUCTION", limited=False))]


@app.get("/whoami")
def whoami(who: Annotated[Identity, Depends(require())], request: Request) -> Any:
    chain = request.scope["extensions"]["tls"]["client_cert_chain"]
    headers = [name for name, _ in request.headers.items()]
    return {"dn": who.dn, "vo": who.vo, "fqans": who.fqans, "chain": chain, "headers": headers}


@app.post("/jobs")
async def jobs(who: Production, request: Request) -> Any:
    return {"owner": who.dn, "bytes": len(await request.body())}


@app.websocket("/talk")
async def talk(socket: WebSocket, who: Production) -> None:
    await socket.accept()
    await socket.send_text(f"{who.dn} says {await socket.receive_text()}")
    await socket.close()
""".replace("PRODUCTION", PRODUCTION)

NODE = """
const http = require("http");
const server = http.createServer((request, response) => {
  let bytes = 0;
  request.on("data", (part) => { bytes += part.length; });
  request.on("end", () => {
    response.setHeader("Content-Type", "application/json");
    response.end(JSON.stringify({ headers: request.headers, bytes }));
  });
});
server.listen(process.argv[2], () => console.log("listening"));
"""


class Front:
    """A front before some server, both in processes of their own."""

    def __init__(self, grid: Grid, place: Path) -> None:
        self.grid = grid
        self.place = place
        self.address = ""
        self.options = server_options(grid, place)
        self.secret = write_private(place / "secret", secrets.token_hex(32).encode() + b"\n")
        self._processes = ExitStack()

    def words(self, *more: str) -> list[str]:
        """The options that every front here has."""
        names = ("listen", "certificate", "key", "trust_anchors", "vomsdir", "audit")
        pairs = [(f"--{name.replace('_', '-')}", str(self.options[name])) for name in names]
        return [*(word for pair in pairs for word in pair), *more]

    def start(self, *more: str) -> subprocess.Popen[str]:
        """Start the front, and wait until it listens."""
        command = [sys.executable, "-P", "-m", "exoskel", "front", "--json", *self.words(*more)]
        process = self.run(command)
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said, (self.place / "errors").read_text()
        self.address = json.loads(said)["listen"]
        return process

    def run(self, command: list[str]) -> subprocess.Popen[str]:
        """Start a process; it ends with the test."""
        with open(self.place / "errors", "ab") as errors:
            process = subprocess.Popen(
                command, cwd=self.place, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._processes.callback(end, process)
        return process

    def uvicorn(self, *more: str, application: str = APPLICATION) -> subprocess.Popen[str]:
        """Start an unchanged uvicorn with an application of FastAPI's, and the front, which is returned."""
        (self.place / "application.py").write_text(application)
        path = self.place / "app.sock"
        # Only the front reaches the socket, so what it says of clients can be believed.
        trusted = ["--uds", str(path), "--forwarded-allow-ips", "*"]
        self.run([sys.executable, "-m", "uvicorn", "application:app", *trusted])
        assert eventually(lambda: reachable(path)), (self.place / "errors").read_text()
        secret = ("--secret", str(self.secret))
        return self.start("--upstream", f"unix:{path}", *secret, *more)

    def node(self, *more: str) -> subprocess.Popen[str]:
        """Start an unchanged server of Node's, and the front, which is returned."""
        node = shutil.which("node")
        if node is None:
            pytest.skip("node (Debian's nodejs) is not installed")
        (self.place / "server.js").write_text(NODE)
        path = self.place / "node.sock"
        process = self.run([node, "server.js", str(path)])
        assert process.stdout is not None
        assert process.stdout.readline() == "listening\n"
        return self.start("--upstream", f"unix:{path}", *more)

    def context(self, who: Holder | None) -> ssl.SSLContext:
        """What a client brings."""
        context = ssl.create_default_context(cafile=self.grid.anchors / "0e50e150.0")
        if who is not None:
            # A file for each thread: clients come at the same time.
            context.load_cert_chain(who.write(self.place / f"client-{threading.get_ident()}.pem"))
        return context

    def ask(
        self,
        who: Holder | None,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Send a request over a new connection."""
        host, _, port = self.address.rpartition(":")
        connection = HTTPSConnection(host, int(port), context=self.context(who), timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, json.loads(response.read())
        finally:
            connection.close()

    def status(self, who: Holder | None, method: str, path: str) -> tuple[int, str]:
        """The status and the text of an answer over a new connection."""
        host, _, port = self.address.rpartition(":")
        connection = HTTPSConnection(host, int(port), context=self.context(who), timeout=60)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response.status, response.read().decode()
        finally:
            connection.close()

    def close(self) -> None:
        """End everything."""
        self._processes.close()


def end(process: subprocess.Popen[str]) -> None:
    with process:
        process.terminate()


def reachable(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
