"""``exoskel discover``: the workers that announce themselves on this network."""

import argparse
from pathlib import Path

from .. import _core
from .report import Commands, report

__all__ = ["add_commands"]

_SECONDS = 3.0
_SECONDS_MAX = 3600.0


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``discover``."""
    parser = commands.add_parser(
        "discover",
        parents=[common],
        help="show the workers that announce themselves on this network",
        description="Listen for announcements of workers (exoskel worker --announce) by multicast DNS. Everybody on the network can announce any "
        "name: only the certificate of a worker proves who it is.",
    )
    parser.add_argument(
        "--seconds",
        type=_seconds,
        default=_SECONDS,
        metavar="SECONDS",
        help=f"how long to listen (default: {_SECONDS:g})",
    )
    parser.add_argument(
        "--policy",
        metavar="FILE",
        help="the policy of a manager (TOML): say which of the names its [discover] lets that dial",
    )
    parser.set_defaults(run=_discover)


def _discover(arguments: argparse.Namespace) -> int:
    policy = None
    if arguments.policy is not None:
        policy = Path(arguments.policy).read_text(encoding="utf-8")
    workers = sorted(_core.discover(arguments.seconds, policy))
    verdicts = {None: "", True: " (allowed)", False: " (not in [discover])"}
    lines = [f"{name} at {', '.join(places)}{verdicts[may]}" for name, places, may in workers]
    data = {
        "workers": [
            {"name": name, "addresses": places, **({} if may is None else {"allowed": may})}
            for name, places, may in workers
        ]
    }
    nobody = f"no worker was heard within {arguments.seconds:g} seconds"
    report(arguments, "\n".join(lines) or nobody, data)
    return 0 if workers else 1


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _SECONDS_MAX:
        raise argparse.ArgumentTypeError(
            f"got {text}, expected seconds above 0 and at most {_SECONDS_MAX:g}"
        )
    return seconds
