"""``exoskel policy``: which rule decides how a wire is protected, and what somebody may do."""

import argparse
from pathlib import Path
from typing import Any

from ..errors import AuthenticationError, CredentialError, PolicyError
from ..identity import trust_anchors
from ..peer_text import one_line
from . import judgement
from .report import Commands, report

__all__ = ["add_commands", "check"]

# How answers of a worker are read.
_RESULTS = {
    "data": "read as data",
    "pickle": "read as pickles: this worker can run code here",
}


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``policy explain`` and ``policy check``."""
    parser = commands.add_parser(
        "policy",
        help="check a policy file, or ask it how a wire is protected and what somebody may do",
    )
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)

    explain = actions.add_parser(
        "explain",
        parents=[common],
        help="say which rule decides for a wire, or for somebody's action",
        usage="%(prog)s FROM TO CLASS [--policy FILE]\n       %(prog)s --identity FILE --action NAME --policy FILE [...]",
        description="Say which rule decides how a class of traffic between two places is protected, and why the others don't; or "
        "whether the owner of a credential may do what a service calls by a name, by which rule, and what is missing if not. Exit code 1 "
        "for an action that is denied.",
    )
    explain.add_argument(
        "from_",
        metavar="FROM",
        nargs="?",
        help="one end: NAME@ADDRESS, an address, a domain, or `host` for this machine",
    )
    explain.add_argument("to", metavar="TO", nargs="?", help="the other end")
    explain.add_argument(
        "class_",
        metavar="CLASS",
        nargs="?",
        choices=("control", "code", "data"),
        help="control, code or data",
    )
    explain.add_argument(
        "--policy", type=Path, metavar="FILE", help="the policy (default: the built-in one)"
    )
    action = explain.add_argument_group("actions", "of services, in the place of a wire")
    action.add_argument(
        "--identity",
        type=Path,
        metavar="FILE",
        help="whose: certificates, leaf first, such as a proxy; a key among them is not looked at",
    )
    action.add_argument("--action", metavar="NAME", help="what the service calls it")
    judgement.add_trust(explain)
    judgement.add_time(explain)
    judgement.add_rules(explain)
    explain.set_defaults(run=_explain)

    check_ = actions.add_parser("check", parents=[common], help="check a policy file")
    check_.add_argument("policy", type=Path, metavar="FILE")
    check_.set_defaults(run=_check)


def check(path: Path) -> None:
    """Read a policy file, and the ban list and grid-mapfile that it names.

    Parameters
    ----------
    path : Path
        The file.

    Raises
    ------
    PolicyError
        If one of them is wrong; the text names the file and the line.
    """
    from .. import _core

    try:
        _core.policy_check(_text(path))
    except PolicyError as error:
        raise PolicyError(f"{path}, {error}") from None
    _core.policy_check_lists(path)


def _explain(arguments: argparse.Namespace) -> int:
    wire = [arguments.from_, arguments.to, arguments.class_]
    who = [arguments.identity, arguments.action]
    if None not in who and arguments.policy is not None and not any(wire):
        return _explain_action(arguments)
    if None not in wire and not any(who):
        return _explain_wire(arguments)
    raise ValueError(
        "expected either FROM, TO and CLASS, or all of --identity, --action and --policy"
    )


def _explain_action(arguments: argparse.Namespace) -> int:
    from .. import _core

    try:
        chain = _core.certificates_of(arguments.identity.read_bytes())
    except CredentialError as error:
        raise CredentialError(f"{arguments.identity}: {error}") from None
    trust = judgement.open_trust(
        arguments.trust_anchors or trust_anchors(),
        arguments.vomsdir,
        judgement.rules(arguments),
    )
    try:
        decision: dict[str, Any] = trust.decide(
            chain, arguments.at, arguments.policy, arguments.action
        )
    except AuthenticationError as error:
        raise AuthenticationError(f"{arguments.identity}: nobody is proven: {error}") from None
    lines = [
        f"{arguments.action} by {one_line(decision['identity'])}: {'allowed' if decision['allowed'] else 'denied'}",
        f"  decided by: {decision['rule'] or 'no rule, and what nothing allows is denied'}",
        f"  {one_line(decision['reason'])}",
        f"  local account: {decision['account'] or 'none'}",
    ]
    report(arguments, "\n".join(lines), {"action": arguments.action, **decision})
    return 0 if decision["allowed"] else 1


def _explain_wire(arguments: argparse.Namespace) -> int:
    from .. import _core

    text = None if arguments.policy is None else _text(arguments.policy)
    verdict = _core.policy_explain(text, arguments.from_, arguments.to, arguments.class_)
    lines = [
        f"{arguments.class_} from {arguments.from_} to {arguments.to}: {verdict['protection']}",
        f"  decided by: {verdict['rule']}",
        *(f"  {reason}" for reason in verdict["reasons"]),
        f"  results: {_RESULTS[verdict['results']]}",
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
