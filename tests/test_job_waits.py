"""Processes of a job that wait for posts of their siblings: who waits in vain since one has failed is told so."""

from __future__ import annotations

import re
from typing import Any

from tests.processes import eventually

import exoskel as ex
from exoskel import task_posts
from exoskel.job_process import JobNode

SECONDS = 60.0


def wait_or_fail(here: JobNode) -> int:
    """Rank 0 fails, rank 1 returns, and the others wait for rank 0."""
    task_posts._ABSENCE_SECONDS, task_posts._ASK_SECONDS = 0.1, 1.2
    box = here.process.inbox("edges")
    here.ready()
    if here.rank == 0:
        raise ValueError("a bad edge")
    return 1 if here.rank == 1 else int(box.get())


def test_who_waits_for_posts_of_a_process_that_has_failed_is_told_why() -> None:
    with ex.Job() as job:
        started = job.start(wait_or_fail, count=4)
        ending = [started._records[rank] for rank in (0, 2, 3)]
        assert eventually(lambda: all(record.has_ended for record in ending))
        failed, returned, *waiting = job.summary().processes
    assert "ValueError: a bad edge" in failed.stderr
    assert returned.state == "returned"
    for rank, one in enumerate(waiting, 2):
        why = rf"LinkError: rank {rank} waits for posts to edges in vain: process \d+ \(rank 0, .* exit code 1: ValueError: a bad edge"
        assert re.search(why, one.stderr), one.stderr


def wait_for_the_creator(here: JobNode) -> int:
    """Rank 0 fails. Rank 1 waits for a post of the job's creator, and counts how often it has asked whether one comes."""
    task_posts._ABSENCE_SECONDS, task_posts._ASK_SECONDS = 0.1, 1.2
    asked: list[object] = []
    ask = here._context.idles

    def idles() -> Any:
        asked.append(None)
        return ask()

    @here.process.handler
    def times() -> int:
        return len(asked)

    here._context.idles = idles  # type: ignore[method-assign]  # it is counted
    box = here.process.inbox("edges")
    here.ready()
    if here.rank == 0:
        raise ValueError("a bad edge")
    return int(box.get())


def test_who_may_get_a_post_of_the_creator_waits_on() -> None:
    with ex.Job() as job:
        started = job.start(wait_for_the_creator, count=2)
        waiting = started[1].result(SECONDS)
        assert waiting.request("times").result(SECONDS) >= 0
        assert eventually(lambda: started._records[0].has_ended)
        before = waiting.request("times").result(SECONDS)
        assert eventually(lambda: waiting.request("times").result(SECONDS) > before + 4)
        waiting.post("edges", 7)
        assert waiting.value(SECONDS) == 7
