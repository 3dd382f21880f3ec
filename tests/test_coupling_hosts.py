"""Arrays between parallel programs on several hosts: each host is a keeper of its own, over TCP."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.processes import children, eventually
from tests.test_coupling import SECONDS, TWO, at_once, parts, whole

import exoskel as ex
from exoskel import _core, links
from exoskel.cli import main

HEAD = "head.example.org"
POLICY = """\
[[allow.rule]]
action = ["coupler.join", "coupler.report", "coupler.stay"]
name = "{}"
"""
BACK = """
[[connection]]
from = "atmosphere.heat"
to = "ocean.heat"
"""


class Cluster:
    """A coupler, and keepers that join it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        assert main(["pki", "init", str(place / "pki"), "--json"]) == 0
        self.nodes: list[links.Node] = []
        self.keepers: list[Any] = []
        self.sockets: list[Path] = []
        # Only who waits for a loss has little: a machine may stand still for a while.
        self.patience = 10.0
        self.allows("*")

    def allows(self, name: str) -> None:
        """Let nodes of this name join."""
        (self.place / "policy.toml").write_text(POLICY.format(name))

    def credential(self, name: str) -> Path:
        """Issue a credential."""
        path = self.place / f"{name}.pem"
        where = ["--directory", str(self.place / "pki"), "--output", str(path), "--json"]
        assert main(["pki", "issue", *where, "--role", "peer", "--name", name]) == 0
        return path

    def node(self, name: str, hints: Sequence[str] = ()) -> links.Node:
        """Make a node."""
        node = links.Node(
            self.credential(name),
            policy=self.place / "policy.toml",
            listen="127.0.0.1:0",
            patience=self.patience,
            hints=hints,
        )
        self.nodes.append(node)
        return node

    def lead(self, text: str, wait: float | None = None) -> Any:
        """Start the coupler with its keeper."""
        node = self.node(HEAD)
        keeper = _core.Keeper.lead(self._socket(), text, node._node, wait)
        self.keepers.append(keeper)
        return keeper

    def join(self, name: str | None = None, hints: Sequence[str] = ()) -> Any:
        """Have another keeper join."""
        node = self.node(name or f"lab{len(self.nodes)}.example.org", hints)
        found = node.lookup("coupler", name=HEAD, at=self.nodes[0].hints)
        keeper = _core.Keeper.join(self._socket(), node._node, found.startpoint)
        self.keepers.append(keeper)
        return keeper

    def _socket(self) -> Path:
        self.sockets.append(self.place / f"keeper{len(self.sockets)}")
        return self.sockets[-1]

    def members(self, program: str, hosts: list[int]) -> list[ex.Member]:
        """Attach all processes of a program, each on its host."""
        return [
            ex.Member(program, rank=rank, size=len(hosts), keeper=self.sockets[host])
            for rank, host in enumerate(hosts)
        ]

    def end(self) -> None:
        """End all."""
        for keeper in self.keepers:
            keeper.end()
        for node in self.nodes:
            with contextlib.suppress(ex.LinkError):
                node.close()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.end()


def leave(*programs: list[ex.Member]) -> None:
    for program in programs:
        for member in program:
            member.leave()


@pytest.mark.parametrize("hosts", [([0, 0], [1, 1, 1]), ([0, 1, 2, 1], [2, 0, 1]), ([1], [2])])
@pytest.mark.parametrize(
    ("source", "target", "options"),
    [
        (("block", "*"), ("*", "block"), {}),
        (("cyclic(3)", "block"), ("block", "cyclic(5)"), {"select": "[1::2, 5:35:3]"}),
        (("block", "block"), ("replicated", "*"), {"permute": "[1, 0]"}),
    ],
)
def test_each_process_gets_its_part_of_each_version(
    cluster: Cluster,
    hosts: tuple[list[int], list[int]],
    source: tuple[str, str],
    target: tuple[str, str],
    options: dict[str, str],
) -> None:
    lines = [
        f"{key} = {value if key == 'permute' else json.dumps(value)}"
        for key, value in options.items()
    ]
    keeper = cluster.lead("\n".join([TWO, *lines]))
    cluster.join()
    cluster.join()
    shape = {"select": (15, 10), "permute": (40, 30)}.get(next(iter(options), ""), (30, 40))
    given = ex.Layout((30, 40), "f8", source, processes=len(hosts[0]))
    taken = ex.Layout(shape, ">f8", target, processes=len(hosts[1]), order="F")
    permute = [1, 0] if "permute" in options else None
    plan = ex.plan(given, taken, select=options.get("select"), permute=permute)
    arrays = [np.random.default_rng(seed).random((30, 40)) for seed in range(4)]
    expected = [plan.run(parts(given, array)) for array in arrays]
    ocean, atmosphere = (
        cluster.members("ocean", hosts[0]),
        cluster.members("atmosphere", hosts[1]),
    )

    def write(member: ex.Member) -> None:
        sst = member.array("sst", given)
        for array in arrays:
            with sst.write() as local:
                local[...] = parts(given, array)[member.rank]
        member.leave()

    def read(member: ex.Member) -> list[np.ndarray]:
        sst = member.array("sst", taken)
        seen = []
        for _ in arrays:
            with sst.read() as local:
                seen.append(local.copy())
        with pytest.raises(ex.ProgramLeftError, match=r"has left after version 4"), sst.read():
            pass
        member.leave()
        return seen

    calls: list[Callable[[], Any]] = [functools.partial(write, member) for member in ocean]
    calls += [functools.partial(read, member) for member in atmosphere]
    seen = [found for found in at_once(*calls) if found]
    for version, wanted in enumerate(expected):
        for rank, part in enumerate(wanted):
            np.testing.assert_array_equal(seen[rank][version], part)
    [connection] = keeper.report()["connections"]
    assert eventually(lambda: keeper.report()["connections"][0]["versions"] == 4)
    assert connection["between_hosts"]


def test_arrays_of_many_pieces_there_and_back(cluster: Cluster) -> None:
    cluster.lead(TWO + BACK)
    cluster.join()
    rows = ex.Layout((1500, 1000), "f8", ("block", "*"), processes=2)
    columns = ex.Layout((1500, 1000), "f8", ("*", "cyclic(7)"), processes=2)
    array = np.random.default_rng(1).random((1500, 1000))
    ocean, atmosphere = cluster.members("ocean", [0, 0]), cluster.members("atmosphere", [1, 1])

    def give(member: ex.Member) -> np.ndarray:
        sst, heat = member.array("sst", rows), member.array("heat", rows)
        for step in range(3):
            with sst.write() as local:
                local[...] = parts(rows, array)[member.rank] + step
            with heat.read() as local:
                back = local.copy()
        return back

    def turn(member: ex.Member) -> np.ndarray:
        sst, heat = member.array("sst", columns), member.array("heat", columns)
        for _ in range(3):
            with sst.read() as local:
                copy = local.copy()
            with heat.write() as local:
                local[...] = 2 * copy
        return copy

    found = at_once(
        *(functools.partial(give, member) for member in ocean),
        *(functools.partial(turn, member) for member in atmosphere),
    )
    np.testing.assert_array_equal(whole(rows, found[:2]), 2 * (array + 2))
    np.testing.assert_array_equal(whole(columns, found[2:]), array + 2)
    leave(ocean, atmosphere)


def test_each_second_version_goes_to_the_other_host_and_all_to_the_own(cluster: Cluster) -> None:
    third = """
    [program.plotter]
    [[connection]]
    from = "ocean.sst"
    to = "plotter.sst"
    every = 2
    """
    cluster.lead(TWO + third)
    cluster.join()
    layout = ex.Layout((8,), "i4", "block")
    [ocean], [atmosphere] = cluster.members("ocean", [0]), cluster.members("atmosphere", [0])
    [plotter] = cluster.members("plotter", [1])

    def write() -> None:
        sst = ocean.array("sst", layout)
        for step in range(1, 8):
            with sst.write() as local:
                local[...] = step
        ocean.leave()

    def read(member: ex.Member) -> list[int]:
        sst = member.array("sst", layout)
        seen = []
        with contextlib.suppress(ex.ProgramLeftError):
            while True:
                with sst.read() as local:
                    assert (local == local[0]).all()
                    seen.append(int(local[0]))
        return seen

    _, all_of_them, some = at_once(write, lambda: read(atmosphere), lambda: read(plotter))
    assert all_of_them == [1, 2, 3, 4, 5, 6, 7]
    assert some == [1, 3, 5, 7]
    leave([atmosphere], [plotter])


def test_what_was_exported_is_taken_after_its_process_has_left(cluster: Cluster) -> None:
    cluster.lead(TWO)
    cluster.join()
    layout = ex.Layout((8,), "f8", "block")
    [ocean], [atmosphere] = cluster.members("ocean", [1]), cluster.members("atmosphere", [0])
    with ocean.array("sst", layout).write() as local:
        local[...] = 3
    ocean.leave()
    sst = atmosphere.array("sst", layout)
    with sst.read() as local:
        assert (local == 3).all()
    with pytest.raises(ex.ProgramLeftError, match="rank 0 of ocean has left after version 1"):
        sst.read().__enter__()
    leave([atmosphere])


def test_who_takes_and_has_left_keeps_nobody_waiting(cluster: Cluster) -> None:
    cluster.lead(TWO)
    cluster.join()
    layout = ex.Layout((8,), "f8", "block")
    ocean, [first, second] = cluster.members("ocean", [0]), cluster.members("atmosphere", [1, 0])
    given = ocean[0].array("sst", layout)
    arrays = [member.array("sst", layout) for member in (first, second)]
    with given.write() as local:
        local[...] = 1
    first.leave()

    def write() -> None:
        with given.write() as local:
            local[...] = 2

    def read() -> float:
        for _ in range(2):
            with arrays[1].read() as local:
                last = float(local[0])
        return last

    assert at_once(write, read) == [None, 2.0]
    leave(ocean, [second])


KILLED = """
    import os, signal
    import exoskel as ex

    member = ex.Member("ocean", keeper={keeper!r})
    array = member.array("sst", ex.Layout((8,), "f8", "block"))
    with array.write() as local:
        local[...] = 1
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_on_another_host_is_named(cluster: Cluster) -> None:
    keeper = cluster.lead(TWO)
    cluster.join()
    [atmosphere] = cluster.members("atmosphere", [0])
    source = textwrap.dedent(KILLED.format(keeper=str(cluster.sockets[1])))
    done = subprocess.run([sys.executable, "-c", source], timeout=SECONDS, check=False)
    assert done.returncode == -signal.SIGKILL
    sst = atmosphere.array("sst", ex.Layout((8,), "f8", "block"))
    # Its keeper has what it had exported.
    with sst.read() as local:
        assert (local == 1).all()
    with pytest.raises(ex.MemberLostError, match="rank 0 of ocean was lost"):
        sst.read().__enter__()
    assert keeper.report()["first_lost"][:2] == ("ocean", 0)
    leave([atmosphere])


def test_who_gives_to_a_lost_process_is_told(cluster: Cluster) -> None:
    cluster.lead(TWO)
    cluster.join()
    layout = ex.Layout((8,), "f8", "block")
    [ocean], [atmosphere] = cluster.members("ocean", [0]), cluster.members("atmosphere", [1])
    given = ocean.array("sst", layout)
    atmosphere.array("sst", layout)
    with given.write():
        pass
    atmosphere.leave(RuntimeError("out of ice"))
    with pytest.raises(ex.MemberLostError, match="out of ice"):
        given.write().__enter__()
    leave([ocean])


def test_who_never_comes_is_given_up_for_a_process_on_another_host(cluster: Cluster) -> None:
    """Nobody has ever attached at the coupler's own keeper."""
    cluster.lead(TWO, wait=1.0)
    keeper = cluster.join()
    [atmosphere] = cluster.members("atmosphere", [1])
    array = atmosphere.array("sst", ex.Layout((8,), "f8", "block"))
    with (
        pytest.raises(ex.CouplingError, match="no process of ocean has attached within 1 s"),
        array.read(),
    ):
        pass
    atmosphere.leave()
    assert keeper.state()[1:] == (False, None)


def test_a_part_without_memory_beside_one_on_another_host_is_never_taken_for_the_whole(
    cluster: Cluster,
) -> None:
    """Method: one process's part is larger than any address space, and the connection takes some of each."""
    keeper = cluster.lead(TWO + 'select = "[:8]"\n')
    cluster.join()
    layout = ex.Layout((2**60,), "i1", [[0, 4, 2**60]])
    [atmosphere] = cluster.members("atmosphere", [0])
    array = atmosphere.array("sst", ex.Layout((8,), "i1", "block"))
    [there, here] = cluster.members("ocean", [1, 0])
    with there.array("sst", layout).write() as local:
        local[...] = 1
    with pytest.raises(ex.CouplingError, match="the keeper has no memory for it"):
        here.array("sst", layout)
    for _ in range(2):
        with (
            pytest.raises(ex.CouplingError, match="rank 1 of ocean has no memory"),
            array.read(),
        ):
            pass
    leave([there], [atmosphere])
    assert keeper.report()["first_lost"][:2] == ("ocean", 1)


def export(array: ex.SharedArray) -> None:
    """Give a version as it is."""
    with array.write():
        pass


def command(*words: str) -> subprocess.Popen[str]:
    """Run the command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "exoskel", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextlib.contextmanager
def joined(cluster: Cluster, name: str, *more: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """Run ``exoskel keeper`` in a process; returns it and its socket."""
    place = cluster.place / "lab"
    process = command(
        *("keeper", "--join", cluster.nodes[0].hints[0], "--coupler", HEAD, "--json"),
        *("--listen", "tcp://127.0.0.1:0", "--credential", str(cluster.credential(name))),
        *("--patience", "1", "--socket", str(place), *more),
    )
    with process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["name"] == name
            yield process, place
        finally:
            process.kill()


def test_a_keeper_that_is_killed_is_a_loss_that_both_sides_name(cluster: Cluster) -> None:
    cluster.patience = 1.0
    cluster.lead(TWO)
    cluster.join()
    layout = ex.Layout((8,), "f8", "block", processes=2)
    with joined(cluster, "lab9.example.org") as (process, place):
        ocean = [
            ex.Member("ocean", rank=0, size=2, keeper=cluster.sockets[0]),
            ex.Member("ocean", rank=1, size=2, keeper=place),
        ]
        atmosphere = cluster.members("atmosphere", [1, 0])
        given = [member.array("sst", layout) for member in ocean]
        taken = [member.array("sst", layout) for member in atmosphere]
        for array in given:
            with array.write() as local:
                local[...] = 5
        for array in taken:
            with array.read() as local:
                assert (local == 5).all()
        process.kill()
        process.wait(SECONDS)
        for array in taken[1:]:
            with pytest.raises(ex.MemberLostError, match=r"rank 1 of ocean was lost \(the keeper"):
                array.read().__enter__()
        with pytest.raises(ex.KeeperError):
            export(given[1])
        leave(ocean[:1], atmosphere)


def test_a_keeper_ends_with_its_coupler(cluster: Cluster) -> None:
    keeper = cluster.lead(TWO)
    with joined(cluster, "lab9.example.org") as (process, _):
        keeper.end()
        assert process.wait(SECONDS) == 0


def test_a_coupler_that_is_gone_is_said_when_nobody_is_left(cluster: Cluster) -> None:
    keeper = cluster.lead(TWO)
    with joined(cluster, "lab9.example.org") as (process, place):
        member = ex.Member("ocean", keeper=place)
        # As if its host were gone: nobody says that all is over.
        cluster.nodes[0]._node.close()
        member.leave()
        output, _ = process.communicate(timeout=SECONDS)
        assert process.returncode == 1
        assert "the coupler was lost" in json.loads(output)["error"]
    keeper.end()


def test_who_may_not_join_is_refused(cluster: Cluster) -> None:
    cluster.allows("lab1.example.org")
    cluster.lead(TWO)
    cluster.join()
    with pytest.raises(ex.RefusedError, match=r"coupler\.join"):
        cluster.join("stranger.example.org")


def test_programs_on_two_hosts_by_the_command_line(
    cluster: Cluster, capfd: pytest.CaptureFixture[str]
) -> None:
    ocean = cluster.place / "ocean.py"
    ocean.write_text(
        textwrap.dedent("""
        import exoskel as ex

        with ex.Member("ocean") as member:
            sst = member.array("sst", ex.Layout((8,), "f8", "block"))
            for step in range(3):
                with sst.write() as local:
                    local[...] = step
        """)
    )
    file = cluster.place / "climate.toml"
    started = f"[program.ocean]\ncommand = {json.dumps(f'{sys.executable} {ocean}')}"
    file.write_text(TWO.replace("[program.ocean]", started))
    words = ("--listen", "tcp://127.0.0.1:0", "--credential", str(cluster.credential(HEAD)))
    couple = command("couple", str(file), "--json", *words)
    with couple:
        assert couple.stderr is not None
        where = couple.stderr.readline().split("--join ")[1].split()[0]
        node = cluster.node("lab1.example.org")
        found = node.lookup("coupler", name=HEAD, at=where)
        place = cluster.place / "keeper"
        keeper = _core.Keeper.join(place, node._node, found.startpoint)
        cluster.keepers.append(keeper)
        with ex.Member("atmosphere", keeper=place) as member:
            sst = member.array("sst", ex.Layout((8,), "f8", "block"))
            for step in range(3):
                with sst.read() as local:
                    assert (local == step).all()
        output, errors = couple.communicate(timeout=SECONDS)
        assert couple.returncode == 0, errors
        answer = json.loads(output)
    [connection] = answer["connections"]
    assert (connection["versions"], connection["bytes"]) == (3, 3 * 8 * 8)
    # Nobody has copied them in one go.
    assert connection["nanoseconds"] is None
    assert eventually(lambda: keeper.state()[1])
    assert os.path.exists(place)


def test_programs_of_the_coupler_find_its_keeper_by_the_variable(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No other keeper is where they look when the variable names none.
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(cluster.place))
    both = cluster.place / "both.py"
    both.write_text(
        textwrap.dedent("""
        import sys
        import exoskel as ex

        with ex.Member(sys.argv[1]) as member:
            sst = member.array("sst", ex.Layout((8,), "f8", "block"))
            with sst.write() if sys.argv[1] == "ocean" else sst.read():
                pass
        """)
    )
    file = cluster.place / "climate.toml"
    text = TWO
    for name in ("ocean", "atmosphere"):
        started = f"[program.{name}]\ncommand = {json.dumps(f'{sys.executable} {both} {name}')}"
        text = text.replace(f"[program.{name}]", started)
    file.write_text(text)
    words = ("--listen", "tcp://127.0.0.1:0", "--credential", str(cluster.credential(HEAD)))
    with command("couple", str(file), "--json", *words) as couple:
        output, errors = couple.communicate(timeout=SECONDS)
        assert couple.returncode == 0, errors
    [connection] = json.loads(output)["connections"]
    assert connection["versions"] == 1


def test_a_program_that_never_comes_is_not_waited_for_for_ever(cluster: Cluster) -> None:
    file = cluster.place / "climate.toml"
    file.write_text(TWO)
    words = ("--listen", "tcp://127.0.0.1:0", "--credential", str(cluster.credential(HEAD)))
    with command("couple", str(file), "--json", "--wait", "10", *words) as couple:
        assert couple.stderr is not None
        where = couple.stderr.readline().split("--join ")[1].split()[0]
        node = cluster.node("lab1.example.org")
        found = node.lookup("coupler", name=HEAD, at=where)
        place = cluster.place / "keeper"
        cluster.keepers.append(_core.Keeper.join(place, node._node, found.startpoint))
        with ex.Member("ocean", keeper=place) as member:
            sst = member.array("sst", ex.Layout((8,), "f8", "block"))
            export(sst)
            with pytest.raises(ex.CouplingError, match="atmosphere"):
                export(sst)
        output, errors = couple.communicate(timeout=SECONDS)
        assert couple.returncode == 1, errors
    [connection] = json.loads(output)["connections"]
    assert connection["state"] == "failed"


def lead_by_command(cluster: Cluster, file: str, *more: str) -> tuple[subprocess.Popen[str], str]:
    """Run ``exoskel couple`` in a process; returns it and where keepers join."""
    path = cluster.place / "climate.toml"
    path.write_text(file)
    words = ("--listen", "tcp://127.0.0.1:0", "--credential", str(cluster.credential(HEAD)))
    couple = command("couple", str(path), "--json", *words, *more)
    assert couple.stderr is not None
    for line in iter(couple.stderr.readline, ""):
        if "--join " in line:
            return couple, line.split("--join ")[1].split()[0]
    with couple:
        couple.kill()
    raise AssertionError("couple has ended before it said where keepers join")


def join_at(cluster: Cluster, where: str) -> Path:
    """Have a keeper of this process join a coupler elsewhere; returns its socket."""
    node = cluster.node(f"lab{len(cluster.nodes)}.example.org")
    found = node.lookup("coupler", name=HEAD, at=where)
    place = cluster._socket()
    cluster.keepers.append(_core.Keeper.join(place, node._node, found.startpoint))
    return place


WAITS = """
    import sys
    import exoskel as ex

    member = ex.Member("ocean")
    array = member.array("sst", ex.Layout((8,), "f8", "block"))
    with array.write() as local:
        local[...] = 1
    print("exported", flush=True)
    sys.stdin.read()
"""


def test_who_waits_for_a_killed_coupler_s_host_is_told(cluster: Cluster) -> None:
    """Method: the head has the ocean; on other hosts one reads of it, one waits for a program that never comes, one has yet to attach."""
    cluster.patience = 1.0
    source = textwrap.dedent(WAITS).replace("sys.stdin.read()", "import signal; signal.pause()")
    script = cluster.place / "ocean.py"
    script.write_text(source)
    started = f"[program.ocean]\ncommand = {json.dumps(f'{sys.executable} {script}')}"
    third = """
    [program.plotter]
    [[connection]]
    from = "atmosphere.ice"
    to = "plotter.ice"
    """
    couple, where = lead_by_command(cluster, TWO.replace("[program.ocean]", started) + third)
    ocean = None
    with couple:
        try:
            first, second = join_at(cluster, where), join_at(cluster, where)
            atmosphere = ex.Member("atmosphere", rank=0, size=1, keeper=first)
            layout = ex.Layout((8,), "f8", "block")
            sst, ice = atmosphere.array("sst", layout), atmosphere.array("ice", layout)
            with sst.read() as local:
                assert (local == 1).all()
            export(ice)
            [ocean] = children(couple.pid)
            couple.kill()
            couple.wait(SECONDS)
            with pytest.raises(ex.MemberLostError, match=r"ocean was lost \(the coupler was lost"):
                sst.read().__enter__()
            with pytest.raises(ex.CouplingError, match="the coupler was lost"):
                export(ice)
            assert eventually(lambda: cluster.keepers[1].state()[2] is not None)
            with pytest.raises(ex.CouplingError, match="the coupler was lost"):
                ex.Member("plotter", keeper=second)
            leave([atmosphere])
        finally:
            couple.kill()
            if ocean is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(ocean, signal.SIGKILL)


def test_connections_between_other_hosts_outlive_the_coupler(cluster: Cluster) -> None:
    """And who is lost there is named, by the keeper that has seen it."""
    cluster.patience = 1.0
    keeper = cluster.lead(TWO)
    first, second = cluster.join(), cluster.join()
    source = textwrap.dedent(WAITS)
    layout = ex.Layout((8,), "f8", "block")
    words = [sys.executable, "-c", source]
    environment = {**os.environ, "EXOSKEL_KEEPER": str(cluster.sockets[1])}
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True, env=environment) as ocean:
        try:
            [atmosphere] = cluster.members("atmosphere", [2])
            sst = atmosphere.array("sst", layout)
            with sst.read() as local:
                assert (local == 1).all()
            # As if its host were gone: nobody says that all is over.
            cluster.nodes[0]._node.close()
            assert eventually(lambda: None not in (first.state()[2], second.state()[2]))
            ocean.kill()
            ocean.wait(SECONDS)
            with pytest.raises(ex.MemberLostError, match=r"rank 0 of ocean was lost \(its process"):
                sst.read().__enter__()
        finally:
            ocean.kill()
    leave([atmosphere])
    keeper.end()


def test_a_keeper_whose_coupler_is_gone_stays_until_all_was_taken(cluster: Cluster) -> None:
    cluster.lead(TWO)
    with joined(cluster, "lab9.example.org") as (process, place):
        cluster.join()
        layout = ex.Layout((8,), "f8", "block")
        ocean = ex.Member("ocean", rank=0, size=1, keeper=place)
        [atmosphere] = cluster.members("atmosphere", [1])
        given, taken = ocean.array("sst", layout), atmosphere.array("sst", layout)
        with given.write() as local:
            local[...] = 1
        with taken.read() as local:
            assert (local == 1).all()
        cluster.nodes[0]._node.close()
        assert eventually(lambda: cluster.keepers[1].state()[2] is not None)
        with given.write() as local:
            local[...] = 2
        ocean.leave()
        assert process.poll() is None
        with taken.read() as local:
            assert (local == 2).all()
        leave([atmosphere])
        process.communicate(timeout=SECONDS)
        assert process.returncode == 1


def test_a_keeper_that_ends_after_its_processes_is_no_loss(cluster: Cluster) -> None:
    keeper = cluster.lead(TWO)
    with joined(cluster, "lab9.example.org") as (process, place):
        layout = ex.Layout((8,), "f8", "block")
        ocean = ex.Member("ocean", rank=0, size=1, keeper=place)
        [atmosphere] = cluster.members("atmosphere", [0])
        given, taken = ocean.array("sst", layout), atmosphere.array("sst", layout)
        export(given)
        with taken.read():
            pass
        ocean.leave()
        process.terminate()
        assert process.wait(SECONDS) == 0
        with pytest.raises(ex.ProgramLeftError, match="has left after version 1"):
            taken.read().__enter__()
        leave([atmosphere])
        programs = [("atmosphere", 1, 1, 1), ("ocean", 1, 1, 1)]
        assert eventually(lambda: keeper.report()["programs"] == programs)
        assert keeper.report()["first_lost"] is None


def test_what_a_program_gets_and_gives_on_is_written_after_the_giver_has_left(
    cluster: Cluster,
) -> None:
    """An array that ends one connection and begins another one, across hosts."""
    third = """
    [program.plotter]
    [[connection]]
    from = "atmosphere.sst"
    to = "plotter.sst"
    """
    cluster.lead(TWO + third)
    cluster.join()
    layout = ex.Layout((8,), "f8", "block", processes=2)
    ocean = cluster.members("ocean", [0, 0])
    [atmosphere] = cluster.members("atmosphere", [1])
    [plotter] = cluster.members("plotter", [0])
    given = [member.array("sst", layout) for member in ocean]
    single = ex.Layout((8,), "f8", "block")
    middle, last = atmosphere.array("sst", single), plotter.array("sst", single)
    for array in given:
        with array.write() as local:
            local[...] = 1
    with middle.read() as local:
        assert (local == 1).all()
    # One of two gives a version that is never whole.
    with given[0].write() as local:
        local[...] = 2
    leave(ocean)
    with pytest.raises(ex.ProgramLeftError):
        middle.read().__enter__()

    def write() -> None:
        for step in (3, 4):
            with middle.write() as local:
                local[...] = step
        atmosphere.leave()

    def read() -> list[float]:
        seen = []
        with contextlib.suppress(ex.ProgramLeftError):
            while True:
                with last.read() as local:
                    assert (local == local[0]).all()
                    seen.append(float(local[0]))
        return seen

    assert at_once(write, read) == [None, [3.0, 4.0]]
    leave([plotter])


def test_a_keeper_takes_the_place_of_a_killed_one_and_of_no_other(cluster: Cluster) -> None:
    cluster.lead(TWO)
    with joined(cluster, "lab8.example.org") as (first, place):
        words = ("keeper", "--join", cluster.nodes[0].hints[0], "--coupler", HEAD, "--json")
        more = ("--listen", "tcp://127.0.0.1:0", "--socket", str(place))
        credential = ("--credential", str(cluster.credential("lab9.example.org")))
        with command(*words, *more, *credential) as second:
            try:
                output, _ = second.communicate(timeout=SECONDS)
            finally:
                second.kill()
        assert second.returncode == 1
        assert "the address is in use" in json.loads(output)["error"]
        first.kill()
        first.wait(SECONDS)
        assert place.is_socket()
        with (
            joined(cluster, "lab7.example.org") as (_, place),
            ex.Member("ocean", keeper=place) as member,
        ):
            assert member.rank == 0


@contextlib.contextmanager
def reading_elsewhere(
    cluster: Cluster, source: str
) -> Iterator[tuple[subprocess.Popen[str], subprocess.Popen[str], ex.Member, ex.SharedArray]]:
    """Let ``couple`` start a program for the ocean, and take its first version at another host's keeper, all by commands."""
    script = cluster.place / "ocean.py"
    script.write_text(textwrap.dedent(source))
    started = f"[program.ocean]\ncommand = {json.dumps(f'{sys.executable} {script}')}"
    couple, where = lead_by_command(cluster, TWO.replace("[program.ocean]", started))
    with couple:
        place = cluster.place / "lab"
        words = ("keeper", "--join", where, "--coupler", HEAD, "--json")
        more = ("--listen", "tcp://127.0.0.1:0", "--socket", str(place))
        credential = ("--credential", str(cluster.credential("lab9.example.org")))
        with command(*words, *more, *credential) as keeper:
            try:
                assert keeper.stdout is not None
                keeper.stdout.readline()
                atmosphere = ex.Member("atmosphere", keeper=place)
                array = atmosphere.array("sst", ex.Layout((8,), "f8", "block"))
                with array.read():
                    pass
                yield couple, keeper, atmosphere, array
            finally:
                keeper.kill()
                couple.kill()


def test_a_member_elsewhere_hears_who_was_lost_before_its_keeper_ends(cluster: Cluster) -> None:
    """Method: it does something else while a program on the head fails, and couple has ended before it asks."""
    source = """
    import exoskel as ex

    with ex.Member("ocean") as member:
        array = member.array("sst", ex.Layout((8,), "f8", "block"))
        with array.write():
            pass
        with array.write():
            raise RuntimeError("out of ice")
    """
    with reading_elsewhere(cluster, source) as (couple, keeper, atmosphere, array):
        # Its lines end with it.
        assert couple.stderr is not None
        assert couple.stdout is not None
        lines = iter(couple.stderr.readline, "")
        assert any("out of ice" in line for line in lines)
        with pytest.raises(ex.MemberLostError, match="out of ice"):
            array.read().__enter__()
        leave([atmosphere])
        output, _ = couple.communicate(timeout=SECONDS)
        assert couple.returncode == 1
        assert json.loads(output)["first_lost"][:2] == ["ocean", 0]
        assert keeper.wait(SECONDS) == 0


def test_what_a_killed_keeper_has_taken_is_unknown(cluster: Cluster) -> None:
    """Aim: the table doesn't say that nothing has moved where that isn't known. Method: the keeper is killed after the reader has taken a version."""
    source = """
    import exoskel as ex

    with ex.Member("ocean") as member:
        array = member.array("sst", ex.Layout((8,), "f8", "block"))
        for _ in range(3):
            with array.write():
                pass
    """
    with reading_elsewhere(cluster, source) as (couple, keeper, *_):
        keeper.kill()
        output, _ = couple.communicate(timeout=SECONDS)
        assert couple.returncode == 1
        answer = json.loads(output)
        assert "the keeper of its host was lost" in answer["first_lost"][2]
        [connection] = answer["connections"]
        assert connection["versions"] is None
        assert connection["bytes"] is None


def test_the_last_words_of_a_keeper_name_the_loss(tmp_path: Path) -> None:
    """Method: the keeper has ended when the member asks; what it was told before lies in its socket."""
    keeper = _core.Keeper(tmp_path / "keeper", TWO + BACK)
    layout = ex.Layout((8,), "f8", "block")
    ocean = ex.Member("ocean", keeper=tmp_path / "keeper")
    atmosphere = ex.Member("atmosphere", keeper=tmp_path / "keeper")
    arrays = {
        (member.program, name): member.array(name, layout)
        for member in (ocean, atmosphere)
        for name in ("sst", "heat")
    }
    export(arrays["ocean", "sst"])
    with arrays["atmosphere", "sst"].read():
        pass
    ocean.leave(RuntimeError("out of ice"))
    assert eventually(lambda: keeper.report()["first_lost"] is not None)
    keeper.end()
    with pytest.raises(ex.MemberLostError, match="out of ice"):
        arrays["atmosphere", "sst"].read().__enter__()


def test_the_place_that_another_host_means_is_not_taken_for_this_one_s(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: as a process that mpiexec has started on a second host, with the variables of the first one."""
    cluster.lead(TWO)
    runtime = tmp_path / "runtime"
    (runtime / "exoskel").mkdir(parents=True)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    monkeypatch.setenv("EXOSKEL_KEEPER", str(tmp_path / "exoskel-elsewhere" / "keeper"))
    # Nothing is there: the place that was named is the one that the error names.
    with pytest.raises(ex.KeeperError, match="exoskel-elsewhere"):
        ex.Member("ocean")
    cluster.sockets.append(runtime / "exoskel" / "keeper")
    node = cluster.node("lab1.example.org")
    found = node.lookup("coupler", name=HEAD, at=cluster.nodes[0].hints)
    cluster.keepers.append(_core.Keeper.join(cluster.sockets[-1], node._node, found.startpoint))
    with ex.Member("ocean") as member:
        assert member.rank == 0
    monkeypatch.setenv("EXOSKEL_KEEPER", str(cluster.sockets[0]))
    ex.Member("atmosphere").leave()
    assert eventually(lambda: len(cluster.keepers[0].report()["programs"]) == 2)


# Nobody listens there: hosts that can dial the coupler's, and nobody can dial them.
NOWHERE = ("tcp://127.0.0.1:1",)


def test_who_waits_for_a_host_that_cannot_be_reached_is_told(cluster: Cluster) -> None:
    cluster.patience = 1.0
    keeper = cluster.lead(TWO)
    cluster.join(hints=NOWHERE)
    cluster.join(hints=NOWHERE)
    layout = ex.Layout((8,), "f8", "block")
    [ocean], [atmosphere] = cluster.members("ocean", [1]), cluster.members("atmosphere", [2])
    given, taken = ocean.array("sst", layout), atmosphere.array("sst", layout)
    # Nothing goes yet that somebody could miss: each asks whether the other is there.
    reach = r"can't reach keeper|was lost|given this host up"
    with pytest.raises(ex.MemberLostError, match=reach):
        taken.read().__enter__()
    export(given)
    with pytest.raises(ex.MemberLostError, match=reach):
        export(given)
    assert "can't reach keeper" in keeper.report()["first_lost"][2]
    # One of the two is told that it is given up.
    assert eventually(lambda: any(joined.state()[2] for joined in cluster.keepers[1:]))
    leave([ocean], [atmosphere])


def test_hosts_that_have_nothing_to_do_with_each_other_need_not_reach_each_other(
    cluster: Cluster,
) -> None:
    cluster.patience = 1.0
    keeper = cluster.lead(TWO + BACK)
    cluster.join(hints=NOWHERE)
    cluster.join(hints=NOWHERE)
    layout = ex.Layout((8,), "f8", "block", processes=2)
    single = ex.Layout((8,), "f8", "block")
    ocean, [atmosphere] = cluster.members("ocean", [1, 2]), cluster.members("atmosphere", [0])
    arrays = [[member.array(name, layout) for name in ("sst", "heat")] for member in ocean]
    sst, heat = atmosphere.array("sst", single), atmosphere.array("heat", single)

    def turn(sst: ex.SharedArray, heat: ex.SharedArray) -> None:
        for step in range(3):
            with sst.write() as local:
                local[...] = step
            with heat.read() as local:
                assert (local == step).all()

    def answer() -> None:
        for step in range(3):
            with sst.read() as local:
                assert (local == step).all()
            with heat.write() as local:
                local[...] = step

    at_once(*(functools.partial(turn, *pair) for pair in arrays), answer)
    assert keeper.report()["first_lost"] is None
    leave(ocean, [atmosphere])
