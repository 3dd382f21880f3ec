"""Whether the memory of a process has a private key in it, in any of the forms in which software keeps one."""

from __future__ import annotations

from pathlib import Path

__all__ = ["forms", "found"]

_MASK = bytes(one ^ 0x5A for one in range(256))
_BLOCK_BYTES = 1 << 20
# Longer than any form of a key.
_OVERLAP_BYTES = 1 << 13


def forms(credential: Path) -> dict[str, bytes]:
    """Return what a key in PEM looks like, masked: whoever looks for it in memory would find what it looks for.

    Parameters
    ----------
    credential : Path
        A credential with a key of an elliptic curve.
    """
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    text = credential.read_bytes()
    key = serialization.load_pem_private_key(text, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    scalar = key.private_numbers().private_value.to_bytes(key.key_size // 8, "big")
    der = key.private_bytes(
        serialization.Encoding.DER,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    start = text.index(b"-----BEGIN PRIVATE KEY-----\n") + len(b"-----BEGIN PRIVATE KEY-----\n")
    first, second = text[start:].split(b"\n")[:2]
    found = {
        "scalar": scalar,
        # As words of this processor, which begin with the lowest.
        "words": scalar[::-1],
        "der": der,
        "pem, first line": first,
        "pem, second line": second,
    }
    return {name: form.translate(_MASK) for name, form in found.items()}


def found(process: int | str, masked: dict[str, bytes]) -> list[str]:
    """Look through all memory of a process that it may read itself; return the names of the forms that are there.

    Parameters
    ----------
    process : int or str
        Its number, or ``"self"``.
    masked : dict of bytes
        As `forms` makes them.
    """
    there: set[str] = set()
    blocks = 0
    with (
        open(f"/proc/{process}/maps", encoding="utf-8", errors="replace") as maps,
        open(f"/proc/{process}/mem", "rb", buffering=0) as memory,
    ):
        for line in maps.read().splitlines():
            place, rights, *_ = line.split()
            first, last = (int(one, 16) for one in place.split("-"))
            if rights[0] != "r" or last > 1 << 47:
                continue
            while first < last:
                try:
                    memory.seek(first)
                    block = memory.read(min(_BLOCK_BYTES, last - first)).translate(_MASK)
                except OSError:
                    # What the kernel keeps for itself, and reserved places.
                    break
                there.update(name for name, form in masked.items() if form in block)
                blocks += 1
                if first + _BLOCK_BYTES >= last:
                    break
                first += _BLOCK_BYTES - _OVERLAP_BYTES
    assert blocks > 10, "nothing could be read"
    return sorted(there)
