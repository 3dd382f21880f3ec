"""Posts between tasks of launched slots: each `map` has its own, and who waits for one in vain is told why."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.processes import eventually

import exoskel as ex
from exoskel import links
from exoskel.outcome import describe_exception, make_exception
from exoskel.task_posts import TaskInboxes, TaskStreams

SECONDS = 60.0


def launched(function: Any, slots: int = 2) -> ex.Manager:
    return ex.Manager(
        function, ex.ParDegree(slots), launch=ex.Local(), wait=SECONDS, frame_items_max=1
    )


def wait_for_a_post(item: tuple[str, str]) -> int:
    """Wait for what the other slot would post, which raises an exception instead."""
    here = links.here()
    box = here.process.inbox("edges")
    begun, kind = Path(item[0]), item[1]
    if here.rank == 0:
        assert eventually(begun.exists)
        if kind == "raises":
            raise ValueError("a bad item")
        return 0
    assert here.peers is not None
    begun.touch()
    return int(box.get())


def test_who_waits_for_a_post_of_a_task_that_has_failed_is_told_its_exception(
    tmp_path: Path,
) -> None:
    with launched(wait_for_a_post) as manager:
        item = str(tmp_path / "begun"), "raises"
        found = [str(one) for one in manager.map([item] * 2, errors="return")]
        text = "rank 1 waits for posts to edges in vain: the task of rank 0 has ended with ValueError: a bad item; 1 of 2 slots have no task"
        assert sorted(text in one for one in found) == [False, True]
        assert "a bad item" in found
        # Who has ended well, too, posts no more. That another task failed in a map before is no reason.
        item = str(tmp_path / "again"), "returns"
        found = [str(one) for one in manager.map([item] * 2, errors="return")]
        text = "rank 1 waits for posts to edges in vain: 1 of 2 slots have no task, and no item waits for one: tasks"
        assert sorted(text in one for one in found) == [False, True]


def test_the_first_exception_of_a_run_says_what_has_failed(tmp_path: Path) -> None:
    with launched(wait_for_a_post) as manager:
        item = str(tmp_path / "begun"), "raises"
        with pytest.raises(ValueError, match="a bad item"):
            list(manager.map([item] * 2, as_completed=True))
        # In the order of the items, who has waited in vain may be the first.
        item = str(tmp_path / "again"), "raises"
        with pytest.raises((ValueError, ex.LinkError), match="a bad item"):
            list(manager.map([item] * 2))


def test_what_a_task_raises_of_its_links_arrives_as_such_from_hosts_that_send_data() -> None:
    for kind in (ex.LinkError, ex.ProcessEndedError):
        name, text, data = describe_exception(kind("rank 1 waits in vain"))
        error = make_exception(name, text, data)
        assert (type(error), str(error)) == (kind, "rank 1 waits in vain")


def wait_for_each_other(_item: int) -> int:
    here = links.here()
    box = here.process.inbox("edges")
    assert here.peers is not None
    return int(box.get())


def test_tasks_that_all_wait_for_posts_are_told_so() -> None:
    with launched(wait_for_each_other) as manager:
        found = [str(one) for one in manager.map(range(2), errors="return")]
    assert any("in vain: the tasks of all slots wait for posts" in one for one in found)


def post_when_asked(_item: int) -> int:
    """Wait for a post, whose sender computes until it has been asked three times whether one comes."""
    here = links.here()
    box = here.process.inbox("edges")
    asked: list[object] = []
    ask = here._context.idles

    def idles() -> Any:
        asked.append(None)
        return ask()

    @here.process.handler
    def times() -> int:
        return len(asked)

    here._context.idles = idles  # type: ignore[method-assign]  # it is counted
    if here.rank == 1:
        assert here.peers is not None
        return int(box.get())
    if here.rank == 0:
        waiting = here.peers[1]
        assert eventually(lambda: waiting.request("times").result(SECONDS) >= 3)
        waiting.post("edges", 7)
    return here.rank if here.peers is not None else 0


def test_who_may_still_get_a_post_waits_on() -> None:
    with launched(post_when_asked, 3) as manager:
        assert sorted(manager.map(range(3))) == [0, 2, 7]


def step(item: tuple[int, bool]) -> tuple[int, int]:
    """Post the number of the map to the other slot, and take what has come."""
    number, is_bad = item
    here = links.here()
    box = here.process.inbox("steps")
    here.peers[1 - here.rank].post("steps", number)
    if is_bad and here.rank == 0:
        raise ValueError("a bad item")
    return here.rank, int(box.get(timeout=SECONDS))


def test_what_was_posted_for_one_map_is_not_read_by_the_next() -> None:
    with launched(step) as manager:
        assert len(list(manager.map([(0, True)] * 2, errors="return"))) == 2
        for number in range(1, 4):
            assert dict(manager.map([(number, False)] * 2)) == {0: number, 1: number}


def step_of_group(item: tuple[int, bool]) -> tuple[int, int]:
    number, is_bad = item
    here = links.here()
    box = here.process.inbox("steps")
    links.group([here.peers[1 - here.rank]]).post("steps", number)
    if is_bad and here.rank == 0:
        raise ValueError("a bad item")
    return here.rank, int(box.get(timeout=SECONDS))


def test_what_was_posted_to_groups_is_not_read_by_the_next_map_either() -> None:
    with launched(step_of_group) as manager:
        assert len(list(manager.map([(0, True)] * 2, errors="return"))) == 2
        assert dict(manager.map([(1, False)] * 2)) == {0: 1, 1: 1}


def post_to_all(number: int) -> list[int]:
    here = links.here()
    here.process.inbox("steps")
    for peer in here.peers:
        peer.post("steps", number)
    return [number]


def take_a_post(_number: int) -> int:
    return int(links.here().process.inbox("steps").get(timeout=SECONDS))


def test_a_later_stage_takes_what_an_earlier_one_has_posted() -> None:
    """Behind a `FlatMap`, the engine counts items anew. All slots have as many posts as there are items, whichever of them runs which."""
    with launched(ex.Pipeline(ex.FlatMap(post_to_all), take_a_post)) as manager:
        assert {*manager.map([3, 5])} <= {3, 5}
        # What nobody has taken of the first map is not for the second.
        assert {*manager.map([7, 9])} <= {7, 9}


def answer_posts(number: int) -> int:
    """Have a handler, which gets posts and requests of another slot's task as before."""
    here = links.here()
    posted: list[int] = []

    @here.process.handler
    def give(value: int, *, more: int = 0) -> int:
        posted.append(value)
        return value + more

    other = here.peers[1 - here.rank]
    return int(other.request("give", number, more=1).result(SECONDS))


def test_handlers_of_slots_get_what_tasks_send() -> None:
    with launched(answer_posts) as manager:
        assert sorted(manager.map([3, 5])) == [4, 6]


def test_streams_are_over_or_may_still_come(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = TaskStreams()
    assert streams.is_due(None)
    assert not streams.is_over(3)
    streams.enter(5, [4, 5])
    assert streams.is_due(5)
    assert not streams.is_due(4)
    # 4 is open here, and neither 3 nor 6 has begun here: both may.
    assert not any(map(streams.is_over, (3, 4, 5, 6)))
    streams.enter(6, [5, 6])
    assert [streams.is_over(one) for one in (3, 4, 5, 6)] == [False, True, False, False]
    # Of very many that are over, it is remembered up to which number they are.
    monkeypatch.setattr("exoskel.task_posts._OVER_MAX", 2)
    for number in range(7, 12):
        streams.enter(number, [5, number])
    assert [streams.is_over(one) for one in (3, 4, 5, 6, 9, 10, 11, 12)] == [
        *(True, True, False, True, True, True),
        *(False, False),
    ]


def test_posts_of_streams_that_never_come_are_bounded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Attack: a sibling that says a stream which no task will have."""
    monkeypatch.setattr("exoskel.task_posts._KEPT_MAX", 3)
    node: Any = SimpleNamespace(rank=1)
    inboxes = TaskInboxes(TaskStreams(), None, node)  # type: ignore[arg-type]  # nobody waits
    for number in range(5):
        inboxes.keep("edges", 2**32 - 1 - number, number)
    assert inboxes.count("edges") == 3
    assert "a post of stream 4294967295 to edges of rank 1 is dropped: 3 wait" in caplog.text
    inboxes.streams.enter(2**32 - 1 - 3, [2**32 - 1 - 3])
    assert inboxes.kept("edges") == (3,)
