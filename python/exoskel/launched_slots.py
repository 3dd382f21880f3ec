"""The slots of a manager that are processes of a job of its own: `Manager`'s ``launch``."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from . import _core, job_contents
from .agents_launcher import proven
from .errors import ExoskelError, LinkError, NoWorkerError
from .hosts import parse_address_alone
from .job_placement import host_of
from .job_processes import ended
from .job_state import Group, JobState
from .link_places import reached_by
from .options import PROOFS, of_children

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .job_processes import Record
    from .launchers import Launcher

__all__ = ["LaunchedSlots"]

_log = logging.getLogger("exoskel")
# Slots that ended without having served are told of, the last ones.
_FAILURES_MAX = 20
# Where the number of slots may change, it is looked at this often.
_LOOK_SECONDS = 0.1
# How many slots have tasks that use their siblings.
_NEEDS = "tasks that wait for each other need as many items as slots"
_ALL_WAIT = "the tasks of all slots wait for posts"
# The exit code of a slot that has written down why it ends.
_SAYS_WHY_CODE = 1


def launcher_of(options: Mapping[str, Any]) -> Launcher:
    """Return a manager's launcher, with what the manager proves itself by.

    Parameters
    ----------
    options : mapping
        Checked `ManagerOptions`.

    Raises
    ------
    TypeError
        If they say where slots are besides.
    ValueError
        If the launcher has no use for a credential.
    """
    launcher: Launcher = options["launch"]
    for name in ("workers", "listen"):
        if options[name] is not None:
            raise TypeError(
                f"got {name}= beside launch={launcher!r}, expected one of both: who launches slots knows where they are"
            )
    told = {name: options[name] for name in PROOFS if options[name] is not None}
    # A policy is for the manager's own sessions as well.
    if told and options["policy"] is not None:
        told["policy"] = options["policy"]
    return proven(launcher, told)


class LaunchedSlots:
    """A job whose processes are a manager's slots. Those that end are replaced, as long as the manager wants as many.

    There is a place for each slot that the manager may want, spread over the hosts; those that it doesn't want are vacant.

    Parameters
    ----------
    launcher : Launcher
        Brings them to hosts.
    slots : int
        How many at first.
    slots_max : int
        How many at most.
    timeout : float
        How many seconds the hosts' agents may take to be there.
    hosts_min : int
        With how many hosts they begin, if others can't be reached.

    Raises
    ------
    NoWorkerError
        If there can't be any.
    """

    def __init__(
        self, launcher: Launcher, slots: int, slots_max: int, timeout: float, hosts_min: int
    ) -> None:
        self._slots = slots
        self._slots_max = slots_max
        # The last processes of vacant places, by ranks.
        self._vacant: dict[int, Record | None] = {}
        self._launcher = launcher
        try:
            self._state = JobState(launcher, hosts_min, timeout)
        except (ExoskelError, TimeoutError) as error:
            attempts = [error] if isinstance(error, ExoskelError) else []
            raise NoWorkerError(f"no worker can be had: {error}", attempts=attempts) from error
        self._changed = threading.Condition()
        self._ended: deque[Record] = deque()
        # Which exceptions tasks have raised that use links, the last ones, and in which stream, by ranks.
        self._failed: dict[int, tuple[str, int | None]] = {}
        # Which processes have tasks that wait for posts.
        self._idle: set[int] = set()
        self._is_over = False
        # When others take the places of slots that have ended.
        self._replacements = _core.Replacements(slots_max)
        self._core: _core.Manager | None = None
        #: Why slots have ended that nobody had told to.
        self.failures: deque[ExoskelError] = deque(maxlen=_FAILURES_MAX)
        self._watcher = threading.Thread(
            target=self._watch, name="exoskel-launched-slots", daemon=True
        )

    @property
    def listen(self) -> str:
        """Where the manager is to listen."""
        return "0.0.0.0:0" if self._launcher.has_network else f"unix:{self._state.folder}/manager"

    @property
    def credential(self) -> _core.ProcessCredential:
        """The manager's credential: that of the job's creator."""
        return self._state.own_credential("manager")

    def start(self, core: _core.Manager, options: Mapping[str, Any]) -> None:
        """Start the slots.

        Parameters
        ----------
        core : _core.Manager
            The manager's driver, which listens.
        options : mapping
            Checked `ManagerOptions`.
        """
        self._core = core
        place = parse_address_alone(str(core.address), 0)
        written = str(place)
        for every, own in reached_by([place]).items():
            written = written.replace(every, own, 1)
        told = {
            "manager": written,
            "manager_name": self._state.creator_name,
            "hosts": self._state.hosts,
            "options": of_children(options),
        }
        sandbox = options["sandbox"]
        # A sandbox has its own.
        directory = os.getcwd() if sandbox is None else None
        group = Group(
            "slot",
            {
                "words": [],
                "directory": directory,
                "must_enter": False,
                "environment": {},
                "sandbox": None if sandbox is None else sandbox.told(),
                "manager": written,
            },
            {
                "contents": job_contents.of_slot(told),
                "threads": options["handler_threads"],
                "tells_absence": True,
            },
            ("peer", "worker"),
            self._on_end,
            on_failed=self._on_failed,
            why_absent=self._why_absent,
            why_idle=self._why_idle,
        )
        self._replacements = _core.Replacements(self._slots_max)
        # Neighbours are on one host: at equal distances, they are on as many hosts as there are.
        ranks = {number * self._slots_max // self._slots for number in range(self._slots)}
        for rank in set(range(self._slots_max)) - ranks:
            self._vacant[rank] = None
            self._replacements.vacate(rank)
        self._state.start(group, self._slots_max, ranks)
        self._watcher.start()

    @property
    def is_hopeless(self) -> bool:
        """Whether slots end again and again as soon as they are started, or have no host any more."""
        return self._replacements.is_hopeless

    def _why_absent(self, stream: int | None) -> str:
        """Say why a task waits in vain for a sibling that is not there; nothing if the sibling may still come."""
        row = self._row_without_items()
        if row is None or row["slots_busy"] >= row["slots_ready"]:
            return ""
        return self._why(row, stream)

    def _why_idle(self, record: Record, is_idle: bool, stream: int | None) -> str:
        """Take in whether a task waits for a post. Say why none comes; nothing if there is still who may post."""
        with self._changed:
            (self._idle.add if is_idle else self._idle.discard)(record.number)
            idle = len(self._idle)
        row = self._row_without_items() if is_idle else None
        if row is None or row["slots_busy"] > idle:
            return ""
        return self._why(row, stream)

    def _row_without_items(self) -> dict[str, Any] | None:
        """Return the manager's state, if no other tasks begin than those that run."""
        row = None if self._core is None else self._core.status()
        if row is None or row["slots_ready"] < row["slots_wanted"]:
            return None
        is_waiting = any(waiting for waiting, *_ in row["streams"])
        has_room = row["slots_busy"] < row["slots_ready"]
        return None if is_waiting and has_room else row

    def _why(self, row: dict[str, Any], stream: int | None) -> str:
        ready, busy = row["slots_ready"], row["slots_busy"]
        idle = f"{ready - busy} of {ready} slots have no task, and no item waits for one"
        failed = sorted(self._failed.copy().items())
        told = [
            f"the task of rank {rank} has ended with {what}"
            for rank, (what, its) in failed
            if its == stream
        ]
        if told:
            # Who has raised an exception is why, and not how many items there are.
            return f"{' and '.join(told)}; {idle}"
        return f"{idle}: {_NEEDS}" if busy < ready else _ALL_WAIT

    def _on_failed(self, record: Record, what: str, stream: int | None) -> None:
        self._failed[record.rank] = what, stream

    def close(self) -> None:
        """End the job."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        if self._watcher.ident is not None:
            self._watcher.join()
        self._state.close()

    def _on_end(self, record: Record) -> None:
        with self._changed:
            self._ended.append(record)
            self._idle.discard(record.number)
            self._changed.notify_all()

    def _watch(self) -> None:
        """Start a slot in the place of each one that ends, later if it has ended soon."""
        due: dict[int, Record] = {}
        while True:
            with self._changed:
                left = self._replacements.next_timeout()
                if self._slots_max > self._slots:
                    left = min(_LOOK_SECONDS, _LOOK_SECONDS if left is None else left)
                if not self._is_over and not self._ended and left != 0.0:
                    self._changed.wait(left)
                if self._is_over:
                    return
                while self._ended:
                    record = self._ended.popleft()
                    if record.rank in self._vacant:
                        self._vacant[record.rank] = record
                        continue
                    self._note(record)
                    if self._slots_max - len(self._vacant) > self._wanted:
                        self._vacant[record.rank] = record
                        self._replacements.vacate(record.rank)
                        continue
                    due[record.number] = record
                    self._replacements.ended(record.number, record.rank)
            while (number := self._replacements.next_due()) is not None:
                record = due.pop(number)
                # A host that goes at this moment is noticed by the end of what was to be started there.
                with contextlib.suppress(LinkError):
                    if not self._state.replace(record):
                        self._replacements.no_host(record.rank)
            self._fill_vacant()
            if self.is_hopeless:
                # Nobody comes any more: the manager's runs end.
                if self._core is not None:
                    self._core.expect_nobody()
                return

    @property
    def _wanted(self) -> int:
        """How many slots the manager wants."""
        return self._slots if self._core is None else min(self._core.wanted, self._slots_max)

    def _fill_vacant(self) -> None:
        """Start as many slots as the manager wants more, each on the host that has the fewest."""
        for _ in range(self._wanted - (self._slots_max - len(self._vacant))):
            known = {rank: record for rank, record in self._vacant.items() if record is not None}
            if not known:
                return
            used = [0] * max(1, self._state.hosts)
            for rank in set(range(self._slots_max)) - self._vacant.keys():
                used[host_of(rank, self._slots_max, len(used))] += 1
            rank = min(known, key=lambda rank: used[host_of(rank, self._slots_max, len(used))])
            del self._vacant[rank]
            self._replacements.occupy(rank)
            with contextlib.suppress(LinkError):
                if not self._state.replace(known[rank]):
                    self._replacements.no_host(rank)

    def _note(self, record: Record) -> None:
        """Keep why a slot has ended that nobody had told to."""
        if record.code != 0:
            failure = ended(record)
            self.failures.append(failure)
            if record.code not in (None, _SAYS_WHY_CODE):
                # The manager knows only that the connection has ended.
                _log.warning("%s; another slot takes its place", failure)
