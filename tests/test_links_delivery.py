"""What becomes of posts and answers when a binding or a node is closed, and how much may be under way."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import eventually
from tests.test_links import NAMES, Lab

import exoskel as ex
from exoskel import links

OCEAN, ATMOSPHERE = NAMES[:2]


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


class Notes:
    """An endpoint that notes what is posted to it, when it may."""

    def __init__(self, lab: Lab) -> None:
        self.node = lab.node(OCEAN, "127.0.0.1:0")
        self.noted: list[int] = []
        self.may = threading.Event()
        self.may.set()
        self.begun = threading.Event()
        endpoint = self.node.endpoint("notes")
        self.endpoint = endpoint

        @endpoint.handler
        def note(value: int, *_filling: bytes) -> int:
            self.begun.set()
            assert self.may.wait(60)
            self.noted.append(value)
            return value

    def text(self) -> str:
        """Return a startpoint for everybody."""
        return self.endpoint.startpoint(to="*").text()

    def has(self, expected: list[int]) -> bool:
        """Wait until it has noted this."""
        return eventually(lambda: self.noted == expected)


@pytest.fixture
def notes(lab: Lab) -> Notes:
    return Notes(lab)


def test_what_is_posted_before_there_is_a_link_outlives_its_binding(lab: Lab, notes: Notes) -> None:
    node = lab.node(ATMOSPHERE)
    with node.bind(notes.text()) as bound:
        bound.post("note", 1)
    bound = node.bind(notes.text())
    bound.post("note", 2)
    del bound
    links.group([node.bind(notes.text())]).post("note", 3)
    assert eventually(lambda: sorted(notes.noted) == [1, 2, 3])
    assert eventually(lambda: not any(one["links"] for one in node.status()["sessions"]))


def test_a_node_that_is_closed_delivers_first(lab: Lab, notes: Notes) -> None:
    with links.Node(lab.credential(ATMOSPHERE), policy=lab.policy) as node:
        bound = node.bind(notes.text())
        for number in range(100):
            bound.post("note", number)
    assert notes.has(list(range(100)))
    # Without a thread as well.
    with links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, threads=0) as node:
        node.bind(notes.text()).post("note", 100)
    assert notes.has(list(range(101)))


def test_posts_that_nobody_takes_are_in_the_log(lab: Lab, notes: Notes) -> None:
    text = notes.text()
    notes.node.close()
    node = lab.node(ATMOSPHERE)
    node.bind(text).post("note", 1)
    lines: list[str] = []

    def has_lines() -> bool:
        lines.extend(node.audit())
        return any("1 post to notes may be lost" in line for line in lines)

    assert eventually(has_lines), lines
    with pytest.raises(ex.LinkError, match="1 post to notes may be lost"):
        node.close()


@pytest.mark.parametrize("is_kept", [True, False], ids=["kept", "dropped"])
@pytest.mark.parametrize("threads", [1, 0])
@pytest.mark.parametrize("wrong", ["holder", "place", "handler"])
def test_a_node_that_is_closed_tells_lost_posts(
    wrong: str, threads: int, is_kept: bool, lab: Lab, notes: Notes
) -> None:
    text = notes.text()
    if wrong == "holder":
        text = notes.endpoint.startpoint(to="somebody.example.org").text()
    if wrong == "place":
        notes.node.close()
    handler = "tick" if wrong == "handler" else "note"
    node = links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, threads=threads)
    bound = node.bind(text)
    bound.post(handler, 1)
    if not is_kept:
        del bound
    expected = "got the handler .tick." if wrong == "handler" else "1 post to notes may be lost"
    with pytest.raises(ex.LinkError, match=expected) as raised:
        node.close()
    assert "from now on" not in str(raised.value)
    # Once is enough.
    node.close()


def test_the_end_of_a_block_tells_lost_posts(lab: Lab, notes: Notes) -> None:
    wrong = notes.endpoint.startpoint(to="somebody.example.org").text()
    credential = lab.credential(ATMOSPHERE)
    with (
        pytest.raises(ex.LinkError, match="1 post to notes may be lost"),
        links.Node(credential, policy=lab.policy) as node,
    ):
        node.bind(wrong).post("note", 1)
    # What is on its way already says more.
    with pytest.raises(KeyError, match="first"):
        _post_and_fail(credential, lab, wrong)


def _post_and_fail(credential: Path, lab: Lab, startpoint: str) -> None:
    with links.Node(credential, policy=lab.policy) as node:
        node.bind(startpoint).post("note", 1)
        raise KeyError("first")


def test_posts_to_a_process_that_was_killed_are_told(lab: Lab, tmp_path: Path) -> None:
    place = tmp_path / "startpoint"
    script = f"""
from pathlib import Path
from exoskel import links
node = links.Node({str(lab.credential(OCEAN))!r}, listen="127.0.0.1:0", live=False)
endpoint = node.endpoint("notes")
@endpoint.handler
def note(value):
    return value
Path({str(place)!r}).write_text(endpoint.startpoint(to="*").text())
node.wait()
"""
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        assert eventually(lambda: place.exists() and place.read_text() != "")
        node = links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, patience=0.3)
        bound = node.bind(place.read_text())
        assert bound.request("note", 1).result(60) == 1
        process.kill()
        process.wait()
    assert eventually(lambda: bound.method is None)

    def post_and_close() -> None:
        with node:
            bound.post("note", 2)
            bound.post("note", 3)

    # By the next post, if patience is over by then, or by the end of the node.
    with pytest.raises(ex.LinkError, match=r"posts? to notes may be lost"):
        post_and_close()


def test_posts_that_were_handled_are_not_called_lost(lab: Lab, notes: Notes) -> None:
    node = lab.node(ATMOSPHERE)
    bound = node.bind(notes.text())
    for number in range(10):
        bound.post("note", number)
    assert notes.has(list(range(10)))
    # It says what it has handled.
    notes.node.close()
    assert eventually(lambda: bound.method is None)
    node.close()


def test_what_a_call_has_told_is_not_told_again(lab: Lab, notes: Notes) -> None:
    node = lab.node(ATMOSPHERE)
    bound = node.bind(notes.endpoint.startpoint(to="somebody.example.org").text())
    bound.post("note", 1)

    def is_told() -> bool:
        try:
            bound.request("note", 2).result(60)
        except ex.LinkError as error:
            return "may be lost" in str(error)
        return False

    assert eventually(is_told)
    node.close()


def test_no_more_than_some_bytes_are_under_way(lab: Lab, notes: Notes) -> None:
    bound = lab.node(ATMOSPHERE).bind(notes.text())
    notes.may.clear()
    posted = []

    def post() -> None:
        for number in range(200):
            bound.post("note", number, bytes(1 << 20))
            posted.append(number)

    poster = threading.Thread(target=post)
    poster.start()
    assert notes.begun.wait(60)
    # 64 MiB may wait, and what the other end holds.
    assert eventually(lambda: len(posted) >= 50)
    assert len(posted) < 100
    notes.may.set()
    poster.join()
    assert notes.has(list(range(200)))


def test_a_handler_that_runs_still_answers(lab: Lab, notes: Notes) -> None:
    bound = lab.node(ATMOSPHERE).bind(notes.text())
    notes.may.clear()
    reply = bound.request("note", 7)
    assert notes.begun.wait(60)
    closing = threading.Thread(target=notes.node.close)
    closing.start()
    notes.may.set()
    assert reply.result(60) == 7
    closing.join()


def test_a_handler_that_still_runs_can_ask_others(lab: Lab, notes: Notes) -> None:
    far, text = lab.node(ATMOSPHERE, "127.0.0.1:0"), notes.text()
    endpoint = far.endpoint("forward")
    begun = threading.Event()

    @endpoint.handler
    def forward(value: int) -> int:
        begun.set()
        assert eventually(lambda: is_closing(endpoint))
        return int(far.bind(text).request("note", value).result(60))

    reply = notes.node.bind(endpoint.startpoint(to="*")).request("forward", 7)
    assert begun.wait(60)
    far.close()
    assert reply.result(60) == 7


def is_closing(endpoint: links.Endpoint) -> bool:
    """Say whether the node of an endpoint is being closed."""
    try:
        endpoint.startpoint(to="*")
    except ex.LinkError:
        return True
    return False


PROGRAM = """\
import signal
import sys
import threading

from exoskel import links
from tests.processes import eventually

signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
node = links.Node(sys.argv[1], listen="127.0.0.1:0")
endpoint = node.endpoint("notes")


@endpoint.handler
def note(value):
    print("begun", flush=True)
    assert eventually(lambda: not threading.main_thread().is_alive())
    return value


print(endpoint.startpoint(to="*").text(), flush=True)
node.wait()
"""


def test_a_program_that_is_told_to_end_does_so_in_order(lab: Lab) -> None:
    command = [sys.executable, "-c", PROGRAM, str(lab.credential(OCEAN))]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        bound = lab.node(ATMOSPHERE).bind(program.stdout.readline())
        runs, waits = bound.request("note", 1), bound.request("note", 2)
        assert program.stdout.readline() == "begun\n"
        program.send_signal(signal.SIGTERM)
        assert runs.result(60) == 1
        # Not when `patience` is over.
        with pytest.raises(ex.LinkError, match="ended before the answer came"):
            waits.result(60)
        assert program.wait(60) == 0
        assert program.stdout.read() == ""


def test_posts_before_an_answered_request_are_not_called_lost(lab: Lab, notes: Notes) -> None:
    node = lab.node(ATMOSPHERE)
    startpoint = notes.endpoint.startpoint(to="*")
    bound = node.bind(startpoint.text())
    for number in range(10):
        bound.post("note", number)
    assert bound.request("note", 10).result(60) == 10
    notes.endpoint.revoke(startpoint)
    failures = []

    def is_revoked() -> bool:
        try:
            bound.request("note", 11).result(60)
        except ex.LinkError as error:
            failures.append(str(error))
        return bool(failures)

    assert eventually(is_revoked)
    assert "revoked" in failures[0]
    assert "lost" not in failures[0]
