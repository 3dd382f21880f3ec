"""Proxy certificates (RFC 3820): made from a user's certificate, or signed for a key that stays where it is.

Building certificates and reading encrypted keys is left to `cryptography`, which this module alone needs; nothing else of the package
imports it. Whether a proxy is good is never decided here: that is `exoskel._core`'s business.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import pkcs12

from .errors import CredentialError
from .identity import CredentialFiles, read_private

__all__ = ["Issuer", "Wishes", "complete", "make", "read_issuer", "request", "sign"]

# RFC 3820 section 3.8: id-pe-proxyCertInfo, id-ppl-inheritAll; Globus's limited proxy.
_PROXY_INFORMATION = x509.ObjectIdentifier("1.3.6.1.5.5.7.1.14")
_INHERIT_ALL = bytes.fromhex("06082b06010505071501")
_LIMITED = bytes.fromhex("060b2b060104019b5001010109")

# Peers' clocks may be behind ours.
_CLOCK_SKEW = timedelta(minutes=5)
_RSA_BITS_MIN = 2048
_PATH_LENGTH_MAX = 127
# RFC 3820 section 3.4 wants a common name that is unique among the issuer's proxies.
_SERIAL_BITS = 62

_Key = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_PublicKey = rsa.RSAPublicKey | ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey


@dataclass(frozen=True)
class Issuer:
    """Somebody who can sign proxies.

    Parameters
    ----------
    chain : tuple of x509.Certificate
        The own certificate, and those that led there.
    key : private key
        The own certificate's.
    """

    chain: tuple[x509.Certificate, ...]
    key: _Key

    @property
    def certificate(self) -> x509.Certificate:
        """The own certificate."""
        return self.chain[0]


@dataclass(frozen=True)
class Wishes:
    """What a proxy shall be.

    Parameters
    ----------
    hours : float
        How long it is valid; never longer than its issuer.
    limited : bool
        Whether it may not start jobs. A proxy of a limited one always is.
    path_length : int, optional
        How many proxies may follow below; any number if not given.
    """

    hours: float = 12.0
    limited: bool = False
    path_length: int | None = None


def read_issuer(files: CredentialFiles, ask: Callable[[str], str]) -> Issuer:
    """Read a certificate and its key.

    Parameters
    ----------
    files : CredentialFiles
        Two PEM files, one PEM file (a proxy), or one PKCS#12 file.
    ask : callable
        Gives the pass phrase of a key; called with what it is for, and only where there is one.

    Returns
    -------
    Issuer
        Whose proxies can be made.

    Raises
    ------
    CredentialError
        If others can read the key, or it can't be unlocked, or doesn't belong to the certificate.
    """
    secret = read_private(files.key)
    if files.key.suffix.lower() in {".p12", ".pfx"}:
        key, chain = _from_pkcs12(files.key, secret, ask)
    else:
        text = secret if files.is_one_file else files.certificate.read_bytes()
        key, chain = _private_key(files.key, secret, ask), _certificates(files.certificate, text)
    if chain[0].public_key() != key.public_key():
        raise CredentialError(
            f"the key in {files.key} is not that of the first certificate in {files.certificate}: name the two files that belong together"
        )
    # A root is no part of what is presented, everybody has it already.
    others = (one for one in chain[1:] if one.subject != one.issuer)
    return Issuer((chain[0], *others), key)


def make(issuer: Issuer, wishes: Wishes, key_type: str = "p256") -> tuple[bytes, x509.Certificate]:
    """Make a proxy with a new key.

    Parameters
    ----------
    issuer : Issuer
        Whose.
    wishes : Wishes
        What it shall be.
    key_type : {"p256", "rsa2048"}
        The kind of its key.

    Returns
    -------
    content : bytes
        What belongs in the file: the proxy, its key, the issuer's chain, PEM. Secret.
    proxy : x509.Certificate
        The proxy.
    """
    key = new_key(key_type)
    proxy = _signed(issuer, key.public_key(), wishes)
    return _in_file(proxy, key, issuer.chain), proxy


def request(key_type: str = "p256") -> tuple[bytes, bytes]:
    """Make a key, and ask for a proxy for it.

    Parameters
    ----------
    key_type : {"p256", "rsa2048"}
        The kind of the key.

    Returns
    -------
    key : bytes
        The key, PEM. Secret; it stays here.
    request : bytes
        A certificate request (PKCS#10, PEM) for whoever delegates.
    """
    key = new_key(key_type)
    # The subject says nothing: that of a proxy follows from its issuer's.
    empty = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return _pem_of_key(key), empty.sign(key, _digest(key)).public_bytes(serialization.Encoding.PEM)


def sign(issuer: Issuer, wishes: Wishes, request: bytes) -> tuple[bytes, x509.Certificate]:
    """Sign a proxy for a key of somebody else.

    Parameters
    ----------
    issuer : Issuer
        Who delegates.
    wishes : Wishes
        What the proxy shall be.
    request : bytes
        As `request` made it.

    Returns
    -------
    chain : bytes
        The proxy and the issuer's chain, PEM. No secret.
    proxy : x509.Certificate
        The proxy.

    Raises
    ------
    CredentialError
        If the request is none, or whoever made it doesn't have the key, or the key is weak.
    """
    try:
        asked = x509.load_pem_x509_csr(request)
        is_proven = asked.is_signature_valid
        key = asked.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CredentialError(
            "got no certificate request, expected what `exoskel proxy request` writes"
        ) from error
    if not is_proven:
        raise CredentialError("the request is not signed with its own key: ask for another one")
    proxy = _signed(issuer, _strong(key), wishes)
    return _pem_of(proxy, *issuer.chain), proxy


def complete(chain: bytes, key: bytes, where: Path) -> tuple[bytes, x509.Certificate]:
    """Put a signed proxy together with the key that stayed here.

    Parameters
    ----------
    chain : bytes
        As `sign` made it.
    key : bytes
        As `request` made it.
    where : Path
        The file of the key, for messages.

    Returns
    -------
    content : bytes
        What belongs in the file. Secret.
    proxy : x509.Certificate
        The proxy.
    """
    proxy, *others = _certificates(Path("the chain"), chain)
    own = _private_key(where, key, lambda _: "")
    if proxy.public_key() != own.public_key():
        raise CredentialError(f"the chain is for another key than that in {where}")
    return _in_file(proxy, own, others), proxy


def new_key(key_type: str) -> _Key:
    """Make a key.

    Parameters
    ----------
    key_type : {"p256", "rsa2048"}
        Its kind.

    Returns
    -------
    private key
        The key.
    """
    if key_type == "rsa2048":
        return rsa.generate_private_key(65537, _RSA_BITS_MIN)
    return ec.generate_private_key(ec.SECP256R1())


def _signed(issuer: Issuer, key: _PublicKey, wishes: Wishes) -> x509.Certificate:
    own = issuer.certificate
    limited = _check_issuer(issuer) or wishes.limited
    now = datetime.now(UTC).replace(microsecond=0)
    start = max(now - _CLOCK_SKEW, own.not_valid_before_utc)
    end = min(
        now + timedelta(hours=wishes.hours), *(one.not_valid_after_utc for one in issuer.chain)
    )
    if end <= now:
        raise CredentialError(
            f"the certificate {own.subject.rfc4514_string()} expired on {end:%Y-%m-%d %H:%M:%S} UTC: its owner needs a new one"
        )
    number = 1 << _SERIAL_BITS | secrets.randbits(_SERIAL_BITS)
    name = x509.RelativeDistinguishedName(
        [x509.NameAttribute(x509.NameOID.COMMON_NAME, str(number))]
    )
    # RFC 3820 section 3.1: the issuer's name must be the subject of its certificate as it is encoded there.
    if own.subject.public_bytes() not in own.tbs_certificate_bytes:
        raise CredentialError(
            f"the subject of {own.subject.rfc4514_string()} is encoded in a way that can't be repeated: use voms-proxy-init"
        )
    builder = (
        x509.CertificateBuilder()
        .issuer_name(own.subject)
        .subject_name(x509.Name([*own.subject.rdns, name]))
        .serial_number(number)
        .public_key(key)
        .not_valid_before(start)
        .not_valid_after(end)
        .add_extension(_usage(own, key), critical=True)
        .add_extension(
            x509.UnrecognizedExtension(
                _PROXY_INFORMATION, _information(limited, wishes.path_length)
            ),
            critical=True,
        )
    )
    return builder.sign(issuer.key, _digest(issuer.key))


def _check_issuer(issuer: Issuer) -> bool:
    """See that somebody may sign proxies, and say whether they are a limited proxy themselves."""
    own = issuer.certificate
    subject = own.subject.rfc4514_string()
    authority = _extension(own, x509.BasicConstraints)
    if authority is not None and authority.ca:
        raise CredentialError(
            f"{subject} is an authority, expected the certificate of a user or a proxy"
        )
    usage = _extension(own, x509.KeyUsage)
    if usage is not None and not usage.digital_signature:
        raise CredentialError(
            f"the key usage of {subject} lacks digitalSignature, so it can't sign proxies (RFC 3820 section 3.6)"
        )
    limited = False
    for below, one in enumerate(issuer.chain):
        information = next(
            (
                part.value.public_bytes()
                for part in one.extensions
                if part.oid == _PROXY_INFORMATION
            ),
            None,
        )
        if information is None:
            break
        # SEQUENCE { INTEGER OPTIONAL, ... }: shorter than 128 bytes, unless it holds a policy, which can't be judged here.
        if information[2:4] == b"\x02\x01" and information[4] <= below:
            raise CredentialError(
                f"{one.subject.rfc4514_string()} allows {information[4]} proxies below it, and they are there already"
            )
        limited |= _LIMITED in information
    last = own.subject.rdns[-1].rfc4514_string().lower() if own.subject.rdns else ""
    if last in {"cn=proxy", "cn=limited proxy"}:
        raise CredentialError(
            f"{subject} is a proxy of Globus Toolkit 2, which can't be mixed with those of RFC 3820: make one anew"
        )
    return limited


def _information(limited: bool, path_length: int | None) -> bytes:
    """Return the value of ``proxyCertInfo`` (RFC 3820 section 3.8) in DER; everything in it is shorter than 128 bytes."""
    if path_length is not None and not 0 <= path_length <= _PATH_LENGTH_MAX:
        raise CredentialError(
            f"got a path length of {path_length}, expected 0 to {_PATH_LENGTH_MAX}"
        )
    length = b"" if path_length is None else bytes([2, 1, path_length])
    language = _LIMITED if limited else _INHERIT_ALL
    policy = bytes([0x30, len(language)]) + language
    return bytes([0x30, len(length) + len(policy)]) + length + policy


def _usage(own: x509.Certificate, key: _PublicKey) -> x509.KeyUsage:
    """Return what a proxy's key is for: signatures; and the key exchange of old TLS, for which RSA keys are used, where its issuer has it."""
    above = _extension(own, x509.KeyUsage)
    exchange = isinstance(key, rsa.RSAPublicKey) and (above is None or above.key_encipherment)
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=exchange,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )


def _extension(certificate: x509.Certificate, kind: type[Any]) -> Any:
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _strong(key: object) -> _PublicKey:
    if isinstance(key, rsa.RSAPublicKey) and key.key_size >= _RSA_BITS_MIN:
        return key
    if isinstance(key, ec.EllipticCurvePublicKey) and isinstance(
        key.curve, ec.SECP256R1 | ec.SECP384R1 | ec.SECP521R1
    ):
        return key
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key
    raise CredentialError("got a weak or unknown key, expected RSA of 2048 bits, P-256 or better")


def _digest(key: _Key) -> hashes.SHA256 | hashes.SHA384 | None:
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return None
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.curve.key_size > 256:
        return hashes.SHA384()
    return hashes.SHA256()


def _private_key(path: Path, text: bytes, ask: Callable[[str], str]) -> _Key:
    try:
        try:
            key: Any = serialization.load_pem_private_key(text, None)
        except TypeError:
            # It is locked, and says so in this way.
            phrase = ask(f"pass phrase of {path}: ").encode()
            key = serialization.load_pem_private_key(text, phrase)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        # The library's own text could repeat what it read.
        raise CredentialError(
            f"{path} holds no private key that can be read; if it is locked, the pass phrase was wrong"
        ) from error
    return _usable(path, key)


def _from_pkcs12(
    path: Path, content: bytes, ask: Callable[[str], str]
) -> tuple[_Key, list[x509.Certificate]]:
    try:
        store = pkcs12.load_pkcs12(content, ask(f"pass phrase of {path}: ").encode())
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        raise CredentialError(f"{path} is no PKCS#12 file, or the pass phrase was wrong") from error
    if store.cert is None or store.key is None:
        raise CredentialError(f"{path} holds no certificate with its key")
    chain = [store.cert.certificate, *(one.certificate for one in store.additional_certs)]
    return _usable(path, store.key), chain


def _usable(path: Path, key: object) -> _Key:
    if isinstance(key, _Key):
        return key
    kind = "Ed448" if isinstance(key, ed448.Ed448PrivateKey) else type(key).__name__
    raise CredentialError(
        f"{path} holds a key of another kind ({kind}), expected RSA, ECDSA or Ed25519"
    )


def _certificates(path: Path, text: bytes) -> list[x509.Certificate]:
    try:
        return x509.load_pem_x509_certificates(text)
    except ValueError as error:
        # The library's own text is about PEM, and links to its manual.
        raise CredentialError(
            f"{path} holds no certificate that can be read, expected PEM with blocks CERTIFICATE"
        ) from error


def _in_file(proxy: x509.Certificate, key: _Key, chain: Sequence[x509.Certificate]) -> bytes:
    """Return the three in the order in which all grid tools read them: the key stands behind the proxy's certificate."""
    return _pem_of(proxy) + _pem_of_key(key) + _pem_of(*chain)


def _pem_of(*certificates: x509.Certificate) -> bytes:
    return b"".join(one.public_bytes(serialization.Encoding.PEM) for one in certificates)


def _pem_of_key(key: _Key) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
