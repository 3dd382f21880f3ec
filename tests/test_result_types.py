"""Values of common libraries as plain data, and what hostile data in their place may do: raise, and nothing else."""

import copy
import datetime
import decimal
import pathlib
import pickle
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy
import pandas
import pyarrow
import pytest
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from tests.plain_data import from_data, is_plain, mutant, there_and_back, to_data

from exoskel import result_types
from exoskel.result_types import checks

# --- values -----------------------------------------------------------------------------------


def frame() -> Any:
    """Return a frame with a column of every kind."""
    made = pandas.DataFrame(
        {
            "float": [1.5, numpy.nan, 3.0],
            "whole": [1, 2, 3],
            "small": numpy.array([1, 2, 3], dtype="u1"),
            "truth": [True, False, True],
            "complex": [1j, 2, 3],
            "text": ["é", None, "bc"],
            "objects": [[1], {"a": (2,)}, None],
            "nullable text": pandas.array(["a", pandas.NA, "c"], dtype="string"),
            "nullable whole": pandas.array([1, None, 3], dtype="Int16"),
            "nullable unsigned": pandas.array([1, None, 3], dtype="UInt64"),
            "nullable float": pandas.array([0.5, None, 1], dtype="Float32"),
            "nullable truth": pandas.array([True, None, False], dtype="boolean"),
            "category": pandas.Categorical(["x", None, "y"], categories=["y", "x"], ordered=True),
            "number category": pandas.Categorical([5, 3, 5]),
            "moment": pandas.to_datetime(["2026-01-01", None, "2026-01-02"]).as_unit("ms"),
            "zoned": pandas.to_datetime(["2026-01-01", None, "2026-01-02"]).tz_localize("-03:30"),
            "utc": pandas.to_datetime(["2026-01-01", None, "2026-01-02"], utc=True),
            "span": pandas.to_timedelta([1, None, 3], unit="s"),
        }
    )
    made.attrs["unit"] = {"of": ["m", 1]}
    return made


def frames() -> list[Any]:
    whole = frame()
    return [
        whole,
        whole.iloc[:0],
        whole.iloc[::-2],
        whole.set_index(["whole", "text"]),
        whole.set_index("category"),
        whole.set_index("zoned"),
        whole.set_index("nullable whole"),
        whole[["float", "float", "whole"]],
        whole.groupby("truth").agg({"float": ["sum", "mean"], "whole": "max"}),
        pandas.DataFrame(numpy.arange(6.0).reshape(2, 3), columns=["a", "a", "b"]),
        pandas.DataFrame(numpy.zeros((0, 3))),
        pandas.DataFrame(numpy.zeros((2, 2), dtype="M8[s]")),
        pandas.DataFrame({"half": numpy.ones(2, dtype="f2"), "a": [1, 2]}),
        pandas.DataFrame(),
        pandas.DataFrame(index=range(5)),
        pandas.DataFrame(columns=["a", "b"]),
    ]


def indexes() -> list[Any]:
    return [
        pandas.Index([3, 1], name="x"),
        pandas.Index([]),
        pandas.Index(["a", 1, None, (1, 2)], dtype=object),
        pandas.Index([True, False]),
        pandas.RangeIndex(10, 0, -3, name=("a", 1)),
        pandas.date_range("2026", periods=3, tz="UTC", unit="us"),
        pandas.timedelta_range("1s", periods=3),
        pandas.CategoricalIndex(["a", "b", "a"]),
        pandas.MultiIndex.from_product([range(3), ["a", "b"]], names=["p", None]),
        pandas.MultiIndex.from_tuples([(1, None), (2, "b")]),
    ]


def datasets() -> list[Any]:
    whole = frame()[["float", "whole", "text", "moment", "span"]].to_xarray()
    whole["named"] = (("index", "other"), numpy.full((3, 2), "aé"), {"units": "m"})
    whole.attrs["history"] = ["made", 1]
    grid = xarray.DataArray(
        numpy.ones((2, 3), dtype="f4"),
        dims=["x", "t"],
        coords={
            "x": ["a", "b"],
            "t": pandas.date_range("2026", periods=3),
            "mark": ("t", [True, False, True]),
            "height": 2.5,
        },
        name="grid",
        attrs={"units": "K"},
    )
    return [whole, whole["float"], grid, grid.variable, xarray.DataArray(3.0), xarray.Dataset()]


def arrow_values() -> list[Any]:
    moment = datetime.datetime(2026, 1, 1, 12)
    table = pyarrow.table(
        {
            "whole": [1, None, 3],
            "half": pyarrow.array(numpy.ones(3, dtype="f2")),
            "text": ["é", None, "bc"],
            "large": pyarrow.array(["a", "", None], pyarrow.large_string()),
            "truth": [True, None, False],
            "bytes": [b"a", None, b""],
            "day": [moment.date(), None, moment.date()],
            "day64": pyarrow.array([moment.date(), None, None], pyarrow.date64()),
            "time": [moment.time(), None, moment.time()],
            "moment": pyarrow.array([moment, None, moment], pyarrow.timestamp("ms")),
            "utc": pyarrow.array([moment, None, moment], pyarrow.timestamp("us", "UTC")),
            "zoned": pyarrow.array([moment, None, moment], pyarrow.timestamp("s", "+02:00")),
            "span": pyarrow.array([1, None, 2], pyarrow.duration("ns")),
            "number": [decimal.Decimal("1.50"), None, decimal.Decimal("-7")],
            "nothing": pyarrow.nulls(3),
            "list": [[1, None], None, [2, 3, 4]],
            "large list": pyarrow.array(
                [[["a"], None], [], None], pyarrow.large_list(pyarrow.list_(pyarrow.string()))
            ),
            "struct": [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}],
            "dictionary": pyarrow.array(["a", None, "b"]).dictionary_encode(),
        }
    )
    values = [table, table.slice(1), table.slice(2, 1), table.slice(3), table.slice(0, 0)]
    values += [pyarrow.concat_tables([table, table.slice(1)]), pyarrow.table({})]
    values += [table.to_batches()[0], table.to_batches()[0].slice(1, 1)]
    for column in table.columns:
        values += [column, column.chunk(0), column.chunk(0).slice(1), column.slice(3)]
    values.append(pyarrow.array([True, None, False] * 7).slice(9, 10))
    return values


def matrices() -> list[Any]:
    made = sparse.random(6, 8, density=0.4, format="csr", rng=1)
    found = [
        getattr(sparse, f"{name}_{kind}")(made)
        for name in ("csr", "csc", "coo", "bsr", "dia")
        for kind in ("array", "matrix")
    ]
    blocks = sparse.bsr_array(made, blocksize=(2, 4))
    return [*found, blocks, made.astype(bool), sparse.csr_array((0, 5)), made[:, ::-2]]


def same(got: Any, expected: Any) -> bool:
    """Compare two values of one library in all that travels."""
    assert type(got) is type(expected)
    if isinstance(expected, pandas.DataFrame):
        pandas.testing.assert_frame_equal(got, expected, check_freq=False)
        return bool(got.attrs == expected.attrs)
    if isinstance(expected, pandas.Index):
        pandas.testing.assert_index_equal(got, expected, check_freq=False)
        return True
    if type(expected).__module__.startswith("xarray"):
        return bool(got.identical(expected))
    if type(expected).__module__.startswith("pyarrow"):
        return bool(got.equals(expected)) and str(got.to_pylist()) == str(expected.to_pylist())
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    return bool((got != expected).nnz == 0)


SAMPLES: dict[str, Callable[[], list[Any]]] = {
    "frames": frames,
    "indexes": indexes,
    "xarray": datasets,
    "arrow": arrow_values,
    "sparse": matrices,
}


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES.keys())
def test_values_come_back_as_they_were(samples: Callable[[], list[Any]]) -> None:
    for value in samples():
        assert same(there_and_back(value), value)


def test_series_and_moments_come_back() -> None:
    whole = frame()
    for name in whole.columns:
        series = whole[name].rename(("a", 1))
        pandas.testing.assert_series_equal(there_and_back(series), series)
    for moment in (
        pandas.Timestamp("2026-01-01T12:00:00.5"),
        pandas.Timestamp("2026-01-01", tz="+05:30"),
        pandas.Timestamp(1, unit="s", tz="UTC"),
        pandas.Timedelta("-3s"),
    ):
        back = there_and_back(moment)
        assert (back, back.unit, type(back)) == (moment, moment.unit, type(moment))


@settings(deadline=None)
@given(
    texts=st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))),
    nullable=st.booleans(),
)
def test_any_texts_come_back(texts: list[str | None], nullable: bool) -> None:
    missing = pandas.NA if nullable else numpy.nan
    for storage in ("python", "pyarrow"):
        dtype = pandas.StringDtype(storage, na_value=missing)
        series = pandas.Series(texts, dtype=dtype)
        back = there_and_back(series)
        assert back.dtype.na_value is missing
        assert [None if pandas.isna(text) else text for text in back] == texts


@settings(deadline=None)
@given(
    values=st.lists(st.none() | st.integers(-(1 << 63), (1 << 63) - 1)),
    bounds=st.tuples(st.integers(0, 5), st.integers(0, 5)),
)
def test_any_part_of_an_arrow_array_comes_back(
    values: list[int | None], bounds: tuple[int, int]
) -> None:
    whole = pyarrow.array(values, pyarrow.int64())
    for made in (whole, pyarrow.array([[v, None] for v in values], pyarrow.list_(pyarrow.int64()))):
        part = made.slice(*bounds)
        assert there_and_back(part).equals(part)


def test_texts_are_read_without_arrow() -> None:
    """A worker that has Arrow answers a manager that doesn't."""
    script = """
import sys; sys.modules["pyarrow"] = None
import numpy, pandas
from exoskel import result_types
read = result_types.reader("pandas.Series:1")
blob = numpy.frombuffer("aébc".encode(), dtype="u1")
offsets, mask = numpy.array([0, 3, 3, 5]), numpy.array([False, True, False])
series = read((("text", False, (offsets, blob, mask)), ("range", None, 0, 3, 1), None, {}))
assert series.tolist()[::2] == ["aé", "bc"] and series.isna().tolist() == [False, True, False]
try:
    read((("text", False, (numpy.array([0, 2, 5]), blob, None)), ("range", None, 0, 2, 1), None, {}))
except ValueError:
    print("refused")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "refused"), done.stderr


# --- what is refused, with a cure -----------------------------------------------------------------


def refused_values() -> list[tuple[Any, str]]:
    days = pandas.date_range("2026", periods=2)
    return [
        (pandas.Series(pandas.period_range("2026", periods=2, freq="D")), "to_timestamp"),
        (pandas.Series(pandas.interval_range(0, 2)), "ends"),
        (pandas.Series(pandas.arrays.SparseArray([0, 1])), "to_dense"),
        (pandas.Series([1], dtype="int64[pyarrow]"), "numpy_nullable"),
        (pandas.Series(days.tz_localize("Europe/Rome")), "UTC"),
        (pandas.Series(numpy.ones(2, dtype=numpy.longdouble)), "float64"),
        (pandas.period_range("2026", periods=2, freq="D"), "to_timestamp"),
        (sparse.dok_array((2, 2)), r"tocsr\(\)"),
        (sparse.lil_matrix((2, 2)), r"tocsr\(\)"),
        (sparse.coo_array(numpy.ones((2, 2, 2))), "reshape"),
        (pyarrow.array([[(1, 2)]], pyarrow.map_(pyarrow.int8(), pyarrow.int8())), "two lists"),
        (pyarrow.array(["a"], pyarrow.string_view()), "large_string"),
        (pyarrow.array([1], pyarrow.timestamp("s", "Europe/Rome")), "UTC"),
        (
            frame()[["whole"]]
            .set_index([[1, 2, 3], [4, 5, 6]])
            .to_xarray()
            .stack(z=["level_0", "level_1"]),
            "reset_index",
        ),
    ]


def test_what_cannot_travel_is_refused_with_a_cure() -> None:
    for value, cure in refused_values():
        with pytest.raises(TypeError, match=cure):
            to_data(value)


def test_only_exact_classes_are_found() -> None:
    class DataFrame(pandas.DataFrame):  # type: ignore[misc]
        pass

    fake = type("DataFrame", (), {"__module__": "pandas"})
    assert result_types.find(DataFrame) is None
    assert result_types.find(fake) is None
    assert result_types.find(dict) is None
    for name in ("pandas.DataFrame", "os.system:1", "scipy.sparse.dok_array:1", "", "pandas.:1"):
        assert result_types.reader(name) is None


def test_a_library_that_is_missing_is_named() -> None:
    script = """
import sys; sys.modules["scipy"] = None
from exoskel import result_types
assert not {"numpy", "pandas"} & set(sys.modules)
try:
    result_types.reader("scipy.sparse.csr_array:1")
except ImportError as error:
    print(error)
# It isn't looked for again.
sys.meta_path.clear()
del sys.modules["scipy"]
try:
    result_types.reader("scipy.sparse.csr_array:1")
except ImportError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stdout.count("pip install scipy") == 2, done.stderr


# --- hostile data --------------------------------------------------------------------------------


def use(value: Any) -> None:
    """Do with a value what people do with results."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for deed in USES:
            # What a library refuses by an exception is its affair. A crash, or an allocation out of proportion, is ours.
            try:
                deed(value)
            except MemoryError:
                raise
            except Exception:
                continue


USES: list[Callable[[Any], Any]] = [
    repr,
    lambda v: v.sum(),
    lambda v: v.sum(axis=0),
    lambda v: v.sum(numeric_only=True),
    lambda v: v.iloc[-1],
    lambda v: v[v.index[0]],
    lambda v: v.sort_values(),
    lambda v: v.reset_index(),
    lambda v: v.astype(str),
    lambda v: v.describe(),
    lambda v: v.get_indexer(v),
    lambda v: v.to_frame(),
    lambda v: v.isel({d: 0 for d in v.dims}),
    lambda v: v.to_pylist(),
    # Without Arrow's pool of threads, which never ends.
    lambda v: v.to_pandas(use_threads=False),
    lambda v: v.combine_chunks(),
    lambda v: v.take([0]),
    lambda v: v @ numpy.ones(v.shape[1]),
    lambda v: v.tocsc().sum_duplicates(),
    lambda v: (v.T @ v).sum(),
    lambda v: v.tocsr()[:, -1],
]


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES.keys())
def test_hostile_data_raises_or_gives_what_can_be_used(samples: Callable[[], list[Any]]) -> None:
    hostile(samples(), seed=1, count=500)


def hostile(values: list[Any], seed: int, count: int) -> tuple[int, int]:
    """Read so many changed data; return how many were refused and how many taken."""
    chance = random.Random(seed)
    originals = [to_data(value) for value in values]
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(count):
            name, data = chance.choice(originals)
            changed = data
            for _ in range(chance.choice([1, 1, 1, 2, 4])):
                changed = mutant(changed, chance)
            try:
                value = from_data(name, copy.deepcopy(changed))
            except (TypeError, ValueError):
                refused += 1
            else:
                use(value)
    return refused, count - refused


def rows(count: int) -> Any:
    return ("range", None, 0, count, 1)


def values(*numbers: Any, dtype: Any = "i8") -> Any:
    return ("values", None, numpy.array(numbers, dtype=dtype))


BAD_TRUTH = numpy.array([0, 2], dtype="u1").view(bool)
I4 = numpy.dtype("i4")
HOSTILE: list[tuple[str, Any, str]] = [
    ("pandas.DataFrame:1", (rows(0), rows(10**12), (), {}), "at most"),
    ("pandas.DataFrame:1", (rows(10**12), rows(0), numpy.zeros((10**12, 0)), {}), "no bytes"),
    ("pandas.DataFrame:1", (rows(2), rows(1), (numpy.ones(1),), {}), "2 labels, expected 1"),
    ("pandas.DataFrame:1", (rows(2), rows(1), (numpy.ones(1), numpy.ones(2)), {}), "one length"),
    ("pandas.Index:1", rows(10**12), "at most"),
    ("pandas.DataFrame:1", (rows(9000), rows(1), (numpy.ones(1),) * 9000, {}), "9000 columns"),
    ("pandas.Index:1", ("multi", (None,) * 99, (numpy.ones(1),) * 99, ()), "at most 64"),
    ("xarray.Dataset:1", ({i: ((), numpy.array(1), {}) for i in range(5000)}, {}, {}), "5000"),
    (
        "xarray.Dataset:1",
        (
            {i: (tuple(range(32 * i, 32 * i + 32)), numpy.zeros((1,) * 32), {}) for i in range(40)},
            {},
            {},
        ),
        "more than 1024 dimensions",
    ),
    ("pandas.Index:1", ("values", 1 << 600, numpy.ones(1)), "an int of 601 bits"),
    (
        "pandas.Series:1",
        (
            (
                "categories",
                numpy.array([0], "i1"),
                numpy.array([1 << 600, decimal.Decimal(1)], dtype=object),
                False,
            ),
            rows(1),
            None,
            {},
        ),
        "an int of 601 bits",
    ),
    ("pandas.Index:1", ("values", [], numpy.ones(1)), "got the name of an index as list"),
    ("pandas.Series:1", (BAD_TRUTH, rows(2), None, {}), "neither 0 nor 1"),
    ("pandas.Series:1", (("nullable", numpy.ones(2), BAD_TRUTH), rows(2), None, {}), "neither"),
    (
        "pandas.Series:1",
        (("categories", numpy.array([2], "i1"), numpy.array([5, 6]), False), rows(1), None, {}),
        "out of range",
    ),
    (
        "pandas.Series:1",
        (("categories", numpy.array([0], "i1"), numpy.array([5, 5]), False), rows(1), None, {}),
        "doubles",
    ),
    (
        "pandas.Index:1",
        ("multi", (None,), (numpy.array([1, 2]),), (numpy.array([0, 2], "i1"),)),
        "codes of a MultiIndex out of range",
    ),
    (
        "pandas.Series:1",
        (("text", False, (numpy.array([0, 9]), numpy.zeros(3, "u1"), None)), rows(1), None, {}),
        "out of range",
    ),
    (
        "xarray.Variable:1",
        (("x",), numpy.array([0x110000], "u4").view("U1"), {}),
        "beyond Unicode",
    ),
    ("xarray.Variable:1", (("x", "y"), numpy.zeros((0, 1 << 40)), {}), "no bytes"),
    ("pyarrow.Array:1", ("null", (10**12, None, numpy.zeros(1, "u1"))), "1 bytes of nulls"),
    (
        "pyarrow.Array:1",
        ("utf8", (1, None, (numpy.array([0, 99], I4), numpy.zeros(3, "u1")))),
        "out of range",
    ),
    (
        "pyarrow.Array:1",
        ("utf8", (1, None, (numpy.array([0, 1], I4), numpy.array([255], "u1")))),
        "UTF8|UTF-8",
    ),
    (
        "pyarrow.Array:1",
        (("timestamp", "s", "../../etc/passwd"), (0, None, numpy.zeros(0, "u1"))),
        "time zone",
    ),
    (
        "scipy.sparse.csr_array:1",
        ((1, 2), numpy.ones(1), numpy.array([2], I4), numpy.array([0, 1], I4)),
        "indices of a sparse matrix out of range",
    ),
    (
        "scipy.sparse.csc_matrix:1",
        ((2, 2), numpy.ones(2), numpy.zeros(2, I4), numpy.array([0, 9, 2], I4)),
        "fall",
    ),
    (
        "scipy.sparse.coo_array:1",
        ((2, 2), numpy.ones(1), numpy.array([-1], I4), numpy.array([0], I4)),
        "out of range",
    ),
    (
        "scipy.sparse.coo_array:1",
        ((2, 10**12), numpy.ones(0), numpy.zeros(0, I4), numpy.zeros(0, I4)),
        "columns of a sparse matrix out of range",
    ),
    (
        "scipy.sparse.dia_array:1",
        ((2, 2), numpy.ones((1, 2)), numpy.array([5], I4)),
        "out of range",
    ),
]


@pytest.mark.parametrize(("name", "data", "message"), HOSTILE)
def test_data_that_lies_is_refused(name: str, data: Any, message: str) -> None:
    assert is_plain(data)
    with pytest.raises((TypeError, ValueError), match=message):
        from_data(name, data)


def test_many_categories_with_chosen_hashes_are_refused() -> None:
    """Whole numbers that differ by Python's modulus have one hash: a table of them costs a comparison for each pair."""
    modulus = sys.hash_info.modulus
    numbers = numpy.array([modulus * i for i in range(1, 10000)], dtype=object)
    with pytest.raises(ValueError, match="collide too often"):
        from_data(
            "pandas.Series:1",
            (("categories", numpy.array([0], "i1"), numbers, False), rows(1), None, {}),
        )


def test_errors_show_no_text_of_the_sender() -> None:
    for name in sorted(set(result_types._READERS)):
        if name.startswith("torch"):
            continue
        for data in ("\x1b[31m", ("\x1b[31m",) * 2, ("\x1b[31m",) * 3, ("\x1b[31m",) * 4):
            with pytest.raises((TypeError, ValueError)) as caught:
                from_data(name, data)
            assert re.search(r"\x1b|x1b", str(caught.value)) is None


# --- what the interpreter is asked to do --------------------------------------------------------------

# Reads what stands in the file that it is given, with a hook from the first call on.
WATCHER = """
import pickle, sys
from exoskel import result_types

FORBIDDEN = ("import", "exec", "compile", "open", "marshal.", "ctypes.", "socket.", "os.", "subprocess.")
with open(sys.argv[1], "rb") as file:
    answers = pickle.load(file)
readers = {name: result_types.reader(name) for name in {name for name, _ in answers}}
events, at = [], None

def watch(event, arguments):
    if at is not None and event.startswith(FORBIDDEN):
        events.append(f"{at}: {event} {arguments!r}"[:200])

sys.addaudithook(watch)
for name, data in answers:
    at = name
    try:
        readers[name](data)
    except (TypeError, ValueError):
        pass
    at = None
assert events == [], events
at = "the hook itself"
open("/dev/null").close()
assert len(events) == 1
print(len(answers))
"""


@pytest.mark.parametrize("samples", SAMPLES.values(), ids=SAMPLES.keys())
def test_reading_asks_nothing_of_the_interpreter(
    samples: Callable[[], list[Any]], tmp_path: pathlib.Path
) -> None:
    """In a process that has loaded one library and nothing but: what others have imported would hide an import."""
    chance = random.Random(2)
    answers = []
    for value in samples():
        name, data = to_data(value)
        answers += [(name, data), *((name, mutant(data, chance)) for _ in range(20))]
    file = tmp_path / "answers"
    file.write_bytes(pickle.dumps(answers))
    done = subprocess.run(
        [sys.executable, "-c", WATCHER, file], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(len(answers)), done.stderr


def test_limits_have_room_for_honest_values() -> None:
    long = pandas.RangeIndex(checks.UNBACKED_LENGTH_MAX)
    assert there_and_back(long).equals(long)
    longer = pandas.RangeIndex(checks.UNBACKED_LENGTH_MAX + 1)
    assert len(there_and_back(longer)) == len(longer)
    wide = sparse.csr_array((3, 1 << 20))
    assert there_and_back(wide).shape == wide.shape
