"""Messages between processes of one account on the hosts of a cluster, as MUNGE credentials: encrypted, signed, opened once."""

from __future__ import annotations

import os
import re
import subprocess

from .errors import ProcessEndedError
from .peer_text import one_line

__all__ = ["BEGIN", "END", "opened", "sealed"]

# How the text of a credential begins and ends.
BEGIN, END = b"MUNGE:", b":"
# How long munged may take.
_SECONDS = 10.0
_CIPHER, _SIGNATURE = "aes256", "sha256"


def sealed(payload: bytes, socket: str | None = None) -> bytes:
    """Return a credential that this account alone can open, once on each host.

    Parameters
    ----------
    payload : bytes
        What is in it. It goes to ``munge`` over its input, as arguments are seen by everybody.
    socket : str, optional
        Where the host's ``munged`` listens, if that is not where it does everywhere.

    Raises
    ------
    ProcessEndedError
        If ``munge`` is missing, or can't make it.
    """
    words = ["munge", "--restrict-uid", str(os.geteuid()), "--cipher", _CIPHER, "--mac", _SIGNATURE]
    return _run(words, payload, socket).strip()


def opened(credential: bytes, socket: str | None = None) -> bytes:
    """Return what is in a credential that a process of this account has made.

    Raises
    ------
    ProcessEndedError
        If ``unmunge`` is missing, or refuses it: because it was opened before, is too old, is of another account or of another cluster.
    """
    # What is said of it first; a blank line stands before the payload.
    words = ["unmunge", "--keys", "STATUS,UID"]
    head, _, payload = _run(words, credential + b"\n", socket).partition(b"\n\n")
    account = re.search(rb"UID:.*\((\d+)\)", head)
    if account is None or int(account[1]) != os.geteuid():
        raise ProcessEndedError(
            f"got a MUNGE credential of {account[0].decode() if account else 'nobody'}, expected one of this account's, {os.geteuid()}"
        )
    return payload


def _run(words: list[str], text: bytes, socket: str | None) -> bytes:
    where = ["--socket", socket] if socket is not None else []
    tool = words[0]
    try:
        done = subprocess.run(
            [*words, *where], input=text, capture_output=True, timeout=_SECONDS, check=False
        )
    except OSError as error:
        raise ProcessEndedError(f"can't start {tool} on {_here()}: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        raise ProcessEndedError(
            f"{tool} on {_here()} has not ended within {_SECONDS:g} seconds"
        ) from None
    if done.returncode:
        # Of a credential that it refuses, unmunge says so where it says who has made it.
        refused = re.search(rb"STATUS: *(.*)", done.stdout)
        said = refused[1] if refused else b"".join(done.stderr.strip().splitlines()[-1:])
        reason = one_line(said.decode(errors="replace")) or f"exit code {done.returncode}"
        raise ProcessEndedError(f"{tool} failed on {_here()}: {reason}")
    return done.stdout


def _here() -> str:
    return os.environ.get("SLURMD_NODENAME") or os.uname().nodename
