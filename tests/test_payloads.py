"""What items and results are made of: each arrives as it was, large parts beside the pickle and writable."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import exoskel as ex


@pytest.fixture
def manager() -> Iterator[ex.Manager]:
    """A manager of two slots that give back what they get."""
    with ex.Manager(ex.Farm(lambda item: item), ex.ParDegree(2)) as made:
        yield made


ARRAYS: dict[str, Any] = {
    "small": np.arange(6, dtype=np.int16).reshape(2, 3),
    "large": np.arange(300_000, dtype=np.float64).reshape(3, -1),
    "fortran": np.asfortranarray(np.arange(40_000.0).reshape(200, 200)),
    "strided": np.arange(200_000)[::2],
    "reversed": np.arange(50_000)[::-1],
    "scalar array": np.array(5.5),
    "empty": np.zeros((0, 3)),
    "bool": np.ones((300, 300), dtype=bool),
    "text": np.array(["a", "bc"]),
    "records": np.zeros(5000, dtype=[("x", "<f4"), ("name", "S7")]),
    "dates": np.array(["2026-01-02"], dtype="datetime64[D]"),
    "objects": np.array([1, "a", None, [2]], dtype=object),
    "big-endian": np.arange(20_000, dtype=">i4"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_arrive_as_they_were_and_writable(manager: ex.Manager, name: str) -> None:
    array = ARRAYS[name]
    results = list(manager.map([array, [array, array], (array, "beside")]))
    assert results[1][0] is results[1][1]
    for result in (results[0], results[1][0], results[2][0]):
        assert type(result) is np.ndarray
        assert result.dtype == array.dtype
        assert result.shape == array.shape
        assert np.array_equal(result, array)
        assert result.flags.writeable
        result[...] = 0


def test_arrays_are_writable_at_the_worker_and_the_caller_s_stay_as_they_are() -> None:
    def task(array: Any) -> Any:
        array += 1
        return array

    original = np.zeros(100_000)
    with ex.Manager(ex.Farm(task), ex.ParDegree(2)) as manager:
        for result in manager.map([original] * 5):
            assert result.sum() == 100_000
    assert not original.any()


def test_scalars_of_numpy_keep_their_types(manager: ex.Manager) -> None:
    items = [np.float32(1.5), np.int64(3), np.bool_(True), np.complex128(1j), np.datetime64(5, "s")]
    results = list(manager.map(items))
    assert results == items
    assert [type(result) for result in results] == [type(item) for item in items]


SIZES = [0, 1, 255, 256, 8191, 8192, 65_535, 65_536, 65_537, 262_143, 262_144, 262_145, 3_000_001]


@pytest.mark.parametrize("first", [0x00, 0x80, 0x95, 0x2E], ids=hex)
def test_bytes_of_all_sizes_arrive(manager: ex.Manager, first: int) -> None:
    """Also those that begin like a frame or the end of a pickle."""
    items: list[Any] = []
    for size in SIZES:
        data = (bytes([first]) + bytes(range(256)) * (size // 256 + 1))[:size]
        items += [data, bytearray(data), [data, data, {"key": (data, bytearray(data))}]]
    for item, result in zip(items, manager.map(items), strict=True):
        assert result == item
        assert type(result) is type(item)
    assert isinstance(items[2], list)


def test_one_object_in_two_places_stays_one(manager: ex.Manager) -> None:
    data, shared = bytes(200_000), [1]
    (result,) = manager.map([[data, data, shared, shared]])
    assert result[0] is result[1]
    assert result[2] is result[3]
    cycle: list[Any] = []
    cycle.append(cycle)
    (result,) = manager.map([cycle])
    assert result[0] is result


def test_numbers_and_text_of_all_sizes_arrive(manager: ex.Manager) -> None:
    items: list[Any] = [
        sign * (1 << bits) + offset
        for bits in (0, 7, 8, 15, 16, 31, 32, 62, 63, 64, 2000)
        for sign in (1, -1)
        for offset in (-1, 0, 1)
    ]
    items += [
        0.0,
        -0.0,
        1e308,
        float("inf"),
        True,
        False,
        None,
        ...,
        1j,
        "",
        "é" * 40_000,
        "\ud800",
    ]
    items += [(), (1,), (1, (2, (3, (4, (5,))))), tuple(range(300)), {}, [], set(), frozenset([1])]
    results = list(manager.map(items))
    assert list(map(repr, results)) == list(map(repr, items))


def test_results_may_be_far_larger_than_items() -> None:
    with ex.Manager(ex.Farm(lambda item: bytes(item)), ex.ParDegree(2)) as manager:
        sizes = [1 << 20] * 100
        assert list(map(len, manager.map(sizes))) == sizes


def test_an_item_or_result_may_take_the_place_of_many_frames(manager: ex.Manager) -> None:
    data = np.arange(24 << 20, dtype=np.uint8)
    for result in manager.map([data, bytes(data)]):
        assert len(result) == len(data)
        assert bytes(result[-300:]) == bytes(data[-300:])


@pytest.mark.parametrize("size", [65_536, 1 << 20, (4 << 20) + 1, 33 << 20])
def test_large_results_that_are_kept_stay_as_they_came(manager: ex.Manager, size: int) -> None:
    """The memory of one is never given to another: every result, kept to the end, is its own item."""
    count = 40 if size <= 1 << 20 else 3

    def items() -> Iterator[Any]:
        for number in range(count):
            yield number.to_bytes(8, "big") * (size // 8)
            yield np.full(size, number, dtype=np.uint8)
            yield (number, number.to_bytes(8, "big") * (size // 8))

    kept = list(manager.map(items()))
    assert len(kept) == 3 * count
    for expected, result in zip(items(), kept, strict=True):
        assert (
            np.array_equal(expected, result)
            if isinstance(result, np.ndarray)
            else expected == result
        )
