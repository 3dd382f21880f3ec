"""``exoskel sim``: the session-key cache and the whole system in simulation, with the parts that the runtime uses."""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..peer_text import one_line
from . import INTERRUPTED, UsageError
from .report import Commands, report, report_error, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sim import Table
    from ..sim.seeds import SystemRun

__all__ = ["add_commands"]

# Where a run ends that isn't told where its files go.
OUT = Path("key-cache-paper")
# Where there is no terminal (a log file, a batch system), one line this often.
LINE_SECONDS = 5.0
# What `--config` shows of a run; the CSV file has all.
SHOWN = ("hit_rate", "latency_us", "latency_p99_us", "completion_ms")
# What each way of running knows, the first one that is asked for; a scenario may be given other traces.
OPTIONS = {
    "--paper": ("--out", "--figure", "--seeds", "--quick", "--traces"),
    "--config": ("--out", "--seeds"),
    "--trace": ("--entries", "--ways", "--lookup", "--policy", "--rank", "--live"),
}


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``sim capacity``, ``sim keycache``, ``sim pack``, ``sim on-off``, ``sim requests`` and ``sim system``."""
    parser = commands.add_parser(
        "sim",
        help="simulate session-key caches (how many keys fit, what a miss costs), or the whole system with faults",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_capacity(actions, common)
    _add_keycache(actions, common)
    _add_pack(actions, common)
    _add_synthetic(actions, common)
    _add_system(actions, common)


def _add_capacity(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = actions.add_parser(
        "capacity",
        parents=[common],
        help="how many peers a cache of so many keys serves, by the ON/OFF model",
        description="Answer with the largest number of peers for which a cache holds all keys in use at once, with the given probability. Each peer talks (ON) "
        "and is silent (OFF) in turn. Example: exoskel sim capacity --entries 128 --off-on 7.66 --hit 0.9",
    )
    parser.add_argument(
        "--entries", type=int, required=True, metavar="N", help="keys that the cache holds"
    )
    parser.add_argument(
        "--off-on",
        type=float,
        required=True,
        metavar="RATIO",
        help="mean silent time over mean talking time of a peer",
    )
    parser.add_argument(
        "--hit",
        type=float,
        default=0.9,
        metavar="P",
        help="the probability, between 0 and 1 (default: 0.9)",
    )
    parser.set_defaults(run=_capacity)


def _add_keycache(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = actions.add_parser(
        "keycache",
        parents=[common],
        help="run a trace or a scenario through a session-key cache, or make all figures of the paper",
        description="One of: --trace FILE --entries N (a hit rate: keys only, no time); --config FILE (interconnect cards, switches and schedulers in "
        "virtual time); --paper (every table and figure of the paper that this repeats). docs/key-cache-study.md explains the scenario file, "
        "docs/paper-key-cache.md what came out.",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="messages of a parallel program, as `exoskel sim pack` and Manager(trace=...) write them (.skct, .skct.zst)",
    )
    parser.add_argument(
        "--entries", type=int, metavar="N", help="keys that the cache of each rank holds"
    )
    parser.add_argument(
        "--ways",
        type=int,
        metavar="W",
        help="places where a key may be (default: all, fully associative)",
    )
    parser.add_argument(
        "--lookup",
        choices=("message", "packet"),
        help="what asks for a key: each message (default), or each packet of 256 bytes, those of a message one after another",
    )
    parser.add_argument(
        "--policy",
        choices=("lru", "clock", "s3-fifo"),
        help="which key leaves when another needs its place (default: lru)",
    )
    parser.add_argument(
        "--rank",
        type=int,
        metavar="R",
        help="look at this rank's cache alone: 0 is the manager in what Manager(trace=...) wrote (default: all, pooled)",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="with --trace: run it over real links between local nodes, beside what the simulation predicts",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a scenario (TOML)")
    parser.add_argument(
        "--paper",
        action="store_true",
        help="make the paper's tables and figures (needs matplotlib)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where CSV, PNG and SVG files go (default: key-cache-paper with --paper, else none are made)",
    )
    parser.add_argument(
        "--figure",
        action="append",
        metavar="NAME",
        help="with --paper: only this one; can be repeated: 3, 5, 5d, 6, 7, 8, 9, table-1, table-silicon, lookups, policies, sensitivity, key-memory",
    )
    parser.add_argument(
        "--seeds",
        type=int,
        metavar="N",
        help="runs of each point, each with its own seed (default: 20 with --paper, else 1)",
    )
    parser.add_argument(
        "--quick", action="store_true", help="with --paper: little input, to see that it works"
    )
    parser.add_argument(
        "--traces",
        type=Path,
        metavar="DIR",
        help="with --paper: where the traces of the NAS benchmarks are (default: traces, in the working directory)",
    )
    parser.set_defaults(run=_keycache)


def _add_pack(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = actions.add_parser(
        "pack",
        parents=[common],
        help="make a trace of what the MPI tracer or SimGrid wrote",
        description="Make one trace (.skct) of the folder that the MPI tracer wrote (tracer/README.md), or of a time-independent trace of SimGrid: "
        "its file, or a list of its files.",
    )
    parser.add_argument("source", type=Path, metavar="SOURCE", help="the folder or the file")
    parser.add_argument("out", type=Path, metavar="FILE", help="the trace that is written")
    parser.add_argument("--name", metavar="NAME", help="what it is called (default: as the file)")
    parser.add_argument(
        "--operations-per-second",
        type=float,
        metavar="RATE",
        help="how fast a program of SimGrid's computed: smpi/host-speed of the run that wrote the trace, where smpirun's own default is 20000 (default: 1e9)",
    )
    parser.set_defaults(run=_pack)


def _add_synthetic(actions: Commands, common: argparse.ArgumentParser) -> None:
    def add(name: str, what: str, description: str, numbers: dict[str, tuple[int, str]]) -> None:
        parser = actions.add_parser(name, parents=[common], help=what, description=description)
        parser.add_argument("out", type=Path, metavar="FILE", help="the trace that is written")
        numbers = {**numbers, "seed": (0, "the same one gives the same trace on every machine")}
        for number, (usual, says) in numbers.items():
            parser.add_argument(
                f"--{number.replace('_', '-')}",
                type=int,
                default=usual,
                metavar="N",
                help=f"{says} (default: {usual})",
            )
        parser.set_defaults(run=_synthetic, traffic=name.replace("-", "_"), numbers=[*numbers])

    add(
        "on-off",
        "make up a trace: processes that are silent and send to one other process, in turn",
        "Make a trace (.skct) of processes that are silent (OFF) and then send to one other process (ON), in turn, each for times drawn evenly between 0 and "
        "twice their means. Nobody waits for anybody before the end.",
        {
            "ranks": (16, "processes"),
            "periods": (200, "ON periods of each process"),
            "messages": (20, "messages of an ON period"),
            "message_bytes": (256, "bytes of a message"),
            "gap_ns": (5_000, "mean time between two messages of an ON period"),
            "off_ns": (766_000, "mean time between two ON periods"),
        },
    )
    add(
        "requests",
        "make up a trace: requests and answers of processes that ask some more often than others",
        "Make a trace (.skct) in which each process asks others, by Zipf's law, and answers them: 8 bytes and 72. It stands in for SPECjbb2000, which isn't free, "
        "and is no measurement of it.",
        {"ranks": (16, "processes"), "each": (1_000, "requests of each process")},
    )


def _add_system(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = actions.add_parser(
        "system",
        parents=[common],
        help="play a manager, its workers and users in virtual time, with faults, from seeds",
        description="Play the whole system in virtual time, with what goes wrong, and check what is promised. One of: --seed N (one seed), --from N --count M "
        "(many, on all processors), --minutes T (fresh ones for so long). Each is played twice, and both plays must be the same. Exit code 1 if a promise "
        "was broken, 130 if none was until Ctrl-C. docs/virtual-time.md explains what is real in it. Example: exoskel sim system --minutes 5",
    )
    parser.add_argument("--seed", type=int, metavar="N", help="play this seed")
    parser.add_argument(
        "--scenario",
        action="store_true",
        help="with --seed: print what it is made of, too (shown in any case if it fails)",
    )
    parser.add_argument(
        "--from", dest="first", type=int, metavar="N", help="the first of many seeds"
    )
    parser.add_argument("--count", type=int, metavar="M", help="how many seeds")
    parser.add_argument(
        "--minutes",
        type=float,
        metavar="T",
        help="play seeds for so long; fresh ones, unless --from says where to begin",
    )
    parser.set_defaults(run=_system)


def _pack(arguments: argparse.Namespace) -> int:
    from ..sim.import_trace import pack

    rate = arguments.operations_per_second
    if rate is not None and not 0 < rate < math.inf:
        raise UsageError(f"got --operations-per-second {rate:g}, expected a positive number")
    given = {} if rate is None else {"operations_per_second": rate}
    packed = pack(arguments.source, arguments.out, name=arguments.name, **given)
    notes = [one_line(packed.note)] if packed.note else []
    taken = packed.operations_per_second
    if rate is None and taken is not None:
        notes.append(
            f"computed at {taken:g} operations a second: say --operations-per-second if that is wrong"
        )
    text = (
        f"{packed.file}: {'; '.join([f'{packed.records} calls of {packed.ranks} ranks', *notes])}"
    )
    report(arguments, text, {**packed._asdict(), "file": str(packed.file)})
    return 0


def _synthetic(arguments: argparse.Namespace) -> int:
    from .. import sim
    from ..sim.files import named

    make = getattr(sim, arguments.traffic)
    with _as_usage():
        made = make(arguments.out, **{name: getattr(arguments, name) for name in arguments.numbers})
    text = f"{named(made.file)}: {made.records} calls of {made.ranks} ranks; {made.note}"
    report(arguments, text, {**made._asdict(), "file": str(made.file)})
    return 0


def _capacity(arguments: argparse.Namespace) -> int:
    from .. import sim

    with _as_usage():
        answer = sim.capacity(arguments.entries, arguments.off_on, arguments.hit)
    data = {"entries": arguments.entries, "off_on": arguments.off_on, "hit": arguments.hit}
    report(arguments, str(answer), {"capacity": answer, **data})
    return 0


def _keycache(arguments: argparse.Namespace) -> int:
    ways = {
        "--paper": arguments.paper,
        "--config": arguments.config is not None,
        "--trace": arguments.trace is not None,
    }
    if arguments.paper and (ways["--config"] or ways["--trace"]):
        raise UsageError("got --paper with another input, expected it alone: it brings its own")
    _check_options(arguments, next((way for way in OPTIONS if ways[way]), ""))
    try:
        if arguments.paper:
            return _paper(arguments)
        if ways["--config"]:
            return _scenario(arguments)
    except ModuleNotFoundError as error:
        if error.name not in {"matplotlib", "numpy"}:
            raise
        raise ValueError(
            f"got no {error.name}, expected it for tables and figures: pip install '.[plot]' in a checkout of Exoskel"
        ) from None
    if ways["--trace"]:
        return _trace(arguments)
    raise UsageError(
        "got nothing to run, expected --trace FILE --entries N, --config FILE or --paper"
    )


@contextlib.contextmanager
def _as_usage() -> Iterator[None]:
    """For what refuses nothing but the values of options."""
    try:
        yield
    except ValueError as error:
        raise UsageError(*error.args) from error


def _check_options(arguments: argparse.Namespace, way: str) -> None:
    """Refuse what a way of running doesn't know, so that nobody takes it for done."""
    known = OPTIONS.get(way, ())
    for option in dict.fromkeys(option for options in OPTIONS.values() for option in options):
        given = getattr(arguments, option.removeprefix("--"))
        # 0 is given, too.
        if given is not None and given is not False and option not in known:
            fitting = [name for name, options in OPTIONS.items() if option in options]
            raise UsageError(
                f"got {option} with {way or 'nothing to run'}, expected it with {' or '.join(fitting)}"
            )


def _trace(arguments: argparse.Namespace) -> int:
    from ..sim.runs import execute, read_trace, trace_run

    if arguments.entries is None:
        raise UsageError("entries: got none, expected --entries N, the keys that a cache holds")
    if arguments.live:
        return _live(arguments)
    trace = read_trace(arguments.trace)
    lookup, policy = arguments.lookup or "message", arguments.policy or "lru"
    with _as_usage():
        run = trace_run(trace, arguments.entries, arguments.ways, lookup, policy, arguments.rank)
        [row] = execute([run])
    ranks = (
        f"{trace.ranks} ranks"
        if arguments.rank is None
        else f"rank {arguments.rank} of {trace.ranks}"
    )
    text = (
        f"{one_line(row['trace'])}: hit rate {_rate(row['hit_rate'])} ({row['hits']} of {row['lookups']} lookups, one for each "
        f"{row['lookup']}; {ranks}, {row['entries']} entries, {row['ways']} ways, {row['policy']})"
    )
    data = {**_numbers(row), "ranks": trace.ranks, "file": str(arguments.trace)}
    report(arguments, text, data)
    return 0


def _rate(rate: float) -> str:
    """A share for people; of nothing there is none."""
    return "-" if math.isnan(rate) else f"{rate:.6f}"


def _live(arguments: argparse.Namespace) -> int:
    from ..sim.live_runs import live

    if arguments.lookup == "packet" or arguments.policy not in (None, "lru"):
        raise UsageError(
            "got --live with --lookup or --policy, expected neither: nodes look up messages, by LRU"
        )
    if arguments.rank is not None:
        raise UsageError("got --live with --rank, expected it without: all ranks' nodes run")
    found = live(arguments.trace, arguments.entries, ways=arguments.ways)
    text = (
        f"{one_line(found.trace)}: hit rate {_rate(found.hit_rate)} over real links, {_rate(found.predicted_hit_rate)} predicted "
        f"({found.hits} of {found.lookups} lookups, {found.predicted_hits} of {found.predicted_lookups}; {arguments.entries} entries; "
        "each direction has a key, so peers that talk both ways take two entries, not one as without --live)"
    )
    report(arguments, text, {**_numbers(found._asdict()), "file": str(arguments.trace)})
    return 0


def _scenario(arguments: argparse.Namespace) -> int:
    from .. import sim
    from ..sim.files import named, ready
    from ..sim.runs import Stopped

    if arguments.out is not None:
        ready(arguments.out)
    try:
        with _shown(arguments) as progress:
            runs = sim.keycache(
                arguments.trace,
                scenario=arguments.config,
                seeds=arguments.seeds,
                progress=lambda done, total: progress(named(arguments.config.name), done, total),
            )
    except Stopped as stopped:
        if not stopped.rows:
            raise
        # What is done is answered, and kept beside what an earlier time has finished.
        _answer(arguments, stopped.table, str(stopped))
        return INTERRUPTED if isinstance(stopped, KeyboardInterrupt) else 1
    return _answer(arguments, runs)


def _answer(arguments: argparse.Namespace, runs: Table, reason: str | None = None) -> int:
    """Print what the runs of a scenario have measured, and keep it; also if that isn't all, for a reason."""
    files: list[Path] = []
    if arguments.out is not None:
        try:
            files = _kept(runs, arguments.out, arguments.config)
        except OSError as error:
            # The runs took longer than another look at the disk does.
            unkept = f"{error.filename}: {str(error.strerror).lower()}"
            reason = unkept if reason is None else f"{reason}; {unkept}"
    names = [str(file) for file in files]
    data = {"parameters": runs.parameters, "runs": [_numbers(row) for row in runs.rows]}
    kept = {"file": names[0], "files": names} if names else {}
    failed = {"error": reason} if reason is not None else {}
    report(arguments, "\n".join([_means(runs), *names]), {**data, **kept, **failed})
    if reason is not None and not arguments.json:
        report_error(arguments, reason)
    return int(reason is not None)


def _kept(runs: Table, folder: Path, config: Path) -> list[Path]:
    """The files of these runs: all of them, and, if none is missing, a picture where one can be drawn."""
    from ..sim.files import named
    from ..sim.pictures import scenario_picture

    whole, unfinished = folder / f"{config.stem}.csv", folder / f"{config.stem}-unfinished.csv"
    file = unfinished if "unfinished" in runs.parameters else whole
    runs.to_csv(file, f"{named(config.name)}: each run")
    files = [file]
    if file == unfinished:
        return files
    unfinished.unlink(missing_ok=True)
    with contextlib.suppress(ModuleNotFoundError):
        picture = scenario_picture(runs, SHOWN)
        from ..sim.figures import style

        with style.applied():
            files += style.save(picture, folder, config.stem)
    return files


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """A row for JSON, which has no word for what is no number."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in row.items()
    }


def _means(runs: Table) -> str:
    """A line for each combination: means over its seeds, with half of their 95 % confidence intervals."""
    cells = runs.over_seeds(SHOWN)
    given = [name for name in cells if not name.startswith(SHOWN)]
    lines = [
        [*(str(cell[name]) for name in given), *(_measured(cell, name) for name in SHOWN)]
        for cell in cells.rows
    ]
    return table([*given, *SHOWN], lines)


def _measured(cell: dict[str, Any], name: str) -> str:
    if math.isnan(cell[name]):
        return "-"
    mean, width = f"{cell[name]:.4g}", cell[f"{name}_ci95"]
    return mean if math.isnan(width) else f"{mean} ± {width:.1g}"


def _paper(arguments: argparse.Namespace) -> int:
    from .. import sim
    from ..sim.runs import Failed

    out = arguments.out or OUT
    asked = {"seeds": arguments.seeds} if arguments.seeds is not None else {}
    if arguments.traces is not None:
        asked["traces"] = arguments.traces
    try:
        with _shown(arguments) as progress:
            made = sim.paper(
                out,
                figures=arguments.figure or (),
                quick=arguments.quick,
                progress=progress,
                **asked,
            )
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; what was finished is in {out}") from None
    except Failed as failed:
        raise ValueError(f"{failed}; what was finished is in {out}") from None
    files = sorted(str(file) for file in out.iterdir())
    text = f"{len(made)} tables and figures in {out}"
    report(arguments, text, {"folder": str(out), "figures": list(made), "files": files})
    return 0


def _system(arguments: argparse.Namespace) -> int:
    from ..sim.seeds import scenario, system

    many = {
        "--from": arguments.first is not None,
        "--count": arguments.count is not None,
        "--minutes": arguments.minutes is not None,
    }
    if arguments.seed is None:
        if arguments.scenario:
            raise UsageError("got --scenario alone, expected --seed N with it")
        return _seeds(arguments)
    if any(many.values()):
        also = ", ".join(name for name, is_given in many.items() if is_given)
        raise UsageError(f"got --seed with {also}, expected one seed or many")
    with _as_usage():
        run = system(arguments.seed)
    asked = arguments.scenario or run.broken is not None
    made_of = {"scenario": scenario(run.seed)} if asked else {}
    text = "\n".join([*made_of.values(), _told(run)])
    report(arguments, text, {**run._asdict(), "replay": _replay(run), **made_of})
    return int(run.broken is not None)


def _seeds(arguments: argparse.Namespace) -> int:
    from ..sim.seeds import play

    minutes, count = arguments.minutes, arguments.count
    if minutes is None and (arguments.first is None) != (count is None):
        got, missing = ("--count", "--from N") if count is not None else ("--from", "--count M")
        raise UsageError(f"got {got} alone, expected {missing} with it, or --minutes T")
    if minutes is None and count is None:
        raise UsageError(
            "got nothing to play, expected --seed N, --from N --count M, or --minutes T"
        )
    # Nobody has played those of this second.
    first = int(time.time()) * 1_000_000 if arguments.first is None else arguments.first
    done: list[SystemRun] = []
    begun = time.monotonic()
    interrupted = False
    with _shown(arguments, "seeds" if minutes is None else "seconds") as progress:

        def finished(run: SystemRun) -> None:
            done.append(run)
            title = f"from seed {first}"
            if minutes is None:
                progress(title, len(done), count)
            else:
                whole = max(round(minutes * 60), 1)
                progress(title, min(round(time.monotonic() - begun), whole), whole)

        try:
            with _as_usage():
                play(first, count, minutes=minutes, finished=finished)
        except KeyboardInterrupt:
            interrupted = True
    return _summed(arguments, first, sorted(done), time.monotonic() - begun, interrupted)


def _summed(
    arguments: argparse.Namespace,
    first: int,
    runs: list[SystemRun],
    seconds: float,
    interrupted: bool,
) -> int:
    failed = [run for run in runs if run.broken is not None]
    events = sum(run.events for run in runs)
    lines = [_told(run) for run in failed]
    lines.append(
        f"{len(runs)} seeds from {first} in {seconds:.1f} s, each twice, {events:,} events: "
        f"{len(failed)} failed{'; interrupted' if interrupted else ''}"
    )
    data = {
        "from": first,
        "played": len(runs),
        "failed": [{**run._asdict(), "replay": _replay(run)} for run in failed],
        "events": events,
        "seconds": seconds,
        "interrupted": interrupted,
        "runs": [run._asdict() for run in runs],
    }
    report(arguments, "\n".join(lines), data)
    return 1 if failed else INTERRUPTED if interrupted else 0


def _told(run: SystemRun) -> str:
    """Say what came of a seed."""
    size = f"a manager and {run.workers} workers, {run.streams} streams, {run.items:,} items"
    if run.broken is not None:
        return (
            f"seed {run.seed} broke a promise at event {run.events:,}, after {run.virtual_s:.6f} s ({size}): {run.broken}\n"
            f"  replay: {_replay(run)}"
        )
    return (
        f"seed {run.seed}: {size}\n"
        f"  faults: {run.faults}, with {run.crashes} crashes; {run.restarts} restarts of the manager, {run.sessions} sessions, {run.slots_lost} slots lost\n"
        f"  items: {run.outcomes:,} outcomes, {run.cancelled:,} taken back, {run.left:,} left when their user closed the stream\n"
        f"  run: {run.events:,} events in {run.virtual_s:.3f} s of virtual time, digest {run.digest}, twice the same"
    )


def _replay(run: SystemRun) -> str:
    return f"exoskel sim system --seed {run.seed}"


@contextlib.contextmanager
def _shown(
    arguments: argparse.Namespace, unit: str = "runs"
) -> Iterator[Callable[[str, int, int], None]]:
    """Show how far it is: a bar on a terminal, else a line now and then; nothing to machines."""
    if arguments.json:
        yield lambda _title, _done, _total: None
        return
    if not sys.stderr.isatty():
        yield _Lines(unit)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True, markup=False, highlight=False)) as bar:
        tasks: dict[str, Any] = {}

        def show(title: str, done: int, total: int) -> None:
            if title not in tasks:
                tasks[title] = bar.add_task(title, total=total)
            bar.update(tasks[title], completed=done)

        yield show


class _Lines:
    """Says on ``sys.stderr`` how far each figure is."""

    def __init__(self, unit: str) -> None:
        self._unit = unit
        self._title = ""
        self._done = 0
        self._said = 0.0

    def __call__(self, title: str, done: int, total: int) -> None:
        now = time.monotonic()
        # Of time, the end is reached before all that was begun has ended.
        if title == self._title and done == self._done == total:
            return
        if title != self._title or done == total or now - self._said >= LINE_SECONDS:
            self._title, self._done, self._said = title, done, now
            print(f"{title}: {done} of {total} {self._unit}", file=sys.stderr, flush=True)
