"""Arrays between parallel programs on one host: members of both are threads here, or processes where they are killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.processes import eventually, gone

import exoskel as ex
from exoskel import _core

TWO = """
[program.ocean]
[program.atmosphere]
[[connection]]
from = "ocean.sst"
to = "atmosphere.sst"
"""
SECONDS = 60


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Start a keeper for a coupling; returns its socket."""
    keepers: list[Any] = []

    def started(text: str) -> Path:
        place = tmp_path / f"keeper{len(keepers)}"
        keepers.append(_core.Keeper(place, text))
        return place

    yield started
    for keeper in keepers:
        keeper.end()


@contextmanager
def members(keeper: Path, **sizes: int) -> Iterator[dict[str, list[ex.Member]]]:
    """Attach all processes of programs."""
    attached = {
        name: [ex.Member(name, rank=rank, size=size, keeper=keeper) for rank in range(size)]
        for name, size in sizes.items()
    }
    try:
        yield attached
    finally:
        for ranks in attached.values():
            for member in ranks:
                member.leave()


def at_once(*calls: Callable[[], Any]) -> list[Any]:
    """Run what waits for each other, each in a thread of its own."""
    with ThreadPoolExecutor(len(calls)) as pool:
        futures = [pool.submit(call) for call in calls]
        return [future.result(timeout=SECONDS) for future in futures]


def whole(layout: ex.Layout, parts: list[NDArray[Any]]) -> NDArray[Any]:
    """Put a whole array together from what its processes own."""
    made = np.zeros(layout.shape, layout.dtype)
    halos = [
        (local - sum(s.stop - s.start for s in axis)) // 2
        for local, axis in zip(layout.local_shape(0), layout.extents(0), strict=True)
    ]
    for rank, part in enumerate(parts):
        index = [np.concatenate([np.r_[s] for s in axis]) for axis in layout.extents(rank)]
        inner = tuple(slice(halo, halo + len(i)) for halo, i in zip(halos, index, strict=True))
        made[np.ix_(*index)] = part[inner]
    return made


def parts(layout: ex.Layout, array: NDArray[Any]) -> list[NDArray[Any]]:
    """What each process of a layout without halos has of a whole array."""
    indices = [
        [np.concatenate([np.r_[s] for s in axis]) for axis in layout.extents(rank)]
        for rank in range(layout.processes)
    ]
    return [array[np.ix_(*index)] for index in indices]


@pytest.mark.parametrize(
    ("source", "target", "options"),
    [
        (("block", "*"), ("*", "block"), ""),
        (("cyclic(3)", "block"), ("block", "cyclic(5)"), ""),
        (("block", "block"), ("replicated", "*"), ""),
        (("*", "cyclic"), ("block", "block"), 'select = "[1::2, 5:35:3]"'),
        (("block", "block"), ("block", "*"), "permute = [1, 0]"),
        (("block", "*"), ("block", "block"), 'into = "[4:34, 2:42]"'),
    ],
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_each_process_gets_its_part_of_each_version(
    start: Callable[[str], Path],
    source: tuple[str, str],
    target: tuple[str, str],
    options: str,
    order: str,
) -> None:
    keeper = start(TWO + options)
    shapes = {"select": (15, 10), "permute": (40, 30), "into": (38, 44)}
    shape = shapes.get(options.split(" ")[0], (30, 40))
    given = ex.Layout((30, 40), "f8", source, processes=4)
    taken = ex.Layout(shape, ">f8", target, processes=3, order=order)
    words = dict(line.split(" = ") for line in options.splitlines())
    plan = ex.plan(
        given,
        taken,
        select=words.get("select", "").strip('"') or None,
        into=words.get("into", "").strip('"') or None,
        permute=[1, 0] if "permute" in words else None,
    )
    arrays = [np.random.default_rng(seed).random((30, 40)) for seed in range(3)]
    expected = [plan.run(parts(given, array)) for array in arrays]
    with members(keeper, ocean=4, atmosphere=3) as programs:

        def write(member: ex.Member) -> None:
            sst = member.array("sst", given)
            for array in arrays:
                with sst.write() as local:
                    local[...] = parts(given, array)[member.rank]

        def read(member: ex.Member) -> None:
            sst = member.array("sst", taken)
            for number, version in enumerate(expected, start=1):
                with sst.read() as local:
                    assert sst.version == number
                    np.testing.assert_array_equal(local, version[member.rank])

        writers = [lambda member=member: write(member) for member in programs["ocean"]]
        readers = [lambda member=member: read(member) for member in programs["atmosphere"]]
        at_once(*writers, *readers)


def test_cells_around_a_block_come_from_its_neighbours(start: Callable[[str], Path]) -> None:
    """A program connected to itself: what each process has computed is its neighbours' halo in the next step."""
    keeper = start('[program.model]\n[[connection]]\nfrom = "model.new"\nto = "model.old"\n')
    size, cells, steps = 3, 12, 4
    with members(keeper, model=size) as programs:

        def run(member: ex.Member) -> NDArray[Any]:
            new = member.array("new", ex.Layout((cells,), "f8", "block"))
            old = member.array("old", ex.Layout((cells,), "f8", "block", halo=1))
            value: NDArray[Any] = np.r_[new.extents[0][0]].astype(float)
            for _ in range(steps):
                with new.write() as local:
                    local[...] = value
                with old.read() as local:
                    value = (local[:-2] + local[1:-1] + local[2:]) / 3
            return value

        ran = at_once(*[lambda member=member: run(member) for member in programs["model"]])
    alone = np.arange(float(cells))
    for _ in range(steps):
        padded = np.pad(alone, 1)
        alone = (padded[:-2] + padded[1:-1] + padded[2:]) / 3
    np.testing.assert_array_equal(np.concatenate(ran), alone)


def test_a_writer_waits_for_those_who_read_and_each_so_many_th_version_goes(
    start: Callable[[str], Path],
) -> None:
    keeper = start(TWO + "every = 3\n")
    layout = ex.Layout((5,), "i8", "block", processes=1)
    with members(keeper, ocean=1, atmosphere=1) as programs:
        written = programs["ocean"][0].array("sst", layout)
        read = programs["atmosphere"][0].array("sst", layout)
        reached = threading.Event()

        def write() -> int:
            for step in range(1, 9):
                if step == 2:
                    # The first version goes: it must be taken before the array is written again.
                    reached.set()
                with written.write() as local:
                    local[...] = step
            return written.exported

        def take() -> list[int]:
            assert reached.wait(SECONDS)
            got = []
            for _ in range(3):
                with read.read() as local:
                    got.append(int(local[0]))
            return got

        assert at_once(write, take) == [8, [1, 4, 7]]


def test_what_has_left_gives_its_last_version_and_no_more(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((5,), "i8", "block", processes=1)
    with members(keeper, atmosphere=1) as programs:
        read = programs["atmosphere"][0].array("sst", layout)
        with (
            ex.Member("ocean", keeper=keeper) as ocean,
            ocean.array("sst", layout).write() as local,
        ):
            local[...] = 7
        with read.read() as local:
            assert local.tolist() == [7] * 5
        with (
            pytest.raises(
                ex.ProgramLeftError,
                match=r"atmosphere\.sst has no version 2: rank 0 of ocean has left after version 1",
            ),
            read.read(),
        ):
            pass


def test_a_writer_goes_on_when_its_readers_have_left(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((5,), "i8", "block", processes=1)
    with members(keeper, ocean=1) as programs:
        written = programs["ocean"][0].array("sst", layout)
        with ex.Member("atmosphere", keeper=keeper) as atmosphere:
            atmosphere.array("sst", layout)
        for _ in range(3):
            with written.write() as local:
                local[...] = 1
        assert written.exported == 3


def test_an_exception_in_a_write_exports_nothing(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((5,), "i8", "block", processes=1)
    with members(keeper, ocean=1) as programs:
        written = programs["ocean"][0].array("sst", layout)
        with pytest.raises(ZeroDivisionError), written.write():
            raise ZeroDivisionError
        assert written.exported == 0
        with written.write():
            pass
        assert written.exported == 1


def test_memory_of_one_s_own_is_copied_from_and_to(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((4, 4), "f4", ("block", "*"), processes=1)
    given, taken = np.arange(16, dtype="f4").reshape(4, 4), np.zeros((4, 4), "f4")
    with members(keeper, ocean=1, atmosphere=1) as programs:
        written = programs["ocean"][0].array("sst", layout, memory=given)
        read = programs["atmosphere"][0].array("sst", layout, memory=taken)
        with written.write() as local:
            assert local is given
        with read.read() as local:
            assert local is taken
        np.testing.assert_array_equal(taken, given)
        with pytest.raises(ValueError, match=r"got memory of \(3,\) of float64, expected \(4, 4\)"):
            programs["ocean"][0].array("other", layout, memory=np.zeros(3))
        with pytest.raises(TypeError, match="got memory=list, expected a NumPy array"):
            programs["ocean"][0].array("other", layout, memory=[[0.0] * 4] * 4)


@pytest.mark.parametrize("order", ["C", "F"])
def test_what_is_read_into_memory_of_one_s_own_leaves_other_cells(
    start: Callable[[str], Path], order: Any
) -> None:
    """Aim: large parts of several versions, shared and own, in both orders; a halo at the edge of the array stays as it was."""
    keeper = start(TWO)
    source = ex.Layout((1536, 1024), "f8", ("block", "*"), processes=2, order=order)
    target = ex.Layout((1536, 1024), "f8", ("*", "block"), processes=2, halo=(0, 1))
    versions = 3
    with members(keeper, ocean=2, atmosphere=2) as programs:

        def give(rank: int) -> None:
            mine = np.empty(source.local_shape(rank), "f8", order)
            array = programs["ocean"][rank].array("sst", source, memory=mine)
            rows, columns = (where[0] for where in array.extents)
            for version in range(versions):
                with array.write() as local:
                    local[...] = np.arange(rows.start, rows.stop)[:, None] * 2.0 + version
                    local += np.arange(columns.start, columns.stop)[None, :] * 4096.0
                mine[...] = -7

        def take(rank: int) -> None:
            mine = np.full(target.local_shape(rank), -1.0)
            array = programs["atmosphere"][rank].array("sst", target, memory=mine)
            columns = array.extents[1][0]
            # The neighbour's cells come too; behind the edge of the array there are none.
            first, last = max(columns.start - 1, 0), min(columns.stop + 1, 1024)
            for version in range(versions):
                with array.read() as local:
                    assert local is mine
                    got = local[:, 1:] if rank == 0 else local[:, :-1]
                    expected = np.arange(1536)[:, None] * 2.0 + version
                    np.testing.assert_array_equal(
                        got, expected + np.arange(first, last)[None, :] * 4096.0
                    )
                    assert np.all((local[:, 0] if rank == 0 else local[:, -1]) == -1.0)

        with ThreadPoolExecutor(4) as pool:
            running = [pool.submit(step, rank) for rank in range(2) for step in (give, take)]
            for one in running:
                one.result(SECONDS)


class OfADevice:
    """What a library for a graphics card says of its memory."""

    def __dlpack__(self, **_: Any) -> None:
        raise AssertionError("memory of a device can't be had")

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


def test_memory_of_one_s_own_is_any_buffer(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((6,), "f8", "block", processes=1)
    given, whole = array("d", [0.0] * 6), np.zeros(12)
    with members(keeper, ocean=1, atmosphere=1) as programs:
        written = programs["ocean"][0].array("sst", layout, memory=given)
        # With gaps: it is copied once more.
        read = programs["atmosphere"][0].array("sst", layout, memory=whole[::2])
        with written.write() as local:
            local[...] = range(6)
        with read.read():
            assert whole.tolist() == [0, 0, 1, 0, 2, 0, 3, 0, 4, 0, 5, 0]
        assert list(given) == [0, 1, 2, 3, 4, 5]
        for memory, error in ((OfADevice(), ValueError), (object(), TypeError)):
            with pytest.raises(error):
                programs["ocean"][0].array("other", layout, memory=memory)


def test_memory_into_which_a_version_is_read_belongs_to_one_array(
    start: Callable[[str], Path],
) -> None:
    keeper = start(TWO + '[[connection]]\nfrom = "ocean.heat"\nto = "atmosphere.heat"\n')
    layout = ex.Layout((6,), "f8", "block", processes=1)
    mine = np.zeros((6, 2))
    line = np.zeros(12)
    begin = line.__array_interface__["data"][0]
    with members(keeper, ocean=1, atmosphere=1) as programs:
        [ocean], [atmosphere] = programs["ocean"], programs["atmosphere"]
        taken = atmosphere.array("sst", layout, memory=line[:6])
        # In whole, in part, with gaps, and in an array's shared memory, from any program of the process.
        place = rf"\(bytes {begin:#x} to {begin + 48:#x}\)"
        there = (
            rf"overlaps that of atmosphere\.sst {place}, and versions are read into atmosphere\.sst"
        )
        for number, memory in enumerate((line[:6], line[5:11], line[1::2])):
            first, name = begin + (0, 40, 8)[number], f"other{number}"
            last = begin + (48, 88, 96)[number]
            own = rf"the memory of ocean\.{name} \(bytes {first:#x} to {last:#x}\) "
            with pytest.raises(ValueError, match=own + there):
                ocean.array(name, layout, memory=memory)
        shared = atmosphere.array("heat", layout)
        with pytest.raises(ValueError, match=r"ocean\.a .*that of atmosphere\.heat \(bytes"):
            ocean.array("a", layout, memory=shared.local)
        # Side by side, also where the bounds overlap, and where nothing is read into either.
        ocean.array("right", layout, memory=line[6:])
        even = ocean.array("sst", layout, memory=mine[:, 0])
        odd = ocean.array("heat", layout, memory=mine[:, 1])
        again = ocean.array("same", layout, memory=mine[:, 1])
        assert [one.dtype for one in (even, odd, again)] == ["f8"] * 3
        del taken
        ocean.array("free", layout, memory=line[:6])


def test_memory_is_free_again_when_its_member_has_left(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((6,), "f8", "block", processes=1)
    mine = np.zeros(12)
    kept = []
    for program, part in (("atmosphere", mine[::2]), ("ocean", mine[:6])):
        with ex.Member(program, rank=0, size=1, keeper=keeper) as member:
            kept.append(member.array("sst", layout, memory=part))
    assert len(kept) == 2


def test_nothing_is_read_into_memory_that_cannot_be_written(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((6,), "f8", "block", processes=1)
    mine = np.zeros(6)
    mine.flags.writeable = False
    with members(keeper, ocean=1, atmosphere=1) as programs:
        programs["ocean"][0].array("sst", layout)
        read = programs["atmosphere"][0].array("sst", layout, memory=mine)
        with pytest.raises(RuntimeError, match="can't be written"), read.read():
            pass


LOST = """
    import sys
    import exoskel as ex
    with ex.Member({program!r}, rank={rank}, size=2, keeper={keeper!r}) as member:
        array = member.array("sst", ex.Layout((8,), "f8", "block"))
        print("there", flush=True)
        sys.stdin.read()
"""


@pytest.mark.parametrize(("lost", "stays"), [("ocean", "atmosphere"), ("atmosphere", "ocean")])
def test_a_lost_process_is_named(start: Callable[[str], Path], lost: str, stays: str) -> None:
    keeper = start(TWO)
    layout = ex.Layout((8,), "f8", "block", processes=1)
    running = [
        subprocess.Popen(
            [
                sys.executable,
                "-c",
                textwrap.dedent(LOST.format(program=lost, rank=rank, keeper=str(keeper))),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        with members(keeper, **{stays: 1}) as programs:
            array = programs[stays][0].array("sst", layout)
            for process in running:
                assert process.stdout is not None
                assert process.stdout.readline() == "there\n"

            def goes_on() -> None:
                if stays == "ocean":
                    for _ in range(2):
                        with array.write():
                            pass
                else:
                    with array.read():
                        pass

            with ThreadPoolExecutor() as pool:
                waiting: Future[None] = pool.submit(goes_on)
                running[1].send_signal(signal.SIGKILL)
                with pytest.raises(
                    ex.MemberLostError,
                    match=rf"rank 1 of {lost} was lost \(its process ended without leave\(\)\)",
                ):
                    waiting.result(timeout=SECONDS)
    finally:
        for process in running:
            process.kill()
            process.communicate()


def test_a_member_that_ends_with_an_error_says_so(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((8,), "f8", "block", processes=1)
    with members(keeper, atmosphere=1) as programs:
        array = programs["atmosphere"][0].array("sst", layout)
        ocean = ex.Member("ocean", keeper=keeper)
        ocean.array("sst", layout)
        with pytest.raises(ZeroDivisionError), ocean:
            raise ZeroDivisionError("of a cell")
        with (
            pytest.raises(
                ex.MemberLostError, match=r"rank 0 of ocean.*ZeroDivisionError: of a cell"
            ),
            array.read(),
        ):
            pass


def test_who_leaves_while_it_is_told_of_another_has_left(tmp_path: Path) -> None:
    """Aim: a keeper that can't tell a member anything any more still reads what the member has said before it went."""
    place = tmp_path / "keeper"
    source = f"""
        from pathlib import Path
        from exoskel import _core
        keeper = _core.Keeper(Path({str(place)!r}), {TWO!r})
        print("there", flush=True)
        input()
        print(keeper.report()["first_lost"])
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        first = ex.Member("ocean", keeper=place)
        second = ex.Member("atmosphere", keeper=place)
        process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: _state(process.pid) == "T")
        for member in (first, second):
            member.leave()
        process.send_signal(signal.SIGCONT)
        assert process.communicate("\n", timeout=SECONDS)[0] == "None\n"


def test_who_hands_on_what_it_got_waits_until_it_was_taken(start: Callable[[str], Path]) -> None:
    """An array that is a target and a source: the next version must not come while the last is to be taken."""
    keeper = start(
        """
        [program.first]
        [program.second]
        [program.third]
        [[connection]]
        from = "first.x"
        to = "second.x"
        [[connection]]
        from = "second.x"
        to = "third.x"
        """
    )
    layout = ex.Layout((4,), "i8", "block")
    with members(keeper, first=1, second=1, third=1) as programs:
        given, handed, taken = (
            programs[name][0].array("x", layout) for name in ("first", "second", "third")
        )
        is_late = threading.Event()

        def give() -> None:
            for step in range(1, 4):
                with given.write() as local:
                    local[...] = step

        def hand_on() -> None:
            for step in range(1, 4):
                if step == 2:
                    is_late.set()
                with handed.read():
                    pass
                with handed.write():
                    pass

        def take() -> list[int]:
            assert is_late.wait(SECONDS)
            got = []
            for _ in range(3):
                with taken.read() as local:
                    got.append(int(local[0]))
            return got

        assert at_once(give, hand_on, take)[2] == [1, 2, 3]


def test_a_read_that_fails_lets_go_of_nothing(tmp_path: Path) -> None:
    """Aim: of two connections one has a version, the other never will: the one that waits is not taken for read."""
    text = """
    [program.a]
    [program.b]
    [program.c]
    [[connection]]
    from = "a.x"
    to = "c.x"
    into = "[:4]"
    [[connection]]
    from = "b.x"
    to = "c.x"
    into = "[4:]"
    """
    keeper = _core.Keeper(tmp_path / "keeper", text)
    try:
        with members(tmp_path / "keeper", a=1, c=1) as programs:
            half = ex.Layout((4,), "i8", "block")
            with programs["a"][0].array("x", half).write() as local:
                local[...] = 1
            with ex.Member("b", keeper=tmp_path / "keeper") as other:
                other.array("x", half)
            read = programs["c"][0].array("x", ex.Layout((8,), "i8", "block"))
            for _ in range(2):
                with pytest.raises(ex.ProgramLeftError, match="rank 0 of b has left"), read.read():
                    pass
            assert [one["versions"] for one in keeper.report()["connections"]] == [0, 0]
            assert [one["bytes"] for one in keeper.report()["connections"]] == [0, 0]
    finally:
        keeper.end()


def test_an_array_that_is_waited_for_can_be_asked(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((4,), "i8", "block")
    with members(keeper, ocean=1, atmosphere=1) as programs:
        written = programs["ocean"][0].array("sst", layout)
        read = programs["atmosphere"][0].array("sst", layout)
        begun = threading.Event()

        def take() -> None:
            begun.set()
            with read.read():
                pass

        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(take)
            assert begun.wait(SECONDS)

            def is_in_use() -> bool:
                # Neither does who asks wait, nor who would read as well.
                assert read.version == 0
                try:
                    read._core.end_read()
                    read._core.export()
                except RuntimeError as error:
                    return "another thread waits" in str(error)
                return False

            assert eventually(is_in_use)
            with written.write():
                pass
            waiting.result(timeout=SECONDS)
        assert (read.version, written.exported) == (1, 1)


FORKS = """
    import os, sys, time
    import exoskel as ex

    with ex.Member("ocean", keeper={keeper!r}) as member:
        array = member.array("sst", ex.Layout((8,), "f8", "block"))
        child = os.fork()
        if not child:
            try:
                with array.write():
                    pass
            except ex.ForkError as error:
                # In one piece: both processes have the same output.
                os.write(1, f"child: {{error}}\\n".encode())
            if {stays}:
                time.sleep(600)
            sys.exit(0)
        if not {stays}:
            os.waitpid(child, 0)
            with array.write() as local:
                local[...] = 7
        else:
            os.write(1, f"{{child}}\\n".encode())
            time.sleep(600)
"""


def test_a_forked_child_is_no_member(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    source = textwrap.dedent(FORKS.format(keeper=str(keeper), stays=False))
    with members(keeper, atmosphere=1) as programs:
        read = programs["atmosphere"][0].array("sst", ex.Layout((8,), "f8", "block"))
        done = subprocess.run(
            [sys.executable, "-c", source],
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("child: a member was used in a forked child")
        with read.read() as local:
            assert local.tolist() == [7.0] * 8
        with pytest.raises(ex.ProgramLeftError), read.read():
            pass


def test_the_loss_of_a_member_is_seen_while_its_child_lives(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    source = textwrap.dedent(FORKS.format(keeper=str(keeper), stays=True))
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, text=True)
    with process, members(keeper, atmosphere=1) as programs:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(2)]
        child = next(int(line) for line in lines if line.strip().isdigit())
        try:
            process.kill()
            process.wait()
            read = programs["atmosphere"][0].array("sst", ex.Layout((8,), "f8", "block"))
            with pytest.raises(ex.MemberLostError, match="rank 0 of ocean was lost"), read.read():
                pass
        finally:
            os.kill(child, signal.SIGKILL)
            assert eventually(lambda: gone(child))


def test_an_exit_without_an_error_is_good_order(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((8,), "f8", "block")
    with members(keeper, atmosphere=1) as programs:
        read = programs["atmosphere"][0].array("sst", layout)
        ocean = ex.Member("ocean", keeper=keeper)
        ocean.array("sst", layout)
        with pytest.raises(SystemExit), ocean:
            sys.exit(0)
        with pytest.raises(ex.ProgramLeftError, match="after version 0"), read.read():
            pass


def test_elements_that_others_would_take_for_something_else_are_refused(
    start: Callable[[str], Path],
) -> None:
    keeper = start(TWO)
    with members(keeper, ocean=1) as programs:
        for dtype in ("M8[s]", "m8[ms]", [("a", "<i4"), ("b", "<f4")]):
            layout = ex.Layout((8,), np.dtype(dtype), "block")
            with pytest.raises(ValueError, match="whose fields or units"):
                programs["ocean"][0].array("sst", layout)


def test_a_library_of_another_version_is_told_both(start: Callable[[str], Path]) -> None:
    """What libexoskel of a version to come may say first, with fields that nobody knows here."""
    keeper = start(TWO)
    request = {"protocol": 99, "version": "7.3.1", "program": "ocean", "world": [1, 2]}
    said = json.dumps({"attach": request}).encode()
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(SECONDS)
        stranger.connect(str(keeper))
        stranger.sendall(len(said).to_bytes(4, "little") + said)
        answer = b"".join(iter(lambda: stranger.recv(4096), b""))
    reason = json.loads(answer[4:])["refused"]["reason"]
    assert "the program uses Exoskel 7.3.1 (attach protocol 99)" in reason
    assert f"the keeper is Exoskel {ex.__version__} (attach protocol" in reason


def test_who_was_refused_is_told_so_again(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    layout = ex.Layout((5,), "i8", "block", processes=1)
    member = ex.Member("ocean", rank=0, size=1, keeper=keeper)
    with pytest.raises(ex.CouplingError, match='got the name "a b", expected up to 64 letters'):
        member.array("a b", layout)
    with pytest.raises(
        ex.CouplingError,
        match='refused this process, which is no member any more: got the name "a b"',
    ):
        member.array("sst", layout)


def write_twice(array: ex.SharedArray) -> None:
    for _ in range(2):
        with array.write():
            pass


def test_connections_that_write_the_same_elements_are_an_error(
    start: Callable[[str], Path],
) -> None:
    keeper = start(
        TWO
        + 'into = "[:6]"\n[program.ice]\n[[connection]]\nfrom = "ice.sst"\nto = "atmosphere.sst"\ninto = "[5:]"\n'
    )
    with members(keeper, ocean=1, ice=1, atmosphere=1) as programs:
        lengths = {"ocean": 6, "ice": 5, "atmosphere": 10}
        arrays = {
            name: programs[name][0].array("sst", ex.Layout((length,), "f8", "block"))
            for name, length in lengths.items()
        }
        with (
            pytest.raises(
                ex.CouplingError,
                match=r"ocean\.sst to atmosphere\.sst writes \[0:6\] of atmosphere\.sst, ice\.sst to atmosphere\.sst writes \[5:10\]",
            ),
            arrays["atmosphere"].read(),
        ):
            pass
        for name in ("ocean", "ice"):
            with pytest.raises(ex.CouplingError, match="expected parts that don't overlap"):
                write_twice(arrays[name])


def test_ends_that_do_not_fit_are_an_error_at_both(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    with members(keeper, ocean=1, atmosphere=1) as programs:
        written = programs["ocean"][0].array("sst", ex.Layout((8,), "f8", "block"))
        read = programs["atmosphere"][0].array("sst", ex.Layout((9,), "f8", "block"))
        said = r"ocean\.sst is 8 of <f8.*, atmosphere\.sst is 9 of <f8.*shape \[8\].*\[9\]"
        with pytest.raises(ex.CouplingError, match=said), read.read():
            pass
        with written.write():
            pass
        with pytest.raises(ex.CouplingError, match=said), written.write():
            pass


def test_what_is_wrong_at_once_is_said_at_once(
    start: Callable[[str], Path], tmp_path: Path
) -> None:
    keeper = start(TWO)
    with pytest.raises(ex.CouplingError, match=r"\"sea\", expected one of .*atmosphere, ocean"):
        ex.Member("sea", keeper=keeper)
    with members(keeper, atmosphere=1) as programs:
        with pytest.raises(ex.CouplingError, match="rank 0 of atmosphere is here already"):
            ex.Member("atmosphere", keeper=keeper)
        other = programs["atmosphere"][0].array("other", ex.Layout((8,), "f8", "block"))
        with pytest.raises(ex.CouplingError, match=r"nothing is connected to atmosphere\.other"):
            other.read().__enter__()
        with pytest.raises(ValueError, match="2 processes, expected 1"):
            programs["atmosphere"][0].array("more", ex.Layout((8,), "f8", "block", processes=2))
    with pytest.raises(ex.KeeperError, match=r"no keeper answers at .*exoskel couple FILE"):
        ex.Member("ocean", keeper=tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"rank=-1 and size=2, expected a rank from 0"):
        ex.Member("ocean", rank=-1, size=2, keeper=keeper)
    with pytest.raises(ValueError, match=r"rank=1 and size=None"):
        ex.Member("ocean", rank=1, keeper=keeper)
    with pytest.raises(ValueError, match=r"without grid= or processes="):
        ex.plan(ex.Layout((8,), "f8", "block"), ex.Layout((8,), "f8", "block"))


def test_an_ended_keeper_is_said(tmp_path: Path) -> None:
    keeper = _core.Keeper(tmp_path / "keeper", TWO)
    member = ex.Member("atmosphere", keeper=tmp_path / "keeper")
    array = member.array("sst", ex.Layout((8,), "f8", "block"))
    keeper.end()
    with pytest.raises(ex.KeeperError, match="the keeper has ended"), array.read():
        pass


def test_who_is_started_by_mpi_knows_its_place(
    start: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = start(TWO)
    monkeypatch.setenv("EXOSKEL_KEEPER", str(keeper))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "5")
    with ex.Member("ocean") as member:
        assert (member.rank, member.size) == (2, 5)
        assert repr(member) == "<exoskel.Member ocean, rank 2 of 5>"


def test_a_wait_ends_with_ctrl_c(start: Callable[[str], Path]) -> None:
    keeper = start(TWO)
    source = f"""
        import exoskel as ex
        with ex.Member("atmosphere", keeper={str(keeper)!r}) as member:
            array = member.array("sst", ex.Layout((8,), "f8", "block"))
            try:
                print("there", flush=True)
                with array.read():
                    pass
            except KeyboardInterrupt:
                print("interrupted")
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        assert eventually(lambda: _sleeps(process.pid))
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=SECONDS)[0] == "interrupted\n"


def _sleeps(process: int) -> bool:
    """Whether a process waits in the kernel."""
    return _state(process) == "S"


def _state(process: int) -> str:
    return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
