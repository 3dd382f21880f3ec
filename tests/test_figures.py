"""Pictures of the documentation: each is shown somewhere, and those that are drawn by hand can be read in light and dark."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FIGURES = ROOT / "docs" / "figures"
DRAWN = [path for path in sorted(FIGURES.glob("*.svg")) if "Matplotlib" not in path.read_text()]
DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{(.*?)\n    \}\n", re.DOTALL)
# A colour of its own would stay as it is where the page is dark.
COLOURS = re.compile(r'(?:fill|stroke)="(?!none)|style="')


def test_every_figure_is_shown_by_a_page() -> None:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    text = "\n".join(page.read_text() for page in pages)
    figures = {path.name for path in FIGURES.iterdir()}
    assert {name for name in figures if f"figures/{name})" not in text} == set()


@pytest.mark.parametrize("figure", DRAWN, ids=lambda path: path.name)
def test_a_figure_has_its_colours_twice(figure: Path) -> None:
    text = figure.read_text()
    root = ElementTree.fromstring(text)
    assert root.findtext("{http://www.w3.org/2000/svg}title")
    dark = DARK.search(text)
    assert dark is not None
    light = text[: dark.start()]
    used = {name for found in root.iter() for name in found.get("class", "").split()}
    assert used
    for classes in (light, dark[1]):
        assert used <= set(re.findall(r"\.([\w-]+) \{", classes))
    assert COLOURS.search(text) is None
