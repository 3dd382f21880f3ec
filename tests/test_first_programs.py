"""Programs as people write them first: scripts whose functions, classes and constants nobody else can import."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

HEAD = """\
import collections
import dataclasses
import enum
import functools
import multiprocessing
import sys
import threading

import numpy

import exoskel as ex


def run(program, items=range(3), slots=1, **options):
    with ex.Manager(program, ex.ParDegree(slots)) as manager:
        return list(manager.map(items, **options))

"""


def run_script(tmp_path: Path, source: str, *start: str) -> list[str]:
    """Run a script of its own, or what `start` says of it, and return the lines that it prints."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + textwrap.dedent(source))
    done = subprocess.run(
        [sys.executable, *(start or (str(script),))],
        input=script.read_text() if start == ("-",) else None,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_callables_that_refer_to_the_script_travel(tmp_path: Path) -> None:
    lines = run_script(
        tmp_path,
        """
        OFFSET = 10

        def add(offset, item):
            return offset + item

        def twice(function):
            @functools.wraps(function)
            def wrapper(item):
                return 2 * function(item)
            return wrapper

        @twice
        def decorated(item):
            return OFFSET + item

        @functools.lru_cache(maxsize=None)
        def fibonacci(item):
            return item if item < 2 else fibonacci(item - 1) + fibonacci(item - 2)

        def even(item):
            return True if item == 0 else odd(item - 1)

        def odd(item):
            return False if item == 0 else even(item - 1)

        class Base:
            def __init__(self, factor=3):
                self.factor = factor

            def method(self, item):
                return self.factor * item

        class Derived(Base):
            def method(self, item):
                return super().method(item) + OFFSET

            def __call__(self, item):
                return self.method(item)

            @staticmethod
            def static(item):
                return item + OFFSET

            @classmethod
            def named(cls, item):
                return f"{cls.__name__}{item}"

        @dataclasses.dataclass
        class Settings:
            functions: dict

            def __call__(self, item):
                return self.functions["add"](OFFSET, item)

        def local():
            offset = 1
            @functools.cache
            def cached(item):
                return item + offset
            return cached

        @functools.singledispatch
        def dispatched(item):
            return "other"

        @dispatched.register
        def _(item: int):
            return "integer"

        class Lazy:
            @functools.cached_property
            def offset(self):
                return OFFSET

            def add(self, item):
                return self.offset + item

        def call(pair):
            function, item = pair
            return function(item)

        CALLABLES = [
            functools.partial(add, 10),
            functools.partial(functools.partial(add), offset := 5),
            numpy.vectorize(functools.partial(add, 1)),
            decorated,
            fibonacci,
            even,
            Derived().method,
            Derived(5),
            Derived.static,
            Derived.named,
            functools.partial(Base.method, Derived()),
            Settings({"add": add}),
            local(),
            dispatched,
            Lazy().add,
            ex.Seq(functools.partial(add, 10)),
        ]
        for function in CALLABLES:
            expected = list(map(getattr(function, "function", function), range(3)))
            assert run(function) == expected, function
        functions = [function for function in CALLABLES if not isinstance(function, ex.Seq)]
        # As items, and as arguments of calls.
        assert run(call, [(function, 2) for function in functions]) == [f(2) for f in functions]
        with ex.Executor(1) as pool:
            assert [pool.submit(function, 2).result() for function in functions] == [f(2) for f in functions]
        print("all")
        """,
    )
    assert lines == ["all"]


CLASSES = """
@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    scale = 1

    def scaled(self):
        return self.x * self.scale * FACTOR

class Colour(enum.Enum):
    RED = 1

class Flags(enum.Flag):
    ONE = 1
    TWO = 2

Pair = collections.namedtuple("Pair", "first second")

class Tree:
    class Leaf:
        pass

@dataclasses.dataclass(slots=True)
class Slotted:
    one: int
    two: object = None

class Trouble(Exception):
    def __init__(self, one, two):
        super().__init__(one, two)
        self.one = one

class Worse(Trouble):
    def __init__(self, one):
        super().__init__(one, None)

    def __reduce__(self):
        return Worse, (self.one,)

class Wordy(Exception):
    def __init__(self, item):
        super().__init__(f"bad {item}")
        self.item = item

class Named(Exception):
    def __init__(self, text, *, code):
        super().__init__(text)
        self.code = code
        self.busy = threading.Lock()

FACTOR = 1
"""


def test_instances_of_the_script_s_classes_come_back_as_such(tmp_path: Path) -> None:
    lines = run_script(
        tmp_path,
        CLASSES
        + textwrap.dedent("""
        def make(item):
            return [Point(item), Colour.RED, Flags.ONE | Flags.TWO, Pair(item, Point(2)), Tree.Leaf(), Point, make, Slotted(1, Slotted(2))]

        def check(values):
            point, colour, flags, pair, leaf, kind, function, slotted = values
            assert isinstance(point, Point) and colour is Colour.RED and flags & Flags.TWO
            assert isinstance(pair, Pair) and isinstance(leaf, Tree.Leaf) and kind is Point
            assert slotted == Slotted(1, Slotted(2)) and not hasattr(slotted, "__dict__")
            return values

        scaled, own = Point.scaled, dict(vars(Point))
        programs = [make, ex.Pipeline(make, check), ex.Pipeline(ex.Seq(make), ex.Seq(check), ex.Seq(check))]
        for program in programs:
            for values in run(program, slots=2):
                point, colour, flags, pair, leaf, kind, function, slotted = check(values)
                assert type(point) is Point and type(pair) is Pair and type(leaf) is Tree.Leaf
                assert function is make and type(slotted.two) is Slotted
        # What came back has changed nothing of the classes that are here.
        assert dict(vars(Point)) == own and Point.scaled is scaled
        FACTOR = 100
        assert point.scaled() == 200

        def local():
            class Inner:
                scale = 1
            def task(item):
                inner = Inner()
                inner.item = item
                return inner
            Inner.scale, result = 7, run(task)
            assert [type(one) is Inner and one.item for one in result] == [False, 1, 2]
            Inner.scale = 8
            return run(lambda inner: inner, result)[0].scale

        assert local() == 8
        # As items they arrive as instances of the class that the function knows.
        assert run(lambda value: isinstance(value, Point), [Point(1), 2]) == [True, False]
        assert run(Point.scaled, [Point(3)]) == [300]
        points = [Point(item) for item in range(300)]
        assert run(ex.Pipeline(lambda point: (point, point.x), ex.Seq(lambda pair: pair[0])), points) == points
        Point.scale = 2
        assert run(lambda point: point.scale, [Point(1)]) == [2]
        print("all")
        """),
    )
    assert lines == ["all"]


def test_exceptions_of_the_script_are_caught_as_such(tmp_path: Path) -> None:
    lines = run_script(
        tmp_path,
        CLASSES
        + textwrap.dedent("""
        def task(item):
            raise Trouble(item, [Point(1)]) if item == 0 else Worse(item)

        try:
            run(task, [0])
        except Trouble as error:
            assert type(error.args[1][0]) is Point
            print(type(error) is Trouble, error.one, *error.__notes__)
        try:
            run(task, [1])
        except Worse as error:
            print(type(error) is Worse, error.one, *error.__notes__)
        with ex.Executor(1) as pool:
            print(type(pool.submit(task, 1).exception()) is Worse)

        def fail(item):
            error = Named("odd", code=item)
            raise ExceptionGroup("several", [error, ValueError()]) if item else error

        def complain(item):
            raise Wordy(item)

        (wordy,) = run(complain, [5], errors="return")
        print(type(wordy) is Wordy, wordy, wordy.item)

        # Pickle can't make such an exception, and the lock in it can't travel.
        one, several = run(fail, range(2), errors="return")
        print(type(one) is Named, one, one.code, hasattr(one, "busy"), *one.__notes__)
        try:
            raise several
        except* Named as group:
            print(group.exceptions[0].code)
        except* ValueError:
            pass
        """),
    )
    assert lines == [
        "True 0 item 0: 0",
        "True 1 item 0: 1",
        "True",
        "True bad 5 5",
        "True odd 0 False item 0: 0",
        "1",
    ]


def test_functions_travel_as_they_are_when_map_is_called(tmp_path: Path) -> None:
    lines = run_script(
        tmp_path,
        """
        OFFSET = 1
        task = lambda item: late(item) + OFFSET
        with ex.Manager(task, ex.ParDegree(2)) as manager:
            def late(item):
                return 10 * item
            print(*manager.map(range(3)))
            OFFSET = 5
            print(*manager.map(range(3)))
            def late(item):
                return -item
            print(*manager.map(range(3)))

        class Application:
            def __init__(self):
                self.factor = 2
                self.manager = ex.Manager(self.task, ex.ParDegree(1))

            def task(self, item):
                return self.factor * item

        application = Application()
        with application.manager as manager:
            print(*manager.map(range(3)))
        """,
    )
    assert lines == ["1 11 21", "5 15 25", "5 4 3", "0 2 4"]


def test_a_name_that_only_the_script_has_is_named(tmp_path: Path) -> None:
    lines = run_script(
        tmp_path,
        """
        class Missing:
            def __reduce__(self):
                return "MISSING"

        MISSING = Missing()
        try:
            run(functools.partial(print, MISSING))
        except AttributeError as error:
            print(error)
        """,
    )
    assert lines == [
        "Can't get attribute 'MISSING' on <what this worker has of the script: nothing>"
    ]


CHILD = """
    class Point:
        def __init__(self, x):
            self.x = x

    def task(item):
        return Point(item + OFFSET)

    def child(queue):
        assert __name__ == "__mp_main__"
        results = run(task)
        points = run(lambda point: point, results)
        with ex.Executor(1) as pool:
            points.append(pool.submit(task, 5).result())
        queue.put([type(point) is Point and point.x for point in points])

    OFFSET = 1
    if __name__ == "__main__":
        for method in ("spawn", "forkserver"):
            context = multiprocessing.get_context(method)
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            print(*queue.get(timeout=60))
            process.join()
"""


def test_a_child_of_multiprocessing_can_have_a_manager(tmp_path: Path) -> None:
    assert run_script(tmp_path, CHILD) == ["1 2 3 6"] * 2


@pytest.mark.parametrize("start", ["-c", "-", "-m"])
def test_a_program_needs_no_file_of_its_own(start: str, tmp_path: Path) -> None:
    source = """
    class Point:
        def __init__(self, x):
            self.x = x

    def task(factor, item):
        return Point(factor * item)

    print(*(isinstance(point, Point) and point.x for point in run(functools.partial(task, 2))))
    """
    arguments = {
        "-c": ("-c", HEAD + textwrap.dedent(source)),
        "-": ("-",),
        "-m": ("-m", "package.job"),
    }[start]
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "job.py").write_text(HEAD + textwrap.dedent(source))
    assert run_script(tmp_path, source, *arguments) == ["0 2 4"]
