"""``exoskel sim system``, ``exoskel sim links`` and ``exoskel sim jobs``: what the runtime promises, played in virtual time from seeds."""

from __future__ import annotations

import argparse
import shlex
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from . import INTERRUPTED, UsageError
from .report import Commands, report
from .sim_progress import as_usage, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..sim.job_seeds import JobsRun
    from ..sim.link_seeds import LinksRun
    from ..sim.seeds import SystemRun

__all__ = ["add_seed_commands"]

# What all of these commands say of seeds.
SEEDS = (
    "One of: --seed N (one seed), --from N --count M (many, on all processors), --minutes T (fresh ones for so long). Each is played twice, and both plays must "
    "be the same. Exit code 1 if a promise was broken, 130 if none was until Ctrl-C. docs/virtual-time.md explains what is real in it."
)


class Played(NamedTuple):
    """What one of the commands plays."""

    # One seed; the first seed, how many, and what is told of each.
    one: Callable[[int], Any]
    many: Callable[..., list[Any]]
    scenario: Callable[[int], str]
    # What came of a seed, for people; and the size of what was played.
    told: Callable[[Any], str]
    size: Callable[[Any], str]
    # The command without the seed.
    command: str


def add_seed_commands(actions: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``sim system``, ``sim links`` and ``sim jobs``."""
    parser = actions.add_parser(
        "system",
        parents=[common],
        help="play a manager, its workers and users in virtual time, with faults, from seeds",
        description=f"Play the whole system in virtual time, with what goes wrong, and check what is promised. {SEEDS} Example: exoskel sim system --minutes 5",
    )
    _add_seeds(parser)
    parser.set_defaults(run=_system)
    parser = actions.add_parser(
        "links",
        parents=[common],
        help="play programs that link to each other in virtual time, with faults, from seeds",
        description="Play programs with links of their own in virtual time, with what goes wrong, and check what links promise. Each post and request comes once and "
        "in order, or the link says that it is lost. Each request has one outcome. Nothing is seen on a wire that must be encrypted. Nobody calls without a right. "
        f"{SEEDS} "
        "Example: exoskel sim links --nodes 4 --faults cut,kill --minutes 5",
    )
    _add_seeds(parser)
    parser.add_argument(
        "--nodes", type=int, metavar="N", help="processes, 2 to 8 (default: from the seed)"
    )
    parser.add_argument(
        "--links",
        type=int,
        metavar="N",
        help="startpoints that are bound, 1 to 256 (default: from the seed)",
    )
    parser.add_argument(
        "--messages",
        type=int,
        metavar="N",
        help="posts and requests over each link (default: from the seed)",
    )
    parser.add_argument(
        "--faults",
        metavar="KIND[,KIND...]",
        help="let nothing else go wrong than this, out of what the seed has: none, or some of the kinds in docs/virtual-time.md, such as cut,kill (default: all)",
    )
    parser.set_defaults(run=_links)
    parser = actions.add_parser(
        "jobs",
        parents=[common],
        help="play jobs of processes on several hosts in virtual time, with faults, from seeds",
        description="Play a job's creator, agents and processes in virtual time, with what goes wrong, and check what jobs promise. Nothing runs after its job. Each "
        "future has one outcome, with the true reason. Siblings find each other, and those that take another one's place. "
        f"{SEEDS} "
        "Example: exoskel sim jobs --minutes 5",
    )
    _add_seeds(parser)
    parser.set_defaults(run=_jobs)


def _add_seeds(parser: argparse.ArgumentParser) -> None:
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


def _system(arguments: argparse.Namespace) -> int:
    from ..sim.seeds import play, scenario, system

    return _play(
        arguments,
        Played(system, play, scenario, _told_of_system, _size_of_system, "exoskel sim system"),
    )


def _jobs(arguments: argparse.Namespace) -> int:
    from ..sim.job_seeds import jobs, play, scenario

    return _play(
        arguments, Played(jobs, play, scenario, _told_of_jobs, _size_of_jobs, "exoskel sim jobs")
    )


def _links(arguments: argparse.Namespace) -> int:
    from functools import partial

    from ..sim.link_seeds import links, play, scenario, shape

    text = arguments.faults
    faults = None if text is None else [] if text == "none" else text.split(",")
    given = {"nodes": arguments.nodes, "links": arguments.links, "messages": arguments.messages}
    with as_usage():
        made_of = shape(**given, faults=faults)
    words = [f"--{name} {value}" for name, value in given.items() if value is not None]
    if text is not None:
        words.append(f"--faults {shlex.quote(text)}")
    return _play(
        arguments,
        Played(
            partial(links, **made_of),
            partial(play, made_of=made_of),
            partial(scenario, made_of=made_of),
            _told_of_links,
            _size_of_links,
            " ".join(["exoskel sim links", *words]),
        ),
    )


def _play(arguments: argparse.Namespace, played: Played) -> int:
    many = {
        "--from": arguments.first is not None,
        "--count": arguments.count is not None,
        "--minutes": arguments.minutes is not None,
    }
    if arguments.seed is None:
        if arguments.scenario:
            raise UsageError("got --scenario alone, expected --seed N with it")
        return _seeds(arguments, played)
    if any(many.values()):
        also = ", ".join(name for name, is_given in many.items() if is_given)
        raise UsageError(f"got --seed with {also}, expected one seed or many")
    with as_usage():
        run = played.one(arguments.seed)
    asked = arguments.scenario or run.broken is not None
    made_of = {"scenario": played.scenario(run.seed)} if asked else {}
    text = "\n".join([*made_of.values(), _told(run, played)])
    report(arguments, text, {**run._asdict(), "replay": _replay(run, played), **made_of})
    return int(run.broken is not None)


def _seeds(arguments: argparse.Namespace, played: Played) -> int:
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
    done: list[Any] = []
    begun = time.monotonic()
    interrupted = False
    with shown(arguments, "seeds" if minutes is None else "seconds") as progress:

        def finished(run: Any) -> None:
            done.append(run)
            title = f"from seed {first}"
            if minutes is None:
                progress(title, len(done), count)
            else:
                whole = max(round(minutes * 60), 1)
                progress(title, min(round(time.monotonic() - begun), whole), whole)

        try:
            with as_usage():
                played.many(first, count, minutes=minutes, finished=finished)
        except KeyboardInterrupt:
            interrupted = True
    seconds = time.monotonic() - begun
    return _summed(arguments, played, first, sorted(done), seconds, interrupted)


def _summed(
    arguments: argparse.Namespace,
    played: Played,
    first: int,
    runs: list[Any],
    seconds: float,
    interrupted: bool,
) -> int:
    failed = [run for run in runs if run.broken is not None]
    events = sum(run.events for run in runs)
    lines = [_told(run, played) for run in failed]
    lines.append(
        f"{len(runs)} seeds from {first} in {seconds:.1f} s, each twice, {events:,} events: "
        f"{len(failed)} failed{'; interrupted' if interrupted else ''}"
    )
    data = {
        "from": first,
        "played": len(runs),
        "failed": [{**run._asdict(), "replay": _replay(run, played)} for run in failed],
        "events": events,
        "seconds": seconds,
        "interrupted": interrupted,
        "runs": [run._asdict() for run in runs],
    }
    report(arguments, "\n".join(lines), data)
    return 1 if failed else INTERRUPTED if interrupted else 0


def _told(run: Any, played: Played) -> str:
    """Say what came of a seed."""
    size = played.size(run)
    if run.broken is None:
        return (
            f"seed {run.seed}: {size}\n{played.told(run)}\n"
            f"  run: {run.events:,} events in {run.virtual_s:.3f} s of virtual time, digest {run.digest}, twice the same"
        )
    trace = [f"    {line}" for line in getattr(run, "trace", ())]
    if trace:
        trace.insert(0, "  what happened last:")
    return "\n".join(
        [
            f"seed {run.seed} broke a promise at event {run.events:,}, after {run.virtual_s:.6f} s ({size}): {run.broken}",
            *trace,
            f"  replay: {_replay(run, played)}",
        ]
    )


def _replay(run: Any, played: Played) -> str:
    return f"{played.command} --seed {run.seed}"


def _size_of_system(run: SystemRun) -> str:
    return f"a manager and {run.workers} workers, {run.streams} streams, {run.items:,} items"


def _told_of_system(run: SystemRun) -> str:
    return (
        f"  faults: {run.faults}, with {run.crashes} crashes; {run.restarts} restarts of the manager, {run.sessions} sessions, {run.slots_lost} slots lost\n"
        f"  items: {run.outcomes:,} outcomes, {run.cancelled:,} taken back, {run.left:,} left when their user closed the stream"
    )


def _size_of_links(run: LinksRun) -> str:
    return f"{run.nodes} processes, {run.links} links"


def _told_of_links(run: LinksRun) -> str:
    said = run.posts + run.requests
    return (
        f"  faults: {run.faults}\n"
        f"  sessions: {run.sessions}, of which {run.renewed} ended for a new policy or certificate and {run.surplus} as one too many; {run.resumed} times a link went over to another one\n"
        f"  messages: {run.posts:,} posts and {run.requests:,} requests; {run.calls:,} of {said:,} came, once and in the order of their link; "
        f"{run.losses:,} times a link said that the others may be lost\n"
        f"  requests: {run.replies:,} replies, {run.requests_lost:,} losses, one outcome each\n"
        f"  rights: {run.refused:,} links and lookups refused, {run.looked_up:,} startpoints given by rules, {run.ended:,} links ended by time or rules; no call came without a right\n"
        f"  wires: {run.wire_bytes:,} bytes, and nothing was seen that must be encrypted"
    )


def _size_of_jobs(run: JobsRun) -> str:
    return f"{run.hosts} hosts, {run.groups} groups of processes"


def _told_of_jobs(run: JobsRun) -> str:
    return (
        f"  faults: {run.faults}; {run.agents_lost} agents were lost, and {run.lost} processes with them\n"
        f"  processes: {run.processes} were started, {run.there} were there, {run.refused} starts were refused, {run.failed} futures failed\n"
        f"  siblings: groups were told {run.told} times, {run.siblings} siblings were named, {run.met} of them ran then; {run.replaced} slots took another one's place\n"
        f"  end: {run.killed} processes were killed; at most {run.longest_end_s:.3f} s from when an agent knew that its job was over to the end of its last process"
    )
