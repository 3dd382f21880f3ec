"""Workers in the background: started, found again by where they listen, and stopped.

``~/.exoskel/run`` holds a process number, a log and, after ``exoskel up``, a credential for each port or socket. Their names hold that of the host:
several hosts may share one home. The file with the number stays locked while the worker runs, and says when the process has begun, so that
a number the system has given to another process is never mistaken for it.
"""

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple
from urllib.parse import quote

from ..errors import ExoskelError
from ..hosts import HostAddress, UnixAddress
from ..job_orphans import has_ended, named, number_in, opened

__all__ = ["Running", "announce", "registered", "run_directory", "running", "start", "stop"]

_START_SECONDS = 15.0
# Told to end at once, a worker takes less than two seconds.
_END_SECONDS = 3.0
# How often somebody looks whether a place is free.
_LOOK_SECONDS = 0.05
# Of a log that explains why a worker didn't start, the end is enough.
_LOG_BYTES_SHOWN = 2000


def run_directory() -> Path:
    """Return the directory of background workers, made for its owner only."""
    directory = Path("~/.exoskel/run").expanduser()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


class Running(NamedTuple):
    """A worker in the background."""

    process: int
    """Its process number, 0 while it is just starting."""
    named: str
    """What tells its process from all others, those that get its number later included."""
    log: Path
    """Where it writes."""
    drain: float
    """How long, in seconds, what runs may take when the worker is told to end."""
    name: str
    """The name in its certificate as it was when the worker began; empty if that is none of a private authority."""
    policy: str
    """The path of its policy file; empty if it has none."""


def running(address: HostAddress | UnixAddress) -> Running | None:
    """Say whether a worker of this account runs in the background on a port of this host, at whichever address, or at a Unix socket.

    Parameters
    ----------
    address : HostAddress or UnixAddress
        Where it listens.

    Returns
    -------
    Running, optional
        What is known of it; None if there is none.
    """
    try:
        file = open(_file(address, "pid"), "r+", encoding="ascii")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return None
    with file:
        if _unlocked(file.fileno()):
            return None
        there = _read(file.read(), address)
        return None if has_ended(there.named) else there


def start(options: Sequence[str], address: HostAddress | UnixAddress) -> tuple[int, Path]:
    """Start a worker that outlives this process, and wait until it listens.

    Parameters
    ----------
    options : sequence of str
        Those of ``exoskel worker``.
    address : HostAddress or UnixAddress
        Where it listens.

    Returns
    -------
    process : int
        Its process number.
    log : Path
        Where it writes.

    Raises
    ------
    ExoskelError
        If one runs there already, if it ends, or if it doesn't listen within 15 seconds.
    """
    if there := running(address):
        # Its log stays.
        raise ExoskelError(_runs_already(address, there.process))
    log = _file(address, "log")
    reader, writer = os.pipe()
    with open(log, "wb") as file, os.fdopen(reader, "rb", buffering=0) as ready:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "exoskel", "worker", *options, "--ready-fd", str(writer)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            pass_fds=(writer,),
            start_new_session=True,
        )
        os.close(writer)
        listens = _readable(ready.fileno(), _START_SECONDS) and ready.read(1) == b"1"
    if not listens:
        process.kill()
        process.wait()
        said = log.read_bytes()[-_LOG_BYTES_SHOWN:].decode("utf-8", "replace").strip()
        raise ExoskelError(
            f"the worker did not start: {said.removeprefix('exoskel: error: ') or 'it said nothing'}"
        )
    number = process.pid
    # It is not ours to wait for any more; without this, Popen would complain when it is collected.
    process.returncode = 0
    return number, log


@contextmanager
def registered(
    ready: int | None,
    address: HostAddress | UnixAddress | None,
    drain: float,
    name: str,
    policy: str,
) -> Iterator[None]:
    """Hold this worker's place among those in the background, if it is one, until all of it has ended.

    Parameters
    ----------
    ready : int, optional
        The descriptor on which the parent waits; without it the worker runs in the foreground and is not registered.
    address : HostAddress or UnixAddress, optional
        Where it listens.
    drain : float
        How long, in seconds, what runs may take when the worker is told to end.
    name : str
        The name in its certificate, or nothing.
    policy : str
        The path of its policy file, or nothing.
    """
    if ready is None or address is None:
        yield
        return
    path = _file(address, "pid")
    with _locked(path, address) as file:
        file.truncate(0)
        file.write(f"{named()} {drain} {name} {policy}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def announce(ready: int | None) -> None:
    """Tell the parent of a worker in the background that it listens.

    Parameters
    ----------
    ready : int, optional
        The descriptor on which the parent waits, if there is one.
    """
    if ready is not None:
        os.write(ready, b"1")
        os.close(ready)


def stop(address: HostAddress | UnixAddress, drain: float | None = None) -> str:
    """Stop the worker in the background that listens on a port, at whichever address, or at a Unix socket.

    Returns when its process has ended, so that another worker can listen there.

    Parameters
    ----------
    address : HostAddress or UnixAddress
        Where it listens.
    drain : float, optional
        How long, in seconds, what runs may take; what the worker was started with if not given.

    Returns
    -------
    str
        ``"stopped"``, ``"killed"`` if it had to be killed, or ``"none"`` if there was none.

    Raises
    ------
    ExoskelError
        If it can't be signalled, or lives on though it was killed. If it has ended and what it has started still holds its place.
    """
    path = _file(address, "pid")
    try:
        file = open(path, "r+", encoding="ascii")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return "none"
    with file:
        if _unlocked(file.fileno()):
            _remove(file, path)
            return "none"
        there = _read(file.read(), address)
        number = there.process
        if not number:
            raise ExoskelError(f"a worker on {address} is just starting: stop it in a moment")
        process = opened(there.named)
        if process is None:
            if not has_ended(there.named):
                raise ExoskelError(
                    f"worker process {number} on {address} is in another PID namespace, such as that of a container: stop it there"
                )
            _free(file, path, there, address)
            return "none"
        patience = _END_SECONDS + (there.drain if drain is None else drain)
        try:
            # What it is told twice, it does at once.
            for ending, seconds, end in (
                (signal.SIGTERM, patience, "stopped"),
                (signal.SIGTERM, _END_SECONDS, "stopped"),
                (signal.SIGKILL, _END_SECONDS, "killed"),
            ):
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process, ending)
                if _readable(process, seconds):
                    _remove(file, path)
                    return end
        except PermissionError:
            raise ExoskelError(
                f"worker process {number} on {address} belongs to another user: stop it as that user"
            ) from None
        finally:
            os.close(process)
    raise ExoskelError(
        f"worker process {number} on {address} was killed and did not end: the system holds it, perhaps for a file on a disk that doesn't answer"
    )


def _free(file: IO[str], path: Path, there: Running, address: HostAddress | UnixAddress) -> None:
    """Remove the file of a worker that has ended, once nobody holds it any more."""
    # Who only looks whether a worker is there holds it for a moment.
    deadline = time.monotonic() + _END_SECONDS
    while not _unlocked(file.fileno()):
        if time.monotonic() >= deadline:
            raise ExoskelError(
                f"worker process {there.process} on {address} has ended, but something that it has started holds {path} open: end that, "
                "or remove the file"
            )
        time.sleep(_LOOK_SECONDS)
    _remove(file, path)


def _read(registration: str, address: HostAddress | UnixAddress) -> Running:
    """Return what a worker has written of itself: its process, its drain, its name and its policy, as far as it has come."""
    # Only the path, which is last, may have spaces.
    process, drain, name, policy = [*registration.split(" ", 3), "", "", "", ""][:4]
    number = number_in(process) if process else 0
    if number is None:
        raise ExoskelError(
            f"the worker on {address} is one of an earlier version (process {process}): end it by `kill {process}`"
        )
    return Running(number, process, _file(address, "log"), float(drain or 0), name, policy)


def _runs_already(address: HostAddress | UnixAddress, process: int) -> str:
    number = f" (process {process})" if process else ""
    return f"a worker runs in the background on {address} already{number}; --stop stops it"


def _file(address: HostAddress | UnixAddress, kind: str) -> Path:
    # A percent sign stands in no port, and quoting tells every path from every other. `exoskel up` names its files in the same way.
    host = os.uname().nodename.replace("/", "-")
    place = address.port if isinstance(address, HostAddress) else quote(address.path, safe="")
    return run_directory() / f"worker-{host}-{place}.{kind}"


def _locked(path: Path, address: HostAddress | UnixAddress) -> IO[str]:
    """Open and lock the file of a worker that starts."""
    while True:
        file = open(path, "a+", encoding="ascii")  # noqa: SIM115 - closed by the caller
        if not _unlocked(file.fileno()):
            file.close()
            raise ExoskelError(_runs_already(address, 0))
        if _is_at(file, path):
            return file
        # Removed between the two, with a worker that has ended: nobody would find this one by it.
        file.close()


def _remove(file: IO[str], path: Path) -> None:
    """Remove the file of a worker that has ended, unless it is that of another one by now."""
    if _unlocked(file.fileno()) and _is_at(file, path):
        path.unlink(missing_ok=True)


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _unlocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _readable(descriptor: int, timeout: float) -> bool:
    import select

    return bool(select.select([descriptor], [], [], timeout)[0])
