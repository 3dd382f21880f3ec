"""What a process of foreign code may use: `Sandbox`."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Sandbox"]

_NETWORKS = ("none", "links", "all")
_UNITS = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+)\s*([A-Za-z]*)")
# A Python that has loaded what a process of a job needs takes more.
_MEMORY_BYTES_MIN = 64 << 20
_BYTES_MAX = 1 << 62
_PROCESSES_MAX = 1 << 20


@dataclass(frozen=True)
class Sandbox:
    """What processes of a job may use on their hosts. What a host can't hold them to is an error; nothing weaker is taken for it.

    Each process has a folder of its own besides, empty, where it begins and where its temporary files go. It is removed with the job.

    Parameters
    ----------
    read : sequence of path
        Files and folders that it may read and execute besides ``system``.
    write : sequence of path
        Files and folders that it may read and change. It can't execute what is there.
    network : {"links", "none", "all"}
        To whom it may connect: to its siblings, to nobody, or to everybody. The job's creator reaches it in each case.
    memory : str or int, optional
        The address space of each process, as in ``"4 GiB"`` or in bytes.
    processes : int, optional
        Processes and threads at the same time, all together that come from one process of the job.
    file_size : str or int, optional
        The length of each file that it writes.
    total_memory : str or int, optional
        What all processes that were started together have in memory at the same time, on each host. A control group holds them.
    total_processes : int, optional
        Processes and threads of all that were started together at the same time, on each host; by a control group as well.
    system : bool
        Whether it may read and execute what programs need: the system's programs and libraries, the Python that runs the agent, and where that
        finds modules. Without that, ``read`` is all.
    """

    read: Sequence[str | os.PathLike[str]] = ()
    write: Sequence[str | os.PathLike[str]] = ()
    network: str = "links"
    memory: str | int | None = None
    processes: int | None = None
    file_size: str | int | None = None
    system: bool = True
    total_memory: str | int | None = None
    total_processes: int | None = None

    def __post_init__(self) -> None:
        """Check what was given.

        Raises
        ------
        ValueError
            If it can't be meant.
        """
        if self.network not in _NETWORKS:
            raise ValueError(
                f"got network={self.network!r}, expected {', '.join(map(repr, _NETWORKS))}"
            )
        _check_count("processes", self.processes)
        _check_count("total_processes", self.total_processes)
        if not isinstance(self.system, bool):
            raise TypeError(f"got system={self.system!r}, expected True or False")
        told = self.told()
        for path in [*told["read"], *told["write"]]:
            if not path.startswith("/") or "\0" in path:
                raise ValueError(f"got the path {path!r}, expected one that begins with /")
        if os.path.realpath("/") in map(os.path.realpath, told["write"]):
            raise ValueError("got write=['/'], expected folders: to write everywhere is no sandbox")
        _check_apart(told)
        for name, given in (("memory", self.memory), ("total_memory", self.total_memory)):
            if told[name] is not None and told[name] < _MEMORY_BYTES_MIN:
                raise ValueError(
                    f"got {name}={given!r}, expected at least {_MEMORY_BYTES_MIN >> 20} MiB: a Python takes that"
                )

    def told(self) -> dict[str, Any]:
        """Return it as an agent is told."""
        return {
            "read": _paths("read", self.read),
            "system": self.system,
            "write": _paths("write", self.write),
            "network": self.network,
            "memory": _bytes("memory", self.memory),
            "processes": self.processes,
            "file_size": _bytes("file_size", self.file_size),
            "total_memory": _bytes("total_memory", self.total_memory),
            "total_processes": self.total_processes,
        }


def _check_apart(told: dict[str, Any]) -> None:
    """See that no path lies below one that code may change, as it is written. Where links lead is for the hosts to see (`path_places`)."""
    folders = {folder: _parts(folder) for folder in told["write"]}
    for kind in ("read", "write"):
        for path in told[kind]:
            parts = _parts(path)
            for folder, above in folders.items():
                is_sure = ".." not in (*parts, *above)
                if is_sure and len(parts) > len(above) and parts[: len(above)] == above:
                    raise ValueError(
                        f"got {path!r} in `{kind}`, which lies below {folder!r} in `write`: code could put a link to anything there; name {folder!r} alone, or put {path!r} elsewhere"
                    )


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _check_count(name: str, count: Any) -> None:
    if count is None:
        return
    is_number = isinstance(count, int) and not isinstance(count, bool)
    if not is_number or not 1 <= count <= _PROCESSES_MAX:
        raise ValueError(
            f"got {name}={count!r}, expected a whole number from 1 to {_PROCESSES_MAX}"
        )


def _paths(name: str, paths: Sequence[str | os.PathLike[str]]) -> list[str]:
    if isinstance(paths, str | bytes | os.PathLike):
        raise TypeError(f'got {name}={paths!r}, expected a list of paths, as in ["/usr"]')
    return [os.fspath(path) for path in paths]


def _bytes(name: str, size: str | int | None) -> int | None:
    if size is None:
        return None
    if isinstance(size, str):
        found = _SIZE.fullmatch(size.strip())
        count = int(found[1]) * _UNITS.get(found[2], 0) if found and len(found[1]) < 20 else 0
    else:
        count = 0 if isinstance(size, bool) or not isinstance(size, int) else size
    if not 0 < count <= _BYTES_MAX:
        raise ValueError(
            f'got {name}={size!r}, expected a number of bytes, or one with KiB, MiB, GiB or TiB, as in "4 GiB"'
        )
    return count
