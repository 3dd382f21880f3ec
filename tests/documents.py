"""Pages of the documentation, and their blocks as a reader uses them: in order, in a new directory for each page.

- A ``python`` block is a script of its own; an ``sh`` block goes to the shell.
- A block whose first line is a comment with a file name (``# hello.py``, ``/* ocean.c */``) is saved under that name, and not run.
- A ``text`` block that comes next is what the reader sees: standard output and standard error. ``...`` stands for anything.
- ``<!-- exit code N -->`` before a block says how it ends, if it isn't 0.
- ``<!-- serves HOST:PORT -->`` before a block says that it runs, listening there, until the end of the page, and then ends by Ctrl-C.
- ``<!-- not run: reason -->`` before a block says why it can't run here.
- ``<!-- site: grid -->`` anywhere gives the page's directory a host certificate, and the reader a proxy and the grid's trust directories.

``python -m tests.documents`` lists what doesn't run.
"""

from __future__ import annotations

import doctest
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from markdown_it import MarkdownIt
from tests.certificates.grid import PRODUCTION, Grid, server_options
from tests.processes import eventually
from tests.site import free_address

from exoskel.job_orphans import opened

ROOT = Path(__file__).resolve().parent.parent
REFERENCE = ("administration", "executor", "patience", "service", "workers")
BLOCK_SECONDS = 300.0
GRID = "<!-- site: grid -->"

_NAMED = re.compile(r"(?:#|/\*|!) ([\w-]+\.\w+)(?: \*/)?$")
_COMMENT = re.compile(
    r"<!-- (?:not run: (?P<reason>.+?)|exit code (?P<code>\d+)|serves (?P<serves>\S+)) -->",
    re.DOTALL,
)
# Two runs of the tests at one time must not listen at one port.
_PORT = re.compile(r"(?:(?<=:)|(?<=--port ))(?:76\d\d|80\d\d|84\d\d)\b")


class Block(NamedTuple):
    """A fenced block of a page."""

    line: int
    """Where it begins."""
    language: str
    """What stands behind the fence."""
    source: str
    """What it holds."""
    file: str | None
    """The file that it is, if it isn't run."""
    code: int
    """How it ends."""
    serves: str | None
    """Where it listens until the end of the page."""
    not_run: str | None
    """Why it can't run."""
    shown: str | None
    """What the page says that the reader sees."""


def pages() -> list[Path]:
    """Every page whose blocks run."""
    reference = [ROOT / "docs" / f"{name}.md" for name in REFERENCE]
    return [ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md")), *reference]


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page that are saved, run, or left out for a reason."""
    found: list[Block] = []
    said: dict[str, str | None] = {}
    is_output_next = False
    for token in MarkdownIt().parse(text):
        if token.type == "html_block" and (comment := _COMMENT.match(token.content)):
            said = comment.groupdict()
        elif token.type == "fence":
            named = _NAMED.match(token.content.partition("\n")[0])
            runs = token.info in ("python", "sh") and named is None
            if token.info == "text" and named is None and is_output_next:
                found[-1] = found[-1]._replace(shown=token.content)
            elif runs or named:
                assert token.map is not None
                file = named[1] if named else None
                line, code = token.map[0] + 1, int(said.get("code") or 0)
                found.append(
                    Block(
                        line=line,
                        language=token.info,
                        source=token.content,
                        file=file,
                        code=code,
                        serves=said.get("serves"),
                        not_run=said.get("reason"),
                        shown=None,
                    )
                )
            is_output_next = runs
            said = {}
        elif token.type == "heading_open":
            is_output_next = False
    return found


class Reader:
    """Somebody who does what a page says, block by block.

    Parameters
    ----------
    directory : Path
        An empty directory, for the reader's home and the page's files.
    has_grid : bool
        Whether the reader is somebody in a grid.
    """

    def __init__(self, directory: Path, has_grid: bool = False) -> None:
        self._home = directory / "home"
        self._place = directory / "page"
        self._home.mkdir()
        self._place.mkdir()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, "HOME": str(self._home), "PATH": path}
        self._ports: dict[str, str] = {}
        self._servers: list[tuple[subprocess.Popen[bytes], str]] = []
        if has_grid:
            grid = Grid(directory / "grid")
            server_options(grid, self._place)
            proxy = grid.proxy(grid.user(), PRODUCTION).write(directory / "proxy")
            self._environment["X509_USER_PROXY"] = str(proxy)
            self._environment["X509_CERT_DIR"] = str(grid.anchors)
            self._environment["X509_VOMS_DIR"] = str(grid.vomsdir)

    def follow(self, block: Block) -> tuple[int, str]:
        """Save or run a block; return how it ended and what was to be seen."""
        source = _PORT.sub(self._port, block.source)
        if block.file is not None:
            (self._place / block.file).write_text(source)
            return 0, ""
        if block.language == "python":
            (self._place / "script.py").write_text(source)
            command = ["python", "script.py"]
        else:
            command = ["bash", "-eu", "-o", "pipefail", "-c", source]
        if block.serves is not None:
            return self._serve(command, _PORT.sub(self._port, block.serves))
        with subprocess.Popen(
            command,
            cwd=self._place,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                said, _ = process.communicate(timeout=BLOCK_SECONDS)
            except BaseException:
                # What it has started in the background, too.
                os.killpg(process.pid, signal.SIGKILL)
                raise
        for page_port, port in self._ports.items():
            said = said.replace(f":{port}", f":{page_port}")
        return process.returncode, said

    def end(self) -> list[str]:
        """End what serves, as Ctrl-C does, and say what lives on: that, and workers in the background."""
        left = []
        for server, source in self._servers:
            os.killpg(server.pid, signal.SIGINT)
            try:
                server.wait(BLOCK_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(server.pid, signal.SIGKILL)
                server.wait()
                left.append(source)
        for file in sorted((self._home / ".exoskel" / "run").glob("*.pid")):
            worker = opened(file.read_text().split()[0])
            if worker is not None:
                signal.pidfd_send_signal(worker, signal.SIGKILL)
                os.close(worker)
            left.append(file.stem)
        return left

    def _serve(self, command: list[str], address: str) -> tuple[int, str]:
        log = self._place.parent / f"server-{len(self._servers)}"
        with open(log, "wb") as file:
            server = subprocess.Popen(
                command,
                cwd=self._place,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._servers.append((server, command[-1]))
        eventually(lambda: server.poll() is not None or _answers(address))
        return server.poll() or 0, log.read_text()

    def _port(self, found: re.Match[str]) -> str:
        if found[0] not in self._ports:
            self._ports[found[0]] = free_address().rpartition(":")[2]
        return self._ports[found[0]]


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port))).close()
    except OSError:
        return False
    return True


def is_shown(said: str, shown: str) -> bool:
    """Say whether a block's output is what the page shows; no page can show whether the last line has an end."""
    if not said.endswith("\n"):
        said += "\n"
    return doctest.OutputChecker().check_output(shown, said, doctest.ELLIPSIS)


def main() -> None:
    """List the blocks that don't run."""
    for page in pages():
        for block in blocks(page.read_text()):
            if block.not_run:
                print(f"{page.relative_to(ROOT)}:{block.line}: {' '.join(block.not_run.split())}")


if __name__ == "__main__":
    main()
