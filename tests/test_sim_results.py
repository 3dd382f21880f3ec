"""What simulations have measured is kept, whatever ends them, and comes as a picture too."""

from __future__ import annotations

import json
import math
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from matplotlib.lines import Line2D
from tests.command import body, head, limited, refused, run

from exoskel import sim
from exoskel.cli import main
from exoskel.sim.figures import style
from exoskel.sim.pictures import scenario_picture
from exoskel.sim.tables import Table

ROOT = Path(__file__).resolve().parent.parent
CG = ROOT / "traces" / "cg.S.16.skct.zst"

# Both ranks send before they receive: that needs a place for messages that nobody waits for.
EXCHANGE = "".join(
    f"{rank} {action}\n"
    for rank in (0, 1)
    for action in ("init", f"send {1 - rank} 0 100 6", f"recv {1 - rank} 0 100 6", "finalize")
)
FAILING = """\
traces = ["exchange.skct"]
seeds = 2
[sweep]
eager_bytes = [1000, 0]
"""

pytestmark = pytest.mark.usefixtures("fonts")


@pytest.fixture
def one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let runs go one after another."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0})


@pytest.fixture
def failing(tmp_path: Path) -> Path:
    """Write a scenario whose last combination fails."""
    file = tmp_path / "late.toml"
    file.write_text(FAILING)
    (tmp_path / "exchange.txt").write_text(EXCHANGE)
    sim.pack(tmp_path / "exchange.txt", tmp_path / "exchange.skct")
    return file


@pytest.mark.usefixtures("one_processor")
def test_a_failing_run_leaves_what_is_finished(
    failing: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "late.csv").write_text("of an earlier time")
    words = ("sim", "keycache", "--config", failing)
    answer = run(capsys, *words, "--out", out, code=1)
    assert f"{failing}: the run with eager_bytes = 0, seed = 0" in answer["error"]
    assert [row["seed"] for row in answer["runs"]] == [0, 1]
    assert "2 of 4 runs, one failed" in head(out / "late-unfinished.csv")["unfinished"]
    assert len(body(out / "late-unfinished.csv")) == 2
    assert (out / "late.csv").read_text() == "of an earlier time"
    # Without a folder they are told, at least.
    assert main([*map(str, words)]) == 1
    shown = capsys.readouterr()
    assert shown.out.splitlines()[1].split()[:2] == ["1000", "2"]
    assert "seed = 0" in shown.err
    # What is finished later takes the place of what wasn't.
    failing.write_text(FAILING.replace("[1000, 0]", "[1000]"))
    run(capsys, *words, "--out", out)
    assert [file.name for file in sorted(out.iterdir())] == ["late.csv", "late.png", "late.svg"]
    failing.write_text(FAILING)
    with pytest.raises(sim.Stopped, match="seed = 0") as failed:
        sim.keycache(scenario=failing)
    assert isinstance(failed.value, ValueError)
    assert failed.value.table["eager_bytes"].tolist() == [1000, 1000]


def test_an_interrupted_sweep_leaves_what_is_finished(tmp_path: Path) -> None:
    file = tmp_path / "many.toml"
    file.write_text(f'traces = ["{CG}"]\nmessage_limit = 50\nseeds = 20000\n')
    out = tmp_path / "out"
    words = ["sim", "keycache", "--config", str(file), "--out", str(out)]
    with subprocess.Popen(
        [sys.executable, "-m", "exoskel", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # Told after the first run.
        assert any("of 20000 runs" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        told, error = process.stdout.read(), process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 130
    assert "exoskel: error: interrupted after" in error
    assert "Traceback" not in error
    assert str(out / "many-unfinished.csv") in told
    assert "interrupted" in head(out / "many-unfinished.csv")["unfinished"]
    assert body(out / "many-unfinished.csv")
    assert not (out / "many.csv").exists()


def test_an_interrupt_while_commands_are_loaded_is_no_traceback() -> None:
    program = """
import os, signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "exoskel.cli.commands":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
sys.argv[1:] = ["version"]
from exoskel.cli import main
from exoskel.sim.figures import style
from exoskel.sim.pictures import scenario_picture
from exoskel.sim.tables import Table
sys.exit(main())
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (130, "")
    assert ended.stderr == "exoskel: interrupted\n"


def test_a_failing_run_of_a_figure_leaves_what_is_finished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No run of a figure is known that fails: what the engine would say of one is put in its place."""

    def engine(
        _jobs: list[dict[str, Any]],
        _threads: int,
        finished: Callable[[int, dict[str, Any] | ValueError], object],
    ) -> None:
        finished(0, {"hit_rate": 0.5})
        finished(1, ValueError("everybody waits for somebody"))

    monkeypatch.setattr("exoskel._core.key_cache_runs", engine)
    earlier = tmp_path / "figure-8-runs.csv"
    earlier.write_text("of an earlier time")
    error = refused(
        capsys,
        *("keycache", "--paper", "--quick", "--figure", "8", "--out", tmp_path),
        *("--traces", ROOT / "traces"),
    )
    assert error.startswith("the run with ")
    assert "seed = 1: everybody waits for somebody; what was finished is in" in error
    assert [row["hit_rate"] for row in body(tmp_path / "figure-8-unfinished.csv")] == ["0.5"]
    assert earlier.read_text() == "of an earlier time"


@pytest.mark.parametrize("words", [("--paper",), ("--config", "absent.toml")])
def test_a_folder_that_is_none_is_found_before_anything_runs(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    file.touch()
    traces = ("--traces", ROOT / "traces") if words == ("--paper",) else ()
    assert str(file) in refused(capsys, "keycache", *words, *traces, "--out", file)


def test_a_full_disk_is_named_and_takes_nothing_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "card.toml"
    file.write_text(f'traces = ["{CG}"]\nmessage_limit = 50\nseeds = 20\n')
    kept = tmp_path / "card.csv"
    kept.write_text("of an earlier time")
    # No file grows beyond a kilobyte.
    with limited(resource.RLIMIT_FSIZE, 1024):
        answer = run(capsys, "sim", "keycache", "--config", file, "--out", tmp_path, code=1)
    assert answer["error"].startswith(f"{kept}: ")
    assert len(answer["runs"]) == 20
    assert kept.read_text() == "of an earlier time"
    assert sorted(tmp_path.iterdir()) == [kept, file]


def test_what_was_not_measured_is_no_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Aim: no rate and no latency of packets that don't exist. Method: messages without cards."""
    scenario = {"level": "message", "message_limit": 100}
    table = sim.keycache(CG, scenario=scenario)
    for name in ("hit_rate", "latency_us", "latency_p99_us"):
        assert math.isnan(table[name][0])
    assert table["completion_ms"][0] > 0
    sweep = {"preset": ["paper", "psp", "no-security"]}
    cards = sim.keycache(CG, scenario={"message_limit": 100, "sweep": sweep})
    assert numpy.isnan(cards["hit_rate"]).tolist() == [False, True, True]
    assert (cards["latency_us"] > 0).all()
    file = tmp_path / "card.toml"
    file.write_text(f'traces = ["{CG}"]\nlevel = "message"\nmessage_limit = 100\n')
    words = ("sim", "keycache", "--config", file, "--out", tmp_path)
    assert run(capsys, *words)["runs"][0]["hit_rate"] is None
    assert body(tmp_path / "card.csv")[0]["latency_us"] == "nan"
    assert main([*map(str, words)]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[1:4] == ["-", "-", "-"]


def test_a_scenario_comes_with_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "card.toml"
    sweep = '[sweep]\nscheduler = ["gang", "batch"]\ncache_entries = [2, 6]\nkeys = ["cache"]\n'
    file.write_text(f'traces = ["{CG}"]\nmessage_limit = 50\nseeds = 2\n{sweep}')
    out = tmp_path / "out"
    answer = run(capsys, "sim", "keycache", "--config", file, "--out", out)
    assert answer["files"] == [str(out / f"card.{ending}") for ending in ("csv", "png", "svg")]
    drawn = (out / "card.svg").read_text()
    for word in ("cache_entries", "gang", "batch", "completion_ms"):
        assert word in drawn
    # A machine without matplotlib gets the numbers.
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    other = tmp_path / "other"
    answer = run(capsys, "sim", "keycache", "--config", file, "--out", other)
    assert answer["files"] == [str(other / "card.csv")]
    with pytest.raises(
        ModuleNotFoundError, match=r"expected it for pictures: pip install matplotlib$"
    ):
        sim.Table([{"a": 1, "b": 2}]).plot("a", "b")


def test_every_curve_of_a_picture_is_told_from_the_others() -> None:
    """Aim: what is varied is readable. Method: more combinations than colours, and columns that follow from a preset or have one value."""
    presets = {f"preset {index}": 10 * index for index in range(9)}
    rows = [
        {
            "scheduler": scheduler,
            "preset": preset,
            "link_latency_ns": 25,
            "key_memory_ns": nanoseconds,
            "buffer": buffer,
            "seed": seed,
            "hit_rate": 0.5 + buffer / 100 + seed / 1000,
        }
        for scheduler in ("gang", "batch")
        for preset, nanoseconds in presets.items()
        for buffer in (0, 2, 4)
        for seed in (0, 1)
    ]
    [panel] = scenario_picture(sim.Table(rows), ["hit_rate"], "sweep").axes
    # The memory's time says nothing that the preset hasn't said.
    assert panel.get_xlabel() == "buffer"
    looks = set()
    for container in panel.containers:
        line = container[0]
        assert isinstance(line, Line2D)
        looks.add((line.get_color(), line.get_marker(), line.get_linestyle()))
    assert len(looks) == len(panel.containers) == 2 * len(presets)
    names = [container.get_label() for container in panel.containers]
    assert "scheduler=gang, preset=preset 0" in names
    words = sim.Table([row for row in rows if row["buffer"] == 0])
    [panel] = scenario_picture(words, ["hit_rate"], "sweep").axes
    assert panel.get_xlabel() == "preset"
    labels = [str(container.get_label()) for container in panel.containers]
    named = [label for label in labels if not label.startswith("_")]
    assert named == ["scheduler=gang", "scheduler=batch"]


def test_a_table_can_be_drawn(tmp_path: Path) -> None:
    table = sim.keycache(CG, entries=[1, 2, 4], policy=["lru", "clock"])
    [panel] = table.plot("entries", "hit_rate", by="policy").axes
    assert panel.get_xlabel() == "entries"
    assert panel.get_ylabel().startswith("hit_rate")
    legend = panel.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["lru", "clock"]
    rates = table.where(policy="clock")["hit_rate"]
    assert any(numpy.array_equal(line.get_ydata(), rates) for line in panel.lines)
    table.where(entries=2).plot("policy", "hit_rate").savefig(tmp_path / "bars.png")
    with pytest.raises(ValueError, match="several values of hit_rate for one entries"):
        table.plot("entries", "hit_rate")
    with pytest.raises(ValueError, match="no column 'hits_rate'"):
        table.plot("entries", "hits_rate")


def test_seeds_are_drawn_with_their_interval() -> None:
    rows = [{"size": s, "seed": n, "time": float(s * n)} for s in (1, 2) for n in (1, 2, 3)]
    [panel] = sim.Table(rows).plot("size", "time").axes
    assert any(numpy.array_equal(line.get_ydata(), [2.0, 4.0]) for line in panel.lines)
    assert panel.collections


def test_results_are_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "card.toml"
    file.write_text(f'traces = ["{CG}"]\npreset = "no-security"\nmessage_limit = 50\n')
    assert main(["sim", "keycache", "--config", str(file), "--json"]) == 0

    def refuse(word: str) -> None:
        pytest.fail(f"got {word}, which JSON doesn't have")

    json.loads(capsys.readouterr().out, parse_constant=refuse)


def test_pictures_have_titles_and_axes_that_say_where_they_start() -> None:
    near = sim.Table(
        {"cache_entries": size, "seed": 0, "hit_rate": rate}
        for size, rate in ((90, 0.98), (100, 0.99))
    )
    canvas = scenario_picture(near, ["hit_rate"], "a.toml")
    assert canvas.get_suptitle() == "a.toml"
    [panel] = canvas.axes
    assert panel.get_title() == "hit_rate over cache_entries"
    assert (panel.get_xlabel(), panel.get_ylabel()) == (
        "cache_entries (axis not from 0)",
        "hit_rate (axis not from 0)",
    )
    far = sim.Table(
        {"cache_entries": size, "hit_rate": rate} for size, rate in ((2, 0.2), (8, 0.9))
    )
    [panel] = far.plot("cache_entries", "hit_rate").axes
    assert panel.get_title() == "hit_rate over cache_entries"
    assert (panel.get_xlim()[0], panel.get_ylim()[0]) == (0, 0)
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("cache_entries", "hit_rate")


def test_figures_have_titles_and_axes_that_say_where_they_start() -> None:
    """Aim: this holds for each panel, however it was drawn. Method: what is near zero, far from it, logarithmic, or bars."""
    canvas, panels = style.canvas(1, 4)
    near = Table({"size": size, "rate": size / 10, "kind": "a"} for size in (1, 9))
    far = Table({"size": size, "rate": 0.9 + size / 1e6, "kind": "a"} for size in (900, 1000))
    for panel, table in zip(panels, (near, far, near), strict=False):
        style.lines(panel, table, "size", "rate", "kind")
    panels[2].set(xscale="log", yscale="log", xlabel="size")
    style.bars(panels[3], far, "size", "rate", "kind")
    panels[1].set_ylabel("rate")
    style.finished(canvas, "rates by size")
    assert canvas.get_suptitle() == "rates by size"
    assert [(panel.get_xlabel(), panel.get_ylabel()) for panel in panels] == [
        ("", ""),
        ("axis not from 0", "rate (axis not from 0)"),
        ("size (logarithmic axis)", "logarithmic axis"),
        ("", ""),
    ]
    assert (panels[0].get_xlim()[0], panels[0].get_ylim()[0]) == (0, 0)
    assert panels[3].get_ylim()[0] == 0
