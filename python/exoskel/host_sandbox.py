"""What processes may use that their host confines, whatever the job's creator asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .confining import default_read
from .job_dialling import is_of_network, is_of_this_host

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["check_manager", "narrowed"]

# From the strictest.
_NETWORKS = ("none", "links", "all")
_NUMBERS = ("memory", "processes", "file_size")


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
        return dict(host)
    found = dict(host)
    if asked["read"] is not None:
        allowed = default_read() if host["read"] is None else host["read"]
        found["read"] = [path for path in allowed if path in asked["read"]]
    found["write"] = [path for path in host["write"] if path in asked["write"]]
    found["network"] = min(host["network"], asked["network"], key=_NETWORKS.index)
    for name in _NUMBERS:
        limits = [one[name] for one in (host, asked) if one[name] is not None]
        found[name] = min(limits, default=None)
    return found


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
