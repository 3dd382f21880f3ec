"""Runs whose journal or sink was damaged, emptied or removed, or whose sink refuses a result."""

from __future__ import annotations

import errno
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

import exoskel as ex
from exoskel.errors import JournalError


def add(left: int, right: int) -> int:
    return left + right


def damaged(whole: bytes) -> Iterator[bytes]:
    yield b"\0" + whole[1:]
    yield whole[:21] + b"\0" + whole[22:]
    yield bytes(4096) + whole[4096:]
    yield b""
    yield bytes(4096)


def test_the_journal_of_another_run_is_no_sink(failing: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    failing.run(range(4), ex.JsonLines(out), journal=journal)
    before = journal.read_bytes()
    for sink in (ex.JsonLines(journal), ex.Lines(journal), ex.Records(journal, "i8")):
        with pytest.raises(JournalError, match=r"run\.journal is the journal of a run"):
            failing.run(range(4), sink)
        other = tmp_path / "other.journal"
        with pytest.raises(JournalError, match=r"run\.journal is the journal of a run"):
            failing.run(range(4), sink, journal=other)
        assert not other.exists()
    assert journal.read_bytes() == before
    # Texts may begin with such words.
    commands = tmp_path / "commands.txt"
    commands.write_text("exoskel run journal\n")
    assert failing.run(["exoskel run job.py:f"], ex.Lines(commands)).results == 1


def test_a_run_with_results_is_not_begun_anew(failing: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    with pytest.raises(ValueError, match="got a five"):
        failing.run(range(20), ex.JsonLines(out), journal=journal)
    before = out.read_bytes()
    assert before.split() == [b"0", b"1", b"2", b"3", b"4"]
    for contents in damaged(journal.read_bytes()):
        journal.write_bytes(contents)
        expected = "is damaged at byte" if contents else r"nothing is in the journal .* isn't empty"
        with pytest.raises(JournalError, match=expected):
            failing.run(range(20), ex.JsonLines(out), journal=journal)
        assert (journal.read_bytes(), out.read_bytes()) == (contents, before)


def test_what_is_cut_off_a_sink_is_told(
    failing: ex.Manager, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    for _ in range(2):
        with pytest.raises(ValueError, match="got a five"):
            failing.run(range(20), ex.JsonLines(out), journal=journal)
    assert not caplog.records
    with out.open("a") as file:
        file.write("a note\n")
    with pytest.raises(ValueError, match="got a five"):
        failing.run(range(20), ex.JsonLines(out), journal=journal)
    (record,) = caplog.records
    assert f"cut 7 bytes off the end of {out}, which its journal" in record.getMessage()
    assert out.read_text() == "0\n1\n2\n3\n4\n"


def test_a_sink_that_is_gone_is_not_made_anew(failing: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    with pytest.raises(ValueError, match="got a five"):
        failing.run(range(20), ex.JsonLines(out), journal=journal)
    out.unlink()
    with pytest.raises(JournalError, match=r"got 0 bytes in .*out.jsonl, expected at least the 10"):
        failing.run(range(20), ex.JsonLines(out), journal=journal)
    assert not out.exists()


def test_an_empty_journal_beside_an_empty_sink_is_begun(
    manager: ex.Manager, tmp_path: Path
) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    journal.touch(mode=0o600)
    assert manager.run(range(3), ex.JsonLines(out), journal=journal) == ex.RunSummary(3, 0, 0)
    assert out.read_bytes() == b"0\n2\n4\n"


def test_a_run_whose_journal_is_lost_does_not_append(manager: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    manager.run(range(3), ex.JsonLines(out), journal=journal)
    journal.unlink()
    with pytest.raises(JournalError, match=r"there is no journal .* isn't empty .*out.jsonl"):
        manager.run(range(3), ex.JsonLines(out), journal=journal)
    assert (out.read_bytes(), journal.exists()) == (b"0\n2\n4\n", False)
    # Without a journal, results are appended.
    manager.run([3], ex.JsonLines(out))
    assert out.read_bytes() == b"0\n2\n4\n6\n"
    out.unlink()
    assert manager.run(range(3), ex.JsonLines(out), journal=journal) == ex.RunSummary(3, 0, 0)


def test_a_reduction_whose_journal_is_lost_does_not_append(tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    out.write_text("1\n")
    with (
        ex.Manager(ex.Reduce(add), ex.ParDegree(1)) as manager,
        pytest.raises(JournalError, match=r"there is no journal .* isn't empty"),
    ):
        manager.run(range(10), ex.JsonLines(out), journal=journal)
    assert (out.read_text(), journal.exists()) == ("1\n", False)


class Silent(ex.JsonLines):
    """A sink that doesn't say whether it is empty, as one of the user's own."""

    is_empty = None  # type: ignore[assignment]


def test_a_sink_that_does_not_say_whether_it_is_empty_may_hold_something(
    manager: ex.Manager, tmp_path: Path
) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    out.write_text("a title\n")
    manager.run(range(2), Silent(out), journal=journal)
    assert out.read_text() == "a title\n0\n2\n"
    journal.write_bytes(b"")
    with pytest.raises(JournalError, match="nothing is in the journal"):
        manager.run(range(2), Silent(out), journal=journal)


def test_a_finished_run_checks_its_sink(manager: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    sink = ex.JsonLines(out)
    manager.run(range(10), sink, journal=journal)
    whole = out.read_bytes()
    assert manager.run(range(10), sink, journal=journal) == ex.RunSummary(10, 0, 10)
    out.write_bytes(whole + b"more\n")
    assert manager.run(range(10), sink, journal=journal) == ex.RunSummary(10, 0, 10)
    assert out.read_bytes() == whole + b"more\n"
    out.write_bytes(whole[:-1])
    with pytest.raises(JournalError, match=r"got 24 bytes in .*out.jsonl, expected at least the"):
        manager.run(range(10), sink, journal=journal)
    out.unlink()
    with pytest.raises(JournalError, match=r"out.jsonl is not there, but its journal says"):
        manager.run(range(10), sink, journal=journal)
    assert not out.exists()


def test_a_finished_reduction_checks_its_sink(tmp_path: Path) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    with ex.Manager(ex.Reduce(add), ex.ParDegree(1)) as manager:
        manager.run(range(10), ex.JsonLines(out), journal=journal)
        assert out.read_bytes() == b"45\n"
        assert manager.run(range(10), ex.JsonLines(out), journal=journal).earlier == 10
        out.write_bytes(b"")
        with pytest.raises(JournalError, match="got 0 bytes in"):
            manager.run(range(10), ex.JsonLines(out), journal=journal)


def contents(item: int) -> bytes:
    return b"x" * item


def test_a_finished_run_checks_its_folder(tmp_path: Path) -> None:
    folder, journal = tmp_path / "out", tmp_path / "run.journal"
    with ex.Manager(contents, ex.ParDegree(1)) as manager:
        journal.touch(mode=0o600)
        # No result has such a name.
        folder.mkdir()
        (folder / ".gitkeep").touch()
        manager.run(range(3), ex.Files(folder), journal=journal)
        assert manager.run(range(3), ex.Files(folder), journal=journal).earlier == 3
        (folder / "00000002").unlink()
        with pytest.raises(JournalError, match="00000002 is not there"):
            manager.run(range(3), ex.Files(folder), journal=journal)
        journal.write_bytes(b"")
        with pytest.raises(JournalError, match=r"nothing is in the journal .* isn't empty"):
            manager.run(range(3), ex.Files(folder), journal=journal)


def test_a_refused_run_leaves_nothing_behind(manager: ex.Manager, tmp_path: Path) -> None:
    journal = tmp_path / "run.journal"
    manager.run(range(3), ex.JsonLines(tmp_path / "a.jsonl"), journal=journal)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(JournalError, match="the sink is not the one"):
        manager.run(range(3), ex.JsonLines(tmp_path / "b.jsonl"), journal=journal)
    with pytest.raises(JournalError, match="the sink is not the one"):
        manager.run(range(3), ex.Files(tmp_path / "b"), journal=journal)
    assert sorted(tmp_path.iterdir()) == before


class Refusing(ex.JsonLines):
    """A sink that refuses one result, as long as it is told to, and opens a gate when something is committed."""

    refused: int | None = None
    why: BaseException
    gate: Path

    def write(self, index: int, result: Any) -> None:
        """Append a line."""
        if result == self.refused:
            raise self.why
        super().write(index, result)

    def commit(self) -> bytes:
        """Make all lines durable."""
        self.gate.touch()
        return super().commit()


@pytest.mark.parametrize(
    ("why", "kept"),
    [
        (ValueError("no value for me"), 0),
        (OSError(errno.EEXIST, "a file of this name is there"), 0),
        (OSError("no number"), 0),
        (OSError(errno.ENOSPC, "no room"), 1),
        (MemoryError("no memory"), 1),
        (KeyboardInterrupt(), 1),
    ],
    ids=lambda given: type(given).__name__,
)
def test_an_early_result_that_the_sink_refuses_is_made_again(
    why: BaseException, kept: int, tmp_path: Path
) -> None:
    """Aim: a refused early result doesn't end all runs of its journal; one that could not be written just then is kept.

    Method: item 0 waits until a commit has item 1 in the journal.
    """
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    sink = Refusing(out)
    sink.gate = tmp_path / "gate"
    sink.why = why
    items = [str(sink.gate), "1"]
    with ex.Manager(wait_for_gate, ex.ParDegree(2)) as manager:
        sink.refused = 1
        with pytest.raises(type(why)) as raised:
            manager.run(items, sink, journal=journal)
        assert raised.value is why
        sink.refused = None
        summary = manager.run(items, sink, journal=journal)
    # An item whose result was refused for what it is isn't done, and runs again.
    assert (summary.results, summary.earlier) == (2, kept)
    assert [json.loads(line) for line in out.read_text().splitlines()] == [0, 1]


def wait_for_gate(item: str) -> int:
    if item.isdigit():
        return int(item)
    while not Path(item).exists():
        time.sleep(0.02)
    return 0


def test_numpy_integers_are_numbers_of_json(tmp_path: Path) -> None:
    sink = ex.JsonLines(tmp_path / "out.jsonl")
    sink.rewind(None)
    for index, result in enumerate([numpy.int64(7), {"n": [numpy.uint8(255), numpy.float64(0.5)]}]):
        sink.write(index, result)
    with pytest.raises(TypeError, match="got an instance of ndarray, expected numbers"):
        sink.write(2, numpy.zeros(2))
    sink.commit()
    sink.close()
    assert (tmp_path / "out.jsonl").read_text() == '7\n{"n": [255, 0.5]}\n'
