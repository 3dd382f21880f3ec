"""Credentials of our own nodes and gateways, by an authority that is made for a run."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterable
from pathlib import Path

from exoskel.cli import main


def issue(folder: Path, named: Iterable[tuple[str, str]]) -> None:
    """Write ``NAME.pem`` for each role and name."""
    directory = str(folder / "pki")
    commands = [["init", directory]]
    for role, name in named:
        to = ["--output", str(folder / f"{name}.pem")]
        commands.append(["issue", "--directory", directory, "--role", role, "--name", name, *to])
    for command in commands:
        # Standard output belongs to the lanes.
        with contextlib.redirect_stdout(io.StringIO()):
            if main(["pki", *command]):
                raise SystemExit(f"exoskel pki {' '.join(command)} failed")
