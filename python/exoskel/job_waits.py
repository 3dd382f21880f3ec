"""Processes of a job that wait for posts of their siblings: when that is in vain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .job_processes import ended_text

if TYPE_CHECKING:
    from .job_processes import Record
    from .job_state import Group, JobState

__all__ = ["IdleProcesses"]

# So many of those that have failed are named.
_NAMED_MAX = 3


class IdleProcesses:
    """Which processes of a group wait for posts without end.

    Parameters
    ----------
    state : JobState
        Their job.
    group : Group
        The group.
    """

    def __init__(self, state: JobState, group: Group) -> None:
        self._state = state
        self._group = group
        self._idle: set[int] = set()

    def why(self, record: Record, is_idle: bool, _stream: int | None) -> str:
        """Take in whether a process waits. Say why nobody posts to it any more; nothing as long as somebody may.

        That is known only if one has failed, all others wait, have returned or have ended, and nobody else calls them: neither the job's
        creator nor whom that has passed them on to.
        """
        with self._state.changing():
            (self._idle.add if is_idle else self._idle.discard)(record.number)
            records = list(self._group.records)
            failed = [one for one in records if one.has_failed]
            if not is_idle or not failed or any(one.is_called for one in records):
                return ""
            if not all(self._posts_no_more(one) for one in records):
                return ""
            failed.sort(key=lambda one: one.ended_before)
            named = " and ".join(map(ended_text, failed[:_NAMED_MAX]))
        return f"{named}; all others wait for posts, or are done"

    def _posts_no_more(self, record: Record) -> bool:
        return record.has_ended or record.number in self._idle or self._state.has_returned(record)
