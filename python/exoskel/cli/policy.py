"""``exoskel policy``: which rule decides how a wire is protected, and what somebody may do."""

import argparse
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import AuthenticationError, CredentialError, PolicyError
from ..identity import trust_anchors
from ..peer_text import one_line
from . import UsageError, judgement
from .report import Commands, report

__all__ = ["Explained", "add_commands", "check", "check_confines", "confined", "explained"]

# The protections, the strictest last.
_STRICTNESS = ("plain", "integrity", "encrypted")


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
        usage="%(prog)s FROM TO CLASS [--policy FILE]\n       %(prog)s --identity FILE --action NAME --policy FILE [--credential FILE] [...]",
        description="Say which rule protects a class of traffic between two places, and why the other rules don't. With --identity: say whether "
        "the owner of a credential may do an action, by which rule, and what is missing if not. Exit code 1 for an action that is denied.",
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
    explain.add_argument(
        "--other",
        type=Path,
        metavar="FILE",
        help="the policy of the host at the other end; the stricter of both holds",
    )
    action = explain.add_argument_group("actions", "of services, in the place of a wire")
    action.add_argument(
        "--identity",
        type=Path,
        metavar="FILE",
        help="whose: certificates, leaf first, such as a proxy; a key among them is not looked at",
    )
    action.add_argument("--action", metavar="NAME", help="what the service calls it")
    action.add_argument(
        "--credential",
        type=Path,
        metavar="FILE",
        help="the credential of who is asked, such as that of `exoskel agent`: its own authority judges, in the place of a grid's",
    )
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

    with _naming(path):
        _core.policy_check(_text(path))
    _core.policy_check_lists(path)


def confined(path: Path) -> str | None:
    """Say whose code the ``[sandbox]`` of a policy confines, which has been checked.

    Parameters
    ----------
    path : Path
        The policy.

    Returns
    -------
    str or None
        The words; None, if it has no such table.
    """
    table = tomllib.loads(_text(path)).get("sandbox")
    if table is None:
        return None
    of_grid = "people and hosts of a grid"
    return f"confines the code of {', '.join([*table.get('managers', ()), of_grid])}"


def check_confines(path: Path, *, has_grid: bool) -> None:
    """See that a ``[sandbox]`` of a policy confines somebody.

    Parameters
    ----------
    path : Path
        The policy, which has been checked.
    has_grid : bool
        Whether people and hosts of a grid may come, who are confined unless it says otherwise.

    Raises
    ------
    UsageError
        If it names nobody, and nobody of a grid can come.
    """
    table = tomllib.loads(_text(path)).get("sandbox")
    if table is not None and not table.get("managers") and not has_grid:
        raise UsageError(
            f'{path}: [sandbox] names nobody whose code it confines, and nobody of a grid can come: add managers = ["*"] for all, or those who are not trusted'
        )


def _explain(arguments: argparse.Namespace) -> int:
    wire = [arguments.from_, arguments.to, arguments.class_]
    who = [arguments.identity, arguments.action]
    if None not in who and arguments.policy is not None and not any([*wire, arguments.other]):
        if arguments.credential is not None and (arguments.trust_anchors or arguments.vomsdir):
            raise UsageError(
                "got --credential beside --trust-anchors or --vomsdir, expected one of both: whose authorities judge"
            )
        return _explain_action(arguments)
    if None not in wire and not any(who):
        return _explain_wire(arguments)
    raise ValueError(
        "expected either FROM, TO and CLASS (with --other if there are two policies), or all of --identity, --action and --policy"
    )


def _explain_action(arguments: argparse.Namespace) -> int:
    from .. import _core

    try:
        chain = _core.certificates_of(arguments.identity.read_bytes())
    except CredentialError as error:
        raise CredentialError(f"{arguments.identity}: {error}") from None
    asked = chain, arguments.at, arguments.policy, arguments.action
    try:
        decision: dict[str, Any]
        if arguments.credential is not None:
            decision = _core.decide_by_credential(arguments.credential.read_bytes(), *asked)
        else:
            decision = judgement.open_trust(
                arguments.trust_anchors or trust_anchors(),
                arguments.vomsdir,
                judgement.rules(arguments),
            ).decide(*asked)
    except AuthenticationError as error:
        raise AuthenticationError(
            f"{arguments.identity}: the credential could not be verified: {error}"
        ) from None
    lines = [
        f"{arguments.action} by {one_line(decision['identity'])}: {'allowed' if decision['allowed'] else 'denied'}",
        f"  decided by: {decision['rule'] or 'no rule, and what nothing allows is denied'}",
        f"  {one_line(decision['reason'])}",
        f"  local account: {decision['account'] or 'none'}",
        f"  sandbox of its code, at an agent or a worker: {decision['sandbox'] or 'none'}",
    ]
    report(arguments, "\n".join(lines), {"action": arguments.action, **decision})
    return 0 if decision["allowed"] else 1


def _explain_wire(arguments: argparse.Namespace) -> int:
    from .. import _core

    wire = (arguments.from_, arguments.to, arguments.class_)
    answer = explained(
        arguments.policy, arguments.other, lambda text: _core.policy_explain(text, *wire)
    )
    lines = [
        f"{arguments.class_} from {arguments.from_} to {arguments.to}: {answer.holds}",
        *answer.lines,
        *(f"  {line}" for line in answer.results),
    ]
    report(arguments, "\n".join(lines), answer.data)
    return 0


@dataclass(frozen=True)
class Explained:
    """What one policy, or those of both ends, say of a wire or a link."""

    holds: str
    """The protection that holds."""
    holds_unproven: str | None
    """The same when a gateway, relay or NAT is between; None inside one host."""
    lines: list[str]
    """The reasons for people."""
    results: list[str]
    """How results of each end are read, for people; nothing for a link."""
    data: dict[str, Any]
    """The answer for machines."""


def explained(
    policy: Path | None, other: Path | None, ask: Callable[[str | None], dict[str, Any]]
) -> Explained:
    """Ask the policies of one end or both.

    Parameters
    ----------
    policy, other : Path or None
        The policy of this end, the built-in one if absent, and of the other end.
    ask : callable
        The question, for the text of a policy.

    Returns
    -------
    Explained
        The answer.

    Raises
    ------
    PolicyError
        If a file can't be used, or the question is about nothing.
    """
    from .. import _core

    for path in (policy, other):
        if path is not None:
            with _naming(path):
                _core.policy_check(_text(path))
    verdict = ask(None if policy is None else _text(policy))
    # For people; `results` says the same to machines.
    results = verdict.pop("results_lines", [])
    holds, unproven = verdict["protection"], verdict["unproven"]
    if other is None:
        theirs = None
        end = (
            "the policy of the other end may ask for more, and the stricter one holds: see --other"
        )
    else:
        theirs = ask(_text(other))
        theirs.pop("results_lines", None)
        holds = _stricter(holds, theirs["protection"])
        unproven = unproven and _stricter(unproven, theirs["unproven"])
        end = f"the policy of the other end, {other}, asks for {theirs['protection']} by {theirs['rule']}; the stricter one holds"
    lines = [
        f"  decided by: {verdict['rule']}"
        + (
            ""
            if holds == verdict["protection"]
            else f", with {verdict['protection']}, and the other end"
        ),
        *(f"  {reason}" for reason in verdict["reasons"]),
        f"  {end}",
    ]
    return Explained(holds, unproven, lines, results, {**verdict, "holds": holds, "other": theirs})


def _stricter(one: str, other: str) -> str:
    return max(one, other, key=_STRICTNESS.index)


def _check(arguments: argparse.Namespace) -> int:
    check(arguments.policy)
    told = confined(arguments.policy)
    also = "" if told is None else f"; its [sandbox] {told}"
    data = {"policy": arguments.policy, "valid": True}
    report(arguments, f"{arguments.policy}: valid{also}", data)
    return 0


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Have the error for a policy's text, which begins with the line if it is about one, begin with the file."""
    try:
        yield
    except PolicyError as error:
        separator = ", " if str(error).startswith("line ") else ": "
        raise PolicyError(f"{path}{separator}{error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: got bytes that are no UTF-8 at position {error.start}, expected a TOML file"
        ) from None
