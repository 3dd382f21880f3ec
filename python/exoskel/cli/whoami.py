"""``exoskel whoami``: the identity that peers would see for the current credential."""

import argparse
from typing import Any

from .. import identity
from ..errors import CredentialError
from ..peer_text import one_line
from . import judgement
from .report import Commands, duration, moment, report

__all__ = ["add_commands"]


def add_commands(commands: Commands, common: argparse.ArgumentParser) -> None:
    """Add ``whoami``."""
    parser = commands.add_parser(
        "whoami",
        parents=[common],
        help="show who you are to grid services, and for how long, with the credential you have now",
        description="Show the identity that peers see for the current credential: the first of X509_USER_PROXY, /tmp/x509up_uUID, "
        "X509_USER_CERT with X509_USER_KEY, and ~/.globus/usercert.pem. Exit code 1 if the trust directories here would refuse it.",
    )
    judgement.add_trust(parser)
    judgement.add_time(parser)
    judgement.add_rules(parser)
    parser.set_defaults(run=_whoami)


def _whoami(arguments: argparse.Namespace) -> int:
    from .. import _core

    files = identity.current_credential()
    if files.certificate.suffix == ".p12":
        raise CredentialError(
            f"{files.certificate} is locked by a pass phrase; unlock it with: exoskel proxy init"
        )
    verdict = judgement.judge(_core.certificates_of(files.certificate.read_bytes()), arguments)
    fault = _fault_of_key(files)
    data: dict[str, Any] = {
        "credential": files.certificate,
        "named_by": files.named_by,
        "usable": fault is None,
    }
    data |= {"unusable_because": fault, "seconds_left": verdict.seconds_left(), **verdict.data()}
    report(arguments, "\n".join(_text(files, verdict, fault)), data)
    return 0 if verdict.accepted and fault is None else 1


def _text(
    files: identity.CredentialFiles, verdict: judgement.Verdict, fault: str | None
) -> list[str]:
    proven = verdict.proven
    lines = [f"credential: {files.certificate} ({files.named_by})"]
    if proven is not None:
        lines.append(f"identity  : {one_line(proven['dn'])}")
        if proven["type"] != "end-entity":
            lines.append(
                f"acting as : {'limited proxy' if proven['limited'] else 'proxy'}, {proven['depth']} deep"
            )
        lines += [f"attribute : {fqan}" for fqan in proven["fqans"]]
        lines += [f"refused   : {one_line(fault)}" for fault in proven["attribute_faults"]]
        lines.append(f"on links  : {one_line(verdict.on_links())}")
    else:
        lines.append("identity  : nobody, to those who trust what this host trusts")
        lines.append(f"claimed   : {one_line(verdict.claims['identity'] or 'nothing')}")
        lines.append(f"reason    : {one_line(str(verdict.reason))}")
    left = verdict.seconds_left()
    if left is not None:
        lines.append(f"timeleft  : {duration(left)}, until {moment(verdict.at + left)}")
    if fault is not None:
        lines.append(f"unusable  : {one_line(fault)}")
    return lines


def _fault_of_key(files: identity.CredentialFiles) -> str | None:
    """Return why the key can't be used as it is, or None."""
    from .. import _core

    try:
        if files.is_one_file:
            _core.read_grid_credential(files.certificate)
            return None
        if b"ENCRYPTED" in identity.read_private(files.key):
            return f"{files.key} is locked by a pass phrase; make a proxy of it with: exoskel proxy init"
    except (CredentialError, OSError) as error:
        return str(error)
    return None
