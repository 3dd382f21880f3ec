"""A manager recruits slots, runs a program on them, and hands out results."""

import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack

from . import _core
from .errors import NoWorkerError, ProgramError
from .options import ManagerOptions, checked, documented, of_children
from .skeletons import ParDegree, Skeleton, flatten

if TYPE_CHECKING:
    from .summary import Summary

__all__ = ["Manager"]

# So many reasons are told why there is no worker.
REASONS_MAX = 20


@documented(ManagerOptions)
class Manager:
    """A manager of slots on which a program runs.

    Without ``workers`` and ``listen`` the slots are children of this process: they get throw-away credentials and talk over
    inherited sockets, and nothing needs to be configured.

    Parameters
    ----------
    program : Skeleton or callable
        What is done to each item; a function alone is a stage that handles one item at a time.
    contract : ParDegree
        On how many slots.
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
        If no slot is there in time, or earlier if nobody can come. Its ``attempts`` hold an error for each place that was tried.
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
        structure, functions = flatten(program)
        self._structure = structure
        self._functions = [pickled(function) for function in functions]
        told = checked(ManagerOptions, "Manager", options)
        self._core = start(contract.slots, self._functions, told)
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
        progress: bool = False,
        errors: Literal["raise", "return"] = "raise",
    ) -> Iterator[Any]:
        """Run the program over items and iterate over the results.

        Items are taken from the iterable as slots need them, so it may be endless.

        Parameters
        ----------
        items : iterable
            The items. Each is pickled by itself.
        as_completed : bool
            Hand out results as they come, instead of in the order of the items.
        progress : bool
            Show a progress bar on standard error.
        errors : {"raise", "return"}
            What becomes of a task's exception: it is raised here and ends the stream, or it stands in the place of the result
            and the stream goes on.

        Returns
        -------
        iterator
            The results; ``close()`` it to stop early.

        Raises
        ------
        ExoskelError
            `WorkerLostError`, `NoWorkerError`, `ResultRejectedError` and the like, while iterating.
        """
        self._check_open()
        if errors not in ("raise", "return"):
            raise ValueError(f'got errors={errors!r}, expected "raise" or "return"')
        stream = self._core.map(
            self._structure, self._functions, items, as_completed, errors == "return"
        )
        if not progress:
            return stream
        from .progress import track

        return track(stream, _length(items))

    def summary(self) -> "Summary":
        """What each worker did so far.

        Returns
        -------
        Summary
            Printed, it is a table.
        """
        if not self._closed or self._summary is None:
            self._summary = summarize(self._core.report())
        return self._summary

    def close(self) -> None:
        """End all sessions and wait for children to leave; streams that are open end."""
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

    def _check_open(self) -> None:
        if self._closed:
            raise RuntimeError("the manager is closed; make a new one")


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
    hosts: list[tuple[str, str | None]] = []
    if options["workers"] is not None:
        from .hosts import read_hosts

        hosts = [(str(address), address.name) for address in read_hosts(options["workers"])]
    listen = options["listen"]
    if listen is not None:
        from .hosts import parse_address

        listen = str(parse_address(listen, 7600))
    remote = bool(hosts or listen)
    told = {**options, "listen": listen}
    del told["workers"], told["wait"]
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
    sources: list[tuple[Any, ...]] = []
    required: list[str] = []
    if remote:
        from .modules import collect, requirements

        sources = [tuple(source) for source in collect(functions).values()]
        required = requirements(functions)
    return _core.Manager(
        {
            "slots": slots,
            "hosts": hosts,
            "command": [sys.executable, "-m", "exoskel.slot"],
            # What its children are told, who have a credential and a policy of their own.
            "children": pickle.dumps({"options": of_children(options)}, 5),
            # Children have our interpreter and our search path, so they lack nothing.
            "setup_local": pickle.dumps((sys.path, [], [], registered), 5),
            "setup_remote": pickle.dumps((None, sources, required, registered), 5),
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        },
        told,
        present,
    )


def wait_for_slots(core: "_core.Manager", options: Mapping[str, Any]) -> None:
    """Wait until slots are ready: where workers join, as long as they may take; else until all places were tried.

    Parameters
    ----------
    core : _core.Manager
        The driver.
    options : mapping
        Checked `ManagerOptions`.

    Raises
    ------
    NoWorkerError
        If there is none at the end, or as soon as nobody else can come. Its ``attempts`` say why.
    """
    patient = options["listen"] is not None
    timeout = options["wait"] if patient else 2 * options["connect_timeout"]
    ready, wanted, is_final, attempts = core.wait_ready(timeout, patient)
    if ready == 0:
        reasons = "".join(f"\n  {attempt}" for attempt in attempts[-REASONS_MAX:])
        if len(attempts) > REASONS_MAX:
            reasons = f"\n  ... and {len(attempts) - REASONS_MAX} more{reasons}"
        # The wait ends early when everybody has been asked and nobody can come.
        what = "no worker can be had" if is_final else f"no worker within {timeout:g} seconds"
        text = f"{what}, expected {wanted} slot{'s' if wanted != 1 else ''}{reasons or ': none was heard of'}"
        raise NoWorkerError(text, attempts=attempts) from next(iter(attempts), None)
    if ready < wanted:
        present("warning", "", f"{ready} of {wanted} slots are ready; the run begins with those")


def pickled(function: Callable[..., Any]) -> bytes:
    """Pickle a function: by name where a worker can import it, else by value.

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
    if getattr(function, "__module__", "__main__") != "__main__":
        try:
            return pickle.dumps(function, 5)
        except Exception:
            # A closure or lambda of a module: by value, like those of the script itself.
            pass
    import cloudpickle

    try:
        by_value: bytes = cloudpickle.dumps(function, 5)
    except Exception as error:
        raise ProgramError(
            f"can't send {function!r} to a worker: {error}; open files, locks and connections can't travel, make them inside the function"
        ) from error
    return by_value


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
        core.shutdown()
