"""The supervisor of a worker: it owns the listening socket and keeps the slot processes alive.

It holds no keys and speaks to nobody. A child of its own, the signer, is the only process of the worker that reads its credential; slots ask it
for signatures. Both are forked by a `Zygote`. A slot is the leader of a process group of its own, and
adopts what its tasks detach, as the supervisor does when a slot is gone: so what a task has started ends with its slot, whatever
sessions and groups it makes. The kernel ends the slot when the supervisor dies. Nothing that goes wrong here ends what runs: a slot that
can't be started is tried again, and a line that can't be written is counted.
"""

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import sys
import time
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from .. import _core, announcer, own_folders
from ..folder_remover import FolderRemover
from ..options import sealed
from ..worker_log import WorkerLog
from ..zygote import Zygote
from .slot_output import SlotOutput

__all__ = ["Supervisor"]

# What a slot exits with when the manager that it dialled has another name than was meant.
WRONG_MANAGER = 3
# Asked to end, a slot has this long before it is killed; both together stay below two seconds.
_END_SECONDS = 1.2
# A slot that fails sooner than this after its start waits before the next one, longer each time.
_HEALTHY_SECONDS = 2.0
_WAIT_SECONDS_MIN = 0.2
_WAIT_SECONDS_MAX = 5.0
# With `once`: how long the other slots of the same manager have to end by themselves.
_LAST_SECONDS = 1.0
# A slot that stands still for so long is replaced: its manager has given it up.
_STOPPED_SECONDS = 10.0
# What detached processes have to end, when they start others faster than these are ended.
_ORPHANS_SECONDS = 0.5
_ADOPT_ORPHANS = 36  # PR_SET_CHILD_SUBREAPER


class Supervisor:
    """Keeps slot processes alive until it is told to end.

    Parameters
    ----------
    command : sequence of str
        Starts a zygote, whose slots are given descriptors and ``--slot`` with their number.
    told : bytes
        What slots read from sealed memory.
    slots : int
        How many.
    once : bool
        Whether to end when the first manager is gone.
    drain : float
        How long, in seconds, what runs may take when the supervisor is told to end. A second signal ends everything at once.
    listener : _core.Listener, optional
        The socket that slots inherit; it is closed at the end.
    has_signer : bool
        Whether the slots need one: they do if they prove themselves by a credential in a file.
    folder : str, optional
        Where each slot that is confined makes a folder of its own, by its process number. What is there goes with the slot, and the folder at the end.
        With it, slots may be confined: what is printed there comes to the log.
    announced : sequence of str
        What the worker's announcer is told, if there is to be one.
    """

    def __init__(
        self,
        command: Sequence[str],
        told: bytes,
        slots: int,
        *,
        once: bool = False,
        drain: float = 0.0,
        listener: _core.Listener | None = None,
        has_signer: bool = False,
        folder: str | None = None,
        announced: Sequence[str] = (),
    ) -> None:
        self._told = sealed(told)
        self._descriptors = [self._told]
        self._command = [*command, "--options-fd", str(self._told)]
        if listener is not None:
            self._descriptors.append(listener.fileno())
            self._command += ["--listen-fd", str(listener.fileno())]
        self._requests: tuple[socket.socket, ...] = ()
        if has_signer:
            self._requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ends = [one.fileno() for one in self._requests]
            self._descriptors += ends
            self._command += ["--signer-fd", str(ends[0]), "--requests-fd", str(ends[1])]
        self._folder = folder
        self._once = once
        self._drain = drain
        self._log = WorkerLog()
        self._listener = listener
        self._slots = [_Slot(number) for number in range(slots)]
        self._signer = _Slot(None, "the signer")
        # What the announcer hears, slots read, and their managers are told.
        self._heard: tuple[int, ...] = ()
        if announced:
            self._heard = _heard_file()
            self._descriptors.append(self._heard[1])
            self._command += ["--heard-fd", str(self._heard[1])]
        self._announced = announced
        self._announcer = _Slot(None, "the announcer")
        # The signer first: nothing comes about without it.
        self._all = [
            *([self._signer] if has_signer else []),
            *self._slots,
            *([self._announcer] if announced else []),
        ]
        self._selector = selectors.DefaultSelector()
        self._remover = FolderRemover(self._selector)
        self._output: SlotOutput | None = None
        if folder is not None:
            self._output = SlotOutput(self._selector, self._log)
            number = self._output.theirs.fileno()
            self._descriptors.append(number)
            self._command += ["--output-fd", str(number)]
        self._ends_at: float | None = None
        self._ending = False
        # How often it was told to end.
        self._told_to_end = 0
        self._is_leaving = False
        self._failed = False
        self._zygote: Zygote | None = None
        self._prctl = ctypes.CDLL(None, use_errno=True).prctl
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._handlers: dict[int, Any] = {}
        self._woken_before = -1
        # Children of this process that are none of the supervisor's.
        self._others: set[int] = set()

    def __enter__(self) -> Self:
        # A signal may come when the loop is about to wait, and Python's handlers run only after that.
        self._woken_before = signal.set_wakeup_fd(
            self._wake_writer.fileno(), warn_on_full_buffer=False
        )
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._handlers[number] = signal.signal(number, self._on_signal)
        # A child that stops says so by this only. It wakes the loop, and that is all.
        self._handlers[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        self._selector.register(self._wake_reader, selectors.EVENT_READ, self._drain_wake)
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
        self._end_zygote()
        self._remover.close()
        self._prctl(_ADOPT_ORPHANS, 0, 0, 0, 0)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._woken_before)
        if self._output is not None:
            self._output.close()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()
        for number in (self._told, *self._heard):
            os.close(number)
        if self._listener is not None:
            self._listener.close()
        for one in self._requests:
            one.close()
        if self._folder is not None:
            own_folders.remove(self._folder)

    def run(self) -> int:
        """Start the slots and keep them alive.

        Returns
        -------
        int
            The exit code: 0 when it was told to end, 1 when the manager that its slots dial is another one than was meant.
        """
        while not self._ending:
            now = time.monotonic()
            if self._told_to_end > 1 or (self._told_to_end and not self._drain):
                break
            if self._told_to_end and not self._is_leaving:
                self._leave(now)
            if self._ends_at is not None and (
                now >= self._ends_at or not any(slot.process for slot in self._slots)
            ):
                break
            for slot in self._all:
                if slot.process is None and slot.starts_at <= now and self._ends_at is None:
                    self._start(slot, now)
                elif slot.process is not None:
                    self._end_if_stopped(slot, slot.process, now)
            for key, _ in self._selector.select(self._pause(now)):
                if isinstance(key.data, _Slot):
                    self._on_exit(key.data)
                else:
                    key.data()
        return 1 if self._failed else 0

    def _leave(self, now: float) -> None:
        """Have all slots finish what runs, and let nobody in any more."""
        self._is_leaving = True
        if self._listener is not None:
            self._listener.close()
        running = [
            slot.process
            for slot in self._all
            if slot is not self._signer and slot.process is not None
        ]
        self._log.write(
            f"worker: told to end; what runs has {self._drain:g} seconds, a second signal ends it at once"
        )
        for process in running:
            # Not its group: what a task has started goes on with it.
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGTERM)
        self._ends_at = now + self._drain + _END_SECONDS

    def _end_if_stopped(self, slot: "_Slot", process: int, now: float) -> None:
        """End a slot that has stood still for long: it keeps its manager's items from everybody else. One that is being debugged doesn't count."""
        if _state(process) != "T":
            slot.stopped_at = None
        elif slot.stopped_at is None:
            slot.stopped_at = now
        elif now - slot.stopped_at >= _STOPPED_SECONDS:
            self._log.write(
                f"worker: {slot.name} has been stopped for {_STOPPED_SECONDS:g} seconds, starting another"
            )
            _signal_group(process, signal.SIGKILL)

    def _pause(self, now: float) -> float | None:
        times = [
            slot.starts_at for slot in self._all if slot.process is None and self._ends_at is None
        ]
        if self._ends_at is not None:
            times.append(self._ends_at)
        times += [
            slot.stopped_at + _STOPPED_SECONDS
            for slot in self._all
            if slot.process is not None and slot.stopped_at is not None
        ]
        return max(0.0, min(times) - now) if times else None

    def _start(self, slot: "_Slot", now: float) -> None:
        words = slot.words()
        try:
            if slot is self._announcer:
                return self._watch(slot, self._start_announcer())
            if self._zygote is None:
                self._zygote = Zygote(self._command, self._descriptors)
            process = self._zygote.fork(words, lambda: self._told_to_end > 0)
        except OSError as error:
            if error.errno is None:
                self._end_zygote()
            if self._told_to_end:
                return None
            return self._wait(slot, now, f"can't be started ({error})")
        self._watch(slot, process)

    def _start_announcer(self) -> int:
        """Start the process that says that the worker is there. It has a thread, so nobody forks it, and of the worker's descriptors only that for whom it hears."""
        words = [
            sys.executable,
            "-P",
            "-m",
            "exoskel.announcer",
            str(os.getpid()),
            *self._announced,
        ]
        heard = (os.POSIX_SPAWN_DUP2, self._heard[0], announcer.HEARD_FD)
        return os.posix_spawn(sys.executable, words, os.environ, file_actions=[heard], setpgroup=0)

    def _watch(self, slot: "_Slot", process: int) -> None:
        try:
            slot.descriptor = os.pidfd_open(process)
        except OSError as error:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return self._wait(slot, time.monotonic(), f"can't be started ({error})")
        slot.process = process
        # Not `now`: the zygote may have had to be made first, which takes longer than a slot that ends at once.
        slot.started = time.monotonic()
        slot.starts += 1
        self._selector.register(slot.descriptor, selectors.EVENT_READ, slot)

    def _end_zygote(self) -> None:
        """End what forks slots, and a slot of which it has not told. The next start makes another."""
        if self._zygote is not None:
            self._zygote.close()
            self._zygote = None
            self._end_orphans()

    def _wait(self, slot: "_Slot", now: float, why: str) -> None:
        """Have the next start of a slot wait, longer each time."""
        slot.wait_seconds = min(_WAIT_SECONDS_MAX, max(_WAIT_SECONDS_MIN, 2 * slot.wait_seconds))
        if slot.wait_seconds == _WAIT_SECONDS_MIN:
            self._log.write(f"worker: {slot.name} {why}, starting another")
        slot.starts_at = now + slot.wait_seconds

    def _on_exit(self, slot: "_Slot") -> None:
        code = self._reap(slot)
        now = time.monotonic()
        if slot is self._announcer and self._is_leaving:
            # It was told to end, and has taken back what it said.
            return None
        if slot in (self._signer, self._announcer):
            # The sessions of slots end with the signer: nobody says any more whether their managers are good.
            return self._wait(slot, now, f"ended with code {code}")
        if code == WRONG_MANAGER and all(slot.starts == 1 for slot in self._slots):
            # It has said so. Nobody was served yet, so the name that was given is wrong, or the address.
            self._failed = self._ending = True
            return
        if code == 0:
            if self._once and self._ends_at is None:
                self._ends_at = now + _LAST_SECONDS
        elif now - slot.started < _HEALTHY_SECONDS:
            return self._wait(slot, now, f"ended with code {code} at once")
        slot.wait_seconds = 0.0
        slot.starts_at = now

    def _reap(self, slot: "_Slot") -> int:
        process = slot.process
        assert process is not None, "only a running slot is registered with the selector"
        self._selector.unregister(slot.descriptor)
        os.close(slot.descriptor)
        # Before it is reaped, while its group can't be another's: what a task left running ends here.
        _signal_group(process, signal.SIGKILL)
        slot.process = None
        slot.stopped_at = None
        _, status = os.waitpid(process, 0)
        self._end_orphans()
        if self._folder is not None:
            self._remover.remove(os.path.join(self._folder, str(process)))
        return os.waitstatus_to_exitcode(status)

    def _end_orphans(self) -> None:
        """End what has come to the supervisor: the rest of slots that are gone. Running slots keep their own."""
        running = {slot.process for slot in self._all if slot.process is not None}
        if self._zygote is not None:
            running.add(self._zygote.process)
        if self._remover.process is not None:
            running.add(self._remover.process)
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
        running = [slot for slot in self._all if slot.process is not None]
        for slot in running:
            if slot.process is not None:
                # To itself: leave at once. To all that its task has started: end.
                with contextlib.suppress(ProcessLookupError):
                    os.kill(slot.process, signal.SIGHUP)
                _signal_group(slot.process, signal.SIGTERM)
        deadline = time.monotonic() + _END_SECONDS
        while any(slot.process is not None for slot in running):
            left = deadline - time.monotonic()
            if left <= 0:
                break
            for key, _ in self._selector.select(left):
                if isinstance(key.data, _Slot):
                    self._reap(key.data)
                else:
                    key.data()
        for slot in running:
            if slot.process is not None:
                self._reap(slot)

    def _drain_wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(64)

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        self._told_to_end += 1


class _Slot:
    """One slot: its process, or when the next one starts. Without a number, the signer or the announcer."""

    def __init__(self, number: int | None, name: str = "") -> None:
        self.number = number
        self.name = name or f"slot {number}"
        self.process: int | None = None
        self.descriptor = -1
        # How many processes it has had.
        self.starts = 0
        self.started = 0.0
        # Since when it has stood still, if it does.
        self.stopped_at: float | None = None
        self.starts_at = 0.0
        self.wait_seconds = 0.0

    def words(self) -> list[str]:
        """Return what its next process is told."""
        if self.number is None:
            return ["--signer", "1"]
        return ["--slot", str(self.number), *(["--replacement", "1"] if self.starts else [])]


def _heard_file() -> tuple[int, int]:
    """Return a file without a name: a descriptor to write it, and one to read it, by which slots can't write what their sibling's managers are told."""
    writable = os.memfd_create("exoskel-heard", os.MFD_CLOEXEC)
    readable = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY | os.O_CLOEXEC)
    os.fchmod(writable, 0)
    return writable, readable


def _children() -> set[int]:
    """Return the children of this process. It has one thread, whose children are all there are."""
    try:
        with open("/proc/thread-self/children", encoding="ascii") as file:
            return set(map(int, file.read().split()))
    except OSError:
        # Without a descriptor for it: whoever asks next sees them.
        return set()


def _state(process: int) -> str:
    """Return the state of a process as the kernel writes it: T has been stopped, t is at a debugger."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(") ")[2][:1]
    except OSError:
        return ""


def _signal_group(leader: int, number: int) -> None:
    # Nobody may be left in it, or only what has another user's rights.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
