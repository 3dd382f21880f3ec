"""What a run was: one line per worker, with what went over its wire and how that was protected."""

import dataclasses
import operator
import textwrap
from collections.abc import Callable
from typing import Any

__all__ = ["KeySummary", "Summary", "WorkerSummary"]

# The usual terminal, with room for a shell's prompt; a table that breaks its lines can't be read.
_WIDTH = 100
_GAPS = ("  ",) * 5 + (" ",) * 4 + ("",)


@dataclasses.dataclass(slots=True)
class WorkerSummary:
    """What one worker did, and over what wire."""

    name: str
    """Its name, as its certificate proves it."""
    address: str = ""
    """Where it is, by address or by the path of its Unix socket; empty for a child process."""
    domain: str = ""
    """The trust domain in which the policy places it; empty outside all of them."""
    transport: str = ""
    """``tcp``, ``unix`` or ``socketpair``."""
    protection: str = ""
    """What its data link did: ``plain``, ``integrity`` or ``encrypted``."""
    state: str = ""
    """``working``, ``left``, ``lost``, or ``unfit`` when it lacks modules that the program imports."""
    slots: int = 0
    """How many of its slots were used."""
    items: int = 0
    """How many results of stages came from it."""
    bytes_sent: int = 0
    """Bytes of the items that were sent to it, pickled."""
    bytes_received: int = 0
    """Bytes of the results that came from it, pickled."""
    busy_seconds: float = 0.0
    """The time that its slots spent in functions."""
    items_twice: int = 0
    """How many items that it had were run again elsewhere."""
    process_ids: list[int] = dataclasses.field(default_factory=list)
    """The processes of its slots, by the numbers they have on its machine."""
    set_aside: str = ""
    """Why it gets no more items, if it was set aside: it broke its sessions again and again."""


@dataclasses.dataclass(slots=True)
class KeySummary:
    """What became of the keys of a process's sessions; see ``docs/key-cache.md``.

    A session looks a key up once for each batch of records that it seals or opens. What was done counts since the manager was made, for all managers of the
    process that share their ready keys: those with the same ``ready_keys``.
    """

    memory: str = ""
    """Where this manager's compact keys are: in ``secret`` memory (``memfd_secret``), ``locked`` or ``ordinary`` memory."""
    memory_foregone: list[str] = dataclasses.field(default_factory=list)
    """Why it is no better kind: one line for each that the kernel refused."""
    ready: int = 0
    """How many keys are expanded for use now, those that were made ready ahead included."""
    compact: int = 0
    """How many compact keys are held now."""
    hits: int = 0
    """Lookups that found their key ready."""
    misses: int = 0
    """Lookups that did not."""
    prefetch_hits: int = 0
    """Lookups that found it among those that were made ready ahead."""
    prefetches: int = 0
    """How many keys were made ready ahead, used since or not."""
    evictions: int = 0
    """How many ready keys had to make room for others."""
    expansions: int = 0
    """How many keys were made ready from a compact one, ahead or when they were looked up."""
    derivations: int = 0
    """How many keys were derived from the secret of their epoch."""


@dataclasses.dataclass(slots=True)
class Summary:
    """What a manager's workers did; printed, it is a table."""

    workers: list[WorkerSummary] = dataclasses.field(default_factory=list)
    keys: KeySummary = dataclasses.field(default_factory=KeySummary)
    """The keys of all sessions; not in the table."""

    def __str__(self) -> str:
        """Return a table of at most 100 columns, and who was set aside."""
        rows = [[cell(worker) for _, cell in _COLUMNS] for worker in self.workers]
        rows.append([cell(self._total()) for _, cell in _COLUMNS])
        titles = [title for title, _ in _COLUMNS]
        widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
        # Only names and addresses can be long; they give way in turn.
        for column in (0, 1):
            surplus = sum(widths) + sum(map(len, _GAPS)) - _WIDTH
            widths[column] -= max(0, min(surplus, widths[column] - 18))
        lines = [_line(row, widths) for row in (titles, *rows)]
        rule = "-" * max(map(len, lines))
        aside = [
            textwrap.fill(
                f"set aside: worker {worker.name}: {worker.set_aside}",
                _WIDTH,
                subsequent_indent="  ",
            )
            for worker in self.workers
            if worker.set_aside
        ]
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], *aside])

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers, ready for JSON."""
        return {
            "workers": [dataclasses.asdict(worker) for worker in self.workers],
            "keys": dataclasses.asdict(self.keys),
        }

    def _total(self) -> WorkerSummary:
        total = WorkerSummary(
            name=f"{len(self.workers)} worker{'s' if len(self.workers) != 1 else ''}"
        )
        for field in (
            "slots",
            "items",
            "bytes_sent",
            "bytes_received",
            "busy_seconds",
            "items_twice",
        ):
            setattr(total, field, sum(getattr(worker, field) for worker in self.workers))
        return total


def _wire(worker: WorkerSummary) -> str:
    if worker.transport == "unix":
        return f"unix:{worker.address}"
    if worker.transport and worker.address:
        return f"{worker.transport}://{worker.address}"
    return worker.transport or worker.address


def _size(count: int) -> str:
    """Return a number of bytes in at most six characters."""
    size = float(count)
    for unit in ("B", "K", "M", "G", "T"):
        if size < 1000 or unit == "T":
            break
        size /= 1024
    return (
        f"{count}B" if unit == "B" else f"{size:.1f}{unit}" if size < 100 else f"{size:.0f}{unit}"
    )


def _duration(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 1000 else f"{seconds / 60:.0f}min"


_COLUMNS: list[tuple[str, Callable[[WorkerSummary], str]]] = [
    ("worker", lambda worker: worker.name),
    ("transport", _wire),
    ("domain", lambda worker: worker.domain or ("-" if worker.protection else "")),
    ("protection", lambda worker: worker.protection),
    ("state", lambda worker: worker.state),
    ("items", lambda worker: str(worker.items)),
    ("twice", lambda worker: str(worker.items_twice)),
    ("sent", lambda worker: _size(worker.bytes_sent)),
    ("back", lambda worker: _size(worker.bytes_received)),
    ("busy", lambda worker: _duration(worker.busy_seconds)),
]
# Numbers stand right, so that their digits line up.
_FIRST_NUMBER = 5


def _line(cells: list[str], widths: list[int]) -> str:
    shown = [
        _fitted(cell, width).ljust(width) if column < _FIRST_NUMBER else cell.rjust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return "".join(map(operator.add, shown, _GAPS)).rstrip()


def _fitted(cell: str, width: int) -> str:
    return cell if len(cell) <= width else f"{cell[: width - 1]}…"
