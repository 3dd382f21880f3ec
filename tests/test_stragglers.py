"""Items that run for much longer than usual run at a second slot as well, and the first result counts."""

import time
from pathlib import Path
from typing import Any

import pytest
from tests.processes import eventually

import exoskel as ex


def slow_where_it_is_first(job: tuple[str, int]) -> tuple[int, str]:
    """Wait for an hour, but only where one of the items begins first; there, say how that ends."""
    import os
    import time
    from pathlib import Path

    folder, item = job
    mark = Path(folder, f"item-{item}")
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return item, "second"
    if item == 20:
        try:
            time.sleep(3600)
        except BaseException as error:
            Path(folder, "ended").write_text(f"{os.getpid()} {type(error).__name__}: {error}")
            raise
    time.sleep(0.01)
    return item, "first"


def test_the_first_result_of_two_counts(tmp_path: Path) -> None:
    jobs = [(str(tmp_path), item) for item in range(40)]
    # No other item takes so many times as long, unless its slot stands still for seconds.
    with ex.Manager(
        ex.Farm(slow_where_it_is_first), ex.ParDegree(2), stragglers=200.0, frame_items_max=1
    ) as manager:
        results = list(manager.map(jobs))
        # The slow slot ended the item, and goes on.
        again = list(manager.map(jobs))
        summary = manager.summary()
    assert [item for item, _ in results] == list(range(40))
    # Where the first run stands still, too, the second one may be done before it.
    assert results[20] == (20, "second")
    assert again == [(item, "second") for item in range(40)]
    process_id, how = (tmp_path / "ended").read_text().split(" ", 1)
    assert how == "ItemTimeoutError: nobody needs this item any more"
    (slow,) = [worker for worker in summary.workers if worker.process_ids == [int(process_id)]]
    assert slow.stragglers >= 1
    assert (slow.items_twice, slow.state) == (0, "working")
    assert "stragglers: worker" in str(summary)


def wait_long(job: tuple[str, int]) -> int:
    """Wait for a minute, but for the first items, and say how that ends."""
    import time
    from pathlib import Path

    folder, item = job
    if item < 2:
        return item
    Path(folder, f"begun-{item}").touch()
    try:
        time.sleep(60)
    except BaseException as error:
        Path(folder, f"ended-{item}").write_text(f"{type(error).__name__}: {error}")
        raise
    return item


def test_who_closes_an_iteration_ends_what_runs(tmp_path: Path) -> None:
    jobs = [(str(tmp_path), item) for item in range(8)]
    with ex.Manager(ex.Farm(wait_long), ex.ParDegree(2), frame_items_max=1) as manager:
        results: Any = manager.map(jobs)
        assert [next(results), next(results)] == [0, 1]
        assert eventually(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        results.close()
        # Neither was waited for, and no slot was lost.
        assert list(manager.map([(str(tmp_path), item % 2) for item in range(20)])) == [0, 1] * 10
        states = {worker.state for worker in manager.summary().workers}
    assert states == {"working"}
    ended = [path.read_text() for path in tmp_path.glob("ended-*")]
    assert ended == ["ItemTimeoutError: nobody needs this item any more"] * 2


def test_a_slow_item_runs_once_unless_asked_otherwise(tmp_path: Path) -> None:
    def mark(item: int) -> int:
        with (tmp_path / f"item-{item}").open("a") as file:
            file.write("x")
        time.sleep(0.5 if item == 5 else 0.005)
        return item

    with ex.Manager(ex.Farm(mark), ex.ParDegree(2), frame_items_max=1) as manager:
        assert list(manager.map(range(20))) == list(range(20))
        assert [worker.stragglers for worker in manager.summary().workers] == [0, 0]
    assert (tmp_path / "item-5").read_text() == "x"


@pytest.mark.parametrize("times", [1, 0.5, -3, float("nan"), True, "often"])
def test_an_impossible_number_of_times_is_named(times: Any) -> None:
    with pytest.raises(ValueError, match=r"stragglers=.*expected a number above 1"):
        ex.Manager(ex.Farm(abs), ex.ParDegree(1), stragglers=times)
