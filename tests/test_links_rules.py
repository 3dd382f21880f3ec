"""Startpoints that rules give to whoever asks, rules that take rights away, and policies that are read again while links run."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.processes import eventually
from tests.site import free_address
from tests.test_links import NAMES, PLAIN, Lab
from tests.test_links_lasting import Relay
from tests.whole_files import replace

import exoskel as ex
from exoskel import links
from exoskel.cli import main

OCEAN, ATMOSPHERE, PLOTTER = NAMES
RULES = f"""\
{PLAIN}
[[allow.rule]]
action = ["coupler.surface", "coupler.depth"]
name = "{ATMOSPHERE}"
"""
LINE = RULES[: RULES.index("[[allow.rule]]")].count("\n") + 1
TAKEN_UP = "took up a change: "


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    """Write the ocean's own policy."""
    file = tmp_path / "ocean.toml"
    file.write_text(RULES)
    return file


@pytest.fixture
def ocean(lab: Lab, policy: Path) -> links.Node:
    node = lab.node(OCEAN, "127.0.0.1:0", policy=policy)
    coupler = node.endpoint("coupler")

    @coupler.handler
    def surface() -> float:
        return 15.0

    @coupler.handler
    def depth() -> float:
        return 4000.0

    @coupler.handler
    def heat(degrees: float) -> float:
        return degrees

    return node


def reloaded(node: links.Node, policy: Path, text: str) -> list[str]:
    """Replace a policy as a whole, have the node read it again, and return what has changed."""
    node.audit()
    replace(policy, text)
    changes = node.reload()
    # It looks by itself every two seconds, and may have been first: then its log has them.
    return changes or [line for line in node.audit() if line.startswith(TAKEN_UP)]


def test_a_rule_gives_a_startpoint_to_whom_it_names(lab: Lab, ocean: links.Node) -> None:
    atmosphere = lab.node(ATMOSPHERE)
    (place,) = ocean.hints
    coupler = atmosphere.lookup("coupler", at=f"tcp://{place}", name=OCEAN)
    assert coupler.startpoint.handlers == ["depth", "surface"]
    assert coupler.request("surface").result(60) == 15.0
    with pytest.raises(ValueError, match=r"got the handler .heat."):
        coupler.request("heat", 1.0)
    (line,) = [line for line in ocean.audit() if "gave" in line]
    assert line == (
        f"gave peer {ATMOSPHERE} a startpoint of coupler (surface, depth) by line {LINE} of the policy"
    )
    assert len(atmosphere.sessions()) == 1, "the lookup and the link share a session"
    # There is a session by now: no address is needed.
    assert atmosphere.lookup("coupler", name=OCEAN).request("depth").result(60) == 4000.0


def test_whom_no_rule_names_is_refused_with_the_rule(lab: Lab, ocean: links.Node) -> None:
    plotter = lab.node(PLOTTER)
    with pytest.raises(ex.RefusedError, match=rf"the one at line {LINE} asks for name"):
        plotter.lookup("coupler", at=ocean.hints, name=OCEAN)
    assert [line for line in ocean.audit() if f"refused peer {PLOTTER} a startpoint" in line]
    with pytest.raises(ex.RefusedError, match="no such endpoint"):
        plotter.lookup("elsewhere", at=ocean.hints, name=OCEAN)


def test_words_of_a_name_do_not_change_the_kind_of_an_error(lab: Lab, ocean: links.Node) -> None:
    """That a node has no address is known by the kind of the core's error, not by its text."""
    plotter = lab.node(PLOTTER)
    with pytest.raises(ex.RefusedError, match="no such endpoint"):
        plotter.lookup("the startpoint says no address", at=ocean.hints, name=OCEAN)


def test_a_lookup_whose_session_ends_is_asked_once_more(lab: Lab, ocean: links.Node) -> None:
    relay = Relay(f"tcp://{ocean.hints[0]}")
    atmosphere = lab.node(ATMOSPHERE)
    found = atmosphere.lookup("coupler", at=relay.hint, name=OCEAN)
    assert found.startpoint.handlers == ["depth", "surface"]
    relay.cuts_next = True
    again = atmosphere.lookup("coupler", at=relay.hint, name=OCEAN)
    assert again.startpoint.handlers == ["depth", "surface"]
    assert not relay.cuts_next
    atmosphere.close()
    relay.close()


def test_what_was_looked_up_is_for_the_asker_alone(lab: Lab, ocean: links.Node) -> None:
    found = lab.node(ATMOSPHERE).lookup("coupler", at=ocean.hints, name=OCEAN)
    stolen = lab.node(PLOTTER).bind(found.startpoint.text())
    with pytest.raises(ex.RefusedError, match=ATMOSPHERE.replace(".", r"\.")):
        stolen.request("surface").result(60)


def test_somebody_else_at_the_address_gives_nothing(lab: Lab, ocean: links.Node) -> None:
    with pytest.raises(ex.LinkError, match=r"ocean\.example\.org"):
        lab.node(ATMOSPHERE).lookup("coupler", at=ocean.hints, name=PLOTTER)
    with pytest.raises(ValueError, match="name"):
        lab.node(ATMOSPHERE).lookup("coupler", at=ocean.hints, name="a b")


def test_a_lookup_at_a_place_asks_who_is_there(lab: Lab, policy: Path) -> None:
    def one(number: int) -> links.Node:
        node = lab.node(OCEAN, "127.0.0.1:0", policy=policy)
        endpoint = node.endpoint("coupler")

        @endpoint.handler
        def surface() -> int:
            return number

        return node

    first, second = one(1), one(2)
    atmosphere = lab.node(ATMOSPHERE)
    for node, number in [(first, 1), (second, 2), (first, 1)]:
        found = atmosphere.lookup("coupler", at=node.hints, name=OCEAN)
        assert found.request("surface").result(60) == number
    with pytest.raises(ex.LinkError, match="can't reach"):
        atmosphere.lookup("coupler", at=free_address(), name=OCEAN)
    # It dials us, and one of the two sessions goes.
    atmosphere.close()
    atmosphere = lab.node(ATMOSPHERE, "127.0.0.1:0")
    told = atmosphere.endpoint("told")

    @told.handler
    def note() -> None: ...

    second.bind(told.startpoint(to=OCEAN)).request("note").result(60)
    for _ in range(3):
        found = atmosphere.lookup("coupler", at=second.hints, name=OCEAN)
        assert found.request("surface").result(60) == 2


def test_why_there_is_no_session_is_told_by_the_class_of_the_error(
    lab: Lab, ocean: links.Node, policy: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    startpoint = ocean.endpoint("open").startpoint(to="*").text()
    stranger = Lab(tmp_path_factory.mktemp("elsewhere")).node(ATMOSPHERE)
    with pytest.raises(ex.AuthenticationError, match=f"no session with peer {OCEAN}"):
        stranger.bind(startpoint).request("any").result(60)
    stranger.close()
    with pytest.raises(ex.AuthenticationError, match=r"expected name .plotter"):
        lab.node(ATMOSPHERE).lookup("coupler", at=ocean.hints, name=PLOTTER)
    replace(policy, f'{RULES}\n[deny]\npeers = ["{ATMOSPHERE}"]\n')
    ocean.reload()
    with pytest.raises(ex.RefusedError, match=f"no session with peer {OCEAN}.*peers"):
        lab.node(ATMOSPHERE).bind(startpoint).request("any").result(60)
    nobody = links.Startpoint.parse(startpoint).with_hints([free_address()])
    with pytest.raises(ex.LinkError, match=f"can't reach peer {OCEAN}") as raised:
        lab.node(PLOTTER).bind(nobody).request("any").result(60)
    assert type(raised.value) is ex.LinkError


def test_the_librarys_own_endpoints_are_not_offered_by_programs(ocean: links.Node) -> None:
    with pytest.raises(ValueError, match=r"exoskel\."):
        ocean.endpoint("exoskel.lookup")


@pytest.mark.parametrize("threads", [1, 0])
def test_a_reload_returns_when_both_directions_are_raised(
    lab: Lab, ocean: links.Node, policy: Path, threads: int
) -> None:
    """What the binding says behind it is the new protection, and a node without a thread is driven meanwhile."""
    own = lab.place / "own.toml"
    own.write_text(PLAIN)
    node = links.Node(lab.credential(ATMOSPHERE), policy=own, threads=threads)
    lab.nodes.append(node)
    found = lab.node(ATMOSPHERE).lookup("coupler", at=ocean.hints, name=OCEAN)
    coupler = node.bind(found.startpoint)
    assert coupler.request("surface").result(60) == 15.0
    assert coupler.protection == "plain"
    for protection in ("integrity", "encrypted"):
        reloaded(node, own, PLAIN.replace('"plain"', f'"{protection}"'))
        assert coupler.protection == protection


def test_a_rule_that_is_gone_ends_the_links_that_it_gave(
    lab: Lab, ocean: links.Node, policy: Path
) -> None:
    coupler = lab.node(ATMOSPHERE).lookup("coupler", at=ocean.hints, name=OCEAN)
    assert coupler.request("surface").result(60) == 15.0
    changes = [change.removeprefix(TAKEN_UP) for change in reloaded(ocean, policy, PLAIN)]
    assert any(
        one.startswith(f"the [[allow.rule]] that was at line {LINE} is gone") for one in changes
    )
    assert any("a link of peer atmosphere" in change for change in changes)
    assert ocean.reload() == []
    assert eventually(lambda: coupler.protection is None)
    with pytest.raises(ex.RefusedError, match=r"coupler\.surface"):
        coupler.request("surface").result(60)
    replace(policy, RULES)
    ocean.reload()
    assert coupler.request("surface").result(60) == 15.0


def test_a_rule_that_denies_takes_a_right_away_that_a_startpoint_gives(
    lab: Lab, ocean: links.Node, policy: Path
) -> None:
    log = ocean.endpoint("log")

    @log.handler
    def note(item: int) -> int:
        return item

    @log.handler
    def clear() -> None: ...

    bound = lab.node(PLOTTER).bind(log.startpoint(to="*.example.org"))
    assert bound.request("note", 1).result(60) == 1
    denied = f'{RULES}\n[[deny.rule]]\naction = "log.clear"\nname = "{PLOTTER}"\n'
    assert any("log.clear" in change for change in reloaded(ocean, policy, denied))
    assert eventually(lambda: bound.protection is None)
    assert bound.request("note", 2).result(60) == 2
    with pytest.raises(ValueError, match=r"got the handler .clear."):
        bound.request("clear").result(60)


def test_what_is_stricter_holds_from_the_next_record_on(
    lab: Lab, ocean: links.Node, policy: Path
) -> None:
    coupler = lab.node(ATMOSPHERE).lookup("coupler", at=ocean.hints, name=OCEAN)
    assert coupler.request("surface").result(60) == 15.0
    assert coupler.protection == "plain"
    stricter = (
        '[[rule]]\nfrom = "lab"\nto = "lab"\nendpoint = "coup*"\nprotection = "integrity"\n\n'
    )
    changes = reloaded(ocean, policy, RULES.replace("[[rule]]", f"{stricter}[[rule]]", 1))
    assert any("coupler was plain and is integrity: rule 1" in change for change in changes), (
        changes
    )
    assert coupler.request("surface").result(60) == 15.0
    assert eventually(lambda: coupler.protection == "integrity")
    # Looser again: not in this session.
    assert reloaded(ocean, policy, RULES)
    assert coupler.request("surface").result(60) == 15.0
    assert coupler.protection == "integrity"
    # But in the next one, to which the link goes over.
    changes = ocean.reload(relax=True)
    assert any(ATMOSPHERE in change and "begins anew" in change for change in changes), changes
    assert eventually(lambda: coupler.protection == "plain")
    assert coupler.request("surface").result(60) == 15.0


def test_files_with_an_error_change_nothing(lab: Lab, ocean: links.Node, policy: Path) -> None:
    coupler = lab.node(ATMOSPHERE).lookup("coupler", at=ocean.hints, name=OCEAN)
    replace(policy, f"{RULES}\nnonsense")
    with pytest.raises(ex.PolicyError, match=r"ocean\.toml"):
        ocean.reload()
    assert coupler.request("surface").result(60) == 15.0
    ocean.close()
    with pytest.raises(ex.LinkError, match="closed"):
        ocean.reload()


def test_a_renewed_credential_is_taken_up(lab: Lab, ocean: links.Node) -> None:
    coupler = lab.node(ATMOSPHERE).lookup("coupler", at=ocean.hints, name=OCEAN)
    assert coupler.request("surface").result(60) == 15.0
    where = ["--directory", str(lab.place / "pki"), "--output", str(lab.credential(OCEAN))]
    issue = ["pki", "issue", *where, "--role", "peer", "--name", OCEAN, "--force", "--json"]
    assert main(issue) == 0
    renewed = "the credential has been renewed"
    # It looks by itself every two seconds, and may have been first.
    assert ocean.reload() in ([renewed], [])
    assert [line for line in ocean.audit() if renewed in line] == [f"{TAKEN_UP}{renewed}"]
    assert coupler.request("surface").result(60) == 15.0


def test_a_ban_ends_a_session(lab: Lab, ocean: links.Node, policy: Path) -> None:
    coupler = lab.node(ATMOSPHERE).lookup("coupler", at=ocean.hints, name=OCEAN)
    assert coupler.request("surface").result(60) == 15.0
    changes = reloaded(ocean, policy, f'{RULES}\n[deny]\nbanned = ["{ATMOSPHERE}"]\n')
    assert any(f"the session with peer {ATMOSPHERE} ends" in change for change in changes)
    with pytest.raises(ex.LinkError):
        coupler.request("surface").result(60)


class Held:
    """An ocean whose handler is busy with a call until it is let go, while other calls wait."""

    def __init__(self, node: links.Node) -> None:
        self.node = node
        self.noted: list[int] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.field = np.zeros(4)
        self.coupler = node.endpoint("coupler")

        @self.coupler.handler
        def note(number: int) -> None:
            self.noted.append(number)
            self.begun.set()
            self.go_on.wait(60)

        self.region = self.coupler.region("field", self.field, writable=True)

    def received(self) -> int:
        """Say how many messages have come by all links."""
        sessions = self.node.status()["sessions"]
        return sum(link["messages_received"] for one in sessions for link in one["links"])


def test_calls_that_wait_are_dropped_when_their_right_is_taken_back(lab: Lab) -> None:
    held = Held(lab.node(OCEAN, "127.0.0.1:0"))
    startpoint = held.coupler.startpoint(to="*.example.org")
    node = lab.node(ATMOSPHERE)
    bound = node.bind(startpoint)
    for number in range(10):
        bound.post("note", number)
    assert held.begun.wait(60)
    assert eventually(lambda: held.received() == 10)
    held.coupler.revoke(startpoint)
    held.go_on.set()
    # Another one's call comes after what was there before.
    other = lab.node(PLOTTER).bind(held.coupler.startpoint(to=PLOTTER))
    other.post("note", 100)
    assert eventually(lambda: 100 in held.noted)
    held.node.close()
    assert held.noted == [0, 100]
    with pytest.raises(ex.LinkError, match=r"10 posts to coupler may be lost.*revoked"):
        node.close()


def test_a_held_region_is_not_written_by_who_has_lost_the_right(lab: Lab) -> None:
    held = Held(lab.node(OCEAN, "127.0.0.1:0"))
    startpoint = held.coupler.startpoint(to="*.example.org")
    region = lab.node(ATMOSPHERE).bind(startpoint).region("field")
    assert region.shape == (4,)
    before = held.received()
    with held.region.hold():
        put = region.put(slice(None), np.ones(4))
        assert eventually(lambda: held.received() > before)
        held.coupler.revoke(startpoint)
    with pytest.raises(ex.RefusedError, match="revoked"):
        put.result(60)
    assert not held.field.any()


def test_calls_that_wait_are_dropped_when_a_rule_bars_them(lab: Lab, policy: Path) -> None:
    """Also those of a link that its opener has closed."""
    held = Held(lab.node(OCEAN, "127.0.0.1:0", policy=policy))
    bound = lab.node(ATMOSPHERE).bind(held.coupler.startpoint(to="*.example.org"))
    for number in range(10):
        bound.post("note", number)
    assert held.begun.wait(60)
    assert eventually(lambda: held.received() == 10)
    bound.close()
    assert eventually(lambda: held.received() == 0), "the link is closed"
    denied = f'{PLAIN}\n[[deny.rule]]\naction = "coupler.note"\nname = "{ATMOSPHERE}"\n'
    changes = reloaded(held.node, policy, denied)
    assert any(f"a link of peer {ATMOSPHERE} ends" in change for change in changes)
    held.go_on.set()
    other = lab.node(PLOTTER).bind(held.coupler.startpoint(to=PLOTTER))
    other.post("note", 100)
    assert eventually(lambda: 100 in held.noted)
    held.node.close()
    assert held.noted == [0, 100]
