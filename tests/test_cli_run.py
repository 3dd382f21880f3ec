"""What ``exoskel run`` says when a function, a file or its user ends it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually

PROGRAM = """
import time

def failing(number):
    if number == 17:
        raise ValueError("no data")
    return number

def reading(number):
    with open(f"/nowhere/{number}.csv") as file:
        return file.read()

def a_dict(number):
    return {"number": number}

def slow(number):
    time.sleep(0.1)
    return number

def broken():
    yield 1
    raise ValueError("the list of runs has an end too early")

numbers, broken_numbers = range(20), broken()
many = range(10_000)
"""


# Slow where it runs first.
SLOW_ONCE = """
import os
import time

def measure(number):
    if number == 20 and not os.path.exists("begun"):
        open("begun", "w").close()
        time.sleep(300)
    time.sleep(0.01)
    return str(number)

numbers = range(40)
"""


def exoskel(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command that fails."""
    command = [sys.executable, "-m", "exoskel", *words]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "job.py").write_text(PROGRAM)
    return tmp_path


@pytest.mark.parametrize("how", [["--slots", "1"], ["--sequential"]])
@pytest.mark.parametrize(
    ("function", "first_line", "line"),
    [
        ("failing", "item 17: 17: ValueError: no data", 'raise ValueError("no data")'),
        (
            "reading",
            "item 0: 0: FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/0.csv'",
            'with open(f"/nowhere/{number}.csv") as file:',
        ),
    ],
)
def test_an_exception_of_a_function_names_item_class_and_line(
    place: Path, how: list[str], function: str, first_line: str, line: str
) -> None:
    words = ["run", f"job.py:{function}", "--source", "numbers", "--sink", "out.jsonl", *how]
    ended = exoskel(*words, cwd=place)
    assert ended.returncode == 1
    said = ended.stderr.splitlines()
    assert said[0] == f"exoskel: error: {first_line}"
    assert any(line in one for one in said)
    # What stands in our own files helps nobody.
    assert "cli/run.py" not in ended.stderr
    told = json.loads(exoskel(*words, "--json", cwd=place).stdout)
    assert told["error"].startswith(first_line)


def test_an_exception_of_a_source_names_class_and_line(place: Path) -> None:
    words = ["run", "job.py:failing", "--source", "broken_numbers", "--sink", "out.jsonl"]
    ended = exoskel(*words, "--sequential", cwd=place)
    assert ended.returncode == 1
    first = "exoskel: error: ValueError: the list of runs has an end too early"
    assert ended.stderr.splitlines()[0] == first
    assert "in broken" in ended.stderr


def test_a_result_that_a_sink_does_not_take_is_one_line(place: Path) -> None:
    words = ["run", "job.py:a_dict", "--source", "numbers", "--sink", "lines:out.csv"]
    ended = exoskel(*words, "--slots", "1", cwd=place)
    assert ended.returncode == 1
    assert ended.stderr == (
        "exoskel: error: item 0: its result can't be written to out.csv: TypeError: got dict as a line, expected text\n"
    )


def test_a_file_that_cannot_be_loaded_says_where(place: Path) -> None:
    (place / "job.py").write_text("import nothing_of_that_name\n")
    ended = exoskel("run", "job.py:x", "--source", "in.txt", "--sink", "o.txt", cwd=place)
    assert ended.returncode == 1
    said = ended.stderr.splitlines()
    assert said[0] == "exoskel: error: ModuleNotFoundError: No module named 'nothing_of_that_name'"
    assert any('job.py", line 1' in line for line in said)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("broken", "got the generator function broken"),
        ("five", "got 5"),
    ],
)
def test_what_is_no_program_is_one_line(place: Path, name: str, words: str) -> None:
    with (place / "job.py").open("a") as file:
        file.write("\nfive = 5\n")
    ran = exoskel("run", f"job.py:{name}", "--source", "numbers", "--sink", "out.jsonl", cwd=place)
    assert ran.returncode == 2
    assert len(ran.stderr.splitlines()) == 1, ran.stderr
    assert words in ran.stderr


def test_a_pattern_that_no_file_is_like_is_an_error(place: Path) -> None:
    words = ["--source", "*.tif", "--sink", "out.jsonl"]
    ran = exoskel("run", "job.py:failing", *words, cwd=place)
    assert ran.returncode == 1
    assert "no file here has a name like '*.tif'" in ran.stderr


def test_who_interrupts_a_run_with_a_journal_learns_how_it_goes_on(place: Path) -> None:
    words = [sys.executable, "-m", "exoskel", "run", "job.py:slow", "--source", "many"]
    words += ["--sink", "out.jsonl", "--journal", "run.journal", "--slots", "1"]
    with subprocess.Popen(words, cwd=place, stderr=subprocess.PIPE, text=True) as process:
        out = place / "out.jsonl"
        assert eventually(lambda: out.exists() and out.stat().st_size > 0)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said == "exoskel: error: interrupted; the same command goes on where this run was\n"


SSH = """#!/bin/sh
# Each host is a shell of this machine; the options come before it.
while [ "${1#-}" != "$1" ]; do shift 2; done
[ "$1" = down ] && { echo "ssh: connect to host down port 22: Connection refused" >&2; exit 255; }
exec sh -c "$2"
"""


@pytest.fixture
def with_ssh(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    commands = place / "commands"
    commands.mkdir()
    (commands / "ssh").write_text(SSH)
    (commands / "ssh").chmod(0o700)
    monkeypatch.setenv("PATH", str(commands), prepend=os.pathsep)
    return place


def test_slots_are_on_hosts_that_ssh_leads_to(with_ssh: Path) -> None:
    words = ["run", "job.py:a_dict", "--source", "numbers", "--sink", "out.jsonl"]
    launched = [*words, "--journal", "run.journal", "--launch", "ssh:lab1,me@lab2"]
    done = exoskel(*launched, "--python", sys.executable, cwd=with_ssh)
    assert (done.stderr, done.stdout) == ("", "20 results\n")
    numbers = [
        json.loads(line)["number"] for line in (with_ssh / "out.jsonl").read_text().splitlines()
    ]
    assert numbers == list(range(20))
    refused = exoskel(*words, "--launch", "ssh:down", cwd=with_ssh)
    assert refused.returncode == 1
    assert "the agent of down has ended before it was there" in refused.stderr


def test_a_slow_item_runs_at_a_second_slot(place: Path) -> None:
    (place / "slow.py").write_text(SLOW_ONCE)
    words = ["slow.py:measure", "--source", "numbers", "--sink", "out.txt", "--slots", "2"]
    ran = exoskel("run", *words, "--stragglers", "2", cwd=place)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (place / "out.txt").read_text().split() == [str(number) for number in range(40)]
    refused = exoskel("run", *words, "--stragglers", "0.5", cwd=place)
    assert refused.returncode == 1
    assert "got stragglers=0.5, expected a number above 1" in refused.stderr


@pytest.mark.parametrize("how", [["--slots", "1"], ["--sequential"]])
def test_what_functions_print_is_no_result(place: Path, how: list[str]) -> None:
    (place / "loud.py").write_text(
        "numbers = [1, 2]\ndef loud(n):\n    print('n is', n)\n    return n"
    )
    words = ["run", "loud.py:loud", "--source", "numbers", *how]
    piped = exoskel(*words, "--sink", "jsonl:-", cwd=place)
    assert (piped.returncode, piped.stdout) == (0, "1\n2\n")
    assert "n is 1" in piped.stderr
    told = exoskel(*words, "--sink", "out.jsonl", "--json", cwd=place)
    assert json.loads(told.stdout)["results"] == 2
    assert "n is 2" in told.stderr
    shown = exoskel(*words, "--sink", "out.jsonl", cwd=place)
    assert "n is 1" in shown.stdout


# Fails where it runs first.
FLAKY = """
import os
import time

class Unlucky(Exception):
    pass

def measure(number):
    if number == 3 and not os.path.exists("begun"):
        open("begun", "w").close()
        raise Unlucky
    if number < 0:
        time.sleep(300)
    return number

numbers, sleeping = range(5), [1, -1]
"""


def test_items_run_again_after_exceptions_that_are_named(place: Path) -> None:
    (place / "flaky.py").write_text(FLAKY)
    words = ["run", "flaky.py:measure", "--source", "numbers", "--sink", "out.jsonl"]
    words += ["--slots", "2", "--retries-on", "OSError,Unlucky"]
    ran = exoskel(*words, cwd=place)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (place / "begun").exists()
    assert (place / "out.jsonl").read_text().split() == [str(number) for number in range(5)]
    for word in ("Lucky", "int", "numbers", "", "BaseException"):
        refused = exoskel(*words, "--retries-on", word, cwd=place)
        assert refused.returncode == 2
        assert f"got --retries-on {word}, expected the name of a class" in refused.stderr


def test_an_item_that_runs_for_too_long_ends_a_run(place: Path) -> None:
    (place / "flaky.py").write_text(FLAKY)
    words = ["run", "flaky.py:measure", "--source", "sleeping", "--sink", "out.jsonl"]
    ended = exoskel(*words, "--slots", "1", "--timeout", "0.2", cwd=place)
    assert ended.returncode == 1
    assert "ItemTimeoutError" in ended.stderr.splitlines()[0]


def test_a_deadline_is_a_contract(place: Path) -> None:
    words = ["run", "job.py:failing", "--source", "numbers", "--sink", "out.jsonl"]
    words += ["--errors", "skip", "--slots", "1-2", "--deadline", "600:20", "--json"]
    ran = exoskel(*words, cwd=place)
    assert ran.returncode == 0
    said = json.loads(ran.stdout)
    assert (said["results"], said["skipped"]) == (19, 1)
    for word in ("600", "600:", ":20", "0:20", "600:x", "600:0"):
        refused = exoskel(*words, "--deadline", word, cwd=place)
        assert refused.returncode == 2
        assert f"got {word}, expected SECONDS:ITEMS" in refused.stderr


@pytest.mark.parametrize(
    "more",
    [
        ["--deadline", "600:20", "--sequential"],
        ["--timeout", "3", "--sequential"],
        ["--retries-on", "OSError", "--sequential"],
        ["--launch", "lab1"],
        ["--launch", "ssh:"],
        ["--launch", "slurm:many"],
        ["--launch", "slurm", "--python", "python3"],
        ["--python", "python3"],
        ["--launch", "ssh:lab1", "--sequential"],
        ["--workers", "hosts.txt", "--workers", "more.txt"],
        ["--workers", "discover", "--workers", "discover"],
        ["--workers", "discover", "--sequential"],
        ["--credential", "head.pem"],
        ["--sequential", "--policy", "policy.toml"],
    ],
)
def test_what_launches_nothing_is_wrong_usage(place: Path, more: list[str]) -> None:
    words = ["run", "job.py:a_dict", "--source", "numbers", "--sink", "out.jsonl", *more]
    refused = exoskel(*words, cwd=place)
    assert refused.returncode == 2
    assert "expected" in refused.stderr
    assert not (place / "out.jsonl").exists()


@pytest.mark.parametrize("is_closed", ["stdin", "stdout"])
def test_a_standard_stream_that_is_closed_is_one_line(place: Path, is_closed: str) -> None:
    streams = {"stdin": ["--source", "lines:-", "--sink", "out.txt"]}
    streams["stdout"] = ["--source", "numbers", "--sink", "jsonl:-"]
    words = [sys.executable, "-m", "exoskel", "run", "job.py:a_dict", *streams[is_closed]]
    shell = f'exec "$@" {"<&-" if is_closed == "stdin" else ">&-"}'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", *words, "--slots", "1"],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    name = {"stdin": "input", "stdout": "output"}[is_closed]
    assert f"standard {name} is closed" in done.stderr, done.stderr
    assert "AttributeError" not in done.stderr


def test_other_contents_of_standard_input_are_another_source(place: Path) -> None:
    (place / "same.py").write_text("def same(line):\n    return line\n")
    words = [sys.executable, "-m", "exoskel", "run", "same.py:same", "--source", "lines:-"]
    words += ["--sink", "out.txt", "--journal", "run.journal", "--slots", "1"]
    for text, code, said in [
        ("a\nb\n", 0, "2 results"),
        ("a\nb\n", 0, "2 results, 2 done by earlier runs"),
        ("a\nc\n", 1, "the source is not the one that the journal was begun with"),
    ]:
        (place / "in.txt").write_text(text)
        with open(place / "in.txt") as file:
            done = subprocess.run(
                words, cwd=place, stdin=file, capture_output=True, text=True, check=False
            )
        assert (done.returncode, said in done.stdout + done.stderr) == (code, True), done.stderr
    assert (place / "out.txt").read_text() == "a\nb\n"


HEADED = """
import os
import sys

import exoskel as ex

def same(line):
    if line == os.environ["UNTIL"]:
        raise ValueError("no more")
    return line

for _ in range(int(sys.argv[1])):
    sys.stdin.buffer.readline()
if __name__ == "__main__":
    print(ex.run(same, ex.Lines("-"), ex.Lines("out.txt"), ex.ParDegree(1), journal="run.journal"))
"""


def test_a_pipe_whose_items_are_left_out_is_told_of(place: Path) -> None:
    (place / "same.py").write_text("def same(line):\n    return line\n")
    words = [sys.executable, "-m", "exoskel", "run", "same.py:same", "--source", "lines:-"]
    words += ["--sink", "out.txt", "--journal", "run.journal", "--slots", "1"]
    for is_told in (False, True):
        done = subprocess.run(
            words, cwd=place, input="a\nb\n", capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert ("are left out, as they are done: 2" in done.stderr) == is_told, done.stderr


def test_what_was_read_of_standard_input_before_is_no_item(place: Path) -> None:
    (place / "headed.py").write_text(HEADED)
    (place / "in.txt").write_text("h1\nh2\na\nb\nc\n")

    def ran(heads: int, until: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "headed.py", str(heads)]
        with open(place / "in.txt") as file:
            return subprocess.run(
                command,
                cwd=place,
                stdin=file,
                env=os.environ | {"UNTIL": until},
                capture_output=True,
                text=True,
                check=False,
            )

    assert "no more" in ran(1, "b").stderr
    refused = ran(2, "none")
    assert "the source is not the one that the journal was begun with" in refused.stderr
    assert ran(1, "b").returncode == 1
    assert (place / "out.txt").read_text() == "h2\na\n"


def test_standard_streams_are_files_like_others(place: Path) -> None:
    (place / "same.py").write_text("def same(line):\n    return line\n")
    (place / "in.txt").write_text("a\nb\n")
    done = exoskel(
        *["run", "same.py:same", "--source", "in.txt", "--sink", "out.txt"],
        *["--journal", "run.journal", "--slots", "1"],
        cwd=place,
    )
    assert done.returncode == 0, done.stderr
    before = (place / "run.journal").read_bytes()
    run = f"exec {shlex.quote(sys.executable)} -m exoskel run same.py:same --sequential"
    for shell, said in [
        (f"{run} --source in.txt --sink lines:- >> run.journal", "is the journal of a run"),
        (f"{run} --source lines:- --sink in.txt < in.txt", "expected two files"),
    ]:
        refused = subprocess.run(
            ["sh", "-c", shell], cwd=place, capture_output=True, text=True, check=False
        )
        assert refused.returncode == 1
        assert said in refused.stderr
    assert (place / "run.journal").read_bytes() == before
    assert (place / "in.txt").read_text() == "a\nb\n"


@pytest.mark.parametrize("source", ["files:runs/*.csv", "runs/*.csv", "files:runs/a*.?sv"])
def test_a_pattern_chooses_among_the_files_of_a_folder(place: Path, source: str) -> None:
    (place / "job.py").write_text("def name(file):\n    return file.name\n")
    (place / "runs").mkdir()
    for name in ("a1.csv", "a2.csv", "notes.txt"):
        (place / "runs" / name).write_text("1,2")
    words = ["run", "job.py:name", "--source", source, "--sink", "out.txt", "--sequential"]
    assert exoskel(*words, cwd=place).stderr == ""
    assert (place / "out.txt").read_text() == "a1.csv\na2.csv\n"


FILES = """
def length(text):
    return len(text.contents if hasattr(text, "contents") else text)

class Unlucky(Exception):
    pass

def unlucky(number):
    raise Unlucky("three")

numbers = range(3)
"""


def test_a_pattern_is_files_whatever_they_end_with(place: Path) -> None:
    (place / "files.py").write_text(FILES)
    (place / "texts").mkdir()
    for name in ("a.txt", "b.txt", "c.dat"):
        (place / "texts" / name).write_text(name * 2)
    words = ["run", "files.py:length", "--source", "texts/*.txt", "--sink", "out.jsonl"]
    ran = exoskel(*words, "--sequential", cwd=place)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert (place / "out.jsonl").read_text() == "10\n10\n"


def test_a_file_with_brackets_in_its_name_is_that_file(place: Path) -> None:
    folder = place / "results[v2]"
    folder.mkdir()
    (place / "run1.jsonl").write_text("9\n")
    for source in (place / "run[1].jsonl", folder / "in.jsonl"):
        source.write_text("1\n")
        for sink in ("out[1].jsonl", "results[v2]/out.jsonl"):
            words = ["run", "job.py:a_dict", "--source", str(source), "--sink", sink]
            ran = exoskel(*words, "--sequential", cwd=place)
            assert (ran.returncode, ran.stderr) == (0, "")
            assert (place / sink).read_text().endswith('{"number": 1}\n')


def test_a_source_that_is_not_there_leaves_no_sink(place: Path) -> None:
    for source in ("none.jsonl", "none.txt", "files:none", "none/*.txt"):
        words = ["run", "job.py:a_dict", "--source", source, "--sink", "out.jsonl"]
        ended = exoskel(*words, "--sequential", cwd=place)
        assert ended.returncode == 1
        assert "no such file or directory" in ended.stderr.lower()
        assert not (place / "out.jsonl").exists()


def test_an_exception_has_the_name_that_its_class_has_in_the_file(place: Path) -> None:
    (place / "files.py").write_text(FILES)
    words = ["run", "files.py:unlucky", "--source", "numbers", "--sink", "out.jsonl"]
    for how in (["--slots", "1"], ["--sequential"]):
        ended = exoskel(*words, *how, cwd=place)
        assert ended.stderr.splitlines()[0].endswith("item 0: 0: Unlucky: three")


STATES = """
import operator
import exoskel as ex

class Counter:
    def __init__(self):
        self.calls = 0

    def __call__(self, number):
        self.calls += 1
        return [self.calls, number]

def even(number):
    if number % 2:
        raise ValueError("odd")
    return number

def parts(number):
    yield number
    if number == 2:
        raise ValueError("no more parts")
    yield 10 * number

def no_tens(number):
    if number == 10:
        raise ValueError("ten")
    return number

def stops(number):
    if number == 2:
        raise StopIteration
    return number

def counted(state, number):
    return state + 1, state * 10 + number

numbers = range(5)
scan = ex.Pipeline(ex.Scan(operator.add))
begun = ex.Pipeline(ex.Scan(operator.add, initial=100))
several = ex.Pipeline(ex.FlatMap(range), ex.Scan(operator.add))
state = ex.Pipeline(even, ex.Stateful(counted, 0))
once = ex.Pipeline(ex.Farm(Counter))
many = ex.Pipeline(ex.FlatMap(parts), no_tens, ex.Scan(operator.add))
stopped = ex.Pipeline(stops)
"""


@pytest.mark.parametrize(
    ("program", "expected", "skipped"),
    [
        ("scan", [0, 1, 3, 6, 10], 0),
        ("begun", [100, 100, 101, 103, 106, 110], 0),
        ("several", [0, 0, 1, 1, 2, 4, 4, 5, 7, 10], 0),
        ("state", [0, 12, 24], 2),
        ("many", [0, 0, 1, 4, 34, 38, 78], 2),
        ("stopped", [0, 1, 3, 4], 1),
        ("once", [[1, 0], [2, 1], [3, 2], [4, 3], [5, 4]], 0),
    ],
)
@pytest.mark.parametrize("how", [["--slots", "1"], ["--sequential"]])
def test_a_program_means_the_same_with_a_manager_and_without(
    place: Path, how: list[str], program: str, expected: list[Any], skipped: int
) -> None:
    """Aim: states go on from item to item, and a class is made once."""
    (place / "states.py").write_text(STATES)
    words = ["run", f"states.py:{program}", "--source", "numbers", "--sink", "out.jsonl"]
    ran = exoskel(*words, *how, "--errors", "skip", "--json", cwd=place)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["skipped"] == skipped
    results = [json.loads(line) for line in (place / "out.jsonl").read_text().splitlines()]
    assert results == expected
