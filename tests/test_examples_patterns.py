"""The examples of patterns run as a reader runs them, and say what they should."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parent.parent / "examples/patterns"


def said(*words: str, cwd: Path) -> str:
    command = [sys.executable, *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def test_words_are_counted(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("To be, or not to be.")
    (tmp_path / "two.txt").write_text("that is the question: to die - to sleep")
    printed = said(str(EXAMPLES / "word_count.py"), "one.txt", "two.txt", cwd=tmp_path)
    assert printed.split()[:4] == ["4", "to", "2", "be"]


def test_a_knapsack_is_packed_better_than_greedily(tmp_path: Path) -> None:
    assert said(str(EXAMPLES / "knapsack.py"), cwd=tmp_path) == "greedy: 453, best: 475\n"


def test_an_interval_is_divided_where_it_has_to_be(tmp_path: Path) -> None:
    assert said(str(EXAMPLES / "integral.py"), cwd=tmp_path) == "0.512370\n"
