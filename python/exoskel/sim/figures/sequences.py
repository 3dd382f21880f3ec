"""Figures about the order of keys alone, without time: large clusters, associativity, replacement, and what one lookup is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..runs import Run, trace_run
from ..tables import Table
from . import style
from .setting import BENCHMARKS, Figure, Setting
from .traffic import ratios

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["ASSOCIATIVITY", "LARGE_CLUSTERS", "LOOKUPS", "POLICIES"]

# Keys of the paper's 16 KB cache, at 16 bytes a key.
ENTRIES = 1024
# Packets that are looked up in one run, of which the first half fills the cache and isn't counted.
PACKETS = 400_000
# Packets of an ON period: the paper doesn't state how many.
BURSTS = (2, 10, 100, 1000)
WAYS = (1, 2, 4, 8, 16, 32, ENTRIES)
PAPER_KEYS = tuple(range(1000, 10_001, 1000))
KINDS = ("lru", "clock", "s3-fifo")


def on_off(
    seed: int,
    *,
    keys: int,
    off_on: float,
    burst: int,
    ways: int = ENTRIES,
    policy: str = "lru",
    packets: int = PACKETS,
) -> dict[str, Any]:
    """Return the job of one cache under peers that talk and are silent in turn.

    Parameters
    ----------
    seed : int
        Of the traffic.
    keys : int
        Peers.
    off_on : float
        Mean silent time over mean talking time.
    burst : int
        Mean packets of a talking time.
    ways, policy : int, str
        Of the cache, which has `ENTRIES`.
    packets : int
        That are looked up.
    """
    cache = {"entries": ENTRIES, "ways": ways, "policy": policy}
    traffic = {"keys": keys, "off_on": off_on, "packets_per_on": burst, "packets": packets}
    return {"kind": "on-off", "seed": seed, **cache, **traffic}


def _packets(setting: Setting) -> int:
    return PACKETS // 20 if setting.quick else PACKETS


def _keys(setting: Setting) -> Sequence[int]:
    return PAPER_KEYS[::9] if setting.quick else PAPER_KEYS


def _fixed(setting: Setting) -> Mapping[str, object]:
    return {"entries": ENTRIES, "packets": _packets(setting), "warm-up": "the first half"}


def _fixed_ratios(setting: Setting) -> Mapping[str, object]:
    """Where the ratios are those of traces."""
    return {"sha256": setting.checksums(), **_fixed(setting)}


def _large_clusters(setting: Setting) -> list[Run]:
    return [
        Run(
            {"burst": burst, "traffic": name, "off_on": ratio, "keys": keys, "seed": seed},
            on_off(seed, keys=keys, off_on=ratio, burst=burst, packets=_packets(setting)),
        )
        for burst in BURSTS
        for name, ratio in ratios(setting).items()
        for keys in _keys(setting)
        for seed in range(setting.seeds)
    ]


def _draw_large_clusters(table: Table) -> Canvas:
    drawn, panels = style.canvas(2, 2)
    for panel, burst in zip(panels, BURSTS, strict=True):
        style.lines(panel, table.where(burst=burst), "keys", "hit_rate", "traffic")
        panel.set(title=f"{burst} packets in an ON period", xlabel="keys", ylabel="hit rate")
        panel.set_ylim(0, 1.02)
    panels[0].legend()
    return drawn


def _associativity(setting: Setting) -> list[Run]:
    return [
        Run(
            {"burst": burst, "off_on": ratio, "ways": ways, "keys": keys, "seed": seed},
            on_off(
                seed, keys=keys, off_on=ratio, burst=burst, ways=ways, packets=_packets(setting)
            ),
        )
        for ratio, burst in ((8.0, 100), (8.0, 10))
        for ways in WAYS
        for keys in _keys(setting)
        for seed in range(setting.seeds)
    ]


def _draw_associativity(table: Table) -> Canvas:
    drawn, panels = style.canvas(1, 2)
    for panel, burst in zip(panels, (100, 10), strict=True):
        style.lines(panel, table.where(burst=burst), "keys", "hit_rate", "ways")
        panel.set(title=f"OFF/ON 8, {burst} packets in an ON period", xlabel="keys")
        panel.set_ylabel("hit rate")
    style.legend(drawn, panels[0], len(WAYS), f"ways; {ENTRIES:,}: fully associative")
    return drawn


def _policies(setting: Setting) -> list[Run]:
    return [
        Run(
            {"burst": burst, "off_on": 8.0, "policy": policy, "keys": keys, "seed": seed},
            on_off(
                seed, keys=keys, off_on=8.0, burst=burst, policy=policy, packets=_packets(setting)
            ),
        )
        for burst in (2, 10, 100)
        for policy in KINDS
        for keys in _keys(setting)
        for seed in range(setting.seeds)
    ]


def _draw_policies(table: Table) -> Canvas:
    drawn, panels = style.canvas(1, 3, width=3.6)
    for panel, burst in zip(panels, (2, 10, 100), strict=True):
        style.lines(panel, table.where(burst=burst), "keys", "hit_rate", "policy")
        panel.set(title=f"OFF/ON 8, {burst} packets in an ON period", xlabel="keys")
    panels[0].set_ylabel("hit rate")
    panels[0].legend()
    return drawn


def _lookups(setting: Setting) -> list[Run]:
    sizes = (1, 2, 4, 6) if setting.quick else (1, 2, 3, 4, 5, 6, 8, 10, 16)
    runs = []
    for benchmark in BENCHMARKS:
        trace = setting.trace(benchmark)
        for lookup in ("message", "packet"):
            for policy in KINDS:
                for entries in sizes:
                    run = trace_run(trace, entries, None, lookup, policy)
                    runs.append(Run({"benchmark": benchmark, **run.cell}, run.job))
    return runs


def _draw_lookups(table: Table) -> Canvas:
    drawn, panels = style.canvas(1, 2)
    for panel, lookup in zip(panels, ("message", "packet"), strict=True):
        shown = table.where(lookup=lookup, policy="lru")
        style.lines(panel, shown, "entries", "hit_rate", "benchmark")
        panel.set(title=f"a lookup for each {lookup}, LRU", xlabel="entries", ylabel="hit rate")
        panel.set_ylim(0, 1.02)
    panels[1].legend()
    return drawn


LARGE_CLUSTERS = Figure(
    "8",
    "Figure 8: hit rate of 1,024 entries against the number of keys",
    _large_clusters,
    ("hit_rate",),
    _draw_large_clusters,
    _fixed_ratios,
)
ASSOCIATIVITY = Figure(
    "9",
    "Figure 9: hit rate of 1,024 entries by associativity",
    _associativity,
    ("hit_rate",),
    _draw_associativity,
    _fixed,
)
POLICIES = Figure(
    "policies",
    "Replacement: LRU, CLOCK and S3-FIFO, 1,024 entries",
    _policies,
    ("hit_rate",),
    _draw_policies,
    _fixed,
)
LOOKUPS = Figure(
    "lookups",
    "What one lookup is: hit rates of the NAS traces by messages and by packets",
    _lookups,
    ("hit_rate", "lookups", "hits"),
    _draw_lookups,
    lambda setting: {"sha256": setting.checksums(), "packet bytes": 256},
)
