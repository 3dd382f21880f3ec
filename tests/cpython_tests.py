"""Where CPython's own tests are: ``python -m tests.cpython_tests`` fetches those of executors where no interpreter brings them.

Distributions tend to leave them out, and some releases forgot to install them. Debian has them in a package of its own, which is unpacked
into ``target``: nothing is installed, and nobody has to be root.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
FETCHED = ROOT / "target" / "cpython-tests"
NAME = "test_concurrent_futures"
# The releases whose tests of executors `cpython_executor` knows, the best first.
VERSIONS = ("3.13", "3.14", "3.12", "3.11")
RUNNING = "{}.{}".format(*sys.version_info)
# Debian's archive may be slow, or not be there.
FETCH_SECONDS = 120


class Found(NamedTuple):
    """An interpreter, and where else than in its library the tests are."""

    python: str
    places: list[Path]


@functools.cache
def find() -> Found | None:
    """Return an interpreter of this machine with CPython's tests of executors, or this one with those that were fetched."""
    homes = [*Path.home().glob(".pyenv/versions/*"), *Path.home().glob(".local/share/uv/python/*")]
    for version in VERSIONS:
        named = [shutil.which(f"python{version}")]
        kept = [str(home / "bin" / f"python{version}") for home in homes]
        for python in [*([sys.executable] if version == RUNNING else []), *named, *kept]:
            if python is not None and os.access(python, os.X_OK) and has_tests(python):
                return Found(python, [])
    if has_tests(sys.executable, FETCHED):
        return Found(sys.executable, [FETCHED])
    return None


def has_tests(python: str, *places: Path) -> bool:
    """Whether an interpreter can import the tests, and is one of the releases that we know."""
    ask = f"import sys, test.{NAME}; assert '%d.%d' % sys.version_info[:2] in {VERSIONS}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    done = subprocess.run([python, "-c", ask], env=environment, capture_output=True, check=False)
    return done.returncode == 0


def fetch() -> str:
    """Fetch the tests for this interpreter, and return why not where that can't be."""
    support = importlib.util.find_spec("test.support")
    if support is None or support.origin is None:
        return "this Python has no test.support"
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "this machine has no packages of Debian"
    shutil.rmtree(FETCHED, ignore_errors=True)
    unpacked = FETCHED / "unpacked"
    unpacked.mkdir(parents=True)
    package = f"libpython{RUNNING}-testsuite"
    download = ["apt-get", "--quiet=2", "download", package]
    why = run(*download)
    if why and os.geteuid() == 0:
        why = run("apt-get", "--quiet=2", "update") or run(*download)
    for archive in FETCHED.glob("*.deb"):
        why = why or run("dpkg-deb", "--extract", str(archive), str(unpacked))
    if why:
        return f"{package}: {why}"
    # A package of that name hides the one of the library: it has all that is there, and what is missing.
    (FETCHED / "test").mkdir()
    library = Path(support.origin).parent.parent
    for place in (*library.iterdir(), *unpacked.glob(f"usr/lib/python{RUNNING}/test/{NAME}*")):
        link = FETCHED / "test" / place.name
        if place.name != "__pycache__" and not link.exists():
            link.symlink_to(place)
    return ""


def run(*command: str) -> str:
    """Run a command in the folder of what is fetched, and return what went wrong."""
    try:
        done = subprocess.run(
            command,
            cwd=FETCHED,
            capture_output=True,
            text=True,
            timeout=FETCH_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{command[0]} did not end within {FETCH_SECONDS} s"
    lines = done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"]
    return lines[-1] if done.returncode else ""


if __name__ == "__main__" and find() is None:
    why_not = fetch()
    if why_not:
        print(f"CPython's own tests of executors will be skipped: {why_not}")
