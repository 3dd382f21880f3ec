"""``exoskel couple``: start parallel programs that hand arrays to each other, and see what moves."""

import argparse
import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import IO, Any, NamedTuple, Self

from .. import _core
from ..errors import CouplingError, KeeperError
from ..member import KEEPER_VARIABLE
from ..peer_text import one_line
from ..redistribution import size_text
from . import UsageError
from .keeper import add_node_arguments, node_of
from .report import Commands, report, table

__all__ = ["add_commands"]

# Without a policy of the user's.
_POLICY = """\
[[allow.rule]]
action = ["coupler.join", "coupler.report", "coupler.stay"]
name = "*"
"""
# How long the others may go on when one program has failed.
_GRACE_SECONDS = 10.0
# From being told to end to being killed.
_KILL_SECONDS = 5.0
# For what the programs have printed last.
_LAST_LINES_SECONDS = 2.0
# Between two looks at the programs.
_LOOK_SECONDS = 0.05
# Without a line and a version, before it is said who waits for what.
_QUIET_SECONDS = 10.0
# How often it is looked whether anything has moved, within that time: by so much it may be said too late.
_QUIET_LOOKS = 20
# Waits that are printed.
_WAITS = 16
# For a starter to say which MPI it is of.
_VERSION_SECONDS = 10.0
# Bytes of a Unix socket's path, without the zero at its end.
_SOCKET_PATH_BYTES = 107

# What a starter puts into the environment of its processes: a program of `couple` is none of them.
_PLACES = frozenset(
    [
        "HYDI_CONTROL_FD",
        "MPI_LOCALNRANKS",
        "MPI_LOCALRANKID",
        "OMPI_ARGV",
        "OMPI_COMMAND",
        "OMPI_FILE_LOCATION",
        "OMPI_FIRST_RANKS",
        "OMPI_NUM_APP_CTX",
        "OMPI_UNIVERSE_SIZE",
        "PMI_APPNUM",
        "PMI_FD",
        "PMI_ID",
        "PMI_JOBID",
        "PMI_PORT",
        "PMI_RANK",
        "PMI_SIZE",
        "SLURM_LOCALID",
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
    ]
)
_PLACE_PREFIXES = ("OMPI_COMM_WORLD_", "OMPI_APP_CTX_", "PMIX_")
# Settings that may be the user's, but inside of Open MPI's processes are its starter's.
_STARTER_PREFIXES = (
    "OMPI_MCA_ess",
    "OMPI_MCA_initial_wdir",
    "OMPI_MCA_mpi_oversubscribe",
    "OMPI_MCA_orte_",
    "OMPI_MCA_pmix",
    "OMPI_MCA_rmaps_",
    "OMPI_MCA_shmem_RUNTIME",
)


class _Tags(NamedTuple):
    """How a starter is made to say which rank has printed a line, and how it says so."""

    version: str
    option: str
    pattern: re.Pattern[str]
    # A line that a process has written in pieces has one before each piece.
    is_repeated: bool = False
    # What a process may print as well is removed only before a line's end that was a piece: an unbuffered Python writes it by itself.
    is_repeated_at_end: bool = False


_HYDRA = re.compile(r"\[(\d+)\] ?")
# Since version 5 a space follows, which is not the program's.
_OPEN_MPI = re.compile(r"\[\d+,(\d+)\]<std(?:out|err|diag)>: ?")
_OPEN_MPI_4 = re.compile(r"\[\d+,(\d+)\]<std(?:out|err|diag)>:")
_STARTERS = (
    _Tags("HYDRA build details", "-prepend-rank", _HYDRA, is_repeated_at_end=True),
    _Tags("Intel(R) MPI", "-prepend-rank", _HYDRA, is_repeated_at_end=True),
    _Tags("Open MPI", "--tag-output", _OPEN_MPI, is_repeated=True),
    _Tags("OpenRTE", "--tag-output", _OPEN_MPI_4, is_repeated=True),
    _Tags("slurm", "--label", re.compile(r" *(\d+): ?")),
)
_STARTER_NAMES = re.compile(r"(mpiexec|mpirun|srun|orterun|prterun)([.-].*)?")


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``couple``."""
    parser = commands.add_parser(
        "couple",
        parents=[common],
        help="start parallel programs that hand arrays to each other",
        description="Start the programs that a file names, with a keeper that holds their arrays, and wait until all have ended. Their output is "
        "printed with their names before each line. At the end a table says what moved over each connection. When one program fails, the "
        f"others are told at their next read or write, and ended after {_GRACE_SECONDS:.0f} seconds. The exit code is 0 if every program has "
        "ended with 0, no process was lost or refused, and every connection could be made. docs/guide/coupling.md explains the file.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the coupling, e.g. climate.toml")
    add_node_arguments(parser, is_listening_required=False)
    parser.add_argument(
        "--wait",
        type=float,
        metavar="SECONDS",
        help="wait so long for processes that have not attached, counted from the last one that has (default: wait = in the file, else 300). If it is "
        "given, here or in the file, programs that are started elsewhere have to attach a first process in that time, too",
    )
    parser.set_defaults(run=_couple)


def _couple(arguments: argparse.Namespace) -> int:
    try:
        text = arguments.file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CouplingError(f"{arguments.file}: got {error}, expected text in UTF-8") from error
    try:
        programs = _core.read_coupling(text)
    except CouplingError as error:
        raise CouplingError(f"{arguments.file}: {error}") from error
    without = [name for name, command in programs if command is None]
    if arguments.listen is None:
        if without:
            raise CouplingError(
                f"{arguments.file}: got no command for {', '.join(without)}, expected command = in [program.{without[0]}], or --listen for keepers of "
                "the hosts where it is started"
            )
        if arguments.credential is not None:
            raise UsageError("got --credential without --listen, expected both")
    elif arguments.credential is None:
        raise UsageError("got --listen without --credential, expected both")
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(_keeper_folder())
        place = Path(folder, "keeper")
        if arguments.listen is None:
            keeper = _core.Keeper(place, text, arguments.wait)
        else:
            node = stack.enter_context(node_of(arguments, _policy_of(arguments, Path(folder))))
            keeper = _core.Keeper.lead(place, text, node._node, arguments.wait)
            for way in [f"tcp://{node.hints[0]}", *map("gateway:{}".format, arguments.gateway)]:
                print(
                    f"keepers of other hosts join by: exoskel keeper --join {way} --coupler {node.name} --listen tcp://HOST:PORT --credential FILE",
                    file=sys.stderr,
                    flush=True,
                )
        try:
            with _as_interrupts(), _Programs(place, arguments.json) as running:
                for name, command in programs:
                    if command is not None:
                        running.start(name, shlex.split(command))

                try:
                    look = _Quiet(keeper.report, running)
                    wait = arguments.wait
                    if wait is None:
                        wait = tomllib.loads(text).get("wait")
                    elsewhere = _Elsewhere(keeper.report, without, wait)
                    running.wait(keeper.program_ended, elsewhere, look)
                except KeyboardInterrupt:
                    # What hung may be seen here.
                    seen = keeper.report()
                    lines = [_text(seen, running.codes()), *_waits(seen)]
                    print("\n".join(lines), file=sys.stderr)
                    raise
                seen = keeper.report()
        finally:
            keeper.end()
    codes = running.codes()
    sizes = {name: size for name, _, size, _ in seen["programs"]}
    programs_seen = {
        name: {"exit_code": codes.get(name), "processes": sizes.get(name, 0)}
        for name, _ in programs
    }
    # All have ended.
    del seen["waits"]
    unfit = [one["reason"] for one in seen["connections"] if one["state"] == "failed"]
    absent = [] if elsewhere.absent is None else [elsewhere.absent]
    failures = [*absent, *_failures(seen, codes), *unfit]
    answer = {**seen, "programs": programs_seen, "failures": failures}
    report(arguments, "\n".join([*absent, _text(seen, codes)]), answer)
    return 1 if failures else 0


def _keeper_folder() -> "tempfile.TemporaryDirectory[str]":
    """Make a folder for the keeper's socket, whose path has to be short."""
    tried = []
    for parent in (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR"), "/tmp"):
        # As long as the name that is made there.
        longest = Path(parent or "/", "exoskel-12345678", "keeper")
        if parent and len(os.fsencode(longest)) <= _SOCKET_PATH_BYTES:
            with contextlib.suppress(OSError):
                return tempfile.TemporaryDirectory(prefix="exoskel-", dir=parent)
        tried.append(parent)
    where = ", ".join(parent for parent in tried if parent)
    raise KeeperError(
        f"no folder for the keeper's socket: {where} can't be written to or is too long for a Unix socket. Set TMPDIR to a shorter one"
    )


def _without_outer_job(environment: Mapping[str, str]) -> dict[str, str]:
    """Leave out what a starter of MPI processes has told this one: it is none of the programs' processes."""
    is_inside = "OMPI_COMM_WORLD_RANK" in environment

    def is_outer(name: str) -> bool:
        if name.startswith("PMIX_MCA_"):
            return False
        return (
            name in _PLACES
            or name.startswith(_PLACE_PREFIXES)
            or (is_inside and name.startswith(_STARTER_PREFIXES))
        )

    return {name: value for name, value in environment.items() if not is_outer(name)}


def _tagged(words: list[str], environment: Mapping[str, str]) -> tuple[list[str], _Tags | None]:
    """Let a starter of ranks say before each line which rank has printed it, if it is one that can."""
    if not words or _STARTER_NAMES.fullmatch(Path(words[0]).name) is None:
        return words, None
    try:
        said = subprocess.run(
            [words[0], "--version"],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_VERSION_SECONDS,
            check=False,
        ).stdout.decode(errors="replace")
    except (OSError, subprocess.TimeoutExpired):
        return words, None
    for known in _STARTERS:
        if known.version in said:
            return [words[0], known.option, *words[1:]], known
    return words, None


def _policy_of(arguments: argparse.Namespace, folder: Path) -> Path:
    """Return the policy that was given, or one by which every peer of the own authority may join."""
    if arguments.policy is not None:
        return Path(arguments.policy)
    policy = folder / "policy.toml"
    policy.write_text(_POLICY)
    return policy


class _Elsewhere:
    """Says whether programs that were started elsewhere are still to come, or to go. After a failure those that have come may go on for a while.

    `wait` is how many seconds the first process of any program has, if the user has said so: the coupler counts from its coming.
    """

    def __init__(
        self, seen: Callable[[], dict[str, Any]], names: list[str], wait: float | None
    ) -> None:
        self._seen = seen
        self._names = names
        self._deadline: float | None = None
        self._wait = wait
        self._first_deadline = None if wait is None else time.monotonic() + wait
        self.absent: str | None = None
        """Says that nobody has come in time, if that is so."""

    def __call__(self, *, has_failed: bool) -> bool:
        """Look, knowing whether a program that was started here has failed."""
        if not self._names:
            return False
        seen = self._seen()
        is_late = self._first_deadline is not None and time.monotonic() > self._first_deadline
        if is_late and not seen["programs"]:
            names = ", ".join(self._names)
            self.absent = f"no process of {names} has attached within {self._wait:g} s"
            return False
        states = {one["state"] for one in seen["connections"]}
        if not has_failed and seen["first_lost"] is None and states != {"failed"}:
            gone = {name: size == left for name, _, size, left in seen["programs"]}
            return not all(gone.get(name, False) for name in self._names)
        # They have to hear of it, and to write down what they have.
        self._deadline = self._deadline or time.monotonic() + _GRACE_SECONDS
        runs = any(here > left for name, here, _, left in seen["programs"] if name in self._names)
        return runs and time.monotonic() < self._deadline


@contextlib.contextmanager
def _as_interrupts(ends: Callable[[], None] | None = None) -> Iterator[None]:
    """Let the ends of batch systems and terminals be the same as Ctrl-C; or do something else for all of them."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        if ends is None:
            raise KeyboardInterrupt(f"ended by {signal.Signals(number).name}")
        ends()

    numbers = [signal.SIGTERM, signal.SIGHUP] + ([] if ends is None else [signal.SIGINT])
    before = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Programs:
    """Programs that run, each in a process group of its own."""

    def __init__(self, keeper: Path, is_quiet: bool) -> None:
        self._environment = {**_without_outer_job(os.environ), KEEPER_VARIABLE: str(keeper)}
        # Answers for machines stand alone on the standard output.
        self._output = sys.stderr if is_quiet else sys.stdout
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._printing = threading.Lock()
        self._threads: list[threading.Thread] = []
        self.lines = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with _as_interrupts(ends=self._kill):
            self._end()
        for thread in self._threads:
            # What a program has left behind, in a session of its own, may still have the pipe.
            thread.join(timeout=_LAST_LINES_SECONDS)

    def start(self, name: str, words: list[str]) -> None:
        """Start one; its lines are printed behind its name, and the rank if its starter says it."""
        if not words:
            raise CouplingError(f"can't start {name}: got no command")
        words, tag = _tagged(words, self._environment)
        try:
            process = subprocess.Popen(
                words,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except FileNotFoundError as error:
            known = f" (this Python is {sys.executable})" if "python" in words[0] else ""
            raise CouplingError(
                f"can't start {name}: there is no program {words[0]!r}. Expected one that the PATH has, or a whole path{known}"
            ) from error
        except OSError as error:
            raise CouplingError(f"can't start {name}: {error}") from error
        self._running[name] = process
        assert process.stdout is not None
        thread = threading.Thread(target=self._print, args=(name, process.stdout, tag), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _print(self, name: str, lines: IO[str], tag: _Tags | None) -> None:
        with lines:
            for line in lines:
                who, text = name, line
                if tag and (said := tag.pattern.match(line)):
                    who, text = f"{name} {said[1]}", line[said.end() :]
                    if tag.is_repeated:
                        text = tag.pattern.sub("", text)
                    elif tag.is_repeated_at_end:
                        text = text.removesuffix(f"{said[0]}\n")
                self.lines += 1
                # Who reads our output may have seen enough (`| head`): the program goes on all the same.
                with self._printing, contextlib.suppress(BrokenPipeError):
                    print(f"{who} | {one_line(text.rstrip())}", file=self._output, flush=True)

    def wait(
        self,
        ended: Callable[[str], None],
        elsewhere: "_Elsewhere",
        look: Callable[[], None],
    ) -> None:
        """Wait until all have ended, and those elsewhere; soon, when one has failed.

        `ended` is told of each, `look` called again and again.
        """
        deadline = None
        told: set[str] = set()
        while len(told) < len(self._running) or elsewhere(has_failed=deadline is not None):
            codes = self.codes()
            for name in {name for name, code in codes.items() if code is not None} - told:
                told.add(name)
                ended(name)
            if deadline is None and any(codes.values()):
                deadline = time.monotonic() + _GRACE_SECONDS
            runs = len(told) < len(self._running)
            if runs and deadline is not None and time.monotonic() > deadline:
                self._end()
            look()
            time.sleep(_LOOK_SECONDS)

    def codes(self) -> dict[str, int | None]:
        """How each has ended, as a shell counts; None while it runs."""
        ended = {name: process.poll() for name, process in self._running.items()}
        return {
            name: code if code is None or code >= 0 else 128 - code for name, code in ended.items()
        }

    def _end(self) -> None:
        """End those that still run, and whatever the others have left behind."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + _KILL_SECONDS
        while time.monotonic() < deadline and self._left():
            self.codes()
            time.sleep(_LOOK_SECONDS)
        self._signal(signal.SIGKILL)
        for process in self._running.values():
            process.wait()

    def _kill(self) -> None:
        """End all at once."""
        self._signal(signal.SIGKILL)

    def _left(self) -> bool:
        return any(self._has_processes(process.pid) for process in self._running.values())

    @staticmethod
    def _has_processes(group: int) -> bool:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, 0)
            return True
        return False

    def _signal(self, number: signal.Signals) -> None:
        for process in self._running.values():
            # Polled first: a process that has ended, but was not waited for, would count.
            process.poll()
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)


class _Quiet:
    """Says who waits for what when nothing has moved and nobody has printed for a while, and each time only after twice as long."""

    def __init__(
        self,
        seen: Callable[[], dict[str, Any]],
        programs: _Programs,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._seen = seen
        self._programs = programs
        self._clock = clock
        self._last: object = None
        self._is_said = False
        self._seconds = _QUIET_SECONDS
        self._since = self._next = clock()

    def __call__(self) -> None:
        """Look whether anything has moved, when it is time to."""
        now = self._clock()
        if now < self._next:
            return
        self._next = now + _QUIET_SECONDS / _QUIET_LOOKS
        seen = self._seen()
        versions = [one["versions"] for one in seen["connections"]]
        moved = (self._programs.lines, versions, seen["waits"])
        if moved != self._last:
            self._last, self._is_said, self._since = moved, False, now
        elif now - self._since >= self._seconds and not self._is_said:
            lines = _waits(seen) or _missing(seen)
            if not lines:
                return
            self._is_said = True
            quiet = f"nothing has moved for {self._seconds:g} s:"
            print(quiet, *lines, sep="\n", file=sys.stderr, flush=True)
            # Programs with long steps are not slow for anybody who knows them.
            self._seconds *= 2


def _waits(seen: dict[str, Any]) -> list[str]:
    """Say who waits for what: nothing, if nobody does."""
    return _first([wait["text"] for wait in seen["waits"]])


def _missing(seen: dict[str, Any]) -> list[str]:
    """Say who has to attach, or to describe an array, before connections can be used."""
    return _first(sorted({one["missing"] for one in seen["connections"] if one["missing"]}))


def _first(waits: list[str]) -> list[str]:
    more = [f"and {len(waits) - _WAITS} more"] if len(waits) > _WAITS else []
    return waits[:_WAITS] + more


def _failures(seen: dict[str, Any], codes: dict[str, int | None]) -> list[str]:
    """Say which processes and programs have failed: the reasons for the exit code 1, but for connections, which have theirs in the table.

    A program can end with 0 although a process of it was lost: it has caught the exception, or its starter hides what the process said.
    """
    lines = []
    if seen["first_lost"]:
        program, rank, why = seen["first_lost"]
        lines.append(f"lost first: rank {rank} of {program} ({why})")
    for name, why in seen["refusals"]:
        # Who had attached before counts as lost.
        if not seen["first_lost"] or why not in seen["first_lost"][2]:
            lines.append(f"refused: a process of {one_line(name)} ({one_line(why)})")
    for name, code in codes.items():
        if code:
            lines.append(f"{name} ended with exit code {code}")
    return lines


def _text(seen: dict[str, Any], codes: dict[str, int | None]) -> str:
    lines = _failures(seen, codes)
    rows = []
    for one in seen["connections"]:
        moved = "unknown" if one["bytes"] is None else size_text(one["bytes"])
        versions = "unknown" if one["versions"] is None else one["versions"]
        rows.append((one["name"], versions, moved, _rate(one), _method(one)))
    lines.append(table(("connection", "versions", "moved", "copied at", "method"), rows))
    return "\n".join(lines)


def _rate(one: dict[str, Any]) -> str:
    """How fast copies in shared memory were: between hosts none is one, and the network's speed isn't known here."""
    if not one["nanoseconds"]:
        return "-"
    return f"{one['bytes'] / one['nanoseconds']:.1f} GB/s"


def _method(one: dict[str, Any]) -> str:
    """How a connection moves versions, or why it has moved none."""
    if one["state"] == "failed":
        return str(one["reason"])
    if one["state"] == "waiting":
        return f"never ready: {one['missing']}" if one["missing"] else "never ready"
    if one["unmoved"]:
        return f"nothing moved: {one['unmoved']}"
    return "between hosts" if one["between_hosts"] else "shared memory"
