"""The attacks that once ran code through answers, and their kin: each with the program that it carried then."""

from __future__ import annotations

import collections
import pickle
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
from tests.site import POLICY, Site
from tests.test_hostile_worker import HONEST, ITEMS, Company, connected, staged

import exoskel as ex
from exoskel import _core

OPENED = """
[domain.rented]
addresses = ["127.0.0.0/24"]
names = ["*.rented.example.org"]
results = "pickle"
"""
# Another domain that the worker is in, and that says nothing.
SILENT = """
[domain.everything]
addresses = ["127.0.0.0/8"]
names = ["*.example.org"]
"""


@pytest.fixture(scope="module")
def company(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Company]:
    made = Company(tmp_path_factory.mktemp("company"))
    yield made
    made.close()


@pytest.mark.parametrize("attack", ["program", "program_as_an_exception", "program_as_data"])
@pytest.mark.parametrize(
    "program",
    [
        ex.Farm(abs),
        ex.Pipeline(abs, ex.Seq(float)),
        ex.Pipeline(ex.Seq(abs), float),  # type: ignore[arg-type]  # abs is generic
    ],
    ids=["one stage", "a serial stage behind", "a farm behind"],
)
def test_no_stage_and_no_other_worker_runs_what_a_stranger_answers(
    attack: str, program: ex.Skeleton[Any, Any], company: Company, site: Site, tmp_path: Path
) -> None:
    """Neither the manager nor a trusted worker runs a stranger's program, whoever hands it on.

    Method: the independent worker answers programs and raises them, beside a real worker of a domain that says `results = "pickle"`.
    """
    worker = site.worker(HONEST, credential=company.site.place / "honest.pem")
    with (
        staged(company, attack, tmp_path) as ports,
        connected(
            company,
            {"hostile": ports["hostile"]},
            "execute",
            {"workers": [worker.line]},
            program,
        ) as manager,
    ):
        outcomes = list(manager.map(ITEMS, errors="return"))
    assert not (tmp_path / "canary").exists()
    expected = [abs(item) for item in ITEMS]
    wrong = [
        outcome for outcome, result in zip(outcomes, expected, strict=True) if outcome != result
    ]
    assert all(type(outcome) is ex.ResultRejectedError for outcome in wrong), wrong


@pytest.mark.parametrize("policy", [OPENED, OPENED + SILENT], ids=["opened", "silent domain too"])
def test_a_domain_that_says_nothing_closes_what_another_one_opens(
    policy: str, company: Company, tmp_path: Path
) -> None:
    """The attack is real: where each domain of the worker says `results = "pickle"`, its program runs."""
    file = tmp_path / "policy.toml"
    file.write_text(POLICY + policy)
    with (
        staged(company, "program", tmp_path) as ports,
        connected(company, {"hostile": ports["hostile"]}, "execute", {"policy": file}) as manager,
    ):
        outcomes = list(manager.map(range(-3, 0), errors="return"))
    is_closed = SILENT in policy
    assert (tmp_path / "canary").exists() != is_closed
    assert any(isinstance(outcome, ex.ResultRejectedError) for outcome in outcomes) == is_closed


INTERFACE = {"typestr": "|O8", "shape": [1], "data": [0x7F0000001000, False], "version": 3}


@pytest.mark.parametrize(
    "value",
    [
        {"__array_interface__": INTERFACE},
        {"__array_struct__": 1, "__class__": "numpy.ndarray", "__reduce__": ["os.system", ["id"]]},
        [numpy.void(b"12345678"), {"__array_interface__": INTERFACE}],
        numpy.array([({"__array_interface__": INTERFACE},)], object),
        collections.OrderedDict(__array_interface__=INTERFACE),
        [numpy.zeros(1, [("__array_interface__", "<u8")])[0], INTERFACE],
    ],
    ids=["dict", "names", "void scalar", "object array", "ordered dict", "record"],
)
def test_what_numpy_looks_for_stays_data(value: Any) -> None:
    """Names that NumPy would ask an object for are keys of dicts here, and no object has attributes of a stranger's choice."""
    body, parts = _core.data_encode(value)
    arrived = _core.data_decode(body, [bytes(part) for part in parts])
    target = numpy.zeros(1, "<u8")
    with pytest.raises((TypeError, ValueError)):
        target[...] = arrived if isinstance(arrived, dict) else INTERFACE
    made = numpy.empty(1, object)
    made[0] = arrived
    assert made[0] is arrived
    assert not hasattr(arrived, "__array_interface__") or isinstance(arrived, numpy.ndarray)


@pytest.mark.parametrize(
    "value",
    [types.SimpleNamespace(a=1), ImportError("x", name="os", path="y"), pickle.PicklingError("x")],
    ids=["namespace", "import error", "other exception"],
)
def test_nothing_arrives_with_attributes_of_a_strangers_choice(value: Any) -> None:
    if isinstance(value, types.SimpleNamespace):
        with pytest.raises(ex.ResultRejectedError, match="SimpleNamespace"):
            _core.data_encode(value)
        return
    body, _parts = _core.data_encode(value)
    arrived = _core.data_decode(body)
    assert not vars(arrived) or type(arrived) is ex.TaskError
    assert getattr(arrived, "name", None) is None
    assert getattr(arrived, "name_from", None) is None
