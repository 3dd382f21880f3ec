"""Pictures of a user's own tables, in the look of the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from .tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

__all__ = ["drawn", "scenario_picture"]


def drawn(table: Table, x: str, y: str, by: str | None) -> Canvas:
    """Return what `Table.plot` promises."""
    need_matplotlib()
    from .figures import style

    with style.applied():
        canvas, [panel] = style.canvas(1, 1)
        _fill(panel, table, x, y, by)
        panel.set_title(f"{y} over {x}")
        if by is not None:
            panel.legend(title=by)
    return canvas


def scenario_picture(runs: Table, measures: Sequence[str], title: str) -> Canvas:
    """Return a picture of a scenario's runs: a panel for each measure, over the parameter with most values, if it can be one of numbers.

    Parameters
    ----------
    runs : Table
        The runs; what is varied stands before ``seed``. Where nothing is, the seeds stand beside each other.
    measures : sequence of str
        Columns that were measured. Those without a number are left out.
    title : str
        What stands above the panels.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib isn't there.
    """
    need_matplotlib()
    from .figures import style

    names = list(runs)
    varied = _independent(runs, names[: names.index("seed")])
    numbers = [name for name in varied if _are_numbers(runs[name].tolist())]
    x = max(numbers or varied, key=lambda name: len(set(runs[name].tolist())), default="seed")
    others = [name for name in varied if name != x]
    by = ", ".join(others) or None
    cells = runs if x == "seed" else runs.over_seeds(measures)
    if by is not None:
        cells = Table(
            {**row, by: ", ".join(f"{name}={row[name]}" for name in others)} for row in cells.rows
        )
    shown = [
        name for name in measures if not all(math.isnan(value) for value in cells[name].tolist())
    ]
    with style.applied():
        canvas, panels = style.canvas(1, len(shown))
        for panel, measure in zip(panels, shown, strict=True):
            _fill(panel, cells, x, measure, by)
            panel.set_title(f"{measure} over {x}")
        canvas.suptitle(title)
        if by is not None:
            style.legend(canvas, panels[0], 4)
    return canvas


def _independent(runs: Table, names: Sequence[str]) -> list[str]:
    """Those of the columns that say something beyond one before them: not what has one value, and not what follows from a preset."""
    kept: list[str] = []
    for name in names:
        values = runs[name].tolist()
        known = [[None] * len(values), *(runs[other].tolist() for other in kept)]
        if all(len(set(zip(other, values, strict=True))) > len(set(other)) for other in known):
            kept.append(name)
    return kept


def need_matplotlib() -> None:
    """Raise `ModuleNotFoundError` if it isn't there, and say who has it."""
    if find_spec("matplotlib") is None:
        raise ModuleNotFoundError(
            "got no matplotlib, expected it for pictures: pip install matplotlib",
            name="matplotlib",
        )


def _fill(panel: Axes, table: Table, x: str, y: str, by: str | None) -> None:
    """Draw a column into a panel: lines over numbers, bars over words."""
    from .figures import style

    for name in (x, y, *([by] if by is not None else [])):
        if name not in table:
            raise ValueError(f"got no column {name!r}, expected one of {', '.join(table)}")
    cells = table
    if "seed" in table and x != "seed":
        cells = table.over_seeds([y])
    # One line, or bars of one kind, need a name as well.
    kind = by if by is not None else ""
    rows: list[dict[str, Any]] = [{"": y, **row} for row in cells.rows]
    places = [(row[kind], row[x]) for row in rows]
    if len(set(places)) < len(places):
        raise ValueError(
            f"got several values of {y} for one {x}, expected one: choose with Table.where, or tell them apart with by"
        )
    draw = style.lines if _are_numbers([row[x] for row in rows]) and x != "seed" else style.bars
    draw(panel, Table(rows), x, y, kind)
    style.labels(panel, x, y)


def _are_numbers(values: Sequence[object]) -> bool:
    return all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in values)
