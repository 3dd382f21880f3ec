"""Links that are used wrongly: what is got and what is expected is said where the mistake is, and what was there goes on."""

from __future__ import annotations

import asyncio
import math
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.test_links import NAMES, Lab

import exoskel as ex
from exoskel import links

PATIENCE_SECONDS = 60.0
NO_TIMES = [-1, -0.5, math.nan, -math.inf, True, "1"]
ENDLESS = [math.inf, 1e30, 10**400]


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


@pytest.fixture
def ocean(lab: Lab) -> links.Node:
    return lab.node(NAMES[0], "127.0.0.1:0")


@pytest.fixture
def coupler(ocean: links.Node) -> links.Endpoint:
    endpoint = ocean.endpoint("coupler")

    @endpoint.handler
    def surface(*arguments: Any, **keywords: Any) -> Any:
        return [list(arguments), keywords]

    @endpoint.handler
    def unsendable() -> Any:
        return [object()]

    @endpoint.stream_handler
    def echo(stream: links.Stream) -> None:
        stream.write(stream.readall())

    return endpoint


@pytest.fixture
def bound(lab: Lab, coupler: links.Endpoint) -> links.Binding:
    return lab.node(NAMES[1]).bind(coupler.startpoint(to=NAMES[1]))


@pytest.mark.parametrize("timeout", NO_TIMES)
def test_what_is_no_time_is_told_and_nothing_is_lost(
    lab: Lab, coupler: links.Endpoint, bound: links.Binding, timeout: Any
) -> None:
    def refused(call: Callable[[], object], name: str = "timeout") -> None:
        with pytest.raises(
            (ValueError, TypeError), match=rf"got {name}=.*, expected a number of sec"
        ):
            call()

    reply = bound.request("surface")
    refused(lambda: reply.result(timeout=timeout))
    assert reply.result(PATIENCE_SECONDS) == [[], {}]
    refused(lambda: links.group([bound]).request("surface").result(timeout))
    refused(lambda: bound.stream("echo", timeout=timeout))
    with bound.stream("echo", timeout=PATIENCE_SECONDS) as stream:
        refused(lambda: setattr(stream, "timeout", timeout))
        stream.finish()
    node = lab.node(NAMES[2])
    refused(lambda: node.lookup("coupler", name=NAMES[0], at="tcp://127.0.0.1:1", timeout=timeout))
    refused(lambda: coupler.startpoint(to="*", expires=timeout), "expires")
    refused(lambda: bound.attenuate(expires=timeout), "expires")
    for option in ("patience", "connect_timeout"):
        given: dict[str, Any] = {option: timeout}
        refused(lambda given=given: links.Node(lab.credential(NAMES[2]), **given), option)  # type: ignore[misc]


@pytest.mark.parametrize("timeout", ENDLESS)
def test_very_long_times_are_endless(
    lab: Lab, coupler: links.Endpoint, bound: links.Binding, timeout: float
) -> None:
    assert bound.request("surface").result(timeout) == [[], {}]
    assert links.group([bound]).request("surface").result(timeout) == [[[], {}]]
    with bound.stream("echo", timeout=timeout) as stream:
        stream.finish()
        assert stream.read() == b""
    assert coupler.startpoint(to="*", expires=timeout).expires is None
    assert bound.attenuate(expires=timeout).expires is None
    driven = links.Node(
        lab.credential(NAMES[1]),
        policy=lab.policy,
        patience=timeout,
        connect_timeout=timeout,
        threads=0,
    )
    lab.nodes.append(driven)
    reply = driven.bind(bound.startpoint).request("surface")
    while not reply.done():
        driven.progress(timeout)
    assert reply.result(timeout) == [[], {}]


def test_only_startpoints_of_this_endpoint_are_revoked(
    lab: Lab, ocean: links.Node, coupler: links.Endpoint, bound: links.Binding
) -> None:
    other = ocean.endpoint("other")
    other.handler(_echo)
    elsewhere = lab.node(NAMES[2], "127.0.0.1:0").endpoint("coupler")
    elsewhere.handler(_echo)
    again = lab.node(NAMES[0], "127.0.0.1:0").endpoint("coupler")
    again.handler(_echo)
    for endpoint, whose in (
        (other, rf"other. of .*{NAMES[0]}"),
        (elsewhere, rf"coupler. of .*{NAMES[2]}"),
        (again, "another process"),
    ):
        startpoint = endpoint.startpoint(to="*")
        assert startpoint.number == bound.startpoint.number
        with pytest.raises(ex.StartpointError, match=whose):
            coupler.revoke(startpoint)
    assert bound.request("surface").result(PATIENCE_SECONDS) == [[], {}]
    # A narrower copy goes with the wide one, and the wide one with it.
    coupler.revoke(bound.attenuate(handlers="surface").text())
    with pytest.raises(ex.RefusedError, match="revoked"):
        bound.request("surface").result(PATIENCE_SECONDS)
    with pytest.raises(TypeError, match="got an instance of bytes, expected a Startpoint or its"):
        coupler.revoke(b"exo://")  # type: ignore[arg-type]


def _echo(*arguments: Any) -> Any:
    return list(arguments)


def test_a_startpoint_that_a_rule_gave_is_the_rules_to_take_back(lab: Lab) -> None:
    policy = lab.place / "ocean.toml"
    rule = f'[[allow.rule]]\naction = "clock._echo"\nname = "{NAMES[1]}"\n'
    policy.write_text(lab.policy.read_text() + rule)
    ocean = lab.node(NAMES[0], "127.0.0.1:0", policy=policy)
    clock = ocean.endpoint("clock")
    clock.handler(_echo)
    found = lab.node(NAMES[1]).lookup("clock", name=NAMES[0], at=ocean.hints)
    with pytest.raises(ex.StartpointError, match="change the rule instead"):
        clock.revoke(found.startpoint)


def test_one_handler_is_one_name(coupler: links.Endpoint, bound: links.Binding) -> None:
    assert coupler.startpoint(to="*", handlers="surface").handlers == ["surface"]
    assert bound.attenuate(handlers="surface").handlers == ["surface"]
    assert bound.startpoint.attenuate(handlers="surface").handlers == ["surface"]


def test_handlers_that_can_t_work_are_refused_at_once(coupler: links.Endpoint) -> None:
    async def later() -> None:
        await asyncio.sleep(0)

    def many() -> Iterator[int]:
        yield 1

    for decorate in (coupler.handler, coupler.stream_handler):
        with pytest.raises(TypeError, match=r"async function later.*asyncio\.run"):
            decorate(later)
        with pytest.raises(TypeError, match=r"generator many.* return a list"):
            decorate(many)
        with pytest.raises(TypeError, match=r"got 'name' for .*, expected a function"):
            decorate("name")  # type: ignore[type-var]


def test_keywords_may_have_any_name(bound: links.Binding) -> None:
    names = {"handler": 1, "self": 2, "timeout": 3}
    assert bound.request("surface", **names).result(PATIENCE_SECONDS) == [[], names]
    group = links.group([bound])
    assert group.request("surface", **names).result(PATIENCE_SECONDS) == [[[], names]]
    bound.post("surface", **names)
    group.post("surface", **names)
    # What comes before it has been handled.
    assert bound.request("surface").result(PATIENCE_SECONDS) == [[], {}]


@pytest.mark.parametrize("name", ["", " ", "a b", "a\nb", "a\x00", "a\u2028b", "\u00a0"])
def test_names_are_words(ocean: links.Node, coupler: links.Endpoint, name: str) -> None:
    with pytest.raises(ValueError, match=r"as the endpoint's name, expected .* none of them a sp"):
        ocean.endpoint(name)
    with pytest.raises(ValueError, match="as the region's name"):
        coupler.region(name, bytearray(8))


def test_wrong_types_are_told(lab: Lab, ocean: links.Node, bound: links.Binding) -> None:
    for given in (None, b"exo://", 1):
        with pytest.raises(TypeError, match="expected a Startpoint or its text"):
            ocean.bind(given)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got hints='h:1', expected a list of texts"):
        bound.startpoint.with_hints("h:1")
    for wrong in ([1], [None], bound, 1):
        with pytest.raises(TypeError, match=r"expected .*bindings"):
            links.group(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="got None as the endpoint's name, expected text"):
        ocean.endpoint(None)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="'listn'; there is 'listen'"):
        links.Node(lab.credential(NAMES[2]), listn="127.0.0.1:0")
    with pytest.raises(TypeError, match=r"there are listen, gateways, hints, .*, credential"):
        links.Node(lab.credential(NAMES[2]), zzz=1)


def test_arguments_that_are_no_text_are_named(
    coupler: links.Endpoint, bound: links.Binding
) -> None:
    node: Any = bound._owner
    wrong: Any = 5
    group = links.group([bound])
    for name, call in (
        ("handler", lambda: bound.request(wrong)),
        ("handler", lambda: bound.post(wrong)),
        ("handler", lambda: bound.stream(wrong)),
        ("handler", lambda: group.request(wrong)),
        ("handler", lambda: group.post(wrong)),
        ("protection", lambda: bound.require(wrong)),
        ("protection", lambda: bound.attenuate(protection=wrong)),
        ("protection", lambda: coupler.startpoint(to="*", protection=wrong)),
        ("protection", lambda: node.endpoint("other", protection=wrong)),
        ("endpoint", lambda: node.lookup(wrong, name=NAMES[0])),
        ("name", lambda: node.lookup("coupler", name=wrong)),
    ):
        with pytest.raises(TypeError, match=f"got {name}=5, expected text$"):
            call()
    with pytest.raises(TypeError, match="got 5 as the region's name, expected text"):
        bound.region(wrong)


@pytest.mark.parametrize("given", [5, None, ["a", 5], b"text"])
def test_arguments_that_are_no_texts_are_named(
    lab: Lab, coupler: links.Endpoint, bound: links.Binding, given: Any
) -> None:
    credential = lab.credential(NAMES[2])
    for name, call in (
        ("to", lambda: coupler.startpoint(to=given)),
        ("to", lambda: bound.attenuate(to=given)),
        ("at", lambda: bound._owner.lookup("coupler", name=NAMES[0], at=given)),
        ("listen", lambda: links.Node(credential, listen=given)),
        ("hints", lambda: links.Node(credential, hints=given)),
        ("gateways", lambda: links.Node(credential, gateways=given)),
        ("via", lambda: links.Node(credential, via=given)),
    ):
        with pytest.raises(TypeError, match=rf"got {name}=.*, expected text or an iterable of te"):
            call()
    if given is not None:
        for refused in (coupler.startpoint, bound.attenuate):
            with pytest.raises(TypeError, match=r"got handlers=.*, expected text or an iterable"):
                refused(handlers=given)


def test_flags_are_true_or_false(lab: Lab, coupler: links.Endpoint, bound: links.Binding) -> None:
    number: Any = 3
    for name, call in (
        ("live", lambda: links.Node(lab.credential(NAMES[2]), live=number)),
        ("bearer", lambda: coupler.startpoint(bearer=number)),
        ("writable", lambda: coupler.region("field", bytearray(8), writable=number)),
        ("relax", lambda: bound._owner.reload(relax=number)),
        ("compress_encrypted", lambda: bound._owner.endpoint("q", compress_encrypted=number)),
    ):
        with pytest.raises(TypeError, match=f"got {name}=3, expected True or False"):
            call()


def test_what_is_no_startpoint_is_shown_with_what_one_is(ocean: links.Node, lab: Lab) -> None:
    with pytest.raises(ex.StartpointError, match="got 'hello', expected a text that begins with"):
        ocean.bind("hello")
    file = lab.place / "startpoint.txt"
    file.write_text("exo://")
    with pytest.raises(ex.StartpointError, match=r"the name of a file, .*Path\('.*'\)\.read_text"):
        ocean.bind(str(file))
    # It may be a right without its head.
    with pytest.raises(ex.StartpointError) as refused:
        ocean.bind("startpoint: exo://" + 100 * "s")
    assert 20 * "s" not in str(refused.value)


def test_a_startpoint_for_no_handlers_is_refused(
    coupler: links.Endpoint, bound: links.Binding
) -> None:
    for refused in (coupler.startpoint, bound.attenuate):
        with pytest.raises(ex.StartpointError, match="got no handlers, expected at least one"):
            refused(to="*", handlers=[])


def test_times_have_one_text_each(lab: Lab, coupler: links.Endpoint, bound: links.Binding) -> None:
    for refused in (coupler.startpoint, bound.attenuate):
        for expires in (0, -1):
            with pytest.raises(ValueError, match=f"got expires={expires}, .* above 0, or None$"):
                refused(to="*", expires=expires)
    for option, given, least in (
        ("patience", -1, "that is not negative"),
        ("patience", None, "that is not negative"),
        ("connect_timeout", -2, "above 0"),
        ("connect_timeout", 0, "above 0"),
        ("connect_timeout", None, "above 0"),
    ):
        with pytest.raises((ValueError, TypeError), match=f"number of seconds {least}$"):
            links.Node(lab.credential(NAMES[2]), **{option: given})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "place",
    [
        *("", "nonsense", "127.0.0.1", "127.0.0.1:0", "http://127.0.0.1:7700", "::1:7700"),
        *("host:7700 name", "unix:here", "gateway:gate", "gateway:@h:1", "gateway:gate@h"),
    ],
)
def test_places_that_nobody_can_dial_are_told(lab: Lab, ocean: links.Node, place: str) -> None:
    with pytest.raises(ValueError, match=r"got hints='.*', expected tcp://HOST:PORT, unix:/PATH o"):
        links.Node(lab.credential(NAMES[2]), hints=place)
    with pytest.raises(ValueError, match=r"got at='.*', expected tcp://HOST:PORT, unix:/PATH or"):
        ocean.lookup("coupler", name=NAMES[2], at=["tcp://127.0.0.1:1", place])


@pytest.mark.parametrize(
    "place", ["tcp://h:1", "h:1", "[::1]:1", "unix:/here", "gateway:gate@tcp://h:1"]
)
def test_places_that_somebody_can_dial_are_taken(lab: Lab, place: str) -> None:
    with links.Node(lab.credential(NAMES[2]), hints=place) as node:
        assert node.hints == [place]


@pytest.mark.parametrize("gateway", ["", "h:1", "@h:1", "tcp://gate@h:1", "gateway:gate@h:1"])
def test_gateways_that_have_no_name_are_told(lab: Lab, gateway: str) -> None:
    with pytest.raises(ValueError, match=r"got the gateway .*, expected NAME@HOST:PORT"):
        links.Node(lab.credential(NAMES[2]), gateways=gateway)


@pytest.mark.parametrize("listen", ["", " ", "127.0.0.1:0 ocean", "127.0.0.1:0 slots=4"])
def test_where_a_node_can_t_listen_is_told_in_words_of_links(lab: Lab, listen: str) -> None:
    with pytest.raises(ValueError, match=f"got listen='{listen}', expected HOST:PORT or unix:/P"):
        links.Node(lab.credential(NAMES[2]), listen=listen)


@pytest.mark.parametrize(
    ("via", "expected"),
    [
        ("", r"got via='', expected a command, such as"),
        (" ", r"got via=' ', expected a command, such as"),
        ("ssh {hst}", r"got \{hst\} in a command of `via`, expected \{host\} or \{port\};"),
        ({"*": ["ssh", "{host}{prt}"]}, r"got \{prt\} in a command of `via`"),
    ],
)
def test_commands_that_lead_nowhere_are_told(lab: Lab, via: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        links.Node(lab.credential(NAMES[2]), via=via)


def test_other_braces_of_commands_are_left_to_them(lab: Lab) -> None:
    words = ["sh", "-c", "nc ${PROXY} {host} {port} | awk '{ print }'"]
    links.Node(lab.credential(NAMES[2]), via=words).close()
    links.Node(lab.credential(NAMES[2]), via=[]).close()


def test_a_lookup_that_has_nowhere_to_go_asks_for_a_place(lab: Lab) -> None:
    with pytest.raises(ex.NoAddressError, match=r"no session with it .* give `at`") as refused:
        lab.node(NAMES[1]).lookup("coupler", name=NAMES[0])
    assert "startpoint" not in str(refused.value)


def test_what_is_no_array_is_told(coupler: links.Endpoint, bound: links.Binding) -> None:
    coupler.region("field", np.zeros((2, 2)), writable=True)
    # A link that is opened from now on.
    field = bound._owner.bind(coupler.startpoint(to="*")).region("field")
    for call in (
        lambda: field.put((0, 0), 9.0),
        lambda: field.put(0, [1.0, 2.0]),
        lambda: coupler.region("other", [1]),
    ):
        with pytest.raises(TypeError, match=r"got an instance of \w+ for `array`, expected an arr"):
            call()
    with pytest.raises(TypeError, match="got an instance of list for `into`, expected an array"):
        field.get(0, into=[1.0, 2.0])
    field.put((0, 0), np.float64(9)).result(PATIENCE_SECONDS)


def test_what_a_stream_can_t_write_is_told(bound: links.Binding) -> None:
    text: Any = "abc"
    with bound.stream("echo", timeout=PATIENCE_SECONDS) as stream:
        with pytest.raises(TypeError, match="got an instance of str for `data`, expected bytes"):
            stream.write(text)
        with pytest.raises(TypeError, match="got an instance of str for `buffer`, expected a byte"):
            stream.readinto(text)
        stream.write(b"abc")
        stream.finish()
        stream.finish()
        with pytest.raises(
            ValueError, match=r"got a write .* after finish\(\), which ended writing"
        ):
            stream.write(b"def")
        assert stream.read() == b"abc"


@pytest.mark.parametrize("count", [0, -1, 257, 10**6, 1.5, "4"])
def test_threads_of_endpoints_are_bounded(ocean: links.Node, count: Any) -> None:
    before = threading.active_count()
    with pytest.raises(ValueError, match="expected a whole number from 1 to 256: further calls"):
        ocean.endpoint("other", threads=count)
    assert threading.active_count() == before
    # The name is free.
    ocean.endpoint("other")


def test_files_that_are_not_there_are_told(lab: Lab) -> None:
    credential = lab.credential(NAMES[1])
    with pytest.raises(ex.PolicyError, match=r"can't read the policy nosuch\.toml: No such file"):
        links.Node(credential, policy="nosuch.toml")
    with pytest.raises(ex.CredentialError, match=r"nosuch\.pem"):
        links.Node("nosuch.pem")
    with pytest.raises(
        ex.CredentialError, match=r"can't read the revocation list nosuch\.crl: No such file"
    ):
        links.Node(credential, revocation_list="nosuch.crl")


def test_what_can_t_travel_is_told_in_words_of_links(bound: links.Binding) -> None:
    with pytest.raises(ex.ResultRejectedError) as refused:
        bound.request("surface", [1, object()])
    assert "at arguments[0][0][1]: got an instance of builtins.object" in str(refused.value)
    assert "send " in str(refused.value)
    with pytest.raises(links.HandlerError, match=r"at answer\[0\]: .* send ") as failed:
        bound.request("unsendable").result(PATIENCE_SECONDS)
    for text in (str(refused.value), str(failed.value)):
        assert "worker" not in text
        assert "policy" not in text


def test_what_is_closed_is_named(coupler: links.Endpoint, bound: links.Binding, lab: Lab) -> None:
    may = threading.Event()
    coupler.handler(may.wait)
    assert bound.request("surface").result(PATIENCE_SECONDS) == [[], {}]
    reply = bound.request("wait", PATIENCE_SECONDS)
    bound.close()
    with pytest.raises(ex.LinkError, match="this binding is closed"):
        bound.request("surface")
    with pytest.raises(ex.LinkError, match="binding or its node was closed before the answer"):
        reply.result(PATIENCE_SECONDS)
    may.set()
    node = lab.nodes[-1]
    another = node.bind(bound.startpoint)
    node.close()
    with pytest.raises(ex.LinkError, match="this node is closed"):
        another.request("surface")


def test_a_node_that_is_closed_takes_nothing_more(
    ocean: links.Node, coupler: links.Endpoint
) -> None:
    startpoint = coupler.startpoint(to="*")
    ocean.close()
    threads = threading.active_count()
    for call in (
        lambda: ocean.endpoint("other", threads=3),
        lambda: ocean.bind(startpoint),
        lambda: ocean.lookup("other", name=NAMES[1]),
        lambda: coupler.startpoint(to="*"),
        lambda: coupler.handler(_echo),
        lambda: coupler.stream_handler(_echo),
        lambda: coupler.region("field", bytearray(8)),
    ):
        with pytest.raises(ex.LinkError, match=r"^this node is closed$"):
            call()
    assert threading.active_count() == threads


def test_a_forked_child_is_told_of_its_node(bound: links.Binding) -> None:
    child = os.fork()
    if child == 0:
        try:
            bound.request("surface")
        except ex.ForkError as error:
            os._exit(0 if "Executor or node" in str(error) else 2)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("listen", ["18793", "0"])
def test_a_port_alone_is_no_place_to_listen_at(lab: Lab, listen: str) -> None:
    with pytest.raises(
        ValueError, match=rf"got listen='{listen}', expected HOST:PORT: \*:{listen}"
    ):
        links.Node(lab.credential(NAMES[2]), listen=listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "*:0", ":0", "tcp://*:0"])
def test_startpoints_of_every_address_say_one_that_others_can_dial(lab: Lab, listen: str) -> None:
    if listen.startswith("[") and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    node = lab.node(NAMES[0], listen)
    (hint,) = node.hints
    host, _, port = hint.rpartition(":")
    assert host not in ("0.0.0.0", "[::]", "")
    assert int(port) > 0
    endpoint = node.endpoint("coupler")
    endpoint.handler(_echo)
    found = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]).text())
    assert found.request("_echo", 1).result(PATIENCE_SECONDS) == [1]
    told = links.Node(
        lab.credential(NAMES[2]), policy=lab.policy, listen=listen, hints="ocean.example.org:7700"
    )
    lab.nodes.append(told)
    assert told.hints == ["ocean.example.org:7700"]


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::", 0))
    except OSError:
        return False
    return True
