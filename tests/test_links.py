"""Links between two nodes: who may call what, with which protection, and what is told when something is wrong."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.processes import eventually

import exoskel as ex
from exoskel import links
from exoskel.cli import main

NAMES = ("ocean.example.org", "atmosphere.example.org", "plotter.example.org")
PLAIN = """\
[domain.lab]
addresses = ["127.0.0.0/8"]
names = ["*.example.org"]

[[rule]]
from = "lab"
to = "lab"
protection = "plain"
"""


class Lab:
    """An authority, a policy, and nodes with names."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.policy = place / "policy.toml"
        self.policy.write_text(PLAIN)
        assert main(["pki", "init", str(place / "pki"), "--json"]) == 0
        self.nodes: list[links.Node] = []

    def credential(self, name: str) -> Path:
        """Issue a credential, unless there is one."""
        path = self.place / f"{name}.pem"
        if not path.exists():
            where = ["--directory", str(self.place / "pki"), "--output", str(path), "--json"]
            assert main(["pki", "issue", *where, "--role", "peer", "--name", name]) == 0
        return path

    def node(self, name: str, *listen: str, policy: Path | None = None) -> links.Node:
        """Make a node, which is closed with the test."""
        node = links.Node(self.credential(name), policy=policy or self.policy, listen=listen)
        self.nodes.append(node)
        return node


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
    endpoint = ocean.endpoint("coupler", threads=2)

    @endpoint.handler
    def add(one: Any, other: Any) -> Any:
        return one + other

    @endpoint.handler
    def who(call: links.Call) -> list[str]:
        return [call.peer, call.handler]

    @endpoint.handler
    def fail(text: str) -> None:
        raise ValueError(text)

    return endpoint


def test_ctrl_c_ends_the_waiting_of_a_node(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that serves goes on behind the waiting, and says nothing of an interrupt."""
    node = lab.node(NAMES[0], "127.0.0.1:0")
    interrupts = []

    def interrupted(_seconds: float) -> None:
        interrupts.append(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(links, "time", SimpleNamespace(sleep=interrupted, monotonic=time.monotonic))
    node.wait()
    assert interrupts == [signal.SIGINT]


def test_a_request_gets_its_answer(lab: Lab, coupler: links.Endpoint) -> None:
    text = coupler.startpoint(to="*.example.org").text()
    assert text.startswith("exo://")
    with lab.node(NAMES[1]).bind(text) as bound:
        assert bound.request("add", 2, other=3).result(timeout=60) == 5
        assert bound.request("who").result(timeout=60) == [NAMES[1], "who"]
        assert (bound.method, bound.protection) == ("tcp", "plain")


def test_arrays_go_there_and_back(lab: Lab, coupler: links.Endpoint) -> None:
    bound = lab.node(NAMES[1]).bind(coupler.startpoint(to=NAMES[1]))
    field = np.arange(1_000_000, dtype=float).reshape(1000, 1000)
    np.testing.assert_array_equal(bound.request("add", field, 1.0).result(60), field + 1)


def test_many_requests_of_many_threads(lab: Lab, coupler: links.Endpoint) -> None:
    bound = lab.node(NAMES[1]).bind(coupler.startpoint(to=NAMES[1]))
    sums: list[int] = []

    def ask(base: int) -> None:
        replies = [bound.request("add", base, number) for number in range(200)]
        sums.append(sum(reply.result(60) for reply in reversed(replies)))

    threads = [threading.Thread(target=ask, args=[1000 * number]) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sums) == [200 * 1000 * number + sum(range(200)) for number in range(4)]


def test_answers_can_be_awaited(lab: Lab, coupler: links.Endpoint) -> None:
    bound = lab.node(NAMES[1]).bind(coupler.startpoint(to=NAMES[1]))

    async def gather() -> list[int]:
        return await asyncio.gather(*(bound.request("add", one, 1) for one in range(5)))

    assert asyncio.run(gather()) == [1, 2, 3, 4, 5]


def test_what_a_handler_raises_is_told(lab: Lab, coupler: links.Endpoint) -> None:
    bound = lab.node(NAMES[1]).bind(coupler.startpoint(to=NAMES[1]))
    with pytest.raises(
        links.HandlerError, match=r"fail at ocean\.example\.org raised ValueError: no"
    ):
        bound.request("fail", "no").result(60)
    with pytest.raises(links.HandlerError, match="TypeError"):
        bound.request("add", 1).result(60)
    assert bound.request("add", 1, 1).result(60) == 2


def test_a_post_has_no_answer(lab: Lab, ocean: links.Node) -> None:
    got: list[int] = []
    log = ocean.endpoint("log")

    @log.handler
    def note(item: int) -> None:
        got.append(item)

    bound = lab.node(NAMES[1]).bind(log.startpoint(to="*.example.org"))
    for number in range(100):
        bound.post("note", number)
    assert eventually(lambda: len(got) == 100)
    assert got == list(range(100)), "calls of one link are handled in order"


def test_who_is_not_meant_is_refused(lab: Lab, ocean: links.Node, coupler: links.Endpoint) -> None:
    bound = lab.node(NAMES[1]).bind(coupler.startpoint(to=NAMES[2]))
    with pytest.raises(ex.RefusedError, match=r"atmosphere.example.org.*plotter.example.org"):
        bound.request("add", 1, 1).result(60)
    assert any("refused" in line and NAMES[1] in line for line in ocean.audit())


def test_a_startpoint_is_narrowed_and_passed_on(lab: Lab, coupler: links.Endpoint) -> None:
    atmosphere, plotter = lab.node(NAMES[1]), lab.node(NAMES[2])
    whole = atmosphere.bind(coupler.startpoint(to="*.example.org"))
    narrow = whole.attenuate(to=NAMES[2], handlers=["add"])
    assert narrow.handlers == ["add"]
    passed_on = plotter.bind(narrow.text())
    assert passed_on.request("add", 1, 2).result(60) == 3
    with pytest.raises(
        ValueError, match=r"got the handler .who., expected one .* .coupler.: .add."
    ):
        passed_on.request("who")
    # It is for somebody else now.
    with pytest.raises(ex.RefusedError, match="plotter"):
        atmosphere.bind(narrow).request("add", 1, 2).result(60)


def test_a_revoked_startpoint_ends_its_links(lab: Lab, coupler: links.Endpoint) -> None:
    startpoint = coupler.startpoint(to=NAMES[1])
    bound = lab.node(NAMES[1]).bind(startpoint)
    assert bound.request("add", 1, 1).result(60) == 2
    coupler.revoke(startpoint)
    assert eventually(lambda: bound.protection is None)
    with pytest.raises(ex.RefusedError, match="revoked"):
        bound.request("add", 1, 1).result(60)


def test_links_that_are_dropped_at_once_end_no_session(lab: Lab, coupler: links.Endpoint) -> None:
    node = lab.node(NAMES[1])
    kept = node.bind(coupler.startpoint(to=NAMES[1]))
    assert kept.request("add", 1, 1).result(60) == 2
    for turn in range(30):
        many = [node.bind(coupler.startpoint(to=NAMES[1])) for _ in range(100)]
        for bound in many:
            bound.post("add", 1, 1)
        time.sleep(turn * 0.0002)
        for bound in many:
            bound.close()
    assert kept.request("add", 1, 1).result(60) == 2
    assert not [line for line in lab.nodes[0].audit() if "resumed" in line]


def test_a_link_is_protected_as_the_strictest_wants(lab: Lab, ocean: links.Node) -> None:
    flux = ocean.endpoint("flux", protection="integrity")

    @flux.handler
    def take(value: int) -> int:
        return value

    node = lab.node(NAMES[1])
    plain = node.bind(flux.startpoint(to=NAMES[1]))
    secret = node.bind(flux.startpoint(to=NAMES[1], protection="encrypted"))
    raised = node.bind(flux.startpoint(to=NAMES[1]))
    assert [one.request("take", 1).result(60) for one in (plain, secret, raised)] == [1, 1, 1]
    assert (plain.protection, secret.protection) == ("integrity", "encrypted")
    raised.require("encrypted")
    assert raised.request("take", 2).result(60) == 2
    assert raised.protection == "encrypted"
    assert len(node.sessions()) == 1, "links with different protections share a session"


def test_processes_of_one_account_on_one_host_share_memory(lab: Lab, tmp_path: Path) -> None:
    ocean = lab.node(NAMES[0], f"unix:{tmp_path}/ocean.sock")
    endpoint = ocean.endpoint("clock")

    @endpoint.handler
    def tick(number: Any) -> Any:
        return number + 1

    bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]))
    assert bound.request("tick", 1).result(60) == 2
    assert bound.method == "shared memory"
    field = np.arange(3_000_000, dtype=float)
    np.testing.assert_array_equal(bound.request("tick", field).result(60), field + 1)


def test_who_can_t_be_reached_is_told_with_every_attempt(lab: Lab, coupler: links.Endpoint) -> None:
    startpoint = coupler.startpoint(to=NAMES[1])
    elsewhere = startpoint.with_hints(["127.0.0.1:1", "unix:/nonexistent"])
    bound = lab.node(NAMES[1]).bind(elsewhere)
    with pytest.raises(ex.LinkError, match=r"127.0.0.1:1: .*unix:/nonexistent: "):
        bound.request("add", 1, 1).result(60)


def test_somebody_else_at_the_address_is_not_taken_for_the_node(
    lab: Lab, coupler: links.Endpoint
) -> None:
    other = lab.node(NAMES[2], "127.0.0.1:0")
    bound = lab.node(NAMES[1]).bind(coupler.startpoint(to=NAMES[1]).with_hints(other.hints))
    with pytest.raises(ex.LinkError, match=r"ocean\.example\.org"):
        bound.request("add", 1, 1).result(60)


def test_requests_end_with_the_node_that_answers(lab: Lab, ocean: links.Node) -> None:
    slow = ocean.endpoint("slow")
    begun, go_on = threading.Event(), threading.Event()

    @slow.handler
    def wait() -> None:
        begun.set()
        go_on.wait(60)

    bound = lab.node(NAMES[1]).bind(slow.startpoint(to=NAMES[1]))
    reply = bound.request("wait")
    with pytest.raises(
        TimeoutError, match=r"no answer of wait at ocean\.example\.org within 0\.01 s"
    ):
        reply.result(timeout=0.01)
    assert begun.wait(60)
    closing = threading.Thread(target=ocean.close)
    closing.start()
    # Handlers that run have ten seconds.
    with pytest.raises(ex.LinkError, match=r"session with .* ended"):
        reply.result(60)
    go_on.set()
    closing.join()


@pytest.mark.parametrize(
    ("text", "shown"),
    [("exo://", "damaged"), ("http://example.org", "exo://"), ("exo://AAAA", "damaged")],
)
def test_text_that_is_no_startpoint_is_told(text: str, shown: str) -> None:
    with pytest.raises(ex.StartpointError, match=shown):
        links.Startpoint.parse(text)


def test_a_damaged_text_is_told(coupler: links.Endpoint) -> None:
    text = coupler.startpoint(to=NAMES[1]).text()
    flipped = text[:40] + ("A" if text[40] != "A" else "B") + text[41:]
    with pytest.raises(ex.StartpointError):
        links.Startpoint.parse(flipped)


def test_a_startpoint_for_nobody_is_refused(coupler: links.Endpoint) -> None:
    with pytest.raises(ex.StartpointError):
        coupler.startpoint()
    with pytest.raises(ValueError, match="expires"):
        coupler.startpoint(to="*", expires=-1)


def test_what_is_no_plain_data_does_not_travel(lab: Lab, coupler: links.Endpoint) -> None:
    bound = lab.node(NAMES[1]).bind(coupler.startpoint(to=NAMES[1]))
    with pytest.raises(ex.ResultRejectedError):
        bound.request("add", object(), 1)


def test_a_hidden_node_is_reached_through_its_gateway(lab: Lab) -> None:
    lab.policy.write_text('[[rule]]\nfrom = "any"\nto = "any"\nprotection = "integrity"\n')
    gate = lab.place / "gate.pem"
    where = ["--directory", str(lab.place / "pki"), "--output", str(gate), "--json"]
    assert main(["pki", "issue", *where, "--role", "gateway", "--name", "gate"]) == 0
    policy, site = lab.place / "gate.toml", lab.place / "site.toml"
    policy.write_text('[[allow.tunnel]]\nfrom = "*"\nto = "*"\n')
    site.write_text("")
    command = [
        sys.executable,
        "-m",
        "exoskel",
        "gateway",
        "--listen",
        "tcp://127.0.0.1:0",
        "--json",
    ]
    files = ["--credential", str(gate), "--policy", str(policy), "--site", str(site)]
    with subprocess.Popen([*command, *files], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            address = json.loads(process.stdout.readline())["listen"].removeprefix("tcp://")
            hidden = links.Node(
                lab.credential(NAMES[0]), policy=lab.policy, gateways=f"gate@{address}"
            )
            lab.nodes.append(hidden)
            assert hidden.hints == [f"gateway:gate@{address}"]
            endpoint = hidden.endpoint("clock")

            @endpoint.handler
            def tick(number: int) -> int:
                return number + 1

            assert eventually(lambda: any("registered at" in line for line in hidden.audit()))
            bound = lab.node(NAMES[1]).bind(endpoint.startpoint(to=NAMES[1]).text())
            assert bound.request("tick", 1).result(60) == 2
            assert (bound.method, bound.protection) == ("gateway", "encrypted")
            (session,) = lab.nodes[-1].status()["sessions"]
            assert [link["raised_by"] for link in session["links"]] == ["relay"]
        finally:
            process.terminate()


def test_two_processes(lab: Lab, coupler: links.Endpoint) -> None:
    script = f"""
        from exoskel import links

        with links.Node({str(lab.credential(NAMES[1]))!r}, policy={str(lab.policy)!r}) as node:
            print(node.bind({coupler.startpoint(to=NAMES[1]).text()!r}).request("add", 20, 22).result(60))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=dict(os.environ),
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "42\n", "")
