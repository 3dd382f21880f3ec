"""Everything that links carry, at both ends, with what became of each part of it."""

from __future__ import annotations

import collections
import contextlib
import random
import re
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import exoskel as ex
from exoskel import links

ENDPOINT = "coupler"
# Rows of the region: one for each source.
ROWS = 32
ROW_LENGTH = 20_000
# How many posts may be on their way until their sender asks what has arrived.
POSTS_AT_ONCE = 50
REQUESTS_AT_ONCE = 8
STREAM_BYTES = 1_000_000
# An outcome that isn't there by then counts as missing.
OUTCOME_SECONDS = 60.0
# Texts of errors that are kept.
TEXTS_MAX = 20
_LOST = re.compile(r"(\d+) posts? to \S+ may be lost")


class Order:
    """Which numbers have come, counted from 0, and how."""

    def __init__(self) -> None:
        self.next = 0
        self.gaps: set[int] = set()
        self.doubled = 0
        self.late = 0

    def note(self, number: int) -> None:
        """One more has come."""
        if number >= self.next:
            self.gaps.update(range(self.next, number))
            self.next = number + 1
        elif number in self.gaps:
            self.gaps.remove(number)
            self.late += 1
        else:
            self.doubled += 1

    def report(self) -> dict[str, int]:
        """Say how many have come, and how."""
        return {
            "came": self.next - len(self.gaps),
            "next": self.next,
            "doubled": self.doubled,
            "late": self.late,
        }


class Receiver:
    """An endpoint that takes everything, and counts."""

    def __init__(self, node: links.Node, protection: links.Protection = "plain") -> None:
        self.orders: dict[str, Order] = collections.defaultdict(Order)
        self.calls = 0
        self.field = np.zeros((ROWS, ROW_LENGTH))
        self._lock = threading.Lock()
        self.endpoint = node.endpoint(ENDPOINT, threads=2, protection=protection)

        @self.endpoint.handler
        def note(source: str, number: int, _load: Any = None) -> None:
            self._note(f"posts of {source}", number)

        @self.endpoint.handler
        def double(source: str, number: int, value: np.ndarray) -> np.ndarray:
            self._note(f"requests of {source}", number)
            return value * 2

        @self.endpoint.handler
        def report(source: str) -> dict[str, dict[str, int]]:
            with self._lock:
                return {
                    kind: self.orders[f"{kind} of {source}"].report()
                    for kind in ("posts", "requests")
                }

        @self.endpoint.stream_handler
        def echo(stream: links.Stream) -> None:
            while part := stream.read1():
                stream.write(part)

        self.endpoint.region("field", self.field, writable=True)

    def forget(self, source: str) -> None:
        """Forget what has come of a source, and of its groups."""
        with self._lock:
            for one in (source, f"group of {source}"):
                for kind in ("posts", "requests"):
                    self.orders.pop(f"{kind} of {one}", None)

    def _note(self, source: str, number: int) -> None:
        with self._lock:
            self.calls += 1
            self.orders[source].note(number)


class Traffic:
    """What a program sends to a receiver, each kind on a thread of its own, until it is told to stop."""

    def __init__(
        self,
        source: str,
        binding: links.Binding,
        row: int = 0,
        others: Sequence[links.Binding] = (),
        look_up: Callable[[], links.Binding] | None = None,
    ) -> None:
        self.source = source
        self.binding = binding
        self.row = row
        # Whom a group has beside the binding.
        self.others = others
        self.look_up = look_up
        self.marker = "none"
        self.counts: collections.Counter[str] = collections.Counter()
        self.texts: list[str] = []
        self._random = random.Random(row)
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, *kinds: str) -> None:
        """Begin with these kinds, or with all."""
        deeds: dict[str, Callable[[], None]] = {
            "posts": self._posts,
            "requests": self._requests,
            "streams": self._streams,
            "regions": self._regions,
        }
        if self.others:
            deeds["groups"] = self._groups
        if self.look_up:
            deeds["lookups"] = self._lookups
        for kind in kinds or deeds:
            thread = threading.Thread(target=self._go_on, args=[deeds[kind]], name=kind)
            self._threads.append(thread)
            thread.start()

    def stop(self) -> dict[str, Any]:
        """Let everything that was begun come to its end, and say what became of it."""
        self._ending.set()
        deadline = time.monotonic() + 2 * OUTCOME_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        stuck = [thread.name for thread in self._threads if thread.is_alive()]
        self._threads.clear()
        return {**self.now(), "stuck": stuck}

    def now(self) -> dict[str, Any]:
        """Say how it stands."""
        with self._lock:
            return {"counts": dict(self.counts), "texts": list(self.texts)}

    def arrived(self, seconds: float = OUTCOME_SECONDS) -> dict[str, dict[str, int]]:
        """Ask the receiver what has come. A link that was lost says so once; the next one is asked again."""
        try:
            report = self.binding.request("report", self.source).result(seconds)
        except ex.LinkError as error:
            self._failed("reports failed", error)
            report = self.binding.request("report", self.source).result(seconds)
        arrived: dict[str, dict[str, int]] = report
        return arrived

    def _go_on(self, deed: Callable[[], None]) -> None:
        while not self._ending.is_set():
            try:
                deed()
            except TimeoutError as error:
                self._failed("missing", error)
            except (ex.LinkError, ex.RefusedError, links.HandlerError, BrokenPipeError) as error:
                self._failed(f"{threading.current_thread().name} failed", error)
                # Who is refused is refused again: no more than a few hundred times a second.
                self._ending.wait(0.005)

    def _count(self, what: str, number: int = 1) -> None:
        with self._lock:
            self.counts[what] += number

    def _failed(self, what: str, error: Exception) -> None:
        lost = _LOST.search(str(error))
        with self._lock:
            self.counts[what] += 1
            if lost:
                self.counts["told lost"] += int(lost[1])
            text = f"{type(error).__name__}: {error}"
            if len(self.texts) < TEXTS_MAX and text not in self.texts:
                self.texts.append(text)

    def _posts(self) -> None:
        for _ in range(POSTS_AT_ONCE):
            number = self.counts["posted"]
            size = self._random.choice([10, 1000, 100_000])
            load = (f"MARKER-{self.marker}-" * (1 + size // 10)).encode()
            self.binding.post("note", self.source, number, load)
            self._count("posted")
        self.binding.request("report", self.source).result(OUTCOME_SECONDS)

    def _requests(self) -> None:
        begun = []
        errors: list[Exception] = []
        for _ in range(REQUESTS_AT_ONCE):
            number = self.counts["asked"]
            value = np.full(self._random.choice([1, 100, 10_000]), float(number))
            try:
                begun.append((value, self.binding.request("double", self.source, number, value)))
            except ex.LinkError as error:
                # It was not made: the text is about posts.
                self._failed("requests not made", error)
                break
            self._count("asked")
        for value, reply in begun:
            try:
                got = reply.result(OUTCOME_SECONDS)
            except (ex.LinkError, ex.RefusedError, TimeoutError) as error:
                errors.append(error)
            else:
                self._count("answered" if np.array_equal(got, 2 * value) else "wrong answers")
        for failure in errors:
            is_missing = isinstance(failure, TimeoutError)
            self._failed("missing" if is_missing else "requests failed", failure)
        if errors:
            self._ending.wait(0.005)

    def _streams(self) -> None:
        sent = self._random.randbytes(STREAM_BYTES)
        got = bytearray()
        whole = False
        try:
            with self.binding.stream("echo", timeout=OUTCOME_SECONDS) as stream:
                writer = threading.Thread(target=_write, args=[stream, sent])
                writer.start()
                try:
                    while part := stream.read1():
                        got += part
                        self._count("echoed", len(part))
                finally:
                    writer.join()
            whole = True
        finally:
            # What has come before an error is the beginning.
            is_right = bytes(got) == sent if whole else sent.startswith(got)
            self._count("streams" if is_right and whole else "broken streams")
            if not is_right:
                self._count("wrong streams")

    def _regions(self) -> None:
        region = self.binding.region("field")
        value = np.full(ROW_LENGTH, self._random.random())
        region.put(self.row, value).result(OUTCOME_SECONDS)
        got = region.get(self.row).result(OUTCOME_SECONDS)
        self._count("transfers" if np.array_equal(got, value) else "wrong transfers")

    def _groups(self) -> None:
        value = np.arange(100.0)
        group = links.group([self.binding, *self.others])
        number = self.counts["groups"]
        self._count("groups")
        reply = group.request("double", f"group of {self.source}", number, value)
        for outcome in reply.outcomes(OUTCOME_SECONDS):
            if isinstance(outcome, Exception):
                self._failed(
                    "missing" if isinstance(outcome, TimeoutError) else "groups failed", outcome
                )
            else:
                is_right = np.array_equal(outcome, 2 * value)
                self._count("group answers" if is_right else "wrong group answers")
        self._ending.wait(0.01)

    def _lookups(self) -> None:
        assert self.look_up
        with self.look_up() as found:
            found.request("report", self.source).result(OUTCOME_SECONDS)
        self._count("lookups")
        self._ending.wait(0.05)


def _write(stream: links.Stream, data: bytes) -> None:
    # What ends it is raised by the reads as well.
    with contextlib.suppress(ex.LinkError, ex.RefusedError, OSError, ValueError, RuntimeError):
        for start in range(0, len(data), 33_333):
            stream.write(data[start : start + 33_333])
        stream.finish()


def faults(outcome: dict[str, Any], arrived: dict[str, dict[str, int]]) -> dict[str, int]:
    """Count what must never be: of both ends, what was wrong, missing, doubled or out of order."""
    counts: collections.Counter[str] = collections.Counter(outcome["counts"])
    posts, requests = arrived["posts"], arrived["requests"]
    absent = counts["posted"] - posts["came"]
    return {
        "wrong": sum(number for what, number in counts.items() if what.startswith("wrong")),
        "missing": counts["missing"] + max(0, absent - counts["told lost"]),
        "unanswered": max(0, counts["asked"] - counts["answered"] - counts["requests failed"]),
        "doubled": posts["doubled"] + requests["doubled"] + max(0, -absent),
        "late": posts["late"] + requests["late"],
        "stuck": len(outcome["stuck"]),
    }
