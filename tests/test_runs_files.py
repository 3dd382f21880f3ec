"""The files of runs, where others could get at them, and where two runs could get at one another's."""

from __future__ import annotations

import errno
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.run_programs import no_fives, twice
from tests.test_runs import numbers_in

import exoskel as ex
from exoskel.errors import JournalError
from exoskel.sinks import Sink


@pytest.fixture
def begun(tmp_path: Path) -> Path:
    """A journal of a run that an exception has ended, with results before and behind that."""
    journal = tmp_path / "run.journal"
    with (
        ex.Manager(no_fives, ex.ParDegree(1)) as failing,
        pytest.raises(ValueError, match="got a five"),
    ):
        failing.run(range(20), ex.JsonLines(tmp_path / "out.jsonl"), journal=journal)
    return journal


def refused(journal: Path) -> str:
    """Return why a run doesn't go on by a journal."""
    with ex.Manager(no_fives, ex.ParDegree(1)) as another, pytest.raises(JournalError) as raised:
        another.run(range(20), ex.JsonLines(journal.parent / "out.jsonl"), journal=journal)
    return str(raised.value)


@pytest.mark.parametrize("mode", [0o666, 0o620, 0o602])
def test_a_journal_that_others_could_write_is_not_believed(begun: Path, mode: int) -> None:
    """The results in it may be anybody's pickles."""
    begun.chmod(mode)
    before = begun.read_bytes()
    why = refused(begun)
    assert f"others can write to the journal {begun} (mode {mode:04o}" in why
    assert (begun.read_bytes(), stat.S_IMODE(begun.stat().st_mode)) == (before, mode)


def test_a_journal_that_others_could_read_is_closed_to_them(begun: Path) -> None:
    begun.chmod(0o644)
    with (
        ex.Manager(no_fives, ex.ParDegree(1)) as another,
        pytest.raises(ValueError, match="got a five"),
    ):
        another.run(range(20), ex.JsonLines(begun.parent / "out.jsonl"), journal=begun)
    assert stat.S_IMODE(begun.stat().st_mode) == 0o600


@pytest.mark.skipif(os.getuid() != 0, reason="to give a file away takes root")
@pytest.mark.parametrize("is_empty", [False, True])
def test_a_journal_of_another_account_is_not_believed(begun: Path, is_empty: bool) -> None:
    if is_empty:
        begun.write_bytes(b"")
    os.chown(begun, 12345, 12345)
    assert f"the journal {begun} belongs to account 12345, expected this one" in refused(begun)


@pytest.mark.skipif(os.getuid() != 0, reason="to give a link away takes root")
def test_a_link_of_another_account_leads_to_no_journal(begun: Path) -> None:
    link = begun.parent / "link"
    link.symlink_to(begun)
    os.chown(link, 12345, 12345, follow_symlinks=False)
    assert f"{link} is a link that belongs to account 12345" in refused(link)


def test_a_file_that_is_no_journal_keeps_its_mode(manager: ex.Manager, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text("for everybody")
    page.chmod(0o644)
    with pytest.raises(JournalError, match="no journal of a run"):
        manager.run(range(3), ex.JsonLines(tmp_path / "out.jsonl"), journal=page)
    assert stat.S_IMODE(page.stat().st_mode) == 0o644


def test_a_second_run_does_not_touch_the_sink_of_the_first(
    manager: ex.Manager, tmp_path: Path
) -> None:
    """It may write there at any moment, and what it has written would be cut off."""
    out, journal = tmp_path / "out.jsonl", tmp_path / "run.journal"
    touched: list[bytes | None] = []

    class Touching(ex.JsonLines):
        def rewind(self, position: bytes | None) -> bytes:
            touched.append(position)
            return super().rewind(position)

    def items() -> Iterator[int]:
        with (
            ex.Manager(twice, ex.ParDegree(1)) as another,
            pytest.raises(JournalError, match="is used by another run at this moment"),
        ):
            another.run(range(3), Touching(out), journal=journal)
        yield 1

    manager.run(items(), ex.JsonLines(out), journal=journal)
    assert touched == []
    assert numbers_in(out) == [2]


def test_a_sink_that_can_not_be_used_leaves_no_journal(manager: ex.Manager, tmp_path: Path) -> None:
    out, journal = tmp_path / "nowhere" / "out.jsonl", tmp_path / "run.journal"
    with pytest.raises(FileNotFoundError):
        manager.run(range(3), ex.JsonLines(out), journal=journal)
    assert not journal.exists()


@pytest.mark.parametrize("is_link", [False, True])
def test_a_journal_is_not_the_sink(manager: ex.Manager, tmp_path: Path, is_link: bool) -> None:
    out, journal = tmp_path / "out.jsonl", tmp_path / "out.jsonl"
    if is_link:
        out.write_text("")
        journal = tmp_path / "run.journal"
        journal.symlink_to(out)
    with pytest.raises(JournalError, match=r"is where results go"):
        manager.run(range(3), ex.JsonLines(out), journal=journal)
    assert not out.exists() or out.read_bytes() == b""


SHORT = """
import os
import exoskel as ex

if __name__ == "__main__":
    with ex.Manager(abs, ex.ParDegree(1)) as manager:
        manager.run(range(10), ex.JsonLines("out.jsonl"), journal="run.journal")
        os.truncate("run.journal", os.path.getsize("run.journal") - 5000)
        try:
            manager.run(range(10), ex.JsonLines("out.jsonl"), journal="run.journal")
        except ex.errors.JournalError as error:
            print(error)
"""


def test_a_journal_that_was_cut_is_an_error_and_no_panic(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", SHORT], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "damaged at byte" in ran.stdout
    assert ran.stderr == ""


FULL = """
import resource, signal, sys
import exoskel as ex

class Sink:
    def rewind(self, position):
        return b""
    def write(self, index, result):
        pass
    def commit(self):
        return b"x" * (1 << 20)
    def is_in(self, path):
        return False

if __name__ == "__main__":
    with ex.Manager(abs, ex.ParDegree(1)) as manager:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
        try:
            manager.run(range(1000), Sink(), journal="run.journal")
        except OSError as error:
            print(error.errno, error.filename)
            print(error)
"""


def test_a_full_disk_is_told_with_the_name_of_the_journal(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", FULL], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    number, said = ran.stdout.splitlines()
    assert number == f"{errno.EFBIG} run.journal", ran.stderr
    assert said == (
        f"[Errno {errno.EFBIG}] File too large; what is done is kept: make room where the sink and the journal are, and start the same "
        "run again: 'run.journal'"
    )


def without_room(item: int) -> int:
    raise OSError(errno.ENOSPC, "no room at the worker")


def test_the_full_disk_of_a_function_is_its_own_affair(tmp_path: Path) -> None:
    sink = ex.JsonLines(tmp_path / "out.jsonl")
    with (
        ex.Manager(without_room, ex.ParDegree(1)) as manager,
        pytest.raises(OSError, match=r"no room at the worker\nitem 0: 1$"),
    ):
        manager.run([1], sink, journal=tmp_path / "run.journal")


NO_ROOM = """
import resource, signal
import exoskel as ex

if __name__ == "__main__":
    with ex.Manager(abs, ex.ParDegree(1)) as manager:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for most in (100_000, 500_000, hard):
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
            try:
                print(manager.run(range(3), ex.JsonLines("out.jsonl"), journal="run.journal").results)
            except OSError as error:
                print(error.errno)
"""


def test_a_journal_that_found_no_room_to_begin_is_begun_later(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", NO_ROOM], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ran.stdout == f"{errno.EFBIG}\n{errno.EFBIG}\n3\n", ran.stderr


def named_alike(number: int) -> tuple[str, str]:
    return "same", str(number)


def test_two_results_of_one_name_are_an_error(tmp_path: Path) -> None:
    """Else one of them would be lost, perhaps to a worker that answers by the name of another's result."""
    sink = ex.Files(tmp_path / "files", names="result")
    with pytest.raises(FileExistsError) as raised:
        ex.run(named_alike, range(5), sink, ex.ParDegree(1))
    assert "item 1" in raised.value.__notes__[0]
    assert [one.name for one in (tmp_path / "files").iterdir()] == ["same"]
    assert (tmp_path / "files" / "same").read_text() == "0"


def named_by_the_index_before(number: int) -> tuple[str, str]:
    return f"{number - 1:08}", "not this item's"


def test_results_choose_names_only_if_the_program_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    with pytest.raises(TypeError, match='names="result"'):
        ex.run(named_by_the_index_before, range(5), ex.Files(folder), ex.ParDegree(1))
    assert list(folder.iterdir()) == []
    with pytest.raises(TypeError, match="got str as the result for a file, expected a pair"):
        ex.run(str, range(5), ex.Files(folder, names="result"), ex.ParDegree(1))
    with pytest.raises(ValueError, match='expected "index" or "result"'):
        ex.Files(folder, names="both")  # type: ignore[arg-type]


def named_as_a_module(number: int) -> tuple[str, str]:
    return "numpy.py", "raise SystemExit"


@pytest.mark.parametrize("is_dangling", [False, True])
def test_a_result_replaces_no_file_that_was_there(tmp_path: Path, is_dangling: bool) -> None:
    folder, elsewhere = tmp_path / "files", tmp_path / "elsewhere"
    folder.mkdir()
    if is_dangling:
        (folder / "numpy.py").symlink_to(elsewhere)
    else:
        (folder / "numpy.py").write_text("mine")
    for sink, function in (
        (ex.Files(folder, names="result"), named_as_a_module),
        (ex.Files(folder, name=lambda _: "numpy.py"), str),
    ):
        with pytest.raises(FileExistsError, match=r"numpy\.py"):
            ex.run(function, range(3), sink, ex.ParDegree(1))
        assert [one.name for one in folder.iterdir()] == ["numpy.py"]
    assert is_dangling or (folder / "numpy.py").read_text() == "mine"
    assert not elsewhere.exists()


@pytest.mark.parametrize("way", ["files/run.journal", "files/below/run.journal", "into", "out"])
def test_a_journal_does_not_lie_in_the_folder_of_results(tmp_path: Path, way: str) -> None:
    """A result could take its place, and what is in a journal is believed."""
    (tmp_path / "files" / "below").mkdir(parents=True)
    (tmp_path / "into").symlink_to("files/run.journal")
    (tmp_path / "files" / "out").symlink_to("../run.journal")
    journal = tmp_path / ("files/out" if way == "out" else way)
    with pytest.raises(JournalError, match="is where results go"):
        ex.run(str, range(3), ex.Files(tmp_path / "files"), ex.ParDegree(1), journal=journal)
    assert not journal.exists()


KILLED = """
import errno, os, signal, sys
import exoskel as ex

class Killed(ex.Files):
    def commit(self):
        position = super().commit()
        if int(position.split()[0]) >= int(sys.argv[1]) > 0:
            # The files have their names, and the journal does not know.
            os.kill(os.getpid(), signal.SIGKILL)
        return position

def no_link(_from, _to):
    raise PermissionError(errno.EPERM, "no links here")

if __name__ == "__main__":
    if sys.argv[2] == "without links":
        os.link = no_link
    print(ex.run(str, range(40), Killed("files"), ex.ParDegree(2), journal="run.journal"))
"""


@pytest.mark.parametrize("how", ["with links", "without links"])
def test_files_are_cut_back_to_what_the_journal_knows(how: str, tmp_path: Path) -> None:
    """Aim: a run that goes on doesn't take its own files for foreign ones. Method: kill it between the commits of sink and journal."""
    folder = tmp_path / "files"
    (tmp_path / "script.py").write_text(KILLED)
    others = {}
    for number, least in enumerate(("1", "1", "20")):
        ran = subprocess.run(
            [sys.executable, "script.py", least, how],
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert ran.returncode == -signal.SIGKILL, ran.stderr
        assert any(re.fullmatch("[0-9]{8}", one.name) for one in folder.iterdir())
        # Another run, which is no part of that one, leaves it what it needs.
        ex.run(str, range(1), ex.Files(folder, name=f"other-{number}-{{}}".format), ex.ParDegree(1))
        others[f"other-{number}-0"] = "0"
    subprocess.run([sys.executable, "script.py", "0", how], cwd=tmp_path, check=True)
    found = {one.name: one.read_text() for one in folder.iterdir()}
    assert found == {f"{number:08}": str(number) for number in range(40)} | others


def test_a_list_of_names_that_was_torn_removes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aim: half a name may be that of another file. Method: a list as it is after a loss of power, in a folder without links."""
    monkeypatch.setattr(os, "link", no_link)
    sink = ex.Files(tmp_path, name="{}.txt".format)
    position = sink.rewind(sink.rewind(None))
    for index in range(2):
        sink.write(index, b"")
    sink.commit()
    (listed,) = tmp_path.glob(".*.names.exoskel-part")
    assert listed.read_bytes() == b"0 0.txt\x001 1.txt\0"
    for contents in (b"0 0.t", b"1 1.txt\0" + b"0 0.t", bytes(40)):
        (tmp_path / "0.t").write_text("another's")
        listed.write_bytes(contents)
        sink.rewind(position)
    # A file that had no name yet when the run ended: who has that name is another's.
    listed.write_bytes(b"0 0.txt\0")
    listed.with_name(listed.name.replace("names", "0")).write_bytes(b"")
    sink.rewind(position)
    sink.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["0.t", "0.txt"]


def test_two_runs_do_not_have_one_folder(tmp_path: Path) -> None:
    """Each would remove the unfinished files of the other one."""
    first, second = ex.Files(tmp_path, name="a{}".format), ex.Files(tmp_path, name="b{}".format)
    first.rewind(None)
    first.write(0, b"")
    with pytest.raises(BlockingIOError, match="another run has this sink"):
        second.rewind(None)
    # A process that is forked meanwhile takes nobody's lock away, and keeps none.
    child = os.fork()
    if child == 0:
        first._let_in()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    with pytest.raises(BlockingIOError):
        second.rewind(None)
    first.commit()
    first.close()
    second.rewind(None)
    second.close()
    third = ex.Files(tmp_path)
    third.rewind(None)
    # Nobody closes it.
    del third
    second.rewind(None)
    second.close()


@pytest.mark.parametrize(
    ("pattern", "sink"),
    [
        ("*", lambda folder: ex.Files(folder)),
        ("*", lambda folder: ex.Files(folder, names="result")),
        ("*.txt", lambda folder: ex.Files(folder, name="{}.txt".format)),
        ("*", lambda folder: ex.JsonLines(folder / "out.jsonl")),
        ("out.*", lambda folder: ex.Records(folder / "out.raw", "f4")),
        ("*", lambda folder: ex.JsonLines(folder.parent / "leads there")),
    ],
)
def test_results_are_no_items_of_their_run(
    tmp_path: Path, pattern: str, sink: Callable[[Path], Sink]
) -> None:
    """A run whose source has changed doesn't go on, and the next run would take the results for items."""
    folder = tmp_path / "items"
    folder.mkdir()
    (folder / "in.txt").write_text("1")
    (tmp_path / "leads there").symlink_to(folder / "out.jsonl")
    programs: list[Any] = [len, ex.Pipeline(len, ex.Reduce(max))]
    for program in programs:
        with pytest.raises(ValueError, match=r"would take for (an item|items)"):
            ex.run(program, ex.Files(folder, pattern), sink(folder), ex.ParDegree(1))
    assert [one.name for one in folder.iterdir()] == ["in.txt"]


def named_like_its_item(file: ex.File) -> tuple[str, bytes]:
    return file.name, b""


def test_a_result_that_is_named_like_an_item_is_one_items_error(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("1")
    source, sink = ex.Files(tmp_path, "*.txt"), ex.Files(tmp_path, names="result")
    with pytest.raises(ValueError, match=r"expected one that isn't like '\*\.txt'"):
        ex.run(named_like_its_item, source, sink, ex.ParDegree(1))
    # With another source the same sink takes such names again.
    ex.run(named_in_text, range(1), sink, ex.ParDegree(1))
    assert (tmp_path / "0.txt").exists()


def named_in_text(number: int) -> tuple[str, bytes]:
    return f"{number}.txt", b""


def test_a_journal_is_no_item_of_its_run(tmp_path: Path) -> None:
    (tmp_path / "in.txt").write_text("1")
    journal = tmp_path / "run.journal"
    with pytest.raises(JournalError, match="where the source has its items"):
        ex.run(len, ex.Files(tmp_path), ex.Lines("-"), ex.ParDegree(1), journal=journal)
    assert not journal.exists()


def no_link(_from: str, _to: str) -> None:
    raise PermissionError(errno.EPERM, "no links here")


def test_files_come_into_a_folder_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a memory card."""
    monkeypatch.setattr(os, "link", no_link)
    ex.run(str, range(3), ex.Files(tmp_path / "files"), ex.ParDegree(1))
    found = {one.name: one.read_text() for one in (tmp_path / "files").iterdir()}
    assert found == {f"{number:08}": str(number) for number in range(3)}


def test_no_result_has_the_name_of_a_part(tmp_path: Path) -> None:
    """It would be another result's, or removed by the next run."""
    sink = ex.Files(tmp_path / "files", name=lambda _: "a.exoskel-part")
    with pytest.raises(ValueError, match="as the name of a file"):
        ex.run(str, range(2), sink, ex.ParDegree(1))


def test_a_run_goes_on_when_there_was_room_for_some_names_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Aim: what got its name before the disk was full is the run's own, not a foreign file."""
    real = os.link

    def full_at_five(part: str, path: str) -> None:
        if path.endswith("5"):
            raise OSError(errno.ENOSPC, "no space left", path)
        real(part, path)

    folder, journal = tmp_path / "files", tmp_path / "run.journal"
    monkeypatch.setattr(os, "link", full_at_five)
    with pytest.raises(OSError, match="no space left"):
        ex.run(str, range(20), ex.Files(folder), ex.ParDegree(1), journal=journal)
    monkeypatch.setattr(os, "link", real)
    ex.run(str, range(20), ex.Files(folder), ex.ParDegree(1), journal=journal)
    found = {one.name: one.read_text() for one in folder.iterdir()}
    assert found == {f"{number:08}": str(number) for number in range(20)}


def named_too_long_at_three(number: int) -> tuple[str, str]:
    return ("n" * 300 if number == 3 else f"file {number}"), str(number)


def named_by_no_text_at_three(number: int) -> tuple[str, str]:
    return ("\ud800" if number == 3 else f"file {number}"), str(number)


@pytest.mark.parametrize(
    ("function", "kind"),
    [(named_too_long_at_three, OSError), (named_by_no_text_at_three, UnicodeEncodeError)],
)
def test_a_name_that_no_file_can_have_is_one_items_error(
    tmp_path: Path, function: Callable[[int], tuple[str, str]], kind: type[Exception]
) -> None:
    """Aim: a worker's name for its result ends no run for ever."""
    sink, journal = ex.Files(tmp_path / "files", names="result"), tmp_path / "run.journal"
    # The second time it is still this, not a file of its own that the run doesn't know any more.
    for _ in range(2):
        with pytest.raises(kind) as raised:
            ex.run(function, range(9), sink, ex.ParDegree(1), journal=journal)
        assert "item 3" in raised.value.__notes__[0]


def test_an_unfinished_run_does_not_go_on_without_its_folder(tmp_path: Path) -> None:
    """Else it would say all of its results, and half of them would be there."""
    folder, journal = tmp_path / "files", tmp_path / "run.journal"
    for _ in range(2):
        with pytest.raises(ValueError, match="got a five"):
            ex.run(no_fives_as_text, range(20), ex.Files(folder), ex.ParDegree(1), journal=journal)
    assert (folder / "00000004").exists()
    shutil.rmtree(folder)
    for _ in range(2):
        with pytest.raises(JournalError, match=f"no result is in {folder}"):
            ex.run(no_fives_as_text, range(20), ex.Files(folder), ex.ParDegree(1), journal=journal)


def no_fives_as_text(number: int) -> str:
    return str(no_fives(number))
