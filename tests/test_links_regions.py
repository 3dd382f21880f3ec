"""Regions: arrays of other nodes that are read and written in place. And calls to several endpoints."""

from __future__ import annotations

import array
import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.processes import eventually
from tests.test_links import NAMES, Lab

import exoskel as ex
from exoskel import links


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


class Grid:
    """An endpoint with regions."""

    def __init__(self, node: links.Node) -> None:
        self.endpoint = node.endpoint("grid")
        self.field = np.arange(600.0).reshape(20, 30)
        self.large = np.arange(3_000_000, dtype="i4").reshape(1000, 3000)
        self.cube = np.arange(4 * 5 * 6, dtype="u2").reshape(4, 5, 6)
        self.offered = self.endpoint.region("field", self.field, writable=True)
        self.endpoint.region("large", self.large, writable=True)
        self.endpoint.region("cube", self.cube)


@pytest.fixture
def grid(lab: Lab) -> Grid:
    return Grid(lab.node(NAMES[0], "127.0.0.1:0"))


@pytest.fixture
def bound(lab: Lab, grid: Grid) -> links.Binding:
    return lab.node(NAMES[1]).bind(grid.endpoint.startpoint(to=NAMES[1]).text())


def test_a_region_says_what_it_holds(bound: links.Binding) -> None:
    region = bound.region("field")
    assert (region.shape, region.dtype) == ((20, 30), "<f8")


@pytest.mark.parametrize("threads", [1, 0])
def test_an_owner_that_never_answers_holds_nobody(lab: Lab, threads: int) -> None:
    """Attack: a node that takes the connection and says nothing more, as one does whose program stands still."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        endpoint = lab.node(NAMES[0]).endpoint("grid")
        startpoint = endpoint.startpoint(to=NAMES[1]).with_hints([place])
        with links.Node(
            lab.credential(NAMES[1]), policy=lab.policy, threads=threads, connect_timeout=60
        ) as node:
            region = node.bind(startpoint).region("field", timeout=0.2)
            told = f"{NAMES[0]} has not said within 0.2 seconds what the region field is like"
            uses: list[Callable[[], object]] = [
                lambda: region.shape,
                lambda: region.dtype,
                region.get,
                lambda: region.put((), np.zeros(3)),
            ]
            for use in uses:
                with pytest.raises(TimeoutError, match=told):
                    use()


def test_a_region_that_has_not_answered_is_waited_for_again(bound: links.Binding) -> None:
    region = bound.region("field", timeout=0)

    def is_described() -> bool:
        with contextlib.suppress(TimeoutError):
            return region.shape == (20, 30)
        return False

    assert eventually(is_described)
    with pytest.raises(ValueError, match="expected a number of seconds"):
        bound.region("field", timeout=-1)
    assert bound.region("field", timeout=None).shape == (20, 30)


@pytest.mark.parametrize(
    "where",
    [
        (),
        3,
        -1,
        slice(2, 7),
        (slice(2, 7), slice(5, 9)),
        (slice(None), 4),
        (slice(None, None, 3), slice(1, None, 7)),
        (4, 5),
        (..., slice(0, 2)),
        (slice(5, 5), slice(None)),
    ],
    ids=str,
)
def test_parts_are_read_and_written_as_in_numpy(
    bound: links.Binding, grid: Grid, where: Any
) -> None:
    region = bound.region("field")
    np.testing.assert_array_equal(region.get(where).result(60), grid.field[where])
    expected = grid.field.copy()
    new = np.random.default_rng(1).random(expected[where].shape)
    expected[where] = new
    assert region.put(where, new).result(60) is None
    np.testing.assert_array_equal(grid.field, expected)


def test_more_dimensions_have_more_steps(bound: links.Binding, grid: Grid) -> None:
    region = bound.region("cube")
    for where in [(slice(1, 3), slice(0, 5, 2), slice(2, 4)), (slice(None), 2), (3, slice(1, 3))]:
        np.testing.assert_array_equal(region.get(where).result(60), grid.cube[where])


def test_large_parts_go_straight_into_an_array(bound: links.Binding, grid: Grid) -> None:
    region = bound.region("large")
    into = np.zeros_like(grid.large)
    assert region.get(into=into).result(60) is into
    np.testing.assert_array_equal(into, grid.large)
    columns = np.zeros((1000, 1000), "i4")
    region.get((slice(None), slice(1000, 2000)), into=columns).result(60)
    np.testing.assert_array_equal(columns, grid.large[:, 1000:2000])
    region.put((slice(100, 900), slice(5, 2995)), np.full((800, 2990), 7, "i4")).result(60)
    assert (grid.large[100:900, 5:2995] == 7).all()
    assert grid.large[99, 5] == into[99, 5]
    assert grid.large[100, 4] == into[100, 4]


def test_what_one_binding_asks_is_done_in_order(bound: links.Binding, grid: Grid) -> None:
    region = bound.region("large")
    replies = [region.put((), np.full((1000, 3000), number, "i4")) for number in range(3)]
    got = region.get()
    assert (got.result(60) == 2).all()
    assert all(reply.done() for reply in replies)
    assert (grid.large == 2).all()


def test_completions_can_be_awaited(bound: links.Binding, grid: Grid) -> None:
    region = bound.region("field")

    async def both() -> tuple[Any, Any]:
        return await asyncio.gather(region.put(3, np.full(30, 1.5)), region.get(3))

    assert (asyncio.run(both())[1] == 1.5).all()


def test_other_buffers_of_numbers_are_regions_too(lab: Lab, grid: Grid) -> None:
    numbers = array.array("q", range(100))
    text = bytearray(b"some bytes")
    grid.endpoint.region("numbers", numbers, writable=True)
    grid.endpoint.region("text", text, writable=True)
    bound = lab.node(NAMES[1]).bind(grid.endpoint.startpoint(to=NAMES[1]))
    assert list(bound.region("numbers").get(slice(10, 13)).result(60)) == [10, 11, 12]
    bound.region("text").put(slice(0, 4), b"SOME").result(60)
    assert text == b"SOME bytes"
    with pytest.raises(BufferError):
        text.append(1)
    with pytest.raises(ValueError, match="read-only"):
        grid.endpoint.region("constant", b"bytes", writable=True)


@pytest.mark.parametrize(
    ("where", "shown"),
    [
        (20, r"got the index 20 in dimension 0 of the region field, expected -20 to 19"),
        (slice(0, 21), r"got the bound 21 in dimension 0 .*expected -20 to 20"),
        ((1, 2, 3), r"got 3 indexes .*expected at most 2"),
        (slice(None, None, -1), r"got the step -1"),
        ("x", r"type str, expected an int or a slice"),
    ],
)
def test_what_lies_outside_is_refused(bound: links.Binding, where: Any, shown: str) -> None:
    with pytest.raises(IndexError, match=shown):
        bound.region("field").get(where)


def test_other_shapes_and_types_are_refused(bound: links.Binding, grid: Grid) -> None:
    region = bound.region("field")
    with pytest.raises(ValueError, match=r"shape \(3,\), expected <f8 and \(20, 30\)"):
        region.get(into=np.zeros(3))
    with pytest.raises(ValueError, match=r"type <f4 and .*expected <f8"):
        region.put(3, np.zeros(30, "f4"))
    with pytest.raises(ValueError, match="not C-contiguous"):
        region.get(into=np.zeros((30, 20)).T)
    with pytest.raises(ValueError, match="not C-contiguous"):
        grid.endpoint.region("turned", grid.field.T)
    with pytest.raises(ValueError, match="object"):
        grid.endpoint.region("objects", np.array([object()]))
    readonly = np.zeros((20, 30))
    readonly.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        region.get(into=readonly)
    with pytest.raises(ValueError, match="read-only"):
        grid.endpoint.region("constant", readonly, writable=True)


def test_reading_and_writing_are_rights_of_their_own(
    lab: Lab, grid: Grid, bound: links.Binding
) -> None:
    zeros = np.zeros((20, 30))
    with pytest.raises(ValueError, match=r'"cube.put", expected one that this startpoint and'):
        bound.region("cube").put((), grid.cube).result(60)
    reader = lab.nodes[1].bind(grid.endpoint.startpoint(to=NAMES[1], handlers=["field.get"]))
    assert reader.region("field").get().result(60).shape == (20, 30)
    with pytest.raises(ValueError, match=r'"field.put", expected .*"field.get"'):
        reader.region("field").put((), zeros).result(60)
    writer = lab.nodes[1].bind(grid.endpoint.startpoint(to=NAMES[1], handlers=["field.put"]))
    writer.region("field").put((), zeros).result(60)
    assert (grid.field == 0).all()
    with pytest.raises(ValueError, match=r'"field.get", expected .*"field.put"'):
        writer.region("field").get().result(60)


def test_a_region_is_no_handler(bound: links.Binding) -> None:
    with pytest.raises(links.HandlerError, match=r"field\.get is a region's"):
        bound.request("field.get").result(60)
    with pytest.raises(ValueError, match=r"nothing\.get"):
        bound.region("nothing").get().result(60)


def test_who_holds_a_region_has_it_alone(bound: links.Binding, grid: Grid) -> None:
    region = bound.region("field")
    assert region.shape == (20, 30)
    with grid.offered.hold():
        put = region.put((), np.ones((20, 30)))
        get = region.get()
        with pytest.raises(TimeoutError, match="get of field of ocean"):
            get.result(0.2)
        assert not put.done()
        grid.field[:] = -1

        def hold() -> None:
            with pytest.raises(TimeoutError, match="another thread"), grid.offered.hold(0.05):
                pass

        thread = threading.Thread(target=hold)
        thread.start()
        thread.join()
    put.result(60)
    assert (get.result(60) == 1).all()


def test_transfers_end_with_the_session(lab: Lab, bound: links.Binding, grid: Grid) -> None:
    region = bound.region("field")
    assert region.shape == (20, 30)
    with grid.offered.hold():
        reply = region.get()
        with pytest.raises(TimeoutError):
            reply.result(0.05)
        lab.nodes[0].close()
        with pytest.raises(ex.LinkError):
            reply.result(60)


def test_shared_memory_carries_regions(lab: Lab, tmp_path: Path) -> None:
    grid = Grid(lab.node(NAMES[0], f"unix:{tmp_path}/grid.sock"))
    bound = lab.node(NAMES[1]).bind(grid.endpoint.startpoint(to=NAMES[1]))
    np.testing.assert_array_equal(bound.region("large").get().result(60), grid.large)
    assert bound.method == "shared memory"


class Chorus:
    """Several nodes with the same endpoint."""

    def __init__(self, lab: Lab) -> None:
        self.node = lab.node(NAMES[1])
        self.got: dict[str, list[Any]] = {}
        self.bindings = []
        for name in (NAMES[0], NAMES[2]):
            endpoint = lab.node(name, "127.0.0.1:0").endpoint("voice")

            @endpoint.handler
            def scale(values: Any, factor: float, name: str = name) -> Any:
                self.got.setdefault(name, []).append(factor)
                if factor < 0 and name == NAMES[2]:
                    raise ValueError("too low")
                return values * factor

            self.bindings.append(self.node.bind(endpoint.startpoint(to=NAMES[1])))


def test_a_group_is_called_at_once(lab: Lab) -> None:
    chorus = Chorus(lab)
    group = links.group(chorus.bindings)
    field = np.arange(100_000.0)
    for got in group.request("scale", field, 2.0).result(60):
        np.testing.assert_array_equal(got, field * 2)
    group.post("scale", field, 3.0)
    replies = group.request("scale", field, 4.0)
    assert len(replies) == len(group) == 2
    assert [reply.result(60)[1] for reply in replies] == [4.0, 4.0]
    assert chorus.got == {name: [2.0, 3.0, 4.0] for name in (NAMES[0], NAMES[2])}


def test_who_of_a_group_failed_is_told(lab: Lab) -> None:
    chorus = Chorus(lab)
    group = links.group(chorus.bindings)
    replies = group.request("scale", 1.0, -1.0)
    with pytest.raises(
        links.GroupError, match=r"1 of 2 failed: \[1\] voice of plotter.*too low"
    ) as raised:
        replies.result(60)
    assert raised.value.outcomes[0] == -1.0
    assert isinstance(raised.value.outcomes[1], links.HandlerError)
    assert raised.value.failed == (1,)
    chorus.bindings[0].close()
    with pytest.raises(
        links.GroupError, match=r"1 of 2 failed: \[0\] voice of ocean.*closed"
    ) as raised:
        group.post("scale", 1.0, 5.0)
    assert raised.value.failed == (0,)
    outcomes = group.request("scale", 1.0, 6.0).outcomes(20)
    assert isinstance(outcomes[0], ex.LinkError)
    assert outcomes[1] == 6.0
    assert 5.0 in chorus.got[NAMES[2]]


def test_who_of_a_group_is_late_is_told(lab: Lab) -> None:
    """Both bindings lead to one endpoint: the index tells them apart."""
    endpoint = lab.node(NAMES[0], "127.0.0.1:0").endpoint("voice", threads=2)
    is_let_go = threading.Event()

    @endpoint.handler
    def wait(seconds: float) -> bool:
        return is_let_go.wait(seconds)

    node = lab.node(NAMES[1])
    bindings = [node.bind(endpoint.startpoint(to=NAMES[1])) for _ in range(2)]
    soon, late = bindings[0].request("wait", 0.0), bindings[1].request("wait", 20.0)
    assert not soon.result(60)
    places = [f"voice of peer {NAMES[0]}"] * 2
    replies = links.GroupReply([soon, late], places)
    expected = rf"^got no answer of 1 of 2 within 0 seconds: \[1\] voice of peer {NAMES[0]}$"
    with pytest.raises(TimeoutError, match=expected):
        replies.outcomes(0)
    is_let_go.set()
    assert replies.result(60) == [False, True]
