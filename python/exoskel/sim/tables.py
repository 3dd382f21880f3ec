"""Tidy tables: one row for each run or cell, one NumPy array for each column."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy

from .. import __version__
from .files import whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas
    from numpy.typing import NDArray

__all__ = ["Table", "half_width", "write_csv"]

# Two-sided 95 % points of Student's t for 1 .. 30 degrees of freedom; beyond, the expansion below is right to four digits.
_STUDENT_95 = (
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281,
    2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860,
    2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
)  # fmt: skip
_NORMAL_95 = 1.959964


class Table(dict[str, "NDArray[Any]"]):
    """Columns by name, all of the same length, and the parameters that made them.

    Parameters
    ----------
    rows : iterable of mappings
        What stands in each row. All have the same keys, in the order of the columns.
    parameters : mapping, optional
        What was fixed: it goes into the head of a CSV file.
    """

    def __init__(
        self,
        rows: Iterable[Mapping[str, object]] = (),
        parameters: Mapping[str, object] | None = None,
    ) -> None:
        listed = list(rows)
        names = list(listed[0]) if listed else []
        super().__init__(
            {name: numpy.array([row[name] for row in listed]) for name in names},
        )
        self.parameters: dict[str, object] = dict(parameters or {})

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The same by rows, in Python's own numbers and strings."""
        columns = [column.tolist() for column in self.values()]
        return [dict(zip(self, row, strict=True)) for row in zip(*columns, strict=True)]

    def where(self, **values: object) -> Table:
        """Return the rows that have these values.

        Parameters
        ----------
        **values : object
            Column and value.

        Returns
        -------
        Table
            As many columns, at most as many rows.
        """
        kept = [row for row in self.rows if all(row[name] == v for name, v in values.items())]
        return Table(kept, self.parameters)

    def over_seeds(self, measures: Sequence[str], by: Sequence[str] | None = None) -> Table:
        """Return one row for each cell: means over its seeds, and half the width of their 95 % confidence interval.

        Parameters
        ----------
        measures : sequence of str
            The columns that were measured.
        by : sequence of str, optional
            The columns that say which cell a row is of; if absent those before ``seed``, or, without seeds, all that aren't measures.

        Returns
        -------
        Table
            For a measure ``m`` the columns ``m`` and ``m_ci95`` (NaN with a single seed), and ``seeds``, their number.
        """
        fixed = by
        if fixed is None:
            names = list(self)
            before = names[: names.index("seed")] if "seed" in names else names
            fixed = [name for name in before if name not in measures]
        cells: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        for row in self.rows:
            cells.setdefault(tuple(row[name] for name in fixed), []).append(row)
        merged = []
        for key, members in cells.items():
            line: dict[str, object] = dict(zip(fixed, key, strict=True))
            line["seeds"] = len(members)
            for measure in measures:
                values = [float(member[measure]) for member in members]
                line[measure] = math.fsum(values) / len(values)
                line[f"{measure}_ci95"] = half_width(values)
            merged.append(line)
        return Table(merged, self.parameters)

    def plot(self, x: str, y: str, by: str | None = None) -> Canvas:
        """Draw a column over another one: lines over numbers, bars over words, with 95 % confidence intervals where there are seeds.

        Parameters
        ----------
        x, y : str
            The columns across and up.
        by : str, optional
            A line, or a bar of each group, for each value of this column.

        Returns
        -------
        matplotlib.figure.Figure
            The picture; ``savefig`` keeps it.

        Raises
        ------
        ValueError
            If there is no such column, or several values would stand at one place.
        ModuleNotFoundError
            If matplotlib isn't there.
        """
        from .pictures import drawn

        return drawn(self, x, y, by)

    def to_pandas(self) -> Any:
        """Return a ``pandas.DataFrame``; its ``attrs`` are the parameters."""
        import pandas

        frame = pandas.DataFrame(dict(self))
        frame.attrs = dict(self.parameters)
        return frame

    def to_polars(self) -> Any:
        """Return a ``polars.DataFrame``."""
        import polars

        return polars.DataFrame({name: column.tolist() for name, column in self.items()})

    def to_csv(self, path: str | Path, title: str = "") -> None:
        """Write a CSV file whose head, lines that begin with ``#``, says with which parameters it was made.

        Parameters
        ----------
        path : str or Path
            The file; an older one is replaced.
        title : str
            What it is, in one line.
        """
        write_csv(Path(path), self.rows, self.parameters, title)


def half_width(values: Sequence[float]) -> float:
    """Return half the width of the 95 % confidence interval of a mean (Student's t).

    Parameters
    ----------
    values : sequence of float
        One for each seed.

    Returns
    -------
    float
        In the unit of the values; NaN for less than two.
    """
    count = len(values)
    if count < 2:
        return math.nan
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return _student(count - 1) * math.sqrt(variance / count)


def _student(freedom: int) -> float:
    if freedom <= len(_STUDENT_95):
        return _STUDENT_95[freedom - 1]
    z = _NORMAL_95
    # Cornish and Fisher's expansion, two terms.
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def write_csv(
    path: Path,
    rows: Sequence[Mapping[str, object]],
    parameters: Mapping[str, object],
    title: str = "",
) -> None:
    """Write rows under a head of parameters.

    Parameters
    ----------
    path : Path
        The file; an older one is replaced when this one is whole.
    rows : sequence of mappings
        All with the same keys.
    parameters : mapping
        What was fixed; our version stands before it.
    title : str
        What it is, in one line.
    """
    with (
        whole(path) as part,
        part.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        said = {"exoskel": __version__, **parameters}
        for line in ([title] if title else []) + [f"{k} = {v}" for k, v in said.items()]:
            file.write("# " + " ".join(str(line).split()) + "\n")
        if rows:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows({name: _written(v) for name, v in row.items()} for row in rows)


def _written(value: object) -> object:
    # Nine digits tell any two results apart, and leave the noise of the last bits out of a diff.
    return f"{value:.9g}" if isinstance(value, float) else value
