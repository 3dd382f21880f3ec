"""Files: read up to a limit, written whole or not at all, and named in messages whatever their names are made of."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Iterator
from os import PathLike
from pathlib import Path

__all__ = ["checksum", "named", "read_bounded", "read_text", "ready", "whole"]


def named(path: str | PathLike[str]) -> str:
    """Return what a message calls a file: its name, with the bytes escaped that are no text.

    Parameters
    ----------
    path : path
        The file.
    """
    return os.fspath(path).encode("utf-8", "backslashreplace").decode("utf-8")


def read_bounded(path: str | PathLike[str], most: int) -> bytes:
    """Read a file.

    Parameters
    ----------
    path : path
        The file; a device without an end is none.
    most : int
        Bytes that it can have.

    Raises
    ------
    OSError
        If it can't be read.
    ValueError
        If it is longer.
    """
    with Path(path).open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{named(path)}: got more than {most} bytes, expected at most that many")
    return content


def checksum(path: str | PathLike[str]) -> str:
    """Return by what somebody knows a file again: the first 16 digits of its SHA-256.

    Parameters
    ----------
    path : path
        The file.

    Raises
    ------
    OSError
        If it can't be read.
    """
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def read_text(path: str | PathLike[str], most: int) -> str:
    """Read a file of text.

    Parameters
    ----------
    path : path
        The file.
    most : int
        Bytes that it can have.

    Raises
    ------
    OSError
        If it can't be read.
    ValueError
        If it is longer, or no UTF-8.
    """
    try:
        return read_bounded(path, most).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{named(path)}: got bytes that are no text, expected a text: {error}"
        ) from error


def ready(folder: Path) -> None:
    """Make a folder, before somebody works for what goes into it.

    Parameters
    ----------
    folder : Path
        The folder; it may be there.

    Raises
    ------
    OSError
        If it can't be made, or nothing can be written into it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Give a file to be written, which takes the place of another one when it is whole; if it never is, that one stays as it was.

    Parameters
    ----------
    path : Path
        The file that there is in the end.

    Yields
    ------
    Path
        The one to be written, beside it.

    Raises
    ------
    OSError
        If it can't be written: it names the file that there should have been.
    """
    if path.is_dir():
        # Said before somebody works for it.
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        part.replace(path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename in (None, str(part)):
            # The system names no file where a disk is full, and nobody knows of our part.
            raise OSError(error.errno, error.strerror, str(path)) from error
        raise
