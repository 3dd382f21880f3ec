"""What a program means, whatever its shape: the results that the same calls in one process would give."""

import functools
import logging
import math
import operator
import os
import re
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import exoskel as ex


def add_one(value: int) -> int:
    return value + 1


increase: Callable[[Any], Any] = functools.partial(operator.add, 1)
double: Callable[[Any], Any] = functools.partial(operator.mul, 2)

TEN_STAGES: list[Any] = [ex.Seq(increase), double] * 5
PROGRAMS: dict[str, Any] = {
    "function": increase,
    "seq": ex.Seq(increase),
    "farm": ex.Farm(increase),
    "farm of farms": ex.Farm(ex.Farm(ex.Farm(double))),
    "pipeline": ex.Pipeline(increase, double),
    "serial stages": ex.Pipeline(ex.Seq(increase), ex.Seq(double)),
    "serial beginning": ex.Pipeline(ex.Seq(increase), double),
    "serial end": ex.Pipeline(increase, ex.Seq(double)),
    "serial ends": ex.Pipeline(ex.Seq(increase), double, ex.Seq(increase)),
    "serial middle": ex.Pipeline(double, ex.Seq(increase), double),
    "farm of a pipeline": ex.Farm(ex.Pipeline(increase, double, increase)),
    "farm of a pipeline of farms": ex.Farm(ex.Pipeline(ex.Farm(increase), double, ex.Farm(double))),
    "pipeline of pipelines": ex.Pipeline(ex.Pipeline(increase, double), ex.Pipeline(double)),
    "one stage": ex.Pipeline(ex.Pipeline(ex.Seq(increase))),
    "ten stages": ex.Pipeline(*TEN_STAGES),
}


def in_one_process(program: Any, value: Any) -> Any:
    match program:
        case ex.Seq():
            return program.function(value)
        case ex.Farm():
            return in_one_process(program.stage, value)
        case ex.Pipeline():
            return functools.reduce(
                lambda passed, stage: in_one_process(stage, passed), program.stages, value
            )
        case _:
            return program(value)


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_shape_gives_what_one_process_gives(name: str) -> None:
    program = PROGRAMS[name]
    expected = [in_one_process(program, item) for item in range(700)]
    with ex.Manager(program, ex.ParDegree(3)) as manager:
        assert list(manager.map(range(700))) == expected
        assert sorted(manager.map(range(700), as_completed=True)) == sorted(expected)
        assert list(manager.map([])) == []
        assert list(manager.map([5])) == [in_one_process(program, 5)]


@pytest.mark.parametrize(
    "options",
    [
        {"frame_items_max": 1},
        {"transport": "tcp"},
        {"transport": "tcp", "protection": "plain"},
        {"protection": "encrypted"},
        {"protection": "integrity"},
    ],
    ids=lambda options: " ".join(map(str, options.values())),
)
def test_the_way_that_items_travel_changes_no_result(options: dict[str, Any]) -> None:
    items: list[Any] = [*range(300), "text", b"bytes" * 30_000, ("pair", [1.5, None]), {1: {2, 3}}]
    with ex.Manager(ex.Farm(lambda item: (item, 1)), ex.ParDegree(2), **options) as manager:
        assert list(manager.map(items)) == [(item, 1) for item in items]
        workers = manager.summary().workers
    expected = options.get("protection") or (
        "encrypted" if options.get("transport") == "tcp" else "plain"
    )
    assert {worker.protection for worker in workers} == {expected}


def test_one_slot_is_enough_for_any_program() -> None:
    program = ex.Pipeline(ex.Seq(increase), double, ex.Seq(increase))
    with ex.Manager(program, ex.ParDegree(1)) as manager:
        assert list(manager.map(range(500))) == [2 * (item + 1) + 1 for item in range(500)]


class Scaled:
    """A callable with state of its own, and a method."""

    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, value: int) -> int:
        """Return the product."""
        return self.factor * value

    def shifted(self, value: int) -> int:
        """Return the sum."""
        return self.factor + value


def test_callables_of_all_kinds_travel() -> None:
    captured = {"offset": 40}

    def closure(value: int) -> int:
        return captured["offset"] + value

    def recursive(value: int) -> int:
        return 1 if value < 2 else value * recursive(value - 1)

    class Local:
        def __call__(self, value: int) -> int:
            return -value

    callables: list[tuple[Callable[[int], Any], Any]] = [
        (closure, 43),
        (recursive, 6),
        (lambda value: value**2, 9),
        (lambda value: captured["offset"] - value, 37),
        (math.sqrt, math.sqrt(3)),
        (functools.partial(pow, 2), 8),
        (operator.methodcaller("no_such_method"), AttributeError),
        (str, "3"),
        (Scaled(5), 15),
        (Scaled(5).shifted, 8),
        (Local(), -3),
        ("abc".__mul__, "abcabcabc"),
        (add_one, 4),
    ]
    for function, expected in callables:
        with ex.Manager(ex.Farm(function), ex.ParDegree(1)) as manager:
            (result,) = manager.map([3], errors="return")
        if isinstance(expected, type):
            assert isinstance(result, expected)
        else:
            assert result == expected


def test_a_stage_in_seq_processes_one_item_at_a_time(tmp_path: Path) -> None:
    busy = str(tmp_path / "busy")

    def alone(item: int) -> int:
        import os
        import time

        # Fails if another process is inside.
        os.close(os.open(busy, os.O_CREAT | os.O_EXCL))
        try:
            time.sleep(0.001)
        finally:
            os.unlink(busy)
        return item

    for program in (
        ex.Seq(alone),
        ex.Pipeline(add_nothing, ex.Seq(alone), add_nothing),
        ex.Pipeline(ex.Seq(alone), add_nothing),
        ex.Farm(ex.Pipeline(add_nothing, ex.Seq(add_nothing))),
    ):
        with ex.Manager(program, ex.ParDegree(4)) as manager:
            assert list(manager.map(range(150))) == list(range(150))


add_nothing: Callable[[Any], Any] = functools.partial(operator.add, 0)


def test_two_serial_stages_may_run_side_by_side_but_each_alone(tmp_path: Path) -> None:
    """The first stage's second item and the second stage's first one wait for each other."""
    place = str(tmp_path)

    def first(item: int) -> int:
        if item == 1:
            meet("first", "second")
        return item

    def second(item: int) -> int:
        if item == 0:
            meet("second", "first")
        return item

    def meet(own: str, other: str) -> None:
        import os
        import time

        open(f"{place}/{own}", "x").close()
        deadline = time.monotonic() + 30
        while not os.path.exists(f"{place}/{other}"):
            assert time.monotonic() < deadline, f"{other} did not run beside {own}"
            time.sleep(0.005)

    program = ex.Pipeline(ex.Seq(first), ex.Seq(second))
    with ex.Manager(program, ex.ParDegree(2), frame_items_max=1) as manager:
        assert list(manager.map(range(4))) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    "shape",
    [lambda task: task, ex.Farm, ex.Pipeline, lambda task: ex.Pipeline(add_nothing, task)],
    ids=["function", "farm", "stage", "second stage"],
)
def test_a_function_uses_all_slots_at_once(shape: Callable[..., Any], tmp_path: Path) -> None:
    place = str(tmp_path)

    def task(item: int) -> int:
        import os
        import time

        open(f"{place}/{item}", "x").close()
        deadline = time.monotonic() + 30
        while len(os.listdir(place)) < 3:
            assert time.monotonic() < deadline, "the others did not run beside this one"
            time.sleep(0.005)
        return os.getpid()

    with ex.Manager(shape(task), ex.ParDegree(3), frame_items_max=1) as manager:
        assert len(set(manager.map(range(3)))) == 3


def test_summary_counts_what_happened() -> None:
    with ex.Manager(ex.Pipeline(ex.Seq(increase), double), ex.ParDegree(2)) as manager:
        assert sum(manager.map(range(1000))) == sum(2 * (item + 1) for item in range(1000))
        running = manager.summary()
    summary = manager.summary()
    assert running.as_dict()["workers"][0]["name"] == summary.workers[0].name
    assert len(summary.workers) == 2
    assert all(worker.domain == "host" for worker in summary.workers)
    assert all(worker.protection == "plain" for worker in summary.workers)
    assert sum(worker.items for worker in summary.workers) >= 1000
    assert sum(worker.bytes_sent for worker in summary.workers) > 0
    assert len({number for worker in summary.workers for number in worker.process_ids}) == 2
    assert max(map(len, str(summary).splitlines())) <= 100


def test_children_are_named_after_the_host_they_run_on() -> None:
    with ex.Manager(increase, ex.ParDegree(1)) as manager:
        (worker,) = manager.summary().workers
    assert worker.name == "local-1"
    assert worker.transport == "socketpair"


def test_children_can_share_memory_with_their_manager() -> None:
    """Small items, and results that pass a ring many times. A child that is forked meanwhile changes nothing."""
    with ex.Manager(ex.Farm(double), ex.ParDegree(2), transport="shared memory") as manager:
        assert all(worker.transport == "shared memory" for worker in manager.summary().workers)
        maps = Path("/proc/self/maps")
        assert "exoskel-ring" in maps.read_text()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            child = os.fork()
        if child == 0:
            os._exit("exoskel-ring" in maps.read_text())
        assert os.waitpid(child, 0)[1] == 0
        assert list(manager.map(range(2000))) == [2 * item for item in range(2000)]
        texts = ["x" * 3_000_000 for _ in range(8)]
        assert list(manager.map(texts)) == [2 * text for text in texts]
    assert "exoskel-ring" not in maps.read_text()


def test_several_managers_work_side_by_side() -> None:
    with (
        ex.Manager(ex.Farm(increase), ex.ParDegree(2)) as one,
        ex.Manager(ex.Farm(double), ex.ParDegree(1)) as two,
    ):
        assert list(two.map(one.map(range(300)))) == [2 * (item + 1) for item in range(300)]


def test_a_closed_manager_says_so() -> None:
    manager = ex.Manager(increase, ex.ParDegree(1))
    open_stream = manager.map(range(10_000_000))
    assert next(open_stream) == 1
    manager.close()
    manager.close()
    with pytest.raises(RuntimeError, match="closed"):
        manager.map([1])
    with pytest.raises(ex.NoWorkerError):
        list(open_stream)
    assert manager.summary().workers


def test_a_manager_that_is_dropped_leaves_nothing() -> None:
    """The check is the one behind every test: no process, thread or descriptor stays."""
    manager = ex.Manager(increase, ex.ParDegree(2))
    assert next(manager.map([1])) == 2


def test_a_manager_lives_as_long_as_its_streams() -> None:
    stream = ex.Manager(increase, ex.ParDegree(2)).map(range(3000))
    assert list(stream) == list(range(1, 3001))
    assert list(ex.Manager(increase, ex.ParDegree(1)).map([1], progress=True)) == [2]


def test_output_is_marked_with_its_worker(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def task(item: int) -> int:
        print("printed", item)
        print("complaint", item, file=sys.stderr)
        logging.getLogger("images").warning("logged %d", item)
        if item == 7:
            print("no end of line", end="")
        return item

    with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
        assert list(manager.map(range(7))) == list(range(7))
        assert list(manager.map([7])) == [7]
        out = err = ""
        deadline = time.monotonic() + 60
        # A line without an end leaves when its slot has nothing else to do.
        while "no end" not in out and time.monotonic() < deadline:
            assert list(manager.map([])) == []
            more = capsys.readouterr()
            out, err = out + more.out, err + more.err
    assert re.fullmatch(r"(\[local-[12]\] printed \d\n){8}\[local-[12]\] no end of line\n", out)
    for item in range(8):
        assert len(re.findall(rf"(?m)^\[local-[12]\] printed {item}$", out)) == 1
        assert len(re.findall(rf"(?m)^\[local-[12]\] complaint {item}$", err)) == 1
        assert len(re.findall(rf"(?m)^\[local-[12]\] .*images.*logged {item}$", err)) == 1


def test_sessions_are_audited(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO, logger="exoskel.audit"),
        ex.Manager(increase, ex.ParDegree(2)) as manager,
    ):
        list(manager.map([1]))
    lines = [record.getMessage() for record in caplog.records if record.name == "exoskel.audit"]
    assert len([line for line in lines if line.startswith("accepted worker local-")]) == 2


def test_progress_is_shown_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    with ex.Manager(ex.Farm(increase), ex.ParDegree(1)) as manager:
        assert list(manager.map(range(50), progress=True)) == list(range(1, 51))
        assert sum(manager.map(iter(range(50)), progress=True)) == sum(range(1, 51))
    out, err = capsys.readouterr()
    assert out == ""
    assert "50" in err


def test_classes_and_functions_of_the_script_itself_travel(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent("""
            import dataclasses, enum
            import exoskel as ex
            import neighbour

            OFFSET = 100

            class Colour(enum.Enum):
                RED = 1

            @dataclasses.dataclass
            class Point:
                x: int
                def moved(self, by):
                    return Point(self.x + by + OFFSET)

            class Trouble(Exception):
                pass

            def task(point):
                if point.x == 3:
                    raise Trouble(point)
                return neighbour.twice(point.moved(1).x), Point(point.x), Colour.RED

            if __name__ == "__main__":
                with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
                    results = list(manager.map([Point(n) for n in range(4)], errors="return"))
                assert [result[0] for result in results[:3]] == [202, 204, 206], results
                assert results[0][1] == Point(0) and type(results[0][1]) is Point, results
                assert results[0][2] is Colour.RED, results
                assert type(results[3]) is Trouble and results[3].args == (Point(3),), results
                print("good")
        """)
    )
    (tmp_path / "neighbour.py").write_text("def twice(item):\n    return 2 * item\n")
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "good\n", done.stderr


def test_the_search_path_of_the_manager_is_that_of_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "only_here.py").write_text("def half(item):\n    return item // 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    half: Any = __import__("only_here").half
    with ex.Manager(ex.Farm(half), ex.ParDegree(1)) as manager:
        assert list(manager.map([8, 9])) == [4, 4]
    del sys.modules["only_here"]


def test_children_run_in_processes_of_their_own_and_know_no_secrets_by_argument() -> None:
    def task(_: int) -> tuple[int, list[str]]:
        import os

        with open("/proc/self/cmdline", "rb") as file:
            return os.getpid(), file.read().decode().split("\0")

    with ex.Manager(ex.Farm(task), ex.ParDegree(1)) as manager:
        ((process, arguments),) = manager.map([0])
    assert process != os.getpid()
    assert all(len(argument) < 200 and "-----" not in argument for argument in arguments)
