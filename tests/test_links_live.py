"""``exoskel links``: what running nodes say of themselves, and to whom."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually
from tests.test_links import NAMES, PLAIN, Lab
from tests.whole_files import replace

from exoskel import links
from exoskel.cli import main

OCEAN, ATMOSPHERE, PLOTTER = NAMES
READER = "reader.example.org"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a home directory of the test's own."""
    place = tmp_path / "home"
    place.mkdir()
    monkeypatch.setenv("HOME", str(place))
    return place


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


def shown(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    """What the command says."""
    capsys.readouterr()
    assert main(["links", "--json"]) == 0
    nodes: list[dict[str, Any]] = json.loads(capsys.readouterr().out)["nodes"]
    return nodes


def test_nobody_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == []
    assert main(["links"]) == 0
    assert "no node" in capsys.readouterr().out


def test_links_are_shown_with_their_protection_and_its_rule(
    lab: Lab, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ocean = lab.node(OCEAN, "127.0.0.1:0")
    coupler = ocean.endpoint("coupler", protection="integrity")

    @coupler.handler
    def surface(data: bytes) -> bytes:
        return data

    atmosphere = lab.node(ATMOSPHERE)
    bound = atmosphere.bind(coupler.startpoint(to="*.example.org"))
    for _ in range(3):
        assert bound.request("surface", b"x" * 1000).result(60) == b"x" * 1000
    nodes = {node["name"]: node for node in shown(capsys)}
    assert set(nodes) == {OCEAN, ATMOSPHERE}
    assert nodes[OCEAN]["endpoints"] == [
        {"endpoint": "coupler", "handlers": ["surface"], "minimum": "integrity"}
    ]
    assert {node["process"] for node in nodes.values()} == {os.getpid()}
    (session,) = nodes[OCEAN]["sessions"]
    assert (session["peer"], session["role"], session["method"]) == (ATMOSPHERE, "peer", "tcp")
    (link,) = session["links"]
    assert (link["endpoint"], link["opened_here"]) == ("coupler", False)
    assert (link["protection"], link["raised"]) == ("integrity", True)
    assert link["rule"] == "plain: rule 1 (line 5)"
    assert (link["messages_sent"], link["messages_received"]) == (3, 3)
    assert 3000 < link["bytes_received"] < 4000
    (theirs,) = nodes[ATMOSPHERE]["sessions"][0]["links"]
    assert theirs["opened_here"]
    assert (theirs["bytes_sent"], theirs["bytes_received"]) == (
        link["bytes_received"],
        link["bytes_sent"],
    )
    assert main(["links"]) == 0
    text = capsys.readouterr().out
    assert f"peer {ATMOSPHERE} by tcp" in text
    assert (
        "from it to our coupler: integrity (raised by the endpoint or the startpoint); 3 messages"
        in text
    )
    assert "policy: plain: rule 1 (line 5)" in text
    # Nothing secret: whoever sees it can't open a link by it.
    assert "exo://" not in text
    places = list((home / ".exoskel/run").glob("links-*"))
    assert len(places) == 2
    assert {place.stat().st_mode & 0o777 for place in places} == {0o600}
    assert (home / ".exoskel/run").stat().st_mode & 0o777 == 0o700
    for node in lab.nodes:
        node.close()
    assert shown(capsys) == []
    assert not list((home / ".exoskel/run").glob("links-*"))


def test_one_is_not_called_several(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    coupler = lab.node(OCEAN, "127.0.0.1:0").endpoint("coupler")
    coupler.handler(abs)
    bound = lab.node(ATMOSPHERE).bind(coupler.startpoint(to="*"))
    assert bound.request("abs", -1).result(60) == 1
    assert main(["links"]) == 0
    text = capsys.readouterr().out
    assert ": plain; 1 message, " in text
    assert "1 messages" not in text


PROTECTED = PLAIN.replace('"plain"', '"encrypted"')


def test_who_has_raised_a_link_is_shown(
    lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strict, changing = tmp_path / "strict.toml", tmp_path / "changing.toml"
    strict.write_text(PROTECTED)
    changing.write_text(PROTECTED)
    ocean = lab.node(OCEAN, "127.0.0.1:0", policy=strict)
    plain = lab.node(PLOTTER, "127.0.0.1:0")
    atmosphere = lab.node(ATMOSPHERE)
    reader = lab.node(READER, policy=changing)

    def opened(node: links.Node, owner: links.Node, name: str, **conditions: Any) -> links.Binding:
        endpoint = owner.endpoint(name)
        endpoint.handler(abs)
        bound = node.bind(endpoint.startpoint(to="*", **conditions))
        assert bound.request("abs", -1).result(60) == 1
        return bound

    kept = [opened(atmosphere, ocean, "theirs")]
    kept += [opened(atmosphere, plain, "startpoint", protection="encrypted")]
    kept += [opened(atmosphere, plain, "user")]
    kept[-1].require("encrypted")
    assert kept[-1].request("abs", -1).result(60) == 1
    # After that of a node whose policy becomes looser, and whose links stay as they are.
    kept += [opened(reader, plain, "earlier")]
    replace(changing, PLAIN)
    # It looks by itself every two seconds, and may have been first: then its log has them.
    assert reader.reload() or any("took up" in line for line in reader.audit())
    raised = {}
    for node in lab.nodes:
        for session in node.status()["sessions"]:
            for link in session["links"]:
                assert link["protection"] == "encrypted"
                raised[node.name, link["endpoint"]] = link["raised_by"]
    assert raised == {
        (OCEAN, "theirs"): None,
        (ATMOSPHERE, "theirs"): "peer_policy",
        (PLOTTER, "startpoint"): "endpoint",
        (ATMOSPHERE, "startpoint"): "endpoint",
        (PLOTTER, "user"): "peer",
        (ATMOSPHERE, "user"): "user",
        (PLOTTER, "earlier"): "peer",
        (READER, "earlier"): "earlier_policy",
    }
    assert main(["links"]) == 0
    text = capsys.readouterr().out
    assert "to its theirs: encrypted (raised by the other end's policy); 1 message" in text


def test_a_link_is_never_older_than_the_session_in_which_it_was_opened(lab: Lab) -> None:
    """Seconds of two clocks begin at different times."""
    ocean = lab.node(OCEAN, "127.0.0.1:0")
    coupler = ocean.endpoint("coupler")
    coupler.handler(abs)
    atmosphere = lab.node(ATMOSPHERE)
    bound = atmosphere.bind(coupler.startpoint(to="*"))
    assert bound.request("abs", -1).result(60) == 1

    def has_grown() -> bool:
        (session,) = atmosphere.status()["sessions"]
        (link,) = session["links"]
        assert link["seconds"] <= session["seconds"]
        return bool(session["seconds"])

    assert eventually(has_grown)


def test_a_node_that_does_not_want_to_is_not_shown(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    with links.Node(lab.credential(OCEAN), live=False):
        capsys.readouterr()
        assert shown(capsys) == []


def test_a_node_that_cannot_say_how_it_stands_serves_all_the_same(lab: Lab, home: Path) -> None:
    (home / ".exoskel").write_text("in the way")
    node = lab.node(OCEAN)
    assert node.status()["name"] == OCEAN


def test_processes_that_were_killed_leave_nothing(
    lab: Lab, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = f"from exoskel import links; links.Node({str(lab.credential(OCEAN))!r}).wait()"
    capsys.readouterr()
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        assert eventually(lambda: [node["process"] for node in shown(capsys)] == [process.pid])
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert shown(capsys) == []
    assert not list((home / ".exoskel/run").glob("links-*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else")
def test_other_accounts_are_told_nothing(lab: Lab, home: Path) -> None:
    """Attack: by somebody for whom the permissions of the files have been opened."""
    lab.node(OCEAN)
    run = home / ".exoskel/run"
    (place,) = run.glob("links-*")
    run.chmod(0o711)
    place.chmod(0o666)
    directory = os.open(run, os.O_RDONLY)
    child = os.fork()
    if child == 0:
        status = 2
        try:
            os.setgroups([])
            os.setgid(12345)
            os.setuid(12345)
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(60)
                asking.connect(f"/proc/self/fd/{directory}/{place.name}")
                status = 1 if asking.recv(1) else 0
        finally:
            os._exit(status)
    os.close(directory)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_they_are_watched_until_ctrl_c(lab: Lab) -> None:
    node = lab.node(OCEAN)
    command = [sys.executable, "-m", "exoskel", "links", "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        for _ in range(2):
            (shown,) = json.loads(watching.stdout.readline())["nodes"]
            assert shown["name"] == node.name
        watching.send_signal(signal.SIGINT)
        assert watching.wait(60) in (0, 130)


def test_who_connects_and_does_not_read_holds_nobody_up(
    lab: Lab, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    node = lab.node(OCEAN)
    capsys.readouterr()
    (place,) = (home / ".exoskel/run").glob("links-*")
    with socket.socket(socket.AF_UNIX) as idle:
        idle.connect(str(place))
        assert [one["name"] for one in shown(capsys)] == [node.name]
