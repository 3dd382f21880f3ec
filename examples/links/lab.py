"""What the examples of links have in common: a private authority in a folder, credentials, and processes that say their startpoint."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def issue(place: Path, *names: str, role: str = "peer") -> None:
    """Give each name a credential, ``NAME.pem``. The authority is made with the first one."""
    authority = place / "authority"
    if not authority.exists():
        exoskel("pki", "init", authority)
    for name in names:
        where = ["--directory", authority, "--output", place / f"{name}.pem"]
        exoskel("pki", "issue", *where, "--role", role, "--name", name)


def exoskel(*words: object) -> None:
    """Run the command line."""
    command = [sys.executable, "-m", "exoskel", *map(str, words), "--json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


@contextmanager
def process(*words: object, network: str | None = None) -> Iterator[str]:
    """Run Python beside this process, perhaps in a network of its own; give its first line, and end it with the block."""
    inside = ["ip", "netns", "exec", network] if network else []
    command = [*inside, sys.executable, *map(str, words)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdin is not None
        assert run.stdout is not None
        yield run.stdout.readline().strip()
        # A script waits for the end of its input, a command for a signal.
        run.stdin.close()
        if words[0] == "-m":
            run.terminate()
