"""The supervisor of a worker: it owns the listening socket and keeps the slot processes alive.

It holds no keys and speaks to nobody; each slot reads the credential itself. A slot is the leader of a process group of its own, and
adopts what its tasks detach, as the supervisor does when a slot is gone: so what a task has started ends with its slot, whatever
sessions and groups it makes. The kernel ends the slot when the supervisor dies.
"""

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from .. import _core
from ..options import sealed

__all__ = ["BAD_SETTING", "Supervisor"]

# What a slot exits with when no other start could end better: a credential or a policy that can't be used.
BAD_SETTING = 2
# Asked to end, a slot has this long before it is killed; both together stay below two seconds.
_END_SECONDS = 1.2
# A slot that fails sooner than this after its start waits before the next one, longer each time.
_HEALTHY_SECONDS = 2.0
_WAIT_SECONDS_MIN = 0.2
_WAIT_SECONDS_MAX = 5.0
# With `once`: how long the other slots of the same manager have to end by themselves.
_LAST_SECONDS = 1.0
# What detached processes have to end, when they start others faster than these are ended.
_ORPHANS_SECONDS = 0.5
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER


class Supervisor:
    """Keeps slot processes alive until it is told to end.

    Parameters
    ----------
    command : sequence of str
        Starts a slot; its descriptors and ``--slot`` with its number are appended.
    told : bytes
        What slots read from sealed memory.
    slots : int
        How many.
    once : bool
        Whether to end when the first manager is gone.
    listener : _core.Listener, optional
        The socket that slots inherit; it is closed at the end.
    """

    def __init__(
        self,
        command: Sequence[str],
        told: bytes,
        slots: int,
        *,
        once: bool = False,
        listener: _core.Listener | None = None,
    ) -> None:
        self._told = sealed(told)
        self._descriptors = [self._told]
        self._command = [*command, "--options-fd", str(self._told)]
        if listener is not None:
            self._descriptors.append(listener.fileno())
            self._command += ["--listen-fd", str(listener.fileno())]
        self._once = once
        self._listener = listener
        self._slots = [_Slot(number) for number in range(slots)]
        self._selector = selectors.DefaultSelector()
        self._ends_at: float | None = None
        self._ending = False
        self._failed = False
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._handlers: dict[int, Any] = {}
        # Children of this process that are none of the supervisor's.
        self._others: set[int] = set()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._on_signal)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        self._others = _children()
        self._prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end_all()
        self._prctl(_ADOPT_ORPHANS, 0, 0, 0, 0)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()
        os.close(self._told)
        if self._listener is not None:
            self._listener.close()

    def run(self) -> int:
        """Start the slots and keep them alive.

        Returns
        -------
        int
            The exit code: 0 when it was told to end, 1 when no slot can ever start.
        """
        while not self._ending:
            now = time.monotonic()
            if self._ends_at is not None and (
                now >= self._ends_at or not any(slot.process for slot in self._slots)
            ):
                break
            for slot in self._slots:
                if slot.process is None and slot.starts_at <= now and self._ends_at is None:
                    self._start(slot, now)
            for key, _ in self._selector.select(self._pause(now)):
                if key.data is not None:
                    self._on_exit(key.data)
        return 1 if self._failed else 0

    def _pause(self, now: float) -> float | None:
        times = [
            slot.starts_at for slot in self._slots if slot.process is None and self._ends_at is None
        ]
        if self._ends_at is not None:
            times.append(self._ends_at)
        return max(0.0, min(times) - now) if times else None

    def _start(self, slot: "_Slot", now: float) -> None:
        supervisor = os.getpid()

        def die_with_supervisor() -> None:
            # In the child, before it becomes Python again: nothing here may take a lock.
            self._prctl(_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
            self._prctl(_ADOPT_ORPHANS, 1, 0, 0, 0)
            if os.getppid() != supervisor:
                os._exit(1)

        slot.process = subprocess.Popen(
            [*self._command, "--slot", str(slot.number)],
            stdin=subprocess.DEVNULL,
            pass_fds=self._descriptors,
            start_new_session=True,
            # The supervisor has one thread, so that this is safe here.
            preexec_fn=die_with_supervisor,
        )
        slot.started = now
        slot.descriptor = os.pidfd_open(slot.process.pid)
        self._selector.register(slot.descriptor, selectors.EVENT_READ, slot)

    def _on_exit(self, slot: "_Slot") -> None:
        code = self._reap(slot)
        now = time.monotonic()
        if code == 0:
            slot.wait_seconds = 0.0
            if self._once and self._ends_at is None:
                self._ends_at = now + _LAST_SECONDS
        elif code == BAD_SETTING:
            # It has said why; no other start could end better.
            self._failed = self._ending = True
        elif now - slot.started < _HEALTHY_SECONDS:
            slot.wait_seconds = min(
                _WAIT_SECONDS_MAX, max(_WAIT_SECONDS_MIN, 2 * slot.wait_seconds)
            )
            if slot.wait_seconds == _WAIT_SECONDS_MIN:
                print(
                    f"worker: slot {slot.number} ended with code {code} at once, starting another",
                    file=sys.stderr,
                    flush=True,
                )
        else:
            slot.wait_seconds = 0.0
        slot.starts_at = now + slot.wait_seconds

    def _reap(self, slot: "_Slot") -> int:
        process = slot.process
        assert process is not None, "only a running slot is registered with the selector"
        self._selector.unregister(slot.descriptor)
        os.close(slot.descriptor)
        # Before it is reaped, while its group can't be another's: what a task left running ends here.
        _signal_group(process.pid, signal.SIGKILL)
        slot.process = None
        code = process.wait()
        self._end_orphans()
        return code

    def _end_orphans(self) -> None:
        """End what has come to the supervisor: the rest of slots that are gone. Running slots keep their own."""
        running = {slot.process.pid for slot in self._slots if slot.process is not None}
        deadline = time.monotonic() + _ORPHANS_SECONDS
        while orphans := _children() - running - self._others:
            for orphan in orphans:
                # Those with another user's rights stay, and would be found for ever.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(orphan, signal.SIGKILL)
            for orphan in orphans:
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(orphan, os.WNOHANG)
            if time.monotonic() > deadline:
                break
            # What is killed takes about so long to go.
            time.sleep(0.001)

    def _end_all(self) -> None:
        running = [slot for slot in self._slots if slot.process is not None]
        for slot in running:
            if slot.process is not None:
                _signal_group(slot.process.pid, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while any(slot.process is not None for slot in running):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for key, _ in self._selector.select(left):
                if key.data is not None:
                    self._reap(key.data)
                else:
                    self._drain_wake()
        for slot in running:
            if slot.process is not None:
                self._reap(slot)

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(64)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._ending = True
        # The loop may be about to wait; a full pipe wakes it as well.
        with contextlib.suppress(BlockingIOError):
            self._wake_writer.send(b"\0")


class _Slot:
    """One slot: its process, or when the next one starts."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.process: subprocess.Popen[bytes] | None = None
        self.descriptor = -1
        self.started = 0.0
        self.starts_at = 0.0
        self.wait_seconds = 0.0


def _children() -> set[int]:
    """Return the children of this process. It has one thread, whose children are all there are."""
    with open("/proc/thread-self/children", encoding="ascii") as file:
        return set(map(int, file.read().split()))


def _signal_group(leader: int, number: int) -> None:
    # Nobody may be left in it, or only what has another user's rights.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
