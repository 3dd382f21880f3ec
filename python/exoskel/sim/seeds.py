"""The whole system in virtual time: a manager, its workers and its users, with faults, played from seeds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from .. import _core
from ..cores import usable_cores

__all__ = ["SystemRun", "play", "play_seeds", "scenario", "seed_number", "system"]

# What came of a seed: a named tuple that begins with its seed.
Run = TypeVar("Run", bound=tuple[Any, ...])

# Seeds have 64 bits.
SEED_MAX = 2**64 - 1


class SystemRun(NamedTuple):
    """What came of a seed.

    Parameters
    ----------
    seed : int
        It decides everything.
    broken : str or None
        The promise that did not hold; None if all did.
    workers, streams, items : int
        What there was: workers of one slot, streams, and items in all of them.
    faults : int
        Those that happened.
    outcomes, cancelled : int
        Items with an outcome, and those that their user took back.
    left : int
        Items without an outcome when their user closed the stream, which some do early. With ``outcomes`` and ``cancelled`` they make up ``items``, where each item
        has one outcome: in programs that split or fold items, they don't.
    sessions, slots_lost, crashes : int
        Sessions that began, slots that the manager lost without a good-bye, processes that crashed.
    restarts : int
        Times that a crashed manager was there again. What is said of items is of the last one's streams.
    events : int
        How many there were.
    virtual_s : float
        How long it was, in seconds of virtual time.
    digest : str
        Of all events, times and bytes in their order: equal wherever the seed is played with the same code.

    Of a run that broke a promise, only its size, ``events`` and ``virtual_s`` are known: when it broke off.
    """

    seed: int
    broken: str | None
    workers: int
    streams: int
    items: int
    faults: int
    outcomes: int
    cancelled: int
    left: int
    sessions: int
    slots_lost: int
    crashes: int
    restarts: int
    events: int
    virtual_s: float
    digest: str


def system(seed: int) -> SystemRun:
    """Play one seed, twice: both plays must have the same digest.

    The sessions, the scheduler and all between them are those of the runtime; wires, clocks, processes and users are simulated. Topology,
    program, protections and faults come from the seed (``docs/virtual-time.md``).

    Parameters
    ----------
    seed : int
        0 to 2**64 - 1.

    Returns
    -------
    SystemRun
        What came of it; `SystemRun.broken` says which promise did not hold.

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
    return _core.system_scenario(seed_number("seed", seed))


def play(
    first: int,
    count: int | None = None,
    *,
    minutes: float | None = None,
    threads: int | None = None,
    finished: Callable[[SystemRun], object] | None = None,
) -> list[SystemRun]:
    """Play seeds one after another, on all processors, each twice.

    Parameters
    ----------
    first : int
        The first seed.
    count : int, optional
        How many.
    minutes : float, optional
        No seed begins after so many. One of the two has to be given.
    threads : int, optional
        How many at a time; one for each processor that this process may use if absent.
    finished : callable, optional
        Called with what came of each, as they come.

    Returns
    -------
    list of SystemRun
        By seed.

    Raises
    ------
    ValueError
        If an argument can't be: the text names it.
    KeyboardInterrupt
        On Ctrl-C; ``finished`` was told what was done.
    """

    def engine(
        first: int,
        count: int | None,
        seconds: float | None,
        threads: int,
        take: Callable[[dict[str, Any]], object],
    ) -> None:
        _core.system_runs(first, count, seconds, threads, take)

    return play_seeds(
        engine,
        lambda row: SystemRun(**row),
        first,
        count,
        minutes=minutes,
        threads=threads,
        finished=finished,
    )


def play_seeds(
    engine: Callable[
        [int, int | None, float | None, int, Callable[[dict[str, Any]], object]], None
    ],
    made: Callable[[dict[str, Any]], Run],
    first: int,
    count: int | None,
    *,
    minutes: float | None,
    threads: int | None,
    finished: Callable[[Run], object] | None,
) -> list[Run]:
    """Play seeds by an engine, as `play` does.

    Parameters
    ----------
    engine : callable
        Called with the first seed, their number, the seconds, the threads, and what takes the row of each seed.
    made : callable
        Makes of a row what came of the seed.
    first, count, minutes, threads, finished
        As in `play`.

    Raises
    ------
    ValueError
        If an argument can't be: the text names it.
    """
    seed_number("first", first)
    if count is None and minutes is None:
        raise ValueError("count: got none, expected a number of seeds, or minutes")
    if count is not None and not 1 <= count <= SEED_MAX:
        raise ValueError(f"count: got {count}, expected at least 1")
    if count is not None and first + count - 1 > SEED_MAX:
        raise ValueError(f"count: got {count} from {first}, expected seeds up to {SEED_MAX}")
    # A year: longer times are not told apart from mistakes.
    if minutes is not None and not 0 < minutes <= 366 * 24 * 60:
        raise ValueError(f"minutes: got {minutes:g}, expected more than 0 and at most a year")
    runs: list[Run] = []

    def take(row: dict[str, Any]) -> None:
        run = made(row)
        runs.append(run)
        if finished is not None:
            finished(run)

    seconds = None if minutes is None else minutes * 60
    engine(first, count, seconds, threads or usable_cores(), take)
    return sorted(runs)


def seed_number(name: str, seed: int) -> int:
    """Return a seed.

    Parameters
    ----------
    name : str
        What it is, for the message.
    seed : int
        What was given.

    Raises
    ------
    ValueError
        If it is none.
    """
    if not 0 <= seed <= SEED_MAX:
        raise ValueError(f"{name}: got {seed}, expected a seed from 0 to {SEED_MAX}")
    return seed
