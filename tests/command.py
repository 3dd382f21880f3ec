"""The command line, called from a test, and the CSV files that it writes."""

from __future__ import annotations

import contextlib
import csv
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exoskel.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    assert main([*map(str, arguments), "--json"]) == code
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def refused(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 1) -> str:
    return str(run(capsys, "sim", *arguments, code=code)["error"])


@contextlib.contextmanager
def limited(kind: int, soft: int) -> Iterator[None]:
    """Give the process less of a resource, within this block only: what runs the tests has files and output of its own."""
    before = resource.getrlimit(kind)
    resource.setrlimit(kind, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(kind, before)


def head(file: Path) -> dict[str, str]:
    """Read the parameters in the head of a CSV file."""
    lines = [line[2:].strip() for line in file.read_text().splitlines() if line.startswith("# ")]
    return dict(line.split(" = ", 1) for line in lines if " = " in line)


def body(file: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV file."""
    lines = (line for line in file.read_text().splitlines() if not line.startswith("#"))
    return list(csv.DictReader(lines))
