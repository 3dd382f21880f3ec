"""Control groups: what holds the processes of a job on one host together, in memory and in their number.

Limits of a process (``Sandbox.memory``) count for each by itself. A control group counts all that are in it, and all that these start. Both
versions of the kernel's interface are known: hierarchies of their own for each controller, and the unified one (cgroups(7)). A group is always
made below that of the agent, so that nothing gets more than its agent has.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .job_orphans import has_ended, named

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = [
    "GroupPlace",
    "HostGroup",
    "JobGroups",
    "base_places",
    "check",
    "enter",
    "leave_to_agents",
    "own_places",
    "sweep",
]

# Each with the option that it holds processes to, the file of its limit in both versions, and what people call it.
_CONTROLLERS = {
    "memory": ("total_memory", "memory.limit_in_bytes", "memory.max", "bytes of memory"),
    "pids": ("total_processes", "pids.max", "pids.max", "processes and threads"),
}
# What is swapped out is no way round: in the first version that limit is for memory and swap together.
_SWAP_FILES = ("memory.memsw.limit_in_bytes", "memory.swap.max")
# Where the kernel counts whom it has ended for want of memory.
_COUNT_FILES = ("memory.oom_control", "memory.events")
# The groups of a process, its PID namespace and its start, so that nobody else's is taken for it when it has ended.
_OWN_NAME = re.compile(r"exoskel-(\d+\.\d+\.\d+)(?:-\d+)?")
_AGENTS = "exoskel-agents"


@dataclass(frozen=True)
class GroupPlace:
    """A control group: its folder, and whether it is one of the unified hierarchy."""

    folder: Path
    is_unified: bool


def own_places(process: Path = Path("/proc/self")) -> dict[str, GroupPlace]:
    """Return the groups in which this process is, by controllers; those that this host has.

    Parameters
    ----------
    process : Path
        What the kernel says of it.
    """
    try:
        groups = (process / "cgroup").read_text().splitlines()
        mounts = (process / "mountinfo").read_text().splitlines()
    except OSError:
        return {}
    paths = {}
    for line in groups:
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            paths[controller] = path
    found: dict[str, GroupPlace] = {}
    for line in mounts:
        own, _, kind = line.partition(" - ")
        root, point = (_unescaped(word) for word in own.split()[3:5])
        system, _, options = kind.split()[:3]
        if system == "cgroup":
            offered = [one for one in _CONTROLLERS if one in options.split(",") and one in paths]
            for controller in offered:
                if (folder := _below(point, root, paths[controller])) is not None:
                    found[controller] = GroupPlace(folder, is_unified=False)
        elif system == "cgroup2" and (folder := _below(point, root, paths.get("", ""))) is not None:
            with contextlib.suppress(OSError):
                for controller in (folder / "cgroup.controllers").read_text().split():
                    if controller in _CONTROLLERS:
                        found.setdefault(controller, GroupPlace(folder, is_unified=True))
    return found


def _unescaped(word: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word)


def _below(point: str, root: str, path: str) -> Path | None:
    """Return the folder of a group where a part of its hierarchy is mounted."""
    root = root.rstrip("/")
    if not path.startswith("/") or path.startswith("/..") or not f"{path}/".startswith(f"{root}/"):
        return None
    return Path(point + path.removeprefix(root))


class JobGroups:
    """The control groups of a job on this host: one for all of its processes, and below that one for each start.

    Parameters
    ----------
    table : mapping, optional
        What the host's policy lets all of them use, as `Sandbox.told` has it.
    whole : mapping, optional
        The groups for all of its processes, where a daemon has made them. Otherwise they are made below those of this process.
    """

    def __init__(
        self,
        table: Mapping[str, Any] | None,
        whole: Mapping[str, GroupPlace] | None = None,
    ) -> None:
        self._limits = _limits_of(table)
        self._whole = whole or {}
        self._places: dict[str, GroupPlace] | None = None
        self._made: list[Path] = []

    def of_start(self, number: int, asked: Mapping[str, Any] | None) -> dict[str, list[str]]:
        """Return what processes of a start enter, and what holds them there; nothing without limits.

        Parameters
        ----------
        number : int
            Which start it is. The same has the same group.
        asked : mapping, optional
            What it may use, as `Sandbox.told` has it.

        Raises
        ------
        OSError
            If there can't be such a group here.
        """
        limits = _limits_of(asked)
        folders, held = [], []
        for controller in dict.fromkeys([*self._limits, *limits]):
            whole = self._whole.get(controller)
            if whole is None:
                above, most = self._place(controller), self._limits.get(controller)
                whole = self._made_below(above, _own_name(), controller, most)
            own = self._made_below(whole, f"start-{number}", controller, limits.get(controller))
            folders.append(str(own.folder))
            what = _CONTROLLERS[controller][3]
            if controller in self._limits:
                most = self._limits[controller]
                held.append(f"{most} {what} with all processes of its job on this host")
            if controller in limits:
                held.append(f"{limits[controller]} {what} with all that were started with it here")
        return {"groups": list(dict.fromkeys(folders)), "together": held} if folders else {}

    def has_ended_some(self, folders: Iterable[str]) -> bool:
        """Say whether the kernel has ended processes in some groups, or in the job's, for want of memory."""
        for folder in folders:
            for place in (Path(folder), Path(folder).parent):
                for name in _COUNT_FILES:
                    with contextlib.suppress(OSError):
                        if re.search(r"^oom_kill [1-9]", (place / name).read_text(), re.MULTILINE):
                            return True
        return False

    def close(self) -> None:
        """Remove the groups: nothing runs in them any more."""
        for folder in reversed(self._made):
            # Another agent removes what is still in use.
            with contextlib.suppress(OSError):
                folder.rmdir()
        self._made.clear()

    def _place(self, controller: str) -> GroupPlace:
        if self._places is None:
            self._places = own_places()
        place = self._places.get(controller)
        if place is None:
            raise OSError(
                errno.ENOENT, f"this host offers no control groups of the controller {controller}"
            )
        return place

    def _made_below(
        self, parent: GroupPlace, name: str, controller: str, most: int | None
    ) -> GroupPlace:
        place = GroupPlace(parent.folder / name, parent.is_unified)
        if parent.is_unified:
            _enable(parent.folder, controller)
        if place.folder not in self._made:
            _make(place.folder)
            self._made.append(place.folder)
        if most is not None:
            _limit(place, controller, most)
        return place


class HostGroup:
    """A group that a host's daemon makes for the agent of a job under another account, which divides it further.

    Parameters
    ----------
    number : int
        Which of the daemon's it is.
    table : mapping, optional
        What the host's policy lets all processes of the job use, as `Sandbox.told` has it.
    account, group : int
        Who may divide and fill it then.

    Attributes
    ----------
    places : dict
        The groups for the processes, by controllers.

    Raises
    ------
    OSError
        If there can't be such a group here.
    """

    def __init__(
        self, number: int, table: Mapping[str, Any] | None, account: int, group: int
    ) -> None:
        self.places: dict[str, GroupPlace] = {}
        self._leaves: set[Path] = set()
        self._made: list[Path] = []
        limits = _limits_of(table)
        try:
            for controller, above in base_places().items():
                whole = GroupPlace(above.folder / f"{_own_name()}-{number}", above.is_unified)
                own = GroupPlace(whole.folder / "processes", above.is_unified)
                for parent in (above, whole):
                    if parent is whole and whole.folder not in self._made:
                        self._make(whole.folder)
                    if parent.is_unified:
                        _enable(parent.folder, controller)
                if own.folder not in self._made:
                    self._make(own.folder)
                    _give(own.folder, account, group)
                if controller in limits:
                    _limit(own, controller, limits[controller])
                if above.is_unified and not self._leaves:
                    # Who is moved must be let out by the group above both places.
                    leaf = whole.folder / "agent"
                    self._make(leaf)
                    self._leaves.add(leaf)
                    os.chown(whole.folder / "cgroup.procs", account, group)
                self.places[controller] = own
        except OSError:
            self.close()
            raise

    def take(self, process: int) -> None:
        """Take the agent in, which has started nothing yet."""
        for folder in self._leaves:
            (folder / "cgroup.procs").write_text(str(process))

    def _make(self, folder: Path) -> None:
        _make(folder)
        self._made.append(folder)

    def close(self) -> None:
        """Remove it, when the agent has ended."""
        for folder in reversed(self._made):
            _remove(folder)


def check(table: Mapping[str, Any]) -> None:
    """See that this process can hold others together as a policy says.

    Parameters
    ----------
    table : mapping
        What it says, as `Sandbox.told` has it.

    Raises
    ------
    ValueError
        If it can't.
    """
    limits = _limits_of(table)
    try:
        group = HostGroup(0, table, os.geteuid(), os.getegid())
    except OSError as error:
        reason = error.strerror
    else:
        missing = [one for one in limits if one not in group.places]
        group.close()
        if not missing:
            return
        reason = f"this host offers no control groups of the controller {missing[0]}"
    if limits:
        names = ", ".join(_CONTROLLERS[controller][0] for controller in limits)
        raise ValueError(f"[sandbox] {names}: {reason}")


def leave_to_agents() -> None:
    """Have the group of a daemon divided: in a unified hierarchy, one that has parts has no processes of its own.

    That is done only where the daemon is alone in its group, as a service of systemd with ``Delegate=yes`` is.
    """
    for place in own_places().values():
        with contextlib.suppress(OSError):
            inside = (place.folder / "cgroup.procs").read_text().split()
            if place.is_unified and inside == [str(os.getpid())]:
                leaf = place.folder / _AGENTS
                leaf.mkdir(exist_ok=True)
                (leaf / "cgroup.procs").write_text("0")


def enter(folders: Iterable[str]) -> None:
    """Move this process into groups.

    Raises
    ------
    OSError
        If it can't go there.
    """
    for folder in folders:
        Path(folder, "cgroup.procs").write_text("0")


def base_places() -> dict[str, GroupPlace]:
    """Return below which groups a daemon makes those of its jobs: its own, or the one that it has left to them."""
    found = own_places()
    return {
        controller: GroupPlace(place.folder.parent, place.is_unified)
        if place.folder.name == _AGENTS
        else place
        for controller, place in found.items()
    }


def sweep(places: Mapping[str, GroupPlace] | None = None) -> None:
    """Remove the groups of this account's agents that were killed, where nothing runs any more. Those of other containers are left to these."""
    for folder in {place.folder for place in (places or own_places()).values()}:
        with contextlib.suppress(OSError):
            for one in list(folder.iterdir()):
                found = _OWN_NAME.fullmatch(one.name)
                if found and one.stat().st_uid == os.geteuid() and has_ended(found[1]):
                    _remove(one)


def _remove(folder: Path) -> None:
    """Remove a group with those below, as far as nothing runs in them."""
    for one, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(one)


def _own_name() -> str:
    return f"exoskel-{named()}"


def _limits_of(told: Mapping[str, Any] | None) -> dict[str, int]:
    """Return limits by controllers. They may be anybody's words."""
    found = {}
    for controller, (option, *_) in _CONTROLLERS.items():
        most = None if told is None else told.get(option)
        if most is None:
            continue
        if isinstance(most, bool) or not isinstance(most, int) or most <= 0:
            raise ValueError(f"got {option}={most!r}, expected a number above 0")
        found[controller] = most
    return found


def _make(folder: Path) -> None:
    try:
        folder.mkdir()
    except OSError as error:
        raise OSError(
            error.errno,
            f"no control group can be made in {folder.parent} ({error.strerror}): that takes root, or a service of systemd with Delegate=yes",
        ) from None


def _enable(folder: Path, controller: str) -> None:
    try:
        enabled = (folder / "cgroup.subtree_control").read_text().split()
        if controller not in enabled:
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError as error:
        raise OSError(
            error.errno,
            f"the control group {folder} can't be divided for the controller {controller} ({error.strerror}): that takes root or a service of systemd with Delegate=yes, and no other processes in that group",
        ) from None


def _limit(place: GroupPlace, controller: str, most: int) -> None:
    _, first, unified, _ = _CONTROLLERS[controller]
    name = unified if place.is_unified else first
    try:
        (place.folder / name).write_text(str(most))
        if controller == "memory":
            swap = place.folder / _SWAP_FILES[place.is_unified]
            # A kernel without accounting of swap has none.
            if swap.exists():
                swap.write_text("0" if place.is_unified else str(most))
    except OSError as error:
        raise OSError(
            error.errno,
            f"the control group {place.folder} takes no {name}={most} ({error.strerror})",
        ) from None


def _give(folder: Path, account: int, group: int) -> None:
    """Let an account divide a group and fill it, but not change its limits."""
    for name in (".", "cgroup.procs", "tasks", "cgroup.subtree_control", "cgroup.threads"):
        with contextlib.suppress(FileNotFoundError):
            os.chown(folder / name, account, group)
