"""What a stranger has to read: sentences of more than 30 words, and words that the glossary retired.

Looked at are README.md, the guide, ``--help``, and every string in the sources that isn't a docstring: messages are among them. A piece
of code counts as one word. `make lint-text` runs this.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt

from exoskel.cli.commands import parser

ROOT = Path(__file__).resolve().parent.parent
WORDS_MAX = 30

# A full stop, a question mark or an exclamation mark, then a space and what begins a sentence.
_END = re.compile(
    r"""(?<!e\.g\.)(?<!i\.e\.)(?<=[.!?)"'`])(?<=[.!?].|.[.!?])\s+(?=[A-Z0-9`"'(\[{])"""
)
_WORD = re.compile(r"\S*\w\S*")
_RUST = re.compile(
    r"""
    //[^\n]* | /\*.*?\*/                  # comments
    | '(?:[^'\\\n]|\\[^\n']+)'            # characters
    | \br(?P<raw>\#*)".*?"(?P=raw)       # raw strings: those of examples and patterns
    | "(?P<string>(?:[^"\\]|\\.)*)"       # strings
    """,
    re.DOTALL | re.VERBOSE,
)

Text = tuple[str, str]


def long_sentences(text: str) -> list[str]:
    """Return the sentences of a text that are too long."""
    return [
        " ".join(sentence.split())
        for sentence in _END.split(text)
        if len(_WORD.findall(sentence)) > WORDS_MAX
    ]


def texts() -> Iterator[Text]:
    """Every place that people read, and what stands there."""
    for page in (ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md"))):
        yield from of_page(page)
    yield from of_help(parser())
    for path in sorted((ROOT / "python").rglob("*.py")):
        yield from of_python(path)
    for path in sorted((ROOT / "crates").glob("*/src/**/*.rs")):
        if "tests" not in path.relative_to(ROOT).parts and path.stem != "tests":
            yield from of_rust(path)


def of_page(page: Path) -> Iterator[Text]:
    for token in MarkdownIt().enable("table").parse(page.read_text()):
        if token.type == "inline":
            parts = (
                "`code`" if part.type == "code_inline" else part.content or " "
                for part in token.children or ()
            )
            line = token.map[0] + 1 if token.map else 0
            yield f"{page.relative_to(ROOT)}:{line}", "".join(parts)


def of_help(command: argparse.ArgumentParser) -> Iterator[Text]:
    for text in (command.description, command.epilog):
        yield f"{command.prog} --help", text or ""
    for action in command._actions:
        if isinstance(action, argparse._SubParsersAction):
            for below in dict.fromkeys(action.choices.values()):
                yield from of_help(below)
        elif action.help is not argparse.SUPPRESS:
            name = "/".join(action.option_strings) or action.dest
            yield f"{command.prog} {name}", action.help or ""


def of_python(path: Path) -> Iterator[Text]:
    tree = ast.parse(path.read_text())
    # A string that stands alone is documentation.
    skipped = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.JoinedStr):
            skipped.update(map(id, node.values))
            parts = (str(p.value) if isinstance(p, ast.Constant) else "{}" for p in node.values)
            yield from _lines(place, "".join(parts).replace("{}", "`code`"))
        elif isinstance(node, ast.Constant) and id(node) not in skipped:
            yield from _lines(place, node.value if isinstance(node.value, str) else "")


def of_rust(path: Path) -> Iterator[Text]:
    text = re.split(r"^#\[cfg\(test\)\]\nmod ", path.read_text(), flags=re.MULTILINE)[0]
    for found in _RUST.finditer(text):
        if found["string"] is not None:
            place = f"{path.relative_to(ROOT)}:{text.count(chr(10), 0, found.start()) + 1}"
            # A backslash at the end of a line takes the next line's indentation away.
            plain = re.sub(r"\\\n\s*", "", found["string"]).replace("\\n", "\n")
            yield from _lines(place, re.sub(r"\{[^{}]*\}", "`code`", plain))


def _lines(place: str, message: str) -> Iterator[Text]:
    """The lines of a message, which need no full stops."""
    for line in message.splitlines():
        yield place, line


def main() -> int:
    """Print what is too long, where."""
    found = {(place, sentence) for place, text in texts() for sentence in long_sentences(text)}
    for place, sentence in sorted(found):
        print(f"{place}: {len(_WORD.findall(sentence))} words: {sentence}")
    print(f"{len(found)} sentences of more than {WORDS_MAX} words")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
