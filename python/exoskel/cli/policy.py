"""``exoskel policy``: which rule decides how a wire is protected."""

import argparse
from pathlib import Path

from ..errors import PolicyError
from .report import Commands, report

__all__ = ["add_commands", "check"]


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``policy explain`` and ``policy check``."""
    parser = commands.add_parser(
        "policy", help="check a policy file, or ask it how a wire is protected"
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    explain = actions.add_parser(
        "explain",
        parents=[common],
        help="say which rule decides for a wire",
        description="Say which rule decides how a class of traffic between two places is protected, and why the others don't.",
    )
    explain.add_argument(
        "from_",
        metavar="FROM",
        help="one end: NAME@ADDRESS, an address, a domain, or `host` for this machine",
    )
    explain.add_argument("to", metavar="TO", help="the other end")
    explain.add_argument(
        "class_", metavar="CLASS", choices=("control", "code", "data"), help="control, code or data"
    )
    explain.add_argument(
        "--policy", type=Path, metavar="FILE", help="the policy (default: the built-in one)"
    )
    explain.set_defaults(run=_explain)

    check_ = actions.add_parser("check", parents=[common], help="check a policy file")
    check_.add_argument("policy", type=Path, metavar="FILE")
    check_.set_defaults(run=_check)


def check(path: Path) -> None:
    """Read a policy file.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    PolicyError
        If it is wrong; the text names the file and the line.
    """
    from .. import _core

    try:
        _core.policy_check(_text(path))
    except PolicyError as error:
        raise PolicyError(f"{path}, {error}") from None


def _explain(arguments: argparse.Namespace) -> int:
    from .. import _core

    text = None if arguments.policy is None else _text(arguments.policy)
    verdict = _core.policy_explain(text, arguments.from_, arguments.to, arguments.class_)
    lines = [
        f"{arguments.class_} from {arguments.from_} to {arguments.to}: {verdict['protection']}",
        f"  decided by: {verdict['rule']}",
        *(f"  {reason}" for reason in verdict["reasons"]),
        f"  results from there: {verdict['results']}",
    ]
    report(arguments, "\n".join(lines), verdict)
    return 0


def _check(arguments: argparse.Namespace) -> int:
    check(arguments.policy)
    report(arguments, f"{arguments.policy}: valid", {"policy": arguments.policy, "valid": True})
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: got bytes that are no UTF-8 at position {error.start}, expected a TOML file"
        ) from None
