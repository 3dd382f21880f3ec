"""Attacks on the reader of plain data: generated and damaged answers, decoded and used in a process that is watched.

    python -m tests.data_attack --generated 1000000 --mutated 10000000 --seconds 3600 --json

A child decodes; an audit hook in it notes whatever the interpreter is asked to do meanwhile. The parent looks at the child's
heartbeat, and says which answer it had when it died or hung. ``--break KIND`` plants a class that does what must not happen, to show
that it is noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import faulthandler
import gc
import itertools
import json
import mmap
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests import data_reference as reference
from tests.data_attack_values import Makers, damaged

ROOT = Path(__file__).parent.parent

# What a reader may take: a second for each million bytes, plus what any value may take on a busy machine.
SECONDS_PER_BYTE = 1e-6
SECONDS_MIN = 0.25
# Objects of libraries take a second in all, however short the message (docs/protocol.md, 8.3).
LIBRARY_SECONDS_MIN = 1.5
# The child hangs when it works for so long on one answer, or waits for so long; what it does before the first one takes a while.
HANG_WORK_SECONDS = 20.0
HANG_WAIT_SECONDS = 300.0
WARM_UP_SECONDS = 60.0
ADDRESS_SPACE_BYTES = 3 << 30
# What an exception with its traceback takes beside the value.
ERROR_BYTES = 64 * 1024
RECORD_BYTES_MAX = 1 << 22
HEAD_BYTES = 64

# Events that decoding may cause, and why. All others are failures.
HARMLESS = {
    "object.__getattr__": "NumPy and pandas look at the frames and code of their own decorated functions",
    "sys._getframe": "named tuples, enumerations and warnings ask who called them",
    "builtins.id": "asked for by copy and by pandas, of objects that are there",
    "array.__new__": "makes numbers of numbers",
    "gc.get_referrers": "asked for by the collector's users alone",
}
# Events of which none may come when a value is used: what runs, connects or writes.
NEVER = (
    *("os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.remove", "os.rename"),
    *("os.mkdir", "os.rmdir", "os.chmod", "shutil.", "subprocess.", "socket.", "ctypes.dlopen"),
)


# --- the child ------------------------------------------------------------------------------------


class AuditWatch:
    """Notes audit events while something goes on."""

    def __init__(self) -> None:
        self.phase = ""
        self.events: list[str] = []
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        phase = self.phase
        if not phase or (event in HARMLESS and phase == "decode"):
            return
        if phase == "decode" or event.startswith(NEVER):
            # `repr` of what a stranger sent could raise events of its own.
            self.phase = ""
            self.events.append(f"{phase}: {event} {ascii(arguments)[:160]}")
            self.phase = phase


class Child:
    """Decodes one answer after the other, and says what went wrong."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.chance = random.Random(arguments.seed)
        self.state = open(arguments.state, "r+b")  # noqa: SIM115 (it lives as long as the process)
        self.memory = mmap.mmap(self.state.fileno(), 0)
        self.number = 0
        self.accepted = self.refused = 0
        self.failures: list[dict[str, Any]] = []
        self.worst_seconds = self.worst_memory = 0.0
        self.sample = 0

    def run(self) -> dict[str, Any]:
        """Attack until enough was tried, and return what came out."""
        warnings.simplefilter("ignore")
        # Where it was when it crashed, or when the parent gave up on it.
        faulthandler.enable()
        makers = Makers(self.chance, self.arguments.planted)
        self.watch = AuditWatch()
        for value in makers.warm_up():
            self.decode_once(value)
        # What libraries have made is not collected in the time of an answer.
        gc.collect()
        gc.freeze()
        soft = resource.getrlimit(resource.RLIMIT_AS)[1]
        grown = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (grown + ADDRESS_SPACE_BYTES, soft))
        deadline = time.monotonic() + self.arguments.seconds
        generated = mutated = 0
        pool = [(reference.write(item), parts) for item, parts in makers.samples()]
        fixed = len(pool)
        while time.monotonic() < deadline and len(self.failures) < 20:
            if generated < self.arguments.generated and (
                mutated >= self.arguments.mutated or self.chance.random() < self.share()
            ):
                with deep_recursion():
                    item, parts = makers.answer()
                    body = reference.write(item)
                if len(body) < 4096:
                    # The pool stays young, and its real values stay in it.
                    if len(pool) > 4000:
                        pool.pop(self.chance.randrange(fixed, len(pool)))
                    pool.append((body, parts))
                generated += 1
            elif mutated < self.arguments.mutated:
                with deep_recursion():
                    body, parts = damaged(pool, self.chance)
                mutated += 1
            else:
                break
            self.attack(body, parts)
            if self.number % 7 == 0:
                self.attack_exception(body)
        return {
            "seed": self.arguments.seed,
            "generated": generated,
            "mutated": mutated,
            "accepted": self.accepted,
            "refused": self.refused,
            "events": len(self.watch.events),
            "worst_seconds_per_mb": round(self.worst_seconds, 3),
            "worst_memory_to_bound": round(self.worst_memory, 3),
            "failures": self.failures,
        }

    def share(self) -> float:
        """Return how many of the answers are made, not damaged."""
        whole = self.arguments.generated + self.arguments.mutated
        return float(self.arguments.generated / whole)

    def fail(self, kind: str, what: str, body: bytes, parts: list[bytes]) -> None:
        """Note a failure with the answer that caused it."""
        self.failures.append(
            {
                "kind": kind,
                "what": what[:500],
                "body": body[:2000].hex(),
                "parts": [p.hex() for p in parts],
            }
        )

    def beat(self, body: bytes, parts: list[bytes]) -> None:
        """Tell the parent what is decoded next."""
        self.number += 1
        record = b"".join(len(p).to_bytes(4, "big") + p for p in (body, *parts))[:RECORD_BYTES_MAX]
        self.memory[16 : 16 + len(record)] = record
        self.memory[8:16] = len(record).to_bytes(8, "big")
        self.memory[:8] = self.number.to_bytes(8, "big")

    def decode_once(self, answer: tuple[reference.Item, list[bytes]]) -> None:
        """Decode and use an answer, whatever comes of it."""
        from exoskel import _core

        item, parts = answer
        with deep_recursion():
            body = reference.write(item)
        with contextlib.suppress(Exception):
            self.use(_core.data_decode(body, parts))

    def attack(self, body: bytes, parts: list[bytes]) -> None:
        """Decode an answer under watch, then use it."""
        from exoskel import _core
        from exoskel.errors import ResultRejectedError

        self.beat(body, parts)
        message = len(body) + sum(map(len, parts))
        # Planted classes are few, so that each is looked at more often.
        sampled = self.number % (2 if self.arguments.planted else 16) == 0
        events = len(self.watch.events)
        value: Any = None
        is_value = False
        failure = None
        if sampled:
            tracemalloc.start()
            before = tracemalloc.get_traced_memory()[0]
        begun = time.thread_time()
        self.watch.phase = "decode"
        try:
            value = _core.data_decode(body, parts, "a worker")
            is_value = True
        except ResultRejectedError as error:
            self.watch.phase = ""
            failure = unprintable(error)
        except BaseException as error:
            failure = f"raised {type(error).__name__}: {error}"
        self.watch.phase = ""
        seconds = time.thread_time() - begun
        if sampled:
            peak = tracemalloc.get_traced_memory()[1] - before
            tracemalloc.stop()
            ratio = max(0, peak - ERROR_BYTES) / (128 * message + 1048576)
            self.worst_memory = max(self.worst_memory, ratio)
            if ratio > 1:
                self.fail("memory", f"{peak} bytes for a message of {message}", body, parts)
        elif message:
            least = LIBRARY_SECONDS_MIN if b"\xe5\x1a" in body else SECONDS_MIN
            slow = max(0.0, seconds - least) / message * 1e6
            self.worst_seconds = max(self.worst_seconds, slow)
            if seconds > least + SECONDS_PER_BYTE * message:
                self.fail("time", f"{seconds:.3f} s for {message} bytes", body, parts)
        if failure is not None:
            self.fail("error", failure, body, parts)
        self.accepted += is_value
        self.refused += not is_value
        if is_value:
            self.watch.phase = "use"
            try:
                self.use(value)
            except BaseException as error:
                self.watch.phase = ""
                self.fail("use", f"raised {type(error).__name__}: {str(error)!a}", body, parts)
            self.watch.phase = ""
        for event in self.watch.events[events:]:
            self.fail("event", event, body, parts)

    def attack_exception(self, body: bytes) -> None:
        """Take a record as that of an exception, or its texts for those of one."""
        from exoskel import outcome

        try:
            kind, text, lines, data = reference.check_exception(body)
            made = reference.value(data, [])
        except RecursionError:
            return
        except Exception:
            kind = self.chance.choice(EXCEPTION_NAMES)
            text = body.decode("latin-1")[:200]
            lines, made = text.split("a"), None
        events = len(self.watch.events)
        self.watch.phase = "decode"
        try:
            error = outcome.exception_from_data(kind, text, lines, made, "w", 1, "worker w")
        except BaseException as broken:
            self.watch.phase = ""
            self.fail("exception", f"raised {type(broken).__name__}", body, [])
            return
        self.watch.phase = ""
        if not isinstance(error, Exception) or isinstance(
            error, StopIteration | StopAsyncIteration
        ):
            self.fail("exception", f"made a {type(error).__name__}", body, [])
        self.watch.phase = "use"
        shown = "".join(traceback.format_exception(error))
        self.watch.phase = ""
        if not all(line.isprintable() for line in shown.split("\n")):
            self.fail("exception", f"shows {shown!a}", body, [])
        for event in self.watch.events[events:]:
            self.fail("event", event, body, [])

    def use(self, value: Any) -> None:
        """Do with a value what people do. What it refuses by an exception is its affair; what ends the program isn't."""
        for deed in USES:
            # Libraries may refuse what they get, and all memory may be too little for what a value is made into.
            with contextlib.suppress(Exception):
                deed(value)


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Let the second implementation recurse as deep as values are nested; what is attacked has the usual limit."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(20_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def unprintable(error: BaseException | None) -> str | None:
    """Return what an error and its causes would write on a terminal that isn't plain text."""
    seen = 0
    while error is not None and seen < 20:
        for line in str(error).split("\n"):
            if not line.isprintable():
                return f"shows {str(error)!a}"
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None


EXCEPTION_NAMES = (
    *("ValueError", "SystemExit", "KeyboardInterrupt", "GeneratorExit", "StopIteration"),
    *("StopAsyncIteration", "ExceptionGroup", "BaseExceptionGroup", "UnicodeDecodeError"),
    *("ImportError", "ModuleNotFoundError", "OSError", "SyntaxError", "AttributeError"),
    *("NameError", "MemoryError", "RecursionError", "exoskel.errors:WorkerLostError"),
    *("exoskel.errors:TaskError", "os:system", "__main__:X", "\x1b[31m", "type", "object"),
)


def _iterate(value: Any) -> None:
    for part in itertools.islice(iter(value), 200):
        part  # noqa: B018


def _as_array(value: Any) -> None:
    import numpy

    if type(value) is numpy.ndarray or isinstance(value, numpy.generic):
        numpy.array([value])
        numpy.array([value, value], dtype=object)
        value.sum()
        value == value  # noqa: B015
        value.copy().tolist()
        numpy.sort(value, axis=None)
        value.astype(str)


USES: tuple[Callable[[Any], Any], ...] = (
    repr,
    hash,
    lambda value: value == value,
    len,
    _iterate,
    _as_array,
    lambda value: pickle.dumps(value),
    copy.deepcopy,
    lambda value: isinstance(value, BaseException) and "".join(traceback.format_exception(value)),
    lambda value: value.describe(),
    lambda value: value.head().to_string(),
    lambda value: value.sum(),
    lambda value: value.iloc[-1],
    lambda value: value.to_pylist()[:5],
    lambda value: value.isel({name: 0 for name in value.dims}),
    lambda value: value.sum_duplicates(),
    lambda value: value.toarray() if value.shape[0] * value.shape[1] < 10**6 else None,
)


# --- the parent -----------------------------------------------------------------------------------


def run(arguments: argparse.Namespace) -> dict[str, Any]:
    """Start a child, look after it, and return what came out."""
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "state"
        out, err = Path(folder) / "out", Path(folder) / "err"
        state.write_bytes(bytes(RECORD_BYTES_MAX + HEAD_BYTES))
        command = [sys.executable, "-m", "tests.data_attack", "--child", "--state", str(state)]
        for name in ("generated", "mutated", "seconds", "seed"):
            command += [f"--{name}", str(getattr(arguments, name))]
        if arguments.planted:
            command += ["--break", arguments.planted]
        # Each library with one thread: what is measured is the reader.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        with open(out, "wb") as output, open(err, "wb") as errors:
            child = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=errors
            )
        hung = False
        try:
            hung = _look_after(child, state)
        finally:
            if child.poll() is None:
                if hung:
                    child.send_signal(signal.SIGABRT)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        child.wait(5)
                child.kill()
            child.wait()
        if child.returncode == 0 and not hung:
            found: dict[str, Any] = json.loads(out.read_bytes())
            return found
        number, body, parts = _last(state.read_bytes())
        why = "hung" if hung else _ending(child.returncode)
        return {
            "seed": arguments.seed,
            "done": number,
            "failures": [
                {
                    "kind": why,
                    "what": err.read_text(errors="replace")[-2000:],
                    "body": body.hex(),
                    "parts": [part.hex() for part in parts],
                }
            ],
        }


def _look_after(child: subprocess.Popen[bytes], state: Path) -> bool:
    """Wait for the child's end; say whether its heart stopped before."""
    last, since, worked = b"", time.monotonic(), 0.0
    with open(state, "rb", buffering=0) as file:
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
                return False
            file.seek(0)
            beat = file.read(8)
            work = _work_seconds(child.pid)
            if beat != last:
                last, since, worked = beat, time.monotonic(), work
            patience = HANG_WORK_SECONDS if any(beat) else WARM_UP_SECONDS
            if work - worked > patience or time.monotonic() - since > HANG_WAIT_SECONDS:
                return True


def _work_seconds(process: int) -> float:
    """Return how long a process has used a processor: on a busy machine the clock says nothing."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def _last(state: bytes) -> tuple[int, bytes, list[bytes]]:
    """Return the number of the last answer, its bytes and its parts."""
    record = state[16 : 16 + int.from_bytes(state[8:16], "big")]
    found = []
    while record:
        length = int.from_bytes(record[:4], "big")
        found.append(record[4 : 4 + length])
        record = record[4 + length :]
    body, *parts = found or [b""]
    return int.from_bytes(state[:8], "big"), body, parts


def _ending(code: int) -> str:
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def arguments_of(given: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.data_attack", description=__doc__)
    parser.add_argument("--generated", type=int, default=10_000, help="answers to make")
    parser.add_argument("--mutated", type=int, default=100_000, help="answers to damage")
    parser.add_argument("--seconds", type=float, default=3600.0, help="stop after so long")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices")
    parser.add_argument(
        "--break",
        dest="planted",
        default="",
        help="plant a class that does one of these, with commas between",
    )
    parser.add_argument("--json", action="store_true", help="print the whole outcome as JSON")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--state", default="", help=argparse.SUPPRESS)
    return parser.parse_args(given)


def _shown(found: dict[str, Any]) -> Iterator[str]:
    for name, value in found.items():
        if name != "failures":
            yield f"{name}: {value}"
    for failure in found["failures"]:
        yield f"FAILED {failure['kind']}: {failure['what']}\n  {failure['body'][:400]}"


def main() -> int:
    arguments = arguments_of()
    if arguments.child:
        print(json.dumps(Child(arguments).run()))
        return 0
    found = run(arguments)
    print(json.dumps(found, indent=1) if arguments.json else "\n".join(_shown(found)))
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
