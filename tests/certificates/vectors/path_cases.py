"""RFC 5280: authorities, end entities, lists, names, sizes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from tests.certificates import der
from tests.certificates.openssl import (
    CA_EXTENSIONS,
    ENTITY_EXTENSIONS,
    FUTURE,
    PAST,
    Authority,
    Certificate,
)
from tests.certificates.trust_files import namespaces, signing_policy
from tests.certificates.vectors.manifest import Manifest
from tests.certificates.vectors.world import BASE, HOSTS, USERS, World, ca_name, colliding_names

UNKNOWN = "1.3.6.1.4.1.55555.1.1"
UNKNOWN_CRITICAL = f"{UNKNOWN}=critical,DER:0500"
INTERMEDIATE = (*CA_EXTENSIONS, "authorityKeyIdentifier=keyid")
WHERE_LISTED = {"revocation": "where-listed"}


def edited(certificate: Certificate, old: bytes, new: bytes, key: Certificate) -> Certificate:
    """The certificate with some bytes of its body replaced by as many others, signed again."""
    body, _, _ = der.signed_parts(certificate.der)
    if body.content.count(old) != 1 or len(old) != len(new):
        raise ValueError("the bytes to replace are not there exactly once")
    changed = der.tlv(body.tag, body.content.replace(old, new))
    return certificate.having(der.signed_again(certificate.der, changed, key.key))


def spoilt(certificate: Certificate) -> Certificate:
    """The certificate with a signature that doesn't hold."""
    return certificate.having(der.with_spoilt_signature(certificate.der))


def end_entities(world: World, manifest: Manifest) -> None:
    """Leaves, and what is wrong with them alone."""
    classic = world.authorities["Classic"]
    accept, refuse = manifest.accept, manifest.refuse

    alice = world.user(classic, "Alice")
    accept("eec_person", "trust-anchor", [alice])
    accept("eec_with_anchor", "chain-order", [alice, classic.certificate])
    robot = world.user(classic, "Robot", subject=f"{BASE}/O=Robots/CN=Robot: data manager")
    accept("eec_robot", "trust-anchor", [robot])
    accept("eec_host", "trust-anchor", [world.host(classic, "worker.example.org")])
    for kind in ["RSA-2048", "RSA-4096", "P-384", "P-521", "Ed25519"]:
        name = kind.lower().replace("-", "")
        accept(f"eec_{name}", "key-strength", [world.user(classic, kind, key=kind)])
    for kind in ["RSA-512", "RSA-1024", "P-224"]:
        name = kind.lower().replace("-", "")
        refuse(f"eec_{name}", "key-strength", [world.user(classic, kind, key=kind)])
    for digest in ["sha384", "sha512"]:
        accept(f"eec_{digest}", "digest", [world.user(classic, digest, digest=digest)])
    for digest in ["sha1", "md5"]:
        refuse(f"eec_{digest}", "digest", [world.user(classic, digest, digest=digest)])
    pss = world.user(
        classic,
        "PSS",
        options=["-sigopt", "rsa_padding_mode:pss", "-sigopt", "rsa_pss_saltlen:digest"],
    )
    accept("eec_pss", "digest", [pss])

    unknown = (*ENTITY_EXTENSIONS, f"{UNKNOWN}=DER:0500")
    accept(
        "eec_unknown_extension",
        "critical-extension",
        [world.user(classic, "X", extensions=unknown)],
    )
    critical = (*ENTITY_EXTENSIONS, UNKNOWN_CRITICAL)
    refuse(
        "eec_unknown_critical",
        "critical-extension",
        [world.user(classic, "X", extensions=critical)],
    )

    refuse("eec_expired", "validity", [world.user(classic, "Late", end=PAST)])
    refuse("eec_not_yet_valid", "validity", [world.user(classic, "Early", start=FUTURE)])
    edge = datetime(2026, 10, 1, 12, tzinfo=UTC)
    accept(
        "eec_first_second",
        "validity",
        [world.user(classic, "Edge", start=edge)],
        note="notBefore is the judged second itself",
    )
    accept(
        "eec_last_second",
        "validity",
        [world.user(classic, "Edge", end=edge)],
        note="notAfter is the judged second itself; RFC 5280 4.1.2.5 counts it in",
    )

    accept("eec_right_signature", "signature", [alice])
    refuse("eec_wrong_signature", "signature", [spoilt(alice)])
    impostor = world.twin(classic.certificate)
    refuse(
        "eec_signed_by_twin",
        "signature",
        [world.user(impostor, "Mallory", extensions=ENTITY_EXTENSIONS[:3])],
        note="an unknown key that has the anchor's name",
    )
    spelled = world.shop.self_signed(f"{BASE}/CN=CLASSIC  ca", classic.certificate.key)
    cased = world.user(spelled, "Cassius")
    accept(
        "eec_issuer_spelled_otherwise",
        "trust-anchor",
        [dataclasses.replace(cased, issuer=classic.certificate)],
        note="the issuer's name in other case and spaces: the same by RFC 5280 7.1",
    )
    stranger = world.authorities["Stranger"]
    refuse("eec_unknown_authority", "trust-anchor", [world.user(stranger, "Nobody")])
    refuse(
        "eec_unknown_authority_sent",
        "trust-anchor",
        [world.user(stranger, "Nobody"), stranger.certificate],
    )
    alone = world.shop.self_signed(f"{USERS}/CN=Alone", world.shop.key(), ENTITY_EXTENSIONS[:3])
    refuse("eec_self_signed", "trust-anchor", [alone])

    accept("eec_usage_signature", "key-usage", [_with_usage(world, "critical,digitalSignature")])
    refuse("eec_usage_encipherment", "key-usage", [_with_usage(world, "critical,keyEncipherment")])
    no_usage = tuple(line for line in ENTITY_EXTENSIONS if not line.startswith("keyUsage"))
    accept("eec_no_usage", "key-usage", [world.user(classic, "Anyhow", extensions=no_usage)])
    for name, usage in {"client": "clientAuth", "server": "serverAuth"}.items():
        extensions = (*ENTITY_EXTENSIONS, f"extendedKeyUsage={usage}")
        who = world.host(
            classic,
            f"{name}.example.org",
            extensions=(*extensions, f"subjectAltName=DNS:{name}.example.org"),
        )
        accept(f"eec_purpose_{name}", "extended-key-usage", [who])
    mail = (*ENTITY_EXTENSIONS, "extendedKeyUsage=emailProtection")
    refuse("eec_purpose_mail", "extended-key-usage", [world.user(classic, "Mail", extensions=mail)])

    refuse("leaf_is_anchor", "end-entity", [classic.certificate])
    issuing = world.authorities["Issuing"]
    refuse("leaf_is_intermediate", "end-entity", [issuing.certificate])
    accept("eec_below_intermediate", "end-entity", [world.user(issuing, "Bob")])
    below = world.user(alice, "Alice's friend")
    refuse(
        "eec_issued_by_eec",
        "ca-basic-constraints",
        [below, alice],
        note="an end entity that signs another name; no proxy either",
    )
    like = world.shop.issue(alice, f"{alice.subject}/CN=12345", extensions=ENTITY_EXTENSIONS)
    refuse(
        "eec_issued_by_eec_named_like_a_proxy",
        "ca-basic-constraints",
        [like, alice],
        note="subject = issuer's + one CN, but nothing says proxy",
    )

    # Two commonNames, and one that a legacy proxy would have: still an end entity.
    named = world.user(classic, "proxy", subject=f"{USERS}/CN=Alice/CN=proxy")
    accept("eec_named_proxy", "end-entity", [named], note="issued by an authority, so no proxy")


def _with_usage(world: World, usage: str) -> Certificate:
    extensions = tuple(
        f"keyUsage={usage}" if line.startswith("keyUsage") else line for line in ENTITY_EXTENSIONS
    )
    return world.user(world.authorities["Classic"], "Usage", extensions=extensions)


def encodings(world: World, manifest: Manifest) -> None:
    """Bytes that are no certificate, and chains of odd shapes."""
    classic, issuing = world.authorities["Classic"], world.authorities["Issuing"]
    accept, refuse = manifest.accept, manifest.refuse
    alice = world.user(classic, "Alice")
    accept("encoding_good", "encoding", [alice])
    refuse("encoding_no_certificate", "encoding", [])
    refuse("encoding_garbage", "encoding", [bytes(range(256)) * 3])
    refuse("encoding_empty", "encoding", [b""])
    refuse("encoding_truncated", "encoding", [alice.der[: len(alice.der) // 2]])
    refuse("encoding_last_byte_missing", "encoding", [alice.der[:-1]])
    refuse("encoding_bytes_after", "encoding", [alice.der + b"\0"])
    refuse("encoding_garbage_behind_leaf", "encoding", [alice, b"\x30\x82garbage"])
    length = alice.der[2:4]
    indefinite = alice.der[:1] + b"\x80" + alice.der[4:] + b"\0\0"
    if len(length) != 2:
        raise ValueError("expected a length of two bytes")
    refuse("encoding_indefinite", "encoding", [indefinite], note="BER, not DER")
    body, _, signature = der.signed_parts(alice.der)
    other = der.sequence(der.object_identifier("1.2.840.113549.1.1.12"), b"\x05\x00")
    refuse(
        "encoding_algorithms_differ",
        "encoding",
        [der.signed(body.encode(), other, signature)],
        note="sha256WithRSAEncryption inside, sha384WithRSAEncryption outside",
    )

    accept("extensions_different", "extension-once", [alice])
    twice = (*ENTITY_EXTENSIONS, f"{UNKNOWN}=DER:0500", f"{UNKNOWN[:-1]}2=DER:0500")
    doubled = world.user(classic, "Twice", extensions=twice)
    one = der.object_identifier(UNKNOWN)
    two = der.object_identifier(f"{UNKNOWN[:-1]}2")
    refuse("extension_twice", "extension-once", [edited(doubled, two, one, classic.certificate)])

    stranger = world.authorities["Stranger"]
    bob = world.user(issuing, "Bob")
    proxy = world.proxy(bob)
    whole = [proxy, bob, issuing.certificate]
    accept("order_right", "chain-order", whole, depth=1)
    accept("order_shuffled", "chain-order", [proxy, issuing.certificate, bob], depth=1)
    accept("order_copies", "chain-order", [proxy, bob, bob, issuing.certificate, proxy], depth=1)
    accept(
        "order_strangers",
        "chain-order",
        [proxy, world.user(stranger, "Nobody"), bob, stranger.certificate, issuing.certificate],
        depth=1,
    )
    accept(
        "order_eec_before_proxy",
        "chain-order",
        [bob, proxy, issuing.certificate],
        note="the first certificate is the peer's: here the end entity itself",
    )
    refuse(
        "order_authority_first",
        "chain-order",
        [issuing.certificate, proxy, bob],
        reason="end-entity",
        note="the first certificate is the peer's, and this one is an authority",
    )
    many = [world.user(classic, f"Stranger {number}") for number in range(39)]
    refuse("chain_of_40", "chain-length", [alice, *many])
    accept("chain_of_5", "chain-length", [alice, *many[:4]])

    # Zeros compress well, here and in the repository.
    for size, good in [(8000, True), (8500, False)]:
        content = f"{UNKNOWN}=DER:{der.tlv(der.OCTET_STRING, bytes(size)).hex()}"
        who = world.user(classic, "Big", extensions=(*ENTITY_EXTENSIONS, content))
        if good:
            accept(f"extension_{size}", "extension-size", [who])
        else:
            refuse(f"extension_{size}", "extension-size", [who])
    content = der.tlv(der.OCTET_STRING, bytes(7000)).hex()
    for count, good in [(2, True), (5, False)]:
        lines = [f"{UNKNOWN[:-1]}{10 + number}=DER:{content}" for number in range(count)]
        who = world.user(classic, "Big", extensions=(*ENTITY_EXTENSIONS, *lines))
        if good:
            accept(f"certificate_{count * 7}k", "certificate-size", [who])
        else:
            refuse(f"certificate_{count * 7}k", "certificate-size", [who])


def authorities(world: World, manifest: Manifest) -> None:
    """Anchors, intermediates, what they may do."""
    accept, refuse = manifest.accept, manifest.refuse
    classic, issuing = world.authorities["Classic"], world.authorities["Issuing"]

    elliptic = world.root("Elliptic", "P-384")
    accept("anchor_p384", "key-strength", [world.user(elliptic, "Eve")])
    large = world.root("Large", "RSA-4096")
    accept("anchor_rsa4096", "key-strength", [world.user(large, "Lars")])
    huge = world.root("Huge", "RSA-8192")
    accept("anchor_rsa8192", "key-strength", [world.user(huge, "Hugo")])
    # Ed25519 has its own digest.
    edwards = world.root("Edwards", "Ed25519", digest="null")
    edwards.crl = world.shop.crl(edwards.certificate, digest="null")
    accept("anchor_ed25519", "key-strength", [world.user(edwards, "Edda", digest="null")])
    old = world.root("Old", "RSA-1024", digest="sha1")
    accept(
        "anchor_rsa1024", "key-strength", [world.user(old, "Olaf")], note="old anchors may be weak"
    )
    weak = world.root("Weak", "RSA-512")
    refuse("anchor_rsa512", "key-strength", [world.user(weak, "Wim")])
    sha1 = world.root("SHA-1", "RSA-2048", digest="sha1")
    accept(
        "anchor_sha1",
        "digest",
        [world.user(sha1, "Sam")],
        note="an anchor's own signature proves nothing",
    )
    sha1_below = world.below(sha1, "SHA-1 issuing", "RSA-2048", digest="sha1", directory="default")
    refuse("intermediate_sha1", "digest", [world.user(sha1_below, "Sue"), sha1_below.certificate])
    weak_below = world.below(classic, "Weak issuing", "RSA-1024", directory="default")
    refuse(
        "intermediate_rsa1024",
        "key-strength",
        [world.user(weak_below, "Wes"), weak_below.certificate],
    )
    late = world.root("Late", end=PAST)
    refuse("anchor_expired", "validity", [world.user(late, "Lea")])
    early = world.root("Early", start=FUTURE)
    refuse("anchor_not_yet_valid", "validity", [world.user(early, "Ed")])
    # The same name and key twice, once expired: the way in which authorities renew themselves.
    key = world.shop.key()
    world.root("Renewed", key=key, end=PAST)
    renewed = world.root("Renewed", key=key)
    accept(
        "anchor_renewed",
        "trust-names",
        [world.user(renewed, "Ren")],
        note="HASH.0 has expired, HASH.1 has not",
    )

    # Issuing is in the trust directory, Sent only ever comes from the peer; both have lists.
    accept("intermediate_from_directory", "intermediate", [world.user(issuing, "Ida")])
    accept(
        "intermediate_from_both", "intermediate", [world.user(issuing, "Ida"), issuing.certificate]
    )
    sent = world.below(classic, "Sent", "RSA-2048")
    accept("intermediate_sent", "intermediate", [world.user(sent, "Sid"), sent.certificate])
    refuse(
        "intermediate_not_sent", "intermediate", [world.user(sent, "Sid")], reason="trust-anchor"
    )
    unlisted = world.below(classic, "Sent without list")
    chain = [world.user(unlisted, "Una"), unlisted.certificate]
    refuse("intermediate_sent_without_list", "crl-missing", chain)
    accept("intermediate_sent_without_list_allowed", "crl-missing", chain, settings=WHERE_LISTED)

    wrong: list[tuple[str, str, dict[str, Any]]] = [
        ("intermediate_expired", "validity", {"end": PAST}),
        ("intermediate_not_yet_valid", "validity", {"start": FUTURE}),
        (
            "intermediate_unknown_critical",
            "critical-extension",
            {"extensions": (*INTERMEDIATE, UNKNOWN_CRITICAL)},
        ),
        (
            "intermediate_not_ca",
            "ca-basic-constraints",
            {
                "extensions": (
                    "basicConstraints=critical,CA:FALSE",
                    "keyUsage=critical,keyCertSign,cRLSign",
                    "subjectKeyIdentifier=hash",
                )
            },
        ),
        (
            "intermediate_no_constraints",
            "ca-basic-constraints",
            {"extensions": ("keyUsage=critical,keyCertSign,cRLSign", "subjectKeyIdentifier=hash")},
        ),
        (
            "intermediate_no_cert_sign",
            "ca-key-usage",
            {
                "extensions": (
                    "basicConstraints=critical,CA:TRUE",
                    "keyUsage=critical,digitalSignature,cRLSign",
                    "subjectKeyIdentifier=hash",
                )
            },
        ),
    ]
    for name, rule, fields in wrong:
        label = name.replace("_", " ").capitalize()
        made = world.below(classic, label, directory="default", **fields)
        refuse(name, rule, [world.user(made, "Ivy"), made.certificate])
    bare = ("basicConstraints=critical,CA:TRUE", "subjectKeyIdentifier=hash")
    free = world.below(classic, "No usage", directory="default", extensions=bare)
    accept("intermediate_no_usage", "ca-key-usage", [world.user(free, "Uli"), free.certificate])
    accept(
        "intermediate_is_ca",
        "ca-basic-constraints",
        [world.user(issuing, "Ida"), issuing.certificate],
    )
    no_sign = world.root(
        "Anchor no cert sign",
        extensions=(
            "basicConstraints=critical,CA:TRUE",
            "keyUsage=critical,digitalSignature,cRLSign",
            "subjectKeyIdentifier=hash",
        ),
    )
    refuse("anchor_no_cert_sign", "ca-key-usage", [world.user(no_sign, "Ann")])

    broken = spoilt(sent.certificate)
    refuse("intermediate_wrong_signature", "signature", [world.user(sent, "Sid"), broken])

    # Path length, of an intermediate and of an anchor.
    def limit(length: int) -> tuple[str, ...]:
        return (f"basicConstraints=critical,CA:TRUE,pathlen:{length}", *INTERMEDIATE[1:])

    for length in [0, 1]:
        first = world.below(
            classic, f"Length {length}", extensions=limit(length), directory="default"
        )
        second = world.below(first, f"Below length {length}", directory="default")
        chain = [world.user(second, "Lou"), second.certificate, first.certificate]
        if length:
            accept("ca_path_length_1", "ca-path-length", chain)
        else:
            refuse("ca_path_length_0", "ca-path-length", chain)
            direct = world.user(first, "Lou")
            accept("ca_path_length_0_direct", "ca-path-length", [direct, first.certificate])
            proxy = world.proxy(direct)
            accept(
                "ca_path_length_0_proxies",
                "ca-path-length",
                [world.proxy(proxy), proxy, direct, first.certificate],
                depth=2,
                note="RFC 3820 4.1: proxies don't count as authorities",
            )
    anchor = world.root("Anchor length 0", extensions=limit(0)[:-1])
    second = world.below(anchor, "Below anchor length 0", directory="default")
    refuse("anchor_path_length_0", "ca-path-length", [world.user(second, "Al"), second.certificate])
    accept("anchor_path_length_0_direct", "ca-path-length", [world.user(anchor, "Al")])

    # Name constraints: a directory name permitted, one excluded, host names.
    for name, lines in {
        "permitted": ["permitted;dirName:only"],
        "excluded": ["excluded;dirName:only"],
        "hosts": ["permitted;DNS:example.org"],
    }.items():
        extensions = (
            *INTERMEDIATE,
            f"nameConstraints=critical,{','.join(lines)}",
            "[only]",
            "1.DC=org",
            "2.DC=example",
            "O=Users",
        )
        made = world.below(classic, f"Names {name}", extensions=extensions, directory="default")
        user = world.user(made, "Nan")
        robot = world.user(made, "Nan", subject=f"{BASE}/O=Robots/CN=Nan")
        if name == "hosts":
            accept(
                "names_host",
                "name-constraints",
                [world.host(made, "a.example.org"), made.certificate],
            )
            refuse(
                "names_host_outside",
                "name-constraints",
                [world.host(made, "a.example.net"), made.certificate],
            )
            continue
        good, bad = (user, robot) if name == "permitted" else (robot, user)
        accept(f"names_{name}", "name-constraints", [good, made.certificate])
        refuse(f"names_{name}_outside", "name-constraints", [bad, made.certificate])
        proxy = world.proxy(good)
        accept(
            f"names_{name}_proxy",
            "name-constraints",
            [proxy, good, made.certificate],
            depth=1,
        )

    # Policies of the trust directory.
    signing = world.root("Signing policy")
    signing.signing_policy = signing_policy(
        ca_name("Signing policy"), f"{USERS}/CN=In*", f"{HOSTS}/*"
    )
    signing.namespaces = None
    inside, outside = world.user(signing, "Inside"), world.user(signing, "Outside")
    accept("signing_policy_inside", "signing-policy", [inside])
    accept("signing_policy_second", "signing-policy", [world.host(signing, "in.example.org")])
    refuse("signing_policy_outside", "signing-policy", [outside])
    proxy = world.proxy(inside)
    accept("signing_policy_inside_proxy", "signing-policy", [proxy, inside], depth=1)
    refuse("signing_policy_outside_proxy", "signing-policy", [world.proxy(outside), outside])
    other = world.root("Other policy")
    other.signing_policy = signing_policy(ca_name("Another"), f"{BASE}/*")
    other.namespaces = None
    refuse(
        "signing_policy_of_another",
        "signing-policy",
        [world.user(other, "Otto")],
        note="the file speaks of another authority only, so this one may sign nothing",
    )
    spaces = world.root("Namespaces", "RSA-2048")
    spaces.signing_policy = None
    spaces.namespaces = namespaces(ca_name("Namespaces"), f"{USERS}/CN=In.*")
    accept("namespaces_inside", "namespaces", [world.user(spaces, "Inside")])
    refuse("namespaces_outside", "namespaces", [world.user(spaces, "Outside")])
    refuse(
        "namespaces_prefix",
        "namespaces",
        [world.user(spaces, "Inside", subject=f"{USERS}/O=Users/CN=Inside")],
        note="the expression must match the whole name",
    )
    both = world.root("Both policies")
    both.signing_policy = signing_policy(ca_name("Both policies"), f"{USERS}/CN=*s")
    both.namespaces = namespaces(ca_name("Both policies"), f"{USERS}/CN=O.*")
    accept("policies_both", "namespaces", [world.user(both, "Os")])
    refuse("policies_only_signing_policy", "namespaces", [world.user(both, "Is")])
    refuse("policies_only_namespaces", "signing-policy", [world.user(both, "Or")])
    neither = world.root("No policies", policies=False)
    nell = world.user(neither, "Nell")
    refuse(
        "policies_none", "signing-policy", [nell], note="nobody says what this authority may sign"
    )
    where_present = {"name_spaces": "where-present"}
    accept("policies_none_allowed", "signing-policy", [nell], settings=where_present)
    refuse(
        "signing_policy_outside_where_present", "signing-policy", [outside], settings=where_present
    )
    # An intermediate without a file of its own is bound by its issuer's.
    heir = world.below(
        signing, "Inside heir", policies=False, directory="default", name=f"{HOSTS}/CN=Heir CA"
    )
    for word, common_name in {"inside": "Inside", "outside": "Outside"}.items():
        chain = [world.user(heir, common_name), heir.certificate]
        if word == "inside":
            accept("signing_policy_inherited", "signing-policy", chain)
        else:
            refuse("signing_policy_inherited_outside", "signing-policy", chain)
    narrow = world.root("Narrow")
    narrow.signing_policy = signing_policy(ca_name("Narrow"), ca_name("Below narrow allowed"))
    narrow.namespaces = None
    for word in ["allowed", "forbidden"]:
        made = world.below(narrow, f"Below narrow {word}", directory="default")
        chain = [world.user(made, "Ned"), made.certificate]
        if word == "allowed":
            accept("signing_policy_intermediate", "signing-policy", chain)
        else:
            refuse("signing_policy_intermediate_outside", "signing-policy", chain)


def revocation(world: World, manifest: Manifest) -> None:
    """Lists: what is on them, how old they are, whose they are."""
    accept, refuse = manifest.accept, manifest.refuse
    classic, issuing = world.authorities["Classic"], world.authorities["Issuing"]

    revoked = world.revoke(classic, world.user(classic, "Revoked"))
    refuse("revoked", "revoked", [revoked])
    first = world.proxy(revoked)
    refuse("revoked_behind_proxy", "revoked", [first, revoked])
    second = world.proxy(first)
    refuse("revoked_behind_two_proxies", "revoked", [second, first, revoked])
    for word, settings in [("", {}), ("_where_listed", WHERE_LISTED)]:
        refuse(
            f"revoked_below_intermediate{word}",
            "revoked",
            [world.revoke(issuing, world.user(issuing, "Revoked"))],
            settings=settings,
        )
    gone = world.below(classic, "Revoked issuing", directory="default")
    world.revoke(classic, gone.certificate)
    refuse("revoked_intermediate", "revoked", [world.user(gone, "Gwen"), gone.certificate])
    same = world.user(issuing, "Same serial", serial=revoked.serial)
    accept(
        "revoked_serial_of_another",
        "revoked",
        [same],
        note="another authority's list has this serial number",
    )
    good = world.user(classic, "Good")
    accept("not_revoked", "revoked", [good])
    proxy = world.proxy(good)
    accept("not_revoked_proxy", "revoked", [proxy, good], depth=1)

    # One authority for each kind of list.
    def listed(label: str, kind: str = "P-256", **fields: Any) -> Authority:
        made = world.root(label, kind)
        made.crl = world.shop.crl(made.certificate, **fields)
        return made

    stale = listed("Stale list", "RSA-2048", start=datetime(2026, 8, 1, tzinfo=UTC), end=PAST)
    user = world.user(stale, "Stan")
    refuse("crl_stale", "crl-current", [user])
    refuse("crl_stale_behind_proxy", "crl-current", [world.proxy(user), user])
    refuse(
        "crl_stale_where_listed",
        "crl-current",
        [user],
        settings=WHERE_LISTED,
        note="there is a list, so it counts; a stale one refuses everybody",
    )
    future = listed("Future list", start=FUTURE, end=datetime(2026, 12, 1, tzinfo=UTC))
    refuse("crl_not_yet_valid", "crl-current", [world.user(future, "Fay")])
    none = world.root("No list", "RSA-2048")
    none.crl = b""
    user = world.user(none, "Nora")
    refuse("crl_missing", "crl-missing", [user])
    refuse("crl_missing_behind_proxy", "crl-missing", [world.proxy(user), user])
    accept("crl_missing_allowed", "crl-missing", [user], settings=WHERE_LISTED, ends=())
    accept("crl_there", "crl-missing", [good])
    accept("crl_current", "crl-current", [good])
    foreign = world.root("Foreign list")
    foreign.crl = world.shop.crl(
        world.shop.self_signed(foreign.certificate.subject, world.shop.key())
    )
    refuse("crl_signed_by_another", "crl-issuer", [world.user(foreign, "Fred")])
    spoilt_list = listed("Spoilt list")
    spoilt_list.crl = der.with_spoilt_signature(spoilt_list.crl or b"")
    refuse("crl_wrong_signature", "crl-issuer", [world.user(spoilt_list, "Spike")])
    no_sign = world.root(
        "No list sign",
        extensions=(
            "basicConstraints=critical,CA:TRUE",
            "keyUsage=critical,keyCertSign",
            "subjectKeyIdentifier=hash",
        ),
    )
    refuse("crl_by_a_key_that_may_not", "crl-issuer", [world.user(no_sign, "Nik")])
    accept("crl_by_its_authority", "crl-issuer", [good])
    weak = world.root("Weak list", "RSA-2048")
    weak.crl = world.shop.crl(weak.certificate, digest="sha1")
    refuse("crl_sha1", "digest", [world.user(weak, "Wyn")])
    critical = listed(
        "Critical list", extensions=["authorityKeyIdentifier=keyid", UNKNOWN_CRITICAL]
    )
    refuse("crl_unknown_critical", "crl-extensions", [world.user(critical, "Cora")])
    harmless = listed(
        "Extended list", extensions=["authorityKeyIdentifier=keyid", f"{UNKNOWN}=DER:0500"]
    )
    accept("crl_unknown_extension", "crl-extensions", [world.user(harmless, "Hans")])
    delta = listed(
        "Delta list", extensions=["authorityKeyIdentifier=keyid", "2.5.29.27=critical,DER:020101"]
    )
    refuse(
        "crl_delta_only",
        "crl-extensions",
        [world.user(delta, "Dee")],
        note="changes to a list that isn't there",
    )
    _scopes(world, manifest, listed)
    entry = listed("Entry list", revoked=[0x777])
    entry.crl = _with_critical_entry(entry)
    refuse("crl_entry_unknown_critical", "crl-extensions", [world.user(entry, "Enid")])
    empty = listed("Long list", revoked=range(0x100000, 0x100000 + 2000))
    accept("crl_2000_entries", "revoked", [world.user(empty, "Lola")])
    refuse(
        "crl_2000_entries_revoked", "revoked", [world.user(empty, "Lola", serial=0x100000 + 1234)]
    )


def _scopes(world: World, manifest: Manifest, listed: Callable[..., Authority]) -> None:
    """RFC 5280 5.2.5: lists that are about some of their issuer's certificates only."""
    accept, refuse = manifest.accept, manifest.refuse
    address = "http://crl.example.org"

    def scoped(label: str, *lines: str, **fields: Any) -> Authority:
        scope = ["issuingDistributionPoint=critical,@scope", "[scope]", *lines]
        return listed(label, extensions=["authorityKeyIdentifier=keyid", *scope], **fields)

    def pointing(authority: Authority, name: str, path: str, **fields: Any) -> Certificate:
        extensions = (*ENTITY_EXTENSIONS, f"crlDistributionPoints=URI:{address}/{path}")
        return world.user(authority, name, extensions=extensions, **fields)

    named = scoped("Named list", f"fullname=URI:{address}/1.crl", revoked=[0x888])
    accept("crl_scope_named", "crl-extensions", [pointing(named, "Ina", "1.crl")])
    refuse("crl_scope_revoked", "revoked", [pointing(named, "Ian", "1.crl", serial=0x888)])
    refuse(
        "crl_scope_another_address",
        "crl-extensions",
        [pointing(named, "Ida", "2.crl")],
        note="the certificate names another list than the one that is there",
    )
    refuse("crl_scope_no_address", "crl-extensions", [world.user(named, "Ivo")])
    users = scoped("Users list", "onlyuser=TRUE")
    accept("crl_scope_end_entities", "crl-extensions", [world.user(users, "Ute")])
    below = world.below(users, "Below users list", directory="default")
    refuse(
        "crl_scope_end_entities_intermediate",
        "crl-extensions",
        [world.user(below, "Udo"), below.certificate],
        note="the list says nothing about authorities",
    )
    rest = scoped("Authorities list", "onlyCA=TRUE")
    refuse("crl_scope_authorities", "crl-extensions", [world.user(rest, "Ada")])
    below = world.below(rest, "Below authorities list", directory="default")
    accept(
        "crl_scope_authorities_intermediate",
        "crl-extensions",
        [world.user(below, "Ali"), below.certificate],
    )
    reasons = scoped("Reasons list", "onlysomereasons=keyCompromise")
    refuse("crl_scope_some_reasons", "crl-extensions", [world.user(reasons, "Rea")])
    indirect = scoped("Indirect list", "indirectCRL=TRUE")
    refuse("crl_scope_indirect", "crl-extensions", [world.user(indirect, "Ira")])


def _with_critical_entry(authority: Authority) -> bytes:
    """The list with a critical extension of its only entry."""
    data = authority.crl or b""
    body, _, _ = der.signed_parts(data)
    parts = body.children()
    [index] = [at for at, part in enumerate(parts) if part.tag == der.SEQUENCE and at > 3]
    [entry] = parts[index].children()
    extended = der.sequence(
        entry.content, der.sequence(der.extension(UNKNOWN, b"\x05\x00", critical=True))
    )
    parts[index] = der.Value(der.SEQUENCE, extended)
    changed = der.sequence(*(part.encode() for part in parts))
    return der.signed_again(data, changed, authority.certificate.key)


def directories(world: World, manifest: Manifest) -> None:
    """Trust directories of their own: names that collide, equal names, lists in several files."""
    accept, refuse = manifest.accept, manifest.refuse
    one, two = colliding_names("Colliding CA")
    pair = [
        world.root("Colliding one", name=one, directory="collision"),
        world.root("Colliding two", name=two, directory="collision"),
    ]
    # One file of policies for both: it is named by the hash, and speaks of each by name.
    for word, authority in zip(["first", "second"], pair, strict=True):
        accept(
            f"collision_{word}", "trust-names", [world.user(authority, "Col")], trust="collision"
        )
        revoked = world.revoke(authority, world.user(authority, "Col"))
        refuse(f"collision_{word}_revoked", "revoked", [revoked], trust="collision")
    twins = [
        world.root(f"Twin {number}", name=f"{BASE}/CN=Twin CA", directory="same-name")
        for number in (1, 2)
    ]
    for word, authority in zip(["first", "second"], twins, strict=True):
        user = world.user(authority, "Tom")
        accept(f"same_name_{word}", "trust-names", [user], trust="same-name")
        accept(
            f"same_name_{word}_proxy",
            "trust-names",
            [world.proxy(user), user],
            depth=1,
            trust="same-name",
        )
        revoked = world.revoke(authority, world.user(authority, "Tim"))
        refuse(f"same_name_{word}_revoked", "revoked", [revoked], trust="same-name")
        # No key identifiers that would say which of the two it is.
        anonymous = world.user(authority, "Tea", extensions=ENTITY_EXTENSIONS[:2])
        accept(f"same_name_{word}_no_identifier", "trust-names", [anonymous], trust="same-name")
    third = world.root("Twin 3", name=f"{BASE}/CN=Twin CA", directory=None)
    refuse(
        "same_name_third",
        "trust-names",
        [world.user(third, "Ted", extensions=ENTITY_EXTENSIONS[:3])],
        reason="signature",
        trust="same-name",
        note="a third key of that name",
    )

    # The list of the first directory is spoilt on disk in another one: "no list" is not "no revocation".
    broken = world.root("Broken lists", directory="default")
    user = world.user(broken, "Bro")
    accept("broken_list_before", "crl-missing", [user])
    for word in ["empty", "truncated", "garbage"]:
        world.directories[f"list-{word}"] = [broken]
        refuse(f"broken_list_{word}", "crl-missing", [user], trust=f"list-{word}")
    # fetch-crl leaves the list of a renewed key in .r1; the newest that holds counts.
    twice = world.root("Two lists", directory="two-lists")
    old = world.user(twice, "Old")
    twice.crl = world.shop.crl(twice.certificate, start=datetime(2026, 8, 1, tzinfo=UTC), end=PAST)
    again = Authority(twice.certificate, revoked=[old.serial])
    world.directories["two-lists"].append(again)
    refuse("two_lists_revoked", "revoked", [old], trust="two-lists", note="on .r1; .r0 is stale")
    accept("two_lists", "crl-current", [world.user(twice, "New")], trust="two-lists")


def finish_directories(world: World) -> None:
    """What goes into directories after they are written: lists alone, and lists spoilt on disk."""
    world.list_only("default", world.authorities["Sent"])
    name = world.authorities["Broken lists"].certificate.hash
    whole = (world.output / "trust" / "default" / f"{name}.r0").read_text()
    spoilt = {
        "empty": "",
        "truncated": whole[: len(whole) // 2],
        "garbage": "<html>503 Service Unavailable</html>\n",
    }
    for word, text in spoilt.items():
        (world.output / "trust" / f"list-{word}" / f"{name}.r0").write_text(text)


__all__ = [
    "authorities",
    "directories",
    "encodings",
    "end_entities",
    "finish_directories",
    "revocation",
]
