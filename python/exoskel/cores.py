"""How many cores there are for slots, for the threads inside them, and for simulations: one count for all."""

from __future__ import annotations

import os

__all__ = ["cpu_quota", "usable_cores"]


def usable_cores() -> int:
    """Return how many cores this process may use: those it may run on, or what its control group leaves it if that is less.

    Returns
    -------
    int
        At least 1.
    """
    # Python 3.13 on; it knows `-X cpu_count` besides.
    count = getattr(os, "process_cpu_count", None)
    cores = len(os.sched_getaffinity(0)) if count is None else count() or 1
    quota = cpu_quota()
    return max(1, cores if quota is None else min(cores, int(quota)))


def cpu_quota(root: str = "/sys/fs/cgroup", groups: str = "/proc/self/cgroup") -> float | None:
    """Return the smallest quota of this process's control group and those around it.

    Parameters
    ----------
    root : str
        Where control groups are mounted.
    groups : str
        The file that names those of this process.

    Returns
    -------
    float or None
        In cores; None if there is no quota.
    """
    quotas = []
    for line in _read(groups).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "cpu" not in controllers.split(","):
            continue
        parts = [part for part in path.split("/") if part]
        # In a container the group's own path may lie outside of what is mounted; then the mount itself is the group.
        for depth in range(len(parts) + 1):
            place = "/".join([root, *(["cpu"] if controllers else []), *parts[:depth]])
            if controllers:
                limit = _read(f"{place}/cpu.cfs_quota_us"), _read(f"{place}/cpu.cfs_period_us")
            else:
                limit = tuple(_read(f"{place}/cpu.max").split())[:2]  # type: ignore[assignment]
            try:
                quota, period = map(int, limit)
            except ValueError:
                continue  # "max", or no such file
            if quota > 0 and period > 0:
                quotas.append(quota / period)
    return min(quotas, default=None)


def _read(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.read().decode(errors="replace")
    except OSError:
        return ""
