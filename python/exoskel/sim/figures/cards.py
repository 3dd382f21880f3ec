"""Figures and tables about interconnect cards in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..runs import Run
from ..scenario import card_run, effective
from ..silicon import card
from ..tables import Table
from . import style
from .setting import BENCHMARKS, REQUESTS, Figure, Setting

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = [
    "BUFFERS",
    "COMPLETION_TIMES",
    "PACKET_LENGTHS",
    "SCHEDULERS",
    "SENSITIVITY",
    "SILICON",
    "SINGLE",
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
# The five that the paper runs together, and the pair that it calls commercial.
NAS = ("CG", "MG", "LU", "SP", "BT")
INSTANCES = 3
LENGTHS = (32, 64, 128, 256, 512, 1024, 2048)
SCHEDULER_WORDS = {
    "local": "local",
    "SB": "spin-block",
    "DCS-SB": "dynamic-coscheduling",
    "PB": "periodic-boost",
    "gang": "gang",
}
# By Table 1, the paper's computation took 70 (CG) to 250 (SP) times as long as that of our traces; its schedulers' slices are milliseconds. With
# the lower end of that, a job has several of them.
PAPER_MACHINE_PERCENT = 6500
MESSAGE_LEVEL = {"level": "message", "keys": "none"}


def _skc(entries: int, buffer: int = 0) -> dict[str, Any]:
    return {"keys": "cache", "cache_entries": entries, "prefetch_buffer_entries": buffer}


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "NoSecurity": {"keys": "none"},
    "NoSKC": {"keys": "memory"},
    "SKC-2": _skc(2),
    "SKC-4": _skc(4),
    "SKC-6": _skc(6),
    "SKC-10": _skc(10),
    "derived": {"keys": "derive"},
    "ready table": {"keys": "table"},
}


# Messages of a run of each class A trace, so that it has two to four hundred thousand packets.
PIECES = {"CG": 4_000, "MG": 6_000, "LU": 20_000, "SP": 1_600, "BT": 1_600, "FT": 240, REQUESTS: 0}


def _piece(setting: Setting, benchmark: str, *, part: int = 1) -> dict[str, Any]:
    """How much of a trace a run takes: one part of so many."""
    if setting.quick:
        return {"message_limit": 300}
    return {"message_limit": PIECES[benchmark] // part}


def _pieces(setting: Setting, *, part: int = 1) -> dict[str, object]:
    limits = {name: _piece(setting, name, part=part)["message_limit"] for name in PIECES}
    return {"message_limit": " ".join(f"{name}:{limit}" for name, limit in limits.items())}


def _fixed(setting: Setting, **parameters: object) -> dict[str, object]:
    """What was the same in all runs: every parameter of the card that the table doesn't vary."""
    varied = {"keys", "cache_entries", "prefetch_buffer_entries", "scheduler"}
    shown = effective(parameters).items()
    return {"traces": "class S" if setting.quick else "class A"} | {
        name: value for name, value in shown if name not in varied
    }


# --- figure 5: one application on 16 nodes --------------------------------------------------------


def _single(setting: Setting) -> list[Run]:
    return [
        card_run(
            {"benchmark": benchmark, "configuration": name},
            [setting.trace(benchmark)],
            {**_piece(setting, benchmark), **configuration},
            seed,
        )
        for benchmark in PIECES
        for name, configuration in CONFIGURATIONS.items()
        for seed in range(setting.seeds)
    ]


def _draw_single(table: Table) -> Canvas:
    drawn, panels = style.canvas(4, 1, width=8.4, height=2.4)
    order = list(CONFIGURATIONS)
    cached = Table([row for row in table.rows if row["configuration"].startswith("SKC")])
    style.bars(panels[0], table, "benchmark", "latency_us", "configuration", order)
    style.bars(panels[1], table, "benchmark", "latency_p99_us", "configuration", order)
    style.bars(panels[2], cached, "benchmark", "hit_rate", "configuration", order)
    relative = _relative(table, ("benchmark",))
    style.bars(panels[3], relative, "benchmark", "relative", "configuration", order)
    panels[0].set(title="(a) network latency of a packet, mean, µs")
    panels[1].set(title="network latency of a packet, p99, µs")
    panels[2].set(title="(b) hit rate", ylim=(0, 1.02))
    panels[3].set(title="(c) completion time, NoSecurity = 1")
    style.legend(drawn, panels[0], len(order))
    return drawn


def _relative(table: Table, keys: Sequence[str]) -> Table:
    """Completion times over those without security."""
    base = {
        tuple(row[key] for key in keys): row["completion_ms"]
        for row in table.where(configuration="NoSecurity").rows
    }
    rows = []
    for row in table.rows:
        whole = base[tuple(row[key] for key in keys)]
        ends = {name: row[f"completion_ms{name}"] / whole for name in ("", "_ci95")}
        rows.append({**row, **{f"relative{name}": value for name, value in ends.items()}})
    return Table(rows)


# --- the memory outside the chip ------------------------------------------------------------------

IN_FLIGHT = (1, 2, 4, 8, 16, 64)


def _key_memory(setting: Setting) -> list[Run]:
    return [
        card_run(
            {"benchmark": benchmark, "in_flight": in_flight, "configuration": name},
            [setting.trace(benchmark)],
            {
                **_piece(setting, benchmark, part=4),
                "key_memory_accesses_in_flight": in_flight,
                **CONFIGURATIONS[name],
            },
            seed,
        )
        for benchmark in PIECES
        for in_flight in (IN_FLIGHT[::3] if setting.quick else IN_FLIGHT)
        for name in ("NoSecurity", "NoSKC", "SKC-6")
        for seed in range(setting.seeds)
    ]


def _draw_key_memory(table: Table) -> Canvas:
    drawn, panels = style.canvas(1, 2, width=4.8)
    keys = ("benchmark", "in_flight")
    base = {
        tuple(row[key] for key in keys): row["latency_us"]
        for row in table.where(configuration="NoSecurity").rows
    }
    for panel, name, paper in zip(panels, ("NoSKC", "SKC-6"), (2.6, 1.29), strict=True):
        relative = Table(
            {**row, "relative": row["latency_us"] / base[tuple(row[key] for key in keys)]}
            for row in table.where(configuration=name).rows
        )
        style.lines(panel, relative, "in_flight", "relative", "benchmark")
        panel.axhline(paper, color="black", linestyle=":", label="the paper's mean")
        panel.set(title=f"{name}: latency, NoSecurity = 1", xscale="log")
        panel.set_xlabel("accesses of the key memory in flight")
        panel.set_xticks(IN_FLIGHT, [str(number) for number in IN_FLIGHT])
        panel.minorticks_off()
    panels[0].set_yscale("log")
    style.legend(drawn, panels[0], 4)
    return drawn


# --- figure 5d: packet lengths --------------------------------------------------------------------

LENGTH_CONFIGURATIONS = ("NoSecurity", "NoSKC", "SKC-6", "derived", "ready table")


def _packet_lengths(setting: Setting) -> list[Run]:
    return [
        card_run(
            {"packet_bytes": length, "configuration": name},
            [setting.trace("CG")],
            {
                **_piece(setting, "CG", part=4),
                "packet_payload_bytes": length,
                **CONFIGURATIONS[name],
            },
            seed,
        )
        for length in (LENGTHS[::3] if setting.quick else LENGTHS)
        for name in LENGTH_CONFIGURATIONS
        for seed in range(setting.seeds)
    ]


def _draw_packet_lengths(table: Table) -> Canvas:
    drawn, panels = style.canvas(1, 3, width=3.8)
    for panel, measure, title in zip(
        panels,
        ("latency_us", "latency_p99_us", "completion_ms"),
        ("latency of a packet, mean, µs", "latency of a packet, p99, µs", "completion, ms"),
        strict=True,
    ):
        style.lines(panel, table, "packet_bytes", measure, "configuration")
        panel.set(title=title, xscale="log", xlabel="packet length, bytes")
        panel.set_xticks(LENGTHS, [str(length) for length in LENGTHS])
        panel.minorticks_off()
    style.legend(drawn, panels[0], len(LENGTH_CONFIGURATIONS))
    return drawn


# --- figure 6: prefetching under the schedulers ---------------------------------------------------

# Of each job. Class S, because class A has forty times as many packets for the same keys.
SHARED_MESSAGES = 4_000
SHARED_CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "NoSecurity": {"keys": "none"},
    "NoSKC": {"keys": "memory"},
    "SKC-10": _skc(10),
    "SKC-10 + 8": _skc(10, 8),
    "derived": {"keys": "derive"},
}
# With some seeds, boosts keep going to processes that wait for others, and these never have the processor: such a run ends with an error.
ENDLESS = ("FT and requests", "PB")
WORKLOADS: dict[str, Sequence[str]] = {"5 NAS traces": NAS, "FT and requests": ("FT", REQUESTS)}


def _shared(setting: Setting) -> dict[str, Any]:
    messages = 300 if setting.quick else SHARED_MESSAGES
    return {"message_limit": messages, "compute_percent": PAPER_MACHINE_PERCENT}


def _instances(setting: Setting, benchmarks: Sequence[str]) -> list[Any]:
    instances = 1 if setting.quick else INSTANCES
    return [setting.trace(name, small=True) for name in benchmarks for _ in range(instances)]


def _schedulers(setting: Setting) -> list[Run]:
    return [
        card_run(
            {"workload": workload, "scheduler": scheduler, "configuration": name},
            _instances(setting, benchmarks),
            {**_shared(setting), "scheduler": word, **configuration},
            seed,
        )
        for workload, benchmarks in WORKLOADS.items()
        for scheduler, word in SCHEDULER_WORDS.items()
        if (workload, scheduler) != ENDLESS
        for name, configuration in SHARED_CONFIGURATIONS.items()
        for seed in range(setting.seeds)
    ]


def _draw_schedulers(table: Table) -> Canvas:
    drawn, panels = style.canvas(4, 2, width=5.2, height=2.5)
    order = list(SHARED_CONFIGURATIONS)
    for column, workload in enumerate(WORKLOADS):
        shown = table.where(workload=workload)
        cached = Table([row for row in shown.rows if row["configuration"].startswith("SKC")])
        for row, (source, measure, words) in enumerate(
            (
                (shown, "latency_us", f"{workload}: latency of a packet, mean, µs"),
                (shown, "latency_p99_us", "latency of a packet, p99, µs"),
                (cached, "hit_rate", "hit rate, cache and buffer"),
                (shown, "completion_ms", "completion, ms"),
            )
        ):
            panel = panels[2 * row + column]
            style.bars(panel, source, "scheduler", measure, "configuration", order)
            panel.set_title(words)
    style.legend(drawn, panels[0], len(order))
    return drawn


# --- figure 7: sizes of cache and buffer ----------------------------------------------------------

SIZES = (2, 5, 10, 15, 20)
BUFFER_SIZES = (1, 2, 4, 6, 8)
BUFFER_SCHEDULERS = ("DCS-SB", "gang")


def _buffers(setting: Setting) -> list[Run]:
    shapes = [("sizes", size, buffer) for buffer in (0, 2) for size in SIZES]
    shapes += [("buffers", size, buffer) for size in (5, 20) for buffer in BUFFER_SIZES]
    return [
        card_run(
            {"scheduler": scheduler, "varied": varied, "cache": size, "buffer": buffer},
            _instances(setting, NAS),
            {**_shared(setting), "scheduler": SCHEDULER_WORDS[scheduler], **_skc(size, buffer)},
            seed,
        )
        for scheduler in BUFFER_SCHEDULERS
        for varied, size, buffer in (shapes[::4] if setting.quick else shapes)
        for seed in range(setting.seeds)
    ]


def _draw_buffers(table: Table) -> Canvas:
    drawn, panels = style.canvas(2, 4, width=3.4, height=2.7)
    letters = iter("aabbccdd")
    for row, scheduler in enumerate(BUFFER_SCHEDULERS):
        sizes = table.where(scheduler=scheduler, varied="sizes")
        buffers = table.where(scheduler=scheduler, varied="buffers")
        for column, (shown, x, by, label) in enumerate(
            (
                (sizes, "cache", "buffer", "buffer of {}"),
                (buffers, "buffer", "cache", "SKC-{}"),
            )
        ):
            for offset, measure in enumerate(("latency_us", "hit_rate")):
                panel = panels[4 * row + 2 * column + offset]
                style.lines(panel, shown, x, measure, by, label=label)
                words = "latency, µs" if measure == "latency_us" else "hit rate"
                panel.set(title=f"({next(letters)}) {scheduler}: {words}", xlabel=f"{x} entries")
                panel.legend()
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

SPEEDS = (10, 100, 1000, PAPER_MACHINE_PERCENT)


def _sensitivity(setting: Setting) -> list[Run]:
    return [
        card_run(
            {"benchmark": benchmark, "compute_percent": percent, "configuration": name},
            [setting.trace(benchmark)],
            {
                **_piece(setting, benchmark, part=4),
                "compute_percent": percent,
                **CONFIGURATIONS[name],
            },
            seed,
        )
        for benchmark in PIECES
        for percent in (SPEEDS[::3] if setting.quick else SPEEDS)
        for name in ("NoSecurity", "NoSKC", "SKC-6")
        for seed in range(setting.seeds)
    ]


def _draw_sensitivity(table: Table) -> Canvas:
    drawn, panels = style.canvas(1, 2, width=4.8)
    relative = _relative(table, ("benchmark", "compute_percent"))
    for panel, name in zip(panels, ("NoSKC", "SKC-6"), strict=True):
        shown = relative.where(configuration=name)
        style.lines(panel, shown, "compute_percent", "relative", "benchmark")
        panel.set(title=f"{name}: completion, NoSecurity = 1", xscale="log")
        panel.set_xlabel("computation, % of our processor's")
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
    lambda setting: _fixed(setting) | _pieces(setting),
)
PACKET_LENGTHS = Figure(
    "5d",
    "Figure 5 (d): CG by packet length",
    _packet_lengths,
    MEASURES,
    _draw_packet_lengths,
    lambda setting: _fixed(setting, **_piece(setting, "CG", part=4)),
)
SCHEDULERS = Figure(
    "6",
    "Figure 6: prefetching under five schedulers",
    _schedulers,
    MEASURES,
    _draw_schedulers,
    lambda setting: _fixed(setting, **_shared(setting)) | {"traces": "class S"},
)
BUFFERS = Figure(
    "7",
    "Figure 7: sizes of cache and prefetch buffer",
    _buffers,
    MEASURES,
    _draw_buffers,
    lambda setting: _fixed(setting, **_shared(setting)) | {"traces": "class S"},
)
COMPLETION_TIMES = Figure(
    "table-1",
    "Table 1: original and simulated times",
    _completion_times,
    MEASURES,
    _draw_completion_times,
    lambda setting: _fixed(setting, **MESSAGE_LEVEL),
)
KEY_MEMORY = Figure(
    "key-memory",
    "Latency by accesses of the key memory in flight",
    _key_memory,
    MEASURES,
    _draw_key_memory,
    lambda setting: _fixed(setting) | _pieces(setting, part=4),
)
SENSITIVITY = Figure(
    "sensitivity",
    "How much of the cards' work computation hides",
    _sensitivity,
    MEASURES,
    _draw_sensitivity,
    lambda setting: _fixed(setting) | _pieces(setting, part=4),
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
