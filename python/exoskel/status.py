"""The state of a manager: its slots, streams and workers."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from . import _core

__all__ = ["Status", "StreamStatus", "WorkerStatus"]

_PATIENCE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """The progress of one open stream.

    Attributes
    ----------
    items_waiting : int
        Items that wait for a slot.
    items_running : int
        Items that slots have: those that run, and the next ones, which were sent in advance.
    items_done : int
        Items that have a result or an exception.
    """

    items_waiting: int
    items_running: int
    items_done: int


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The state of one worker.

    Attributes
    ----------
    name : str
        Its name, as its certificate proves it.
    address : str
        Its network address, or the path of the Unix socket; empty for a child of this process.
    state : str
        ``working``, ``lost``, ``left``, or ``unfit`` if it lacks what the program needs.
    slots : int
        Slots that work now.
    items : int
        Items that it has processed.
    seconds : float
        How many seconds it has been in its state.
    """

    name: str
    address: str
    state: str
    slots: int
    items: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a manager at one moment.

    Attributes
    ----------
    slots_ready : int
        Slots that can work.
    slots_wanted : int
        Slots that the contract asks for.
    slots_busy : int
        Slots that have items.
    streams : tuple of StreamStatus
        The open streams, the oldest first.
    workers : tuple of WorkerStatus
        All workers that serve this manager, or have served it.
    recruiting : tuple of str
        Which workers the manager waits for or tries to reach, a line for each.
    """

    slots_ready: int
    slots_wanted: int
    slots_busy: int
    streams: tuple[StreamStatus, ...]
    workers: tuple[WorkerStatus, ...]
    recruiting: tuple[str, ...]

    def __str__(self) -> str:
        """Return the slots, a line for each stream, a table of the workers, and what recruiting does."""
        lines = [
            f"slots: {self.slots_ready} of {self.slots_wanted} ready, {self.slots_busy} busy",
            *(
                f"stream {number}: items: {stream.items_waiting} waiting, {stream.items_running} at slots, {stream.items_done} done"
                for number, stream in enumerate(self.streams, 1)
            ),
        ]
        rows = [
            (
                worker.name,
                worker.address or "-",
                f"{worker.state} for {worker.seconds:.0f} s",
                str(worker.slots),
                str(worker.items),
            )
            for worker in self.workers
        ]
        if rows:
            table = [("worker", "address", "state", "slots", "items"), *rows]
            widths = [max(map(len, column)) for column in zip(*table, strict=True)]
            for name, address, state, slots, items in table:
                texts = f"{name:{widths[0]}}  {address:{widths[1]}}  {state:{widths[2]}}"
                lines.append(f"{texts}  {slots:>{widths[3]}}  {items:>{widths[4]}}")
        lines += [f"recruiting: {line}" for line in self.recruiting]
        return "\n".join(lines)


def status_of(core: "_core.Manager") -> Status:
    """Look how a manager stands.

    Parameters
    ----------
    core : _core.Manager
        The driver.

    Returns
    -------
    Status
        The state at one moment.

    Raises
    ------
    RuntimeError
        If the manager is closed.
    """
    row = core.status()
    if row is None:
        raise RuntimeError("the manager is closed; make a new one")
    return Status(
        slots_ready=row["slots_ready"],
        slots_wanted=row["slots_wanted"],
        slots_busy=row["slots_busy"],
        streams=tuple(StreamStatus(*stream) for stream in row["streams"]),
        workers=tuple(WorkerStatus(*worker) for worker in row["workers"]),
        recruiting=tuple(row["recruiting"]),
    )


def watch_capacity(core: "_core.Manager", on_capacity: Callable[[Status], object]) -> None:
    """Call a function whenever slots are lost or come, in a thread of its own that ends with the manager.

    Parameters
    ----------
    core : _core.Manager
        The driver.
    on_capacity : callable
        Called with a `Status`; an exception in it becomes a warning.
    """

    def watch() -> None:
        ready: int | None = 0
        # The interpreter waits for this thread: one that it left behind would come back from its wait when there is no Python any more.
        while ready is not None and threading.main_thread().is_alive():
            before, ready = ready, core.wait_capacity(ready, _PATIENCE_SECONDS)
            if ready is None or ready == before:
                continue
            try:
                on_capacity(status_of(core))
            except Exception:
                import logging

                # The manager may have been closed between the two.
                if core.wait_capacity(ready, 0) is not None:
                    logging.getLogger("exoskel").warning("on_capacity failed", exc_info=True)

    threading.Thread(target=watch, name="exoskel-capacity").start()
