"""Links that have no way to their peer, and nodes that can't do what they should: where a user looks, the reason is told."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.processes import eventually
from tests.test_links import NAMES, PLAIN, Lab
from tests.test_links_lasting import Relay
from tests.whole_files import replace

import exoskel as ex
from exoskel import links
from exoskel.cli import main

OCEAN, ATMOSPHERE, PLOTTER = NAMES
RULE = f"""
[[allow.rule]]
action = "coupler.double"
name = "{ATMOSPHERE}"
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a home directory of the test's own, where the sockets for ``exoskel links`` are."""
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    return place


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    made.policy.write_text(PLAIN + RULE)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


def offer(node: links.Node) -> links.Endpoint:
    """Offer an endpoint with a handler, a stream handler and a region."""
    endpoint = node.endpoint("coupler")
    endpoint.region("field", np.zeros(3))

    @endpoint.stream_handler
    def upload(stream: links.Stream) -> None:
        stream.readall()

    @endpoint.handler
    def double(value: int) -> int:
        return 2 * value

    return endpoint


class Broken:
    """A binding whose way is cut, after it has worked."""

    def __init__(self, lab: Lab) -> None:
        self.endpoint = offer(lab.node(OCEAN, "127.0.0.1:0"))
        self.relay = Relay(self.endpoint._node.hints[0])
        startpoint = self.endpoint.startpoint(to="*").with_hints([self.relay.hint])
        self.node = lab.node(ATMOSPHERE)
        self.bound = self.node.bind(startpoint)
        assert self.bound.request("double", 1).result(timeout=60) == 2
        self.relay.refuse(True)

    def is_tried(self) -> bool:
        """Wait until it was dialled in vain."""
        return eventually(lambda: f"tried {self.relay.hint}" in repr(self.bound))


@pytest.fixture
def broken(lab: Lab) -> Iterator[Broken]:
    made = Broken(lab)
    yield made
    made.relay.close()


def test_whoever_waits_is_told_what_was_tried(broken: Broken) -> None:
    assert "no link yet" not in repr(broken.bound)
    reply = broken.bound.request("double", 2)
    assert broken.is_tried()
    reason = rf"the connection was lost \d+ s ago: .*; tried {broken.relay.hint}: .+"
    with pytest.raises(TimeoutError, match=rf"no answer of double at {OCEAN} .*: {reason}"):
        reply.result(timeout=0)
    with pytest.raises(TimeoutError, match=rf"what the region field is like: {reason}"):
        broken.bound.region("field", timeout=0).get(0)
    group = links.group([broken.bound]).request("double", 3)
    with pytest.raises(TimeoutError, match=rf"got no answer of 1 of 1 .*: \[0\] .*: {reason}"):
        group.result(timeout=0)
    # It goes on when it can.
    broken.relay.refuse(False)
    assert reply.result(timeout=60) == 4
    assert repr(broken.bound).endswith(": encrypted>")


def test_a_stream_that_waits_says_what_was_tried(broken: Broken) -> None:
    assert broken.is_tried()
    stream = broken.bound.stream("upload", timeout=0)
    with pytest.raises(TimeoutError, match=rf"could not read .*; tried {broken.relay.hint}: "):
        stream.read(1)
    stream.abort()


def test_the_command_and_the_audit_say_what_was_tried(
    broken: Broken, capsys: pytest.CaptureFixture[str]
) -> None:
    reply = broken.bound.request("double", 2)
    assert broken.is_tried()
    lines: list[str] = []

    def is_told(*words: str) -> bool:
        lines.extend(broken.node.audit())
        return any(all(word in line for word in words) for line in lines)

    assert eventually(lambda: is_told("lost the way to", OCEAN))
    assert eventually(lambda: is_told("can't reach", broken.relay.hint))
    capsys.readouterr()
    assert main(["links"]) == 0
    shown = capsys.readouterr().out
    assert f"  no link to coupler of {OCEAN}: the connection was lost " in shown
    assert f"tried {broken.relay.hint}: " in shown
    assert main(["links", "--json"]) == 0
    nodes = json.loads(capsys.readouterr().out)["nodes"]
    (node,) = [one for one in nodes if one["name"] == ATMOSPHERE]
    (link,) = node["troubled_links"]
    assert (link["endpoint"], link["peer"]) == ("coupler", OCEAN)
    broken.relay.refuse(False)
    assert reply.result(timeout=60) == 4
    assert broken.node.status()["troubled_links"] == []
    assert eventually(lambda: is_told(f"the way to peer {OCEAN} is back"))


def test_whoever_waits_for_the_first_answer_is_told_who_does_not_give_it(lab: Lab) -> None:
    """Somebody listens there and says nothing."""
    endpoint = offer(lab.node(OCEAN, "127.0.0.1:0"))
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hint = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        node = lab.node(ATMOSPHERE)
        bound = node.bind(endpoint.startpoint(to="*").with_hints([hint]))
        assert "no link yet" in repr(bound)
        reply = bound.request("double", 1)
        assert eventually(lambda: f"no answer from {hint} so far" in repr(bound))
        with pytest.raises(TimeoutError, match=f"no answer from {hint} so far"):
            reply.result(timeout=0)
        # A lookup is dialled for itself.
        with pytest.raises(TimeoutError, match=f"no startpoint of coupler .*: .*{hint}|no session"):
            node.lookup("coupler", name=PLOTTER, at=hint, timeout=2)


def test_a_binding_remembers_why_it_has_no_link(lab: Lab) -> None:
    endpoint = offer(lab.node(OCEAN, "127.0.0.1:0"))
    bound = lab.node(ATMOSPHERE).bind(endpoint.startpoint(to=PLOTTER))
    with pytest.raises(ex.RefusedError):
        bound.request("double", 1).result(timeout=60)
    assert f"it is for '{PLOTTER}'" in repr(bound)
    bound.close()
    assert repr(bound).endswith(": closed>")


def test_a_node_that_is_closed_in_trouble_says_the_reason(broken: Broken) -> None:
    """Nor does it wait for what a new attempt has shown to be impossible: the reason is that of an attempt, and not that time is over."""
    broken.bound.post("double", 2)
    assert broken.is_tried()
    expected = rf"1 post to coupler may be lost: can't reach .*{broken.relay.hint}: "
    with pytest.raises(ex.LinkError, match=expected):
        broken.node.close()


def test_a_node_without_a_thread_says_the_reason_as_well(lab: Lab) -> None:
    endpoint = offer(lab.node(OCEAN, "127.0.0.1:0"))
    relay = Relay(endpoint._node.hints[0])
    node = links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, threads=0)
    bound = node.bind(endpoint.startpoint(to="*").with_hints([relay.hint]))
    assert bound.request("double", 1).result(timeout=60) == 2
    relay.refuse(True)

    def is_lost() -> bool:
        node.progress()
        return bound.method is None

    assert eventually(is_lost)
    bound.post("double", 2)
    with pytest.raises(ex.LinkError, match=rf"1 post .* may be lost: can't reach .*{relay.hint}"):
        node.close()
    relay.close()


def test_a_request_that_may_have_run_says_so(lab: Lab) -> None:
    owner = lab.node(OCEAN, "127.0.0.1:0")
    endpoint = owner.endpoint("coupler")
    runs, may_end = threading.Event(), threading.Event()

    @endpoint.handler
    def hold() -> None:
        runs.set()
        may_end.wait(60)

    relay = Relay(owner.hints[0])
    bound = lab.node(ATMOSPHERE).bind(endpoint.startpoint(to="*").with_hints([relay.hint]))
    reply = bound.request("hold")
    try:
        assert runs.wait(60)
        # As after a kill and a new start: another process answers in its place.
        next_owner = lab.node(OCEAN, "127.0.0.1:0")
        relay.lead_to(next_owner.hints[0])
        relay.cut()
        with pytest.raises(ex.LinkError, match="may or may not have been handled"):
            reply.result(timeout=60)
        with pytest.raises(ex.LinkError, match="is there with another process") as raised:
            bound.request("hold").result(timeout=60)
        assert "handled" not in str(raised.value)
    finally:
        may_end.set()
        relay.close()


def test_a_found_endpoint_whose_process_has_ended_is_to_be_looked_up_again(lab: Lab) -> None:
    owner = lab.node(OCEAN, "127.0.0.1:0")
    offer(owner)
    relay = Relay(owner.hints[0])
    place = relay.hint
    atmosphere = lab.node(ATMOSPHERE)
    # Two names of one place.
    found = atmosphere.lookup(
        "coupler", name=OCEAN, at=[place, place.replace("127.0.0.1", "localhost")]
    )
    given = atmosphere.bind(found.startpoint)
    assert found.request("double", 1).result(timeout=60) == 2
    owner.close()
    assert eventually(lambda: found.method is None)
    next_owner = lab.node(OCEAN, "127.0.0.1:0")
    offer(next_owner)
    relay.lead_to(next_owner.hints[0])
    with pytest.raises(ex.LinkError, match="look the endpoint up again") as raised:
        found.request("double", 1).result(timeout=60)
    text = str(raised.value)
    assert text.count("is there with another process") == 1, text
    assert "startpoint" not in text
    with pytest.raises(ex.LinkError, match="made this startpoint has ended: ask for a new one"):
        given.request("double", 1).result(timeout=60)
    again = atmosphere.lookup("coupler", name=OCEAN, at=place)
    assert again.request("double", 1).result(timeout=60) == 2
    relay.close()


@pytest.mark.parametrize(
    "spelled",
    [
        lambda place: place,
        lambda place: f"tcp://{place}",
        lambda place: place.replace("127.0.0.1", "localhost"),
    ],
    ids=["same", "scheme", "name"],
)
def test_a_lookup_at_a_place_makes_no_second_session(
    lab: Lab, spelled: Callable[[str], str]
) -> None:
    owner = lab.node(OCEAN, "127.0.0.1:0")
    endpoint = offer(owner)
    atmosphere = lab.node(ATMOSPHERE)
    bound = atmosphere.bind(endpoint.startpoint(to="*").text())
    assert bound.request("double", 1).result(timeout=60) == 2
    found = atmosphere.lookup("coupler", name=OCEAN, at=spelled(owner.hints[0]), timeout=30)
    assert found.request("double", 1).result(timeout=60) == 2
    assert len(found.startpoint.hints) == (2 if "localhost" in spelled(owner.hints[0]) else 1)
    # One that was dialled to see who is there ends at once.
    assert eventually(lambda: len(atmosphere.sessions()) == 1)
    assert eventually(lambda: len(owner.sessions()) == 1)
    assert bound.request("double", 2).result(timeout=60) == 4


def test_a_node_that_nobody_can_dial_is_told_as_that(lab: Lab) -> None:
    endpoint = offer(lab.node(OCEAN))
    with pytest.raises(ex.NoAddressError, match="neither listens nor registers at a gateway"):
        lab.node(ATMOSPHERE).bind(endpoint.startpoint(to="*")).request("double", 1).result(60)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings that the log has."""
    records: list[Any] = [one for one in caplog.records if one.name == "exoskel.links"]
    return [one.getMessage() for one in records if one.levelno == logging.WARNING]


def test_a_gateway_that_is_not_there_is_in_the_log(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gateway = f"gate@127.0.0.1:{taken.getsockname()[1]}"
    with (
        caplog.at_level(logging.WARNING, "exoskel.links"),
        links.Node(lab.credential(OCEAN), policy=lab.policy, gateways=gateway) as node,
    ):
        offer(node)
        expected = f"not registered at the gateway {gateway}: "
        assert eventually(lambda: any(expected in line for line in warnings(caplog)))
        assert expected in repr(node)
        assert any(expected in one for one in node.status()["troubles"])
    assert len(warnings(caplog)) == 1
    assert warnings(caplog)[0].startswith(f"{OCEAN}: ")


def test_a_node_that_only_dials_logs_what_is_wrong_while_it_is_idle(
    lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody asks the node for anything: it has no endpoint and no request."""
    with (
        caplog.at_level(logging.WARNING, "exoskel.links"),
        links.Node(lab.credential(OCEAN), policy=lab.policy),
    ):
        replace(lab.policy, "[nonsense")
        assert eventually(
            lambda: any("kept the credential, policy" in line for line in warnings(caplog))
        )


def test_an_own_certificate_that_has_expired_is_said_to_be_ones_own(lab: Lab) -> None:
    """The other end refuses it; whoever dials hears whose fault that is, and which command mends it."""
    endpoint = offer(lab.node(OCEAN, "127.0.0.1:0"))
    short = lab.place / "short.pem"
    where = ["--directory", str(lab.place / "pki"), "--output", str(short), "--json"]
    name = ["--role", "peer", "--name", ATMOSPHERE, "--days", "0.00005", "--force"]

    def issued() -> bool:
        assert main(["pki", "issue", *where, *name]) == 0
        # Who is late for the certificate itself makes no node.
        with contextlib.suppress(ex.CredentialError):
            lab.nodes.append(links.Node(short, policy=lab.policy, patience=0))
        return len(lab.nodes) > before

    before = len(lab.nodes)
    assert eventually(issued)
    node = lab.nodes[-1]
    expected = f"this node's own certificate, of {ATMOSPHERE}, expired on .*exoskel pki renew"

    def is_told() -> bool:
        try:
            node.bind(endpoint.startpoint(to="*")).request("double", 1).result(timeout=60)
        except ex.ExoskelError as error:
            return re.search(expected, str(error)) is not None
        return False

    assert eventually(is_told)
    assert re.search(expected, repr(node)) is not None


def test_a_post_to_no_handler_is_told_at_once(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """Where the startpoint says it, by the post itself; where only the other end does, by the log."""
    endpoint = offer(lab.node(OCEAN, "127.0.0.1:0"))
    node = lab.node(ATMOSPHERE)
    bound = node.bind(endpoint.startpoint(to="*", handlers=["double"]))
    for call in (bound.post, bound.request):
        with pytest.raises(ValueError, match=r'got the handler "treble", expected one .*"double"'):
            call("treble", 1)
    assert node.sessions() == []
    assert bound.request("double", 1).result(timeout=60) == 2
    anew = node.bind(endpoint.startpoint(to="*"))
    with caplog.at_level(logging.WARNING, "exoskel.links"):
        anew.post("treble", 1)
        expected = 'got the handler "treble", expected one'
        assert eventually(lambda: any(expected in line for line in warnings(caplog)))
    with pytest.raises(ex.LinkError, match="1 post to coupler may be lost"):
        anew.request("double", 1)


@pytest.mark.parametrize("threads", [1, 0])
def test_a_policy_that_can_not_be_read_again_is_in_the_log(
    lab: Lab, threads: int, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level(logging.WARNING, "exoskel.links"),
        links.Node(lab.credential(OCEAN), policy=lab.policy, threads=threads) as node,
    ):
        offer(node)
        replace(lab.policy, "[nonsense")

        def is_told() -> bool:
            if threads == 0:
                node.progress(0.1)
            return any("kept the credential, policy" in line for line in warnings(caplog))

        assert eventually(is_told)
        assert "kept the credential, policy and revocation list of before: " in repr(node)
        replace(lab.policy, PLAIN)

        def is_well() -> bool:
            if threads == 0:
                node.progress(0.1)
            return "kept the credential" not in repr(node)

        assert eventually(is_well)
    assert repr(node).endswith("; closed>")


@contextlib.contextmanager
def gateway(lab: Lab, policy: Path) -> Iterator[str]:
    """Run a gateway, and give its name and address."""
    gate, site = lab.place / "gate.pem", lab.place / "site.toml"
    where = ["--directory", str(lab.place / "pki"), "--output", str(gate), "--json"]
    assert main(["pki", "issue", *where, "--role", "gateway", "--name", "gate"]) == 0
    site.write_text("")
    command = [sys.executable, "-m", "exoskel", "gateway", "--listen", "tcp://127.0.0.1:0"]
    files = ["--credential", str(gate), "--policy", str(policy), "--site", str(site), "--json"]
    with subprocess.Popen([*command, *files], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["listen"].removeprefix("tcp://")
            yield f"gate@{address}"
        finally:
            process.terminate()


def test_what_a_gateway_refuses_later_is_told(lab: Lab) -> None:
    """Its policy changes while a link runs, which is cut and can't come back."""
    policy = lab.place / "gate.toml"

    def allow(who: str) -> None:
        # The gateway never reads half of it.
        whole = policy.with_suffix(".new")
        whole.write_text(f'[[allow.tunnel]]\nfrom = "{who}"\nto = "*"\n')
        whole.replace(policy)

    allow("*")
    with gateway(lab, policy) as place:
        hidden = links.Node(lab.credential(OCEAN), policy=lab.policy, gateways=place)
        lab.nodes.append(hidden)
        endpoint = offer(hidden)
        assert eventually(lambda: any("registered at" in line for line in hidden.audit()))
        node = links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, patience=600)
        lab.nodes.append(node)
        bound = node.bind(endpoint.startpoint(to="*").text())
        assert bound.request("double", 1).result(timeout=60) == 2
        allow(PLOTTER)
        expected = rf"the connection was lost .*; tried gateway:{place}: .* refused: .*{PLOTTER}"
        assert eventually(lambda: re.search(expected, repr(bound)) is not None), repr(bound)
        reply = bound.request("double", 2)
        with pytest.raises(TimeoutError, match=expected):
            reply.result(timeout=0)
        allow("*")
        assert reply.result(timeout=120) == 4
