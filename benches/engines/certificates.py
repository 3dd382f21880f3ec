"""A throw-away CA and one leaf for Dask's TLS: P-256, both ends show the same leaf, as its documentation does."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def make(directory: Path) -> tuple[str, str, str]:
    """Write the CA's certificate, the leaf's certificate and its key; give their paths."""
    now = datetime.now(UTC)
    authority_key, leaf_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))

    def certificate(
        name: str, key: ec.EllipticCurvePrivateKey, *, authority: bool
    ) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bench authority")])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .sign(authority_key, hashes.SHA256())
        )

    pem = serialization.Encoding.PEM
    contents = {
        "authority.pem": certificate("bench authority", authority_key, authority=True).public_bytes(
            pem
        ),
        "leaf.pem": certificate("bench", leaf_key, authority=False).public_bytes(pem),
        "leaf.key": leaf_key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for name, content in contents.items():
        path = directory / name
        path.touch(mode=0o600)
        path.write_bytes(content)
    authority, leaf, key = (str(directory / name) for name in contents)
    return authority, leaf, key
