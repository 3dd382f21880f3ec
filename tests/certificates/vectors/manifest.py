"""The list of cases: chain, trust, settings, the rule, and what is expected."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.certificates.openssl import CRL_END, JUDGED, Certificate, pem
from tests.certificates.vectors.rules import RULES


@dataclass
class Manifest:
    """Collects cases and writes their chains."""

    output: Path
    cases: list[dict[str, Any]] = field(default_factory=list)
    # Contents of a chain -> the file that has it: cases with the same chain share one.
    files: dict[str, str] = field(default_factory=dict)

    def accept(
        self,
        name: str,
        rule: str,
        chain: Sequence[Certificate | bytes],
        *,
        identity: str | None = None,
        type: str | None = None,
        limited: bool = False,
        independent: bool = False,
        depth: int = 0,
        vo: str | None = None,
        fqans: Sequence[str] = (),
        attribute_faults: Sequence[str] = (),
        ends: Sequence[datetime] = (CRL_END,),
        trust: str = "default",
        vomsdir: str = "default",
        note: str = "",
        settings: dict[str, Any] | None = None,
        generic: Sequence[tuple[str, str]] = (),
    ) -> None:
        """A chain that is somebody's; `attribute_faults` are the rules that its attributes break.

        `ends` are the ends of lists and attribute certificates; those of the certificates are known.
        """
        leaf = chain[0]
        if not isinstance(leaf, Certificate):
            raise TypeError("the leaf of a good chain is a certificate")
        path: list[Certificate] = []
        step: Certificate | None = leaf
        while step is not None:
            path.append(step)
            step = step.issuer
        expect: dict[str, Any] = {
            "accepted": True,
            "subject": leaf.subject,
            "identity": identity or path[depth].subject,
            "type": type or ("rfc3820" if depth else "end-entity"),
            "limited": limited,
            "independent": independent,
            "depth": depth,
            "vo": vo,
            "fqans": list(fqans),
            "attribute_faults": len(attribute_faults),
            "attribute_reasons": list(attribute_faults),
            "expires": int(min([*ends, *(certificate.end for certificate in path)]).timestamp()),
        }
        if generic:
            expect["generic"] = [list(pair) for pair in generic]
        self._add(name, rule, chain, trust, vomsdir, settings, note, expect)

    def refuse(
        self,
        name: str,
        rule: str,
        chain: Sequence[Certificate | bytes],
        *,
        reason: str | None = None,
        trust: str = "default",
        vomsdir: str = "default",
        note: str = "",
        settings: dict[str, Any] | None = None,
    ) -> None:
        """A chain that is nobody's, for the reason of the rule."""
        expect = {"accepted": False, "reason": reason or rule}
        self._add(name, rule, chain, trust, vomsdir, settings, note, expect)

    def _add(
        self,
        name: str,
        rule: str,
        chain: Sequence[Certificate | bytes],
        trust: str,
        vomsdir: str,
        settings: dict[str, Any] | None,
        note: str,
        expect: dict[str, Any],
    ) -> None:
        if any(case["name"] == name for case in self.cases):
            raise ValueError(f"two cases are called {name}")
        source, text = RULES[rule]
        text_of_chain = "".join(
            pem(one.der if isinstance(one, Certificate) else one) for one in chain
        )
        file = self.files.setdefault(text_of_chain, f"chains/{name}.pem")
        (self.output / "chains").mkdir(exist_ok=True)
        (self.output / file).write_text(text_of_chain)
        case: dict[str, Any] = {
            "name": name,
            "about": rule,
            "rule": f"{source}: {text}",
            "chain": file,
            "trust": f"trust/{trust}",
            "vomsdir": f"vomsdir/{vomsdir}",
            "settings": settings or {},
            "expect": expect,
        }
        if note:
            case["note"] = note
        self.cases.append(case)

    def write(self, provenance: dict[str, Any]) -> None:
        """The manifest, one case after the other in the order in which they were made."""
        whole = {
            "provenance": provenance,
            "time": int(JUDGED.timestamp()),
            "rules": {
                name: {"source": source, "text": text} for name, (source, text) in RULES.items()
            },
            "cases": self.cases,
        }
        (self.output / "manifest.json").write_text(
            json.dumps(whole, indent=1, ensure_ascii=False) + "\n"
        )
