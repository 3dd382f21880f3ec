"""Traces that nobody recorded: processes that talk and are silent in turn, and requests with their answers."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

from .. import _core
from .arguments import whole_number
from .files import named, whole
from .import_trace import Packed

__all__ = ["on_off", "requests"]

# The largest numbers of 16 and 32 bits: ranks, and what a record says of a message.
RANKS_MAX = 2**16 - 1
COUNT_MAX = 2**32 - 1


def on_off(
    out: str | PathLike[str],
    *,
    ranks: int = 16,
    periods: int = 200,
    messages: int = 20,
    message_bytes: int = 256,
    gap_ns: int = 5_000,
    off_ns: int = 766_000,
    seed: int = 0,
) -> Packed:
    """Make a trace of processes that are silent (OFF) and then send to one other process (ON), in turn.

    Whom a process sends to is drawn anew for each ON period, and so are all times, evenly between 0 and twice their means. Nobody waits for
    anybody before the end.

    Parameters
    ----------
    out : path
        The file to be written, ``.skct``. It is there as a whole or not at all.
    ranks : int
        Processes.
    periods : int
        ON periods of each of them.
    messages : int
        Messages of an ON period.
    message_bytes : int
        Bytes of a message.
    gap_ns, off_ns : int
        Mean times between two messages of an ON period, and between two ON periods, in nanoseconds.
    seed : int
        The same one gives the same trace on every machine.

    Returns
    -------
    Packed
        What it has become.

    Raises
    ------
    OSError
        If the file can't be written.
    ValueError
        If a number can't be; it is named.
    """
    out = Path(out)
    with whole(out) as part:
        content, made, records, note = _core.pack_on_off(
            named(out.name.partition(".")[0]),
            ranks=whole_number("ranks", ranks, most=RANKS_MAX),
            periods=whole_number("periods", periods, most=COUNT_MAX),
            messages=whole_number("messages", messages, most=COUNT_MAX),
            message_bytes=whole_number("message_bytes", message_bytes, most=COUNT_MAX),
            gap_ns=whole_number("gap_ns", gap_ns),
            off_ns=whole_number("off_ns", off_ns),
            seed=whole_number("seed", seed),
        )
        part.write_bytes(content)
    return Packed(out, made, records, note)


def requests(
    out: str | PathLike[str], *, ranks: int = 16, each: int = 1_000, seed: int = 0
) -> Packed:
    """Make a trace in which each process asks others, by Zipf's law, and answers them.

    Requests have 8 bytes and answers 72. It stands in for SPECjbb2000, which the paper used and which isn't free, and is no measurement of it.

    Parameters
    ----------
    out : path
        The file to be written, ``.skct``. It is there as a whole or not at all.
    ranks : int
        Processes.
    each : int
        Requests of each of them.
    seed : int
        The same one gives the same trace on every machine.

    Returns
    -------
    Packed
        What it has become.

    Raises
    ------
    OSError
        If the file can't be written.
    ValueError
        If a number can't be; it is named.
    """
    out = Path(out)
    with whole(out) as part:
        content, made, records, note = _core.pack_requests(
            named(out.name.partition(".")[0]),
            ranks=whole_number("ranks", ranks, most=RANKS_MAX),
            each=whole_number("each", each, most=COUNT_MAX),
            seed=whole_number("seed", seed),
        )
        part.write_bytes(content)
    return Packed(out, made, records, note)
