"""``exoskel couple``: start parallel programs that hand arrays to each other, and see what moves."""

import argparse
import contextlib
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import IO, Any, Self

from .. import _core
from ..errors import CouplingError
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


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``couple``."""
    parser = commands.add_parser(
        "couple",
        parents=[common],
        help="start parallel programs that hand arrays to each other",
        description="Start the programs that a file names, with a keeper that holds their arrays, and wait until all have ended. Their output is "
        "printed with their names before each line. At the end a table says what moved over each connection. When one program fails, the "
        f"others are told at their next read or write, and ended after {_GRACE_SECONDS:.0f} seconds. docs/guide/coupling.md explains the file.",
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="the coupling, e.g. climate.toml")
    add_node_arguments(parser, is_listening_required=False)
    parser.set_defaults(run=_couple)


def _couple(arguments: argparse.Namespace) -> int:
    text = arguments.file.read_text()
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
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="exoskel-"))
        place = Path(folder, "keeper")
        if arguments.listen is None:
            keeper = _core.Keeper(place, text)
        else:
            node = stack.enter_context(node_of(arguments, _policy_of(arguments, Path(folder))))
            keeper = _core.Keeper.lead(place, text, node._node)
            print(
                f"keepers of other hosts join by: exoskel keeper --join tcp://{node.hints[0]} --coupler {node.name} --listen tcp://HOST:PORT "
                "--credential FILE",
                file=sys.stderr,
                flush=True,
            )
        try:
            with _as_interrupts(), _Programs(place, arguments.json) as running:
                for name, command in programs:
                    if command is not None:
                        running.start(name, shlex.split(command))

                def elsewhere() -> bool:
                    return _run_elsewhere(keeper.report(), without)

                try:
                    running.wait(keeper.program_ended, elsewhere)
                except KeyboardInterrupt:
                    # What hung may be seen here.
                    print(_text(keeper.report(), running.codes()), file=sys.stderr)
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
    answer = {**seen, "programs": programs_seen}
    report(arguments, _text(seen, codes), answer)
    has_failed = any(one["state"] == "failed" for one in seen["connections"])
    return 1 if has_failed or any(codes.values()) else 0


def _policy_of(arguments: argparse.Namespace, folder: Path) -> Path:
    """Return the policy that was given, or one by which every peer of the own authority may join."""
    if arguments.policy is not None:
        return Path(arguments.policy)
    policy = folder / "policy.toml"
    policy.write_text(_POLICY)
    return policy


def _run_elsewhere(seen: dict[str, Any], names: list[str]) -> bool:
    """Say whether programs that were started elsewhere are still to come, or to go."""
    gone = {name: size == left for name, _, size, left in seen["programs"]}
    return seen["first_lost"] is None and not all(gone.get(name, False) for name in names)


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
        self._environment = {**os.environ, KEEPER_VARIABLE: str(keeper)}
        # Answers for machines stand alone on the standard output.
        self._output = sys.stderr if is_quiet else sys.stdout
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._printing = threading.Lock()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        with _as_interrupts(ends=self._kill):
            self._end()
        for thread in self._threads:
            # What a program has left behind, in a session of its own, may still have the pipe.
            thread.join(timeout=_LAST_LINES_SECONDS)

    def start(self, name: str, words: list[str]) -> None:
        """Start one; its lines are printed behind its name."""
        if not words:
            raise CouplingError(f"can't start {name}: got no command")
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
        except OSError as error:
            raise CouplingError(f"can't start {name}: {error}") from error
        self._running[name] = process
        assert process.stdout is not None
        thread = threading.Thread(target=self._print, args=(name, process.stdout), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _print(self, name: str, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                # Who reads our output may have seen enough (`| head`): the program goes on all the same.
                with self._printing, contextlib.suppress(BrokenPipeError):
                    print(f"{name} | {one_line(line.rstrip())}", file=self._output, flush=True)

    def wait(self, ended: Callable[[str], None], elsewhere: Callable[[], bool]) -> None:
        """Wait until all have ended, and those elsewhere; soon, when one has failed. `ended` is told of each."""
        deadline = None
        told: set[str] = set()
        while len(told) < len(self._running) or (deadline is None and elsewhere()):
            codes = self.codes()
            for name in {name for name, code in codes.items() if code is not None} - told:
                told.add(name)
                ended(name)
            if deadline is None and any(codes.values()):
                deadline = time.monotonic() + _GRACE_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                self._end()
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


def _text(seen: dict[str, Any], codes: dict[str, int | None]) -> str:
    lines = []
    if seen["first_lost"]:
        program, rank, why = seen["first_lost"]
        lines.append(f"lost first: rank {rank} of {program} ({why})")
    for name, code in codes.items():
        if code:
            lines.append(f"{name} ended with exit code {code}")
    rows = []
    for one in seen["connections"]:
        seconds = one["nanoseconds"] / 1e9
        rate = f"{one['bytes'] / seconds / 1e9:.1f} GB/s" if seconds else "-"
        ready = "between hosts" if one["between_hosts"] else "shared memory"
        what = one["reason"] or {"waiting": "never ready", "ready": ready}[one["state"]]
        rows.append((one["name"], one["versions"], size_text(one["bytes"]), rate, what))
    lines.append(table(("connection", "versions", "moved", "copied at", "method"), rows))
    return "\n".join(lines)
