"""``exoskel run``: a program of a Python file over a source into a sink."""

import argparse
import builtins
import contextlib
import functools
import operator
import os
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..contracts import Contract, Deadline, ParDegree, Throughput
from ..formats import Files, JsonLines, Lines, Records
from ..options import DISCOVER, ManagerOptions
from ..skeletons import Skeleton, skeleton_of
from . import UsageError
from .report import Commands, report
from .run_failure import explained

if TYPE_CHECKING:
    from ..launchers import Launcher

__all__ = ["add_commands"]

_KINDS = "jsonl:FILE, lines:FILE, files:FOLDER, files:FOLDER/PATTERN or records:FILE:DTYPE:SHAPE"
# What there is nobody for in a run without a manager.
_OF_SLOTS = (
    "journal",
    "workers",
    "credential",
    "policy",
    "slots",
    "throughput",
    "deadline",
    "timeout",
    "retries-on",
    "launch",
    "stragglers",
)
_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".txt": "lines"}


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``run``."""
    parser = commands.add_parser(
        "run",
        parents=[common],
        help="run a program of a Python file over a source into a sink",
        description="Run a program over the items of a source, and put the results into a sink, in the order of the items. With "
        "--journal, the same command goes on after any end, and each result is in the sink exactly once. "
        "The standard streams are jsonl:- and lines:-; what functions print goes to standard error then, and with --json.",
    )
    parser.add_argument(
        "program",
        metavar="FILE:NAME",
        help="a Python file, and the name of a function or skeleton in it",
    )
    parser.add_argument(
        "--source",
        required=True,
        metavar="SOURCE",
        help=f"where the items come from: {_KINDS}; or the NAME of one in the Python file. A folder, and the endings .jsonl and .txt, say the kind, too",
    )
    parser.add_argument(
        "--sink", required=True, metavar="SINK", help="where the results go; the same kinds"
    )
    parser.add_argument(
        "--journal",
        metavar="FILE",
        help="says how far the run has come; it is made if it isn't there",
    )
    parser.add_argument(
        "--errors",
        choices=("raise", "skip"),
        default="raise",
        help="what an exception does: end the run (default), or leave the item out",
    )
    parser.add_argument(
        "--slots",
        type=_degree,
        metavar="N",
        help="how many slots to use, or from 2 to 8 of them: 2-8 (default: as many as cores). With --workers, the default is as many as help; with --launch ssh, one for each host",
    )
    parser.add_argument(
        "--throughput",
        type=float,
        metavar="RATE",
        help="keep this many items a second, with as few slots as that needs",
    )
    parser.add_argument(
        "--deadline",
        type=_deadline,
        metavar="SECONDS:ITEMS",
        help="have so many items done after so many seconds, with as few slots as that needs",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="SECONDS",
        help="how long an item may run (default: for ever)",
    )
    parser.add_argument(
        "--retries-on",
        metavar="CLASS,CLASS",
        help="exceptions after which an item runs again: names in the Python file, or Python's own, such as OSError",
    )
    parser.add_argument(
        "--launch",
        metavar="WHERE",
        help="start the slots on other hosts: ssh:HOST,HOST as ssh knows them, or slurm for all nodes of an allocation, slurm:NODES",
    )
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="with --launch ssh: the Python of the hosts that has Exoskel (default: python3)",
    )
    parser.add_argument(
        "--workers",
        metavar="HOSTS",
        action="append",
        help="a file with one `host:port NAME` a line; or discover: workers of this network that announce themselves, if the "
        "[discover] of the policy allows their names. Both, if it is given twice",
    )
    parser.add_argument("--credential", metavar="FILE", help="what the manager proves itself by")
    parser.add_argument("--policy", metavar="FILE", help="the policy (TOML)")
    parser.add_argument(
        "--stragglers",
        type=float,
        metavar="TIMES",
        help="run an item at a second slot as well when it takes more than so many times as long as usual; for functions without effects",
    )
    parser.add_argument(
        "--sequential", action="store_true", help="run without a manager, one item after the other"
    )
    parser.add_argument(
        "--progress",
        action=argparse.BooleanOptionalAction,
        help="show a progress bar on standard error (default: on a terminal)",
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    try:
        return _run_whole(arguments)
    except Exception as error:
        raise explained(error) from None
    except KeyboardInterrupt:
        if arguments.journal is None:
            raise
        raise KeyboardInterrupt(
            "interrupted; the same command goes on where this run was"
        ) from None


def _run_whole(arguments: argparse.Namespace) -> int:
    names = _load(arguments.program)
    try:
        program = skeleton_of(names.pop(""), arguments.program)
    except TypeError as error:
        raise UsageError(str(error)) from None
    source = _place(arguments.source, names, is_source=True)
    sink = _place(arguments.sink, names, is_source=False)
    has_output = arguments.json or arguments.sink.endswith(":-")
    # What functions print is no result.
    with contextlib.redirect_stdout(sys.stderr) if has_output else contextlib.nullcontext():
        if arguments.sequential:
            summary = _run_sequential(arguments, program, source, sink)
        else:
            summary = _run_on_slots(arguments, program, source, sink, names)
    # Results may go to standard output.
    if not arguments.sink.endswith(":-"):
        data = {"results": summary.results, "skipped": summary.skipped, "earlier": summary.earlier}
        data["history"] = summary.history.as_dicts()
        # What was decided is told where there was something to decide.
        kinds = {change.kind for change in summary.history}
        text = f"{summary}\n{summary.history}" if kinds > {"begin"} else str(summary)
        report(arguments, text, data)
    return 0


def _run_on_slots(
    arguments: argparse.Namespace,
    program: Skeleton[Any, Any],
    source: Any,
    sink: Any,
    names: dict[str, Any],
) -> Any:
    from ..runs import run

    options: ManagerOptions = {}
    contract: Contract | None = None
    if arguments.workers is not None:
        options["workers"] = _workers(arguments.workers)
    elif arguments.credential is not None:
        raise UsageError(
            "got --credential without --workers, expected both: it is shown to workers"
        )
    for name in ("credential", "policy", "stragglers", "timeout"):
        if getattr(arguments, name) is not None:
            options[name] = getattr(arguments, name)
    if arguments.retries_on is not None:
        options["retries_on"] = _exceptions(arguments.retries_on, names)
    if arguments.launch is not None:
        options["launch"], contract = _launcher(arguments)
    elif arguments.python is not None:
        raise UsageError("got --python without --launch ssh:HOST,HOST, expected both")
    rate = None if arguments.throughput is None else Throughput(arguments.throughput)
    kept = [one for one in (rate, arguments.deadline) if one is not None]
    if kept:
        degree = [arguments.slots] if arguments.slots else []
        contract = functools.reduce(operator.and_, [*kept, *degree])
    elif arguments.slots is not None:
        contract = arguments.slots
    return run(
        program,
        source,
        sink,
        contract,
        journal=arguments.journal,
        errors=arguments.errors,
        progress=arguments.progress,
        **options,
    )


def _workers(said: list[str]) -> str | list[str]:
    """Return the workers as a manager takes them."""
    files = [one for one in said if one != DISCOVER]
    if len(files) > 1 or len(said) - len(files) > 1:
        raise UsageError(f"got --workers {' and '.join(said)}, expected a file, discover, or both")
    if len(said) == 1:
        return said[0]
    return [*Path(files[0]).read_text(encoding="utf-8-sig").splitlines(), DISCOVER]


def _launcher(arguments: argparse.Namespace) -> "tuple[Launcher, Contract | None]":
    """Return what starts slots elsewhere, and how many of them if nothing is said."""
    from ..launchers import Ssh
    from ..slurm_launcher import Slurm

    kind, _, rest = arguments.launch.partition(":")
    if kind == "ssh" and rest:
        hosts = rest.split(",")
        return Ssh(hosts, python=arguments.python or "python3"), ParDegree(len(hosts))
    if kind == "slurm" and (not rest or rest.isdecimal()) and arguments.python is None:
        nodes = int(rest) if rest else None
        return Slurm(nodes), None
    raise UsageError(
        f"got --launch {arguments.launch!r}, expected ssh:HOST,HOST, slurm or slurm:NODES; --python goes with ssh"
    )


def _run_sequential(
    arguments: argparse.Namespace, program: Skeleton[Any, Any], source: Any, sink: Any
) -> Any:
    from ..runs import run_here

    for name in _OF_SLOTS:
        if getattr(arguments, name.replace("-", "_")) is not None:
            raise UsageError(f"got --{name} with --sequential, expected one of them")
    return run_here(program, source, sink, arguments.errors)


def _degree(text: str) -> ParDegree:
    least, dash, most = text.partition("-")
    try:
        return ParDegree(int(least), int(most) if dash else None)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"got {text}, expected 4 or 2-8") from error


def _deadline(text: str) -> Deadline:
    seconds, _, items = text.partition(":")
    try:
        return Deadline(float(seconds), int(items))
    except ValueError as error:
        expected = "SECONDS:ITEMS, such as 600:1000 for 1000 items in ten minutes"
        raise argparse.ArgumentTypeError(f"got {text}, expected {expected}") from error


def _exceptions(words: str, names: dict[str, Any]) -> tuple[type[Exception], ...]:
    found = []
    for word in map(str.strip, words.split(",")):
        one = names.get(word, getattr(builtins, word, None))
        if not (isinstance(one, type) and issubclass(one, Exception)):
            raise UsageError(
                f"got --retries-on {word}, expected the name of a class of exceptions: one of the Python file, or Python's own"
            )
        found.append(one)
    return tuple(found)


def _load(named: str) -> dict[str, Any]:
    """Run a Python file as the script, though not as the one that was started; what is named stands under "" as well."""
    file, colon, name = named.rpartition(":")
    if not colon or not name.isidentifier():
        raise UsageError(
            f"got {named!r}, expected a Python file and a name in it, such as job.py:shots"
        )
    if not os.path.isfile(file):
        raise FileNotFoundError(2, "no such file", file)
    sys.path.insert(0, os.path.dirname(os.path.abspath(file)))
    # As `multiprocessing` does it in its children: what stands under `if __name__ == "__main__":` doesn't run.
    module = type(sys)("__mp_main__")
    names = runpy.run_path(file, run_name="__mp_main__")
    module.__dict__.update(names)
    module.__file__ = os.path.abspath(file)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    if name not in names:
        raise UsageError(f"got {named!r}, but {file} has no {name!r}")
    return {**names, "": names[name]}


def _place(word: str, names: dict[str, Any], *, is_source: bool) -> Any:
    """Return the source or sink that a word of the command line says."""
    kind, colon, rest = word.partition(":")
    if not colon:
        if word in names:
            return names[word]
        kind, rest = _ENDINGS.get(Path(word).suffix, ""), word
        # A file may have such characters in its name.
        is_pattern = any(wild in os.path.basename(word) for wild in "*?[")
        is_pattern = is_pattern and is_source and not os.path.lexists(word)
        if is_pattern or word.endswith("/") or os.path.isdir(word):
            kind = "files"
    match kind:
        case "jsonl":
            return JsonLines(rest)
        case "lines":
            return Lines(rest)
        case "files":
            folder, pattern = os.path.split(rest)
            if any(wild in pattern for wild in "*?["):
                return Files(folder or ".", pattern)
            return Files(rest)
        case "records":
            file, dtype, shape = _words_of_records(word, rest)
            return Records(file, dtype, shape)
    raise UsageError(
        f"got {word!r}, expected {_KINDS}, or a name in the Python file; the standard streams are jsonl:- and lines:-"
    )


def _words_of_records(word: str, rest: str) -> tuple[str, str, tuple[int, ...]]:
    try:
        file, dtype, shape = rest.rsplit(":", 2)
        return file, dtype, tuple(int(length) for length in shape.split("x"))
    except ValueError:
        raise UsageError(
            f"got {word!r}, expected records:FILE:DTYPE:SHAPE, such as records:scan.raw:f4:256x256"
        ) from None
