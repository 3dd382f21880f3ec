"""The program that is a job's agent: how it begins with its channel, and how it ends.

A launcher brings it to a host and gives it the channel: over it the agent sends its public key, and gets its certificate and the creator's
startpoint. From then on both talk by links.
"""

from __future__ import annotations

import base64
import contextlib
import importlib
import json
import logging
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from . import __version__, _core, control_groups, job_folders, links, own_folders
from .agent import GRACE_SECONDS, Agent
from .control_groups import GroupPlace
from .errors import LinkError
from .job_delegation import HostProxy
from .job_orphans import end_orphans
from .process_zygote import ProcessZygote
from .start_request import check_listen, check_start, creator_within

if TYPE_CHECKING:
    import io
    from collections.abc import Iterator, Mapping, Sequence

    from .job_control import JobControl

__all__ = ["ENDPOINT", "main", "standard_channel"]

ENDPOINT = "agent"
_READ_BYTES = 64 << 10
# What a process of a job imports, whatever it does.
_PRELOADED = (
    "by_value",
    "confining",
    "job_process",
    "job_slot",
    "modules",
    "options",
    "script",
)
# What can be said when an agent is started, beside `--detach`.
_LIMITS = (("lifeline", "lifeline"), ("processes_max", "processes"))


class Incoming(Protocol):
    """What a channel's direction to an agent can do."""

    def fileno(self) -> int: ...
    def readline(self) -> bytes: ...
    def read(self, size: int, /) -> bytes | None: ...


class Outgoing(Protocol):
    """What a channel's direction from an agent can do."""

    def fileno(self) -> int: ...
    def write(self, line: bytes, /) -> int | None: ...


def main(
    incoming: Incoming,
    outgoing: Outgoing,
    *,
    lifeline: int | None = None,
    processes_max: int | None = None,
    is_detached: bool = False,
    sandbox: dict[str, Any] | None = None,
    groups: Mapping[str, GroupPlace] | None = None,
    creator_at: Sequence[str] | None = None,
    is_child: bool = False,
) -> int:
    """Be a job's agent, until the channel ends. Return the exit code.

    Parameters
    ----------
    incoming, outgoing : file
        The two directions of the channel, unbuffered.
    lifeline : int, optional
        A socket that whoever has started this agent holds: the job ends with it, and is asked over it how it stands.
    processes_max : int, optional
        How many processes there can be at the same time.
    is_detached : bool
        Whether processes go on when the channel has ended.
    sandbox : dict, optional
        What the host's policy lets the job's processes use, as `Sandbox.told` has it.
    groups : mapping, optional
        The control groups that a daemon has made for the job's processes.
    creator_at : sequence of str, optional
        From which addresses the job's creator has come, if it is dialled there alone.
    is_child : bool
        Whether the job's creator itself has started this agent.
    """
    if groups is not None and lifeline is not None:
        # The daemon puts this process where its children are to be.
        os.read(lifeline, 1)
    # What each process needs is loaded once for all of them. Nothing runs yet that a process must not share.
    for module in _PRELOADED:
        importlib.import_module(f"{__package__}.{module}")
    own = {incoming.fileno(), outgoing.fileno()} | ({lifeline} if lifeline is not None else set())
    printed = _own_output() if is_detached else None
    _core.adopt_orphans()
    zygote = ProcessZygote(own.union(printed or ()))
    passing = threading.Thread(target=_pass_on, args=printed or (), daemon=True)
    if printed is not None:
        passing.start()
    key = _core.ProcessKey()
    said = {"version": __version__, "public_key": base64.b64encode(key.public_key).decode()}
    outgoing.write(json.dumps(said).encode() + b"\n")
    line = incoming.readline()
    if not line:
        zygote.close()
        return 1
    told = json.loads(line)
    certificate, root = (base64.b64decode(told[name]) for name in ("certificate", "root"))
    check_listen(told["listen"])
    folder = job_folders.made()
    credential = key.credential(certificate, root)
    agent = Agent(
        zygote,
        folder,
        told["listen"],
        job=credential.name.rpartition(".")[2],
        processes_max=processes_max,
        is_detached=is_detached,
        sandbox=sandbox,
        groups=groups,
        printed_to=None if printed is None else printed[1],
    )
    control = None
    tidying = threading.Thread(target=_tidy, name="exoskel-tidy", daemon=True)
    try:
        with links.Node(
            credential,
            listen=[f"unix:{folder / job_folders.AGENT}", *told["listen"]],
            live=False,
            patience=told["patience"],
        ) as node:
            endpoint = node.endpoint(ENDPOINT)
            endpoint.handler(agent.asked(agent.start, check_start))
            for action in (agent.siblings, agent.absent, agent.send_signal, agent.end):
                endpoint.handler(agent.asked(action))
            endpoint.handler(agent.answered(agent.invite))
            proxy = HostProxy(folder, agent.environment)
            for handler in (proxy.request_proxy, proxy.take_proxy):
                endpoint.handler(handler)
            creator = node.bind(creator_within(told["creator"], creator_at))
            # Who has a job finds it, however soon it looks.
            control = _control(agent, lifeline)
            creator.request("agent", endpoint.startpoint(to="*").text()).result()
            tidying.start()
            threading.Thread(target=_follow, args=[incoming, agent], daemon=True).start()
            agent.serve(creator, root)
            zygote.close()
            agent.close()
            tidying.join(GRACE_SECONDS)
            if printed is not None:
                # What processes have printed last is in the pipe.
                os.dup2(printed[1], 1)
                passing.join(GRACE_SECONDS)
            # What was to be said to a creator that has gone is nobody's.
            logging.getLogger("exoskel.links").setLevel(logging.CRITICAL)
    except LinkError:
        if not agent.is_cut_off:
            raise
    finally:
        if control is not None:
            control.close()
        # A creator's own folder is for its child to remove, as a creator may be killed. Whoever asks a host's daemon may name any folder.
        for one in (folder, *(told["folders"] if is_child else [])):
            own_folders.remove(one)
    return 0


def _tidy() -> None:
    """Remove what agents that were killed have left: what runs, then what has held it."""
    end_orphans()
    control_groups.sweep()
    job_folders.sweep()


def _follow(channel: Incoming, agent: Agent) -> None:
    """End the agent with its channel."""
    with contextlib.suppress(OSError):
        while channel.read(_READ_BYTES):
            pass
    agent.creator_left()


def _control(agent: Agent, lifeline: int | None) -> JobControl:
    """Let this account, and whoever has started the agent, ask how the job stands."""
    from .job_control import JobControl

    control = JobControl(agent, lifeline)
    if (reason := control.announce()) and agent.is_detached:
        # Its processes can still be ended by their numbers.
        text = f"exoskel: job {agent.job} can't be found by `exoskel job list`: {reason}\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())
    return control


def _own_output() -> tuple[int, int]:
    """Have what processes print come here: its reader may leave before them. Return where it comes from, and where it goes."""
    reader, writer = os.pipe2(os.O_CLOEXEC)
    printed_to = os.dup(1)
    os.dup2(writer, 1)
    os.close(writer)
    return reader, printed_to


def _pass_on(reader: int, printed_to: int) -> None:
    while part := os.read(reader, _READ_BYTES):
        with contextlib.suppress(OSError):
            os.write(printed_to, part)


@contextlib.contextmanager
def standard_channel() -> Iterator[tuple[io.RawIOBase, io.RawIOBase]]:
    """Take the standard input and output as a channel. What processes print goes where their errors go."""
    numbers = [os.dup(0), os.dup(1)]
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    with _opened(*numbers) as files:
        yield files


@contextlib.contextmanager
def _opened(incoming: int, outgoing: int) -> Iterator[tuple[io.RawIOBase, io.RawIOBase]]:
    with (
        open(incoming, "rb", buffering=0, closefd=False) as reader,
        open(outgoing, "wb", buffering=0, closefd=False) as writer,
    ):
        yield reader, writer


if __name__ == "__main__":
    # Ctrl-C is for the creator, whose end is this agent's.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    *words, place = sys.argv[1:]
    options = dict(word.removeprefix("--").partition("=")[::2] for word in words)
    more: dict[str, Any] = {name: int(options[word]) for name, word in _LIMITS if word in options}
    more["is_detached"] = "detach" in options
    more["is_child"] = place != "--stdio" and "lifeline" not in options
    more["sandbox"] = json.loads(options["sandbox"]) if "sandbox" in options else None
    more["creator_at"] = options["creator"].split() if "creator" in options else None
    if "groups" in options:
        said = json.loads(options["groups"]).items()
        more["groups"] = {name: GroupPlace(Path(place), flag) for name, (place, flag) in said}
    with standard_channel() if place == "--stdio" else _opened(*[int(place)] * 2) as files:
        incoming, outgoing = files
        sys.exit(main(incoming, outgoing, **more))
