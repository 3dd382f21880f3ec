"""Pictures of plans: who sends how much to whom."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .sim.pictures import need_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .redistribution import RedistributionPlan


def drawn(plan: RedistributionPlan) -> Figure:
    """Return a picture of a plan: a row for each process of the source, a column for each of the target.

    Raises
    ------
    ModuleNotFoundError
        If matplotlib isn't there.
    """
    need_matplotlib()
    import numpy as np
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    sizes = np.full((plan.source.processes, plan.target.processes), np.nan)
    for message in plan.messages:
        sizes[message.source, message.target] = message.bytes
    canvas = Figure(layout="constrained")
    panel = canvas.subplots()
    shown = panel.imshow(sizes, aspect="auto", interpolation="nearest", vmin=0)
    panel.set_xlabel("process of the target")
    panel.set_ylabel("process of the source")
    panel.set_title(f"{len(plan.messages)} messages, {plan.bytes} bytes", fontsize="medium")
    for axis in (panel.xaxis, panel.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    canvas.suptitle(f"{plan.source}\nto {plan.target}", fontsize="small")
    canvas.colorbar(shown, label="bytes of a message")
    return canvas
