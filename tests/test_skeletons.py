"""The public names, and programs made of skeletons."""

import ast
import pickle
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

import exoskel
from exoskel import Farm, Manager, ParDegree, Pipeline, Seq
from exoskel.errors import ExoskelError, RemoteTraceback, WorkerLostError, with_remote_traceback
from exoskel.skeletons import flatten


def one(item: int) -> int:
    """Stage one."""
    return item + 1


def two(item: int) -> int:
    """Stage two."""
    return item * 2


async def coroutine(item: int) -> int:
    """No stage."""
    return item


def generator(item: int) -> Any:
    """No stage either."""
    yield item


def test_programs_flatten_to_structure_and_functions() -> None:
    structure, functions = flatten(Pipeline(Seq(one), Farm(Pipeline(Seq(two), Seq(one))), two))
    assert functions == [one, two]
    inner = ("pipeline", (("seq", 1), ("seq", 0)))
    assert structure == ("pipeline", (("seq", 0), ("farm", inner), ("farm", ("seq", 1))))


def test_a_function_alone_is_a_farm_wherever_it_stands() -> None:
    assert (
        flatten(one)
        == flatten(Farm(one))
        == flatten(Farm(Seq(one)))
        == (("farm", ("seq", 0)), [one])
    )
    assert Pipeline(one, Farm(two)) == Pipeline(Farm(one), two)
    assert Farm(one).stage == Seq(one)
    assert flatten(Seq(one)) == (("seq", 0), [one])


def test_callables_that_compare_equal_stay_apart() -> None:
    class Scale:
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            return True

        def __call__(self, item: int) -> int:
            return item

    first, second = Scale(), Scale()
    structure, functions = flatten(Pipeline(Seq(first), Seq(second), Seq(first)))
    assert structure == ("pipeline", (("seq", 0), ("seq", 1), ("seq", 0)))
    assert functions[0] is first
    assert functions[1] is second


def test_skeletons_are_values() -> None:
    program = Pipeline(Seq(one), two)
    assert program == Pipeline(Seq(one), Farm(Seq(two)))
    assert hash(program) == hash(Pipeline(Seq(one), Farm(two)))
    assert program != Pipeline(one, two)
    assert pickle.loads(pickle.dumps(program)) == program
    assert repr(program) == "Pipeline(Seq(one), Farm(two))"
    with pytest.raises(AttributeError, match="frozen"):
        program.stages = ()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "arguments", "said"),
    [
        (Pipeline, (), "got a Pipeline without stages, expected at least one"),
        (Pipeline, (one, "two"), "got 'two' in stage 2 of Pipeline, expected a function"),
        (Farm, (4,), "got 4 in Farm, expected a function .* ParDegree"),
        (Farm, (Farm,), "got the class Farm itself in Farm, expected an instance"),
        (Seq, (None,), "got None in Seq"),
        (Seq, (coroutine,), "got the coroutine function coroutine in Seq"),
        (Seq, (generator,), "got the generator function generator in Seq"),
        (ParDegree, ("4",), "got '4' as parallel degree"),
        (ParDegree, (True,), "got True as parallel degree"),
        (flatten, (3,), "got 3 in a program"),
    ],
)
def test_what_is_no_skeleton_is_named(make: Any, arguments: tuple[Any, ...], said: str) -> None:
    with pytest.raises(TypeError, match=said):
        make(*arguments)


def test_par_degree_is_at_least_one() -> None:
    assert ParDegree(3).slots == 3
    with pytest.raises(ValueError, match="at least 1 slot"):
        ParDegree(0)


def test_errors_keep_builtin_parents_and_travel() -> None:
    for name in (
        "LinkError",
        "AuthenticationError",
        "RefusedError",
        "VersionError",
        "NoWorkerError",
    ):
        assert issubclass(getattr(exoskel, name), (ExoskelError, ConnectionError))
        assert issubclass(getattr(exoskel, name), ConnectionError)
    for name in ("PolicyError", "CredentialError", "SizeLimitError"):
        assert issubclass(getattr(exoskel, name), ValueError)
    lost = pickle.loads(pickle.dumps(WorkerLostError("gone", item=7, workers=3)))
    assert (str(lost), lost.item, lost.workers) == ("gone", 7, 3)


def test_remote_traceback_is_the_cause() -> None:
    error = with_remote_traceback(ValueError("x"), "Traceback: line 1\n", "node1")
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "node1" in str(error.__cause__)
    assert "Traceback: line 1" in str(error.__cause__)


def test_public_names_are_those_that_type_checkers_see() -> None:
    with open(exoskel.__file__, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    imported = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert imported == set(exoskel.__all__)
    assert set(exoskel.__all__) <= set(dir(exoskel))
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        exoskel.Nothing  # noqa: B018


def test_import_is_light() -> None:
    """What an import costs is what it loads: nothing but the package itself."""
    code = "import sys; before = set(sys.modules); import exoskel; print(*sorted(set(sys.modules) - before))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert loaded == ["exoskel"]


def with_a_lock(item: int) -> tuple[int, object]:
    """Return what no pickle can hold."""
    time.sleep(0.003)
    return item, threading.Lock()


def without_the_lock(held: tuple[int, object]) -> int:
    """Return the item."""
    time.sleep(0.004)
    return held[0]


def test_what_cannot_travel_between_stages_stays_at_its_slot() -> None:
    """Where the manager ends a frame is its own affair: it must not decide whether values between a serial stage and a farm are pickled."""
    program = Pipeline(Seq(with_a_lock), Farm(without_the_lock))
    with Manager(program, ParDegree(2)) as manager:
        assert list(manager.map(range(60))) == list(range(60))
