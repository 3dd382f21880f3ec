"""A manager recruits slots, runs a program on them, and hands out results."""

import os
import pickle
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Self

from . import _core
from .errors import NoWorkerError, ProgramError
from .skeletons import ParDegree, Skeleton, flatten

if TYPE_CHECKING:
    from .summary import Summary

__all__ = ["Manager"]

# One message at most: an item and its result with everything that belongs to them.
MESSAGE_BYTES_MAX = 1 << 30
# So many reasons are told why there is no worker.
REASONS_MAX = 20
# Less than this leaves no room for what goes with the items.
MESSAGE_BYTES_MIN = 1 << 18
# The keys in use of a thousand busy sessions, in 3 MiB.
READY_KEYS = 4096


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
    workers : path or iterable of str, optional
        A file with one ``host:port`` or ``unix:/path`` a line, or such lines: workers that were started with
        ``exoskel worker --listen``. The name in the worker's certificate follows where it isn't that of the host.
    credential : path, optional
        This manager's credential: ``exoskel pki issue --role manager`` writes one, and a proxy of a grid is one as it is. Needed with
        ``workers`` and ``listen``.
    policy : path, optional
        The policy file (TOML). Without one, children of this process talk in plain, everybody else is encrypted. This file, the
        credential and the revocation list are taken up when they change, and running sessions are judged by them again.
    revocation_list : path, optional
        The authority's ``revoked.crl``, where it is newer than what the credential holds.
    trust_anchors, vomsdir : path, optional
        The directories by which workers are judged in a grid. With a proxy as credential ``X509_CERT_DIR`` and ``X509_VOMS_DIR``, else those
        of ``/etc/grid-security``, unless given; without either the credential's own authority judges.
    trust_interval : int
        How many seconds pass between two looks at them.
    listen : str, optional
        An address such as ``0.0.0.0:7600`` or ``unix:/path`` at which workers join (``exoskel worker --join``).
    wait : float
        How many seconds to wait for workers to join.
    transport : {"socketpair", "tcp"}
        What children are talked to over; TCP on loopback is meant for measurements and tests.
    protection : {"plain", "integrity", "encrypted"}, optional
        The least protection of everything, whatever the policy says. With ``transport="tcp"``, "plain" lets data go in clear.
    retries : int
        How many workers an item may take down, while it runs alone, before it becomes a `WorkerLostError`.
    dead_after : float
        After how many seconds of silence a worker counts as lost.
    connect_timeout : float
        How many seconds one attempt to reach a worker may take.
    key_memory : {"secret", "locked", "ordinary"}, optional
        The memory in which keys wait, here and in child processes: hidden even from the kernel's own map of memory, locked against swap, or
        neither. The best there is if not given; `Summary.keys` says which that was. What is asked for and not there is an error.
    ready_keys : int
        How many keys are held expanded for use at most, in ordinary memory (700 bytes each): by all managers of this process together that give
        the same number. `Summary.keys` says whether they are enough.
    frame_items_max : int
        How many items may travel together; 1 sends each by itself.
    message_bytes_max : int
        The size limit of an item or result with everything that belongs to it, in bytes.
    trace : path, optional
        A file to which all messages between this manager and its slots are written when it is closed (peer, size and time, no content),
        at most 4,194,304 of them: a trace that ``exoskel sim keycache --trace`` reads. Rank 0 is the manager
        (``--rank 0``: its cache alone).

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
        *,
        workers: str | os.PathLike[str] | Iterable[str] | None = None,
        credential: str | os.PathLike[str] | None = None,
        policy: str | os.PathLike[str] | None = None,
        revocation_list: str | os.PathLike[str] | None = None,
        trust_anchors: str | os.PathLike[str] | None = None,
        vomsdir: str | os.PathLike[str] | None = None,
        trust_interval: int = 60,
        listen: str | None = None,
        wait: float = 30.0,
        transport: Literal["socketpair", "tcp"] = "socketpair",
        protection: Literal["plain", "integrity", "encrypted"] | None = None,
        retries: int = 3,
        dead_after: float = 5.0,
        connect_timeout: float = 5.0,
        key_memory: Literal["secret", "locked", "ordinary"] | None = None,
        ready_keys: int = READY_KEYS,
        frame_items_max: int = 4096,
        message_bytes_max: int = MESSAGE_BYTES_MAX,
        trace: str | os.PathLike[str] | None = None,
    ) -> None:
        if not isinstance(contract, ParDegree):
            raise TypeError(
                f"got {contract!r} as contract, expected a ParDegree such as ParDegree(4)"
            )
        structure, functions = flatten(program)
        self._structure = structure
        self._functions = [pickled(function) for function in functions]
        self._core = start(
            contract.slots,
            functions=self._functions,
            workers=workers,
            credential=credential,
            policy=policy,
            revocation_list=revocation_list,
            trust_anchors=trust_anchors,
            vomsdir=vomsdir,
            trust_interval=trust_interval,
            listen=listen,
            transport=transport,
            protection=protection,
            retries=retries,
            dead_after=dead_after,
            connect_timeout=connect_timeout,
            key_memory=key_memory,
            ready_keys=ready_keys,
            frame_items_max=frame_items_max,
            message_bytes_max=message_bytes_max,
            trace=trace,
        )
        self._closed = False
        self._summary: Summary | None = None
        self._finalizer = weakref.finalize(self, shut_down, self._core)
        try:
            wait_for_slots(
                self._core, wait if listen else connect_timeout * 2, patient=bool(listen)
            )
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


def start(
    slots: int,
    *,
    functions: list[bytes],
    workers: str | os.PathLike[str] | Iterable[str] | None = None,
    credential: str | os.PathLike[str] | None = None,
    policy: str | os.PathLike[str] | None = None,
    revocation_list: str | os.PathLike[str] | None = None,
    trust_anchors: str | os.PathLike[str] | None = None,
    vomsdir: str | os.PathLike[str] | None = None,
    trust_interval: int = 60,
    listen: str | None = None,
    transport: str = "socketpair",
    protection: str | None = None,
    retries: int = 3,
    dead_after: float = 5.0,
    connect_timeout: float = 5.0,
    key_memory: str | None = None,
    ready_keys: int = READY_KEYS,
    frame_items_max: int = 4096,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    trace: str | os.PathLike[str] | None = None,
) -> "_core.Manager":
    """Check the arguments of `Manager` and start its driver.

    Parameters
    ----------
    slots : int
        How many slots are wanted.
    functions : list of bytes
        The pickles whose modules have to travel.
    workers, credential, policy, revocation_list, trust_anchors, vomsdir, trust_interval, listen, transport, protection, retries, dead_after, connect_timeout, key_memory, ready_keys, \
frame_items_max, message_bytes_max, trace
        As for `Manager`.

    Returns
    -------
    _core.Manager
        The driver's handle.
    """
    for name, number, least in (
        ("retries", retries, 1),
        ("trust_interval", trust_interval, 1),
        ("ready_keys", ready_keys, 1),
        ("frame_items_max", frame_items_max, 1),
        ("message_bytes_max", message_bytes_max, MESSAGE_BYTES_MIN),
    ):
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"got {name}={number!r}, expected a whole number of at least {least}")
    for name, seconds in (("dead_after", dead_after), ("connect_timeout", connect_timeout)):
        if not 0 < seconds < 1e9:
            raise ValueError(f"got {name}={seconds!r}, expected seconds above 0")
    hosts = []
    if workers is not None:
        from .hosts import read_hosts

        hosts = [(str(address), address.name) for address in read_hosts(workers)]
    for path in (policy, revocation_list):
        if path is not None:
            # Now, with the error that people know, and not as a credential's or a policy's.
            with open(path, "rb"):
                pass
    if listen is not None:
        from .hosts import parse_address

        listen = str(parse_address(listen, 7600))
    remote = bool(hosts or listen)
    if remote and credential is not None:
        from .identity import grid_trust

        trust_anchors, vomsdir = grid_trust(credential, trust_anchors, vomsdir)
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
    slot_options = [] if key_memory is None else ["--key-memory", key_memory]
    return _core.Manager(
        {
            "slots": slots,
            "hosts": hosts,
            "listen": listen,
            "credential": None if credential is None else os.fspath(credential),
            "policy": None if policy is None else os.fspath(policy),
            "revocation_list": None if revocation_list is None else os.fspath(revocation_list),
            "trust_anchors": None if trust_anchors is None else os.fspath(trust_anchors),
            "vomsdir": None if vomsdir is None else os.fspath(vomsdir),
            "trust_interval": trust_interval,
            "command": [sys.executable, "-m", "exoskel.slot", *slot_options],
            "transport": transport,
            "protection": protection,
            # Children have our interpreter and our search path, so they lack nothing.
            "setup_local": pickle.dumps((sys.path, [], [], registered), 5),
            "setup_remote": pickle.dumps((None, sources, required, registered), 5),
            "python": f"{sys.version_info.major}.{sys.version_info.minor}",
            "retries": retries,
            "dead_after": float(dead_after),
            "connect_timeout": float(connect_timeout),
            "key_memory": key_memory,
            "ready_keys": ready_keys,
            "frame_items_max": frame_items_max,
            "message_bytes_max": message_bytes_max,
            "trace": None if trace is None else os.fspath(trace),
        },
        present,
    )


def wait_for_slots(core: "_core.Manager", timeout: float, *, patient: bool) -> None:
    """Wait until slots are ready.

    Parameters
    ----------
    core : _core.Manager
        The driver.
    timeout : float
        Seconds.
    patient : bool
        Whether to use all of them for slots that may still come.

    Raises
    ------
    NoWorkerError
        If there is none at the end, or as soon as nobody else can come. Its ``attempts`` say why.
    """
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
