"""Nodes without threads, which their users drive."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.test_links import NAMES, Lab

from exoskel import links

PATIENCE_SECONDS = 60.0


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


def node_of(lab: Lab, name: str, *listen: str) -> links.Node:
    node = links.Node(lab.credential(name), policy=lab.policy, listen=listen, threads=0)
    lab.nodes.append(node)
    return node


def offer(node: links.Node) -> links.Endpoint:
    endpoint = node.endpoint("coupler")

    @endpoint.handler
    def add(one: Any, other: Any) -> Any:
        return one + other

    @endpoint.handler
    def thread() -> str:
        return threading.current_thread().name

    @endpoint.stream_handler
    def echo(stream: links.Stream) -> None:
        stream.write(stream.readall())

    endpoint.region("field", np.arange(1000.0), writable=True)
    return endpoint


def test_one_thread_drives_two_nodes(lab: Lab) -> None:
    before = set(threading.enumerate())
    ocean, atmosphere = node_of(lab, NAMES[0], "127.0.0.1:0"), node_of(lab, NAMES[1])
    endpoint = ocean.endpoint("coupler")

    @endpoint.handler
    def add(one: int, other: int) -> int:
        return one + other

    bound = atmosphere.bind(endpoint.startpoint(to=NAMES[1]))
    replies = [bound.request("add", number, 1) for number in range(100)]
    deadline = time.monotonic() + PATIENCE_SECONDS
    handled = 0
    while not all(reply.done() for reply in replies):
        assert time.monotonic() < deadline
        atmosphere.progress()
        handled += ocean.progress(0.001)
    assert [reply.result(0) for reply in replies] == list(range(1, 101))
    assert handled == 100
    assert set(threading.enumerate()) == before


def test_who_waits_drives_its_node(lab: Lab) -> None:
    endpoint = offer(lab.node(NAMES[0], "127.0.0.1:0"))
    bound = node_of(lab, NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]))
    assert bound.request("add", 1, 2).result(PATIENCE_SECONDS) == 3
    field = np.arange(2_000_000.0)
    got = bound.request("add", field, 1).result(PATIENCE_SECONDS)
    np.testing.assert_array_equal(got, field + 1)
    with bound.stream("echo", timeout=PATIENCE_SECONDS) as stream:
        stream.write(b"x" * 900_000)
        stream.finish()
        assert len(stream.read()) == 900_000
    region = bound.region("field")
    region.put(slice(0, 3), np.ones(3)).result(PATIENCE_SECONDS)
    assert region.get(slice(0, 4)).result(PATIENCE_SECONDS).tolist() == [1, 1, 1, 3]

    async def ask() -> list[int]:
        return await asyncio.gather(*(bound.request("add", number, 1) for number in range(5)))

    assert asyncio.run(ask()) == [1, 2, 3, 4, 5]
    with pytest.raises(TimeoutError):
        node_of(lab, NAMES[2]).bind(endpoint.startpoint(to=NAMES[2])).request("add", 1, 1).result(0)


def test_handlers_run_on_the_thread_that_drives(lab: Lab) -> None:
    ocean = node_of(lab, NAMES[0], "127.0.0.1:0")
    bound = lab.node(NAMES[1]).bind(offer(ocean).startpoint(to=NAMES[1]))
    reply = bound.request("thread")
    with pytest.raises(TimeoutError):
        reply.result(0.05)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not reply.done():
        assert time.monotonic() < deadline
        ocean.progress(0.05)
    assert reply.result(0) == threading.current_thread().name


def test_only_one_thread_drives_a_node(lab: Lab) -> None:
    driven, threaded = node_of(lab, NAMES[0]), lab.node(NAMES[1])
    with pytest.raises(RuntimeError, match="thread of its own, expected threads=0"):
        threaded.progress()
    errors: list[BaseException] = []

    def drive() -> None:
        try:
            driven.progress()
        except RuntimeError as error:
            errors.append(error)

    thread = threading.Thread(target=drive)
    thread.start()
    thread.join()
    assert "another thread" in str(errors[0])
    with pytest.raises(ValueError, match="got threads=2, expected 0 or 1"):
        links.Node(lab.credential(NAMES[2]), policy=lab.policy, threads=2)
