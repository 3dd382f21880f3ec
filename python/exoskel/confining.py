"""What a forked process does to confine itself, before it runs foreign code.

What it needs of the system it makes before: the sockets at which its node listens. Later it can make none.
"""

from __future__ import annotations

import errno
import functools
import json
import os
import struct
import sys

from . import _core, control_groups
from .errors import SANDBOX_MAY_BE_WHY
from .path_places import check_apart
from .process_zygote import DIAL_FD

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a process's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping, MutableMapping, Sequence
    from typing import Any

    from .link_places import BoundBefore

__all__ = [
    "SANDBOX",
    "allowed",
    "allowed_read",
    "check_python",
    "clean_environment",
    "confine",
    "default_read",
    "held",
    "held_besides",
    "keep_no_secret",
    "leave_sockets",
    "listen",
    "places",
    "reason_of",
    "system_read",
    "take_sockets",
    "temporary",
    "unconfined_paths",
]

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
# Of `/proc/PROCESS/stat`, behind the name: where the environment begins that the process got; its end is next to it.
_ENVIRONMENT = 47

# What was made for this process's node before it was confined.
bound: BoundBefore | None = None
# And its connection to the manager that it is a slot of, as a descriptor.
dialled: int | None = None
# What holds this process.
holds: Sequence[str] = ()
# What the C library says of a library that it can't load: for want of memory, and of rights.
_NOT_LOADED = ("failed to map segment", "annot allocate memory", "Permission denied")
# So many exceptions are looked at that one comes of.
_EXCEPTIONS_MAX = 16


def confine(
    sandbox: Mapping[str, Any], context: socket.socket, environment: Mapping[str, str]
) -> None:
    """Confine this process for ever, which is to run a function, and tell its agent what holds it.

    Parameters
    ----------
    sandbox : mapping
        `exoskel.Sandbox.told`, with ``folder``, which is this process's own, ``listen``, where its node listens, ``proxy``, a file, or None,
        and of a slot ``manager``, where its manager listens; ``groups`` and ``together``, as `control_groups.JobGroups.of_start` has them.
    context : socket.socket
        The socket to its agent.
    environment : mapping
        What it was asked to have in its environment.

    Raises
    ------
    OSError
        If it can't be confined as it is asked. The process must end then.
    """
    global bound
    folder = sandbox["folder"]
    if "groups" in sandbox:
        control_groups.enter(sandbox["groups"])
    clean_environment(sandbox, environment, folder)
    check_python(sandbox, [folder])
    # Where it may make sockets, it may still not write to the folder of its job.
    bound = listen(sandbox)
    if "manager" in sandbox:
        _dial(sandbox["manager"])
    confined = [*held(allowed(sandbox, folder)), *held_besides(sandbox)]
    word = json.dumps({"confined": confined, "places": places(bound)}).encode()
    context.sendall(_LENGTH.pack(len(word)) + word)


def allowed(sandbox: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return what a process in this sandbox may use, with a folder of its own, as `_core.confine` takes it.

    Raises
    ------
    PermissionError
        If code in it could change what its paths lead to; an earlier process may have done so.
    """
    check_apart(sandbox)
    proxy = sandbox.get("proxy")
    return {
        "read": [*map(os.fspath, sandbox["read"]), *([] if proxy is None else [proxy])],
        "read_if_there": system_read() if sandbox["system"] else (),
        "write": [folder, *sandbox["write"]],
        "has_network": sandbox["network"] == "all",
        "memory_bytes": sandbox["memory"],
        "processes": sandbox["processes"],
        "file_bytes": sandbox["file_size"],
    }


def allowed_read(sandbox: Mapping[str, Any]) -> list[str]:
    """Return what a process in this sandbox may read, where it is there."""
    return [*(system_read() if sandbox["system"] else ()), *map(os.fspath, sandbox["read"])]


def held(allowed: Mapping[str, Any]) -> list[str]:
    """Confine this process to what `allowed` has returned, and return what holds it."""
    global holds
    holds = _core.confine(dict(allowed))
    return list(holds)


def held_besides(sandbox: Mapping[str, Any]) -> list[str]:
    """Return what holds a process that doesn't do so itself, a phrase each."""
    found = list(sandbox.get("together", ()))
    if left_out := sandbox.get("left_out"):
        found.append(f"no use of {', '.join(left_out)}, which this host's policy does not list")
    return found


def reason_of(error: BaseException) -> str:
    """Return what holds this process, if that may be why something was raised; nothing otherwise, and outside of sandboxes."""
    one: BaseException | None = error
    for _ in range(_EXCEPTIONS_MAX):
        if one is None or not holds:
            break
        if _is_of_a_limit(one):
            return f"{SANDBOX_MAY_BE_WHY}{', '.join(holds)}"
        one = one.__cause__ or one.__context__
    return ""


def _is_of_a_limit(error: BaseException) -> bool:
    return (
        isinstance(error, PermissionError | BlockingIOError | MemoryError)
        # A name isn't found, or a thread doesn't begin. What raises that is loaded where it is raised.
        or type(error).__name__ == "gaierror"
        or (isinstance(error, OSError) and error.errno in (errno.EFBIG, errno.ENOMEM))
        # A library that can't be loaded is that, whatever has kept it from being so.
        or (isinstance(error, ImportError) and any(one in str(error) for one in _NOT_LOADED))
        or (isinstance(error, RuntimeError) and "can't start new thread" in error.args)
    )


def clean_environment(
    sandbox: Mapping[str, Any], environment: Mapping[str, str], folder: str
) -> None:
    """Keep of this process's environment what is no secret of its account, and add what it is to have."""
    keep_no_secret(os.environ, sandbox, environment, folder)
    _forget_first_environment()


def keep_no_secret(
    found: MutableMapping[str, str],
    sandbox: Mapping[str, Any],
    environment: Mapping[str, str],
    folder: str,
) -> None:
    """Keep of an environment what is no secret of its account, and add what a process in a sandbox is to have."""
    for name in list(found):
        if name not in _KEPT and not name.startswith(_KEPT_PREFIXES):
            del found[name]
    found["HOME"] = found["TMPDIR"] = folder
    found[SANDBOX] = sandbox["network"]
    found.update(environment)


def _forget_first_environment() -> None:
    """Erase the environment with which the program that this process is began; the kernel would show it for ever."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(") ")[2].split()
    start, end = int(fields[_ENVIRONMENT]), int(fields[_ENVIRONMENT + 1])
    # What stays may still be there. This puts it elsewhere.
    for name, value in os.environ.items():
        os.putenv(name, value)
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(start)
        memory.write(bytes(end - start))


def _python_folders() -> list[str]:
    """Where this Python and Exoskel are."""
    package = os.path.dirname(os.path.abspath(__file__))
    library = os.path.dirname(os.__file__)
    return [sys.prefix, sys.base_prefix, library, package]


def _system_paths() -> list[str]:
    # The first place where modules are found is where the agent was started.
    modules = sys.path if sys.flags.safe_path else sys.path[1:]
    return [path for path in (*_SYSTEM, *_python_folders(), *modules) if os.path.isabs(path)]


def temporary() -> str:
    """Return where this account's programs make folders of their own. `tempfile` would be much of a slot's memory."""
    return os.path.abspath(os.environ.get("TMPDIR") or "/tmp")


def unconfined_paths() -> list[str]:
    """Return what is run or believed outside of sandboxes: the system's programs, Python and what it finds, and what this account's workers are told."""
    own = (os.path.expanduser("~/.exoskel/run"), temporary())
    return sorted({*_system_paths(), *_looked_up_later(), *own})


def _looked_up_later() -> list[str]:
    """Where this account's next processes look for code, whether something is there by now or not: commands, libraries, modules and their compiled forms."""
    listed = [os.environ.get(name, "") for name in ("PATH", "LD_LIBRARY_PATH", "PYTHONPATH")]
    paths = [path for text in listed for path in text.split(os.pathsep)]
    base = os.environ.get("PYTHONUSERBASE") or os.path.expanduser("~/.local")
    own = f"{base}/lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    paths += [own, sys.pycache_prefix or ""]
    return [path for path in paths if os.path.isabs(path)]


@functools.cache
def system_read() -> tuple[str, ...]:
    """Return what processes in a sandbox may read unless it says otherwise, where it is there: the system's programs, and the Python that runs this."""
    paths = sorted(set(_system_paths()))
    # What lies below a folder, it covers.
    folders = tuple(f"{path}/" for path in paths)
    return tuple(path for path in paths if not path.startswith(folders))


def default_read() -> list[str]:
    """Return each path of these that is there, those below others as well."""
    return [path for path in _system_paths() if os.path.exists(path)]


def check_python(sandbox: Mapping[str, Any], write: Sequence[str]) -> None:
    """See that a process that runs a function may read the Python that runs it."""
    if sandbox["system"]:
        return
    may_use = (*sandbox["read"], *sandbox["write"], *write)
    allowed = [os.path.realpath(path).rstrip("/") + "/" for path in may_use]
    for folder in _python_folders():
        real = os.path.realpath(folder) + "/"
        if not real.startswith(tuple(allowed)):
            raise OSError(
                f"its sandbox contradicts itself: it is to run a function of Python, and may not read {folder}, where Python is; add it to `read`, or leave system=False out"
            )


def leave_sockets(
    descriptors: Sequence[int], own: BoundBefore, environment: MutableMapping[str, str]
) -> None:
    """Tell a program, which may join its job, by its environment of the sockets that it has."""
    told = {"listen": descriptors, "reached_by": own.reached_by, "dial_fd": own.dial_fd}
    environment[SOCKETS] = json.dumps(told)


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


def places(own: BoundBefore) -> list[str]:
    """Return where a node is reached over a network, as its startpoints say it."""
    found = []
    for listener in own.listeners:
        host, _, port = listener.address.rpartition(":")
        if not listener.address.startswith("unix:"):
            found.append(f"{own.reached_by.get(host, host)}:{port}")
    return found


def _dial(manager: str) -> None:
    global dialled
    from .job_slot import connected

    dialled = connected(manager)


def listen(sandbox: Mapping[str, Any]) -> BoundBefore:
    """Make what the node of a process in a sandbox needs, which can make no socket itself."""
    from . import link_places

    addresses = sandbox["listen"]
    reached_by = link_places.reached_by(link_places.listening(addresses))
    listeners = [_core.Listener(address) for address in addresses]
    dial_fd = DIAL_FD if sandbox["network"] == "links" else None
    return link_places.BoundBefore(listeners, reached_by, dial_fd)
