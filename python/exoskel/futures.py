"""The futures of an executor: what `submit` returns, and the streams of calls behind it."""

import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import CancelledError
from concurrent.futures import Future as BaseFuture
from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any, TypeVar

from .errors import ForkError, InitializerError
from .outcome import add_call_note, add_item_note
from .short_text import name_of

if TYPE_CHECKING:
    from . import _core
    from .executor import Engine

__all__ = ["CallStream", "Future", "drop"]

_Result = TypeVar("_Result")

# How long a wait lasts before it looks around.
PATIENCE_SECONDS = 0.1

# The states of `concurrent.futures` that calls pass here: a call at a slot is still pending, and `running` asks for it.
_PENDING = "PENDING"
_FINISHED = "FINISHED"
_CANCELLED = ("CANCELLED", "CANCELLED_AND_NOTIFIED")
_DONE = (*_CANCELLED, _FINISHED)

# What `concurrent.futures.Future` has for its waiters, and what most futures never need.
_FOR_WAITERS = ("_condition", "_waiters", "_done_callbacks")


class Future(BaseFuture[_Result]):
    """The future of a call.

    If you drop a future, its call still runs, and its result or exception is thrown away. A future with a callback lives until its
    call is done, and so does one that `concurrent.futures.wait` or `as_completed` looks at.
    """

    # In the class, so that a new future costs next to nothing.
    _state = _PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _stream: "CallStream | None" = None
    _index = -1
    # The place of the call's item in the input that somebody maps a function over.
    _item: int | None = None
    # The name of a function that travels with its arguments.
    _function_name = ""

    def __init__(self) -> None:
        """Make a future of no call; `Executor.submit` makes the others."""
        # Not that of the parent: its condition and lists are made when somebody asks for them.

    def __del__(self) -> None:
        stream = self._stream
        if stream is not None and self._state == _PENDING:
            stream.forget(self._index)

    def __reduce__(self) -> Any:
        raise TypeError("got a Future to send, which stays here: send its result()")

    def __getattr__(self, name: str) -> Any:
        if name not in _FOR_WAITERS:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        own = self.__dict__
        with self._stream.lock if self._stream is not None else _unsubmitted:
            if "_condition" not in own:
                own["_waiters"] = _Waiters(self)
                own["_done_callbacks"] = []
                # Last: it says that the others are there.
                own["_condition"] = threading.Condition()
        return own[name]

    def __repr__(self) -> str:
        """Say the state of the call, as `concurrent.futures.Future` does; that of one at a slot is ``running``."""
        with contextlib.suppress(ForkError):
            if self.running():
                return f"<{type(self).__name__} at {id(self):#x} state=running>"
        return super().__repr__()

    def result(self, timeout: float | None = None) -> _Result:
        """Return the result, or raise the call's exception, as `concurrent.futures.Future.result` does."""
        if self._state != _FINISHED:
            self._wait(timeout)
        if self._exception is None:
            result: _Result = self._result
            return result
        try:
            raise self._exception
        finally:
            # The traceback must not hold the future that holds it.
            self = None  # type: ignore[assignment]

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the call's exception or None, as `concurrent.futures.Future.exception` does."""
        if self._state != _FINISHED:
            self._wait(timeout)
        return self._exception

    def done(self) -> bool:
        """Return whether the call is done or was cancelled."""
        if self._state not in _DONE and self._stream is not None:
            self._stream.collect(0)
        return self._state in _DONE

    def cancelled(self) -> bool:
        """Return whether the call was cancelled."""
        return self._state in _CANCELLED

    def running(self) -> bool:
        """Return whether a slot has the call and it isn't done. Such a call can't be cancelled."""
        if self.done() or self._stream is None:
            return super().running()
        # Between the two questions its outcome may have come.
        return not self._stream.is_waiting(self._index) and not self.done()

    def cancel(self) -> bool:
        """Cancel the call if no slot has it yet, and return whether it was cancelled."""
        if self._state in _DONE or self._stream is None:
            return super().cancel()
        if not self._stream.cancel(self._index):
            return self.cancelled()
        self.set_cancelled()
        return True

    def set_cancelled(self) -> None:
        """Say that the call was taken back: nothing will come of it."""
        super().cancel()
        # Waiters and `as_completed` are told by this, as an executor has to.
        self.set_running_or_notify_cancel()

    def add_done_callback(self, fn: Callable[[BaseFuture[_Result]], object]) -> None:
        """Call a function when the call is done or was cancelled."""
        if self._stream is not None:
            self._stream.engine.core.check_process()
        super().add_done_callback(fn)
        self._watch()

    def _watch(self) -> None:
        if self._stream is not None and self._state not in _DONE:
            self._stream.watch(self, self._index)

    def _wait(self, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._state not in _DONE:
            left = PATIENCE_SECONDS if deadline is None else deadline - time.monotonic()
            # `done` looks for what has arrived.
            if left <= 0 and not self.done():
                raise FutureTimeoutError("the call has no outcome yet")
            if self._stream is not None:
                self._stream.collect(max(0.0, min(left, PATIENCE_SECONDS)))
                continue
            with self._condition:
                if self._state not in _DONE:
                    self._condition.wait(left)
        if self._state in _CANCELLED:
            raise CancelledError


# For futures of no call.
_unsubmitted = threading.RLock()


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


class CallStream:
    """The calls of one function.

    Parameters
    ----------
    engine : Engine
        Whose driver runs them.
    core : _core.SubmitStream
        The stream.
    digest : bytes
        That of the function's pickle.
    function_bytes : int
        What the function's pickle has.
    function_name : str
        How notes name the function; empty if it is the first argument of each call.
    """

    def __init__(
        self,
        engine: "Engine",
        core: "_core.SubmitStream",
        digest: bytes,
        function_bytes: int,
        function_name: str,
    ) -> None:
        self.engine = engine
        self.digest = digest
        self.function_bytes = function_bytes
        self._function_name = function_name
        # When its function was last submitted, among the calls of the engine.
        self.last_used = 0
        # Reentrant: the garbage collector may end a dropped executor from anywhere.
        self.lock = threading.RLock()
        self._core = core
        # Those that somebody holds; strongly those that have to be there when they are done.
        self._futures: dict[int, Future[Any] | weakref.ref[Future[Any]]] = {}
        # Outcomes on their way to their futures, and those of them that others have to be told of. Ctrl-C may come at any place: each
        # stays here until its future has it.
        self._arrived: deque[tuple[int, bool, Any]] = deque()
        self._watched: deque[tuple[Future[Any], bool, Any]] = deque()
        self._is_closed = False
        self._has_failed = False

    def submit(
        self, arguments: tuple[Any, ...], keywords: dict[str, Any], item: int | None
    ) -> Future[Any] | None:
        """Hand a call over, perhaps that of an item; none if the stream is closed."""
        future: Future[Any] = Future.__new__(Future)
        with self.lock:
            if self._is_closed:
                return None
            index = self._core.submit((arguments, keywords))
            future._index = index
            future._stream = self
            if item is not None:
                future._item = item
            if not self._function_name and arguments:
                future._function_name = name_of(arguments[0])
            self._futures[index] = weakref.ref(future)
        return future

    def forget(self, index: int) -> None:
        """Nobody holds the future of this call any more. Called by the garbage collector, at any place: it takes no lock."""
        if self._futures.pop(index, None) is not None:
            self._core.forget(index)

    def watch(self, future: Future[Any], index: int) -> None:
        """Somebody wants to be told of this future, which lives until it is done."""
        with self.lock:
            if index in self._futures:
                self._futures[index] = future
        self.engine.start_collector()

    def is_waiting(self, index: int) -> bool:
        """Whether no slot has the call, and it has no outcome."""
        return self._core.is_waiting(index)

    def cancel(self, index: int) -> bool:
        """Take a call back, if no slot has it."""
        if not self._core.cancel(index):
            return False
        with self.lock:
            self._futures.pop(index, None)
        return True

    def cancel_all(self) -> None:
        """Take back what no slot has."""
        cancelled = self._core.cancel_waiting()
        with self.lock:
            futures = [_alive(self._futures.pop(index, None)) for index in cancelled]
        for future in futures:
            if future is not None:
                future.set_cancelled()

    def drop(self, futures: "list[Future[Any]]") -> None:
        """Take back those calls that have not begun, as far as that is possible; nobody waits for the others either."""
        self.collect(0)
        with self.lock:
            left = [future for future in futures if future._index in self._futures]
            # Then slots forget as well what they have got and not begun.
            is_all = len(left) == self.pending
            if is_all:
                self._is_closed = self._has_failed = True
                for future in left:
                    del self._futures[future._index]
                self._core.close()
        if is_all:
            self.engine.forget(self)
        for future in left:
            if is_all:
                future.set_cancelled()
            else:
                future.cancel()

    def collect(self, timeout: float, to_the_end: bool = False) -> None:
        """Give every outcome that is there to its future; wait for the first one, or until there is nothing to wait for."""
        try:
            if not self._arrived and not self._watched:
                self._core.collect(timeout, to_the_end, self._arrived)
        except ForkError:
            raise
        except InitializerError as error:
            self._fail(self.engine.broken_by(error))
            return
        except Exception as error:
            # Nobody is left to work: that is the outcome of every task.
            self._fail(error)
            return
        if self._arrived or self._watched:
            self._hand_out()
            # Threads that wait for the same stream look whether one of these was theirs.
            self._core.wake()

    def _hand_out(self) -> None:
        """Give what has arrived to its futures."""
        with self.lock:
            while self._arrived:
                index, good, value = self._arrived[0]
                future = _alive(self._futures.get(index))
                if future is not None and future._state == _PENDING:
                    if not good:
                        add_call_note(value, future._function_name or self._function_name)
                        add_item_note(value, future._item)
                    # Whoever makes one has this lock, so nobody waits for this future unless it has one.
                    if "_condition" in future.__dict__:
                        self._watched.append((future, good, value))
                    else:
                        if good:
                            future._result = value
                        else:
                            future._exception = value
                        future._state = _FINISHED
                self._futures.pop(index, None)
                self._arrived.popleft()
        while self._watched:
            try:
                future, good, value = self._watched.popleft()
            except IndexError:
                return  # another thread was faster
            if future._state != _PENDING or not future.set_running_or_notify_cancel():
                continue
            if good:
                future.set_result(value)
            else:
                future.set_exception(value)

    def _fail(self, error: BaseException) -> None:
        self._hand_out()
        with self.lock:
            self._has_failed = True
            futures = [_alive(entry) for entry in self._futures.values()]
            self._futures = {}
        for future in futures:
            if future is not None and future.set_running_or_notify_cancel():
                future.set_exception(error)

    @property
    def pending(self) -> int:
        """How many calls have no outcome."""
        return 0 if self._has_failed else self._core.pending()

    @property
    def is_busy(self) -> bool:
        """Whether calls have no outcome, or futures wait for theirs."""
        return bool(self._futures or self._watched) or self.pending > 0

    def close(self) -> bool:
        """Forget the function, unless the stream is busy; say whether it is closed."""
        with self.lock:
            self._is_closed = self._is_closed or not self.is_busy
            if self._is_closed:
                self._core.close()
            return self._is_closed


def drop(futures: "Iterable[Future[Any]]") -> None:
    """Take back those calls that have not begun: whoever waited for all of them was interrupted.

    Parameters
    ----------
    futures : iterable of Future
        Those of the calls.
    """
    by_stream: dict[CallStream, list[Future[Any]]] = {}
    for future in futures:
        if future._stream is not None and future._state == _PENDING:
            by_stream.setdefault(future._stream, []).append(future)
    for stream, own in by_stream.items():
        stream.drop(own)


def _alive(entry: "Future[Any] | weakref.ref[Future[Any]] | None") -> Future[Any] | None:
    return entry() if type(entry) is weakref.ref else entry  # type: ignore[return-value]
