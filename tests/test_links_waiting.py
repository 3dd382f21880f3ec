"""Links, and how programs wait for them: failures that end nothing else, awaiting without threads, and who keeps a node alive."""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.processes import eventually
from tests.test_links import NAMES, Lab

import exoskel as ex
from exoskel import links

PATIENCE_SECONDS = 60.0


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


class Slow:
    """An endpoint that answers when it is told to."""

    def __init__(self, node: links.Node) -> None:
        self.go_on = threading.Event()
        self.endpoint = node.endpoint("slow")

        @self.endpoint.handler
        def wait() -> str:
            self.go_on.wait(PATIENCE_SECONDS)
            return "late"

        quick = node.endpoint("quick")

        @quick.handler
        def add(one: int, other: int) -> int:
            return one + other

        self.quick = quick
        quick.region("field", np.arange(10.0))


@pytest.fixture
def slow(lab: Lab) -> Iterator[Slow]:
    made = Slow(lab.node(NAMES[0], "127.0.0.1:0"))
    yield made
    made.go_on.set()


class Unspeakable(Exception):
    """An exception without a text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    "raised",
    [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), Unspeakable(), ValueError("\ud800")],
)
def test_whatever_a_handler_raises_is_the_outcome_of_its_call_alone(
    lab: Lab, raised: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = lab.node(NAMES[0], "127.0.0.1:0").endpoint("coupler")

    @endpoint.handler
    def leave() -> None:
        raise raised

    @endpoint.handler
    def stay() -> str:
        return "here"

    @endpoint.stream_handler
    def flow(stream: links.Stream) -> None:
        raise raised

    bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]))
    kind = type(raised).__name__
    with caplog.at_level(logging.WARNING, "exoskel.links"):
        with pytest.raises(links.HandlerError, match=kind) as failed:
            bound.request("leave").result(PATIENCE_SECONDS)
        bound.post("leave")
        assert bound.request("stay").result(PATIENCE_SECONDS) == "here"
        with pytest.raises(links.HandlerError, match=kind):
            bound.stream("flow", timeout=PATIENCE_SECONDS).read(1)
        assert eventually(lambda: "stream handler flow" in caplog.text)
    module = type(raised).__module__
    assert failed.value.kind == (kind if module == "builtins" else f"{module}.{kind}")
    assert "the handler leave of coupler failed" in caplog.text


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt])
def test_a_node_that_is_driven_outlives_its_handlers(lab: Lab, raised: type[BaseException]) -> None:
    node = links.Node(lab.credential(NAMES[0]), policy=lab.policy, listen="127.0.0.1:0", threads=0)
    lab.nodes.append(node)
    endpoint = node.endpoint("coupler")

    @endpoint.handler
    def leave() -> None:
        raise raised

    @endpoint.handler
    def stay() -> str:
        return "here"

    bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]))

    def drive_until(reply: links.Reply) -> int:
        interrupts = 0
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not reply.done():
            assert time.monotonic() < deadline
            try:
                node.progress(0.05)
            except KeyboardInterrupt:
                interrupts += 1
        return interrupts

    reply = bound.request("leave")
    assert drive_until(reply) == (raised is KeyboardInterrupt)
    with pytest.raises(links.HandlerError, match=raised.__name__):
        reply.result(PATIENCE_SECONDS)
    reply = bound.request("stay")
    drive_until(reply)
    assert reply.result(PATIENCE_SECONDS) == "here"


def test_what_a_handler_raises_is_logged_as_short_as_it_is_told(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    endpoint = lab.node(NAMES[0], "127.0.0.1:0").endpoint("coupler")

    @endpoint.handler
    def fail() -> None:
        raise ValueError("x" * 200_000)

    bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]))
    with (
        caplog.at_level(logging.WARNING, "exoskel.links"),
        pytest.raises(links.HandlerError, match="ValueError: x"),
    ):
        bound.request("fail").result(PATIENCE_SECONDS)
    assert eventually(lambda: "the handler fail of coupler failed" in caplog.text)
    assert "Traceback" in caplog.text
    assert len(caplog.text) < 10_000


def test_awaiting_holds_no_thread_for_each_answer(lab: Lab, slow: Slow) -> None:
    node = lab.node(NAMES[1])
    late, soon = (node.bind(one.startpoint(to=NAMES[1])) for one in (slow.endpoint, slow.quick))

    async def ask() -> list[str]:
        before = threading.active_count()
        waiting = [asyncio.ensure_future(_await(late.request("wait"))) for _ in range(100)]
        await asyncio.sleep(0)
        # Neither other answers nor other work of the program wait behind them.
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await soon.request("add", 1, 2) == 3
            assert await links.group([soon, soon]).request("add", 1, 2) == [3, 3]
            assert list(await soon.region("field").get(slice(0, 2))) == [0, 1]
            assert await asyncio.to_thread(lambda: 4) == 4
        # One for all awaits, one of the executor.
        assert threading.active_count() <= before + 2
        slow.go_on.set()
        return await asyncio.gather(*waiting)

    assert asyncio.run(ask()) == ["late"] * 100


async def _await(reply: links.Reply) -> str:
    answer: str = await reply
    return answer


def test_an_await_that_is_given_up_leaves_nothing_behind(lab: Lab, slow: Slow) -> None:
    bound = lab.node(NAMES[1]).bind(slow.endpoint.startpoint(to=NAMES[1]))
    reply = bound.request("wait")
    replies = [bound.request("wait")]

    async def give_up() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reply
        waiting = asyncio.ensure_future(_await(replies[0]))
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    begun = time.monotonic()
    asyncio.run(give_up())
    assert time.monotonic() - begun < PATIENCE_SECONDS / 2
    assert eventually(lambda: not any("awaited" in one.name for one in threading.enumerate()))
    given_up = weakref.ref(replies.pop())

    def is_forgotten() -> bool:
        gc.collect()
        return given_up() is None

    assert eventually(is_forgotten)
    slow.go_on.set()
    assert reply.result(PATIENCE_SECONDS) == "late", "it can still be asked for"


def test_what_is_awaited_ends_with_the_node(lab: Lab, slow: Slow) -> None:
    node = lab.node(NAMES[1])
    bound = node.bind(slow.endpoint.startpoint(to=NAMES[1]))

    async def close() -> None:
        waiting = asyncio.ensure_future(_await(bound.request("wait")))
        await asyncio.sleep(0.05)
        await asyncio.to_thread(node.close)
        with pytest.raises(ex.LinkError):
            await waiting

    asyncio.run(close())
    assert eventually(lambda: not any("awaited" in one.name for one in threading.enumerate()))


def test_a_group_of_a_node_that_is_driven_can_be_awaited(lab: Lab, slow: Slow) -> None:
    node = links.Node(lab.credential(NAMES[1]), policy=lab.policy, threads=0)
    lab.nodes.append(node)
    bound = node.bind(slow.quick.startpoint(to=NAMES[1]))

    async def ask() -> list[int]:
        found: list[int] = await links.group([bound, bound]).request("add", 1, 2)
        return found

    assert asyncio.run(ask()) == [3, 3]


def test_what_a_node_has_given_keeps_it_alive(lab: Lab) -> None:
    # Not `lab.node`, which holds what it makes.
    def node(name: str, *listen: str) -> links.Node:
        return links.Node(lab.credential(name), policy=lab.policy, listen=listen)

    def offered() -> links.Endpoint:
        endpoint = node(NAMES[0], "127.0.0.1:0").endpoint("coupler")

        @endpoint.handler
        def add(one: int, other: int) -> int:
            return one + other

        @endpoint.stream_handler
        def echo(stream: links.Stream) -> None:
            stream.write(stream.readall())

        endpoint.region("field", np.arange(4.0))
        return endpoint

    endpoint = offered()
    text = endpoint.startpoint(to=NAMES[1]).text()
    gc.collect()
    assert node(NAMES[1]).bind(text).request("add", 1, 2).result(PATIENCE_SECONDS) == 3
    stream = node(NAMES[1]).bind(text).stream("echo", timeout=PATIENCE_SECONDS)
    region = node(NAMES[1]).bind(text).region("field")
    group = links.group([node(NAMES[1]).bind(text)])
    gc.collect()
    with stream:
        stream.write(b"some")
        stream.finish()
        assert stream.read() == b"some"
    assert list(region.get().result(PATIENCE_SECONDS)) == [0, 1, 2, 3]
    assert group.request("add", 1, 2).result(PATIENCE_SECONDS) == [3]


def test_a_node_that_nobody_holds_ends(lab: Lab) -> None:
    node = links.Node(lab.credential(NAMES[0]), policy=lab.policy, listen="127.0.0.1:0")
    endpoint = node.endpoint("coupler")

    @endpoint.handler
    def add(one: int, other: int) -> int:
        return one + other

    bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]))
    assert bound.request("add", 1, 2).result(PATIENCE_SECONDS) == 3
    ended = weakref.ref(node)
    del node, endpoint

    def has_ended() -> bool:
        # The thread that has handled the call may hold it for a moment.
        gc.collect()
        return ended() is None

    assert eventually(has_ended)
    assert eventually(lambda: not any("coupler" in one.name for one in threading.enumerate()))
    with pytest.raises(ex.LinkError):
        bound.request("add", 1, 2).result(PATIENCE_SECONDS)


def test_what_came_before_a_failure_is_not_lost(lab: Lab) -> None:
    endpoint = lab.node(NAMES[0], "127.0.0.1:0").endpoint("station")

    @endpoint.stream_handler
    def fail(stream: links.Stream) -> None:
        stream.write(b"beginning")
        stream.write(b" and middle")
        raise OSError("no end")

    bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]))
    # Leaving the block doesn't raise again what was caught inside.
    with bound.stream("fail", timeout=PATIENCE_SECONDS) as stream:
        with pytest.raises(links.HandlerError, match="no end"):
            stream.read()
        assert stream.read(9) == b"beginning"
        assert stream.read() == b" and middle"
        with pytest.raises(links.HandlerError, match="no end"):
            stream.read()


def test_a_time_out_in_the_middle_of_reading_loses_nothing(lab: Lab) -> None:
    endpoint = lab.node(NAMES[0], "127.0.0.1:0").endpoint("station")
    go_on = threading.Event()

    @endpoint.stream_handler
    def pause(stream: links.Stream) -> None:
        stream.write(b"first")
        go_on.wait(PATIENCE_SECONDS)
        stream.write(b" second")

    bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]))
    with bound.stream("pause", timeout=PATIENCE_SECONDS) as stream:
        assert stream.read(1) == b"f"
        stream.timeout = 0.05
        with pytest.raises(TimeoutError):
            stream.read()
        stream.timeout = PATIENCE_SECONDS
        go_on.set()
        assert stream.read() == b"irst second"
