"""Inboxes: what is posted waits in order for a thread that takes it, over TCP and over shared memory."""

from __future__ import annotations

import contextlib
import itertools
import logging
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.processes import eventually
from tests.test_links import NAMES, Lab

import exoskel as ex
from exoskel import links

PATIENCE_SECONDS = 60.0
# Of one link, before anything is taken.
CREDIT_BYTES = 8 << 20


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


@pytest.fixture(params=["tcp", "shared memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the node listens that has the inboxes."""
    return "127.0.0.1:0" if request.param == "tcp" else f"unix:{tmp_path / 'ocean.socket'}"


@pytest.fixture
def endpoint(lab: Lab, place: str) -> links.Endpoint:
    return lab.node(NAMES[0], place).endpoint("coupler", threads=2)


def bound(lab: Lab, endpoint: links.Endpoint, name: str = NAMES[1]) -> links.Binding:
    return lab.node(name).bind(endpoint.startpoint(to="*.example.org"))


def test_values_come_in_the_order_in_which_they_were_posted(
    lab: Lab, endpoint: links.Endpoint, place: str
) -> None:
    inbox = endpoint.inbox("edges")
    sender = bound(lab, endpoint)
    for number in range(300):
        sender.post("edges", np.full((2, 5000), number))
        if number % 3 == 0:
            sender.post("edges", number)
            assert inbox.get(PATIENCE_SECONDS).sum() == 10_000 * number
            assert inbox.get(PATIENCE_SECONDS) == number
        else:
            np.testing.assert_array_equal(
                inbox.get(PATIENCE_SECONDS), np.full((2, 5000), number), strict=True
            )
    assert sender.method == ("tcp" if place.startswith("127") else "shared memory")


def test_two_nodes_send_each_other_edges(lab: Lab, endpoint: links.Endpoint) -> None:
    """Aim: who reads by itself on both sides, again and again, misses nothing and gets nothing twice."""
    other = lab.node(NAMES[1], "127.0.0.1:0").endpoint("coupler")
    inboxes = endpoint.inbox("left"), other.inbox("right")
    # One session carries both directions.
    forth, back = (
        lab.nodes[1].bind(endpoint.startpoint(to=NAMES[1])),
        lab.nodes[0].bind(other.startpoint(to=NAMES[0])),
    )
    got: list[list[float]] = [[], []]

    def exchange(own: int, binding: links.Binding, name: str) -> None:
        for step in range(1000):
            binding.post(name, np.full(8192, float(step)))
            got[own].append(float(inboxes[own].get(PATIENCE_SECONDS)[-1]))

    threads = [
        threading.Thread(target=exchange, args=[0, back, "right"]),
        threading.Thread(target=exchange, args=[1, forth, "left"]),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [[float(step) for step in range(1000)]] * 2


def test_several_senders_post_to_one_inbox(lab: Lab, endpoint: links.Endpoint) -> None:
    inbox = endpoint.inbox("parts")
    senders = [bound(lab, endpoint, name) for name in NAMES[1:]]
    threads = [
        threading.Thread(
            target=lambda who, sender: [sender.post("parts", [who, step]) for step in range(500)],
            args=[who, sender],
        )
        for who, sender in enumerate(senders)
    ]
    for thread in threads:
        thread.start()
    got = [inbox.get(PATIENCE_SECONDS) for _ in range(1000)]
    for thread in threads:
        thread.join()
    for who in range(2):
        assert [step for sent, step in got if sent == who] == list(range(500))


def test_each_value_goes_to_one_of_several_threads(lab: Lab, endpoint: links.Endpoint) -> None:
    inbox, other = endpoint.inbox("parts"), endpoint.inbox("others")
    sender = bound(lab, endpoint)
    got: list[list[int]] = [[] for _ in range(4)]
    got_of_other: list[int] = []

    def take(mine: list[int]) -> None:
        while (value := inbox.get(PATIENCE_SECONDS)) >= 0:
            mine.append(value)

    def take_of_other() -> None:
        while (value := other.get(PATIENCE_SECONDS)) >= 0:
            got_of_other.append(value)

    threads = [threading.Thread(target=take, args=[mine]) for mine in got]
    threads.append(threading.Thread(target=take_of_other))
    for thread in threads:
        thread.start()
    for number in range(2000):
        sender.post("parts", number)
        sender.post("others", number)
    for _ in got:
        sender.post("parts", -1)
    sender.post("others", -1)
    for thread in threads:
        thread.join()
    assert sorted(itertools.chain(*got)) == list(range(2000))
    assert all(mine == sorted(mine) for mine in got)
    assert got_of_other == list(range(2000))


def test_inboxes_and_handlers_of_one_link_do_not_wait_for_each_other(
    lab: Lab, endpoint: links.Endpoint
) -> None:
    first, second = endpoint.inbox("first"), endpoint.inbox("second")

    @endpoint.handler
    def double(value: int) -> int:
        return 2 * value

    sender = bound(lab, endpoint)
    sender.post("first", 1)
    sender.post("second", 2)
    assert sender.request("double", 3).result(PATIENCE_SECONDS) == 6
    assert second.get(PATIENCE_SECONDS) == 2
    assert first.get(PATIENCE_SECONDS) == 1


def test_calls_are_handled_while_nobody_comes_back_to_an_inbox(
    lab: Lab, endpoint: links.Endpoint
) -> None:
    """Aim: the thread that has read again and again leaves the session to nobody; the node's own thread takes over."""
    inbox = endpoint.inbox("edges")

    @endpoint.handler
    def double(value: int) -> int:
        return 2 * value

    sender = bound(lab, endpoint)
    for round in range(20):
        for step in range(20):
            sender.post("edges", step)
            assert inbox.get(PATIENCE_SECONDS) == step
        assert sender.request("double", round).result(PATIENCE_SECONDS) == 2 * round


def test_who_requests_has_an_answer_when_the_value_is_taken(
    lab: Lab, endpoint: links.Endpoint
) -> None:
    inbox = endpoint.inbox("edges")
    reply = bound(lab, endpoint).request("edges", 5)
    eventually(lambda: len(inbox) == 1)
    assert not reply.done()
    assert inbox.get(0) == 5
    assert reply.result(PATIENCE_SECONDS) is None


def test_nothing_comes_in_time(endpoint: links.Endpoint) -> None:
    inbox = endpoint.inbox("edges")
    with pytest.raises(TimeoutError, match=r"^nothing was posted to edges within 0 seconds$"):
        inbox.get(0)
    with pytest.raises(TimeoutError, match=r"^nothing was posted to edges within 0\.01 seconds$"):
        inbox.get(timeout=0.01)
    with pytest.raises(ValueError, match=r"^got timeout=-1, expected a number of seconds"):
        inbox.get(-1)


def test_who_looks_again_and_again_finds_what_has_come(lab: Lab, endpoint: links.Endpoint) -> None:
    inbox = endpoint.inbox("edges")
    sender = bound(lab, endpoint)

    found: list[int] = []

    def look() -> bool:
        with contextlib.suppress(TimeoutError):
            found.append(inbox.get(0))
            return True
        return False

    for step in range(200):
        sender.post("edges", step)
        eventually(look)
    assert found == list(range(200))


def test_who_posts_faster_than_is_taken_waits(lab: Lab, endpoint: links.Endpoint) -> None:
    """Aim: a sender is held up by what nobody takes, and everything comes in the end."""
    inbox = endpoint.inbox("fields")
    sender = bound(lab, endpoint)
    field = np.zeros(1 << 17)
    for number in range(32):
        sender.post("fields", field + number)
    eventually(lambda: len(inbox) * field.nbytes >= CREDIT_BYTES)
    assert len(inbox) * field.nbytes <= CREDIT_BYTES + field.nbytes
    for number in range(32):
        assert inbox.get(PATIENCE_SECONDS)[-1] == number


def test_what_was_posted_outlives_its_sender(lab: Lab, endpoint: links.Endpoint) -> None:
    inbox = endpoint.inbox("edges")
    sender = bound(lab, endpoint)
    for step in range(5):
        sender.post("edges", step)
    assert inbox.get(PATIENCE_SECONDS) == 0
    lab.nodes[1].close()
    assert [inbox.get(PATIENCE_SECONDS) for _ in range(4)] == [1, 2, 3, 4]
    with pytest.raises(TimeoutError):
        inbox.get(0.2)
    # Others go on.
    bound(lab, endpoint, NAMES[2]).post("edges", 5)
    assert inbox.get(PATIENCE_SECONDS) == 5


def test_what_was_posted_by_a_startpoint_that_is_taken_back_is_dropped(
    lab: Lab, endpoint: links.Endpoint
) -> None:
    inbox = endpoint.inbox("edges")
    startpoint = endpoint.startpoint(to=NAMES[1])
    lab.node(NAMES[1]).bind(startpoint).post("edges", "of no right")
    eventually(lambda: len(inbox) == 1)
    endpoint.revoke(startpoint)
    with pytest.raises(TimeoutError):
        inbox.get(0)
    bound(lab, endpoint, NAMES[2]).post("edges", "of another")
    assert inbox.get(PATIENCE_SECONDS) == "of another"


def test_the_end_of_the_node_ends_the_waiting(lab: Lab, endpoint: links.Endpoint) -> None:
    inbox = endpoint.inbox("edges")
    sender = bound(lab, endpoint)
    sender.post("edges", 1)
    assert inbox.get(PATIENCE_SECONDS) == 1
    errors: list[Exception] = []
    begun = threading.Barrier(3)

    def wait() -> None:
        begun.wait()
        try:
            inbox.get(PATIENCE_SECONDS)
        except ex.LinkError as error:
            errors.append(error)

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    begun.wait()
    lab.nodes[0].close()
    for thread in threads:
        thread.join()
    assert [str(error) for error in errors] == ["this node is closed"] * 2
    with pytest.raises(ex.LinkError, match=r"^this node is closed$"):
        inbox.get()
    with pytest.raises(ex.LinkError, match=r"^this node is closed$"):
        endpoint.inbox("others")


def test_ctrl_c_ends_the_waiting(lab: Lab, endpoint: links.Endpoint) -> None:
    inbox = endpoint.inbox("edges")
    sender = bound(lab, endpoint)
    sender.post("edges", 1)
    assert inbox.get(PATIENCE_SECONDS) == 1

    def interrupted() -> None:
        # Here: the signal may come before the waiting, and has to be expected by then.
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        inbox.get()

    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            interrupted()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    sender.post("edges", 2)
    assert inbox.get(PATIENCE_SECONDS) == 2


def test_what_is_no_value_is_told_to_who_asks_and_logged(
    lab: Lab, endpoint: links.Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    inbox = endpoint.inbox("edges")
    sender = bound(lab, endpoint)
    sender.post("edges", 1, 2)
    sender.post("edges", 1, side="left")
    reply = sender.request("edges")
    sender.post("edges", 3)
    with caplog.at_level(logging.WARNING, "exoskel.links"):
        assert inbox.get(PATIENCE_SECONDS) == 3
    text = 'for the inbox edges, expected one value: post("edges", value)'
    with pytest.raises(links.HandlerError, match="TypeError: got 0 arguments and 0 keywords"):
        reply.result(PATIENCE_SECONDS)
    assert [record.getMessage() for record in caplog.records] == [
        f"{NAMES[1]} posted what is no value: got {got} {text}"
        for got in (
            "2 arguments and 0 keywords",
            "1 arguments and 1 keywords",
            "0 arguments and 0 keywords",
        )
    ]


@pytest.mark.parametrize(
    "contents",
    [
        [],
        [[1]],
        [[1], {}, 1, 1],
        [[1], {}, True],
        [[1], {}, None],
        [[1], {}, 1.0],
        [[1], {}, "1"],
        [[1], {}, -1],
        [[1], {}, 2**32],
        [range(1), {}],
        [[1], []],
        {},
        range(2),
    ],
    ids=repr,
)
def test_what_is_no_call_is_told_to_who_makes_it(
    lab: Lab, endpoint: links.Endpoint, contents: object
) -> None:
    """Attack: a call to an inbox in a form that no binding makes."""
    inbox = endpoint.inbox("edges")
    sender = bound(lab, endpoint)
    request = sender._node.request(sender._binding, "edges", contents)
    reply = links.Reply(sender._node, sender, request, "edges")
    sender.post("edges", "good")
    assert inbox.get(PATIENCE_SECONDS) == "good"
    with pytest.raises(links.HandlerError, match=r"TypeError|OverflowError"):
        reply.result(PATIENCE_SECONDS)


def test_an_endpoint_has_one_inbox_of_a_name(lab: Lab, endpoint: links.Endpoint) -> None:
    inbox = endpoint.inbox("edges")
    sender = bound(lab, endpoint)
    sender.post("edges", 1)
    eventually(lambda: len(inbox) == 1)
    again = endpoint.inbox("edges")
    assert (again.name, len(again)) == ("edges", 1)
    assert repr(again) == "<exoskel.links.Inbox edges: 1 waiting>"
    assert again.get(0) == 1

    with pytest.raises(ValueError, match="edges"):

        @endpoint.handler
        def edges() -> None:
            pass

    @endpoint.handler
    def double(value: int) -> int:
        return 2 * value

    with pytest.raises(ValueError, match="double"):
        endpoint.inbox("double")
    with pytest.raises(links.HandlerError, match="edges is an inbox: send to it by post"):
        sender.stream("edges").read()


def test_a_node_without_a_thread_is_driven_by_who_waits(lab: Lab, place: str) -> None:
    node = links.Node(lab.credential(NAMES[0]), policy=lab.policy, listen=[place], threads=0)
    lab.nodes.append(node)
    endpoint = node.endpoint("coupler")
    inbox = endpoint.inbox("edges")
    sender = bound(lab, endpoint)
    for step in range(100):
        sender.post("edges", step)
        assert inbox.get(PATIENCE_SECONDS) == step
    with pytest.raises(TimeoutError):
        inbox.get(0)


def test_arrays_that_were_taken_stay_as_they_are(lab: Lab, endpoint: links.Endpoint) -> None:
    """Aim: memory of arrays that are gone is used again, and of no others."""
    inbox = endpoint.inbox("fields")
    sender = bound(lab, endpoint)
    kept = []
    for number in range(200):
        sender.post("fields", np.full(8192, number))
        taken = inbox.get(PATIENCE_SECONDS)
        if number % 3 == 0:
            kept.append((number, taken))
    for number, taken in kept:
        assert (taken == number).all()
