"""`Stateful` and `Scan`: what an item finds is what the item before it has left, wherever that has run."""

from __future__ import annotations

import itertools
import operator
import os
import pickle
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import exoskel as ex

# Only what never ends runs longer: what takes no time has so much of it that a machine which stands still for a moment charges no item.
LIMIT_SECONDS = 4.0


def counted(state: int, item: int) -> tuple[int, tuple[int, int]]:
    """Counts items, and says how many there were before."""
    return state + 1, (state, item)


def same(item: int) -> int:
    return item


def on_slots(program: Any, items: Any, slots: int = 2, **options: Any) -> list[Any]:
    with ex.Manager(program, ex.ParDegree(slots), **options) as manager:
        return list(manager.map(items))


def grown(state: list[int], item: int) -> tuple[list[int], int]:
    state.append(item)
    return state, len(state)


def test_each_item_finds_what_the_one_before_it_has_left() -> None:
    program: ex.Skeleton[int, str] = ex.Pipeline(same, ex.Stateful(counted, 100), ex.Farm(str))
    expected = [str((100 + place, place)) for place in range(2000)]
    assert list(program.run_sequential(range(2000))) == expected
    assert on_slots(program, range(2000)) == expected


def test_a_scan_is_what_accumulate_gives() -> None:
    items = [3, 1, 4, 1, 5, 9, 2, 6] * 100
    for operation in (operator.add, max, operator.sub):
        expected = list(itertools.accumulate(items, operation))
        assert on_slots(ex.Scan(operation), items) == expected
        expected = list(itertools.accumulate(items, operation, initial=7))
        assert on_slots(ex.Scan(operation, 7), items) == expected


def test_an_initial_value_is_a_result_without_any_item() -> None:
    nested = ex.Pipeline(ex.Scan(operator.add, 5), ex.Farm(str), ex.Scan(operator.add, ">"))
    assert list(nested.run_sequential([])) == [">", ">5"]
    assert on_slots(nested, []) == [">", ">5"]
    assert on_slots(ex.Scan(operator.add), []) == []
    assert on_slots(ex.Pipeline(ex.Scan(operator.add, 5), ex.Reduce(operator.mul)), []) == [5]


def test_each_run_begins_with_the_first_state() -> None:
    first: list[int] = []
    program = ex.Stateful(grown, first)
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        for _ in range(3):
            assert list(manager.map(range(50))) == list(range(1, 51))
    for _ in range(2):
        assert list(program.run_sequential(range(3))) == [1, 2, 3]
    assert program.initial == []


def refusing(state: int, item: int) -> tuple[int, int]:
    if item % 3 == 0:
        raise ValueError(f"{item} is no item")
    return state + item, state


def test_an_item_that_raises_leaves_the_state_to_the_next_one() -> None:
    with ex.Manager(ex.Stateful(refusing, 0), ex.ParDegree(2)) as manager:
        outcomes = list(manager.map(range(100), errors="return"))
    state = 0
    for item, outcome in enumerate(outcomes):
        if item % 3 == 0:
            assert isinstance(outcome, ValueError)
            assert f"item {item}" in "".join(outcome.__notes__)
        else:
            assert outcome == state
            state += item


def not_a_pair(state: int, item: int) -> Any:
    return state


def test_what_is_no_pair_is_an_error_in_words() -> None:
    program: Any = ex.Stateful(not_a_pair, 0)
    for run in (program.run_sequential, lambda items: on_slots(program, items)):
        with pytest.raises(TypeError, match=r"got 0 from not_a_pair, expected a tuple of two"):
            list(run([1]))


def killed_once(state: tuple[int, str], item: int) -> tuple[tuple[int, str], tuple[int, int]]:
    """Ends its slot in the middle, the first time."""
    count, marks = state
    if item == 37:
        try:
            Path(marks, "killed").touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            os.kill(os.getpid(), signal.SIGKILL)
    return (count + 1, marks), (count, item)


def test_a_state_counts_once_though_its_slot_is_lost(tmp_path: Path) -> None:
    program = ex.Stateful(killed_once, (0, str(tmp_path)))
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        assert list(manager.map(range(100))) == [(place, place) for place in range(100)]
    assert (tmp_path / "killed").exists()


def text(item: int) -> str:
    return str(item)


def pair(result: tuple[int, int]) -> tuple[int, int]:
    return result


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_state_counts_once_though_slots_are_killed_all_the_time() -> None:
    program = ex.Pipeline(same, ex.Stateful(counted, 0), ex.Farm(pair))
    with ex.Manager(program, ex.ParDegree(2), retries=99) as manager:
        results = iter(manager.map(range(3000)))
        found = []
        for place, result in enumerate(results):
            found.append(result)
            if place % 700 == 350:
                workers = manager.summary().workers
                processes = [number for worker in workers for number in worker.process_ids]
                os.kill(next(filter(is_alive, reversed(processes))), signal.SIGKILL)
    assert found == [(place, place) for place in range(3000)]


class Flaky(Exception):
    """Goes away."""


def flaky(state: tuple[int, str], item: int) -> tuple[tuple[int, str], tuple[int, int]]:
    count, marks = state
    if item % 10 == 7:
        try:
            Path(marks, str(item)).touch(exist_ok=False)
        except FileExistsError:
            pass
        else:
            raise Flaky
    return (count + 1, marks), (count, item)


def test_an_item_that_runs_again_does_so_in_its_place(tmp_path: Path) -> None:
    program = ex.Stateful(flaky, (0, str(tmp_path)))
    results = on_slots(program, range(200), retries_on=Flaky)
    assert results == [(place, place) for place in range(200)]


def slow_at_5(state: int, item: int) -> tuple[int, int]:
    if item == 5:
        time.sleep(60)
    return state + 1, state


def test_an_item_that_takes_too_long_leaves_the_state_to_the_next_one() -> None:
    with ex.Manager(ex.Stateful(slow_at_5, 0), ex.ParDegree(2), timeout=LIMIT_SECONDS) as manager:
        outcomes = list(manager.map(range(10), errors="return"))
    assert isinstance(outcomes.pop(5), ex.ItemTimeoutError)
    assert outcomes == list(range(9))


def stuck_at_5(state: int, item: int) -> tuple[int, int]:
    """Ends by nothing but the end of its process."""
    if item == 5:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        while True:
            try:
                time.sleep(60)
            except BaseException:
                continue
    return state + 1, state


def test_an_item_that_does_not_end_leaves_the_state_to_the_next_one() -> None:
    with ex.Manager(ex.Stateful(stuck_at_5, 0), ex.ParDegree(2), timeout=LIMIT_SECONDS) as manager:
        outcomes = list(manager.map(range(10), errors="return"))
    assert isinstance(outcomes.pop(5), ex.ItemTimeoutError)
    assert outcomes == list(range(9))


def locked(state: Any, item: int) -> tuple[Any, int]:
    return (threading.Lock() if item >= 4 else item), item


def test_a_state_that_cannot_be_sent_is_an_error_in_words() -> None:
    with ex.Manager(ex.Stateful(locked, None), ex.ParDegree(1)) as manager:
        outcomes = list(manager.map(range(8), errors="return"))
    assert outcomes[:4] == [0, 1, 2, 3]
    for outcome in outcomes[4:]:
        assert isinstance(outcome, ex.ProgramError)
        assert "the state of locked can't be sent" in str(outcome)


def heavy(state: bytes, item: int) -> tuple[bytes, int]:
    return bytes(item), len(state)


def test_a_state_that_is_too_large_is_an_error_in_words() -> None:
    sizes = [10, 100_000, 1_000_000, *range(2_500_000, 2_500_009)]
    with ex.Manager(ex.Stateful(heavy, b""), ex.ParDegree(1), message_bytes_max=4 << 20) as manager:
        outcomes = list(manager.map(sizes, errors="return"))
    assert outcomes[:3] == [0, 10, 100_000]
    for outcome in outcomes[3:]:
        assert isinstance(outcome, ex.SizeLimitError)
        assert "got a state of 25000" in str(outcome)


def test_large_states_and_results_travel(tmp_path: Path) -> None:
    def blown(state: bytes, item: int) -> tuple[bytes, bytes]:
        return bytes(item), state + bytes(item)

    sizes = [300_000, 5, 2_000_000, 70_000, 0] * 4
    expected = [len(result) for result in ex.Stateful(blown, b"").run_sequential(sizes)]
    with ex.Manager(ex.Stateful(blown, b""), ex.ParDegree(2)) as manager:
        assert [len(result) for result in manager.map(sizes)] == expected


def larger(first: int, second: int) -> int:
    return max(first, second)


def numbers_below(item: int) -> range:
    return range(item)


def test_a_state_in_a_map_begins_anew_with_each_item() -> None:
    for worker, expected in (
        (ex.Scan(operator.add), [[], [0], [0, 1], [0, 1, 3], [0, 1, 3, 6]]),
        (ex.Pipeline(ex.Scan(operator.add), same), [[], [0], [0, 1], [0, 1, 3], [0, 1, 3, 6]]),
        (
            ex.Pipeline(same, ex.Scan(larger, 2), text),
            [["2"] + ["2"] * n for n in range(4)] + [list("22223")],
        ),
    ):
        program: Any = ex.Map(numbers_below, worker)
        assert list(program.run_sequential(range(5))) == expected
        assert on_slots(program, range(5)) == expected
        assert on_slots(ex.Farm(program), iter(range(5))) == expected
        assert on_slots(ex.Iterate(ex.Pipeline(program, len), bool, 1), [3]) == [len(expected[3])]


def test_states_stand_where_items_have_an_order() -> None:
    stateful = ex.Stateful(counted, 0)
    for make in (
        lambda: ex.Farm(stateful),
        lambda: ex.Farm(ex.Pipeline(abs, ex.Scan(operator.add))),
        lambda: ex.Iterate(ex.Scan(larger), bool, 3),
    ):
        with pytest.raises(TypeError, match=r"expected Stateful and Scan as stages of the program"):
            make()
    with pytest.raises(TypeError, match="can't be called with 2 arguments"):
        ex.Stateful(abs, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="can't be called with 2 arguments"):
        ex.Scan(lambda one: one)  # type: ignore[misc, arg-type]


def test_a_journal_holds_no_state(tmp_path: Path) -> None:
    sink, journal = ex.JsonLines(tmp_path / "out"), tmp_path / "journal"
    with (
        ex.Manager(ex.Stateful(counted, 0), ex.ParDegree(1)) as manager,
        pytest.raises(ex.JournalError, match="expected a program without Stateful and Scan"),
    ):
        manager.run([1], sink, journal=journal)
    assert not journal.exists()


def test_they_are_values() -> None:
    for program in (ex.Stateful(counted, 3), ex.Scan(operator.add), ex.Scan(operator.add, "x")):
        copied = pickle.loads(pickle.dumps(program))
        assert copied == program
        assert (
            eval(
                repr(program),
                {"Stateful": ex.Stateful, "Scan": ex.Scan, "counted": counted, "add": operator.add},
            )
            == program
        )


def together(first: int, second: tuple[int, int]) -> int:
    return first + sum(second)


def test_programs_say_what_becomes_of_them() -> None:
    added = ex.Scan(together, 1)
    program = ex.Pipeline(same, ex.Stateful(counted, 3), added, text)
    assert program.explain().splitlines()[1:] == [
        "1. on every free slot, for each item:",
        "   - same",
        "2. one item at a time, in order: counted, with a state that begins as 3",
        "3. one item at a time, in order: what together makes of it and all before it, from 1 on",
        "4. on every free slot, for each result of an item:",
        "   - text",
    ]
