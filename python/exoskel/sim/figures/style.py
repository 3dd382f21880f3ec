"""How pictures look, and how they are kept: the same file from the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.container import BarContainer

from ..files import whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Canvas

    from ..tables import Table

__all__ = ["applied", "bars", "canvas", "finished", "labels", "legend", "lines", "save"]

# Told apart by people who see few colours, too (Okabe and Ito); in the order of their use.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#8c8c8c")
_MARKERS = "osv^Dxp*"
_DASHES = ("-", "--", ":", "-.")
_HATCHES = ("", "//", "..", "xx")
# Letters of all names below a panel that stand beside each other; more are turned.
_NAMES_IN_LINE = 36
_SETTINGS: Any = {
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "font.size": 9,
    "grid.color": "#e3e3e3",
    "legend.fontsize": 8,
    "legend.frameon": False,
    # Equal numbers give equal files, letters stay letters.
    "svg.fonttype": "none",
    "svg.hashsalt": "exoskel",
}


def applied() -> AbstractContextManager[None]:
    """Return a context in which pictures look as ours do."""
    return mpl.rc_context(_SETTINGS)


def canvas(
    rows: int, columns: int, *, width: float = 4.4, height: float = 3.2
) -> tuple[Canvas, list[Axes]]:
    """Return an empty picture and its panels, row by row.

    Parameters
    ----------
    rows, columns : int
        Of panels.
    width, height : float
        Of a panel, in inches.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    # No pyplot: it would keep the picture, and ask for a display.
    drawn = Canvas(figsize=(width * columns, height * rows), layout="constrained")
    FigureCanvasAgg(drawn)
    panels = drawn.subplots(rows, columns, squeeze=False)
    return drawn, list(panels.flat)


def legend(drawn: Canvas, panel: Axes, columns: int, title: str | None = None) -> None:
    """Put what a panel's colours mean below the whole picture.

    Parameters
    ----------
    drawn : Figure
        The picture.
    panel : Axes
        One with all of them.
    columns : int
        Of the legend.
    title : str, optional
        What it is about.
    """
    drawn.legend(
        *panel.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=columns,
        title=title,
        title_fontsize=_SETTINGS["legend.fontsize"],
    )


def lines(panel: Axes, table: Table, x: str, y: str, by: str, *, label: str = "{}") -> None:
    """Draw a line with error bars (95 % confidence) for each value of a column.

    Parameters
    ----------
    panel : Axes
        Where.
    table : Table
        Averaged over seeds.
    x, y, by : str
        Columns: across, up, one line for each.
    label : str
        What the legend says of a value.
    """
    for index, value in enumerate(dict.fromkeys(row[by] for row in table.rows)):
        rows = sorted(table.where(**{by: value}).rows, key=lambda row: row[x])
        # With each turn of the colours they meet other markers, and another dash.
        turn, colour = divmod(index, len(_COLOURS))
        panel.errorbar(
            [row[x] for row in rows],
            [row[y] for row in rows],
            yerr=_bars_of(rows, y),
            label=label.format(value),
            color=_COLOURS[colour],
            marker=_MARKERS[(colour + turn) % len(_MARKERS)],
            linestyle=_DASHES[turn % len(_DASHES)],
            markersize=3.5,
            linewidth=1.2,
            capsize=2,
        )


def bars(
    panel: Axes, table: Table, x: str, y: str, by: str, order: Sequence[str] | None = None
) -> None:
    """Draw groups of bars with error bars (95 % confidence).

    Parameters
    ----------
    panel : Axes
        Where.
    table : Table
        Averaged over seeds.
    x, y, by : str
        Columns: the groups, the height, the bars within a group.
    order : sequence of str, optional
        All bars that a group can have, so that a bar has one colour in all panels.
    """
    groups = list(dict.fromkeys(row[x] for row in table.rows))
    kinds = list(dict.fromkeys(row[by] for row in table.rows))
    places = {kind: divmod(i, len(_COLOURS)) for i, kind in enumerate(order or kinds)}
    width = 0.8 / len(kinds)
    for index, kind in enumerate(kinds):
        rows = {row[x]: row for row in table.where(**{by: kind}).rows}
        turn, colour = places[kind]
        present = [group for group in groups if group in rows]
        panel.bar(
            [groups.index(group) + (index - (len(kinds) - 1) / 2) * width for group in present],
            [rows[group][y] for group in present],
            width,
            yerr=_bars_of([rows[group] for group in present], y),
            label=str(kind),
            color=_COLOURS[colour],
            hatch=_HATCHES[turn % len(_HATCHES)],
            error_kw={"elinewidth": 0.8, "capsize": 1.5},
        )
    names = [str(group) for group in groups]
    panel.set_xticks(range(len(groups)), names)
    if sum(map(len, names)) > _NAMES_IN_LINE:
        panel.tick_params(axis="x", labelrotation=25)


def labels(panel: Axes, x: str, y: str) -> None:
    """Name the axes, and let them start at zero or say that they don't.

    Parameters
    ----------
    panel : Axes
        Which is drawn.
    x, y : str
        What stands across and up.
    """
    panel.set(xlabel=x, ylabel=y)
    _start_axes(panel)


def finished(drawn: Canvas, title: str) -> Canvas:
    """Return a picture with a title above its panels, and axes that start at zero or say that they don't.

    Parameters
    ----------
    drawn : Figure
        Whose panels are drawn.
    title : str
        What it shows.
    """
    drawn.suptitle(title)
    for panel in drawn.axes:
        _start_axes(panel)
    return drawn


def _start_axes(panel: Axes) -> None:
    """Let axes start at zero, unless all that they show is far from there, or their scale has none; then their names say so."""
    panel.set_ylabel(_said(panel.get_ylabel(), _start(panel.yaxis, panel.set_ylim)))
    # Names stand below bars.
    if not any(isinstance(drawn, BarContainer) for drawn in panel.containers):
        panel.set_xlabel(_said(panel.get_xlabel(), _start(panel.xaxis, panel.set_xlim)))


def _said(name: str, words: str) -> str:
    if not words:
        return name
    return f"{name} ({words})" if name else words


def _start(axis: Axis, limit: Callable[[float, float], object]) -> str:
    """Let an axis start at zero, or return the words that say that it doesn't."""
    if axis.get_scale() == "log":
        return "logarithmic axis"
    low, high = axis.get_view_interval()
    if low > high / 2:
        return "axis not from 0"
    # Below zero there is something to see, or only the margin of a zero.
    if low > 0 or -low < 0.1 * high:
        limit(0, high)
    return ""


def _bars_of(rows: Sequence[dict[str, Any]], y: str) -> list[float] | None:
    widths = [float(row.get(f"{y}_ci95", float("nan"))) for row in rows]
    # A single seed has no interval.
    return None if any(width != width for width in widths) else widths


def save(drawn: Canvas, folder: Path, name: str) -> list[Path]:
    """Keep a picture as PNG and SVG.

    Parameters
    ----------
    drawn : Figure
        The picture.
    folder : Path
        Where; it exists.
    name : str
        The files' name without their ending.

    Returns
    -------
    list of Path
        The files.
    """
    files = [folder / f"{name}.png", folder / f"{name}.svg"]
    with whole(files[0]) as part:
        drawn.savefig(part, format="png", dpi=120, metadata={"Software": None})
    with whole(files[1]) as part:
        drawn.savefig(part, format="svg", metadata={"Date": None, "Creator": None})
    return files
