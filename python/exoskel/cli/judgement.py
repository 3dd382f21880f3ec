"""The options by which chains are judged, and the verdict on one: shared by ``proxy info``, ``whoami`` and ``trust check``."""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import AuthenticationError
from ..identity import trust_anchors, vomsdir
from ..peer_text import one_line
from .report import duration, moment

__all__ = [
    "Verdict",
    "add_rules",
    "add_time",
    "add_trust",
    "judge",
    "open_trust",
    "refuse",
    "rules",
]

_TYPES = {
    "end-entity": "end-entity certificate (no proxy)",
    "rfc3820": "RFC 3820 compliant proxy",
    "draft": "draft proxy (Globus Toolkit 3)",
    "legacy": "legacy proxy (Globus Toolkit 2)",
}


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add ``--trust-anchors`` and ``--vomsdir``."""
    parser.add_argument(
        "--trust-anchors",
        type=Path,
        metavar="DIR",
        help="authorities, revocation lists and signing policies in the form of the IGTF "
        "(default: X509_CERT_DIR, else /etc/grid-security/certificates)",
    )
    add_vomsdir(parser)


def add_vomsdir(parser: argparse.ArgumentParser) -> None:
    """Add ``--vomsdir``."""
    parser.add_argument(
        "--vomsdir",
        type=Path,
        metavar="DIR",
        help="the VOMS servers whose attributes count: VO/HOST.lsc (default: X509_VOMS_DIR, else /etc/grid-security/vomsdir)",
    )


def add_time(parser: argparse.ArgumentParser) -> None:
    """Add ``--at``."""
    parser.add_argument(
        "--at",
        type=_time,
        metavar="TIME",
        help="judge as of this time: seconds since 1970, or 2026-11-20T12:00:00Z (default: now)",
    )


def add_rules(parser: argparse.ArgumentParser) -> None:
    """Add the settings of a verifier. Their defaults are the strict ones, and those of every service of ours."""
    group = parser.add_argument_group(
        "rules", "by which chains are judged; the defaults are the strict ones"
    )
    group.add_argument(
        "--revocation",
        choices=("require", "where-listed"),
        default="require",
        help="refuse what an authority without a revocation list signed (require), or accept it (where-listed)",
    )
    group.add_argument(
        "--name-spaces",
        choices=("require", "where-present"),
        default="require",
        help="the same for authorities without signing_policy and namespaces files",
    )
    group.add_argument(
        "--legacy-proxies", action="store_true", help="accept proxies of Globus Toolkit 2"
    )
    group.add_argument(
        "--draft-proxies", action="store_true", help="accept proxies of the draft before RFC 3820"
    )
    group.add_argument(
        "--proxy-depth-max",
        type=int,
        default=10,
        metavar="N",
        help="accept at most this many proxies in a chain (default: %(default)s)",
    )
    group.add_argument(
        "--policy-language",
        action="append",
        default=[],
        metavar="OID",
        help="accept proxies with this policy language as full ones; may be repeated",
    )
    group.add_argument(
        "--attribute-target",
        action="append",
        default=[],
        metavar="HOST",
        help="a name of this host that attribute certificates with targets may mean; may be repeated",
    )


def rules(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a verifier as the extension module takes them.

    Parameters
    ----------
    arguments : argparse.Namespace
        With the options of `add_rules`, or without any for the defaults.

    Returns
    -------
    dict
        The settings.
    """
    return {
        "revocation": getattr(arguments, "revocation", "require"),
        "name_spaces": getattr(arguments, "name_spaces", "require"),
        "legacy_proxies": getattr(arguments, "legacy_proxies", False),
        "draft_proxies": getattr(arguments, "draft_proxies", False),
        "proxy_depth_max": getattr(arguments, "proxy_depth_max", 10),
        "policy_languages": getattr(arguments, "policy_language", []),
        "attribute_targets": getattr(arguments, "attribute_target", []),
    }


def open_trust(anchors: Path, voms: Path | None, settings: dict[str, Any]) -> Any:
    """Read trust directories. A default vomsdir that isn't there is no error: then no attributes count.

    Parameters
    ----------
    anchors : Path
        The directory of authorities.
    voms : Path, optional
        The vomsdir that was asked for.
    settings : dict
        As `rules` returns them.

    Returns
    -------
    exoskel._core.GridTrust
        The trust.
    """
    from .. import _core

    directory = voms or vomsdir()
    return _core.GridTrust(
        anchors, directory if voms is not None or directory.is_dir() else None, settings
    )


@dataclass(frozen=True)
class Verdict:
    """What a chain says, and what a trust store makes of it.

    Parameters
    ----------
    claims : dict
        What the chain says of itself.
    proven : dict, optional
        What is proven, where it is good.
    reason : str, optional
        Why it is refused, where it isn't.
    at : int
        The time of the judgement, in seconds since 1970.
    judge : Path
        The directory of authorities.
    """

    claims: dict[str, Any]
    proven: dict[str, Any] | None
    reason: str | None
    at: int
    judge: Path

    @property
    def accepted(self) -> bool:
        """Whether the chain is good."""
        return self.proven is not None

    def data(self) -> dict[str, Any]:
        """Return the answer for machines. Of a refused chain nobody's identity, attributes or end are stated: nothing of them is proven."""
        certificates = self.claims["certificates"]
        leaf = certificates[0] if certificates else {}
        proven = self.proven or {}
        described = proven or self.claims
        return {
            "accepted": self.accepted,
            "reason": self.reason,
            "subject": leaf.get("subject"),
            "issuer": leaf.get("issuer"),
            "identity": proven.get("dn"),
            "rfc2253": proven.get("rfc2253"),
            "type": described["type"] if certificates else None,
            "limited": described["limited"],
            "independent": described["independent"],
            "depth": described["depth"],
            "vo": proven.get("vo"),
            "fqans": proven.get("fqans", []),
            "attributes": proven.get("attributes", []),
            "attribute_faults": proven.get("attribute_faults", []),
            "expires": proven.get("expires"),
            "role": proven.get("role"),
            "name": proven.get("name"),
            "judged_at": self.at,
            "trust_anchors": self.judge,
            "certificates": certificates,
            "claimed": {
                "identity": self.claims["identity"],
                "attributes": self.claims["attributes"],
            },
        }

    def seconds_left(self) -> int | None:
        """Return until when the certificates are valid, in seconds from the judgement on: below 0 where one has expired.

        Returns
        -------
        int or None
            None when no certificate can be read.
        """
        ends = [one["not_after"] for one in self.claims["certificates"] if "not_after" in one]
        return min(ends) - self.at if ends else None

    def on_links(self) -> str:
        """Return as whom an accepted identity meets others on links, or why it doesn't."""
        proven = self.proven or {}
        name = proven.get("name")
        if proven.get("limited"):
            return f"peer {name}; as a manager refused, as a limited proxy starts no jobs"
        roles = {"manager": "manager or peer", "worker": "worker, gateway, agent or peer"}
        role = str(proven.get("role"))
        return f"{roles.get(role, role)} {name}"

    def lines(self, path: Path) -> list[str]:
        """Return the answer for people, in the order of ``voms-proxy-info -all``."""
        certificates = self.claims["certificates"]
        leaf = certificates[0] if certificates else {}
        described = self.proven or self.claims
        rows = [
            ("subject", leaf.get("subject", "unreadable")),
            ("issuer", leaf.get("issuer", "unreadable")),
        ]
        identity = described["dn"] if self.proven else self.claims["identity"]
        kind = _type(described) if certificates else "unknown"
        rows += [("identity", identity or "none"), ("type", kind)]
        rows += [("strength", leaf.get("key", "unknown")), ("path", str(path))]
        rows.append(("timeleft", duration(self.seconds_left() or 0)))
        # What is proven has no dates of its own; the claims say the same in that case.
        for claimed in self.claims["attributes"]:
            rows.append(("", f"=== VO {claimed['vo']} extension information ==="))
            rows += [
                ("VO", claimed["vo"]),
                ("subject", identity or "none"),
                ("issuer", claimed["issuer"]),
            ]
            rows += [("attribute", fqan) for fqan in claimed["fqans"]]
            rows += [("attribute", _generic(one)) for one in claimed["generic"]]
            rows.append(("timeleft", duration(claimed["not_after"] - self.at)))
            rows.append(("server", claimed["server"]))
        if self.proven is None:
            rows += [
                ("", "=== verdict ==="),
                ("accepted", f"no, by {self.judge}"),
                ("reason", str(self.reason)),
            ]
            if self.claims["attributes"] or self.claims["identity"]:
                rows.append(("", "nothing of what stands above is proven"))
        else:
            rows += [("", "=== verdict ==="), ("accepted", f"yes, by {self.judge}")]
            rows.append(("until", moment(self.proven["expires"])))
            rows += [("attributes refused", fault) for fault in self.proven["attribute_faults"]]
            rows.append(("on our links", self.on_links()))
        width = 10
        return [
            f"{one_line(title):<{width}}: {one_line(text)}" if title else one_line(text)
            for title, text in rows
        ]


def judge(
    chain: Sequence[bytes],
    arguments: argparse.Namespace,
) -> Verdict:
    """Judge a chain as the options say.

    Parameters
    ----------
    chain : sequence of bytes
        DER, leaf first.
    arguments : argparse.Namespace
        With the options of this module.

    Returns
    -------
    Verdict
        The verdict. A default trust directory that isn't there trusts nobody; one that was asked for is an error.
    """
    from .. import _core

    asked: Path | None = arguments.trust_anchors
    directory = asked or trust_anchors()
    at = _at(arguments)
    claims = _core.chain_details(chain)
    try:
        trust = open_trust(directory, arguments.vomsdir, rules(arguments))
    except OSError as error:
        if asked is not None or arguments.vomsdir is not None:
            raise
        return Verdict(claims, None, f"nobody is trusted here: {error}", at, directory)
    try:
        return Verdict(claims, trust.judge(chain, at), None, at, directory)
    except AuthenticationError as error:
        return Verdict(claims, None, str(error), at, directory)


def refuse(reason: str, arguments: argparse.Namespace) -> Verdict:
    """Return the verdict on something that is no chain.

    Parameters
    ----------
    reason : str
        What is wrong with it.
    arguments : argparse.Namespace
        With the options of this module.

    Returns
    -------
    Verdict
        A refusal.
    """
    from .. import _core

    directory = arguments.trust_anchors or trust_anchors()
    return Verdict(_core.chain_details([]), None, reason, _at(arguments), directory)


def _at(arguments: argparse.Namespace) -> int:
    return int(time.time()) if arguments.at is None else int(arguments.at)


def _type(described: Mapping[str, Any]) -> str:
    words = _TYPES[described["type"]]
    if described["independent"]:
        words += ", independent"
    if described["limited"]:
        words += ", limited"
    if described["depth"] > 1:
        words += f", {described['depth']} deep"
    return words


def _generic(attribute: Mapping[str, str]) -> str:
    return f"{attribute['name']} = {attribute['value']} ({attribute['qualifier']})"


def _time(text: str) -> int:
    if text.isascii() and text.isdigit():
        return int(text)
    try:
        read = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"got {text!r}, expected seconds since 1970 or a time like 2026-11-20T12:00:00Z"
        ) from None
    # Certificates have no time zones.
    seconds = int((read if read.tzinfo else read.replace(tzinfo=UTC)).timestamp())
    if seconds < 0:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a time after 1970")
    return seconds
