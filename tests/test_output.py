"""What tasks print: out of the slot, marked at the manager, never more than a wire can bear."""

import dataclasses
import functools
import io
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import exoskel as ex
from exoskel import output
from exoskel.output import TaskOutput, present
from exoskel.progress import track
from exoskel.status import Status, StreamStatus, WorkerStatus
from exoskel.summary import KeySummary, Summary, WorkerSummary


@pytest.fixture
def sent() -> list[tuple[str, str]]:
    """Collect what is handed to the link."""
    return []


@contextmanager
def installed(sent: list[tuple[str, str]]) -> Iterator[None]:
    """Replace the streams of this process. In the test itself: pytest replaces them too, later than fixtures."""
    before = sys.stdout, sys.stderr
    handlers = list(logging.getLogger().handlers)
    output.install(lambda stream, text: sent.append((stream, text)))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        output._installed.clear()
        logging.getLogger().handlers[:] = handlers


def test_whole_lines_leave(sent: list[tuple[str, str]]) -> None:
    out = TaskOutput("stdout", lambda stream, text: sent.append((stream, text)))
    print("one", 2, file=out)
    out.write("half")
    assert sent == [("stdout", "one 2\n")]
    out.write(" a line\nnext")
    out.finish_line()
    assert sent[1:] == [("stdout", "half a line\n"), ("stdout", "next\n")]
    out.finish_line()
    assert len(sent) == 3


def test_binary_side_takes_bytes(sent: list[tuple[str, str]]) -> None:
    out = TaskOutput("stdout", lambda stream, text: sent.append((stream, text)))
    out.buffer.write(b"caf\xc3\xa9 \xff\n")
    assert sent == [("stdout", "café \ufffd\n")]


def test_installed_streams_and_logging(sent: list[tuple[str, str]]) -> None:
    with installed(sent):
        print("printed")
        print("complained", file=sys.stderr)
        logging.getLogger("filters").warning("noise %d", 3)
        print("no newline", end="")
        output.finish_task()
    assert sent == [
        ("stdout", "printed\n"),
        ("stderr", "complained\n"),
        ("log", "WARNING filters: noise 3\n"),
        ("stdout", "no newline\n"),
    ]


def test_a_flood_is_cut_and_says_so(sent: list[tuple[str, str]]) -> None:
    now = [0.0]
    out = TaskOutput(
        "stdout",
        lambda stream, text: sent.append((stream, text)),
        allowance=output._Allowance(lambda: now[0]),
    )
    for _ in range(10_000):
        print("x" * 99, file=out)
    passed = sum(len(text) for _, text in sent)
    assert passed <= output._BURST_BYTES
    now[0] += 1.0
    print("later", file=out)
    text = "".join(text for _, text in sent)
    dropped = (1_000_000 - passed) // 100
    assert text.endswith(f"[output cut: {dropped} lines, {dropped * 100} bytes dropped]\nlater\n")


def test_a_flood_of_log_lines_is_cut_as_well(
    sent: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed and what is logged have one allowance: neither takes the wires from results."""
    # The flood takes no time, however slow this machine is.
    at_once = functools.partial(output._Allowance, lambda: 0.0)
    monkeypatch.setattr(output, "_Allowance", at_once)
    with installed(sent):
        logger = logging.getLogger("flood")
        for _ in range(20_000):
            logger.warning("%s", "x" * 100)
        output.finish_task()
    logged = [text for stream, text in sent if stream == "log"]
    assert 0 < sum(map(len, logged)) < output._BURST_BYTES + 100
    assert any("[output cut: " in text for _, text in sent)


def test_a_cut_is_told_when_the_task_ends(sent: list[tuple[str, str]]) -> None:
    out = TaskOutput(
        "stdout",
        lambda stream, text: sent.append((stream, text)),
        allowance=output._Allowance(lambda: 0.0),
    )
    out.write("y\n" * 500_000)
    out.finish_line()
    assert sent[-1][1].startswith("[output cut: ")
    assert sum(len(text) for _, text in sent) < output._BURST_BYTES + 100


def test_a_line_without_end_does_not_fill_memory(sent: list[tuple[str, str]]) -> None:
    out = TaskOutput("stdout", lambda stream, text: sent.append((stream, text)))
    for _ in range(100_000):
        out.write("z")
    assert len(sent) >= 5


def shout(number: int) -> int:
    print(f"item {number}")
    return number


def test_what_an_item_prints_is_seen_before_its_result(capsys: pytest.CaptureFixture[str]) -> None:
    with ex.Manager(ex.Farm(shout), ex.ParDegree(1)) as manager:
        for number in range(300):
            assert list(manager.map([number])) == [number]
            assert f"item {number}\n" in capsys.readouterr().out


def test_lines_are_marked_with_their_worker(capsys: pytest.CaptureFixture[str]) -> None:
    present("node1", "stdout", "a\nb\n")
    present("node1", "stderr", "c")
    present("node2", "log", "d\n")
    captured = capsys.readouterr()
    assert captured.out == "[node1] a\n[node1] b\n"
    assert captured.err == "[node1] c\n[node2] d\n"


# What drives a terminal, forges a line, or reverses what people read.
WEAPONS = [
    "\x1b[2J",
    "\x1b]0;t\x07",
    "\x9b2J",
    "\u202e",
    "\u2066",
    "\u2028",
    "\u2029",
    "\r",
    "\b",
    "\0",
]


def weapons(_: int) -> None:
    print("\ta".join(WEAPONS), "\x1b[1;31mred\x1b[m ≤")


def test_what_a_task_prints_is_shown_and_only_colours_are_obeyed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A child of this process may colour its lines: it can run code here anyway. See test_workers for strangers."""
    with ex.Manager(ex.Farm(weapons), ex.ParDegree(1)) as manager:
        assert list(manager.map(range(1))) == [None]
    out = capsys.readouterr().out
    colours = "\x1b[1;31mred\x1b[m ≤\x1b[0m\n"
    assert out.startswith("[local-1] ")
    assert out.endswith(colours)
    assert out.removesuffix(colours).replace("\t", "").isprintable()


def test_progress_hands_items_through_and_closes_the_stream(
    capsys: pytest.CaptureFixture[str],
) -> None:
    closed = []

    def stream() -> Iterator[int]:
        try:
            yield from range(10)
        finally:
            closed.append(True)

    assert list(track(stream(), 10, "images")) == list(range(10))
    assert "images: 10 of 10" in capsys.readouterr().err
    closed.clear()
    tracked = track(stream(), None, "images")
    assert next(tracked) == 0
    tracked.close()  # type: ignore[attr-defined]
    assert closed == [True]


def test_progress_on_a_terminal_is_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert list(track(range(3), 3, "images")) == [0, 1, 2]
    assert "3/3" in terminal.getvalue()


def test_summary_fits_a_terminal_and_says_what_matters() -> None:
    summary = Summary(
        [
            WorkerSummary(
                "node1",
                "127.0.0.1:7601",
                "lab",
                "tcp",
                "plain",
                "done",
                2,
                700,
                2**20,
                3 * 2**30,
                12.34,
            ),
            WorkerSummary(
                "x" * 80,
                "[2001:db8::1]:7601",
                "",
                "tcp",
                "encrypted",
                "lost",
                2,
                7,
                10,
                999,
                2000,
                3,
            ),
        ]
    )
    lines = str(summary).splitlines()
    assert max(map(len, lines)) <= 100
    assert lines[2].split() == [
        "node1",
        "tcp://127.0.0.1:7601",
        "lab",
        "plain",
        "done",
        "700",
        "0",
        "1.0M",
        "3.0G",
        "12.3s",
    ]
    assert "encrypted" in lines[3]
    assert lines[-1].split()[:4] == ["2", "workers", "707", "3"]
    assert summary.as_dict()["workers"][0]["bytes_sent"] == 2**20


def test_summary_says_who_was_set_aside() -> None:
    reason = "broke its session 3 times: record 7 on link 1 does not verify: " + "x" * 60
    text = str(Summary([WorkerSummary("good"), WorkerSummary("bad", set_aside=reason)]))
    assert "set aside: worker bad: broke its session 3 times: record 7" in text
    assert text.count("set aside") == 1
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    "kind", [Summary, WorkerSummary, KeySummary, Status, StreamStatus, WorkerStatus]
)
def test_help_says_what_each_field_means(kind: type) -> None:
    documented = re.findall(r"^ +(\w+) : .+\n +\S", kind.__doc__ or "", re.MULTILINE)
    assert documented == [field.name for field in dataclasses.fields(kind)]
