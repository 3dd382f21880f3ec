"""Modules beside the script travel to the workers."""

import hashlib
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from exoskel import modules
from exoskel.errors import ProgramError

FILES = {
    "job.py": """
        import pickle, sys
        import cloudpickle
        import numpy
        import filters
        from shapes.round import circle
        from exoskel import modules

        def direct(item):
            return filters.smooth(item)

        def late(item):
            import lazy
            return lazy.value

        def third(item):
            return numpy.float64(item)

        def closure(radius):
            return lambda item: circle(item) * radius

        functions = [direct, late, third, closure(2), filters.broken]
        sources = modules.collect(functions)
        if "pickles" in sys.argv:
            functions = [cloudpickle.dumps(f) for f in functions]
            sources = modules.collect(functions)
            functions = [pickle.loads(f) for f in functions]
        needed = modules.requirements(functions)
        pickle.dump((sources, needed, [cloudpickle.dumps(f) for f in functions]), open(sys.argv[1], "wb"))
    """,
    "filters.py": """
        import deeper.inside
        from shapes import SIDES

        try:
            import pytest
        except ImportError:
            pytest = None
        if SIDES:
            import _pytest

        def smooth(item):
            import cryptography
            return (item, SIDES, deeper.inside.depth)

        def broken(item):
            raise ValueError(item)  # the line that the traceback shows
    """,
    "lazy.py": "value = 'lazy'",
    "unused.py": "value = 'never imported'",
    "shapes/__init__.py": "SIDES = 4",
    "shapes/round.py": """
        from . import constants
        from .constants import PI as pi

        def circle(item):
            return constants.PI * item + 0 * pi
    """,
    "shapes/constants.py": "PI = 3",
    "deeper/inside.py": "depth = 2",
    ".venv/lib/python3/site-packages/installed.py": "value = 1",
}

WORKER = """
    import pickle, sys, traceback
    from exoskel import modules

    sources, needed, functions = pickle.load(open(sys.argv[1], "rb"))
    assert "filters" not in sys.modules
    modules.install(sources.values())
    direct, late, third, closure, broken = map(pickle.loads, functions)
    print(direct(1), late(1), closure(5))
    try:
        broken(1)
    except ValueError:
        print(traceback.format_exc())
    print(modules.missing([*needed, "surely_not_installed"]))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Write a script and its neighbours."""
    for name, text in FILES.items():
        path = tmp_path / "project" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "project"


def run(path: Path, *arguments: str, directory: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(path), *arguments],
        capture_output=True,
        text=True,
        cwd=directory,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_modules_travel_with_the_functions_that_need_them(project: Path, tmp_path: Path) -> None:
    parcel = tmp_path / "parcel"
    run(project / "job.py", str(parcel), directory=tmp_path)
    worker = tmp_path / "elsewhere" / "worker.py"
    worker.parent.mkdir()
    worker.write_text(textwrap.dedent(WORKER))
    # Away, so that they can only come out of the parcel.
    project.rename(tmp_path / "moved")

    output = run(worker, str(parcel), directory=worker.parent)

    assert "(1, 4, 2) lazy 30" in output
    assert "raise ValueError(item)  # the line that the traceback shows" in output
    assert "['surely_not_installed']" in output


@pytest.mark.parametrize("of", ["functions", "pickles"])
def test_only_what_is_needed_travels(of: str, project: Path, tmp_path: Path) -> None:
    import pickle

    parcel = tmp_path / "parcel"
    run(project / "job.py", str(parcel), of, directory=tmp_path)
    with open(parcel, "rb") as file:
        sources, needed, _ = pickle.load(file)
    assert set(sources) == {
        "deeper",
        "deeper.inside",
        "filters",
        "lazy",
        "shapes",
        "shapes.constants",
        "shapes.round",
    }
    assert needed == ["numpy"]
    assert sources["shapes"].is_package
    assert (
        sources["filters"].digest
        == hashlib.sha256((project / "filters.py").read_bytes()).hexdigest()
    )


def test_what_is_loaded_beside_the_script_travels_too(project: Path, tmp_path: Path) -> None:
    (project / "items.py").write_text("value = 3")
    job = project / "other.py"
    job.write_text(
        "import sys\nimport items\nfrom exoskel import modules\n"
        "print(sorted(modules.collect([])), sorted(modules.travelling([])), modules.requirements([]))\n"
    )
    assert run(job, directory=tmp_path) == "[] ['items'] []\n"


def test_a_changed_source_replaces_the_loaded_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(modules, "_finder", modules._SourceFinder())
    for value in (b"1", b"2"):
        modules.install(
            [
                source("changing_module", b"value = " + value),
                source("its_user", b"from changing_module import value"),
            ]
        )
        namespace: dict[str, object] = {}
        exec(
            "import changing_module, its_user; seen = changing_module.value, its_user.value",
            namespace,
        )
        assert namespace["seen"] == (int(value), int(value))
    for name in ("changing_module", "its_user"):
        del sys.modules[name]


def source(name: str, text: bytes) -> modules.ModuleSource:
    return modules.ModuleSource(
        name, hashlib.sha256(text).hexdigest(), text, is_package=False, filename=f"/there/{name}.py"
    )


def test_a_source_that_is_not_its_digest_is_refused() -> None:
    with pytest.raises(ProgramError, match="doesn't match its digest"):
        modules.install([source("altered", b"value = 1")._replace(source=b"value = 2")])


def test_exoskel_itself_is_never_replaced() -> None:
    with pytest.raises(ProgramError, match="expected modules of the user only"):
        modules.install([source("exoskel.restricted", b"loads = None")])


def test_a_function_that_cannot_be_pickled_is_named() -> None:
    import threading

    lock = threading.Lock()

    def guarded(item: int) -> int:
        with lock:
            return item

    with pytest.raises(ProgramError, match="guarded"):
        modules.collect([guarded])


def test_lacking_names_module_and_worker() -> None:
    try:
        import surely_not_installed  # type: ignore[import-not-found]  # noqa: F401
    except ImportError as error:
        text = modules.lacking(error, "node7")
    assert "node7" in text
    assert "surely_not_installed" in text
