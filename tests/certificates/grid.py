"""A small grid at the present time: an authority with its lists and policies, users, hosts, proxies, and a VOMS server.

The committed vectors are judged at their own fixed time by another maker's certificates; what is made here is for sockets and files, now.
`cryptography` writes everything but attribute certificates, which it doesn't know.
"""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.certificates import der
from tests.certificates.attributes import AC_SEQUENCE, ATTRIBUTE_LIST, SIGNERS
from tests.certificates.trust_files import signing_policy, write_lsc

VO = "exoskel.test"
VOMS_SERVER = "voms.exoskel.test"
PRODUCTION = f"/{VO}/Role=production"

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

_PROXY_INFORMATION = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.14")
_ATTRIBUTE_CERTIFICATES = x509.ObjectIdentifier(AC_SEQUENCE)
_NO_REVOCATION = "2.5.29.56"
_UNKNOWN = x509.ObjectIdentifier("1.3.6.1.4.1.32473.1")
_LANGUAGES = {"full": "1.3.6.1.5.5.7.21.1", "limited": "1.3.6.1.4.1.3536.1.1.1.9"}


def name(*parts: str) -> x509.Name:
    """A name below the test domain: its last part is the common name."""
    domain = [x509.NameAttribute(NameOID.DOMAIN_COMPONENT, part) for part in ("test", "exoskel")]
    organisation = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, part) for part in parts[:-1]]
    return x509.Name([*domain, *organisation, x509.NameAttribute(NameOID.COMMON_NAME, parts[-1])])


def slash(of: x509.Name) -> str:
    """A name as grids write it."""
    kinds = {
        NameOID.DOMAIN_COMPONENT: "DC",
        NameOID.ORGANIZATION_NAME: "O",
        NameOID.COMMON_NAME: "CN",
    }
    return "".join(f"/{kinds[part.oid]}={part.value!s}" for part in of)


@dataclass(frozen=True)
class Holder:
    """A certificate with its key, and those behind it."""

    chain: tuple[x509.Certificate, ...]
    key: Key

    @property
    def certificate(self) -> x509.Certificate:
        """The leaf."""
        return self.chain[0]

    @property
    def dn(self) -> str:
        """The leaf's subject."""
        return slash(self.certificate.subject)

    def certificates(self) -> bytes:
        """The chain in PEM."""
        return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in self.chain)

    def private_key(self, phrase: bytes | None = None) -> bytes:
        """The key in PEM, locked if there is a phrase."""
        lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if phrase is not None:
            lock = serialization.BestAvailableEncryption(phrase)
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock
        )

    def write(self, path: Path) -> Path:
        """Write leaf, key and the rest of the chain into one private file, as a proxy has them."""
        leaf = self.certificate.public_bytes(serialization.Encoding.PEM)
        return write_private(path, leaf + self.private_key() + self.certificates()[len(leaf) :])


def write_private(path: Path, content: bytes) -> Path:
    """Write a file that only its owner can read."""
    path.touch(0o600)
    path.write_bytes(content)
    return path


@dataclass
class Grid:
    """The authority and its directories."""

    place: Path
    revoked: list[x509.Certificate] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.key = new_key()
        self.subject = name("Test CA")
        self.anchors = self.place / "certificates"
        self.vomsdir = self.place / "vomsdir"
        builder = self._builder(self.subject, self.subject, self.key)
        usage = {"key_cert_sign": True, "crl_sign": True}
        self.certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(_key_usage(**usage), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        self.anchors.mkdir(parents=True)
        pem = self.certificate.public_bytes(serialization.Encoding.PEM)
        self.anchor.write_bytes(pem)
        policy = signing_policy(slash(self.subject), "/DC=test/DC=exoskel/*")
        (self.anchors / "0e50e150.signing_policy").write_text(policy)
        self.list_revoked()
        self.server = self.host(VOMS_SERVER)
        chain = (self.server.dn, slash(self.subject))
        write_lsc(self.vomsdir / VO / f"{VOMS_SERVER}.lsc", chain)

    @property
    def anchor(self) -> Path:
        """The authority's certificate, under the hash of its name."""
        return self.anchors / "0e50e150.0"

    @property
    def trust(self) -> list[str]:
        """The options that name its directories."""
        return ["--trust-anchors", str(self.anchors), "--vomsdir", str(self.vomsdir)]

    def user(self, common_name: str = "Alice", hours: float = 48, key: Key | None = None) -> Holder:
        """A person."""
        key = key or new_key()
        builder = self._builder(name("People", common_name), self.subject, key, hours)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True, key_encipherment=True), critical=True)
            .sign(self.key, hashes.SHA256())
        )
        return Holder((certificate,), key)

    def host(self, *names: str, key: Key | None = None) -> Holder:
        """A host with these DNS names."""
        key = key or new_key()
        purposes = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        certificate = (
            self._builder(name("Hosts", names[0]), self.subject, key)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([_host_name(one) for one in names]), critical=False
            )
            .sign(self.key, hashes.SHA256())
        )
        return Holder((certificate,), key)

    def proxy(
        self,
        issuer: Holder,
        *fqans: str,
        kind: str = "full",
        hours: float = 12,
        key: Key | None = None,
        padding: int = 0,
    ) -> Holder:
        """A proxy of somebody, with an attribute certificate of the VOMS server if there are attributes.

        `padding` is the length of an extension that nobody knows.
        """
        key = key or new_key()
        number = secrets.randbits(62) | 1 << 62
        common = x509.NameAttribute(NameOID.COMMON_NAME, str(number))
        own = issuer.certificate.subject
        information = der.sequence(der.sequence(der.object_identifier(_LANGUAGES[kind])))
        builder = (
            self._builder(x509.Name([*own, common]), own, key, hours)
            .add_extension(_key_usage(digital_signature=True), critical=True)
            .add_extension(
                x509.UnrecognizedExtension(_PROXY_INFORMATION, information), critical=True
            )
        )
        if fqans:
            entity = next(one for one in issuer.chain if one.issuer == self.subject)
            attributes = der.sequence(
                der.sequence(self._attribute_certificate(entity, fqans, hours))
            )
            builder = builder.add_extension(
                x509.UnrecognizedExtension(_ATTRIBUTE_CERTIFICATES, attributes), critical=False
            )
        if padding:
            unknown = x509.UnrecognizedExtension(_UNKNOWN, bytes(padding))
            builder = builder.add_extension(unknown, critical=False)
        return Holder((builder.sign(issuer.key, hashes.SHA256()), *issuer.chain), key)

    def revoke(self, holder: Holder) -> None:
        """Put a certificate on the authority's list."""
        self.revoked.append(holder.chain[-1])
        self.list_revoked()

    def list_revoked(self) -> None:
        """Write the authority's list, whole or not at all, as fetch-crl does."""
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.subject)
            .last_update(self.now - timedelta(hours=1))
            .next_update(self.now + timedelta(days=7))
            .add_extension(x509.CRLNumber(len(self.revoked) + 1), critical=False)
        )
        for one in self.revoked:
            builder = builder.add_revoked_certificate(
                x509.RevokedCertificateBuilder()
                .serial_number(one.serial_number)
                .revocation_date(self.now - timedelta(minutes=1))
                .build()
            )
        content = builder.sign(self.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        new = self.anchors / "new"
        new.write_bytes(content)
        os.replace(new, self.anchors / "0e50e150.r0")

    def _builder(
        self, subject: x509.Name, issuer: x509.Name, key: Key, hours: float = 240
    ) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - timedelta(hours=2))
            .not_valid_after(self.now + timedelta(hours=hours))
        )

    def _attribute_certificate(
        self, holder: x509.Certificate, fqans: tuple[str, ...], hours: float
    ) -> bytes:
        """RFC 5755 as VOMS fills it in: the holder by issuer and serial number, the attributes as octet strings."""
        algorithm = der.sequence(der.object_identifier("1.2.840.10045.4.3.2"))
        times = (self.now - timedelta(hours=1), self.now + timedelta(hours=hours))
        uri = der.tlv(0x86, f"{VO}://{VOMS_SERVER}:15000".encode())
        values = [der.tlv(0x04, fqan.encode()) for fqan in fqans]
        syntax = der.sequence(der.tlv(0xA0, uri), der.sequence(*values))
        attribute = der.sequence(der.object_identifier(ATTRIBUTE_LIST), der.tlv(0x31, syntax))
        server = self.server.certificate.public_bytes(serialization.Encoding.DER)
        signers = der.sequence(der.sequence(server))
        extensions = der.sequence(
            der.extension(_NO_REVOCATION, b"\x05\x00"),
            der.extension(SIGNERS, signers),
        )
        content = der.sequence(
            der.integer(1),
            der.sequence(
                der.tlv(
                    0xA0,
                    der.sequence(_directory(holder.issuer)) + der.integer(holder.serial_number),
                )
            ),
            der.tlv(0xA0, der.sequence(_directory(self.server.certificate.subject))),
            algorithm,
            der.integer(secrets.randbits(100)),
            der.sequence(*(der.tlv(0x18, f"{time:%Y%m%d%H%M%SZ}".encode()) for time in times)),
            der.sequence(attribute),
            extensions,
        )
        assert isinstance(self.server.key, ec.EllipticCurvePrivateKey)
        signature = self.server.key.sign(content, ec.ECDSA(hashes.SHA256()))
        return der.signed(content, algorithm, signature)


def server_options(grid: Grid, place: Path) -> dict[str, Any]:
    """What a server of this grid is told; its host certificate is written beside."""
    host = grid.host("localhost", "127.0.0.1")
    (place / "hostcert.pem").write_bytes(host.certificates())
    return {
        "listen": "127.0.0.1:0",
        "certificate": place / "hostcert.pem",
        "key": write_private(place / "hostkey.pem", host.private_key()),
        "trust_anchors": grid.anchors,
        "vomsdir": grid.vomsdir,
        "audit": str(place / "audit"),
    }


def new_key() -> ec.EllipticCurvePrivateKey:
    """A key of the kind that is made fastest."""
    return ec.generate_private_key(ec.SECP256R1())


def _host_name(text: str) -> x509.GeneralName:
    import ipaddress

    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _key_usage(**uses: bool) -> x509.KeyUsage:
    none = dict.fromkeys(
        [
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "key_cert_sign",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ],
        False,
    )
    return x509.KeyUsage(**{**none, **uses})


def _directory(of: x509.Name) -> bytes:
    """A general name that is a directory name."""
    return der.tlv(0xA4, of.public_bytes())
