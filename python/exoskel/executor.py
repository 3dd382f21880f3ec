"""A `concurrent.futures.Executor` on a manager's engine, for scripts that have one already."""

import itertools
import operator
import sys
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from concurrent.futures import Executor as BaseExecutor
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack

from . import _core
from .contracts import ParDegree
from .cores import usable_cores
from .errors import ForkError, InitializerError, ProgramError
from .futures import PATIENCE_SECONDS, CallStream, Future, drop
from .manager import pickled, ready_text, shut_down, start, starting, summarize, wait_for_slots
from .options import ManagerOptions, checked, documented, of_items, refuse_unknown
from .outcome import add_item_note
from .short_text import describe_subject, name_of, short_text

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from .summary import Summary

__all__ = ["Executor", "Future"]

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")

# Functions that are kept though no call needs them, and the bytes of their pickles; what was used longest ago is forgotten first.
FUNCTIONS_MAX = 256
FUNCTION_BYTES_MAX = 64 << 20
# Functions of calls that have no outcome; the function of a further call travels with it.
STREAMS_MAX = 1024


class BrokenInitializerError(InitializerError, BrokenExecutor):
    """An `InitializerError` as calls raise it, for whoever expects a `concurrent.futures.BrokenExecutor`."""


class Engine:
    """The driver and the streams of an executor, which it doesn't know: an executor that is dropped can end."""

    def __init__(self, core: "_core.Manager", rules: dict[str, Any]) -> None:
        self.core = core
        self._rules = rules
        self.is_shut_down = False
        # Why nobody can run anything, once a call was told.
        self.broken: InitializerError | None = None
        self._lock = threading.RLock()
        self._ending = threading.RLock()
        # By the digests of the functions' pickles.
        self._streams: dict[bytes, CallStream] = {}
        # By identity, as callables need be neither hashable nor comparable. The references are weak: a bound method would keep its
        # object, and a closure all that it refers to.
        self._known: dict[int, tuple[weakref.ref[Any], CallStream]] = {}
        self._uses = itertools.count(1)
        self._collector: threading.Thread | None = None
        self._wanted = threading.Event()
        self._ended = False
        self._report: tuple[list[dict[str, Any]], dict[str, Any]] | None = None

    def broken_by(self, error: InitializerError) -> BrokenInitializerError:
        """Remember why nobody can run anything; return what all calls raise."""
        self.broken = error
        return BrokenInitializerError(str(error), attempts=error.attempts)

    def submit(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        item: int | None = None,
    ) -> Future[Any]:
        """Run a call, perhaps that of an item of somebody's input; never waits."""
        self.core.check_process()
        while True:
            if self.is_shut_down:
                raise RuntimeError(
                    "cannot schedule new futures: the executor is shut down; make a new one"
                )
            if self.broken is not None:
                raise self.broken_by(self.broken)
            known = self._known.get(id(function))
            if known is not None and known[0]() is function:
                stream = known[1]
            elif not callable(function):
                raise TypeError(
                    f"got {short_text(function)} to call, expected a function; its arguments stand behind it: submit(abs, -1)"
                )
            elif _travels_alone(function) and (found := self._stream_of(function)):
                stream = found
            else:
                return self._submit_whole(function, arguments, keywords, item)
            stream.last_used = next(self._uses)
            future = stream.submit(arguments, keywords, item)
            # None where its function has just been forgotten.
            if future is not None:
                return future
            self.forget(stream)

    def _submit_whole(
        self,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        item: int | None,
    ) -> Future[Any]:
        """Run a call whose function travels with its arguments."""
        try:
            return self.submit(operator.call, (function, *arguments), keywords, item)
        except Exception:
            # If it is the function that can't travel, this says so.
            pickled(function)
            raise

    def _stream_of(self, function: Callable[..., Any]) -> CallStream | None:
        """Return the stream of a function, a new one if need be; none if there are too many."""
        pickle = pickled(function)
        digest = _core.function_digest(pickle)
        with self._lock:
            stream = self._streams.get(digest)
            if stream is None:
                self._make_room(len(pickle))
                if len(self._streams) >= STREAMS_MAX and function is not operator.call:
                    return None
                core = self.core.open(pickle, self._rules)
                name = "" if function is operator.call else name_of(function)
                stream = CallStream(self, core, digest, len(pickle), name)
                self._streams[digest] = stream
            key, known = id(function), self._known
            known[key] = (weakref.ref(function, lambda _: known.pop(key, None)), stream)
            return stream

    def _make_room(self, function_bytes: int) -> None:
        """Forget functions that no call needs, as far as there are too many with one more of so many bytes."""
        streams = sorted(self._streams.values(), key=lambda stream: stream.last_used)
        count = len(streams) + 1
        held = sum(stream.function_bytes for stream in streams) + function_bytes
        for stream in streams:
            if count <= FUNCTIONS_MAX and held <= FUNCTION_BYTES_MAX:
                return
            if stream.close():
                count -= 1
                held -= stream.function_bytes
                self.forget(stream)

    def forget(self, closed: CallStream) -> None:
        """Know nothing of a closed stream any more: its function is sent again if somebody submits it."""
        with self._lock:
            if self._streams.get(closed.digest) is closed:
                del self._streams[closed.digest]
            for key in [key for key, (_, of) in self._known.copy().items() if of is closed]:
                self._known.pop(key, None)

    def busy(self) -> list[CallStream]:
        # In a forked child a lock may be closed for ever, by a thread of the parent.
        if self.core.is_inherited():
            return []
        with self._lock:
            return [stream for stream in self._streams.values() if stream.is_busy]

    def start_collector(self) -> None:
        """Start the thread that gives outcomes to futures nobody waits for by `result`."""
        self.core.check_process()
        with self._lock:
            if self._collector is None and not self._ended:
                collector = threading.Thread(target=self._collect, name="exoskel-collector")
                # Kept only once it runs: Ctrl-C may come while it starts, and only a thread that runs can be joined.
                collector.start()
                self._collector = collector
        self._wanted.set()

    def _collect(self) -> None:
        # The interpreter waits for this thread, which may not run Python when there is none; `drop` goes on with what is left.
        while not self._ended and threading.main_thread().is_alive():
            self._wanted.clear()
            if not self._collect_once():
                self._wanted.wait(PATIENCE_SECONDS)

    def _collect_once(self, to_the_end: bool = False) -> bool:
        streams = self.busy()
        for stream in streams:
            stream.collect(PATIENCE_SECONDS if len(streams) == 1 else 0.001, to_the_end)
        return bool(streams)

    def cancel_all(self) -> None:
        for stream in self.busy():
            stream.cancel_all()

    def state(self, wanted: int) -> str:
        if self.core.is_inherited():
            return "of another process, which has forked this one"
        if self._ended:
            return "shut down"
        calls = sum(stream.pending for stream in self.busy())
        ending = ", shut down when they are done" if self.is_shut_down else ""
        return f"{ready_text(self.core.report(), wanted)}, {calls} call{'s' if calls != 1 else ''} pending{ending}"

    def finish(self) -> None:
        """Wait until every task has an outcome, and end the driver."""
        try:
            while self._collect_once(to_the_end=True):
                pass
        finally:
            self.end()

    def end(self) -> None:
        """End the driver, whatever it does; in a forked child it isn't ours to end."""
        if self.core.is_inherited():
            return
        with self._ending:
            if not self._ended:
                # A second Ctrl-C may come at any line here. What is ended only later would wait for what runs.
                try:
                    self._report = self.core.report()
                finally:
                    try:
                        shut_down(self.core)
                    finally:
                        self._ended = True
                        self._wanted.set()
        collector = self._collector
        if collector is not None and collector is not threading.current_thread():
            collector.join()

    def report(self) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        return self._report or self.core.report()

    def drop(self) -> None:
        """The executor is gone, or the interpreter ends: what was submitted is still done, unless it was Ctrl-C."""
        self.is_shut_down = True
        if getattr(sys, "last_type", None) is KeyboardInterrupt:
            self.end()
        elif self.busy() and threading.main_thread().is_alive():
            threading.Thread(target=self.finish, name="exoskel-shutdown").start()
        else:
            self.finish()


@documented(ManagerOptions)
class Executor(BaseExecutor):
    """A `concurrent.futures.Executor` whose calls run on slots of this machine or of workers.

    Parameters
    ----------
    max_workers : int, optional
        The number of slots. Without it, one for each core that this process may use.
    mp_context : multiprocessing context, optional
        A context of ``"spawn"`` or ``"forkserver"`` changes nothing. One of ``"fork"`` is an error: slots are new processes, which
        inherit nothing.
    max_tasks_per_child : None
        Anything but None is an error: slots live as long as the executor.
    {options}

    Raises
    ------
    TypeError, ValueError
        For arguments that make no sense.
    ExoskelError, OSError
        What `Manager` raises.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        *,
        mp_context: "BaseContext | None" = None,
        max_tasks_per_child: None = None,
        **options: Unpack[ManagerOptions],
    ) -> None:
        check_processes(mp_context, "mp_context", max_tasks_per_child, "max_tasks_per_child")
        slots = slots_of(max_workers, "max_workers")
        refuse_unknown(ManagerOptions, "Executor", options, ("max_workers", "mp_context"))
        told = checked(ManagerOptions, "Executor", options)
        # As in the pools of `concurrent.futures`: Dask asks whatever pool it is given for it.
        self._max_workers = slots
        with starting():
            rules = of_items(told)
            core = start(ParDegree(slots), [], told)
        self._engine = Engine(core, rules)
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
        """Run ``fn(*args, **kwargs)`` on a slot, and return its future at once.

        Parameters
        ----------
        fn : callable
            The function. It is pickled when it is first submitted, and travels once to each slot. A bound method travels with each
            call, with its object as it is at that moment.
        *args, **kwargs
            Its arguments.

        Returns
        -------
        Future
            Its outcome. The call runs even if nobody keeps it.

        Raises
        ------
        ProgramError
            If the function can't be pickled. If an argument can't, `submit` raises what `pickle` raises.
        RuntimeError
            After `shutdown`.
        """
        return self._engine.submit(fn, args, kwargs)

    def map(
        self,
        fn: Callable[..., _Result],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
    ) -> Iterator[_Result]:
        """Like ``map(fn, *iterables)``, in parallel.

        Parameters
        ----------
        fn : callable
            The function, with an argument for each iterable.
        *iterables : iterable
            Its arguments. They are read at once, unless there is a `buffersize`.
        timeout : float, optional
            How many seconds from now on there may be until the last result.
        chunksize : int
            Ignored: small items travel together anyway.
        buffersize : int, optional
            How many calls there may be at most whose results the iterator has not returned. The iterables may be infinite then.

        Returns
        -------
        iterator
            The results, in the order of the iterables. The first exception of a call ends it; a note says which item that was.

        Raises
        ------
        TypeError, ValueError
            For sizes that make no sense.
        ProgramError
            If the function can't be pickled; what `pickle` raises, if an argument can't.
        RuntimeError
            After `shutdown`.
        """
        if chunksize < 1:
            raise ValueError(f"chunksize must be >= 1: got {chunksize}")
        if buffersize is not None and not isinstance(buffersize, int):
            raise TypeError(f"buffersize must be an integer or None: got {buffersize!r}")
        if buffersize is not None and buffersize < 1:
            raise ValueError(f"buffersize must be None or > 0: got {buffersize}")
        deadline = None if timeout is None else time.monotonic() + timeout
        calls = enumerate(zip(*iterables, strict=False))
        futures: deque[Future[_Result]] = deque()
        try:
            for item, arguments in itertools.islice(calls, buffersize):
                futures.append(submit_item(self, item, fn, arguments, {}))
        except KeyboardInterrupt:
            drop(futures)
            raise
        # Not the executor itself: one that its user drops ends, as far as it has read its input.
        executor = weakref.ref(self)

        def submit_next() -> None:
            running = executor() if buffersize is not None else None
            if running is not None:
                for item, arguments in itertools.islice(calls, 1):
                    futures.append(submit_item(running, item, fn, arguments, {}))

        return _results_of(futures, submit_next, deadline)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the executor when its calls are done; see `concurrent.futures.Executor.shutdown`."""
        engine = self._engine
        engine.is_shut_down = True
        if cancel_futures:
            engine.cancel_all()
        if not wait and engine.busy():
            threading.Thread(target=engine.finish, name="exoskel-shutdown").start()
        else:
            engine.finish()
        # From here on dropping it has nothing left to do.
        self._finalizer.detach()

    def terminate_workers(self) -> None:
        """End all slots at once. The futures of unfinished calls raise `NoWorkerError`."""
        self._engine.is_shut_down = True
        busy = self._engine.busy()
        self._engine.end()
        # Now, and not when somebody asks: what has no outcome by now never gets one.
        for stream in busy:
            while stream.is_busy:
                stream.collect(PATIENCE_SECONDS)
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

    def __reduce__(self) -> Any:
        raise TypeError(
            f"got an {type(self).__name__} to send, which stays here: make one where it is used"
        )

    def __repr__(self) -> str:
        """Say how many slots it has, how many calls wait for their outcome, and whether it is shut down."""
        return f"<exoskel.Executor: {self._engine.state(self._max_workers)}>"

    def _repr_html_(self) -> str:
        """Return the same and the summary for a notebook."""
        from .display import paragraph_of

        shown = paragraph_of(repr(self))
        if self._engine.core.is_inherited():
            return shown
        return f"{shown}{self.summary()._repr_html_()}"

    def summary(self) -> "Summary":
        """Return what each worker has done so far; see `exoskel.Manager.summary`."""
        return summarize(self._engine.report())


def submit_item(
    executor: Executor,
    item: int,
    function: Callable[..., _Result],
    arguments: tuple[Any, ...],
    keywords: dict[str, Any],
) -> Future[_Result]:
    """Submit the call of an item of an input; its exception gets a note that says which item it was.

    Parameters
    ----------
    executor : Executor
        Who runs it.
    item : int
        The index of the item, from 0.
    function : callable
        The function.
    arguments : tuple
        Its positional arguments.
    keywords : dict
        Its other arguments.

    Returns
    -------
    Future
        The outcome of the call.

    Raises
    ------
    ProgramError, RuntimeError
        As `Executor.submit` does, and what it raises for arguments, with a note.
    """
    try:
        return executor._engine.submit(function, arguments, keywords, item)
    except (ForkError, ProgramError, RuntimeError):
        # It isn't the fault of this item.
        raise
    except Exception as error:
        add_item_note(error, item, describe_subject("call", (arguments, keywords), function))
        raise


def _results_of(
    futures: deque[Future[_Result]], submit_next: Callable[[], None], deadline: float | None
) -> Iterator[_Result]:
    """Yield results, and submit a call for each; cancel what is left at the end."""
    try:
        while futures:
            submit_next()
            # Nothing here keeps what is yielded.
            yield _next_result(futures, deadline)
    except KeyboardInterrupt:
        drop(futures)
        raise
    finally:
        for future in futures:
            future.cancel()


def _next_result(futures: deque[Future[_Result]], deadline: float | None) -> _Result:
    try:
        return futures[0].result(None if deadline is None else deadline - time.monotonic())
    except KeyboardInterrupt:
        # All of them: whoever waits for this one waits for none of the others.
        drop(futures)
        raise
    finally:
        # The traceback of an exception must not hold the future that holds the exception.
        futures.popleft().cancel()


def _travels_alone(function: Callable[..., Any]) -> bool:
    """Whether a function is the same for many calls: a bound method is made anew each time, and its object changes."""
    if isinstance(function, types.MethodType):
        return False
    owner = getattr(function, "__self__", None)
    is_of_module = owner is None or isinstance(owner, types.ModuleType)
    return is_of_module and getattr(type(function), "__weakrefoffset__", 0) != 0


def slots_of(workers: int | None, name: str) -> int:
    """Return how many slots are meant.

    Parameters
    ----------
    workers : int or None
        What was given.
    name : str
        The parameter.

    Returns
    -------
    int
        That, or the number of cores that this process may use.

    Raises
    ------
    TypeError, ValueError
        If it is no number of slots.
    """
    if workers is None:
        return usable_cores()
    if isinstance(workers, bool) or not isinstance(workers, int):
        raise TypeError(f"got {name}={workers!r}, expected a whole number or None")
    if workers < 1:
        raise ValueError(f"{name} must be greater than 0: got {workers}, expected at least 1")
    return workers


def check_processes(
    context: "BaseContext | None", context_name: str, tasks: object, tasks_name: str
) -> None:
    """Refuse what slots can't be.

    Parameters
    ----------
    context : multiprocessing context or None
        How processes should start.
    context_name : str
        The parameter for that.
    tasks : object
        After how many tasks one should end.
    tasks_name : str
        The parameter for that.

    Raises
    ------
    TypeError, ValueError
        If it isn't as slots are.
    """
    if context is not None and not hasattr(context, "get_start_method"):
        raise TypeError(
            f'got {context_name}={context!r}, expected None or a context such as multiprocessing.get_context("spawn")'
        )
    if context is not None and context.get_start_method() == "fork":
        raise ValueError(
            f'got {context_name} of "fork", expected "spawn", "forkserver" or None: slots inherit nothing from this process'
        )
    if tasks is not None:
        raise ValueError(
            f"got {tasks_name}={tasks!r}, expected None: slots live as long as the executor"
        )
