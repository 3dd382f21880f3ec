"""``exoskel config``, and programs in C and Fortran that are compiled as it says."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.documents import ROOT, blocks

import exoskel
from exoskel.cli import config, main

PAGE = ROOT / "docs/guide/coupling.md"
HEADERS = ROOT / "crates/c/include"


def shell(line: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as a user of this environment types it."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", line],
        cwd=place,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_options_are_printed_on_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "--libs", "--cflags"]) == 0
    include, search, path, name = capsys.readouterr().out.removesuffix("\n").split(" ")
    prefix = include.removeprefix("-I").removesuffix("/include")
    assert (search, path, name) == (f"-L{prefix}/lib", f"-Wl,-rpath,{prefix}/lib", "-lexoskel")
    assert main(["config", "--prefix"]) == 0
    assert capsys.readouterr().out == f"{prefix}\n"
    assert main(["config", "--fortran"]) == 0
    assert capsys.readouterr().out == f"{prefix}/include/exoskel.f90\n"


def test_all_of_them_are_there_for_people_and_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["--prefix", "--cflags", "--fortran", "--libs"]
    assert main(["config", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["version"] == exoskel.__version__
    assert f"--libs     {' '.join(answer['libs'])}" == lines[3]
    assert Path(answer["fortran"]).read_text() == (HEADERS / "exoskel.f90").read_text()
    assert (Path(answer["prefix"]) / "include/exoskel.h").read_text() == (
        HEADERS / "exoskel.h"
    ).read_text()


def test_an_installation_without_the_library_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config, "_PREFIX", tmp_path)
    assert main(["config", "--cflags"]) == 1
    error = capsys.readouterr().err
    assert f"this installation has no {tmp_path}/include/exoskel.h: install a wheel" in error


@pytest.mark.parametrize("name", ["my packages", "lab,1", "all*"])
def test_a_place_that_a_shell_would_take_apart_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    place = tmp_path / name
    shutil.copytree(config._PREFIX, place)
    monkeypatch.setattr(config, "_PREFIX", place)
    assert main(["config", "--libs"]) == 1
    assert "take the words from exoskel config --json" in capsys.readouterr().err
    assert main(["config", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prefix"] == str(place)


def test_the_programs_of_the_guide_run_as_it_says(tmp_path: Path) -> None:
    """Its C and Fortran, compiled by its commands, with warnings as errors."""
    for compiler in ("cc", "gfortran"):
        if shutil.which(compiler) is None:
            pytest.skip(f"{compiler} is missing: apt-get install gcc gfortran")
    found = blocks(PAGE.read_text())
    for block in found:
        if block.file in ("ocean.c", "atmosphere.f90", "languages.toml"):
            (tmp_path / block.file).write_text(block.source)
    (commands,) = (block.source for block in found if "gfortran" in block.source)
    strict = re.sub("^(cc|gfortran) ", r"\1 -Wall -Wextra -Werror ", commands, flags=re.M)
    done = shell(strict, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    means = re.findall(r"^atmosphere \| +([\d.]+) *$", done.stdout, re.M)
    assert [float(mean) for mean in means] == list(range(10))
    assert re.search(r"^ocean\.sst to atmosphere\.sst +10 +40\.0 MiB", done.stdout, re.M)


def test_a_program_finds_the_library_from_anywhere(tmp_path: Path) -> None:
    (tmp_path / "version.c").write_text(
        '#include <stdio.h>\n#include "exoskel.h"\nint main(void) { puts(exoskel_version()); return 0; }\n'
    )
    done = shell(
        "cc -o version version.c $(exoskel config --cflags --libs)\ncd /\nenv -i $OLDPWD/version",
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, f"{exoskel.__version__}\n"), done.stderr
