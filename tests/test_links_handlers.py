"""Which functions can be handlers, what they get, and what the log and the caller are told when they fail."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually
from tests.test_links import NAMES, Lab

import exoskel as ex
from exoskel import links
from exoskel.outcome import describe_exception

OCEAN, ATMOSPHERE = NAMES[:2]


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


@pytest.fixture
def coupler(lab: Lab) -> links.Endpoint:
    return lab.node(OCEAN, "127.0.0.1:0").endpoint("coupler")


def passes_on(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function, as decorators do."""

    @functools.wraps(function)
    def wrapper(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords)

    return wrapper


def takes_no_call(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function, and give it another first argument."""

    @functools.wraps(function)
    def wrapper(value: Any) -> Any:
        return function("own", value)

    return wrapper


class Model:
    """Something whose methods are handlers."""

    def method(self, call: links.Call, value: int) -> list[Any]:
        """Say who has called."""
        return [call.peer, value]

    @passes_on
    def wrapped_method(self, call: links.Call, value: int) -> list[Any]:
        """Say who has called."""
        return [call.peer, value]

    @classmethod
    def of_class(cls, call: links.Call, value: int) -> list[Any]:
        """Say who has called."""
        return [call.peer, value]

    @staticmethod
    def static(call: links.Call, value: int) -> list[Any]:
        """Say who has called."""
        return [call.peer, value]

    def without(self, value: int) -> list[Any]:
        """Say that nobody is known."""
        return ["nobody", value]


@passes_on
def wrapped(call: links.Call, value: int) -> list[Any]:
    return [call.peer, value]


@passes_on
@passes_on
def twice_wrapped(call: links.Call, value: int) -> list[Any]:
    return [call.peer, value]


def said(call: links.Call, value: int, *, scale: int = 1) -> list[Any]:
    return [call.peer, value * scale]


@takes_no_call
def changed(call: Any, value: int) -> list[Any]:
    return [call, value]


def all_of_them(*call: Any) -> list[Any]:
    return ["all", *call]


def named(value: int, call: str = "no") -> list[Any]:
    return [call, value]


def test_functions_that_want_the_call_get_it(lab: Lab, coupler: links.Endpoint) -> None:
    model = Model()
    want: list[Callable[..., Any]] = [
        model.method,
        model.wrapped_method,
        Model.of_class,
        Model.static,
    ]
    want += [wrapped, twice_wrapped, functools.partial(said, scale=1)]
    for function in want:
        coupler.handler(function)
    others = {"without": "nobody", "changed": "own", "all_of_them": "all", "named": "no"}
    without: list[Callable[..., Any]] = [model.without, changed, all_of_them, named]
    for function in without:
        coupler.handler(function)
    bound = lab.node(ATMOSPHERE).bind(coupler.startpoint(to="*"))
    for name in (
        *("method", "wrapped_method", "of_class", "static"),
        *("wrapped", "twice_wrapped", "said"),
    ):
        assert bound.request(name, 7).result(timeout=60) == [ATMOSPHERE, 7], name
    for name, expected in others.items():
        assert bound.request(name, 7).result(timeout=60) == [expected, 7], name


def test_a_handler_that_waits_for_its_only_thread_is_told(lab: Lab) -> None:
    """It would wait without end: its own request has to be handled by the thread that waits."""
    node = lab.node(OCEAN, "127.0.0.1:0")
    coupler = node.endpoint("coupler")
    other = node.endpoint("other")

    @coupler.handler
    def ask(text: str) -> Any:
        return node.bind(text).request("answer").result()

    @coupler.handler
    def answer() -> int:
        return 42

    other.handler(answer)
    bound = lab.node(ATMOSPHERE).bind(coupler.startpoint(to="*"))
    own = coupler.startpoint(to="*").text()
    with pytest.raises(links.HandlerError, match=r"its own endpoint coupler.*threads=2") as raised:
        bound.request("ask", own).result(timeout=60)
    assert raised.value.kind == "RuntimeError"
    # Another endpoint has a thread of its own.
    assert bound.request("ask", other.startpoint(to="*").text()).result(timeout=60) == 42


def test_handlers_that_wait_for_each_others_threads_are_in_the_log(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """Two threads can wait for their own endpoint, one after the other. Both at once is told, and ends by their time."""
    node = lab.node(OCEAN, "127.0.0.1:0")
    coupler = node.endpoint("coupler", threads=2)
    both = threading.Barrier(2)

    @coupler.handler
    def ask(is_both: bool) -> Any:
        # Before either asks: the thread of the second would answer the first.
        if is_both:
            both.wait()
        reply = node.bind(coupler.startpoint(to="*")).request("answer")
        return reply.result(timeout=5 if is_both else 30)

    @coupler.handler
    def answer() -> int:
        return 42

    asker = lab.node(ATMOSPHERE)
    bound = [asker.bind(coupler.startpoint(to="*")) for _ in range(2)]
    with caplog.at_level(logging.WARNING, "exoskel.links"):
        assert bound[0].request("ask", False).result(timeout=60) == 42
        assert not logged(caplog)
        replies = [one.request("ask", True) for one in bound]
        for reply in replies:
            with contextlib.suppress(links.HandlerError):
                reply.result(timeout=60)
    expected = "all 2 threads of the endpoint coupler wait for calls to coupler itself"
    assert any(expected in line for line in logged(caplog))


def test_a_function_without_a_name_is_no_handler(coupler: links.Endpoint) -> None:
    with pytest.raises(TypeError, match=r"got a lambda for handler, expected a function"):
        coupler.handler(lambda: 1)
    with pytest.raises(TypeError, match=r"got a lambda for stream_handler"):
        coupler.stream_handler(functools.partial(lambda stream, _: None, 1))


class Unusual(Exception):
    """A failure that only this program knows."""


def test_the_kind_of_a_failure_is_the_same_for_links_and_tasks(
    lab: Lab, coupler: links.Endpoint
) -> None:
    def fail_here(is_usual: bool) -> None:
        raise KeyError("usual") if is_usual else Unusual("not usual")

    coupler.handler(fail_here)
    bound = lab.node(ATMOSPHERE).bind(coupler.startpoint(to="*"))
    with pytest.raises(links.HandlerError, match="raised KeyError: ") as usual:
        bound.request("fail_here", True).result(timeout=60)
    assert usual.value.kind == "KeyError"
    with pytest.raises(links.HandlerError) as unusual:
        bound.request("fail_here", False).result(timeout=60)
    described, *_ = describe_exception(Unusual())
    assert unusual.value.kind == described.replace(":", ".") == f"{__name__}.Unusual"


def logged(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log of links has."""
    return [one.getMessage() for one in caplog.records if one.name == "exoskel.links"]


def test_the_log_names_the_peer_and_the_programs_own_lines(
    lab: Lab, coupler: links.Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    @coupler.stream_handler
    def upload(stream: links.Stream) -> None:
        stream.readall()

    @coupler.handler
    def fail() -> None:
        raise ValueError("no")

    bound = lab.node(ATMOSPHERE).bind(coupler.startpoint(to="*"))
    with caplog.at_level(logging.WARNING, "exoskel.links"):
        stream = bound.stream("upload", timeout=20)
        stream.write(b"beginning")
        stream.abort("given up")
        with pytest.raises(links.HandlerError):
            bound.request("fail").result(timeout=60)
        expected = f"the stream handler upload of coupler failed, with a stream of {ATMOSPHERE}\n"
        assert eventually(lambda: any(expected in line for line in logged(caplog)))
        expected = f"the handler fail of coupler failed, called by {ATMOSPHERE}\n"
        assert eventually(lambda: any(expected in line for line in logged(caplog)))
    text = "\n".join(logged(caplog))
    assert "stream.readall()" in text
    assert 'raise ValueError("no")' in text
    for internal in ("link_streams.py", "link_endpoints.py", "link_waiting.py"):
        assert internal not in text


def test_what_is_too_large_says_whose_limit_it_is(lab: Lab, coupler: links.Endpoint) -> None:
    @coupler.handler
    def size(data: bytes) -> int:
        return len(data)

    @coupler.handler
    def large(count: int) -> bytes:
        return bytes(count)

    node = links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, message_bytes_max=262_144)
    lab.nodes.append(node)
    bound = node.bind(coupler.startpoint(to="*"))
    assert bound.request("size", bytes(300_000)).result(timeout=60) == 300_000
    expected = "got an answer of .* expected at most 262144, .* of the node that asked"
    with pytest.raises(links.HandlerError, match=expected) as raised:
        bound.request("large", 300_000).result(timeout=60)
    assert raised.value.kind == "exoskel.errors.SizeLimitError"
    other = links.Node(
        lab.credential(NAMES[2]), policy=lab.policy, listen="127.0.0.1:0", message_bytes_max=262_144
    )
    lab.nodes.append(other)
    endpoint = other.endpoint("small")
    endpoint.handler(size)
    bound = lab.node(ATMOSPHERE).bind(endpoint.startpoint(to="*"))
    expected = "got arguments of .* expected at most 262144, .* of the node that is asked"
    # As long as there is no link, and by the link.
    for _ in range(2):
        with pytest.raises(ex.SizeLimitError, match=expected):
            bound.request("size", bytes(300_000)).result(timeout=60)
    assert bound.request("size", bytes(100_000)).result(timeout=60) == 100_000


def test_what_is_added_to_an_endpoint_is_called_by_links_that_are_open(
    lab: Lab, coupler: links.Endpoint
) -> None:
    coupler.handler(without_a_call)
    bound = lab.node(ATMOSPHERE).bind(coupler.startpoint(to="*"))
    narrow = bound.attenuate(handlers=["without_a_call", "added"])
    held = lab.nodes[-1].bind(narrow)
    for link in (bound, held):
        assert link.request("without_a_call", 1).result(timeout=60) == 2
        with pytest.raises(ValueError, match=r'got the handler "added", expected one that'):
            link.request("added", 1).result(timeout=60)

    @coupler.handler
    def added(value: int) -> int:
        return value + 2

    edges = coupler.inbox("edges")
    replies = [bound.request(name, 1) for name in ("added", "without_a_call", "added")]
    assert [reply.result(timeout=60) for reply in replies] == [3, 2, 3]
    bound.post("edges", 7)
    assert edges.get(timeout=60) == 7
    # What a startpoint allows stays what it allows.
    assert held.request("added", 1).result(timeout=60) == 3
    with pytest.raises(ValueError, match=r'got the handler "edges", expected one that'):
        held.post("edges", 8)


def without_a_call(value: int) -> int:
    return value + 1


def test_rules_decide_about_a_handler_that_is_added_later(lab: Lab, tmp_path: Path) -> None:
    rules = tmp_path / "rules"
    denied = f'\n[[deny.rule]]\naction = "coupler.added"\nname = "{ATMOSPHERE}"\n'
    rules.write_text(lab.policy.read_text() + denied)
    node = lab.node(OCEAN, "127.0.0.1:0", policy=rules)
    coupler = node.endpoint("coupler")
    coupler.handler(without_a_call)
    bound = lab.node(ATMOSPHERE).bind(coupler.startpoint(to="*"))
    assert bound.request("without_a_call", 1).result(timeout=60) == 2

    @coupler.handler
    def added(value: int) -> int:
        return value + 2

    with pytest.raises(ValueError, match=r'got the handler "added", expected one that'):
        bound.request("added", 1).result(timeout=60)
    assert bound.request("without_a_call", 1).result(timeout=60) == 2
