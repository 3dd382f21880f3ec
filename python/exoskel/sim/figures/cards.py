"""Figures and tables about the cards of one application in virtual time."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..runs import Run
from ..scenario import card_run, effective
from ..silicon import card
from ..tables import Table
from . import style
from .setting import BENCHMARKS, Figure, Setting
from .workloads import (
    LONG,
    MESSAGES,
    ONE,
    PAPER_PERCENT,
    PIECES,
    UNSTATED_PERCENT,
    WHOLE,
    described,
    workload,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = [
    "COMPLETION_TIMES",
    "KEY_MEMORY",
    "MEASURES",
    "PACKET_LENGTHS",
    "SENSITIVITY",
    "SILICON",
    "SINGLE",
    "fixed",
    "skc",
]

MEASURES = (
    "latency_us",
    "latency_p99_us",
    "hit_rate",
    "completion_ms",
    "prefetch_hit_rate",
    "lookups",
    "key_memory_wait_us",
    "packets",
)
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
MESSAGE_LEVEL = {"level": "message", "keys": "none"}


def skc(entries: int, buffer: int = 0) -> dict[str, Any]:
    """Return what makes a card with a cache, and a prefetch buffer beside it.

    Parameters
    ----------
    entries, buffer : int
        Keys that they hold.
    """
    return {"keys": "cache", "cache_entries": entries, "prefetch_buffer_entries": buffer}


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "NoSecurity": {"keys": "none"},
    "NoSKC": {"keys": "memory"},
    "SKC-2": skc(2),
    "SKC-4": skc(4),
    "SKC-6": skc(6),
    "SKC-10": skc(10),
    "derived": {"keys": "derive"},
    "ready table": {"keys": "table"},
}


def fixed(
    workloads: Mapping[str, object], varied: Collection[str] = (), **parameters: object
) -> dict[str, object]:
    """Return what was the same in all runs: every parameter of the card that the table doesn't vary.

    Parameters
    ----------
    workloads : mapping
        What is said of the traces, as `workloads.described` does.
    varied : collection of str
        Parameters that vary, beside those that a configuration sets.
    **parameters : object
        What differs from the preset.
    """
    always = {"keys", "cache_entries", "prefetch_buffer_entries", *varied, *workloads}
    shown = effective(parameters).items()
    return {**workloads} | {name: value for name, value in shown if name not in always}


# --- figure 5: one application on 16 nodes --------------------------------------------------------


def _single(setting: Setting) -> list[Run]:
    return [
        card_run(
            {"message": message, "benchmark": benchmark, "configuration": name},
            [workload(setting, benchmark, _iterations(message)[benchmark])],
            {"message_packets_max": most, **configuration},
            seed,
        )
        for message, most in MESSAGES.items()
        for benchmark in WHOLE
        for name, configuration in CONFIGURATIONS.items()
        for seed in range(setting.seeds)
    ]


def _iterations(message: str) -> dict[str, int]:
    return WHOLE if message == ONE else LONG


def _pieces(message: str) -> dict[str, int]:
    return WHOLE if message == ONE else PIECES


def _both(
    setting: Setting, iterations: Callable[[str], dict[str, int]], benchmarks: Collection[str]
) -> dict[str, object]:
    """What is said of the workloads of figures in which messages are both."""
    whole = described(setting, WHOLE, benchmarks)
    run = {
        f"iterations ({message})": described(setting, iterations(message), benchmarks)["iterations"]
        for message in MESSAGES
    }
    return {
        **{key: whole[key] for key in ("traces", "sha256")},
        **run,
        "compute_percent": whole["compute_percent"],
    }


def _draw_single(table: Table) -> Canvas:
    drawn, panels = style.canvas(4, 2, width=6.4, height=2.4)
    order = list(CONFIGURATIONS)
    for column, message in enumerate(MESSAGES):
        shown = table.where(message=message)
        cached = Table([row for row in shown.rows if row["configuration"].startswith("SKC")])
        relative = _relative(shown, ("benchmark",))
        for row, (source, measure, words) in enumerate(
            (
                (shown, "latency_us", f"(a) {message}: mean latency of a packet, µs"),
                (shown, "latency_p99_us", "latency of a packet, p99, µs"),
                (cached, "hit_rate", "(b) hit rate"),
                (relative, "relative", "(c) completion time, NoSecurity = 1"),
            )
        ):
            panel = panels[2 * row + column]
            style.bars(panel, source, "benchmark", measure, "configuration", order)
            panel.set_title(words)
    style.legend(drawn, panels[0], len(order))
    return drawn


def _relative(table: Table, keys: Sequence[str], measure: str = "completion_ms") -> Table:
    """A measure over that without security."""
    base = {
        tuple(row[key] for key in keys): row[measure]
        for row in table.where(configuration="NoSecurity").rows
    }
    rows = []
    for row in table.rows:
        whole = base[tuple(row[key] for key in keys)]
        ends = {name: row[f"{measure}{name}"] / whole for name in ("", "_ci95")}
        rows.append({**row, **{f"relative{name}": value for name, value in ends.items()}})
    return Table(rows)


# --- the memory outside the chip ------------------------------------------------------------------

IN_FLIGHT = (1, 2, 4, 8, 16)


def _key_memory(setting: Setting) -> list[Run]:
    return [
        card_run(
            {"benchmark": benchmark, "in_flight": in_flight, "configuration": name},
            [workload(setting, benchmark, PIECES[benchmark])],
            {
                "key_memory_accesses_in_flight": in_flight,
                **CONFIGURATIONS[name],
            },
            seed,
        )
        for benchmark in PIECES
        for in_flight in (IN_FLIGHT[::4] if setting.quick else IN_FLIGHT)
        for name in ("NoSecurity", "NoSKC", "SKC-6")
        for seed in range(setting.seeds)
    ]


def _draw_key_memory(table: Table) -> Canvas:
    drawn, panels = style.canvas(1, 2, width=4.8)
    over = _relative(table, ("benchmark", "in_flight"), "latency_us")
    for panel, name, paper in zip(panels, ("NoSKC", "SKC-6"), (2.6, 1.29), strict=True):
        relative = over.where(configuration=name)
        style.lines(panel, relative, "in_flight", "relative", "benchmark")
        panel.axhline(paper, color="black", linestyle=":", label="the paper's mean")
        panel.set(title=f"{name}: latency, NoSecurity = 1", xscale="log")
        panel.set_xlabel("accesses of the key memory in flight")
        panel.set_xticks(IN_FLIGHT, [str(number) for number in IN_FLIGHT])
        panel.minorticks_off()
    panels[0].set_yscale("log")
    ticks = (2, 3, 5, 10, 15)
    panels[0].set_yticks(ticks, [str(tick) for tick in ticks])
    panels[0].minorticks_off()
    style.legend(drawn, panels[0], 4)
    return drawn


# --- figure 5d: packet lengths --------------------------------------------------------------------

LENGTH_CONFIGURATIONS = ("NoSecurity", "NoSKC", "SKC-6", "derived", "ready table")


def _packet_lengths(setting: Setting) -> list[Run]:
    return [
        card_run(
            {"message": message, "packet_bytes": length, "configuration": name},
            [workload(setting, "CG", _pieces(message)["CG"])],
            {
                "message_packets_max": most,
                "packet_payload_bytes": length,
                **CONFIGURATIONS[name],
            },
            seed,
        )
        for message, most in MESSAGES.items()
        for length in (LENGTHS[::3] if setting.quick else LENGTHS)
        for name in LENGTH_CONFIGURATIONS
        for seed in range(setting.seeds)
    ]


def _draw_packet_lengths(table: Table) -> Canvas:
    drawn, panels = style.canvas(2, 3, width=3.8)
    for row, message in enumerate(MESSAGES):
        for panel, measure, title in zip(
            panels[3 * row : 3 * row + 3],
            ("latency_us", "latency_p99_us", "completion_ms"),
            (f"{message}: mean latency, µs", "latency of a packet, p99, µs", "completion, ms"),
            strict=True,
        ):
            style.lines(
                panel, table.where(message=message), "packet_bytes", measure, "configuration"
            )
            panel.set(title=title, xscale="log", xlabel="packet length, bytes")
            panel.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
            panel.minorticks_off()
    style.legend(drawn, panels[0], len(LENGTH_CONFIGURATIONS))
    return drawn


# --- table 1: original and simulated times --------------------------------------------------------


def _completion_times(setting: Setting) -> list[Run]:
    """Whole traces, by messages: packets, and whether they are encrypted, are in the next figure."""
    runs = []
    for benchmark in BENCHMARKS:
        trace = setting.trace(benchmark)
        cell = {"benchmark": benchmark, "original_ms": 1e3 * trace.compute_seconds}
        runs += [card_run(cell, [trace], MESSAGE_LEVEL, seed) for seed in range(setting.seeds)]
    return runs


def _draw_completion_times(table: Table) -> Canvas:
    drawn, (panel,) = style.canvas(1, 1, width=5.6)
    both = [
        {"benchmark": row["benchmark"], "time": name, "ms": row[name]}
        for row in table.rows
        for name in ("original_ms", "completion_ms")
    ]
    style.bars(panel, Table(both), "benchmark", "ms", "time")
    panel.set(title="computation of the trace, and simulated time, ms", yscale="log")
    panel.legend()
    return drawn


# --- how much computation hides -------------------------------------------------------------------

# Computation in per cent of ours; None: on the paper's machine, as far as Table 1 says it, else the median of the others.
SPEEDS: tuple[int | None, ...] = (10, 100, 1000, None)


def _percent(benchmark: str, speed: int | None) -> int:
    return PAPER_PERCENT.get(benchmark, UNSTATED_PERCENT) if speed is None else speed


def _sensitivity(setting: Setting) -> list[Run]:
    return [
        card_run(
            {
                "message": message,
                "benchmark": benchmark,
                "machine": "the paper's" if speed is None else f"{speed} % of ours",
                "compute_percent": _percent(benchmark, speed),
                "configuration": name,
            },
            [workload(setting, benchmark, _pieces(message)[benchmark], _percent(benchmark, speed))],
            {"message_packets_max": most, **CONFIGURATIONS[name]},
            seed,
        )
        for message, most in MESSAGES.items()
        for benchmark in PIECES
        for speed in (SPEEDS[::3] if setting.quick else SPEEDS)
        for name in ("NoSecurity", "NoSKC", "SKC-4", "SKC-6")
        for seed in range(setting.seeds)
    ]


def _draw_sensitivity(table: Table) -> Canvas:
    drawn, panels = style.canvas(3, 4, width=3.4, height=2.7)
    keys = ("message", "benchmark", "machine")
    latency, completion = (
        _relative(table, keys, measure) for measure in ("latency_us", "completion_ms")
    )
    for row, (source, measure, words, configurations) in enumerate(
        (
            (latency, "relative", "latency", ("NoSKC", "SKC-6")),
            (completion, "relative", "completion", ("NoSKC", "SKC-6")),
            (table, "hit_rate", "hit rate", ("SKC-4", "SKC-6")),
        )
    ):
        for column, (message, name) in enumerate(itertools.product(MESSAGES, configurations)):
            panel = panels[4 * row + column]
            shown = source.where(message=message, configuration=name)
            style.lines(panel, shown, "compute_percent", measure, "benchmark")
            panel.set(title=f"{name}, {message}: {words}", xscale="log")
            panel.set_xlabel("computation, % of ours")
    style.legend(drawn, panels[0], len(PIECES))
    return drawn


# --- what it costs in silicon ---------------------------------------------------------------------


def _silicon(_setting: Setting) -> list[Run]:
    rows = []
    for entries in (0, 2, 5, 6, 10, 16, 20, 64, 128, 512, 1024):
        for buffer in (0, 8, 16):
            cost = card(entries, buffer)
            sizes = {"cache_entries": entries, "buffer_entries": buffer}
            rows.append(Run({**sizes, "square_mm": cost.square_mm, "watt": cost.watt}, None))
    return rows


def _draw_silicon(table: Table) -> Canvas:
    drawn, panels = style.canvas(1, 2)
    for panel, measure, words in zip(
        panels, ("square_mm", "watt"), ("mm², with engine", "W, with engine"), strict=True
    ):
        style.lines(panel, table, "cache_entries", measure, "buffer_entries", label="buffer of {}")
        panel.set(title=words, xlabel="cache entries (32 bytes each)")
    panels[0].legend()
    return drawn


SINGLE = Figure(
    "5",
    "Figure 5 (a) to (c): one application, with and without a cache",
    _single,
    MEASURES,
    _draw_single,
    lambda setting: fixed(_both(setting, _iterations, WHOLE), ["message_packets_max"]),
)
PACKET_LENGTHS = Figure(
    "5d",
    "Figure 5 (d): CG by packet length",
    _packet_lengths,
    MEASURES,
    _draw_packet_lengths,
    lambda setting: fixed(
        _both(setting, _pieces, ["CG"]), ["message_packets_max", "packet_payload_bytes"]
    ),
)
COMPLETION_TIMES = Figure(
    "table-1",
    "Table 1: original and simulated times",
    _completion_times,
    MEASURES,
    _draw_completion_times,
    lambda setting: fixed(
        {
            "traces": "class S" if setting.quick else "class A",
            "sha256": setting.checksums(),
        },
        **MESSAGE_LEVEL,
    ),
)
KEY_MEMORY = Figure(
    "key-memory",
    "Latency by accesses of the key memory in flight",
    _key_memory,
    MEASURES,
    _draw_key_memory,
    lambda setting: fixed(described(setting, PIECES, PIECES), ["key_memory_accesses_in_flight"]),
)
SENSITIVITY = Figure(
    "sensitivity",
    "What depends on how fast the processors are",
    _sensitivity,
    MEASURES,
    _draw_sensitivity,
    lambda setting: fixed(
        {k: v for k, v in _both(setting, _pieces, PIECES).items() if k != "compute_percent"},
        ["message_packets_max", "compute_percent"],
    ),
)
SILICON = Figure(
    "table-silicon",
    "Silicon of a card's security, from the paper's CACTI figures",
    _silicon,
    ("square_mm", "watt"),
    _draw_silicon,
    lambda _setting: {
        "block_bytes": 32,
        "scaling": "the straight line through the paper's two sizes",
    },
)
