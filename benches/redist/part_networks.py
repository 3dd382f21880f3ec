"""Coupled programs on hosts with slow lines, and what memory keepers need between hosts.

Hosts are namespaces on one bridge, and ``tbf`` paces their lines: root is needed. What a row is held to is the rate of the line, or
our own rate without what the row is about. Beside the slow lines stands what plain TCP gets of them, with a stream for each pair.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from benches.links.install import Missing
from benches.redist import plain_lines
from benches.redist.coupled_hosts import Coupled, coupled
from benches.redist.frame import FIRST, Bench, Goal, Row, median

LINE, LINE_GB = "1gbit", 0.125
# A hop of 250 MB/s.
HOP = "2gbit"
VERSIONS = FIRST + 3
LOOK_SECONDS = 0.01
LINES_TEXT = "4x4 over lines of 1 Gbit/s"
HOPS_TEXT = "encrypted, hops of 250 MB/s, 1x1"
MEMORY_TEXT = "memory of a keeper between hosts, 1x1"


def measure(bench: Bench) -> Iterator[Row]:
    """Three networks; one that can't be made costs its row."""
    rows: dict[str, Callable[[Bench], Row]] = {
        LINES_TEXT: of_lines,
        HOPS_TEXT: through_gateways,
        MEMORY_TEXT: memory,
    }
    for text, measured in rows.items():
        try:
            yield measured(bench)
        except Missing as error:
            yield Row(text, "GB/s", {}, {"ours": str(error)}, {"row": text})


def moved(hosts: Coupled, length: int) -> list[float]:
    """Seconds for each version from rows to columns."""
    return hosts.run("columns", [f"{length}x{length}"], VERSIONS)[0]


def of_lines(bench: Bench) -> Row:
    """Four hosts to four hosts, each with one process and a line of its own."""
    size, length = 4, bench.lengths(4096)[0]
    with coupled(size) as hosts:
        hosts.pace(LINE)
        far = {host: hosts.addresses[host] for host in hosts.far}
        pair = length**2 * 8 // size**2
        command = hosts.network.command
        lanes = {
            "ours": partial(moved, hosts, length),
            "plain TCP": partial(plain_lines.seconds, command, hosts.near, far, pair, VERSIONS),
        }
        row = bench.row(
            f"{LINES_TEXT}, {length} x {length}",
            lanes,
            bytes=length**2 * 8,
            keys={"row": LINES_TEXT},
        )
    row.values["line rate"] = size * LINE_GB
    return row


def through_gateways(bench: Bench) -> Row:
    """One hop, and three by two gateways."""
    length = bench.lengths(2048)[0]
    with contextlib.ExitStack() as stack:
        lanes = {}
        for name, is_routed in (("ours by two gateways", True), ("ours, one hop", False)):
            hosts = stack.enter_context(coupled(1, is_routed=is_routed, protection="encrypted"))
            hosts.pace(HOP)
            lanes[name] = partial(moved, hosts, length)
        return bench.row(
            f"{HOPS_TEXT}, {length} x {length}",
            lanes,
            bytes=length**2 * 8,
            keys={"row": HOPS_TEXT},
        )


def memory(bench: Bench) -> Row:
    """The most that a keeper has of its own memory. Arrays are shared memory, which doesn't count."""
    length = bench.lengths(8192)[0]
    with coupled(1, protection="encrypted") as hosts:
        return bench.row(
            f"{MEMORY_TEXT}, {length} x {length}",
            {"ours": lambda: [highest(hosts, length)]},
            unit="MiB",
            scale=1 / 2**20,
            first=0,
            keys={"row": MEMORY_TEXT},
        )


def highest(hosts: Coupled, length: int) -> float:
    """The most bytes that one of two keepers has while versions go between them."""
    most, is_over = 0, threading.Event()

    def look() -> None:
        nonlocal most
        while not is_over.wait(LOOK_SECONDS):
            most = max([most, *(anonymous(keeper.pid) for keeper in hosts.keepers)])

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        moved(hosts, length)
    finally:
        is_over.set()
        watcher.join()
    return float(most)


def anonymous(process: int) -> int:
    """Bytes of a process's own memory, and none when it has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{process}/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
    return 0


def goals(rows: list[Row]) -> list[Goal]:
    """Of the line, of one hop, and what memory is allowed."""
    found = {row.keys["row"]: row for row in rows if row.values}

    def ratio(text: str, lane: str, beside: str) -> float | None:
        return median(row.ratio(lane, beside) for name, row in found.items() if name == text)

    extra = median(row.values["ours"] for name, row in found.items() if name == MEMORY_TEXT)
    return [
        Goal(f"{LINES_TEXT} / line rate", ratio(LINES_TEXT, "ours", "line rate"), 0.95),
        Goal(
            f"two gateways, {HOPS_TEXT} / one hop",
            ratio(HOPS_TEXT, "ours by two gateways", "ours, one hop"),
            0.9,
        ),
        Goal(
            "memory besides arrays, between hosts, 8192",
            extra,
            64.0,
            is_least=False,
            unit="MiB",
        ),
    ]
