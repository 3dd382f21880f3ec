"""Several processes with one credential: each is reached by its own startpoints, also through a gateway."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import eventually
from tests.test_links import NAMES, PLAIN, Lab
from tests.test_links_trouble import gateway

import exoskel as ex
from exoskel import links

OCEAN, ATMOSPHERE, _ = NAMES
RULE = '[[allow.rule]]\naction = "coupler.who"\nname = "*"\n'


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    made.policy.write_text(PLAIN + RULE)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


@pytest.fixture
def place(lab: Lab) -> Iterator[str]:
    """Run a gateway that connects everybody."""
    policy = lab.place / "gate.toml"
    policy.write_text('[[allow.tunnel]]\nfrom = "*"\nto = "*"\n')
    with gateway(lab, policy) as at:
        yield at


def hidden(lab: Lab, place: str, answer: str) -> tuple[links.Node, str]:
    """Make a process that nobody can dial, and a startpoint of it."""
    node = links.Node(lab.credential(OCEAN), policy=lab.policy, gateways=place)
    lab.nodes.append(node)
    endpoint = node.endpoint("coupler")

    @endpoint.handler
    def who() -> str:
        return answer

    assert eventually(lambda: any("registered at" in line for line in node.audit()))
    return node, endpoint.startpoint(to="*").text()


def test_each_hidden_process_is_reached_by_its_startpoint(lab: Lab, place: str) -> None:
    """Two processes of one credential, whichever has registered last; one of them ends."""
    first, of_first = hidden(lab, place, "first")
    _, of_second = hidden(lab, place, "second")
    node = lab.node(ATMOSPHERE)
    bound = [node.bind(text) for text in (of_first, of_second)]
    assert [one.request("who").result(timeout=60) for one in bound] == ["first", "second"]
    # A lookup asks the one that has registered last.
    found = node.lookup("coupler", name=OCEAN, at=f"gateway:{place}", timeout=30)
    assert found.request("who").result(timeout=60) == "second"
    first.close()
    with pytest.raises(ex.LinkError):
        bound[0].request("who").result(timeout=60)
    with pytest.raises(ex.LinkError, match=r"to process [0-9a-f]{8} of ocean") as raised:
        node.bind(of_first).request("who").result(timeout=60)
    text = str(raised.value)
    assert f"it is not registered there (another process of {OCEAN} is)" in text, text
    assert "get a new one" in text, text
    assert bound[1].request("who").result(timeout=60) == "second"


OWNER = """
import sys, time
from exoskel import links

credential, policy, gateways, name = sys.argv[1:]
node = links.Node(credential, policy=policy, gateways=gateways)
endpoint = node.endpoint("coupler")

@endpoint.handler
def who():
    return name

while not any("registered at" in line for line in node.audit()):
    time.sleep(0.01)
print(endpoint.startpoint(to="*").text(), flush=True)
node.wait()
"""


@contextlib.contextmanager
def owner(lab: Lab, place: str, name: str) -> Iterator[tuple[links.Startpoint, int]]:
    """Run a hidden process; give a startpoint of it and its process id."""
    words = [str(lab.credential(OCEAN)), str(lab.policy), place, name]
    command = [sys.executable, "-c", OWNER, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield links.Startpoint.parse(process.stdout.readline().strip()), process.pid
        finally:
            process.kill()


def ask_until_it_fails(bound: links.Binding) -> None:
    """What is on its way when a process is killed may still have its answer."""
    while True:
        bound.request("who").result(timeout=60)


def test_a_link_goes_on_with_its_own_process(lab: Lab, place: str) -> None:
    """Sessions to two processes begin anew: each link goes on with its own process, and with no other one when that is killed."""
    node = links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, patience=3)
    lab.nodes.append(node)
    with owner(lab, place, "older") as (first, process), owner(lab, place, "newer") as (second, _):
        older, newer = node.bind(first), node.bind(second)
        for _round in range(3):
            assert older.request("who").result(timeout=60) == "older"
            assert newer.request("who").result(timeout=60) == "newer"
            node.reload(relax=True)
        os.kill(process, signal.SIGKILL)
        expected = f"it is not registered there .another process of {OCEAN} is"
        with pytest.raises(ex.LinkError, match=expected):
            ask_until_it_fails(older)
        assert newer.request("who").result(timeout=60) == "newer"
