"""PyTorch's tensors as plain data."""

import copy
import random
from typing import Any

import numpy
import pytest
from tests.plain_data import from_data, mutant, there_and_back, to_data

torch = pytest.importorskip(
    "torch", reason="torch is missing: its wheel for Linux wants some gigabytes of CUDA"
)
# Its threads stay for good, and a test that leaves one behind fails.
torch.set_num_threads(1)


def tensors() -> list[Any]:
    return [
        torch.arange(6).reshape(2, 3).T,
        torch.ones(3, dtype=torch.bfloat16, requires_grad=True),
        torch.ones(2, dtype=torch.complex64).conj(),
        torch.ones(2, dtype=torch.float16)[::2],
        torch.tensor(True),
        torch.zeros((0, 4)),
    ]


def test_tensors_come_back() -> None:
    for tensor in tensors():
        back = there_and_back(tensor)
        assert (back.dtype, back.requires_grad) == (tensor.dtype, tensor.requires_grad)
        assert torch.equal(back, tensor)


def test_a_parameter_comes_back_as_a_tensor() -> None:
    back = there_and_back(torch.nn.Parameter(torch.ones(2)))
    assert type(back) is torch.Tensor
    assert back.requires_grad


# Quantized tensors are on their way out.
@pytest.mark.filterwarnings("ignore:.*quantize_per_tensor:UserWarning")
def test_tensors_that_cannot_travel_are_refused_with_a_cure() -> None:
    for tensor, cure in (
        (torch.ones(2, device="meta"), r"cpu\(\)"),
        (torch.ones((2, 2)).to_sparse(), "to_dense"),
        (torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8), "dequantize"),
    ):
        with pytest.raises(TypeError, match=cure):
            to_data(tensor)


def test_data_that_lies_is_refused() -> None:
    truth = numpy.array([0, 7], dtype="u1").view(bool)
    for data, message in (
        (("bool", truth, False), "neither 0 nor 1"),
        (("int8", numpy.zeros(2, "i1"), True), "gradients"),
        (("load", numpy.zeros(2), False), "known"),
        (("float64", numpy.zeros(2, dtype=object), False), "expected f8"),
        (("float64", numpy.zeros((0, 1 << 40)), False), "no bytes"),
        (("float64", [1.0], False), "list"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            from_data("torch.Tensor:1", data)


def test_hostile_data_raises_or_gives_what_can_be_used() -> None:
    chance = random.Random(1)
    originals = [to_data(tensor) for tensor in tensors()]
    for _ in range(500):
        name, data = chance.choice(originals)
        try:
            tensor = from_data(name, copy.deepcopy(mutant(data, chance)))
        except (TypeError, ValueError):
            continue
        assert repr(tensor)
        assert tensor.detach().to(torch.complex128).sum().shape == ()
