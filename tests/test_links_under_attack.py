"""Nodes with links under attack by peers of the same authority: who is admitted may still want more than is due."""

from __future__ import annotations

import contextlib
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.capability_reference import read_startpoint
from tests.hostile_peer import HostilePeer, Stolen
from tests.independent_session import EndOfSession
from tests.processes import eventually
from tests.protocol_reference import resumption
from tests.test_links import NAMES, Lab
from tests.whole_files import replace

import exoskel as ex
from exoskel import links

OCEAN, ATMOSPHERE, PLOTTER = NAMES
# What must not reach a terminal.
UNSHOWN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e]")
# An array of no arguments and a map of no keywords, as plain data has them.
NOTHING = bytes.fromhex("8280a0")
LOOKUP = "exoskel.lookup"


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    # Everything is encrypted: attacks here are on rights, not on wires.
    made.policy.write_text(f'[[allow.rule]]\naction = "coupler.surface"\nname = "{ATMOSPHERE}"\n')
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


@pytest.fixture
def coupler(lab: Lab) -> links.Endpoint:
    endpoint = lab.node(OCEAN, "127.0.0.1:0").endpoint("coupler", threads=2)

    @endpoint.handler
    def surface() -> float:
        return 15.0

    @endpoint.handler
    def heat() -> str:
        return "heated"

    return endpoint


@pytest.fixture
def mallory(lab: Lab, coupler: links.Endpoint) -> Iterator[HostilePeer]:
    """A plotter that has its credential, and wants more."""
    (address,) = lab.nodes[0].hints
    with HostilePeer(address, lab.credential(PLOTTER)) as peer:
        yield peer


def honest(lab: Lab, coupler: links.Endpoint) -> None:
    """Have somebody else be served as ever."""
    with links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, live=False) as node:
        bound = node.bind(coupler.startpoint(to=ATMOSPHERE))
        assert bound.request("surface").result(60) == 15.0


def test_the_independent_peer_is_served(coupler: links.Endpoint, mallory: HostilePeer) -> None:
    own = Stolen(coupler.startpoint(to=PLOTTER, handlers=["surface"]).text())
    mallory.open(1, "coupler", own.right(mallory.binding, 1))
    assert mallory.answer() | {"handlers": ["surface"]} == mallory_accepts(1)
    mallory.request(1, 0, NOTHING)
    answer = mallory.answer()
    assert (answer["kind"], answer["link"]) == ("reply", 1)
    # Narrowed by the reference implementation.
    narrower = own.narrowed(["expires", 1])
    mallory.open(3, "coupler", narrower.right(mallory.binding, 3))
    assert "expired" in mallory.answer()["text"]


def mallory_accepts(link: int) -> dict[str, object]:
    """What comes of a link to the surface that is opened."""
    return {
        "control": "link_accept",
        "link": link,
        "protection": "encrypted",
        "handlers": ["surface"],
    }


def test_rights_that_are_made_up_open_nothing(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: forged, widened, replayed and stolen startpoints, each on a link of its own in one session."""
    own = Stolen(coupler.startpoint(to=PLOTTER, handlers=["surface"]).text())
    foreign = Stolen(coupler.startpoint(to=ATMOSPHERE).text())
    binding = mallory.binding
    good = own.right(binding, 1)
    forged = object.__new__(Stolen)
    forged.item, forged.tag = own.item, bytes(32)
    other_session = own.right(bytes(32), 1)
    attacks = {
        "a tag that is made up": forged.right(binding, 1),
        "a handler more": own.changed(
            caveats=[
                ["handlers", ["heat", "surface"]] if kind == "handlers" else [kind, value]
                for kind, value in own.item["caveats"]
            ]
        ).right(binding, 1),
        "a caveat less": own.changed(caveats=own.item["caveats"][:-1]).right(binding, 1),
        "caveats in another order": own.changed(caveats=own.item["caveats"][::-1]).right(
            binding, 1
        ),
        "nobody's": own.changed(caveats=[]).right(binding, 1),
        "a bearer's": own.changed(bearer=True).right(binding, 1),
        "another number": own.changed(number=own.item["number"] + 1).right(binding, 1),
        "another key": own.changed(key_id="00" * 16).right(binding, 1),
        "of another session": other_session,
        "of another link": own.right(binding, 3),
        "somebody else's": foreign.right(binding, 1),
        "somebody else's, narrowed to us": foreign.narrowed(["holder", PLOTTER]).right(binding, 1),
        "nothing": b"",
        "cut": good[:-1],
        "with more behind it": good + b"x",
        "endless": bytes(4000),
    }
    for what, right in attacks.items():
        mallory.open(1, "coupler", right)
        answer = mallory.answer()
        assert answer["control"] == "link_refuse", what
        mallory.session.control(control="link_close", link=1)
    mallory.open(1, "coupler", good)
    assert mallory.answer()["control"] == "link_accept"
    audit = lab.nodes[0].audit()
    refused = [line for line in audit if f'refused "coupler" to peer {PLOTTER}' in line]
    assert len(refused) == len(attacks)
    honest(lab, coupler)


def test_a_right_for_one_endpoint_opens_no_other(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: the root key of another endpoint, and of the endpoint before it was started again."""
    other = lab.nodes[0].endpoint("other")

    @other.handler
    def surface() -> float:
        return 0.0

    own = Stolen(other.startpoint(to=PLOTTER).text())
    for endpoint in ("coupler", "nowhere"):
        mallory.open(1, endpoint, own.right(mallory.binding, 1))
        assert mallory.answer()["control"] == "link_refuse"
        mallory.session.control(control="link_close", link=1)


def early_request(mallory: HostilePeer, right: bytes, place: int) -> bytes:
    """Ask for link 1 with two early handlers, and call the one at this place at once."""
    opening = mallory.opening(1, "coupler", right, early=["surface", "heat"])
    return opening + mallory.sealed_request(1, 0x8000 + place, NOTHING)


@pytest.mark.parametrize("place", [0, 1])
def test_early_requests_reach_only_what_the_right_opens(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer, place: int
) -> None:
    """The reference implementation's early messages: one for a handler that it may call, and one for another."""
    own = Stolen(coupler.startpoint(to=PLOTTER, handlers=["surface"]).text())
    mallory.session.write(early_request(mallory, own.right(mallory.binding, 1), place))
    assert mallory.answer()["handlers"] == ["surface"]
    if place:
        # Nothing comes of the early request: the next answer is that of an ordinary one.
        mallory.request(1, 0, NOTHING)
    answer = mallory.answer()
    assert (answer["kind"], answer["id"]) == ("reply", place + 1)
    honest(lab, coupler)


def test_early_requests_open_nothing(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: an early request by a right of somebody else."""
    foreign = Stolen(coupler.startpoint(to=ATMOSPHERE).text())
    mallory.session.write(early_request(mallory, foreign.right(mallory.binding, 1), 0))
    assert mallory.answer()["control"] == "link_refuse"
    honest(lab, coupler)


def test_early_requests_that_cannot_be_end_the_session(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: a place that the opening doesn't name."""
    own = Stolen(coupler.startpoint(to=PLOTTER).text())
    with pytest.raises(EndOfSession, match="no such handler"):
        mallory.end(early_request(mallory, own.right(mallory.binding, 1), 2))
    honest(lab, coupler)


def test_names_with_controls_reach_no_log(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: names that drive a terminal, in every place where a peer may name something."""
    mallory.open(1, LOOKUP, b"")
    assert mallory.answer()["handlers"] == ["startpoint"]
    evil = "\x1b[2J\r\n\u202eocean"
    for name in (evil.encode(), b"\xff\xfe", b"", b"x" * 5000):
        mallory.request(1, 0, name)
        assert mallory.answer()["kind"] == "failure"
    mallory.open(3, "\u202ecoupler", b"")
    assert mallory.answer()["control"] == "link_refuse"
    opening = mallory.opening(5, evil, b"")
    with pytest.raises(EndOfSession, match="plain UTF-8"):
        mallory.end(opening)
    lines = lab.nodes[0].audit()
    assert len([line for line in lines if "refused" in line]) >= 5
    assert not [line for line in lines if UNSHOWN.search(line)]
    assert max(map(len, lines)) < 1000
    honest(lab, coupler)


def test_what_a_handler_raises_drives_no_terminal(lab: Lab, coupler: links.Endpoint) -> None:
    """Attack: the words of an exception at the other end."""

    @coupler.handler
    def fail() -> None:
        raise ValueError("\x1b]0;owned\x07\u202e")

    with links.Node(lab.credential(ATMOSPHERE), live=False) as node:
        reply = node.bind(coupler.startpoint(to=ATMOSPHERE)).request("fail")
        with pytest.raises(links.HandlerError) as raised:
            reply.result(60)
    assert not UNSHOWN.search(str(raised.value))


FORGED = "\x1b[2J\x1b]0;owned\x07\n2026-11-23 root INFO all is well \u202e"


@pytest.mark.parametrize("where", ["text", "note", "cause", "context", "member"])
def test_what_a_peer_has_written_begins_no_line_of_the_log(
    where: str, lab: Lab, coupler: links.Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Attack: an argument that becomes the text of an exception."""

    @coupler.handler
    def fail(words: str) -> None:
        error = ValueError("wrong" if where == "note" else words)
        if where == "note":
            error.add_note(words)
        if where == "cause":
            raise RuntimeError("no") from error
        if where == "member":
            raise ExceptionGroup("some", [error])
        try:
            raise error
        finally:
            if where == "context":
                raise RuntimeError("no")

    with links.Node(lab.credential(ATMOSPHERE), live=False) as node:
        bound = node.bind(coupler.startpoint(to=ATMOSPHERE))
        with pytest.raises(links.HandlerError):
            bound.request("fail", FORGED).result(60)
    logged = logged_lines(caplog)
    assert not any(UNSHOWN.search(line) or line.startswith("2026") for line in logged)
    assert any(r"\n2026-11-23 root INFO all is well \u202e" in line for line in logged)
    # The owner still sees where.
    assert any(re.fullmatch(r"[ |]*File .*, in fail", line) for line in logged)


def logged_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the lines of the log, once there are some of a handler."""
    assert eventually(lambda: "of coupler failed" in caplog.text)
    return [line for record in caplog.records for line in record.getMessage().split("\n")]


def test_keywords_are_names_of_parameters(
    lab: Lab, coupler: links.Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    """Attack: the name of a keyword, which Python writes into its own messages."""
    called = []

    @coupler.handler
    def take(**keywords: object) -> None:
        called.append(keywords)

    with links.Node(lab.credential(ATMOSPHERE), live=False) as node:
        bound = node.bind(coupler.startpoint(to=ATMOSPHERE))
        for handler in ("take", "surface"):
            with pytest.raises(
                links.HandlerError, match="as the name of a keyword, expected an id"
            ):
                bound.request(handler, **{FORGED: 1}).result(60)
        with pytest.raises(links.HandlerError, match="unexpected keyword argument 'größe'"):
            bound.request("surface", größe=1).result(60)
        bound.request("take", größe=1).result(60)
    assert called == [{"größe": 1}]
    logged = logged_lines(caplog)
    assert not any(UNSHOWN.search(line) or line.startswith("2026") for line in logged)


@pytest.mark.parametrize(
    ("contents", "got"),
    [
        ([range(1_000_000), {}], r"\['range', 'dict'\]"),
        ([b"surface", {}], r"\['bytes', 'dict'\]"),
        ([[], []], r"\['list', 'list'\]"),
        ([[], {}, 1, 1], "list"),
        ([[], {}, range(2)], r"\['list', 'dict', 'range'\]"),
        ([[], {}, True], r"\['list', 'dict', 'bool'\]"),
        ([[], {}, 1.0], r"\['list', 'dict', 'float'\]"),
        (range(2), "range"),
        (None, "NoneType"),
    ],
)
def test_arguments_are_lists_and_nothing_is_unfolded_to_some(
    lab: Lab, coupler: links.Endpoint, contents: object, got: str
) -> None:
    """Attack: a range of a few bytes in the place of arguments, which would take all memory."""
    bound = lab.node(ATMOSPHERE).bind(coupler.startpoint(to=ATMOSPHERE))
    reply = asked(bound, contents)
    with pytest.raises(links.HandlerError, match=f"got a call with {got}, expected a list of arg"):
        reply.result(60)
    assert bound.request("surface").result(60) == 15.0


@pytest.mark.parametrize("stream", [-1, 2**32, -(10**30), 10**600])
def test_streams_of_tasks_have_numbers_of_32_bits(
    lab: Lab, coupler: links.Endpoint, stream: int
) -> None:
    bound = lab.node(ATMOSPHERE).bind(coupler.startpoint(to=ATMOSPHERE))
    for number in (0, 2**32 - 1):
        assert asked(bound, [[], {}, number]).result(60) == 15.0
    with pytest.raises(links.HandlerError, match="no number from 0 to 4294967295"):
        asked(bound, [[], {}, stream]).result(60)
    assert bound.request("surface").result(60) == 15.0


def asked(bound: links.Binding, contents: object) -> links.Reply:
    """Call a handler with contents that no binding makes."""
    request = bound._node.request(bound._binding, "surface", contents)
    return links.Reply(bound._node, bound, request, "surface")


def test_hints_drive_no_terminal(lab: Lab, coupler: links.Endpoint) -> None:
    """Attack: text in the place of an address, in a startpoint that somebody has changed."""
    hints = ["\u202emoc.elpmaxe:7700", "unix:/\u200fx", "gateway:\u202ea@b"]
    startpoint = coupler.startpoint(to=ATMOSPHERE).with_hints(hints)
    reply = lab.node(ATMOSPHERE).bind(startpoint).request("surface")
    with pytest.raises(ex.LinkError) as raised:
        reply.result(60)
    assert not UNSHOWN.search(str(raised.value))
    assert not UNSHOWN.search(repr(startpoint))


def test_a_flood_of_links_ends_its_session_only(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: more links than a peer may have, none of them closed."""
    flood = [mallory.opening(2 * number + 1, "coupler", b"") for number in range(5000)]
    with pytest.raises(EndOfSession, match=r"links_max|control_queue_max"):
        mallory.end(*flood)
    audit = lab.nodes[0].audit()
    assert len(audit) <= 1025
    # Nobody hides behind the flood.
    assert re.fullmatch(r"[0-9]+ more lines about peer \S+ could not be kept", audit[-1])
    honest(lab, coupler)
    assert eventually(lambda: PLOTTER not in [row["peer"] for row in lab.nodes[0].sessions()])


def test_a_flood_of_lookups_that_are_not_read_ends_its_session_only(
    lab: Lab, coupler: links.Endpoint
) -> None:
    """Attack: startpoints are asked for and never taken."""
    (address,) = lab.nodes[0].hints
    with HostilePeer(address, lab.credential(ATMOSPHERE)) as peer:
        peer.open(1, LOOKUP, b"")
        assert peer.answer()["control"] == "link_accept"
        # Nothing is read.
        with contextlib.suppress(OSError):
            for _ in range(100):
                peer.socket.sendall(
                    b"".join(peer.sealed_request(1, 0, b"coupler") for _ in range(500))
                )
        ocean = lab.nodes[0]
        assert eventually(lambda: ATMOSPHERE not in [row["peer"] for row in ocean.sessions()])
    honest(lab, coupler)


def test_handlers_that_never_return_hold_up_their_own_links_only(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: calls that never end, as many as there is credit for."""
    stuck, go_on = threading.Event(), threading.Event()

    @coupler.handler
    def forever() -> None:
        stuck.set()
        go_on.wait(60)

    try:
        own = Stolen(coupler.startpoint(to=PLOTTER).text())
        mallory.open(1, "coupler", own.right(mallory.binding, 1))
        handlers = mallory.answer()["handlers"]
        for _ in range(2000):
            mallory.request(1, handlers.index("forever"), NOTHING)
        assert stuck.wait(60)
        # One thread is theirs, the other one everybody else's.
        honest(lab, coupler)
    finally:
        go_on.set()


def test_streams_that_are_failed_at_once_take_no_threads(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: streams are opened and failed, over and over, while those who serve them are still at it."""
    go_on = threading.Event()

    @coupler.stream_handler
    def copy(stream: links.Stream) -> None:
        go_on.wait(60)

    own = Stolen(coupler.startpoint(to=PLOTTER).text())
    mallory.open(1, "coupler", own.right(mallory.binding, 1))
    handler = mallory.answer()["handlers"].index("copy")
    opens, fails, failure = 1, 6, struct.pack(">HcHc", 1, b"a", 1, b"b")
    before = threading.active_count()
    try:
        for number in range(500):
            stream = struct.pack(">Q", number)
            mallory.request(1, handler, b"\xff" + bytes([opens]) + stream)
            mallory.request(1, handler, b"\xff" + bytes([fails]) + stream + failure)
        honest(lab, coupler)
        assert not eventually(lambda: threading.active_count() > before + 100, 3)
    finally:
        go_on.set()


def test_what_waits_is_not_done_when_its_right_has_ended(lab: Lab, coupler: links.Endpoint) -> None:
    """Attack: much is asked before a startpoint is revoked, to be done behind that."""
    stuck, go_on = threading.Event(), threading.Event()
    seen: list[int] = []
    field = np.zeros(4)
    region = coupler.region("field", field, writable=True)

    @coupler.handler
    def note(number: int) -> None:
        stuck.set()
        go_on.wait(60)
        seen.append(number)

    node = lab.node(PLOTTER)
    startpoint = coupler.startpoint(to=PLOTTER)
    bound = node.bind(startpoint)
    try:
        for number in range(10):
            bound.post("note", number)
        assert stuck.wait(60)
        remote = bound.region("field")
        assert not remote.get().result(60).any()
        with region.hold():
            put = remote.put((), np.ones(4))
            # What comes behind it has come.
            other = node.bind(coupler.startpoint(to=PLOTTER))
            assert other.request("surface").result(60) == 15.0
            assert not put.done()
            coupler.revoke(startpoint)
    finally:
        go_on.set()
    honest(lab, coupler)
    assert eventually(lambda: seen == [0])
    assert not field.any()
    with pytest.raises(ex.LinkError, match=r"10 posts to coupler may be lost.*revoked"):
        node.close()


def test_what_is_sent_without_credit_ends_the_session(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: more under way than the node has memory for, while its handler is held up."""
    go_on = threading.Event()

    @coupler.handler
    def hold(data: bytes) -> None:
        go_on.wait(60)

    size = 1 << 20
    arguments = b"\x82\x81\x5a" + struct.pack(">I", size) + bytes(size) + b"\xa0"
    try:
        own = Stolen(coupler.startpoint(to=PLOTTER).text())
        mallory.open(1, "coupler", own.right(mallory.binding, 1))
        handler = mallory.answer()["handlers"].index("hold")
        flood = [mallory.sealed_request(1, handler, arguments) for _ in range(20)]
        with pytest.raises(EndOfSession, match="credit_bytes"):
            mallory.end(*flood)
        honest(lab, coupler)
    finally:
        go_on.set()


@pytest.mark.parametrize(
    ("parts", "each", "why"),
    [
        (2000, 0, "bulk_parts_max"),
        (4096, 1 << 40, "bulk_parts_max|message_bytes_max"),
        (2, 1 << 62, "message_bytes_max|over its limit|length"),
        (1000, 1 << 30, "message_bytes_max"),
    ],
)
def test_enormous_counts_take_no_memory(
    parts: int, each: int, why: str, lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: a head that announces more than there can be."""
    own = Stolen(coupler.startpoint(to=PLOTTER).text())
    mallory.open(1, "coupler", own.right(mallory.binding, 1))
    assert mallory.answer()["control"] == "link_accept"
    head = struct.pack(">HBQQH", 0, 1, 1, 0, parts) + struct.pack(">Q", each) * parts
    record = mallory.session.sending.seal("head", False, 1, 0, head)
    with pytest.raises(EndOfSession, match=why):
        mallory.end(record)
    honest(lab, coupler)


def test_arguments_that_are_no_plain_data_are_a_failure(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: heads that are anything but two arguments' worth of plain data."""
    own = Stolen(coupler.startpoint(to=PLOTTER).text())
    mallory.open(1, "coupler", own.right(mallory.binding, 1))
    assert mallory.answer()["control"] == "link_accept"
    for head in (
        b"",
        b"\x00",
        b"\xff",
        b"\x80\x04K\x01.",
        b"\x82",
        b"\x83\x80\xa0\x80",
        b"\x9f" * 500,
    ):
        mallory.request(1, 0, head)
        assert mallory.answer()["kind"] == "failure", head
    # Keywords that are none.
    mallory.request(1, 0, bytes.fromhex("8280a10102"))
    assert mallory.answer()["kind"] == "failure"
    mallory.request(1, 0, NOTHING)
    assert mallory.answer()["kind"] == "reply"
    honest(lab, coupler)


def test_a_handler_out_of_range_ends_the_session(
    lab: Lab, coupler: links.Endpoint, mallory: HostilePeer
) -> None:
    """Attack: the number of a handler that the startpoint doesn't allow."""
    own = Stolen(coupler.startpoint(to=PLOTTER, handlers=["surface"]).text())
    mallory.open(1, "coupler", own.right(mallory.binding, 1))
    assert mallory.answer()["handlers"] == ["surface"]
    request = mallory.sealed_request(1, 1, NOTHING)
    with pytest.raises(EndOfSession, match="no such handler"):
        mallory.end(request)
    honest(lab, coupler)


def test_a_startpoint_that_rules_gave_cannot_be_widened(lab: Lab, coupler: links.Endpoint) -> None:
    """Attack: what was looked up, with the handlers that no rule gives."""
    (address,) = lab.nodes[0].hints
    with HostilePeer(address, lab.credential(ATMOSPHERE)) as peer:
        peer.open(1, LOOKUP, b"")
        assert peer.answer()["control"] == "link_accept"
        peer.request(1, 0, b"coupler")
        given = object.__new__(Stolen)

        given.item, given.tag = read_startpoint(peer.answer()["head"])
        assert ["handlers", ["surface"]] in given.item["caveats"]
        wider = [[kind, value] for kind, value in given.item["caveats"] if kind != "handlers"]
        peer.open(3, "coupler", given.changed(caveats=wider).right(peer.binding, 3))
        assert peer.answer()["control"] == "link_refuse"
        peer.open(5, "coupler", given.right(peer.binding, 5))
        assert peer.answer()["handlers"] == ["surface"]
    with HostilePeer(address, lab.credential(PLOTTER)) as thief:
        thief.open(1, "coupler", given.right(thief.binding, 1))
        assert ATMOSPHERE in thief.answer()["text"]


def test_a_node_that_answers_for_another_gives_no_startpoint(lab: Lab) -> None:
    """Attack: whoever is asked sends the asker to somebody else."""
    liar = lab.node(OCEAN, "127.0.0.1:0")
    with pytest.raises(ex.LinkError, match=PLOTTER.replace(".", r"\.")):
        lab.node(ATMOSPHERE).lookup("coupler", at=liar.hints, name=PLOTTER)


def open_and_hear(peer: HostilePeer, right: bytes) -> None:
    """Ask for a link, and read what comes of it."""
    peer.open(1, "coupler", right)
    peer.answer()


def test_who_is_banned_in_the_middle_of_its_handshake_does_not_stay(
    lab: Lab, coupler: links.Endpoint
) -> None:
    (address,) = lab.nodes[0].hints
    own = Stolen(coupler.startpoint(to=PLOTTER).text())

    def ban() -> None:
        replace(lab.policy, lab.policy.read_text() + f'[deny]\npeers = ["{PLOTTER}"]\n')
        lab.nodes[0].reload()

    credential = lab.credential(PLOTTER)
    with (
        HostilePeer(address, credential, before_hello=ban) as peer,
        pytest.raises(EndOfSession, match="refused by") as refused,
    ):
        open_and_hear(peer, own.right(peer.binding, 1))
    assert PLOTTER in str(refused.value)
    assert any("the session with" in line and PLOTTER in line for line in lab.nodes[0].audit())
    honest(lab, coupler)


def test_a_link_is_resumed_by_the_very_right_that_opened_it(
    lab: Lab, coupler: links.Endpoint
) -> None:
    (address,) = lab.nodes[0].hints
    whole = Stolen(coupler.startpoint(to=PLOTTER).text())
    # One allows what the other does, and no more; their numbers are the same.
    narrow = whole.narrowed(["handlers", ["surface"]])
    process = "11" * 16
    with HostilePeer(address, lab.credential(PLOTTER), process=process) as peer:
        peer.open(1, "coupler", whole.right(peer.binding, 1), of="lasting", name=7)
        assert peer.answer()["handlers"] == ["surface", "heat"]
    opened_in = peer.secret
    with HostilePeer(address, lab.credential(PLOTTER), process=process) as peer:

        def resume(right: Stolen, link: int, attempt: int) -> dict[str, object]:
            told = {"name": 7, "attempt": attempt, "received": 0}
            _, proof = resumption(opened_in, peer.secret, {"link": link} | told)
            shown = right.right(peer.binding, link)
            peer.open(link, "coupler", shown, of="resumed", proof=proof.hex(), **told)
            return peer.answer()

        refused = resume(narrow, 1, 1)
        assert refused["text"] == "the link that it resumes was opened by another right"
        assert resume(whole, 3, 2)["handlers"] == ["surface", "heat"]
