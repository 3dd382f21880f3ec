"""What a forked process does to confine itself, before it runs foreign code.

What it needs of the system it makes before: the sockets at which its node listens. Later it can make none.
"""

from __future__ import annotations

import json
import os
import struct
import sys

from . import _core
from .process_zygote import DIAL_FD

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a process's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .link_places import BoundBefore

__all__ = ["SANDBOX", "confine", "default_read", "take_sockets"]

# In the environment of a process in a sandbox: to whom it may connect.
SANDBOX = "EXOSKEL_SANDBOX"
# And of one that may make no socket: those that were made for it.
SOCKETS = "EXOSKEL_SANDBOX_SOCKETS"
# What programs find there on any Linux, and no secret: programs, libraries, how names are looked up.
_SYSTEM = (
    "/bin",
    "/lib",
    "/lib32",
    "/lib64",
    "/sbin",
    "/usr",
    "/etc/alternatives",
    "/etc/group",
    "/etc/hosts",
    "/etc/ld.so.cache",
    "/etc/localtime",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/resolv.conf",
    "/etc/ssl/certs",
)
# What processes in a sandbox keep of the environment of their agent. The rest may be secrets of its account.
_KEPT = frozenset(
    [
        "PATH",
        "LANG",
        "LANGUAGE",
        "TZ",
        "LD_LIBRARY_PATH",
        "PYTHONPATH",
        "PYTHONHOME",
        "VIRTUAL_ENV",
        "USER",
        "LOGNAME",
        "SHELL",
        "TERM",
    ]
)
_KEPT_PREFIXES = ("LC_", "OMP_", "OPENBLAS_", "MKL_", "NUMEXPR_", "PYTHON")
_LENGTH = struct.Struct("!I")

# What was made for this process's node before it was confined.
bound: BoundBefore | None = None
# And its connection to the manager that it is a slot of, as a descriptor.
dialled: int | None = None


def confine(
    sandbox: Mapping[str, Any], context: socket.socket, environment: Mapping[str, str], runs: str
) -> None:
    """Confine this process for ever, and tell its agent what holds it.

    Parameters
    ----------
    sandbox : mapping
        `exoskel.Sandbox.told`, with ``folder``, which is this process's own, ``listen``, where its node listens, ``proxy``, a file, or None,
        and of a slot ``manager``, where its manager listens.
    context : socket.socket
        The socket to its agent.
    environment : mapping
        What it was asked to have in its environment.
    runs : str
        The program; nothing for a function.

    Raises
    ------
    OSError
        If it can't be confined as it is asked. The process must end then.
    """
    folder = sandbox["folder"]
    _clean_environment(sandbox, environment, folder)
    has_network = sandbox["network"] == "all"
    read = default_read() if sandbox["read"] is None else list(sandbox["read"])
    if sandbox["proxy"] is not None:
        read.append(sandbox["proxy"])
    write = [folder, *sandbox["write"]]
    if not runs:
        _check_python(read, write)
    # Where it may make sockets, it may still not write to the folder of its job.
    _listen(sandbox["listen"], DIAL_FD if sandbox["network"] == "links" else None)
    if "manager" in sandbox:
        _dial(sandbox["manager"])
    if runs and bound is not None:
        _leave_sockets(bound)
    held = _core.confine(
        {
            "read": read,
            "write": write,
            "has_network": has_network,
            "memory_bytes": sandbox["memory"],
            "processes": sandbox["processes"],
            "file_bytes": sandbox["file_size"],
        }
    )
    word = json.dumps({"confined": held, "places": _places()}).encode()
    context.sendall(_LENGTH.pack(len(word)) + word)


def _clean_environment(
    sandbox: Mapping[str, Any], environment: Mapping[str, str], folder: str
) -> None:
    for name in list(os.environ):
        if name not in _KEPT and not name.startswith(_KEPT_PREFIXES):
            del os.environ[name]
    os.environ["HOME"] = os.environ["TMPDIR"] = folder
    os.environ[SANDBOX] = sandbox["network"]
    os.environ.update(environment)


def _python_folders() -> list[str]:
    """Where this Python and Exoskel are."""
    package = os.path.dirname(os.path.abspath(__file__))
    library = os.path.dirname(os.__file__)
    return [sys.prefix, sys.base_prefix, library, package]


def default_read() -> list[str]:
    """Return what processes in a sandbox may read if it doesn't say so: the system's programs, and the Python that runs this."""
    # The first place where modules are found is where the agent was started.
    modules = sys.path if sys.flags.safe_path else sys.path[1:]
    paths = (*_SYSTEM, *_python_folders(), *modules)
    return [path for path in paths if os.path.isabs(path) and os.path.exists(path)]


def _check_python(read: Sequence[str], write: Sequence[str]) -> None:
    """See that a process that runs a function may read the Python that runs it."""
    allowed = [os.path.realpath(path).rstrip("/") + "/" for path in (*read, *write)]
    for folder in _python_folders():
        real = os.path.realpath(folder) + "/"
        if not real.startswith(tuple(allowed)):
            raise OSError(
                f"its sandbox contradicts itself: it is to run a function of Python, and may not read {folder}, where Python is; add it to `read`"
            )


def _leave_sockets(own: BoundBefore) -> None:
    """Leave the sockets to the program, which may join its job."""
    descriptors = [listener.fileno() for listener in own.listeners]
    for descriptor in [*descriptors, *([] if own.dial_fd is None else [own.dial_fd])]:
        os.set_inheritable(descriptor, True)
    told = {"listen": descriptors, "reached_by": own.reached_by, "dial_fd": own.dial_fd}
    os.environ[SOCKETS] = json.dumps(told)


def take_sockets() -> BoundBefore | None:
    """Return what was made for this process's node before it was confined; nothing outside of a sandbox."""
    global bound
    told = os.environ.get(SOCKETS)
    if bound is None and told is not None:
        from . import link_places

        said = json.loads(told)
        listeners = []
        for descriptor in said["listen"]:
            os.set_inheritable(descriptor, False)
            listeners.append(_core.Listener.inherited(descriptor))
        if said["dial_fd"] is not None:
            os.set_inheritable(said["dial_fd"], False)
        bound = link_places.BoundBefore(listeners, said["reached_by"], said["dial_fd"])
    return bound


def _places() -> list[str]:
    """Return where this process's node is reached over a network, as its startpoints say it."""
    found = []
    for listener in bound.listeners if bound else []:
        host, _, port = listener.address.rpartition(":")
        if bound and not listener.address.startswith("unix:"):
            found.append(f"{bound.reached_by.get(host, host)}:{port}")
    return found


def _dial(manager: str) -> None:
    global dialled
    from .job_slot import connected

    dialled = connected(manager)


def _listen(addresses: Sequence[str], dial_fd: int | None) -> None:
    global bound
    from . import link_places

    reached_by = link_places.reached_by(link_places.listening(addresses))
    listeners = [_core.Listener(address) for address in addresses]
    bound = link_places.BoundBefore(listeners, reached_by, dial_fd)
