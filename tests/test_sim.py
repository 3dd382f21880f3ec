"""Session-key caches in simulation, through the command line and from Python."""

from __future__ import annotations

import hashlib
import math
import signal
import statistics
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import numpy
import pytest
from tests.command import body, head, refused, run

import exoskel
from exoskel import sim
from exoskel.cli import main
from exoskel.sim.figures import workloads
from exoskel.sim.figures.setting import Setting

ROOT = Path(__file__).resolve().parent.parent
TRACES = ROOT / "traces"
CG = TRACES / "cg.S.16.skct.zst"
LU = TRACES / "lu.S.16.skct.zst"


# Pictures are drawn.
pytestmark = pytest.mark.usefixtures("fonts")


# --- the model ------------------------------------------------------------------------------------


def test_capacity_answers_the_papers_examples(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sim", "capacity", "--entries", 3, "--off-on", 1, "--hit", 0.9)
    assert run(capsys, *words)["capacity"] == 4 == sim.capacity(3, 1.0, 0.9)
    # The ratio that makes "about 1000" of the paper's figure 3.
    assert sim.capacity(128, 7.66) == pytest.approx(1000, abs=2)
    assert main(["sim", "capacity", "--entries", "3", "--off-on", "1"]) == 0
    assert capsys.readouterr().out == "4\n"


def test_capacity_grows_with_entries_and_silence() -> None:
    assert all(a < b for a, b in pairwise(sim.capacity(n, 4.0) for n in (16, 32, 64, 1024)))
    assert all(a < b for a, b in pairwise(sim.capacity(64, r) for r in (0.5, 1.0, 8.0)))


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("--entries", 0, "--off-on", 1), "entries"),
        (("--entries", 8, "--off-on", 0), "off-on"),
        (("--entries", 8, "--off-on", "nan"), "off-on"),
        (("--entries", 8, "--off-on", 1, "--hit", 1.5), "hit"),
        (("--entries", 8, "--off-on", 1, "--hit", 0), "hit"),
    ],
)
def test_impossible_capacities_name_the_parameter(
    arguments: tuple[object, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in refused(capsys, "capacity", *arguments, code=2)


# --- keys without time ----------------------------------------------------------------------------


def test_a_trace_gives_a_hit_rate(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sim", "keycache", "--trace", CG, "--entries")
    rates = [run(capsys, *words, entries)["hit_rate"] for entries in (1, 2, 3)]
    assert all(a < b for a, b in pairwise(rates))
    assert rates[2] > 0.99
    answer = run(capsys, *words, 4, "--ways", 2, "--lookup", "packet", "--policy", "clock")
    assert answer["ways"] == 2
    assert answer["hit_rate"] == answer["hits"] / answer["lookups"]
    assert main([*map(str, words), "2"]) == 0
    assert "hit rate 0." in capsys.readouterr().out


def test_a_sweep_is_a_table_of_arrays() -> None:
    table = sim.keycache([CG, LU], entries=[1, 2, 4], policy=["lru", "s3-fifo"])
    assert isinstance(table["hit_rate"], numpy.ndarray)
    assert len(table["hit_rate"]) == 2 * 3 * 2
    assert set(table["policy"]) == {"lru", "s3-fifo"}
    assert (table["hits"] <= table["lookups"]).all()
    one = sim.keycache(CG, entries=2)
    assert (
        one.rows[0]["hit_rate"]
        == table.where(trace=one.rows[0]["trace"], entries=2).rows[0]["hit_rate"]
    )


def test_ranks_can_share_a_card(capsys: pytest.CaptureFixture[str]) -> None:
    """Aim: one rank a card is what it always was, and all ranks on one card need no key. Method: the command's numbers, and the digests of Python's table."""
    words = ("sim", "keycache", "--trace", CG, "--entries", 2)
    usual = run(capsys, *words)
    one = run(capsys, *words, "--ranks-per-card", 1)
    assert one.pop("ranks_per_card") == 1
    assert one == usual
    four = run(capsys, *words, "--ranks-per-card", 4)
    assert 0 < four["lookups"] < usual["lookups"]
    whole = run(capsys, *words, "--ranks-per-card", 16)
    assert (whole["lookups"], whole["hit_rate"]) == (0, None)
    assert main([*map(str, words), "--ranks-per-card", "4", "--rank", "5"]) == 0
    assert "rank 5 of 16, 4 to a card" in capsys.readouterr().out
    table = sim.keycache(CG, entries=2, ranks_per_card=[1, 2, 16])
    assert table["digest"][0] == sim.keycache(CG, entries=2)["digest"][0]
    # Each first use is one of a session's two ends.
    assert table["first_uses"].tolist() == sorted(table["first_uses"], reverse=True)
    assert table["first_uses"][2] == 0


def test_ranks_of_a_scenario_can_share_a_card(
    scenario: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("sim", "keycache", "--config", scenario, "--seeds", 1)
    digests = [row["digest"] for row in run(capsys, *words)["runs"]]
    answer = run(capsys, *words, "--ranks-per-card", 1)
    assert [row["digest"] for row in answer["runs"]] == digests
    assert answer["parameters"]["ranks_per_card"] == 1
    whole = run(capsys, *words, "--ranks-per-card", 16)["runs"]
    assert all(row["packets"] == row["lookups"] == 0 for row in whole)
    assert all(row["messages"] >= 400 and row["hit_rate"] is None for row in whole)
    error = refused(capsys, "keycache", "--config", scenario, "--ranks-per-card", 3)
    assert "ranks_per_card = 3, expected a divisor of 16" in error
    # Several numbers, in place of what the scenario says.
    asked = {"message_limit": 300, "ranks_per_card": 16, "sweep": {"cache_entries": [2, 8]}}
    table = sim.keycache(CG, scenario=asked, ranks_per_card=[1, 4])
    assert table["ranks_per_card"].tolist() == [1, 4, 1, 4]
    assert (table["packets"] > 0).all()


def test_ranks_that_do_not_divide_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("keycache", "--trace", CG, "--entries", 2, "--ranks-per-card")
    assert "a divisor of 16" in refused(capsys, *words, 3, code=2)
    assert "ranks_per_card: got 0" in refused(capsys, *words, 0, code=2)
    assert "--live with --ranks-per-card" in refused(capsys, *words, 2, "--live", code=2)
    assert "--ranks-per-card with --paper" in refused(
        capsys, "keycache", "--paper", "--ranks-per-card", 2, code=2
    )


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--entries", 0), "entries"),
        (("--entries", 4, "--ways", 3), "ways"),
        (("--entries", 4, "--ways", 8), "ways"),
        ((), "--entries"),
    ],
)
def test_impossible_caches_name_the_parameter(
    options: tuple[object, ...], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert named in refused(capsys, "keycache", "--trace", CG, *options, code=2)


def test_bad_traces_name_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torn = tmp_path / "torn.skct.zst"
    torn.write_bytes(CG.read_bytes()[:1000])
    text = tmp_path / "text.skct"
    text.write_text("no trace at all")
    for file in (torn, text, tmp_path / "missing.skct"):
        assert str(file) in refused(capsys, "keycache", "--trace", file, "--entries", 4)


def test_something_must_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--trace" in refused(capsys, "keycache", code=2)
    assert "--paper" in refused(capsys, "keycache", "--paper", "--trace", CG, code=2)
    assert "--entries with --config" in refused(
        capsys, "keycache", "--config", "card.toml", "--entries", 3, code=2
    )
    assert "--out with --trace" in refused(
        capsys, "keycache", "--trace", CG, "--entries", 3, "--out", "results", code=2
    )
    assert "--policy with nothing" in refused(capsys, "keycache", "--policy", "clock", code=2)


# --- tables ---------------------------------------------------------------------------------------


def test_means_come_with_their_confidence() -> None:
    rows = [{"size": s, "seed": n, "time": float(s * n)} for s in (1, 2) for n in (1, 2, 3)]
    means = sim.Table(rows).over_seeds(["time"])
    assert means["time"].tolist() == [2.0, 4.0]
    assert means["seeds"].tolist() == [3, 3]
    # Student's t with two degrees of freedom times the standard deviation 1 over the root of 3.
    assert means["time_ci95"].tolist() == pytest.approx(
        [4.3027 / math.sqrt(3), 2 * 4.3027 / math.sqrt(3)]
    )
    assert math.isnan(sim.Table(rows[:1]).over_seeds(["time"])["time_ci95"][0])


def test_a_table_is_kept_with_its_parameters(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"
    sim.Table([{"a": 1, "b": 0.25}], {"nodes": 16}).to_csv(file, "A title")
    version = f"# exoskel = {exoskel.__version__}\n"
    assert file.read_text() == f"# A title\n{version}# nodes = 16\na,b\n1,0.25\n"


# --- cards in virtual time ------------------------------------------------------------------------

SCENARIO = """\
preset = "paper"
traces = ["{trace}", "{trace}"]
seeds = 3
message_limit = 200
compute_percent = 1000

[sweep]
scheduler = ["gang", "dynamic-coscheduling"]
cache_entries = [2, 8]
"""


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    """Write a small scenario."""
    file = tmp_path / "card.toml"
    file.write_text(SCENARIO.format(trace=CG))
    return file


def test_a_scenario_is_run(
    scenario: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    answer = run(capsys, "sim", "keycache", "--config", scenario, "--out", out)
    rows = answer["runs"]
    assert len(rows) == 2 * 2 * 3
    # Both jobs go on until both have had their 200.
    assert all(400 <= row["messages"] < 500 for row in rows)
    assert len({row["digest"] for row in rows}) == len(rows)
    assert answer["parameters"]["key_memory_ns"] == 2500
    digest = hashlib.sha256(CG.read_bytes()).hexdigest()
    assert answer["parameters"]["sha256"] == f"{digest[:16]} {digest[:16]}"
    file = out / "card.csv"
    assert head(file)["link_rate_bytes_per_second"] == "1000000000"
    assert [row["digest"] for row in body(file)] == [row["digest"] for row in rows]
    assert main(["sim", "keycache", "--config", str(scenario), "--seeds", "1"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split()[:2] == ["scheduler", "cache_entries"]
    assert len(shown) == 1 + 4
    # One seed says nothing about chance; several do.
    assert not any("±" in line or "nan" in line for line in shown)
    assert main(["sim", "keycache", "--config", str(scenario)]) == 0
    assert all(line.count("±") == 4 for line in capsys.readouterr().out.splitlines()[1:])


def test_presets_can_be_varied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Aim: the same runs with a cache, derived keys and a table, each with its effective parameters. Method: what follows from a preset is in the rows."""
    file = tmp_path / "card.toml"
    presets = '[sweep]\npreset = ["paper", "psp", "ready-table"]\n'
    file.write_text(f'traces = ["{CG}"]\nmessage_limit = 200\n{presets}')
    assert main(["sim", "keycache", "--config", str(file), "--out", str(tmp_path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0][:3] == ["preset", "seeds", "hit_rate"]
    assert [line[2] == "-" for line in lines[1:4]] == [False, True, True]
    assert [row["keys"] for row in body(tmp_path / "card.csv")] == ["cache", "derive", "table"]
    assert "keys" not in head(tmp_path / "card.csv")
    assert head(tmp_path / "card.csv")["key_memory_ns"] == "2500"


def test_a_run_is_a_function_of_parameters_trace_and_seed(scenario: Path) -> None:
    first = sim.keycache(scenario=scenario)
    # As many threads as there are processors finish in any order.
    assert sim.keycache(scenario=scenario)["digest"].tolist() == first["digest"].tolist()


def test_a_larger_cache_misses_less() -> None:
    asked = {"message_limit": 400, "sweep": {"cache_entries": [1, 8]}}
    table = sim.keycache(CG, scenario=asked, seeds=2).over_seeds(["hit_rate", "latency_us"])
    small, large = table.rows
    assert small["hit_rate"] < large["hit_rate"]
    assert small["latency_us"] > large["latency_us"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("cache_entrys = 3", "cache_entrys"),
        ("cache_entries = 0", "cache_entries"),
        ("cache_entries = 4\ncache_ways = 3", "cache_ways"),
        ('preset = "none of them"', "none of them"),
        ("nodes = 8", "nodes"),
        ("seeds = 0", "seeds"),
        ("seeds = [1]", "seeds"),
        ("traces = [1]", "traces"),
        ("traces = []", "traces"),
        ('[sweep]\nscheduler = "gang"', "sweep.scheduler"),
        ("[sweep]\nscheduler = []", "sweep.scheduler"),
        ('[sweep]\nscheduler = ["gong"]', "gong"),
        ("[nodes", "card.toml"),
    ],
)
def test_bad_scenarios_name_what_is_wrong(
    change: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "card.toml"
    traces = "" if change.startswith("traces") else f'traces = ["{CG}"]\n'
    file.write_text(f"{traces}{change}\n")
    error = refused(capsys, "keycache", "--config", file)
    assert named in error
    assert str(file) in error


def test_a_scenario_without_its_trace_names_the_trace(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "card.toml"
    file.write_text('traces = ["absent.skct"]\n')
    assert str(tmp_path / "absent.skct") in refused(capsys, "keycache", "--config", file)


# --- the paper ------------------------------------------------------------------------------------


def test_the_papers_figures_are_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sim", "keycache", "--paper", "--quick", "--seeds", 2, "--out", tmp_path)
    answer = run(capsys, *words, "--traces", TRACES)
    assert {"3", "5", "5d", "6", "7", "8", "9", "table-1"} <= set(answer["figures"])
    for name in answer["figures"]:
        stem = name if name.startswith("table") else f"figure-{name}"
        for ending in ("csv", "png", "svg"):
            assert (tmp_path / f"{stem}.{ending}").stat().st_size > 100
        assert head(tmp_path / f"{stem}.csv")["quick"] == "True"
        assert body(tmp_path / f"{stem}.csv")
        title = (tmp_path / f"{stem}.csv").read_text().partition("\n")[0].removeprefix("# ")
        assert escape(title) in (tmp_path / f"{stem}.svg").read_text()
    five = body(tmp_path / "figure-5.csv")
    assert {row["seeds"] for row in five} == {"2"}
    # Only a cache has hits, in the runs and in their means.
    for rows, name in ((five, "hit_rate_ci95"), (body(tmp_path / "figure-5-runs.csv"), "hit_rate")):
        for row in rows:
            assert (row[name] == "nan") == (not row["configuration"].startswith("SKC"))
            assert float(row["latency_us"]) > 0
    told = head(tmp_path / "figure-5.csv")
    assert (told["exoskel"], told["key_memory_ns"]) == (exoskel.__version__, "2500")
    digest = hashlib.sha256(CG.read_bytes()).hexdigest()
    assert f"CG:{digest[:16]}" in told["sha256"].split()
    # Nothing of it is by chance.
    assert "seeds" not in head(tmp_path / "figure-3.csv")
    assert "CG:" in head(tmp_path / "figure-8.csv")["sha256"]


def test_the_papers_machine_is_that_of_its_table_1() -> None:
    """Aim: the factors between the paper's processors and ours are what they say. Method: its times, and the computation in our traces."""
    seconds = {"CG": 3.72, "MG": 11.86, "LU": 268.61 * 20 / 250, "SP": 244.12, "BT": 291.73}
    setting = Setting(1, False, TRACES)
    for name, original in seconds.items():
        percent = 100 * original / setting.trace(name).compute_seconds
        assert workloads.PAPER_PERCENT[name] == round(percent)
        slowed = setting.trace(name, percent=workloads.PAPER_PERCENT[name])
        assert slowed.compute_seconds == pytest.approx(original, rel=1e-3)
    assert statistics.median(workloads.PAPER_PERCENT.values()) == workloads.UNSTATED_PERCENT


def test_figures_can_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sim", "keycache", "--paper", "--out", tmp_path, "--traces", TRACES, "--figure")
    assert run(capsys, *words, "table-silicon")["figures"] == ["table-silicon"]
    costs = {
        (r["cache_entries"], r["buffer_entries"]): r for r in body(tmp_path / "table-silicon.csv")
    }
    # The paper's sum for 16 KB (512 blocks) and a buffer of 16 isn't a row of ours; its engine alone is.
    assert float(costs["0", "0"]["square_mm"]) == pytest.approx(0.34)
    assert "expected one of 3" in refused(capsys, *words[1:], "17")
    assert "seeds" in refused(capsys, *words[1:], "3", "--seeds", 0)
    assert "traces" in refused(capsys, *words[1:-2], tmp_path / "none")


def test_ctrl_c_leaves_what_is_finished(tmp_path: Path) -> None:
    words = ["--paper", "--quick", "--out", str(tmp_path), "--traces", str(TRACES)]
    chosen = ["--figure", "table-silicon", "--figure", "8", "--seeds", "2000"]
    command = [sys.executable, "-m", "exoskel", "sim", "keycache", *words, *chosen]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # Told after the first run of a figure.
        assert any("Figure 8" in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        error = process.stderr.read()
        process.wait(timeout=60)
    assert process.returncode == 130
    assert f"what was finished is in {tmp_path}" in error
    assert "Traceback" not in error
    assert body(tmp_path / "table-silicon.csv")
    assert "interrupted" in head(tmp_path / "figure-8-unfinished.csv")["unfinished"]
    assert body(tmp_path / "figure-8-unfinished.csv")


def test_sizes_can_be_listed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("sim", "keycache", "--trace", CG, "--entries")
    alone = [run(capsys, *words, entries)["hit_rate"] for entries in (1, 2, 3)]
    listed = run(capsys, *words, "1,2,3")["rows"]
    assert [(row["entries"], row["hit_rate"]) for row in listed] == [
        *zip((1, 2, 3), alone, strict=True)
    ]
    assert main([*map(str, words), "1,2,3"]) == 0
    titles, *lines = capsys.readouterr().out.splitlines()[1:]
    assert titles.split()[0] == "entries"
    assert [line.split()[0] for line in lines] == ["1", "2", "3"]
    capacities = run(capsys, "sim", "capacity", "--entries", "3,4", "--off-on", 1, "--hit", 0.9)
    assert [row["capacity"] for row in capacities["rows"]] == [
        sim.capacity(3, 1, 0.9),
        sim.capacity(4, 1, 0.9),
    ]
    assert main(["sim", "capacity", "--entries", "3,4", "--off-on", "1"]) == 0
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*map(str, words), "1,x"])
    assert "such as 2,4,8" in capsys.readouterr().err
    assert "one number" in refused(capsys, *words[1:], "4,6", "--live", code=2)


def test_a_hit_rate_that_no_cache_reaches_is_laid_to_first_uses(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("sim", "keycache", "--trace", CG, "--entries", "2,64")
    whole = run(capsys, *words[:4], "--entries", 64)
    assert whole["first_uses"] == whole["lookups"] - whole["hits"] > 0
    most = whole["hit_rate_max"]
    assert most == whole["hit_rate"]

    def said(wanted: float) -> str:
        assert main([*map(str, words), "--hit", repr(wanted)]) == 0
        return capsys.readouterr().out.splitlines()[-1]

    beyond = (1 + most) / 2
    assert run(capsys, *words, "--hit", beyond)["reached_with"] is None
    assert f"can't be reached by any cache: {whole['first_uses']} of {whole['lookups']}" in said(
        beyond
    )
    assert run(capsys, *words, "--hit", most)["reached_with"] == 64
    assert "is reached with 64 entries" in said(most)
    assert main([*map(str, words[:-1]), "1", "--hit", repr(most)]) == 0
    assert "is not reached with 1 entries" in capsys.readouterr().out
    assert "between 0 and 1" in refused(capsys, *words[1:], "--hit", 1.5, code=2)
    table = sim.keycache(CG, entries=[1, 64])
    assert set(table["first_uses"].tolist()) == {whole["first_uses"]}


def test_slowdown_is_the_time_over_that_without_security(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    asked = {"message_limit": 200, "sweep": {"cache_entries": [1, 8], "keys": ["cache", "none"]}}
    table = sim.keycache(CG, scenario=asked, seeds=2, slowdown=True)
    bare = table.where(keys="none")
    assert bare["slowdown"].tolist() == [1.0] * 4
    for row in table.where(keys="cache").rows:
        without = bare.where(cache_entries=row["cache_entries"], seed=row["seed"]).rows[0]
        assert row["slowdown"] == row["completion_ms"] / without["completion_ms"] > 1
    assert "slowdown" not in sim.keycache(CG, scenario={"message_limit": 20})
    with pytest.raises(ValueError, match="slowdown: got True without a scenario"):
        sim.keycache(CG, entries=2, slowdown=True)
    file = tmp_path / "a.toml"
    file.write_text(f'traces = ["{CG}"]\nmessage_limit = 50\n[sweep]\ncache_entries = [1, 8]\n')
    assert main(["sim", "keycache", "--config", str(file), "--slowdown"]) == 0
    titles, *_ = capsys.readouterr().out.splitlines()
    assert titles.split()[-1] == "slowdown"
