"""Workers in the background: started, found again by where they listen, and stopped.

``~/.exoskel/run`` holds a process number, a log and, after ``exoskel up``, a credential for each port or socket. The file with the number stays locked
while the worker runs, so that a number the system has given to another process is never mistaken for it.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from ..errors import ExoskelError
from ..hosts import HostAddress, UnixAddress

__all__ = ["registered", "run_directory", "start", "stop"]

_START_SECONDS = 15.0
_STOP_SECONDS = 5.0
# Of a log that explains why a worker didn't start, the end is enough.
_LOG_BYTES_SHOWN = 2000


def run_directory() -> Path:
    """Return the directory of background workers, made for its owner only."""
    directory = Path("~/.exoskel/run").expanduser()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    return directory


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
        If it ends, or doesn't listen within 15 seconds.
    """
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
def registered(ready: int | None, address: HostAddress | UnixAddress | None) -> Iterator[None]:
    """Hold this worker's place among those in the background, if it is one.

    Parameters
    ----------
    ready : int, optional
        The descriptor on which the parent waits; without it the worker runs in the foreground and is not registered.
    address : HostAddress or UnixAddress, optional
        Where it listens.
    """
    if ready is None or address is None:
        yield
        return
    path = _file(address, "pid")
    with open(path, "a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ExoskelError(f"a worker runs in the background on {address} already") from None
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        os.write(ready, b"1")
        os.close(ready)
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def stop(address: HostAddress | UnixAddress) -> bool:
    """Stop the worker in the background that listens on a port, at whichever address, or at a Unix socket.

    Parameters
    ----------
    address : HostAddress or UnixAddress
        Where it listens.

    Returns
    -------
    bool
        Whether one was running.

    Raises
    ------
    ExoskelError
        If it doesn't end within 5 seconds.
    """
    path = _file(address, "pid")
    try:
        file = open(path, "r+", encoding="ascii")  # noqa: SIM115 - closed below
    except FileNotFoundError:
        return False
    with file:
        if _unlocked(file.fileno()):
            path.unlink(missing_ok=True)
            return False
        number = int(file.read())
        os.kill(number, signal.SIGTERM)
        deadline = time.monotonic() + _STOP_SECONDS
        while not _unlocked(file.fileno()):
            if time.monotonic() > deadline:
                raise ExoskelError(
                    f"worker process {number} on {address} did not end within {_STOP_SECONDS:g} seconds"
                )
            time.sleep(0.02)
    return True


def _file(address: HostAddress | UnixAddress, kind: str) -> Path:
    # A percent sign stands in no port, and quoting tells every path from every other.
    place = address.port if isinstance(address, HostAddress) else quote(address.path, safe="")
    return run_directory() / f"worker-{place}.{kind}"


def _unlocked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _readable(descriptor: int, timeout: float) -> bool:
    import select

    return bool(select.select([descriptor], [], [], timeout)[0])
