"""What simulations are asked for: refused by name before anything runs, or understood in every usual form."""

from __future__ import annotations

import itertools
import resource
from pathlib import Path
from typing import Any

import numpy
import pytest
from tests.command import limited, refused, run

from exoskel import sim
from exoskel.cli import main

ROOT = Path(__file__).resolve().parent.parent
CG = ROOT / "traces" / "cg.S.16.skct.zst"
TEXT = "0 init\n0 send 1 0 100 6\n0 finalize\n1 init\n1 recv 0 0 100 6\n1 finalize\n"
# A file's name that is no text.
NO_TEXT = "caf\udce9"


@pytest.mark.parametrize("entries", [-1, 0, 10**23])
def test_sizes_that_no_cache_has_are_refused(
    entries: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (
        ("capacity", "--off-on", 1),
        ("keycache", "--trace", CG),
        ("keycache", "--trace", CG, "--live"),
    ):
        code = 1 if "--live" in words else 2
        error = refused(capsys, *words, f"--entries={entries}", code=code)
        assert f"entries: got {entries}, expected a whole number from 1 to 2^63 - 1" in error


def test_options_of_nothing_are_given_options(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--seeds with --trace" in refused(
        capsys, "keycache", "--trace", CG, "--entries", 3, "--seeds", 0, code=2
    )
    assert "--entries with --paper" in refused(
        capsys, "keycache", "--paper", "--entries", 0, code=2
    )


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [
        ("cache_entries", "1979-05-27", "expected a whole number"),
        ("cache_entries", "nan", "got nan, expected a whole number"),
        ("cache_entries", "inf", "got inf, expected a whole number"),
        ("cache_entries", "-1", "got -1, expected a whole number"),
        ("cache_entries", "2.5", "got 2.5, expected a whole number"),
        ("cache_entries", "{ ways = 2 }", "expected a whole number"),
        ("cache_entries", "true", "got True, expected a whole number"),
        ("cipher_pipelined", "1", "got 1, expected true or false"),
        ("scheduler", "3", "got 3, expected a word"),
        ("preset", "[]", "got [], expected a word"),
        ("cache_entrys", "1979-05-27", "got an unknown key, expected cache_entries"),
    ],
)
def test_values_of_another_kind_are_refused_as_they_were_written(
    key: str, value: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "card.toml"
    file.write_text(f"{key} = {value}\n")
    error = refused(capsys, "keycache", "--config", file)
    assert error.startswith(f"{file}: {key}: got ")
    assert expected in error
    file.write_text(f"[sweep]\n{key} = [{value}]\n")
    assert f"{file}: sweep.{key}: got " in refused(capsys, "keycache", "--config", file)


def test_a_value_that_is_varied_twice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"sweep\.scheduler: got 'gang' twice"):
        sim.keycache(CG, scenario={"sweep": {"scheduler": ["gang", "gang"]}})


def test_more_runs_than_a_table_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="seeds: got 1000000000, expected"):
        sim.keycache(CG, scenario={}, seeds=10**9)
    with pytest.raises(ValueError, match="sweep: got 200000 runs, expected at most 100000"):
        sim.keycache(CG, scenario={"sweep": {"nodes": [16, 17]}}, seeds=10**5)


def test_a_file_without_an_end_is_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    # Four gigabytes more than there are: much, and not without an end.
    with limited(resource.RLIMIT_AS, pages * resource.getpagesize() + (4 << 30)):
        error = refused(capsys, "keycache", "--trace", "/dev/zero", "--entries", 4)
        assert error.startswith("/dev/zero: got more than 507248652 bytes")
        assert "/dev/zero: got more than" in refused(capsys, "keycache", "--config", "/dev/zero")


def test_names_of_files_need_not_be_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, packed = tmp_path / f"{NO_TEXT}.txt", tmp_path / f"{NO_TEXT}.skct"
    text.write_text(TEXT)
    assert main(["sim", "pack", str(text), str(packed)]) == 0
    assert r"caf\udce9.skct: 6 calls of 2 ranks" in capsys.readouterr().out
    assert main(["sim", "keycache", "--trace", str(packed), "--entries", "4"]) == 0
    assert r"caf\udce9: hit rate" in capsys.readouterr().out
    table = sim.keycache(packed, scenario={"message_limit": 1})
    table.to_csv(tmp_path / f"{NO_TEXT}.csv")
    assert r"# traces = caf\udce9.skct" in (tmp_path / f"{NO_TEXT}.csv").read_text()
    packed.write_bytes(packed.read_bytes()[:20])
    for words in ("keycache", "--trace", packed, "--entries", 4), ("pack", packed, "out"):
        assert r"caf\udce9.skct: " in refused(capsys, *words)


def test_names_of_traces_do_not_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, packed = tmp_path / "text", tmp_path / "packed\x1b[31m.skct"
    text.write_text(TEXT)
    sim.pack(text, packed, name="red\x1b[31m\nhit rate 1")
    words = ["sim", "keycache", "--trace", str(packed), "--entries", "4"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert told.startswith(r"red\x1b[31m\nhit rate 1: hit rate ")
    assert len(told.splitlines()) == 1
    assert main(["sim", "pack", str(text), str(packed)]) == 0
    packed.write_bytes(b"")
    assert main(words) == 1
    shown = capsys.readouterr()
    assert r"packed\x1b[31m.skct: " in shown.out
    assert r"packed\x1b[31m.skct: " in shown.err
    assert "\x1b" not in shown.out + shown.err
    assert "got 300 bytes, expected at most 256" in refused(
        capsys, "pack", text, packed, "--name", "x" * 300
    )


def test_packing_spares_what_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, listing, folder = tmp_path / "text", tmp_path / "list", tmp_path / "folder"
    text.write_text(TEXT)
    listing.write_text("text\n")
    folder.mkdir()
    before = sorted(tmp_path.iterdir())
    assert refused(capsys, "pack", text, folder) == f"{folder}: is a directory"
    missing = tmp_path / "no" / "out.skct"
    assert refused(capsys, "pack", text, missing) == f"{missing}: no such file or directory"
    for source in (text, listing):
        assert f"{text}: got a file that is read" in refused(capsys, "pack", source, text)
    calls = folder / "rank-0.calls"
    calls.touch()
    (folder / "rank-0.communicators").touch()
    assert f"{calls}: got a file that is read" in refused(capsys, "pack", folder, calls)
    assert text.read_text() == TEXT
    assert sorted(tmp_path.iterdir()) == before
    assert not list(folder.glob("*.part"))


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "inf"])
def test_speeds_that_no_program_has_are_refused(
    rate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out = tmp_path / "text", tmp_path / "out.skct"
    text.write_text(TEXT)
    error = refused(capsys, "pack", text, out, f"--operations-per-second={rate}", code=2)
    assert f"got --operations-per-second {rate}, expected a positive number" in error
    with pytest.raises(ValueError, match="operations_per_second: got"):
        sim.pack(text, out, operations_per_second=float(rate))
    assert not out.exists()


def test_a_speed_that_nobody_gave_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, out = tmp_path / "text", tmp_path / "out.skct"
    text.write_text(TEXT)
    words = ["sim", "pack", str(text), str(out)]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "computed at 1e+09 operations a second: say --operations-per-second" in told
    assert main([*words, "--operations-per-second", "20000"]) == 0
    assert "--operations-per-second" not in capsys.readouterr().out
    assert run(capsys, *words)["operations_per_second"] == 1e9


def test_a_scenario_takes_every_usual_kind_of_value() -> None:
    scenario = {
        "message_limit": numpy.int64(50),
        "cipher_pipelined": numpy.bool_(True),
        "traces": (CG,),
        "sweep": {"cache_entries": range(2, 4), "key_memory_ns": numpy.array([100, 200])},
    }
    table = sim.keycache(scenario=scenario)
    assert table["cache_entries"].tolist() == [2, 2, 3, 3]
    assert table["key_memory_ns"].tolist() == [100, 200, 100, 200]
    shapes: dict[str, Any] = {"entries": numpy.array([2, 4]), "ways": (None, numpy.int32(1))}
    sizes = sim.keycache(CG, **shapes)
    assert sizes["ways"].tolist() == [2, 1, 4, 1]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"entries": "12"}, "entries: got '12', expected a whole number"),
        ({"entries": 2.5}, "entries: got 2.5, expected a whole number"),
        ({"entries": [True]}, "entries: got True, expected a whole number"),
        ({"entries": []}, "entries: got an empty list"),
        ({"entries": 2, "ways": []}, "ways: got an empty list"),
        ({"entries": 2, "policy": []}, "policy: got an empty list"),
        ({"entries": 2, "lookup": 3}, "lookup: got 3, expected a word"),
        ({"entries": 2, "lookup": [3]}, "lookup: got 3, expected a word"),
        ({"trace": [], "entries": 2}, "trace: got an empty list"),
        ({"entries": 2, "seeds": 0}, "seeds: got 0 without a scenario"),
        ({"scenario": {}, "seeds": 0}, "seeds: got 0, expected"),
        (
            {"scenario": {}, "entries": 2},
            "entries: got 2 beside a scenario, expected cache_entries",
        ),
        ({"scenario": {}, "ways": 2}, "ways: got 2 beside a scenario, expected cache_ways"),
        ({"scenario": {}, "lookup": "packet"}, "lookup: got 'packet' beside a scenario"),
        ({"scenario": {}, "policy": "lru"}, "policy: got 'lru' beside a scenario"),
        ({"scenario": {}, "rank": 0}, "rank: got 0 beside a scenario, expected none"),
        ({"entries": 2, "rank": -1}, "rank: got -1, expected a whole number"),
        ({"scenario": {"traces": [3]}}, "traces: got 3, expected names"),
        ({"scenario": {"traces": "x"}}, "traces: got 'x', expected a list"),
        ({"scenario": {"sweep": []}}, r"sweep: got \[\], expected a table"),
        ({"scenario": {"sweep": {"nodes": {}}}}, r"sweep\.nodes: got {}, expected a list"),
        ({"scenario": {"scheduler": None}}, "scheduler: got None, expected a word"),
    ],
)
def test_what_can_not_be_asked_for_is_named(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        sim.keycache(**{"trace": CG, **asked})


def test_too_few_descriptors_for_a_live_run_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    trace = ROOT / "traces" / "ft.S.16.skct.zst"
    # As many as leave 64 free: a limit is one of numbers, and some below it are taken.
    used = {int(entry.name) for entry in Path("/proc/self/fd").iterdir()}
    free = (number for number in itertools.count() if number not in used)
    with limited(resource.RLIMIT_NOFILE, next(itertools.islice(free, 64, None))):
        error = refused(capsys, "keycache", "--trace", trace, "--entries", 4, "--live")
    # Each rank talks with each: 16 times 15 ends.
    assert "expected 240 descriptors" in error
    assert "ulimit -n" in error


def test_a_run_is_still_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "sim", "keycache", "--trace", CG, "--entries", 4)["entries"] == 4
