"""Traces of other tools become traces of ours: what ``tracer/`` left of an MPI program, and SimGrid's replay text."""

from __future__ import annotations

import os
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from .. import _core

__all__ = ["Packed", "pack"]


class Packed(NamedTuple):
    """What was packed.

    Parameters
    ----------
    file : Path
        Where it is now.
    ranks, records : int
        How many ranks and calls it has.
    note : str
        What somebody should know who uses it, such as which ranks ended early; often empty.
    """

    file: Path
    ranks: int
    records: int
    note: str


def pack(
    source: str | PathLike[str],
    out: str | PathLike[str],
    *,
    name: str | None = None,
    operations_per_second: float = 1e9,
) -> Packed:
    """Pack a trace.

    Parameters
    ----------
    source : path
        The folder that the tracer wrote, or a file of SimGrid's: a time-independent trace, or a list of such files, one a line.
    out : path
        The file to be written, ``.skct``. It is there as a whole or not at all.
    name : str, optional
        What the trace is called; by default as the file is.
    operations_per_second : float
        How fast the traced program computed, for SimGrid's traces, which have operations and no times: the ``smpi/host-speed`` of the
        run that wrote the trace. ``smpirun`` takes 20,000 unless it is told another one.

    Returns
    -------
    Packed
        What it has become.

    Raises
    ------
    OSError
        If a file can't be read or written.
    ValueError
        If a file is no trace; it names the file, and the record or line.
    """
    source, out = Path(source), Path(out)
    name = out.name.partition(".")[0] if name is None else name
    if source.is_dir():
        content, ranks, records, note = _core.pack_calls(name, _calls(source))
    else:
        texts = [(str(file), _text(file)) for file in _listed(source)]
        content, ranks, records, note = _core.pack_replay_text(name, texts, operations_per_second)
    part = out.with_name(f"{out.name}.part")
    part.write_bytes(content)
    os.replace(part, out)
    return Packed(out, ranks, records, note)


def _calls(folder: Path) -> list[tuple[str, bytes, str]]:
    """For each rank: file, calls, communicators."""
    files = sorted(folder.glob("rank-*.calls"))
    if not files:
        raise ValueError(
            f"{folder}: got no files rank-*.calls, expected those of the tracer: was it loaded, and is this its EXOSKEL_TRACE?"
        )
    return [
        (str(file), file.read_bytes(), _text(file.with_suffix(".communicators"))) for file in files
    ]


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: got bytes that are no text, expected a text: {error}") from error


def _listed(file: Path) -> list[Path]:
    """The files that a file lists, beside it or from the working directory; itself, if it is a trace: lines of an action have a rank and a name at least."""
    lines = [line.strip() for line in _text(file).splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise ValueError(
            f"{file}: got nothing in it, expected a trace of SimGrid or a list of them"
        )
    if any(len(line.split()) > 1 for line in lines):
        return [file]
    return [_listed_file(file.parent / line, Path(line)) for line in lines]


def _listed_file(beside: Path, here: Path) -> Path:
    """SimGrid's own lists say where the files are as seen from where it ran."""
    return here if here.exists() and not beside.exists() else beside
