"""A `multiprocessing.pool.Pool` on an executor, for scripts that have one already."""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from .executor import Executor, check_processes, slots_of
from .options import ManagerOptions, documented, refuse_unknown
from .pool_results import AsyncResult, MapResult, OrderedResults, UnorderedResults, submit

if TYPE_CHECKING:
    from multiprocessing.context import BaseContext

    from .summary import Summary

__all__ = ["AsyncResult", "Pool"]

_Result = TypeVar("_Result")


@documented(ManagerOptions)
class Pool:
    """A `multiprocessing.pool.Pool` whose calls run on slots of this machine or of workers.

    Parameters
    ----------
    processes : int, optional
        The number of slots. Without it, one for each core that this process may use.
    initializer : callable, optional
        Called once in each slot, before its first call.
    initargs : tuple
        Its arguments.
    maxtasksperchild : None
        Anything but None is an error: slots live as long as the pool.
    context : multiprocessing context, optional
        A context of ``"spawn"`` or ``"forkserver"`` changes nothing. One of ``"fork"`` is an error: slots are new processes, which
        inherit nothing.
    {options}

    Raises
    ------
    TypeError, ValueError
        For arguments that make no sense.
    ExoskelError, OSError
        What `Manager` raises.
    """

    def __init__(  # type: ignore[misc]  # two options have the places that they have in `multiprocessing`
        self,
        processes: int | None = None,
        initializer: Callable[..., object] | None = None,
        initargs: Iterable[Any] = (),
        maxtasksperchild: None = None,
        context: "BaseContext | None" = None,
        **options: Unpack[ManagerOptions],
    ) -> None:
        if type(processes) is int and processes < 1:
            raise ValueError(f"Number of processes must be at least 1: got {processes}")
        self._slots = slots_of(processes, "processes")
        check_processes(context, "context", maxtasksperchild, "maxtasksperchild")
        refuse_unknown(ManagerOptions, "Pool", options, ("processes", "context"))
        told: dict[str, Any] = dict(options)
        if initializer is not None:
            told.update(initializer=initializer, initargs=initargs)
        self._executor = Executor(self._slots, **told)
        self._is_running = True

    def __repr__(self) -> str:
        state = "RUN" if self._is_running else "CLOSE"
        return f"<exoskel.Pool state={state} pool_size={self._slots}>"

    def apply(
        self,
        func: Callable[..., _Result],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
    ) -> _Result:
        """Run ``func(*args, **kwds)`` on a slot and return its result."""
        return self.apply_async(func, args, kwds).get()

    def apply_async(
        self,
        func: Callable[..., _Result],
        args: Iterable[Any] = (),
        kwds: Mapping[str, Any] | None = None,
        callback: Callable[[_Result], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> "AsyncResult[_Result]":
        """Run ``func(*args, **kwds)`` on a slot, and return at once. Callbacks run in a thread of their own, or here if the call is done."""
        self._check_running()
        future = submit(self._executor, None, func, args, kwds or {})
        return AsyncResult(future, callback, error_callback)

    def map(
        self,
        func: Callable[[Any], _Result],
        iterable: Iterable[Any],
        chunksize: int | None = None,
    ) -> list[_Result]:
        """Return the results of a function for all items. If a call fails, its exception is raised after all calls are done."""
        return self._all(func, ((item,) for item in iterable), chunksize)

    def starmap(
        self,
        func: Callable[..., _Result],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
    ) -> list[_Result]:
        """Do what `map` does. Each item is a tuple with the arguments of the function."""
        return self._all(func, iterable, chunksize)

    def map_async(
        self,
        func: Callable[[Any], _Result],
        iterable: Iterable[Any],
        chunksize: int | None = None,
        callback: Callable[[list[_Result]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> "AsyncResult[list[_Result]]":
        """Do what `map` does, without waiting. All items are read at once."""
        calls = ((item,) for item in iterable)
        return self._all_async(func, calls, chunksize, callback, error_callback)

    def starmap_async(
        self,
        func: Callable[..., _Result],
        iterable: Iterable[Iterable[Any]],
        chunksize: int | None = None,
        callback: Callable[[list[_Result]], object] | None = None,
        error_callback: Callable[[BaseException], object] | None = None,
    ) -> "AsyncResult[list[_Result]]":
        """Do what `starmap` does, without waiting. All items are read at once."""
        return self._all_async(func, iterable, chunksize, callback, error_callback)

    def imap(
        self, func: Callable[[Any], _Result], iterable: Iterable[Any], chunksize: int = 1
    ) -> "OrderedResults[_Result]":
        """Iterate over the results for all items, in their order.

        The first items are read at once, the others while you iterate. If a call fails, its exception is raised in the place of
        its result, and you can go on iterating.
        """
        _check_chunks(chunksize)
        self._check_running()
        return OrderedResults(self._executor, func, ((item,) for item in iterable))

    def imap_unordered(
        self, func: Callable[[Any], _Result], iterable: Iterable[Any], chunksize: int = 1
    ) -> "UnorderedResults[_Result]":
        """Do what `imap` does, but return results as they arrive."""
        _check_chunks(chunksize)
        self._check_running()
        return UnorderedResults(self._executor, func, ((item,) for item in iterable))

    def close(self) -> None:
        """Accept no more calls. Calls that were made are still done."""
        self._is_running = False

    def terminate(self) -> None:
        """End all slots at once. Asking for a result that has not arrived raises `NoWorkerError`."""
        self._is_running = False
        self._executor.terminate_workers()

    def join(self) -> None:
        """Wait until all calls are done and the slots have ended, after `close` or `terminate`."""
        if self._is_running:
            raise ValueError("Pool is still running")
        self._executor.shutdown()

    def summary(self) -> "Summary":
        """Return what each worker has done so far; see `exoskel.Manager.summary`."""
        return self._executor.summary()

    def __enter__(self) -> Self:
        """Return the pool; the end of the block terminates it."""
        self._check_running()
        return self

    def __exit__(self, *exception: object) -> None:
        self.terminate()

    def __reduce__(self) -> Any:
        raise NotImplementedError("pool objects cannot be passed between processes or pickled")

    def _check_running(self) -> None:
        if not self._is_running:
            raise ValueError("Pool not running")

    def _all(
        self,
        func: Callable[..., _Result],
        calls: Iterable[Iterable[Any]],
        chunksize: int | None,
    ) -> list[_Result]:
        _check_chunks(chunksize)
        self._check_running()
        results: list[_Result] = []
        raised: BaseException | None = None
        stream: OrderedResults[_Result] = OrderedResults(self._executor, func, calls)
        while True:
            try:
                results.append(stream.next())
            except StopIteration:
                break
            except Exception as error:
                raised = raised or error
        if raised is not None:
            raise raised
        return results

    def _all_async(
        self,
        func: Callable[..., _Result],
        calls: Iterable[Iterable[Any]],
        chunksize: int | None,
        callback: Callable[[list[_Result]], object] | None,
        error_callback: Callable[[BaseException], object] | None,
    ) -> "AsyncResult[list[_Result]]":
        _check_chunks(chunksize)
        self._check_running()
        futures = [
            submit(self._executor, item, func, arguments, {})
            for item, arguments in enumerate(calls)
        ]
        return MapResult(futures, callback, error_callback)


def _check_chunks(chunksize: int | None) -> None:
    """Refuse what is no size; items travel together as they should, whatever it is."""
    if chunksize is not None and (type(chunksize) is not int or chunksize < 1):
        raise ValueError(f"Chunksize must be 1+, not {chunksize!r}")
