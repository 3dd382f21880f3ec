"""How the processes of a job stand or have ended, as `Job.summary` says it."""

from __future__ import annotations

import signal
from dataclasses import dataclass

__all__ = ["JobSummary", "ProcessSummary"]

# Exit codes of those that ended well, or were ended with their job.
_ENDED = (0, 128 + signal.SIGTERM, -signal.SIGTERM)
# So many processes are named.
_NAMED_MAX = 8
# And so much of what each has said last is shown.
_LINES_MAX = 10


@dataclass(frozen=True)
class ProcessSummary:
    """How a process of a job stands or has ended."""

    number: int
    rank: int
    host: str
    program: str
    #: Whether it has ended.
    has_ended: bool
    #: Or the negative number of the signal that has ended it. None while it runs, and if it could not be started or was lost.
    exit_code: int | None
    #: Of processor time; 0 while it runs.
    seconds: float
    #: The most that it had in memory; 0 while it runs.
    memory_bytes: int
    #: The end of what it has written to its standard error, and why it could not be started.
    stderr: str
    #: What holds it, as it has found when it was confined; nothing without a sandbox.
    sandbox: tuple[str, ...] = ()
    #: Whether it runs a function, and that has returned.
    has_returned: bool = False
    #: How many processes of the job had ended before it did; 0 while it runs.
    ended_before: int = 0

    @property
    def is_of_another(self) -> bool:
        """Whether its exit code is that of what has started it, which alone knows its own."""
        return self.exit_code is not None and self.memory_bytes == 0

    @property
    def is_silent(self) -> bool:
        """Whether it has failed by itself, and has not said why. Those that were ended with their job have not."""
        has_code = self.exit_code is not None and not self.is_of_another
        return has_code and self.exit_code not in _ENDED and not self.stderr

    @property
    def state(self) -> str:
        """How it stands, for people."""
        if not self.has_ended:
            return "returned" if self.has_returned else "runs"
        return "none" if self.exit_code is None else str(self.exit_code)


@dataclass(frozen=True)
class JobSummary:
    """How the processes of a job stand or have ended. Printed, it is a table."""

    processes: tuple[ProcessSummary, ...]

    def __str__(self) -> str:
        """Return the table, with the ends of what failed processes have said."""
        rows = [("process", "rank", "host", "program", "exit code", "CPU s", "MiB")]
        rows += [
            (
                str(one.number),
                str(one.rank),
                one.host,
                one.program,
                one.state,
                # What only another process knows has none of both.
                f"{one.seconds:.2f}" if one.memory_bytes else "-",
                f"{one.memory_bytes / 2**20:.1f}" if one.memory_bytes else "-",
            )
            for one in self.processes
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]
        held: dict[tuple[str, ...], list[str]] = {}
        for one in self.processes:
            if one.sandbox:
                held.setdefault(one.sandbox, []).append(str(one.number))
        lines += [f"held to {', '.join(what)}: {_some(who)}" for what, who in held.items()]
        failed = [one for one in self.processes if one.has_ended and one.exit_code != 0]
        # The first to fail is most often why others did. Those whose exit code is another's have nothing to say of it.
        said = [one for one in failed if one.stderr or one.is_silent]
        said.sort(key=lambda one: (one.is_of_another, one.ended_before))
        shown: dict[str, list[ProcessSummary]] = {}
        for one in said:
            text = "\n".join(one.stderr.strip("\n").splitlines()[-_LINES_MAX:])
            text = text or f"ended with {one.state}, and has said nothing"
            shown.setdefault(text, []).append(one)
        for text, who in list(shown.items())[:_NAMED_MAX]:
            rank = f" (rank {who[0].rank})" if len(who) == 1 else ""
            numbers = [str(number) for number in sorted(one.number for one in who)]
            lines += [f"{_some(numbers)}{rank}:", text]
        if len(shown) > _NAMED_MAX:
            lines.append(f"{len(shown) - _NAMED_MAX} more have said something else at their end")
        return "\n".join(lines)


def _some(numbers: list[str]) -> str:
    named = ", ".join(numbers[:_NAMED_MAX])
    more = len(numbers) - _NAMED_MAX
    return f"process {named}" + (f" and {more} more" if more > 0 else "")
