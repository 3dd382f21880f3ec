"""``exoskel job``: the jobs that run, and their end."""

import argparse
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ..agents_launcher import ENDPOINT, agents_of, place_of
from ..errors import ExoskelError
from ..job_control import ask_to_end, local_jobs, understood
from ..links import Node
from ..peer_text import one_line
from . import UsageError
from .report import Commands, duration, report, table

__all__ = ["add_commands"]

# Of a job that is named by its beginning.
_NAME_CHARACTERS_MIN = 4
_NAME_CHARACTERS_SHOWN = 12
# And of a program's words; --json has more.
_SHOWN_MAX = 40
_MORE = ("key", "trust_anchors", "vomsdir")
# How long an agent may take to answer; to end a job, it waits for what runs.
_ANSWER_SECONDS = 10.0
_END_SECONDS = 30.0
# Hosts that are asked at the same time: a thread and a connection each.
_ASKED_MAX = 32

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


class _Place(NamedTuple):
    """Where jobs may run: this machine, or another host."""

    host: str
    """The name of the host; empty for this machine."""
    jobs: Callable[[], list[dict[str, Any]]]
    """Lists the jobs there."""
    end: Callable[[dict[str, Any]], object]
    """Ends a job there, and waits for that."""


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``job list`` and ``job end``."""
    parser = commands.add_parser(
        "job",
        help="list the jobs that run, and end one",
        description="Show and end jobs, which exoskel.Job has made: those of this account on this machine. "
        "With --agents, those that the owner of the credential has at other hosts.",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    every = actions.add_parser(
        "list",
        parents=[common],
        help="list the jobs that run",
        description="List the jobs of this account on this machine. With --agents, list those that the owner of the credential has at these "
        "hosts: an agent tells nobody of others' jobs. Each line has processes that were started together: their program or function, and since when "
        "they run. A detached job whose creator has left is marked.",
    )
    _add_agents(every)
    every.set_defaults(run=_list)
    end = actions.add_parser(
        "end",
        parents=[common],
        help="end a job, with all its processes",
        description="End a job with all its processes, and wait until they have ended: on this machine, or at the hosts of --agents.",
    )
    end.add_argument(
        "job",
        metavar="JOB",
        help=f"its name, as exoskel job list has it, or {_NAME_CHARACTERS_MIN} or more of the characters with which that begins",
    )
    _add_agents(end)
    end.set_defaults(run=_end)


def _add_agents(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--agents",
        metavar="HOSTS",
        help="ask the agents of other hosts: a file with one host:port NAME a line, or one such address",
    )
    parser.add_argument(
        "--credential", type=Path, metavar="FILE", help="the credential of who has made the job"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="its key, if it doesn't hold it")
    parser.add_argument("--trust-anchors", type=Path, metavar="DIR", help="a grid's authorities")
    parser.add_argument(
        "--vomsdir", type=Path, metavar="DIR", help="the VOMS servers whose attributes count"
    )
    parser.add_argument(
        "--policy", type=Path, metavar="FILE", help="which wires get which protection"
    )


def _list(arguments: argparse.Namespace) -> int:
    with _places(arguments) as places:
        there, failed = _jobs_at(places)
    found = [{"host": place.host, **job} for place, job in there]
    rows = [
        [
            one_line(job["job"])[:_NAME_CHARACTERS_SHOWN],
            job["host"] or "here",
            one_line(job.get("owner", "")),
            _short(one_line(group["program"])),
            group["processes"],
            time.strftime("%Y-%m-%d %H:%M", time.localtime(group["begun"])),
            duration(int(time.time() - group["begun"])),
            _state(job),
        ]
        for job in found
        for group in job["groups"] or [_nothing(job)]
    ]
    titles = ["JOB", "HOST", "OWNER", "PROGRAM", "PROCESSES", "BEGAN", "TIME", "STATE"]
    where = (
        "of this account runs on this machine"
        if arguments.agents is None
        else "of yours runs there"
    )
    # Where nobody could be asked, nobody knows what runs.
    lines = [table(titles, rows)] if rows else [] if failed else [f"no job {where}"]
    report(arguments, "\n".join([*lines, *failed]), {"jobs": found, "failed": failed})
    return 1 if failed else 0


def _nothing(job: dict[str, Any]) -> dict[str, Any]:
    """Return what is shown of a job of which nothing runs there."""
    return {"program": "-", "processes": 0, "begun": job["begun"]}


def _short(program: str) -> str:
    return program if len(program) <= _SHOWN_MAX else f"{program[: _SHOWN_MAX - 3]}..."


def _state(job: dict[str, Any]) -> str:
    state = _kind(job)
    return f"{state}; its agent doesn't answer" if job.get("is_late") is True else state


def _kind(job: dict[str, Any]) -> str:
    if not job["has_creator"]:
        return "goes on without its creator"
    return "detached" if job["is_detached"] else "runs"


def _end(arguments: argparse.Namespace) -> int:
    asked = arguments.job
    if len(asked) < _NAME_CHARACTERS_MIN:
        raise UsageError(
            f"got {asked!r} as a job, expected {_NAME_CHARACTERS_MIN} or more characters of its name"
        )
    with _places(arguments) as places:
        every, failed = _jobs_at(places)
        there = [(place, job) for place, job in every if job["job"].startswith(asked)]
        names = sorted({one_line(job["job"]) for _, job in there})
        if len(names) > 1:
            raise ExoskelError(f"{asked} is the beginning of several jobs: {', '.join(names)}")
        ends, not_ended = _at_once(there, lambda one: one[0].host, lambda one: one[0].end(one[1]))
    failed += not_ended
    ended = [{"job": job["job"], "host": place.host} for (place, job), _ in ends]
    if there and not ended:
        raise ExoskelError(f"job {names[0]} has not ended: {'; '.join(failed)}")
    if not ended:
        where = "on this machine" if arguments.agents is None else "there"
        why = f": {'; '.join(failed)}" if failed else ": exoskel job list shows those that do"
        raise ExoskelError(f"no job {one_line(asked)} of yours runs {where}{why}")
    # A job may have several agents on a machine.
    lines = list(
        dict.fromkeys(f"job {one_line(one['job'])} has ended {_at(one['host'])}" for one in ended)
    )
    report(arguments, "\n".join([*lines, *failed]), {"ended": ended, "failed": failed})
    return 1 if failed else 0


def _at(host: str) -> str:
    return f"at {host}" if host else "on this machine"


def _jobs_at(
    places: Sequence[_Place],
) -> tuple[list[tuple[_Place, dict[str, Any]]], list[str]]:
    """Return the jobs of all places, in the order of the places, and why some could not say theirs."""
    answers, failed = _at_once(places, lambda place: place.host, lambda place: place.jobs())
    return [(place, job) for place, jobs in answers for job in jobs], failed


def _at_once(
    asked: Sequence[_Asked], host: Callable[[_Asked], str], ask: Callable[[_Asked], _Answer]
) -> tuple[list[tuple[_Asked, _Answer]], list[str]]:
    """Ask all at the same time, so that a host which is slow or gone keeps no other one waiting.

    Returns
    -------
    answers : list
        Who was asked, with the answer, in the given order.
    failed : list of str
        Why others have not answered, in the same order.
    """
    from concurrent.futures import ThreadPoolExecutor

    def answer(one: _Asked) -> tuple[_Answer] | str:
        try:
            return (ask(one),)
        except (ExoskelError, TimeoutError, ValueError) as error:
            # Of this machine, which has no name here, the reason alone.
            return ": ".join(filter(None, (host(one), str(error))))

    if len(asked) == 1:
        # Ctrl-C ends it at once.
        found = [(asked[0], answer(asked[0]))]
    else:
        pool = ThreadPoolExecutor(_ASKED_MAX)
        try:
            found = list(zip(asked, pool.map(answer, asked), strict=True))
        finally:
            # After Ctrl-C, what still waits ends with the node by which it asks.
            pool.shutdown(wait=False, cancel_futures=True)
    answers = [(one, told[0]) for one, told in found if not isinstance(told, str)]
    return answers, [told for _, told in found if isinstance(told, str)]


@contextlib.contextmanager
def _places(arguments: argparse.Namespace) -> Iterator[list[_Place]]:
    """Yield where to look."""
    if arguments.agents is None:
        if any(getattr(arguments, name) for name in ("credential", "policy", *_MORE)):
            raise UsageError(
                "got a credential without --agents, expected both: jobs of this machine need none"
            )
        yield [_Place("", local_jobs, lambda job: ask_to_end(job["agent"]))]
        return
    if arguments.credential is None:
        raise UsageError(
            "got --agents without --credential, expected both: agents want to know who asks"
        )
    place = arguments.agents
    addresses = agents_of(place if Path(place).exists() else [place])
    more = {name: value for name in _MORE if (value := getattr(arguments, name)) is not None}
    with Node(
        arguments.credential, policy=arguments.policy, live=False, patience=0.0, **more
    ) as node:
        asked = [_Agent(node, address.name, place_of(address)) for address in addresses]
        yield [_Place(agent.name, agent.jobs, agent.end) for agent in asked]


class _Agent:
    """The agent of another host."""

    def __init__(self, node: Node, name: str, place: str) -> None:
        self._node = node
        self.name = name
        self._place = place

    def jobs(self) -> list[dict[str, Any]]:
        return understood(self._request("jobs").result(_ANSWER_SECONDS))

    def end(self, job: dict[str, Any]) -> None:
        self._request("end", job["job"]).result(_END_SECONDS)

    def _request(self, handler: str, *arguments: Any) -> Any:
        binding = self._node.lookup(
            ENDPOINT, name=self.name, at=self._place, timeout=_ANSWER_SECONDS
        )
        return binding.request(handler, *arguments)
