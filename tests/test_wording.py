"""The program that finds sentences which are too long for a stranger (`make lint-text`)."""

from pathlib import Path

import pytest
from tests import wording

LONG = "word " * 31


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (LONG, 1),
        ("word " * 30, 0),
        # A full stop ends a sentence; what stands in a name or a number doesn't.
        (f"{'word ' * 20}end. Then {'word ' * 20}", 0),
        (f"{'word ' * 20}file.py and 0.5 {'word ' * 20}", 1),
        (f"{'word ' * 20}things, e.g. Then {'word ' * 20}", 1),
        (f"{'word ' * 20}(end.) `code` {'word ' * 20}", 0),
        # Punctuation and arrows are no words.
        ("- | -> " * 31, 0),
    ],
)
def test_long_sentences_are_found(text: str, count: int) -> None:
    assert len(wording.long_sentences(text)) == count


def test_a_page_is_read_without_its_blocks_of_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wording, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"{LONG}\n\n```text\n{LONG}\n```\n\n| a |\n|---|\n| {LONG} |\n\n- `{LONG}`\n")
    found = [place for place, text in wording.of_page(page) if wording.long_sentences(text)]
    assert found == ["page.md:1", "page.md:9"]


def test_messages_are_read_without_documentation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wording, "ROOT", tmp_path)
    python = tmp_path / "module.py"
    python.write_text(
        f'"""{LONG}"""\nraise ValueError(\n    f"{LONG}{{1 + 1}}"\n)\nprint("a\\n" * 2)\n'
    )
    rust = tmp_path / "module.rs"
    rust.write_text(
        f'/// {LONG}\n// "{LONG}"\nfn f<\'a>() {{ \'"\'; r#"{LONG}"#; "{LONG}\\\n   end" }}\n'
    )
    assert [p for p, t in wording.of_python(python) if wording.long_sentences(t)] == ["module.py:3"]
    assert [p for p, t in wording.of_rust(rust) if wording.long_sentences(t)] == ["module.rs:3"]
