"""Count the words of files, and print the most common ones: python word_count.py FILE..."""

import operator
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import exoskel as ex

WORD = re.compile(r"[A-Za-z]+")


def words_of(name: str) -> Iterator[str]:
    """Read a file's words."""
    text = Path(name).read_text(encoding="utf-8", errors="replace")
    for match in WORD.finditer(text):
        yield match[0]


def one(word: str) -> int:
    """Count a word."""
    return 1


program = ex.Pipeline(ex.FlatMap(words_of), ex.Reduce(operator.add, key=str.lower, value=one))
counts = ex.run(program, sys.argv[1:])
for word, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:5]:
    print(f"{count:8} {word}")
