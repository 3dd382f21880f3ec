"""What a lenient reader lets pass: BER, doubled extensions, false RSA keys, authorities for other uses, names with slashes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.certificates import der
from tests.certificates.attributes import AC_END, SERIAL, VALIDITY, Issuer, with_extension
from tests.certificates.openssl import (
    CA_EXTENSIONS,
    ENTITY_EXTENSIONS,
    Authority,
    Certificate,
    openssl,
)
from tests.certificates.trust_files import write_lsc
from tests.certificates.vectors.attribute_cases import GROUPS, VO, Organisation
from tests.certificates.vectors.manifest import Manifest
from tests.certificates.vectors.path_cases import INTERMEDIATE, UNKNOWN, WHERE_LISTED
from tests.certificates.vectors.world import HOSTS, World

INTEGER = 0x02
UTC_TIME = 0x17
GENERALIZED_TIME = 0x18
TRUE_AS_1 = b"\x01\x01\x01"
SUBJECT_ALTERNATIVE_NAME = "2.5.29.17"
EXTENDED_KEY_USAGE = "2.5.29.37"
REASON_CODE = "2.5.29.21"
NO_REVOCATION = "2.5.29.56"

# Where the fields of a TBSCertificate are, and the paths to what is edited within them.
NUMBER, TIMES, SUBJECT, KEY, EXTENSIONS = (1,), (4,), (5,), (6, 1), (7, 0)
BASIC_CONSTRAINTS, KEY_USAGE = (*EXTENSIONS, 0), (*EXTENSIONS, 1)

Edit = Callable[[bytes], bytes]


def replaced(data: bytes, path: Sequence[int], edit: Edit) -> bytes:
    """The encoded value with one of the values inside it edited; the lengths around that stay right."""
    if not path:
        return edit(data)
    value, _ = der.read(data)
    parts = [part.encode() for part in value.children()]
    parts[path[0]] = replaced(parts[path[0]], path[1:], edit)
    return der.tlv(value.tag, b"".join(parts))


def rewritten(
    certificate: Certificate, issuer: Certificate, path: Sequence[int], edit: Edit
) -> Certificate:
    """The certificate with an edited value, signed again."""
    body, _, _ = der.signed_parts(certificate.der)
    changed = replaced(body.encode(), path, edit)
    return certificate.having(der.signed_again(certificate.der, changed, issuer.key))


def content(change: Edit) -> Edit:
    """An edit of what is in a value."""

    def edit(data: bytes) -> bytes:
        value, _ = der.read(data)
        return der.tlv(value.tag, change(value.content))

    return edit


def instead(data: bytes) -> Edit:
    """An edit that puts something else in the value's place."""
    return lambda _: data


def _long_length(data: bytes) -> bytes:
    return data[:1] + b"\x81" + data[1:]


def _indefinite(data: bytes) -> bytes:
    return data[:1] + b"\x80" + data[2:] + b"\0\0"


ENCODINGS: list[tuple[str, Sequence[int], Edit]] = [
    ("integer_zero", NUMBER, content(lambda number: b"\0" + number)),
    ("integer_ff", NUMBER, instead(b"\x02\x03\xff\xf0\x01")),
    ("integer_empty", NUMBER, instead(b"\x02\x00")),
    ("boolean_01", (*KEY_USAGE, 1), instead(TRUE_AS_1)),
    ("time_no_seconds", (*TIMES, 0), instead(der.tlv(UTC_TIME, b"2601010000Z"))),
    ("time_offset", (*TIMES, 0), instead(der.tlv(UTC_TIME, b"260101000000+0000"))),
    ("time_fraction", (*TIMES, 1), instead(der.tlv(GENERALIZED_TIME, b"20270201000000.5Z"))),
    (
        "time_generalized_offset",
        (*TIMES, 1),
        instead(der.tlv(GENERALIZED_TIME, b"20270201000000+0000")),
    ),
    ("length_long", SUBJECT, _long_length),
    ("length_indefinite_inside", SUBJECT, _indefinite),
    ("bits_unused", (*KEY_USAGE, 2, 0), content(lambda bits: bits[:-1] + bytes([bits[-1] | 1]))),
]


def encodings(world: World, manifest: Manifest) -> None:
    """RFC 5280 4.1: certificates are DER, whatever their readers could make of BER."""
    accept, refuse = manifest.accept, manifest.refuse
    classic = world.authorities["Classic"]
    issuer = classic.certificate
    user = world.user(classic, "Strict")
    for name, path, edit in ENCODINGS:
        refuse(f"encoding_{name}", "encoding", [rewritten(user, issuer, path, edit)])
    below = world.below(classic, "Lenient")
    constraints = rewritten(
        below.certificate, issuer, (*BASIC_CONSTRAINTS, 2, 0, 0), instead(TRUE_AS_1)
    )
    refuse(
        "encoding_boolean_01_authority",
        "encoding",
        [world.user(below, "Leni"), constraints],
        settings=WHERE_LISTED,
        note="cA is written as 01, which is TRUE in BER",
    )

    # RFC 5280 4.2.1.6.
    accept("alternative_names_one", "alternative-names", [world.host(classic, "one.example.org")])
    for word, value in {
        "none": der.sequence(),
        "empty_host": der.sequence(b"\x82\x00"),
        "empty_mail": der.sequence(b"\x82\x01a", b"\x81\x00"),
        "empty_directory": der.sequence(der.tlv(0xA4, der.sequence())),
    }.items():
        line = f"{SUBJECT_ALTERNATIVE_NAME}=DER:{value.hex()}"
        who = world.user(classic, "Nameless", extensions=(*ENTITY_EXTENSIONS, line))
        refuse(f"alternative_names_{word}", "alternative-names", [who])

    purposes = der.sequence(der.object_identifier("1.3.6.1.5.5.7.3.1"))
    lines = ("extendedKeyUsage=clientAuth", f"{UNKNOWN}=DER:{purposes.hex()}")
    twice = rewritten(
        world.user(classic, "Twice", extensions=(*ENTITY_EXTENSIONS, *lines)),
        issuer,
        (*EXTENSIONS, len(ENTITY_EXTENSIONS) + 1, 0),
        instead(der.object_identifier(EXTENDED_KEY_USAGE)),
    )
    refuse(
        "extension_twice_purpose",
        "extension-once",
        [twice],
        note="clientAuth by one of them, serverAuth by the other one",
    )


def lists(world: World, manifest: Manifest) -> None:
    """RFC 5280 5.1: so are lists."""
    classic = world.authorities["Classic"]
    manifest.accept("crl_encoding_good", "crl-encoding", [world.user(classic, "Listed")])
    first = (5, 0)
    reason = der.extension(REASON_CODE, b"\x0a\x01\x01")
    identifier = instead(der.object_identifier(UNKNOWN))
    made: list[tuple[str, Sequence[int], Edit, dict[str, Any]]] = [
        (
            "integer_zero",
            (*first, 0),
            content(lambda number: b"\0" + number),
            {"revoked": [0x777]},
        ),
        ("time_no_seconds", (4,), instead(der.tlv(UTC_TIME, b"2611010000Z")), {}),
        ("time_offset", (3,), instead(der.tlv(UTC_TIME, b"260920000000+0000")), {}),
        (
            "entry_extension_twice",
            first,
            content(lambda entry: entry + der.sequence(reason, reason)),
            {"revoked": [0x777]},
        ),
        (
            "extension_twice",
            (5, 0, 2, 0),
            identifier,
            {"extensions": [f"{UNKNOWN}=DER:0500", f"{UNKNOWN[:-1]}2=DER:0500"]},
        ),
        (
            "number_zero",
            (),
            lambda data: data,
            {"extensions": ["2.5.29.20=DER:02020001"]},
        ),
    ]
    for name, path, edit, fields in made:
        authority = world.root(f"{name.replace('_', ' ').capitalize()} list")
        fields["extensions"] = ["authorityKeyIdentifier=keyid", *fields.get("extensions", [])]
        data = world.shop.crl(authority.certificate, **fields)
        body, _, _ = der.signed_parts(data)
        changed = replaced(body.encode(), path, edit)
        authority.crl = der.signed_again(data, changed, authority.certificate.key)
        manifest.refuse(f"crl_{name}", "crl-encoding", [world.user(authority, "Lou")])


def keys(world: World, manifest: Manifest) -> None:
    """RFC 8017 3.1: numbers that an RSA key can't have."""
    accept, refuse = manifest.accept, manifest.refuse
    classic = world.authorities["Classic"]
    issuer = classic.certificate
    for word, exponent in {"3": 3, "33_bits": 2**32 + 1}.items():
        file = world.shop.path("key")
        options = ["-pkeyopt", "rsa_keygen_bits:2048", "-pkeyopt", f"rsa_keygen_pubexp:{exponent}"]
        openssl("genpkey", "-algorithm", "RSA", *options, "-out", file)
        accept(f"eec_rsa_exponent_{word}", "rsa-numbers", [world.user(classic, "Rsa", key=file)])
    user = world.user(classic, "Rsa", key="RSA-2048")
    body, _, _ = der.signed_parts(user.der)
    [modulus, _] = der.read(body.children()[KEY[0]].children()[KEY[1]].content[1:])[0].children()
    number = int.from_bytes(modulus.content, "big")

    def key(modulus: bytes, exponent: bytes) -> Edit:
        numbers = der.sequence(der.tlv(INTEGER, modulus), der.tlv(INTEGER, exponent))
        return instead(der.tlv(der.BIT_STRING, b"\0" + numbers))

    exponents = {
        "0": b"\0",
        "1": b"\1",
        "2": b"\2",
        "65536": b"\1\0\0",
        "minus_1": b"\xff",
        "34_bits": b"\2\0\0\0\1",
    }
    for word, encoded in exponents.items():
        false = rewritten(user, issuer, KEY, key(modulus.content, encoded))
        refuse(f"eec_rsa_exponent_{word}", "rsa-numbers", [false])
    even = (number - 1).to_bytes(len(modulus.content), "big")
    for word, encoded in {"even": even, "negative": modulus.content[1:]}.items():
        false = rewritten(user, issuer, KEY, key(encoded, b"\1\0\1"))
        refuse(f"eec_rsa_modulus_{word}", "rsa-numbers", [false])
    double = rewritten(user, issuer, KEY, key(b"\0" + modulus.content, b"\1\0\1"))
    refuse("encoding_rsa_integer_zero", "encoding", [double], note="the modulus of the key")

    # With the exponent 1 everybody signs: a signature is the padded digest itself.
    below = world.below(classic, "Exponent 1", "RSA-2048")
    body, _, _ = der.signed_parts(below.certificate.der)
    inner = body.children()[KEY[0]].children()[KEY[1]].content[1:]
    [own, _] = der.read(inner)[0].children()
    false = rewritten(below.certificate, issuer, KEY, key(own.content, b"\1"))
    forged = world.user(below, "Forged")
    body, algorithm, _ = der.signed_parts(forged.der)
    digest = openssl("dgst", "-sha256", "-binary", data=body.encode())
    name = der.sequence(der.object_identifier("2.16.840.1.101.3.4.2.1"), b"\x05\x00")
    info = der.sequence(name, der.tlv(der.OCTET_STRING, digest))
    padded = b"\0\1" + b"\xff" * (256 - 3 - len(info)) + b"\0" + info
    refuse(
        "intermediate_rsa_exponent_1",
        "rsa-numbers",
        [forged.having(der.signed(body.encode(), algorithm, padded)), false],
        settings=WHERE_LISTED,
        note="the leaf is signed by nobody's private key",
    )


def purposes(world: World, manifest: Manifest) -> None:
    """RFC 5280 4.2.1.12 as OpenSSL reads it: an authority's extended key usages bind what it signs, an anchor's too."""
    accept, refuse = manifest.accept, manifest.refuse
    classic = world.authorities["Classic"]
    rule = "ca-extended-key-usage"

    def below(label: str, usage: str, issuer: Authority = classic) -> Authority:
        extensions = (*INTERMEDIATE, f"extendedKeyUsage={usage}")
        return world.below(issuer, f"Purpose {label}", extensions=extensions, directory="default")

    client = below("client", "clientAuth")
    accept("ca_purpose_client", rule, [world.user(client, "Clio"), client.certificate])
    server = below("server", "serverAuth")
    host = world.host(server, "purpose.example.org")
    accept("ca_purpose_server", rule, [host, server.certificate])
    only_client = (*ENTITY_EXTENSIONS, "extendedKeyUsage=clientAuth")
    user = world.user(server, "Clio", extensions=only_client)
    refuse(
        "ca_purpose_server_for_client",
        rule,
        [user, server.certificate],
        note="the leaf is for clients, its authority for servers",
    )
    both = below("both", "clientAuth,serverAuth,emailProtection")
    accept("ca_purpose_both", rule, [world.user(both, "Bo"), both.certificate])
    mail = below("mail", "emailProtection")
    user = world.user(mail, "Mia")
    refuse("ca_purpose_mail", rule, [user, mail.certificate])
    refuse("ca_purpose_mail_not_sent", rule, [user])
    refuse("ca_purpose_mail_proxy", rule, [world.proxy(user), user, mail.certificate])
    above = below("both below mail", "clientAuth,serverAuth", mail)
    refuse(
        "ca_purpose_mail_above",
        rule,
        [world.user(above, "Moe"), above.certificate, mail.certificate],
    )
    anything = below("any", "anyExtendedKeyUsage")
    refuse(
        "ca_purpose_any",
        rule,
        [world.user(anything, "Ann"), anything.certificate],
        note="RFC 5280 leaves it to applications whether any is enough; for OpenSSL and webpki it is not",
    )
    extensions = (*CA_EXTENSIONS, "extendedKeyUsage=emailProtection")
    anchor = world.root("Purpose mail anchor", extensions=extensions)
    refuse("anchor_purpose_mail", rule, [world.user(anchor, "Max")])
    extensions = (*CA_EXTENSIONS, "extendedKeyUsage=clientAuth,serverAuth")
    anchor = world.root("Purpose both anchor", extensions=extensions)
    accept("anchor_purpose_both", rule, [world.user(anchor, "Bea")])
    some = (*ENTITY_EXTENSIONS, "extendedKeyUsage=anyExtendedKeyUsage")
    refuse("eec_purpose_any", "extended-key-usage", [world.user(classic, "Any", extensions=some)])


def attributes(world: World, manifest: Manifest, organisation: Organisation) -> None:
    """RFC 5755 4.1: attribute certificates are DER; and names are those of a list part by part."""
    classic = world.authorities["Classic"]

    def lose(name: str, rule: str, chain: list[Certificate], **fields: Any) -> None:
        manifest.accept(name, rule, chain, depth=1, attribute_faults=[rule], **fields)

    def field(index: int, path: Sequence[int], edit: Edit) -> Callable[[list[bytes]], None]:
        def change(fields: list[bytes]) -> None:
            fields[index] = replaced(fields[index], path, edit)

        return change

    zero = field(SERIAL, (), content(lambda number: b"\0\0" + number.lstrip(b"\0")))
    lose("encoding_ac_integer_zero", "ac-encoding", organisation.edited(zero))
    for word, text in {"fraction": b"20261003000500.5Z", "offset": b"20261003000500+0000"}.items():
        ends = field(VALIDITY, (1,), instead(der.tlv(GENERALIZED_TIME, text)))
        lose(f"encoding_ac_time_{word}", "ac-encoding", organisation.edited(ends))
    flag = der.sequence(
        der.object_identifier(NO_REVOCATION), TRUE_AS_1, der.tlv(der.OCTET_STRING, b"\x05\x00")
    )
    lose("encoding_ac_boolean_01", "ac-encoding", organisation.edited(with_extension(flag)))

    # The name of a list, with its last two parts in one value: `openssl x509 -nameopt compat` can't tell them apart.
    listed = f"{HOSTS}/CN=voms-parts.example.org"
    subject = f"{HOSTS}\\/CN=voms-parts.example.org"
    extensions = (*ENTITY_EXTENSIONS, "subjectAltName=DNS:voms-parts.example.org")
    impostor = world.user(
        classic, "Impostor", subject=subject, key="RSA-2048", extensions=extensions
    )
    file = world.output / "vomsdir" / "default" / VO / "voms-parts.example.org.lsc"
    write_lsc(file, [listed, classic.certificate.subject])
    lose(
        "lsc_other_parts",
        "ac-signer-list",
        [
            organisation.fake(Issuer(impostor, VO, "voms-parts.example.org:15000"), GROUPS),
            organisation.alice,
        ],
        note="the signer has the listed name in slash form, but one part less: a value with a slash in it",
    )
    name = f"{HOSTS}/CN=host\\/voms-host.example.org"
    extensions = (*ENTITY_EXTENSIONS, "subjectAltName=DNS:voms-host.example.org")
    host = world.user(classic, "Host", subject=name, key="RSA-2048", extensions=extensions)
    file = file.with_name("voms-host.example.org.lsc")
    write_lsc(file, [name.replace("\\", ""), classic.certificate.subject])
    manifest.accept(
        "lsc_slash_in_value",
        "ac-signer-list",
        [
            organisation.fake(Issuer(host, VO, "voms-host.example.org:15000"), GROUPS),
            organisation.alice,
        ],
        depth=1,
        vo=VO,
        fqans=GROUPS,
        ends=[AC_END],
        note="a slash in a value with no type behind it begins no part",
    )


__all__ = ["attributes", "encodings", "keys", "lists", "purposes"]
