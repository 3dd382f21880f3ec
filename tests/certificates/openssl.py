"""Keys, certificates and revocation lists, all made by the OpenSSL command line."""

from __future__ import annotations

import base64
import itertools
import re
import subprocess
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

# Everything is judged at this time.
JUDGED = datetime(2026, 10, 1, 12, tzinfo=UTC)
CA_START = datetime(2016, 1, 1, tzinfo=UTC)
CA_END = datetime(2046, 1, 1, tzinfo=UTC)
ENTITY_START = datetime(2026, 1, 1, tzinfo=UTC)
ENTITY_END = datetime(2027, 2, 1, tzinfo=UTC)
PROXY_START = datetime(2026, 10, 1, tzinfo=UTC)
PROXY_END = datetime(2026, 10, 8, tzinfo=UTC)
CRL_START = datetime(2026, 9, 20, tzinfo=UTC)
CRL_END = datetime(2026, 11, 1, tzinfo=UTC)
PAST = datetime(2026, 9, 30, 12, tzinfo=UTC)
FUTURE = datetime(2026, 10, 2, tzinfo=UTC)

CA_EXTENSIONS = (
    "basicConstraints=critical,CA:TRUE",
    "keyUsage=critical,keyCertSign,cRLSign",
    "subjectKeyIdentifier=hash",
)
ENTITY_EXTENSIONS = (
    "basicConstraints=critical,CA:FALSE",
    "keyUsage=critical,digitalSignature,keyEncipherment",
    "subjectKeyIdentifier=hash",
    "authorityKeyIdentifier=keyid",
)

_numbers = itertools.count(0x1001)


def openssl(*arguments: str | Path, data: bytes | None = None) -> bytes:
    """What one command of OpenSSL prints."""
    command = ["openssl", *map(str, arguments)]
    done = subprocess.run(command, input=data, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.decode()}")
    return done.stdout


def stamp(time: datetime) -> str:
    """A time as `openssl ca` reads it."""
    return time.strftime("%Y%m%d%H%M%SZ")


def digits(number: int) -> str:
    """A serial number as the files of `openssl ca` have it: an even number of digits."""
    text = f"{number:X}"
    return text.rjust(len(text) + len(text) % 2, "0")


def pem(data: bytes, label: str = "CERTIFICATE") -> str:
    """DER as PEM."""
    body = "\n".join(textwrap.wrap(base64.b64encode(data).decode(), 64))
    return f"-----BEGIN {label}-----\n{body}\n-----END {label}-----\n"


def unpem(text: str, label: str = "CERTIFICATE") -> list[bytes]:
    """All DER of one label in a PEM file."""
    found = re.findall(rf"-----BEGIN {label}-----(.*?)-----END {label}-----", text, re.DOTALL)
    return [base64.b64decode(body) for body in found]


@dataclass(frozen=True)
class Certificate:
    """A certificate, where its private key is, and what it is called."""

    subject: str
    der: bytes
    key: Path
    file: Path
    end: datetime
    serial: int
    issuer: Certificate | None = None

    def having(self, der: bytes) -> Certificate:
        """The same with other bytes."""
        return Certificate(
            self.subject, der, self.key, self.file, self.end, self.serial, self.issuer
        )

    @property
    def hash(self) -> str:
        """The name under which a trust directory holds it."""
        return openssl("x509", "-in", self.file, "-noout", "-subject_hash").decode().strip()


class Workshop:
    """A folder with everything that isn't committed: keys, requests, databases of `openssl ca`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = itertools.count()

    def path(self, ending: str) -> Path:
        """A file name that was not used yet."""
        return self.folder / f"{next(self._count):04}.{ending}"

    def key(self, kind: str = "P-256") -> Path:
        """A new key: `RSA-2048`, `P-256`, ..."""
        file = self.path("key")
        if kind.startswith("RSA-"):
            option = f"rsa_keygen_bits:{kind.removeprefix('RSA-')}"
            openssl("genpkey", "-algorithm", "RSA", "-pkeyopt", option, "-out", file)
        elif kind == "Ed25519":
            openssl("genpkey", "-algorithm", kind, "-out", file)
        else:
            option = f"ec_paramgen_curve:{kind}"
            openssl("genpkey", "-algorithm", "EC", "-pkeyopt", option, "-out", file)
        return file

    def request(self, key: Path) -> Path:
        """A request that proves the key; its name is replaced by the issuer."""
        file = self.path("csr")
        openssl("req", "-new", "-key", key, "-subj", "/CN=request", "-out", file)
        return file

    def self_signed(
        self,
        subject: str,
        key: Path,
        extensions: Sequence[str] = CA_EXTENSIONS,
        start: datetime = CA_START,
        end: datetime = CA_END,
        digest: str = "sha256",
    ) -> Certificate:
        """A root, or a twin of somebody's name with another key."""
        return self._issue(None, subject, key, extensions, start, end, digest, None, ())

    def issue(
        self,
        issuer: Certificate,
        subject: str,
        *,
        key: Path | str = "P-256",
        extensions: Sequence[str] = ENTITY_EXTENSIONS,
        start: datetime = ENTITY_START,
        end: datetime = ENTITY_END,
        digest: str = "sha256",
        serial: int | None = None,
        options: Sequence[str] = (),
    ) -> Certificate:
        """A certificate signed by `issuer`, whatever `issuer` is."""
        key = self.key(key) if isinstance(key, str) else key
        return self._issue(issuer, subject, key, extensions, start, end, digest, serial, options)

    def _issue(
        self,
        issuer: Certificate | None,
        subject: str,
        key: Path,
        extensions: Sequence[str],
        start: datetime,
        end: datetime,
        digest: str,
        serial: int | None,
        options: Sequence[str],
    ) -> Certificate:
        number = next(_numbers) if serial is None else serial
        database, extension_file, out = self.path("db"), self.path("ext"), self.path("pem")
        database.mkdir()
        (database / "index.txt").touch()
        (database / "serial").write_text(digits(number) + "\n")
        extension_file.write_text("\n".join(extensions) + "\n")
        signer: list[str | Path] = (
            ["-selfsign", "-keyfile", key]
            if issuer is None
            else ["-cert", issuer.file, "-keyfile", issuer.key]
        )
        words: list[str | Path] = ["ca", "-batch", "-notext", "-preserveDN", "-md", digest]
        words += ["-config", self._configuration(database), *signer, "-in", self.request(key)]
        words += ["-subj", subject, "-startdate", stamp(start), "-enddate", stamp(end)]
        words += ["-extfile", extension_file, "-out", out, *options]
        openssl(*words)
        [der] = unpem(out.read_text())
        return Certificate(subject, der, key, out, end, number, issuer)

    def _configuration(self, database: Path) -> Path:
        file = database / "openssl.cnf"
        file.write_text(
            textwrap.dedent(f"""\
            [ca]
            default_ca = here
            [here]
            database = {database}/index.txt
            serial = {database}/serial
            new_certs_dir = {database}
            unique_subject = no
            string_mask = utf8only
            policy = anything
            [anything]
            """)
        )
        return file

    def crl(
        self,
        authority: Certificate,
        revoked: Iterable[int] = (),
        *,
        start: datetime = CRL_START,
        end: datetime = CRL_END,
        digest: str = "sha256",
        extensions: Sequence[str] = ("authorityKeyIdentifier=keyid",),
    ) -> bytes:
        """A revocation list by `authority`, DER."""
        database, out = self.path("db"), self.path("crl")
        database.mkdir()
        lines = [
            f"R\t270201000000Z\t260901000000Z\t{digits(number)}\tunknown\t/CN=revoked\n"
            for number in revoked
        ]
        (database / "index.txt").write_text("".join(lines))
        configuration = self._configuration(database)
        configuration.write_text(
            configuration.read_text() + "[crl]\n" + "\n".join(extensions) + "\n"
        )
        words: list[str | Path] = ["ca", "-gencrl", "-config", configuration, "-md", digest]
        words += ["-crlexts", "crl", "-cert", authority.file, "-keyfile", authority.key]
        words += ["-crl_lastupdate", stamp(start), "-crl_nextupdate", stamp(end), "-out", out]
        openssl(*words)
        [der] = unpem(out.read_text(), "X509 CRL")
        return der


@dataclass
class Authority:
    """A certificate authority, with what a trust directory holds of it."""

    certificate: Certificate
    crl: bytes | None = None
    signing_policy: str | None = None
    namespaces: str | None = None
    revoked: list[int] = field(default_factory=list)
