"""The text files beside certificates: what an authority may sign, and whose attributes count."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def signing_policy(subject: str, *patterns: str) -> str:
    """A Globus signing policy: this authority signs only names of these patterns."""
    names = " ".join(f'"{pattern}"' for pattern in patterns)
    return (
        f"# what this authority may sign\naccess_id_CA  X509  '{subject}'\n"
        f"pos_rights    globus CA:sign\ncond_subjects globus '{names}'\n"
    )


def namespaces(subject: str, *patterns: str) -> str:
    """An EUGridPMA namespaces file: the same in its own syntax, regular expressions."""
    rules = "".join(f'TO Issuer "{subject}" \\\n  PERMIT Subject "{name}"\n' for name in patterns)
    return f"##NAMESPACES-VERSION: 1.0\n{rules}"


def write_lsc(file: Path, *chains: Sequence[str]) -> None:
    """An .lsc file: names from the signer up, one a line."""
    file.parent.mkdir(parents=True, exist_ok=True)
    texts = ["".join(f"{name}\n" for name in chain) for chain in chains]
    file.write_text("------ NEXT CHAIN ------\n".join(texts))
