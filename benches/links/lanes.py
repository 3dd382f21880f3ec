"""Programs that have lanes, as whoever lets them take turns sees them: see `turns.py`."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence

# How long a program may take to connect its lanes.
START_SECONDS = 60.0
# A turn lasts for a tenth of a second: whoever takes so long hangs.
TURN_SECONDS = 60.0
# Before the first turn that counts: caches are warm and windows open.
CALIBRATION_TURNS_MAX = 24
# Kept of what it has said before it ended.
COMPLAINT_MAX = 300
# A turn of more than this has not been calibrated but has gone mad.
COUNT_MAX = 10_000_000


class LaneError(Exception):
    """A program didn't connect, or a turn failed."""


class LaneProgram:
    """A running program, with its lanes connected."""

    def __init__(
        self, command: Sequence[object], environment: Mapping[str, str] | None = None
    ) -> None:
        # As long as the program.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [str(word) for word in command],
            env=os.environ | dict(environment or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._buffer = b""
        try:
            self.lanes = self._line(START_SECONDS).split()
        except LaneError:
            self.end()
            raise

    def turn(self, lane: str, size: int, count: int) -> float:
        """Play one turn and return its seconds."""
        assert self._process.stdin
        try:
            self._process.stdin.write(f"{lane} {size} {count}\n".encode())
            self._process.stdin.flush()
        except OSError as error:
            raise LaneError(self._why("it ended")) from error
        answer = self._line(TURN_SECONDS)
        if answer.startswith("failed"):
            raise LaneError(answer.removeprefix("failed "))
        return float(answer)

    def end(self) -> None:
        """End the program, and whatever it has started."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _line(self, patience: float) -> str:
        assert self._process.stdout
        deadline = time.monotonic() + patience
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise LaneError(self._why(f"it said nothing for {patience:g} seconds"))
                more = os.read(self._process.stdout.fileno(), 65536)
                if not more:
                    raise LaneError(self._why("it ended"))
                self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def _why(self, what: str) -> str:
        self._log.seek(0)
        said = " ".join(self._log.read().decode(errors="replace").split())
        return f"{what}: {said[:COMPLAINT_MAX]}" if said else what


def play(
    programs: Sequence[LaneProgram],
    lanes: Sequence[str],
    size: int,
    *,
    rounds: int,
    seconds: float,
    say: Callable[[str], None],
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Let lanes take turns; return the seconds of a message for each lane and round, and why lanes have none.

    The lanes of one round follow each other at once, so that what disturbs the machine disturbs all of them. A turn takes about so many
    seconds.
    """
    whose = {lane: program for program in programs for lane in program.lanes}
    counts: dict[str, int] = {}
    failures: dict[str, str] = {}
    for lane in lanes:
        try:
            counts[lane] = calibrate(whose[lane], lane, size, seconds)
        except LaneError as error:
            failures[lane] = str(error)
            say(f"{lane}: {error}")
    times: dict[str, list[float]] = {lane: [] for lane in counts}
    for number in range(rounds):
        for lane in turning(list(times), number):
            try:
                spent = whose[lane].turn(lane, size, counts[lane])
                times[lane].append(spent / counts[lane])
            except LaneError as error:
                failures[lane] = str(error)
                del times[lane]
                say(f"{lane}: {error}")
    return times, failures


def turning(lanes: list[str], number: int) -> list[str]:
    """The lanes in the order of one round: each follows another one from round to round."""
    first = number % len(lanes)
    return lanes[first:] + lanes[:first]


def calibrate(program: LaneProgram, lane: str, size: int, seconds: float) -> int:
    """How many messages take so many seconds."""
    count = 1
    for _ in range(CALIBRATION_TURNS_MAX):
        spent = program.turn(lane, size, count)
        if spent > seconds / 2 or count >= COUNT_MAX:
            break
        count = min(COUNT_MAX, max(count + 1, int(count * min(8.0, seconds / max(spent, 1e-6)))))
    return max(1, min(COUNT_MAX, round(count * seconds / spent)))


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the rounds' ratios."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))
