"""Constants that many tasks use: in memory once a host, read-only, wherever a function or an item refers to them."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.processes import eventually
from tests.site import Site

import exoskel as ex

COUNT = 1 << 20


def inode(array: np.ndarray[Any, Any]) -> str:
    """Return which file the memory of an array belongs to."""
    address = array.__array_interface__["data"][0]
    with open("/proc/self/maps", encoding="ascii") as file:
        for line in file:
            span, _, _, device, number, *name = line.split()
            first, last = (int(part, 16) for part in span.split("-"))
            if first <= address < last:
                return f"{device} {number} {name[:1]}"
    return "nowhere"


def look(table: ex.Shared[np.ndarray[Any, Any]], index: int) -> tuple[int, float, bool, str]:
    """Use a shared array, and say what is known of it."""
    array = table.value
    assert table.value is array
    return os.getpid(), float(array[index]), array.flags.writeable, inode(array)


def meet(place: Path, slots: int, index: int) -> None:
    """Wait until so many slots have an item each."""
    (place / f"{os.getpid()}").touch()
    assert eventually(lambda: len(list(place.iterdir())) >= slots), f"item {index} is alone"


def look_together(
    table: ex.Shared[np.ndarray[Any, Any]], place: Path, slots: int, index: int
) -> tuple[int, float, bool, str]:
    """Look when all other slots do."""
    meet(place, slots, index)
    return look(table, index)


def check(seen: list[tuple[int, float, bool, str]], slots: int) -> None:
    assert [value for _, value, _, _ in seen] == [float(index) for index in range(len(seen))]
    assert len({process for process, _, _, _ in seen}) == slots
    assert not any(writeable for _, _, writeable, _ in seen)
    (memory,) = {memory for _, _, _, memory in seen}
    assert "memfd:exoskel-shared" in memory


def test_children_map_what_their_manager_has(tmp_path: Path) -> None:
    table = ex.Shared(np.arange(COUNT, dtype=float))
    program = ex.Farm(partial(look_together, table, tmp_path, 3))
    with ex.Manager(program, ex.ParDegree(3)) as manager:
        seen = list(manager.map(range(30)))
    assert not table.value.flags.writeable
    check([*seen, (0, 30.0, False, inode(table.value))], 4)


@pytest.mark.parametrize("size", [1 << 18, 1 << 30])
def test_the_slots_of_a_worker_have_one_copy(site: Site, tmp_path: Path, size: int) -> None:
    place = tmp_path / "met"
    place.mkdir()
    worker = site.worker("here", "--message-bytes-max", str(size), slots=3)
    table = ex.Shared(np.arange(COUNT, dtype=float))
    program = ex.Farm(partial(look_together, table, place, 3))
    with site.connect(program, 3, worker) as manager:
        seen = list(manager.map(range(30)))
    check(seen, 3)
    assert seen[0][3] != inode(table.value), "it came over the wire"


def test_a_slot_that_replaces_another_finds_what_the_others_have(
    site: Site, tmp_path: Path
) -> None:
    worker = site.worker("here", slots=2)
    table = ex.Shared(np.arange(COUNT, dtype=float))
    place = tmp_path / "first"
    place.mkdir()
    with site.connect(ex.Farm(partial(look_together, table, place, 2)), 2, worker) as manager:
        first = list(manager.map(range(4)))
        os.kill(first[0][0], 9)
        place.joinpath(str(first[0][0])).unlink()
        again = list(manager.map(range(20)))
    assert {memory for *_, memory in first} == {memory for *_, memory in again}
    assert len({process for process, *_ in first + again}) == 3


def read(table: ex.Shared[Any]) -> Any:
    """Return what is shared."""
    return table.value


def test_items_and_closures_and_several_managers_refer_to_it() -> None:
    words = ex.Shared({"a": 1, "b": [2, 3]})
    with (
        ex.Executor(1) as pool,
        ex.Manager(ex.Farm(lambda key: words.value[key]), ex.ParDegree(1)) as m,
    ):
        assert pool.submit(read, words).result() == {"a": 1, "b": [2, 3]}
        assert list(m.map(["a", "b"])) == [1, [2, 3]]
        assert list(m.map(iter(["a"]))) == [1]
    assert words.value == {"a": 1, "b": [2, 3]}
    assert words.value is words.value


def test_what_was_sent_stays_until_the_last_manager_is_closed() -> None:
    with ex.Manager(ex.Farm(read), ex.ParDegree(1)) as manager:
        # Nobody holds these when the slot asks for them.
        assert list(manager.map(ex.Shared(number) for number in range(40))) == list(range(40))
    gc.collect()
    links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
    assert not [
        link for link in links if os.path.islink(link) and "exoskel-shared" in os.readlink(link)
    ]


class Interlude:
    """When it is pickled, a whole other manager begins and ends."""

    def __reduce__(self) -> tuple[Any, ...]:
        ex.Manager(abs, ex.ParDegree(1)).close()
        return Interlude, ()


def first_of(table: ex.Shared[Any], _interlude: Interlude, index: int) -> Any:
    """Return one of the shared values."""
    return table.value[index]


def test_what_is_being_sent_outlives_another_manager() -> None:
    # Nobody but the pickle holds the table.
    program = [ex.Farm(partial(first_of, ex.Shared([3, 4]), Interlude()))]
    with ex.Manager(program.pop(), ex.ParDegree(1)) as manager:
        gc.collect()
        assert list(manager.map(range(2))) == [3, 4]


def test_one_that_is_closed_is_told_in_words() -> None:
    table = ex.Shared(np.zeros(COUNT))
    with ex.Manager(ex.Farm(read), ex.ParDegree(1)) as manager:
        table.close()
        (error,) = manager.map([table], errors="return")
        assert isinstance(error, ex.SharedLostError)
        assert "isn't there any more: keep the object, or a manager open" in str(error)
        assert list(manager.map([3], errors="return"))  # the slot goes on
    with pytest.raises(ex.SharedLostError):
        table.value  # noqa: B018


def test_one_that_is_closed_is_told_by_a_worker_too(site: Site) -> None:
    worker = site.worker("here")
    table = ex.Shared(np.zeros(COUNT))
    with site.connect(ex.Farm(read), 1, worker) as manager:
        table.close()
        (error,) = manager.map([table], errors="return")
    assert isinstance(error, ex.TaskError)
    assert error.kind == "exoskel.errors.SharedLostError"


def test_what_one_slot_has_it_keeps(site: Site) -> None:
    worker = site.worker("here")
    table = ex.Shared(list(range(100)))
    with site.connect(ex.Farm(read), 1, worker) as manager:
        assert list(manager.map([table])) == [list(range(100))]
        table.close()
        assert list(manager.map([table])) == [list(range(100))]


def test_a_value_that_can_t_be_pickled_is_told_at_once() -> None:
    with pytest.raises(ex.ProgramError, match="can't share lock: cannot pickle"):
        ex.Shared(threading.Lock())
    with pytest.raises(ex.ProgramError, match="can't share dict"):
        ex.Shared({"file": sys.stdout})


def test_the_same_contents_are_in_memory_once() -> None:
    first, second = ex.Shared(np.ones(COUNT)), ex.Shared(np.ones(COUNT))
    assert inode(first.value) == inode(second.value)
    assert pickle.loads(pickle.dumps(first)).value is second.value
    assert first.nbytes >= 8 * COUNT
    assert repr(first) == repr(second)
    first.close()
    assert second.value[0] == 1.0
    with ex.Manager(ex.Farm(partial(look, second)), ex.ParDegree(1)) as manager:
        assert next(manager.map([0]))[1] == 1.0


def test_views_and_small_arrays_and_all_orders_are_shared() -> None:
    grid = np.arange(12.0).reshape(3, 4)
    value = [
        grid,
        np.asfortranarray(np.ones((40, 50))),
        np.arange(10_000)[::2],
        np.array([]),
        b"x" * 5000,
    ]
    with ex.Manager(ex.Farm(read), ex.ParDegree(1)) as manager:
        (found,) = manager.map([ex.Shared(value)])
    for given, got in zip(value, found, strict=True):
        np.testing.assert_array_equal(given, got)


def run(script: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_script_shares_objects_of_its_own_classes() -> None:
    shown = run(
        """
        import exoskel as ex

        class Model:
            def __init__(self, slope):
                self.slope = slope

        model = ex.Shared(Model(3))

        def predict(x):
            return model.value.slope * x

        if __name__ == "__main__":
            with ex.Manager(predict, ex.ParDegree(2)) as manager:
                print(list(manager.map(range(4))), type(model.value) is Model)
        """
    )
    assert shown == "[0, 3, 6, 9] True\n"


def test_a_forked_child_leaves_it_to_its_parent() -> None:
    table = ex.Shared(np.ones(COUNT))
    with ex.Manager(ex.Farm(partial(look, table)), ex.ParDegree(1)) as manager:
        child = os.fork()
        if child == 0:
            table.close()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert next(manager.map([0]))[1] == 1.0


def of_a_forked_child(table: ex.Shared[Any]) -> str:
    """Return what a child reads that is forked before the slot has read the table."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = str(table.value)
        except BaseException as error:
            text = repr(error)
        os.write(writer, text.encode())
        os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return text


def test_a_child_that_a_task_forks_finds_it_or_is_told(site: Site) -> None:
    with ex.Manager(of_a_forked_child, ex.ParDegree(1)) as manager:
        assert list(manager.map([ex.Shared([5, 6])])) == ["[5, 6]"]
    with site.connect(ex.Farm(of_a_forked_child), 1, site.worker("here")) as manager:
        (text,) = manager.map([ex.Shared([7, 8])])
    assert "SharedLostError" in text
    assert "before the fork" in text


def test_a_child_of_multiprocessing_shares_objects_of_its_script(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(
        textwrap.dedent("""
            import multiprocessing
            import exoskel as ex

            class Model:
                slope = 3

            def predict(model):
                return model.value.slope

            def share():
                with ex.Manager(predict, ex.ParDegree(1)) as manager:
                    print(list(manager.map([ex.Shared(Model())])))

            if __name__ == "__main__":
                child = multiprocessing.get_context("spawn").Process(target=share)
                child.start()
                child.join()
        """)
    )
    shown = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (shown.stdout, shown.stderr) == ("[3]\n", "")


def test_an_index_into_a_shared_constant_says_where_its_value_is() -> None:
    table: Any = ex.Shared([1, 2])
    with pytest.raises(TypeError, match=r"write \.value\[\.\.\.\]"):
        table[0]
    assert table.value[0] == 1
