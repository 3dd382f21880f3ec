"""What is small on one host: one number there and back, and how soon the first version is there."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from benches.redist import keepers, programs
from benches.redist.frame import Bench, Goal, Row, lines, median

ROUND_TRIP = """
[program.there]
[program.back]
[[connection]]
from = "there.given"
to = "back.taken"
[[connection]]
from = "back.given"
to = "there.taken"
"""
TURNS = 20_000
# Not counted: the two find their pace.
TURNS_FIRST = TURNS // 10
LENGTH = 1024
# Members of the source and of the target.
MEMBERS = ((4, 4), (64, 48))


def measure(bench: Bench) -> Iterator[Row]:
    """A number there and back, and first versions of 8 MiB."""
    yield bench.row(
        "one number there and back",
        {"ours": there_and_back, "futex": lambda: lines([programs.round_trip(), "futex", TURNS])},
        unit="us",
        scale=1e6,
        first=TURNS_FIRST,
        keys={"members": None},
    )
    for sources, targets in MEMBERS:
        yield bench.row(
            f"first 8 MiB, last attach to last import, {sources}x{targets}",
            {"ours": partial(first_version, sources, targets)},
            unit="ms",
            scale=1e3,
            first=0,
            keys={"members": (sources, targets)},
        )


def there_and_back() -> list[float]:
    """Seconds of each number, by two programs of ours."""
    with keepers.one_host(ROUND_TRIP) as places:
        place = places["source"]
        pair = [
            keepers.started([programs.round_trip(), name, TURNS], place)
            for name in ("there", "back")
        ]
        there, _ = keepers.printed(pair)
    return [one / 1e9 for one in there]


def first_version(sources: int, targets: int) -> list[float]:
    """Seconds from when the last process attaches to when the last has its first version."""
    with keepers.one_host(keepers.coupling("columns", [str(LENGTH)])) as places:
        members = [
            keepers.started([programs.first_version(), name, rank, size, LENGTH], places[name])
            for name, size in (("source", sources), ("target", targets))
            for rank in range(size)
        ]
        attached, taken = zip(*keepers.printed(members), strict=True)
    return [(max(taken) - max(attached)) / 1e9]


def goals(rows: list[Row]) -> list[Goal]:
    """A few times of what the system itself needs."""

    def soon(members: tuple[int, int]) -> float | None:
        return median(row.values.get("ours") for row in rows if row.keys["members"] == members)

    number = median(row.ratio("ours", "futex") for row in rows if row.keys["members"] is None)
    few, many = (soon(members) for members in MEMBERS)
    text = "first 8 MiB, last attach to last import"
    return [
        Goal("one number there and back / a futex round trip", number, 1.5, is_least=False),
        Goal(f"{text}, 4x4", few, 25.0, is_least=False, unit="ms"),
        Goal(f"{text}, 64x48", many, 1000.0, is_least=False, unit="ms"),
    ]
