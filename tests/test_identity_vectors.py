"""The vectors of grid identity are whole, cover every rule, and say nothing that a second reader denies.

The second reader is Python's `cryptography`: it knows signatures, times, names and revocation lists, and no proxies. So each case
is taken apart into facts, and the facts must be those of its verdict: the one that it is about is wrong, all others are right.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import NameOID
from tests.certificates.vectors.rules import RULES

VECTORS = Path(__file__).parent.parent / "vectors" / "identity"
MANIFEST: dict[str, Any] = json.loads((VECTORS / "manifest.json").read_text(encoding="utf-8"))
CASES: list[dict[str, Any]] = MANIFEST["cases"]
TIME = datetime.fromtimestamp(MANIFEST["time"], UTC)
BYTES_MAX = 2_500_000
SETTINGS = {
    "revocation",
    "name_spaces",
    "legacy_proxies",
    "draft_proxies",
    "proxy_depth_max",
    "policy_languages",
    "attribute_targets",
}
# Refused before there is a path of certificates that could be looked at.
UNREADABLE = {"encoding", "extension-once", "alternative-names"}
# What the second reader reads all the same: it asks for DER, for extensions that differ, and for keys that OpenSSL loads.
READ_ALL_THE_SAME = {
    "encoding_algorithms_differ",
    "eec_rsa_exponent_34_bits",
    "eec_rsa_modulus_even",
}
# The second reader compares names byte by byte, RFC 5280 7.1 doesn't.
SPELLED_OTHERWISE = {"eec_issuer_spelled_otherwise"}
# Refused because there is no path.
PATHLESS = {"signature", "trust-anchor"}


def files(folder: str) -> set[str]:
    return {
        str(path.relative_to(VECTORS)) for path in (VECTORS / folder).rglob("*") if path.is_file()
    }


def test_every_rule_is_kept_and_broken() -> None:
    kept: set[str] = set()
    broken: set[str] = set()
    for case in CASES:
        expect = case["expect"]
        reasons = [expect["reason"]] if "reason" in expect else expect["attribute_reasons"]
        assert set(reasons) <= set(MANIFEST["rules"]), case["name"]
        (broken if reasons else kept).add(case["about"])
        broken |= set(reasons)
    assert kept == set(MANIFEST["rules"])
    assert broken == set(MANIFEST["rules"])


def test_the_generator_has_the_rules_of_the_manifest() -> None:
    written = {name: (rule["source"], rule["text"]) for name, rule in MANIFEST["rules"].items()}
    assert written == RULES


def test_names_and_fields_are_sound() -> None:
    names = [case["name"] for case in CASES]
    assert len(set(names)) == len(names)
    always = {"name", "about", "rule", "chain", "trust", "vomsdir", "settings", "expect"}
    for case in CASES:
        assert re.fullmatch(r"[a-z0-9_]+", case["name"])
        assert set(case) - {"note"} == always, case["name"]
        assert set(case["settings"]) <= SETTINGS, case["name"]
        expect = case["expect"]
        assert expect["accepted"] != ("reason" in expect), case["name"]
        assert len(expect.get("attribute_reasons", [])) == expect.get("attribute_faults", 0)
        assert MANIFEST["rules"][case["about"]]["text"] in case["rule"]


def test_the_folder_holds_what_the_manifest_names_and_nothing_else() -> None:
    named = {case["chain"] for case in CASES}
    assert files("chains") == named
    for kind in ["trust", "vomsdir"]:
        present = {f"{kind}/{path.name}" for path in (VECTORS / kind).iterdir()}
        assert present == {case[kind] for case in CASES}
    hashed = re.compile(r"trust/[\w-]+/[0-9a-f]{8}\.(r?\d|signing_policy|namespaces|crl_url)")
    beside = {"trust/default/classic.info"}
    assert {name for name in files("trust") if not hashed.fullmatch(name)} == beside
    signers = re.compile(r"vomsdir/[\w-]+/\w+/[\w.-]+\.(lsc|pem)")
    beside = {"vomsdir/empty/.keep"}
    assert {name for name in files("vomsdir") if not signers.fullmatch(name)} == beside
    top = {path.name for path in VECTORS.iterdir()} - {"chains", "trust", "vomsdir"}
    made = {"README.md", "generate.py", "manifest.json", ".gitattributes"}
    assert top == made


def test_the_folder_holds_no_private_key_and_stays_small() -> None:
    paths = [path for path in VECTORS.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert [path.name for path in paths if b"PRIVATE KEY" in path.read_bytes()] == []
    assert sum(path.stat().st_size for path in paths) < BYTES_MAX


def test_the_tables_of_differences_name_cases() -> None:
    """Whether the differences are there is the business of `make test-peers`."""
    text = (VECTORS.parent.parent / "docs" / "identity-peers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \|", text, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert len(named) > 50
    assert set(named) <= {case["name"] for case in CASES}


def test_who_made_them_is_written_down() -> None:
    assert "OpenSSL 3" in MANIFEST["provenance"]["with"]
    assert "voms-clients" in MANIFEST["provenance"]["with"]


# --- the second reader -----------------------------------------------------------------------------


def slash(name: x509.Name) -> str:
    """A name as OpenSSL writes it on one line."""
    kinds = {NameOID.DOMAIN_COMPONENT: "DC", NameOID.ORGANIZATION_NAME: "O"}
    kinds |= {NameOID.COMMON_NAME: "CN", NameOID.ORGANIZATIONAL_UNIT_NAME: "OU"}
    return "".join(f"/{kinds[part.oid]}={part.value!s}" for part in name)


@dataclass
class Trust:
    """What a trust directory holds, for all who are judged by it."""

    anchors: list[x509.Certificate]
    lists: list[x509.CertificateRevocationList]

    @staticmethod
    @cache
    def read(folder: str) -> Trust:
        """A directory of the vectors."""
        anchors, lists = [], []
        for path in sorted((VECTORS / folder).iterdir()):
            if re.fullmatch(r"\.\d", path.suffix):
                anchors.append(x509.load_pem_x509_certificate(path.read_bytes()))
            elif re.fullmatch(r"\.r\d", path.suffix) and b"END X509 CRL" in path.read_bytes():
                # The second reader is strict about DER itself: what it can't read is no list.
                with contextlib.suppress(ValueError):
                    lists.append(x509.load_pem_x509_crl(path.read_bytes()))
        return Trust(anchors, lists)


def issued(child: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        child.verify_directly_issued_by(issuer)
    except (ValueError, InvalidSignature, UnsupportedAlgorithm):
        return False
    return True


def paths(
    leaf: x509.Certificate, others: list[x509.Certificate], anchors: list[x509.Certificate]
) -> Iterator[list[x509.Certificate]]:
    """All ways from the leaf to a self-signed anchor along names and signatures."""
    if leaf in anchors and leaf.issuer == leaf.subject:
        yield [leaf]
        return
    for issuer in {*others, *anchors} - {leaf}:
        if issued(leaf, issuer):
            rest = [other for other in others if other != leaf]
            for path in paths(issuer, rest, anchors):
                yield [leaf, *path]


def in_time(certificate: x509.Certificate) -> bool:
    return certificate.not_valid_before_utc <= TIME <= certificate.not_valid_after_utc


def lists_of(issuer: x509.Certificate, trust: Trust) -> list[x509.CertificateRevocationList]:
    return [
        one
        for one in trust.lists
        if one.issuer == issuer.subject and one.is_signature_valid(issuer.public_key())  # type: ignore[arg-type]
    ]


@dataclass
class Facts:
    """One path, its anchor left out where it isn't asked about."""

    path: list[x509.Certificate]
    authorities: int
    trust: Trust

    def are_in_time(self) -> bool:
        """Whether every certificate is valid at the judged time."""
        return all(in_time(certificate) for certificate in self.path)

    def is_revoked(self) -> bool:
        """Whether a list that its authority signed names a certificate of the path."""
        first = len(self.path) - self.authorities
        return any(
            one.get_revoked_certificate_by_serial_number(child.serial_number)
            for child, issuer in zip(self.path[first - 1 :], self.path[first:], strict=False)
            for one in lists_of(issuer, self.trust)
        )

    def ends(self) -> int:
        """The earliest end of certificates and of lists that count now."""
        times = [certificate.not_valid_after_utc for certificate in self.path]
        for issuer in self.path[len(self.path) - self.authorities :]:
            ends = [one.next_update_utc for one in lists_of(issuer, self.trust)]
            times += [max(end for end in ends if end)] if ends else []
        return int(min(times).timestamp())


def facts_of(case: dict[str, Any]) -> list[Facts]:
    chain = x509.load_pem_x509_certificates((VECTORS / case["chain"]).read_bytes())
    trust = Trust.read(case["trust"])
    known = set(trust.anchors)
    found = []
    for path in paths(chain[0], chain[1:], trust.anchors):
        authorities = sum(one in known or _signs_certificates(one) for one in path)
        found.append(Facts(path, authorities, trust))
    return found


def _signs_certificates(certificate: x509.Certificate) -> bool:
    try:
        return bool(certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca)
    except x509.ExtensionNotFound:
        return False


def read_whole(content: bytes) -> None:
    """Reads what is parsed only when it is asked for, too."""
    for certificate in x509.load_pem_x509_certificates(content):
        _ = certificate.extensions, certificate.subject, certificate.issuer
        certificate.public_key()


def spoilt_encodings() -> list[Any]:
    about = {"encoding", "extension-once", "rsa-numbers"}
    return [
        pytest.param(case, id=case["name"])
        for case in CASES
        if case["expect"].get("reason") in about and case["name"] not in READ_ALL_THE_SAME
    ]


@pytest.mark.parametrize("case", spoilt_encodings())
@pytest.mark.filterwarnings("ignore:Parsed a serial number")
def test_a_strict_second_reader_refuses_what_is_not_der(case: dict[str, Any]) -> None:
    content = (VECTORS / case["chain"]).read_bytes()
    with pytest.raises((ValueError, x509.DuplicateExtension)):
        read_whole(content)


def test_a_strict_second_reader_refuses_the_lists_that_are_not_der() -> None:
    spoilt = [case for case in CASES if case["expect"].get("reason") == "crl-encoding"]
    assert len(spoilt) > 5
    for case in spoilt:
        [leaf] = x509.load_pem_x509_certificates((VECTORS / case["chain"]).read_bytes())
        files = [path for path in (VECTORS / case["trust"]).glob("*.r0") if path.stat().st_size]
        issuers = {path for path in files if list_by(leaf.issuer, path)}
        assert issuers == set(), case["name"]


def list_by(issuer: x509.Name, path: Path) -> bool:
    """Whether a file holds a list of that issuer that the second reader can read as a whole."""
    try:
        found = x509.load_pem_x509_crl(path.read_bytes())
        _ = found.extensions, [entry.extensions for entry in found]
    except (ValueError, x509.DuplicateExtension):
        return False
    return found.issuer == issuer


def accepted() -> list[Any]:
    return [
        pytest.param(case, id=case["name"])
        for case in CASES
        if case["expect"]["accepted"] and case["name"] not in SPELLED_OTHERWISE
    ]


def refused() -> list[Any]:
    return [
        pytest.param(case, id=case["name"])
        for case in CASES
        if not case["expect"]["accepted"] and case["expect"]["reason"] not in UNREADABLE
    ]


@pytest.mark.parametrize("case", accepted())
def test_a_second_reader_sees_nothing_wrong_with_what_is_accepted(case: dict[str, Any]) -> None:
    expect = case["expect"]
    good = [facts for facts in facts_of(case) if facts.are_in_time() and not facts.is_revoked()]
    assert good
    facts = good[0]
    entities = facts.path[: len(facts.path) - facts.authorities]
    assert len(entities) == expect["depth"] + 1
    assert slash(entities[0].subject) == expect["subject"]
    assert expect["identity"] in {slash(entity.subject) for entity in entities}
    if not expect["independent"]:
        assert slash(entities[-1].subject) == expect["identity"]
    if expect["fqans"]:  # these end with the attributes
        assert expect["expires"] <= facts.ends()
    else:
        assert expect["expires"] == max(one.ends() for one in good)


@pytest.mark.parametrize("case", refused())
def test_a_second_reader_sees_nothing_else_wrong_with_what_is_refused(case: dict[str, Any]) -> None:
    reason = case["expect"]["reason"]
    found = facts_of(case)
    if reason in PATHLESS:
        assert found == []
    elif reason == "validity":
        assert found
        assert not any(facts.are_in_time() for facts in found)
    elif reason == "revoked":
        assert [facts.is_revoked() for facts in found if facts.are_in_time()] == [True]
    elif reason not in {
        "digest",
        "key-strength",
        "rsa-numbers",
    }:  # which the second reader may refuse to check
        assert any(facts.are_in_time() and not facts.is_revoked() for facts in found)
