"""Modules beside the script travel with the functions of a job."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SECONDS = 120.0
FILES = {
    "program.py": """
        import os
        import sys

        import filters
        import numpy as np
        from shapes.round import Circle

        import exoskel as ex


        def smooth(here, circle):
            import lazy

            return [filters.smooth(circle.radius), circle.area(), lazy.value, int(np.add(1, 1))]


        if __name__ == "__main__":
            kind = sys.argv[1]
            if kind == "elsewhere":
                # As on a host that has nothing of it.
                import lazy

                sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
            sandbox = ex.Sandbox(network="none") if kind == "sandbox" else None
            with ex.Job() as job:
                started = job.start(smooth, count=2, arguments=[Circle(2)], sandbox=sandbox)
                print(started.values(timeout=60))
                print(job.start(filters.doubled, arguments=[4], sandbox=sandbox).values(timeout=60))
    """,
    "filters.py": """
        from deeper import DEPTH


        def smooth(item):
            return item * DEPTH


        def doubled(here, item):
            return 2 * item
    """,
    "deeper.py": "DEPTH = 7",
    "lazy.py": "value = 'lazy'",
    "shapes/__init__.py": "",
    "shapes/round.py": """
        class Circle:
            def __init__(self, radius):
                self.radius = radius

            def area(self):
                return 3 * self.radius**2
    """,
}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "place" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    return tmp_path / "place" / "program.py"


def ran(program: Path, kind: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(program), kind]
    return subprocess.run(
        words, cwd="/", capture_output=True, text=True, timeout=SECONDS, check=False
    )


@pytest.mark.parametrize("kind", ["here", "elsewhere", "sandbox"])
def test_modules_beside_the_script_travel(program: Path, kind: str) -> None:
    found = ran(program, kind)
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["[[14, 12, 'lazy', 2], [14, 12, 'lazy', 2]]", "[8]"]


def test_a_module_that_can_not_be_read_is_named_before_anything_starts(program: Path) -> None:
    (program.parent / "deeper.py").unlink()
    text = "import sys, types\nsys.modules['deeper'] = types.ModuleType('deeper')\n"
    text += f"sys.modules['deeper'].__file__ = {str(program.parent / 'deeper.py')!r}\n"
    text += "sys.modules['deeper'].DEPTH = 7\n"
    program.write_text(text + program.read_text())
    found = ran(program, "here")
    assert found.returncode == 1
    assert "can't read the source of module deeper" in found.stderr


def test_a_traceback_has_the_lines_of_a_module_that_has_travelled(program: Path) -> None:
    module = program.parent / "filters.py"
    module.write_text(
        module.read_text() + "\n\ndef fail(here, item):\n    raise ValueError('too few')\n"
    )
    program.write_text(program.read_text().replace("filters.doubled", "filters.fail"))
    found = ran(program, "sandbox")
    assert f'File "{module}"' in found.stderr
    assert "raise ValueError('too few')" in found.stderr
