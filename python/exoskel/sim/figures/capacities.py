"""Figure 3: how many keys caches of four sizes serve, by the model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..model import capacity
from ..runs import Run
from ..tables import Table
from . import style
from .setting import Figure, Setting
from .traffic import GAP_NS, ratios

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["CAPACITIES"]

# 2, 4, 8 and 16 KB at 16 bytes an entry, as the paper counts.
ENTRIES = (128, 256, 512, 1024)
HIT = 0.9
# What "about 1000 keys with 128 entries" (BT on the Origin) takes; a round 8; a grid around.
RATIOS = (0.25, 0.5, 1.0, 2.0, 4.0, 7.66, 8.0, 16.0, 32.0)


def _cells(setting: Setting) -> list[Run]:
    named = [("", ratio) for ratio in RATIOS]
    return [
        Run(
            {
                "traffic": name,
                "off_on": ratio,
                "entries": entries,
                "capacity": capacity(entries, ratio, HIT),
            },
            None,
        )
        for name, ratio in [*named, *ratios(setting).items()]
        for entries in ENTRIES
    ]


def _draw(table: Table) -> Canvas:
    drawn, (panel,) = style.canvas(1, 1, width=5.6, height=4.0)
    style.lines(panel, table.where(traffic=""), "off_on", "capacity", "entries", label="{} entries")
    fitted = [row for row in table.rows if row["traffic"]]
    panel.plot(
        [row["off_on"] for row in fitted],
        [row["capacity"] for row in fitted],
        linestyle="none",
        marker="|",
        markersize=11,
        color="black",
        label="our traces",
    )
    top = {row["traffic"]: row for row in fitted if row["entries"] == max(ENTRIES)}
    # Every other name stands higher: CG's ratio is nearly MG's.
    for index, (name, row) in enumerate(sorted(top.items(), key=lambda item: item[1]["off_on"])):
        panel.annotate(
            name,
            (row["off_on"], row["capacity"]),
            xytext=(0, (9, 20)[index % 2]),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    panel.set(xscale="log", yscale="log", xlabel="OFF/ON", ylabel="keys at 90 %")
    panel.set_title("keys that a cache serves, by the ON/OFF model")
    panel.legend()
    return drawn


CAPACITIES = Figure(
    "3",
    "Figure 3: capacity of caches by OFF/ON (target 0.9)",
    _cells,
    ("capacity",),
    _draw,
    lambda setting: {"hit": HIT, "gap_ns": GAP_NS, "sha256": setting.checksums()},
)
