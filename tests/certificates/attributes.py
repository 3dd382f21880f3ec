"""Attribute certificates: made by `voms-proxy-fake`, taken apart and signed again where it can't make them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.certificates import der
from tests.certificates.openssl import Certificate, Workshop, unpem

AC_SEQUENCE = "1.3.6.1.4.1.8005.100.100.5"
ATTRIBUTE_LIST = "1.3.6.1.4.1.8005.100.100.4"
SIGNERS = "1.3.6.1.4.1.8005.100.100.10"
TARGETS = "2.5.29.55"
# voms-proxy-fake asks the clock; libfaketime answers.
FAKE_TIME = datetime(2026, 10, 1, 0, 5, tzinfo=UTC)
AC_END = datetime(2026, 10, 3, 0, 5, tzinfo=UTC)
HOURS = 48

# Where the fields of an AttributeCertificateInfo are.
HOLDER, ISSUER, ALGORITHM, SERIAL, VALIDITY, ATTRIBUTES, EXTENSIONS = range(1, 8)


@dataclass(frozen=True)
class Issuer:
    """Who signs attributes: a host's certificate, its virtual organisation and address."""

    host: Certificate
    vo: str
    address: str


def voms_proxy_fake(
    shop: Workshop,
    user: Certificate,
    issuer: Issuer,
    names: Sequence[str],
    *arguments: str,
    time: datetime = FAKE_TIME,
    hours: int = HOURS,
    kind: str = "-rfc",
    holder_by_issuer: bool = True,
) -> Certificate:
    """A proxy with attributes, exactly as `voms-proxy-fake` makes it."""
    out = shop.path("pem")
    # Without `-newformat` the holder is named by his own name and serial number, not by his issuer's.
    words = [*kind.split(), *(["-newformat"] if holder_by_issuer else []), *arguments]
    write_proxy(out, shop.folder, user, issuer, names, *words, hours=hours, time=time)
    text = out.read_text()
    leaf = unpem(text)[0]
    start = text.index("-----BEGIN", text.index("-----END CERTIFICATE-----"))
    label = text[start : text.index("\n", start)].strip("-").removeprefix("BEGIN ")
    key, file = shop.path("key"), shop.path("pem")
    end_mark = f"-----END {label}-----"
    key.write_text(text[start : text.index(end_mark) + len(end_mark)] + "\n")
    file.write_text(text[: text.index("-----END CERTIFICATE-----")] + "-----END CERTIFICATE-----\n")
    body, _, _ = der.signed_parts(leaf)
    fields = body.children()
    end = datetime.strptime(fields[4].children()[1].content.decode(), "%y%m%d%H%M%SZ").replace(
        tzinfo=UTC
    )
    serial = int.from_bytes(fields[1].content, "big")
    last = fields[5].children()[-1].children()[0].children()[1].content.decode()
    return Certificate(f"{user.subject}/CN={last}", leaf, key, file, end, serial, user)


def write_proxy(
    out: Path,
    anchors: Path,
    user: Certificate,
    issuer: Issuer,
    names: Sequence[str],
    *arguments: str,
    hours: int,
    time: datetime | None = None,
) -> None:
    """Have `voms-proxy-fake` write a proxy with these attributes: certificate, key, chain; at `time`, or now."""
    command: list[str | Path] = []
    if time is not None:
        command += ["faketime", "-f", time.strftime("%Y-%m-%d %H:%M:%S")]
    command += ["voms-proxy-fake", "-cert", user.file, "-key", user.key, "-certdir", anchors]
    command += ["-hours", str(hours), "-vomslife", str(hours), "-out", out]
    command += ["-voms", issuer.vo, "-uri", issuer.address]
    command += ["-hostcert", issuer.host.file, "-hostkey", issuer.host.key]
    command += [word for name in names for word in ("-fqan", name)]
    command += arguments
    environment = dict(os.environ, TZ="UTC", RANDFILE=str(user.file.parent / "random"))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not out.exists():
        raise RuntimeError(f"{command}: {done.returncode} {done.stdout} {done.stderr}")


def attributes_of(proxy: Certificate) -> list[bytes]:
    """The attribute certificates in a proxy."""
    body, _, _ = der.signed_parts(proxy.der)
    wanted = der.object_identifier(AC_SEQUENCE)
    for extension in body.children()[-1].children()[0].children():
        identifier, *_, value = extension.children()
        if identifier.encode() == wanted:
            outer, _ = der.read(value.content)
            return [one.encode() for one in outer.children()[0].children()]
    raise ValueError("a proxy without attribute certificates")


def line(attributes: Sequence[bytes]) -> str:
    """The extension with these attribute certificates, as OpenSSL's configuration has it."""
    value = der.sequence(der.sequence(*attributes))
    return f"{AC_SEQUENCE}=DER:{value.hex()}"


def changed(
    attribute: bytes, host: Certificate, edit: Callable[[list[bytes]], None], digest: str = "sha256"
) -> bytes:
    """The attribute certificate with edited fields, signed again by the host."""
    body, _, _ = der.signed_parts(attribute)
    fields = [part.encode() for part in body.children()]
    edit(fields)
    content = der.sequence(*fields)
    algorithm = fields[ALGORITHM]
    return der.signed(content, algorithm, der.sign(content, host.key, digest))


def with_extension(extension: bytes) -> Callable[[list[bytes]], None]:
    """An edit that adds an extension."""

    def edit(fields: list[bytes]) -> None:
        old, _ = der.read(fields[EXTENSIONS])
        fields[EXTENSIONS] = der.sequence(old.content, extension)

    return edit


def without_extension(dotted: str) -> Callable[[list[bytes]], None]:
    """An edit that takes an extension away."""

    def edit(fields: list[bytes]) -> None:
        old, _ = der.read(fields[EXTENSIONS])
        kept = [
            one.encode()
            for one in old.children()
            if one.children()[0].encode() != der.object_identifier(dotted)
        ]
        fields[EXTENSIONS] = der.sequence(*kept)

    return edit


def targets(*hosts: str, nested: bool = True) -> bytes:
    """The hosts that may use the attributes (URI): as VOMS writes them, or as RFC 5755 4.3.2 does.

    VOMS has each Target, a CHOICE, in a SEQUENCE of its own.
    """
    names = [der.tlv(0xA0, der.tlv(0x86, host.encode())) for host in hosts]
    names = [der.sequence(name) for name in names] if nested else names
    return der.extension(TARGETS, der.sequence(der.sequence(*names)), critical=True)


def signers(*certificates: Certificate) -> bytes:
    """The extension that carries the signer's chain."""
    chain = der.sequence(*(certificate.der for certificate in certificates))
    return der.extension(SIGNERS, der.sequence(chain))
