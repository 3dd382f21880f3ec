"""What security costs that nobody uses: calls to the cipher and allocations for each message of 64 bytes, counted by callgrind."""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benches.links import install

# The difference of two runs, so that what a start costs is not counted.
COUNTS = (200, 1200)
KINDS = [(method, one) for method in ("memory", "tcp") for one in ("plain", "encrypted")]
# What seals and opens, whichever way the cipher library takes inside.
CIPHER = re.compile(r"EVP_AEAD_CTX_(seal_scatter|open_gather)$")
ALLOCATION = re.compile(r"(malloc|calloc|realloc|aligned_alloc|posix_memalign)$")
RUN_SECONDS = 120


def count(say: Callable[[str], None]) -> dict[str, Any]:
    """Calls for each round trip of two messages, or why they can't be counted."""
    found: dict[str, Any] = {}
    for method, protection in KINDS:
        name = f"{method}_{protection}"
        say(f"unused: {name} under callgrind")
        try:
            few, many = (calls(method, protection, number) for number in COUNTS)
        except (install.Missing, subprocess.TimeoutExpired) as error:
            found[name] = {"failed": str(error)}
            continue
        messages = 2 * (COUNTS[1] - COUNTS[0])
        found[name] = {kind: (many[kind] - few[kind]) / messages for kind in ("cipher", "memory")}
    return found


def calls(method: str, protection: str, number: int) -> Counter[str]:
    """How often a run calls either kind of function."""
    valgrind = install.program("valgrind", "valgrind")
    with tempfile.TemporaryDirectory() as name:
        out = Path(name) / "out"
        # Two threads that poll: each must get its turn.
        words = ["--tool=callgrind", "--fair-sched=yes", "--quiet", f"--callgrind-out-file={out}"]
        command = [valgrind, *words, str(install.own()), "messages", method, protection]
        done = subprocess.run(
            [*command, str(number)],
            capture_output=True,
            text=True,
            check=False,
            timeout=RUN_SECONDS,
        )
        if done.returncode or not out.exists():
            said = " ".join(done.stderr.split())[:300]
            raise install.Missing(f"valgrind failed: {said}")
        return read(out.read_text())


def read(text: str) -> Counter[str]:
    """Sum up the calls of a callgrind file: a line ``cfn=`` names who is called, the next ``calls=`` how often."""
    names: dict[str, str] = {}
    found: Counter[str] = Counter()
    called = ""
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in {"fn", "cfn"}:
            number, _, name = value.partition(" ")
            names.setdefault(number, name)
            if key == "cfn":
                called = names[number]
        elif key == "calls":
            # A function that calls itself, or another one of its kind, has a number behind its name.
            plain = called.partition("'")[0]
            for kind, pattern in (("cipher", CIPHER), ("memory", ALLOCATION)):
                if pattern.search(plain):
                    found[kind] += int(value.split()[0])
    return found
