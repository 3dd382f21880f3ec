"""What the processes of a job print: whole lines, each with the rank before it where there are several processes."""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from exoskel import Job, ProcessEndedError
from exoskel.job_output import LINE_BYTES_MAX, LinePrinter, OutputWriter, Pipe
from exoskel.start_request import check_start

SECONDS = 60.0


def printed(tmp_path: Path, body: str) -> tuple[list[str], list[str], str]:
    """Run a program that has a job. Return the lines of its output and of its errors, and the output as it is."""
    program = tmp_path / "program.py"
    lines = ["import sys", "import exoskel as ex", textwrap.dedent(body)]
    program.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), done.stderr.splitlines(), done.stdout


def test_lines_of_several_processes_have_their_ranks(tmp_path: Path) -> None:
    output, errors, _ = printed(
        tmp_path,
        """
        with ex.Job() as job:
            started = job.start(["sh", "-c", "echo one; echo; printf two; echo bad >&2; printf end >&2"], count=2)
            print(started.wait(60), flush=True)
            job.start(["sh", "-c", "echo alone; echo bad alone >&2"]).wait(60)
            job.start(["sh", "-c", "echo named"], count=12, label="ocean").wait(60)
            job.start(["sh", "-c", "echo named"], label=True).wait(60)
            job.start(["sh", "-c", "echo plain"], count=2, label=False).wait(60)
        """,
    )
    # What they have printed comes before their end is known.
    head = output[: output.index("[0, 0]")]
    assert Counter(head) == Counter(["[0] one", "[0] ", "[0] two", "[1] one", "[1] ", "[1] two"])
    rest = [f"[ocean {rank}] named" for rank in range(12)]
    expected = ["[0, 0]", "alone", *rest, "[0] named", "plain", "plain"]
    assert Counter(output[len(head) :]) == Counter(expected)
    assert Counter(errors) == Counter(["[0] bad", "[0] end", "[1] bad", "[1] end", "bad alone"])


def test_lines_do_not_mix_and_none_is_lost(tmp_path: Path) -> None:
    output, _, _ = printed(
        tmp_path,
        """
        def much(here):
            # In pieces that end in the middle of lines.
            text = "".join(f"{number} {here.rank} {'x' * (number % 300)}\\\\n" for number in range(3000))
            for begin in range(0, len(text), 700):
                sys.stdout.write(text[begin : begin + 700])
                sys.stdout.flush()
            sys.stdout.write("last")

        with ex.Job() as job:
            job.start(much, count=3).values(timeout=60)
        """.replace("\\\\n", "\\n"),
    )
    for rank in range(3):
        own = [line for line in output if line.startswith(f"[{rank}] ")]
        assert own == [
            *(f"[{rank}] {number} {rank} {'x' * (number % 300)}" for number in range(3000)),
            f"[{rank}] last",
        ]
    assert len(output) == 3 * 3001


def test_a_process_that_is_killed_has_said_what_it_said(tmp_path: Path) -> None:
    output, _, _ = printed(
        tmp_path,
        """
        import os, signal

        def dies(here):
            print("before")
            os.kill(os.getpid(), signal.SIGKILL)

        with ex.Job() as job:
            print(job.start(dies, count=2).wait(60), flush=True)
        """,
    )
    assert sorted(output[:2]) == ["[0] before", "[1] before"]
    assert output[2:] == ["[-9, -9]"]


STALLED = """
import sys, time
import exoskel as ex

def flood(here):
    here.ready()
    for number in range(20000):
        print(number, "x" * 150)

if __name__ == "__main__":
    with ex.Job() as job:
        flooding = job.start(flood, count=2)
        flooding.result(60)
        # Nobody reads what they print.
        began = time.monotonic()
        while time.monotonic() < began + 0.5:
            assert job.start(["true"]).wait(60) == [0]
        print("goes on", file=sys.stderr, flush=True)
        flooding.values(60)
    print("end", file=sys.stderr, flush=True)
"""


def test_nobody_waits_for_who_reads_what_is_printed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(STALLED)
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stderr.readline() == "goes on\n"
        lines = running.stdout.read().splitlines()
        assert running.stderr.readline() == "end\n"
    for rank in range(2):
        own = [line for line in lines if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] {number} {'x' * 150}" for number in range(20000)]
    assert len(lines) == 40000


def test_ends_of_errors_are_kept_as_they_were() -> None:
    with Job() as job:
        started = job.start(["sh", "-c", "echo too warm >&2; exit 3"], count=2)
        with pytest.raises(ProcessEndedError, match=r"exit code 3: too warm$"):
            started.result(SECONDS)
        assert started.wait(SECONDS) == [3, 3]
        assert job.summary().processes[1].stderr == "too warm\n"


@pytest.mark.parametrize("label", ["\x1b[2J", "a\nb", "x" * 65, 7])
def test_labels_that_can_stand_before_no_line_are_refused(label: Any) -> None:
    with Job() as job, pytest.raises(ValueError, match="expected True, False or a word"):
        job.start(["true"], count=2, label=label)
    asked = {"words": ["true"], "directory": None, "environment": {}, "label": label}
    with pytest.raises(ValueError, match="a word of at most"):
        check_start(1, [2], [0], asked, {"size": 1})


def test_ranks_of_a_program_that_starts_them_are_its_own_to_print() -> None:
    with Job() as job, pytest.raises(TypeError, match="mpiexec -l"):
        job.start(["mpiexec"], joined=2, label=True)


def passed_on(parts: Sequence[bytes]) -> bytes:
    """Return what a pipe with a label makes of what comes in parts."""
    reader, writer = os.pipe()
    found, to = os.pipe()
    pipe = Pipe(reader, OutputWriter(to, selectors.DefaultSelector()), "[0] ")
    for part in parts:
        os.write(writer, part)
        assert pipe.read() == len(part)
    assert pipe.read() is None
    os.close(writer)
    assert pipe.read() == 0
    assert pipe.descriptor is None
    os.close(to)
    with open(found, "rb") as file:
        return file.read()


def test_a_line_without_an_end_is_cut() -> None:
    half = b"x" * (LINE_BYTES_MAX // 2)
    assert passed_on([half, half, b"end"]) == b"[0] " + half + half + b"\n[0] end\n"
    assert passed_on(["ä".encode()[:1], "ä\n".encode()[1:]]) == "[0] ä\n".encode()
    assert passed_on([]) == b""


def test_what_several_hosts_say_does_not_mix_within_a_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, other = LinePrinter(), LinePrinter()
    one.take(b"first \xc3")
    other.take(b"second\nthird")
    one.take(b"\xa4\n")
    other.finish()
    one.finish()
    assert capsys.readouterr().err == "second\nfirst ä\nthird\n"
    alone = LinePrinter(is_alone=True)
    alone.take(b"at once")
    assert capsys.readouterr().err == "at once"
