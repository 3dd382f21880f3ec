"""Traces of one's own: the messages of a live run, and what other tools wrote."""

from __future__ import annotations

import json
import math
import struct
from pathlib import Path

import pytest

from exoskel import Farm, Manager, ParDegree, sim
from exoskel.cli import main


def hit_rate(
    capsys: pytest.CaptureFixture[str], file: Path, entries: int, *more: str
) -> dict[str, object]:
    """What the command line makes of a trace."""
    words = ["sim", "keycache", "--trace", str(file), "--entries", str(entries), "--json", *more]
    assert main(words) == 0
    answer: dict[str, object] = json.loads(capsys.readouterr().out)
    return answer


def test_a_live_run_becomes_a_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.skct"
    with Manager(Farm(math.sqrt), ParDegree(3), trace=file) as manager:
        assert sum(manager.map(range(100))) > 0
        assert not file.exists(), "there is no part of a trace"
    answer = hit_rate(capsys, file, 4)
    assert answer["ranks"] == 4
    # Each message is looked up at both of its ends; the first with each of three slots finds nothing there.
    lookups, hits = answer["lookups"], answer["hits"]
    assert isinstance(lookups, int)
    assert isinstance(hits, int)
    assert lookups >= 2 * 3
    assert lookups - hits == 2 * 3
    assert [path.name for path in tmp_path.iterdir()] == [file.name]
    # The manager alone: a slot has one peer only, and hits from its second message on.
    manager_answer = hit_rate(capsys, file, 4, "--rank", "0")
    assert (manager_answer["rank"], manager_answer["lookups"]) == (0, lookups / 2)
    assert manager_answer["hits"] == lookups / 2 - 3
    for wrong, message in [("4", "rank: got 4, expected one of the trace, 0 to 3"), ("-1", "rank")]:
        words = ["--trace", str(file), "--entries", "4", f"--rank={wrong}"]
        assert main(["sim", "keycache", *words]) == 2
        assert message in capsys.readouterr().err
    assert main(["sim", "keycache", *words[:4], "--rank", "0", "--live"]) == 2
    assert "without: all ranks' nodes run" in capsys.readouterr().err


def test_a_trace_that_can_not_be_written_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"nowhere.run.skct.part: can't be written"):
        Manager(Farm(math.sqrt), ParDegree(1), trace=tmp_path / "nowhere" / "run.skct")


def calls(rank: int, ranks: int, *, finished: bool = True) -> bytes:
    """What the tracer leaves of a rank that sends to the next one and receives from the one before."""
    records = [(0, -1, 0), (1, (rank + 1) % ranks, 100), (3, (rank - 1) % ranks, 100)]
    if finished:
        records.append((31, -1, 0))
    head = struct.pack("<8sIIQQ", b"EXOCALL1", rank, ranks, 0, 0)
    return head + b"".join(
        struct.pack("<QQQQiiIBBH", 0, 0, 5, size, peer, 0, 0, operation, 0, 0)
        for operation, peer, size in records
    )


def traced(folder: Path, *, finished: bool = True) -> Path:
    """A folder of the tracer."""
    folder.mkdir()
    for rank in range(3):
        file = folder / f"rank-{rank:05}.calls"
        file.write_bytes(calls(rank, 3, finished=finished or rank != 1))
        file.with_suffix(".communicators").write_text("0 1 2\n")
    return folder


def test_what_the_tracer_left_is_packed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "ring.skct"
    assert main(["sim", "pack", str(traced(tmp_path / "calls")), str(out)]) == 0
    assert capsys.readouterr().out == f"{out}: 12 calls of 3 ranks\n"
    answer = hit_rate(capsys, out, 1)
    assert (answer["trace"], answer["lookups"], answer["hits"]) == ("ring", 6, 0)
    packed = sim.pack(traced(tmp_path / "died", finished=False), tmp_path / "died.skct")
    assert (packed.records, packed.note) == (11, "ended early: rank 1")


def test_simgrid_is_packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "0.txt").write_text("0 init\n0 compute 2e9\n0 send 1 0 100 6\n0 finalize\n")
    (tmp_path / "1.txt").write_text("1 init\n1 recv 0 0 100 6\n1 finalize\n")
    (tmp_path / "list").write_text("0.txt\n1.txt\n")
    packed = sim.pack(tmp_path / "list", tmp_path / "two.skct", operations_per_second=2e9)
    assert (packed.ranks, packed.records) == (2, 6)
    # smpirun's lists have paths from where it ran.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "list").write_text("0.txt\n1.txt\n")
    listed = sim.pack("lists/list", tmp_path / "listed.skct", operations_per_second=2e9)
    assert (listed.ranks, listed.records) == (2, 6)
    both = tmp_path / "both.txt"
    both.write_text((tmp_path / "0.txt").read_text() + (tmp_path / "1.txt").read_text())
    again = sim.pack(both, tmp_path / "again.skct", name="two", operations_per_second=2e9)
    assert again.file.read_bytes() == packed.file.read_bytes()


@pytest.mark.parametrize(
    ("break_it", "message"),
    [
        (lambda folder: (folder / "rank-00002.calls").unlink(), "got 2 ranks, expected 3"),
        (lambda folder: (folder / "rank-00001.calls").write_bytes(b""), "no file of the tracer"),
        (
            lambda folder: (folder / "rank-00001.calls").write_bytes(calls(1, 4)),
            "rank-00001.calls, byte 12: got a file of a run of 4 ranks beside one of 3",
        ),
        (
            lambda folder: (folder / "rank-00000.communicators").write_text("0 one\n"),
            'rank-00000.calls, line 1: got "one"',
        ),
        (
            lambda folder: [file.unlink() for file in folder.glob("*")],
            "expected those of the tracer",
        ),
    ],
    ids=["missing", "empty", "other", "communicator", "none"],
)
def test_a_folder_that_is_none_of_the_tracer_is_refused(
    break_it: object, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = traced(tmp_path / "calls")
    assert callable(break_it)
    break_it(folder)
    assert main(["sim", "pack", str(folder), str(tmp_path / "out.skct")]) == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out.skct").exists()


def test_a_file_that_is_none_of_simgrid_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "text"
    for content, message in [
        (b"", "got nothing in it"),
        (b"\xff\xfe a", "bytes that are no text"),
        (b"0 init\n0 dance\n", 'text, line 2: got "dance"'),
    ]:
        file.write_bytes(content)
        with pytest.raises(ValueError, match=message):
            sim.pack(file, tmp_path / "out.skct")
    file.write_text("missing.txt\n")
    with pytest.raises(FileNotFoundError):
        sim.pack(file, tmp_path / "out.skct")
