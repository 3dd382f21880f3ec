"""Our cache beside libCacheSim: the same hits on the same sequences of keys."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.peers.peer import PYTHON, ROOT, Peer, run

VERSION = "0.3.5"
SEQUENCE = ROOT / "target" / "debug" / "examples" / "key_sequence"
# Small caches for the ranks of a program, the paper's 16 KB for synthetic traffic.
TRACES = ["cg.S.16", "mg.S.16", "lu.S.16", "ft.S.16", "mg.A.16"]
ENTRIES = [1, 2, 3, 4, 6, 10]
# Keys, OFF/ON, packets of an ON period, seed, packets; entries.
SYNTHETIC = [(8000, 8, 10, 1, 400_000, 1024), (2000, 2, 100, 2, 400_000, 1024)]
POLICIES = {"lru": "LRU", "clock": "Clock"}
# One process for all files: it takes a second to start. A cache's table has 2^24 places unless it is told otherwise.
THEIRS = """
import json, sys
import libcachesim
answers = []
for file, policy, entries in json.load(sys.stdin):
    reader = libcachesim.TraceReader(file, libcachesim.TraceType.ORACLE_GENERAL_TRACE)
    missed, _ = getattr(libcachesim, policy)(entries, hashpower=12).process_trace(reader)
    lookups = reader.get_num_of_req()
    answers.append({"lookups": lookups, "hits": round((1 - missed) * lookups)})
print(json.dumps(answers))
"""


def missing() -> list[str]:
    """The wheel; hit ratios are about one version."""
    code = "import importlib.metadata as all; print(all.version('libcachesim'))"
    version = run(PYTHON, "-c", code).stdout.strip() if PYTHON.exists() else ""
    return [] if version == VERSION else [f"libcachesim {VERSION} (got {version or 'none'})"]


def own(*arguments: object) -> str:
    """What our tool prints."""
    done = run(SEQUENCE, *map(str, arguments))
    if done.returncode:
        raise SystemExit(f"{SEQUENCE} ended with {done.returncode}: {done.stderr}")
    return done.stdout


def sequences(folder: Path) -> Iterator[tuple[str, Path, list[int]]]:
    """Each sequence with its name and the sizes of caches to try: those of every rank, and synthetic ones."""
    for name in TRACES:
        ranks = folder / name
        ranks.mkdir()
        own("trace", ROOT / "traces" / f"{name}.skct.zst", ranks)
        for rank in sorted(ranks.iterdir()):
            yield f"{name}, rank {rank.name}", rank, ENTRIES
    for *parameters, entries in SYNTHETIC:
        name = " ".join(map(str, parameters))
        file = folder / f"synthetic {name}"
        own("synthetic", *parameters, file)
        yield f"synthetic {name}", file, [entries]


def compare() -> list[str]:
    """Each lookup counts: hits and lookups must be the same numbers."""
    with tempfile.TemporaryDirectory() as folder:
        questions: list[tuple[str, str, str, int]] = []
        ours: list[Any] = []
        for name, file, sizes in sequences(Path(folder)):
            for policy in POLICIES:
                ours += json.loads(own("count", file, policy, *sizes))
                questions += [(name, str(file), policy, size) for size in sizes]
        asked = [(file, POLICIES[policy], size) for _, file, policy, size in questions]
        done = run(PYTHON, "-c", THEIRS, input=json.dumps(asked))
    if done.returncode:
        return [f"libCacheSim ended with {done.returncode}: {done.stderr.strip()[-500:]}"]
    wrong = []
    for (name, _, policy, size), we, they in zip(
        questions, ours, json.loads(done.stdout.splitlines()[-1]), strict=True
    ):
        if any(we[what] != they[what] for what in ("lookups", "hits")):
            hits = [f"{one['hits']} of {one['lookups']}" for one in (they, we)]
            wrong.append(f"{name}, {policy}, {size} entries: {hits[0]} by it, {hits[1]} by us")
    print(f"  {len(questions)} runs, {sum(one['lookups'] for one in ours)} lookups, LRU and CLOCK")
    return wrong


LIBCACHESIM = Peer("libCacheSim", [], missing, compare, [f"libcachesim=={VERSION}"])
