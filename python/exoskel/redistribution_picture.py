"""Pictures of plans: who sends how much to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sim.pictures import need_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .redistribution import RedistributionPlan


# Cells of a picture on each axis, at most: there are fewer pixels. Beyond it a cell is of several processes.
_CELLS_MAX = 1000


def drawn(plan: RedistributionPlan) -> Figure:
    """Return a picture of a plan: a row for each process of the source, a column for each of the target, or for several of them at once.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib isn't there.
    """
    need_matplotlib()
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    sources, targets = plan.source.processes, plan.target.processes
    rows, columns = -(-sources // _CELLS_MAX), -(-targets // _CELLS_MAX)
    messages, elements, sums = plan._core.sums(rows, columns)
    size = plan.source.dtype.itemsize
    cells = np.array(sums, float).reshape(-(-sources // rows), -(-targets // columns)) * size
    # Where nothing moves is no colour.
    cells[cells == 0] = np.nan
    canvas = Figure(layout="constrained")
    panel = canvas.subplots()
    edges = (-0.5, cells.shape[1] * columns - 0.5, cells.shape[0] * rows - 0.5, -0.5)
    shown = panel.imshow(cells, aspect="auto", interpolation="nearest", vmin=0, extent=edges)
    panel.set_xlim(-0.5, targets - 0.5)
    panel.set_ylim(sources - 0.5, -0.5)
    panel.set_xlabel("process of the target")
    panel.set_ylabel("process of the source")
    panel.set_title(f"{messages} messages, {elements * size} bytes", fontsize="medium")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    canvas.suptitle(f"{plan.source}\nto {plan.target}", fontsize="small")
    several = (
        f"from {rows} to {columns} processes at once" if rows * columns > 1 else "of a message"
    )
    canvas.colorbar(shown, label=f"bytes {several}")
    return canvas
