"""The folders in which the creators and agents of jobs have their sockets, and those that killed ones have left."""

from __future__ import annotations

import contextlib
import hashlib
import os
import socket
import tempfile
import time
from pathlib import Path

from . import own_folders

__all__ = ["AGENT", "CREATOR", "made", "sweep"]

# The socket of whose the folder is.
CREATOR, AGENT = "creator", "agent"
# Who has just made a folder has no socket there yet.
_AGE_SECONDS_MIN = 60.0
# So many folders are looked at, at most.
_LOOKED_AT_MAX = 256
_TAG_CHARACTERS = 8


def made() -> Path:
    """Make a folder that this account alone can enter."""
    return Path(tempfile.mkdtemp(prefix=_prefix()))


def sweep() -> None:
    """Remove the folders of this account at whose sockets nobody listens any more."""
    looked_at = 0
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as found:
        for one in found:
            if not one.name.startswith(_prefix()) or not _is_old_and_own(one):
                continue
            if _is_left(Path(one.path)):
                own_folders.remove(one.path)
            looked_at += 1
            if looked_at == _LOOKED_AT_MAX:
                break


def _prefix() -> str:
    """Return how the names of this host's folders begin: others may share them, and can't be asked who listens there."""
    place = f"{os.uname().nodename}/{Path('/proc/sys/kernel/random/boot_id').read_text().strip()}"
    return f"exoskel-job-{hashlib.sha256(place.encode()).hexdigest()[:_TAG_CHARACTERS]}-"


def _is_old_and_own(one: os.DirEntry[str]) -> bool:
    try:
        told = one.stat(follow_symlinks=False)
    except OSError:
        return False
    is_own = one.is_dir(follow_symlinks=False) and told.st_uid == os.geteuid()
    return is_own and time.time() - told.st_mtime > _AGE_SECONDS_MIN


def _is_left(folder: Path) -> bool:
    """Say whether a socket is there at which nobody listens."""
    for name in (CREATOR, AGENT):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as asking:
            try:
                asking.connect(str(folder / name))
            except ConnectionRefusedError:
                return True
            except OSError:
                # There is none, or it has much to do.
                continue
            return False
    return False
