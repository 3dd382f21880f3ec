"""What processes may use that their host confines, whatever the job's creator asks for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from . import control_groups
from .confining import default_read
from .job_dialling import is_of_network, is_of_this_host

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_manager", "check_table", "narrowed"]

# From the strictest.
_NETWORKS = ("none", "links", "all")
_NUMBERS = ("memory", "processes", "file_size")
_TOTALS = ("total_memory", "total_processes")


def narrowed(host: Mapping[str, Any], asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a process may use: what its host says, and of that no more than its creator asks for.

    Paths count as they are written: what a symbolic link leads to may change.

    Parameters
    ----------
    host : mapping
        What the host's policy says, as `Sandbox.told` has it.
    asked : mapping, optional
        What the creator asks for.
    """
    if asked is None:
        return {**host, **dict.fromkeys(_TOTALS)}
    found = dict(host)
    found["system"] = bool(host["system"] and asked["system"])
    allowed = [os.fspath(path) for path in host["read"]]
    if host["system"] and not asked["system"]:
        allowed += default_read()
    # Where the host lists by itself what programs need, who doesn't say so names none of it.
    if host["system"] or not asked["system"]:
        found["read"] = [path for path in allowed if path in asked["read"]]
    found["write"] = [path for path in host["write"] if path in asked["write"]]
    usable = {*allowed, *map(os.fspath, host["write"])}
    if left_out := [path for path in (*asked["read"], *asked["write"]) if path not in usable]:
        found["left_out"] = left_out
    found["network"] = min(host["network"], asked["network"], key=_NETWORKS.index)
    # Those of all processes together hold besides.
    for name in _TOTALS:
        found[name] = asked[name]
    for name in _NUMBERS:
        limits = [one[name] for one in (host, asked) if one[name] is not None]
        found[name] = min(limits, default=None)
    return found


def check_table(table: Mapping[str, Any], *, is_root: bool) -> None:
    """See that a host can hold processes to what its policy says, before it is asked to.

    Parameters
    ----------
    table : mapping
        What the policy says, as `Sandbox.told` has it.
    is_root : bool
        Whether the processes are those of the account root.

    Raises
    ------
    ValueError
        If it can't.
    """
    for key in ("read", "write"):
        for path in table[key]:
            if not os.path.exists(path):
                raise ValueError(f"[sandbox] {key}: there is no {os.fspath(path)} on this host")
    if table["processes"] is not None and is_root:
        raise ValueError(
            "[sandbox] processes: it can't be held for the account root: start this under another account, or an agent with --user ACCOUNT, whose the processes are then"
        )
    control_groups.check(table)


def check_manager(host: Mapping[str, Any], manager: str) -> None:
    """See that a slot may be connected with its manager. Who asks may name any address: it must lead nowhere on this host that others don't get to.

    Parameters
    ----------
    host : mapping
        What the host's policy says, as `Sandbox.told` has it.
    manager : str
        Where the manager listens.

    Raises
    ------
    PermissionError
        If it may not.
    """
    leads_elsewhere = is_of_network(manager) and not is_of_this_host(manager)
    if host["network"] == "none" or not leads_elsewhere:
        raise PermissionError(
            f"the host's policy confines this process, and doesn't let it be connected with a manager at {manager!r}"
        )
