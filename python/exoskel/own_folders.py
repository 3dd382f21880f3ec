"""Folders of processes that run foreign code, and their end."""

from __future__ import annotations

import contextlib
import itertools
import os
import secrets

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a process's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["remove"]

_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC
_TOKEN_BYTES = 8


def remove(folder: str | Path) -> None:
    """Remove a folder with all that processes have put there, however deep, and whatever rights they have taken from its owner.

    Nothing runs any more that could change it meanwhile. What is in folders below is moved up, folder by folder: so neither depth nor the number
    of descriptors counts.

    Parameters
    ----------
    folder : path
        Which one. It need not be there. A link is not followed.
    """
    with contextlib.suppress(OSError):
        # Most have put nothing there.
        os.rmdir(folder)
        return
    try:
        top = _opened(folder)
    except OSError:
        return
    token = secrets.token_hex(_TOKEN_BYTES)
    names = (f".{token}-{number}" for number in itertools.count())
    try:
        while any([_removed(top, name, names) for name in os.listdir(top)]):
            pass
    finally:
        os.close(top)
    with contextlib.suppress(OSError):
        os.rmdir(folder)


def _opened(name: str | Path, at: int | None = None) -> int:
    """Open a folder that may be without rights for its owner, and give them back."""
    place = os.open(name, os.O_PATH | os.O_NOFOLLOW | _FOLDER, dir_fd=at)
    try:
        # The kernel's own link to what is open: nothing else can be in its place.
        own = f"/proc/self/fd/{place}"
        with contextlib.suppress(OSError):
            os.chmod(own, 0o700)
        return os.open(own, os.O_RDONLY | _FOLDER)
    finally:
        os.close(place)


def _removed(top: int, name: str, names: Iterator[str]) -> bool:
    """Remove what is in a folder; if that is a folder itself, what is in there goes to the one above. Say whether anything has changed."""
    has_changed = False
    try:
        os.unlink(name, dir_fd=top)
    except IsADirectoryError:
        pass
    except OSError:
        return False
    else:
        return True
    with contextlib.suppress(OSError):
        below = _opened(name, top)
        try:
            for one in os.listdir(below):
                with contextlib.suppress(OSError):
                    # Who moves a folder must be able to write to it.
                    with contextlib.suppress(NotADirectoryError):
                        os.close(_opened(one, below))
                    os.rename(one, next(names), src_dir_fd=below, dst_dir_fd=top)
                    has_changed = True
        finally:
            os.close(below)
        os.rmdir(name, dir_fd=top)
        has_changed = True
    return has_changed
