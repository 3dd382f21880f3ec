"""A child that removes the folders of ended processes: foreign code may have left more files there than whoever waits for it has time for."""

from __future__ import annotations

import contextlib
import os
import secrets
import selectors
import sys
from collections import deque
from typing import TYPE_CHECKING

from . import _core, own_folders

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

__all__ = ["FolderRemover"]

# So many folders are one child's work: their names are its arguments.
_FOLDERS_MAX = 256
_TOKEN_BYTES = 8
_NICENESS = 19


class FolderRemover:
    """Removes folders one after the other, in a child of low priority that ends with this process. For the thread that waits at a selector.

    Parameters
    ----------
    selector : selectors.BaseSelector
        Where this process waits. What is registered there is a function for what has happened, with any arguments.
    """

    def __init__(self, selector: selectors.BaseSelector) -> None:
        self._selector = selector
        self._waiting: deque[str] = deque()
        self._child: subprocess.Popen[bytes] | None = None
        self._end = -1

    @property
    def process(self) -> int | None:
        """The child's number, while there is one."""
        return None if self._child is None else self._child.pid

    def remove(self, folder: str | Path) -> None:
        """Remove a folder with all that is there, as `own_folders.remove` does. Its name is free at once."""
        with contextlib.suppress(OSError):
            # Most have put nothing there.
            os.rmdir(folder)
            return
        other = f"{folder}-{secrets.token_hex(_TOKEN_BYTES)}"
        try:
            os.rename(folder, other)
        except FileNotFoundError:
            return
        except OSError:
            other = str(folder)
        self._waiting.append(other)
        self._go_on()

    def close(self) -> None:
        """End the child. What it has not removed is left."""
        if self._child is not None:
            self._child.kill()
            self._has_ended()

    def _go_on(self) -> None:
        if self._child is not None or not self._waiting:
            return
        # Most agents and supervisors never need it.
        import subprocess

        folders = [self._waiting[at] for at in range(min(len(self._waiting), _FOLDERS_MAX))]
        words = [sys.executable, "-P", "-m", __name__, str(os.getpid()), *folders]
        try:
            # A session of its own: no signal of a terminal reaches it.
            child = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            # The next one that is to be removed has them tried again.
            return
        try:
            self._end = os.pidfd_open(child.pid)
        except OSError:
            child.kill()
            child.wait()
            return
        self._child = child
        self._selector.register(self._end, selectors.EVENT_READ, self._next)
        for _ in folders:
            self._waiting.popleft()

    def _next(self, *_: object) -> None:
        self._has_ended()
        self._go_on()

    def _has_ended(self) -> None:
        assert self._child is not None, "only a running child is registered with the selector"
        self._selector.unregister(self._end)
        os.close(self._end)
        self._child.wait()
        self._child = None


def _main(starter: str, *folders: str) -> None:
    """Remove folders, as the child of `starter`."""
    if _core.follow_parent(int(starter), "exoskel remover", False):
        os.nice(_NICENESS)
        for folder in folders:
            own_folders.remove(folder)


if __name__ == "__main__":
    _main(*sys.argv[1:])
