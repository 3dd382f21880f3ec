"""A manager recruits slots, runs a program on them, and hands out results."""

import contextlib
import functools
import importlib
import os
import pickle
import sys
import weakref
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from . import _core, inner_threads
from .contracts import SLOTS_MAX, Contract, counts_items, terms
from .cores import usable_cores
from .errors import InitializerError, JournalError, NoWorkerError, ProgramError
from .function_state import is_same, state_of
from .options import (
    PROOFS,
    ManagerOptions,
    checked,
    documented,
    of_children,
    of_items,
    some_checked,
    without_discover,
)
from .plans import plan_of
from .skeletons import Skeleton, Structure, flatten, skeleton_of

if TYPE_CHECKING:
    from .history import History
    from .launched_slots import LaunchedSlots
    from .runs import Closable, RunSummary
    from .sinks import Sink
    from .sources import Source
    from .status import Status
    from .summary import Summary

__all__ = ["Manager"]


class Start:
    """The start of a driver, before there is one."""


# The drivers that run in this process, and those that are about to. One that is gone doesn't run, whatever became of its end.
running: "weakref.WeakSet[_core.Manager | Start]" = weakref.WeakSet()
# So many reasons are told why there is no worker.
REASONS_MAX = 20
# Whether children are forked by a zygote. Tests and measurements may have them start by themselves, as where that can't be.
forks = True
# How the one outcome of a reduction is wanted.
_PLAINLY = {"as_completed": False, "indices": False, "return_errors": False}
# How outcomes are wanted that are folded here.
_IN_ORDER = {"as_completed": False, "indices": True, "return_errors": False}
# Those whose slots are processes of a job.
_launched: "dict[_core.Manager, LaunchedSlots]" = {}


@documented(ManagerOptions)
class Manager:
    """Runs a program over items, on slots of this machine or of workers.

    Without ``workers`` and ``listen``, the slots are child processes of this one, and nothing needs to be configured.

    Parameters
    ----------
    program : Skeleton or callable
        What happens to each item. A function alone means ``Farm(function)``: it runs on every free slot.
    contract : Contract
        How many slots to use: `ParDegree`, `Throughput`, `Deadline` and `Cost`, joined with ``&``.
    {options}

    Raises
    ------
    TypeError, ValueError
        For arguments that make no sense.
    PolicyError, CredentialError
        For files that can't be used.
    KeyMemoryError
        If the kernel gives no memory as ``key_memory`` asks for.
    OSError
        If ``trace`` can't be written.
    LinkError
        If nothing can listen at ``listen``.
    NoWorkerError
        If no slot is ready within ``wait`` seconds, or earlier if waiting can't help. Its ``attempts`` hold an error for each worker
        that was tried.
    """

    def __init__(
        self,
        program: Skeleton[Any, Any] | Callable[[Any], Any],
        contract: Contract,
        **options: Unpack[ManagerOptions],
    ) -> None:
        if not isinstance(contract, Contract):
            raise TypeError(
                f"got {contract!r} as contract, expected a ParDegree such as ParDegree(4)"
            )
        skeleton = skeleton_of(program)
        self._shown = repr(skeleton)
        # Functions are kept as they are: what they refer to may be shared, and lives as long as somebody has it.
        self._plan = plan_of(skeleton)
        self._functions = self._plan.functions
        told = checked(ManagerOptions, "Manager", options)
        self._states = [state_of(function) for function in self._functions]
        with starting():
            # Now, so that what can't travel is said before anything starts.
            self._pickles = [pickled(function) for function in self._functions]
            self._rules = of_items(told)
            classes = self._rules["retries_on"]
            travelling = [*self._pickles, *([] if classes is None else [classes])]
            self._core = start(contract, travelling, told)
        self._counts_items = counts_items(contract)
        self._options = told
        self._closed = False
        self._summary: Summary | None = None
        self._history: History | None = None
        self._finalizer = weakref.finalize(self, shut_down, self._core)
        try:
            wait_for_slots(self._core, told)
        except BaseException:
            self.close()
            raise

    def map(
        self,
        items: "Source | Iterable[Any] | AsyncIterable[Any]",
        *,
        as_completed: bool = False,
        indices: bool = False,
        progress: bool | None = None,
        errors: Literal["raise", "return"] = "raise",
        timeout: float | None = None,
        retries_on: type[Exception] | tuple[type[Exception], ...] | None = None,
    ) -> Iterator[Any]:
        """Run the program over items and iterate over the results.

        The iterable is read as slots need items, so it may be infinite. Functions of the script travel as they are when `map` is
        called, with the globals that they use.

        Parameters
        ----------
        items : iterable, asynchronous iterable or Source
            The items, or a source such as ``Files``. An asynchronous iterable is read in a thread, by an event loop of its own. Each is pickled by itself. Where the program reduces, a range, a sequence or an array is cut into slices
            instead.
        as_completed : bool
            Return results as they arrive, instead of in the order of the items.
        indices : bool
            Return pairs: the index of an item, from 0, and its result.
        progress : bool, optional
            Show a progress bar on standard error. If not given, it is shown on a terminal, once the stream has run for a second.
        errors : {"raise", "return"}
            ``"raise"``: the exception of a function is raised here and ends the stream. ``"return"``: it is returned in the place
            of the result, and the stream goes on. A note of the exception names the item.
        timeout : float, optional
            How many seconds an item may run; the manager's ``timeout`` if not given.
        retries_on : class of exceptions or tuple of them, optional
            The exceptions after which an item runs again; the manager's ``retries_on`` if not given.

        Returns
        -------
        iterator
            The results. Its ``close()`` ends the stream early. A program that reduces has one result.

        Raises
        ------
        TypeError, ValueError
            For arguments that make no sense.
        ExoskelError
            `WorkerLostError`, `ItemTimeoutError`, `NoWorkerError`, `ResultRejectedError` and the like, while iterating.
        Exception
            What a function raises, or what pickling an item raises. What the iterable raises comes after the results of all items
            before it.
        """
        if errors not in ("raise", "return"):
            raise ValueError(f'got errors={errors!r}, expected "raise" or "return"')
        outcomes = {
            "as_completed": as_completed,
            "indices": indices,
            "return_errors": errors == "return",
        }
        own = {"timeout": timeout, "retries_on": retries_on}
        given: Iterable[Any] = _iterable_of(items)
        reduces = self._plan.reduction is not None
        stream = self._stream(given, outcomes, own, progress=progress if reduces else False)
        if progress is False or reduces:
            return stream
        from .progress import StreamBar, is_terminal, track

        total = None if self._plan.gives_many else _length(given)
        if progress:
            return track(stream, total)
        # What the engine counts by itself costs the items nothing.
        show = getattr(stream, "show", None)
        if show is not None and is_terminal():
            show(StreamBar(total))
        return stream

    def run(
        self,
        source: "Source | Iterable[Any] | AsyncIterable[Any]",
        sink: "Sink",
        *,
        journal: str | os.PathLike[str] | None = None,
        errors: Literal["raise", "skip"] = "raise",
        progress: bool | None = None,
        timeout: float | None = None,
        retries_on: type[Exception] | tuple[type[Exception], ...] | None = None,
    ) -> "RunSummary":
        """Run the program over the items of a source, and put the results into a sink, in the order of the items.

        With a journal, a run that was ended in any way, by ``kill -9`` too, goes on where it was when it is called again. Each
        result is in the sink exactly once; functions may run more than once. A program that reduces goes on with what has been folded.

        Parameters
        ----------
        source : Source, iterable or asynchronous iterable
            Where the items come from, such as `JsonLines`, `Lines`, `Records` or `Files`. With a journal it must give the same
            items again.
        sink : Sink
            Where the results go, such as one of these.
        journal : path, optional
            A file that says how far the run has come. It is made if it isn't there, for its owner alone, and stays at the end.
        errors : {"raise", "skip"}
            ``"raise"``: the exception of a function ends the run and is raised here, with a note that names the item. With a journal,
            what is done stays done, and the next run begins with that item. ``"skip"``: the item has no result, and the logger
            ``exoskel`` gets a warning that names it.
        progress : bool, optional
            As `map` takes it.
        timeout : float, optional
            As `map` takes it.
        retries_on : class of exceptions or tuple of them, optional
            As `map` takes it.

        Returns
        -------
        RunSummary
            How many results are in the sink, and how many items were skipped.

        Raises
        ------
        TypeError, ValueError
            For arguments that make no sense.
        JournalError
            If the run can't go on from the journal, before any work begins: the journal is damaged or in use, the program, the
            source or the sink is another one, or the sink can't be cut back.
        OSError
            If a file can't be read or written, as on a full disk. A run with a journal goes on when there is room again.
        Exception
            What a function raises, or the source.
        """
        from .program_text import program_text
        from .runs import run_reduction, run_reduction_with_journal, run_to_sink

        self._check_open()
        own = {"timeout": timeout, "retries_on": retries_on}

        def described() -> str:
            return program_text(*flatten(self._plan.program), self._pickles)

        if self._plan.program.carries and journal is not None:
            raise JournalError(
                f"got a journal for {self._shown}, expected a program without Stateful and Scan: a run that goes on would begin with their first state again"
            )
        reduction, slice_fold = self._plan.reduction, self._plan.slice_fold
        if reduction is not None and journal is not None:
            from .plan_streams import AS_COMPLETED
            from .sequential import before_reduction

            rules = self._rules_of(own)
            self._pickle_again()
            stages = before_reduction(self._plan.structure)
            is_sliced = slice_fold is not None and not self._is_single(rules)
            return run_reduction_with_journal(
                source,
                sink,
                journal,
                errors,
                progress,
                reduction,
                (lambda slices: self._opened(rules, slices, AS_COMPLETED, function=slice_fold))
                if is_sliced
                else None,
                None
                if stages is None
                else lambda items, run: self._opened(rules, items, _IN_ORDER, run, stages=stages),
                self._slots(),
                described,
            )
        if reduction is not None:
            return run_reduction(
                source,
                sink,
                errors,
                lambda items: self._stream(items, _PLAINLY, own, progress=progress),
            )
        return run_to_sink(
            source,
            sink,
            journal,
            errors,
            progress,
            lambda items, outcomes, run: self._stream(items, outcomes, own, run),
            described,
            self._plan.gives_many,
        )

    def _stream(
        self,
        items: Iterable[Any],
        outcomes: dict[str, bool],
        own: dict[str, Any],
        run: "_core.Run | None" = None,
        progress: bool | None = False,
    ) -> "Closable":
        self._check_open()
        rules = self._rules_of(own)
        self._pickle_again()

        def opened(
            items: Iterable[Any], outcomes: dict[str, bool], function: Any = None
        ) -> "_core.MapStream":
            return self._opened(rules, items, outcomes, run, function)

        # Whoever has a journal counts what the engine counts.
        if run is not None or not (self._plan.gives_many or self._plan.split):
            return opened(items, outcomes)
        from .plan_streams import open_plan

        slots, is_single = self._slots(), self._is_single(rules)
        return open_plan(self._plan, items, outcomes, slots, is_single, progress, opened)

    def _opened(
        self,
        rules: dict[str, Any],
        items: Iterable[Any],
        outcomes: dict[str, bool],
        run: "_core.Run | None" = None,
        function: Any = None,
        stages: "Structure | None" = None,
    ) -> "_core.MapStream":
        program = (stages or self._plan.structure, self._pickles)
        if function is not None:
            program = (("farm", ("seq", 0)), [pickled(function)])
        return self._core.map(program, items, outcomes, rules, self, run)

    def _rules_of(self, own: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in own.items() if value is not None}
        if not given:
            return self._rules
        return of_items({**self._options, **some_checked(ManagerOptions, given)})

    def _is_single(self, rules: dict[str, Any]) -> bool:
        # The engine times and counts what travels by itself.
        return self._counts_items or rules["timeout"] is not None

    def _slots(self) -> int:
        row = self._core.status()
        return 1 if row is None else max(1, row["slots_wanted"])

    def summary(self) -> "Summary":
        """Return what each worker has done so far.

        Returns
        -------
        Summary
            A row for each worker. ``print`` shows a table.
        """
        if not self._closed or self._summary is None:
            self._summary = summarize(self._core.report())
        return self._summary

    @property
    def history(self) -> "History":
        """What was decided to keep the contract, when and why, and which slots were lost. ``print`` shows a line for each change."""
        from .history import history_of

        if self._history is not None:
            return self._history
        return history_of(self._core)

    def status(self) -> "Status":
        """Return the state of slots, streams and workers at this moment. Any thread may call it.

        Returns
        -------
        Status
            Slots, streams, workers, and which workers the manager tries to reach.

        Raises
        ------
        RuntimeError
            If the manager is closed.
        """
        from .status import status_of

        self._check_open()
        return status_of(self._core)

    def __reduce__(self) -> Any:
        raise TypeError("got a Manager to send, which stays here: make one where it is used")

    def __repr__(self) -> str:
        """Say what it runs, on how many slots, and whether it is closed."""
        return f"<exoskel.Manager of {self._shown}: {self._state()}>"

    def _repr_html_(self) -> str:
        """Return the same and the summary for a notebook."""
        from .display import paragraph_of

        shown = paragraph_of(repr(self))
        if self._core.is_inherited():
            return shown
        return f"{shown}{self.summary()._repr_html_()}"

    def _state(self) -> str:
        if self._closed:
            return "closed"
        if self._core.is_inherited():
            return "of another process, which has forked this one"
        row = self._core.status()
        return ready_text(self._core.report(), 0 if row is None else row["slots_wanted"])

    def close(self) -> None:
        """End the use of all slots, and wait until child processes have ended. Open streams end."""
        if not self._closed:
            # A forked child may close its copy: the driver, and what is to be told of it, are the parent's.
            if not self._core.is_inherited():
                self._summary = summarize(self._core.report())
                self._history = self.history
            self._closed = True
            self._finalizer()

    def __enter__(self) -> Self:
        """Return the manager; the end of the block closes it."""
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _pickle_again(self) -> None:
        """Take the functions as they are now: the script may have changed what they refer to."""
        for position, function in enumerate(self._functions):
            state = state_of(function)
            if is_same(state, self._states[position]):
                continue
            # A method of what holds this manager, say, could only be pickled before there was one.
            with suppress(ProgramError):
                self._pickles[position] = pickled(function)
                self._states[position] = state

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the manager is closed; make a new one")


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Keep what the functions of a manager or executor to be share, from their pickling on, whatever other one ends meanwhile."""
    place = Start()
    running.add(place)
    try:
        yield
    finally:
        ended(place)


def start(
    contract: Contract, functions: list[bytes], options: Mapping[str, Any]
) -> "_core.Manager":
    """Start a driver.

    Parameters
    ----------
    contract : Contract
        How many slots are wanted.
    functions : list of bytes
        The pickles whose modules have to travel.
    options : mapping
        Checked `ManagerOptions`.

    Returns
    -------
    _core.Manager
        The driver's handle.
    """
    if options["launch"] is None:
        if options["handler_threads"] != 1:
            raise TypeError(
                "got handler_threads= without launch=, expected both, as in launch=exoskel.Local(): the manager's own children don't call each other"
            )
        if options["sandbox"] is not None:
            raise TypeError(
                "got sandbox= without launch=, expected both, as in launch=exoskel.Local(): the manager's own children have none"
            )
        if options["min"] is not None:
            raise TypeError(
                'got min= without launch=, expected both, as in launch=exoskel.Ssh(["lab1", "lab2"]): it is a number of hosts'
            )
        is_remote = options["workers"] is not None or options["listen"] is not None
        # Workers have as many slots as they have; children of this process compete for its cores.
        asked = terms(contract, SLOTS_MAX if is_remote else usable_cores())
        return _started(asked, functions, options, None)
    asked = terms(contract, None)
    from .launched_slots import LaunchedSlots, launcher_of

    numbers = (asked["slots_min"], asked["slots_max"])
    timeout = max(options["wait"], 1.0)
    launched = LaunchedSlots(launcher_of(options), *numbers, timeout, options["min"] or 1)
    try:
        # The manager's sessions with its slots are the job's, whatever it has proven itself by.
        own = {**options, **dict.fromkeys(PROOFS)}
        core = _started(asked, functions, own, launched)
    except BaseException:
        launched.close()
        raise
    _launched[core] = launched
    try:
        launched.start(core, options)
    except BaseException:
        shut_down(core)
        raise
    return core


def _started(
    contract: dict[str, Any],
    functions: list[bytes],
    options: Mapping[str, Any],
    launched: "LaunchedSlots | None",
) -> "_core.Manager":
    hosts: list[tuple[str, str | None]] = []
    host_file: str | None = None
    workers, discovers = without_discover(options["workers"])
    if workers is not None:
        from .hosts import read_hosts

        hosts = [(str(address), address.name) for address in read_hosts(workers)]
        if isinstance(workers, (str, os.PathLike)):
            host_file = os.path.abspath(os.fsdecode(workers))
    listen = options["listen"]
    if listen is not None:
        from .hosts import parse_address_alone

        listen = str(parse_address_alone(listen, 7600))
    elif launched is not None:
        listen = launched.listen
    remote = bool(hosts or listen or discovers)
    told = {**options, "listen": listen}
    own = (
        "workers",
        "launch",
        "min",
        "sandbox",
        "handler_threads",
        "wait",
        "on_capacity",
        "timeout",
        "retries_on",
        "initializer",
        "initargs",
    )
    for name in own:
        del told[name]
    if remote and options["credential"] is not None:
        from .identity import grid_trust

        directories = grid_trust(
            options["credential"], options["trust_anchors"], options["vomsdir"]
        )
        told["trust_anchors"], told["vomsdir"] = (path and os.fspath(path) for path in directories)
    # Nothing is registered as long as nobody has asked for the module.
    results = sys.modules.get(f"{__package__}.results")
    registered = results.registrations() if results is not None else {}
    functions = [*functions, *(function for function in registered.values() if function)]
    initializer = None
    if options["initializer"] is not None:
        initializer = pickled(functools.partial(options["initializer"], *options["initargs"]))
        functions.append(initializer)
    sources: list[tuple[Any, ...]] = []
    required: list[str] = []
    versions: list[tuple[str, str]] = []
    if remote:
        from .modules import requirements, travelling
        from .package_versions import stated

        sources = [tuple(source) for source in travelling(functions).values()]
        required = requirements(functions)
        versions = stated(required)
    core = _core.Manager(
        {
            "contract": contract,
            "hosts": hosts,
            "host_file": host_file,
            "discovers": discovers,
            "credential": launched and launched.credential,
            "command": [sys.executable, "-m", "exoskel.slot"],
            "forks": forks,
            # What its children are told, who have a credential and a policy of their own.
            "children": pickle.dumps(
                {
                    "options": of_children(options),
                    "environment": inner_threads.variables(
                        options["inner_threads"], contract["slots_max"]
                    ),
                },
                5,
            ),
            # Children have our interpreter and our search path, so they lack nothing.
            "setup_local": pickle.dumps((sys.path, [], [], [], registered, initializer), 5),
            "setup_remote": pickle.dumps(
                (None, sources, required, versions, registered, initializer), 5
            ),
            "has_initializer": initializer is not None,
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        },
        told,
        present,
    )
    running.add(core)
    try:
        if options["on_capacity"] is not None:
            from .status import watch_capacity

            watch_capacity(core, options["on_capacity"])
        # Warnings, output and the summary need these. Later there may be no descriptor left to load anything.
        for module in ("logging", f"{__package__}.output", f"{__package__}.summary"):
            importlib.import_module(module)
    except BaseException:
        shut_down(core)
        raise
    return core


def wait_for_slots(core: "_core.Manager", options: Mapping[str, Any]) -> None:
    """Wait until slots are ready: where workers join, all of them; else at least one, and until each place was tried.

    Parameters
    ----------
    core : _core.Manager
        The driver.
    options : mapping
        Checked `ManagerOptions`.

    Raises
    ------
    NoWorkerError
        If there is none at the end, or as soon as nobody else can come. Its ``attempts`` say why. Not if slots came and their initializer
        raised: that ends runs, whether it was fast or slow.
    """
    timeout, joins = options["wait"], options["listen"] is not None
    launched = _launched.get(core)
    # Those that are launched come as those that join: all of them are waited for.
    joins = joins or launched is not None
    ready, wanted, is_final, attempts, untold = core.wait_ready(timeout, joins)
    if launched is not None:
        failures = list(launched.failures)
        attempts = [*attempts, *failures]
        untold = [*untold, *map(str, failures)]
    if ready == 0 and not any(isinstance(attempt, InitializerError) for attempt in attempts):
        reasons = _reasons(attempts)
        # The wait ends early when everybody has been asked and nobody can come.
        what = "no worker can be had" if is_final else f"no worker within {timeout:g} seconds"
        silence = "nobody has dialled in" if joins else "no place has answered yet"
        status = core.status() if without_discover(options["workers"])[1] else None
        if status is not None and not status["recruiting"]:
            silence = (
                "no worker was heard whose name the policy's [discover] allows; are they started with "
                "--listen and --announce, in the same network? See: exoskel discover"
            )
        text = (
            f"{what}, expected {wanted} slot{'s' if wanted != 1 else ''}{reasons or f': {silence}'}"
        )
        raise NoWorkerError(text, attempts=attempts)
    if 0 < ready < wanted:
        # The others come when they can; these places have said why they don't yet.
        text = f"{ready} of {wanted} slots are ready; the run begins with those{_reasons(untold) or ', as the others have not come yet'}"
        present("warning", "", text)


def _reasons(attempts: Sequence[object]) -> str:
    """Return a line for each attempt, the last ones only if there are many."""
    reasons = "".join(f"\n  {attempt}" for attempt in attempts[-REASONS_MAX:])
    if len(attempts) > REASONS_MAX:
        reasons = f"\n  ... and {len(attempts) - REASONS_MAX} more{reasons}"
    return reasons


def pickled(function: Callable[..., Any]) -> bytes:
    """Pickle a function: by name if a worker can import all that it refers to, else by value.

    Parameters
    ----------
    function : callable
        The function.

    Returns
    -------
    bytes
        The pickle.

    Raises
    ------
    ProgramError
        If it can't be pickled.
    """
    from .script import dumps_by_name

    by_name = dumps_by_name(function)
    if by_name is not None:
        return by_name
    from . import by_value

    try:
        return by_value.dumps_by_value(function)
    except Exception as error:
        from .short_text import name_of
        from .unpicklable import unpicklable_variable

        variable = unpicklable_variable(function, by_value.dumps_by_value)
        what = name_of(function) if variable is None else f"{name_of(function)}, with {variable},"
        raise ProgramError(
            f"can't send {what} to a worker: {error}; open files, locks and connections can't travel, make them inside the function"
        ) from error


def present(kind: str, worker: str, text: str) -> None:
    """Show the user what the driver has to tell.

    Parameters
    ----------
    kind : str
        ``"stdout"``, ``"stderr"``, ``"log"``: what a task printed; ``"warning"``; ``"audit"``: one line a session.
    worker : str
        Whose output it is.
    text : str
        The text.
    """
    if kind in ("stdout", "stderr", "log"):
        from .output import present as present_output

        present_output(worker, kind, text)
        return
    import logging

    if kind == "audit":
        logging.getLogger("exoskel.audit").info("%s", text)
    else:
        logging.getLogger("exoskel").warning("%s", text)


def summarize(report: tuple[list[dict[str, Any]], dict[str, Any]]) -> "Summary":
    """Make a table of the driver's report.

    Parameters
    ----------
    report : tuple of list of dict, dict
        One row a worker, and the key store.

    Returns
    -------
    Summary
        The table.
    """
    from .summary import KeySummary, Summary, WorkerSummary

    workers, keys = report
    rows = []
    for worker in workers:
        fields = dict(worker)
        fields["process_ids"] = fields.pop("pids")
        rows.append(WorkerSummary(**fields))
    return Summary(rows, KeySummary(**keys))


def ready_text(report: tuple[list[dict[str, Any]], dict[str, Any]], wanted: int) -> str:
    """Say how many slots work for a driver.

    Parameters
    ----------
    report : tuple of list of dict, dict
        The driver's.
    wanted : int
        How many slots it was asked for.

    Returns
    -------
    str
        The slots, the workers they belong to, and the results that came from all.
    """
    workers, _ = report
    working = [worker for worker in workers if worker["state"] == "working"]
    slots = sum(worker["slots"] for worker in working)
    items = sum(worker["items"] for worker in workers)
    return (
        f"{slots} of {wanted} slots of {len(working)} worker{'s' if len(working) != 1 else ''}, "
        f"{items} result{'s' if items != 1 else ''} so far"
    )


def _iterable_of(items: Any) -> Any:
    """Return an iterable over the items of a source; what a source is takes long to import."""
    is_async = hasattr(items, "__aiter__") and not hasattr(items, "__iter__")
    if hasattr(items, "source_text") or is_async:
        from .sources import iterable_of

        return iterable_of(items)
    return items


def _length(items: Iterable[Any]) -> int | None:
    try:
        return len(items)  # type: ignore[arg-type]  # what has no length has none
    except TypeError:
        return None


def shut_down(core: "_core.Manager") -> None:
    """End a driver, unless this process was forked from the one it belongs to.

    Parameters
    ----------
    core : _core.Manager
        The driver.
    """
    if not core.is_inherited():
        launched = _launched.pop(core, None)
        try:
            core.shutdown()
        finally:
            ended(core)
            if launched is not None:
                launched.close()


def ended(core: "_core.Manager | Start") -> None:
    """Take in that a driver, or its start, has ended: what was shared goes with the last one.

    Parameters
    ----------
    core : _core.Manager or Start
        Which.
    """
    running.discard(core)
    shared = sys.modules.get(f"{__package__}.shared_contents")
    if not running and shared is not None:
        shared.let_go()
