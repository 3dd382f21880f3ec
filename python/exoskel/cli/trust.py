"""``exoskel trust check``: what of a site's trust directories can be used, and what would be refused."""

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..identity import trust_anchors
from ..peer_text import one_line
from . import judgement
from .report import Commands, duration, moment, report

__all__ = ["add_commands"]


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``trust check``."""
    parser = commands.add_parser("trust", help="look at whom a site trusts")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    check = actions.add_parser(
        "check",
        parents=[common],
        help="see which authorities, revocation lists and policies load, and what would be refused",
        description="See which authorities, revocation lists (with their ages) and policies of a directory load, and what would be "
        "refused and why. Exit code 1 if anything would be.",
    )
    check.add_argument(
        "directory",
        type=Path,
        nargs="?",
        metavar="DIR",
        help="default: X509_CERT_DIR, else /etc/grid-security/certificates",
    )
    judgement.add_vomsdir(check)
    judgement.add_time(check)
    judgement.add_rules(check)
    check.set_defaults(run=_check)


def _check(arguments: argparse.Namespace) -> int:
    directory = arguments.directory or trust_anchors()
    trust = judgement.open_trust(directory, arguments.vomsdir, judgement.rules(arguments))
    at = int(time.time()) if arguments.at is None else arguments.at
    found = trust.report(at)
    refused = [one for one in found["authorities"] if one["refused_because"]]
    sound = not (refused or found["bad_files"] or found["stale_lists"])
    report(
        arguments,
        "\n".join(_text(directory, found, at)),
        {"directory": directory, "sound": sound, **found},
    )
    return 0 if sound else 1


def _text(directory: Path, found: Mapping[str, Any], at: int) -> list[str]:
    authorities = found["authorities"]
    refused = sum(bool(one["refused_because"]) for one in authorities)
    lines = []
    for one in authorities:
        lines.append(
            f"{'REFUSED' if one['refused_because'] else 'ok':<8}{one_line(one['subject'])}"
        )
        lines.append(
            f"        {one['key']}, until {moment(one['not_after'])}, files {one_line(' '.join(one['files']))}"
        )
        lines.append(f"        {_revocation(one['revocation_list'], at)}; {_names(one)}")
        lines += [f"        refused: {one_line(why)}" for why in one["refused_because"]]
        notes = [why for why in one["weaknesses"] if why not in one["refused_because"]]
        lines += [f"        note: {one_line(why)}" for why in notes]
    lines += [
        f"BAD     {one_line(bad['name'])}: {one_line(bad['reason'])}" for bad in found["bad_files"]
    ]
    lines += [
        f"note    {_files(one)}: a revocation list of {one_line(one['issuer'])}, whose certificate is not here; {_age(one, at)}"
        for one in found["lists_without_authority"]
    ]
    lines += [f"STALE   {one_line(text)}" for text in found["stale_lists"]]
    lines.append(
        f"{directory}: {len(authorities)} authorities, {refused} of them refused; {len(found['bad_files'])} bad files; "
        f"{found['voms_files']} files of VOMS servers"
    )
    return lines


def _revocation(found: Mapping[str, Any] | None, at: int) -> str:
    if found is None:
        return "no revocation list"
    return f"revocation list {_files(found)} {_age(found, at)}, {found['revoked']} revoked"


def _files(found: Mapping[str, Any]) -> str:
    return one_line(" ".join(found["files"]))


def _age(found: Mapping[str, Any], at: int) -> str:
    left = found["next_update"] - at
    due = (
        f"the next one is due in {duration(left)}" if left >= 0 else f"overdue by {duration(-left)}"
    )
    return f"{duration(found['age_seconds'])} old, {due}"


def _names(authority: Mapping[str, Any]) -> str:
    policies = [word for word in ("signing_policy", "namespaces") if authority[word]]
    return " and ".join(policies) or "no signing_policy, no namespaces"
