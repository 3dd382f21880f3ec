"""Standard input and output as a source and a sink of items."""

import errno
import os
import stat
import sys
from typing import BinaryIO

from .sources import contents_text

__all__ = ["is_input_file", "standard_input", "standard_input_text", "standard_output"]


def standard_input() -> BinaryIO:
    """Return the stream of bytes that standard input is.

    Raises
    ------
    OSError
        If it is closed.
    TypeError
        If the program has put something in its place that has no bytes.
    """
    if sys.stdin is None:
        raise OSError(errno.EBADF, "standard input is closed, expected items in it")
    stream: BinaryIO | None = getattr(sys.stdin, "buffer", None)
    if stream is None:
        raise TypeError(
            f"got {type(sys.stdin).__name__} as sys.stdin, expected a stream that has a buffer of bytes"
        )
    return stream


def standard_input_text() -> str:
    """Say what standard input is, if it is a file: from where on, how long it is, and a digest. Of a pipe nothing is known.

    Raises
    ------
    OSError, TypeError
        As `standard_input`.
    """
    if not is_input_file():
        return ""
    stream = standard_input()
    # What has been read of it before is no item.
    return f" from byte {stream.tell()}, {contents_text(stream.fileno())}"


def is_input_file() -> bool:
    """Say whether standard input is a file.

    Raises
    ------
    OSError, TypeError
        As `standard_input`.
    """
    stream = standard_input()
    try:
        descriptor = stream.fileno()
    except OSError:
        return False
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def standard_output() -> int:
    """Return the descriptor of standard output.

    Raises
    ------
    OSError
        If it was closed when the program began: another file may have its number since.
    """
    if sys.__stdout__ is None:
        raise OSError(errno.EBADF, "standard output is closed, expected a place for results")
    return 1
