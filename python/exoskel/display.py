"""How objects look in a notebook: as tables of rich, written as HTML."""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import RenderableType

__all__ = ["html_of", "paragraph_of", "table_of"]

# What a cell of a notebook has room for.
_WIDTH = 120
_FORMAT = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:normal;'
    "font-family:Menlo,'DejaVu Sans Mono',consolas,'Courier New',monospace\">{code}</pre>"
)


def html_of(shown: RenderableType) -> str:
    """Return what rich shows as HTML, with all text escaped.

    Parameters
    ----------
    shown : rich.console.RenderableType
        A table, for example.

    Returns
    -------
    str
        One element, without scripts or links.
    """
    from rich.console import Console

    # In a notebook, rich would show it there as well.
    console = Console(
        file=io.StringIO(),
        force_jupyter=False,
        record=True,
        width=_WIDTH,
        markup=False,
        highlight=False,
        emoji=False,
    )
    console.print(shown)
    return console.export_html(inline_styles=True, code_format=_FORMAT)


def table_of(
    titles: Sequence[str], rows: Sequence[Sequence[str]], *, first_number: int, has_total: bool
) -> RenderableType:
    """Return a table of rich.

    Parameters
    ----------
    titles : sequence of str
        One for each column.
    rows : sequence of sequence of str
        The cells. They are text, never markup.
    first_number : int
        The column from which on cells stand right, so that their digits line up.
    has_total : bool
        Whether the last row sums up the others.

    Returns
    -------
    rich.table.Table
        The table.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_footer=False)
    for column, title in enumerate(titles):
        table.add_column(Text(title), justify="right" if column >= first_number else "left")
    for number, row in enumerate(rows, 1):
        table.add_row(*map(Text, row), end_section=has_total and number == len(rows) - 1)
    return table


def paragraph_of(text: str) -> str:
    """Return text as a paragraph of HTML."""
    return f"<p>{html.escape(text)}</p>"
