"""Coupled programs that lack memory or descriptors, come too late, leave too early, or spoil what they share."""

import array
import json
import mmap
import os
import socket
import struct
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually

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
# The board, and behind it how far a reader has come with each of 4,096 writers over each of 32 connections.
HEAD_BYTES = 4096 + 32 * 4096 * 8
LAYOUT = ex.Layout((8,), "f8", "block")


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Any]:
    started = _core.Keeper(tmp_path / "keeper", TWO)
    yield started
    started.end()


def child(source: str) -> "subprocess.Popen[str]":
    """Start a process of Python that can be spoken with."""
    words = [sys.executable, "-c", textwrap.dedent(source)]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


class Raw:
    """What a member says and hears, in its own words."""

    def __init__(self, place: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(SECONDS)
        self.socket.connect(str(place))
        self.descriptors: list[int] = []
        self._bytes = b""

    def say(self, message: dict[str, Any]) -> None:
        """Send a message."""
        text = json.dumps(message).encode()
        self.socket.sendall(struct.pack("<I", len(text)) + text)

    def hear(self) -> Any:
        """Return the next message; None at the end."""
        while len(self._bytes) < 4 or len(self._bytes) < 4 + self._length():
            size = array.array("i").itemsize
            data, beside, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(size))
            for _, _, descriptors in beside:
                self.descriptors += struct.unpack("i", descriptors[:size])
            if not data:
                return None
            self._bytes += data
        end = 4 + self._length()
        message, self._bytes = self._bytes[4:end], self._bytes[end:]
        return json.loads(message)

    def _length(self) -> int:
        return int(struct.unpack("<I", self._bytes[:4])[0])

    def attach(self, program: str) -> None:
        """Become the only process of a program."""
        self.say({"attach": {"protocol": 5, "program": program, "rank": 0, "size": 1}})
        assert self.hear() == "attached"

    def array(self, name: str) -> mmap.mmap:
        """Describe `LAYOUT`, and return its memory with the board before it."""
        layout = {"shape": [8], "element": "<f8", "sharing": ["block"], "grid": [1], "halo": [0]}
        self.say({"array": {"name": name, "layout": {**layout, "fortran": False}}})
        assert "memory" in self.hear()
        return mmap.mmap(self.descriptors[-1], HEAD_BYTES + 64)

    def close(self) -> None:
        """Let go of everything."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.socket.close()


def test_a_part_for_which_the_keeper_has_no_memory_is_an_error_at_both_ends(
    tmp_path: Path,
) -> None:
    """Method: one process's part is larger than any address space, and the connection takes only some of it."""
    layout = ex.Layout((2**60,), "i1", [[0, 4, 2**60]])
    keeper = _core.Keeper(tmp_path / "keeper", TWO + 'select = "[:8]"\n')
    try:
        place = tmp_path / "keeper"
        with ex.Member("atmosphere", keeper=place) as atmosphere:
            read = atmosphere.array("sst", ex.Layout((8,), "i1", "block"))
            first = ex.Member("ocean", rank=0, size=2, keeper=place)
            second = ex.Member("ocean", rank=1, size=2, keeper=place)
            with first.array("sst", layout).write() as local:
                local[...] = 1
            with pytest.raises(ex.CouplingError, match="the keeper has no memory for it"):
                second.array("sst", layout)
            # Each time the same: what there is of it is never taken for the whole.
            for _ in range(2):
                with (
                    pytest.raises(ex.CouplingError, match="rank 1 of ocean has no memory"),
                    read.read(),
                ):
                    pass
            first.leave()
        lost = keeper.report()["first_lost"]
        assert lost[:2] == ("ocean", 1)
        assert "it was refused: the keeper has no memory for it" in lost[2]
    finally:
        keeper.end()


def test_a_writer_learns_that_nobody_can_take(tmp_path: Path) -> None:
    keeper = _core.Keeper(tmp_path / "keeper", TWO + 'into = "[:8]"\n')
    try:
        place = tmp_path / "keeper"
        with ex.Member("ocean", keeper=place) as ocean:
            written = ocean.array("sst", ex.Layout((8,), "i1", "block"))
            reader = ex.Member("atmosphere", keeper=place)
            with pytest.raises(ex.CouplingError, match="the keeper has no memory for it"):
                reader.array("sst", ex.Layout((2**60,), "i1", "block"))
            with written.write():
                pass
            for _ in range(2):
                with (
                    pytest.raises(ex.CouplingError, match="rank 0 of atmosphere has no memory"),
                    written.write(),
                ):
                    pass
    finally:
        keeper.end()


def test_who_cannot_have_another_s_memory_gets_an_error_each_time(
    keeper: Any, tmp_path: Path
) -> None:
    """Method: the reader's address space ends before the writer's part does."""
    source = f"""
        import resource
        import exoskel as ex
        with ex.Member("atmosphere", keeper={str(tmp_path / "keeper")!r}) as member:
            array = member.array("sst", ex.Layout((2**32,), "i1", "block"))
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            limit = used + 2**28
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            print("there", flush=True)
            input()
            for _ in range(2):
                try:
                    with array.read() as local:
                        print("read", local[0])
                except ex.ExoskelError as error:
                    print(type(error).__name__, error)
    """
    with child(source) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        with ex.Member("ocean", keeper=tmp_path / "keeper") as ocean:
            with ocean.array("sst", ex.Layout((2**32,), "i1", "block")).write() as local:
                local[0] = 1
            lines = process.communicate("\n", timeout=SECONDS)[0].splitlines()
    why = "CouplingError this process can't have the memory of rank 0 at the other end: mapping an array: Cannot allocate memory"
    assert [line.startswith(why) for line in lines] == [True, True], lines


def test_a_keeper_without_descriptors_lets_go_and_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "keeper"
    source = f"""
        import os, resource
        from pathlib import Path
        from exoskel import _core
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        keeper = _core.Keeper(Path({str(place)!r}), {TWO!r})
        kept = []
        try:
            while True:
                kept.append(os.open("/dev/null", os.O_RDONLY))
        except OSError:
            print("full", flush=True)
        input()
        for descriptor in kept:
            os.close(descriptor)
        print("room", flush=True)
        input()
    """
    with child(source) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "full\n"
        with socket.socket(socket.AF_UNIX) as waiting:
            waiting.settimeout(SECONDS)
            waiting.connect(str(place))
            # Whom there is no descriptor for is not left to wait.
            assert waiting.recv(1) == b""
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "room\n"
        with ex.Member("ocean", keeper=place) as member:
            assert member.array("sst", LAYOUT).exported == 0
        process.communicate("\n", timeout=SECONDS)


def test_spoiled_counters_spoil_numbers_only(tmp_path: Path) -> None:
    first, second = 'select = "[:4]"\ninto = "[:4]"\n', 'select = "[4:]"\ninto = "[4:]"\n'
    text = f'{TWO}{first}[[connection]]\nfrom = "ocean.other"\nto = "atmosphere.sst"\n{second}'
    keeper = _core.Keeper(tmp_path / "keeper", text)
    member = Raw(tmp_path / "keeper")
    try:
        member.attach("atmosphere")
        with member.array("sst") as memory:
            memory[:HEAD_BYTES] = b"\xff" * HEAD_BYTES
        report = keeper.report()
        assert [one["bytes"] for one in report["connections"]] == [2**64 - 1] * 2
        assert [one["versions"] for one in report["connections"]] == [2**64 - 1] * 2
        # It waits for a connection that isn't there.
        assert report["waits"] == []
        with ex.Member("ocean", keeper=tmp_path / "keeper") as ocean:
            written = ocean.array("sst", LAYOUT)
            for _ in range(3):
                with written.write():
                    pass
    finally:
        member.close()
        keeper.end()


def test_a_sum_of_spoiled_counters_is_no_panic(tmp_path: Path) -> None:
    keeper = _core.Keeper(tmp_path / "keeper", TWO)
    members = [Raw(tmp_path / "keeper") for _ in range(2)]
    layout = {"shape": [8], "element": "<f8", "sharing": ["block"], "grid": [2], "halo": [0]}
    try:
        for rank, member in enumerate(members):
            member.say(
                {"attach": {"protocol": 5, "program": "atmosphere", "rank": rank, "size": 2}}
            )
            assert member.hear() == "attached"
            member.say({"array": {"name": "sst", "layout": {**layout, "fortran": False}}})
            assert "memory" in member.hear()
            with mmap.mmap(member.descriptors[-1], HEAD_BYTES) as board:
                board[:] = b"\xff" * HEAD_BYTES
        assert keeper.report()["connections"][0]["bytes"] == 2**64 - 1
    finally:
        for member in members:
            member.close()
        keeper.end()


@pytest.mark.parametrize("error", [None, ValueError("of a file")])
def test_a_reader_that_leaves_without_its_array_is_no_taker(
    keeper: Any, tmp_path: Path, error: Exception | None
) -> None:
    with ex.Member("ocean", keeper=tmp_path / "keeper") as ocean:
        written = ocean.array("sst", LAYOUT)
        ex.Member("atmosphere", keeper=tmp_path / "keeper").leave(error)
        with written.write():
            pass
        if error is None:
            for _ in range(3):
                with written.write():
                    pass
            assert written.exported == 4
        else:
            lost = r"rank 0 of atmosphere was lost \(ValueError: of a file\) before ocean\.sst"
            with pytest.raises(ex.MemberLostError, match=lost), written.write():
                pass


@pytest.mark.parametrize("error", [None, ValueError("of a file")])
def test_a_writer_that_leaves_without_its_array_has_left(
    keeper: Any, tmp_path: Path, error: Exception | None
) -> None:
    with ex.Member("atmosphere", keeper=tmp_path / "keeper") as atmosphere:
        read = atmosphere.array("sst", LAYOUT)
        ex.Member("ocean", keeper=tmp_path / "keeper").leave(error)
        kind, said = (
            (
                ex.ProgramLeftError,
                r"has no version 1: rank 0 of ocean has left before it has described the array",
            )
            if error is None
            else (ex.MemberLostError, r"rank 0 of ocean was lost \(ValueError: of a file\)")
        )
        for _ in range(2):
            with pytest.raises(kind, match=said), read.read():
                pass


def test_who_never_attaches_is_not_waited_for(tmp_path: Path) -> None:
    """Method: nobody else will come, so any limit will do."""
    keeper = _core.Keeper(tmp_path / "keeper", TWO, 0.05)
    try:
        with ex.Member("atmosphere", keeper=tmp_path / "keeper") as atmosphere:
            read = atmosphere.array("sst", LAYOUT)
            said = "no process of ocean has attached within 0.05 s after the last process that has"
            with pytest.raises(ex.CouplingError, match=said), read.read():
                pass
    finally:
        keeper.end()
    with pytest.raises(ex.CouplingError, match=r"got wait = -1, expected seconds"):
        _core.Keeper(tmp_path / "keeper", TWO, -1.0)


def test_who_waits_for_what_can_be_seen(keeper: Any, tmp_path: Path) -> None:
    def texts() -> list[str]:
        return [wait["text"] for wait in keeper.report()["waits"]]

    with ThreadPoolExecutor() as pool, ex.Member("ocean", keeper=tmp_path / "keeper") as ocean:
        written = ocean.array("sst", LAYOUT)
        atmosphere = ex.Member("atmosphere", rank=0, size=2, keeper=tmp_path / "keeper")
        halves = ex.Layout((8,), "f8", "block", processes=2)
        read = atmosphere.array("sst", halves)
        go = threading.Semaphore(0)

        def take() -> None:
            for _ in range(2):
                with read.read():
                    go.acquire()

        def give() -> None:
            for _ in range(2):
                with written.write():
                    pass

        try:
            taking = pool.submit(take)
            said = "rank 0 of atmosphere waits for version 1 of ocean.sst: rank 1 of atmosphere has not attached"
            assert eventually(lambda: texts() == [said])
            missing = keeper.report()["connections"][0]["missing"]
            assert missing == "rank 1 of atmosphere has not attached"
            other = ex.Member("atmosphere", rank=1, size=2, keeper=tmp_path / "keeper")
            silent = other.array("sst", halves)
            said = "rank 0 of atmosphere waits for version 1 of ocean.sst: rank 0 of ocean has exported none"
            assert eventually(lambda: texts() == [said])
            giving = pool.submit(give)
            said = "rank 0 of ocean waits until version 1 of ocean.sst is taken into atmosphere.sst: rank 1 of atmosphere has taken none"
            assert eventually(lambda: texts() == [said])
            wait = keeper.report()["waits"][0]
            assert (wait["program"], wait["ranks"], wait["version"]) == ("ocean", [0], 1)
            with silent.read():
                pass
            giving.result(timeout=SECONDS)
            go.release(2)
            taking.result(timeout=SECONDS)
            assert texts() == []
            atmosphere.leave()
            other.leave()
        except BaseException:
            # Nobody waits for ever for what didn't come about.
            keeper.end()
            go.release(2)
            raise


def test_who_is_gone_waits_for_nothing(keeper: Any, tmp_path: Path) -> None:
    source = f"""
        import exoskel as ex
        member = ex.Member("atmosphere", keeper={str(tmp_path / "keeper")!r})
        with member.array("sst", ex.Layout((8,), "f8", "block")).read():
            pass
    """
    with child(source) as process:
        assert eventually(lambda: len(keeper.report()["waits"]) == 1)
        process.kill()
        assert eventually(lambda: keeper.report()["first_lost"] is not None)
        assert keeper.report()["waits"] == []
