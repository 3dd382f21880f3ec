"""Startpoints: for whom they are, and what Python does with them."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
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


@pytest.fixture
def coupler(lab: Lab) -> links.Endpoint:
    endpoint = lab.node(NAMES[0], "127.0.0.1:0").endpoint("coupler")

    @endpoint.handler
    def who(call: links.Call) -> str:
        return call.peer

    return endpoint


def is_let_in(lab: Lab, name: str, startpoint: links.Startpoint) -> bool:
    with lab.node(name).bind(startpoint) as bound:
        try:
            return bool(bound.request("who").result(timeout=60) == name)
        except ex.RefusedError:
            return False


def test_a_list_of_holders_means_any_of_them(lab: Lab, coupler: links.Endpoint) -> None:
    two = coupler.startpoint(to=NAMES[1:])
    assert is_let_in(lab, NAMES[1], two)
    assert is_let_in(lab, NAMES[2], two)
    third = "archive.example.org"
    with (
        lab.node(third).bind(two) as bound,
        pytest.raises(ex.RefusedError, match=f"for '{NAMES[1]}' or '{NAMES[2]}'"),
    ):
        bound.request("who").result(timeout=60)
    assert f"for {NAMES[1]} or {NAMES[2]}" in repr(two)


def test_a_narrower_copy_never_lets_in_more(lab: Lab, coupler: links.Endpoint) -> None:
    """A list in a narrower copy means any of these whom the wider one lets in."""
    wide = coupler.startpoint(to=NAMES[1:])
    for narrow in (
        wide.attenuate(to=[NAMES[2], "archive.example.org"]),
        wide.attenuate(to=NAMES[2]),
        links.Startpoint.parse(wide.text()).attenuate(to=[NAMES[2], NAMES[2]]),
    ):
        assert not is_let_in(lab, NAMES[1], narrow)
        assert is_let_in(lab, NAMES[2], narrow)
        assert not is_let_in(lab, "archive.example.org", narrow)


def test_a_startpoint_for_an_empty_list_is_not_made(lab: Lab, coupler: links.Endpoint) -> None:
    """A list that turns out to be empty means nobody, and not everybody."""
    bound = lab.node(NAMES[1]).bind(coupler.startpoint(to="*"))
    with pytest.raises(ex.StartpointError, match=r"got to=\[\], expected at least one holder"):
        coupler.startpoint(to=[], bearer=True)
    with pytest.raises(ex.StartpointError, match=r"got to=\[\], expected at least one holder"):
        bound.attenuate(to=[])
    with pytest.raises(ex.StartpointError, match="names no holder"):
        bound.startpoint.attenuate(to=[])
    with pytest.raises(ex.StartpointError, match="names no holder"):
        coupler.startpoint()


def test_more_holders_than_travel_are_refused(coupler: links.Endpoint) -> None:
    most = [f"n{number}.example.org" for number in range(64)]
    assert coupler.startpoint(to=most).number > 0
    with pytest.raises(ex.StartpointError, match=r"number of holders.*65.*64"):
        coupler.startpoint(to=[*most, "one.more"])


def test_startpoints_can_be_compared_and_kept(coupler: links.Endpoint) -> None:
    one, other = (coupler.startpoint(to="*", handlers=["who"]) for _ in range(2))
    same = links.Startpoint.parse(one.text())
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != one.attenuate(to=NAMES[1])
    others: list[object] = [one.text(), None]
    assert one not in others
    assert {one: 1, other: 2, same: 3} == {one: 3, other: 2}


@pytest.mark.parametrize("is_bearer", [False, True])
def test_startpoints_can_be_pickled_and_copied(
    lab: Lab, coupler: links.Endpoint, is_bearer: bool
) -> None:
    startpoint = coupler.startpoint(to=NAMES[1], bearer=is_bearer)
    copies = [pickle.loads(pickle.dumps(startpoint)), copy.copy(startpoint)]
    copies.append(copy.deepcopy({"one": startpoint})["one"])
    assert copies == [startpoint] * 3
    assert is_let_in(lab, NAMES[1], copies[0])
