"""How processes join a job that its agents haven't forked: ranks of ``mpiexec``, and programs that run already. Both sides of it.

The agent listens at a Unix socket for each program that starts ranks, and for each invitation, in a folder that is the account's alone. The
kernel says who connects. Who is let in has a socket to the agent as if it had inherited it.
"""

from __future__ import annotations

import contextlib
import errno
import hmac
import json
import os
import secrets
import selectors
import socket
import stat
import struct
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TextIO

from .errors import LinkError
from .peer_text import one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = [
    "Arrived",
    "Joining",
    "invitation",
    "invitation_file",
    "join_agent",
    "join_by_invitation",
    "new_word",
    "withdraw",
]

# Which rank a process is: what mpiexec of MPICH, of Open MPI, others with PMIx, and srun say.
_RANK_VARIABLES = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
# The kernel's word: process, account, group (unix(7), SO_PEERCRED).
_PEER = struct.Struct("3i")
_LENGTH = struct.Struct("!I")
# What a process says when it comes.
_WORD_BYTES_MAX = 1024
# Connections that wait to be taken, and those that have said nothing yet.
_WAITING_MAX = 1024
# Parents of parents that are looked at.
_ANCESTORS_MAX = 64
_INVITATION_BYTES_MAX = 4096
# Reasons that are told of those who were not let in.
_REFUSALS_MAX = 3


class Arrived(Protocol):
    """Takes a process in that has joined."""

    def __call__(  # noqa: D102
        self, number: int, rank: int, door: Door, connection: socket.socket, pidfd: int
    ) -> None: ...


class Door:
    """Where the processes come in that one program starts, or the one that has an invitation."""

    def __init__(
        self, path: Path, numbers: Sequence[int], told: dict[str, Any], group: Any
    ) -> None:
        self.path = path
        self.told = told
        self.group = group
        # What only somebody says who has the invitation.
        self.word: str | None = None
        # The program that starts them, when it is known.
        self.starter: int | None = None
        self.size = len(numbers)
        self.free = dict(enumerate(numbers))
        self.inside: list[int] = []
        # Why others were not let in.
        self.refusals: deque[str] = deque(maxlen=_REFUSALS_MAX)
        # Who has come before it was known what to descend from.
        self.early: list[tuple[_Word, dict[str, Any]]] = []
        self.guests: dict[socket.socket, int] = {}
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.listener.bind(str(path))
            self.listener.listen(_WAITING_MAX)
        except OSError:
            self.listener.close()
            raise
        self.listener.setblocking(False)

    def place_of(self, said: dict[str, Any], process: int) -> tuple[int, int]:
        """Return which number and rank a process gets. Raise `PermissionError` if it gets none."""
        if self.word is not None:
            if not hmac.compare_digest(str(said.get("word")).encode(), self.word.encode()):
                raise PermissionError("this is not the word of the invitation")
        elif self.starter is None or self.starter not in _line_of(process):
            raise PermissionError(
                f"process {process} does not descend from process {self.starter}, whose ranks join here"
            )
        if not self.free:
            raise PermissionError(
                f"as many have joined as joined={self.size} at Job.start announces"
                if self.word is None
                else "another process has used this invitation"
            )
        rank = said.get("rank")
        if rank is None:
            rank = min(self.free)
        if rank not in self.free:
            if rank in range(self.size):
                raise PermissionError(f"another process has joined as rank {rank}")
            raise PermissionError(
                f"it has rank {rank}, and joined={self.size} at Job.start announces ranks up to {self.size - 1}: give the number of ranks that are started"
            )
        number = self.free.pop(rank)
        self.inside.append(number)
        return number, rank


class Joining:
    """An agent's doors. For the thread that serves its selector."""

    def __init__(self, selector: selectors.BaseSelector, arrived: Arrived) -> None:
        self._selector = selector
        self._arrived = arrived
        self._doors: dict[int, Door] = {}

    def open(
        self, name: int, path: Path, numbers: Sequence[int], told: dict[str, Any], group: Any
    ) -> Door:
        """Open a door, under the number of the program whose ranks come in there or of the process that is invited."""
        door = self._doors[name] = Door(path, numbers, told, group)
        self._selector.register(door.listener, selectors.EVENT_READ, partial(self._accept, door))
        return door

    def started(self, name: int, process: int) -> None:
        """Take in which process it is whose ranks come in at a door."""
        if (door := self._doors.get(name)) is not None:
            door.starter = process
            for word, said in door.early:
                self._decide(door, word, said)
            door.early.clear()

    def close(self, name: int) -> tuple[list[int], list[int], str]:
        """Close a door, if there is one. Return the numbers of those that have come in and of those that have not, and why they haven't."""
        door = self._doors.pop(name, None)
        if door is None:
            return [], [], ""
        for guest in list(door.guests):
            self._forget(door, guest)
            guest.close()
        self._selector.unregister(door.listener)
        door.listener.close()
        with contextlib.suppress(FileNotFoundError):
            door.path.unlink()
        absent = list(door.free.values())
        came, expected = len(door.inside), len(door.inside) + len(absent)
        why = f"it has never joined, as {came} of {expected} have, by exoskel.links.init()"
        for reason in dict.fromkeys(door.refusals):
            why += f"; one was refused: {reason}"
        return door.inside, absent, why

    def close_all(self) -> list[int]:
        """Let nobody in any more. Return the numbers of those that have not come."""
        return [number for name in list(self._doors) for number in self.close(name)[1]]

    def _accept(self, door: Door, _events: int) -> None:
        try:
            guest, _ = door.listener.accept()
        except OSError:
            return
        process, account, _ = _PEER.unpack(
            guest.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        )
        try:
            if account != os.geteuid() or len(door.guests) >= _WAITING_MAX:
                raise PermissionError
            # Nobody else gets its number as long as this is open and it has not been seen to end.
            door.guests[guest] = os.pidfd_open(process)
        except OSError:
            guest.close()
            return
        guest.setblocking(False)
        read = _Word(guest, process)
        self._selector.register(guest, selectors.EVENT_READ, partial(self._hear, door, read))

    def _hear(self, door: Door, word: _Word, _events: int) -> None:
        try:
            said = word.read()
        except (OSError, EOFError, ValueError, TypeError, RecursionError) as error:
            self._refuse(door, word, str(error))
            return
        if said is not None and door.word is None and door.starter is None:
            door.early.append((word, said))
        elif said is not None:
            self._decide(door, word, said)

    def _decide(self, door: Door, word: _Word, said: dict[str, Any]) -> None:
        guest = word.guest
        if guest not in door.guests:
            return
        try:
            number, rank = door.place_of(said, word.process)
        except (PermissionError, TypeError, ValueError) as error:
            self._refuse(door, word, str(error))
            return
        pidfd = self._forget(door, guest, keeps=True)
        # Who has gone is seen to have gone.
        with contextlib.suppress(OSError):
            guest.send(_framed({}))
        self._arrived(number, rank, door, guest, pidfd)

    def _refuse(self, door: Door, word: _Word, reason: str) -> None:
        door.refusals.append(one_line(reason))
        self._forget(door, word.guest)
        with contextlib.suppress(OSError):
            word.guest.send(_framed({"refused": reason}))
        word.guest.close()

    def _forget(self, door: Door, guest: socket.socket, *, keeps: bool = False) -> int:
        self._selector.unregister(guest)
        pidfd = door.guests.pop(guest)
        if not keeps:
            os.close(pidfd)
        return pidfd


class _Word:
    """What a guest says first, read to its end and no further."""

    def __init__(self, guest: socket.socket, process: int) -> None:
        self.guest = guest
        self.process = process
        self._said = b""

    def read(self) -> dict[str, Any] | None:
        """Return it when it is there."""
        length = _LENGTH.size
        if len(self._said) >= length:
            length += _LENGTH.unpack_from(self._said)[0]
        part = self.guest.recv(length - len(self._said))
        if not part:
            raise EOFError("nothing was said")
        self._said += part
        if len(self._said) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._said)
        if length > _WORD_BYTES_MAX:
            raise ValueError(f"got {length} bytes, expected at most {_WORD_BYTES_MAX}")
        if len(self._said) < _LENGTH.size + length:
            return None
        said = json.loads(self._said[_LENGTH.size :])
        if not isinstance(said, dict):
            raise TypeError("got no words")
        return said


def _line_of(process: int) -> Iterator[int]:
    """Go through a process, its parent, and so on, as the kernel knows them."""
    for _ in range(_ANCESTORS_MAX):
        yield process
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                process = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            return
        if process <= 1:
            return


def join_agent(place: str) -> socket.socket:
    """Join as a rank of the program that an agent has started.

    Raises
    ------
    LinkError
        If the agent isn't there, or doesn't let this process in.
    """
    rank = None
    for name in _RANK_VARIABLES:
        if os.environ.get(name, "").isdigit():
            rank = int(os.environ[name])
            break
    return _joined(place, {"rank": rank})


def invitation_file(path: str | os.PathLike[str]) -> TextIO:
    """Make a file that this account alone can read. It must not be there yet: whether another one is of use may show on another host alone.

    Raises
    ------
    FileExistsError
        If it is.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return open(os.open(path, flags, 0o600), "w")
    except FileExistsError:
        reason = "there is such a file already; if it is the invitation of a job that was killed, remove it"
        raise FileExistsError(errno.EEXIST, reason, os.fspath(path)) from None


def withdraw(path: str, written: os.stat_result) -> None:
    """Remove an invitation, unless another file has its name by now."""
    with contextlib.suppress(OSError):
        found = os.lstat(path)
        # The number of a file that was removed may be the next one's.
        if os.path.samestat(found, written) and found.st_mtime_ns == written.st_mtime_ns:
            os.unlink(path)


def invitation(place: str, word: str) -> str:
    """Return what lets a process in."""
    return json.dumps({"agent": place, "word": word}) + "\n"


def new_word() -> str:
    """Return a word that nobody guesses."""
    return secrets.token_urlsafe(32)


def join_by_invitation(path: str | os.PathLike[str]) -> socket.socket:
    """Join by a file that `Job.invite` has written, and remove it.

    Raises
    ------
    LinkError
        If the file is somebody else's, or others can read it; if the job doesn't let this process in.
    """
    name = os.fspath(path)
    place, word, written = _said_by(name)
    connection = _joined(place, {"word": word})
    # It lets one process in. Who has written it may have removed it.
    withdraw(name, written)
    return connection


def _said_by(name: str) -> tuple[str, str, os.stat_result]:
    """Return the place of the agent and the word that an invitation has, and which file it is."""
    try:
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        why = error.strerror
        if isinstance(error, FileNotFoundError):
            why = "it isn't there; it is removed when it has been used, and when its job is over"
        raise LinkError(f"can't read the invitation {name}: {why}") from None
    with open(number, "rb") as file:
        found = os.fstat(file.fileno())
        mode = stat.S_IMODE(found.st_mode)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or mode & 0o077:
            raise LinkError(
                f"the invitation {name} has mode {mode:04o} and the owner {found.st_uid}, expected a file with 0600 of {os.geteuid()}: others may have read it, so ask for another one"
            )
        try:
            said = json.loads(file.read(_INVITATION_BYTES_MAX))
            place, word = str(said["agent"]), str(said["word"])
        except (ValueError, TypeError, KeyError):
            raise LinkError(f"{name} is no invitation that a job has written") from None
    return place, word, found


def _joined(place: str, word: dict[str, Any]) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        answer = _answer(connection, place, word)
    except (OSError, EOFError, ValueError) as error:
        connection.close()
        raise LinkError(f"can't join the job by its agent at {place}: {error}") from None
    if answer:
        connection.close()
        raise LinkError(f"the job does not let this process in: {answer.get('refused')}")
    return connection


def _answer(connection: socket.socket, place: str, word: dict[str, Any]) -> dict[str, Any]:
    connection.connect(place)
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    if _PEER.unpack(peer)[1] != os.geteuid():
        raise PermissionError("it is of another account")
    connection.sendall(_framed(word))
    (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
    answer: dict[str, Any] = json.loads(_exactly(connection, min(length, _WORD_BYTES_MAX)))
    return answer


def _exactly(connection: socket.socket, length: int) -> bytes:
    said = b""
    while len(said) < length:
        part = connection.recv(length - len(said))
        if not part:
            raise EOFError("it has closed the connection")
        said += part
    return said


def _framed(word: dict[str, Any]) -> bytes:
    message = json.dumps(word).encode()
    return _LENGTH.pack(len(message)) + message
