"""Traces of other tools become traces of ours: what ``tracer/`` left of an MPI program, and SimGrid's replay text."""

from __future__ import annotations

import math
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from .. import _core
from .arguments import refused
from .files import named, read_bounded, read_text, whole

__all__ = ["Packed", "pack"]

# A trace has at most 2^24 calls: 48 bytes each, after a head of 32, in the tracer's files ...
CALLS_BYTES_MAX = 32 + (1 << 24) * 48
# ... and a line each in a text, few of them longer than this.
TEXT_BYTES_MAX = (1 << 24) * 64


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
    operations_per_second : float or None
        At which rate operations became times; None where times were given.
    """

    file: Path
    ranks: int
    records: int
    note: str
    operations_per_second: float | None = None


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
        If a file is no trace; it names the file, and the record or line. If the rate can't be.
    """
    if not 0 < operations_per_second < math.inf:
        raise refused("operations_per_second", operations_per_second, "a positive number")
    source, out = Path(source), Path(out)
    name = named(out.name.partition(".")[0] if name is None else name)
    rate = None if source.is_dir() else operations_per_second
    with whole(out) as part:
        if rate is None:
            calls = _calls(source, out)
            content, ranks, records, note = _core.pack_calls(name, calls)
        else:
            texts = _texts(source, out)
            content, ranks, records, note = _core.pack_replay_text(name, texts, rate)
        part.write_bytes(content)
    return Packed(out, ranks, records, note, rate)


def _calls(folder: Path, out: Path) -> list[tuple[str, bytes, str]]:
    """For each rank: file, calls, communicators."""
    files = sorted(folder.glob("rank-*.calls"))
    if not files:
        raise ValueError(
            f"{named(folder)}: got no files rank-*.calls, expected those of the tracer: was it loaded, and is this its EXOSKEL_TRACE?"
        )
    texts = [file.with_suffix(".communicators") for file in files]
    _keep([*files, *texts], out)
    return [
        (named(file), read_bounded(file, CALLS_BYTES_MAX), read_text(text, TEXT_BYTES_MAX))
        for file, text in zip(files, texts, strict=True)
    ]


def _texts(file: Path, out: Path) -> list[tuple[str, str]]:
    """What a file lists, each with its name; itself, if it is a trace: lines of an action have a rank and a name at least."""
    _keep([file], out)
    text = read_text(file, TEXT_BYTES_MAX)
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise ValueError(
            f"{named(file)}: got nothing in it, expected a trace of SimGrid or a list of them"
        )
    if any(len(line.split()) > 1 for line in lines):
        return [(named(file), text)]
    files = [_listed_file(file.parent / line, Path(line)) for line in lines]
    _keep(files, out)
    return [(named(listed), read_text(listed, TEXT_BYTES_MAX)) for listed in files]


def _keep(read: list[Path], out: Path) -> None:
    """Refuse to write over what is read."""
    if out.exists() and any(file.exists() and file.samefile(out) for file in read):
        raise ValueError(f"{named(out)}: got a file that is read, expected another one to write")


def _listed_file(beside: Path, here: Path) -> Path:
    """SimGrid's own lists say where the files are as seen from where it ran."""
    return here if here.exists() and not beside.exists() else beside
