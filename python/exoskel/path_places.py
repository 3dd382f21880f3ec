"""Where the paths of a sandbox lead, and who could change that: what `read` and `write` name must stay what it is while code is confined.

A sandbox follows links when it begins, for each process anew. So nothing on the way to a path may be where earlier code could write.
"""

from __future__ import annotations

import errno
import os

# Type checkers take any name TYPE_CHECKING as true; `typing` itself would be a tenth of a slot's memory.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

__all__ = ["check_apart", "lie_below", "way_to"]

# More links than the system follows.
_LINKS_MAX = 40


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
