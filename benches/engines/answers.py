"""`make bench-answers`: what it costs that a stranger's answer is data, in one run on this machine.

Two parts. *wires*: the same jobs on two workers, each a process of its own behind an encrypted TCP connection, one in a domain with
`results = "pickle"`, one in none; they take turns, and every ratio is the median over the rounds of the ratios in one round. *codecs*: the
decoder beside `msgpack`, `cbor2` and `pickle` on the same plain data, in turns as well.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
from benches.machine import ROOT

import exoskel as ex
from exoskel import _core
from exoskel.cli import main as exoskel

RESULTS = ROOT / "benches" / "results"
CODECS = ROOT / "target" / "codecs"

SLOTS = 2
ROUNDS = 9
POLICY = """\
[domain.trusted]
addresses = ["127.0.0.1"]
names = ["trusted.example.org"]
results = "pickle"
"""


# --- what the workers run: module-level functions, since this file is the program -----------------------


def same(item: Any) -> Any:
    """Return the item."""
    return item


def dictionary(item: int) -> dict[str, float]:
    """Return a dict of 20 numbers."""
    return {f"field_{number}": item * 0.5 + number for number in range(20)}


def array(size: int) -> Any:
    """Return an array of so many bytes."""
    import numpy

    return numpy.ones(size // 8)


_FRAMES: dict[int, Any] = {}


def frame(rows: int) -> Any:
    """Return a frame of numbers and text, made once in each slot."""
    if rows not in _FRAMES:
        import numpy
        import pandas

        numbers = numpy.arange(rows)
        columns: dict[str, Any] = {f"float_{place}": numbers * (place + 0.5) for place in range(4)}
        columns |= {f"integer_{place}": numbers + place for place in range(4)}
        columns["truth"] = numbers % 2 == 0
        columns["text"] = [f"name {number % 1000}" for number in range(rows)]
        _FRAMES[rows] = pandas.DataFrame(columns)
    return _FRAMES[rows]


JOBS: dict[str, tuple[Callable[[Any], Any], list[Any], float]] = {
    "no-op items": (same, list(range(300_000)), 0.9),
    "dicts of 20 numbers": (dictionary, list(range(40_000)), 0.8),
    "arrays of 64 KiB": (array, [64 * 1024] * 6_000, 0.95),
    "arrays of 1 MiB": (array, [1024 * 1024] * 800, 0.95),
    "DataFrames of 10^5 rows": (frame, [100_000] * 80, 0.5),
}


def wires(rounds: int) -> list[dict[str, Any]]:
    """Run each job on both workers in turn."""
    rows = []
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        hosts = {name: stack.enter_context(worker(place, name)) for name in ("trusted", "stranger")}
        (place / "policy.toml").write_text(POLICY)
        for text, (function, items, goal) in JOBS.items():
            with contextlib.ExitStack() as job:
                managers = {
                    name: job.enter_context(
                        ex.Manager(
                            ex.Farm(function),
                            ex.ParDegree(SLOTS),
                            workers=[line],
                            credential=place / "head.example.org.pem",
                            policy=place / "policy.toml",
                        )
                    )
                    for name, line in hosts.items()
                }
                for manager in managers.values():
                    timed(manager, items[: max(len(items) // 4, 2)])
                ratios, times = [], dict[str, list[float]](trusted=[], stranger=[])
                for turn in range(rounds):
                    order = list(managers) if turn % 2 else list(managers)[::-1]
                    took = {name: timed(managers[name], items) for name in order}
                    ratios.append(took["trusted"] / took["stranger"])
                    for name, seconds in took.items():
                        times[name].append(len(items) / seconds)
            row = {
                "job": text,
                "ratio": statistics.median(ratios),
                "lowest": min(ratios),
                "highest": max(ratios),
                "goal": goal,
                "items_per_second": {
                    name: statistics.median(rates) for name, rates in times.items()
                },
            }
            rows.append(row)
            print(wire_line(row), flush=True)
    return rows


def wire_line(row: dict[str, Any]) -> str:
    """One line of the table."""
    rates = row["items_per_second"]
    verdict = "met" if row["ratio"] >= row["goal"] else "MISSED"
    return (
        f"{row['job']:<26} {rates['stranger']:>10.1f}/s {rates['trusted']:>10.1f}/s  {row['ratio']:6.3f} "
        f"({row['lowest']:.3f}-{row['highest']:.3f})  >= {row['goal']:<5} {verdict}"
    )


def timed(manager: ex.Manager, items: list[Any]) -> float:
    """Seconds for one job; results are dropped as they come."""
    start = time.perf_counter()
    for _result in manager.map(items):
        pass
    return time.perf_counter() - start


@contextlib.contextmanager
def worker(place: Path, name: str) -> Iterator[str]:
    """Start a worker, in an authority made for this run; give its line of a hosts file."""
    if not (place / "pki").exists():
        exoskel(["pki", "init", str(place / "pki"), "--json"])
        issue(place, "manager", "head.example.org")
    host = f"{name}.example.org"
    credential = issue(place, "worker", host)
    command = [sys.executable, "-P", "-m", "exoskel", "worker", "--listen", "tcp://127.0.0.1:0"]
    command += ["--slots", str(SLOTS), "--credential", str(credential), "--json"]
    with (
        open(place / f"{name}.log", "w") as log,
        subprocess.Popen(
            command, cwd=place, stdout=subprocess.PIPE, stderr=log, text=True
        ) as process,
    ):
        assert process.stdout is not None
        try:
            yield f"{json.loads(process.stdout.readline())['listen']} {host}"
        finally:
            process.terminate()


def issue(place: Path, role: str, name: str) -> Path:
    """Issue a credential."""
    path = place / f"{name}.pem"
    where = ["--directory", str(place / "pki"), "--output", str(path)]
    exoskel(["pki", "issue", *where, "--role", role, "--name", name, "--json"])
    return path


# --- codecs ---------------------------------------------------------------------------------------------


def samples() -> dict[str, Any]:
    """Plain data that all of them can say."""
    random = numpy.random.default_rng(1)
    numbers = [float(number) for number in random.normal(size=2_000)]
    words = [f"word {number}" for number in random.integers(0, 500, size=2_000)]
    return {
        "dict of 20 numbers": dictionary(3),
        "1,000 dicts of 20 numbers": [dictionary(number) for number in range(1_000)],
        "records": [
            {
                "name": word,
                "place": {"x": number, "y": -number, "on": number > 0},
                "tags": [word, word[:3], None],
                "count": index,
            }
            for index, (word, number) in enumerate(zip(words, numbers, strict=True))
        ],
        "2,000 floats": numbers,
        "20,000 integers": [
            int(number) for number in random.integers(-(2**40), 2**40, size=20_000)
        ],
        "2,000 texts": words,
        "64 KiB of bytes": b"x" * 65_535,
    }


def codecs(rounds: int) -> list[dict[str, Any]]:
    """Decode the same data with each codec in turn."""
    sys.path.insert(0, str(CODECS))
    import cbor2
    import msgpack

    rows = []
    for text, value in samples().items():
        body, parts = _core.data_encode(value)
        assert not parts
        ways: dict[str, Callable[[], Any]] = {
            "ours": functools.partial(_core.data_decode, body),
            "msgpack": functools.partial(msgpack.unpackb, msgpack.packb(value)),
            "cbor2": functools.partial(cbor2.loads, cbor2.dumps(value)),
            "pickle": functools.partial(pickle.loads, pickle.dumps(value, 5)),
        }
        assert all(way() == value for way in ways.values())
        repeat = max(1, int(0.02 / one(ways["ours"], 1)))
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(rounds):
            names = list(ways)
            for name in names[turn % 4 :] + names[: turn % 4]:
                times[name].append(one(ways[name], repeat))
        ratios = {
            name: statistics.median(
                theirs / ours for theirs, ours in zip(times[name], times["ours"], strict=True)
            )
            for name in ways
        }
        rows.append({"data": text, "times_of_ours": ratios})
        print(codec_line(rows[-1]), flush=True)
    return rows


def one(way: Callable[[], Any], repeat: int) -> float:
    """Seconds of one decoding, over several."""
    start = time.perf_counter()
    for _ in range(repeat):
        way()
    return (time.perf_counter() - start) / repeat


def codec_line(row: dict[str, Any]) -> str:
    """One line of the table."""
    ratios = row["times_of_ours"]
    verdict = "met" if min(ratios["msgpack"], ratios["cbor2"]) > 1 else "MISSED"
    shown = "  ".join(f"{name} {ratios[name]:5.2f}" for name in ("msgpack", "cbor2", "pickle"))
    return f"{row['data']:<28} {shown}   {verdict}"


def main() -> None:
    """Run both parts, print the tables, write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["wires", "codecs"], help="run one part only")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each row")
    arguments = parser.parse_args()
    found: dict[str, Any] = {"python": sys.version.split()[0], "processors": os.cpu_count()}
    if arguments.part in (None, "wires"):
        print("results of a stranger / of a trusted worker: items a second, ratio (range), goal")
        found["wires"] = wires(arguments.rounds)
    if arguments.part in (None, "codecs"):
        print("time to decode / ours (above 1: ours is faster); goal: above msgpack and cbor2")
        found["codecs"] = codecs(3 * arguments.rounds)
    RESULTS.mkdir(exist_ok=True)
    name = "answers.json" if arguments.part is None else f"answers-{arguments.part}.json"
    (RESULTS / name).write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
