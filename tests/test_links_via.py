"""Links whose wire is a command of the user's own: SSH, in the end; here a relay that does as much."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.processes import eventually
from tests.test_links import NAMES, Lab
from tests.whole_files import replace

import exoskel as ex
from exoskel import links

OCEAN, ATMOSPHERE, PLOTTER = NAMES
RELAY = [sys.executable, str(Path(__file__).with_name("via_relay.py"))]
VIA = [*RELAY, "{host}", "{port}"]


def started() -> set[int]:
    """Processes that this one has started, on whichever thread."""
    found: set[int] = set()
    for thread in Path(f"/proc/{os.getpid()}/task").iterdir():
        # It may end while we look.
        with contextlib.suppress(OSError):
            found.update(map(int, (thread / "children").read_text().split()))
    return found


@pytest.fixture
def lab(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Lab]:
    made = Lab(tmp_path)
    capsys.readouterr()
    yield made
    for node in made.nodes:
        node.close()


@pytest.fixture
def coupler(lab: Lab) -> links.Endpoint:
    endpoint = lab.node(OCEAN, "127.0.0.1:0").endpoint("coupler")

    @endpoint.handler
    def double(value: np.ndarray) -> np.ndarray:
        return 2 * value

    return endpoint


def test_a_command_is_the_wire(lab: Lab, coupler: links.Endpoint) -> None:
    before = started()
    with links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, via=VIA) as node:
        bound = node.bind(coupler.startpoint(to=ATMOSPHERE))
        field = np.arange(300_000.0)
        np.testing.assert_array_equal(bound.request("double", field).result(60), 2 * field)
        # The policy says plain, but nobody knows who stands between.
        assert (bound.method, bound.protection) == ("command", "encrypted")
        assert len(started() - before) == 1
    assert started() <= before, "the command has ended"


def group_of(leader: int) -> set[int]:
    """Processes of a group that have not ended: in a container, nobody may wait for orphans."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, group = (entry / "stat").read_text().rpartition(") ")[2].split()[:3]
            if int(group) == leader and state not in "ZX":
                found.add(int(entry.name))
    return found


DEAF = "trap '' TERM; "


@pytest.mark.parametrize("threads", [1, 0])
@pytest.mark.parametrize("before", ["", DEAF], ids=["told", "deaf"])
def test_a_node_that_is_closed_leaves_no_command(
    before: str, threads: int, lab: Lab, coupler: links.Endpoint
) -> None:
    others = started()
    via = ["sh", "-c", f"{before}sleep 79; true"]
    node = links.Node(
        lab.credential(ATMOSPHERE), policy=lab.policy, via=via, connect_timeout=60, threads=threads
    )
    reply = node.bind(coupler.startpoint(to=ATMOSPHERE)).request("double", np.ones(1))

    def is_started() -> bool:
        if threads == 0:
            node.progress(0.01)
        return len(started() - others) == 1 and len(group_of(*(started() - others))) == 2

    assert eventually(is_started)
    (leader,) = started() - others
    assert not reply.done()
    node.close()
    assert started() <= others
    # Who isn't our child may still be on its way out.
    assert eventually(lambda: not group_of(leader))


def test_a_command_ends_with_its_attempt(lab: Lab, coupler: links.Endpoint) -> None:
    others = started()
    via = ["sh", "-c", "sleep 81; true"]
    with links.Node(
        lab.credential(ATMOSPHERE), policy=lab.policy, via=via, connect_timeout=3.0
    ) as node:
        reply = node.bind(coupler.startpoint(to=ATMOSPHERE)).request("double", np.ones(1))
        # Noted as soon as it is seen: it may have ended by the next look.
        seen: set[int] = set()

        def is_seen() -> bool:
            seen.update(started() - others)
            return bool(seen)

        assert eventually(is_seen)
        (leader,) = seen
        with pytest.raises(ex.LinkError):
            reply.result(60)
        assert eventually(lambda: not group_of(leader)), "also while the node lives"


def test_commands_are_for_the_nodes_that_they_name(lab: Lab, coupler: links.Endpoint) -> None:
    via = {"plotter.*": ["false"], "*.example.org": " ".join(VIA)}
    with links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, via=via) as node:
        bound = node.bind(coupler.startpoint(to=ATMOSPHERE))
        assert bound.request("double", np.ones(1)).result(60).tolist() == [2.0]
        assert bound.method == "command"
    with links.Node(
        lab.credential(ATMOSPHERE), policy=lab.policy, via={"plotter.*": "false"}
    ) as node:
        bound = node.bind(coupler.startpoint(to=ATMOSPHERE))
        assert bound.request("double", np.ones(1)).result(60).tolist() == [2.0]
        assert bound.method == "tcp"


def test_a_site_file_says_where_nodes_are_and_by_which_command(
    lab: Lab, coupler: links.Endpoint, tmp_path: Path
) -> None:
    (address,) = lab.nodes[0].hints
    replace(lab.policy, f'[[allow.rule]]\naction = "coupler.double"\nname = "{ATMOSPHERE}"\n')
    lab.nodes[0].reload()
    site = tmp_path / "site.toml"
    place = f'[subnet.lab]\nnames = "*.example.org"\n{{via}}\n[node]\n"{OCEAN}" = "{address}"\n'
    for via, method in [("", "tcp"), (f"via = {json.dumps(VIA)}", "command")]:
        site.write_text(place.format(via=via))
        with links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, site=site) as node:
            bound = node.lookup("coupler", name=OCEAN)
            assert bound.request("double", np.ones(1)).result(60).tolist() == [2.0]
            assert bound.method == method
    site.write_text("[subnet]\nx")
    with pytest.raises(ValueError, match=r"site\.toml"):
        links.Node(lab.credential(ATMOSPHERE), site=site)


def test_what_the_command_says_is_told(lab: Lab, coupler: links.Endpoint) -> None:
    for via, told in [
        ([sys.executable, "-c", "import sys; sys.exit('no such login')"], "no such login"),
        (["/nonexistent/ssh"], "can't run"),
        ("true", "connection"),
    ]:
        with links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, via=via) as node:
            bound = node.bind(coupler.startpoint(to=ATMOSPHERE))
            with pytest.raises(ex.LinkError, match=told):
                bound.request("double", np.ones(1)).result(60)


@pytest.mark.parametrize(
    "hint",
    [
        "-oProxyCommand=touch {mark}:22",
        "$(touch {mark}):22",
        "`touch {mark}`:22",
        "127.0.0.1;touch {mark}:22",
        "via:touch {mark}",
        "gateway:touch {mark}",
        "|touch {mark}:22",
    ],
)
def test_a_startpoint_makes_nobody_run_a_command(
    hint: str, lab: Lab, coupler: links.Endpoint, tmp_path: Path
) -> None:
    """Attack: hints are text of whoever made or changed the startpoint."""
    mark = tmp_path / "mark"
    startpoint = coupler.startpoint(to=ATMOSPHERE).with_hints([hint.format(mark=mark)])
    # The most careless command that there could be.
    via = ["sh", "-c", f"{shutil.which('true')} {{host}} {{port}}"]
    for command in (via, ()):
        with links.Node(lab.credential(ATMOSPHERE), policy=lab.policy, via=command) as node:
            reply = node.bind(startpoint).request("double", np.ones(1))
            with pytest.raises(ex.LinkError):
                reply.result(60)
    assert not mark.exists()


def test_words_that_are_no_command_are_told(lab: Lab) -> None:
    with pytest.raises(ValueError, match=r"a\[b. for the nodes of a command"):
        links.Node(lab.credential(ATMOSPHERE), via={"a[b": "ssh"})
    with pytest.raises(ValueError, match="command of 0 words"):
        links.Node(lab.credential(ATMOSPHERE), via={"*": ""})
