"""Figures about nodes that several applications share: schedulers, prefetching, and the sizes of cache and buffer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ... import _core
from ..runs import Run
from ..scenario import card_run
from ..tables import Table
from . import style
from .cards import MEASURES, fixed, skc
from .setting import REQUESTS, Figure, Setting
from .workloads import MESSAGES, NAS, ONE, PIECES, UNSTATED_PERCENT, WHOLE, described, workload

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["BUFFERS", "SCHEDULERS"]

# Of each trace, on a node.
INSTANCES = 3
SCHEDULER_WORDS = {
    "local": "local",
    "SB": "spin-block",
    "DCS-SB": "dynamic-coscheduling",
    "PB": "periodic-boost",
    "gang": "gang",
}
# The five that the paper runs together, and the pair, without times in its Table 1, that it runs by itself. FT's messages have thousands of packets
# each, which leave nothing to a cache: the pair is run by messages only.
WORKLOADS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "5 NAS traces": (NAS, tuple(MESSAGES)),
    "FT and requests": (("FT", REQUESTS), (ONE,)),
}
RIVALS: dict[str, dict[str, Any]] = {
    "derived": {"keys": "derive"},
    "ready table": {"keys": "table"},
}
CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "NoSecurity": {"keys": "none"},
    "NoSKC": {"keys": "memory"},
    "SKC-10": skc(10),
    "SKC-10 + 8": skc(10, 8),
    **RIVALS,
}


# On the paper's machine, half a minute of each trace; those of which a whole run is shorter, whole.
SHARED = {**WHOLE, "SP": 50, "BT": 20}


def _iterations(message: str) -> dict[str, int]:
    return SHARED if message == ONE else PIECES


def _instances(
    setting: Setting, benchmarks: Sequence[str], message: str
) -> list[_core.KeyCacheTrace]:
    # A run in which jobs share processors has to last many of their slices: without a time of the paper's, the median one is taken.
    return [
        workload(
            setting,
            name,
            _iterations(message)[name],
            UNSTATED_PERCENT if name in {"FT", REQUESTS} else None,
        )
        for name in benchmarks
        for _ in range(1 if setting.quick else INSTANCES)
    ]


def _described(setting: Setting, benchmarks: Sequence[str], message: str) -> dict[str, Any]:
    unstated = dict.fromkeys(("FT", REQUESTS), UNSTATED_PERCENT)
    return described(setting, _iterations(message), benchmarks, unstated)


# --- figure 6: prefetching under the schedulers ---------------------------------------------------


def _schedulers(setting: Setting) -> list[Run]:
    return [
        card_run(
            {
                "workload": name,
                "message": message,
                "scheduler": scheduler,
                "configuration": configuration,
            },
            _instances(setting, benchmarks, message),
            {"scheduler": word, "message_packets_max": MESSAGES[message], **parameters},
            seed,
        )
        for name, (benchmarks, messages) in WORKLOADS.items()
        for message in messages
        for scheduler, word in SCHEDULER_WORDS.items()
        for configuration, parameters in CONFIGURATIONS.items()
        for seed in range(setting.seeds)
    ]


def _draw_schedulers(table: Table) -> Canvas:
    columns = [(name, message) for name, (_, many) in WORKLOADS.items() for message in many]
    drawn, panels = style.canvas(4, len(columns), width=4.6, height=2.5)
    order = list(CONFIGURATIONS)
    for column, (name, message) in enumerate(columns):
        shown = table.where(workload=name, message=message)
        cached = Table([row for row in shown.rows if row["configuration"].startswith("SKC")])
        ends = {f"completion_s{end}": f"completion_ms{end}" for end in ("", "_ci95")}
        completion = Table(
            {**row, **{s: row[ms] / 1e3 for s, ms in ends.items()}} for row in shown.rows
        )
        for row, (source, measure, words) in enumerate(
            (
                (shown, "latency_us", f"{name}, {message}: mean latency, µs"),
                (shown, "latency_p99_us", "latency of a packet, p99, µs"),
                (cached, "hit_rate", "hit rate, cache and buffer"),
                (completion, "completion_s", "completion, s"),
            )
        ):
            panel = panels[len(columns) * row + column]
            style.bars(panel, source, "scheduler", measure, "configuration", order)
            panel.set_title(words)
    style.legend(drawn, panels[0], len(order))
    return drawn


def _schedulers_fixed(setting: Setting) -> dict[str, object]:
    said: dict[str, object] = {"instances": 1 if setting.quick else INSTANCES}
    for name, (benchmarks, messages) in WORKLOADS.items():
        for message in messages:
            for key, value in _described(setting, benchmarks, message).items():
                if key == "sha256":
                    said[key] = setting.checksums(dict.fromkeys([*NAS, "FT"]))
                else:
                    said[key if key == "traces" else f"{key} ({name}, {message})"] = value
    return fixed(said, ["scheduler", "message_packets_max", "compute_percent"])


# --- figure 7: sizes of cache and buffer ----------------------------------------------------------

SIZES = (2, 5, 10, 15, 20)
BUFFER_SIZES = (1, 2, 4, 6, 8)
BUFFER_SCHEDULERS = ("DCS-SB", "gang")


def _shapes(setting: Setting) -> list[tuple[str, int, int, dict[str, Any]]]:
    shapes = [("sizes", size, buffer, skc(size, buffer)) for buffer in (0, 2) for size in SIZES]
    shapes += [("buffers", size, n, skc(size, n)) for size in (5, 20) for n in BUFFER_SIZES]
    shapes += [(rival, 0, 0, parameters) for rival, parameters in RIVALS.items()]
    return shapes[::4] if setting.quick else shapes


def _buffers(setting: Setting) -> list[Run]:
    return [
        card_run(
            {"scheduler": scheduler, "varied": varied, "cache": size, "buffer": buffer},
            _instances(setting, NAS, ONE),
            {
                "scheduler": SCHEDULER_WORDS[scheduler],
                "message_packets_max": MESSAGES[ONE],
                **parameters,
            },
            seed,
        )
        for scheduler in BUFFER_SCHEDULERS
        for varied, size, buffer, parameters in _shapes(setting)
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
                if measure == "latency_us":
                    _draw_rivals(panel, table.where(scheduler=scheduler))
                words = "latency, µs" if measure == "latency_us" else "hit rate"
                panel.set(title=f"({next(letters)}) {scheduler}: {words}", xlabel=f"{x} entries")
                # Room above the lines for what they are.
                low, high = panel.get_ylim()
                panel.set_ylim(low, high + 0.3 * (high - low))
                panel.legend(ncols=2, loc="upper center")
    return drawn


def _draw_rivals(panel: Any, table: Table) -> None:
    for rival, pattern in zip(RIVALS, ("--", ":"), strict=True):
        for row in table.where(varied=rival).rows:
            panel.axhline(row["latency_us"], color="black", linestyle=pattern, label=rival)


SCHEDULERS = Figure(
    "6",
    "Figure 6: prefetching under five schedulers",
    _schedulers,
    MEASURES,
    _draw_schedulers,
    _schedulers_fixed,
)
BUFFERS = Figure(
    "7",
    "Figure 7: sizes of cache and prefetch buffer",
    _buffers,
    MEASURES,
    _draw_buffers,
    lambda setting: fixed(
        {**_described(setting, NAS, ONE), "instances": 1 if setting.quick else INSTANCES},
        ["scheduler"],
        message_packets_max=MESSAGES[ONE],
    ),
)
