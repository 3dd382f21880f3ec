"""A manager recruits slots, runs a program on them, and hands out results."""

import contextlib
import functools
import importlib
import os
import pickle
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from . import _core, inner_threads
from .errors import ExoskelError, InitializerError, NoWorkerError, ProgramError
from .function_state import is_same, state_of
from .options import (
    PROOFS,
    ManagerOptions,
    checked,
    documented,
    of_children,
    of_items,
    some_checked,
)
from .skeletons import ParDegree, Skeleton, flatten, skeleton_of

if TYPE_CHECKING:
    from .launched_slots import LaunchedSlots
    from .status import Status
    from .summary import Summary

__all__ = ["Manager"]


class Start:
    """The start of a driver, before there is one."""


# The drivers that run in this process, and those that are about to. One that is gone doesn't run, whatever became of its end.
running: "weakref.WeakSet[_core.Manager | Start]" = weakref.WeakSet()
# So many reasons are told why there is no worker.
REASONS_MAX = 20
# Those whose slots are processes of a job.
_launched: "dict[_core.Manager, LaunchedSlots]" = {}
# Between two looks at whether such slots can come at all.
_LOOK_SECONDS = 0.25


@documented(ManagerOptions)
class Manager:
    """Runs a program over items, on slots of this machine or of workers.

    Without ``workers`` and ``listen``, the slots are child processes of this one, and nothing needs to be configured.

    Parameters
    ----------
    program : Skeleton or callable
        What happens to each item. A function alone means ``Farm(function)``: it runs on every free slot.
    contract : ParDegree
        How many slots to use.
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
        program: Skeleton | Callable[[Any], Any],
        contract: ParDegree,
        **options: Unpack[ManagerOptions],
    ) -> None:
        if not isinstance(contract, ParDegree):
            raise TypeError(
                f"got {contract!r} as contract, expected a ParDegree such as ParDegree(4)"
            )
        self._shown = repr(skeleton_of(program))
        self._wanted = contract.slots
        # They are kept as they are: what they refer to may be shared, and lives as long as somebody has it.
        self._structure, self._functions = flatten(program)
        told = checked(ManagerOptions, "Manager", options)
        self._states = [state_of(function) for function in self._functions]
        with starting():
            # Now, so that what can't travel is said before anything starts.
            self._pickles = [pickled(function) for function in self._functions]
            self._rules = of_items(told)
            classes = self._rules["retries_on"]
            travelling = [*self._pickles, *([] if classes is None else [classes])]
            self._core = start(contract.slots, travelling, told)
        self._options = told
        self._closed = False
        self._summary: Summary | None = None
        self._finalizer = weakref.finalize(self, shut_down, self._core)
        try:
            wait_for_slots(self._core, told)
        except BaseException:
            self.close()
            raise

    def map(
        self,
        items: Iterable[Any],
        *,
        as_completed: bool = False,
        indices: bool = False,
        progress: bool = False,
        errors: Literal["raise", "return"] = "raise",
        timeout: float | None = None,
        retries_on: type[Exception] | tuple[type[Exception], ...] | None = None,
    ) -> Iterator[Any]:
        """Run the program over items and iterate over the results.

        The iterable is read as slots need items, so it may be infinite. Functions of the script travel as they are when `map` is
        called, with the globals that they use.

        Parameters
        ----------
        items : iterable
            The items. Each is pickled by itself.
        as_completed : bool
            Return results as they arrive, instead of in the order of the items.
        indices : bool
            Return pairs: the index of an item, from 0, and its result.
        progress : bool
            Show a progress bar on standard error.
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
            The results. Its ``close()`` ends the stream early.

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
        self._check_open()
        if errors not in ("raise", "return"):
            raise ValueError(f'got errors={errors!r}, expected "raise" or "return"')
        outcomes = {
            "as_completed": as_completed,
            "indices": indices,
            "return_errors": errors == "return",
        }
        own = {"timeout": timeout, "retries_on": retries_on}
        given = {name: value for name, value in own.items() if value is not None}
        rules = self._rules
        if given:
            rules = of_items({**self._options, **some_checked(ManagerOptions, given)})
        self._pickle_again()
        program = (self._structure, self._pickles)
        stream = self._core.map(program, items, outcomes, rules, self)
        if not progress:
            return stream
        from .progress import track

        return track(stream, _length(items))

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
        return ready_text(self._core.report(), self._wanted)

    def close(self) -> None:
        """End the use of all slots, and wait until child processes have ended. Open streams end."""
        if not self._closed:
            # A forked child may close its copy: the driver, and what is to be told of it, are the parent's.
            if not self._core.is_inherited():
                self._summary = summarize(self._core.report())
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


def start(slots: int, functions: list[bytes], options: Mapping[str, Any]) -> "_core.Manager":
    """Start a driver.

    Parameters
    ----------
    slots : int
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
        if options["sandbox"] is not None:
            raise TypeError(
                "got sandbox= without launch=, expected both, as in launch=exoskel.Local(): the manager's own children have none"
            )
        return _started(slots, functions, options, None)
    from .launched_slots import LaunchedSlots, launcher_of

    launched = LaunchedSlots(launcher_of(options), slots, max(options["wait"], 1.0))
    try:
        # The manager's sessions with its slots are the job's, whatever it has proven itself by.
        own = {**options, **dict.fromkeys(PROOFS)}
        core = _started(slots, functions, own, launched)
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
    slots: int,
    functions: list[bytes],
    options: Mapping[str, Any],
    launched: "LaunchedSlots | None",
) -> "_core.Manager":
    hosts: list[tuple[str, str | None]] = []
    host_file: str | None = None
    workers = options["workers"]
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
    remote = bool(hosts or listen)
    told = {**options, "listen": listen}
    own = (
        "workers",
        "launch",
        "sandbox",
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
            "slots": slots,
            "hosts": hosts,
            "host_file": host_file,
            "credential": launched and launched.credential,
            "command": [sys.executable, "-m", "exoskel.slot"],
            # What its children are told, who have a credential and a policy of their own.
            "children": pickle.dumps(
                {
                    "options": of_children(options),
                    "environment": inner_threads.variables(options["inner_threads"], slots),
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
    if launched is None:
        ready, wanted, is_final, attempts, untold = core.wait_ready(timeout, joins)
    else:
        joins = True
        ready, wanted, is_final, attempts, untold = _wait_for_launched(core, launched, timeout)
    if ready == 0 and not any(isinstance(attempt, InitializerError) for attempt in attempts):
        reasons = _reasons(attempts)
        # The wait ends early when everybody has been asked and nobody can come.
        what = "no worker can be had" if is_final else f"no worker within {timeout:g} seconds"
        silence = "nobody has dialled in" if joins else "no place has answered yet"
        text = (
            f"{what}, expected {wanted} slot{'s' if wanted != 1 else ''}{reasons or f': {silence}'}"
        )
        raise NoWorkerError(text, attempts=attempts)
    if 0 < ready < wanted:
        # The others come when they can; these places have said why they don't yet.
        text = f"{ready} of {wanted} slots are ready; the run begins with those{_reasons(untold) or ', as the others have not come yet'}"
        present("warning", "", text)


def _wait_for_launched(
    core: "_core.Manager", launched: "LaunchedSlots", timeout: float
) -> tuple[int, int, bool, list[ExoskelError], list[str]]:
    """Wait for slots of a job; not any longer when none can come."""
    deadline = time.monotonic() + timeout
    while True:
        left = max(0.0, deadline - time.monotonic())
        ready, wanted, _, attempts, untold = core.wait_ready(min(left, _LOOK_SECONDS), True)
        is_hopeless = ready == 0 and launched.is_hopeless
        if ready >= wanted or left == 0.0 or is_hopeless:
            failures = list(launched.failures)
            texts = [str(failure) for failure in failures]
            return ready, wanted, is_hopeless, [*attempts, *failures], [*untold, *texts]


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
        raise ProgramError(
            f"can't send {function!r} to a worker: {error}; open files, locks and connections can't travel, make them inside the function"
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
