"""What calls of a `Pool` return: results that are to come, one by one, together, or as an iterator."""

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import TimeoutError as FutureTimeoutError
from multiprocessing import TimeoutError as PoolTimeoutError
from typing import Any, Generic, Self, TypeVar

from .errors import ForkError, ProgramError
from .executor import Executor, submit_item
from .futures import Future, drop
from .short_text import short_text

__all__ = ["AsyncResult", "MapResult", "OrderedResults", "UnorderedResults", "submit"]

_Result = TypeVar("_Result")

# Calls of one `imap` or `map` that have begun or wait, at most: enough to keep any number of slots busy with short ones.
CALLS_AHEAD_MAX = 4096
_LATE = "there is no result yet"
# After so many seconds of reading input, finished calls are looked for.
READING_SECONDS = 0.0005


def submit(
    executor: Executor,
    item: int | None,
    function: Callable[..., _Result],
    arguments: Iterable[Any],
    keywords: Mapping[str, Any],
) -> Future[_Result]:
    """Hand a call over; what is wrong with its arguments is its outcome.

    Parameters
    ----------
    executor : Executor
        Who runs it.
    item : int or None
        The index of its item, if it is one of several.
    function : callable
        The function.
    arguments : iterable
        Its positional arguments.
    keywords : mapping
        Its other arguments.

    Returns
    -------
    Future
        The outcome of the call.

    Raises
    ------
    ForkError, ProgramError, RuntimeError
        As `Executor.submit` does.
    """
    try:
        if item is None:
            return executor.submit(function, *_several(arguments), **keywords)
        return submit_item(executor, item, function, _several(arguments), dict(keywords))
    except (ForkError, ProgramError, RuntimeError):
        raise
    except Exception as error:
        future: Future[_Result] = Future()
        future.set_exception(error)
        return future


def _several(arguments: Iterable[Any]) -> tuple[Any, ...]:
    try:
        iter(arguments)
    except TypeError:
        raise TypeError(
            f"got {short_text(arguments)} as the arguments of a call, expected a tuple of them, such as (1,)"
        ) from None
    return tuple(arguments)


class AsyncResult(Generic[_Result]):
    """The result of a call that is to come; see `multiprocessing.pool.AsyncResult`.

    Parameters
    ----------
    future : Future
        The call's.
    callback : callable, optional
        Called with the result before it is there for others.
    error_callback : callable, optional
        The same with the exception.
    """

    __slots__ = ("_future", "_told")

    def __init__(
        self,
        future: Future[_Result],
        callback: Callable[[_Result], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._future = future
        self._told: threading.Event | None = None
        if callback is not None or error_callback is not None:
            self._told = told = threading.Event()

            def tell(done: Any) -> None:
                with _set_at_end(told):
                    _tell(done.exception(), done.result, callback, error_callback)

            future.add_done_callback(tell)

    def get(self, timeout: float | None = None) -> _Result:
        """Return the result, or raise the call's exception.

        Parameters
        ----------
        timeout : float, optional
            How many seconds to wait.

        Returns
        -------
        object
            The result.

        Raises
        ------
        multiprocessing.TimeoutError
            If it doesn't come in time.
        """
        if self._told is None:
            return _result_of(self._future, timeout)
        self.wait(timeout)
        if not self.ready():
            raise PoolTimeoutError(_LATE)
        return self._future.result()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the result is there, or for ``timeout`` seconds."""
        _wait_for([self._future], self._told, timeout)

    def ready(self) -> bool:
        """Whether the call is done."""
        return self._future.done() and (self._told is None or self._told.is_set())

    def successful(self) -> bool:
        """Whether the call is done without an exception; `ValueError` if it is not done."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._future.exception() is None


class MapResult(AsyncResult[list[_Result]]):
    """The results of all items, to come together.

    Parameters
    ----------
    futures : list of Future
        Those of the calls, in the order of the items.
    callback : callable, optional
        Called with the results before they are there for others.
    error_callback : callable, optional
        The same with the first exception.
    """

    __slots__ = ("_futures",)

    def __init__(
        self,
        futures: list[Future[_Result]],
        callback: Callable[[list[_Result]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> None:
        self._futures = futures
        self._told = None
        if callback is not None or error_callback is not None:
            self._told = threading.Event()
            self._call_back(self._told, callback, error_callback)

    def _call_back(
        self,
        told: threading.Event,
        callback: Callable[[list[_Result]], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> None:
        lock = threading.Lock()
        # There may be none else. It is done, and not called here, so that what a callback raises is logged as ever.
        futures: list[Future[Any]] = [*self._futures, Future()]
        left = len(futures)

        def count(_done: object) -> None:
            nonlocal left
            with lock:
                left -= 1
                if left > 0:
                    return
            with _set_at_end(told):
                _tell(self._raised(), self._results, callback, error_callback)

        futures[-1].set_result(None)
        for future in futures:
            future.add_done_callback(count)

    def get(self, timeout: float | None = None) -> list[_Result]:
        """Return the results, or raise the first exception; see `AsyncResult.get`."""
        self.wait(timeout)
        if not self.ready():
            raise PoolTimeoutError(_LATE)
        return self._results()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until all results are there, or for ``timeout`` seconds."""
        _wait_for(self._futures, self._told, timeout)

    def ready(self) -> bool:
        """Whether all calls are done."""
        is_told = self._told is None or self._told.is_set()
        return is_told and all(future.done() for future in self._futures)

    def successful(self) -> bool:
        """Whether all calls are done without an exception; `ValueError` if they are not done."""
        if not self.ready():
            raise ValueError(f"{self!r} not ready")
        return self._raised() is None

    def _results(self) -> list[_Result]:
        return [future.result() for future in self._futures]

    def _raised(self) -> BaseException | None:
        return next((error for future in self._futures if (error := future.exception())), None)


class _Results(Iterator[_Result]):
    """What `imap` and `imap_unordered` have in common: calls of which some are ahead of whoever iterates."""

    def __init__(
        self, executor: Executor, function: Callable[..., _Result], calls: Iterable[Iterable[Any]]
    ) -> None:
        self._executor = executor
        self._function = function
        self._calls = enumerate(calls)
        self._is_read = False
        self._ahead = 0
        # What the input raised: it comes when the results before it have been handed out.
        self._trouble: BaseException | None = None
        try:
            self._read()
        except KeyboardInterrupt:
            self._stop()
            raise

    def __iter__(self) -> Self:
        """Return itself."""
        return self

    def __next__(self) -> _Result:
        return self.next()

    def next(self, timeout: float | None = None) -> _Result:
        """Return the next result, or raise its exception.

        Parameters
        ----------
        timeout : float, optional
            How many seconds to wait; whoever iterates may wait for the input besides.

        Returns
        -------
        object
            The result.

        Raises
        ------
        StopIteration
            If there is none left.
        multiprocessing.TimeoutError
            If it doesn't come in time.
        """
        try:
            self._read()
            if self._ahead == 0:
                trouble, self._trouble = self._trouble, None
                raise trouble or StopIteration
            future = self._next_done(timeout)
        except KeyboardInterrupt:
            self._stop()
            raise
        self._ahead -= 1
        return future.result()

    def _stop(self) -> None:
        """Have no more calls begin: somebody has pressed Ctrl-C. Whoever asks for their results all the same gets a `CancelledError`."""
        self._is_read = True
        drop(self._waiting())

    def _read(self) -> None:
        """Hand calls over while there is room for them, until the next result is there."""
        looked = time.monotonic()
        while not self._is_read and self._ahead < CALLS_AHEAD_MAX:
            try:
                item, arguments = next(self._calls)
                self._add(submit(self._executor, item, self._function, arguments, {}))
            except StopIteration:
                self._is_read = True
            except Exception as error:
                self._is_read, self._trouble = True, error
            else:
                self._ahead += 1
                if time.monotonic() - looked > READING_SECONDS:
                    if self._is_next_done():
                        return
                    looked = time.monotonic()

    def _add(self, future: Future[_Result]) -> None:
        raise NotImplementedError

    def _waiting(self) -> Iterable[Future[_Result]]:
        """The futures that have not been handed out."""
        raise NotImplementedError

    def _is_next_done(self) -> bool:
        raise NotImplementedError

    def _next_done(self, timeout: float | None) -> Future[_Result]:
        raise NotImplementedError


class OrderedResults(_Results[_Result]):
    """The results of `Pool.imap`."""

    def __init__(self, *arguments: Any) -> None:
        self._futures: deque[Future[_Result]] = deque()
        super().__init__(*arguments)

    def _add(self, future: Future[_Result]) -> None:
        self._futures.append(future)

    def _waiting(self) -> Iterable[Future[_Result]]:
        return self._futures

    def _is_next_done(self) -> bool:
        return self._futures[0].done()

    def _next_done(self, timeout: float | None) -> Future[_Result]:
        _wait_for([self._futures[0]], None, timeout)
        if not self._futures[0].done():
            raise PoolTimeoutError(_LATE)
        return self._futures.popleft()


class UnorderedResults(_Results[_Result]):
    """The results of `Pool.imap_unordered`."""

    def __init__(self, *arguments: Any) -> None:
        self._done: queue.SimpleQueue[Future[_Result]] = queue.SimpleQueue()
        self._futures: set[Future[_Result]] = set()
        super().__init__(*arguments)

    def _add(self, future: Future[_Result]) -> None:
        self._futures.add(future)
        future.add_done_callback(self._done.put)  # type: ignore[arg-type]  # it is called with this very future

    def _is_next_done(self) -> bool:
        return not self._done.empty()

    def _next_done(self, timeout: float | None) -> Future[_Result]:
        try:
            future = self._done.get(timeout=None if timeout is None else max(0.0, timeout))
        except queue.Empty:
            raise PoolTimeoutError(_LATE) from None
        self._futures.discard(future)
        return future

    def _waiting(self) -> Iterable[Future[_Result]]:
        return self._futures


def _result_of(future: Future[_Result], timeout: float | None) -> _Result:
    try:
        return future.result(timeout)
    except FutureTimeoutError:
        if not future.done():
            raise PoolTimeoutError(_LATE) from None
    # The call raised it as well, or has ended since.
    return future.result()


def _wait_for(
    futures: list[Future[Any]], told: threading.Event | None, timeout: float | None
) -> None:
    deadline = None if timeout is None else time.monotonic() + timeout
    with contextlib.suppress(FutureTimeoutError):
        for future in futures:
            future.exception(None if deadline is None else deadline - time.monotonic())
        if told is not None:
            told.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))


@contextlib.contextmanager
def _set_at_end(told: threading.Event) -> Iterator[None]:
    try:
        yield
    finally:
        told.set()


def _tell(
    raised: BaseException | None,
    result: Callable[[], _Result],
    callback: Callable[[_Result], object] | None,
    error_callback: Callable[[BaseException], object] | None,
) -> None:
    """Call back with the result, or with the exception."""
    if raised is None and callback is not None:
        callback(result())
    elif raised is not None and error_callback is not None:
        error_callback(raised)
