"""Sinks of a run: where its results go, in the order of the items.

A sink has three verbs, so that a run can be killed at any moment and go on: `Sink.write` takes a result, `Sink.commit` makes all that
was written durable and says where the sink is then, and `Sink.rewind` cuts the sink back to such a position. And it answers a question:
`Sink.is_in`, whether results might go to a given file, which is no place for the journal then.
"""

import contextlib
import errno
import fcntl
import os
import stat
from typing import Any, Protocol, runtime_checkable

from .errors import JournalError
from .standard_streams import standard_output

__all__ = ["AppendedFile", "Sink", "SinkLock", "sink_text", "sync_folder"]

# What file servers say that have no locks, or none of folders.
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF)
# What journals begin with, whole or not yet (`crates/journal`).
_JOURNALS_BEGIN = (b"exoskel run journal\x1a\n", b"exoskel run opening\x1a\n")
# So much is written to a file at once.
BUFFER_BYTES = 1 << 20


@runtime_checkable
class Sink(Protocol):
    """Where the results of a run go.

    Three more methods are called if there are any. ``close()`` at the end. ``check(position)`` for a run that is finished: it raises if
    the results before the position aren't there, and changes nothing. ``is_empty()`` before a journal is begun: that is refused if the
    sink says that it holds something, which may be results of the same run whose journal is lost. A sink without this method may hold
    anything, but beside a journal of 0 bytes.
    """

    def rewind(self, position: bytes | None) -> bytes:
        """Get ready to write: cut everything off behind a position.

        Parameters
        ----------
        position : bytes or None
            What `commit` returned, perhaps in another process. None: begin behind what is there.

        Returns
        -------
        bytes
            The position.

        Raises
        ------
        JournalError
            If the sink can't be cut back, or is shorter than that.
        """
        ...

    def write(self, index: int, result: Any) -> None:
        """Append a result. Results come in the order of their items, without those that are skipped.

        Parameters
        ----------
        index : int
            The index of its item.
        result : object
            The result.
        """
        ...

    def commit(self) -> bytes:
        """Make all that was written durable.

        Returns
        -------
        bytes
            A position for `rewind`: behind the last result. Who commits again has kept the position before for good, and nothing
            is cut back behind that.
        """
        ...

    def is_in(self, path: str) -> bool:
        """Say whether results might go to a file. A run's journal is refused there: what is in a journal is believed.

        Parameters
        ----------
        path : str
            The file, which may not be there.

        Returns
        -------
        bool
            True if so.
        """
        ...


def sink_text(sink: Sink) -> str:
    """Say which sink it is, in one line.

    Parameters
    ----------
    sink : Sink
        The sink. Its ``sink_text()`` says it, if it has one.

    Returns
    -------
    str
        The line. A journal keeps it, and goes on only with the same.
    """
    say = getattr(sink, "sink_text", None)
    return str(say()) if say is not None else type(sink).__qualname__


def sync_folder(folder: str) -> None:
    """Make the names in a folder durable.

    Parameters
    ----------
    folder : str
        The folder.

    Raises
    ------
    OSError
        If the system can't.
    """
    descriptor = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class SinkLock:
    """Keeps other runs from a sink: each would write over the results of the other one, or remove them.

    Whoever may read the sink may take this lock as well. So may whoever takes a lock for reading, of the kinds that need a descriptor for
    writing otherwise: there is none that only those have who may write.

    Parameters
    ----------
    descriptor : int
        The file, or the folder. It stays the caller's.
    text : str
        What errors call it.

    Raises
    ------
    BlockingIOError
        If another run has it.
    """

    def __init__(self, descriptor: int, text: str) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            why = "another run has this sink and writes its results there; give each run a sink of its own"
            raise BlockingIOError(errno.EWOULDBLOCK, why, text) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise

    def release(self) -> None:
        """Let others in. A process that was forked meanwhile has the lock, too: it doesn't end it, and it doesn't keep it."""
        if self._process == os.getpid():
            with contextlib.suppress(OSError):
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)


class AppendedFile:
    """A file, or standard output, that results are appended to.

    Parameters
    ----------
    path : str
        The file; ``"-"`` for standard output.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        # Where it was when it was opened, wherever this process has gone since.
        self._place = path
        self._descriptor: int | None = None
        self._lock: SinkLock | None = None
        self._is_file = False
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._end = 0

    @property
    def text(self) -> str:
        """Which file it is."""
        return "standard output" if self._path == "-" else os.path.abspath(self._path)

    def is_in(self, path: str | os.PathLike[str]) -> bool:
        """Say whether another path leads to the same file."""
        if self._path == "-":
            try:
                own, other = os.fstat(standard_output()), os.stat(path)
            except OSError:
                return False
            return os.path.samestat(own, other)
        try:
            return os.path.samefile(self._path, path)
        except OSError:
            return os.path.realpath(self._path) == os.path.realpath(path)

    def is_empty(self) -> bool:
        """Say whether nothing is in the file, or no file is there."""
        try:
            facts = os.fstat(standard_output()) if self._path == "-" else os.stat(self._path)
        except FileNotFoundError:
            return True
        if facts.st_size > 0 and stat.S_ISREG(facts.st_mode):
            _check_no_journal(self._path)
        return facts.st_size == 0

    def check(self, position: bytes) -> None:
        """Check that the file is there, and at least as long as a position says.

        Parameters
        ----------
        position : bytes
            What `commit` returned.

        Raises
        ------
        JournalError
            If it isn't.
        """
        try:
            facts = os.fstat(standard_output()) if self._path == "-" else os.stat(self._path)
        except FileNotFoundError:
            raise JournalError(
                f"{self.text} is not there, but its journal says that the run is finished; restore it, or remove the journal to begin anew"
            ) from None
        self._check_length(facts.st_size, _length_of(position))

    def rewind(self, position: bytes | None) -> bytes:
        """Open the file, and cut it back to a position; see `Sink.rewind`."""
        if position is not None and self._path != "-" and not os.path.exists(self._path):
            # Nothing is made in its place.
            self._check_length(0, _length_of(position))
        own_end = self._end if self._descriptor is not None else 0
        descriptor = self._open()
        self._pending.clear()
        self._pending_bytes = 0
        if not self._is_file:
            if position is not None:
                raise JournalError(
                    f"{self.text} is a pipe or a terminal, which can't be cut back to go on from a journal; write to a file, or leave the journal out"
                )
            return b"0"
        length = os.fstat(descriptor).st_size
        if position is None and length > 0:
            _check_no_journal(self._path)
        self._end = length if position is None else _length_of(position)
        self._check_length(length, self._end)
        if self._end < length:
            os.ftruncate(descriptor, self._end)
            if own_end < length:
                self._tell_cut(length - max(own_end, self._end))
        # Who has the same standard output goes on behind us.
        os.lseek(descriptor, self._end, os.SEEK_SET)
        return str(self._end).encode()

    def write(self, data: bytes) -> None:
        """Append bytes.

        Parameters
        ----------
        data : bytes
            The bytes.

        Raises
        ------
        OSError
            If the disk is full, say.
        """
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Hand all bytes to the system.

        Raises
        ------
        OSError
            If the disk is full, say. The file may hold a part of them then.
        """
        if not self._pending:
            return
        descriptor = self._open()
        left = memoryview(b"".join(self._pending))
        self._pending.clear()
        self._pending_bytes = 0
        try:
            while left:
                written = os.write(descriptor, left)
                self._end += written
                left = left[written:]
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.text) from error

    def commit(self) -> bytes:
        """Make all bytes durable; see `Sink.commit`."""
        self.flush()
        if self._is_file:
            try:
                os.fdatasync(self._open())
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.text) from error
            self._check_place()
        return str(self._end).encode()

    def close(self) -> None:
        """Close the file. What was not committed is left out."""
        self._pending.clear()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is None or self._path == "-":
            return
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()
        os.close(descriptor)

    def __del__(self) -> None:
        # Whoever forgets to close a sink of its own keeps others from the file no longer than it has it.
        if self._descriptor is not None:
            self.close()

    def _check_place(self) -> None:
        """Check that the file has its name yet: what is written to another one is not where anybody looks for it."""
        if self._path == "-":
            return
        try:
            is_there = os.path.samestat(os.stat(self._place), os.fstat(self._open()))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise FileNotFoundError(
                errno.ENOENT,
                "the file was moved, removed or replaced while results were written to it",
                self._place,
            )

    def _tell_cut(self, count: int) -> None:
        """Say that something was cut off that this run has not written."""
        import logging

        logging.getLogger("exoskel").warning(
            "cut %d bytes off the end of %s, which its journal doesn't know of. They are results of a run that was killed or had no room, whose items run again, "
            "or what somebody else has written there",
            count,
            self.text,
        )

    def _check_length(self, got: int, expected: int) -> None:
        if got < expected:
            raise JournalError(
                f"got {got} bytes in {self.text}, expected at least the {expected} that its journal knows of; restore it, or begin anew with a new journal"
            )

    def _open(self) -> int:
        if self._descriptor is None:
            if self._path == "-":
                self._descriptor = standard_output()
            else:
                self._place = os.path.abspath(self._path)
                is_new = not os.path.exists(self._path)
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
                if is_new:
                    sync_folder(os.path.dirname(self._path))
            self._is_file = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
            if self._is_file and self._path != "-":
                try:
                    self._lock = SinkLock(self._descriptor, self.text)
                except OSError:
                    os.close(self._descriptor)
                    self._descriptor = None
                    raise
        return self._descriptor


def _check_no_journal(path: str) -> None:
    """Check that a file which is to get results isn't the journal of a run."""
    try:
        with open("/dev/stdout" if path == "-" else path, "rb") as file:
            begins = file.read(len(_JOURNALS_BEGIN[0]))
    except OSError:
        # Standard output may be a file that only its opener could read.
        return
    if begins in _JOURNALS_BEGIN:
        name = "standard output" if path == "-" else os.path.abspath(path)
        raise JournalError(
            f"{name} is the journal of a run, which results would destroy; give the results a file of their own"
        )


def _length_of(position: bytes) -> int:
    try:
        return int(position)
    except ValueError:
        raise JournalError(
            f"got {position!r:.40} as the position in a file, expected a number of bytes"
        ) from None
