"""Links on bad networks: real network namespaces, and between them wires that are cut, lose packets, and are slow.

A program on each host sends and takes everything that links carry. Whatever happens to the network, each post arrives once and in order, or its
sender is told how many are lost; each request has one outcome; streams and regions are whole.
"""

from __future__ import annotations

import contextlib
import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import network_hosts
from tests.link_traffic import faults
from tests.network_hosts import ADDRESSES, MIDDLE, Capture, Hosts, Program, hosts, stopped
from tests.processes import eventually

from exoskel.cli import main

_MISSING = network_hosts.missing()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=str(_MISSING))

OCEAN, ATMOSPHERE = "ocean.example.org", "atmosphere.example.org"
GATE = "gate.example.org"
PORT = 7700
# How long tests wait for what comes about by itself.
BOUND_SECONDS = 30.0
# No test waits for these to pass by but those that name them.
LONG_PATIENCE = 60.0
SHORT_PATIENCE = 1.5
DEAD_AFTER = 1.0
BOTH, THERE, BACK = ("near", "far"), ("near",), ("far",)

DOMAIN = """\
[domain.lab]
addresses = ["10.88.0.0/16"]
names = ["*.example.org"]

"""
RULE = """\
[[rule]]
from = "lab"
to = "lab"
protection = "{}"
"""
PLAIN, INTEGRITY, ENCRYPTED = (
    DOMAIN + RULE.format(protection) for protection in ("plain", "integrity", "encrypted")
)
EVERYBODY = '[[allow.tunnel]]\nfrom = "*"\nto = "*"\n'


class Pair:
    """An ocean on the far host that takes traffic, and an atmosphere on the near one that sends it."""

    def __init__(self, between: Hosts, patience: float = LONG_PATIENCE) -> None:
        self.hosts = between
        self.place = between.place
        self._settings = {
            "patience": patience,
            "dead_after": DEAD_AFTER,
            "connect_timeout": 2.0,
        }
        assert main(["pki", "init", str(self.place / "pki"), "--json"]) == 0
        self.policies = {name: self.place / f"{name}.toml" for name in (OCEAN, ATMOSPHERE)}
        for policy in self.policies.values():
            policy.write_text(PLAIN)

    def credential(self, role: str, name: str) -> Path:
        """Issue a credential, once."""
        path = self.place / f"{name}.pem"
        if not path.exists():
            where = ["--directory", str(self.place / "pki"), "--output", str(path), "--json"]
            assert main(["pki", "issue", *where, "--role", role, "--name", name]) == 0
        return path

    def program(self, host: str, name: str, **more: Any) -> Program:
        """Start a program with a node."""
        credential = str(self.credential("peer", name))
        settings = {"credential": credential, "policy": str(self.policies[name])}
        words = json.dumps(settings | self._settings | more)
        program = self.hosts.python(host, "-m", "tests.link_program", words)
        assert program.line() == "ready", program.log()
        return program

    def open(self, *hints: str, **more: Any) -> None:
        """Start both, and let the atmosphere have a startpoint."""
        where = more or {"listen": f"{ADDRESSES['far']}:{PORT}"}
        self.ocean = self.program("far", OCEAN, **where)
        self.ocean.ask("serve")
        self.atmosphere = self.program("near", ATMOSPHERE)
        text = self.ocean.ask("startpoint", to="*", hints=list(hints))
        self.atmosphere.ask("bind", startpoint=text, source="atmosphere")

    def start(self, *kinds: str) -> None:
        """Begin with traffic, and wait until there is some of each kind."""
        self.atmosphere.ask("start", kinds=list(kinds))
        self.wait_for_more(*kinds)

    def wait_for_more(self, *kinds: str) -> None:
        """Wait until more of each kind has come through."""
        of_kinds = {
            "posts": ("posted",),
            "requests": ("answered",),
            "streams": ("echoed",),
            "regions": ("transfers",),
        }
        names = [name for kind in kinds or of_kinds for name in of_kinds[kind]]
        before = self.counts()
        # The first of them may have been on their way already.
        assert eventually(
            lambda: all(self.counts().get(name, 0) > before.get(name, 0) + 1 for name in names),
            BOUND_SECONDS,
        ), (before, self.atmosphere.ask("now"))

    def wait_for_mid_stream(self) -> None:
        """Wait until some of a stream has come back, and not all."""
        before = self.counts().get("echoed", 0)
        assert eventually(lambda: self.counts().get("echoed", 0) > before, BOUND_SECONDS)

    def counts(self) -> dict[str, int]:
        """Say how traffic stands."""
        counts: dict[str, int] = self.atmosphere.ask("now")["counts"]
        return counts

    def wait_for_drops(self, packets: int = 1) -> None:
        """Wait until the wire has dropped some packets."""
        assert eventually(lambda: self.hosts.dropped() >= packets, BOUND_SECONDS)

    def wait_for_session(self, of: Program, is_there: bool = True) -> None:
        """Wait until a program has a session, or none."""
        assert eventually(lambda: bool(of.ask("sessions")) == is_there, BOUND_SECONDS)

    def finish(self) -> dict[str, Any]:
        """Stop traffic; nothing may be wrong with it. Return what it came to."""
        outcome: dict[str, Any] = self.atmosphere.ask("stop", seconds=3 * BOUND_SECONDS)
        arrived = self.atmosphere.ask("arrived", seconds=3 * BOUND_SECONDS)
        # Whoever asks is told of posts that were lost last.
        outcome |= self.atmosphere.ask("now")
        found = faults(outcome, arrived)
        assert not any(found.values()), (found, outcome, arrived, self.ocean.log())
        return outcome


def failures(outcome: dict[str, Any]) -> dict[str, int]:
    """Count what has ended in an error, of an outcome."""
    counts: dict[str, int] = outcome["counts"]
    names = ("failed", "broken", "lost", "not made")
    return {what: count for what, count in counts.items() if any(name in what for name in names)}


Connect = Callable[..., Pair]


@pytest.fixture
def connect(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Connect]:
    with contextlib.ExitStack() as stack:

        def connected(
            delay: float = 0.0, forwards: bool = True, patience: float = LONG_PATIENCE
        ) -> Pair:
            return Pair(stack.enter_context(hosts(tmp_path, delay, forwards)), patience)

        yield connected
        capsys.readouterr()


@pytest.fixture
def pair(connect: Connect) -> Pair:
    made = connect()
    made.open()
    return made


def test_hosts_share_nothing_but_the_wire(pair: Pair) -> None:
    pair.start()
    assert pair.atmosphere.ask("link") == ["plain", "tcp"]
    pair.hosts.cut()
    pair.wait_for_session(pair.atmosphere, is_there=False)
    pair.hosts.pass_all()
    assert failures(pair.finish()) == {}


def test_nothing_is_lost_where_every_hundredth_packet_is(pair: Pair) -> None:
    pair.hosts.lose(1)
    pair.start()
    pair.wait_for_drops(50)
    pair.wait_for_more()
    assert failures(pair.finish()) == {}


def test_a_slow_wire_that_is_cut_carries_everything(connect: Connect) -> None:
    pair = connect(delay=0.1)
    pair.open()
    pair.start()
    pair.hosts.cut()
    pair.wait_for_drops()
    pair.hosts.pass_all()
    pair.wait_for_more()
    assert failures(pair.finish()) == {}


@pytest.mark.parametrize("sources", [BOTH, THERE, BACK], ids=["both", "there", "back"])
def test_a_short_partition_goes_unnoticed(pair: Pair, sources: tuple[str, ...]) -> None:
    pair.start()
    for _ in range(3):
        pair.wait_for_mid_stream()
        pair.hosts.cut(*sources)
        pair.wait_for_drops(3)
        pair.hosts.pass_all()
    pair.wait_for_more()
    assert failures(pair.finish()) == {}


@pytest.mark.parametrize("sources", [BOTH, THERE, BACK], ids=["both", "there", "back"])
def test_links_go_on_over_the_next_session(pair: Pair, sources: tuple[str, ...]) -> None:
    """The partition is longer than the session lives, and shorter than the patience of its links."""
    pair.start()
    pair.wait_for_mid_stream()
    pair.hosts.cut(*sources)
    pair.wait_for_session(pair.atmosphere, is_there=False)
    pair.hosts.pass_all()
    pair.wait_for_more()
    assert failures(pair.finish()) == {}


@pytest.mark.parametrize("sources", [BOTH, THERE, BACK], ids=["both", "there", "back"])
def test_what_a_long_partition_loses_is_said(connect: Connect, sources: tuple[str, ...]) -> None:
    """It is longer than the patience of links: they end, and new ones take their place."""
    pair = connect(patience=SHORT_PATIENCE)
    pair.open()
    pair.start()
    pair.wait_for_mid_stream()
    pair.hosts.cut(*sources)
    assert eventually(lambda: "requests failed" in pair.counts(), BOUND_SECONDS)
    assert eventually(lambda: "broken streams" in pair.counts(), BOUND_SECONDS)
    pair.hosts.pass_all()
    pair.wait_for_more()
    outcome = pair.finish()
    assert "wrong streams" not in outcome["counts"]
    assert all(OCEAN in text or "to coupler may be lost" in text for text in outcome["texts"])


def test_a_program_that_stands_still_goes_on(pair: Pair) -> None:
    pair.start()
    pair.wait_for_mid_stream()
    with stopped(pair.ocean):
        # For less time than a session lasts, and for more.
        pass
    pair.wait_for_mid_stream()
    with stopped(pair.ocean):
        pair.wait_for_session(pair.atmosphere, is_there=False)
    pair.wait_for_more()
    with stopped(pair.atmosphere):
        pair.wait_for_session(pair.ocean, is_there=False)
    pair.wait_for_more()
    assert failures(pair.finish()) == {}


def test_requests_to_a_killed_program_end_in_errors_that_name_it(connect: Connect) -> None:
    pair = connect(patience=SHORT_PATIENCE)
    pair.open()
    pair.start()
    pair.ocean.signal(signal.SIGKILL)
    assert eventually(lambda: "requests failed" in pair.counts(), BOUND_SECONDS)
    # Patience is the session's: what is asked later has a new link, which nobody answers.
    assert OCEAN in pair.atmosphere.ask("request")
    outcome = pair.atmosphere.ask("stop")
    counts = outcome["counts"]
    assert counts["asked"] == counts["answered"] + counts["requests failed"]
    assert "missing" not in counts
    assert outcome["stuck"] == []
    assert all(OCEAN in text or "to coupler may be lost" in text for text in outcome["texts"])


def test_a_program_that_is_killed_behind_a_cut_wire(connect: Connect) -> None:
    """Nobody says that it has ended."""
    pair = connect(patience=SHORT_PATIENCE)
    pair.open()
    pair.start("requests")
    pair.hosts.cut()
    pair.ocean.signal(signal.SIGKILL)
    assert eventually(lambda: "requests failed" in pair.counts(), BOUND_SECONDS)
    outcome = pair.atmosphere.ask("stop")
    assert "missing" not in outcome["counts"]
    assert all(OCEAN in text for text in outcome["texts"])


def gateway(pair: Pair) -> Program:
    """Start the gateway in the middle."""
    (pair.place / "gate.toml").write_text(EVERYBODY)
    (pair.place / "site.toml").write_text(
        f'[node]\n"{OCEAN}" = "tcp://{ADDRESSES["far"]}:{PORT}"\n'
    )
    words = ["--listen", f"tcp://0.0.0.0:{PORT}", "--json", "--site", str(pair.place / "site.toml")]
    words += ["--credential", str(pair.credential("gateway", GATE))]
    words += ["--policy", str(pair.place / "gate.toml")]
    program = pair.hosts.python("middle", "-m", "exoskel", "gateway", *words)
    assert GATE in program.line(), program.log()
    return program


@pytest.mark.parametrize("is_registered", [False, True], ids=["dials", "is dialled"])
def test_a_gateway_that_is_killed_and_started_again(connect: Connect, is_registered: bool) -> None:
    pair = connect(forwards=False)
    gate = gateway(pair)
    more = {"gateways": [f"{GATE}@{MIDDLE['far']}:{PORT}"]} if is_registered else {}
    pair.open(f"gateway:{GATE}@{MIDDLE['near']}:{PORT}", **more)
    pair.start()
    for _ in range(2):
        pair.wait_for_mid_stream()
        gate.signal(signal.SIGKILL)
        pair.wait_for_session(pair.atmosphere, is_there=False)
        gate = gateway(pair)
        pair.wait_for_more()
    assert pair.atmosphere.ask("link") == ["encrypted", "gateway"]
    assert failures(pair.finish()) == {}


def reload(pair: Pair, name: str, text: str, relax: bool = False) -> list[str]:
    """Give one of both another policy."""
    new = pair.policies[name].with_suffix(".new")
    new.write_text(text)
    new.replace(pair.policies[name])
    program = pair.ocean if name == OCEAN else pair.atmosphere
    changes: list[str] = program.ask("reload", relax=relax)
    # It looks by itself every two seconds, and may have been first: then its log has them.
    return changes or [line for line in program.ask("audit") if line.startswith("took up a change")]


@pytest.mark.parametrize("who", [OCEAN, ATMOSPHERE])
def test_nothing_on_the_wire_is_weaker_than_policies_say(pair: Pair, who: str) -> None:
    # As much as somebody who watches can take in.
    pair.hosts.pace("200mbit")
    capture = Capture(pair.hosts)
    pair.atmosphere.ask("mark", marker="plain")
    pair.start()
    assert eventually(lambda: capture.seen().get("plain", 0) > 20, BOUND_SECONDS)
    assert reload(pair, who, ENCRYPTED)
    assert eventually(lambda: pair.atmosphere.ask("link") == ["encrypted", "tcp"], BOUND_SECONDS)
    pair.atmosphere.ask("mark", marker="encrypted")
    # The policy is looser again, and that holds for sessions that begin from now on.
    before = capture.seen()["bytes"]
    pair.wait_for_more()
    reload(pair, who, PLAIN)
    pair.wait_for_more()
    assert eventually(lambda: capture.seen()["bytes"] > before + 5_000_000, BOUND_SECONDS)
    assert "encrypted" not in capture.seen()
    # What waits to be sent, or to be confirmed, may go by the next session, which is as the policy has it now.
    pair.atmosphere.ask("mark", marker="relaxed")
    reload(pair, who, PLAIN, relax=True)
    assert eventually(lambda: capture.seen().get("relaxed", 0) > 20, BOUND_SECONDS)
    assert pair.atmosphere.ask("link") == ["plain", "tcp"]
    pair.atmosphere.ask("mark", marker="readable")
    assert eventually(lambda: capture.seen().get("readable", 0) > 20, BOUND_SECONDS)
    reload(pair, who, INTEGRITY)
    pair.wait_for_more()
    reload(pair, who, ENCRYPTED, relax=True)
    assert eventually(lambda: pair.atmosphere.ask("link") == ["encrypted", "tcp"], BOUND_SECONDS)
    pair.atmosphere.ask("mark", marker="again")
    pair.wait_for_more()
    assert failures(pair.finish()) == {}
    seen = capture.seen()
    assert seen["missed"] == 0
    assert "again" not in seen


def test_a_stricter_policy_holds_after_a_partition(pair: Pair) -> None:
    """It is made stricter while nobody can be told."""
    # As much as somebody who watches can take in.
    pair.hosts.pace("200mbit")
    capture = Capture(pair.hosts)
    pair.atmosphere.ask("mark", marker="plain")
    pair.start()
    assert eventually(lambda: capture.seen().get("plain", 0) > 20, BOUND_SECONDS)
    pair.hosts.cut()
    for program in (pair.atmosphere, pair.ocean):
        pair.wait_for_session(program, is_there=False)
    reload(pair, OCEAN, ENCRYPTED)
    before = capture.seen()["plain"]
    pair.hosts.pass_all()
    pair.wait_for_more()
    # What was handed over before, and was kept for the next session, is encrypted as well.
    assert failures(pair.finish()) == {}
    seen = capture.seen()
    assert seen["missed"] == 0
    assert seen["plain"] == before


def test_who_lost_a_right_reaches_nothing_more(pair: Pair) -> None:
    pair.start()
    # What a thread of the endpoint had in its hands goes on: there are two.
    assert pair.ocean.ask("calls") > 0
    handled = pair.ocean.ask("revoke")
    assert eventually(lambda: "requests failed" in pair.counts(), BOUND_SECONDS)
    outcome = pair.atmosphere.ask("stop")
    assert outcome["stuck"] == []
    assert pair.ocean.ask("calls") <= handled + 2
    assert "RefusedError" in pair.atmosphere.ask("request")


def test_a_right_that_is_lost_in_a_partition_is_lost(pair: Pair) -> None:
    """What waits for the way to come back has no right any more when it does."""
    pair.start()
    pair.hosts.cut()
    pair.wait_for_session(pair.atmosphere, is_there=False)
    handled = pair.ocean.ask("revoke")
    pair.hosts.pass_all()
    assert eventually(lambda: "requests failed" in pair.counts(), BOUND_SECONDS)
    assert pair.atmosphere.ask("stop")["stuck"] == []
    assert pair.ocean.ask("calls") <= handled + 2
    assert "RefusedError" in pair.atmosphere.ask("request")


def test_a_rule_that_is_gone_ends_what_it_gave_under_load(pair: Pair) -> None:
    names = ["note", "double", "report", "echo", "field.get", "field.put"]
    actions = ", ".join(f'"coupler.{name}"' for name in names)
    rules = f'{PLAIN}\n[[allow.rule]]\naction = [{actions}]\nname = "{ATMOSPHERE}"\n'
    reload(pair, OCEAN, rules)
    at = f"tcp://{ADDRESSES['far']}:{PORT}"
    pair.atmosphere.ask("look_up", at=at, name=OCEAN, source="atmosphere")
    pair.start()
    denied = f'{rules}\n[[deny.rule]]\naction = ["coupler.note"]\nname = "{ATMOSPHERE}"\n'
    reload(pair, OCEAN, denied)
    reload(pair, OCEAN, PLAIN)
    handled = pair.ocean.ask("calls")
    assert eventually(lambda: "requests failed" in pair.counts(), BOUND_SECONDS)
    assert pair.atmosphere.ask("stop")["stuck"] == []
    assert pair.ocean.ask("calls") <= handled + 2
    assert "RefusedError" in pair.atmosphere.ask("request")
