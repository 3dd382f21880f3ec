"""VOMS: what gives attributes, what takes them away, and that neither changes who somebody is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

from tests.certificates import der
from tests.certificates.attributes import (
    AC_END,
    ALGORITHM,
    ATTRIBUTES,
    HOLDER,
    ISSUER,
    SERIAL,
    SIGNERS,
    TARGETS,
    VALIDITY,
    Issuer,
    attributes_of,
    changed,
    line,
    signers,
    targets,
    voms_proxy_fake,
    with_extension,
    without_extension,
)
from tests.certificates.openssl import FUTURE, PAST, Authority, Certificate, pem
from tests.certificates.trust_files import write_lsc
from tests.certificates.vectors.manifest import Manifest
from tests.certificates.vectors.path_cases import UNKNOWN
from tests.certificates.vectors.world import HOSTS, INDEPENDENT, LIMITED, World

VO = "testvo"
GROUPS = ["/testvo", "/testvo/analysis", "/testvo/Role=production"]
HERE = "front.example.org"
OWN_HOST = {"attribute_targets": [HERE]}
SHA256_RSA = der.sequence(der.object_identifier("1.2.840.113549.1.1.11"), b"\x05\x00")
SHA1_RSA = der.sequence(der.object_identifier("1.2.840.113549.1.1.5"), b"\x05\x00")
SHA256_ECDSA = der.sequence(der.object_identifier("1.2.840.10045.4.3.2"))


class Organisation:
    """A virtual organisation's servers, users with attributes, and the vomsdirs that know them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.classic = world.authorities["Classic"]
        self.voms = self.server("voms.example.org")
        self.alice = world.user(self.classic, "Alice", key="RSA-2048")
        self.proxy = self.fake(self.voms, GROUPS)
        [self.attributes] = attributes_of(self.proxy)

    def server(
        self,
        name: str,
        authority: Authority | None = None,
        *,
        vo: str = VO,
        key: str = "RSA-2048",
        listed: bool = True,
        **fields: Any,
    ) -> Issuer:
        """A VOMS server with a host certificate, in the vomsdir unless it shall not be."""
        authority = authority or self.classic
        certificate = self.world.host(authority, name, key=key, **fields)
        if listed:
            file = self.world.output / "vomsdir" / "default" / vo / f"{name}.lsc"
            write_lsc(file, [certificate.subject, authority.certificate.subject])
        return Issuer(certificate, vo, f"{name}:15000")

    def fake(
        self,
        issuer: Issuer,
        names: Sequence[str],
        *arguments: str,
        user: Certificate | None = None,
        weak: bool = False,
        **fields: Any,
    ) -> Certificate:
        """A proxy as voms-proxy-fake makes it.

        It signs by the algorithm of the host certificate's own signature, and by RSA with SHA-1 where that is ECDSA.
        """
        user = user or self.alice
        made = voms_proxy_fake(self.world.shop, user, issuer, names, *arguments, **fields)
        algorithms = [der.signed_parts(one)[1] for one in attributes_of(made)]
        if (algorithms != [SHA256_RSA]) != weak:
            raise ValueError(f"{issuer.host.subject} signs attributes by another algorithm")
        return made

    def carrying(
        self, *attributes: bytes, user: Certificate | None = None, **fields: Any
    ) -> list[Certificate]:
        """A chain whose proxy carries attribute certificates."""
        user = user or self.alice
        return [self.world.proxy(user, extra=[line(attributes)], **fields), user]

    def without_signer(self, issuer: Issuer, names: Sequence[str]) -> list[Certificate]:
        """A chain whose attributes come without their signer's certificate."""
        [attributes] = attributes_of(self.fake(issuer, names))
        return self.carrying(changed(attributes, issuer.host, without_extension(SIGNERS)))

    def edited(self, edit: Callable[[list[bytes]], None]) -> list[Certificate]:
        """Alice's attributes, edited and signed again."""
        return self.carrying(changed(self.attributes, self.voms.host, edit))


def good(world: World, manifest: Manifest, organisation: Organisation) -> None:
    """What gives attributes."""
    accept = manifest.accept
    alice = organisation.alice
    held: dict[str, Any] = {"depth": 1, "vo": VO, "fqans": GROUPS, "ends": [AC_END]}

    accept("voms", "ac", [organisation.proxy, alice], **held)
    accept("voms_openssl_proxy", "ac", organisation.carrying(organisation.attributes), **held)
    limited = organisation.fake(organisation.voms, GROUPS, "-limited")
    accept("voms_limited", "ac", [limited, alice], limited=True, **held)
    legacy = organisation.fake(organisation.voms, GROUPS, kind="-proxyver 2")
    accept(
        "voms_legacy",
        "ac",
        [legacy, alice],
        type="legacy",
        settings={"legacy_proxies": True},
        **held,
    )
    manifest.refuse("voms_legacy_off", "proxy-legacy", [legacy, alice])
    draft = organisation.fake(organisation.voms, GROUPS, kind="-proxyver 3")
    accept(
        "voms_draft", "ac", [draft, alice], type="draft", settings={"draft_proxies": True}, **held
    )
    manifest.refuse("voms_draft_off", "proxy-draft", [draft, alice])
    accept(
        "voms_none", "ac", [world.proxy(alice), alice], depth=1, note="no attributes and no fault"
    )
    accept(
        "voms_without_vomsdir_entry_needed", "ac", [alice], note="an end entity without attributes"
    )

    nulls = organisation.fake(
        organisation.voms,
        [
            "/testvo/Role=NULL/Capability=NULL",
            "/testvo/a/Role=production/Capability=NULL",
            "/testvo/a/Capability=x",
        ],
    )
    accept(
        "voms_null_role",
        "ac",
        [nulls, alice],
        depth=1,
        vo=VO,
        fqans=["/testvo", "/testvo/a/Role=production", "/testvo/a/Capability=x"],
        ends=[AC_END],
        note="NULL is the same as nothing; names are given without it",
    )
    deep = ["/testvo/a/b/c/d", "/testvo/a/b", "/testvo/a/Role=x/Capability=y", "/testvo"]
    accept(
        "voms_order",
        "ac",
        [organisation.fake(organisation.voms, deep), alice],
        depth=1,
        vo=VO,
        fqans=deep,
        ends=[AC_END],
        note="names stay in their order; the first is primary",
    )
    generic = organisation.fake(
        organisation.voms,
        GROUPS,
        "-ga",
        "nickname=alice(testvo)",
        "-ga",
        "title=physicist(/testvo/analysis)",
    )
    accept(
        "voms_generic",
        "ac",
        [generic, alice],
        generic=[("nickname", "alice"), ("title", "physicist")],
        **held,
    )
    targeted = changed(
        organisation.attributes, organisation.voms.host, with_extension(targets(HERE))
    )
    accept("target_here", "ac-targets", organisation.carrying(targeted), settings=OWN_HOST, **held)
    standard = changed(
        organisation.attributes, organisation.voms.host, with_extension(targets(HERE, nested=False))
    )
    accept(
        "target_here_as_rfc_5755_writes_it",
        "ac-targets",
        organisation.carrying(standard),
        settings=OWN_HOST,
        **held,
    )
    several = changed(
        organisation.attributes,
        organisation.voms.host,
        with_extension(targets("other.example.org", HERE)),
    )
    accept(
        "target_several", "ac-targets", organisation.carrying(several), settings=OWN_HOST, **held
    )
    harmless = with_extension(der.extension(UNKNOWN, b"\x05\x00"))
    accept("extension_unknown", "ac-extensions", organisation.edited(harmless), **held)

    # Several attribute certificates in one extension, of one organisation and of two.
    admin = organisation.server("voms2.example.org")
    [second] = attributes_of(organisation.fake(admin, ["/testvo/admin"]))
    accept(
        "voms_two_of_one_vo",
        "ac",
        organisation.carrying(organisation.attributes, second),
        depth=1,
        vo=VO,
        fqans=[*GROUPS, "/testvo/admin"],
        ends=[AC_END],
    )
    another = organisation.server("voms.other.example.org", vo="othervo")
    [third] = attributes_of(organisation.fake(another, ["/othervo/Role=pilot"]))
    both = [organisation.attributes, third]
    accept(
        "voms_two_vos",
        "ac",
        organisation.carrying(*both),
        depth=1,
        vo=VO,
        fqans=[*GROUPS, "/othervo/Role=pilot"],
        ends=[AC_END],
        note="vo is the first one's",
    )
    accept(
        "voms_two_vos_reversed",
        "ac",
        organisation.carrying(*reversed(both)),
        depth=1,
        vo="othervo",
        fqans=["/othervo/Role=pilot", *GROUPS],
        ends=[AC_END],
    )
    accept(
        "voms_one_good_one_bad",
        "ac",
        organisation.carrying(der.with_spoilt_signature(third), organisation.attributes),
        attribute_faults=["ac-signature"],
        **held,
    )

    # Where they stand in the chain.
    inner = organisation.proxy
    outer = world.proxy(inner)
    accept("place_inner", "ac-place", [outer, inner, alice], **(held | {"depth": 2}))
    manifest.refuse(
        "voms_two_below",
        "proxy-path-length",
        [world.proxy(outer), outer, inner, alice],
        note="voms-proxy-fake gives its proxies a path length of 1",
    )
    inner = organisation.carrying(organisation.attributes)[0]
    outer = world.proxy(inner)
    outermost = world.proxy(outer)
    accept(
        "place_innermost_of_3",
        "ac-place",
        [outermost, outer, inner, alice],
        **(held | {"depth": 3}),
    )
    first = world.proxy(alice)
    carrying = world.proxy(first, extra=[line([organisation.attributes])])
    accept("place_outer", "ac-place", [carrying, first, alice], **(held | {"depth": 2}))
    narrow = world.proxy(inner, extra=[line([second])])
    accept(
        "place_two_levels",
        "ac-place",
        [narrow, inner, alice],
        depth=2,
        vo=VO,
        fqans=["/testvo/admin"],
        attribute_faults=["ac-place"],
        ends=[AC_END],
        note="who narrows attributes for a proxy can't get the wide ones back from its issuer",
    )
    worse = world.proxy(inner, extra=[line([der.with_spoilt_signature(second)])])
    accept(
        "place_bad_before_good",
        "ac-place",
        [worse, inner, alice],
        depth=2,
        attribute_faults=["ac-signature", "ac-place"],
    )
    stray = world.proxy(alice)
    accept(
        "place_beside_the_path",
        "ac-place",
        [stray, alice, inner],
        depth=1,
        note="a proxy with attributes that is not in the leaf's path is a stranger",
    )
    alone = world.proxy(inner, language=INDEPENDENT)
    accept(
        "independent_below_attributes",
        "proxy-independent",
        [alone, inner, alice],
        depth=2,
        independent=True,
        identity=alone.subject,
        attribute_faults=["ac-place"],
        note="attributes of its issuers don't count",
    )
    itself = world.proxy(alice, language=INDEPENDENT, extra=[line([organisation.attributes])])
    accept(
        "independent_with_attributes_of_its_issuer",
        "proxy-independent",
        [itself, alice],
        depth=1,
        independent=True,
        identity=itself.subject,
        attribute_faults=["ac-holder"],
        note="it carries them, but they are held by the end entity",
    )
    below = world.proxy(alone)
    accept(
        "full_below_independent_below_attributes",
        "proxy-independent",
        [below, alone, inner, alice],
        depth=3,
        independent=True,
        identity=alone.subject,
        attribute_faults=["ac-place"],
    )
    small = world.proxy(inner, language=LIMITED)
    accept(
        "voms_limited_below_full",
        "ac",
        [small, inner, alice],
        limited=True,
        **(held | {"depth": 2}),
    )


def signer_cases(world: World, manifest: Manifest, organisation: Organisation) -> None:
    """Who may sign: .lsc lists, pinned certificates, and the signer's own path."""
    classic, issuing = world.authorities["Classic"], world.authorities["Issuing"]
    alice = organisation.alice
    vomsdir = world.output / "vomsdir"
    held: dict[str, Any] = {"depth": 1, "vo": VO, "fqans": GROUPS, "ends": [AC_END]}

    def keep(name: str, rule: str, chain: list[Certificate], **fields: Any) -> None:
        manifest.accept(name, rule, chain, **(held | fields))

    def lose(
        name: str, rule: str, chain: list[Certificate], reason: str | None = None, **fields: Any
    ) -> None:
        manifest.accept(name, rule, chain, depth=1, attribute_faults=[reason or rule], **fields)

    keep("signer_listed", "ac-signer-list", [organisation.proxy, alice])
    unlisted = organisation.server("voms-unlisted.example.org", listed=False)
    lose("signer_not_listed", "ac-signer-list", [organisation.fake(unlisted, GROUPS), alice])
    other_vo = organisation.server("voms-elsewhere.example.org", vo="elsewhere")
    foreign = Issuer(other_vo.host, VO, "voms-elsewhere.example.org:15000")
    lose(
        "signer_of_another_vo",
        "ac-vo",
        [organisation.fake(foreign, GROUPS), alice],
        note="a server that is listed for another organisation",
    )
    unknown = Issuer(organisation.voms.host, "nowhere", "voms.example.org:15000")
    lose(
        "vo_unknown",
        "ac-vo",
        [organisation.fake(unknown, ["/nowhere"]), alice],
        note="vomsdir has no such folder",
    )
    keep("vo_known", "ac-vo", [organisation.proxy, alice])
    lose("vomsdir_empty", "ac-vo", [organisation.proxy, alice], vomsdir="empty")
    lose(
        "lsc_wrong_authority",
        "ac-signer-list",
        [organisation.proxy, alice],
        vomsdir="wrong-authority",
    )
    lose("lsc_wrong_order", "ac-signer-list", [organisation.proxy, alice], vomsdir="wrong-order")
    lose(
        "lsc_only_signer",
        "ac-signer-list",
        [organisation.proxy, alice],
        vomsdir="only-signer",
        note="a chain has the authority's name too",
    )
    lose("lsc_empty", "ac-signer-list", [organisation.proxy, alice], vomsdir="empty-lsc")
    keep("lsc_second_chain", "ac-signer-list", [organisation.proxy, alice], vomsdir="two-chains")
    names = [organisation.voms.host.subject, classic.certificate.subject]
    write_lsc(
        vomsdir / "wrong-authority" / VO / "voms.example.org.lsc",
        [names[0], world.authorities["Elliptic"].certificate.subject],
    )
    write_lsc(vomsdir / "wrong-order" / VO / "voms.example.org.lsc", list(reversed(names)))
    write_lsc(vomsdir / "only-signer" / VO / "voms.example.org.lsc", names[:1])
    write_lsc(vomsdir / "empty-lsc" / VO / "voms.example.org.lsc", [])
    write_lsc(
        vomsdir / "two-chains" / VO / "voms.example.org.lsc",
        [f"{HOSTS}/CN=old.example.org", names[1]],
        names,
    )
    (vomsdir / "empty").mkdir(parents=True)
    (vomsdir / "empty" / ".keep").write_text("")

    pinned = organisation.server("voms-pinned.example.org", vo="pinnedvo", listed=False)
    folder = vomsdir / "default" / "pinnedvo"
    folder.mkdir(parents=True)
    (folder / "voms-pinned.example.org.pem").write_text(pem(pinned.host.der))
    here: dict[str, Any] = {"vo": "pinnedvo", "fqans": ["/pinnedvo"]}
    keep(
        "signer_pinned",
        "ac-signer-pinned",
        organisation.without_signer(pinned, ["/pinnedvo"]),
        **here,
    )
    keep(
        "signer_pinned_and_sent",
        "ac-signer-pinned",
        [organisation.fake(pinned, ["/pinnedvo"]), alice],
        **here,
    )
    stranger = Issuer(
        organisation.server("voms-strange.example.org", listed=False).host,
        "pinnedvo",
        "voms-strange.example.org:15000",
    )
    lose(
        "signer_not_pinned",
        "ac-signer-pinned",
        organisation.without_signer(stranger, ["/pinnedvo"]),
    )
    twin = world.host(classic, "voms-pinned.example.org", key="RSA-2048")
    lose(
        "signer_pinned_other_key",
        "ac-signer-pinned",
        organisation.without_signer(Issuer(twin, "pinnedvo", pinned.address), ["/pinnedvo"]),
        note="the pinned name with another key",
    )
    lose(
        "signer_listed_not_sent",
        "ac-signer-list",
        organisation.without_signer(organisation.voms, GROUPS),
        note="a list of names without the certificate that they name",
    )

    # The signer's own path.
    elliptic = organisation.server(
        "voms-elliptic.example.org", world.authorities["Elliptic"], key="P-384"
    )
    [unsound] = attributes_of(organisation.fake(elliptic, GROUPS, weak=True))

    def ecdsa(fields: list[bytes]) -> None:
        fields[ALGORITHM] = SHA256_ECDSA

    keep(
        "signer_elliptic",
        "ac-signer-path",
        organisation.carrying(changed(unsound, elliptic.host, ecdsa)),
    )
    nested = organisation.server("voms-nested.example.org", issuing)
    file = vomsdir / "default" / VO / "voms-nested.example.org.lsc"
    keep(
        "signer_below_intermediate",
        "ac-signer-path",
        [organisation.fake(nested, GROUPS), alice],
        note="the list names the intermediate; its own issuer is found in the trust directory",
    )
    sent = world.authorities["Sent"]
    far = organisation.server("voms-far.example.org", sent, listed=False)
    write_lsc(
        file.with_name("voms-far.example.org.lsc"),
        [far.host.subject, sent.certificate.subject, classic.certificate.subject],
    )
    [short] = attributes_of(organisation.fake(far, GROUPS))

    def whole(fields: list[bytes]) -> None:
        without_extension(SIGNERS)(fields)
        with_extension(signers(far.host, sent.certificate))(fields)

    keep(
        "signer_chain_of_two",
        "ac-signer-list",
        organisation.carrying(changed(short, far.host, whole)),
    )
    lose(
        "signer_chain_too_short",
        "ac-signer-list",
        organisation.carrying(short),
        note="the list names three, the signer sent one certificate",
    )
    expired = organisation.server("voms-expired.example.org", end=PAST)
    early = organisation.server("voms-early.example.org", start=FUTURE)
    revoked = organisation.server("voms-revoked.example.org")
    world.revoke(classic, revoked.host)
    stale = organisation.server("voms-stale.example.org", world.authorities["Stale list"])
    unlisted_authority = organisation.server(
        "voms-nolist.example.org", world.authorities["No list"]
    )
    outside = organisation.server("voms-stranger.example.org", world.authorities["Stranger"])
    policy = organisation.server("voms-outside.example.org", world.authorities["Namespaces"])
    for name, issuer in {
        "expired": expired,
        "not_yet_valid": early,
        "revoked": revoked,
        "crl_stale": stale,
        "crl_missing": unlisted_authority,
        "unknown_authority": outside,
        "outside_namespaces": policy,
    }.items():
        lose(f"signer_{name}", "ac-signer-path", [organisation.fake(issuer, GROUPS), alice])
    keep(
        "signer_crl_missing_allowed",
        "ac-signer-path",
        [organisation.fake(unlisted_authority, GROUPS), alice],
        settings={"revocation": "where-listed"},
    )
    weak = organisation.server("voms-weak.example.org", key="RSA-1024")
    lose("signer_rsa1024", "ac-signer-path", [organisation.fake(weak, GROUPS), alice])
    by_user = Issuer(alice, VO, "voms.example.org:15000")
    lose(
        "signer_is_the_holder",
        "ac-signer-list",
        [organisation.fake(by_user, GROUPS), alice],
        note="alice gives herself attributes",
    )


def faults(world: World, manifest: Manifest, organisation: Organisation) -> None:
    """What is wrong with an attribute certificate itself; the identity stays."""
    classic = world.authorities["Classic"]
    attributes, voms, alice = organisation.attributes, organisation.voms, organisation.alice
    held: dict[str, Any] = {"depth": 1, "vo": VO, "fqans": GROUPS, "ends": [AC_END]}

    def lose(name: str, rule: str, chain: list[Certificate], **fields: Any) -> None:
        manifest.accept(name, rule, chain, depth=1, attribute_faults=[rule], **fields)

    def keep(name: str, rule: str) -> None:
        manifest.accept(name, rule, [organisation.proxy, alice], **held)

    for rule in [
        "ac-holder",
        "ac-issuer",
        "ac-signature",
        "ac-validity",
        "ac-encoding",
        "ac-attributes",
    ]:
        keep(f"{rule.replace('-', '_')}_good", rule)

    bob = world.user(classic, "Bob", key="RSA-2048")
    lose(
        "holder_another",
        "ac-holder",
        organisation.carrying(attributes, user=bob),
        note="alice's attributes in bob's proxy",
    )
    old = organisation.fake(voms, GROUPS, holder_by_issuer=False)
    manifest.accept(
        "holder_by_his_own_name",
        "ac-holder",
        [old, alice],
        note="the holder's name where his issuer's belongs, as VOMS servers and IAM write it",
        **held,
    )
    again = world.user(classic, "Alice", key="RSA-2048")
    lose(
        "holder_renewed",
        "ac-holder",
        organisation.carrying(attributes, user=again),
        note="alice's next certificate has another serial number",
    )
    elliptic = world.authorities["Elliptic"]
    same = world.user(elliptic, "Alice", serial=alice.serial)
    lose(
        "holder_same_serial",
        "ac-holder",
        organisation.carrying(attributes, user=same),
        note="the same serial number by another authority",
    )

    def renamed(fields: list[bytes]) -> None:
        fields[ISSUER] = fields[ISSUER].replace(b"voms.example.org", b"vomx.example.org")

    lose("issuer_another", "ac-issuer", organisation.edited(renamed))
    lose(
        "signature_wrong",
        "ac-signature",
        organisation.carrying(der.with_spoilt_signature(attributes)),
    )
    other = organisation.server("voms-thief.example.org", listed=False)
    lose(
        "signature_by_another",
        "ac-signature",
        organisation.carrying(changed(attributes, other.host, lambda fields: None)),
        note="the listed server's name, another key",
    )

    def sha1(fields: list[bytes]) -> None:
        fields[ALGORITHM] = SHA1_RSA

    lose(
        "signature_sha1",
        "ac-signature",
        organisation.carrying(changed(attributes, voms.host, sha1, "sha1")),
    )
    body, _, signature = der.signed_parts(attributes)
    lose(
        "signature_algorithms_differ",
        "ac-signature",
        organisation.carrying(der.signed(body.encode(), SHA1_RSA, signature)),
    )

    def valid(start: datetime, end: datetime) -> Callable[[list[bytes]], None]:
        def edit(fields: list[bytes]) -> None:
            times = [
                der.tlv(0x18, time.strftime("%Y%m%d%H%M%SZ").encode()) for time in (start, end)
            ]
            fields[VALIDITY] = der.sequence(*times)

        return edit

    begin = datetime(2026, 9, 1, tzinfo=UTC)
    lose("validity_expired", "ac-validity", organisation.edited(valid(begin, PAST)))
    lose("validity_not_yet", "ac-validity", organisation.edited(valid(FUTURE, AC_END)))
    ends = datetime(2026, 10, 1, 13, tzinfo=UTC)
    manifest.accept(
        "validity_one_hour",
        "ac-validity",
        organisation.edited(valid(begin, ends)),
        **(held | {"ends": [ends]}),
        note="the identity ends with its attributes",
    )
    past = organisation.fake(voms, GROUPS, time=datetime(2026, 9, 29, tzinfo=UTC), hours=24)
    lose("validity_expired_fake", "ac-validity", organisation.carrying(*attributes_of(past)))

    there: list[Any] = [with_extension(targets("other.example.org")), OWN_HOST]
    lose("target_elsewhere", "ac-targets", organisation.edited(there[0]), settings=there[1])
    lose(
        "target_elsewhere_as_rfc_5755_writes_it",
        "ac-targets",
        organisation.edited(with_extension(targets("other.example.org", nested=False))),
        settings=OWN_HOST,
    )
    lose(
        "target_but_no_name",
        "ac-targets",
        organisation.edited(with_extension(targets(HERE))),
        note="nobody said what this host is called",
    )
    lose(
        "target_suffix",
        "ac-targets",
        organisation.edited(with_extension(targets("example.org"))),
        settings=OWN_HOST,
    )
    empty = with_extension(der.extension(TARGETS, der.sequence(der.sequence()), critical=True))
    lose(
        "target_empty",
        "ac-targets",
        organisation.edited(empty),
        settings=OWN_HOST,
        note="what voms-proxy-fake 2.1 writes for -target: a list of nobody",
    )

    critical = with_extension(der.extension(UNKNOWN, b"\x05\x00", critical=True))
    lose("extension_critical", "ac-extensions", organisation.edited(critical))
    fake = organisation.fake(voms, GROUPS, "-acextension", f"{UNKNOWN}/true:abcd")
    lose("extension_critical_fake", "ac-extensions", [fake, alice])

    lose("encoding_ac_garbage", "ac-encoding", organisation.carrying(b"\x30\x05hello"))
    lose(
        "encoding_ac_truncated",
        "ac-encoding",
        organisation.carrying(attributes[: len(attributes) // 2]),
    )
    raw = f"{line([attributes]).partition('=')[0]}=DER:deadbeef"
    lose("encoding_ac_no_sequence", "ac-encoding", [world.proxy(alice, extra=[raw]), alice])
    lose("encoding_ac_empty", "ac-encoding", organisation.carrying())
    serial = changed(
        attributes, voms.host, lambda fields: fields.__setitem__(SERIAL, b"\x04\x01\x01")
    )
    lose("encoding_ac_serial", "ac-encoding", organisation.carrying(serial))

    def naming(name: bytes) -> Callable[[list[bytes]], None]:
        def edit(fields: list[bytes]) -> None:
            fields[ATTRIBUTES] = fields[ATTRIBUTES].replace(b"/testvo/analysis", name)

        return edit

    for word, name, note in [
        ("of_another_vo", b"/tastvo/analysis", "a server of testvo may not speak for tastvo"),
        ("of_a_longer_vo", b"/testvo-analysis", "testvo-analysis is not testvo"),
        ("with_a_line_break", b"/testvo/ana\nysis", "names go into headers and logs"),
        ("without_a_slash", b"testvo/analysis/", "a name begins with the organisation's"),
    ]:
        lose(f"attributes_{word}", "ac-attributes", organisation.edited(naming(name)), note=note)

    def nameless(fields: list[bytes]) -> None:
        fields[ATTRIBUTES] = der.sequence()

    manifest.accept(
        "voms_no_names",
        "ac",
        organisation.edited(nameless),
        depth=1,
        attribute_faults=["ac-attributes"],
        note="an attribute certificate without names gives nothing",
    )

    def no_holder(fields: list[bytes]) -> None:
        fields[HOLDER] = der.sequence()

    lose("holder_nobody", "ac-holder", organisation.edited(no_holder))

    # An identity that fails stays refused, however good its attributes.
    revoked = world.revoke(classic, world.user(classic, "Revoked", key="RSA-2048"))
    manifest.refuse(
        "voms_of_a_revoked_user",
        "revoked",
        [organisation.fake(voms, GROUPS, user=revoked), revoked],
    )
    late = organisation.fake(voms, GROUPS, time=datetime(2026, 9, 29, tzinfo=UTC), hours=24)
    manifest.refuse("voms_expired_proxy", "validity", [late, alice])
