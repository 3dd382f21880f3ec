"""Four arrays that are exported at once, beside the same four in turn: on one host, and by two keepers over TCP on loopback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benches.redist import keepers, programs
from benches.redist.frame import FIRST, Bench, Goal, Row

TRANSFERS = 4
VERSIONS = FIRST + 3
HOSTS: dict[str, Callable[[str], keepers.Hosts]] = {
    "one host": keepers.one_host,
    "two keepers, plain": partial(keepers.two_hosts, "plain"),
    "two keepers, encrypted": partial(keepers.two_hosts, "encrypted"),
}


def measure(bench: Bench) -> Iterator[Row]:
    """Rows to columns, four times."""
    for name, hosts in HOSTS.items():
        for length in bench.lengths(2048):
            shape = f"{length}x{length}"
            yield bench.row(
                f"four of {length} x {length}, 1x1, {name}",
                {
                    "ours at once": partial(moved, ["+".join([shape] * TRANSFERS)], hosts),
                    "ours in turn": partial(moved, [shape] * TRANSFERS, hosts),
                },
                unit="ms",
                scale=1e3,
                keys={"hosts": name, "length": length},
            )


def moved(shapes: list[str], hosts: Callable[[str], keepers.Hosts]) -> list[float]:
    """Seconds for each version of all arrays; each word of shapes begins when the one before has come."""
    words = [programs.ours(), "columns", 1, VERSIONS, *shapes]
    with hosts(keepers.coupling("columns", shapes)) as places:
        started = [keepers.start(words, name, places[name]) for name in ("source", "target")]
        times = keepers.versions_of(*started)
    each = [times[at : at + VERSIONS] for at in range(0, len(times), VERSIONS)]
    return [sum(version) for version in zip(*each, strict=True)]


def goals(rows: list[Row]) -> list[Goal]:
    """No slower at once."""
    over = [(row.ratio("ours at once", "ours in turn"), row.keys["hosts"]) for row in rows]
    return [
        Goal(
            f"four transfers at once / in turn, time, {name}",
            max((ratio for ratio, where in over if where == name and ratio), default=None),
            1.05,
            is_least=False,
        )
        for name in HOSTS
    ]
