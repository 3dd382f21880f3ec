"""The real OpenSSH: a server of its own, on loopback, with keys of its own."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.processes import eventually
from tests.site import free_address

__all__ = ["missing", "server"]

CONFIGURATION = """
Port {port}
ListenAddress 127.0.0.1
HostKey {place}/host
AuthorizedKeysFile {place}/user.pub
PidFile none
StrictModes no
UsePAM no
"""


def missing() -> str | None:
    """Say what can't be found of it."""
    if _sshd() is None or shutil.which("ssh") is None:
        return "sshd or ssh is missing: apt-get install openssh-server"
    return None


def _sshd() -> str | None:
    return shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:/usr/bin")


@contextlib.contextmanager
def server(place: Path, home: Path | None = None) -> Iterator[list[str]]:
    """Run a server with a folder of its own, and yield the command that leads to it. Another home than the account's can be given."""
    for name in ("host", "user"):
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(place / name)]
        subprocess.run(words, check=True)
    port = int(free_address().rpartition(":")[2])
    configuration = place / "configuration"
    told = CONFIGURATION.format(port=port, place=place)
    configuration.write_text(told if home is None else f"{told}SetEnv HOME={home}\n")
    # Where Debian's server gives up its rights; it has to be there.
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    log = place / "log"
    words = [str(_sshd()), "-D", "-f", str(configuration), "-E", str(log)]
    with subprocess.Popen(words) as process:
        try:
            assert eventually(lambda: _is_listening(port)), log.read_text()
            options = ["BatchMode=yes", "StrictHostKeyChecking=accept-new"]
            options += [f"UserKnownHostsFile={place / 'known'}", f"IdentityFile={place / 'user'}"]
            known = [word for option in options for word in ("-o", option)]
            yield ["ssh", "-q", "-p", str(port), *known]
        finally:
            process.terminate()


def _is_listening(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0
