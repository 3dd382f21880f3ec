"""From a figure's name to its files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from ..files import ready
from ..runs import Stopped, execute
from ..tables import Table
from . import registry
from .setting import Figure, Setting

__all__ = ["paper"]

# Takes the figure's title, and how many of how many runs are done.
Progress = Callable[[str, int, int], None]

SEEDS = 20


def paper(
    out: str | Path,
    *,
    figures: Sequence[str] = (),
    seeds: int = SEEDS,
    quick: bool = False,
    traces: str | Path = "traces",
    progress: Progress | None = None,
) -> dict[str, Table]:
    """Repeat tables and figures of the paper: CSV, PNG and SVG files in a folder.

    Parameters
    ----------
    out : str or Path
        The folder. It is made; files of older runs are replaced, by whole ones only. Runs of a figure that isn't finished are in a
        file of their own, ``*-unfinished.csv``.
    figures : sequence of str
        Their names; all if empty.
    seeds : int
        Runs of each point, each with its own seed.
    quick : bool
        Little input and few points: to see that it works, not for numbers.
    traces : str or Path
        Where the traces of the NAS benchmarks are.
    progress : callable, optional
        Told how far a figure is.

    Returns
    -------
    dict
        By the figure's name: means over seeds with 95 % confidence intervals. Each run by itself is in the CSV files named
        ``*-runs.csv``.

    Raises
    ------
    ValueError
        If there is no such figure, no such folder of traces, or less than one seed; if a run ends in an error. What was done until
        then is in the folder.
    KeyboardInterrupt
        On Ctrl-C. What was done until then is in the folder.
    """
    if seeds < 1:
        raise ValueError(f"seeds: got {seeds}, expected at least 1")
    chosen = registry.chosen(figures)
    if not Path(traces).is_dir():
        raise ValueError(
            f"traces: got {str(traces)!r}, which is no folder, expected the one with the traces of the NAS benchmarks"
        )
    folder = Path(out)
    ready(folder)
    setting = Setting(seeds, quick, Path(traces))
    return {figure.name: _made(figure, setting, folder, progress) for figure in chosen}


def _made(figure: Figure, setting: Setting, folder: Path, progress: Progress | None) -> Table:
    from . import style

    def tell(done: int, total: int) -> None:
        if progress is not None:
            progress(figure.title, done, total)

    runs_asked = figure.runs(setting)
    # What is a formula's, or the order of keys alone, has no seeds.
    seeds = {"seeds": setting.seeds} if any("seed" in run.cell for run in runs_asked) else {}
    parameters = {**seeds, "quick": setting.quick, **figure.parameters(setting)}
    name = figure.name if figure.name.startswith("table") else f"figure-{figure.name}"
    unfinished = folder / f"{name}-unfinished.csv"
    try:
        rows = execute(runs_asked, tell)
    except Stopped as stopped:
        # Beside the finished ones of an earlier time.
        stopped.parameters = parameters
        stopped.table.to_csv(unfinished, figure.title)
        raise
    unfinished.unlink(missing_ok=True)
    runs = Table(rows, parameters)
    means = runs.over_seeds(figure.measures)
    if "seed" in runs:
        runs.to_csv(folder / f"{name}-runs.csv", f"{figure.title}: each run")
    means.to_csv(folder / f"{name}.csv", figure.title)
    with style.applied():
        style.save(style.finished(figure.draw(means), figure.title), folder, name)
    return means
