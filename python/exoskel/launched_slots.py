"""The slots of a manager that are processes of a job of its own: `Manager`'s ``launch``."""

from __future__ import annotations

import contextlib
import heapq
import logging
import os
import pickle
import sys
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from .agents_launcher import proven
from .errors import ExoskelError, LinkError, NoWorkerError
from .hosts import parse_address_alone
from .job_processes import ended
from .job_state import Group, JobState
from .link_places import reached_by
from .options import PROOFS, of_children

if TYPE_CHECKING:
    from collections.abc import Mapping

    from . import _core
    from .job_processes import Record
    from .launchers import Launcher

__all__ = ["LaunchedSlots"]

_log = logging.getLogger("exoskel")
# A slot that ends sooner than this after its start waits before another one is started, longer each time.
_HEALTHY_SECONDS = 2.0
_WAIT_SECONDS_MIN = 0.2
_WAIT_SECONDS_MAX = 5.0
# Slots that ended without having served are told of, the last ones.
_FAILURES_MAX = 20
# How often each of them may do so at the start, before nobody waits any more.
_STARTS_MAX = 2


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
    """A job whose processes are a manager's slots. Those that end are replaced.

    Parameters
    ----------
    launcher : Launcher
        Brings them to hosts.
    slots : int
        How many.
    timeout : float
        How many seconds the hosts' agents may take to be there.

    Raises
    ------
    NoWorkerError
        If there can't be any.
    """

    def __init__(self, launcher: Launcher, slots: int, timeout: float) -> None:
        self._slots = slots
        self._launcher = launcher
        try:
            self._state = JobState(launcher, None, timeout)
        except (ExoskelError, TimeoutError) as error:
            attempts = [error] if isinstance(error, ExoskelError) else []
            raise NoWorkerError(f"no worker can be had: {error}", attempts=attempts) from error
        self._changed = threading.Condition()
        self._ended: deque[Record] = deque()
        self._begun: dict[int, float] = {}
        self._waits: dict[int, float] = {}
        self._is_over = False
        # How often slots of each rank have ended soon, one after the other.
        self._failed: dict[int, int] = {}
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
        contents = pickle.dumps((sys.prefix, sys.path, True, pickle.dumps(told)))
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
            {"contents": contents, "threads": 1},
            ("peer", "worker"),
            self._on_end,
        )
        now = time.monotonic()
        self._begun = dict.fromkeys(range(self._slots), now)
        self._state.start(group, self._slots)
        self._watcher.start()

    @property
    def is_hopeless(self) -> bool:
        """Whether slots end again and again as soon as they are started."""
        failed = self._failed.copy()
        return len(failed) == self._slots and min(failed.values()) >= _STARTS_MAX

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
            self._changed.notify_all()

    def _watch(self) -> None:
        """Start a slot in the place of each one that ends, later if it has ended soon."""
        due: list[tuple[float, int, Record]] = []
        while True:
            with self._changed:
                now = time.monotonic()
                left = max(0.0, due[0][0] - now) if due else None
                if not self._is_over and not self._ended and left != 0.0:
                    self._changed.wait(left)
                if self._is_over:
                    return
                while self._ended:
                    record = self._ended.popleft()
                    heapq.heappush(due, (self._due(record), record.number, record))
            if self.is_hopeless:
                # Nobody comes any more: the manager's runs end.
                if self._core is not None:
                    self._core.expect_nobody()
                return
            while due and due[0][0] <= time.monotonic():
                _, _, record = heapq.heappop(due)
                self._begun[record.rank] = time.monotonic()
                # A host that goes at this moment is noticed by the end of what was to be started there.
                with contextlib.suppress(LinkError):
                    self._state.replace(record)

    def _due(self, record: Record) -> float:
        """Return when a slot is to be replaced."""
        now = time.monotonic()
        if record.code != 0:
            failure = ended(record)
            self.failures.append(failure)
            if record.code is not None and record.code < 0:
                # The manager knows only that the connection has ended.
                _log.warning("%s; another slot takes its place", failure)
        if now - self._begun[record.rank] >= _HEALTHY_SECONDS:
            self._waits.pop(record.rank, None)
            self._failed.pop(record.rank, None)
            return now
        self._failed[record.rank] = self._failed.get(record.rank, 0) + 1
        wait = self._waits.get(record.rank, 0.0)
        self._waits[record.rank] = min(max(2 * wait, _WAIT_SECONDS_MIN), _WAIT_SECONDS_MAX)
        return now + self._waits[record.rank]
