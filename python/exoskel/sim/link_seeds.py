"""Programs with links of their own in virtual time: processes that post and request, with faults, played from seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .. import _core
from .arguments import refused, whole_number
from .seeds import play_seeds, seed_number

__all__ = ["LinksRun", "links", "play", "scenario"]

# Processes of a run, as many as its network has places for.
NODES_MAX = 8
# More would take minutes for each seed.
LINKS_MAX = 256
MESSAGES_MAX = 100_000


class LinksRun(NamedTuple):
    """What came of a seed.

    Parameters
    ----------
    seed : int
        It decides everything, together with the arguments of `links`.
    broken : str or None
        The promise that did not hold; None if all did.
    trace : tuple of str
        The last events before the promise was broken, the newest last; empty if none was.
    nodes, links : int
        What there was: processes, and startpoints that one of them bound at another one.
    faults : int
        Those that happened.
    posts, requests : int
        Those that links took. Each came once and in the order of its link, or the link said that it may be lost.
    calls : int
        Posts and requests that came to their handlers.
    replies, requests_lost : int
        The requests' outcomes: a reply of their own, or a loss. Together they make up ``requests``, but for processes that died.
    losses : int
        Times that a link said that something may be lost.
    refused : int
        Times that somebody was not let in.
    looked_up : int
        Startpoints that rules gave to processes that asked for them.
    ended : int
        Links that ended because their startpoint had expired, or because a rule was against them.
    sessions, renewed, surplus, resumed : int
        Sessions that began, those that began anew with another policy or certificate, those that were one too many, links that went over to another session.
    wire_bytes : int
        Bytes on wires, all of which were looked at.
    events : int
        How many there were.
    virtual_s : float
        How long it was, in seconds of virtual time.
    digest : str
        Of all bytes and times in their order: equal wherever the seed is played with the same code.

    Of a run that broke a promise, only its size, ``events`` and ``virtual_s`` are known: when it broke off.
    """

    seed: int
    broken: str | None
    trace: tuple[str, ...]
    nodes: int
    links: int
    faults: int
    posts: int
    requests: int
    calls: int
    replies: int
    requests_lost: int
    losses: int
    refused: int
    looked_up: int
    ended: int
    sessions: int
    renewed: int
    surplus: int
    resumed: int
    wire_bytes: int
    events: int
    virtual_s: float
    digest: str


def links(
    seed: int,
    *,
    nodes: int | None = None,
    links: int | None = None,
    messages: int | None = None,
    faults: Iterable[str] | None = None,
) -> LinksRun:
    """Play one seed of programs that link to each other, twice: both plays must have the same digest.

    The links, sessions and records are those of the runtime; wires, processes and what handlers do are simulated. What isn't given
    comes from the seed (``docs/virtual-time.md``).

    Parameters
    ----------
    seed : int
        0 to 2**64 - 1.
    nodes : int, optional
        How many processes, 2 to 8.
    links : int, optional
        How many startpoints are bound, 1 to 256.
    messages : int, optional
        How many posts and requests each holder of a startpoint makes, 1 to 100,000.
    faults : iterable of str, optional
        The only kinds of faults that happen, out of those that the seed has. Empty for none.

    Returns
    -------
    LinksRun
        What came of it; `LinksRun.broken` says which promise did not hold.

    Raises
    ------
    ValueError
        If an argument can't be: the text names it.
    """
    made_of = shape(nodes, links, messages, faults)
    [run] = play(seed_number("seed", seed), 1, made_of=made_of)
    return run


def shape(
    nodes: int | None, links: int | None, messages: int | None, faults: Iterable[str] | None
) -> dict[str, Any]:
    """Return what narrows the scenarios of seeds, checked.

    Parameters
    ----------
    nodes, links, messages, faults
        As `links` takes them.

    Raises
    ------
    ValueError
        If one can't be.
    """
    limits = {"nodes": (2, NODES_MAX), "links": (1, LINKS_MAX), "messages": (1, MESSAGES_MAX)}
    made_of: dict[str, Any] = {"nodes": nodes, "links": links, "messages": messages}
    for name, (least, most) in limits.items():
        if made_of[name] is not None:
            made_of[name] = whole_number(name, made_of[name], least=least, most=most)
    known = _core.links_fault_names()
    expected = f"some of {', '.join(known)}"
    if isinstance(faults, str):
        raise refused("faults", faults, f"several texts, {expected}")
    kinds = None if faults is None else list(faults)
    for kind in kinds or ():
        if kind not in known:
            raise refused("faults", kind, expected)
    return {**made_of, "faults": kinds}


def scenario(seed: int, made_of: dict[str, Any]) -> str:
    """Return what a seed is made of: text for people, of many lines.

    Parameters
    ----------
    seed : int
        0 to 2**64 - 1.
    made_of : dict
        Of `shape`.

    Raises
    ------
    ValueError
        If it is no seed.
    """
    return _core.links_scenario(seed_number("seed", seed), made_of)


def play(
    first: int,
    count: int | None = None,
    *,
    made_of: dict[str, Any],
    minutes: float | None = None,
    threads: int | None = None,
    finished: Callable[[LinksRun], object] | None = None,
) -> list[LinksRun]:
    """Play seeds one after another, on all processors, each twice.

    Parameters
    ----------
    first, count, minutes, threads, finished
        As in `exoskel.sim.seeds.play`.
    made_of : dict
        Of `shape`.

    Returns
    -------
    list of LinksRun
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
        _core.links_runs(first, count, seconds, threads, made_of, take)

    return play_seeds(
        engine,
        _run,
        first,
        count,
        minutes=minutes,
        threads=threads,
        finished=finished,
    )


def _run(row: dict[str, Any]) -> LinksRun:
    return LinksRun(**{**row, "trace": tuple(row["trace"])})
