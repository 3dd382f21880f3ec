"""Links that outlive their connections: what is cut in mid-stream goes on by the next one, once and in order, or is said to be lost."""

from __future__ import annotations

import contextlib
import fcntl
import random
import socket
import struct
import sys
import termios
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.processes import eventually

import exoskel as ex
from exoskel import links
from exoskel.cli import main

OCEAN, ATMOSPHERE = "ocean.example.org", "atmosphere.example.org"


def _unsent_bytes(target: socket.socket) -> int:
    """Return how many bytes the other end's system has not taken yet."""
    count = fcntl.ioctl(target, termios.TIOCOUTQ, bytes(4))
    return int.from_bytes(count, sys.byteorder)


class Relay:
    """Passes connections on, and cuts them."""

    def __init__(self, target: str) -> None:
        self.lead_to(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._is_open = True
        self.accepted = 0
        # After so many bytes to the target, every connection is cut; 0 is never.
        self.cut_after = 0
        # What comes next for the target does not arrive: its connection is cut instead.
        self.cuts_next = False
        # What comes for the target is held back while this is not set.
        self.may_pass = threading.Event()
        self.may_pass.set()
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def hint(self) -> str:
        """Where it listens."""
        host, port = self._listener.getsockname()
        return f"tcp://{host}:{port}"

    def lead_to(self, target: str) -> None:
        """Pass connections on to another place from now on."""
        host, port = target.removeprefix("tcp://").rsplit(":", 1)
        self._target = (host, int(port))

    def cut(self) -> int:
        """Reset all connections; say how many there were."""
        with self._lock:
            pairs, self._pairs = self._pairs, []
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    end.shutdown(socket.SHUT_RDWR)
        return len(pairs)

    def refuse(self, refuses: bool) -> None:
        """Let nobody through, or let everybody through again."""
        self._is_open = not refuses
        if refuses:
            self.cut()

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()
        for thread in self._threads:
            thread.join(60)

    def _accept(self) -> None:
        while True:
            try:
                inner, _ = self._listener.accept()
            except OSError:
                return
            if not self._is_open:
                inner.close()
                continue
            outer = socket.create_connection(self._target)
            with self._lock:
                self._pairs.append((inner, outer))
                self.accepted += 1
            for one, other, counts in ((inner, outer, True), (outer, inner, False)):
                thread = threading.Thread(target=self._pass_on, args=[one, other, counts])
                thread.start()
                self._threads.append(thread)

    def _pass_on(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        passed = 0
        with contextlib.suppress(OSError):
            while piece := source.recv(65_536):
                passed += len(piece)
                if counts:
                    self.may_pass.wait(60)
                if counts and self.cuts_next:
                    self.cuts_next = False
                    self.cut()
                    break
                if counts and 0 < self.cut_after <= passed:
                    # In the middle of a record. A reset would take back what the target hasn't been given yet.
                    target.sendall(piece[: len(piece) // 2])
                    assert eventually(lambda: _unsent_bytes(target) == 0)
                    self.cut()
                    break
                target.sendall(piece)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        # Each end is the source of one thread.
        source.close()


class Site:
    """An authority, and nodes with names that are closed in the end."""

    def __init__(self, place: Path) -> None:
        self.place = place
        assert main(["pki", "init", str(place / "pki"), "--json"]) == 0
        self.nodes: list[links.Node] = []

    def node(
        self, name: str, listen: str | tuple[str, ...] = (), patience: float = 30.0
    ) -> links.Node:
        """Make a node."""
        path = self.place / f"{name}.pem"
        if not path.exists():
            where = ["--directory", str(self.place / "pki"), "--output", str(path), "--json"]
            assert main(["pki", "issue", *where, "--role", "peer", "--name", name]) == 0
        node = links.Node(path, listen=listen, patience=patience)
        self.nodes.append(node)
        return node


@pytest.fixture
def site(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Site]:
    made = Site(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


class Coupler:
    """An ocean behind a relay, with an endpoint that notes what comes."""

    def __init__(self, site: Site, patience: float = 30.0) -> None:
        self.node = site.node(OCEAN, "127.0.0.1:0", patience)
        self.relay = Relay(self.node.hints[0])
        self.noted: list[int] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.endpoint = self.node.endpoint("coupler", threads=2)
        self.endpoint.handler(self.note)
        self.endpoint.handler(self.double)
        self.endpoint.handler(self.slow)

    def note(self, number: int, _field: np.ndarray | None = None) -> None:
        """Note a number."""
        self.noted.append(number)

    def double(self, value: np.ndarray | int) -> np.ndarray | int:
        """Give the double."""
        return value * 2

    def slow(self, number: int) -> int:
        """Note a number, and give it back when that is due."""
        self.noted.append(number)
        self.begun.set()
        self.go_on.wait(60)
        return number

    def bind(self, node: links.Node) -> links.Binding:
        """Bind a startpoint that leads through the relay."""
        return node.bind(self.endpoint.startpoint(to="*").with_hints([self.relay.hint]))


@pytest.fixture
def coupler(site: Site) -> Iterator[Coupler]:
    made = Coupler(site)
    yield made
    made.go_on.set()
    try:
        # Who has posted hears of the arrival while there is a way.
        for node in reversed(site.nodes):
            node.close()
    finally:
        made.relay.close()


def test_posts_go_over_a_cut_once_and_in_order(site: Site, coupler: Coupler) -> None:
    bound = coupler.bind(site.node(ATMOSPHERE))
    cuts = 0
    for number in range(300):
        bound.post("note", number, np.zeros(number * 50))
        if number % 60 == 30:
            half = number // 2
            assert eventually(lambda half=half: len(coupler.noted) > half)  # type: ignore[misc]
            cuts += coupler.relay.cut()
    assert eventually(lambda: len(coupler.noted) >= 300)
    assert coupler.noted == list(range(300))
    assert cuts >= 3
    assert coupler.relay.accepted > cuts


@pytest.mark.parametrize("closes_node", [False, True], ids=["binding", "node"])
def test_posts_of_a_closed_binding_go_over_a_cut(
    closes_node: bool, site: Site, coupler: Coupler
) -> None:
    node = site.node(ATMOSPHERE)
    bound = coupler.bind(node)
    assert bound.request("double", 1).result(60) == 2
    coupler.relay.may_pass.clear()
    coupler.relay.cuts_next = True
    for number in range(5):
        bound.post("note", number)
    bound.close()
    coupler.relay.may_pass.set()
    if closes_node:
        node.close()
    assert eventually(lambda: len(coupler.noted) >= 5)
    assert coupler.noted == list(range(5))
    assert coupler.relay.accepted >= 2
    assert not any("may be lost" in line for line in node.audit())


def test_a_node_that_is_closed_tells_which_posts_a_cut_has_lost(
    site: Site, coupler: Coupler
) -> None:
    node = site.node(ATMOSPHERE)
    bound = coupler.bind(node)
    assert bound.request("double", 1).result(60) == 2
    coupler.relay.may_pass.clear()
    coupler.relay.cuts_next = True
    for number in range(5):
        bound.post("note", number)
    bound.close()
    coupler.relay.refuse(True)
    coupler.relay.may_pass.set()
    with pytest.raises(ex.LinkError, match="5 posts to coupler may be lost"):
        node.close()
    assert coupler.noted == []


def test_a_stream_that_is_cut_every_megabyte_arrives_whole(site: Site, coupler: Coupler) -> None:
    bound = coupler.bind(site.node(ATMOSPHERE))
    coupler.relay.cut_after = 1_000_000
    field = np.arange(20_000, dtype=float)
    for number in range(60):
        bound.post("note", number, field)
    replies = [bound.request("double", field + number) for number in range(10)]
    for number, reply in enumerate(replies):
        np.testing.assert_array_equal(reply.result(60), 2 * (field + number))
    assert coupler.noted == list(range(60))
    assert coupler.relay.accepted > 5


def test_a_byte_stream_goes_over_cuts_whole(site: Site, coupler: Coupler) -> None:
    @coupler.endpoint.stream_handler
    def echo(stream: links.Stream) -> None:
        while part := stream.read1():
            stream.write(part)

    bound = coupler.bind(site.node(ATMOSPHERE))
    coupler.relay.cut_after = 1_000_000
    sent = random.Random(1).randbytes(5_000_000)
    with bound.stream("echo", timeout=30) as stream:
        got = bytearray()
        reader = threading.Thread(target=lambda: got.extend(stream.readall()))
        reader.start()
        for start in range(0, len(sent), 77_777):
            stream.write(sent[start : start + 77_777])
        stream.finish()
        reader.join()
    assert bytes(got) == sent
    assert coupler.relay.accepted > 3


def test_a_stream_that_nobody_writes_to_goes_over_a_cut(site: Site, coupler: Coupler) -> None:
    """The end that was opened has to find its opener again, by the same link in another session."""
    ended = threading.Event()

    @coupler.endpoint.stream_handler
    def tell(stream: links.Stream) -> None:
        stream.write(b"first")
        coupler.go_on.wait(60)
        stream.write(b"second")
        ended.set()

    bound = coupler.bind(site.node(ATMOSPHERE))
    with bound.stream("tell", timeout=30) as stream:
        assert stream.read1() == b"first"
        assert coupler.relay.cut() == 1
        assert eventually(lambda: coupler.relay.accepted >= 2)
        coupler.go_on.set()
        assert stream.readall() == b"second"
    assert ended.wait(60)


def test_arrays_are_read_and_written_over_cuts(site: Site, coupler: Coupler) -> None:
    field = np.arange(500_000.0)
    coupler.endpoint.region("field", field, writable=True)
    bound = coupler.bind(site.node(ATMOSPHERE))
    # A piece of an array has 1 MiB: one gets through, and the next one is cut.
    coupler.relay.cut_after = 1_500_000
    region = bound.region("field")
    region.put(slice(None), -np.arange(500_000.0)).result(60)
    np.testing.assert_array_equal(field, -np.arange(500_000.0))
    np.testing.assert_array_equal(region.get().result(60), field)
    assert coupler.relay.accepted > 2


def test_an_answer_finds_its_way_over_the_next_connection(site: Site, coupler: Coupler) -> None:
    bound = coupler.bind(site.node(ATMOSPHERE))
    reply = bound.request("slow", 7)
    assert coupler.begun.wait(60)
    assert coupler.relay.cut() == 1
    assert eventually(lambda: coupler.relay.accepted >= 2)
    coupler.go_on.set()
    assert reply.result(60) == 7
    assert coupler.noted == [7], "the handler ran once"


def test_a_link_that_nobody_brings_back_says_so(site: Site, tmp_path: Path) -> None:
    coupler = Coupler(site, patience=1.0)
    bound = coupler.bind(site.node(ATMOSPHERE, patience=1.0))
    assert bound.request("double", 4).result(60) == 8
    reply = bound.request("slow", 1)
    assert coupler.begun.wait(60)
    # It is posted while there is a link, and gets no further than the relay.
    coupler.relay.may_pass.clear()
    bound.post("note", 5)
    coupler.relay.refuse(True)
    coupler.relay.may_pass.set()
    with pytest.raises(
        ex.LinkError, match=r"way to .*ocean\.example\.org was lost .* within 1s: .*tried tcp:"
    ):
        reply.result(60)
    with pytest.raises(ex.LinkError, match="1 post to coupler may be lost"):
        bound.post("note", 6)
    # A new link.
    coupler.relay.refuse(False)
    coupler.go_on.set()
    assert bound.request("double", 5).result(60) == 10
    coupler.relay.close()


def test_without_patience_links_end_with_their_connections(site: Site) -> None:
    coupler = Coupler(site)
    bound = coupler.bind(site.node(ATMOSPHERE, patience=0.0))
    reply = bound.request("slow", 1)
    assert coupler.begun.wait(60)
    coupler.relay.cut()
    with pytest.raises(ex.LinkError, match=r"session with .* ended before the answer came"):
        reply.result(60)
    coupler.go_on.set()
    assert bound.request("double", 5).result(60) == 10
    coupler.relay.close()


def test_a_process_that_has_started_again_is_another_one(site: Site) -> None:
    coupler = Coupler(site)
    bound = coupler.bind(site.node(ATMOSPHERE))
    assert bound.request("double", 4).result(60) == 8
    address = coupler.node.hints[0].removeprefix("tcp://")
    coupler.node.close()
    again = site.node(OCEAN, address)
    endpoint = again.endpoint("coupler")
    endpoint.handler(coupler.double)
    with pytest.raises(ex.LinkError, match="another process"):
        bound.request("double", 4).result(60)
    coupler.relay.close()


def test_two_processes_of_one_name_are_two_peers(site: Site) -> None:
    one, other = (site.node(OCEAN, "127.0.0.1:0") for _ in range(2))
    startpoints = []
    for number, node in enumerate((one, other)):
        endpoint = node.endpoint("which")

        def which(number: int = number) -> int:
            return number

        endpoint.handler(which)
        startpoints.append(endpoint.startpoint(to="*"))
    node = site.node(ATMOSPHERE)
    bound = [node.bind(startpoint) for startpoint in startpoints]
    assert [binding.request("which").result(60) for binding in bound] == [0, 1]
    assert len(node.sessions()) == 2


def test_two_that_dial_each_other_keep_one_session(site: Site) -> None:
    nodes = [site.node(name, "127.0.0.1:0") for name in (OCEAN, ATMOSPHERE)]
    bound = []
    endpoints = [node.endpoint("echo") for node in nodes]
    for endpoint in endpoints:
        endpoint.handler(echo)
    for node, endpoint in zip(nodes, reversed(endpoints), strict=True):
        bound.append(node.bind(endpoint.startpoint(to="*")))
    replies = [binding.request("echo", number) for number in range(50) for binding in bound]
    assert [reply.result(60) for reply in replies] == [
        number for number in range(50) for _ in bound
    ]
    assert eventually(lambda: [len(node.sessions()) for node in nodes] == [1, 1])
    assert [binding.request("echo", 1).result(60) for binding in bound] == [1, 1]


def echo(value: int) -> int:
    return value


def test_many_links_come_back_together(site: Site, coupler: Coupler) -> None:
    node = site.node(ATMOSPHERE)
    bound = [coupler.bind(node) for _ in range(20)]
    assert [one.request("double", 1).result(60) for one in bound] == [2] * 20
    coupler.relay.cut()
    replies = [one.request("double", number) for number, one in enumerate(bound)]
    assert [reply.result(60) for reply in replies] == [2 * number for number in range(20)]
    assert len(node.sessions()) == 1


def test_a_node_that_only_dials_is_called_back_over_its_connection(
    site: Site, coupler: Coupler
) -> None:
    node = site.node(ATMOSPHERE)
    endpoint = node.endpoint("echo")
    endpoint.handler(echo)
    assert coupler.bind(node).request("double", 1).result(60) == 2
    back = coupler.node.bind(endpoint.startpoint(to=OCEAN))
    assert back.request("echo", 3).result(60) == 3
    for number in range(20):
        reply = back.request("echo", number)
        coupler.relay.cut()
        assert reply.result(60) == number
