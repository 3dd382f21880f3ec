"""Jobs in virtual time: processes on several hosts that end together, with faults, played from seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from .. import _core
from .seeds import play_seeds, seed_number

__all__ = ["JobsRun", "jobs", "play", "scenario"]


class JobsRun(NamedTuple):
    """What came of a seed.

    Parameters
    ----------
    seed : int
        It decides everything.
    broken : str or None
        The promise that did not hold; None if all did.
    hosts, groups : int
        What there was: hosts, each with an agent, and groups of processes that were started together.
    faults : int
        Those that happened.
    processes, there : int
        Processes that were started, and those that were there.
    failed, lost : int
        Futures that failed, and processes that were lost with their agents.
    refused : int
        Starts that agents refused: as many as may be ran there, or their job was ending.
    replaced : int
        Slots of managers that took another one's place.
    told : int
        Times that a group was told of its members.
    siblings, met : int
        Siblings that processes learned of, and those that ran at that moment.
    killed : int
        Processes that were killed as they did not end.
    agents_lost : int
        Agents that were lost.
    longest_end_s : float
        The longest time from when an agent noticed the end of its job to the end of its last process, in seconds.
    events : int
        How many there were.
    virtual_s : float
        How long it was, in seconds of virtual time.
    digest : str
        Of all events and times in their order: equal wherever the seed is played with the same code.

    Of a run that broke a promise, only its size, ``events`` and ``virtual_s`` are known: when it broke off.
    """

    seed: int
    broken: str | None
    hosts: int
    groups: int
    faults: int
    processes: int
    there: int
    failed: int
    lost: int
    refused: int
    replaced: int
    told: int
    siblings: int
    met: int
    killed: int
    agents_lost: int
    longest_end_s: float
    events: int
    virtual_s: float
    digest: str


def jobs(seed: int) -> JobsRun:
    """Play one seed of jobs, twice: both plays must have the same digest.

    What creators and agents of jobs decide is that of the runtime; lines, hosts and processes are simulated. Hosts, processes and faults come
    from the seed (``docs/virtual-time.md``).

    Parameters
    ----------
    seed : int
        0 to 2**64 - 1.

    Returns
    -------
    JobsRun
        What came of it; `JobsRun.broken` says which promise did not hold.

    Raises
    ------
    ValueError
        If it is no seed.
    """
    [run] = play(seed_number("seed", seed), 1)
    return run


def scenario(seed: int) -> str:
    """Return what a seed is made of: text for people, of many lines.

    Parameters
    ----------
    seed : int
        0 to 2**64 - 1.

    Raises
    ------
    ValueError
        If it is no seed.
    """
    return _core.jobs_scenario(seed_number("seed", seed))


def play(
    first: int,
    count: int | None = None,
    *,
    minutes: float | None = None,
    threads: int | None = None,
    finished: Callable[[JobsRun], object] | None = None,
) -> list[JobsRun]:
    """Play seeds one after another, on all processors, each twice.

    Parameters
    ----------
    first, count, minutes, threads, finished
        As in `exoskel.sim.seeds.play`.

    Returns
    -------
    list of JobsRun
        By seed.

    Raises
    ------
    ValueError
        If an argument can't be: the text names it.
    KeyboardInterrupt
        On Ctrl-C; ``finished`` was told what was done.
    """
    return play_seeds(
        _core.jobs_runs,
        lambda row: JobsRun(**row),
        first,
        count,
        minutes=minutes,
        threads=threads,
        finished=finished,
    )
