"""What the figures about cards run: how much of each trace, on how fast a machine, and how many packets a message is."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from ... import _core
from .setting import REQUESTS, Setting

__all__ = [
    "LONG",
    "MESSAGES",
    "NAS",
    "ONE",
    "PAPER_PERCENT",
    "PIECES",
    "UNSTATED_PERCENT",
    "WHOLE",
    "described",
    "workload",
]

# The five that the paper runs together.
NAS = ("CG", "MG", "LU", "SP", "BT")

# What a message is: one packet, as in a trace that lists who sent to whom and when; or as many packets as its bytes need. The paper describes
# its traces like the former, and cuts its packets to any length.
ONE = "one packet"
MESSAGES = {ONE: 1, "all packets": 0}

# Iterations of a class A trace that are run; `WHOLE` is all of them.
WHOLE = dict.fromkeys(("CG", "MG", "LU", "SP", "BT", "FT", REQUESTS), sys.maxsize)
# With all packets: the whole traces, but for three in which each of many iterations, or of six transforms, sends the same messages.
LONG = {**WHOLE, "SP": 20, "BT": 20, "FT": 2}
# With all packets, where much is varied: at most some hundred thousand packets.
PIECES = {"CG": 2, "MG": 1, "LU": 4, "SP": 3, "BT": 2, "FT": 1, REQUESTS: sys.maxsize}

# By Table 1, what the paper's machine took in per cent of our busiest rank's computation (LU: 268.61 s for 250 iterations, of which we have 20).
PAPER_PERCENT = {"CG": 7261, "MG": 17132, "LU": 22143, "SP": 24569, "BT": 18570}
# The median of these, for those that Table 1 doesn't have.
UNSTATED_PERCENT = 18570
# Where little is run, of small traces.
QUICK_MESSAGES = 300


def workload(
    setting: Setting, benchmark: str, iterations: int, percent: int | None = None
) -> _core.KeyCacheTrace:
    """Return so many iterations of a trace, on the paper's machine.

    Parameters
    ----------
    setting : Setting
        Says where the traces are.
    benchmark : str
        One of the NAS benchmarks, or `REQUESTS`.
    iterations : int
        A job ends when as many messages as they have were delivered.
    percent : int, optional
        What the machine takes in per cent of ours; the paper's by default, and ours for those that its Table 1 doesn't have.
    """
    if percent is None:
        percent = PAPER_PERCENT.get(benchmark, 100)
    messages = _limit(setting, benchmark, iterations)
    return setting.trace(benchmark, percent=percent, messages=messages)


def _limit(setting: Setting, benchmark: str, iterations: int) -> int:
    if setting.quick:
        return QUICK_MESSAGES
    trace = setting.trace(benchmark)
    if iterations >= trace.iterations:
        return 0
    return trace.messages * iterations // trace.iterations


def described(
    setting: Setting,
    iterations: Mapping[str, int],
    benchmarks: Iterable[str],
    percents: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Return what the head of a CSV file says of it.

    Parameters
    ----------
    setting : Setting
        How much is run.
    iterations : mapping
        By benchmark, at most.
    benchmarks : iterable of str
        Which are run.
    percents : mapping, optional
        By benchmark, where they aren't those of `workload`.
    """
    names = list(benchmarks)
    known = {**dict.fromkeys(names, 100), **PAPER_PERCENT, **(percents or {})}
    listed = {
        name: min(iterations[name], setting.trace(name).iterations)
        for name in names
        if name != REQUESTS
    }
    return {
        "traces": "class S" if setting.quick else "class A",
        "sha256": setting.checksums(names),
        "iterations": f"{QUICK_MESSAGES} messages" if setting.quick else _pairs(listed),
        "compute_percent": _pairs({name: known[name] for name in names}),
    }


def _pairs(values: Mapping[str, int]) -> str:
    return " ".join(f"{name}:{value}" for name, value in values.items())
