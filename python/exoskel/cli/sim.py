"""``exoskel sim``: the session-key cache and the whole system in simulation, with the parts that the runtime uses."""

from __future__ import annotations

import argparse
import contextlib
import math
from pathlib import Path
from typing import Any

from ..peer_text import one_line
from . import INTERRUPTED, UsageError
from .report import Commands, report, report_error, table
from .sim_progress import as_usage, shown
from .sim_seeds import add_seed_commands

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sim import Table

__all__ = ["add_commands"]

# Where a run ends that isn't told where its files go.
OUT = Path("key-cache-paper")
# What `--config` shows of a run; the CSV file has all.
SHOWN = ("hit_rate", "latency_us", "latency_p99_us", "completion_ms", "slowdown")
# What each way of running knows, the first one that is asked for; a scenario may be given other traces.
OPTIONS = {
    "--paper": ("--out", "--figure", "--seeds", "--quick", "--traces"),
    "--config": ("--out", "--seeds", "--slowdown", "--ranks-per-card"),
    "--trace": (
        "--entries",
        "--ways",
        "--lookup",
        "--policy",
        "--rank",
        "--ranks-per-card",
        "--hit",
        "--live",
    ),
}


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``sim capacity``, ``sim keycache``, ``sim pack``, ``sim on-off``, ``sim requests``, ``sim system``, ``sim links`` and ``sim jobs``."""
    parser = commands.add_parser(
        "sim",
        help="simulate session-key caches (how many keys fit, what a miss costs), or the whole system with faults",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    _add_capacity(actions, common)
    _add_keycache(actions, common)
    _add_pack(actions, common)
    _add_synthetic(actions, common)
    add_seed_commands(actions, common)


def _add_capacity(actions: Commands, common: argparse.ArgumentParser) -> None:
    parser = actions.add_parser(
        "capacity",
        parents=[common],
        help="how many peers a cache of so many keys serves, by the ON/OFF model",
        description="Answer with the largest number of peers for which a cache holds all keys in use at once, with the given probability. Each peer talks (ON) "
        "and is silent (OFF) in turn. Example: exoskel sim capacity --entries 128 --off-on 7.66 --hit 0.9",
    )
    parser.add_argument(
        "--entries",
        type=_sizes,
        required=True,
        metavar="N[,N...]",
        help="keys that the cache holds, such as 128 or 64,128,256",
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
        description="Give --trace FILE and --entries N for a hit rate, without time. Give --config FILE for interconnect cards, switches and "
        "schedulers in virtual time; docs/key-cache-study.md explains the file. Give --paper for every table and figure of the paper in "
        "docs/paper-key-cache.md.",
    )
    parser.add_argument(
        "--trace",
        type=Path,
        metavar="FILE",
        help="messages of a parallel program, as `exoskel sim pack` and Manager(trace=...) write them (.skct, .skct.zst)",
    )
    parser.add_argument(
        "--entries",
        type=_sizes,
        metavar="N[,N...]",
        help="keys that the cache of each card holds, such as 6 or 2,4,8",
    )
    parser.add_argument(
        "--hit",
        type=float,
        metavar="P",
        help="with --trace: a hit rate between 0 and 1; say which size reaches it, or that no cache can",
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
        "--ranks-per-card",
        type=int,
        metavar="N",
        help="ranks on one node, which share its card and key cache (default: 1, or what the scenario says)",
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
        "--slowdown",
        action="store_true",
        help="with --config: also run each combination without security, and show how much longer it takes with it",
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
        "Make a trace (.skct) of processes that are silent (OFF) and send to one other process (ON), in turn. The times are drawn evenly between 0 and "
        "twice their means. No process waits for another one before the end.",
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
    with as_usage():
        made = make(arguments.out, **{name: getattr(arguments, name) for name in arguments.numbers})
    text = f"{named(made.file)}: {made.records} calls of {made.ranks} ranks; {made.note}"
    report(arguments, text, {**made._asdict(), "file": str(made.file)})
    return 0


def _capacity(arguments: argparse.Namespace) -> int:
    from .. import sim

    with as_usage():
        answers = [
            sim.capacity(size, arguments.off_on, arguments.hit) for size in arguments.entries
        ]
    given = {"off_on": arguments.off_on, "hit": arguments.hit}
    rows = [
        {"entries": size, "capacity": answer}
        for size, answer in zip(arguments.entries, answers, strict=True)
    ]
    if len(rows) == 1:
        report(arguments, str(answers[0]), {**rows[0], **given})
    else:
        lines = [tuple(row.values()) for row in rows]
        report(arguments, table(("entries", "capacity"), lines), {"rows": rows, **given})
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


def _sizes(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected whole numbers with commas between them, such as 2,4,8"
        ) from None


def _check_options(arguments: argparse.Namespace, way: str) -> None:
    """Refuse what a way of running doesn't know, so that nobody takes it for done."""
    known = OPTIONS.get(way, ())
    for option in dict.fromkeys(option for options in OPTIONS.values() for option in options):
        given = getattr(arguments, option.removeprefix("--").replace("-", "_"))
        # 0 is given, too.
        if given is not None and given is not False and option not in known:
            fitting = [name for name, options in OPTIONS.items() if option in options]
            raise UsageError(
                f"got {option} with {way or 'nothing to run'}, expected it with {' or '.join(fitting)}"
            )


def _trace(arguments: argparse.Namespace) -> int:
    from ..sim.runs import read_trace, trace_rows, trace_run

    if arguments.entries is None:
        raise UsageError("entries: got none, expected --entries N, the keys that a cache holds")
    if arguments.live:
        return _live(arguments)
    trace = read_trace(arguments.trace)
    lookup, policy = arguments.lookup or "message", arguments.policy or "lru"
    wanted: float | None = arguments.hit
    if wanted is not None and not 0 < wanted < 1:
        raise UsageError(f"got --hit {wanted:g}, expected a number between 0 and 1")
    with as_usage():
        rows = trace_rows(
            [
                trace_run(
                    trace,
                    size,
                    arguments.ways,
                    lookup,
                    policy,
                    arguments.rank,
                    arguments.ranks_per_card,
                )
                for size in arguments.entries
            ]
        )
    ranks = (
        f"{trace.ranks} ranks"
        if arguments.rank is None
        else f"rank {arguments.rank} of {trace.ranks}"
    )
    if arguments.ranks_per_card is not None:
        ranks += f", {arguments.ranks_per_card} to a card"
    row = rows[0]
    data: dict[str, Any] = {"ranks": trace.ranks, "file": str(arguments.trace)}
    if len(rows) == 1:
        data = {**_numbers(row), **data}
        lines = [
            f"{one_line(row['trace'])}: hit rate {_rate(row['hit_rate'])} ({row['hits']} of {row['lookups']} lookups, one for each "
            f"{row['lookup']}; {ranks}, {row['entries']} entries, {row['ways']} ways, {row['policy']})"
        ]
    else:
        data["rows"] = [_numbers(one) for one in rows]
        columns = ("entries", "ways", "hits", "lookups")
        cells = [(*(one[name] for name in columns), _rate(one["hit_rate"])) for one in rows]
        lines = [
            f"{one_line(row['trace'])}: {ranks}, {row['policy']}, one lookup for each {row['lookup']}",
            table((*columns, "hit rate"), cells),
        ]
    if wanted is not None:
        reached = [one["entries"] for one in rows if one["hit_rate"] >= wanted]
        data |= {"hit": wanted, "reached_with": min(reached, default=None)}
        lines.append(_reached(rows, wanted, reached))
    report(arguments, "\n".join(lines), data)
    return 0


def _reached(rows: list[dict[str, Any]], wanted: float, reached: list[int]) -> str:
    """Say which size reaches a hit rate; of a short trace, how many first uses keep every cache from it."""
    row = rows[0]
    if reached:
        return f"{wanted:g} is reached with {min(reached)} entries"
    if row["hit_rate_max"] >= wanted:
        largest = max(one["entries"] for one in rows)
        return f"{wanted:g} is not reached with {largest} entries; with room for all keys the hit rate is {_rate(row['hit_rate_max'])}"
    return (
        f"{wanted:g} can't be reached by any cache: {row['first_uses']} of {row['lookups']} lookups are the first use of a key. "
        f"So the hit rate is {_rate(row['hit_rate_max'])} at most. A longer trace has a smaller share of first uses"
    )


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
    if arguments.ranks_per_card is not None:
        raise UsageError(
            "got --live with --ranks-per-card, expected it without: each rank is a node of its own"
        )
    if arguments.hit is not None:
        raise UsageError("got --live with --hit, expected it without")
    if len(arguments.entries) > 1:
        raise UsageError("got --live with several --entries, expected one number")
    [entries] = arguments.entries
    found = live(arguments.trace, entries, ways=arguments.ways)
    text = (
        f"{one_line(found.trace)}: hit rate {_rate(found.hit_rate)} over real links, {_rate(found.predicted_hit_rate)} predicted "
        f"({found.hits} of {found.lookups} lookups, {found.predicted_hits} of {found.predicted_lookups}; {entries} entries). "
        "With --live, each direction has a key: peers that talk both ways take two entries, not one"
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
        with shown(arguments) as progress:
            runs = sim.keycache(
                arguments.trace,
                scenario=arguments.config,
                seeds=arguments.seeds,
                ranks_per_card=arguments.ranks_per_card,
                slowdown=arguments.slowdown,
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
        picture = scenario_picture(runs, _shown_of(runs), named(config.name))
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
    shown = _shown_of(runs)
    cells = runs.over_seeds(shown)
    given = [name for name in cells if not name.startswith(shown)]
    lines = [
        [*(str(cell[name]) for name in given), *(_measured(cell, name) for name in shown)]
        for cell in cells.rows
    ]
    return table([*given, *shown], lines)


def _shown_of(runs: Table) -> tuple[str, ...]:
    return tuple(name for name in SHOWN if name in runs)


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
        with shown(arguments) as progress:
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
