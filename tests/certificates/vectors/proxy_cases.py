"""RFC 3820, and the two kinds of proxy that came before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.certificates import der
from tests.certificates.openssl import ENTITY_EXTENSIONS, FUTURE, PAST, PROXY_START, Certificate
from tests.certificates.vectors.manifest import Manifest
from tests.certificates.vectors.path_cases import UNKNOWN, UNKNOWN_CRITICAL, edited, spoilt
from tests.certificates.vectors.world import (
    BASE,
    DRAFT_PROXY_INFO,
    INDEPENDENT,
    LIMITED,
    USERS,
    World,
)

RESTRICTED = "1.3.6.1.4.1.55555.2.1"
ANY_LANGUAGE = "1.3.6.1.5.5.7.21.0"
PROXY_INFO = "1.3.6.1.5.5.7.1.14"
LEGACY = {"legacy_proxies": True}
DRAFT = {"draft_proxies": True}


def chain_of(world: World, entity: Certificate, depth: int) -> list[Certificate]:
    """An end entity with so many proxies before it, leaf first. One key for all, to keep files small."""
    chain = [entity]
    key = world.shop.key()
    for number in range(depth):
        chain.insert(0, world.proxy(chain[0], key=key, name=str(number)))
    return chain


def depths(world: World, manifest: Manifest) -> None:
    """How many proxies, by settings and by path length."""
    classic = world.authorities["Classic"]
    accept, refuse = manifest.accept, manifest.refuse
    alice = world.user(classic, "Alice")
    for depth in [1, 2, 8, 10]:
        accept(f"depth_{depth}", "proxy-depth", chain_of(world, alice, depth), depth=depth)
    eleven = chain_of(world, alice, 11)
    refuse("depth_11", "proxy-depth", eleven)
    accept("depth_11_allowed", "proxy-depth", eleven, depth=11, settings={"proxy_depth_max": 12})
    three = chain_of(world, alice, 3)
    refuse("depth_3_of_2", "proxy-depth", three, settings={"proxy_depth_max": 2})
    refuse("depth_1_of_0", "proxy-depth", three[2:], settings={"proxy_depth_max": 0})
    refuse(
        "depth_100",
        "proxy-depth",
        chain_of(world, alice, 100),
        reason="chain-length",
        note="too many certificates, before anybody looks at what they are",
    )

    zero = world.proxy(alice, path_length=0)
    accept("path_length_0", "proxy-path-length", [zero, alice], depth=1)
    refuse("path_length_0_one_below", "proxy-path-length", [world.proxy(zero), zero, alice])
    one = world.proxy(alice, path_length=1)
    below = world.proxy(one)
    accept("path_length_1_one_below", "proxy-path-length", [below, one, alice], depth=2)
    refuse("path_length_1_two_below", "proxy-path-length", [world.proxy(below), below, one, alice])
    wider = world.proxy(zero, path_length=5)
    refuse(
        "path_length_widened",
        "proxy-path-length",
        [wider, zero, alice],
        note="a longer length below a shorter one doesn't help",
    )
    five = world.proxy(alice, path_length=5)
    narrow = world.proxy(five, path_length=0)
    refuse("path_length_narrowed", "proxy-path-length", [world.proxy(narrow), narrow, five, alice])
    accept("path_length_narrowed_leaf", "proxy-path-length", [narrow, five, alice], depth=2)


def kinds(world: World, manifest: Manifest) -> None:
    """Full, limited, independent, restricted; and what follows below each."""
    classic = world.authorities["Classic"]
    accept, refuse = manifest.accept, manifest.refuse
    alice = world.user(classic, "Alice")
    full = world.proxy(alice)
    accept("rfc_full", "proxy", [full, alice], depth=1)
    accept("rfc_full_below_full", "proxy", [world.proxy(full), full, alice], depth=2)
    for kind in ["RSA-2048", "P-384"]:
        name = f"rfc_full_{kind.lower().replace('-', '')}"
        accept(name, "proxy", [world.proxy(alice, key=kind), alice], depth=1)
    rsa = world.user(classic, "Rosa", key="RSA-2048")
    accept("rfc_full_rsa_user", "proxy", [world.proxy(rsa), rsa], depth=1)
    edwards = world.user(classic, "Edda", key="Ed25519")
    accept(
        "rfc_full_ed25519",
        "proxy",
        [world.proxy(edwards, key="Ed25519", digest="null"), edwards],
        depth=1,
    )
    elliptic = world.user(world.authorities["Elliptic"], "Eve", key="P-384")
    accept(
        "rfc_full_p384_chain", "proxy", [world.proxy(elliptic, digest="sha384"), elliptic], depth=1
    )
    issuing = world.authorities["Issuing"]
    bob = world.user(issuing, "Bob")
    accept("rfc_full_intermediate", "proxy", [world.proxy(bob), bob, issuing.certificate], depth=1)
    host = world.host(classic, "service.example.org")
    accept("rfc_full_of_a_host", "proxy", [world.proxy(host), host], depth=1)
    proxy_named = world.proxy(alice, name="proxy")
    refuse(
        "rfc_full_without_its_user",
        "proxy",
        [full],
        reason="trust-anchor",
        note="the user's certificate is missing",
    )
    accept(
        "rfc_full_named_proxy",
        "proxy",
        [proxy_named, alice],
        depth=1,
        note="RFC 3820 by its extension, whatever its name",
    )

    limited = world.proxy(alice, language=LIMITED)
    accept("rfc_limited", "proxy-limited", [limited, alice], depth=1, limited=True)
    twice = world.proxy(limited, language=LIMITED)
    accept(
        "rfc_limited_below_limited", "proxy-limited", [twice, limited, alice], depth=2, limited=True
    )
    accept(
        "rfc_limited_below_full",
        "proxy-limited",
        [world.proxy(full, language=LIMITED), full, alice],
        depth=2,
        limited=True,
    )
    refuse("rfc_full_below_limited", "proxy-limited", [world.proxy(limited), limited, alice])
    refuse(
        "rfc_full_below_two_limited",
        "proxy-limited",
        [world.proxy(twice), twice, limited, alice],
    )

    alone = world.proxy(alice, language=INDEPENDENT)
    accept(
        "rfc_independent",
        "proxy-independent",
        [alone, alice],
        depth=1,
        independent=True,
        identity=alone.subject,
        note="accepted as itself: its identity is its own name, not its issuer's",
    )
    below = world.proxy(alone)
    accept(
        "rfc_full_below_independent",
        "proxy-independent",
        [below, alone, alice],
        depth=2,
        independent=True,
        identity=alone.subject,
        note="a full proxy of the independent one is that one",
    )
    after = world.proxy(full, language=INDEPENDENT)
    accept(
        "rfc_independent_below_full",
        "proxy-independent",
        [after, full, alice],
        depth=2,
        independent=True,
        identity=after.subject,
    )
    small = world.proxy(alone, language=LIMITED)
    accept(
        "rfc_limited_below_independent",
        "proxy-independent",
        [small, alone, alice],
        depth=2,
        independent=True,
        limited=True,
        identity=alone.subject,
    )
    free = world.proxy(limited, language=INDEPENDENT)
    accept(
        "rfc_independent_below_limited",
        "proxy-limited",
        [free, limited, alice],
        depth=2,
        independent=True,
        limited=True,
        identity=free.subject,
        note="independence takes rights away and gives none, so the limit stays",
    )

    allowed = {"policy_languages": [RESTRICTED]}
    restricted = world.proxy(alice, language=RESTRICTED, policy="read only")
    refuse("language_unknown", "proxy-language", [restricted, alice])
    accept("language_allowed", "proxy-language", [restricted, alice], depth=1, settings=allowed)
    refuse(
        "language_another_allowed",
        "proxy-language",
        [restricted, alice],
        settings={"policy_languages": [f"{RESTRICTED}.1"]},
    )
    inner = world.proxy(restricted)
    refuse("language_unknown_inside", "proxy-language", [inner, restricted, alice])
    accept(
        "language_allowed_inside",
        "proxy-language",
        [inner, restricted, alice],
        depth=2,
        settings=allowed,
    )
    anything = world.proxy(alice, language=ANY_LANGUAGE)
    refuse(
        "language_any",
        "proxy-language",
        [anything, alice],
        note="id-ppl-anyLanguage: a policy that nobody here can read",
    )
    for word, language in {"full": "1.3.6.1.5.5.7.21.1", "independent": INDEPENDENT}.items():
        policy = der.sequence(
            der.sequence(der.object_identifier(language), der.tlv(der.OCTET_STRING, b"rights"))
        )
        wrong = world.proxy(alice, info=f"{PROXY_INFO}=critical,DER:{policy.hex()}")
        refuse(f"language_{word}_with_policy", "proxy-language", [wrong, alice])


def shapes(world: World, manifest: Manifest) -> None:
    """Names, extensions, signers, times, signatures."""
    classic, issuing = world.authorities["Classic"], world.authorities["Issuing"]
    accept, refuse = manifest.accept, manifest.refuse
    alice, mallory = world.user(classic, "Alice"), world.user(classic, "Mallory")
    full = world.proxy(alice)

    good = [full, alice]
    accept("name_one_more", "proxy-name", good, depth=1)
    long = world.proxy(alice, name="12345678901234567890123456789012")
    accept("name_long_number", "proxy-name", [long, alice], depth=1)
    names = {
        "same": alice.subject,
        "two_more": f"{alice.subject}/CN=1/CN=2",
        "of_another": f"{mallory.subject}/CN=1",
        "other_attribute": f"{alice.subject}/OU=1",
        "replaced": f"{USERS}/CN=1",
        "in_front": f"/CN=1{alice.subject}",
        "upper_case_stranger": f"{USERS}/CN=Alicia/CN=1",
        "elsewhere": f"{BASE}/CN=1",
    }
    for word, subject in names.items():
        refuse(f"name_{word}", "proxy-name", [world.proxy(alice, subject=subject), alice])
    joined = world.shop.issue(
        alice,
        f"{alice.subject}/CN=1+OU=2",
        extensions=(
            f"proxyCertInfo=critical,language:{'1.3.6.1.5.5.7.21.1'}",
            "keyUsage=critical,digitalSignature",
        ),
        start=PROXY_START,
        end=full.end,
        options=["-multivalue-rdn"],
    )
    refuse("name_joined", "proxy-name", [joined, alice], note="one RDN more, but of two attributes")
    other = world.shop.self_signed(mallory.subject, alice.key, ())
    refuse(
        "name_issuer_of_another",
        "proxy-name",
        [world.proxy(other, subject=f"{alice.subject}/CN=1"), alice],
        reason="trust-anchor",
        note="alice's key signed it, but its issuer is called mallory",
    )

    for word, line in {
        "subject": "subjectAltName=DNS:a.example.org",
        "subject_critical": "subjectAltName=critical,DNS:a.example.org",
        "issuer": "issuerAltName=DNS:a.example.org",
    }.items():
        wrong = world.proxy(alice, extra=[line])
        refuse(f"alternative_name_{word}", "proxy-alternative-names", [wrong, alice])
        if word == "subject":
            refuse(
                "alternative_name_inside",
                "proxy-alternative-names",
                [world.proxy(wrong), wrong, alice],
            )
    accept("alternative_name_none", "proxy-alternative-names", good, depth=1)
    named = world.user(
        classic, "Named", extensions=(*ENTITY_EXTENSIONS, "subjectAltName=email:n@example.org")
    )
    accept(
        "alternative_name_of_the_user",
        "proxy-alternative-names",
        [world.proxy(named), named],
        depth=1,
        note="the user's certificate may have one",
    )

    ca = world.proxy(alice, extra=["basicConstraints=critical,CA:TRUE"], usage=None)
    refuse("not_ca_true", "proxy-not-ca", [ca, alice])
    refuse("not_ca_true_inside", "proxy-not-ca", [world.proxy(ca), ca, alice])
    accept(
        "not_ca_false",
        "proxy-not-ca",
        [world.proxy(alice, extra=["basicConstraints=critical,CA:FALSE"]), alice],
        depth=1,
    )

    usage = tuple(
        "keyUsage=critical,keyEncipherment" if line.startswith("keyUsage") else line
        for line in ENTITY_EXTENSIONS
    )
    silent = world.user(classic, "Silent", extensions=usage)
    refuse("signer_user_no_signature", "proxy-usage", [world.proxy(silent), silent])
    mute = world.proxy(alice, usage="critical,keyEncipherment")
    refuse("signer_proxy_no_signature", "proxy-usage", [world.proxy(mute), mute, alice])
    refuse("leaf_proxy_no_signature", "key-usage", [mute, alice])
    bare = world.proxy(alice, usage=None)
    accept("signer_proxy_no_usage", "proxy-usage", [world.proxy(bare), bare, alice], depth=2)
    plain = world.user(
        classic,
        "Plain",
        extensions=tuple(line for line in ENTITY_EXTENSIONS if "Usage" not in line),
    )
    accept("signer_user_no_usage", "proxy-usage", [world.proxy(plain), plain], depth=1)

    refuse("info_not_critical", "proxy-info", [world.proxy(alice, critical=False), alice])
    soft = world.proxy(alice, critical=False)
    refuse("info_not_critical_inside", "proxy-info", [world.proxy(soft), soft, alice])
    accept("info_critical", "proxy-info", good, depth=1)
    length = world.proxy(alice, path_length=3)
    accept("info_with_length", "proxy-info", [length, alice], depth=1)
    language = der.sequence(der.object_identifier("1.3.6.1.5.5.7.21.1"))
    values = {
        "garbage": b"\x04\x02\x01\x02",
        "no_policy": der.sequence(),
        "negative_length": der.sequence(b"\x02\x01\xff", language),
        "bytes_after": der.sequence(language) + b"\x05\x00",
        "member_after": der.sequence(language, b"\x05\x00"),
        "truncated": der.sequence(language)[:-1],
    }
    for word, value in values.items():
        wrong = world.proxy(alice, info=_octets(PROXY_INFO, value))
        refuse(f"info_{word}", "proxy-info", [wrong, alice])
    both = world.proxy(alice, extra=[_octets(DRAFT_PROXY_INFO, der.sequence(language))])
    refuse("info_of_both_kinds", "proxy-info", [both, alice], settings=DRAFT)
    again = f"{PROXY_INFO[:-2]}13"
    doubled = world.proxy(alice, extra=[_octets(again, der.sequence(language))])
    old, new = der.object_identifier(again), der.object_identifier(PROXY_INFO)
    refuse(
        "info_twice",
        "proxy-info",
        [edited(doubled, old, new, alice), alice],
        reason="extension-once",
    )

    refuse(
        "critical_unknown_leaf",
        "critical-extension",
        [world.proxy(alice, extra=[UNKNOWN_CRITICAL]), alice],
    )
    strange = world.proxy(alice, extra=[UNKNOWN_CRITICAL])
    refuse("critical_unknown_inside", "critical-extension", [world.proxy(strange), strange, alice])
    odd = world.user(classic, "Odd", extensions=(*ENTITY_EXTENSIONS, UNKNOWN_CRITICAL))
    refuse("critical_unknown_user", "critical-extension", [world.proxy(odd), odd])
    accept(
        "unknown_leaf",
        "critical-extension",
        [world.proxy(alice, extra=[f"{UNKNOWN}=DER:0500"]), alice],
        depth=1,
    )

    refuse("proxy_of_an_anchor", "proxy-issuer", [world.proxy(classic.certificate)])
    refuse(
        "proxy_of_an_intermediate",
        "proxy-issuer",
        [world.proxy(issuing.certificate), issuing.certificate],
    )
    signer = world.user(
        classic,
        "Half an authority",
        extensions=(
            "basicConstraints=critical,CA:TRUE",
            "keyUsage=critical,keyCertSign,digitalSignature",
            "subjectKeyIdentifier=hash",
        ),
    )
    refuse("proxy_of_a_user_that_is_ca", "proxy-issuer", [world.proxy(signer), signer])
    accept("proxy_of_a_user", "proxy-issuer", good, depth=1)
    by_proxy = world.user(full, "Friend")
    refuse(
        "user_of_a_proxy",
        "proxy-issuer",
        [by_proxy, full, alice],
        reason="ca-basic-constraints",
        note="a proxy that signs an end entity's certificate",
    )

    early, late = (
        world.proxy(alice, start=FUTURE),
        world.proxy(alice, end=PAST, start=PROXY_START.replace(month=9, day=1)),
    )
    refuse("proxy_not_yet_valid", "validity", [early, alice])
    refuse("proxy_expired", "validity", [late, alice])
    refuse("proxy_not_yet_valid_inside", "validity", [world.proxy(early), early, alice])
    refuse("proxy_expired_inside", "validity", [world.proxy(late), late, alice])
    gone = world.user(classic, "Gone", end=PAST)
    refuse("user_expired_behind_proxy", "validity", [world.proxy(gone), gone])
    coming = world.user(classic, "Coming", start=FUTURE)
    refuse("user_not_yet_valid_behind_proxy", "validity", [world.proxy(coming), coming])
    outlives = world.proxy(alice, end=alice.end.replace(year=2029))
    accept(
        "proxy_outlives_its_user",
        "validity",
        [outlives, alice],
        depth=1,
        note="the identity ends with the user's certificate, or the list",
    )

    inner = world.proxy(full)
    refuse("proxy_wrong_signature", "signature", [spoilt(full), alice])
    refuse("proxy_wrong_signature_inside", "signature", [inner, spoilt(full), alice])
    refuse("user_wrong_signature_behind_proxy", "signature", [full, spoilt(alice)])
    forged = world.proxy(world.twin(alice), name=None)
    refuse("proxy_signed_by_twin", "signature", [forged, alice], note="another key in alice's name")
    refuse("proxy_sha1", "digest", [world.proxy(alice, digest="sha1"), alice])
    rsa = world.user(classic, "Rosa", key="RSA-2048")
    refuse("proxy_md5", "digest", [world.proxy(rsa, digest="md5"), rsa])
    for kind in ["RSA-512", "RSA-1024", "P-224"]:
        word = kind.lower().replace("-", "")
        weak = world.proxy(alice, key=kind)
        refuse(f"proxy_{word}", "key-strength", [weak, alice])
    small = world.proxy(alice, key="RSA-1024")
    refuse("proxy_rsa1024_inside", "key-strength", [world.proxy(small), small, alice])
    for size in [8000, 50 * 1024]:
        content = der.tlv(der.OCTET_STRING, bytes(size)).hex()
        big = world.proxy(alice, extra=[f"{UNKNOWN}=DER:{content}"])
        if size == 8000:
            accept(f"proxy_extension_{size}", "extension-size", [big, alice], depth=1)
        else:
            # The certificate passes its own bound too.
            refuse(
                f"proxy_extension_{size}", "extension-size", [big, alice], reason="certificate-size"
            )


def _octets(dotted: str, value: bytes) -> str:
    """A critical extension of any bytes; OpenSSL's DER: takes them as they are."""
    return f"{dotted}=critical,DER:{value.hex()}"


def older(world: World, manifest: Manifest) -> None:
    """GT2 and GT3 proxies: off, on, and never beside others."""
    classic = world.authorities["Classic"]
    accept, refuse = manifest.accept, manifest.refuse
    alice = world.user(classic, "Alice")
    rfc = world.proxy(alice)
    limited_rfc = world.proxy(alice, language=LIMITED)
    makers: list[tuple[str, Callable[..., Certificate], dict[str, bool]]] = [
        ("legacy", world.legacy_proxy, LEGACY),
        ("draft", world.draft_proxy, DRAFT),
    ]
    for kind, make, on in makers:
        rule = f"proxy-{kind}"
        limit: dict[str, Any] = {"limited": True} if kind == "legacy" else {"language": LIMITED}
        one = make(alice)
        chain = [one, alice]
        refuse(f"{kind}_off", rule, chain)
        accept(f"{kind}_on", rule, chain, depth=1, type=kind, settings=on)
        refuse(f"{kind}_other_on", rule, chain, settings=DRAFT if on is LEGACY else LEGACY)
        two = make(one)
        accept(f"{kind}_two", rule, [two, one, alice], depth=2, type=kind, settings=on)
        refuse(f"{kind}_two_off", rule, [two, one, alice])
        small = make(alice, **limit)
        accept(
            f"{kind}_limited", rule, [small, alice], depth=1, limited=True, type=kind, settings=on
        )
        smaller = make(small, **limit)
        accept(
            f"{kind}_limited_below_limited",
            rule,
            [smaller, small, alice],
            depth=2,
            limited=True,
            type=kind,
            settings=on,
        )
        refuse(
            f"{kind}_full_below_limited", "proxy-limited", [make(small), small, alice], settings=on
        )
        refuse(f"rfc_below_{kind}", "proxy-mixed", [world.proxy(one), one, alice], settings=on)
        refuse(f"{kind}_below_rfc", "proxy-mixed", [make(rfc), rfc, alice], settings=on)
        refuse(
            f"{kind}_below_rfc_limited",
            "proxy-mixed",
            [make(limited_rfc), limited_rfc, alice],
            settings=on,
        )
        refuse(
            f"{kind}_expired",
            "validity",
            [make(alice, start=PROXY_START.replace(month=9, day=1), end=PAST), alice],
            settings=on,
        )
        refuse(f"{kind}_wrong_signature", "signature", [spoilt(one), alice], settings=on)
        accept(f"rfc_with_{kind}_on", "proxy-mixed", [rfc, alice], depth=1, settings=on)
    every = LEGACY | DRAFT
    legacy, draft = world.legacy_proxy(alice), world.draft_proxy(alice)
    refuse(
        "draft_below_legacy",
        "proxy-mixed",
        [world.draft_proxy(legacy), legacy, alice],
        settings=every,
    )
    refuse(
        "legacy_below_draft",
        "proxy-mixed",
        [world.legacy_proxy(draft), draft, alice],
        settings=every,
    )
    revoked = world.revoke(classic, world.user(classic, "Revoked"))
    refuse(
        "legacy_of_a_revoked_user",
        "revoked",
        [world.legacy_proxy(revoked), revoked],
        settings=LEGACY,
    )
    refuse(
        "draft_of_a_revoked_user", "revoked", [world.draft_proxy(revoked), revoked], settings=DRAFT
    )
