"""Runs with a journal of programs whose items have any number of results, or one of all together."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import soak_runs

import exoskel as ex
from exoskel import _core
from exoskel.errors import JournalError
from exoskel.folded_runs import FoldedSink, position_of_fold
from exoskel.slices import StreamedSlices

# Made by a test when the item may run that raised before.
REPAIRED = "repaired"
BROKEN = 41


def checked(item: int) -> int:
    """Note that an item runs, and raise at one of them until that is repaired."""
    with Path("run.log").open("a") as log:
        log.write(f"{item}\n")
    if item == BROKEN and not Path(REPAIRED).exists():
        raise ValueError("got a broken one")
    return item


def few(item: int) -> list[int]:
    return [item] * (item % 4)


def tens(item: int) -> list[int]:
    return [10 * item, 10 * item + 1, 10 * item + 2]


def some(item: int) -> range:
    return range(item % 3)


def is_odd(item: int) -> int:
    return item % 2


def unit(item: int) -> int:
    return 1


def joined(into: str, other: str) -> str:
    return into + other


def larger(into: int, other: int) -> int:
    return max(into, other)


def negated(item: int) -> int:
    return -item


def total(parts: list[int]) -> int:
    return sum(parts)


def nothing(item: int) -> list[int]:
    return []


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def has_run() -> list[int]:
    return [int(line) for line in Path("run.log").read_text().split()]


def interrupted(program: ex.Skeleton[Any, Any], items: Any, **options: Any) -> ex.RunSummary:
    """Run a program that ends at an item, and again from its journal when that is repaired, and once more."""
    out, journal = Path("out.jsonl"), Path("run.journal")

    def run() -> ex.RunSummary:
        with ex.Manager(program, ex.ParDegree(1)) as manager:
            return manager.run(items, ex.JsonLines(out), journal=journal, **options)

    for _ in range(2):
        with pytest.raises(ValueError, match="got a broken one") as raised:
            run()
        assert raised.value.__notes__[-1].startswith(f"item {BROKEN}: ")
    Path(REPAIRED).touch()
    run()
    written = out.read_bytes()
    Path("run.log").unlink()
    again = run()
    assert not Path("run.log").exists(), "a run that has ended runs nothing"
    assert out.read_bytes() == written
    return again


def lines() -> list[str]:
    return Path("out.jsonl").read_text().splitlines()


MANY: dict[str, ex.Skeleton[Any, Any]] = {
    "a flat map": ex.Pipeline(checked, ex.FlatMap(few)),
    "two flat maps": ex.Pipeline(ex.FlatMap(few), checked, ex.FlatMap(some), ex.FlatMap(some)),
    "a map and a farm": ex.Pipeline(ex.FlatMap(few), checked, ex.Map(some, abs), ex.Farm(total)),
    "serial stages": ex.Pipeline(ex.Seq(checked), ex.FlatMap(some), ex.Seq(abs)),
    "a class": ex.Pipeline(ex.FlatMap(few), ex.Seq(checked)),
}


ONE: dict[str, ex.Skeleton[Any, Any]] = {
    "a map": ex.Pipeline(checked, ex.Map(some, abs, total)),
    "a loop": ex.Pipeline(checked, ex.Iterate(negated, is_odd, 3)),
    "a division": ex.Pipeline(checked, ex.DivideAndConquer(is_odd, abs, some, total)),
}


@pytest.mark.parametrize("name", ONE)
def test_items_with_one_result_go_on(name: str) -> None:
    assert interrupted(ONE[name], range(120)) == ex.RunSummary(120, 0, 120)
    assert lines() == [str(result) for result in ONE[name].run_sequential(range(120))]


@pytest.mark.parametrize("name", MANY)
def test_items_with_any_number_of_results_go_on(name: str) -> None:
    program = MANY[name]
    summary = interrupted(program, range(120))
    results = list(program.run_sequential(range(120)))
    assert lines() == [str(result) for result in results]
    assert summary == ex.RunSummary(len(results), 0, len(results))


class ListSink:
    """A sink without a buffer."""

    def __init__(self) -> None:
        self.results: list[Any] = []

    def rewind(self, position: bytes | None) -> bytes:
        """Cut back to so many results."""
        length = len(self.results) if position is None else int(position)
        del self.results[length:]
        return str(length).encode()

    def write(self, index: int, result: Any) -> None:
        """Append a result; none is left out."""
        assert index == len(self.results)
        self.results.append(result)

    def commit(self) -> bytes:
        """Say how many results there are."""
        return str(len(self.results)).encode()

    def is_in(self, path: str) -> bool:
        """Say that no result goes to a file."""
        return False


def test_items_that_are_done_do_not_run_again() -> None:
    program = ex.Pipeline(ex.FlatMap(tens), ex.Seq(checked))
    sink = ListSink()
    with ex.Manager(program, ex.ParDegree(1)) as manager, pytest.raises(ValueError, match="broken"):
        manager.run(range(9), sink, journal="run.journal")
    # Item 4 had a result before the one that has ended the run. The sink holds whole items alone.
    done = len(sink.results)
    assert done % 3 == 0
    assert done <= 12
    Path(REPAIRED).touch()
    Path("run.log").unlink()
    with ex.Manager(program, ex.ParDegree(1)) as manager:
        summary = manager.run(range(9), sink, journal="run.journal")
    assert summary == ex.RunSummary(27, 0, done)
    assert min(has_run()) == 10 * (done // 3)
    assert sink.results == [result for item in range(9) for result in tens(item)]


def test_items_without_results_are_done_too() -> None:
    program = ex.Pipeline(checked, ex.FlatMap(nothing))
    assert interrupted(program, range(200)) == ex.RunSummary(0, 0, 0)
    assert lines() == []


def test_results_that_are_skipped_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    program = ex.Pipeline(ex.FlatMap(few), checked)
    with ex.Manager(program, ex.ParDegree(2)) as manager:
        for _ in range(2):
            summary = manager.run(
                range(60), ex.JsonLines("out.jsonl"), journal="run.journal", errors="skip"
            )
            assert (summary.results, summary.skipped) == (89, 1)
    assert f"skipped item {BROKEN}: {BROKEN}: ValueError" in caplog.text
    assert len(lines()) == 89


ITEMS: dict[str, Any] = {
    "a range": range(120),
    "a list": [*range(120)],
    "a generator": None,
}
FOLDS: dict[str, tuple[ex.Skeleton[Any, Any], dict[str, Any]]] = {
    "slices": (ex.Pipeline(checked, ex.Reduce(operator.add)), {}),
    "texts": (ex.Pipeline(checked, str, ex.Reduce(joined, "text: ")), {}),
    "many": (ex.Pipeline(checked, ex.FlatMap(few), ex.Reduce(operator.add)), {}),
    "by keys": (ex.Pipeline(checked, ex.Reduce(operator.add, key=is_odd, value=unit)), {}),
    "a serial stage": (ex.Pipeline(ex.Seq(checked), ex.FlatMap(few), ex.Reduce(operator.add)), {}),
    "single items": (ex.Pipeline(checked, ex.Reduce(larger)), {"timeout": 60.0}),
    "single by keys": (
        ex.Pipeline(ex.Seq(checked), ex.Reduce(operator.add, key=is_odd)),
        {"timeout": 60.0},
    ),
}


def numbers() -> Iterator[int]:
    yield from range(120)


@pytest.mark.parametrize("items", ITEMS)
@pytest.mark.parametrize("name", FOLDS)
def test_a_reduction_goes_on(name: str, items: str) -> None:
    program, options = FOLDS[name]

    class Again:
        """Iterates anew each time."""

        def __iter__(self) -> Iterator[int]:
            return numbers()

    summary = interrupted(program, ITEMS[items] or Again(), **options)
    (result,) = program.run_sequential(range(120))
    sink = ex.JsonLines("expected.jsonl")
    sink.rewind(None)
    sink.write(0, result)
    sink.commit()
    sink.close()
    assert Path("out.jsonl").read_bytes() == Path("expected.jsonl").read_bytes()
    assert summary == ex.RunSummary(1, 0, 120)
    assert str(summary) == "1 result, 120 items done by earlier runs"


@pytest.mark.parametrize("name", ["slices", "a serial stage"])
def test_what_is_folded_does_not_run_again(name: str) -> None:
    program, _ = FOLDS[name]
    for is_last in (False, True):
        with ex.Manager(program, ex.ParDegree(1)) as manager:
            if not is_last:
                with pytest.raises(ValueError, match="broken"):
                    manager.run(range(60), ex.JsonLines("out.jsonl"), journal="run.journal")
                assert 0 in has_run()
                Path("run.log").unlink()
                Path(REPAIRED).touch()
            else:
                manager.run(range(60), ex.JsonLines("out.jsonl"), journal="run.journal")
    # The slice of the item that was broken runs again.
    assert 20 < min(has_run()) <= BROKEN


def test_a_reduction_alone_or_of_nothing() -> None:
    for timeout in (None, 60.0):
        for number, program in enumerate((ex.Reduce(joined), ex.Reduce(joined, key=len))):
            journal = f"{number}-{timeout}.journal"
            out = ex.JsonLines(f"{number}-{timeout}.jsonl")
            with ex.Manager(program, ex.ParDegree(1)) as manager:
                manager.run(["a", "b", "cd"], out, journal=journal, timeout=timeout)
            expected = ['"abcd"\n', '{"1": "ab", "2": "cd"}\n'][number]
            assert Path(f"{number}-{timeout}.jsonl").read_text() == expected
    with ex.Manager(ex.Reduce(joined), ex.ParDegree(1)) as manager:
        with pytest.raises(TypeError, match="got no items to reduce"):
            manager.run([], ex.JsonLines("none.jsonl"), journal="none.journal")
        with pytest.raises(ValueError, match="'skip' for a program that reduces"):
            manager.run([], ex.JsonLines("none.jsonl"), journal="none.journal", errors="skip")


def test_a_fold_that_fails_in_the_manager_is_never_committed() -> None:
    def folded(into: list[int], other: list[int]) -> list[int]:
        into += other
        if 50 in into and not Path(REPAIRED).exists():
            raise ValueError("half folded")
        return into

    program = ex.Pipeline(ex.Seq(few), ex.Reduce(folded))
    expected = [item for item in range(60) for _ in range(item % 4)]
    with ex.Manager(program, ex.ParDegree(1)) as manager:
        with pytest.raises(ValueError, match="half folded"):
            manager.run(range(60), ex.JsonLines("out.jsonl"), journal="run.journal")
        Path(REPAIRED).touch()
        manager.run(range(60), ex.JsonLines("out.jsonl"), journal="run.journal")
    assert lines() == [str(expected)]


def test_what_was_folded_is_read_with_care() -> None:
    out = ex.Lines("out.txt")
    reduction: ex.Reduce[str, str] = ex.Reduce(joined)
    place = out.rewind(None)
    for state in (b"", b"\x09" * 4, b"\xff" * 40, place, position_of_fold(place, None)):
        with pytest.raises(JournalError, match="expected the position of the sink and what was"):
            FoldedSink(out, reduction, state)
    folding = FoldedSink(out, reduction, position_of_fold(place, []))
    folding.write(0, "a")
    folding.write(1, "b")
    state = folding.commit()
    assert state == position_of_fold(place, ["ab"])
    assert pickle.loads(state[8 + len(place) :]) == ["ab"]
    folding.end()
    assert folding.commit() == position_of_fold(b"3", None)
    out.close()
    assert Path("out.txt").read_text() == "ab\n"


def test_a_journal_of_the_former_format_is_refused() -> None:
    with ex.Manager(ex.FlatMap(few), ex.ParDegree(1)) as manager:
        manager.run(range(9), ex.JsonLines("out.jsonl"), journal="run.journal")
        before = Path("out.jsonl").read_bytes()
        contents = bytearray(Path("run.journal").read_bytes())
        place = contents.index(b"\x1a\n") + 2
        assert contents[place : place + 4] == (2).to_bytes(4, "little")
        contents[place] = 1
        Path("run.journal").write_bytes(contents)
        with pytest.raises(JournalError, match="format 1, expected 2; finish the run with"):
            manager.run(range(9), ex.JsonLines("out.jsonl"), journal="run.journal")
    assert Path("out.jsonl").read_bytes() == before


def test_a_run_takes_whole_items_alone() -> None:
    written: list[Any] = []

    def opened() -> _core.Run:
        return _core.Run("run.journal", ("p", "s", "k"), lambda: b"0", False, True)

    run = opened()
    run.start(lambda index, value: written.append((index, value)), lambda: b"%d" % len(written))
    run.take(0, 0, "a")
    assert run.is_amid
    with pytest.raises(JournalError, match="amid the results of item 0"):
        run.commit()
    run.close()
    run = opened()
    assert (run.next, run.results, run.position) == (0, 0, b"0")
    run.start(lambda index, value: written.append((index, value)), lambda: b"%d" % len(written))
    run.take(0, 0, "a")
    run.take(3, 2, None)
    assert not run.is_amid
    run.commit()
    with pytest.raises(JournalError, match="a second result of item 2"):
        run.take(2, 0, "b")
    run.close()
    run = opened()
    assert (run.next, run.results, run.skipped, run.position) == (3, 1, 1, b"2")
    run.close()


def test_slices_of_what_has_no_length() -> None:
    slices = StreamedSlices(iter(range(100, 3000)), 2, 100)
    sizes = []
    for number, (start, piece) in enumerate(slices):
        assert piece == [*range(start, start + len(piece))]
        sizes.append(len(piece))
        assert slices.place(number) == (start, len(piece))
        slices.measured(len(piece), 1e-6 * len(piece))
    assert sum(sizes) == 2900
    assert slices.are_over
    assert sizes[:4] == [1, 1, 2, 2]
    assert max(sizes) <= 1024
    # What is large travels alone.
    assert [len(piece) for _, piece in StreamedSlices(iter([b"x" * 70_000] * 3), 1)] == [1, 1, 1]


@pytest.mark.parametrize("name", ["many", "fold", "serial_fold"])
def test_killed_managers_leave_each_result_once(tmp_path: Path, name: str) -> None:
    assert soak_runs.kill_runs(3, 1, tmp_path, items=300, names=[name]) >= 3
