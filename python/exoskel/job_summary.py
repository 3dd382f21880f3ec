"""How the processes of a job stand or have ended, as `Job.summary` says it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JobSummary", "ProcessSummary"]

# So many processes are named.
_NAMED_MAX = 8


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

    @property
    def state(self) -> str:
        """How it stands, for people."""
        if not self.has_ended:
            return "runs"
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
                f"{one.seconds:.2f}" if one.has_ended else "-",
                f"{one.memory_bytes / 2**20:.1f}" if one.has_ended else "-",
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
        for one in self.processes:
            if one.has_ended and one.exit_code != 0 and one.stderr:
                lines += [f"process {one.number}:", *one.stderr.splitlines()[-10:]]
        return "\n".join(lines)


def _some(numbers: list[str]) -> str:
    named = ", ".join(numbers[:_NAMED_MAX])
    more = len(numbers) - _NAMED_MAX
    return f"process {named}" + (f" and {more} more" if more > 0 else "")
