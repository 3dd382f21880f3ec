"""Real workers in processes of their own, recruited by a manager over TCP, each with the rights its place gives it."""

import contextlib
import json
import operator
import socket
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually, gone
from tests.site import MANAGER, Site, free_address

import exoskel as ex
from exoskel.cli import main

NEAR, FAR = ("node1.lab.example.org", "127.0.0.1"), ("vm7.rented.example.org", "127.0.1.1")


def two_workers(site: Site) -> list[str]:
    return [site.worker(name, listen=f"tcp://{address}:0").line for name, address in (NEAR, FAR)]


def test_modules_and_output_travel_and_protection_follows_the_policy(site: Site) -> None:
    script = """
        import json, filters

        with connect(ex.Farm(filters.smooth)) as manager:
            print(sum(manager.map(range(200))))
            rows = manager.summary().as_dict()["workers"]
        print(json.dumps({row["name"]: [row["domain"], row["protection"], row["transport"]] for row in rows}))
    """
    neighbour = """
        import shapes, sys, time

        def smooth(item):
            time.sleep(0.001)
            if item % 100 == 7:
                print("seven", item)
                print("worse", file=sys.stderr)
            return shapes.twice(item)
    """
    hosts = two_workers(site)
    done = site.run(
        script, *hosts, filters=neighbour, shapes="def twice(item):\n    return 2 * item\n"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert str(sum(range(0, 400, 2))) in lines
    marked = [line for line in lines if line.startswith("[")]
    assert sorted(line.partition("] ")[2] for line in marked) == ["seven 107", "seven 7"]
    assert all(line[1:].partition("]")[0] in (NEAR[0], FAR[0]) for line in marked)
    assert done.stderr.count("] worse") == 2
    assert json.loads(lines[-1]) == {
        NEAR[0]: ["lab", "plain", "tcp"],
        FAR[0]: ["", "encrypted", "tcp"],
    }


@pytest.mark.parametrize("listen", ["tcp://127.0.0.1:0", "unix:{place}/worker.sock"])
def test_a_worker_gives_all_its_slots_when_they_are_asked_for_at_once(
    site: Site, tmp_path: Path, listen: str
) -> None:
    """All slots accept at one socket: none takes a connection that another one could serve, and none drops one."""
    worker = site.worker(NEAR[0], listen=listen.format(place=tmp_path), slots=8)
    with site.connect(ex.Farm(abs), 8, worker) as manager:
        assert eventually(lambda: manager.status().slots_ready == 8)
        assert list(manager.map(range(-20, 0))) == list(range(20, 0, -1))
        (row,) = manager.summary().workers
    assert (row.slots, row.state) == (8, "working")
    assert "broke" not in worker.log.read_text()


def test_two_managers_share_the_slots_of_a_worker(site: Site) -> None:
    worker = site.worker(NEAR[0], slots=6)
    with ThreadPoolExecutor() as pool:
        begin = pool.submit(site.connect, ex.Farm(abs), 3, worker)
        with site.connect(ex.Farm(abs), 3, worker) as one, begin.result() as other:
            both = (one, other)
            assert eventually(lambda: [each.status().slots_ready for each in both] == [3, 3])
            rows = [manager.summary().workers[0] for manager in both]
    assert [row.slots for row in rows] == [3, 3]
    assert "broke" not in worker.log.read_text()


# Each runs on one worker alone: what does the caller get?
RESULTS = {
    "array": ("import numpy; value = numpy.arange(6.0).reshape(2, 3)[:, ::2]", True),
    "scalar": ("import numpy; value = numpy.float32(1.5)", True),
    "data": ("import datetime; value = [datetime.date(2026, 1, 2), {3: (4, b'5')}]", True),
    "large": ("value = bytes(1_000_000), bytearray(1_000_000)", True),
    "registered": ("import kinds; value = kinds.Point(1, 2)", True),
    "unregistered": ("import kinds; value = kinds.Other()", False),
    "lambda": ("value = lambda item: item", False),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_results_from_outside_are_plain_data_and_registered_types(kind: str, site: Site) -> None:
    statement, allowed = RESULTS[kind]
    script = f"""
        import pickle, kinds

        def task(item):
            {statement}
            return value

        def told(outcome):
            return str(outcome) if isinstance(outcome, ex.ResultRejectedError) else "arrived"

        with connect(ex.Farm(task)) as manager:
            print(told(next(manager.map([0], errors="return"))))
    """
    kinds = """
        import dataclasses, exoskel

        @exoskel.register_result_type
        @dataclasses.dataclass
        class Point:
            x: int
            y: int

        class Other:
            pass
    """
    near, far = two_workers(site)
    inside = site.run(script, near, kinds=kinds)
    outside = site.run(script, far, kinds=kinds)
    assert inside.stdout == "arrived\n", inside.stderr
    if allowed:
        assert outside.stdout == "arrived\n", outside.stderr
    else:
        assert FAR[0] in outside.stdout, outside.stderr
        assert 'results = "pickle"' in outside.stdout


@pytest.mark.parametrize("raised", [False, True], ids=["returned", "raised"])
def test_a_hostile_result_does_not_run(raised: bool, site: Site, tmp_path: Path) -> None:
    """What the worker does to itself is its own affair, so the payload acts only in the manager's process."""
    script = f"""
        import os

        MANAGER = os.getpid()

        class Hostile:
            def __init__(self, mark):
                self.mark = mark

            def __reduce__(self):
                code = f"__import__('os').getpid() == {{MANAGER}} and __import__('os').mkdir({{self.mark!r}})"
                return eval, (code,)

        def task(item):
            if item != "plain" and {raised}:
                raise ValueError(Hostile(item))
            return item if item == "plain" else [Hostile(item)]

        with connect(ex.Farm(task)) as manager:
            items = ["plain", MARK, "plain"]
            print([type(outcome).__name__ for outcome in manager.map(items, errors="return")])
    """
    near, far = two_workers(site)
    trusted = site.run(f"MARK = {str(tmp_path / 'near')!r}\n" + textwrap.dedent(script), near)
    stranger = site.run(f"MARK = {str(tmp_path / 'far')!r}\n" + textwrap.dedent(script), far)
    # The attack is real: where the policy says `results = "pickle"`, it works.
    assert (tmp_path / "near").exists(), trusted.stderr
    assert not (tmp_path / "far").exists()
    kinds = {True: ["str", "ValueError", "str"], False: ["str", "ResultRejectedError", "str"]}
    assert stranger.stdout == f"{kinds[raised]}\n", stranger.stderr


def test_what_items_and_calls_need_travels_with_them(site: Site) -> None:
    near, _ = two_workers(site)
    script = f"""
        import shapes

        with connect(lambda shape: shape.area()) as manager:
            print(list(manager.map([shapes.Square(2)])))
        own = {{"credential": {str(site.credential)!r}, "policy": {str(site.policy)!r}}}
        with ex.Executor(1, workers=[{near!r}], **own) as executor:
            print(executor.submit(shapes.double, 4).result())
    """
    neighbour = """
        class Square:
            def __init__(self, side):
                self.side = side

            def area(self):
                return self.side**2

        def double(number):
            return 2 * number
    """
    done = site.run(script, near, shapes=neighbour)
    assert done.stdout.split("\n") == ["[4]", "8", ""], done.stderr


def test_exceptions_bring_their_traceback(site: Site) -> None:
    script = """
        import filters

        with connect(ex.Farm(filters.broken)) as manager:
            try:
                list(manager.map([5]))
            except ValueError as error:
                print(error, "|", error.__cause__)
    """
    neighbour = "def broken(item):\n    raise ValueError(item)  # here\n"
    _, far = two_workers(site)
    done = site.run(script, far, filters=neighbour)
    assert done.stdout.startswith("5 | "), done.stderr
    assert FAR[0] in done.stdout
    assert "raise ValueError(item)  # here" in done.stdout


def test_a_task_that_raises_stop_iteration_does_not_end_the_stream_in_silence(site: Site) -> None:
    script = """
        def task(item):
            if item == 1:
                raise StopIteration
            return item

        with connect(ex.Farm(task)) as manager:
            try:
                print(list(manager.map(range(3))))
            except Exception as error:
                print("raised")
    """
    near, _ = two_workers(site)
    assert site.run(script, near).stdout == "raised\n"


def test_what_a_worker_lacks_is_named(site: Site) -> None:
    script = """
        def task(item):
            import surely_not_installed

        with connect(ex.Farm(task)) as manager:
            print(next(manager.map([0], errors="return")))
    """
    near, _ = two_workers(site)
    assert "surely_not_installed" in site.run(script, near).stdout


def test_workers_join_a_manager_that_listens(site: Site) -> None:
    address = free_address()
    script = f"""
        with connect(ex.Farm(abs), slots=2, workers=None, listen={address!r}, wait=60) as manager:
            print(sum(manager.map(range(-10, 0))))
    """
    site.worker(NEAR[0], join=f"tcp://{address}", slots=2)
    done = site.run(script)
    assert done.stdout == "55\n", done.stderr


def test_a_worker_serves_one_manager_after_the_other(site: Site) -> None:
    script = """
        with connect(ex.Farm(abs)) as manager:
            print(sum(manager.map(range(-10, 0))))
    """
    worker = site.worker(NEAR[0])
    for _ in range(3):
        assert site.run(script, worker.line).stdout == "55\n"
    worker.process.terminate()
    assert worker.process.wait(timeout=60) == 0


def test_a_worker_with_another_name_is_not_used(site: Site) -> None:
    script = """
        try:
            connect(ex.Farm(abs), connect_timeout=60)
        except ex.NoWorkerError as error:
            print(error)
    """
    worker = site.worker(NEAR[0])
    said = site.run(script, f"{worker.address} other.lab.example.org")
    assert NEAR[0] in said.stdout, said.stderr
    assert "other.lab.example.org" in said.stdout


@pytest.mark.parametrize("trouble", ["revoked", "stranger"])
def test_a_worker_that_cannot_prove_itself_is_not_used(
    trouble: str, site: Site, tmp_path: Path
) -> None:
    script = """
        try:
            connect(ex.Farm(abs), connect_timeout=60)
        except ex.NoWorkerError as error:
            print(error)
    """
    if trouble == "stranger":
        (tmp_path / "other").mkdir()
        credential = Site(tmp_path / "other").issue("worker", NEAR[0])
    else:
        credential = site.issue("worker", NEAR[0])
        directory = str(site.place / "pki")
        assert main(["pki", "revoke", "--directory", directory, NEAR[0], "--json"]) == 0
        site.issue("manager", MANAGER, "--force")
    worker = site.worker(NEAR[0], credential=credential)
    said = site.run(script, worker.line)
    assert said.stdout.strip(), said.stderr
    assert ("revoked" if trouble == "revoked" else NEAR[0]) in said.stdout


def test_the_item_of_a_stranger_s_exception_is_known(site: Site) -> None:
    """Its index comes from the manager; what the worker says of the item stands in the worker's traceback."""
    script = """
        def task(item):
            return {}[item]

        with connect(task) as manager:
            (error,) = manager.map(["scan"], errors="return")
        print(type(error).__name__, *error.__notes__)
        print(str(error.__cause__).strip().splitlines()[-1])
    """
    far = site.worker(FAR[0], listen=f"tcp://{FAR[1]}:0").line
    done = site.run(script, far)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["KeyError item 0", "  | item: 'scan'"]


def test_colours_of_a_stranger_are_escaped(site: Site) -> None:
    script = """
        import filters

        with connect(ex.Farm(filters.paint)) as manager:
            list(manager.map(range(1)))
    """
    far = site.worker(FAR[0], listen=f"tcp://{FAR[1]}:0").line
    paint = """
        def paint(item):
            print("\\x1b[31mred\\x1b[m")
    """
    done = site.run(script, far, filters=paint)
    assert done.returncode == 0, done.stderr
    assert f"[{FAR[0]}] \\u{{1b}}[31mred\\u{{1b}}[m\n" in done.stdout


def test_connections_that_say_nothing_keep_no_manager_out(site: Site) -> None:
    """Nor do they fill the worker's log: each address has a few lines, and one for all others."""
    worker = site.worker(NEAR[0])
    host, _, port = worker.address.removeprefix("tcp://").rpartition(":")
    with contextlib.ExitStack() as crowd:
        for _ in range(300):
            crowd.enter_context(socket.create_connection((host, int(port))))
        with site.connect(ex.Farm(operator.neg), 1, worker) as manager:
            assert list(manager.map(range(3))) == [0, -1, -2]
    refused = [line for line in worker.log.read_text().splitlines() if "no session with" in line]
    assert 0 < len(refused) <= 8


DETACH = """
    import os, signal, time

    def detach(item):
        reader, writer = os.pipe()
        if not os.fork():
            os.setsid()
            if not os.fork():
                os.write(writer, str(os.getpid()).encode())
                time.sleep(60)
            os._exit(0)
        os.wait()
        return int(os.read(reader, 20))
"""


@pytest.mark.parametrize("place", ["worker", "child"])
def test_what_a_task_detaches_ends_with_the_session(site: Site, place: str) -> None:
    """Of a worker that goes on, and of a child of the manager's own process."""
    script = """
        import filters

        with connect(ex.Farm(filters.detach), slots=1) as manager:
            (process,) = manager.map(range(1))
            os.kill(process, 0)
            print(process)
    """
    hosts = [site.worker(NEAR[0]).line] if place == "worker" else []
    script = script.replace("connect(", "connect(" if hosts else "ex.Manager(")
    script = script.replace("slots=1", "slots=1" if hosts else "ex.ParDegree(1)")
    done = site.run("import os\n" + textwrap.dedent(script), *hosts, filters=DETACH)
    assert done.returncode == 0, done.stderr
    process = int(done.stdout)
    assert eventually(lambda: gone(process))


def test_registered_types_and_exceptions_pass_through_strangers(site: Site) -> None:
    """A second stage at a worker that isn't trusted reads what the first one made, the script's own classes included."""
    script = """
        import dataclasses, enum
        import numpy

        @ex.register_result_type
        class Colour(enum.Enum):
            RED = 1

        @ex.register_result_type
        @dataclasses.dataclass
        class Point:
            x: int
            colour: Colour

        class Odd:
            def __init__(self, text):
                self.text = text

        ex.register_result_type(Odd, to_data=lambda odd: odd.text, from_data=Odd)

        @ex.register_result_type
        class Trouble(Exception):
            pass

        def first(item):
            if item == 2:
                raise Trouble(object())
            if item == 3:
                raise Trouble(numpy.zeros(100_000))
            if item == 4:
                raise KeyError(5)
            if item == 5:
                open("/nowhere")
            return Point(item, Colour.RED), Odd("odd")

        def second(pair):
            point, odd = pair
            assert type(point) is Point and point.colour is Colour.RED
            return Point(point.x + 1, point.colour), Odd(odd.text + "!")

        with connect(ex.Pipeline(first, ex.Seq(second)), slots=2) as manager:
            for outcome in manager.map(range(6), errors="return"):
                if isinstance(outcome, Exception):
                    large = [len(part) for part in outcome.args if isinstance(part, numpy.ndarray)]
                    print(type(outcome).__name__, large or getattr(outcome, "errno", None) or outcome.args)
                else:
                    print(outcome[0].x, outcome[0].colour.name, outcome[1].text)
    """
    worker = site.worker(FAR[0], slots=2)
    done = site.run(script, worker.line)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[:2] == ["1 RED odd!", "2 RED odd!"]
    assert lines[2].startswith("TaskError ")
    assert lines[3:] == ["Trouble [100000]", "KeyError (5,)", "FileNotFoundError 2"]


def test_all_that_is_sent_to_a_worker_counts(site: Site) -> None:
    """Functions with what they hold, and what is shared: whoever pays for traffic is to see all of it."""
    worker = site.worker("node1.lab.example.org")
    size = 1 << 20
    table = bytes(size)
    with site.connect(lambda item: len(table) + item, 1, worker) as manager:
        assert list(manager.map([1])) == [size + 1]
        (row,) = manager.summary().workers
        assert size < row.bytes_sent < 2 * size
    shared = ex.Shared(bytes(size))
    with site.connect(lambda item: len(shared.value) + item, 1, worker) as manager:
        assert list(manager.map([1])) == [size + 1]
        (row,) = manager.summary().workers
    assert size < row.bytes_sent < 2 * size
    # It still counts when all has ended.
    assert manager.summary().workers[0].bytes_sent >= row.bytes_sent
    shared.close()


def test_a_call_whose_result_is_rejected_is_named(site: Site) -> None:
    """The worker could say anything of the call; the manager knows which function it was."""

    def masked(_item: object) -> Any:
        import numpy as np

        return np.ma.masked_array([1, 2], [False, True])

    worker = site.worker("stranger.example.net")
    with ex.Executor(
        1, workers=[worker.line], credential=site.credential, policy=site.policy
    ) as executor:
        error = executor.submit(masked, 1).exception()
        assert isinstance(error, ex.ResultRejectedError)
        assert error.__notes__ == ["call: masked(...)"]
        # What it is told to return instead keeps the mask.
        assert "return its data and its mask" in str(error)
        assert "numpy.asarray" not in str(error)
        failed = executor.submit(operator.truediv, 1, 0).exception()
        assert isinstance(failed, ZeroDivisionError)
        assert failed.__notes__ == ["call: truediv(...)"]
