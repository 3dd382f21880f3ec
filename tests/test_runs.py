"""Runs: sources and sinks of every kind, and journals that let a run go on after any end."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import datetime
import itertools
import json
import operator
import os
import pickle
import random
import re
import sqlite3
import stat
import subprocess
import sys
import textwrap
import threading
import time
import types
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
from tests import soak_runs
from tests.run_programs import no_fives, twice

import exoskel as ex
from exoskel import _core
from exoskel.errors import JournalError
from exoskel.program_text import program_text
from exoskel.sources import DIGEST_BYTES_MAX, file_text, source_of


def exoskel(*words: str, cwd: Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "exoskel", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=check)


def numbers_in(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("kind", [ex.JsonLines, ex.Lines])
def test_a_line_of_others_without_an_end_gets_one(tmp_path: Path, kind: type[ex.JsonLines]) -> None:
    out = tmp_path / "out"
    for before, after in ((b"", "a b "), (b"2", "2 a b "), (b"2\n", "2 a b ")):
        out.write_bytes(before)
        sink = kind(out)
        sink.rewind(None)
        for index, text in enumerate("ab"):
            sink.write(index, text)
        sink.commit()
        sink.close()
        assert out.read_text().replace('"', "").replace("\n", " ") == after
    out.write_bytes(b"2")
    sink = kind(out)
    position = sink.rewind(None)
    sink.commit()
    # Nothing was written.
    assert out.read_bytes() == b"2"
    sink.rewind(position)
    sink.write(0, "a")
    sink.commit()
    sink.close()
    assert out.read_text().replace('"', "") == "2\na\n"


def test_a_run_appends_results_in_order(manager: ex.Manager, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    for _ in range(2):
        summary = manager.run(range(300), ex.JsonLines(out))
        assert summary == ex.RunSummary(300, 0, 0)
    assert numbers_in(out) == [*range(0, 600, 2)] * 2


def test_a_finished_run_is_not_run_again(manager: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    assert manager.run(range(300), ex.JsonLines(out), journal=journal) == ex.RunSummary(300, 0, 0)
    assert stat.S_IMODE(journal.stat().st_mode) == 0o600
    before = journal.read_bytes()
    again = manager.run(range(300), ex.JsonLines(out), journal=journal)
    assert again == ex.RunSummary(300, 0, 300)
    assert str(again) == "300 results, 300 done by earlier runs"
    assert numbers_in(out) == [*range(0, 600, 2)]
    assert len(before) > 4096


def test_an_exception_ends_a_run_which_goes_on_there(failing: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    for _ in range(2):
        with pytest.raises(ValueError, match="got a five") as raised:
            failing.run(range(20), ex.JsonLines(out), journal=journal)
        # It is named by its own index, also when the run did not begin with the first item.
        assert "item 5: 5" in raised.value.__notes__
    assert numbers_in(out) == [*range(5)]
    with ex.Manager(no_fives, ex.ParDegree(2)) as another:
        summary = another.run(range(20), ex.JsonLines(out), journal=journal, errors="skip")
    assert (summary.results, summary.skipped) == (19, 1)
    assert numbers_in(out) == [number for number in range(20) if number != 5]


def test_exceptions_can_be_skipped(
    failing: ex.Manager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "out.jsonl"
    for journal in (None, tmp_path / "run.journal"):
        out.unlink(missing_ok=True)
        caplog.clear()
        summary = failing.run(range(9), ex.JsonLines(out), journal=journal, errors="skip")
        assert summary == ex.RunSummary(8, 1, 0)
        assert "skipped item 5: 5: ValueError: got a five" in caplog.text
        assert 5 not in numbers_in(out)


def test_what_has_changed_is_refused(manager: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    manager.run(range(10), ex.JsonLines(out), journal=journal)
    before = out.read_bytes()
    with pytest.raises(
        JournalError, match=r"the source is not .* got range\(0, 11\), expected range\(0, 10\)"
    ):
        manager.run(range(11), ex.JsonLines(out), journal=journal)
    with pytest.raises(JournalError, match="the sink is not"):
        manager.run(range(10), ex.JsonLines(tmp_path / "other.jsonl"), journal=journal)
    with (
        ex.Manager(no_fives, ex.ParDegree(1)) as another,
        pytest.raises(JournalError, match=r"the program is not .*no_fives.*twice"),
    ):
        another.run(range(10), ex.JsonLines(out), journal=journal)
    assert out.read_bytes() == before


def test_a_sink_that_was_cut_is_refused(failing: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    with pytest.raises(ValueError, match="got a five"):
        failing.run(range(20), ex.JsonLines(out), journal=journal)
    out.write_bytes(b"")
    with pytest.raises(JournalError, match=r"got 0 bytes in .*out.jsonl, expected at least"):
        failing.run(range(20), ex.JsonLines(out), journal=journal)


def test_a_pipe_cannot_be_a_sink_with_a_journal(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text("def twice(item):\n    return 2 * item\nnumbers = range(5)\n")
    words = ["run", f"{job}:twice", "--source", "numbers", "--sink", "jsonl:-", "--slots", "1"]
    done = exoskel(*words, cwd=tmp_path)
    assert done.stdout.split() == ["0", "2", "4", "6", "8"]
    refused = exoskel(*words, "--journal", "run.journal", cwd=tmp_path, check=False)
    assert refused.returncode == 1
    assert "standard output is a pipe or a terminal, which can't be cut back" in refused.stderr
    assert not (tmp_path / "run.journal").exists()


def test_two_runs_at_once_are_refused(manager: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    began, may_end = threading.Event(), threading.Event()

    def items() -> Iterator[int]:
        began.set()
        may_end.wait(60)
        yield 1

    first = threading.Thread(
        target=lambda: manager.run(items(), ex.JsonLines(out), journal=journal)
    )
    with ex.Manager(twice, ex.ParDegree(1)) as another:
        first.start()
        began.wait(60)
        try:
            with pytest.raises(JournalError, match="is used by another run at this moment"):
                another.run(items(), ex.JsonLines(out), journal=journal)
        finally:
            may_end.set()
            first.join()
    assert numbers_in(out) == [2]


def test_files_that_are_no_journals_are_refused(manager: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "notes.txt"
    journal.write_text("do not touch\n")
    with pytest.raises(JournalError, match="no journal of a run"):
        manager.run(range(3), ex.JsonLines(out), journal=journal)
    assert journal.read_text() == "do not touch\n"
    with pytest.raises(FileNotFoundError):
        manager.run(range(3), ex.JsonLines(out), journal=tmp_path / "nowhere" / "run.journal")


def test_a_damaged_journal_names_the_place(failing: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    with pytest.raises(ValueError, match="got a five"):
        failing.run(range(20), ex.JsonLines(out), journal=journal)
    whole = journal.read_bytes()
    damaged = whole[:30] + b"!" + whole[31:]
    journal.write_bytes(damaged)
    before = out.read_bytes()
    with pytest.raises(JournalError, match="damaged at byte 30 "):
        failing.run(range(20), ex.JsonLines(out), journal=journal)
    assert (journal.read_bytes(), out.read_bytes()) == (damaged, before)


def test_a_full_disk_ends_a_run_which_goes_on_when_there_is_room(tmp_path: Path) -> None:
    """Aim: nothing is lost or doubled. Method: a limit on the size of files in the middle of a run, and a run without."""
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent(
            """
            import resource, signal, sys
            import exoskel as ex

            def wide(item):
                return f"{item:0100}"

            if __name__ == "__main__":
                limit = int(sys.argv[1])
                with ex.Manager(wide, ex.ParDegree(2)) as manager:
                    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                    if limit:
                        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                    print(manager.run(range(40_000), ex.JsonLines("out.jsonl"), journal="run.journal"))
            """
        )
    )

    def run(limit: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, script, str(limit)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    full = run(2_500_000)
    assert full.returncode == 1
    # The sink or the journal, whichever comes first.
    assert "OSError" in full.stderr
    assert "File too large; what is done is kept: make room" in full.stderr
    done = run(0)
    assert done.returncode == 0, done.stderr
    lines = (tmp_path / "out.jsonl").read_text().splitlines()
    assert lines == [json.dumps(f"{item:0100}") for item in range(40_000)]


def test_killed_managers_leave_each_result_once(tmp_path: Path) -> None:
    """Aim: the sink is that of a run that nobody has killed. Method: some of what `make soak-runs` does."""
    assert soak_runs.kill_runs(kills=3, seed=1, folder=tmp_path, names=["one"]) >= 3


async def counted(count: int) -> AsyncIterator[int]:
    for number in range(count):
        await asyncio.sleep(0)
        yield number


def test_an_async_iterable_is_a_source(manager: ex.Manager, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    manager.run(counted(300), ex.JsonLines(out), journal=tmp_path / "run.journal")
    assert numbers_in(out) == [*range(0, 600, 2)]


def test_map_reads_an_async_iterable(manager: ex.Manager) -> None:
    assert list(manager.map(counted(300))) == [*range(0, 600, 2)]
    with ex.Manager(ex.Reduce(operator.add), ex.ParDegree(1)) as folding:
        assert list(folding.map(counted(10))) == [45]


def test_an_async_iterable_is_closed_with_its_stream(manager: ex.Manager) -> None:
    closed: list[str] = []

    async def endless() -> AsyncIterator[int]:
        try:
            for number in itertools.count():
                yield number
        finally:
            closed.append("closed")

    stream: Any = manager.map(endless())
    assert next(stream) == 0
    stream.close()
    del stream
    assert closed == ["closed"]


def test_an_async_iterable_is_closed_when_a_run_ends(failing: ex.Manager, tmp_path: Path) -> None:
    closed: list[str] = []

    async def endless() -> AsyncIterator[int]:
        try:
            number = 0
            while True:
                yield number
                number += 1
                await asyncio.sleep(0)
        finally:
            closed.append("closed")

    with pytest.raises(ValueError, match="got a five"):
        failing.run(endless(), ex.JsonLines(tmp_path / "out.jsonl"))
    assert closed == ["closed"]


def test_a_source_with_too_few_items_is_refused(failing: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"

    def given(count: int, *, breaks: bool) -> Iterator[int]:
        yield from range(count)
        if breaks:
            raise KeyError("stop")

    with pytest.raises(KeyError):
        failing.run(given(5, breaks=True), ex.JsonLines(out), journal=journal)
    assert numbers_in(out) == [*range(5)]
    with pytest.raises(JournalError, match="the source gives 3 items, expected at least the 5"):
        failing.run(given(3, breaks=False), ex.JsonLines(out), journal=journal)


def test_records_are_arrays_in_both_directions(manager: ex.Manager, tmp_path: Path) -> None:
    scan = numpy.arange(60, dtype="f4").reshape(10, 2, 3)
    (tmp_path / "scan.raw").write_bytes(scan.tobytes())
    source = ex.Records(tmp_path / "scan.raw", "f4", (2, 3))
    sink = ex.Records(tmp_path / "out.raw", "f4", (2, 3))
    assert source.count() == 10
    assert manager.run(source, sink, journal=tmp_path / "run.journal").results == 10
    assert numpy.array_equal(numpy.fromfile(tmp_path / "out.raw", "f4"), 2 * scan.ravel())
    with pytest.raises(ValueError, match="got a result of <f4"):
        manager.run(source, ex.Records(tmp_path / "out.raw", "f8", (2, 3)))
    with pytest.raises(ValueError, match="whole records of 28 bytes"):
        manager.run(ex.Records(tmp_path / "scan.raw", "f4", 7), sink)


def shouted(file: ex.File) -> tuple[str, bytes]:
    return f"{file.name}.loud", file.contents.upper()


def test_files_are_items_and_results(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("b.txt", "a.txt", ".hidden", "c.csv"):
        (tmp_path / "in" / name).write_text(f"this is {name}")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".plain.a1.5.exoskel-part").write_text("of a run that was killed")
    summary = ex.run(
        shouted,
        ex.Files(tmp_path / "in", "*.txt"),
        ex.Files(tmp_path / "out", names="result"),
        ex.ParDegree(2),
        journal=tmp_path / "run.journal",
    )
    assert summary.results == 2
    found = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    assert found == {"a.txt.loud": "THIS IS A.TXT", "b.txt.loud": "THIS IS B.TXT"}


def test_the_name_of_a_file_stays_in_its_folder(tmp_path: Path) -> None:
    sink = ex.Files(tmp_path / "out", names="result")
    sink.rewind(None)
    for name in ("../out.txt", "", "..", "a/b", ".bashrc"):
        with pytest.raises(ValueError, match="expected one without folders"):
            sink.write(0, (name, b""))
    with pytest.raises(TypeError, match="expected bytes or text"):
        sink.write(0, ("name", 5))


def test_lines_say_which_one_is_wrong(manager: ex.Manager, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('1\n\n{"a":\n')
    with pytest.raises(
        ValueError, match=r"line 3 of .*in.jsonl: .* expected a JSON value in each line"
    ):
        manager.run(ex.JsonLines(tmp_path / "in.jsonl"), ex.JsonLines(tmp_path / "out.jsonl"))
    (tmp_path / "in.txt").write_text("one\n\ntwo")
    manager.run(ex.Lines(tmp_path / "in.txt"), ex.Lines(tmp_path / "out.txt"))
    assert (tmp_path / "out.txt").read_text() == "oneone\n\ntwotwo\n"
    with pytest.raises(TypeError, match="got int as a line") as raised:
        manager.run([1], ex.Lines(tmp_path / "out.txt"))
    assert "item 0" in raised.value.__notes__[0]


def test_a_sink_that_is_removed_while_a_run_writes_to_it_is_told_of(
    manager: ex.Manager, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"

    def items(*, replaces: bool) -> Iterator[int]:
        yield from range(3)
        out.unlink()
        if replaces:
            out.write_text("another file")
        yield 3

    for journal in (None, tmp_path / "run.journal"):
        source = items(replaces=journal is None)
        with pytest.raises(FileNotFoundError, match="moved, removed or replaced while") as raised:
            manager.run(source, ex.JsonLines(out), journal=journal)
        assert raised.value.filename == str(out)
        out.unlink(missing_ok=True)


def test_two_runs_do_not_write_to_one_sink(manager: ex.Manager, tmp_path: Path) -> None:
    out = tmp_path / "out.txt"
    first, second = ex.Lines(out), ex.JsonLines(out)
    first.rewind(None)
    first.write(0, "mine")
    for journal in (None, tmp_path / "run.journal"):
        with pytest.raises(BlockingIOError, match="another run has this sink") as raised:
            manager.run(range(3), ex.JsonLines(out), journal=journal)
        assert raised.value.filename == str(out)
    # A process that is forked meanwhile takes nobody's lock away.
    child = os.fork()
    if child == 0:
        first.close()
        os._exit(0)
    os.waitpid(child, 0)
    with pytest.raises(BlockingIOError):
        second.rewind(None)
    first.commit()
    first.close()
    assert out.read_text() == "mine\n"
    manager.run(range(3), second)
    assert out.read_text() == "mine\n0\n2\n4\n"


def test_a_sink_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    sink = ex.JsonLines("out.jsonl")
    sink.rewind(None)
    monkeypatch.chdir(tmp_path / "elsewhere")
    sink.write(0, 1)
    sink.commit()
    # Nobody closes it.
    del sink
    assert not (tmp_path / "elsewhere" / "out.jsonl").exists()
    other = ex.JsonLines(tmp_path / "out.jsonl")
    other.rewind(None)
    other.close()


def test_a_folder_may_be_source_and_sink(tmp_path: Path) -> None:
    (tmp_path / "a.in").write_text("a")
    source, sink = ex.Files(tmp_path, "*.in"), ex.Files(tmp_path, name="{}.out".format)
    with ex.Manager(read_file, ex.ParDegree(1)) as manager:
        manager.run(source, sink, journal=tmp_path.parent / "run.journal")
        assert (tmp_path / "0.out").read_text() == "a"
        with pytest.raises(JournalError, match="its sink isn't empty"):
            manager.run(source, sink, journal=tmp_path.parent / "other.journal")


def test_json_takes_the_scalars_of_numpy(tmp_path: Path) -> None:
    values = [numpy.float32(0.5), numpy.float64(0.25), numpy.int16(7), numpy.bool_(True)]
    sink = ex.JsonLines(tmp_path / "out.jsonl")
    sink.rewind(None)
    for index, value in enumerate(values):
        sink.write(index, [value])
    sink.commit()
    sink.close()
    assert (tmp_path / "out.jsonl").read_text().split() == ["[0.5]", "[0.25]", "[7]", "[true]"]


def test_what_is_no_sink_says_where_it_belongs() -> None:
    with pytest.raises(TypeError, match=r"expected it as the contract: .*contract=ParDegree\(3\)"):
        ex.run(abs, [1], ex.ParDegree(3))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got name='\{\}.up', expected a function"):
        ex.Files("out", name="{}.up")  # type: ignore[arg-type]


def read_file(file: ex.File) -> bytes:
    return file.contents


def first_waits(item: int) -> int:
    if item == 0:
        time.sleep(1.0)
    return item


def test_results_do_not_come_too_early(tmp_path: Path) -> None:
    """Aim: a slow item doesn't let the journal grow without a limit. Method: count what is asked of the source before its result."""
    given = 0
    given_at_first: list[int] = []

    def numbers() -> Iterator[int]:
        nonlocal given
        for number in range(70_000):
            given = number
            yield number

    class Counting(ex.JsonLines):
        def write(self, index: int, result: Any) -> None:
            if index == 0:
                given_at_first.append(given)
            super().write(index, result)

    out = tmp_path / "out.jsonl"
    with ex.Manager(first_waits, ex.ParDegree(2)) as manager:
        manager.run(numbers(), Counting(out), journal=tmp_path / "run.journal")
    assert numbers_in(out) == [*range(70_000)]
    assert given_at_first[0] <= 65_536


def test_run_without_a_sink_returns_the_results() -> None:
    assert ex.run(twice, [1, 2, 3], contract=ex.ParDegree(1)) == [2, 4, 6]
    with pytest.raises(TypeError, match="a journal without a sink"):
        ex.run(twice, [1], journal="run.journal")  # type: ignore[call-overload,unused-ignore]


def test_a_program_has_a_meaning_without_a_manager() -> None:
    program = ex.Pipeline(twice, ex.Seq(no_fives), ex.Farm(ex.Pipeline(twice, twice)))
    assert list(program.run_sequential(range(3))) == [0, 8, 16]
    with pytest.raises(ValueError, match="got a five") as raised:
        list(ex.Farm(no_fives).run_sequential([4, 5]))
    assert raised.value.__notes__ == ["item 1: 5"]


def test_wrong_arguments_are_told(manager: ex.Manager, tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="as the source, expected an iterable"):
        manager.run(5, ex.JsonLines(tmp_path / "out.jsonl"))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got the text 'in.jsonl' as the source"):
        manager.run("in.jsonl", ex.JsonLines(tmp_path / "out.jsonl"))
    with pytest.raises(TypeError, match="as the sink, expected one such as"):
        manager.run([5], "out.jsonl")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match='expected "raise" or "skip"'):
        manager.run([5], ex.JsonLines(tmp_path / "out.jsonl"), errors="keep")  # type: ignore[arg-type]


FACTOR = 2


def scaled(item: int) -> int:
    return FACTOR * item


def in_closure(factor: int) -> Any:
    def times(item: int) -> int:
        return factor * item

    return times


def test_the_text_of_a_program_changes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def text(function: Any) -> str:
        return program_text(("shown",), [function], [])

    assert text(in_closure(2)) == text(in_closure(2))
    assert text(in_closure(2)) != text(in_closure(3))
    monkeypatch.setattr(scaled, "__module__", "__main__")
    before = text(scaled)
    assert before == text(scaled)
    monkeypatch.setitem(scaled.__globals__, "FACTOR", 3)
    assert text(scaled) != before


class Adds:
    """A function with a value."""

    def __init__(self, number: Any) -> None:
        self.number = number


class AttributesOf(dict[str, int]):
    """A dict whose items are attributes, and which says so badly."""

    def __getattr__(self, name: str) -> int:
        return self[name]


class Knot:
    """Values that refer to each other."""

    others: set[Knot]

    def __init__(self, number: int) -> None:
        self.number = number


def nested(number: Any) -> Any:
    for _ in range(5000):
        number = [number]
    return number


def knots(number: int) -> list[Knot]:
    both = [Knot(0), Knot(number)]
    for knot in both:
        knot.others = set(both)
    return both


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (lambda: 2, lambda: 3),
        (lambda: numpy.arange(3), lambda: numpy.arange(1, 4)),
        (lambda: {"a": numpy.zeros(2)}, lambda: {"a": numpy.ones(2)}),
        (lambda: numpy.float32(2), lambda: numpy.float32(3)),
        (lambda: {"one", "two", "three"}, lambda: {"one", "two", "four"}),
        (lambda: frozenset({1}), lambda: frozenset({2})),
        (lambda: 10**5000, lambda: 10**5000 + 1),
        (lambda: "a".join, lambda: "b".join),
        (
            lambda: numpy.array(["2020-01-01"], "M8[D]"),
            lambda: numpy.array(["2020-01-02"], "M8[D]"),
        ),
        (lambda: numpy.ones(2, numpy.longdouble), lambda: numpy.zeros(2, numpy.longdouble)),
        (
            lambda: numpy.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
            lambda: numpy.array([(1, 3.0)], [("a", "i4"), ("b", "f8")]),
        ),
        (lambda: AttributesOf(a=1), lambda: AttributesOf(a=2)),
        (
            lambda: numpy.ma.masked_array([1, 2], [False, True]),
            lambda: numpy.ma.masked_array([1, 2], [True, False]),
        ),
        (lambda: collections.defaultdict(int, a=1), lambda: collections.defaultdict(int, a=2)),
        (lambda: Path("a"), lambda: Path("b")),
        (lambda: Decimal("1.0"), lambda: Decimal("1.1")),
        (lambda: re.compile("a"), lambda: re.compile("b")),
        (lambda: datetime.date(2020, 1, 1), lambda: datetime.date(2020, 1, 2)),
        (lambda: collections.deque([1]), lambda: collections.deque([2])),
        (lambda: collections.OrderedDict(a=1), lambda: collections.OrderedDict(a=2)),
        (lambda: Adds(2), lambda: Adds(3)),
        (lambda: Adds(numpy.zeros(2)), lambda: Adds(numpy.ones(2))),
        (lambda: partial(scaled, 2), lambda: partial(scaled, 3)),
        (lambda: [[1, 2], (3,)], lambda: [[1, 2], (4,)]),
        (lambda: knots(1), lambda: knots(2)),
        (lambda: [scaled, numbers_in, scaled], lambda: [scaled, numbers_in, numbers_in]),
        (
            lambda: [(n, n) for n in range(200_000)],
            lambda: [(n, n) for n in range(199_999)] + [(0, 0)],
        ),
        (lambda: nested(2), lambda: nested(3)),
        (lambda: {"a": 1}.get, lambda: {"a": 2}.get),
        (lambda: {"a": 1}.values(), lambda: {"a": 2}.values()),
        (lambda: types.MappingProxyType({"a": 1}), lambda: types.MappingProxyType({"a": 2})),
        (lambda: bytearray(b"a"), lambda: memoryview(b"b")),
    ],
)
def test_the_text_of_a_program_changes_with_its_values(
    monkeypatch: pytest.MonkeyPatch, value: Any, other: Any
) -> None:
    def text() -> str:
        return program_text(("shown",), [scaled], [])

    monkeypatch.setattr(scaled, "__module__", "__main__")
    texts = []
    for held in (value(), value(), other()):
        monkeypatch.setitem(scaled.__globals__, "FACTOR", held)
        texts.append(text())
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]
    # An error can say which it is.
    assert texts[0].split(", ")[:2] == texts[2].split(", ")[:2]
    assert texts[2].split(", ")[2].startswith("__main__.FACTOR ")


def test_what_holds_random_numbers_or_locks_is_no_other_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scaled, "__module__", "__main__")
    endless: list[Any] = []
    endless.append(endless)
    for makes in (
        numpy.random.default_rng,
        random.Random,
        threading.Lock,
        lambda: endless,
    ):
        texts = []
        for _ in range(2):
            monkeypatch.setitem(scaled.__globals__, "FACTOR", makes())
            texts.append(program_text(("shown",), [scaled], []))
        assert texts[0] == texts[1]


PROGRAM_THAT_GOES_ON = """
import functools, re, sys
import numpy
import exoskel as ex

class Adds:
    def __init__(self, number):
        self.number = number

    def __call__(self, item):
        return item + self.number

def add(number, item):
    return number + item

class Names(set):
    pass

class Node:
    def __init__(self, number):
        self.number = number
        self.beside = set()

    def limit(self):
        return LIMITS[type(self).__name__]

NODES = {Node(number) for number in range(50)}
for node in NODES:
    node.beside = NODES - {node}
LIMITS = {"Node": 2}

STEPS = {"one", "two", "three", "four", "five"}
NAMES = Names(STEPS)
IS_NAME = lambda name: name in {"one", "two", "three", "four"}
OFFSETS = numpy.arange(int(sys.argv[1]))

def offset(item):
    return int(item + OFFSETS.sum() + len(STEPS) + len(NAMES) + len(NODES) + IS_NAME("one"))

program = ex.Pipeline(functools.partial(add, 1), Adds(2), offset, functools.partial(numpy.dot, 1))
if __name__ == "__main__":
    print(ex.run(program, range(10), ex.Lines("out.txt"), journal="run.journal", contract=ex.ParDegree(1)))
"""


def test_a_program_of_partials_and_instances_goes_on_in_another_process(tmp_path: Path) -> None:
    script = tmp_path / "goes_on.py"
    script.write_text(PROGRAM_THAT_GOES_ON.replace("ex.Lines", "ex.JsonLines"))

    def said(count: int) -> str:
        command = [sys.executable, str(script), str(count)]
        ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return (ended.stdout + ended.stderr).strip().splitlines()[-1]

    assert said(3) == "10 results"
    assert said(3) == "10 results, 10 done by earlier runs"
    refused = said(4)
    assert "JournalError" in refused
    assert refused.count("__main__.OFFSETS ") == 2


def test_a_set_is_no_source_of_a_run_with_a_journal(manager: ex.Manager, tmp_path: Path) -> None:
    sink = ex.JsonLines(tmp_path / "out.jsonl")
    for items in ({1, 2}, frozenset({1})):
        with pytest.raises(ex.JournalError, match=r"got a (frozen)?set as the source"):
            manager.run(items, sink, journal=tmp_path / "run.journal")
    assert manager.run({1, 2}, sink).results == 2
    by_name = {"a": 1, "b": 2}
    kept = ex.JsonLines(tmp_path / "names.jsonl")
    assert manager.run(by_name.values(), kept, journal=tmp_path / "names.journal").results == 2


def test_the_text_of_a_source_changes_with_it(tmp_path: Path) -> None:
    assert source_of([1, "a"]).source_text() == source_of([1, "a"]).source_text()
    assert source_of([1, "a"]).source_text() != source_of([1, "b"]).source_text()
    assert source_of((1,)).source_text() != source_of([1]).source_text()
    assert source_of(numpy.arange(3)).source_text() != source_of(numpy.arange(1, 4)).source_text()
    assert source_of({3: 4}.keys()).source_text() == "dict_keys"
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(DIGEST_BYTES_MAX + 1)
    before = file_text(os.fspath(large))
    assert "64 blocks" in before
    os.utime(large, ns=(0, 0))
    assert file_text(os.fspath(large)) != before


def test_the_command_goes_on_too(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(
        "import exoskel as ex\n"
        "def twice(item):\n    return 2 * item\n"
        "shots = ex.Pipeline(twice)\n"
        'if __name__ == "__main__":\n    raise SystemExit("this is no script")\n'
    )
    (tmp_path / "in.jsonl").write_text("1\n2\n3\n")
    words = ["run", "job.py:shots", "--source", "in.jsonl", "--sink", "out.jsonl", "--json"]
    journal = ["--journal", "run.journal", "--slots", "1"]
    first = json.loads(exoskel(*words, *journal, cwd=tmp_path).stdout)
    again = json.loads(exoskel(*words, *journal, cwd=tmp_path).stdout)
    assert [one.pop("history")[0]["kind"] for one in (first, again)] == ["begin", "begin"]
    assert first == {"results": 3, "skipped": 0, "earlier": 0}
    assert again == {"results": 3, "skipped": 0, "earlier": 3}
    exoskel(*words, "--sequential", cwd=tmp_path)
    assert numbers_in(tmp_path / "out.jsonl") == [2, 4, 6, 2, 4, 6]
    for wrong, text in (
        (["run", "job.py", *words[2:]], "expected a Python file and a name in it"),
        (["run", "job.py:nothing", *words[2:]], "has no 'nothing'"),
        ([*words, "--sequential", *journal], "got --journal with --sequential"),
        (["run", "job.py:shots", "--source", "x", "--sink", "out.jsonl", "--json"], "got 'x'"),
    ):
        refused = exoskel(*wrong, cwd=tmp_path, check=False)
        assert refused.returncode == 2
        assert text in refused.stdout


def _append(written: list[Any], _index: int, result: Any) -> None:
    written.append(result)


def test_a_restricted_result_stays_data_in_a_journal(tmp_path: Path) -> None:
    """Aim: what came from a worker that isn't trusted is never unpickled, in a later run neither. Method: a pickle among such results."""
    pickled = pickle.dumps(print)
    record = bytes([len(pickled) << 3 & 0x7F | 0x80, len(pickled) >> 4]) + pickled
    texts = ("program", "source", "sink")
    for restricted in (0, 1):
        journal = str(tmp_path / f"{restricted}.journal")
        early = bytes([restricted, 1]) + b"w" + bytes([len(record)]) + record
        with contextlib.closing(_core.Run(journal, texts, lambda: b"0", False, False)) as run:
            run.start(lambda *_: None, lambda: b"0")
            run.take(1, 1, early)
            run.commit()
        written: list[Any] = []
        with contextlib.closing(_core.Run(journal, texts, lambda: b"0", False, False)) as run:
            assert run.early == [1]
            run.start(partial(_append, written), lambda: b"0")
            if restricted:
                with pytest.raises(
                    ex.ResultRejectedError, match="got a pickle, expected plain data"
                ):
                    run.take(0, 0, "zero")
                assert run.is_closed
                assert written == ["zero"]
            else:
                run.take(0, 0, "zero")
                assert written == ["zero", print]


def test_a_table_is_a_sink(tmp_path: Path) -> None:
    """The example of a sink of one's own, run twice."""
    example = Path(__file__).parent.parent / "examples" / "sqlite_sink.py"
    command = [sys.executable, str(example), "--folder", str(tmp_path), "--items", "50"]
    said = [subprocess.check_output(command, text=True) for _ in range(2)]
    assert said == ["50 results\n", "50 results, 50 done by earlier runs\n"]
    with contextlib.closing(sqlite3.connect(tmp_path / "roots.sqlite")) as database:
        rows = database.execute("SELECT item, value FROM result ORDER BY item").fetchall()
    assert rows == [(item, item**0.5) for item in range(50)]


@pytest.mark.parametrize("kind", [ex.JsonLines, ex.Lines])
def test_no_file_is_read_and_appended_to_at_once(
    manager: ex.Manager, tmp_path: Path, kind: type[ex.JsonLines]
) -> None:
    """Such a run would never end."""
    place, other = tmp_path / "numbers", tmp_path / "other"
    place.write_text("1\n2\n")
    other.symlink_to(place)
    with pytest.raises(ValueError, match="as the source and the sink, expected two files"):
        manager.run(kind(place), kind(other))
    assert place.read_text() == "1\n2\n"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (numpy.arange(3), r"got an instance of ndarray, .*: return array\.tolist\(\)"),
        ({1}, r"got an instance of set, .*: return sorted\(values\)"),
        ({(1, 2): 3}, r"got a dict that JSON has not \(keys must be str, .* not tuple\), expected"),
        (object(), r"got an instance of object, .*: return the data that you need from it"),
    ],
)
def test_what_json_does_not_have_says_what_to_return(
    tmp_path: Path, result: object, text: str
) -> None:
    with pytest.raises(TypeError, match=text):
        ex.JsonLines(tmp_path / "out.jsonl").write(0, result)
