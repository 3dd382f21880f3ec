"""Where the paths of a sandbox lead, and who could change that: what `read` and `write` name must stay what it is while code is confined.

A sandbox follows links when it begins, for each process anew. So nothing on the way to a path may be where earlier code could write.
"""

from __future__ import annotations

import errno
import os
import re

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

__all__ = ["check_apart", "leads_to", "lie_below", "way_to"]

# More links than the system follows.
_LINKS_MAX = 40
_MOUNT_POINT = 4


def check_apart(sandbox: Mapping[str, Any]) -> None:
    """See that no path of a sandbox lies where its code may write, itself or by a link: the code could put another in its place for whoever comes next.

    Parameters
    ----------
    sandbox : mapping
        As `Sandbox.told` has it.

    Raises
    ------
    PermissionError
        If one does.
    """
    folders = {folder: os.path.realpath(folder) for folder in map(os.fspath, sandbox["write"])}
    for kind in ("read", "write"):
        for path in map(os.fspath, sandbox[kind]):
            *links, place = way_to(path)
            for folder, real in folders.items():
                if lie_below([*links, *([place] if place != real else [])], [real]):
                    raise PermissionError(
                        f"[sandbox] {kind} names {path}, which is reached by way of {folder}, where code may write: it could put a link to anything there; name {folder} alone, or put {path} elsewhere"
                    )


def way_to(path: str) -> list[str]:
    """Return by which links a path leads to a file, and where that is: who can put something else into the place of one of them chooses the file."""
    found = []
    here, rest = "/", os.path.join(os.getcwd(), path).split("/")[::-1]
    while rest:
        part = rest.pop()
        if part == "..":
            here = os.path.dirname(here)
        elif part not in ("", "."):
            place = os.path.join(here, part)
            if not os.path.islink(place):
                here = place
                continue
            found.append(place)
            if len(found) > _LINKS_MAX:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            target = os.readlink(place)
            here = "/" if target.startswith("/") else here
            rest += target.split("/")[::-1]
    return [*found, here]


def lie_below(places: Iterable[str], folders: Iterable[str]) -> bool:
    """Say whether one of some places is one of some folders or lies below it."""
    above = tuple(f"{os.path.realpath(folder).rstrip('/')}/" for folder in folders)
    return any(f"{place}/".startswith(above) for place in places)


def leads_to(folders: Iterable[str], place: str) -> bool:
    """Say whether what is at a place is found in one of some folders, by whatever name: a mount shows a folder at two places."""
    wanted = {_identity(one) for one in _with_parents(place)} - {None}
    given = [os.path.realpath(folder) for folder in folders]
    shown = [point for point in _mount_points() if lie_below([point], given)] if given else []
    return any(_identity(one) in wanted for one in (*given, *shown))


def _with_parents(place: str) -> list[str]:
    found = [place]
    while (above := os.path.dirname(found[-1])) != found[-1]:
        found.append(above)
    return found


def _identity(path: str) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _mount_points() -> list[str]:
    with open("/proc/self/mountinfo", "rb") as file:
        names = [line.split()[_MOUNT_POINT] for line in file]
    return [os.fsdecode(re.sub(rb"\\([0-7]{3})", _byte, name)) for name in names]


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes([int(found[1], 8)])
