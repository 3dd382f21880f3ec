"""CPython's own tests of executors, run by an interpreter of this machine that brings them."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest
from tests import cpython_tests

import exoskel

CASES = (
    "ExecutorTest",
    "WaitTests",
    "AsCompletedTests",
    "ExecutorShutdownTest",
    "InitializerTest",
)

Runs = dict[str, tuple["subprocess.Popen[bytes]", Path]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """Have a process for each case, and the file that it writes; all at once, because they sleep most of the time."""
    found = cpython_tests.find()
    if found is None:
        pytest.skip(
            "no Python from 3.11 on with test.test_concurrent_futures: python -m tests.cpython_tests fetches it from Debian's packages, pyenv and uv build interpreters with it"
        )
    place = tmp_path_factory.mktemp("cpython")
    # The extension module is of the stable interface, cloudpickle plain Python: both suit any interpreter from 3.11 on.
    (place / "cloudpickle").symlink_to(Path(cloudpickle.__file__).parent)
    places = [Path(exoskel.__file__).parents[1], cpython_tests.ROOT, place, *found.places]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, places))}
    begun: Runs = {}
    try:
        for case in CASES:
            command = [found.python, "-m", "unittest", f"tests.cpython_executor.{case}"]
            with open(place / case, "wb") as said:
                process = subprocess.Popen(
                    command, env=environment, stdout=said, stderr=subprocess.STDOUT
                )
            begun[case] = process, place / case
        # What one of them starts must not count for another's test.
        for process, _ in begun.values():
            process.wait(timeout=240)
        yield begun
    finally:
        for process, _ in begun.values():
            process.kill()
            process.wait()


@pytest.mark.parametrize("case", CASES)
def test_cpython_tests_pass(case: str, runs: Runs) -> None:
    process, said = runs[case]
    text = said.read_text()
    assert process.returncode == 0, text
    assert "OK" in text
    assert "skipped" not in text
