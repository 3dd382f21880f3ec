"""The summary of a run: what each worker did, and how its wire was protected."""

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
    """What one worker did, over which wire.

    Attributes
    ----------
    name : str
        Its name, as its certificate proves it.
    address : str
        Where it is, by address or by the path of its Unix socket; empty for a child process.
    domain : str
        The trust domain in which the policy places it; empty outside all of them.
    transport : str
        ``tcp``, ``unix``, ``socketpair``, ``shared memory`` or ``gateway``.
    protection : str
        How data were protected on its wire: ``plain``, ``integrity`` or ``encrypted``.
    state : str
        ``working``, ``left``, ``lost``, or ``unfit`` if it lacks modules that the program imports.
    slots : int
        How many of its slots work, or worked when the manager was closed.
    items : int
        How many items it has processed. A pipeline may count an item once for each stage.
    bytes_sent : int
        Bytes of all messages to it: items, functions with their modules, pieces of `Shared`, and what steers the run. What the
        network adds to a message (headers, TLS) isn't counted, and nor is what a child process shares with this one in memory.
    bytes_received : int
        Bytes of the results that came from it, pickled.
    busy_seconds : float
        The time that its slots spent in functions.
    items_twice : int
        How many of its items ran again elsewhere.
    stragglers : int
        How many of its items a second slot was given as well, since they ran for too long here; see the option ``stragglers``.
    process_ids : list of int
        The processes of its slots, by the numbers they have on its machine.
    set_aside : str
        Why it gets no more items, if it was set aside: it broke its sessions again and again.
    own_protection : str
        What this side's own policy and options ask for. Where `protection` is more, the worker's ask for that.
    """

    name: str
    address: str = ""
    domain: str = ""
    transport: str = ""
    protection: str = ""
    state: str = ""
    slots: int = 0
    items: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    busy_seconds: float = 0.0
    items_twice: int = 0
    stragglers: int = 0
    process_ids: list[int] = dataclasses.field(default_factory=list)
    set_aside: str = ""
    own_protection: str = ""


@dataclasses.dataclass(slots=True)
class KeySummary:
    """How many session keys a process holds and used; see ``docs/key-cache.md``.

    A session looks a key up once for each batch of records that it seals or opens. Numbers count from the start of the manager. Managers of
    one process that have the same ``ready_keys`` share their keys and these numbers.

    Attributes
    ----------
    memory : str
        The kind of memory that holds compact keys: ``secret`` (``memfd_secret``), ``locked`` or ``ordinary``.
    memory_foregone : list of str
        The better kinds of memory that the kernel refused, with its reason, a line for each.
    ready : int
        How many keys are expanded for use now.
    compact : int
        How many compact keys are held now.
    hits : int
        Lookups that found their key ready.
    misses : int
        Lookups that did not.
    evictions : int
        How many ready keys were removed to make room for others.
    expansions : int
        How many keys were made ready from a compact one.
    derivations : int
        How many keys were derived from the secret of their epoch.
    """

    memory: str = ""
    memory_foregone: list[str] = dataclasses.field(default_factory=list)
    ready: int = 0
    compact: int = 0
    hits: int = 0
    misses: int = 0
    evictions: int = 0
    expansions: int = 0
    derivations: int = 0


@dataclasses.dataclass(slots=True)
class Summary:
    """What the workers of a manager did. ``print`` shows a table.

    Attributes
    ----------
    workers : list of WorkerSummary
        A row for each worker: those that work, and those that have left or were lost.
    keys : KeySummary
        The keys of all sessions; not in the table.
    """

    workers: list[WorkerSummary] = dataclasses.field(default_factory=list)
    keys: KeySummary = dataclasses.field(default_factory=KeySummary)

    def __str__(self) -> str:
        """Return a table of at most 100 columns, whose wires are stricter than asked for, and who was set aside."""
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
        notes = [textwrap.fill(note, _WIDTH, subsequent_indent="  ") for note in self._notes()]
        return "\n".join([lines[0], rule, *lines[1:-1], rule, lines[-1], *notes])

    def _repr_html_(self) -> str:
        """Return the table for a notebook."""
        from .display import html_of, paragraph_of, table_of

        rows = [[cell(worker) for _, cell in _COLUMNS] for worker in [*self.workers, self._total()]]
        titles = [title for title, _ in _COLUMNS]
        table = table_of(titles, rows, first_number=_FIRST_NUMBER, has_total=True)
        return "".join([html_of(table), *map(paragraph_of, self._notes())])

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers, ready for JSON."""
        return {
            "workers": [dataclasses.asdict(worker) for worker in self.workers],
            "keys": dataclasses.asdict(self.keys),
        }

    def _notes(self) -> list[str]:
        """What stands below the table: who asked for stricter wires, who was set aside, and who was slow."""
        stricter = [
            f"stricter wire: worker {worker.name}: {worker.protection}, where this side asks for {worker.own_protection} only; "
            "the policy of the worker asks for more (without a policy file, everything between hosts is encrypted)"
            for worker in self.workers
            if worker.own_protection and worker.protection != worker.own_protection
        ]
        aside = [
            f"set aside: worker {worker.name}: {worker.set_aside}"
            for worker in self.workers
            if worker.set_aside
        ]
        slow = [
            f"stragglers: worker {worker.name}: {worker.stragglers} of its items ran for too long and were given to a second slot, too"
            for worker in self.workers
            if worker.stragglers
        ]
        return stricter + aside + slow

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
