"""What holds a slot of a worker whose policy confines the code of its manager.

A slot confines itself when its manager has proved itself, and before anything of that manager runs. It has one thread by then, no key, and
no sockets but that of its session, one to the worker's signer, and one to its supervisor, which writes what it prints.
"""

from __future__ import annotations

import contextlib
import os
import sys

from . import _core, confining
from .errors import PolicyError
from .path_places import check_apart, leads_to, lie_below, way_to

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

__all__ = ["check", "check_files", "confine", "leave_output"]

# Of a worker's options, those that name files: its secrets, and what else it is told by files.
_SECRETS = ("credential", "key")
_FILES = ("policy", "revocation_list", "trust_anchors", "vomsdir")
# What a slot keeps in its environment besides what every process in a sandbox does.
_SLOT = "EXOSKEL_SLOT"
_DESCRIPTOR_BYTES = 4


def check(sandbox: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """See that code in a sandbox gets neither at the worker's secrets nor at the files by which it is judged.

    Parameters
    ----------
    sandbox : mapping
        What the policy says, as `Sandbox.told` has it.
    options : mapping
        The worker's options.

    Raises
    ------
    PermissionError
        If it would.
    PolicyError
        If it asks for what slots can't be held to.
    """
    for name in ("total_memory", "total_processes"):
        if sandbox[name] is not None:
            raise PolicyError(
                f"[sandbox] {name}: it holds the processes of jobs (`exoskel agent`); slots of a worker are held each by itself, by `{name.removeprefix('total_')}`"
            )
    check_files(sandbox, options)


def check_files(sandbox: Mapping[str, Any], files: Mapping[str, Any]) -> None:
    """See that code in a sandbox gets neither at secrets nor at the files by which others are judged, and can't change what its paths lead to.

    Parameters
    ----------
    sandbox : mapping
        What the policy says, as `Sandbox.told` has it.
    files : mapping
        The options of whoever confines it, of which some name files.

    Raises
    ------
    PermissionError
        If it would.
    """
    check_apart(sandbox)
    read = confining.allowed_read(sandbox)
    named = [
        (name, str(files[name])) for name in (*_SECRETS, *_FILES) if files.get(name) is not None
    ]
    policy = files.get("policy")
    if policy is not None and sandbox["write"]:
        # The policy may have been replaced by one that can't be read: the worker goes on by the one before.
        with contextlib.suppress(PolicyError):
            named += [("policy", str(path)) for path in _core.policy_files(policy)]
    for name, path in named:
        *links, place = way_to(path)
        if name in _SECRETS and _names_of(place) > 1:
            raise PermissionError(
                f"got {path} with {_names_of(place)} names, expected one: by another one code in a sandbox could read it; copy it, and remove the old one"
            )
        is_written = lie_below(links, sandbox["write"]) or leads_to(sandbox["write"], place)
        kind = "write" if is_written else "read"
        if kind == "read" and (name not in _SECRETS or not leads_to(read, place)):
            continue
        what = "its own credential" if name in _SECRETS else "a file by which peers are judged"
        raise PermissionError(
            f"[sandbox] {kind} covers {path}, which is {what}: put it elsewhere, or take the folder out of `{kind}`"
        )
    _check_unconfined(sandbox["write"])


def confine(sandbox: Mapping[str, Any], told: Mapping[str, Any]) -> list[str]:
    """Confine this slot for ever. That the sandbox leaves the worker's own files alone, `check` has seen.

    Parameters
    ----------
    sandbox : mapping
        What the policy says of its manager, as `Sandbox.told` has it.
    told : mapping
        What all slots of the worker are told: its ``options``, and ``folder``, where each makes one of its own.

    Returns
    -------
    list of str
        What holds it, a phrase each.

    Raises
    ------
    OSError
        If it can't be confined as the policy says. The process must end then.
    """
    with contextlib.suppress(FileExistsError):
        os.mkdir(told["folder"], 0o700)
    folder = os.path.join(told["folder"], str(os.getpid()))
    os.mkdir(folder, 0o700)
    kept = {_SLOT: os.environ[_SLOT], **told["environment"]}
    confining.clean_environment(sandbox, kept, folder)
    os.chdir(folder)
    confining.check_python(sandbox, [folder])
    return confining.held(confining.allowed(sandbox, folder))


def leave_output(supervisor: int) -> None:
    """Give up the worker's standard output and error: who has them may cut a file, or read what is typed at a terminal.

    Parameters
    ----------
    supervisor : int
        Where a slot hands over what the supervisor reads in their place (`cli.slot_output`).

    Raises
    ------
    OSError
        If there is no descriptor left, or no supervisor.
    """
    import _socket

    own, theirs = _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM)
    # Who reads there would wait for ever.
    own.shutdown(_socket.SHUT_RD)
    told = _socket.socket(fileno=os.dup(supervisor))
    rights = theirs.fileno().to_bytes(_DESCRIPTOR_BYTES, sys.byteorder)
    told.sendmsg([os.environ[_SLOT].encode()], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    for number in (1, 2):
        os.dup2(own.fileno(), number)
    for one in (own, theirs, told):
        one.close()


def _names_of(place: str) -> int:
    try:
        return os.stat(place).st_nlink
    except FileNotFoundError:
        # Whoever needs it says so.
        return 0


def _check_unconfined(write: Iterable[str]) -> None:
    """See that code in a sandbox writes nothing that runs outside of it: programs, modules that Python finds, what workers in the background are told."""
    for listed in map(os.fspath, write):
        real = os.path.realpath(listed)
        for path in confining.unconfined_paths():
            # Where many have their own files below, only the folder itself matters.
            is_within = path != confining.temporary() and lie_below([real], [path])
            if is_within or lie_below(way_to(path), [real]):
                raise PermissionError(
                    f"[sandbox] write names {listed}, where code could change what runs outside of the sandbox ({path}): take it out of `write`"
                )
