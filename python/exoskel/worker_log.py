"""What a worker writes for its owner: lines on standard error, which never stop it.

A full disk, a closed pipe and a pipe that nobody reads take no lines. The worker goes on, counts the lines, and says how many there
were as soon as lines are taken again.
"""

from __future__ import annotations

import os
import stat
import sys

__all__ = ["WorkerLog"]

# A pipe takes so many bytes as a whole, or none of them.
_LINE_BYTES_MAX = 4096


class WorkerLog:
    """Writes lines as long as somebody takes them; never waits, never raises.

    Parameters
    ----------
    descriptor : int, optional
        Where; standard error if not given, and nowhere if the process was started without one.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None and sys.__stderr__ is not None:
            descriptor = sys.__stderr__.fileno()
        self._descriptor = descriptor
        self.lines_lost = 0

    def write(self, line: str) -> None:
        """Write one line, behind the number of those that could not be written.

        Parameters
        ----------
        line : str
            The text, without its end of line.
        """
        lost = f"[{self.lines_lost} lines before this could not be written]\n"
        text = (lost if self.lines_lost else "") + line
        data = text.encode("utf-8", "backslashreplace")[: _LINE_BYTES_MAX - 1] + b"\n"
        try:
            written = self._descriptor is not None and _put(self._descriptor, data)
        except OSError:
            written = False
        self.lines_lost = 0 if written else self.lines_lost + 1


def _put(descriptor: int, data: bytes) -> bool:
    """Write without waiting, though others share the descriptor and may wait for it: theirs stays as it is."""
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISSOCK(kind):
        # `socket` would take longer to load than a slot that confines itself takes to start.
        import _socket

        stream = _socket.socket(fileno=os.dup(descriptor))
        try:
            return stream.send(data, _socket.MSG_DONTWAIT) == len(data)
        finally:
            stream.close()
    if not stat.S_ISFIFO(kind) and not stat.S_ISCHR(kind):
        return os.write(descriptor, data) == len(data)
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        own = os.open(f"/proc/self/fd/{descriptor}", flags)
    except PermissionError:
        # Somebody else's terminal or pipe, as after `su`.
        return _takes(descriptor) and os.write(descriptor, data) == len(data)
    try:
        return os.write(own, data) == len(data)
    finally:
        os.close(own)


def _takes(descriptor: int) -> bool:
    import select

    return bool(select.select([], [descriptor], [], 0)[1])
