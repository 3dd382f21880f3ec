"""A `concurrent.futures.Executor` on a manager's engine, for scripts that have one already."""

import itertools
import sys
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor as BaseExecutor
from concurrent.futures import Future as BaseFuture
from concurrent.futures import TimeoutError as FutureTimeoutError
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from . import _core
from .errors import ForkError
from .manager import pickled, start, summarize, wait_for_slots
from .options import ManagerOptions, checked, documented

if TYPE_CHECKING:
    from .summary import Summary

__all__ = ["Executor", "Future"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Functions whose programs the workers keep; the one that was used longest ago is forgotten first.
FUNCTIONS_MAX = 256
_PATIENCE_SECONDS = 0.1


class Future(BaseFuture[_Result]):
    """A future whose `result` waits for the worker's answer itself, so that no other thread has to be woken for it.

    Callbacks, `concurrent.futures.wait` and the like have a collector thread started.
    """

    _stream: "_Stream | None" = None
    _index: int = -1

    def __init__(self) -> None:
        super().__init__()
        self._waiters = _Waiters(self)  # a list that notices its first user

    def result(self, timeout: float | None = None) -> _Result:
        """Return the result, or raise the task's exception, as `concurrent.futures.Future.result` does."""
        self._wait(timeout)
        return super().result(0)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the task's exception or None, as `concurrent.futures.Future.exception` does."""
        self._wait(timeout)
        return super().exception(0)

    def done(self) -> bool:
        """Whether the task has an outcome or was cancelled."""
        if not super().done() and self._stream is not None:
            self._stream.collect(0)
        return super().done()

    def cancel(self) -> bool:
        """Cancel the task if no worker has it yet."""
        if super().done() or self._stream is None:
            return super().cancel()
        if not self._stream.cancel(self):
            return self.cancelled()
        cancelled = super().cancel()
        # Waiters and `as_completed` are told by this, as an executor has to.
        self.set_running_or_notify_cancel()
        return cancelled

    def add_done_callback(self, fn: Callable[[BaseFuture[_Result]], object]) -> None:
        """Call a function when the task has an outcome."""
        if self._stream is not None:
            self._stream.engine.core.check_process()
        super().add_done_callback(fn)
        self._watch()

    def _watch(self) -> None:
        if self._stream is not None and not super().done():
            self._stream.engine.start_collector()

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not super().done():
            stream = self._stream
            left = _PATIENCE_SECONDS if deadline is None else deadline - time.monotonic()
            if left <= 0:
                raise FutureTimeoutError
            if stream is None:
                return
            stream.collect(min(left, _PATIENCE_SECONDS))


class _Waiters(list[Any]):
    """The waiters of a future; the first has the collector started."""

    def __init__(self, future: Future[Any]) -> None:
        super().__init__()
        self._future = weakref.ref(future)

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        future = self._future()
        if future is not None:
            future._watch()


class _Stream:
    """The calls of one function."""

    def __init__(self, engine: "_Engine", core: "_core.SubmitStream") -> None:
        self.engine = engine
        self._core = core
        # Reentrant: the garbage collector may end a dropped executor from anywhere.
        self._lock = threading.RLock()
        self._futures: dict[int, Future[Any]] = {}

    def submit(self, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with self._lock:
            index = self._core.submit((arguments, keywords))
            future._stream = self
            self._futures[index] = future
            future._index = index
        return future

    def cancel(self, future: Future[Any]) -> bool:
        if not self._core.cancel(future._index):
            return False
        with self._lock:
            self._futures.pop(future._index, None)
        return True

    def collect(self, timeout: float) -> None:
        """Give every outcome that is there to its future; wait for the first one."""
        try:
            outcomes = self._core.collect(timeout)
        except ForkError:
            raise
        except Exception as error:
            # Nobody is left to work: that is the outcome of every task.
            self.fail(error)
            return
        if not outcomes:
            return
        for index, good, value in outcomes:
            with self._lock:
                future = self._futures.pop(index, None)
            if future is None or not future.set_running_or_notify_cancel():
                continue
            if good:
                future.set_result(value)
            else:
                future.set_exception(value)
        # Threads that wait for the same stream look whether one of these was theirs.
        self._core.wake()

    def fail(self, error: BaseException) -> None:
        with self._lock:
            futures, self._futures = self._futures, {}
        for future in futures.values():
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def cancel_all(self) -> None:
        with self._lock:
            futures = list(self._futures.values())
        for future in futures:
            future.cancel()

    @property
    def pending(self) -> int:
        with self._lock:
            return len(self._futures)

    def close(self) -> None:
        self._core.close()


class _Engine:
    """The driver and the streams of an executor, which it doesn't know: an executor that is dropped can end."""

    def __init__(self, core: "_core.Manager") -> None:
        self.core = core
        self.is_shut_down = False
        self._lock = threading.RLock()
        self._ending = threading.RLock()
        self._streams: OrderedDict[int, tuple[Any, _Stream]] = OrderedDict()
        self._collector: threading.Thread | None = None
        self._wanted = threading.Event()
        self._ended = False

    def stream_of(self, function: Callable[..., Any]) -> _Stream:
        self.core.check_process()
        with self._lock:
            if self.is_shut_down:
                raise RuntimeError("the executor is shut down; make a new one")
            # By identity: callables need be neither hashable nor comparable; the entry keeps the function alive.
            key = id(function)
            known = self._streams.get(key)
            if known is not None:
                self._streams.move_to_end(key)
                return known[1]
            stream = _Stream(self, self.core.open(pickled(function)))
            self._streams[key] = (function, stream)
            if len(self._streams) > FUNCTIONS_MAX:
                self._forget_one()
            return stream

    def _forget_one(self) -> None:
        for key, (_, stream) in itertools.islice(self._streams.items(), FUNCTIONS_MAX):
            if not stream.pending:
                stream.close()
                del self._streams[key]
                break

    def pending(self) -> list[_Stream]:
        # In a forked child a lock may be closed for ever, by a thread of the parent.
        if self.core.is_inherited():
            return []
        with self._lock:
            return [stream for _, stream in self._streams.values() if stream.pending]

    def start_collector(self) -> None:
        """Start the thread that gives outcomes to futures nobody waits for by `result`."""
        self.core.check_process()
        with self._lock:
            if self._collector is None and not self._ended:
                collector = threading.Thread(
                    target=self._collect, name="exoskel-collector", daemon=True
                )
                # Kept only once it runs: Ctrl-C may come while it starts, and only a thread that runs can be joined.
                collector.start()
                self._collector = collector
        self._wanted.set()

    def _collect(self) -> None:
        while not self._ended:
            self._wanted.clear()
            if not self._collect_once():
                self._wanted.wait(_PATIENCE_SECONDS)

    def _collect_once(self) -> bool:
        streams = self.pending()
        for stream in streams:
            stream.collect(_PATIENCE_SECONDS if len(streams) == 1 else 0.001)
        return bool(streams)

    def cancel_all(self) -> None:
        for stream in self.pending():
            stream.cancel_all()

    def finish(self) -> None:
        """Wait until every task has an outcome, and end the driver."""
        try:
            while self._collect_once():
                pass
        finally:
            self.end()

    def end(self) -> None:
        """End the driver, whatever it does; in a forked child it isn't ours to end."""
        if self.core.is_inherited():
            return
        with self._ending:
            if not self._ended:
                self.core.shutdown()
                self._ended = True
        self._wanted.set()
        collector = self._collector
        if collector is not None and collector is not threading.current_thread():
            collector.join()

    def drop(self) -> None:
        """The executor is gone, or the interpreter ends: what was submitted is still done, unless it was Ctrl-C."""
        self.is_shut_down = True
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            self.end()
        elif self.pending() and threading.main_thread().is_alive():
            threading.Thread(target=self.finish, name="exoskel-shutdown").start()
        else:
            self.finish()


@documented(ManagerOptions)
class Executor(BaseExecutor):
    """Runs calls on slots; see `concurrent.futures.Executor`.

    Parameters
    ----------
    slots : int
        How many.
    {options}
    """

    def __init__(self, slots: int, **options: Unpack[ManagerOptions]) -> None:
        if isinstance(slots, bool) or not isinstance(slots, int) or slots < 1:
            raise ValueError(f"got {slots!r} slots, expected a whole number of at least 1")
        told = checked(ManagerOptions, "Executor", options)
        core = start(slots, [], told)
        self._engine = _Engine(core)
        self._finalizer = weakref.finalize(self, self._engine.drop)
        try:
            wait_for_slots(core, told)
        except BaseException:
            self._finalizer.detach()
            self._engine.end()
            raise

    def submit(
        self,
        fn: Callable[_Parameters, _Result],
        /,
        *args: _Parameters.args,
        **kwargs: _Parameters.kwargs,
    ) -> Future[_Result]:
        """Run ``fn(*args, **kwargs)`` on a slot; never waits.

        Parameters
        ----------
        fn : callable
            The function; it travels once.
        *args, **kwargs
            Its arguments.

        Returns
        -------
        Future
            Its outcome.

        Raises
        ------
        ProgramError
            If the function can't be pickled.
        RuntimeError
            After `shutdown`.
        """
        return self._engine.stream_of(fn).submit(args, kwargs)

    def map(
        self,
        fn: Callable[..., _Result],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        **_options: Any,
    ) -> Iterator[_Result]:
        """Like ``map(fn, *iterables)``, in parallel; items travel together as they should, whatever ``chunksize`` says."""
        del chunksize
        return super().map(fn, *iterables, timeout=timeout)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the executor once its tasks are done; see `concurrent.futures.Executor.shutdown`."""
        engine = self._engine
        engine.is_shut_down = True
        if cancel_futures:
            engine.cancel_all()
        if not wait and engine.pending():
            threading.Thread(target=engine.finish, name="exoskel-shutdown").start()
        else:
            engine.finish()
        # From here on dropping it has nothing left to do.
        self._finalizer.detach()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if kind is not None and not issubclass(kind, Exception):
            # Whoever presses Ctrl-C doesn't want to wait for tasks.
            self._engine.is_shut_down = True
            self._engine.end()
        else:
            self.shutdown()

    def summary(self) -> "Summary":
        """What each worker did so far; see `exoskel.Manager.summary`."""
        return summarize(self._engine.core.report())
