"""The authorities of the vectors, the trust directories and the people in them."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.certificates import der
from tests.certificates.openssl import (
    CA_END,
    CA_EXTENSIONS,
    CA_START,
    CRL_START,
    ENTITY_END,
    ENTITY_EXTENSIONS,
    ENTITY_START,
    FUTURE,
    PAST,
    PROXY_END,
    PROXY_START,
    Authority,
    Certificate,
    Workshop,
    pem,
)
from tests.certificates.trust_files import namespaces, signing_policy

BASE = "/DC=org/DC=example"
USERS = f"{BASE}/O=Users"
HOSTS = f"{BASE}/O=Hosts"
FULL = "1.3.6.1.5.5.7.21.1"
INDEPENDENT = "1.3.6.1.5.5.7.21.2"
LIMITED = "1.3.6.1.4.1.3536.1.1.1.9"
DRAFT_PROXY_INFO = "1.3.6.1.4.1.3536.1.222"
PROXY_USAGE = "critical,digitalSignature"

_proxy_numbers = itertools.count(100001)


def ca_name(label: str) -> str:
    """How an authority of the vectors is called."""
    return f"{BASE}/CN={label} CA"


class World:
    """Everybody, and what trust directories say about them."""

    def __init__(self, folder: Path, output: Path) -> None:
        self.shop = Workshop(folder)
        self.output = output
        self.authorities: dict[str, Authority] = {}
        # Name of a trust directory -> authorities in it, in the order of the suffixes .0, .1, ...
        self.directories: dict[str, list[Authority]] = {"default": []}

    # --- authorities ---------------------------------------------------------------------------

    def root(
        self,
        label: str,
        kind: str = "P-256",
        *,
        name: str | None = None,
        key: Path | None = None,
        directory: str | None = "default",
        extensions: Sequence[str] = CA_EXTENSIONS,
        start: datetime = CA_START,
        end: datetime = CA_END,
        digest: str = "sha256",
        policies: bool = True,
    ) -> Authority:
        """A self-signed authority, in a trust directory unless `directory` is None."""
        subject = name or ca_name(label)
        made = self.shop.self_signed(
            subject, key or self.shop.key(kind), extensions, start, end, digest
        )
        return self._keep(label, made, directory, policies)

    def below(
        self,
        issuer: Authority,
        label: str,
        kind: str = "P-256",
        *,
        name: str | None = None,
        directory: str | None = None,
        extensions: Sequence[str] = (*CA_EXTENSIONS, "authorityKeyIdentifier=keyid"),
        policies: bool = True,
        **fields: Any,
    ) -> Authority:
        """An intermediate authority: certificates by the peer unless a trust directory is named."""
        made = self.shop.issue(
            issuer.certificate,
            name or ca_name(label),
            key=kind,
            extensions=extensions,
            **{"start": CA_START, "end": CA_END, **fields},
        )
        return self._keep(label, made, directory, policies)

    def _keep(
        self, label: str, made: Certificate, directory: str | None, policies: bool
    ) -> Authority:
        authority = Authority(made)
        if policies:
            authority.signing_policy = signing_policy(made.subject, f"{BASE}/*")
            authority.namespaces = namespaces(made.subject, f"{BASE}/.*")
        self.authorities[label] = authority
        if directory is not None:
            self.directories.setdefault(directory, []).append(authority)
        return authority

    # --- people, hosts, proxies ----------------------------------------------------------------

    def user(
        self,
        issuer: Authority | Certificate,
        name: str,
        *,
        key: Path | str = "P-256",
        extensions: Sequence[str] = ENTITY_EXTENSIONS,
        subject: str | None = None,
        start: datetime = ENTITY_START,
        end: datetime = ENTITY_END,
        digest: str = "sha256",
        serial: int | None = None,
        options: Sequence[str] = (),
    ) -> Certificate:
        """An end-entity certificate, good for years around the judged time."""
        signer = issuer.certificate if isinstance(issuer, Authority) else issuer
        return self.shop.issue(
            signer,
            subject or f"{USERS}/CN={name}",
            key=key,
            extensions=extensions,
            start=start,
            end=end,
            digest=digest,
            serial=serial,
            options=options,
        )

    def host(
        self, issuer: Authority, name: str, *, key: str = "P-256", **fields: Any
    ) -> Certificate:
        """A host's certificate with its name as dNSName."""
        extensions = (*ENTITY_EXTENSIONS, f"subjectAltName=DNS:{name}")
        return self.user(
            issuer,
            name,
            key=key,
            subject=f"{HOSTS}/CN={name}",
            **{"extensions": extensions, **fields},
        )

    def revoke(self, authority: Authority, certificate: Certificate) -> Certificate:
        """Puts a certificate on its authority's list."""
        authority.revoked.append(certificate.serial)
        return certificate

    def proxy(
        self,
        signer: Certificate,
        *,
        name: str | None = None,
        subject: str | None = None,
        language: str = FULL,
        path_length: int | None = None,
        policy: str | None = None,
        critical: bool = True,
        info: str | None = None,
        usage: str | None = PROXY_USAGE,
        extra: Sequence[str] = (),
        key: Path | str = "P-256",
        start: datetime = PROXY_START,
        end: datetime = PROXY_END,
        digest: str = "sha256",
    ) -> Certificate:
        """An RFC 3820 proxy certificate, or one that is wrong in what the arguments say.

        `info` replaces the whole line of the proxyCertInfo extension; empty leaves it out.
        """
        name = name or str(next(_proxy_numbers))
        if info is None:
            length = "" if path_length is None else f",pathlen:{path_length}"
            text = "" if policy is None else f",policy:text:{policy}"
            flag = "critical," if critical else ""
            info = f"proxyCertInfo={flag}language:{language}{length}{text}"
        lines = [info] if info else []
        lines += [f"keyUsage={usage}"] if usage else []
        return self.shop.issue(
            signer,
            subject or f"{signer.subject}/CN={name}",
            key=key,
            extensions=(*lines, *extra),
            start=start,
            end=end,
            digest=digest,
        )

    def draft_proxy(
        self, signer: Certificate, *, language: str = FULL, **fields: Any
    ) -> Certificate:
        """A proxy of the GT3 draft: the same contents under another identifier."""
        value = der.sequence(der.sequence(der.object_identifier(language)))
        info = f"{DRAFT_PROXY_INFO}=critical,DER:{value.hex()}"
        return self.proxy(signer, info=info, **fields)

    def legacy_proxy(
        self, signer: Certificate, *, limited: bool = False, **fields: Any
    ) -> Certificate:
        """A GT2 proxy: nothing but its name says that it is one."""
        name = "limited proxy" if limited else "proxy"
        return self.proxy(signer, info="", name=name, **fields)

    def twin(self, certificate: Certificate) -> Certificate:
        """Somebody with the same name and another key, who can sign in that name."""
        return self.shop.self_signed(certificate.subject, self.shop.key(), ())

    # --- trust directories ---------------------------------------------------------------------

    def write_directories(self) -> None:
        """Writes every trust directory, with lists for the authorities that have none of their own."""
        for name, authorities in self.directories.items():
            folder = self.output / "trust" / name
            folder.mkdir(parents=True)
            taken: dict[str, int] = {}
            for authority in authorities:
                self._write(folder, authority, taken)
        default = self.output / "trust" / "default"
        # What also lies about in such a directory, and means nothing.
        classic = self.authorities["Classic"].certificate.hash
        (default / "classic.info").write_text(
            "alias = classic\nversion = 1.0\nstatus = accredited\n"
        )
        (default / f"{classic}.crl_url").write_text("http://crl.example.org/classic.pem\n")

    def _write(self, folder: Path, authority: Authority, taken: dict[str, int]) -> None:
        certificate = authority.certificate
        name = certificate.hash
        number = taken.get(name, 0)
        taken[name] = number + 1
        # Many authorities put words before their certificate.
        words = f"Certificate of {certificate.subject}\n" if number == 0 else ""
        (folder / f"{name}.{number}").write_text(words + pem(certificate.der))
        if authority.crl is None:
            authority.crl = self.shop.crl(certificate, authority.revoked)
        if authority.crl:
            (folder / f"{name}.r{number}").write_text(pem(authority.crl, "X509 CRL"))
        for ending, text in [
            ("signing_policy", authority.signing_policy),
            ("namespaces", authority.namespaces),
        ]:
            if text is not None:
                file = folder / f"{name}.{ending}"
                file.write_text((file.read_text() if file.exists() else "") + text)

    def list_only(self, directory: str, authority: Authority) -> None:
        """A directory holds the list and policies of an authority, not its certificate."""
        folder = self.output / "trust" / directory
        name = authority.certificate.hash
        crl = authority.crl or self.shop.crl(authority.certificate, authority.revoked)
        (folder / f"{name}.r0").write_text(pem(crl, "X509 CRL"))
        (folder / f"{name}.signing_policy").write_text(authority.signing_policy or "")


def colliding_names(label: str) -> tuple[str, str]:
    """Two names that OpenSSL's 32 bits of hash can't tell apart (found by trying, 2**16 or so)."""
    seen: dict[bytes, str] = {}
    for number in itertools.count():
        common = f"{label} {number}"
        # The hash is over the canonical form: UTF-8, lower case, RDNs without the outer SEQUENCE.
        parts = [
            ("0.9.2342.19200300.100.1.25", "org"),
            ("0.9.2342.19200300.100.1.25", "example"),
            ("2.5.4.3", common.lower()),
        ]
        canonical = b"".join(
            der.tlv(
                der.SET,
                der.sequence(der.object_identifier(kind), der.tlv(0x0C, text.encode())),
            )
            for kind, text in parts
        )
        digest = hashlib.sha1(canonical).digest()[:4]
        if digest in seen:
            return f"{BASE}/CN={seen[digest]}", f"{BASE}/CN={common}"
        seen[digest] = common
    raise AssertionError


__all__ = [
    "BASE",
    "CRL_START",
    "FULL",
    "FUTURE",
    "HOSTS",
    "INDEPENDENT",
    "LIMITED",
    "PAST",
    "USERS",
    "World",
    "ca_name",
    "colliding_names",
]
