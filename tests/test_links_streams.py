"""Streams over links: bytes in order, back-pressure, ends of all kinds, many at once."""

from __future__ import annotations

import io
import logging
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.processes import eventually
from tests.test_links import NAMES, Lab

import exoskel as ex
from exoskel import link_streams, links


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


class Station:
    """An endpoint with streams, and what they got."""

    def __init__(self, node: links.Node) -> None:
        self.endpoint = node.endpoint("station")
        self.got: list[bytes] = []
        self.begun, self.ended = threading.Event(), threading.Event()
        self.errors: list[Exception] = []
        self.go_on = threading.Event()
        endpoint = self.endpoint

        @endpoint.stream_handler
        def echo(stream: links.Stream) -> None:
            while part := stream.read1():
                stream.write(part)

        @endpoint.stream_handler
        def keep(stream: links.Stream) -> None:
            self.begun.set()
            try:
                self.got.append(stream.readall())
            except Exception as error:
                self.errors.append(error)
                raise
            finally:
                self.ended.set()

        @endpoint.stream_handler
        def answer(stream: links.Stream) -> None:
            self.got.append(stream.readall())
            while True:
                stream.write(b"taken")

        @endpoint.stream_handler
        def lines(stream: links.Stream) -> None:
            for number in range(1000):
                stream.write(f"line {number}\n".encode())

        @endpoint.stream_handler
        def wait(stream: links.Stream) -> None:
            self.go_on.wait(60)
            self.got.append(stream.read1(5))

        @endpoint.stream_handler
        def fail(stream: links.Stream) -> None:
            stream.write(b"beginning")
            raise OSError(f"no such file for {stream.peer}")

        @endpoint.stream_handler
        def fail_at_once(_stream: links.Stream) -> None:
            raise OSError("disk full")

        @endpoint.stream_handler
        def fail_at_end(stream: links.Stream) -> None:
            stream.readall()
            raise OSError("disk full")

        @endpoint.stream_handler
        def for_ever(stream: links.Stream) -> None:
            while True:
                stream.write(b"more")

        @endpoint.handler
        def ask() -> str:
            return "answered"


@pytest.fixture
def station(lab: Lab) -> Station:
    return Station(lab.node(NAMES[0], "127.0.0.1:0"))


@pytest.fixture
def bound(lab: Lab, station: Station) -> links.Binding:
    return lab.node(NAMES[1]).bind(station.endpoint.startpoint(to=NAMES[1]).text())


def test_bytes_go_there_and_back(bound: links.Binding) -> None:
    sent = random.Random(1).randbytes(5_000_000)
    with bound.stream("echo", timeout=20) as stream:
        got = bytearray()

        def read() -> None:
            got.extend(stream.readall())

        reader = threading.Thread(target=read)
        reader.start()
        for start in range(0, len(sent), 77_777):
            stream.write(sent[start : start + 77_777])
        stream.finish()
        reader.join()
    assert bytes(got) == sent
    assert stream.closed


def test_lines_are_iterated_over(bound: links.Binding) -> None:
    with bound.stream("lines", timeout=20) as stream:
        assert list(stream) == [f"line {number}\n".encode() for number in range(1000)]
        assert stream.read() == b""


def test_it_is_a_file_for_others(bound: links.Binding) -> None:
    with bound.stream("echo", timeout=20) as stream:
        writer = io.TextIOWrapper(io.BufferedWriter(stream), encoding="utf-8")
        writer.write("größer\nals\n")
        writer.flush()
        stream.finish()
        room = bytearray(3)
        assert stream.readinto(room) == 3
        assert (bytes(room) + stream.readall()).decode() == "größer\nals\n"
        writer.detach().detach()


def test_closing_waits_for_the_end_of_the_handler(bound: links.Binding, station: Station) -> None:
    with bound.stream("keep", timeout=20) as stream:
        stream.write(b"x" * 3_000_000)
    assert station.got == [b"x" * 3_000_000]
    stream = bound.stream("wait", timeout=0.05)
    with pytest.raises(TimeoutError, match="could not close wait of ocean"):
        stream.close()
    station.go_on.set()


@pytest.mark.parametrize("size", [0, 10, 1_000_000, 10_000_000])
@pytest.mark.parametrize("when", ["at_once", "at_end"])
@pytest.mark.parametrize("finishes", [False, True])
def test_an_upload_whose_handler_fails_is_no_success(
    bound: links.Binding, size: int, when: str, finishes: bool
) -> None:
    def upload() -> None:
        with bound.stream(f"fail_{when}", timeout=20) as stream:
            stream.write(bytes(size))
            if finishes:
                stream.finish()

    with pytest.raises(links.HandlerError, match="OSError: disk full"):
        upload()


def test_who_closes_early_hears_nothing_of_a_handler_that_noticed(bound: links.Binding) -> None:
    with bound.stream("lines", timeout=20) as stream:
        assert stream.read(4) == b"line"
    with bound.stream("for_ever", timeout=20) as stream:
        assert stream.read(4) == b"more"


def test_who_writes_waits_for_who_reads(bound: links.Binding, station: Station) -> None:
    # There is a link by then, and the time is that of writing only.
    assert bound.request("ask").result(60) == "answered"
    stream = bound.stream("wait", timeout=0.2)
    with pytest.raises(
        TimeoutError, match=r"could not write wait of ocean.* within 0\.2 seconds: wrote \d+ of"
    ):
        stream.write(bytes(50_000_000))
    # Others of the link pass by.
    assert bound.request("ask").result(60) == "answered"
    station.go_on.set()
    assert eventually(lambda: station.got == [bytes(5)])
    # It reads no more.
    stream.timeout = 20
    with pytest.raises(BrokenPipeError, match="reads no more"):
        stream.write(bytes(50_000_000))
    stream.close()


def test_a_read_gives_up_in_time(bound: links.Binding) -> None:
    stream = bound.stream("echo", timeout=0.05)
    with pytest.raises(TimeoutError, match="could not read echo"):
        stream.read(1)
    stream.timeout = 20
    stream.write(b"late")
    assert stream.read1() == b"late"
    stream.close()
    with pytest.raises(ValueError, match="closed"):
        stream.read1()


def test_a_read_without_an_end_of_writing_says_what_may_be_missing(
    bound: links.Binding,
    station: Station,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both ends read: the handler to the end of what is written, and who has written it for the answer."""
    monkeypatch.setattr(link_streams, "_UNFINISHED_SECONDS", 0.0)
    # There is a link by then: what is written takes none of the time.
    assert bound.request("ask").result(60) == "answered"
    with caplog.at_level(logging.WARNING, "exoskel.links"):
        stream = bound.stream("keep", timeout=0.3)
        with pytest.raises(TimeoutError) as raised:
            stream.read()
        assert "finish()" not in str(raised.value)
        stream.write(b"all of it")
        with pytest.raises(TimeoutError, match=r"this end has written and not called finish\(\)"):
            stream.read()
    told = [one.getMessage() for one in caplog.records if one.name == "exoskel.links"]
    assert len(told) == 1, told
    assert "a read of the stream keep" in told[0]
    stream.finish()
    with pytest.raises(TimeoutError) as raised:
        bound.stream("wait", timeout=0.1).read()
    assert "finish()" not in str(raised.value)
    station.go_on.set()
    # The end of the handler may take longer than the reads that are to be in vain.
    stream.timeout = 20
    stream.close()


def test_a_handler_whose_answer_nobody_wants_is_no_failure_in_the_log(
    bound: links.Binding, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream is closed without a read: that ends the writing too, and the answer has nobody to go to."""
    with caplog.at_level(logging.WARNING, "exoskel.links"):
        with bound.stream("answer", timeout=30) as stream:
            stream.write(b"all of it")
        # The next one is handled behind it.
        with bound.stream("echo", timeout=30) as stream:
            stream.write(b"x")
            assert stream.read(1) == b"x"
    assert [one.getMessage() for one in caplog.records if one.name == "exoskel.links"] == []


def test_what_the_handler_raises_comes_behind_what_it_wrote(bound: links.Binding) -> None:
    stream = bound.stream("fail", timeout=20)
    assert stream.read(9) == b"beginning"
    with pytest.raises(links.HandlerError, match="OSError: no such file for atmosphere") as raised:
        stream.read(1)
    assert raised.value.kind == "OSError"


def test_who_fails_tells_the_other_end(bound: links.Binding, station: Station) -> None:
    def write() -> None:
        with bound.stream("keep", timeout=20) as stream:
            stream.write(b"some")
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError):
        write()
    assert station.ended.wait(60)
    assert station.got == []
    assert "ZeroDivisionError: mine" in str(station.errors[0])


def test_a_stream_that_is_dropped_is_no_end(bound: links.Binding, station: Station) -> None:
    stream = bound.stream("keep", timeout=20)
    stream.write(b"some")
    del stream
    assert station.ended.wait(60)
    assert "dropped" in str(station.errors[0])


def test_many_at_once_and_no_more_than_that(bound: links.Binding) -> None:
    streams = [bound.stream("echo", timeout=20) for _ in range(64)]
    for number, stream in enumerate(streams):
        stream.write(bytes([number]) * 1000)
    for number, stream in enumerate(streams):
        assert stream.read(1) == bytes([number])
    with pytest.raises(links.HandlerError, match="more than 64 streams"):
        bound.stream("echo", timeout=20).read(1)
    for stream in streams:
        stream.close()
    assert eventually(lambda: _echoes(bound))


def _echoes(bound: links.Binding) -> bool:
    stream = bound.stream("echo", timeout=20)
    try:
        stream.write(b"x")
        return stream.read(1) == b"x"
    except links.HandlerError:
        return False
    finally:
        stream.abort()


def test_a_stream_ends_with_its_link(lab: Lab, bound: links.Binding, station: Station) -> None:
    startpoint = station.endpoint.startpoint(to=NAMES[1])
    revoked = lab.nodes[1].bind(startpoint)
    stream = revoked.stream("keep", timeout=20)
    stream.write(b"some")
    # A handler that has not begun by then never does.
    assert station.begun.wait(60)
    station.endpoint.revoke(startpoint)
    with pytest.raises(ex.LinkError, match="revoked"):
        stream.read(1)
    assert station.ended.wait(60)
    assert "revoked" in str(station.errors[0])
    # Another's goes on, until the session ends.
    other = bound.stream("echo", timeout=20)
    other.write(b"x")
    assert other.read(1) == b"x"
    lab.nodes[0].close()
    with pytest.raises(ex.LinkError):
        other.read(1)


def test_a_binding_that_is_closed_ends_its_streams(bound: links.Binding, station: Station) -> None:
    stream = bound.stream("keep", timeout=20)
    stream.write(b"some")
    # A handler that has not begun by then never does.
    assert station.begun.wait(60)
    assert bound.request("ask").result(60) == "answered"
    bound.close()
    assert station.ended.wait(60)
    assert "closed its link" in str(station.errors[0])
    with pytest.raises(ex.LinkError):
        stream.write(b"more")


def test_streams_are_rights_like_handlers(lab: Lab, bound: links.Binding, station: Station) -> None:
    startpoint = station.endpoint.startpoint(to=NAMES[1], handlers=["keep", "ask"])
    narrow = lab.nodes[1].bind(startpoint)
    with pytest.raises(ValueError, match=r'got the handler "echo", expected .* "ask", "keep"'):
        narrow.stream("echo", timeout=20).read(1)


def test_a_handler_is_no_stream_and_a_stream_no_handler(bound: links.Binding) -> None:
    with pytest.raises(links.HandlerError, match="ask is a handler: call it by request"):
        bound.stream("ask", timeout=20).read(1)
    with pytest.raises(links.HandlerError, match=r"echo is a stream: open it by stream"):
        bound.request("echo").result(60)


def test_streams_that_are_over_leave_room_for_others(
    bound: links.Binding, station: Station
) -> None:
    for number in range(100):
        with bound.stream("echo", timeout=20) as stream:
            stream.write(b"x")
            assert stream.read(1) == b"x"
        # Given up, and ended by the handler before all was read.
        bound.stream("keep", timeout=20).abort()
        with bound.stream("lines", timeout=20) as stream:
            assert stream.readline() == b"line 0\n", number
    # Threads of handlers end behind their streams.
    assert eventually(lambda: len(station.errors) == 100)


def test_a_stream_keeps_its_binding(lab: Lab, station: Station) -> None:
    node = lab.node(NAMES[1])
    with node.bind(station.endpoint.startpoint(to=NAMES[1])).stream("echo", timeout=20) as stream:
        stream.write(b"x")
        assert stream.read(1) == b"x"


def test_shared_memory_carries_streams(lab: Lab, tmp_path: Path) -> None:
    station = Station(lab.node(NAMES[0], f"unix:{tmp_path}/station.sock"))
    bound = lab.node(NAMES[1]).bind(station.endpoint.startpoint(to=NAMES[1]))
    with bound.stream("keep", timeout=20) as stream:
        stream.write(b"y" * 4_000_000)
        assert bound.method == "shared memory"
    assert station.ended.wait(60)
    assert station.got == [b"y" * 4_000_000]
