"""Files that somebody reads while a test writes them."""

from __future__ import annotations

import shutil
from pathlib import Path


def replace(path: Path, contents: str | bytes) -> None:
    """Put other contents into a file all at once, whoever looks: it has what was there or what is new, never nothing."""
    new = path.with_name(f"{path.name}.new")
    new.write_bytes(contents.encode() if isinstance(contents, str) else contents)
    if path.exists():
        shutil.copymode(path, new)
    new.replace(path)
