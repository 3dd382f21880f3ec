"""Slots have numbers, and the libraries in them keep to their share of the cores."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from functools import partial
from pathlib import Path

import pytest
from tests.processes import eventually
from tests.site import Site

import exoskel as ex
from exoskel import inner_threads
from exoskel.cores import cpu_quota, usable_cores


def environment(place: Path, slots: int, _item: object) -> tuple[int, str, str | None]:
    """Say what this slot's environment has, once so many slots have an item."""
    (place / str(os.getpid())).touch()
    assert eventually(lambda: len(list(place.iterdir())) >= slots)
    return os.getpid(), os.environ["EXOSKEL_SLOT"], os.environ.get("OMP_NUM_THREADS")


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take away what whoever runs the tests has set."""
    for name in inner_threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_slots_have_numbers_and_their_replacements_have_them_again(tmp_path: Path) -> None:
    place = tmp_path / "met"
    place.mkdir()
    with ex.Manager(ex.Farm(partial(environment, place, 3)), ex.ParDegree(3)) as manager:
        seen = {(process, slot) for process, slot, _ in manager.map(range(9))}
        assert sorted(slot for _, slot in seen) == ["0", "1", "2"]
        process, number = seen.pop()
        os.kill(process, 9)
        (place / str(process)).unlink()
        again = {(process, slot) for process, slot, _ in manager.map(range(30))}
    assert seen < again
    assert {slot for _, slot in again - seen} == {number}


def test_slots_of_a_worker_have_numbers(site: Site, tmp_path: Path) -> None:
    place = tmp_path / "met"
    place.mkdir()
    worker = site.worker("here", "--inner-threads", "3", slots=2)
    with site.connect(ex.Farm(partial(environment, place, 2)), 2, worker) as manager:
        seen = {tuple(outcome) for outcome in manager.map(range(8))}
    assert {(slot, threads) for _, slot, threads in seen} == {("0", "3"), ("1", "3")}


@pytest.mark.parametrize(
    ("inner", "variable", "expected"),
    [
        (None, None, str(max(1, usable_cores() // 2))),
        (None, "7", "7"),
        (5, "7", "5"),
        (0, None, None),
        (0, "7", "7"),
    ],
)
def test_a_slot_has_its_share(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inner: int | None,
    variable: str | None,
    expected: str | None,
) -> None:
    if variable is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", variable)
    with ex.Manager(
        ex.Farm(partial(environment, tmp_path, 2)), ex.ParDegree(2), inner_threads=inner
    ) as manager:
        assert {threads for _, _, threads in manager.map(range(4))} == {expected}


def test_a_worker_divides_by_its_slots(site: Site, tmp_path: Path) -> None:
    worker = site.worker("here", slots=64)
    with site.connect(ex.Farm(partial(environment, tmp_path, 1)), 1, worker) as manager:
        assert [threads for _, _, threads in manager.map([0])] == ["1"]


def blas_threads(_item: object) -> int:
    """Count the threads that BLAS starts, with the import or later."""
    assert "numpy" not in sys.modules
    before = len(os.listdir("/proc/self/task"))
    import numpy as np

    np.cov(np.random.default_rng(1).normal(size=(300, 2000)))
    return len(os.listdir("/proc/self/task")) - before


def test_blas_starts_no_threads_beyond_its_share() -> None:
    usable = usable_cores()
    with ex.Manager(ex.Farm(blas_threads), ex.ParDegree(usable)) as manager:
        assert list(manager.map([0])) == [0]


def test_numpy_is_not_loaded_before_the_limit() -> None:
    script = """
        import sys
        import exoskel as ex

        def loaded(_item):
            return "numpy" in sys.modules

        if __name__ == "__main__":
            with ex.Manager(ex.Farm(loaded), ex.ParDegree(1)) as manager:
                print(list(manager.map([0])))
    """
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stdout == "[False]\n"


@pytest.mark.parametrize("wrong", [-1, 1.5, "2", True])
def test_what_is_no_number_of_threads_is_told(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"inner_threads=.*expected a whole number of at least 0"):
        ex.Manager(abs, ex.ParDegree(1), inner_threads=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("files", "groups", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5),
        ({"cpu.max": "max 100000\n"}, "0::/\n", None),
        ({"cpu.max": "max 100000\n", "a/cpu.max": "400000 100000"}, "0::/a/b\n", 4.0),
        ({"cpu.max": "300000 100000\n", "a/cpu.max": "400000 100000"}, "0::/a\n", 3.0),
        (
            {"cpu/x/cpu.cfs_quota_us": "50000", "cpu/x/cpu.cfs_period_us": "100000"},
            "4:memory:/y\n3:cpu,cpuacct:/x\n0::/\n",
            0.5,
        ),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, "3:cpu:/\n", None),
        ({}, "", None),
    ],
)
def test_quotas_of_control_groups_count(
    tmp_path: Path, files: dict[str, str], groups: str, cores: float | None
) -> None:
    for name, text in files.items():
        path = tmp_path / "root" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "cgroup").write_text(groups)
    found = cpu_quota(str(tmp_path / "root"), str(tmp_path / "cgroup"))
    assert found == cores
